"""Queries: the NATS micro service ``tidegate`` (ADR-32), one endpoint per query and space.

A query is request and reply on ``<root>.<space>.qry.<principal>.<uid>.<plane>.<name>``, followed by
what it is about where not everybody may ask about everything (``QUERY_KEYS``). Its answer
is ``{"v": 1, "status", "outcome", "data"}`` and, unless ok, ``error`` as in a result. All workers
share one queue group. Queries never write.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas import strict_json, subjects, tokens
from schemas.codes import BadInput, Code
from schemas.commands import QUERY_KEYS
from schemas.limits import MAX_BODY_BYTES
from schemas.names import Names
from schemas.results import Accepted, Refusal, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import logs
from worker.bus.connection import Connection
from worker.bus.errors import BusError, TooLarge
from worker.bus.subscription import Msg, Subscription
from worker.errors import TidegateError

QueryHandler = Callable[[Speaker, bytes], Awaitable[Verdict]]

SERVICE: Final = "tidegate"
MAX_IN_FLIGHT: Final = 4_096
"""Queries answered at once; ``cp.wait`` holds its place for up to 30 s."""

MAX_PER_ASKER: Final = MAX_IN_FLIGHT // 4
"""Of these for one principal, under however many uids, so that nobody takes all places."""

LOOK_S: Final = 0.5
"""How often is looked whether this worker still answers best."""

STOP_GRACE_S: Final = 1.0

log = logs.get()


@dataclass(slots=True)
class _Endpoint:
    """One query of one space, with the counts that ``$SRV.STATS`` asks for."""

    names: Names
    plane: str
    name: str
    handler: QueryHandler
    serves: Callable[[], bool]
    subscription: Subscription | None = None
    requests: int = 0
    errors: int = 0
    busy_ns: int = 0
    last_error: str = ""

    @property
    def subject(self) -> str:
        return f"{self.names.prefix}.qry.*.*.{self.plane}.{self.name}{'.*' * len(self.key)}"

    def asker(self, subject: str) -> str:
        """The principal that a query's subject names; it may be outside its grammar."""
        return subject.removeprefix(f"{self.names.prefix}.qry.").partition(".")[0]

    @property
    def key(self) -> tuple[str, ...]:
        """Fields of the body that the subject ends in."""
        return QUERY_KEYS.get((self.plane, self.name), ())

    @property
    def label(self) -> str:
        return f"{self.names.space}-{self.plane}-{self.name}"


