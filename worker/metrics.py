"""Counters, histograms and gauges of the worker, by Prometheus' conventions.

They live in one registry of our own so that a process that embeds the worker keeps its default
registry clean. Label values come from closed sets; no id ever becomes a label. Gauges that describe
a space's state are brought up to date when they are asked for (``worker.web.sampling``), and every
replica shows the same state: aggregate them with ``max``, never with ``sum``.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry(auto_describe=True)

ProcessCollector(registry=REGISTRY)
"""``process_…``: memory, CPU, open files and their bound, start time (Linux)."""

_LATENESS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.35, 0.5, 1, 5, 60, 3600)
_WAIT_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800)
_SIZE_BUCKETS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)

BUILD_INFO = Gauge(
    "tidegate_build_info",
    "Always 1; the versions of the worker, of its broker and of SQLite are labels.",
    ("version", "nats_server", "sqlite"),
    registry=REGISTRY,
)
READY = Gauge(
    "tidegate_ready",
    "1 if this worker would serve every space now, else 0; /readyz says why.",
    registry=REGISTRY,
)
PLANE_READY = Gauge(
    "tidegate_plane_ready",
    "1 if this part of a space would be served now, else 0.",
    ("space", "plane"),
    registry=REGISTRY,
)
CONNECTED = Gauge(
    "tidegate_broker_connected",
    "1 while the connection to the broker works, else 0.",
    registry=REGISTRY,
)
ROUND_TRIP = Gauge(
    "tidegate_broker_round_trip_seconds",
    "Last measured round trip to the broker.",
    registry=REGISTRY,
)
RECONNECTS = Counter(
    "tidegate_broker_reconnects",
    "Working connections to the broker that were lost and had to be made anew.",
    registry=REGISTRY,
)
DENIALS = Counter(
    "tidegate_broker_denials",
    "Messages and subscriptions that the broker's permissions refused.",
    registry=REGISTRY,
)
PROBE_AGE = Gauge(
    "tidegate_probe_age_seconds",
    "Since a probe last succeeded: round_trip, compare_and_set, database.",
    ("space", "probe"),
    registry=REGISTRY,
)
LOOP_DELAY = Histogram(
    "tidegate_loop_delay_seconds",
    "How much later than asked the worker's event loop gets to what is due.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5),
    registry=REGISTRY,
)
TASKS = Gauge(
    "tidegate_tasks",
    "Tasks of the worker's event loop; a number that only grows is a leak.",
    registry=REGISTRY,
)
COMMANDS = Counter(
    "tidegate_commands",
    "Commands that got a result, by the result's status (ok, refused, failed) and outcome.",
    ("plane", "verb", "status", "outcome"),
    registry=REGISTRY,
)
RESULT_SECONDS = Histogram(
    "tidegate_result_seconds",
    "From a command's broker timestamp to its result being stored.",
    ("plane",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
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
TIMERS_ASTRAY = Gauge(
    "tidegate_timers_astray",
    "What the last audit found and handed to repair: missing (something waits without a timer) "
    "and orphaned (a timer of nothing that waits).",
    ("space", "kind"),
    registry=REGISTRY,
)
PENDING = Gauge(
    "tidegate_checkpoints_waiting",
    "Waiting checkpoints this worker knows of; each has one timer pending.",
    ("space",),
    registry=REGISTRY,
)
OVERDUE_SECONDS = Gauge(
    "tidegate_checkpoint_overdue_seconds",
    "How long ago the earliest deadline of a checkpoint that still waits has passed; 0 if none.",
    ("space",),
    registry=REGISTRY,
)
CLOCK_UNCERTAINTY = Gauge(
    "tidegate_clock_uncertainty_seconds",
    "How closely the broker's clock is known; above 1 nothing is decided.",
    ("space",),
    registry=REGISTRY,
)
STREAMS_REGRESSED = Gauge(
    "tidegate_streams_regressed",
    "Streams of the checkpoint plane that went back in time and are not mended yet.",
    ("space",),
    registry=REGISTRY,
)

FOLD_STOPPED = Gauge(
    "tidegate_fold_stopped",
    "1 while the fold stands still for this reason.",
    ("space", "reason"),
    registry=REGISTRY,
)
FOLD_LAG_COMMANDS = Gauge(
    "tidegate_fold_lag_commands",
    "Commands in the log that this worker has not folded yet.",
    ("space",),
    registry=REGISTRY,
)
FOLD_LAG_SECONDS = Gauge(
    "tidegate_fold_lag_seconds",
    "How long this worker has known of a command that it has not folded yet.",
    ("space",),
    registry=REGISTRY,
)
FOLD_BATCH = Histogram(
    "tidegate_fold_batch_commands",
    "Commands folded in one transaction.",
    buckets=_SIZE_BUCKETS,
    registry=REGISTRY,
)
FOLD_SECONDS = Histogram(
    "tidegate_fold_batch_seconds",
    "From handing a batch to the database to its commit.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)
OUTBOX_DEPTH = Gauge(
    "tidegate_outbox_depth",
    "Results, grants and facts that are committed and not known to be stored.",
    ("space",),
    registry=REGISTRY,
)
PUBLISHES = Gauge(
    "tidegate_publishes",
    "1 if this replica holds the publishing lease, else 0.",
    ("space",),
    registry=REGISTRY,
)
TOLD_UNAVAILABLE = Counter(
    "tidegate_told_unavailable",
    "Callers that were told to come back since their command cannot be folded now.",
    registry=REGISTRY,
)
SNAPSHOT_LAG_COMMANDS = Gauge(
    "tidegate_snapshot_lag_commands",
    "Commands folded since the newest snapshot that this worker knows of.",
    ("space",),
    registry=REGISTRY,
)

SEATS = Gauge(
    "tidegate_admission_seats",
    "Seats held: starting (admitted, not dispatched yet), active, debt.",
    ("space", "phase"),
    registry=REGISTRY,
)
SEAT_LIMIT = Gauge(
    "tidegate_admission_seat_limit",
    "Seats that may be held now; a drain lowers it.",
    ("space",),
    registry=REGISTRY,
)
OLDEST_DEBT_SECONDS = Gauge(
    "tidegate_admission_oldest_debt_seconds",
    "How long the oldest debt has kept its seat; 0 if there is none.",
    ("space",),
    registry=REGISTRY,
)
QUEUED = Gauge(
    "tidegate_admission_queued",
    "Turns that wait for a seat.",
    ("space",),
    registry=REGISTRY,
)
BLOCKED = Gauge(
    "tidegate_admission_blocked",
    "Turns that wait, by what keeps them waiting now; one turn may count for several.",
    ("space", "block"),
    registry=REGISTRY,
)
BLOCKED_SECONDS = Counter(
    "tidegate_admission_blocked_turn_seconds",
    "Time turns have spent waiting, summed over turns, by what kept them waiting.",
    ("space", "block"),
    registry=REGISTRY,
)
QUEUE_WAIT = Histogram(
    "tidegate_admission_wait_seconds",
    "From a turn's enqueueing to its admission, as folded by this worker.",
    buckets=_WAIT_BUCKETS,
    registry=REGISTRY,
)

CAPS_ACTIVE = Gauge(
    "tidegate_caps_active",
    "Persons with a confirmed grant that has not ended.",
    ("space",),
    registry=REGISTRY,
)
STOP_SECONDS = Histogram(
    "tidegate_cap_stop_seconds",
    "From a Stop's broker timestamp to its result being stored, after which every answer refuses.",
    buckets=_LATENESS_BUCKETS,
    registry=REGISTRY,
)
