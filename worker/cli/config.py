"""``tidegate config show``: every setting, its value and where it came from."""

import textwrap
from collections.abc import Sequence

import typer

from schemas.strict_json import JsonObject
from worker.cli import common, sessions
from worker.cli.common import ConfigOption, JsonFlag

app = typer.Typer(no_args_is_help=True, help="Settings: TIDEGATE_… variables, a file, or options.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def show(config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """Print every setting: meaning, value, source, default.

    It is printed as a settings file, in which whatever is not set is a comment. Secrets are hidden.
    A variable that is no setting is named on standard error.
    """
    from worker import settings

    loaded = sessions.load_settings({}, config)
    rows: list[JsonObject] = [
        {
            "name": settings.variable(field),
            "value": settings.shown(loaded.settings, field),
            "source": loaded.sources[field],
            "default": settings.shown_default(field),
            "description": str(info.description),
        }
        for field, info in settings.Settings.model_fields.items()
    ]
    said = {"settings": rows, "unknown": list(loaded.unknown)}
    common.emit_data("settings", said, as_json, _file(rows))


def _file(rows: Sequence[JsonObject]) -> list[str]:
    """The settings as a file of ``NAME=value`` lines."""
    from worker.settings import HIDDEN

    lines: list[str] = []
    for row in rows:
        is_set = row["source"] != "default"
        where = f" (from: {row['source']}; default: {row['default'] or 'none'})" if is_set else ""
        told = textwrap.wrap(row["description"] + where, 76, break_on_hyphens=False)
        value = "# " if not is_set or HIDDEN in row["value"] else ""
        lines += [*([""] if lines else []), *(f"# {line}" for line in told)]
        lines.append(f"{value}{row['name']}={row['value']}")
    return lines
