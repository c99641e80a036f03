"""What a scenario is and what it reports."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from schemas.strict_json import JsonObject
from worker.demo.stage import Stage


@dataclass(frozen=True, slots=True)
class Ending:
    """How a scenario ended.

    Attributes:
        outcome: Stable word.
        settled_ms: How long the caller waited for the settlement or refusal.
        lateness_ms: From the deadline to the expiry, where there was one.
        told: A sentence for a person.
    """

    outcome: str
    told: str
    settled_ms: float | None = None
    lateness_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scene.

    Attributes:
        name: Stable word for ``--json``.
        title: What a person reads first.
        must: The outcome it has to end in.
        play: Plays it.
    """

    name: str
    title: str
    must: str
    play: Callable[[Stage], Awaitable[Ending]]


@dataclass(frozen=True, slots=True)
class Played:
    """A scene that was played.

    Attributes:
        scenario: Which.
        ending: How it ended; ``None`` if it broke off.
        trouble: Why it broke off.
    """

    scenario: Scenario
    ending: Ending | None
    trouble: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended as it must."""
        return self.ending is not None and self.ending.outcome == self.scenario.must

    def to_object(self) -> JsonObject:
        """Its entry in the JSON report."""
        ending = self.ending
        return {
            "name": self.scenario.name,
            "ok": self.ok,
            "outcome": ending.outcome if ending else "failed",
            "must": self.scenario.must,
            "settled_ms": ending.settled_ms if ending else None,
            "lateness_ms": ending.lateness_ms if ending else None,
            **({"trouble": self.trouble} if self.trouble else {}),
        }
