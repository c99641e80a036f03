"""A bounded window of publishes, in which what waits together leaves together.

One atomic batch is one acknowledgement and one sync of the broker's disk, so messages that wait for
the window are stored at a multiple of the speed of one by one (DESIGN section 6). Each caller still
gets its own verdict: a batch that is refused is taken apart until every part has its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from worker.bus.connection import DEFAULT_TIMEOUT_MS
from worker.bus.errors import BusError, Unavailable
from worker.bus.jetstream import MAX_BATCH, JetStream, parse_ack
from worker.bus.messages import Outgoing
from worker.bus.requests import Answer

SPLIT: Final = 8
"""Into how many parts a refused batch is taken: few rounds for one loser among many winners."""

MAX_PARTS: Final = 64
"""Parts of refused batches that may be in flight at once."""

MIN_BATCH: Final = 16
"""Fewer messages than this leave one by one: a batch costs the broker about as much as a dozen
plain publishes, however small it is (measured: 2.3 ms against 0.2 ms each)."""

MAX_SINGLES: Final = 4
"""Plain publishes in flight above which messages wait and so come to form a batch."""


Still = Callable[[], bool]
"""Whether something may still be sent; looked at when it leaves, however long it waited."""


class _Group:
    """Messages of one caller, which are stored together or not at all."""

    __slots__ = ("blocked", "followers", "future", "keys", "lines", "messages", "still")

    def __init__(
        self,
        messages: tuple[Outgoing, ...],
        future: asyncio.Future[int],
        still: Still | None = None,
    ) -> None:
        self.messages = messages
        # What cannot be encoded fails its own caller here, not a whole batch later.
        self.lines = [message.header_lines() for message in messages]
        self.future = future
        self.keys: Iterable[str] = (
            messages[0].keys
            if len(messages) == 1
            else {key for message in messages for key in message.keys}
        )
        self.blocked = 0
        self.followers: list[_Group] | None = None
        self.still = still

    @property
    def is_over(self) -> bool:
        """Whether nobody wants it sent any more."""
        if not self.future.done() and self.still is not None and not self.still():
            subject = self.messages[0].subject
            self.future.set_exception(Unavailable("it waited for too long", subject=subject))
        return self.future.done()


class _Slots:
    """How many sendings of one kind are in flight, and how many may be."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> bool:
        return self.used < self.limit


