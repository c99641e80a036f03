"""What an operator may ask of a running ledger: digests, snapshots, trimming, pruning, epochs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from schemas import headers, roles, subjects
from schemas.codes import Code
from schemas.commands.sys import (
    Clock,
    ClockQuery,
    DigestQuery,
    Prune,
    PruneQuery,
    RebaseQuery,
    Ruleset,
    RulesetQuery,
    SnapshotQuery,
    SnapshotsQuery,
    TrimQuery,
)
from schemas.model import Body
from schemas.names import Names
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Speaker
from schemas.system import RebaseView, SentView, SnapshotsView, SnapshotView, TrimmedView
from worker import identity
from worker.bus.jetstream import JetStream
from worker.ledger import memory, rulesets
from worker.ledger.control import Control
from worker.ledger.digests import Digests
from worker.ledger.errors import Diverged, Regressed, StampAhead
from worker.ledger.keeper import Keeper
from worker.ledger.questions import Questions
from worker.ledger.runner import Runner
from worker.ledger.snapshots import Snapshot, Snapshots
from worker.queries import QueryHandler

FOLD_MS: Final = 5_000

_ENDED_BY_AN_EPOCH: Final = frozenset({Regressed.reason, Diverged.reason, StampAhead.reason})


class Operations:
    """Answers what operators ask of one space's ledger.

    Args:
        js: The workers' account.
        names: The space.
        worker: Who speaks in the log for an operator.
        runner: The fold.
        keeper: Takes snapshots and trims.
        snapshots: The space's snapshots.
        control: The other replicas.
        questions: Waits for results.
        digests: Digests the state.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        worker: Speaker,
        runner: Runner,
        keeper: Keeper,
        snapshots: Snapshots,
        control: Control,
        questions: Questions,
        digests: Digests,
    ) -> None:
        self._js = js
        self._names = names
        self._worker = worker
        self._runner = runner
        self._keeper = keeper
        self._snapshots = snapshots
        self._control = control
        self._questions = questions
        self._digests = digests

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        """The queries by (plane, name); those that change something are for operators only."""
        return {
            ("sys", "digest"): self._digest,
            ("sys", "snapshots"): self._list,
            ("sys", "snapshot"): _for_operators(self._snapshot),
            ("sys", "trim"): _for_operators(self._trim),
            ("sys", "prune"): _for_operators(self._prune),
            ("sys", "ruleset"): _for_operators(self._ruleset),
            ("sys", "rebase"): _for_operators(self._rebase),
            ("sys", "clock"): _for_operators(self._clock),
        }

    async def _digest(self, _: Speaker, raw: bytes) -> Verdict:
        query = DigestQuery.from_bytes(raw)
        late = await self._questions.wait_for(query.after)
        if late is not None:
            return late
        return Accepted("digest", (await self._digests.get()).to_object())

    async def _list(self, _: Speaker, raw: bytes) -> Verdict:
        SnapshotsQuery.from_bytes(raw)
        found = await self._snapshots.list()
        return Accepted(
            "snapshots", SnapshotsView(snapshots=[_shown(one) for one in found]).to_object()
        )

    async def _snapshot(self, raw: bytes) -> Verdict:
        SnapshotQuery.from_bytes(raw)
        return Accepted("stored", _shown(await self._keeper.take()).to_object())

    async def _trim(self, raw: bytes) -> Verdict:
        TrimQuery.from_bytes(raw)
        trimmed = await self._keeper.trim()
        view = TrimmedView(
            removed=trimmed.removed,
            first_seq=trimmed.first_seq,
            snapshot=_shown(trimmed.snapshot),
        )
        return Accepted("trimmed", view.to_object())

    async def _prune(self, raw: bytes) -> Verdict:
        query = PruneQuery.from_bytes(raw)
        return await self._command(Prune.from_object(query.to_object()))

    async def _ruleset(self, raw: bytes) -> Verdict:
        query = RulesetQuery.from_bytes(raw)
        # An older one is the fold's to refuse: no upgrade would help.
        if not query.force and query.version > self._runner.position.ruleset:
            behind = [
                one.replica
                for one in await self._control.standings()
                if query.version not in one.rulesets
            ]
            if behind:
                return Refusal(
                    Code.FAILED_PRECONDITION,
                    "ruleset-not-known",
                    f"{len(behind)} of the workers that answer cannot fold under ruleset "
                    f"{query.version}: {', '.join(sorted(behind))}; upgrade them first",
                )
        return await self._command(Ruleset(v=1, version=query.version))

    async def _command(self, body: Body) -> Verdict:
        """Put a command of the worker's into the log and wait until it is folded.

        A refusal of the command is the query's answer, too.
        """
        subject = subjects.command(self._names, self._worker, body.PLANE, body.VERB)
        command_id = identity.new_uid()
        epoch = self._runner.position.epoch
        ack = await self._js.publish(
            subject, body.to_bytes(), headers={headers.COMMAND: command_id}
        )
        folded = await self._runner.wait_for(epoch, ack.seq, FOLD_MS)
        sent = SentView(id=f"{epoch}-{ack.seq}", command_id=command_id)
        if not folded:
            return Accepted("published", sent.to_object())
        key = memory.key_of(self._worker.principal, command_id)
        verdict = await self._runner.database.read(lambda db, _: memory.verdict_of(db, key))
        if isinstance(verdict, Refusal):
            return verdict
        if verdict is not None:
            said = {"result": verdict.outcome, "result_data": verdict.data}
            sent = sent.model_copy(update=said)
        return Accepted("folded", sent.to_object())

    async def _rebase(self, raw: bytes) -> Verdict:
        query = RebaseQuery.from_bytes(raw)
        standings = await self._control.standings()
        halted = [one for one in standings if one.halted in _ENDED_BY_AN_EPOCH]
        if not halted:
            return Refusal(
                Code.FAILED_PRECONDITION,
                "not-regressed",
                "no replica says that the log regressed, that replicas differ or that a stamp "
                "cannot be believed",
            )
        if query.replica is None and any(one.halted == Diverged.reason for one in halted):
            known = ", ".join(sorted(one.replica for one in standings))
            return Refusal(
                Code.FAILED_PRECONDITION,
                "replica-not-named",
                f"replicas differ, and only a person can say which is right: compare each with "
                f"tidegate ledger verify --replica ID, then name it here; there are {known}",
            )
        if any(one.halted == StampAhead.reason for one in halted) and not self._is_mended():
            return Refusal(
                Code.FAILED_PRECONDITION,
                "ruleset-too-old",
                f"a stamp is left unbelieved from ruleset {rulesets.MENDED} on; the log is under "
                f"{self._runner.position.ruleset}, and goes on when that instant has come",
            )
        if query.replica is not None:
            halted = [one for one in halted if one.replica == query.replica]
        if not halted:
            return Refusal(
                Code.NOT_FOUND, "no-such-replica", "no replica of that id answers and stands still"
            )
        first = max(halted, key=lambda one: (one.epoch, one.watermark, one.replica))
        await self._control.ask_to_rebase(first.replica)
        view = RebaseView(replica=first.replica, epoch=first.epoch + 1, base=first.watermark)
        return Accepted("asked", view.to_object())

    async def _clock(self, raw: bytes) -> Verdict:
        ClockQuery.from_bytes(raw)
        if not self._is_mended():
            return Refusal(
                Code.FAILED_PRECONDITION,
                "ruleset-too-old",
                f"log time is set back from ruleset {rulesets.MENDED} on; the log is under "
                f"{self._runner.position.ruleset}: tidegate ledger ruleset {rulesets.MENDED}",
            )
        if self._runner.are_clocks_apart():
            return Refusal(
                Code.FAILED_PRECONDITION,
                "clocks-apart",
                "the broker's clock and this worker's differ by more than a minute; set the wrong "
                "one right first",
            )
        return await self._command(Clock(v=1))

    def _is_mended(self) -> bool:
        return self._runner.position.ruleset >= rulesets.MENDED


def _for_operators(handler: Callable[[bytes], Awaitable[Verdict]]) -> QueryHandler:
    async def answer(speaker: Speaker, raw: bytes) -> Verdict:
        if not speaker.principal.startswith(roles.OPERATOR_PREFIX):
            return Refusal(
                Code.PERMISSION_DENIED,
                "wrong-role",
                f"only principals {roles.OPERATOR_PREFIX}… may ask for this",
            )
        return await handler(raw)

    return answer


def _shown(snapshot: Snapshot) -> SnapshotView:
    return SnapshotView(
        name=snapshot.name,
        epoch=snapshot.epoch,
        watermark=snapshot.watermark,
        bytes=snapshot.info.size,
        digest=snapshot.digest,
    )
