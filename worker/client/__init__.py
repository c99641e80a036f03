"""The async client: ``async with connect("maria") as client``; see also ``Client``."""

from schemas.codes import BadInput
from schemas.envelope import traceparent_of
from schemas.subjects import Speaker
from worker.broker import NoBroker
from worker.bus.errors import BusError, Denied, Unauthenticated, Unavailable
from worker.client.caps import Authorization, Capped
from worker.client.checkpoints import NO_ANSWER, Outcome, Page, Repaired, Settled
from worker.client.connecting import connect
from worker.client.core import Client, new_command_id
from worker.client.errors import (
    Answer,
    CallTimeout,
    Failed,
    NobodyThere,
    QueryTimeout,
    Refused,
)
from worker.errors import ClientError
from worker.tracing import context_of

__all__ = [
    "NO_ANSWER",
    "Answer",
    "Authorization",
    "BadInput",
    "BusError",
    "CallTimeout",
    "Capped",
    "Client",
    "ClientError",
    "Denied",
    "Failed",
    "NoBroker",
    "NobodyThere",
    "Outcome",
    "Page",
    "QueryTimeout",
    "Refused",
    "Repaired",
    "Settled",
    "Speaker",
    "Unauthenticated",
    "Unavailable",
    "connect",
    "context_of",
    "new_command_id",
    "traceparent_of",
]
