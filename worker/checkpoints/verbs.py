"""Heartbeat, resume and expire (spec/checkpoints.md, Verbs).

Each verb reads what it judges at the leader, decides by one compare-and-set, and derives the rest.
A command delivered again recognises its own write by the cause header, so it may be run any number
of times, from any point at which an earlier run stopped.
"""

import asyncio
from collections.abc import Callable

from schemas.codes import BadInput, Code
from schemas.commands.cp import Heartbeat, Resume
from schemas.names import Names
from schemas.records import (
    AnswerRecord,
    Holder,
    StatusRecord,
    TimerBody,
    answer_id,
    prompt_digest,
)
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import own_timer
from schemas.views import CheckpointFact
from worker import metrics
from worker.bus.errors import CasLost, Unavailable, Unknown
from worker.bus.window import Still
from worker.checkpoints.context import Clock, ClockUnsure, Context
from worker.checkpoints.looking import Whole, look, regressed, whole
from worker.checkpoints.minting import coordinate, deadline_trouble
from worker.checkpoints.records import Garbled, Records, SpecAt, StatusAt
from worker.checkpoints.settle import Attempt, Settler, resumed, view
from worker.timers.wheel import Coordinate
from worker.timers.writer import Armed, TimerWriter

LONGEST_STEP_MS = 250


