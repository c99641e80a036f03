"""A history, indexed: calls with their answers, commands by sequence, results by id."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from schemas.names import Names
from tests.nemesis.history.events import (
    Answered,
    Asked,
    Began,
    Called,
    Ended,
    Event,
    Heard,
    Json,
    Permitted,
    Replica,
    Stored,
    Written,
)

LEDGER = frozenset({"adm", "cap", "sys"})
UNKNOWN = ("_", "invalid")
"""Whom a command's result is addressed to whose speaker does not parse."""

INSTANT = 13
"""Digits of an instant: a checkpoint's epoch is one, a ledger's is a small number."""

SETTLED = frozenset({"resumed", "expired"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept.

    Attributes:
        verdict: Which, a stable word.
        what: About what, for a person.
    """

    verdict: str
    what: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.what}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call from its beginning to its end; without a result it may have happened."""

    called: Called
    answered: Answered | None

    @property
    def result(self) -> Json | None:
        return None if self.answered is None else self.answered.result

    @property
    def intent(self) -> tuple[str, str]:
        """Principal and command id: what is carried out once."""
        return self.called.who.partition(".")[0], self.called.command_id


@dataclass(frozen=True, slots=True)
class Command:
    """A stored command, with its result if there is one."""

    message: Stored
    who: str
    plane: str
    verb: str
    key: tuple[str, ...]
    result: Json | None

    @property
    def seq(self) -> int:
        return self.message.seq

    @property
    def time_ms(self) -> int:
        return self.message.time_ns // 1_000_000

    @property
    def body(self) -> Json:
        return self.message.body or {}

    @property
    def intent(self) -> tuple[str, str]:
        return self.who.partition(".")[0], self.message.command_id or f"derived-{self.seq}"

    @property
    def ok(self) -> bool:
        return self.result is not None and self.result["status"] == "ok"

    @property
    def outcome(self) -> str:
        return "" if self.result is None else str(self.result["outcome"])

    @property
    def data(self) -> Json:
        found: Json = {} if self.result is None else self.result["data"]
        return found

    def __str__(self) -> str:
        return f"{self.plane}.{self.verb} {'.'.join(self.key)} at {self.seq} by {self.who}"


@dataclass
class History:
    """Everything that was recorded.

    Attributes:
        began: The beginning.
        ended: The end; ``None`` if the run broke off.
        calls: By number.
        stored: What the streams hold, by kind, in stream order.
    """

    began: Began
    ended: Ended | None = None
    calls: dict[int, Call] = field(default_factory=dict)
    stored: dict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Asked] = field(default_factory=list)
    permits: list[Permitted] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "History":
        """Index events; the first one is the beginning."""
        rest = iter(events)
        first = next(rest)
        assert isinstance(first, Began), "a history begins with its beginning"
        one = cls(first)
        for event in rest:
            match event:
                case Called(call=number):
                    one.calls[number] = Call(event, None)
                case Answered(call=number):
                    one.calls[number] = Call(one.calls[number].called, event)
                case Stored(kind=kind):
                    one.stored[kind].append(event)
                case Asked():
                    one.asked.append(event)
                case Permitted():
                    one.permits.append(event)
                case Written():
                    one.written.append(event)
                case Heard():
                    one.heard.append(event)
                case Replica():
                    one.replicas.append(event)
                case Ended():
                    one.ended = event
        for messages in one.stored.values():
            messages.sort(key=lambda message: message.seq)
        return one

    @cached_property
    def names(self) -> Names:
        return Names("tidegate", self.began.space)

    def tail(self, message: Stored, family: str) -> tuple[str, ...] | None:
        """What follows ``<root>.<space>.<family>.`` in a message's subject, token by token."""
        head = f"{self.names.prefix}.{family}."
        return (
            tuple(message.subject[len(head) :].split("."))
            if (message.subject.startswith(head))
            else None
        )

    @cached_property
    def results(self) -> dict[tuple[bool, int], list[Stored]]:
        """Stored results by the sequence they answer; the flag says whether of the ledger."""
        found: dict[tuple[bool, int], list[Stored]] = defaultdict(list)
        for message in self.stored["res"]:
            tail = self.tail(message, "res")
            if tail is None:
                continue
            epoch, *seq = tail[-1].split("-")
            of_ledger = len(tail) == 5 and tail[2] in LEDGER
            if len(seq) == 1:
                ledger = len(epoch) < INSTANT if tail[:2] == UNKNOWN else of_ledger
                found[ledger, int(seq[0])].append(message)
        return found

    def _commands(self, kind: str) -> Iterator[Command]:
        for message in self.stored[kind]:
            tail = self.tail(message, "cmd")
            assert tail is not None, message.subject
            principal, uid, plane, verb, *key = tail
            results = self.results.get((kind == "log", message.seq), [])
            result = results[0].body if results else None
            yield Command(message, f"{principal}.{uid}", plane, verb, tuple(key), result)

    @cached_property
    def log(self) -> list[Command]:
        """Commands of the ledger in their order."""
        return list(self._commands("log"))

    @cached_property
    def cmd(self) -> list[Command]:
        """Commands about checkpoints in their order."""
        return list(self._commands("cmd"))

    def first_of_intent(self, commands: list[Command]) -> Iterator[tuple[Command, Command]]:
        """Each command with the first one of the same intent: itself, unless it is a repeat."""
        first: dict[tuple[str, str], Command] = {}
        for command in commands:
            yield command, first.setdefault(command.intent, command)

    def facts(self, plane: str) -> Iterator[tuple[Stored, tuple[str, ...]]]:
        """Stored public facts of a plane: the message, and its subject from the kind on."""
        for message in self.stored["res"]:
            tail = self.tail(message, f"fact.{plane}")
            if tail is not None:
                yield message, tail
