"""``tidegate demo``: see the main job done, on a real broker and a real worker."""

from typing import TYPE_CHECKING, Any

import typer

from worker.cli import common, ending
from worker.cli.common import JsonFlag
from worker.showing.columns import wrapped

if TYPE_CHECKING:
    from worker.demo.story import Played, Scenario


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(as_json: JsonFlag = False) -> None:
        """Watch runs pause, resume, expire and survive.

        It starts a real nats-server and a worker of its own in a temporary folder. Exit code 0
        only if every scene ended as it must.
        """
        from worker.demo import show

        narrator: show.Narrator = _Silent() if as_json else _Teller()
        report = ending.run_async(show.play(narrator))
        if as_json:
            common.emit_data("demo", report, True, "")
        raise typer.Exit(ending.OK if report["ok"] else ending.FAILED)


class _Silent:
    """Tells nothing."""

    def begins(self) -> None:
        pass

    def ready(self, took_ms: float) -> None:
        pass

    def scene(self, scenario: "Scenario") -> None:
        pass

    def scene_ended(self, played: "Played") -> None:
        pass

    def ended(self, ok: bool, took_ms: float) -> None:
        pass


class _Teller:
    """Tells the story on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console: Any = Console(highlight=False)
        self._number = 0

    def begins(self) -> None:
        self._console.print("Starting a real nats-server and a Tidegate worker …")

    def ready(self, took_ms: float) -> None:
        self._console.print(f"Both are up after {took_ms / 1000:.1f} s.\n")

    def scene(self, scenario: "Scenario") -> None:
        self._number += 1
        self._console.print(f"[bold]{self._number}. {scenario.title}[/bold]")

    def scene_ended(self, played: "Played") -> None:
        mark = "[green]✓[/green]" if played.ok else "[red]✗[/red]"
        told = played.ending.told if played.ending else played.trouble
        first, *others = wrapped(" " * 5, told)
        self._console.print(f"   {mark} ", end="")
        for line in (first.lstrip(), *others):
            self._console.print(line, markup=False, soft_wrap=True)
        if not played.ok:
            found = played.ending.outcome if played.ending else "nothing"
            self._console.print(f"     it must be {played.scenario.must}, it was {found}")

    def ended(self, ok: bool, took_ms: float) -> None:
        words = "[green]Every scene ended as it must[/green]" if ok else "[red]It went wrong[/red]"
        self._console.print(f"\n{words}, in {took_ms / 1000:.1f} s.")