class QueryService:
    """Answers the queries of every space this worker serves.

    Each query runs in a task of its own, so that one that waits holds up no other.

    Args:
        conn: The worker's connection.
        service_id: Unique among the workers.
        version: Of this worker, ``major.minor.patch``.
        started_at: When the worker started, RFC 3339.
        clock_ns: A monotonic clock, for the statistics.
    """

    name = "queries"

    def __init__(
        self,
        conn: Connection,
        *,
        service_id: str,
        version: str,
        started_at: str,
        clock_ns: Callable[[], int],
    ) -> None:
        self._conn = conn
        self._head = {"name": SERVICE, "id": service_id, "version": version, "metadata": {}}
        self._started_at = started_at
        self._clock_ns = clock_ns
        self._endpoints: list[_Endpoint] = []
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: Counter[str] = Counter()
        self._stopping = asyncio.Event()

    def add(
        self,
        names: Names,
        handlers: Mapping[tuple[str, str], QueryHandler],
        *,
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """Offer queries for a space; before ``start``.

        Args:
            names: The space.
            handlers: The queries by (plane, name).
            serves: Whether they are better answered here than left to other workers, now.
        """
        self._endpoints.extend(
            _Endpoint(names, plane, name, handler, serves)
            for (plane, name), handler in handlers.items()
        )

    async def start(self) -> None:
        """Subscribe to everything that was added, and to the service's discovery."""
        for endpoint in self._endpoints:
            await self._take_part(endpoint)
        for kind, reply in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            for tail in ("", f".{SERVICE}", f".{SERVICE}.{self._head['id']}"):
                self._subscriptions.append(
                    await self._conn.subscribe(f"$SRV.{kind}{tail}", self._discovery(reply))
                )

    async def run(self) -> None:
        """Leave the queue group where others answer better, and come back, until ``stop``."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
                    return
            for endpoint in self._endpoints:
                try:
                    await self._take_part(endpoint)
                except BusError as error:
                    log.debug("queue_group_not_changed", error=error)

    async def _take_part(self, endpoint: _Endpoint) -> None:
        """Be in the queue group of a query, or not, as its plane says."""
        if endpoint.serves() == (endpoint.subscription is not None):
            return
        if endpoint.subscription is None:
            endpoint.subscription = await self._conn.subscribe(
                endpoint.subject, self._receiver(endpoint), queue=SERVICE
            )
        else:
            subscription, endpoint.subscription = endpoint.subscription, None
            await subscription.unsubscribe()

    async def stop(self) -> None:
        """Take no more queries; those in flight get a second, then waiting ones are cut off."""
        self._stopping.set()
        taking = (endpoint.subscription for endpoint in self._endpoints)
        for subscription in (*self._subscriptions, *(one for one in taking if one is not None)):
            try:
                await subscription.unsubscribe()
            except BusError as error:
                log.debug("unsubscribe_failed", error=error)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def not_ready(self) -> list[str]:
        """Queries are served whenever the connection is up."""
        return []

    def _receiver(self, endpoint: _Endpoint) -> Callable[[Msg], Awaitable[None]]:
        async def receive(msg: Msg) -> None:
            if not _is_inbox(msg.reply):
                return
            asker = endpoint.asker(msg.subject)
            if busy := self._too_many(asker):
                await self._reply(msg, busy)
                return
            task = asyncio.create_task(self._answer(endpoint, msg))
            self._tasks.add(task)
            self._asking[asker] += 1
            task.add_done_callback(lambda task: self._answered(asker, task))

        return receive

    def _too_many(self, asker: str) -> Refusal | None:
        if self._asking[asker] >= MAX_PER_ASKER:
            whose = f"of {asker}'s " if tokens.is_principal(asker) else ""
            said = f"{MAX_PER_ASKER} {whose}queries are being answered here"
        elif len(self._tasks) >= MAX_IN_FLIGHT:
            said = "this worker is answering enough"
        else:
            return None
        return Refusal(Code.UNAVAILABLE, "too-many-queries", said)

    def _answered(self, asker: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._asking[asker] -= 1
        if not self._asking[asker]:
            del self._asking[asker]

    async def _answer(self, endpoint: _Endpoint, msg: Msg) -> None:
        started = self._clock_ns()
        logs.clear()
        with logs.bound(space=endpoint.names.space, query=f"{endpoint.plane}.{endpoint.name}"):
            verdict = await self._decide(endpoint, msg)
            await self._reply(msg, verdict)
        endpoint.requests += 1
        endpoint.busy_ns += self._clock_ns() - started
        if isinstance(verdict, Refusal):
            endpoint.errors += 1
            endpoint.last_error = verdict.reason

    async def _decide(self, endpoint: _Endpoint, msg: Msg) -> Verdict:
        try:
            speaker = _asker(endpoint, msg)
            with logs.bound(principal=speaker.principal):
                return await endpoint.handler(speaker, msg.data)
        except BadInput as bad:
            return Refusal.of(bad)
        except TidegateError as error:
            return Refusal(error.code, error.reason, error.message)
        except Exception:
            log.exception("query_failed")
            return Refusal(Code.INTERNAL, "internal", "the worker failed; its log says why")

    async def _reply(self, msg: Msg, verdict: Verdict) -> None:
        try:
            try:
                await self._publish(msg.reply, verdict)
            except TooLarge:
                large = Refusal(
                    Code.RESOURCE_EXHAUSTED, "answer-too-large", "ask for less, for example a page"
                )
                await self._publish(msg.reply, large)
        except BusError as error:
            log.info("query_not_answered", error=error)

    async def _publish(self, reply: str, verdict: Verdict) -> None:
        headers: dict[str, str] = {}
        if isinstance(verdict, Refusal):
            headers["Nats-Service-Error"] = verdict.reason
            headers["Nats-Service-Error-Code"] = "500" if verdict.status == "failed" else "400"
        data = strict_json.dumps(answer_object(verdict))
        await self._conn.publish(reply, data, headers=headers)

    def _discovery(self, reply: Callable[[], JsonObject]) -> Callable[[Msg], Awaitable[None]]:
        async def receive(msg: Msg) -> None:
            if not _is_inbox(msg.reply):
                return
            try:
                await self._conn.publish(msg.reply, strict_json.dumps(reply()))
            except BusError as error:
                log.info("discovery_not_answered", error=error)

        return receive

    def _ping(self) -> JsonObject:
        return {"type": "io.nats.micro.v1.ping_response", **self._head}

    def _info(self) -> JsonObject:
        return {
            "type": "io.nats.micro.v1.info_response",
            **self._head,
            "description": "Durable checkpoints, fair admission and spending caps",
            "endpoints": [
                {
                    "name": endpoint.label,
                    "subject": endpoint.subject,
                    "queue_group": SERVICE,
                    "metadata": {},
                }
                for endpoint in self._endpoints
            ],
        }

    def _stats(self) -> JsonObject:
        return {
            "type": "io.nats.micro.v1.stats_response",
            **self._head,
            "started": self._started_at,
            "endpoints": [
                {
                    "name": endpoint.label,
                    "subject": endpoint.subject,
                    "queue_group": SERVICE,
                    "num_requests": endpoint.requests,
                    "num_errors": endpoint.errors,
                    "last_error": endpoint.last_error,
                    "processing_time": endpoint.busy_ns,
                    "average_processing_time": endpoint.busy_ns // max(1, endpoint.requests),
                }
                for endpoint in self._endpoints
            ],
        }


def answer_object(verdict: Verdict) -> JsonObject:
    """The JSON object of a query's answer."""
    if isinstance(verdict, Accepted):
        return {"v": 1, "status": "ok", "outcome": verdict.outcome, "data": verdict.data}
    return {
        "v": 1,
        "status": verdict.status,
        "outcome": verdict.reason,
        "data": verdict.data,
        "error": verdict.error().to_object(),
    }


def _asker(endpoint: _Endpoint, msg: Msg) -> Speaker:
    """Who asks; the broker judged the subject, so a body that names another is not answered.

    Raises:
        BadInput: The subject has no speaker, or says something else than the body.
    """
    found = subjects.parse_query(endpoint.names, msg.subject, len(endpoint.key))
    if found is None:
        raise BadInput("subject", "bad-speaker", "the subject does not name <principal>.<uid>")
    speaker, _, _, key = found
    body = strict_json.loads(msg.data, max_bytes=MAX_BODY_BYTES) if key else {}
    for field, token in zip(endpoint.key, key, strict=True):
        if body.get(field, token) != token:
            raise BadInput(field, "subject-differs", f"field {field} and the subject differ")
    return speaker


def _is_inbox(reply: str) -> bool:
    # Whoever asks chooses the reply subject, and we publish there with the worker's rights: only an
    # inbox (``_INBOX…``, or ``_R_…`` from across the accounts' border) can never be a stream's.
    return reply.startswith("_")
