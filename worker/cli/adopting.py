"""``tidegate setup --adopt`` and ``--undo-adopt``: shown, asked, then done."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import typer

from worker.cli import common, ending, sessions
from worker.showing.columns import table

if TYPE_CHECKING:
    from worker.bus.adoption import Change
    from worker.settings import Settings

HEAD = ("SPACE", "STREAM", "SETTING", "FOUND", "BECOMES", "UNDONE")


async def adopt(settings: "Settings", yes: bool, as_json: bool) -> int:
    """Adopt every space of the settings; the exit code.

    Without ``--yes`` a terminal is asked and nothing else is changed: a program is shown what would
    be, and ends as refused.
    """
    import secrets

    from schemas.names import Names
    from worker.spaces import adoption_of, first_command

    async with sessions.workers_account(settings, "tidegate-setup") as conn:
        spaces = [Names(settings.root, space) for space in settings.spaces]
        adoptions = [adoption_of(conn, names, settings) for names in spaces]
        plans = [await one.plan(secrets.token_hex(16)) for one in adoptions]
        shown = {names.space: plan for names, plan in zip(spaces, plans, strict=True)}
        agreed = await _agreed(yes, as_json, _lines(shown), "adopt")
        if agreed:
            for names, one, plan in zip(spaces, adoptions, plans, strict=True):
                await one.apply(plan, first_command(names))
                common.say(f"{names.space}: adopted")
    report = [
        {"space": space, "adopted": agreed, "changes": [_object(one) for one in plan]}
        for space, plan in shown.items()
    ]
    # What a person has seen before the question is not said twice.
    outcome = "adopted" if agreed else "shown"
    common.emit_data(outcome, {"spaces": report}, as_json, _lines(shown) if yes else ())
    return ending.OK if agreed else ending.REFUSED


async def undo(settings: "Settings", yes: bool, as_json: bool) -> int:
    """Give every space of the settings back; the exit code."""
    from schemas.names import Names
    from worker.spaces import adoption_of

    names = ", ".join(settings.spaces)
    asked = [f"what adopting made in {names} is deleted, and what it changed is set back"]
    if not await _agreed(yes, as_json, asked, "undo"):
        common.emit_data("shown", {"spaces": []}, as_json, ())
        return ending.REFUSED
    report: list[dict[str, Any]] = []
    async with sessions.workers_account(settings, "tidegate-setup") as conn:
        for space in settings.spaces:
            kept = await adoption_of(conn, Names(settings.root, space), settings).undo()
            report.append({"space": space, "kept": kept})
            common.say(f"{space}: given back")
    lines = [f"the broker does not set back {one}" for entry in report for one in entry["kept"]]
    common.emit_data(
        "given-back", {"spaces": report}, as_json, lines or ["every setting is as it was"]
    )
    return ending.OK


async def _agreed(yes: bool, as_json: bool, lines: list[str], what: str) -> bool:
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        common.say("nothing was changed; say --yes to have it done")
        return False
    for line in lines:
        print(line)
    return await asyncio.to_thread(typer.confirm, f"{what}?", default=False)


def _lines(shown: dict[str, list["Change"]]) -> list[str]:
    rows = []
    for space, plan in shown.items():
        for change in plan:
            if change.is_new:
                rows.append((space, change.stream, "", "absent", "created", "deleted"))
            for one in change.differences:
                setting = one.what.partition(".")[2]
                undone = "stays" if setting in change.lasting else "set back"
                rows.append((space, change.stream, setting, one.found, one.expected, undone))
    return table(HEAD, rows) if rows else ["there is nothing left to change"]


def _object(change: "Change") -> dict[str, Any]:
    return {
        "stream": change.stream,
        "created": change.is_new,
        "settings": [
            {
                "what": one.what.partition(".")[2],
                "expected": one.expected,
                "found": one.found,
                "lasting": one.what.partition(".")[2] in change.lasting,
            }
            for one in change.differences
        ],
    }