class GroupPublisher:
    """Publishes to one stream for many callers at once.

    Messages of one subject are stored in the order in which they were handed in, and never two of
    them in one batch. A few messages leave at once as plain publishes; what waits behind them
    becomes a batch.

    Args:
        js: Where.
        stream: The stream that takes all the subjects, for the name only.
        atomic: Whether the stream allows atomic batches. Without, messages leave one by one.
        max_batch: Most messages of one batch.
        max_in_flight: Most batches that wait for the broker at once, or without ``atomic`` most
            messages. Fewer make larger batches.
        max_waiting: Most messages that may wait for the window; more are refused.
        timeout_ms: Longest wait for one acknowledgement.

    Attributes:
        stream: The stream.
        highest: Highest sequence that was acknowledged, 0 if none.
        batches: How often something was sent.
        published: Messages stored.
        refused_batches: Batches that were taken apart.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        *,
        atomic: bool,
        max_batch: int = 256,
        max_in_flight: int | None = None,
        max_waiting: int = 100_000,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        if not 1 <= max_batch <= MAX_BATCH:
            raise ValueError(f"max_batch must be 1 to {MAX_BATCH}")
        self.stream = stream
        self._js = js
        self._loop = asyncio.get_running_loop()
        self._max_batch = max_batch if atomic else 1
        self._batches = _Slots(max_in_flight or 2)
        self._singles = _Slots(MAX_SINGLES if atomic else max_in_flight or 64)
        self._split = _Slots(MAX_PARTS)
        self._max_waiting = max_waiting
        self._timeout_ms = timeout_ms
        self._tails: dict[str, _Group] = {}
        self._ready: deque[_Group] = deque()
        self._parts: deque[list[_Group]] = deque()
        self._open = 0
        self._scheduled = False
        self._closing = False
        self._idle: asyncio.Future[None] | None = None
        self.highest = 0
        self.batches = 0
        self.published = 0
        self.refused_batches = 0

    def without_batches(self) -> None:
        """Send one by one from now on, since the stream takes no atomic batches."""
        self._max_batch = 1
        self._singles.limit = max(self._singles.limit, 64)

    @property
    def waiting(self) -> int:
        """Groups handed in and not yet answered."""
        return self._open

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        expect_last_subject_seq: int | None = None,
        expect_subject: str | None = None,
        still: Still | None = None,
    ) -> int:
        """Store one message, unless it may no longer be sent when its turn has come.

        Returns:
            Its stream sequence.

        Raises:
            CasLost: The expectation does not hold; nothing was stored.
            Unavailable: Nothing was stored.
            Unknown: It may have been stored. A cancelled caller knows no more than that either.
            BusError: As ``JetStream.publish``.
        """
        message = Outgoing(subject, data, headers, expect_last_subject_seq, expect_subject)
        return await self._submit((message,), still)

    async def publish_all(
        self, messages: Sequence[Outgoing], still: Still | None = None
    ) -> list[int]:
        """Store several messages together or not at all; they may share a batch with others.

        Returns:
            The stream sequence of each.

        Raises:
            CasLost: At least one expectation does not hold; nothing was stored.
            ValueError: Two messages have one subject, or there are more than one batch takes.
            BusError: As ``JetStream.publish_batch``.
        """
        group = tuple(messages)
        if not group:
            return []
        if len(group) > 1 and self._max_batch == 1:
            raise ValueError("the stream takes no atomic batches")
        if len(group) > MAX_BATCH:
            raise ValueError(f"a batch has at most {MAX_BATCH} messages")
        if len({message.subject for message in group}) != len(group):
            raise ValueError("a batch holds no two messages of one subject")
        last = await self._submit(group, still)
        return list(range(last - len(group) + 1, last + 1))

    async def close(self, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> bool:
        """Take nothing more and wait until everything handed in is answered.

        Returns:
            Whether that took less than ``timeout_ms``.
        """
        self._closing = True
        if self._open == 0:
            return True
        if self._idle is None:
            self._idle = self._loop.create_future()
        done, _ = await asyncio.wait((self._idle,), timeout=timeout_ms / 1000)
        return bool(done)

    def _submit(self, messages: tuple[Outgoing, ...], still: Still | None) -> asyncio.Future[int]:
        if self._closing:
            raise Unavailable("the worker is stopping", subject=messages[0].subject)
        if self._open >= self._max_waiting:
            raise Unavailable("too many publishes wait", subject=messages[0].subject)
        group = _Group(messages, self._loop.create_future(), still)
        self._open += 1
        tails = self._tails
        for key in group.keys:
            before = tails.get(key)
            if before is not None:
                if before.followers is None:
                    before.followers = []
                before.followers.append(group)
                group.blocked += 1
            tails[key] = group
        if not group.blocked:
            self._ready.append(group)
            self._schedule()
        return group.future

    def _schedule(self) -> None:
        # At the end of this turn of the event loop: whatever is handed in during it goes together.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._parts and self._split.free:
            part = self._alive(self._parts.popleft())
            if part:
                self._send(part, self._split)
        while self._ready:
            together = self._worth_a_batch()
            slots = self._batches if together else self._singles
            if not slots.free:
                return
            batch = self._take(self._max_batch if together else 1)
            if batch:
                self._send(batch, slots)

    def _worth_a_batch(self) -> bool:
        if self._max_batch == 1:
            return False
        return len(self._ready) >= MIN_BATCH or any(
            len(group.messages) > 1 for group in self._ready
        )

    def _take(self, most: int) -> list[_Group]:
        ready = self._ready
        batch: list[_Group] = []
        size = 0
        while ready:
            if batch and size + len(ready[0].messages) > most:
                break
            group = ready.popleft()
            if group.is_over:
                self._finish(group)
                continue
            batch.append(group)
            size += len(group.messages)
        return batch

    def _alive(self, groups: list[_Group]) -> list[_Group]:
        alive = []
        for group in groups:
            if group.is_over:
                self._finish(group)
            else:
                alive.append(group)
        return alive

    def _send(self, batch: list[_Group], slots: _Slots) -> None:
        slots.used += 1
        messages = [message for group in batch for message in group.messages]
        lines = [line for group in batch for line in group.lines]
        try:
            answer = self._js.begin_batch(messages, self._timeout_ms, lines=lines)
        except (BusError, ValueError) as error:
            slots.used -= 1
            self._refused(batch, error)
            return
        self.batches += 1
        answer.add_done_callback(lambda done: self._answered(batch, done, slots))

    def _answered(self, batch: list[_Group], answer: asyncio.Future[Answer], slots: _Slots) -> None:
        slots.used -= 1
        try:
            ack = parse_ack(answer.result()[1], batch[-1].messages[-1].subject)
        except BusError as error:
            self._refused(batch, error)
        except asyncio.CancelledError:
            self._refused(batch, Unavailable("the connection was closed"))
        else:
            size = sum(len(group.messages) for group in batch)
            self.published += size
            self.highest = max(self.highest, ack.seq)
            seq = ack.seq - size
            for group in batch:
                seq += len(group.messages)
                if not group.future.done():
                    group.future.set_result(seq)
                self._finish(group)
        if self._ready or self._parts:
            self._schedule()

    def _refused(self, batch: list[_Group], error: Exception) -> None:
        # Nothing of a refused batch was stored, so taking it apart stores nothing twice. Where the
        # outcome is unknown, or nothing can be sent at all, the verdict is everybody's.
        if len(batch) == 1 or isinstance(error, Unavailable):
            for group in batch:
                if not group.future.done():
                    group.future.set_exception(_own_copy(error))
                    # A caller that was cancelled does not come back for it.
                    group.future.exception()
                self._finish(group)
            return
        self.refused_batches += 1
        step = -(-len(batch) // SPLIT)
        self._parts.extend(batch[start : start + step] for start in range(0, len(batch), step))
        self._schedule()

    def _finish(self, group: _Group) -> None:
        self._open -= 1
        for key in group.keys:
            if self._tails.get(key) is group:
                del self._tails[key]
        if group.followers is not None:
            for follower in group.followers:
                follower.blocked -= 1
                if not follower.blocked:
                    self._ready.append(follower)
            self._schedule()
        if self._open == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _own_copy(error: Exception) -> Exception:
    """One exception object per caller: a shared one would grow everybody's traceback."""
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    copy.__cause__ = error
    return copy
