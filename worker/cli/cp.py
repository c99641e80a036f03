"""``tidegate cp``: the checkpoint plane from a shell."""

import re
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.codes import BadInput
from schemas.results import Result
from schemas.subjects import Checkpoint, Speaker
from schemas.views import CheckpointView
from worker.cli import common, cp_views, ending, repeating, sessions
from worker.cli.common import (
    AsOption,
    CommandIdOption,
    ConfigOption,
    JsonFlag,
    NatsOption,
    SpaceOption,
    TimeoutOption,
)
from worker.cli.sessions import Session

if TYPE_CHECKING:
    from worker.client import Client

app = typer.Typer(
    no_args_is_help=True,
    short_help="Checkpoints: runs pause, resume or expire.",
    help="Checkpoints: a run pauses with a deadline; its holder resumes it, or it expires.\n\n"
    + ending.EXIT_CODES,
)

Endpoint = Annotated[
    str,
    typer.Argument(
        help="What the run belongs to: dotted lower-case labels, such as runs.nightly.",
        metavar="ENDPOINT",
    ),
]
Token = Annotated[
    str, typer.Argument(help="The checkpoint's token, [A-Za-z0-9_-]{1,64}.", metavar="TOKEN")
]
Deadline = Annotated[
    str,
    typer.Option(
        "--deadline",
        "-d",
        help="When it expires: +15m, an RFC 3339 instant, or milliseconds since 1970; at most ten "
        "years ahead.",
        metavar="WHEN",
    ),
]
WaitFlag = Annotated[
    bool,
    typer.Option(
        "--wait", help="Then wait until it settles: exit 0 if it was resumed, 3 if it expired."
    ),
]
WaitTimeout = Annotated[
    str | None,
    typer.Option(
        "--wait-timeout",
        help="Longest wait for the settlement, then exit 124; by default until it settles.",
        metavar="DURATION",
    ),
]
LONGEST_WAIT_MS = 10 * 366 * 86_400_000


