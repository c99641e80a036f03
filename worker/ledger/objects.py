"""Files in an object store (ADR-20), written and read through our own streams code.

The layout is the one every NATS client knows, so ``nats object get`` reads what is kept here. An
object's description is written last: until then nobody sees it.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schemas import headers
from schemas.names import object_stream
from worker.bus.follow import FilteredReader
from worker.bus.jetstream import JetStream
from worker.ledger.errors import LedgerError

CHUNK_BYTES: Final = 128 * 1024
_WAIT_MS: Final = 10_000


class ObjectDamaged(LedgerError):
    """An object is not what its description says."""

    reason = "object-damaged"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object's description.

    Attributes:
        name: Its name.
        nuid: Names its chunks.
        size: Bytes.
        chunks: How many chunks they are in.
        digest: ``SHA-256=`` and its base64url.
        metadata: Names and values of its writer's choice.
    """

    name: str
    nuid: str
    size: int
    chunks: int
    digest: str
    metadata: Mapping[str, str]


class ObjectStore:
    """One object store bucket.

    Args:
        js: Where.
        bucket: Its name.
    """

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js = js
        self._bucket = bucket
        self._stream = object_stream(bucket)

    async def write_chunks(self, chunks: AsyncIterator[bytes]) -> ObjectInfo:
        """Store the bytes of an object that has no name yet; ``describe`` makes it visible.

        Raises:
            BusError: The broker did not take it; what was stored is found by ``orphans``.
        """
        nuid = secrets.token_hex(11)
        digest, size, count = hashlib.sha256(), 0, 0
        async for chunk in chunks:
            await self._js.publish(f"$O.{self._bucket}.C.{nuid}", chunk, timeout_ms=_WAIT_MS)
            digest.update(chunk)
            size += len(chunk)
            count += 1
        return ObjectInfo("", nuid, size, count, _digest(digest.digest()), {})

    async def describe(
        self, written: ObjectInfo, name: str, metadata: Mapping[str, str], at_ms: int
    ) -> ObjectInfo:
        """Give an object its name; only now it exists."""
        info = ObjectInfo(
            name, written.nuid, written.size, written.chunks, written.digest, dict(metadata)
        )
        body = {
            "name": name,
            "bucket": self._bucket,
            "nuid": info.nuid,
            "size": info.size,
            "chunks": info.chunks,
            "mtime": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
            "digest": info.digest,
            "metadata": info.metadata,
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        await self._js.publish(
            self._subject_of(name), json.dumps(body).encode(), headers={headers.ROLLUP: "sub"}
        )
        return info

    async def read_chunks(self, info: ObjectInfo) -> AsyncIterator[bytes]:
        """The bytes of an object, chunk by chunk.

        Raises:
            ObjectDamaged: After the last chunk, if they are not what the description says.
            GapError: The reading was interrupted; begin again.
        """
        digest, count = hashlib.sha256(), 0
        reader = await FilteredReader.open(
            self._js, self._stream, f"$O.{self._bucket}.C.{info.nuid}", batch=16
        )
        try:
            while count < info.chunks:
                messages = await reader.next_batch(16, _WAIT_MS)
                if not messages:
                    break
                for message in messages:
                    count += 1
                    digest.update(message.data)
                    yield message.data
        finally:
            await reader.close()
        if count != info.chunks or _digest(digest.digest()) != info.digest:
            raise ObjectDamaged(f"object {info.name} is not what its description says")

    async def list(self) -> list[ObjectInfo]:
        """Every object's description; one that cannot be read is left out."""
        found = await self._js.stream_info(self._stream, subjects_filter=f"$O.{self._bucket}.M.>")
        infos = []
        for subject in found.subjects:
            message = await self._js.last_message(self._stream, subject)
            info = None if message is None else _parse(message.data)
            if info is not None:
                infos.append(info)
        return infos

    async def delete(self, info: ObjectInfo) -> None:
        """Remove an object: its description first, then its bytes."""
        await self._js.stream_purge(self._stream, subject=self._subject_of(info.name))
        await self._js.stream_purge(self._stream, subject=f"$O.{self._bucket}.C.{info.nuid}")

    async def remove_orphans(self, before_ms: int) -> int:
        """Remove bytes that no description names and that were written before an instant."""
        named = {info.nuid for info in await self.list()}
        found = await self._js.stream_info(self._stream, subjects_filter=f"$O.{self._bucket}.C.>")
        removed = 0
        for subject in found.subjects:
            if subject.rpartition(".")[2] in named:
                continue
            last = await self._js.last_message(self._stream, subject)
            if last is not None and last.time_ms < before_ms:
                await self._js.stream_purge(self._stream, subject=subject)
                removed += 1
        return removed

    def _subject_of(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _digest(raw: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(raw).decode()}"


def _parse(body: bytes) -> ObjectInfo | None:
    try:
        value = json.loads(body)
        if value.get("deleted"):
            return None
        return ObjectInfo(
            name=str(value["name"]),
            nuid=str(value["nuid"]),
            size=int(value["size"]),
            chunks=int(value["chunks"]),
            digest=str(value["digest"]),
            metadata={str(k): str(v) for k, v in (value.get("metadata") or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
