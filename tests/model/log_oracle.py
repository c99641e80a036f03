"""What the ledger promises about any command, written from the design: roles, command ids, time.

An oracle of a plane is plain Python over dicts and shares no code with the fold. It judges commands
one by one in log order; ``Envelope`` is what stands before every plane.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

REMEMBERED_MS = 30 * 24 * 3600 * 1000
MENDED = 3


@dataclass(frozen=True)
class Command:
    """One command as it stands in the log.

    Attributes:
        plane: ``adm``, ``cap`` or ``sys``.
        verb: Of the plane.
        key: What follows the verb in the subject.
        body: Its body without ``v``; the order of its keys is the order on the wire.
        by: The principal.
        uid: The principal's life.
        at_ms: When the broker stored it.
        command_id: Its header, if it has one.
    """

    plane: str
    verb: str
    key: tuple[str, ...]
    body: Mapping[str, Any]
    by: str
    uid: str
    at_ms: int
    command_id: str | None = None


@dataclass(frozen=True)
class Says:
    """A result.

    Attributes:
        outcome: The outcome, or the reason of a refusal.
        code: Code of a refusal; ``None`` if it is ok.
        data: What the result's data must hold; a value ``None`` must not be there.
    """

    outcome: str
    code: str | None = None
    data: Json = field(default_factory=dict)

    @property
    def status(self) -> str:
        """``ok``, ``refused``, or ``failed`` where the fault is the worker's."""
        if self.code is None:
            return "ok"
        return "failed" if self.code in ("internal", "unavailable") else "refused"


def differs(said: Says, result: Json) -> str:
    """Why a result is not what an oracle says; empty if it is."""
    error = result.get("error", {})
    got = (result["status"], result["outcome"], error.get("code"), error.get("reason"))
    reason = None if said.code is None else said.outcome
    if got != (said.status, said.outcome, said.code, reason):
        return f"expected {said}, got {got} {result.get('data')} {error.get('message', '')}"
    for name, wanted in said.data.items():
        if result["data"].get(name) != wanted:
            return f"{name} should be {wanted!r} in {result}"
    return ""


class Envelope:
    """Log time, roles and the memory of command ids, in front of one plane.

    Attributes:
        ruleset: In force; a command of the log may activate a later one.
        now_ms: Log time.
        remembered: Principal and command id to what was told, said, and when.
    """

    ANEW: frozenset[tuple[str, str]] = frozenset()
    """Verbs whose ok is a licence, since ruleset 3: a repeat is judged at its own sequence."""

    def __init__(self, ruleset: int) -> None:
        self.ruleset = ruleset
        self.now_ms = 0
        self.remembered: dict[tuple[str, str], tuple[list[str], Says, int]] = {}

    @property
    def mended(self) -> bool:
        """Whether ruleset 3 is in force."""
        return self.ruleset >= MENDED

    def command(self, seq: int, command: Command) -> Says:
        """Judge one command."""
        self.now_ms = max(self.now_ms, command.at_ms)
        self.begin(seq)
        if not self._may_speak(command):
            return Says("wrong-role", "permission-denied")
        if command.plane == "sys" and command.verb == "ruleset":
            return self._activate(command)
        if command.command_id is None:
            return self.judge(command, again=None)
        name = (command.by, command.command_id)
        told = self._told(command)
        before = self.remembered.get(name)
        if before is not None and before[2] <= self.now_ms - REMEMBERED_MS:
            before = None
        if before is None:
            said = self.judge(command, again=None)
            if said.code != "bad-request":
                self.remembered[name] = (told, said, self.now_ms)
            return said
        if not {*before[0]} & {*told}:
            return Says("command-id-reused", "conflict")
        refused = before[1].code is not None and command.verb != "authorize"
        if refused or not self.judged_anew(command):
            return before[1]
        return self.judge(command, again=before[1])

    def judged_anew(self, command: Command) -> bool:
        """Whether a repeated ok of this verb says something about now."""
        what = (command.plane, command.verb)
        return what in self.ANEW and (self.mended or what == ("cap", "authorize"))

    def _told(self, command: Command) -> list[str]:
        """How a command is known again: by its bytes, since ruleset 3 by its meaning, too."""
        what = [command.plane, command.verb, command.key, command.uid, command.body]
        forms = [json.dumps(what)]
        if self.mended:
            forms.append("meaning " + json.dumps(what, sort_keys=True))
        return forms

    def _activate(self, command: Command) -> Says:
        version = command.body["version"]
        if version == self.ruleset:
            return Says("already_active", data={"version": version})
        if version < self.ruleset:
            return Says("ruleset-goes-back", "conflict")
        self.ruleset = version
        self.activated()
        return Says("activated", data={"version": version})

    def tick(self, seq: int, at_ms: int) -> None:
        """Let time pass."""
        self.now_ms = max(self.now_ms, at_ms)
        self.begin(seq)
        self.time_passes()

    def begin(self, seq: int) -> None:
        """A command begins; what is said from here on is said by it."""
        raise NotImplementedError

    def judge(self, command: Command, again: Says | None) -> Says:
        """Judge a command that is new, or must be judged anew; ``again`` is what was said then."""
        raise NotImplementedError

    def time_passes(self) -> None:
        """Do what time alone decides."""
        raise NotImplementedError

    def activated(self) -> None:
        """A later ruleset has come into force."""

    def due(self) -> list[int]:
        """Instants from now on at which something ends."""
        raise NotImplementedError

    def _may_speak(self, command: Command) -> bool:
        operators = {
            ("adm", verb) for verb in ("cancel", "resolve", "cooldown", "policy", "drain")
        } | {("cap", verb) for verb in ("revoke", "stop", "bump", "minting", "import")}
        common = {("adm", "cancel"), ("cap", "revoke"), ("cap", "stop"), ("cap", "bump")}
        what = (command.plane, command.verb)
        if command.by.startswith("_op"):
            return what in operators
        if command.by.startswith("_worker"):
            return command.plane == "sys"
        if command.by.startswith("_witness"):
            return what == ("sys", "evidence")
        return command.plane != "sys" and (what not in operators or what in common)
