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
from worker.bus.pull import Delivery
from worker.bus.window import GroupPublisher
from worker.checkpoints.context import Clock, Context, Telling
from worker.checkpoints.looking import look
from worker.checkpoints.minting import Minter
from worker.checkpoints.records import Records, StatusAt
from worker.checkpoints.repair import Repairer
from worker.checkpoints.sequence import MintBefore, Sequence
from worker.checkpoints.settle import together
from worker.checkpoints.verbs import Verbs
from worker.errors import TidegateError

log = logs.get()

FRESH_MS = 1_000
"""A command younger than this at its first delivery was not served before: a durable that was lost
and made again, whose deliveries all count as the first, takes longer to come back."""

PUT_OFF_MS = 100
"""When a command comes again that waits for the mint of its token."""

NOT_THERE = frozenset({"unknown-checkpoint", "incomplete"})
"""Reasons that a mint which is carried out right now would make untrue."""

ATTEMPTS_BEFORE_FAILING = 5
"""Deliveries after which a fault that is nobody's but ours is answered as ``internal``."""


class CommandHandler:
    """Serves ``….cp.<verb>.<endpoint>.<token>``.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        records: The records.
        res: Publisher of results and facts.
        minter: Serves mint.
        verbs: Serves heartbeat, resume and expire.
        repairer: Serves repair.
        sequence: Where commands stand.
        ack_wait_ms: Age above which a command is delivered again.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        records: Records,
        res: GroupPublisher,
        minter: Minter,
        verbs: Verbs,
        repairer: Repairer,
        sequence: Sequence,
        *,
        ack_wait_ms: int,
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._records = records
        self._res = res
        self._minter = minter
        self._verbs = verbs
        self._repairer = repairer
        self._sequence = sequence
        self._ack_wait_ms = ack_wait_ms

    async def handle(self, delivery: Delivery) -> None:
        """Serve one delivery to its end.

        Raises:
            TidegateError: On a transient fault; the puller asks for the command again later, and
                what was written so far is recognised by its cause.
        """
        taken_ns = tracing.now_ns()
        first = await self._sequence.is_first(delivery)
        try:
            command = subjects.parse_command(self._names, delivery.subject)
        except BadInput as bad:
            refusal = Refusal.of(bad)
            await self._answer(
                delivery, None, "", self._derived_id(delivery), refusal, [], taken_ns
            )
            return
        command_id, refused = self._command_id(delivery)
        with logs.bound(space=self._names.space, command_id=command_id, verb=f"cp.{command.verb}"):
            forgotten = False
            if not first or self._may_have_been_served(delivery):
                answered = await self._answered(command, command_id, delivery)
                if answered is not None:
                    if delivery.delivered > 1 and answered:
                        await self._finish(command, command_id, delivery)
                    await delivery.ack()
                    return
                forgotten = await self._sequence.is_forgotten(delivery)
            context: Context | None = None
            verdict: Verdict
            if refused is not None:
                verdict = refused
            else:
                try:
                    _check_role(command)
                    context = self._context(command, command_id, delivery)
                    verdict = await self._judge(context, command.verb, delivery, forgotten)
                    match await self._mint_before(context, verdict, delivery):
                        case MintBefore.IN_WORK:
                            await delivery.nak(PUT_OFF_MS)
                            return
                        case MintBefore.ACCEPTED:
                            # Whatever was looked at may have been read before it was carried out.
                            verdict = await self._judge(context, command.verb, delivery, forgotten)
                except BadInput as bad:
                    verdict = Refusal.of(bad)
            telling = context.telling if context is not None else []
            if context is not None and context.is_late and await context.answered():
                # Stopped for so long that another replica has answered.
                await together(*(tell() for tell in telling))
                await delivery.ack()
                return
            await self._answer(
                delivery, command.speaker, command.verb, command_id, verdict, telling, taken_ns
            )

    async def _answered(
        self, command: subjects.Command, command_id: str, delivery: Delivery
    ) -> bool | None:
        """Whether the result that this very command has says ok; ``None`` if it has none.

        Workers of an earlier version answer under the bare sequence, which a command of an earlier
        stream may have had, too: so the command's id must agree.
        """
        seq = delivery.stream_seq
        for result_id in (self._sequence.result_id(seq), str(seq)):
            where = subjects.result(self._names, command.speaker, "cp", command.verb, result_id)
            found = await self._js.last_message(self._names.res_stream, where)
            if found is None:
                continue
            try:
                result = results.Result.parse(found.data)
            except BadInput:
                return False
            if result.command_id == command_id:
                return result.status == "ok"
        return None

    async def _mint_before(
        self, ctx: Context, verdict: Verdict, delivery: Delivery
    ) -> MintBefore | None:
        """What became of the mint before a command that found no checkpoint."""
        if isinstance(verdict, Refusal) and verdict.reason in NOT_THERE:
            return await self._sequence.mint_before(ctx.target, delivery)
        return None

    async def _judge(self, ctx: Context, verb: str, delivery: Delivery, forgotten: bool) -> Verdict:
        """Decide, unless it may have been decided before and nobody knows how."""
        if forgotten and await self._would_carry_out(ctx, verb, delivery):
            return Refusal(
                Code.UNAVAILABLE,
                "verdict-forgotten",
                "this command may have been answered before, and its result is gone; ask again",
            )
        return await self._decide(ctx, verb, delivery)

    async def _would_carry_out(self, ctx: Context, verb: str, delivery: Delivery) -> bool:
        """Whether a command would change what no earlier delivery of it has changed."""
        if verb not in ("mint", "heartbeat", "resume"):
            return False
        seen = await look(self._records, ctx.target)
        if verb == "mint":
            return seen.spec is None and seen.status is None
        if not isinstance(seen.status, StatusAt) or seen.status.record.state != "waiting":
            return False
        return seen.status.cause != ctx.cause

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
        async def answered() -> bool:
            return await self._answered(command, command_id, delivery) is not None

        return Context(
            command.speaker,
            subjects.checkpoint_key(command.key),
            command_id,
            delivery.stream_seq,
            self._clock.believable_ms(delivery.time_ms),
            _trace(delivery),
            lapses=delivery.lapses,
            answered=answered,
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
        oldest_ms = min(self._ack_wait_ms, FRESH_MS)
        return delivery.delivered > 1 or self._clock.upper_ms() - delivery.time_ms >= oldest_ms

    def _derived_id(self, delivery: Delivery) -> str:
        return f"cp-{self._sequence.epoch}-{delivery.stream_seq:016d}"

    def _command_id(self, delivery: Delivery) -> tuple[str, Refusal | None]:
        """The command's id, or one made from its sequence and why the given one is refused."""
        try:
            given = envelope.command_id_of(delivery.headers)
        except BadInput as bad:
            return self._derived_id(delivery), Refusal.of(bad)
        return given or self._derived_id(delivery), None

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
        result_id = self._sequence.result_id(delivery.stream_seq)
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


def _known(verb: str) -> str:
    return verb if ("cp", verb) in VERB_ROLES else "unknown"


def _trace(delivery: Delivery) -> str | None:
    """The trace context to carry on: a header of any other form is not ours to repeat."""
    return envelope.traceparent_of(delivery.headers)


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
