"""``tidegate cap``: the cap plane from a shell."""

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas import tokens
from schemas.caps import CapsPage, ImportView, ListedCap
from schemas.results import Result
from schemas.roles import OPERATOR_PREFIX
from worker.cli import cap_views, common, ending, repeating, sessions
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
    from worker.caps.leftovers import Leftovers
    from worker.client import Client

app = typer.Typer(
    no_args_is_help=True,
    short_help="Caps: act for a person, up to a cap.",
    help="Caps: a person lets an agent act for them up to a cap, and can stop it at once.\n\n"
    + ending.EXIT_CODES,
)

User = Annotated[str, typer.Argument(help="Whose cap: [A-Za-z0-9-]{1,100}.", metavar="USER")]
MintKey = Annotated[
    str,
    typer.Argument(help="The reservation's key: [A-Za-z0-9_-]{16,100}.", metavar="MINT_KEY"),
]
Expiry = Annotated[
    str,
    typer.Option(
        "--expires",
        "-x",
        help="The grant's expiry, its second exactly: an RFC 3339 instant, or milliseconds since "
        "1970.",
        metavar="WHEN",
    ),
]
AS_OPERATOR = f"It is an operator's: it speaks as {OPERATOR_PREFIX} unless somebody is named."


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


@app.command(
    epilog=common.examples("tidegate cap reserve alice 0123456789abcdef --cap 50 --expires +1h")
)
def reserve(
    user: User,
    expires: Annotated[
        str,
        typer.Option(
            "--expires",
            "-x",
            help="The latest expiry wanted: +1h, an RFC 3339 instant, or milliseconds since 1970.",
            metavar="WHEN",
        ),
    ],
    cap: Annotated[
        int,
        typer.Option(
            "--cap",
            help="What one action may cost, in whole currency units.",
            metavar="AMOUNT",
            parser=common.whole(1),
        ),
    ],
    mint_key: Annotated[
        str | None,
        typer.Argument(
            help="Its key, [A-Za-z0-9_-]{16,100}; a random one if absent.", metavar="MINT_KEY"
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
    """Reserve an expiry second for a cap to be minted.

    The answer says with which expiry to mint; confirm within ten minutes.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields = {"latest_expires_at_ms": common.instant("--expires", expires), "cap": cap}
    key = (_user(user), _mint_key(mint_key or secrets.token_hex(12)))
    repeating.fix("MINT_KEY", key[1])
    _verb(session, "reserve", key, fields, command_id)


@app.command()
def confirm(
    user: User,
    mint_key: MintKey,
    expires: Expiry,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a reserved cap the one that authorises.

    The one before is superseded in the same step.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields = {"grant_expires_at_ms": common.instant("--expires", expires)}
    _verb(session, "confirm", (_user(user), _mint_key(mint_key)), fields, command_id)


@app.command(
    epilog=common.examples(
        "tidegate cap authorize alice --amount 20 -x 2030-01-31T12:00:00Z && ./send"
    )
)
def authorize(
    user: User,
    amount: Annotated[
        int,
        typer.Option(
            "--amount",
            help="What the action costs, in whole currency units.",
            metavar="AMOUNT",
            parser=common.whole(1),
        ),
    ],
    expires: Expiry,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask whether one action may be sent now.

    Exit code 0 only if it may, for as long as the answer says, 2 s at most. Any other exit code,
    a timeout too, is a refusal. The same command id is judged again.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields = {"amount": amount, "grant_expires_at_ms": common.instant("--expires", expires)}
    result, sent_s = _call(session, "authorize", (_user(user),), fields, command_id)
    left_ms = result.data["valid_for_ms"] - int((time.monotonic() - sent_s) * 1000)
    if left_ms <= 0:
        common.say("tidegate: the answer took longer than the permit is valid; ask again")
        raise typer.Exit(ending.REFUSED)
    common.emit(result.to_object(), as_json, cap_views.permit_lines(user, result, left_ms))


@app.command()
def revoke(
    user: User,
    expires: Expiry,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """End the active grant, if it is the one that expires then."""
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields = {"expires_at_ms": common.instant("--expires", expires)}
    _verb(session, "revoke", (_user(user),), fields, command_id)


@app.command()
def stop(
    user: User,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """End everything of a person, at once.

    The active grant ends, and what was reserved before can never be confirmed. The answer says
    when the last permit already given runs out.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    _verb(session, "stop", (_user(user),), {}, command_id)


@app.command()
def bump(
    user: User,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Raise a person's generation alone.

    What is active then authorises nothing, and can still be revoked.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    _verb(session, "bump", (_user(user),), {}, command_id)


@app.command(epilog=AS_OPERATOR)
def minting(
    switch: Annotated[
        Switch, typer.Argument(help="Whether new caps may be reserved.", metavar="on|off")
    ],
    permit: Annotated[
        str | None,
        typer.Option(
            "--permit",
            help="How long a permit is valid, 2s at most; by default it stays as it is.",
            metavar="DURATION",
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
    """Switch new reservations on or off.

    What is reserved already is not touched, and a Stop always works.
    """
    session = sessions.operators(config, nats, space, as_, as_json, timeout)
    fields: dict[str, Any] = {"enabled": switch is Switch.ON}
    if permit is not None:
        fields["permit_ms"] = common.duration("--permit", permit)
    _verb(session, "minting", (), fields, command_id)


@app.command()
def show(
    user: User,
    mint_key: Annotated[
        str | None, typer.Option("--key", help="Also show this reservation.", metavar="KEY")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", help="Id of a result that the answer must include.", metavar="ID"),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a person's cap authorises now, and why not."""
    session = sessions.looking(config, nats, space, as_, as_json, timeout)
    whose = _user(user)
    key = None if mint_key is None else _mint_key(mint_key)

    async def work(client: "Client") -> None:
        detail = await client.cap.show(whose, mint_key=key, after=after)
        lines = cap_views.detail_lines(detail, common.now_ms())
        common.emit_data("cap", detail.to_object(), session.as_json, lines)

    sessions.with_client(session, work)


@app.command("list", epilog=AS_OPERATOR)
def list_(
    ended: Annotated[
        bool,
        typer.Option("--ended", help="Those that ended last, in place of those in force."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", help="Caps a page.", metavar="N", parser=common.whole(1, 1000))
    ] = 100,
    after_user: Annotated[
        str | None,
        typer.Option(
            "--after-user", metavar="USER", help="Where the page before ended; it is told there."
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
    """List the caps in force, by person, or those that ended last."""
    session = sessions.watching(config, nats, space, as_, as_json, timeout)
    if ended and (after_user or all_):
        common.usage("--ended", "what ended has one page: not with --after-user or --all")
    start = None if after_user is None else _user(after_user)

    async def work(client: "Client") -> None:
        caps: list[ListedCap] = []
        damaged, at = 0, start
        while True:
            page = await client.cap.list(
                which="ended" if ended else "active", limit=limit, after_user=at
            )
            caps.extend(page.caps)
            damaged, at = damaged + page.damaged, page.next_after_user
            if at is None or not all_:
                break
        value = CapsPage(caps=caps, damaged=damaged, next_after_user=at)
        shown = cap_views.table(caps, common.now_ms(), ended=ended)
        common.emit_data("caps", value.to_object(), session.as_json, shown)
        if session.as_json:
            return
        if damaged:
            common.say(f"{damaged} rows could not be read; tidegate cap show says which.")
        if at is not None:
            common.say(f"There is more: --after-user {at}, or --all.")

    sessions.with_client(session, work)


@app.command("import", epilog=AS_OPERATOR)
def import_(
    folder: Annotated[Path, typer.Argument(help="The predecessor's folder.", metavar="DIR")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be imported.")
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            help="Leave this behind, a file or a table that was not read; may be repeated.",
            metavar="PLACE",
        ),
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take in a predecessor's records, once.

    They hold their keys and seconds for ever. Read are *.jsonl, u/USER/r/*.json and caps.db; while
    anything else lies there, nothing is taken in. An import that was broken off goes on where it
    was when it is run again.
    """
    from worker.caps import leftovers

    found = leftovers.read(folder)
    read = {"records": len(found.records), "files": found.files, "malformed": found.malformed}
    for where in leftovers.summary(found):
        common.say(f"malformed, skipped: {where}")
    leftovers.refuse_unread(found, skip or ())
    if dry_run:
        common.emit_data("read", {"read": read}, as_json, cap_views.leftover_lines(found))
        return
    session = sessions.operators(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        view = await _take_in(client, found)
        value = {"import": view.to_object(), "read": read}
        lines = [*cap_views.leftover_lines(found), *cap_views.import_lines(view)]
        common.emit_data("imported", value, session.as_json, lines)

    sessions.with_client(session, work)


async def _take_in(client: "Client", found: "Leftovers") -> ImportView:
    chunks = found.chunks()
    for number, records in enumerate(chunks[:-1], start=1):
        await client.cap.take_in(found.import_id, number, len(chunks), records)
    return await client.cap.take_in(found.import_id, len(chunks), len(chunks), chunks[-1])


def _verb(
    session: Session,
    verb: str,
    key: tuple[str, ...],
    fields: dict[str, Any],
    command_id: str | None,
) -> None:
    result, _ = _call(session, verb, key, fields, command_id)
    lines = cap_views.result_lines(key, result, common.now_ms())
    if result.data.get("known") is False and not session.as_json:
        lines += cap_views.near_lines(key[0], _users(session))
    common.emit(result.to_object(), session.as_json, lines)


def _users(session: Session) -> list[str]:
    """Whose caps are in force, as far as the caller may know; nothing waits for it long."""
    from worker.errors import ClientError

    async def work(client: "Client") -> list[str]:
        try:
            page = await client.query("cap", "list", {"limit": 1000}, timeout_ms=2_000)
        except ClientError:
            return []
        return [str(one["cap"]["user"]) for one in page.data["caps"]]

    return sessions.with_client(session, work)


def _call(
    session: Session,
    verb: str,
    key: tuple[str, ...],
    fields: dict[str, Any],
    command_id: str | None,
) -> tuple[Result, float]:
    """An ok result, and when it was sent by the monotonic clock, seconds: a permit begins there."""
    from worker.client.errors import refusal

    common.judge("cap", verb, fields)

    async def work(client: "Client") -> tuple[Result, float]:
        sent_s = time.monotonic()
        return await repeating.send(client, "cap", verb, key, fields, command_id), sent_s

    result, sent_s = sessions.with_client(session, work)
    if result.status != "ok":
        if result.data and not session.as_json:
            common.emit({}, False, cap_views.result_lines(key, result, common.now_ms()))
        raise refusal(result)
    return result, sent_s


def _user(user: str) -> str:
    if not tokens.is_user(user):
        # Ids of people come from outside and are compared as they stand, in records for ever.
        why = "; it has no _, unlike other names, so that a_b and a-b are never two people"
        said = f"a user id matches {tokens.USER_PATTERN}"
        common.usage("USER", said + (why if "_" in user else ""))
    return user


def _mint_key(mint_key: str) -> str:
    if not tokens.is_mint_key(mint_key):
        common.usage("MINT_KEY", f"a mint key matches {tokens.MINT_KEY_PATTERN}")
    return mint_key
