"""``tidegate keys``: the keys that seal prompts on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.strict_json import JsonObject
from worker.cli import common, ending, sessions
from worker.cli.common import ConfigOption, JsonFlag
from worker.showing.columns import table

if TYPE_CHECKING:
    from worker.sealing.keyring import Created, KeyRing

app = typer.Typer(
    no_args_is_help=True,
    help="The keys that seal prompts. Whoever enqueues turns and whoever runs them needs the same "
    "key files: copy the folder, over a channel that is private, to every machine that does.",
)
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The data folder, whose folder keys holds them; by default TIDEGATE_DATA_DIR, else "
        "your state folder.",
        metavar="DIR",
    ),
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def init(data_dir: DataDir = None, config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """Make the first key; a key that exists stays as it is."""
    _show_made(_ring(data_dir, config), None, as_json)


@app.command()
def rotate(
    data_dir: DataDir = None,
    config: ConfigOption = None,
    from_version: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="Rotate only if this version is in force; repeating the command is then safe.",
            metavar="VERSION",
            parser=common.whole(1),
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a new key and seal with it from now on.

    Old keys stay, to open what they sealed. Copy the new file to every machine that needs it.
    """
    ring = _ring(data_dir, config)
    _show_made(ring, from_version or ring.current_version(), as_json)


@app.command()
def show(data_dir: DataDir = None, config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """List the keys by version and public id.

    A key itself is never shown. The ids of two machines are equal if their keys are. Exit code 1
    if a key cannot be used.
    """
    from worker.sealing import keyfiles
    from worker.sealing.errors import KeyRefused

    ring = _ring(data_dir, config)
    current = ring.current_version()
    keys: list[JsonObject] = []
    refused: KeyRefused | None = None
    for version in ring.versions():
        entry: JsonObject = {
            "version": version,
            "current": version == current,
            "path": str(keyfiles.path_of(ring.folder, version)),
        }
        try:
            entry["id"] = ring.key(version).key_id.hex()
        except KeyRefused as error:
            refused = error
            entry["refused"] = {"reason": error.reason, "message": error.message}
        keys.append(entry)
    rows = [
        [
            f"{key['version']}{'*' if key['current'] else ''}",
            key.get("id", "-"),
            key["path"] if "id" in key else f"refused: {key['refused']['message']}",
        ]
        for key in keys
    ]
    document = {"v": 1, "folder": str(ring.folder), "current": current, "keys": keys}
    common.emit_data("keys", document, as_json, table(("VERSION", "ID", "FILE"), rows))
    if refused is not None:
        raise typer.Exit(ending.FAILED)


def _ring(data_dir: Path | None, config: Path | None) -> "KeyRing":
    from worker.sealing import coredumps, keyfiles
    from worker.sealing.keyring import KeyRing

    settings = sessions.load_settings({"data_dir": data_dir}, config).settings
    coredumps.forbid()
    return KeyRing(keyfiles.default_dir(settings.data_dir))


def _show_made(ring: "KeyRing", from_version: int | None, as_json: bool) -> None:
    made: Created = ring.init() if from_version is None else ring.rotate(from_version)
    key_id = ring.key(made.version).key_id.hex()
    common.say(f"{'Made' if made.created else 'Already there:'} {made.path}")
    common.emit_data(
        "rotated",
        {
            "version": made.version,
            "id": key_id,
            "path": str(made.path),
            "created": made.created,
        },
        as_json,
        f"{made.version} {key_id}",
    )
