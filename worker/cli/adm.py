"""``tidegate adm``: the admission plane from a shell."""

import asyncio
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.roles import OPERATOR_PREFIX
from worker.cli import adm_turn, adm_views, common, ending, sessions
from worker.cli.adm_turn import (
    Request,
    process,
    request_key,
    send,
    verb,
)
from worker.cli.common import (
    AsOption,
    CommandIdOption,
    ConfigOption,
    JsonFlag,
    NatsOption,
    SpaceOption,
    TimeoutOption,
)

if TYPE_CHECKING:
    from schemas.admission import TurnView
    from worker.client import Client

app = typer.Typer(
    no_args_is_help=True,
    short_help="Admission: turns queue for scarce seats.",
    help="Admission: turns queue for scarce seats; one that may have been dispatched never runs "
    "again.\n\n" + ending.EXIT_CODES,
)

LOOK_S = 0.2
AS_OPERATOR = f"It is an operator's: it speaks as {OPERATOR_PREFIX} unless somebody is named."

Limit = Annotated[
    int,
    typer.Option("--limit", help="How many at most.", metavar="N", parser=common.whole(1, 1000)),
]
After = Annotated[
    str | None,
    typer.Option("--after", help="Last request id of the page before.", metavar="REQUEST"),
]


class Handing(StrEnum):
    """How a seat is handed out."""

    PUSH = "push"
    PULL = "pull"


class Resolution(StrEnum):
    """What an operator says about a debt."""

    CONFIRMED_NOT_DISPATCHED = "confirmed_not_dispatched"
    CONFIRMED_COMPLETED = "confirmed_completed"
    ACKNOWLEDGED_UNKNOWN = "acknowledged_unknown"


