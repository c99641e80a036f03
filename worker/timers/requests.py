"""Timer requests of foreign owners: ``….schedule`` messages, judged and armed.

A request is copied once, refused if it carries any header of the scheduler, and armed under the
same fence as our own timers. Subjects derive from the request's subject only; its body is believed
about nothing but the coordinate, which the leader must confirm.
"""

from schemas import headers as h
from schemas import subjects
from schemas.codes import BadInput, Code
from schemas.limits import MAX_DEADLINE_AHEAD_MS
from schemas.names import Names
from schemas.records import TimerBody
from worker import logs, metrics
from worker.bus.errors import BusError
from worker.bus.pull import Delivery
from worker.errors import TidegateError
from worker.timers.wheel import LowerClock
from worker.timers.writer import Armed, TimerWriter

log = logs.get()


class RequestRefused(Exception):
    """A poison request: it is terminated and never looked at again.

    Attributes:
        code: ``permission-denied`` or ``bad-request``.
        reason: Stable word for the log.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class RequestHandler:
    """Arms what foreign owners ask for.

    Args:
        names: The space.
        clock: The broker's now.
        writer: The only publisher of ``.armed``.
    """

    def __init__(self, names: Names, clock: LowerClock, writer: TimerWriter) -> None:
        self._names = names
        self._clock = clock
        self._writer = writer

    async def handle(self, delivery: Delivery) -> None:
        """Arm or discard one request; acknowledged after the fact.

        Raises:
            TidegateError: On a transient fault; the puller asks for it again later.
        """
        try:
            owner, body = self._parse(delivery)
        except RequestRefused as refused:
            metrics.TIMER_ARMS.labels("refused").inc()
            log.warning(
                "timer_request_refused",
                space=self._names.space,
                code=refused.code,
                reason=refused.reason,
                seq=delivery.stream_seq,
            )
            await delivery.term()
            return
        try:
            outcome = await self._writer.arm(owner, body)
        except TidegateError as error:
            if error.code is not Code.INTERNAL or isinstance(error, BusError):
                raise
            log.exception(
                "timer_request_refused",
                space=self._names.space,
                code=error.code,
                reason=error.reason,
                seq=delivery.stream_seq,
            )
            metrics.TIMER_ARMS.labels("refused").inc()
            await delivery.term()
            return
        log.debug(
            "timer_request_done",
            space=self._names.space,
            token=owner.token,
            outcome="armed" if isinstance(outcome, Armed) else outcome.word,
        )
        await delivery.ack()

    def _parse(self, delivery: Delivery) -> tuple[subjects.Timer, TimerBody]:
        for name in (*delivery.headers, *delivery.headers.repeated):
            if name.lower().startswith(h.REFUSED_ON_REQUESTS):
                raise RequestRefused("permission-denied", "scheduler-header")
        owner = subjects.parse_timer(self._names, delivery.subject)
        if owner is None or owner.kind != "schedule":
            raise RequestRefused("bad-request", "bad-subject")
        try:
            body = TimerBody.from_bytes(delivery.data)
        except BadInput as bad:
            raise RequestRefused("bad-request", bad.reason) from bad
        if body.timerId != owner.token:
            raise RequestRefused("bad-request", "timer-id-differs")
        if body.deadline > self._clock.lower_ms() + MAX_DEADLINE_AHEAD_MS:
            # Beyond 2262 the broker's scheduler overflows and fires at once.
            raise RequestRefused("bad-request", "deadline-too-far")
        return owner, body
