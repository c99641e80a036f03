"""Checkpoint commands off the stream: parse, decide, answer exactly once, acknowledge.

The result is created at a subject of its own, so a command that is delivered again after its result
was published ends there, and two replicas that decide the same command publish one result.
"""

import asyncio

from schemas import envelope, results, strict_json, subjects
from schemas import headers as h
from schemas.codes import BadInput, Code
from schemas.commands.cp import Expire, Heartbeat, Mint, Repair, Resume
from schemas.names import Names
from schemas.results import Refusal, Verdict
from schemas.roles import VERB_ROLES, may_speak
from schemas.subjects import Speaker
from worker import logs, metrics, tracing
from worker.bus.errors import BusError, CasLost
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.pull import Delivery
from worker.bus.window import GroupPublisher
from worker.checkpoints.context import Clock, Context, Telling
from worker.checkpoints.minting import Minter
from worker.checkpoints.repair import Repairer
from worker.checkpoints.settle import together
from worker.checkpoints.verbs import Verbs
from worker.errors import TidegateError

log = logs.get()

FRESH_MS = 1_000
"""A command younger than this at its first delivery was not served before: a durable that was lost
and made again, whose deliveries all count as the first, takes longer to come back."""

ATTEMPTS_BEFORE_FAILING = 5
"""Deliveries after which a fault that is nobody's but ours is answered as ``internal``."""


