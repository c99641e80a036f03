"""``tidegate top``: what waits, what holds and what is wrong, live."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from worker.cli import common, ending, sessions
from worker.cli.common import AsOption, ConfigOption, JsonFlag, NatsOption, SpaceOption

if TYPE_CHECKING:
    from worker.client import Client
    from worker.settings import Settings
    from worker.top.gathering import Gatherer
    from worker.top.look import Look

REDRAW_S: Final = 0.5
"""Countdowns move on between two looks."""

RATED_S: Final = 1.0
"""Rates need two looks."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog="Exit codes with --once: 0 ready, 1 not ready or nobody there.")
    def top(
        space: SpaceOption = None,
        once: Annotated[
            bool, typer.Option("--once", help="Look once, print it plainly and stop.")
        ] = False,
        interval: Annotated[
            str, typer.Option("--interval", help="Time between two looks.", metavar="DURATION")
        ] = "2s",
        limit: Annotated[
            int,
            typer.Option(
                "--limit",
                help="Checkpoints and caps to ask for.",
                metavar="N",
                parser=common.whole(1, 1000),
            ),
        ] = 100,
        as_: AsOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Show live what waits, what holds, and what is wrong.

        Runs with their countdowns, seats and the queue, caps, lag, rates and warnings. Keys: q ends
        it, tab takes the next list, arrows scroll it, t shows turns by name or by agent.

        Any client's credential will do; titles and lists show as far as its rights reach. --json
        looks once and prints everything for a machine.
        """
        from schemas import tokens

        if space is not None and not tokens.is_space(space):
            common.usage("--space", "a space matches [A-Za-z0-9_-]{1,64}")
        settings = sessions.load_settings({"nats_url": nats}, config).settings
        every_ms = common.duration("--interval", interval)
        plain = once or as_json or not sys.stdout.isatty()

        async def work() -> bool:
            async with _client(settings, space or settings.spaces[0], as_) as client:
                from worker.top.gathering import Gatherer

                gatherer = Gatherer(client, common.now_ms, rows=limit)
                if plain:
                    await gatherer.look()
                    await asyncio.sleep(RATED_S)
                    return _print(await gatherer.look(), as_json)
                await _live(gatherer, every_ms)
                return True

        ready = ending.run_async(work())
        raise typer.Exit(ending.OK if ready else ending.FAILED)


@contextlib.asynccontextmanager
async def _client(settings: "Settings", space: str, as_: str | None) -> AsyncIterator["Client"]:
    """A client that speaks as whom its rights name, unless somebody else is given."""
    from schemas.roles import OPERATOR_PREFIX
    from schemas.subjects import Speaker
    from worker import broker, identity
    from worker.client import Client
    from worker.doctor import rights

    given, _, uid = (as_ or settings.principal or "").partition(".")
    speaker = Speaker(given or OPERATOR_PREFIX, uid or identity.new_uid())
    client = Client(
        broker.client_options(settings), speaker, space, root=settings.root, name="tidegate-top"
    )
    async with client:
        if not given:
            found = await rights.user_info(client.conn)
            name = None if found is None else rights.speaker_of(found, client.names)
            client.speaker = Speaker(name or settings.nats_user or OPERATOR_PREFIX, speaker.uid)
        yield client


def _print(look: "Look", as_json: bool) -> bool:
    from worker.top import plain

    common.emit_data("look", look.to_object(), as_json, plain.lines(look, look.at_ms))
    return look.status is not None and bool(look.status.get("ready"))


async def _live(gatherer: "Gatherer", every_ms: int) -> None:
    from rich.console import Console
    from rich.live import Live

    from worker.top import screen
    from worker.top.view import View

    console = Console()
    loop = asyncio.get_running_loop()
    view = View()
    with _typed() as typed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            asked_s = loop.time()
            look = await gatherer.look()
            seen_s = loop.time()
            left_s = 1.0
            while left_s > 0:
                now_ms = look.at_ms + int((loop.time() - seen_s) * 1000)
                width, height = console.size
                live.update(screen.draw(look, now_ms, width, height, view), refresh=True)
                left_s = every_ms / 1000 - (loop.time() - asked_s)
                for key in await _next_keys(typed, max(0.0, min(REDRAW_S, left_s))):
                    if key == "quit":
                        return
                    view = view.pressed(key, view.sections(look, now_ms))


async def _next_keys(typed: "asyncio.Queue[bytes]", wait_s: float) -> list[str]:
    """The keys that are pressed within so many seconds; none if none is."""
    from worker.top.view import keys

    try:
        async with asyncio.timeout(wait_s):
            return list(keys(await typed.get()))
    except TimeoutError:
        return []


@contextlib.contextmanager
def _typed() -> "Iterator[asyncio.Queue[bytes]]":
    """What is typed, read singly and not echoed; the end of the terminal counts as q."""
    import termios
    import tty

    typed: asyncio.Queue[bytes] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield typed
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        try:
            keys = os.read(descriptor, 64)
        except OSError:
            keys = b""
        if not keys:  # the terminal has gone
            loop.remove_reader(descriptor)
        typed.put_nowait(keys or b"q")

    # What was typed while the screen was being made counts too.
    tty.setcbreak(descriptor, termios.TCSANOW)
    loop.add_reader(descriptor, pressed)
    try:
        yield typed
    finally:
        loop.remove_reader(descriptor)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