@app.command(
    epilog=common.examples(
        "tidegate adm enqueue req-1 --agent ann --provider acme --model large --wait"
    )
)
def enqueue(
    request: Request,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", help="Whose turn it is; seats are fair between agents.", metavar="AGENT"
        ),
    ],
    provider: Annotated[
        str, typer.Option("--provider", help="The provider it is for.", metavar="PROVIDER")
    ],
    model: Annotated[
        str, typer.Option("--model", help="The model; a cooldown is per model.", metavar="MODEL")
    ],
    session_id: Annotated[
        str | None,
        typer.Option(
            "--session", help="The conversation; by default the agent.", metavar="SESSION"
        ),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            help="A digest of what is asked: the same request with another one is refused. By "
            "default the request.",
            metavar="TEXT",
        ),
    ] = None,
    grant: Annotated[
        Handing,
        typer.Option(
            "--grant", help="push: the seat is given when free; pull: asked for by admit."
        ),
    ] = Handing.PUSH,
    priority: Annotated[
        int,
        typer.Option(
            "--priority", help="Higher goes first.", metavar="N", parser=common.whole(-100, 100)
        ),
    ] = 0,
    queue_timeout: Annotated[
        str | None,
        typer.Option(
            "--queue-timeout",
            help="Longest wait in the queue, if shorter than the policy's.",
            metavar="DURATION",
        ),
    ] = None,
    connector: Annotated[
        str | None,
        typer.Option(
            "--connector",
            help="The connector's process: its pid on this machine, or its identity as JSON; - "
            "reads standard input, @FILE a file.",
            metavar="PROCESS",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Then wait for the seat: exit 0 with it, 3 without.")
    ] = False,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Queue a turn.

    The same again is answered with what became of it.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    fields: dict[str, Any] = {
        "session_id": session_id or agent,
        "agent_id": agent,
        "fingerprint": fingerprint or request,
        "provider": provider,
        "model": model,
        "grant": grant.value,
        "priority": priority,
    }
    if queue_timeout is not None:
        fields["timeout_ms"] = common.duration("--queue-timeout", queue_timeout)
    if connector is not None:
        fields["identity"] = process(session, "--connector", connector)
    common.judge("adm", "enqueue", fields)
    if not wait:
        verb(session, "enqueue", request_key(request), fields, command_id)
        return

    async def work(client: "Client") -> int:
        result = await send(client, session, "enqueue", request_key(request), fields, command_id)
        turn = await client.adm.request(request, after=result.id)
        while turn.state == "queued":
            await asyncio.sleep(LOOK_S)
            turn = await client.adm.request(request)
        lines = adm_views.turn_lines(turn, common.now_ms())
        # The chain is a hash of the result as it was.
        said = {**result.to_object(), "data": turn.to_object()}
        said.pop("chain", None)
        common.emit(said, session.as_json, lines)
        if turn.lease is not None and turn.lease.owner.uid == client.speaker.uid:
            return ending.OK
        common.say(_no_seat(turn))
        return ending.REFUSED

    raise typer.Exit(sessions.with_client(session, work))


@app.command()
def cancel(
    request: Request,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a queued turn back."""
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    verb(session, "cancel", request_key(request), {}, command_id)


@app.command()
def admit(
    request: Annotated[
        str | None, typer.Argument(help="Only this turn, if it is next.", metavar="REQUEST")
    ] = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a seat for a pull turn.

    Exit code 0 with a seat, 3 if something blocks, which is then said.
    """
    session = sessions.session(config, nats, space, as_, as_json, timeout)
    key = () if request is None else request_key(request)

    async def work(client: "Client") -> int:
        result = await send(client, session, "admit", key, {}, command_id)
        lines = adm_views.result_lines(result, common.now_ms())
        common.emit(result.to_object(), session.as_json, lines)
        return ending.REFUSED if result.outcome == "none" else ending.OK

    raise typer.Exit(sessions.with_client(session, work))


adm_turn.register(app)


@app.command(
    epilog=common.examples(
        'tidegate adm resolve req-1 confirmed_completed --evidence "seen there"',
        more=AS_OPERATOR,
    )
)
def resolve(
    request: Request,
    resolution: Annotated[
        Resolution, typer.Argument(help="What is known about the debt.", metavar="RESOLUTION")
    ],
    evidence: Annotated[
        str, typer.Option("--evidence", help="How you know, for the record.", metavar="TEXT")
    ],
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Settle a debt: say what became of a turn.

    confirmed_not_dispatched queues it again: if the provider did get it, it gets it twice.
    confirmed_completed and acknowledged_unknown free its seat and never run it again.
    """
    session = sessions.operators(config, nats, space, as_, as_json, timeout)
    fields = {"resolution": resolution.value, "evidence": evidence}
    verb(session, "resolve", request_key(request), fields, command_id)


@app.command(epilog=AS_OPERATOR)
def cooldown(
    provider: Annotated[str, typer.Argument(help="Whose model.", metavar="PROVIDER")],
    model: Annotated[str, typer.Argument(help="The model.", metavar="MODEL")],
    until: Annotated[
        str,
        typer.Option(
            "--until", help="Until when: +30s, an RFC 3339 instant, or ms.", metavar="WHEN"
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Even if it would rest longer; +0s ends its rest.")
    ] = False,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a model rest; only --replace shortens it."""
    session = sessions.operators(config, nats, space, as_, as_json, timeout)
    fields: dict[str, Any] = {
        "provider": provider,
        "model": model,
        "not_before_ms": common.instant("--until", until),
    }
    if replace:
        fields["replace"] = True
    verb(session, "cooldown", (), fields, command_id)


@app.command(epilog=AS_OPERATOR)
def drain(
    to: Annotated[
        int,
        typer.Argument(
            help="Seats that may be held; 0 pauses.", metavar="N", parser=common.whole(0)
        ),
    ],
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Bring the seats to a limit; none is taken away.

    It stands until another drain, or a claim with --resume.
    """
    session = sessions.operators(config, nats, space, as_, as_json, timeout)
    verb(session, "drain", (), {"to": to}, command_id)


@app.command(
    epilog=common.examples(
        "tidegate adm policy",
        "tidegate adm policy --claim 1 --max-active-turns 3 --queue-timeout 10m",
        "tidegate adm policy --assert --epoch 1 --max-active-turns 3",
        more=f"--claim and --assert are an operator's: they speak as {OPERATOR_PREFIX} unless "
        "somebody is named.",
    )
)
def policy(
    claim: Annotated[
        int | None,
        typer.Option(
            "--claim",
            help="Claim this epoch, the one in force plus 1; values left out take defaults.",
            metavar="EPOCH",
            parser=common.whole(1),
        ),
    ] = None,
    assert_: Annotated[
        bool, typer.Option("--assert", help="Compare: exit 0 if the values match, else 3.")
    ] = False,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch", help="With --assert: the epoch.", metavar="EPOCH", parser=common.whole(0)
        ),
    ] = None,
    seats: Annotated[
        int | None,
        typer.Option(
            "--max-active-turns",
            help="Seats: turns under way at once; default 8.",
            metavar="N",
            parser=common.whole(1),
        ),
    ] = None,
    starts: Annotated[
        int | None,
        typer.Option(
            "--max-concurrent-starts",
            help="Turns between admission and active at once; default 8.",
            metavar="N",
            parser=common.whole(1),
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            "--min-start-interval",
            help="Shortest time between two admissions; default 0.",
            metavar="DURATION",
        ),
    ] = None,
    queue_timeout: Annotated[
        str | None,
        typer.Option(
            "--queue-timeout", help="Longest wait in the queue; default 30m.", metavar="DURATION"
        ),
    ] = None,
    capacity_cooldown: Annotated[
        str | None,
        typer.Option(
            "--capacity-cooldown",
            help="Rest of a model after provider_capacity; default 30s.",
            metavar="DURATION",
        ),
    ] = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(
            "--start-timeout",
            help="Longest time from admission to intent; default 60s.",
            metavar="DURATION",
        ),
    ] = None,
    adoption_timeout: Annotated[
        str | None,
        typer.Option(
            "--adoption-timeout",
            help="How long a dead owner's queued turn waits for its next life; default 60s.",
            metavar="DURATION",
        ),
    ] = None,
    silence: Annotated[
        str | None,
        typer.Option(
            "--silence",
            help="Silence after which an owner is suspect; default 4s.",
            metavar="DURATION",
        ),
    ] = None,
    max_retry_after: Annotated[
        str | None,
        typer.Option(
            "--max-retry-after",
            help="Longest rest that a provider's wish can set; default 24h.",
            metavar="DURATION",
        ),
    ] = None,
    max_priority: Annotated[
        list[str] | None,
        typer.Option(
            "--max-priority",
            help="Highest priority that a principal may ask for; * is everyone else.",
            metavar="PRINCIPAL=N",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --claim: end the drain that stands.")
    ] = False,
    space: SpaceOption = None,
    as_: AsOption = None,
    command_id: CommandIdOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the policy, claim the next one, or compare."""
    given: dict[str, Any] = {
        "max_active_turns": seats,
        "max_concurrent_starts": starts,
        "min_start_interval_ms": _ms("--min-start-interval", interval),
        "queue_timeout_ms": _ms("--queue-timeout", queue_timeout),
        "capacity_cooldown_ms": _ms("--capacity-cooldown", capacity_cooldown),
        "start_timeout_ms": _ms("--start-timeout", start_timeout),
        "adoption_timeout_ms": _ms("--adoption-timeout", adoption_timeout),
        "silence_ms": _ms("--silence", silence),
        "max_retry_after_ms": _ms("--max-retry-after", max_retry_after),
        "max_priority": _bounds("--max-priority", max_priority),
    }
    values = {name: value for name, value in given.items() if value is not None}
    if claim is not None and assert_:
        common.usage("--assert", "goes without --claim")
    if resume and claim is None:
        common.usage("--resume", "goes with --claim")
    if claim is not None:
        session = sessions.operators(config, nats, space, as_, as_json, timeout)
        resumes = {"resume": True} if resume else {}
        verb(session, "policy", (), {"epoch": claim, **values, **resumes}, command_id)
        return
    if assert_:
        session = sessions.operators(config, nats, space, as_, as_json, timeout)
        believed = values if epoch is None else {"epoch": epoch, **values}
        verb(session, "policy", (), {"assert": believed}, command_id)
        return
    if values or epoch is not None:
        common.usage("--claim", "or --assert is needed with values")
    session = sessions.looking(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        view = await client.adm.policy()
        common.emit_data("policy", view.to_object(), session.as_json, adm_views.policy_lines(view))

    sessions.with_client(session, work)


@app.command()
def show(
    request: Request,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one turn, and where it stands in the queue."""
    session = sessions.looking(config, nats, space, as_, as_json, timeout)
    (request_id,) = request_key(request)

    async def work(client: "Client") -> None:
        turn = await client.adm.request(request_id)
        value, now_ms = turn.to_object(), common.now_ms()
        lines = adm_views.turn_lines(turn, now_ms)
        if turn.state == "queued":
            place = await client.adm.place(request_id)
            value = {**value, "place": place.to_object()}
            lines += adm_views.place_lines(place, now_ms)
        common.emit_data("turn", value, session.as_json, lines)

    sessions.with_client(session, work)


@app.command()
def queue(
    limit: Limit = 100,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the head of the queue, and what keeps it waiting."""
    session = sessions.looking(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        view = await client.adm.queue(limit=limit)
        lines = adm_views.queue_lines(view, common.now_ms())
        common.emit_data("queue", view.to_object(), session.as_json, lines)

    sessions.with_client(session, work)


@app.command()
def leases(
    limit: Limit = 100,
    after: After = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the seats that are held, and what would free each."""
    session = sessions.watching(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        page = await client.adm.leases(limit=limit, after_request_id=after)
        lines = adm_views.seat_table(page.leases, common.now_ms())
        common.emit_data("leases", page.to_object(), session.as_json, lines)
        _more(session.as_json, page.next_after_request_id)

    sessions.with_client(session, work)


@app.command()
def recoverable(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Only what this host's observer can see.", metavar="HOST"),
    ] = None,
    limit: Limit = 200,
    after: After = None,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List seats and debts that evidence could free, and how."""
    session = sessions.watching(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        page = await client.adm.recoverable(host=host, limit=limit, after_request_id=after)
        lines = adm_views.recoverable_lines(page, common.now_ms())
        common.emit_data("recoverable", page.to_object(), session.as_json, lines)
        _more(session.as_json, page.next_after_request_id)

    sessions.with_client(session, work)


@app.command()
def events(
    after: Annotated[
        int,
        typer.Option(
            "--after",
            help="Sequence after which the page begins.",
            metavar="SEQ",
            parser=common.whole(0),
        ),
    ] = 0,
    limit: Limit = 100,
    space: SpaceOption = None,
    as_: AsOption = None,
    timeout: TimeoutOption = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a page of the journal; it names no request."""
    session = sessions.watching(config, nats, space, as_, as_json, timeout)

    async def work(client: "Client") -> None:
        page = await client.adm.events(after=after, limit=limit)
        common.emit_data("events", page.to_object(), session.as_json, adm_views.event_lines(page))
        _more(session.as_json, page.next_after)

    sessions.with_client(session, work)


def _no_seat(turn: "TurnView") -> str:
    """Why waiting for a seat came to nothing."""
    if turn.lease is None:
        ended = f"turn {turn.request_id} has ended, it is {turn.state}"
        return f"no seat: {ended}; another turn needs another request id"
    return f"no seat here: another life of its principal runs turn {turn.request_id}"


def _bounds(parameter: str, pairs: list[str] | None) -> dict[str, int] | None:
    bounds = {}
    for pair in pairs or ():
        principal, _, number = pair.rpartition("=")
        if not principal or re.fullmatch(r"-?[0-9]{1,3}", number, re.ASCII) is None:
            common.usage(parameter, f"is PRINCIPAL=N, N from -100 to 100, not {pair}")
        bounds[principal] = int(number)
    return bounds or None


def _ms(parameter: str, text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text == "0" else common.duration(parameter, text)


def _more(as_json: bool, after: str | int | None) -> None:
    if after is not None and not as_json:
        common.say(f"There is more: --after {after}")
