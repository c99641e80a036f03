"""Names of message headers, ours and the broker's."""

from typing import Final

COMMAND: Final = "Tidegate-Command"
"""Command id chosen by the client, one per intent: ``[A-Za-z0-9_-]{16,64}``."""

CAUSE: Final = "Tidegate-Cause"
"""``<principal>/<command id>`` of the command a write was made for."""

ANSWER: Final = "Tidegate-Answer"
"""Id of the answer of a resumed status whose body must not name it."""

TRACEPARENT: Final = "traceparent"
"""W3C trace context, carried from a command to what follows from it."""

STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

MSG_ID: Final = "Nats-Msg-Id"
STORED_IN: Final = "Nats-Stream"
"""On a message that the broker repeats or reads back: the stream that holds it."""

STORED_ON: Final = "Nats-Subject"
"""On such a message: the subject under which it is stored.

Whoever has a message read back chooses where the answer goes, also onto a subject that somebody
else listens to. So what is heard is believed only on the very subject it is stored under.
"""

EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQ: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
MSG_SIZE: Final = "Nats-Msg-Size"
"""On a message that a consumer delivers without its body: how long that is."""

TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"

SCHEDULE: Final = "Nats-Schedule"
"""When to fire: ``@at <RFC 3339>`` (ADR-51)."""

SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
SCHEDULER: Final = "Nats-Scheduler"
"""On a fired message: the subject that was armed."""

SCHEDULE_NEXT: Final = "Nats-Schedule-Next"

REFUSED_ON_REQUESTS: Final = ("nats-schedule", "nats-scheduler", "nats-rollup")
"""Lower-case beginnings of headers that a timer request must never carry."""
