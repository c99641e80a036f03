"""Reading a result back where it is stored: in which epoch, and whether it is the one asked for."""

from schemas.commands import LEDGER_PLANES
from schemas.results import Result
from schemas.strict_json import JsonObject
from worker.bus.subscription import Msg

CHECKPOINTS = "checkpoints"
LEDGER = "ledger"


class Epochs:
    """The epochs in which results were last heard."""

    def __init__(self) -> None:
        self._heard: dict[str, str] = {}

    def hear(self, plane: str, result_id: str) -> None:
        """A result of a plane was heard."""
        epoch = result_id.rpartition("-")[0]
        if epoch:
            self._heard[_counter(plane)] = epoch

    def heard(self, plane: str) -> str | None:
        """The epoch of the last result of a plane; another may have begun since."""
        return self._heard.get(_counter(plane))

    @staticmethod
    def told(plane: str, status: JsonObject) -> str | None:
        """The epoch in which a worker's status says that it counts a plane's sequences.

        ``None`` if it is not ready: then it may not have seen yet that another one begins.
        """
        if not status.get("ready"):
            return None
        shown = status.get("planes", {}).get(_counter(plane), {})
        epoch = shown.get("epoch")
        return None if epoch is None else str(epoch)


def own_result(reply: Msg, command_id: str, result_id: str) -> Result | None:
    """The result in the answer to a direct get; ``None`` if none is there, or another command's.

    Raises:
        BadInput: It is not a result.
    """
    if reply.headers.status:
        return None
    result = Result.parse(reply.data).heard_with(reply.headers)
    return result if (result.command_id, result.id) == (command_id, result_id) else None


def _counter(plane: str) -> str:
    """The part of a worker that counts a plane's sequences."""
    return LEDGER if plane in LEDGER_PLANES else CHECKPOINTS
