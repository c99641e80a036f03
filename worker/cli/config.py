"""``tidegate config show``: every setting, its value and where it came from."""

import typer

from worker.cli import common
from worker.cli.common import ConfigOption, JsonFlag

app = typer.Typer(no_args_is_help=True, help="Settings: TIDEGATE_… variables, a file, or options.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def show(config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """Print every setting: value, source, default, meaning.

    Secrets are hidden. A variable that is no setting is named on standard error.
    """
    from worker import settings

    loaded = common.load_settings({}, config)
    rows = [
        {
            "name": settings.variable(field),
            "value": settings.shown(loaded.settings, field),
            "source": loaded.sources[field],
            "default": settings.shown_default(field),
            "description": str(info.description),
        }
        for field, info in settings.Settings.model_fields.items()
    ]
    lines = common.columns(
        [
            ("NAME", "VALUE", "SOURCE", "DEFAULT", "MEANING"),
            *(
                (
                    row["name"],
                    row["value"] or "-",
                    row["source"],
                    row["default"] or "-",
                    row["description"],
                )
                for row in rows
            ),
        ]
    )
    common.emit({"v": 1, "settings": rows, "unknown": list(loaded.unknown)}, as_json, lines)