@app.command(
    epilog=common.examples(
        'tidegate cp mint runs.nightly deploy-42 -d +15m --title "Deploy build 42?"',
        "tidegate cp mint runs.nightly -d +1h --title Ship? --choice yes --wait",
    )
)
def mint(
    endpoint: Endpoint,
    deadline: Deadline,
    token: Annotated[
        str | None,
        typer.Argument(
            help="Its token, [A-Za-z0-9_-]{1,64}, never used before; a random one if absent.",
            metavar="TOKEN",
        ),
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option(
            "--holder",
            metavar="WHO",
            help="Who may resume: principal.uid, or a principal kept here; the speaker if absent.",
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option("--title", metavar="TEXT", help="One line that asks a person something."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="TEXT", help="More about it, markdown; - reads standard input."
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            "--choice", metavar="TEXT", help="An allowed answer; repeatable. By default any answer."
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            "--body",
            help="More fields of the body (goal, obligations, prompt) as a JSON object; - reads "
            "standard input, @FILE a file.",
            metavar="JSON",
        ),
    ] = None,
    wait: WaitFlag = False,
    wait_timeout: WaitTimeout = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Pause a run until a deadline.

    The same again is answered already_minted; anything else under a used token is refused.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields = _fields(body)
    fields["deadline_at_ms"] = common.instant("--deadline", deadline)
    if holder is not None:
        named = _holder(session, holder)
        fields["holder"] = {"id": named.principal, "lifecycleUid": named.uid}
    if title is not None:
        fields["prompt"] = {"v": 1, "title": title}
        if text is not None:
            fields["prompt"]["body"] = _text(text)
        if choice:
            fields["prompt"]["choices"] = choice
    elif text is not None or choice:
        common.usage("--title", "is needed with --text and --choice")
    target = _target(endpoint, token or secrets.token_hex(8))
    repeating.fix("TOKEN", target.token)
    _verb(session, "mint", target, fields, command_id, wait, wait_timeout)


@app.command()
def heartbeat(
    endpoint: Endpoint,
    token: Token,
    deadline: Deadline,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            "-g",
            metavar="N",
            help="The generation being extended; the one in force now if absent.",
            parser=common.whole(1),
        ),
    ] = None,
    wait: WaitFlag = False,
    wait_timeout: WaitTimeout = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a waiting checkpoint's deadline, earlier or later.

    It raises the generation; a heartbeat of an older generation is refused.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields: dict[str, Any] = {"deadline_at_ms": common.instant("--deadline", deadline)}
    if generation is not None:
        fields["generation"] = generation
    target = _target(endpoint, token)
    _verb(session, "heartbeat", target, fields, command_id, wait, wait_timeout)


@app.command(
    epilog=common.examples(
        "tidegate cp resume runs.nightly deploy-42 --answer yes",
        """tidegate cp resume runs.nightly deploy-42 --answer '{"build": 43}'""",
    )
)
def resume(
    endpoint: Endpoint,
    token: Token,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="JSON",
            help='What to answer: JSON such as {"ok": true}, or plain words; - reads JSON from '
            "standard input, @FILE from a file.",
        ),
    ] = None,
    artifact: Annotated[
        str | None,
        typer.Option(
            "--artifact", metavar="TEXT", help="Digest of what was shown, kept with the answer."
        ),
    ] = None,
    prompt_digest: Annotated[
        str | None,
        typer.Option(
            "--prompt-digest",
            metavar="HEX",
            help="Refuse unless the prompt digests to this (show prints it): approve what was "
            "seen.",
        ),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let the run go on; only its holder may.

    At or after the deadline it is too late: exit 3, and the checkpoint expires.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields: dict[str, Any] = {}
    if answer is not None:
        fields["answer"] = _answer(answer)
    if artifact is not None:
        fields["artifact"] = artifact
    if prompt_digest is not None:
        if re.fullmatch("[0-9a-f]{64}", prompt_digest) is None:
            common.usage("--prompt-digest", "is 64 of [0-9a-f], as show prints it")
        fields["prompt_digest"] = prompt_digest
    _verb(session, "resume", _target(endpoint, token), fields, command_id)


@app.command()
def expire(
    endpoint: Endpoint,
    token: Token,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Settle a checkpoint whose deadline has passed."""
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    _verb(session, "expire", _target(endpoint, token), {}, command_id)


@app.command()
def repair(
    endpoint: Endpoint,
    token: Token,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Mend what one checkpoint lacks, as the sweep does."""
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    _verb(session, "repair", _target(endpoint, token), {}, command_id)


@app.command()
def show(
    endpoint: Endpoint,
    token: Token,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show everything there is about one checkpoint.

    Its title, prompt and answer are shown to its minter, its holder and operators only.
    """
    session = sessions.looking(config, nats, space, as_, as_json, timeout)
    target = _target(endpoint, token)

    async def work(client: "Client") -> None:
        detail = await client.cp.show(target.endpoint, target.token)
        lines = cp_views.detail_lines(detail, common.now_ms())
        common.emit_data("checkpoint", detail.to_object(), session.as_json, lines)

    sessions.with_client(session, work)


@app.command("list")
def list_(
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Only of this endpoint.")
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option("--holder", metavar="PRINCIPAL", help="Only held by this principal."),
    ] = None,
    due: Annotated[
        str | None,
        typer.Option(
            "--due", help="Only due before: +15m, an RFC 3339 instant, or ms.", metavar="WHEN"
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", help="Items a page.", metavar="N", parser=common.whole(1, 1000)),
    ] = 100,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Where the page before ended; it is told there."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every page.")] = False,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List waiting checkpoints."""
    session = sessions.looking(config, nats, space, as_, as_json, timeout)
    before = common.instant("--due", due) if due else None
    if endpoint is not None:
        try:
            Checkpoint(endpoint, "any")
        except BadInput as bad:
            common.misspelt("--endpoint", bad)

    async def work(client: "Client") -> None:
        items: list[CheckpointView] = []
        at: str | None = cursor
        while True:
            page = await client.cp.list(
                endpoint=endpoint, holder=holder, due_before_ms=before, limit=limit, cursor=at
            )
            items.extend(page.items)
            at = page.next_cursor
            if at is None or not all_:
                break
        value = {"items": [item.to_object() for item in items], "next_cursor": at}
        shown = cp_views.table(items, common.now_ms())
        common.emit_data("checkpoints", value, session.as_json, shown)
        if at is not None and not session.as_json:
            common.say(f"There is more: --cursor {at}, or --all.")

    sessions.with_client(session, work)


@app.command()
def lost(
    space: SpaceOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List what the broker lost when its store came back older.

    It is what the worker of this machine knew, and with each what mints or extends it again, if its
    deadline is still ahead. Run it on every worker's machine, with its data directory; remove the
    file that it names when you are done.
    """
    from dataclasses import asdict

    from worker.checkpoints import lost as losses
    from worker.spaces import space_dir

    settings = sessions.load_settings({}, config).settings
    directory = space_dir(settings.data_dir, space or settings.spaces[0])
    found = losses.read(directory)
    value = {"items": [asdict(one) for one in found], "file": str(directory / losses.FILE)}
    common.emit_data("lost", value, as_json, cp_views.lost_lines(found, common.now_ms()))
    if found and not as_json:
        common.say(f"Noted in {directory / losses.FILE}; remove it when all of it is dealt with.")


@app.command()
def wait(
    endpoint: Endpoint,
    token: Token,
    wait_timeout: WaitTimeout = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until a checkpoint settles.

    Exit code 0 if it was resumed, 3 if it expired, 124 if it still waits after --wait-timeout.
    """
    session = sessions.looking(config, nats, space, as_, as_json, timeout)
    target = _target(endpoint, token)
    wait_ms = _wait_ms(wait_timeout or timeout)

    async def work(client: "Client") -> int:
        return await _settlement(client, session, target, wait_ms)

    raise typer.Exit(sessions.with_client(session, work))


def _verb(
    session: Session,
    verb: str,
    target: Checkpoint,
    fields: dict[str, Any],
    command_id: str | None,
    wait: bool = False,
    wait_timeout: str | None = None,
) -> None:
    from worker.client.errors import refusal

    common.judge("cp", verb, {"generation": 1, **fields} if verb == "heartbeat" else fields)
    wait_ms = _wait_ms(wait_timeout)

    async def work(client: "Client") -> int:
        if verb == "heartbeat" and "generation" not in fields:
            detail = await client.cp.show(target.endpoint, target.token)
            fields["generation"] = detail.checkpoint.generation
            repeating.fix("--generation", str(fields["generation"]))
        key = (target.wire_endpoint, target.token)
        result = await repeating.send(client, "cp", verb, key, fields, command_id)
        lines = cp_views.result_lines(target, result, common.now_ms())
        if result.status != "ok":
            if result.data and not session.as_json:
                common.emit({}, False, lines)
            raise refusal(result)
        if not wait:
            common.emit(result.to_object(), session.as_json, lines)
            return ending.OK
        for line in lines:
            common.say(line)
        return await _settlement(client, session, target, wait_ms, result)

    raise typer.Exit(sessions.with_client(session, work))


async def _settlement(
    client: "Client",
    session: Session,
    target: Checkpoint,
    wait_ms: int,
    result: Result | None = None,
) -> int:
    """Wait for the settlement and show it, in place of what a command's result showed."""
    settled = await client.cp.wait_settled(target.endpoint, target.token, timeout_ms=wait_ms)
    value = settled.to_object()
    lines = cp_views.settled_lines(settled, settled.answer, common.now_ms())
    if result is None:
        common.emit_data("settled", value, session.as_json, lines)
    else:
        common.emit({**result.to_object(), "data": value}, session.as_json, lines)
    return ending.OK if settled.state == "resumed" else ending.REFUSED


def _target(endpoint: str, token: str) -> Checkpoint:
    try:
        return Checkpoint(endpoint, token)
    except BadInput as bad:
        common.misspelt(bad.field.upper(), bad)


def _holder(session: Session, holder: str) -> Speaker:
    principal, dot, uid = holder.partition(".")
    if not dot:
        from schemas import tokens
        from worker import identity

        if not tokens.is_principal(principal):
            common.usage("--holder", f"a principal matches {tokens.NAME_PATTERN}")
        kept = identity.find(session.loaded.settings.data_dir, principal)
        if kept is None:
            common.usage(
                "--holder",
                f"no identity of {principal} is kept here; give principal.uid, or make one: "
                f"tidegate identity init {principal}",
            )
        return kept.speaker
    try:
        return Speaker(principal, uid)
    except BadInput as bad:
        common.misspelt("--holder", bad)


def _fields(body: str | None) -> dict[str, Any]:
    if body is None:
        return {}
    value = common.read_json("--body", body)
    if not isinstance(value, dict):
        common.usage("--body", "must be a JSON object")
    return value


def _text(text: str) -> str:
    import sys

    return sys.stdin.read() if text == "-" else text


def _answer(text: str) -> Any:
    import json

    if text == "-" or text.startswith("@"):
        return common.read_json("--answer", text)
    try:
        return json.loads(text)
    except ValueError:
        # A slip in JSON must not become the answer: it cannot be taken back.
        if text.lstrip()[:1] in ("{", "[", '"'):
            common.usage("--answer", "looks like JSON and is none; quote text as JSON")
        return text


def _wait_ms(text: str | None) -> int:
    return common.duration("--wait-timeout", text) if text else LONGEST_WAIT_MS
