"""``tidegate ledger``: look at the fold, prove it, and keep it in order."""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from schemas.strict_json import JsonObject
from worker.cli import common, ending, sessions
from worker.cli.common import AsOption, ConfigOption, JsonFlag, NatsOption, SpaceOption
from worker.showing.columns import columns, table

if TYPE_CHECKING:
    from worker.bus.jetstream import JetStream
    from worker.ledger.replay import Replayed

SHOWN_CHARS: Final = 32
"""Of a table's digest, for people; --json has the whole."""

LONG_MS: Final = 120_000
"""Snapshots of a large ledger take their time."""

app = typer.Typer(
    no_args_is_help=True,
    help="The ledger: one ordered log, folded into SQLite.\n\n" + ending.EXIT_CODES,
)

FileArgument = Annotated[Path, typer.Argument(help="The backup's file.", metavar="FILE")]
FromSnapshotFlag = Annotated[
    bool,
    typer.Option("--from-snapshot", help="Begin at the newest snapshot, not at the first command."),
]


@app.command("digest")
def show_digest(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Digest this file of a stopped worker instead.", metavar="FILE"
        ),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Digest the state, per table and in all.

    Replicas that have folded up to the same sequence have equal digests.
    """
    session = sessions.watching(config, nats, space, as_, as_json, None)
    if file is None:
        found = _asked(session, "digest", {})
    else:
        found = ending.run_async(_digest_of_file(session, file))
    common.emit_data("digest", found, as_json, _digest_lines(found))


@app.command()
def replay(
    into: Annotated[
        Path, typer.Option("--into", help="The file to make; it must not exist.", metavar="FILE")
    ],
    from_snapshot: FromSnapshotFlag = False,
    space: SpaceOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Fold the log again into a new file.

    Whatever runs is not touched.

    It needs the worker's rights at the broker (TIDEGATE_NATS_USER and so on).
    """
    session = _session(config, nats, space, None, as_json)
    _must_be_new("--into", into)
    replayed = ending.run_async(_replay(session, into, from_snapshot=from_snapshot))
    common.emit_data("replayed", _replay_object(replayed), as_json, _replay_lines(replayed))


@app.command()
def verify(
    from_snapshot: FromSnapshotFlag = False,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica", help="Compare this worker; any that answers if absent.", metavar="ID"
        ),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Fold the log again and compare with the worker.

    It is folded in a temporary file, up to the sequence at which the worker stands.

    Exit code 0 if every table is equal, 1 if one is not. It needs the worker's rights.
    """
    session = _session(config, nats, space, as_, as_json)
    said, replayed = ending.run_async(
        _verify(session, from_snapshot=from_snapshot, replica=replica)
    )
    own = replayed.digest
    differing = sorted(name for name in own.tables if said["tables"].get(name) != own.tables[name])
    equal = not differing and said["digest"] == own.whole and said["epoch"] == own.epoch
    verdict = {"equal": equal, "differing_tables": differing, "worker": said}
    words = "the worker's state is what its log says" if equal else "the states differ"
    common.emit_data(
        "equal" if equal else "differs",
        {**_replay_object(replayed), **verdict},
        as_json,
        [*_replay_lines(replayed), words, *(f"differs: {name}" for name in differing)],
    )
    raise typer.Exit(ending.OK if equal else ending.FAILED)


@app.command()
def snapshot(
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Store a snapshot now and read it back."""
    _operate("snapshot", {}, _session(config, nats, space, as_, as_json))


@app.command("snapshots")
def list_snapshots(
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the snapshots, the newest first."""
    session = sessions.watching(config, nats, space, as_, as_json, None)
    found = _asked(session, "snapshots", {})
    head = ("NAME", "EPOCH", "WATERMARK", "BYTES", "DIGEST")
    rows = [
        (one["name"], str(one["epoch"]), str(one["watermark"]), str(one["bytes"]), one["digest"])
        for one in found["snapshots"]
    ]
    lines = table(head, rows) if rows else ["there is no snapshot yet"]
    common.emit_data("snapshots", found, as_json, lines)


@app.command()
def trim(
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove log messages below a verified snapshot.

    Nothing else is ever removed. Workers do it by themselves where TIDEGATE_LOG_KEEP_MS is set.
    """
    _operate("trim", {}, _session(config, nats, space, as_, as_json))


@app.command()
def prune(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", help="How long ago it settled, such as 30d.", metavar="DURATION"
        ),
    ],
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove settled rows and old command ids.

    It is done by commands in the log, so every replica does the same, and each takes a part, so
    nothing else waits long. Ids, keys and seconds that must never be used again stay.
    Interrupted, it has removed what it said; give the command again.
    """
    session = _session(config, nats, space, as_, as_json)
    before_at_ms = time.time_ns() // 1_000_000 - common.duration(
        "--older-than", older_than, least_ms=0
    )
    found = ending.run_async(_prune(session, {"before_at_ms": max(0, before_at_ms)}))
    _show(found, session)


@app.command()
def ruleset(
    version: Annotated[
        int, typer.Argument(help="The ruleset to activate.", metavar="N", parser=common.whole(1))
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also if a worker that answers does not know it, and would stop.",
            show_default=False,
        ),
    ] = False,
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Activate a ruleset, once every worker knows it.

    A worker that does not know it stops folding and authorises nothing; so this is refused while
    one that answers does not. Which ones a worker knows: tidegate
    status --all.
    """
    session = _session(config, nats, space, as_, as_json)
    _operate("ruleset", {"version": version, "force": force}, session)


