"""Sealed prompts in the payload bucket: put by their client, read for a lease, never replaced.

The key is ``<principal>.<request id>[.<generation>]``. A put is create-only and expires by itself;
exactly its revision is what an enqueue names and what the worker deletes at dispatch. What lies
there says in its headers when it expires and what its content's fingerprint is, so that a client
that lost an acknowledgement, or a new life of it, finds its own put again without reading it.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from schemas import headers as h
from schemas.admission import PayloadPlace, SealedPayload
from schemas.codes import BadInput, Code
from schemas.commands.adm import Payload, SealedQuery
from schemas.names import Names
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Speaker, payload_key
from worker.bus.errors import CasLost, Unknown
from worker.bus.jetstream import parse_ack
from worker.bus.kv import Bucket, Entry
from worker.bus.subscription import Msg
from worker.errors import TidegateError
from worker.ledger.plane import Query
from worker.queries import QueryHandler

EXPIRES: Final = "Tidegate-Expires"
"""When the payload expires, milliseconds since 1970: what its enqueue says."""

FINGERPRINT: Final = "Tidegate-Fingerprint"
"""The content's fingerprint."""

KEY_VERSION: Final = "Tidegate-Key-Version"
"""The key that sealed it."""

PUT_MS: Final = 2_000
ATTEMPTS: Final = 5

Find = Callable[[str, int], Awaitable[Payload | None]]
"""Asks the worker, by the query ``adm.sealed``, what lies there for a request and generation."""


class PayloadTaken(TidegateError):
    """Another prompt was put for this request, or this one was dispatched and destroyed.

    Attributes:
        request_id: The request.
    """

    code = Code.CONFLICT
    reason = "payload-taken"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(
            f"another prompt was put for request {request_id}, or it was dispatched already; "
            "another turn needs another request id"
        )


class PutUnknown(TidegateError):
    """The broker did not acknowledge the prompt; what was put expires by itself.

    Attributes:
        request_id: The request.
    """

    code = Code.UNAVAILABLE
    reason = "payload-unknown"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"the broker did not acknowledge the prompt of request {request_id}")


class Sealing(Protocol):
    """What is needed of a sealer; spelled out so that this module needs no cryptography."""

    def seal(
        self, request_id: str, content: bytes, *, key_version: int | None = None
    ) -> "SealedContent":
        """Seal."""
        ...

    def fingerprint(
        self, request_id: str, content: bytes, *, key_version: int | None = None
    ) -> str:
        """Fingerprint."""
        ...


class SealedContent(Protocol):
    """What sealing gives."""

    @property
    def data(self) -> bytes:
        """What may be stored anywhere."""
        ...

    @property
    def key_version(self) -> int:
        """The key that sealed it."""
        ...

    @property
    def fingerprint(self) -> str:
        """The content's fingerprint."""
        ...


class Requests(Protocol):
    """What is needed of a client's connection."""

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = PUT_MS,
    ) -> Msg:
        """Ask and wait for one answer."""
        ...


