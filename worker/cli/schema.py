"""``tidegate schema``: JSON Schema of every message of the wire contract."""

import json
from typing import Annotated

import typer

from worker.cli import common


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def schema(
        name: Annotated[
            str | None,
            typer.Argument(help="One message, for example command.cp.mint; all if absent."),
        ] = None,
        names: Annotated[
            bool, typer.Option("--names", help="Only the names of the messages.")
        ] = False,
    ) -> None:
        """Print JSON Schema of every message."""
        from schemas.catalog import CATALOG

        if names:
            for entry in CATALOG.values():
                print(entry.name)
            return
        if name is None:
            schemas = {entry.name: entry.schema() for entry in CATALOG.values()}
            print(json.dumps({"v": 1, "messages": schemas}, indent=2))
            return
        found = CATALOG.get(name)
        if found is None:
            common.usage("NAME", f"no message is called {name}; see: tidegate schema --names")
        print(json.dumps(found.schema(), indent=2))