@app.command()
def rebase(
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica", help="The worker whose file is right, where they differ.", metavar="ID"
        ),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go on in a new epoch, from one worker's file.

    After the log went back, from the one that had come furthest; after workers differed, from the
    one that you name (tidegate ledger verify --replica ID says which is right); after the broker
    stamped a command with a wrong instant, without believing it.
    """
    body = {} if replica is None else {"replica": replica}
    _operate("rebase", body, _session(config, nats, space, as_, as_json))


@app.command()
def clock(
    space: SpaceOption = None,
    as_: AsOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Set log time back to the broker's clock.

    A wrong clock may have put it ahead. While it is ahead it stands still, and pacing and
    deadlines with it. Expiry seconds, ids and generations that were used stay used, and what
    expired stays expired. It is a command in the log, so every replica does the same.
    """
    _operate("clock", {}, _session(config, nats, space, as_, as_json))


@app.command()
def backup(
    file: FileArgument,
    space: SpaceOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a proven copy of the running ledger to a file.

    It needs the worker's rights at the broker (TIDEGATE_NATS_USER and so on).
    """
    session = _session(config, nats, space, None, as_json)
    _must_be_new("FILE", file)
    taken = ending.run_async(_backup(session, file.absolute()))
    words = f"{file}: the ledger at {taken['watermark']}"
    common.emit_data("backed-up", {"file": str(file), **taken}, as_json, words)


@app.command()
def restore(
    file: FileArgument,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of a ledger that is there.")
    ] = False,
    space: SpaceOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Put a backup where a stopped worker finds it.

    The worker then folds on from there.
    """
    session = _session(config, None, space, None, as_json)
    if not file.is_file():
        common.usage("FILE", f"{file} is no file")
    found = ending.run_async(_restore(session, file, replace=replace))
    words = f"{found['file']}: the ledger at {found['watermark']}, restored; start its worker"
    common.emit_data("restored", found, as_json, words)


def _must_be_new(parameter: str, file: Path) -> None:
    if file.exists():
        common.usage(parameter, f"{file} exists; name a file that does not")
    if not file.absolute().parent.is_dir():
        common.usage(parameter, f"there is no folder {file.parent}")


def _session(
    config: Path | None, nats: str | None, space: str | None, as_: str | None, as_json: bool
) -> sessions.Session:
    """A session of an operator, whatever broker user the machine is set up with.

    These commands run where the worker does, and so with its credentials.
    """
    from schemas.roles import OPERATOR_PREFIX
    from worker import identity

    speaker = as_ or f"{OPERATOR_PREFIX}.{identity.new_uid()}"
    return sessions.session(
        config=config, nats=nats, space=space, as_=speaker, as_json=as_json, timeout=None
    )


def _operate(name: str, body: Mapping[str, Any], session: sessions.Session) -> None:
    _show(_asked(session, name, body), session)


def _show(found: JsonObject, session: sessions.Session) -> None:
    shown = {**found, **found.get("result_data", {})}
    shown.pop("result_data", None)
    rows = [
        (key.replace("_", " "), value["name"] if isinstance(value, dict) else str(value))
        for key, value in shown.items()
    ]
    common.emit_data(found["outcome"], found, session.as_json, columns(rows))


def _asked(session: sessions.Session, name: str, body: Mapping[str, Any]) -> JsonObject:
    return ending.run_async(_ask(session, name, body))


async def _prune(session: sessions.Session, body: Mapping[str, Any]) -> JsonObject:
    """Prune part by part until nothing is left, or one could not be folded in time."""
    removed: Counter[str] = Counter()
    async with session.client() as client:
        after: Mapping[str, Any] = {}
        while True:
            answer = await client.query("sys", "prune", {**body, **after}, timeout_ms=LONG_MS)
            said = answer.data.get("result_data") or {}
            removed.update({kind: said[kind] for kind in said if kind != "next"})
            if "next" not in said:
                break
            after = {"after": said["next"]}
            common.say(f"{removed.total()} rows removed")
    found = {"outcome": answer.outcome, **answer.data}
    return {**found, "result_data": dict(removed)} if said else found


async def _ask(session: sessions.Session, name: str, body: Mapping[str, Any]) -> JsonObject:
    async with session.client() as client:
        answer = await client.query("sys", name, body, timeout_ms=LONG_MS)
        return {"outcome": answer.outcome, **answer.data}


@asynccontextmanager
async def _workers_account(session: sessions.Session) -> "AsyncIterator[JetStream]":
    from worker.bus.jetstream import JetStream

    async with sessions.workers_account(session.loaded.settings, "tidegate-ledger") as conn:
        yield JetStream(conn)


async def _replay(
    session: sessions.Session, into: Path, *, from_snapshot: bool, until: int | None = None
) -> "Replayed":
    from schemas.names import Names
    from worker.ledger import replay
    from worker.planes import PLANES

    names = Names(session.loaded.settings.root, session.space)
    async with _workers_account(session) as js:
        return await replay.replay(
            js,
            names,
            PLANES,
            into,
            until=until,
            from_snapshot=from_snapshot,
            progress=lambda done, total: common.say(f"{done} of {total} commands"),
        )


async def _verify(
    session: sessions.Session, *, from_snapshot: bool, replica: str | None
) -> "tuple[JsonObject, Replayed]":
    if replica is None:
        async with session.client() as client:
            said = (await client.query("sys", "digest", {}, timeout_ms=LONG_MS)).data
    else:
        said = await _digest_of_replica(session, replica)
    with tempfile.TemporaryDirectory(prefix="tidegate-verify-") as folder:
        into = Path(folder) / "ledger.db"
        return said, await _replay(
            session, into, from_snapshot=from_snapshot, until=said["watermark"]
        )


async def _digest_of_replica(session: sessions.Session, replica: str) -> JsonObject:
    """Ask one worker, as replicas ask each other: it answers for itself also where they differ."""
    from schemas import strict_json, tokens
    from schemas.names import Names

    if not tokens.is_uid(replica):
        common.usage("--replica", "it must be a worker's id, as tidegate status --all shows it")
    names = Names(session.loaded.settings.root, session.space)
    async with _workers_account(session) as js:
        subject = f"{names.prefix}.ctl.ledger.digest.{replica}"
        return strict_json.loads((await js.connection.request(subject, timeout_ms=LONG_MS)).data)


async def _backup(session: sessions.Session, file: Path) -> JsonObject:
    """Have a snapshot made and fetch it."""
    from schemas.names import Names
    from worker.ledger.snapshots import SnapshotDamaged, Snapshots
    from worker.planes import PLANES

    names = Names(session.loaded.settings.root, session.space)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".tidegate-") as folder:
        async with _workers_account(session) as js:
            taken = await _ask(session, "snapshot", {})
            snapshots = Snapshots(
                js, names, PLANES, Path(folder), wall_ms=lambda: time.time_ns() // 1_000_000
            )
            for one in await snapshots.list():
                if one.name == taken["name"]:
                    await snapshots.fetch(one, file)
                    return taken
    raise SnapshotDamaged("the snapshot that was just stored is gone; try again")


