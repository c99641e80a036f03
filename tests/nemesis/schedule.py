"""The schedule of a run: what is done to what, when and for how long; a function of the seed."""

import random
from dataclasses import dataclass
from typing import Final

STREAMS: Final = ("LOG", "CMD", "RES", "EPT", "EPF", "records")
DURABLES: Final = ("cp", "timers", "fires")
CLOCK_STEPS_MS: Final = (-3_600_000, -90_000, -2_000, 2_000, 90_000, 3_600_000)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault.

    Attributes:
        at_s: When, from the beginning.
        for_s: How long; 0 for what happens once.
        fault: Its kind.
        target: What it hits; no two faults hit the same at once.
        detail: How.
    """

    at_s: float
    for_s: float
    fault: str
    target: str
    detail: str = ""

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"at {self.at_s:5.1f} s{lasting}: {self.fault} {self.target}{detail}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of fault: how often, on whom, how long at least and at most."""

    weight: int
    on: str
    least_s: float = 0.0
    most_s: float = 0.0
    details: tuple[str, ...] = ("",)


WAYS: Final = ("up", "down", "both")
CHANCES: Final = tuple(map(str, range(1, 10)))
"""Seeds of what is left to chance within a fault."""

RIGHTS: Final = (".res.", ".fact.", ".grant.", ".armed", ".epf.", "_records_", ".qry.", ".hb.")
"""Words of the rights that a worker is deprived of."""
KINDS: Final[dict[str, _Kind]] = {
    "kill-worker": _Kind(6, "worker", 0.0, 4.0),
    "freeze-worker": _Kind(5, "worker", 0.5, 8.0),
    "cut-worker": _Kind(4, "worker", 0.5, 6.0),
    "cut-link": _Kind(3, "link", 0.5, 8.0),
    "stall-worker": _Kind(4, "worker", 0.5, 8.0, WAYS),
    "swallow-worker": _Kind(4, "worker", 1.0, 8.0, WAYS),
    "step-clock": _Kind(3, "worker", 1.0, 8.0, tuple(map(str, CLOCK_STEPS_MS))),
    "fail-log": _Kind(2, "worker", 2.0, 8.0, ("closed", "full")),
    "fill-ledger-disk": _Kind(3, "worker", 1.0, 5.0),
    "slow-ledger-disk": _Kind(2, "worker", 1.0, 5.0, ("30", "150")),
    "kill-broker": _Kind(5, "broker", 0.0, 5.0),
    "freeze-broker": _Kind(4, "broker", 0.5, 8.0),
    "fill-broker-disk": _Kind(2, "broker", 1.0, 4.0),
    "slow-broker-disk": _Kind(2, "broker", 1.0, 5.0, ("30", "150")),
    "isolate-broker": _Kind(4, "broker", 1.0, 8.0, ("cut", "stall", "swallow")),
    "split-brokers": _Kind(3, "pair", 1.0, 8.0, ("cut", "stall", "swallow")),
    "step-down": _Kind(4, "stream"),
    "delete-durable": _Kind(3, "durable"),
    "delete-readers": _Kind(2, "readers"),
    "cut-clients": _Kind(3, "clients", 0.0, 3.0),
    "stall-clients": _Kind(2, "clients", 0.5, 5.0, WAYS),
    "swallow-clients": _Kind(2, "clients", 0.5, 5.0, WAYS),
    "muddle-clients": _Kind(5, "clients", 1.0, 6.0, CHANCES),
    "lag-worker": _Kind(5, "worker", 1.0, 8.0),
    "pause-machine": _Kind(4, "machine", 1.0, 8.0),
    "fill-and-cut-worker": _Kind(2, "worker", 1.5, 5.0),
    "damage-ledger": _Kind(2, "worker", 2.0, 6.0, CHANCES),
    "revoke-right": _Kind(3, "right", 1.0, 6.0, RIGHTS),
    "speak-strangely": _Kind(3, "strangers", 0.5, 3.0, CHANCES),
}
APART_S: Final = (0.3, 4.0)
"""Least and longest time between the beginnings of two faults."""

REST_S: Final = 0.2
TRIES: Final = 5

CLUSTER_ONLY: Final = frozenset({"isolate-broker", "split-brokers", "step-down"})


def targets(on: str, brokers: int) -> list[str]:
    """What a kind of fault can hit."""
    match on:
        case "worker":
            return ["w0", "w1"]
        case "link":
            return [f"w{worker}-{number}" for worker in range(2) for number in range(brokers)]
        case "broker":
            return [f"broker-{number}" for number in range(brokers)]
        case "pair":
            return [f"brokers-{a}-{b}" for a in range(brokers) for b in range(a)]
        case "machine":
            return [f"machine-{worker}-{worker % brokers}" for worker in range(2)]
        case "stream":
            return list(STREAMS)
        case "durable":
            return list(DURABLES)
    return [on]


def plan(seed: int, seconds: float, brokers: int) -> tuple[Planned, ...]:
    """The faults of one run, in order.

    Args:
        seed: Of every choice.
        seconds: How long; every fault has ended by then.
        brokers: 1 or 3.
    """
    rng = random.Random(seed)
    kinds = {name: kind for name, kind in KINDS.items() if brokers > 1 or name not in CLUSTER_ONLY}
    busy_until: dict[str, float] = {}
    planned: list[Planned] = []
    at_s = 0.5
    while at_s < seconds:
        for _ in range(TRIES):
            one = _draw(rng, kinds, at_s, brokers)
            parts = _parts(one.target)
            free = all(busy_until.get(part, 0.0) <= at_s for part in parts)
            if free and at_s + one.for_s < seconds:
                planned.append(one)
                busy_until |= dict.fromkeys(parts, at_s + one.for_s + REST_S)
                break
        at_s += rng.uniform(*APART_S)
    return tuple(planned)


def _draw(rng: random.Random, kinds: dict[str, _Kind], at_s: float, brokers: int) -> Planned:
    (name,) = rng.choices(list(kinds), [kind.weight for kind in kinds.values()])
    kind = kinds[name]
    return Planned(
        round(at_s, 2),
        round(rng.uniform(kind.least_s, kind.most_s), 2),
        name,
        rng.choice(targets(kind.on, brokers)),
        rng.choice(kind.details),
    )


def _parts(target: str) -> tuple[str, ...]:
    """What a target is made of: whoever is split off cannot be hit by anything else meanwhile."""
    if target.startswith("brokers-"):
        _, a, b = target.split("-")
        return (f"broker-{a}", f"broker-{b}")
    if target.startswith("machine-"):
        _, worker, broker = target.split("-")
        return (f"w{worker}", f"broker-{broker}")
    if target.startswith("w"):
        return (target.partition("-")[0],)
    return (target,)
