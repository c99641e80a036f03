"""``tidegate status``: whether a worker serves a space, and how it is."""

import asyncio
import json
import re
import time
from typing import Annotated, Final

import typer

from schemas.codes import Code
from schemas.strict_json import JsonObject
from worker import lastword
from worker.cli import common, ending, sessions
from worker.cli.common import (
    AsOption,
    ConfigOption,
    JsonFlag,
    NatsOption,
    SpaceOption,
)
from worker.cli.sessions import Session
from worker.errors import TidegateError
from worker.showing.columns import columns
from worker.showing.instants import show_duration, show_instant

ASK_AGAIN_S: Final = 0.1
JUST_STARTED_MS: Final = 10_000
"""How long before a worker is waited for it may have been started, and have ended."""
SUCCESSOR_MS: Final = 3_000
"""How soon a worker that was started with us takes back what its predecessor left."""
_UNIT: Final = re.compile(r"(_at)?_ms$")
_NOT_YET: Final = frozenset({Code.FAILED_PRECONDITION, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED})


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog="Exit codes: 0 ready, 1 not ready or nobody there.")
    def status(
        all_: Annotated[
            bool, typer.Option("--all", help="Also what every part of it says of itself.")
        ] = False,
        wait: Annotated[
            str | None,
            typer.Option(
                "--wait", help="Wait this long for a worker to be ready.", metavar="DURATION"
            ),
        ] = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        timeout: common.TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Show whether a worker serves a space, and how it is."""
        session = sessions.looking(
            config=config, nats=nats, space=space, as_=as_, as_json=as_json, timeout=timeout
        )

        wait_ms = common.duration("--wait", wait, least_ms=0) if wait else 0
        found = ending.run_async(_ready_within(session, wait_ms))
        common.emit_data("status", found, as_json, _lines(found, all_=all_))
        raise typer.Exit(ending.OK if found["ready"] else ending.FAILED)


async def _ready_within(session: Session, wait_ms: int) -> JsonObject:
    """Ask until a worker is ready or the time is over; the last answer, or its error.

    A worker that is just being started has left no word of its broker yet, or does not answer yet.
    """
    from worker.broker import NoBroker

    until = time.monotonic() + wait_ms / 1000
    began_ms = common.now_ms()
    while True:
        try:
            found = await _ask(session)
            if found["ready"] or time.monotonic() >= until:
                return found
        except TidegateError as error:
            if error.code not in _NOT_YET or time.monotonic() >= until:
                raise
            word = _why_none_started(session, began_ms)
            if word is not None:
                raise NoBroker(f"the worker that was started here ended: {word}") from error
        await asyncio.sleep(ASK_AGAIN_S)


def _why_none_started(session: Session, began_ms: int) -> str | None:
    """Why the worker here did not start, if it is the one that is waited for.

    What was left before we began may be of an earlier one, whose successor is about to say so.
    """
    settings = session.loaded.settings
    if settings.servers:
        return None  # workers elsewhere may answer
    about_to_start = common.now_ms() - began_ms < SUCCESSOR_MS
    since_ms = began_ms if about_to_start else began_ms - JUST_STARTED_MS
    return lastword.left_since(settings.data_dir, since_ms)


async def _ask(session: Session) -> JsonObject:
    async with session.client() as client:
        return await client.status()


def _lines(found: JsonObject, *, all_: bool) -> list[str]:
    worker, broker = found["worker"], found["broker"]
    up_ms = found["at_ms"] - worker["started_at_ms"]
    rows = [
        ("space", found["space"]),
        ("ready", "yes" if found["ready"] else "no"),
        *(("because", reason) for reason in found["reasons"]),
        ("worker", f"{worker['id']}, version {worker['version']}, pid {worker['pid']}"),
        ("since", f"{show_instant(worker['started_at_ms'])} ({show_duration(up_ms)})"),
        ("broker", f"nats-server {broker['version']}, {broker['reconnects']} reconnects"),
    ]
    for name, shown in found["planes"].items() if all_ else ():
        rows += rows_of(name, shown)
    return columns(rows)


def rows_of(name: str, shown: JsonObject) -> list[tuple[str, str]]:
    """What a plane says of itself, a value a line; groups of counts on one, without the zeros."""
    rows: list[tuple[str, str]] = []
    for key, value in shown.items():
        bare = _UNIT.sub("", key)
        beside = " time" if bare != key and bare in shown else ""
        path = f"{name} {bare.replace('_', ' ')}{beside}"
        if isinstance(value, dict) and " " in name:
            counts = [f"{word} {_plain(count)}" for word, count in value.items() if count]
            rows.append((path, ", ".join(counts) or "-"))
        elif isinstance(value, dict):
            rows += rows_of(path, value)
        else:
            rows.append((path, _measured(key, value)))
    return rows


def _measured(key: str, value: object) -> str:
    """A value for a person, by the unit that its name ends with."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not key.endswith("_ms"):
        return _plain(value)
    if not key.endswith(("_at_ms", "time_ms")):
        return show_duration(round(value))
    return show_instant(int(value)) if value else "-"


def _plain(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None | []:
            return "-"
        case list():
            return ", ".join(_plain(one) for one in value)
        case _:
            return json.dumps(value)
