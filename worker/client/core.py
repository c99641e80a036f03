"""The async client that the command line, the tests and Python users share.

It needs no JetStream rights: commands are requests that the stream acknowledges, results are core
messages on the speaker's own subject, caught up by a direct get on one exact subject.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from schemas import headers as h
from schemas import strict_json, subjects
from schemas.admission import LEASE_LOST, LeaseLost
from schemas.codes import BadInput
from schemas.commands import QUERY_KEYS
from schemas.commands.sys import StatusQuery
from schemas.model import Closed
from schemas.names import Names
from schemas.repeats import JUDGED_ANEW
from schemas.results import Error, Result
from schemas.roles import QUERY_ROLES, VERB_ROLES, Role
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import logs, tracing
from worker.bus.connection import Connection
from worker.bus.errors import BusError, Denied, Unavailable, Unknown
from worker.bus.jetstream import parse_ack
from worker.bus.options import ConnectOptions
from worker.bus.subscription import Msg, Subscription
from worker.client.admission import Admission
from worker.client.caps import Caps
from worker.client.checkpoints import Checkpoints
from worker.client.errors import (
    Answer,
    CallTimeout,
    NobodyThere,
    QueryTimeout,
    refusal,
)
from worker.client.hearing import is_put_off, is_stored
from worker.client.lookup import Epochs, own_result
from worker.client.pending import Asked, Pending, Waiting
from worker.errors import ClientError

DEFAULT_TIMEOUT_MS: Final = 10_000
ACK_MS: Final = 2_000
"""How long one acknowledgement is waited for before the command is sent again."""

PATIENCE_MS: Final = 1_500
"""How long "no responders" is taken for a broker that is still starting."""

LOOK_FIRST_MS: Final = 500
LOOK_MOST_MS: Final = 4_000
ASK_AGAIN_MS: Final = 3_000
ASK_AGAIN_MOST_MS: Final = 24_000

EPOCH_MS: Final = 1_000
"""How long a worker is waited for that says in which epoch results are stored."""

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024

log = logs.get()


@dataclass(frozen=True, slots=True)
class _Sent:
    """A command as it goes on the wire, again and again if need be."""

    plane: str
    verb: str
    subject: str
    data: bytes
    headers: Mapping[str, str]


def new_command_id() -> str:
    """A new command id: 22 characters, 128 random bits."""
    return secrets.token_urlsafe(16)


class Client:
    """Speaks as one principal in one space.

    Use it as ``async with Client(url, speaker, space) as client``.

    Attributes:
        adm: The admission plane's verbs and queries.
        cp: The checkpoint plane's.
        cap: The cap plane's.

    Args:
        broker: A broker URL, or everything a connection needs to know.
        speaker: Who speaks; the broker's permissions must allow it.
        space: The tenant.
        root: First token of every subject.
        timeout_ms: How long a call waits, unless it says otherwise.
        new_id: Makes command ids.
        name: Shown in the broker's list of connections.
    """

    def __init__(
        self,
        broker: str | ConnectOptions,
        speaker: Speaker,
        space: str = "main",
        *,
        root: str = "tidegate",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        new_id: Callable[[], str] = new_command_id,
        name: str = "tidegate-client",
    ) -> None:
        self.names = Names(root, space)
        self.speaker = speaker
        self.timeout_ms = timeout_ms
        self.adm = Admission(self)
        self.cp = Checkpoints(self)
        self.cap = Caps(self)
        self._options = ConnectOptions((broker,)) if isinstance(broker, str) else broker
        self._new_id = new_id
        self._name = name
        self._conn: Connection | None = None
        self._results: Subscription | None = None
        self._listening = asyncio.Lock()
        self._waiting = Waiting()
        self._on_lost: Callable[[LeaseLost], None] | None = None
        self._epochs = Epochs()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect.

        Raises:
            BusError: If the broker cannot be reached or refuses us.
        """
        self._conn = await Connection.open(self._options, name=self._name)

    async def close(self) -> None:
        """Disconnect; calls that still wait time out."""
        conn, self._conn = self._conn, None
        self._results = None
        if conn is not None:
            await conn.close(timeout_ms=1_000)

    @property
    def conn(self) -> Connection:
        """The connection, for what the client has no method for.

        Raises:
            NobodyThere: If the client is not open.
        """
        if self._conn is None:
            raise NobodyThere("the client is not open")
        return self._conn

    async def call(
        self,
        plane: str,
        verb: str,
        key: Sequence[str],
        body: Closed | Mapping[str, Any],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """Send a command and return its result.

        A lost acknowledgement or a restarting broker is survived by sending the same command id
        again; it is carried out once. If the caller is cancelled the outcome is unknown.

        If an OpenTelemetry span is active here, the command carries its context, and so does
        everything that follows from the command; see ``Result.traceparent``.

        Args:
            plane: ``cp``, ``adm``, ``cap`` or ``sys``.
            verb: The verb.
            key: What follows the verb in the subject, token by token.
            body: The verb's body; ``v`` is added if it is missing.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: The command was refused.
            Failed: The platform could not do it.
            CallTimeout: No result came in time; the outcome is unknown.
            NobodyThere: No stream takes this command.
            Denied: The broker's permissions do not allow it.
            BadInput: The subject cannot be built.
            BusError: The broker refused the message itself.
        """
        result = await self.send(
            plane, verb, key, body, command_id=command_id, timeout_ms=timeout_ms
        )
        if result.status != "ok":
            raise refusal(result)
        return result

    async def send(
        self,
        plane: str,
        verb: str,
        key: Sequence[str],
        body: Closed | Mapping[str, Any],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """As ``call``, but a refusal is returned like any other result."""
        fresh = command_id is None
        command_id = command_id or self._new_id()
        value = body.to_object() if isinstance(body, Closed) else {"v": 1, **body}
        headers = {h.COMMAND: command_id}
        trace = tracing.current_traceparent()
        if trace is not None:
            headers[h.TRACEPARENT] = trace
        sent = _Sent(
            plane,
            verb,
            subjects.command(self.names, self.speaker, plane, verb, *key),
            strict_json.dumps(value),
            headers,
        )
        asked = Asked(plane, verb, command_id)
        pending = self._waiting.add(asked, anew=(plane, verb) in JUDGED_ANEW)
        try:
            async with asyncio.timeout((timeout_ms or self.timeout_ms) / 1000):
                await self._listen()
                return await self._carry_out(sent, pending, fresh)
        except TimeoutError:
            raise CallTimeout(command_id, stored=bool(pending.seqs)) from None
        except (BusError, NobodyThere) as error:
            if not pending.seqs and not pending.maybe:
                if isinstance(error, Denied):
                    raise self._not_allowed(plane, verb, VERB_ROLES, error) from error
                raise
            # What became of a later attempt says nothing about an earlier one.
            raise CallTimeout(command_id, stored=bool(pending.seqs)) from error
        finally:
            self._waiting.remove(pending)

    async def query(
        self,
        plane: str,
        name: str,
        body: Closed | Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Answer:
        """Ask a worker.

        Args:
            plane: The plane, or ``sys``.
            name: The query.
            body: Its body; ``v`` is added if it is missing.
            timeout_ms: How long to wait for the answer.

        Raises:
            BadInput: What the query is about cannot stand in a subject; nothing was sent.
            Refused: The query was refused.
            Failed: The worker could not answer.
            QueryTimeout: No answer came in time.
            NobodyThere: No worker answers this query.
            Denied: The broker's permissions do not allow it.
        """
        value = body.to_object() if isinstance(body, Closed) else {"v": 1, **body}
        fields = QUERY_KEYS.get((plane, name), ())
        for field in fields:
            if not subjects.is_key(str(value.get(field))):
                raise BadInput(field, "bad-token", f"field {field} does not match its grammar")
        key = (str(value.get(field)) for field in fields)
        subject = subjects.query(self.names, self.speaker, plane, name, *key)
        wait_ms = timeout_ms or self.timeout_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                reply = await self._ask(subject, strict_json.dumps(value), wait_ms)
        except Denied as denied:
            raise self._not_allowed(plane, name, QUERY_ROLES, denied) from denied
        except (TimeoutError, Unknown):
            raise QueryTimeout(f"no worker answered {plane}.{name} in time") from None
        return _answer(reply)

    async def status(
        self, *, after: str | None = None, timeout_ms: int | None = None
    ) -> JsonObject:
        """How a worker of this space is; errors are those of ``query``.

        Args:
            after: A ledger result's id that its fold must have reached.
            timeout_ms: How long to wait for the answer.
        """
        body = StatusQuery(after=after)
        return (await self.query("sys", "status", body, timeout_ms=timeout_ms)).data

    async def on_lease_lost(self, listener: Callable[[LeaseLost], None]) -> None:
        """Hear of every lease of ours that is lost; they arrive among our results.

        Raises:
            BusError: If we cannot listen.
        """
        self._on_lost = listener
        await self._listen()

    def _not_allowed(
        self, plane: str, verb: str, who_may: Mapping[tuple[str, str], frozenset[Role]], why: Denied
    ) -> Denied:
        """Who may not do what, and whose login may; the broker names only a subject."""
        login = f"user {self._options.user}" if self._options.user else "this login"
        roles = sorted(who_may.get((plane, verb), ()))
        whose = " or ".join(f"{'an' if role[0] in 'aeiou' else 'a'} {role}" for role in roles)
        return Denied(
            f"{login} may not {plane} {verb} as {self.speaker.principal}"
            + (f"; log in as {whose} with rights for it" if whose else ""),
            subject=why.subject,
        )

    async def _ask(self, subject: str, data: bytes, wait_ms: int) -> Msg:
        patience = _Patience(min(PATIENCE_MS, wait_ms // 2))
        while True:
            try:
                return await self.conn.request(subject, data, timeout_ms=wait_ms)
            except Unknown:
                raise
            except Unavailable as error:
                await patience.lost(self.conn.connected, error)

    async def _listen(self) -> None:
        """Listen for results, from the first command on: who only looks needs no right to it."""
        async with self._listening:
            if self._results is None:
                self._results = await self.conn.subscribe(
                    subjects.results_of(self.names, self.speaker), self._on_result
                )

    async def _carry_out(self, sent: _Sent, pending: Pending, fresh: bool) -> Result:
        """Store the command, wait for a result, and ask again ever more rarely until there is one.

        Asking again is what a lost result costs: its command may be in the hands of a worker that
        died, or its subject may not be known to us, and the broker hands it out again only after
        ``ack_wait``.
        """
        ask_again_ms = ASK_AGAIN_MS
        while True:
            await self._store(sent, pending)
            result = await self._result_of(pending, fresh, ask_again_ms)
            if result is not None:
                return result
            ask_again_ms = min(2 * ask_again_ms, ASK_AGAIN_MOST_MS)

    async def _store(self, sent: _Sent, pending: Pending) -> None:
        """Publish until the stream acknowledges, or the result is there."""
        patience = _Patience(PATIENCE_MS)
        while not pending.outcome.done():
            try:
                reply = await self.conn.request(
                    sent.subject, sent.data, headers=sent.headers, timeout_ms=ACK_MS
                )
            except Denied:
                raise
            except Unknown:
                pending.maybe_stored()
            except Unavailable as error:
                await patience.lost(self.conn.connected, error)
            else:
                pending.stored(parse_ack(reply.data, sent.subject).seq)
                return

    async def _result_of(self, pending: Pending, fresh: bool, for_ms: int) -> Result | None:
        """Wait for the result, looking it up now and then; ``None`` after ``for_ms``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + for_ms / 1000
        look_ms = LOOK_FIRST_MS
        while not pending.outcome.done():
            if loop.time() >= until:
                return None
            await pending.wait(look_ms / 1000)
            look_ms = min(2 * look_ms, LOOK_MOST_MS)
            if not pending.outcome.done():
                found = await self._look_up(pending, fresh)
                if found is not None and not pending.outcome.done():
                    return found
        return pending.outcome.result()

    async def _look_up(self, pending: Pending, fresh: bool) -> Result | None:
        """Look for the result where it is stored, under the sequences that are ours, latest first.

        In which epoch these count is asked of a worker now that they are ours. An epoch from before
        may be another one; what is stored there can answer only an id that was made for this call.
        """
        plane = pending.asked.plane
        seqs = sorted(pending.seqs, reverse=True)
        epoch = await self._epoch_now(plane) if seqs else None
        if epoch is None and fresh:
            epoch = self._epochs.heard(plane)
        if epoch is not None:
            for seq in seqs:
                if (found := await self._read_back(pending.asked, f"{epoch}-{seq}")) is not None:
                    return found
        return None

    async def _epoch_now(self, plane: str) -> str | None:
        """In which epoch a worker counts a plane's sequences; ``None`` if none says so."""
        try:
            return Epochs.told(plane, await self.status(timeout_ms=EPOCH_MS))
        except ClientError as error:
            log.debug("epoch_not_told", error=error)
            return None

    async def _read_back(self, asked: Asked, result_id: str) -> Result | None:
        subject = subjects.result(self.names, self.speaker, asked.plane, asked.verb, result_id)
        try:
            reply = await self.conn.request(
                f"$JS.API.DIRECT.GET.{self.names.res_stream}.{subject}", timeout_ms=ACK_MS
            )
            return own_result(reply, asked.command_id, result_id)
        except Denied:
            return None  # a client may lack this right and still gets results as they come
        except (BusError, BadInput) as error:
            log.debug("result_not_looked_up", error=error)
            return None

    async def _on_result(self, msg: Msg) -> None:
        stored = is_stored(self.names, msg)
        kind = msg.subject.rsplit(".", 2)[-2]
        try:
            if kind == LEASE_LOST:
                if self._on_lost is not None and stored:
                    self._on_lost(LeaseLost.from_bytes(msg.data).heard_with(msg.headers))
                return
            result = Result.parse(msg.data).heard_with(msg.headers)
            if not stored and not is_put_off(result):
                # In the account of the streams it is heard before it is stored, and only then.
                self._hinted(msg.subject, result)
                return
        except BadInput as bad:
            log.warning("result_not_understood", subject=msg.subject, reason=bad.reason)
            return
        where = subjects.parse_result(self.names, msg.subject)
        if where is not None:
            self._epochs.hear(where.plane, result.id)
            self._waiting.offer(Asked(where.plane, where.verb, result.command_id), result)

    def _hinted(self, subject: str, result: Result) -> None:
        where = subjects.parse_result(self.names, subject)
        if where is not None:
            self._waiting.hint(Asked(where.plane, where.verb, result.command_id))


class _Patience:
    """Bears with a broker that is away or starting.

    While we are disconnected nothing was sent, so waiting costs nothing and the caller's own
    timeout bounds it. A broker that is there but has nobody to take the message gets ``limit_ms``.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._since: float | None = None
        self._pause_s = 0.05

    async def lost(self, connected: bool, error: Unavailable) -> None:
        """Pause before the next attempt, or give up.

        Raises:
            NobodyThere: If the broker has been there and nobody took the message for long enough.
        """
        now = asyncio.get_running_loop().time()
        if not connected:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._limit_s:
            raise NobodyThere(
                "nobody takes this: is the space set up there, and is a worker running?"
            ) from error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, 0.5)


def _answer(reply: Msg) -> Answer:
    value = strict_json.loads(reply.data, max_bytes=MAX_ANSWER_BYTES)
    status, outcome, data = value.get("status"), value.get("outcome"), value.get("data")
    if not isinstance(outcome, str) or not isinstance(data, dict):
        raise NobodyThere("something that is not a worker answered this query")
    if status == "ok":
        return Answer(outcome, data)
    result = Result(
        v=1,
        command_id="",
        id="",
        at_ms=0,
        status="refused" if status == "refused" else "failed",
        outcome=outcome,
        data=data,
        error=Error.from_object(value["error"]) if "error" in value else None,
    )
    raise refusal(result)
