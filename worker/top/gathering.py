"""Asks a space's workers what there is to see, again and again, with any client's credential.

What the credential may not ask is left out and said once; what does not answer now is left out of
this look and asked again at the next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeVar

from schemas.caps import CapsPage
from schemas.subjects import Checkpoint
from schemas.views import CheckpointView
from worker.bus.errors import Denied
from worker.client import Client, ClientError, Refused
from worker.top.look import Look, Rates, Waiting
from worker.top.rates import Meter

T = TypeVar("T")

ANSWER_MS: Final = 2_000
TITLES_AT_ONCE: Final = 8
QUEUE_ROWS: Final = 1_000
SEAT_ROWS: Final = 1_000


class Gatherer:
    """Looks at one space.

    Args:
        client: Speaks in the space; its speaker is chosen already.
        now_ms: This machine's clock.
        rows: How many checkpoints and caps to ask for.
    """

    def __init__(self, client: Client, now_ms: Callable[[], int], *, rows: int) -> None:
        self._client = client
        self._now_ms = now_ms
        self._rows = rows
        self._titles: dict[Checkpoint, str] = {}
        self._denied: dict[str, str] = {}
        self._meter = Meter()

    async def look(self) -> Look:
        """Ask for everything once; never raises for what does not answer."""
        unseen: dict[str, str] = {}
        client, wait = self._client, ANSWER_MS

        async def ask(what: str, question: Callable[[], Awaitable[T]]) -> T | None:
            if what in self._denied:
                unseen[what] = self._denied[what]
                return None
            try:
                return await question()
            except Denied:
                unseen[what] = self._denied[what] = (
                    "this user may not ask; an operator or an observer may"
                )
            except Refused as refused:
                unseen[what] = refused.message
            except ClientError as error:
                unseen[what] = error.message
            return None

        async with asyncio.TaskGroup() as asking:
            status_ = asking.create_task(ask("status", lambda: client.status(timeout_ms=wait)))
            page_ = asking.create_task(
                ask("checkpoints", lambda: client.cp.list(limit=self._rows, timeout_ms=wait))
            )
            policy_ = asking.create_task(ask("policy", lambda: client.adm.policy(timeout_ms=wait)))
            queue_ = asking.create_task(
                ask("queue", lambda: client.adm.queue(limit=QUEUE_ROWS, timeout_ms=wait))
            )
            leases_ = asking.create_task(
                ask("seats", lambda: client.adm.leases(limit=SEAT_ROWS, timeout_ms=wait))
            )
            active_ = asking.create_task(ask("caps", lambda: self._caps("active")))
            ended_ = asking.create_task(ask("ended caps", lambda: self._caps("ended")))
        status, page, policy = status_.result(), page_.result(), policy_.result()
        queue, leases = queue_.result(), leases_.result()
        active, ended = active_.result(), ended_.result()
        items = () if page is None else page.items
        titles = await self._titles_of(items)
        return Look(
            at_ms=self._now_ms() if status is None else int(status["at_ms"]),
            space=client.names.space,
            status=status,
            waiting=tuple(Waiting(item, title) for item, title in zip(items, titles, strict=True)),
            more_waiting=page is not None and page.next_cursor is not None,
            policy=policy,
            queue=queue,
            seats=() if leases is None else tuple(leases.leases),
            more_seats=leases is not None and leases.next_after_request_id is not None,
            active_caps=None if active is None else tuple(active.caps),
            more_caps=active is not None and active.next_after_user is not None,
            ended_caps=() if ended is None else tuple(ended.caps),
            damaged_caps=sum(one.damaged for one in (active, ended) if one is not None),
            rates=Rates() if status is None else self._meter.take(status),
            unseen=unseen,
        )

    async def _caps(self, which: Literal["active", "ended"]) -> CapsPage:
        return await self._client.cap.list(which=which, limit=self._rows, timeout_ms=ANSWER_MS)

    async def _titles_of(self, items: tuple[CheckpointView, ...]) -> list[str]:
        """The prompts' titles; each checkpoint is asked for once as long as it is listed."""
        slots = asyncio.Semaphore(TITLES_AT_ONCE)

        async def title(item: CheckpointView) -> str:
            target = Checkpoint(item.endpoint, item.token)
            known = self._titles.get(target)
            if known is not None:
                return known
            async with slots:
                try:
                    detail = await self._client.cp.show(
                        item.endpoint, item.token, timeout_ms=ANSWER_MS
                    )
                except ClientError:
                    return ""
            found = "" if detail.prompt is None else str(detail.prompt.get("title") or "")
            self._titles[target] = found
            return found

        found = list(await asyncio.gather(*(title(item) for item in items)))
        listed = {Checkpoint(item.endpoint, item.token) for item in items}
        self._titles = {target: one for target, one in self._titles.items() if target in listed}
        return found
