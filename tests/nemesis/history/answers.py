"""Every accepted command has one result, and whoever was answered was told what is stored.

Order: a call that began after another one had been answered stands after it in the log. That is
linearizability with the stream's order as the witness. A command sent again under its id is one
intent: it may be answered with what became of it, so its first call counts; only what permits
something is judged anew each time (``schemas.repeats``).
"""

from collections.abc import Iterator
from typing import Final

from schemas.repeats import JUDGED_ANEW
from tests.nemesis.history.past import LEDGER, Call, Command, History, Violation

ALARMS: Final = ("sys.log_regressed",)
"""Facts that are said while nothing can be stored."""


def check(history: History) -> Iterator[Violation]:
    yield from _one_result_each(history)
    yield from _told_what_is_stored(history)
    yield from _nothing_accepted_is_lost(history)
    yield from _in_order(history)
    yield from _repeats_agree(history)
    yield from _observers_heard_what_is_stored(history)


def _one_result_each(history: History) -> Iterator[Violation]:
    for ledger, commands in ((True, history.log), (False, history.cmd)):
        for command in commands:
            count = len(history.results.get((ledger, command.seq), ()))
            wanted = 0 if (command.plane, command.verb) == ("sys", "tick") else 1
            if count < wanted:
                yield Violation("no-result", str(command))
            elif count > wanted:
                yield Violation("two-results", str(command))


def _told_what_is_stored(history: History) -> Iterator[Violation]:
    """What was told is what is stored: one sequence has one answer, whoever hears it and when."""
    for call in history.calls.values():
        result = call.result
        if result is None or _only_said(call):
            continue
        ledger = call.called.plane in LEDGER
        stored = history.results.get((ledger, _seq(result["id"])), [])
        if not any(message.body == result for message in stored):
            yield Violation("answer-differs", f"call {call.called.call} was told {result}")


def _nothing_accepted_is_lost(history: History) -> Iterator[Violation]:
    known = {command.intent for command in (*history.log, *history.cmd)}
    for call in history.calls.values():
        accepted = call.result is not None or (call.answered is not None and call.answered.stored)
        if accepted and call.intent not in known:
            yield Violation("lost-command", f"call {call.called.call}, {call.called.command_id}")


def _in_order(history: History) -> Iterator[Violation]:
    since: dict[tuple[str, str], int] = {}
    for call in history.calls.values():
        since.setdefault(call.intent, call.called.at_ns)
    for ledger in (True, False):
        spans = sorted(
            (
                call.called.at_ns
                if (call.called.plane, call.called.verb) in JUDGED_ANEW
                else since[call.intent],
                call.answered.at_ns,
                _seq(call.result["id"]),
                call,
            )
            for call in _Ordered.of(history, ledger)
            if call.answered is not None and call.result is not None
        )
        ends = sorted((ended, seq, call) for _, ended, seq, call in spans)
        latest, latest_call, next_end = 0, None, 0
        for began, _, seq, call in spans:
            while next_end < len(ends) and ends[next_end][0] < began:
                if ends[next_end][1] > latest:
                    _, latest, latest_call = ends[next_end]
                next_end += 1
            if seq < latest and latest_call is not None:
                yield Violation(
                    "out-of-order",
                    f"call {call.called.call} was judged at {seq}, although call "
                    f"{latest_call.called.call} had been answered from {latest} before it began",
                )


class _Ordered(Call):
    """A call that sorts."""

    @classmethod
    def of(cls, history: History, ledger: bool) -> list["_Ordered"]:
        refused = {permit.call for permit in history.permits if not permit.allowed}
        # An old answer that refused, or that the client took for a refusal, did nothing.
        return [
            cls(call.called, call.answered)
            for call in history.calls.values()
            if (call.called.plane in LEDGER) == ledger
            and call.result is not None
            and not _only_said(call)
            and call.called.call not in refused
        ]

    def __lt__(self, other: "_Ordered") -> bool:
        return self.called.call < other.called.call


def _repeats_agree(history: History) -> Iterator[Violation]:
    for command, first in history.first_of_intent(history.log):
        anew = (command.plane, command.verb) in JUDGED_ANEW
        if command is first or anew or command.result is None:
            continue
        if (command.outcome, command.data) != (first.outcome, first.data):
            yield Violation("repeat-differs", f"{command}, first at {first.seq}")


def _observers_heard_what_is_stored(history: History) -> Iterator[Violation]:
    stored = {message.subject: message.body for message in history.stored["res"]}
    alarms = tuple(f"{history.names.prefix}.fact.{kind}." for kind in ALARMS)
    for heard in history.heard:
        if heard.subject.startswith(alarms):
            continue
        if heard.subject not in stored:
            yield Violation("heard-but-not-stored", heard.subject)
        elif heard.body != stored[heard.subject]:
            yield Violation("heard-otherwise", heard.subject)


def _only_said(call: Call) -> bool:
    """Whether an answer says that nobody can judge now; such a one is not stored."""
    error = (call.result or {}).get("error")
    return error is not None and error["code"] == "unavailable"


def _seq(result_id: str) -> int:
    return int(result_id.rpartition("-")[2])


def judged_at(history: History, call: int) -> Command | None:
    """The stored command whose result a call was told."""
    result = history.calls[call].result
    if result is None:
        return None
    wanted = _seq(result["id"])
    return next((command for command in history.log if command.seq == wanted), None)
