"""How a command runs and ends: signals, exit codes, and errors for people and machines."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from schemas.codes import BadInput, Code
from schemas.strict_json import JsonObject
from worker.cli import repeating
from worker.errors import StartRefused, TidegateError

T = TypeVar("T")

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
TIMEOUT: Final = 124
INTERRUPTED: Final = 130

REPEAT: Final = "carried out once, however often it is asked: "
"""Before a command that repeats what was sent."""

EXIT_CODES: Final = (
    "Exit codes: 0 ok, 3 refused, 1 failed, 2 wrong usage, 124 no answer in time "
    "(the outcome is unknown)."
)


class Ended(Exception):
    """SIGTERM or SIGHUP ended a command, after it had cleaned up.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"ended by signal {number}")


def run_async(work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run a command's coroutine to its end.

    A signal cancels it, so that it ends what it started: brokers, workers, temporary folders.

    Args:
        work: What to run.
        fast: On the worker's event loop, which takes longer to load.

    Raises:
        Ended: SIGTERM or SIGHUP came.
        KeyboardInterrupt: SIGINT came.
    """
    try:
        from worker import logs

        factory = None
        if fast:
            from worker import daemon

            factory = daemon.loop_factory()
        logs.configure("error", "console")
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_until_ended(work))
    finally:
        work.close()  # an interrupt may come before it begins


async def _until_ended(work: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hangup is ignored, and stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if came:
            raise Ended(came[0]) from None
        raise


def exit_code(error: TidegateError | BadInput) -> int:
    """The exit code an error leads to."""
    from worker.client import errors as client_errors

    match error:
        case BadInput():
            return USAGE
        case client_errors.CallTimeout() | client_errors.QueryTimeout():
            return TIMEOUT
        case client_errors.Failed():
            return FAILED
        case client_errors.Refused() | StartRefused():
            return REFUSED
    match error.code:
        case Code.PERMISSION_DENIED | Code.UNAUTHENTICATED:
            return REFUSED
        case Code.BAD_REQUEST:
            return USAGE
        case _:
            return FAILED


_HINTS: Final[Mapping[str, str]] = {
    "permission-denied": "tidegate doctor says which rights this login has, and which it lacks",
    "credentials-refused": "the login is TIDEGATE_NATS_USER and TIDEGATE_NATS_PASSWORD, "
    "or TIDEGATE_NATS_CREDS_FILE",
    "nobody-there": "is --space right (TIDEGATE_SPACES)? tidegate doctor says what is there",
    "minting-paused": "tidegate cap minting on",
}


def hint(error: TidegateError | BadInput) -> str | None:
    """What a person may do about an error, where the error itself cannot know."""
    if (again := _asked_again(error)) and (line := repeating.line(again)):
        return f"{REPEAT}{line}"
    return _HINTS.get(error.reason)


def _asked_again(error: TidegateError | BadInput) -> str | None:
    """The command id under which asking again tells the outcome, or may change it."""
    from worker.client import errors as client_errors

    match error:
        case client_errors.CallTimeout():
            return error.command_id
        case client_errors.Refused() if error.retryable:
            return error.result.command_id or None
    return None


def error_object(error: TidegateError | BadInput) -> JsonObject:
    """An error as ``--json`` shows it: a result, or what looks like one."""
    from schemas.codes import RETRYABLE
    from worker.client import errors as client_errors

    if isinstance(error, client_errors.Refused) and error.result.id:
        return error.result.to_object()
    is_refusal = exit_code(error) == REFUSED
    shown: JsonObject = {
        "v": 1,
        "status": "refused" if is_refusal else "failed",
        "outcome": error.reason,
        "data": error.result.data if isinstance(error, client_errors.Refused) else {},
        "error": {
            "code": error.code.value,
            "reason": error.reason,
            "message": error.message,
            "retryable": error.code in RETRYABLE,
        },
    }
    if field := getattr(error, "field", None):
        shown["error"]["field"] = field
    if isinstance(error, client_errors.CallTimeout):
        shown["command_id"] = error.command_id
        shown["error"]["retryable"] = True
        shown["repeat"] = repeating.arguments(error.command_id)
    return shown
