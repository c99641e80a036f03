"""Reading and writing a checkpoint's records; whatever gates a decision is read at the leader."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from schemas import envelope, subjects
from schemas import headers as h
from schemas.codes import BadInput, Code
from schemas.limits import MAX_RECORD_BYTES
from schemas.model import Closed
from schemas.names import Names
from schemas.records import AnswerRecord, PromptRecord, SettleFact, SpecRecord, StatusRecord
from schemas.subjects import Checkpoint
from worker.bus.errors import CasLost
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket, Entry, Write
from worker.bus.window import GroupPublisher, Still
from worker.errors import TidegateError
from worker.timers.writer import Proof

M = TypeVar("M", bound=Closed)

SPECS_REMEMBERED = 4_096
WAITING_REMEMBERED = 4_096


class Garbled(TidegateError):
    """A record does not fit its schema; nobody acts on it and nobody repairs it."""

    code = Code.INTERNAL
    reason = "garbled-record"

    def __init__(self, target: Checkpoint, record: str) -> None:
        super().__init__(f"the {record} record of this checkpoint is garbled; look at it by hand")
        self.target = target
        self.record = record


class Contradiction(TidegateError):
    """The settle fact says something else than the status; nobody acts."""

    code = Code.INTERNAL
    reason = "fact-contradicts"

    def __init__(self, target: Checkpoint) -> None:
        super().__init__("the settle fact contradicts the status; look at both by hand")
        self.target = target


@dataclass(frozen=True, slots=True)
class StatusAt:
    """A status at a revision.

    Attributes:
        record: The record.
        revision: What a compare-and-set must expect.
        cause: ``<principal>/<command id>`` of the command that wrote it.
        trace: W3C trace context of that command, if it had one.
        answered: Id of the filed answer, if a header names it and not the record.
    """

    record: StatusRecord
    revision: int
    cause: str | None
    trace: str | None = None
    answered: str | None = None

    @property
    def answer_id(self) -> str | None:
        """Id of the answer with which it was resumed, wherever that stands."""
        return self.record.settledAnswerId or self.answered


@dataclass(frozen=True, slots=True)
class SpecAt:
    """A spec at its revision; a spec is written once, so it may be remembered.

    Attributes:
        record: The record.
        revision: Its revision.
        minter: The principal whose command wrote it, if the record is ours.
        trace: W3C trace context of the mint, if it had one.
    """

    record: SpecRecord
    revision: int
    minter: str | None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class _KeptSpec:
    """A spec as its bytes, which take a tenth of the memory of the parsed record."""

    data: bytes
    revision: int
    minter: str | None
    trace: str | None

    def spec(self) -> SpecAt:
        record = SpecRecord.from_bytes(self.data, max_bytes=MAX_RECORD_BYTES)
        return SpecAt(record, self.revision, self.minter, self.trace)


@dataclass(frozen=True, slots=True)
class _KeptStatus:
    """A status as its bytes, for the same reason."""

    data: bytes
    revision: int
    cause: str | None

    def status(self) -> StatusAt:
        record = StatusRecord.from_bytes(self.data, max_bytes=MAX_RECORD_BYTES)
        return StatusAt(record, self.revision, self.cause)


@dataclass(frozen=True, slots=True)
class Deleted:
    """Only a deletion marker is left: the token is closed for ever."""

    revision: int


class Records:
    """The records of one space.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        bucket: The records bucket.
        epf: Publisher of settle facts.
        atomic: Whether the bucket takes atomic batches; a foreign one may not.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        bucket: Bucket,
        epf: GroupPublisher,
        *,
        atomic: bool = True,
    ) -> None:
        self._js = js
        self._names = names
        self._bucket = bucket
        self._epf = epf
        self._atomic = atomic
        self._specs: OrderedDict[Checkpoint, _KeptSpec] = OrderedDict()
        self._waiting: OrderedDict[Checkpoint, _KeptStatus] = OrderedDict()

    def without_batches(self) -> None:
        """Write key by key from now on, since the bucket takes no atomic batches."""
        self._atomic = False

    async def status(self, target: Checkpoint) -> StatusAt | Deleted | None:
        """The status at the leader.

        Raises:
            Garbled: If it does not fit its schema.
        """
        entry = await self._bucket.read(subjects.status_key(target))
        if entry is None:
            return None
        if entry.deleted:
            return Deleted(entry.revision)
        record = _parse(StatusRecord, entry, target, "status")
        trace = envelope.traceparent_of(entry.headers)
        cause, answered = entry.headers.get(h.CAUSE), entry.headers.get(h.ANSWER)
        return StatusAt(record, entry.revision, cause, trace, answered)

    async def spec(self, target: Checkpoint) -> SpecAt | Deleted | None:
        """The spec; remembered once seen, since it is written once."""
        known = self._specs.get(target)
        if known is not None:
            self._specs.move_to_end(target)
            return known.spec()
        entry = await self._bucket.read(subjects.spec_key(target))
        if entry is None:
            return None
        if entry.deleted:
            return Deleted(entry.revision)
        record = _parse(SpecRecord, entry, target, "spec")
        if record.token != target.token:
            raise Garbled(target, "spec")
        minter = _principal(entry.headers.get(h.CAUSE))
        spec = SpecAt(record, entry.revision, minter, envelope.traceparent_of(entry.headers))
        self.remember_spec(target, spec)
        return spec

    async def minted_in(self, target: Checkpoint) -> str | None:
        """Trace context of the mint; ``None`` if it had none, or there is no spec to tell."""
        known = self._specs.get(target)
        if known is not None:
            return known.trace
        try:
            spec = await self.spec(target)
        except Garbled:
            return None
        return spec.trace if isinstance(spec, SpecAt) else None

    def remember_spec(self, target: Checkpoint, spec: SpecAt) -> None:
        """Keep a spec that was just written or read."""
        self._specs[target] = _KeptSpec(
            spec.record.to_bytes(), spec.revision, spec.minter, spec.trace
        )
        if len(self._specs) > SPECS_REMEMBERED:
            self._specs.popitem(last=False)

    def remember_waiting(self, target: Checkpoint, status: StatusAt) -> None:
        """Keep a waiting status that this worker wrote itself, when no settle fact existed.

        It saves reads only: a compare-and-set on its revision still decides, and succeeds only if
        nothing has happened to the checkpoint since.
        """
        kept = _KeptStatus(status.record.to_bytes(), status.revision, status.cause)
        self._waiting[target] = kept
        self._waiting.move_to_end(target)
        if len(self._waiting) > WAITING_REMEMBERED:
            self._waiting.popitem(last=False)

    def remembered(self, target: Checkpoint) -> tuple[SpecAt, StatusAt] | None:
        """Spec and waiting status, if this worker wrote them lately."""
        spec, status = self._specs.get(target), self._waiting.get(target)
        return None if spec is None or status is None else (spec.spec(), status.status())

    def forget_waiting(self, target: Checkpoint, revision: int) -> None:
        """Forget a remembered status, unless it is the one of ``revision``."""
        known = self._waiting.get(target)
        if known is not None and known.revision != revision:
            del self._waiting[target]

    def forget_spec(self, target: Checkpoint) -> None:
        """Forget a spec, because a record of its token was deleted."""
        self._specs.pop(target, None)

    def forget(self) -> None:
        """Forget what was remembered, because the broker's store may have been replaced."""
        self._specs.clear()
        self._waiting.clear()

    async def prompt(self, target: Checkpoint) -> PromptRecord | None:
        """The prompt at the leader; ``None`` if there is none."""
        entry = await self._bucket.read(subjects.prompt_key(target))
        if entry is None or entry.deleted:
            return None
        return _parse(PromptRecord, entry, target, "prompt")

    async def answer(self, target: Checkpoint, answer_id: str) -> AnswerRecord | None:
        """One filed answer at the leader."""
        entry = await self._bucket.read(subjects.answer_key(target, answer_id))
        if entry is None or entry.deleted:
            return None
        return _parse(AnswerRecord, entry, target, "answer")

    async def fact(self, target: Checkpoint) -> SettleFact | None:
        """The settle fact at the leader; ``None`` if it does not exist yet."""
        subject = subjects.settle_fact(self._names, target)
        message = await self._js.last_message(self._names.epf_stream, subject)
        if message is None:
            return None
        try:
            fact = SettleFact.from_bytes(message.data)
        except BadInput as bad:
            raise Garbled(target, "settle fact") from bad
        if fact.token != target.token:
            raise Garbled(target, "settle fact")
        return fact

    async def prove(self, target: Checkpoint) -> Proof | None:
        """What the timer writer and the fire handler need of a status."""
        status = await self.status(target)
        if not isinstance(status, StatusAt):
            return None
        record = status.record
        return Proof(record.state == "waiting", record.deadlineGeneration, record.deadline)

    async def create(
        self,
        target: Checkpoint,
        spec: SpecRecord,
        status: StatusRecord,
        prompt: PromptRecord | None,
        cause: str,
        trace: str | None,
        still: Still,
    ) -> tuple[int, StatusAt]:
        """Write prompt, spec and status as one, each expected never to have existed.

        On a foreign bucket without atomic batches: spec, then status; a replay of the mint writes
        the status that a crash in between left out. ``still`` says, when they leave, whether they
        may.

        Returns:
            The spec's revision, and the status as it was written.

        Raises:
            CasLost: If any of the keys exists or ever existed; nothing was written (without atomic
                batches the spec may have been).
            Unknown: If it may or may not have landed.
        """
        headers = written_by(cause, trace)
        writes: list[Write] = [
            (subjects.spec_key(target), spec.to_bytes(), headers, 0),
            (subjects.status_key(target), status.to_bytes(), headers, 0),
        ]
        if self._atomic:
            if prompt is not None:
                writes.insert(0, (subjects.prompt_key(target), prompt.to_bytes(), headers, 0))
            revisions = await self._bucket.put_all(writes, still)
            return revisions[-2], StatusAt(status, revisions[-1], cause)
        if prompt is not None:
            raise BadInput(
                "prompt",
                "prompts-unsupported",
                "this records bucket has no atomic batches, so a prompt cannot be stored with it",
            )
        revision = await self._bucket.put_if(
            subjects.spec_key(target), spec.to_bytes(), 0, headers, still
        )
        status = status.model_copy(update={"observedSpecRevision": revision})
        second = await self._bucket.put_if(
            subjects.status_key(target), status.to_bytes(), 0, headers
        )
        return revision, StatusAt(status, second, cause)

    async def put_status(
        self,
        target: Checkpoint,
        record: StatusRecord,
        expected: int,
        cause: str,
        trace: str | None = None,
        answered: str | None = None,
        still: Still | None = None,
    ) -> int:
        """Compare-and-set the status.

        Args:
            target: Which checkpoint.
            record: What it becomes.
            expected: The revision it must have.
            cause: Recognises the write.
            trace: Trace context of the command it is made for.
            answered: Id of the answer, for a record that does not name it.
            still: Says, when it leaves, whether it may.

        Returns:
            The new revision.

        Raises:
            CasLost: If ``expected`` is no longer the last revision.
            Unknown: If it may or may not have landed; read back and look for the cause.
        """
        headers = written_by(cause, trace)
        if answered is not None:
            headers[h.ANSWER] = answered
        return await self._bucket.put_if(
            subjects.status_key(target), record.to_bytes(), expected, headers, still
        )

    async def put_answer(self, target: Checkpoint, record: AnswerRecord, cause: str) -> None:
        """File an answer; the same answer is the same record, whoever files it again.

        Raises:
            Garbled: If something else lies under that id.
        """
        key = subjects.answer_key(target, record.answerId)
        try:
            await self._bucket.put_if(key, record.to_bytes(), 0, headers={h.CAUSE: cause})
        except CasLost:
            if await self.answer(target, record.answerId) is None:
                raise Garbled(target, "answer") from None

    async def put_fact(
        self, target: Checkpoint, fact: SettleFact, cause: str, trace: str | None = None
    ) -> None:
        """Make the settle fact exist.

        Raises:
            Contradiction: If another fact stands.
        """
        subject = subjects.settle_fact(self._names, target)
        try:
            await self._epf.publish(
                subject,
                fact.to_bytes(),
                headers=written_by(cause, trace),
                expect_last_subject_seq=0,
            )
        except CasLost:
            if await self.fact(target) != fact:
                raise Contradiction(target) from None


def written_by(cause: str, trace: str | None) -> dict[str, str]:
    """Headers of whatever is written for a command: its cause, and its trace if it has one."""
    return {h.CAUSE: cause} if trace is None else {h.CAUSE: cause, h.TRACEPARENT: trace}


def _parse(model: type[M], entry: Entry, target: Checkpoint, record: str) -> M:
    try:
        return model.from_bytes(entry.value, max_bytes=MAX_RECORD_BYTES)
    except BadInput as bad:
        raise Garbled(target, record) from bad


def _principal(cause: str | None) -> str | None:
    return None if cause is None else cause.partition("/")[0]