class CommandHandler:
    """Serves ``….cp.<verb>.<endpoint>.<token>``.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        res: Publisher of results and facts.
        minter: Serves mint.
        verbs: Serves heartbeat, resume and expire.
        repairer: Serves repair.
        ack_wait_ms: Age above which a command is delivered again.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        res: GroupPublisher,
        minter: Minter,
        verbs: Verbs,
        repairer: Repairer,
        *,
        ack_wait_ms: int,
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._res = res
        self._minter = minter
        self._verbs = verbs
        self._repairer = repairer
        self._ack_wait_ms = ack_wait_ms
        self._reached = 0

    def served_up_to(self, seq: int) -> None:
        """Take commands up to this sequence as possibly served before."""
        self._reached = max(self._reached, seq)

    async def handle(self, delivery: Delivery) -> None:
        """Serve one delivery to its end.

        Raises:
            TidegateError: On a transient fault; the puller asks for the command again later, and
                what was written so far is recognised by its cause.
        """
        taken_ns = tracing.now_ns()
        try:
            command = subjects.parse_command(self._names, delivery.subject)
        except BadInput as bad:
            refusal = Refusal.of(bad)
            await self._answer(delivery, None, "", _derived_id(delivery), refusal, [], taken_ns)
            return
        command_id, refused = _command_id(delivery)
        began_ms = _monotonic_ms()
        with logs.bound(space=self._names.space, command_id=command_id, verb=f"cp.{command.verb}"):
            subject = subjects.result(
                self._names, command.speaker, "cp", command.verb, str(delivery.stream_seq)
            )
            if self._may_have_been_served(delivery):
                answered = await self._js.last_message(self._names.res_stream, subject)
                if answered is not None:
                    if delivery.delivered > 1 and _was_accepted(answered):
                        await self._finish(command, command_id, delivery)
                    await delivery.ack()
                    return
            context: Context | None = None
            verdict: Verdict
            if refused is not None:
                verdict = refused
            else:
                try:
                    _check_role(command)
                    context = self._context(command, command_id, delivery)
                    verdict = await self._decide(context, command.verb, delivery)
                except BadInput as bad:
                    verdict = Refusal.of(bad)
            telling = context.telling if context is not None else []
            if _monotonic_ms() - began_ms >= self._ack_wait_ms and await self._result_exists(
                subject
            ):
                # Stopped for so long that another replica has answered; who listens would hear
                # also the result that the stream then refuses.
                await together(*(tell() for tell in telling))
                await delivery.ack()
                return
            await self._answer(
                delivery, command.speaker, command.verb, command_id, verdict, telling, taken_ns
            )

    async def _finish(self, command: subjects.Command, command_id: str, delivery: Delivery) -> None:
        """Complete what a worker that was cut off right after its result may have left undone.

        An accepted command recognises its own write, so serving it again decides nothing anew.
        """
        try:
            context = self._context(command, command_id, delivery)
            await self._decide(context, command.verb, delivery)
        except BadInput:
            return
        await together(*(tell() for tell in context.telling))

    def _context(self, command: subjects.Command, command_id: str, delivery: Delivery) -> Context:
        return Context(
            command.speaker,
            subjects.checkpoint_key(command.key),
            command_id,
            delivery.stream_seq,
            self._clock.believable_ms(delivery.time_ms),
            _trace(delivery),
        )

    async def _decide(self, ctx: Context, verb: str, delivery: Delivery) -> Verdict:
        try:
            match verb:
                case "mint":
                    return await self._minter.mint(ctx, Mint.from_bytes(delivery.data))
                case "heartbeat":
                    return await self._verbs.heartbeat(ctx, Heartbeat.from_bytes(delivery.data))
                case "resume":
                    return await self._verbs.resume(ctx, Resume.from_bytes(delivery.data))
                case "expire":
                    Expire.from_bytes(delivery.data)
                    return await self._verbs.expire(ctx)
                case _:
                    Repair.from_bytes(delivery.data)
                    return await self._repairer.serve(ctx)
        except BadInput:
            raise
        except BusError:
            raise
        except TidegateError as error:
            if error.code is not Code.INTERNAL:
                raise
            log.exception("checkpoint_inconsistent", reason=error.reason)
            return Refusal(error.code, error.reason, error.message)
        except Exception:
            if delivery.delivered < ATTEMPTS_BEFORE_FAILING:
                raise
            log.exception("command_failed", deliveries=delivery.delivered)
            return Refusal(
                Code.INTERNAL, "internal", "the worker could not serve this command; see its log"
            )

    def _may_have_been_served(self, delivery: Delivery) -> bool:
        # First deliveries come in the order of the stream. One that does not is another delivery,
        # even if it is called the first: the durable was lost and made again.
        again = delivery.delivered > 1 or delivery.stream_seq <= self._reached
        self._reached = max(self._reached, delivery.stream_seq)
        oldest_ms = min(self._ack_wait_ms, FRESH_MS)
        return again or self._clock.upper_ms() - delivery.time_ms >= oldest_ms

    async def _result_exists(self, subject: str) -> bool:
        return await self._js.last_message(self._names.res_stream, subject) is not None

    async def _answer(
        self,
        delivery: Delivery,
        speaker: Speaker | None,
        verb: str,
        command_id: str,
        verdict: Verdict,
        telling: list[Telling],
        taken_ns: int,
    ) -> None:
        """Publish the result together with the facts it goes with, then acknowledge."""
        result_id = str(delivery.stream_seq)
        body = results.build(
            verdict,
            command_id=command_id,
            result_id=result_id,
            at_ms=max(int(self._clock.lower_ms()), self._clock.believable_ms(delivery.time_ms)),
        )
        status = body["status"]
        subject = subjects.result(self._names, speaker, "cp", verb, result_id)
        headers = {h.COMMAND: command_id}
        trace = _trace(delivery)
        if trace is not None:
            headers[h.TRACEPARENT] = trace
        publishing = asyncio.ensure_future(self._publish(subject, strict_json.dumps(body), headers))
        await together(*(tell() for tell in telling), publishing)
        await delivery.ack()
        spans = tracing.spans()
        if spans is not None and publishing.result():
            spans.answered(
                self._names.space,
                "cp",
                _known(verb),
                status=status,
                outcome=body["outcome"],
                sequence=delivery.stream_seq,
                traceparent=trace,
                began_ns=taken_ns,
            )
        metrics.COMMANDS.labels("cp", _known(verb), status, body["outcome"]).inc()
        waited_ms = self._clock.lower_ms() - delivery.time_ms
        metrics.RESULT_SECONDS.labels("cp").observe(max(0, waited_ms) / 1000)
        log.debug("command_answered", status=status, outcome=body["outcome"])

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> bool:
        """Publish a result; whether it is the first, which stands."""
        try:
            await self._res.publish(subject, body, headers=headers, expect_last_subject_seq=0)
        except CasLost:
            # Another replica, or an earlier delivery, has answered.
            return False
        return True


def _was_accepted(answered: StoredMessage) -> bool:
    try:
        return results.Result.parse(answered.data).status == "ok"
    except BadInput:
        return False


def _monotonic_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def _known(verb: str) -> str:
    return verb if ("cp", verb) in VERB_ROLES else "unknown"


def _derived_id(delivery: Delivery) -> str:
    return f"cp-{delivery.stream_seq:016d}"


def _trace(delivery: Delivery) -> str | None:
    """The trace context to carry on: a header of any other form is not ours to repeat."""
    return envelope.traceparent_of(delivery.headers)


def _command_id(delivery: Delivery) -> tuple[str, Refusal | None]:
    """The command's id, or the one derived from its sequence and why the given one is refused."""
    try:
        return envelope.command_id_of(delivery.headers) or _derived_id(delivery), None
    except BadInput as bad:
        return _derived_id(delivery), Refusal.of(bad)


def _check_role(command: subjects.Command) -> None:
    if ("cp", command.verb) not in VERB_ROLES:
        raise BadInput("subject", "unknown-verb", "the subject names no verb of checkpoints")
    if not may_speak(command.speaker.principal, "cp", command.verb):
        raise BadInput(
            "subject",
            "wrong-role",
            "this principal may not use this verb",
            code=Code.PERMISSION_DENIED,
        )
