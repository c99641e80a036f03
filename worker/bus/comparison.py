"""Comparing a stream with what it has to be, and saying which differences can lose data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from worker.bus.plan import SPACE_ID_KEY


class Severity(StrEnum):
    """What a difference can do."""

    DANGER = "danger"
    """Data could be lost, or what is promised could not be kept: start is refused."""

    HARMLESS = "harmless"
    """An operator's choice that is left alone."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not as planned.

    Attributes:
        severity: Whether start is refused.
        what: ``<stream>.<setting>`` or ``<stream>/<durable>.<setting>``.
        expected: As planned, for people.
        found: As it is, for people.
    """

    severity: Severity
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what} is {self.found}, expected {self.expected}"


_MUST_BE: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "deny_delete": False,
    "deny_purge": False,
    "allow_msg_ttl": False,
    "allow_msg_schedules": False,
}
"""Settings that must be as planned, with what the broker means by leaving one out.

``deny_delete`` and ``deny_purge`` that are on without being planned deny too much, which loses
nothing; the table below makes those harmless.
"""

_STRICTER_IS_HARMLESS: Final = frozenset({"deny_delete", "deny_purge"})
_MUST_BE_OFF: Final = (
    "sealed",
    "no_ack",
    "mirror",
    "sources",
    "subject_transform",
    "discard_new_per_subject",
    "allow_msg_counter",
)
"""Settings that a planned stream never has and that would lose or alter messages."""

_MUST_BE_IF_PLANNED: Final = ("allow_direct", "allow_rollup_hdrs")
_LIMITS: Final = ("max_msgs", "max_bytes")
_SMALLEST_MESSAGE: Final = 1024 * 1024
_OPTIONAL: Final = ("allow_atomic", "duplicate_window", "compression")


def compare_stream(planned: Mapping[str, Any], actual: Mapping[str, Any]) -> list[Difference]:
    """Every difference between a planned stream and the one read back.

    Args:
        planned: From ``plan.stream_configs``.
        actual: ``StreamInfo.config``.
    """
    return list(_stream_differences(planned, actual))


def compare_durable(
    stream: str, planned: Mapping[str, Any], actual: Mapping[str, Any]
) -> list[Difference]:
    """Every difference between a planned durable and the one read back."""
    name = f"{stream}/{planned['durable_name']}"
    found = []
    for key, severity in (
        ("ack_policy", Severity.DANGER),
        ("filter_subject", Severity.DANGER),
        ("max_deliver", Severity.DANGER),
        ("deliver_policy", Severity.DANGER),
        ("ack_wait", Severity.HARMLESS),
        ("max_ack_pending", Severity.HARMLESS),
    ):
        if actual.get(key) != planned[key]:
            found.append(_difference(severity, f"{name}.{key}", planned[key], actual.get(key)))
    for key in (
        "deliver_subject",
        "filter_subjects",
        "backoff",
        "pause_until",
        "headers_only",
        "max_batch",
        "max_expires",
        "max_bytes",
    ):
        if actual.get(key):
            found.append(_difference(Severity.DANGER, f"{name}.{key}", "none", actual[key]))
    return found


def _stream_differences(
    planned: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[Difference]:
    name = planned["name"]
    if sorted(actual.get("subjects") or []) != sorted(planned["subjects"]):
        yield _difference(
            Severity.DANGER, f"{name}.subjects", planned["subjects"], actual.get("subjects")
        )
    for key, default in _MUST_BE.items():
        want, have = planned.get(key, default), actual.get(key, default)
        if want != have:
            harmless = key in _STRICTER_IS_HARMLESS and have is True
            severity = Severity.HARMLESS if harmless else Severity.DANGER
            yield _difference(severity, f"{name}.{key}", want, have)
    for key in _MUST_BE_OFF:
        if actual.get(key):
            yield _difference(Severity.DANGER, f"{name}.{key}", "off", actual[key])
    for key in _MUST_BE_IF_PLANNED:
        want, have = planned.get(key, False), actual.get(key, False)
        # A rollup removes what was stored before it, so it may only be where it was planned.
        spoils = have and key == "allow_rollup_hdrs"
        if want != have:
            severity = Severity.DANGER if want or spoils else Severity.HARMLESS
            yield _difference(severity, f"{name}.{key}", want, have)
    if actual.get("persist_mode") not in (None, "", "default"):
        yield _difference(
            Severity.DANGER, f"{name}.persist_mode", "default", actual["persist_mode"]
        )
    if planned.get("republish") != (actual.get("republish") or None):
        want, have = _repeats(planned), _repeats(actual)
        yield _difference(Severity.HARMLESS, f"{name}.republish", want, have)
    yield from _limit_differences(name, planned, actual)
    for key in _OPTIONAL:
        if key in planned and planned[key] != actual.get(key, False):
            yield _difference(
                Severity.HARMLESS, f"{name}.{key}", planned[key], actual.get(key, False)
            )
    yield from _identity_differences(name, planned, actual)


def _limit_differences(
    name: str, planned: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[Difference]:
    evicts = actual.get("discard", "old") == "old"
    for key in _LIMITS:
        limit = actual.get(key, -1)
        if limit > 0:
            severity = Severity.DANGER if evicts else Severity.HARMLESS
            yield _difference(severity, f"{name}.{key}", "unlimited", limit)
    kept = planned.get("max_msgs_per_subject", -1)
    have = actual.get("max_msgs_per_subject", -1)
    if have != kept and not (have <= 0 and kept <= 0):
        # More history than planned loses nothing, less history or any at all does.
        severity = Severity.HARMLESS if 0 < kept < have or have <= 0 else Severity.DANGER
        yield _difference(severity, f"{name}.max_msgs_per_subject", kept, have)
    size = actual.get("max_msg_size", -1)
    if 0 < size < _SMALLEST_MESSAGE:
        yield _difference(Severity.DANGER, f"{name}.max_msg_size", "unlimited", size)
    want_age, have_age = planned.get("max_age", 0), actual.get("max_age", 0)
    if want_age != have_age:
        shorter = have_age != 0 and (want_age == 0 or have_age < want_age)
        # Results are read back for as long as the operator likes.
        lenient = planned.get("allow_atomic") and planned.get("allow_direct") and want_age
        severity = Severity.DANGER if shorter and not lenient else Severity.HARMLESS
        yield _difference(severity, f"{name}.max_age", _seconds(want_age), _seconds(have_age))


def _identity_differences(
    name: str, planned: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[Difference]:
    want = (planned.get("metadata") or {}).get(SPACE_ID_KEY)
    have = (actual.get("metadata") or {}).get(SPACE_ID_KEY)
    if want != have:
        yield _difference(Severity.DANGER, f"{name}.metadata.{SPACE_ID_KEY}", want, have)
    replicas, found = planned["num_replicas"], actual.get("num_replicas", 1)
    if found != replicas:
        severity = Severity.DANGER if found < replicas else Severity.HARMLESS
        yield _difference(severity, f"{name}.num_replicas", replicas, found)


def _repeats(config: Mapping[str, Any]) -> str:
    republish = config.get("republish")
    if not republish:
        return "off"
    what = ", headers only" if republish.get("headers_only") else ""
    return f"{republish.get('src')} on {republish.get('dest')}{what}"


def _seconds(age_ns: int) -> str:
    return f"{age_ns // 1_000_000_000} s" if age_ns else "unlimited"


def _difference(severity: Severity, what: str, expected: Any, found: Any) -> Difference:
    return Difference(severity, what, _shown(expected), _shown(found))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "absent" if value is None else str(value)