async def _digest_of_file(session: sessions.Session, file: Path) -> JsonObject:
    from schemas.names import Names
    from worker.ledger import replay
    from worker.planes import PLANES

    names = Names(session.loaded.settings.root, session.space)
    return (await replay.digest_of_file(file, names, PLANES)).to_object()


async def _restore(session: sessions.Session, file: Path, *, replace: bool) -> JsonObject:
    import shutil

    from worker import files
    from worker.errors import StartRefused
    from worker.ledger import store
    from worker.ledger.errors import FileRefused
    from worker.spaces import LEDGER_FILE, space_dir

    directory = space_dir(session.loaded.settings.data_dir, session.space)
    files.private_dir(directory)
    path = directory / LEDGER_FILE
    with tempfile.TemporaryDirectory(dir=directory, prefix=".restore-") as folder:
        copy = Path(folder) / LEDGER_FILE
        shutil.copyfile(file, copy)
        # Proven before it takes anybody's place.
        try:
            found = await _digest_of_file(session, copy)
        except FileRefused as refused:
            raise FileRefused(file, refused.differences, reason=refused.reason) from None
        if path.exists():
            if not replace:
                raise StartRefused(f"{path} exists; stop its worker and use --replace")
            with contextlib.suppress(FileNotFoundError):
                # A running worker holds its file, and this says so.
                await _digest_of_file(session, path)
        store.put_in_place(copy, path)
    return {"file": str(path), **found}


def _digest_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        ("epoch", str(found["epoch"])),
        ("watermark", str(found["watermark"])),
        ("ruleset", str(found["ruleset"])),
        *((name, value[:SHOWN_CHARS]) for name, value in sorted(found["tables"].items())),
    ]
    return columns([*rows, ("digest", str(found["digest"]))])


def _replay_object(replayed: "Replayed") -> JsonObject:
    return {
        "v": 1,
        "folded": replayed.folded,
        "took_ms": replayed.took_ms,
        "per_s": round(replayed.folded * 1000 / max(1, replayed.took_ms)),
        "snapshot": replayed.snapshot or None,
        "replayed": replayed.digest.to_object(),
    }


def _replay_lines(replayed: "Replayed") -> list[str]:
    per_s = round(replayed.folded * 1000 / max(1, replayed.took_ms))
    begun = f", from snapshot {replayed.snapshot}" if replayed.snapshot else ""
    return [
        f"{replayed.folded} commands folded in {replayed.took_ms} ms ({per_s:,} /s){begun}",
        *_digest_lines(replayed.digest.to_object()),
    ]
