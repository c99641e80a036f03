"""``tidegate identity``: who speaks from this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli import common, sessions
from worker.cli.common import ConfigOption, JsonFlag

if TYPE_CHECKING:
    from worker.identity import Kept

app = typer.Typer(
    no_args_is_help=True,
    short_help="Who speaks from this machine.",
    help="Who speaks from this machine: a principal and the uid of its current life.",
)
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where identities are kept; by default TIDEGATE_DATA_DIR, else your state folder.",
        metavar="DIR",
    ),
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def init(
    principal: Annotated[
        str, typer.Argument(help="The name, [A-Za-z0-9_-]{1,64}.", metavar="PRINCIPAL")
    ],
    uid: Annotated[
        str | None,
        typer.Option(
            "--uid", help="Keep this uid, [a-z0-9]{26,32}, instead of a new one.", metavar="UID"
        ),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Keep an identity in a private file; one that exists stays.

    The first one is what commands use without --as, where the broker user's rights name nobody.
    A reserved name (_op) never becomes it.
    """
    from worker import identity

    settings = sessions.load_settings({"data_dir": data_dir}, config).settings
    kept = identity.init(settings.data_dir, principal, uid or identity.new_uid())
    if uid is not None and kept.speaker.uid != uid:
        raise identity.BadIdentity(f"{principal} has another uid already, in {kept.path}")
    common.say(f"{'Made' if kept.created else 'Already there:'} {kept.path}")
    _show(kept, as_json)


@app.command()
def show(
    principal: Annotated[
        str | None,
        typer.Argument(help="Whose; the default identity if absent.", metavar="PRINCIPAL"),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show an identity that is kept here."""
    from worker import identity

    settings = sessions.load_settings({"data_dir": data_dir}, config).settings
    kept = identity.find(settings.data_dir, principal)
    if kept is None:
        whose = f"of {principal} " if principal else ""
        raise identity.BadIdentity(
            f"no identity {whose}is kept in {settings.data_dir}; run: tidegate identity init NAME"
        )
    _show(kept, as_json)


def _show(kept: "Kept", as_json: bool) -> None:
    speaker = kept.speaker
    common.emit_data(
        "identity",
        {"principal": speaker.principal, "uid": speaker.uid, "path": str(kept.path)},
        as_json,
        f"{speaker.principal}.{speaker.uid}",
    )
