"""What all commands share: options, what they print, and how they refuse a parameter.

Data goes to standard output, words for people to standard error.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from schemas.codes import BadInput
from schemas.strict_json import JsonObject
from worker.cli import repeating
from worker.showing.instants import parse_duration, parse_instant, show_duration, show_instant
from worker.showing.text import escaped, visible

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_REAL: Final = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]{1,9})?")
_N = TypeVar("_N", int, float)


def examples(*lines: str, more: str = "") -> str:
    """The end of a command's help: commands to copy, and words below them."""
    shown = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
    return f"{shown}\n\n{more}" if more else shown


JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of text.", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file of NAME=value lines; by default TIDEGATE_CONFIG.",
        metavar="FILE",
    ),
]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        help="Broker URLs, comma separated; by default TIDEGATE_NATS_URL, else the broker of the "
        "worker that runs here.",
        metavar="URL",
    ),
]
SpacesOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        "--spaces",
        help="The spaces, comma separated; by default TIDEGATE_SPACES.",
        metavar="SPACES",
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space", help="The space; by default the first of TIDEGATE_SPACES.", metavar="SPACE"
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Who speaks: a principal, with the uid kept here (see identity), or principal.uid; "
        "by default TIDEGATE_PRINCIPAL, else the one the broker user has rights for, else the "
        "identity kept here.",
        metavar="PRINCIPAL",
    ),
]


def _command_id(context: typer.Context, given: str | None) -> str | None:
    """Refuse here what the worker would refuse, by the option's name."""
    from schemas import tokens

    repeating.begin(context)
    if given is not None and not tokens.is_command_id(given):
        usage("--command-id", f"must match {tokens.COMMAND_ID_PATTERN}")
    return given


CommandIdOption = Annotated[
    str | None,
    typer.Option(
        "--command-id",
        callback=_command_id,
        help="Id of the intent, 16 to 64 of [A-Za-z0-9_-]; by default a new one. After a timeout "
        "give the same again: it is carried out once.",
        metavar="ID",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        help="How long to wait for the answer, for example 30s; by default TIDEGATE_TIMEOUT_MS, "
        "10s.",
        metavar="DURATION",
    ),
]


def say(text: str) -> None:
    """One line for a person."""
    try:
        print(visible(text), file=sys.stderr, flush=True)
    except OSError:
        return


def emit(value: JsonObject, as_json: bool, text: Sequence[str] | str) -> None:
    """Print data: one JSON document, or lines; nothing in them is unseen or obeyed by a terminal.

    Raises:
        BrokenPipeError: Whoever read it has gone.
        SystemExit: It cannot be written, as to a full disk; that was said.
    """
    if as_json:
        text = escaped(json.dumps(value, ensure_ascii=False, indent=None))
    else:
        lines = text.split("\n") if isinstance(text, str) else text
        text = "\n".join(visible(line) for line in lines)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"tidegate: standard output cannot be written: {os.strerror(error.errno or 0)}")
        discard_output()
        raise SystemExit(1) from None


def emit_data(outcome: str, data: JsonObject, as_json: bool, text: Sequence[str] | str) -> None:
    """Print what is not a command's result, in the envelope of a query's answer, or as lines.

    Args:
        outcome: A stable word for what it is.
        data: What there is to say.
        as_json: Whether it is for a machine.
        text: The same for a person.

    Raises:
        BrokenPipeError: As ``emit``, with all else.
    """
    said = {name: value for name, value in data.items() if name not in {"v", "outcome"}}
    emit({"v": 1, "status": "ok", "outcome": outcome, "data": said}, as_json, text)


def discard_output() -> None:
    """Nothing more can be said on standard output, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage(parameter: str, message: str) -> NoReturn:
    """Refuse a parameter as wrong usage."""
    raise typer.BadParameter(message, param_hint=parameter)


def misspelt(parameter: str, bad: BadInput) -> NoReturn:
    """Refuse a parameter that the contract refuses, and say what it may be."""
    from schemas import tokens

    grammar = {
        "endpoint": "is dotted labels of a-z, 0-9 and -, such as runs.nightly, "
        f"of {tokens.MAX_ENDPOINT_CHARS} characters at most",
        "token": f"matches {tokens.NAME_PATTERN}",
        "principal": f"matches {tokens.NAME_PATTERN}",
        "uid": f"matches {tokens.UID_PATTERN}",
    }.get(bad.field)
    article = "an" if bad.field == "endpoint" else "a"
    usage(parameter, bad.message if grammar is None else f"{article} {bad.field} {grammar}")


def whole(least: int = 0, most: int | None = None) -> Callable[[Any], int]:
    """Reads a whole number given as an option: digits, with a sign at most, within bounds.

    Python itself would take ``1_0`` and the digits of every script; none is a slip to guess at.
    """
    return _number(int, _WHOLE, "a whole number", least, most)


def real(least: float, most: float | None = None) -> Callable[[Any], float]:
    """Reads a number given as an option, with a fraction or without, within bounds."""
    return _number(float, _REAL, "a number", least, most)


def _number(
    make: type[_N], pattern: re.Pattern[str], what: str, least: float, most: float | None
) -> Callable[[Any], _N]:
    def read(given: Any) -> _N:
        if not isinstance(given, str):
            return make(given)  # a default
        if pattern.fullmatch(given) is None:
            raise typer.BadParameter(f"must be {what}")
        number = make(given)
        if number < least:
            raise typer.BadParameter(f"must be at least {least}")
        if most is not None and number > most:
            raise typer.BadParameter(f"must be at most {most}")
        return number

    return read


def judge(plane: str, verb: str, fields: Mapping[str, Any]) -> None:
    """Judge a command's body here, before anything is sent.

    Raises:
        BadInput: It is not what the contract says; the field is named.
    """
    from schemas.commands import BODIES

    BODIES[plane, verb].from_object({"v": 1, **fields})


def duration(parameter: str, text: str, *, least_ms: int = 1) -> int:
    """Milliseconds of a duration given as an option."""
    try:
        given_ms = parse_duration(text)
    except ValueError as error:
        usage(parameter, str(error))
    if given_ms < least_ms:
        usage(parameter, f"must be {show_duration(least_ms)} at least")
    return given_ms


def instant(parameter: str, text: str) -> int:
    """Milliseconds of an instant given as an option; ``+`` counts from this machine's now."""
    try:
        at_ms = parse_instant(text, now_ms())
    except ValueError as error:
        usage(parameter, str(error))
    repeating.fix(parameter, show_instant(at_ms))
    return at_ms


def now_ms() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000_000


def read_json(parameter: str, source: str) -> Any:
    """A JSON value from ``-`` (standard input), ``@file``, or the text itself."""
    try:
        if source == "-":
            raw = sys.stdin.read()
        elif source.startswith("@"):
            raw = Path(source[1:]).read_text(encoding="utf-8")
        else:
            raw = source
    except (OSError, UnicodeDecodeError) as error:
        usage(parameter, f"{source} cannot be read: {getattr(error, 'strerror', None) or error}")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        usage(parameter, "is not JSON")
