"""The verbs of ``sys``: rulesets, pruning, epochs, and what is passed on to planes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from schemas.codes import BadInput, Code
from schemas.commands import sys as verbs
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Command
from worker.ledger import rulesets
from worker.ledger.memory import Memory
from worker.ledger.plane import Plane, Sweep, Swept
from worker.ledger.tx import Tx

if TYPE_CHECKING:
    from worker.ledger.fold import State


PRUNED_AT_ONCE: Final = 500
"""Rows that one ``sys.prune`` looks at, of all kinds together."""

SINCE: Final[Mapping[tuple[str, str], int]] = MappingProxyType({("sys", "clock"): rulesets.MENDED})
"""Verbs that are unknown before a ruleset; all others are as old as the first."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The next command must not be folded by this worker as it is.

    Attributes:
        reason: ``unknown-ruleset`` or ``rebase``.
        seq: The command's sequence.
        body: What it says.
    """

    reason: Literal["unknown-ruleset", "rebase"]
    seq: int
    body: verbs.Ruleset | verbs.Rebase


class System:
    """Handles ``sys`` commands other than ticks.

    Args:
        planes: Those that hear liveness, evidence and pruning.
        rulesets: Rulesets this worker can fold under.
    """

    def __init__(self, planes: Sequence[Plane], rulesets: frozenset[int]) -> None:
        self._planes = tuple(planes)
        self._rulesets = rulesets

    def handle(
        self, tx: Tx, state: "State", memory: Memory, command: Command, body: object
    ) -> Verdict | Stop:
        """Judge one command.

        Raises:
            BadInput: For a key that the verb does not have.
        """
        heard = [
            plane.on_sys[command.verb] for plane in self._planes if command.verb in plane.on_sys
        ]
        if not heard and command.key:
            raise BadInput("subject", "bad-key", f"sys.{command.verb} takes no key")
        match body:
            case verbs.Ruleset():
                return self._ruleset(tx, state, body)
            case verbs.Rebase():
                return _rebase(tx, state, body)
            case verbs.Prune():
                return self._prune(tx, state, memory, body)
            case verbs.Clock():
                return self._clock(tx, state)
        verdict: Verdict = Accepted("nobody-listens")
        for handler in heard:
            verdict = handler(tx, command.key, body)
        return verdict

    def _ruleset(self, tx: Tx, state: "State", body: verbs.Ruleset) -> Verdict | Stop:
        if body.version == state.ruleset:
            return Accepted("already_active", {"version": body.version})
        if body.version < state.ruleset:
            return Refusal(
                Code.FAILED_PRECONDITION,
                "ruleset-in-force-is-newer",
                "a ruleset is never taken back; activate a newer one",
                data={"version": state.ruleset},
            )
        if body.version not in self._rulesets:
            return Stop("unknown-ruleset", tx.seq, body)
        state.ruleset = body.version
        tx.fact("sys", "ruleset", (), {"version": body.version})
        return Accepted("activated", {"version": body.version})

    def _clock(self, tx: Tx, state: "State") -> Verdict:
        """Let log time be what the broker says now, also if it was ahead."""
        back_ms = state.now_ms - tx.stamp_ms
        if back_ms <= 0:
            return Accepted("in_step", {"back_ms": 0})
        tx.now_ms = tx.stamp_ms
        for plane in self._planes:
            if plane.rewind is not None:
                plane.rewind(tx)
        tx.fact("sys", "clock_set_back", (), {"back_ms": back_ms})
        return Accepted("set_back", {"back_ms": back_ms})

    def _prune(self, tx: Tx, state: "State", memory: Memory, body: verbs.Prune) -> Verdict:
        if body.before_at_ms > tx.now_ms:
            return Refusal(
                Code.BAD_REQUEST, "in-the-future", "before_at_ms lies in the future of the log"
            )
        if tx.ruleset >= rulesets.MENDED:
            return self._sweep(tx, body, memory)
        for plane in self._planes:
            if plane.prune is not None:
                plane.prune(tx, body.before_at_ms)
        forgotten = memory.forget_before(body.before_at_ms, state.ordinal + 1)
        return Accepted("pruned", {"command_ids": forgotten})

    def _sweep(self, tx: Tx, body: verbs.Prune, memory: Memory) -> Verdict:
        """Prune a part: whatever waits behind it, a Stop too, waits no longer than for that."""

        def command_ids(_: Tx, before_ms: int, __: str, room: int) -> Swept:
            removed = memory.forget_some(before_ms, room)
            return Swept(removed, removed, "" if removed == room else None)

        sweeps: dict[str, Sweep] = {}
        for plane in self._planes:
            sweeps |= plane.sweeps
        sweeps["command_ids"] = command_ids
        kinds = list(sweeps)
        first, _, after = (body.after or f"{kinds[0]}:").partition(":")
        if first not in sweeps:
            raise BadInput("after", "bad-cursor", "after is not one that a prune has answered")
        room, data = PRUNED_AT_ONCE, dict.fromkeys(kinds, 0)
        for kind in kinds[kinds.index(first) :]:
            swept = sweeps[kind](tx, body.before_at_ms, after, room) if room else Swept(0, 0, "")
            data[kind] = swept.removed
            if swept.after is not None:
                return Accepted("pruned_in_part", {**data, "next": f"{kind}:{swept.after}"})
            room, after = room - swept.looked, ""
        return Accepted("pruned", data)


def _rebase(tx: Tx, state: "State", body: verbs.Rebase) -> Verdict | Stop:
    if body.epoch == state.epoch + 1:
        return Stop("rebase", tx.seq, body)
    if body.epoch == state.epoch:
        tx.fact("sys", "rebased", (), {"epoch": body.epoch, "base": body.base})
        return Accepted("rebased", {"epoch": body.epoch})
    return Refusal(
        Code.CONFLICT, "other-epoch", "the log is in another epoch", data={"epoch": state.epoch}
    )
