"""Snapshots: compact copies of the ledger, kept on the broker and proven by reading them back.

A snapshot that is listed was read back and digested before it got its name, and it is digested
again by whoever starts from it. The log may be trimmed below one, and only below one.
"""

import asyncio
import contextlib
import secrets
import shutil
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from schemas.names import Names
from worker.bus.jetstream import JetStream
from worker.ledger import digest as digests
from worker.ledger import store
from worker.ledger.database import Database
from worker.ledger.errors import LedgerError, StorageFull
from worker.ledger.inspection import integrity_faults
from worker.ledger.objects import CHUNK_BYTES, ObjectDamaged, ObjectInfo, ObjectStore
from worker.ledger.plane import Plane

KEPT: Final = 3
"""Snapshots that stay; older ones are removed after a newer one was proven."""

_ORPHAN_MS: Final = 3_600_000
_LEVEL: Final = 3
_log = structlog.get_logger("tidegate.ledger")


class SnapshotDamaged(LedgerError):
    """A snapshot does not digest to what it says."""

    reason = "snapshot-damaged"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One proven snapshot.

    Attributes:
        info: Its object.
        epoch: Of the log.
        watermark: Sequence of the last command in it.
        digest: Of its logical state.
        schema_version: Of its file.
        ruleset: In force in it.
    """

    info: ObjectInfo
    epoch: int
    watermark: int
    digest: str
    schema_version: int
    ruleset: int

    @property
    def name(self) -> str:
        """Its name in the object store."""
        return self.info.name

    @classmethod
    def of(cls, info: ObjectInfo) -> "Snapshot | None":
        """Read an object's description; ``None`` if it is no snapshot."""
        try:
            return cls(
                info,
                int(info.metadata["epoch"]),
                int(info.metadata["watermark"]),
                info.metadata["digest"],
                int(info.metadata["schema_version"]),
                int(info.metadata["ruleset"]),
            )
        except (KeyError, ValueError):
            return None


