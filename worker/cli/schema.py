"""``tidegate schema``: JSON Schema of every message, and the pages that are written from them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from worker.cli import common


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        epilog=common.examples("tidegate schema --names", "tidegate schema command.cp.mint")
    )
    def schema(
        name: Annotated[
            str | None,
            typer.Argument(
                help="One message, for example command.cp.mint; all if absent.", metavar="NAME"
            ),
        ] = None,
        names: Annotated[
            bool, typer.Option("--names", help="Only the names of the messages.")
        ] = False,
        write: Annotated[
            Path | None,
            typer.Option(
                "--write",
                help="Write the reference and the reasons as Markdown into a folder.",
                metavar="DIR",
            ),
        ] = None,
    ) -> None:
        """Print JSON Schema of every message.

        With --write it writes the pages that are made from the schemas instead.
        """
        from schemas.catalog import CATALOG

        if write is not None:
            _write(write)
            return
        if names:
            common.emit({}, False, [entry.name for entry in CATALOG.values()])
            return
        if name is None:
            schemas = {entry.name: entry.schema() for entry in CATALOG.values()}
            common.emit({}, False, json.dumps({"v": 1, "messages": schemas}, indent=2))
            return
        found = CATALOG.get(name)
        if found is None:
            common.usage("NAME", f"no message is called {name}; see: tidegate schema --names")
        common.emit({}, False, json.dumps(found.schema(), indent=2))


def _write(folder: Path) -> None:
    from worker import pages

    try:
        for path, text in pages.render().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        common.usage("--write", f"{folder} cannot be written to: {error.strerror}")