class Verbs:
    """Serves heartbeat, resume and expire.

    Args:
        names: The space.
        clock: The broker's now.
        records: The records.
        settler: Settles and finishes.
        writer: Arms deadlines.
        offer: Told of each coordinate this worker armed.
        names_answers: Whether a resumed status names the answer in its body.
    """

    def __init__(
        self,
        names: Names,
        clock: Clock,
        records: Records,
        settler: Settler,
        writer: TimerWriter,
        offer: Callable[[Coordinate], object],
        *,
        names_answers: bool,
    ) -> None:
        self._names = names
        self._clock = clock
        self._records = records
        self._settler = settler
        self._writer = writer
        self._offer = offer
        self._names_answers = names_answers

    async def heartbeat(self, ctx: Context, body: Heartbeat) -> Verdict:
        """Move a waiting checkpoint's deadline: status first, timer second.

        Raises:
            BadInput: If the new deadline is not in the future or too far ahead.
            TidegateError: On a transient fault (deliver again) or a garbled record.
        """
        owner = own_timer(self._names, ctx.target)
        # The fence's sequence is read before the compare-and-set that proves the status.
        armed_seq, seen = await asyncio.gather(
            self._writer.armed_seq(owner), look(self._records, ctx.target)
        )
        it = whole(ctx.target, seen)
        if isinstance(it, Refusal):
            return it
        if it.status.record.state != "waiting":
            return await self._settled(ctx, it)
        refused = await regressed(self._settler, ctx.target, it, ctx.cause)
        if refused is not None:
            return refused
        if self._is_own_extension(ctx, body, it.status):
            # The sequence was read beside this status, not before it, so it is no fence for it.
            return await self._extended(ctx, it, it.status, None)
        if it.status.record.deadlineGeneration != body.generation:
            return self._stale(ctx, it)
        still = await ctx.prove_open()
        now_ms = ctx.now_ms(self._clock)
        if now_ms >= it.status.record.deadline:
            return await self._expire_due(ctx, it)
        trouble = deadline_trouble(body.deadline_at_ms, now_ms)
        if trouble is not None:
            raise trouble
        moved = StatusRecord(
            state="waiting",
            deadlineGeneration=body.generation + 1,
            deadline=body.deadline_at_ms,
            observedSpecRevision=it.spec.revision,
        )
        status = await self._move(ctx, it, moved, still)
        if status.record.state != "waiting":
            return await self._settled(ctx, Whole(it.spec, status, it.fact))
        if status.cause != ctx.cause:
            return self._stale(ctx, Whole(it.spec, status, it.fact))
        return await self._extended(ctx, it, status, armed_seq)

    async def resume(self, ctx: Context, body: Resume) -> Verdict:
        """Let the run go on, if its holder says so before the deadline.

        Raises:
            BadInput: If the answer is not one of the prompt's choices.
            TidegateError: On a transient fault (deliver again) or a garbled record.
        """
        speaker = Holder(id=ctx.speaker.principal, lifecycleUid=ctx.speaker.uid)
        done = await self._resume_remembered(ctx, body, speaker)
        if done is not None:
            return await self._resumed(ctx, done, won=True)
        it = whole(ctx.target, await look(self._records, ctx.target))
        if isinstance(it, Refusal):
            return it
        if it.spec.record.holder != speaker:
            return Refusal(
                Code.PERMISSION_DENIED,
                "not-the-holder",
                "only the recorded holder, in the recorded life, may resume this checkpoint",
            )
        refused = await regressed(self._settler, ctx.target, it, ctx.cause)
        if refused is not None:
            return refused
        filed: str | None = None
        for attempt in range(2):
            if it.status.record.state != "waiting":
                return await self._settled(ctx, it, body)
            if ctx.now_ms(self._clock) >= it.status.record.deadline:
                return await self._expire_due(ctx, it, body)
            if attempt == 0:
                refused = await self._check_prompt(ctx, body)
                if refused is not None:
                    return refused
                filed = await self._file_answer(ctx, body)
            still = await ctx.prove_open()
            now_ms = ctx.now_ms(self._clock)
            if now_ms >= it.status.record.deadline:
                return await self._expire_due(ctx, it, body)
            outcome = await self._resume(ctx, it.spec, it.status, now_ms, filed, still)
            it = Whole(it.spec, outcome.status, it.fact)
            if outcome.won:
                return await self._resumed(ctx, it, won=True)
        if it.status.record.state != "waiting":
            return await self._settled(ctx, it, body)
        return self._moved(ctx, it)

    async def _resume_remembered(self, ctx: Context, body: Resume, speaker: Holder) -> Whole | None:
        """Resume what this worker minted itself, without a read; refusals need one.

        The compare-and-set on the remembered revision succeeds only if nothing has happened since,
        and then there is nothing that a read could have shown.

        Returns:
            The resumed checkpoint, or ``None`` if it has to be looked at.
        """
        remembered = self._records.remembered(ctx.target)
        if remembered is None:
            return None
        spec, status = remembered
        deadline = status.record.deadline
        if spec.record.holder != speaker or ctx.now_ms(self._clock) >= deadline:
            return None
        if await self._check_prompt(ctx, body) is not None:
            return None
        filed = await self._file_answer(ctx, body)
        still = await ctx.prove_open()
        now_ms = ctx.now_ms(self._clock)
        if now_ms >= deadline:
            return None
        try:
            outcome = await self._resume(ctx, spec, status, now_ms, filed, still)
        except Garbled:
            # The records were deleted or damaged meanwhile; a look says which.
            return None
        return Whole(spec, outcome.status, None) if outcome.won else None

    async def expire(self, ctx: Context) -> Verdict:
        """Settle a due checkpoint; a settled one answers with its settlement.

        Raises:
            TidegateError: On a transient fault (deliver again) or a garbled record.
        """
        it = whole(ctx.target, await look(self._records, ctx.target))
        if isinstance(it, Refusal):
            return it
        refused = await regressed(self._settler, ctx.target, it, ctx.cause)
        if refused is not None:
            return refused
        record = it.status.record
        if record.state == "waiting":
            if self._clock.lower_ms() < record.deadline and ctx.at_ms < record.deadline:
                return Refusal(
                    Code.FAILED_PRECONDITION,
                    "not-due",
                    "the deadline has not passed yet",
                    data=self._view(ctx, it),
                )
            await self._wait_until_due(record.deadline)
            outcome = await self._settler.expire(
                ctx.target,
                it.status,
                int(self._clock.lower_ms()),
                ctx.cause,
                by="command",
                trace=ctx.trace,
            )
            it = Whole(it.spec, outcome.status, it.fact)
            if outcome.status.record.state == "waiting":
                return self._moved(ctx, it)
        else:
            await self._settler.finish(ctx.target, it.status, won=False, by="command")
        own = it.status.cause == ctx.cause
        word = "expired" if own and it.status.record.state == "expired" else "already_settled"
        return Accepted(word, self._view(ctx, it))

    async def _move(self, ctx: Context, it: Whole, moved: StatusRecord, still: Still) -> StatusAt:
        """Compare-and-set the new deadline; answer with what stands afterwards."""
        try:
            revision = await self._records.put_status(
                ctx.target, moved, it.status.revision, ctx.cause, still=still
            )
        except (CasLost, Unknown) as lost:
            now = await self._records.status(ctx.target)
            if now is None:
                raise Unavailable("the status cannot be seen now") from lost
            if not isinstance(now, StatusAt):
                raise Garbled(ctx.target, "status") from lost
            if isinstance(lost, Unknown) and now.revision == it.status.revision:
                raise
            return now
        return StatusAt(moved, revision, ctx.cause)

    async def _extended(
        self, ctx: Context, it: Whole, status: StatusAt, armed_seq: int | None
    ) -> Verdict:
        record = status.record
        armed = await self._writer.arm(
            own_timer(self._names, ctx.target),
            TimerBody(
                v=1,
                timerId=ctx.target.token,
                generation=record.deadlineGeneration,
                deadline=record.deadline,
            ),
            known_seq=armed_seq,
            proven=armed_seq is not None,
        )
        if isinstance(armed, Armed) and armed.generation == record.deadlineGeneration:
            self._offer(coordinate(ctx.target, status, armed.seq))
        fact = CheckpointFact(
            v=1,
            generation=record.deadlineGeneration,
            deadline_at_ms=record.deadline,
            holder=it.spec.record.holder,
            at_ms=ctx.at_ms,
        )
        again, trace = armed_seq is None, ctx.trace or it.spec.trace
        ctx.telling.append(
            lambda: self._settler.tell(ctx.target, "extended", fact, ctx.cause, trace, again=again)
        )
        return Accepted("extended", view(ctx.target, status, it.spec.record.holder).to_object())

    async def _check_prompt(self, ctx: Context, body: Resume) -> Refusal | None:
        if body.prompt_digest is None and not body.has_answer:
            return None
        prompt = await self._records.prompt(ctx.target)
        if body.prompt_digest is not None and (
            prompt is None or prompt_digest(prompt) != body.prompt_digest
        ):
            return Refusal(
                Code.CONFLICT,
                "prompt-differs",
                "the stored prompt is not the one that was seen; show it again",
            )
        if (
            prompt is not None
            and prompt.choices is not None
            and body.has_answer
            and body.answer not in prompt.choices
        ):
            raise BadInput("answer", "not-a-choice", "answer must be one of the prompt's choices")
        return None

    async def _file_answer(self, ctx: Context, body: Resume) -> str | None:
        identifier = _answer_id(ctx, body)
        if identifier is None:
            return None
        record = AnswerRecord(
            v=1,
            token=ctx.target.token,
            answerId=identifier,
            by=ctx.speaker.principal,
            at=ctx.at_ms,
            value=body.answer,
            artifact=body.artifact,
        )
        await self._records.put_answer(ctx.target, record, ctx.cause)
        return identifier

    async def _resume(
        self,
        ctx: Context,
        spec: SpecAt,
        status: StatusAt,
        now_ms: int,
        filed: str | None,
        still: Still,
    ) -> Attempt:
        """Compare-and-set the status to resumed, by whom the spec names.

        The records of the predecessor's older readers do not know an answer's id, and a status that
        names one is garbled to them; then it stands in a header.
        """
        named, answered = (filed, None) if self._names_answers else (None, filed)
        settled = resumed(status.record, spec.revision, now_ms, spec.record.holder, named)
        return await self._settler.attempt(
            ctx.target, status, settled, ctx.cause, ctx.trace, answered, still
        )

    async def _resumed(self, ctx: Context, it: Whole, *, won: bool) -> Verdict:
        await self._settler.finish(ctx.target, it.status, won=won, by="resume", telling=ctx.telling)
        if won and it.status.record.settledTs is not None:
            metrics.SETTLE_SECONDS.observe((it.status.record.settledTs - ctx.at_ms) / 1000)
        return Accepted("resumed", self._view(ctx, it))

    async def _settled(self, ctx: Context, it: Whole, body: Resume | None = None) -> Verdict:
        """Answer a resume (or a heartbeat) that came after the settlement, and finish it."""
        own = it.status.record.state == "resumed" and it.status.cause == ctx.cause
        if own and body is not None and await self._says_the_same(ctx, it, body):
            return await self._resumed(ctx, it, won=False)
        # Before the refusal, which is not served again to finish what was left undone.
        await self._settler.finish(ctx.target, it.status, won=False, by="command")
        if it.status.record.state == "expired":
            return self._expired(ctx, it)
        if own:
            return Refusal(
                Code.CONFLICT,
                "command-id-reused",
                "this command id resumed the checkpoint, and this is another command",
                data=self._view(ctx, it),
            )
        return Refusal(
            Code.CONFLICT,
            "already-resumed",
            "this checkpoint was resumed before; its settlement is in data",
            data=self._view(ctx, it),
        )

    async def _says_the_same(self, ctx: Context, it: Whole, body: Resume) -> bool:
        """Whether a resume is the one that its command id has carried out."""
        if _answer_id(ctx, body) != it.status.answer_id:
            return False
        return body.prompt_digest is None or await self._prompt_is(ctx, body.prompt_digest)

    async def _prompt_is(self, ctx: Context, digest: str) -> bool:
        prompt = await self._records.prompt(ctx.target)
        return prompt is not None and prompt_digest(prompt) == digest

    async def _expire_due(self, ctx: Context, it: Whole, body: Resume | None = None) -> Verdict:
        """Drive the expiry of a due checkpoint, once its deadline has passed beyond doubt."""
        await self._wait_until_due(it.status.record.deadline)
        outcome = await self._settler.expire(
            ctx.target,
            it.status,
            int(self._clock.lower_ms()),
            ctx.cause,
            by="command",
            trace=ctx.trace,
        )
        it = Whole(it.spec, outcome.status, it.fact)
        if it.status.record.state == "waiting":
            return self._moved(ctx, it)
        if it.status.record.state == "resumed":
            return await self._settled(ctx, it, body)
        return self._expired(ctx, it)

    async def _wait_until_due(self, deadline_ms: int) -> None:
        # In short steps: a clock that was behind, as after a sleep of the machine, is put right.
        while (wait_ms := deadline_ms - self._clock.lower_ms()) > 0:
            if self._clock.trouble:
                raise ClockUnsure(self._clock.trouble)
            await asyncio.sleep(min(wait_ms, LONGEST_STEP_MS) / 1000)

    def _is_own_extension(self, ctx: Context, body: Heartbeat, status: StatusAt) -> bool:
        return (
            status.cause == ctx.cause
            and status.record.deadlineGeneration == body.generation + 1
            and status.record.deadline == body.deadline_at_ms
        )

    def _expired(self, ctx: Context, it: Whole) -> Refusal:
        return Refusal(
            Code.EXPIRED,
            "expired",
            "the deadline passed first; the checkpoint has expired",
            data=self._view(ctx, it),
        )

    def _stale(self, ctx: Context, it: Whole) -> Refusal:
        return Refusal(
            Code.CONFLICT,
            "stale-generation",
            "the deadline was moved by somebody else; the generation in force is in data",
            data=self._view(ctx, it),
        )

    def _moved(self, ctx: Context, it: Whole) -> Refusal:
        return Refusal(
            Code.CONFLICT,
            "deadline-moved",
            "the deadline was moved meanwhile; look again and repeat with a new command id",
            data=self._view(ctx, it),
        )

    def _view(self, ctx: Context, it: Whole) -> dict[str, object]:
        return view(ctx.target, it.status, it.spec.record.holder).to_object()


def _answer_id(ctx: Context, body: Resume) -> str | None:
    """Under which id a resume files its answer; ``None`` if it has none."""
    if not body.has_answer:
        return None
    return answer_id(ctx.target.token, ctx.speaker.principal, body.answer, body.artifact)
