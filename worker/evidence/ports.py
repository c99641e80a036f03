"""The two ways to the admission plane: through a client, and beside the fold in its own process."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from schemas import headers, strict_json, subjects
from schemas.codes import BadInput, Code
from schemas.commands.sys import Evidence, Liveness
from schemas.model import Closed
from schemas.names import Names
from schemas.results import Accepted, Refusal, Result, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.bus.jetstream import JetStream
from worker.errors import TidegateError
from worker.evidence.reaper import Rows
from worker.ledger.plane import Query

PAGE: Final = 200
"""Turns per page; one takes up to 3 KiB, and an answer must fit into one message."""

LOOKS_MS: Final = (10, 20, 50, 100, 200, 400, 800, 1_600)
"""Pauses between looks for a result that another replica may have to publish."""


class OutcomeUnknown(TidegateError):
    """What was put into the log has had no result yet; it may be judged later."""

    code = Code.UNAVAILABLE
    reason = "outcome-unknown"


class NotListed(TidegateError):
    """The turns to look at could not be listed."""

    code = Code.UNAVAILABLE
    reason = "not-listed"


class Answer(Protocol):
    """What a client's query gives."""

    @property
    def data(self) -> JsonObject:
        """The answer's data."""
        ...


class Caller(Protocol):
    """What is needed of a client."""

    async def query(self, plane: str, name: str, body: Closed | Mapping[str, Any]) -> Answer:
        """Ask a worker."""
        ...

    async def send(
        self, plane: str, verb: str, key: Sequence[str], body: Closed | Mapping[str, Any]
    ) -> Result:
        """Send a command; a refusal is a result like any other."""
        ...


class ClientPort:
    """Through a client, as the witness of a host.

    Args:
        client: Open; it speaks as ``schemas.commands.sys.witness_of(host)``.
    """

    def __init__(self, client: Caller) -> None:
        self._client = client

    async def recoverable(self, host: str) -> Rows:
        """Every turn whose connector lives on a host, page by page.

        Raises:
            TidegateError: The worker does not answer, or refuses.
        """

        async def ask(body: JsonObject) -> JsonObject:
            return (await self._client.query("adm", "recoverable", body)).data

        return await _pages(host, ask)

    async def send(self, body: Evidence | Liveness) -> str:
        """Send it and wait for its result.

        Raises:
            TidegateError: The outcome is not known, or the broker refused the message.
        """
        result = await self._client.send(body.PLANE, body.VERB, (), body)
        if result.status == "failed":
            raise OutcomeUnknown(f"sys.{body.VERB} could not be judged: {result.outcome}")
        return result.outcome


class Ledger(Protocol):
    """What is needed of the fold in this process."""

    async def read(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer a plane's query."""
        ...

    async def wait_for(self, result_id: str) -> Refusal | None:
        """Wait until the fold has reached a result."""
        ...

    def status(self) -> JsonObject:
        """Where the fold stands; its ``epoch`` is used."""
        ...


class FoldPort:
    """Beside the fold: reads its file, and publishes to its log.

    Args:
        js: The workers' account.
        names: The space.
        worker: Who we are, ``_worker…``.
        ledger: The fold.
        recoverable: The admission plane's query for what to look at.
        policy: Its query for the policy in force.
        new_id: Makes command ids.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        worker: Speaker,
        ledger: Ledger,
        recoverable: Query,
        policy: Query,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._js = js
        self._names = names
        self._worker = worker
        self._ledger = ledger
        self._recoverable = recoverable
        self._policy = policy
        self._new_id = new_id

    async def recoverable(self, host: str) -> Rows:
        """Every turn whose connector lives on a host.

        Raises:
            NotListed: The fold does not answer.
        """

        async def ask(body: JsonObject) -> JsonObject:
            return await self._read(self._recoverable, body)

        return await _pages(host, ask)

    async def silence_ms(self) -> int:
        """The policy's longest silence that is still fresh.

        Raises:
            NotListed: The fold does not answer.
        """
        return int((await self._read(self._policy, {}))["policy"]["silence_ms"])

    async def send(self, body: Evidence | Liveness) -> str:
        """Put it into the log and wait until its result is stored.

        Raises:
            BusError: It was not stored, or it is not known whether it was.
            OutcomeUnknown: It was stored, and has no result yet.
        """
        subject = subjects.command(self._names, self._worker, body.PLANE, body.VERB)
        ack = await self._js.publish(
            subject, body.to_bytes(), headers={headers.COMMAND: self._new_id()}
        )
        result_id = f"{self._ledger.status()['epoch']}-{ack.seq}"
        if (behind := await self._ledger.wait_for(result_id)) is not None:
            raise OutcomeUnknown(behind.message)
        where = subjects.result(self._names, self._worker, body.PLANE, body.VERB, result_id)
        for pause_ms in LOOKS_MS:
            stored = await self._js.last_message(self._names.res_stream, where)
            if stored is not None:
                return _outcome(stored.data)
            await asyncio.sleep(pause_ms / 1000)
        raise OutcomeUnknown(f"sys.{body.VERB} was folded, but its result is not stored yet")

    async def _read(self, query: Query, body: JsonObject) -> JsonObject:
        raw = strict_json.dumps({"v": 1, **body})
        try:
            verdict = await self._ledger.read(query, self._worker, raw)
        except (sqlite3.Error, ValueError) as error:
            # The file is being closed or replaced, which its own component tells about.
            raise NotListed("the ledger's file cannot be read now") from error
        if isinstance(verdict, Accepted):
            return verdict.data
        raise NotListed(verdict.message, reason=verdict.reason)


async def _pages(host: str, ask: "Ask") -> Rows:
    turns: list[JsonObject] = []
    quarantined: list[str] = []
    after: str | None = None
    while True:
        body: JsonObject = {"host": host, "limit": PAGE}
        if after is not None:
            body["after_request_id"] = after
        data = await ask(body)
        # Rows are checked one by one by whoever judges them: a damaged one must hold up no other.
        turns += data.get("turns", [])
        quarantined += data.get("quarantined", [])
        following = data.get("next_after_request_id")
        if not isinstance(following, str) or (after is not None and following <= after):
            return Rows(turns, quarantined)
        after = following


class Ask(Protocol):
    """One page of ``adm.recoverable``."""

    async def __call__(self, body: JsonObject) -> JsonObject:
        """Ask for it."""
        ...


def _outcome(raw: bytes) -> str:
    try:
        result = Result.parse(raw)
    except BadInput as bad:
        raise OutcomeUnknown(f"a result could not be read: {bad.message}") from bad
    if result.status == "failed":
        raise OutcomeUnknown(f"the worker failed: {result.outcome}")
    return result.outcome
