"""Counters and histograms of the worker, by Prometheus' conventions.

They live in one registry of our own so that a process that embeds the worker keeps its default
registry clean. Label values come from closed sets; no id ever becomes a label.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)

_LATENESS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.35, 0.5, 1, 5, 60, 3600)

COMMANDS = Counter(
    "tidegate_commands",
    "Commands that got a result.",
    ("plane", "verb", "status"),
    registry=REGISTRY,
)
SETTLED = Counter(
    "tidegate_checkpoints_settled",
    "Checkpoints this worker settled, by settlement and by what drove it.",
    ("settle", "by"),
    registry=REGISTRY,
)
EXPIRY_LATENESS = Histogram(
    "tidegate_checkpoint_expiry_lateness_seconds",
    "From a deadline to its expiry.",
    buckets=_LATENESS_BUCKETS,
    registry=REGISTRY,
)
SETTLE_SECONDS = Histogram(
    "tidegate_checkpoint_settle_seconds",
    "From a resume's broker timestamp to its settlement.",
    buckets=_LATENESS_BUCKETS,
    registry=REGISTRY,
)
TIMER_ARMS = Counter(
    "tidegate_timer_arms",
    "What the timer writer did: armed, settled, unknown, stale, too-far, conflict, refused, "
    "cancelled.",
    ("outcome",),
    registry=REGISTRY,
)
TIMER_FIRES = Counter(
    "tidegate_timer_fires",
    "What a fired message led to: settled, forged, stale, not-waiting, early.",
    ("verdict",),
    registry=REGISTRY,
)
REPAIRS = Counter(
    "tidegate_checkpoint_repairs",
    "What the sweep repaired.",
    ("repair",),
    registry=REGISTRY,
)
PENDING = Gauge(
    "tidegate_checkpoints_waiting",
    "Waiting checkpoints this worker knows of.",
    ("space",),
    registry=REGISTRY,
)
