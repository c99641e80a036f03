"""``tidegate setup``: create a space's streams, or compare them with what they must be."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli import adopting, common, ending, sessions
from worker.cli.common import ConfigOption, JsonFlag, NatsOption, SpacesOption
from worker.showing.columns import table

if TYPE_CHECKING:
    from worker.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(
        epilog=common.examples(
            "tidegate setup --new --spaces main --replicas 3",
            "tidegate setup --print-conf --endpoint runs.nightly > nats.conf",
            more="Exit codes: 0 all is well, 3 refused (a difference could lose data, or the space "
            "exists already), 1 failed.",
        )
    )
    def setup(
        new: Annotated[
            bool, typer.Option("--new", help="Create the streams of spaces that do not exist.")
        ] = False,
        confirm_streams: Annotated[
            bool,
            typer.Option(
                "--confirm-streams",
                help="Accept streams that were deleted and made anew, for this data directory.",
            ),
        ] = False,
        adopt: Annotated[
            bool,
            typer.Option(
                "--adopt",
                help="Take over a live Cotal space: show every difference, ask, change in place.",
            ),
        ] = False,
        undo_adopt: Annotated[
            bool,
            typer.Option(
                "--undo-adopt",
                help="Give it back as it was, as long as no command was stored.",
            ),
        ] = False,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="With these two: do not ask.")
        ] = False,
        spaces: SpacesOption = None,
        replicas: Annotated[
            int | None,
            typer.Option(
                "--replicas",
                help="Replicas of each stream, 1 or 3; by default TIDEGATE_REPLICAS, 1.",
                metavar="N",
                parser=common.whole(1),
            ),
        ] = None,
        print_conf: Annotated[
            bool,
            typer.Option(
                "--print-conf",
                help="Print a nats.conf for these spaces, with a user of every role, and stop.",
            ),
        ] = False,
        endpoints: Annotated[
            list[str] | None,
            typer.Option(
                "--endpoint",
                help="With --print-conf: where its minter may mint; repeatable. By default runs.",
                metavar="ENDPOINT",
            ),
        ] = None,
        persons: Annotated[
            list[str] | None,
            typer.Option(
                "--person",
                help="With --print-conf: whose caps its delegate keeps; repeatable. By default "
                "alice.",
                metavar="USER",
            ),
        ] = None,
        hosts: Annotated[
            list[str] | None,
            typer.Option(
                "--host",
                help="With --print-conf: a host that has a witness, by its id; repeatable. By "
                "default TIDEGATE_HOST, else host-1.",
                metavar="HOST",
            ),
        ] = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Check each space's streams; with --new, create them first.

        It needs the worker's rights at the broker (TIDEGATE_NATS_USER and so on); --adopt and
        --undo-adopt need a login of that account which may update and delete streams.
        """
        flags = {"nats_url": nats, "spaces": spaces, "replicas": replicas}
        settings = sessions.load_settings(flags, config).settings
        if print_conf:
            wanted = _conf(settings, endpoints or ["runs"], persons or ["alice"], hosts)
            common.emit({}, False, wanted.removesuffix("\n"))
            return
        if endpoints or persons or hosts:
            common.usage("--endpoint", "--endpoint, --person and --host go with --print-conf")
        if sum((new, adopt, undo_adopt)) > 1:
            common.usage("--adopt", "--new, --adopt and --undo-adopt exclude each other")
        if yes and not (adopt or undo_adopt):
            common.usage("--yes", "--yes goes with --adopt and --undo-adopt")
        if adopt:
            raise typer.Exit(ending.run_async(adopting.adopt(settings, yes, as_json)))
        if undo_adopt:
            raise typer.Exit(ending.run_async(adopting.undo(settings, yes, as_json)))
        raise typer.Exit(ending.run_async(_setup(settings, new, as_json, confirm_streams)))


def _conf(
    settings: "Settings", endpoints: list[str], persons: list[str], hosts: list[str] | None
) -> str:
    from pydantic import TypeAdapter, ValidationError

    from schemas import tokens
    from schemas.names import Names
    from worker.bus import users

    if not all(map(tokens.is_endpoint, endpoints)):
        common.usage("--endpoint", "an endpoint is dotted labels such as runs.nightly")
    if not all(map(tokens.is_user, persons)):
        common.usage("--person", "a person's id matches [A-Za-z0-9-]{1,100}")
    hosts = hosts or [settings.host or users.HOST]
    try:
        TypeAdapter(list[tokens.Label]).validate_python(hosts)
    except ValidationError:
        common.usage("--host", "a host's id is 1 to 256 printable characters without outer blanks")
    if len({users.witness(host).variable for host in hosts}) < len(hosts):
        common.usage("--host", "two hosts would share one password variable; name them apart")
    spaces = [Names(settings.root, space) for space in settings.spaces]
    return users.production(spaces, endpoints, persons, hosts)


async def _setup(settings: "Settings", new: bool, as_json: bool, confirm_streams: bool) -> int:
    from schemas.names import Names
    from worker.bus.topology import Severity
    from worker.inventory import confirm
    from worker.spaces import create_space, topology_of, verify_space

    report: list[dict[str, Any]] = []
    async with sessions.workers_account(settings, "tidegate-setup") as conn:
        for space in settings.spaces:
            names = Names(settings.root, space)
            created = await create_space(conn, names, settings) if new else None
            differences = await verify_space(conn, names, settings)
            confirmed: list[str] = []
            if confirm_streams:
                survey = await topology_of(conn, names, settings).survey()
                confirmed = confirm(settings.data_dir, names, survey)
            report.append(
                {
                    "space": space,
                    "created": created is not None,
                    "confirmed": confirmed,
                    "differences": [
                        {
                            "severity": str(one.severity),
                            "what": one.what,
                            "expected": one.expected,
                            "found": one.found,
                        }
                        for one in differences
                    ],
                }
            )
            common.say(f"{space}: {'created' if created else 'checked'}")
            for stream in confirmed:
                common.say(f"{space}: {stream} is accepted as it is now")
    rows = [
        (entry["space"], one["severity"], one["what"], one["found"], one["expected"])
        for entry in report
        for one in entry["differences"]
    ]
    head = ("SPACE", "SEVERITY", "SETTING", "FOUND", "EXPECTED")
    lines = table(head, rows) if rows else ["every stream is as it must be"]
    common.emit_data("spaces", {"spaces": report}, as_json, lines)
    in_danger = any(row[1] == Severity.DANGER for row in rows)
    return ending.REFUSED if in_danger else ending.OK