class PayloadWriter:
    """Puts the prompts of one principal.

    Args:
        conn: The client's connection; it needs no right to read the bucket.
        names: The space.
        principal: Whose prompts.
        sealer: Seals them.
        find: Finds out what lies where a put was refused.
    """

    def __init__(
        self, conn: Requests, names: Names, principal: str, sealer: Sealing, find: Find
    ) -> None:
        self._conn = conn
        self._prefix = f"$KV.{names.payloads_bucket}."
        self._principal = principal
        self._sealer = sealer
        self._find = find

    async def put(
        self,
        request_id: str,
        content: bytes,
        *,
        lifetime_ms: int,
        now_ms: int,
        generation: int = 1,
        key_version: int | None = None,
    ) -> Payload:
        """Seal a prompt and put it, unless it lies there already.

        Safe to repeat, by this process or its next life: as long as the prompt is the same, what
        was put first is what is returned. After a crash there is the whole sealed prompt or none,
        and it goes by itself when it expires.

        Args:
            request_id: The turn it belongs to.
            content: The prompt.
            lifetime_ms: How long it is kept; longer than the turn may stay queued.
            now_ms: The broker's time, as well as the caller knows it.
            generation: Of the turn, when it is put again.
            key_version: The key it was first sealed with, when it is put again.

        Returns:
            What the enqueue says about it.

        Raises:
            PayloadTaken: Another prompt lies there, or lay there.
            PutUnknown: No acknowledgement in time, several times over.
            BusError: The broker refuses it.
            SealRefused: The prompt is too large.
            KeyRefused: A key is missing or cannot be trusted.
        """
        sealed = self._sealer.seal(request_id, content, key_version=key_version)
        ttl_s = -(-lifetime_ms // 1_000)
        payload = {
            "key_version": sealed.key_version,
            "content_fingerprint": sealed.fingerprint,
            "expires_at_ms": now_ms + lifetime_ms,
        }
        subject = self._prefix + payload_key(self._principal, request_id, generation)
        headers = {
            h.EXPECTED_LAST_SUBJECT_SEQ: "0",
            h.TTL: f"{max(1, ttl_s)}s",
            EXPIRES: str(now_ms + lifetime_ms),
            FINGERPRINT: sealed.fingerprint,
            KEY_VERSION: str(sealed.key_version),
        }
        for _ in range(ATTEMPTS):
            try:
                reply = await self._conn.request(
                    subject, sealed.data, headers=headers, timeout_ms=PUT_MS
                )
                revision = parse_ack(reply.data, subject).seq
            except CasLost:
                # Ours, from an attempt that was not acknowledged or from a life before this one.
                return await self._found(request_id, content, generation)
            except Unknown:
                continue
            return Payload.from_object({**payload, "revision": revision})
        raise PutUnknown(request_id)

    async def _found(self, request_id: str, content: bytes, generation: int) -> Payload:
        found = await self._find(request_id, generation)
        if found is None:
            raise PayloadTaken(request_id)
        ours = self._sealer.fingerprint(request_id, content, key_version=found.key_version)
        if ours != found.content_fingerprint:
            raise PayloadTaken(request_id)
        return found


class Folded(Protocol):
    """What is needed of the fold in this process."""

    async def read(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer a plane's query."""
        ...


class PayloadQueries:
    """Answers ``adm.payload`` and ``adm.sealed``; the worker can open nothing it hands out.

    Args:
        bucket: The payload bucket.
        ledger: The fold, which knows leases.
        place: The admission plane's query for where a lease's payload lies.
    """

    def __init__(self, bucket: Bucket, ledger: Folded, place: Query) -> None:
        self._bucket = bucket
        self._ledger = ledger
        self._place = place

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        """By (plane, name)."""
        return {("adm", "payload"): self.payload, ("adm", "sealed"): self.sealed}

    async def payload(self, speaker: Speaker, raw: bytes) -> Verdict:
        """``adm.payload``: the sealed prompt of a lease, for its owner under its fence.

        Exactly the revision that was enqueued is handed out, or none.
        """
        verdict = await self._ledger.read(self._place, speaker, raw)
        if isinstance(verdict, Refusal):
            return verdict
        place = PayloadPlace.from_object(verdict.data)
        entry = await self._bucket.read(place.key)
        if entry is None or entry.deleted or entry.revision != place.revision:
            return Refusal(
                Code.NOT_FOUND, "payload-gone", "the sealed prompt has expired or was destroyed"
            )
        view = SealedPayload(
            key_version=place.key_version,
            content_fingerprint=place.content_fingerprint,
            sealed=base64.b64encode(entry.value).decode("ascii"),
        )
        return Accepted("found", view.to_object())

    async def sealed(self, speaker: Speaker, raw: bytes) -> Verdict:
        """``adm.sealed``: what lies in the speaker's own place for a request; not its content."""
        body = SealedQuery.from_bytes(raw)
        key = payload_key(speaker.principal, body.request_id, body.generation)
        entry = await self._bucket.read(key)
        payload = None if entry is None else describe(entry)
        if payload is None:
            return Refusal(Code.NOT_FOUND, "no-payload", "no prompt lies there")
        return Accepted("found", payload.to_object())


def describe(entry: Entry) -> Payload | None:
    """What an entry of the payload bucket says of itself; ``None`` if it was destroyed."""
    if entry.deleted:
        return None
    try:
        return Payload.from_object(
            {
                "key_version": int(entry.headers.get(KEY_VERSION, "")),
                "content_fingerprint": entry.headers.get(FINGERPRINT, ""),
                "expires_at_ms": int(entry.headers.get(EXPIRES, "")),
                "revision": entry.revision,
            }
        )
    except ValueError:
        return None  # not put by a client of ours, so nobody can recognise it


def sealed_bytes(answer: SealedPayload) -> bytes:
    """The sealed prompt in an answer of ``adm.payload``.

    Raises:
        BadInput: If it is not base64.
    """
    try:
        return base64.b64decode(answer.sealed, validate=True)
    except ValueError:
        raise BadInput("sealed", "bad-token", "field sealed is not base64") from None
