"""Logging: one event per line, JSON or, on a terminal, for a person; context bound per command.

Events are snake_case words with bound fields; secrets and payloads are never fields. A sink that
fails (a closed pipe, a full disk) or stands still (a pipe whose reader has stopped) loses lines,
never the work that wanted to log.
"""

import logging
import os
import select
import stat
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

_TRACEBACKS = structlog.processors.ExceptionRenderer(
    # Local variables hold payloads and passwords.
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
)
_LIBRARIES = {"nats": logging.ERROR, "aiohttp": logging.WARNING, "asyncio": logging.WARNING}


PIECE: Final = 1_024
"""Characters written at once: no more than 4,096 bytes, for which a writable pipe has room."""

PATIENCE_MS: Final = 200
"""How long a reader that has just begun to stand still is waited for."""


class _Sink:
    """A text stream whose failures are counted instead of raised, and which holds nobody up.

    Attributes:
        lost: Lines that could not be written, or not whole.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._reader = _Reader.of(stream)
        self.lost = 0

    def write(self, text: str) -> int:
        # A field may hold what a stranger chose, and a lone surrogate is in no encoding.
        text = text.encode(self._encoding, "backslashreplace").decode(self._encoding)
        try:
            if self._reader is None:
                return self._stream.write(text)
            for start in range(0, len(text), PIECE):
                if not self._reader.keeps_up():
                    self.lost += 1
                    return start
                self._stream.write(text[start : start + PIECE])
                self._stream.flush()
            return len(text)
        except (OSError, ValueError):
            self.lost += 1
            return 0

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1


class _Reader:
    """Whoever reads a pipe, a socket or a terminal, and may stop to.

    Args:
        fd: Our end.
    """

    def __init__(self, fd: int) -> None:
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._stands_still = False

    @classmethod
    def of(cls, stream: TextIO) -> "_Reader | None":
        """The reader of a stream; ``None`` where nobody can hold us up, or nobody can tell."""
        try:
            fd = stream.fileno()
            mode = os.fstat(fd).st_mode
        except (AttributeError, OSError, ValueError):
            return None
        waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
        return cls(fd) if waits and hasattr(select, "poll") else None

    def keeps_up(self) -> bool:
        """Whether there is room now; waits a little the first time there is none."""
        self._stands_still = not self._poll.poll(0 if self._stands_still else PATIENCE_MS)
        return not self._stands_still


def configure(level: Level = "info", fmt: Format = "auto", stream: TextIO | None = None) -> None:
    """Set up structlog and route the libraries' own logging through it.

    Args:
        level: Least severe level that is written.
        fmt: ``json``, ``console``, or ``auto``: console if ``stream`` is a terminal.
        stream: Where lines go; standard error if absent.
    """
    stream = stream or sys.stderr
    as_json = fmt == "json" or (fmt == "auto" and not stream.isatty())
    sink = _Sink(stream)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _errors_by_name,
    ]
    last: list[Processor] = (
        [_TRACEBACKS, _in_reading_order, structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sink),  # type: ignore[arg-type]  # only write and flush are used
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_of_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name, least in _LIBRARIES.items():
        logging.getLogger(name).setLevel(least)


def get(name: str = "tidegate", /, **fields: Any) -> structlog.typing.FilteringBoundLogger:
    """A logger of a name with fields bound to it.

    It writes where structlog is configured to, else to standard error: standard output belongs to
    the program that uses the client.
    """
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(_Output(name), **fields)
    return logger


class _Output:
    """What is written to, looked up at each line, since a program may configure it at any time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if not structlog.is_configured():
            return getattr(structlog.PrintLogger(sys.stderr), method)
        return getattr(structlog.get_config()["logger_factory"](self._name), method)


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Bind fields to every event of this task, and of tasks it starts, until the block ends.

    The previous values come back at the end, so one command's id never shows on another's lines.
    """
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def clear() -> None:
    """Forget every bound field of this task; for the start of a unit of work."""
    structlog.contextvars.clear_contextvars()


def _errors_by_name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Write an exception given as ``error=`` as its type and sentence."""
    error = event.get("error")
    if isinstance(error, BaseException):
        event["error"] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return event


def _in_reading_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    first = {name: event.pop(name) for name in ("at", "level", "event") if name in event}
    return {**first, **event}


def _name_of_library(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> EventDict:
    """Turn a library's sentence into the field ``text`` of the event ``library_log``."""
    record = event.get("_record")
    event["text"] = event["event"]
    event["event"] = "library_log"
    if isinstance(record, logging.LogRecord):
        event["library"] = record.name
    return event