class Snapshots:
    """The snapshots of one space.

    Args:
        js: Where.
        names: The space.
        planes: Its planes.
        work_dir: Where copies are made; its own folder, on the ledger's disk.
        wall_ms: This machine's clock, for descriptions only.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        planes: Sequence[Plane],
        work_dir: Path,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._objects = ObjectStore(js, names.snapshots_bucket)
        self._planes = tuple(planes)
        self._work_dir = work_dir
        self._wall_ms = wall_ms

    async def list(self) -> list[Snapshot]:
        """All of them, the newest first."""
        found = (Snapshot.of(info) for info in await self._objects.list())
        return sorted(
            (snapshot for snapshot in found if snapshot is not None),
            key=lambda snapshot: (snapshot.epoch, snapshot.watermark),
            reverse=True,
        )

    async def take(self, database: Database) -> Snapshot:
        """Copy the ledger, store the copy, read it back, and only then name it.

        The fold goes on meanwhile; only a slice of the copy at a time keeps a batch waiting.

        Raises:
            StorageFull: There is no room for the copy.
            SnapshotDamaged: What was read back is not what was stored.
            BusError: The broker did not take it.
        """
        with self._workspace() as space:
            parts = ("whole", "plain", "packed", "read-back")
            whole, plain, packed, read_back = (space / part for part in parts)
            await database.copy_into(whole)
            await asyncio.to_thread(_compact, whole, plain)
            digest = await asyncio.to_thread(_digest_of, plain, self._planes)
            await asyncio.to_thread(_pack, plain, packed)
            written = await self._objects.write_chunks(_chunks_of(packed))
            await self._unpack(written, read_back)
            again = await asyncio.to_thread(_digest_of, read_back, self._planes)
        if again != digest:
            raise SnapshotDamaged("a snapshot that was read back differs from what was stored")
        name = f"{digest.epoch}-{digest.watermark:016d}-{secrets.token_hex(4)}"
        metadata = {
            "epoch": str(digest.epoch),
            "watermark": str(digest.watermark),
            "digest": digest.whole,
            "schema_version": str(digest.schema_version),
            "ruleset": str(digest.ruleset),
        }
        info = await self._objects.describe(written, name, metadata, self._wall_ms())
        snapshot = Snapshot.of(info)
        if snapshot is None:
            raise SnapshotDamaged("a snapshot's own description is not readable")
        _log.info("snapshot_stored", name=name, watermark=digest.watermark, bytes=info.size)
        return snapshot

    async def remove_old(self, keep: int = KEPT) -> None:
        """Remove all but the newest, and what interrupted snapshots left behind."""
        for snapshot in (await self.list())[keep:]:
            await self._objects.delete(snapshot.info)
        await self._objects.remove_orphans(self._wall_ms() - _ORPHAN_MS)

    async def fetch(self, snapshot: Snapshot, path: Path) -> None:
        """Put a snapshot's database at ``path``, proven: bytes, pages and digest.

        After a crash there is the whole file at ``path``, or what was there before.

        Raises:
            SnapshotDamaged: It is not what it says.
            BusError: It could not be read.
        """
        with self._workspace() as space:
            plain = space / "plain"
            await self._fetch_proven(snapshot, plain)
            await asyncio.to_thread(store.put_in_place, plain, path)

    async def is_whole(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot verifies now: bytes, pages and digest.

        Raises:
            BusError: It could not be read.
        """
        with self._workspace() as space:
            try:
                await self._fetch_proven(snapshot, space / "plain")
            except SnapshotDamaged as error:
                _log.error("snapshot_damaged", name=snapshot.name, error=error.message)
                return False
        return True

    async def _fetch_proven(self, snapshot: Snapshot, plain: Path) -> None:
        await self._unpack(snapshot.info, plain)
        found = await asyncio.to_thread(_digest_of, plain, self._planes)
        said = (snapshot.epoch, snapshot.watermark, snapshot.digest)
        if (found.epoch, found.watermark, found.whole) != said:
            raise SnapshotDamaged(f"snapshot {snapshot.name} does not digest to what it says")

    async def _unpack(self, info: ObjectInfo, path: Path) -> None:
        """Read an object and decompress it into a file.

        Raises:
            SnapshotDamaged: Its bytes are not a compressed file.
        """
        unpacker = zlib.decompressobj()
        try:
            with path.open("wb") as file:
                async for chunk in self._objects.read_chunks(info):
                    file.write(await asyncio.to_thread(unpacker.decompress, chunk))
                file.write(unpacker.flush())
        except (zlib.error, ObjectDamaged) as error:
            raise SnapshotDamaged(f"snapshot {info.name} cannot be unpacked") from error

    @contextlib.contextmanager
    def _workspace(self) -> Iterator[Path]:
        space = self._work_dir / secrets.token_hex(8)
        space.mkdir(mode=0o700, parents=True)
        try:
            yield space
        finally:
            shutil.rmtree(space, ignore_errors=True)


def _compact(whole: Path, plain: Path) -> None:
    """Write a file without its free pages to a new one, and remove it.

    Raises:
        StorageFull: There is no room for it.
    """
    try:
        with contextlib.closing(sqlite3.connect(whole, isolation_level=None)) as db:
            db.execute("VACUUM INTO ?", (str(plain),))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise StorageFull("there is no room for a copy of the ledger") from error
        raise
    whole.unlink()


def _digest_of(path: Path, planes: Sequence[Plane]) -> digests.Digest:
    """Digest a closed file, after proving its pages.

    Raises:
        SnapshotDamaged: SQLite cannot read it, or finds faults.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            faults = integrity_faults(db)
            if faults:
                raise SnapshotDamaged("; ".join(faults))
            return digests.compute(db, planes)
    except sqlite3.DatabaseError as error:
        raise SnapshotDamaged(f"SQLite cannot read the copy: {error.sqlite_errorname}") from error


def _pack(plain: Path, packed: Path) -> None:
    packer = zlib.compressobj(_LEVEL)
    with plain.open("rb") as source, packed.open("wb") as target:
        while block := source.read(1 << 20):
            target.write(packer.compress(block))
        target.write(packer.flush())


async def _chunks_of(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
