"""How people write instants and durations on the command line."""

import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d|w)", re.ASCII)
_DURATION: Final = re.compile(r"(?:\d{1,12}(?:ms|s|m|h|d|w))+", re.ASCII)
_MILLISECONDS: Final = re.compile(r"\d{12,16}", re.ASCII)
_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})",
    re.ASCII,
)


def parse_duration(text: str) -> int:
    """Milliseconds of ``500ms``, ``90s``, ``15m``, ``2h30m``, ``3d`` or ``1w``.

    Raises:
        ValueError: With a sentence for a person.
    """
    if _DURATION.fullmatch(text) is None:
        raise ValueError("a duration looks like 500ms, 90s, 15m, 2h30m or 3d")
    return sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text))


def parse_instant(text: str, now_ms: int) -> int:
    """Milliseconds since the epoch of ``+15m``, of an RFC 3339 instant, or of a plain number.

    Args:
        text: What was written.
        now_ms: What ``+`` counts from.

    Raises:
        ValueError: With a sentence for a person.
    """
    if text.startswith("+"):
        return now_ms + parse_duration(text[1:])
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    if text.isdecimal():
        raise ValueError("a plain number is milliseconds since 1970; for a duration write +15m")
    if _RFC3339.fullmatch(text) is None:
        raise ValueError("an instant looks like +15m, 2030-01-31T12:00:00Z or milliseconds")
    try:
        moment = datetime.fromisoformat(text.upper().replace(" ", "T"))
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError("there is no such date or time") from None
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def show_instant(at_ms: int) -> str:
    """An instant in RFC 3339, UTC, with milliseconds."""
    try:
        moment = datetime.fromtimestamp(at_ms // 1_000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03d}Z"


def show_duration(ms: int) -> str:
    """A duration with its two largest units: ``2h30m``, ``9h0m``, ``1.250s``, ``40ms``."""
    if ms < 0:
        return "-" + show_duration(-ms)
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1_000:.3f}".rstrip("0").rstrip(".") + "s"
    seconds = ms // 1_000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    counts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    first = next(n for n, (count, _) in enumerate(counts) if count)
    # A zero between stays, or hours and seconds would look like hours and minutes.
    exact = not any(count for count, _ in counts[first + 1 :])
    shown = counts[first : first + (1 if exact else 2)]
    return "".join(f"{count}{unit}" for count, unit in shown)
