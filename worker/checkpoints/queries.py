"""Queries of the checkpoint plane: ``cp.show``, ``cp.list``, ``cp.wait``. They never write."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping

from schemas import tokens
from schemas.codes import BadInput
from schemas.commands.cp import ListQuery, ShowQuery, WaitQuery
from schemas.limits import MAX_SAFE_INTEGER
from schemas.model import Closed
from schemas.records import prompt_digest
from schemas.results import Accepted, Refusal, Verdict
from schemas.roles import OPERATOR_PREFIX, WORKER_PREFIX
from schemas.subjects import Checkpoint, Speaker
from schemas.views import CheckpointDetail
from worker.checkpoints.feed import Feed, IndexBuilding
from worker.checkpoints.index import Filter, Pending
from worker.checkpoints.looking import Whole, look, whole
from worker.checkpoints.records import Records, SpecAt
from worker.checkpoints.settle import view
from worker.checkpoints.waiters import Waiters
from worker.queries import QueryHandler

POLL_MS = 5_000
"""A wait looks at the leader at least this often, whatever it was told."""


class CheckpointQueries:
    """Answers the plane's queries.

    Args:
        records: The records, read at the leader.
        feed: The index, for lists.
        waiters: Told when a checkpoint settles.
    """

    def __init__(self, records: Records, feed: Feed, waiters: Waiters) -> None:
        self._records = records
        self._feed = feed
        self._waiters = waiters

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        """The queries by (plane, name)."""
        return {
            ("cp", "show"): self.show,
            ("cp", "list"): self.list,
            ("cp", "wait"): self.wait,
        }

    async def show(self, speaker: Speaker, raw: bytes) -> Verdict:
        """Spec, status, fact, and to those who may read them prompt and answer.

        Prompts and answers are for the minter, the holder and operators.
        """
        query = ShowQuery.from_bytes(raw)
        target = _target(query)
        it = whole(target, await look(self._records, target))
        if isinstance(it, Refusal):
            return it
        prompt, answer = None, None
        if _may_read(speaker, it.spec):
            prompt = await self._records.prompt(target)
            answer_id = it.status.answer_id
            if answer_id is not None:
                answer = await self._records.answer(target, answer_id)
        detail = CheckpointDetail(
            checkpoint=view(target, it.status, it.spec.record.holder),
            spec=it.spec.record.to_object(),
            status=it.status.record.to_object(),
            fact=_object(it.fact),
            prompt=_object(prompt),
            prompt_digest=None if prompt is None else prompt_digest(prompt),
            answer=_object(answer),
        )
        return Accepted("shown", detail.to_object())

    async def list(self, speaker: Speaker, raw: bytes) -> Verdict:
        """Waiting checkpoints by deadline, a page at a time; never a part of them for all.

        Raises:
            IndexBuilding: The index is not complete, or cannot be kept up.
        """
        query = ListQuery.from_bytes(raw)
        if query.endpoint is not None and not tokens.is_endpoint(query.endpoint):
            raise BadInput("endpoint", "bad-endpoint", "endpoint does not match its grammar")
        if not self._feed.is_whole:
            raise IndexBuilding
        wanted = Filter(query.endpoint, query.holder, query.due_before_ms, _position(query.cursor))
        rows = await self._feed.find(wanted, query.limit + 1)
        shown = rows[: query.limit]
        more = len(rows) > query.limit
        return Accepted(
            "listed",
            {
                "items": [_item(row) for row in shown],
                "next_cursor": _cursor(shown[-1]) if more else None,
            },
        )

    async def wait(self, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer once the checkpoint has settled and its fact stands, or when the time is up."""
        query = WaitQuery.from_bytes(raw)
        target = _target(query)
        loop = asyncio.get_running_loop()
        end = loop.time() + query.timeout_ms / 1000
        with self._waiters.listen(target) as told:
            while True:
                told.clear()
                it = whole(target, await look(self._records, target))
                if isinstance(it, Refusal):
                    return it
                settled = it.status.record.state != "waiting"
                left_s = end - loop.time()
                if (settled and it.fact is not None) or left_s <= 0:
                    return _waited(target, it, settled=settled)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, POLL_MS / 1000)):
                        await told.wait()


def _waited(target: Checkpoint, it: Whole, *, settled: bool) -> Accepted:
    shown = view(target, it.status, it.spec.record.holder).to_object()
    trace = it.status.trace or it.spec.trace
    if settled and trace is not None:
        shown["traceparent"] = trace
    return Accepted("settled" if settled else "still_waiting", shown)


def _may_read(speaker: Speaker, spec: SpecAt) -> bool:
    return speaker.principal in (
        spec.record.holder.id,
        spec.minter,
    ) or speaker.principal.startswith((OPERATOR_PREFIX, WORKER_PREFIX))


def _target(query: ShowQuery) -> Checkpoint:
    if not tokens.is_endpoint(query.endpoint):
        raise BadInput("endpoint", "bad-endpoint", "endpoint does not match its grammar")
    if not tokens.is_name(query.token):
        raise BadInput("token", "bad-token", "token does not match its grammar")
    return Checkpoint(query.endpoint, query.token)


def _item(row: Pending) -> dict[str, object]:
    return {
        "endpoint": row.target.endpoint,
        "token": row.target.token,
        "generation": row.generation,
        "deadline_at_ms": row.deadline_ms,
        "holder": None if row.holder is None else row.holder.to_object(),
    }


def _cursor(row: Pending) -> str:
    raw = json.dumps(row.position, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _position(cursor: str | None) -> tuple[int, str, str] | None:
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        match json.loads(base64.urlsafe_b64decode(padded)):
            case [int(deadline), str(endpoint), str(token)] if (
                0 <= deadline <= MAX_SAFE_INTEGER
                and tokens.is_endpoint(endpoint)
                and tokens.is_name(token)
            ):
                return deadline, endpoint, token
    except ValueError:
        pass
    raise BadInput("cursor", "bad-cursor", "cursor is not one that a list has answered")


def _object(record: Closed | None) -> dict[str, object] | None:
    return None if record is None else record.to_object()
