"""The async client: ``async with Client(url, speaker, space) as client``."""

from worker.client.caps import Authorization, Capped
from worker.client.checkpoints import NO_ANSWER, Outcome, Page, Repaired
from worker.client.core import Client, new_command_id
from worker.client.errors import (
    Answer,
    CallTimeout,
    ClientError,
    Failed,
    NobodyThere,
    QueryTimeout,
    Refused,
)

__all__ = [
    "NO_ANSWER",
    "Answer",
    "Authorization",
    "CallTimeout",
    "Capped",
    "Client",
    "ClientError",
    "Failed",
    "NobodyThere",
    "Outcome",
    "Page",
    "QueryTimeout",
    "Refused",
    "Repaired",
    "new_command_id",
]
