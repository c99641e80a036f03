"""``tidegate bench all --peers``: the same work done by us and by what one might pick instead.

Three jobs: wait durably until a deadline and mark it expired (how late), have a durable waiter hear
an answer (how long), enqueue jobs and have each done (how many a second). Each figure stands beside
how durable it is. A peer that cannot be installed or fails is left out with the reason.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from schemas.strict_json import JsonObject
from worker.bench import admission, checkpoints, ground
from worker.bench.ground import Ground, Say, pipeline, soon_ms, spread, timed
from worker.bench.peers import installing, postgres, scripts
from worker.bench.peers.installing import NotInstalled
from worker.bus import conf
from worker.client import Client
from worker.connector import Connector

SCRIPTS: Final = Path(str(scripts.__file__)).parent
SCRIPT_S: Final = 600
ANSWERS: Final = 30
WAIT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Work:
    """What everybody does.

    Attributes:
        count: Deadlines.
        answers: Answers, one at a time.
        jobs: Jobs that are enqueued and done.
        in_flight: Callers that enqueue at once, and jobs that are done at once.
        lead_ms: When the first deadline falls due, from the first call.
        spread_ms: How far the deadlines lie apart, all together.
    """

    count: int
    answers: int
    jobs: int
    in_flight: int = ground.IN_FLIGHT
    lead_ms: int = 3_000
    spread_ms: int = 4_000


async def run(count: int, say: Say) -> JsonObject:
    """Ourselves and every peer, one after another on the same machine.

    Args:
        count: Jobs; deadlines are a tenth of it.
        say: Told what is being measured.

    Returns:
        By name: figures, versions and durability, or ``skipped`` with the reason.
    """
    work = Work(count=max(50, count // 10), answers=ANSWERS, jobs=count)
    found: JsonObject = {}
    for name, always in (("tidegate_always", True), ("tidegate_default", False)):
        say(f"peers: {name}")
        found[name] = await _ours(work, sync_always=always)
    for name, measure in _PEERS.items():
        say(f"peers: {name}")
        try:
            found[name] = await measure(work)
        except NotInstalled as missing:
            say(f"peers: {name} is left out: {missing.message}")
            found[name] = {"skipped": missing.message}
    return {"work": asdict(work), **found}


def durability(*, sync_always: bool) -> str:
    """What an acknowledgement of our broker means."""
    if sync_always:
        return "JetStream, sync_interval always: fsync before each acknowledgement, grouped"
    return "JetStream, broker's default: fsync every 2 minutes, acknowledged before it"


async def _ours(work: Work, *, sync_always: bool) -> JsonObject:
    async with Ground.prepared(sync_always=sync_always) as place, place.jetstream() as js:
        await place.start_worker()
        async with place.client("bench") as client, place.client("_op-bench") as operator:
            late = await checkpoints.lateness(js, place, client, "p", work.count)
            took = await _answers(client, work)
            await admission.open_seats(operator)
            async with Connector(client) as connector:
                done = await pipeline(work.jobs, lambda n: admission.turn(connector, f"t{n}"))
            await operator.adm.drain(0)
            enqueued = await pipeline(work.jobs, lambda n: admission.enqueue(client, f"q{n}"))
    return {
        "durability": durability(sync_always=sync_always),
        "lateness": spread(late),
        "settle": spread(took),
        "enqueued_per_s": round(enqueued.per_s, 1),
        "done_per_s": round(done.per_s, 1),
    }


async def _answers(client: Client, work: Work) -> list[float]:
    """From sending a resume until whoever waits for it hears of it, one at a time."""
    cp, endpoint, far_ms = client.cp, checkpoints.ENDPOINT, soon_ms(3_600_000)
    for number in range(work.answers):
        await cp.mint(endpoint, f"answer-{number}", deadline_at_ms=far_ms)

    async def one(number: int) -> None:
        await cp.resume(endpoint, f"answer-{number}", answer="yes")
        await waiting[number]

    waiting = [
        asyncio.create_task(cp.wait_settled(endpoint, f"answer-{number}", timeout_ms=WAIT_MS))
        for number in range(work.answers)
    ]
    await asyncio.sleep(1)
    return await timed(work.answers, one)


async def _dbos(work: Work) -> JsonObject:
    python = await installing.environment("dbos", ("dbos",))
    with _folder() as folder:
        said = await _script(python, "dbos_sqlite", work, {"folder": str(folder)})
    return {"versions": await installing.versions(python, ("dbos",)), **_figures(said)}


async def _procrastinate(work: Work) -> JsonObject:
    python = await installing.environment("procrastinate", ("procrastinate", "psycopg[binary]"))
    async with postgres.serving() as (conninfo, version):
        options = {"conninfo": conninfo, "poll_s": 5.0}
        said = await _script(python, "procrastinate_postgres", work, options)
        often = {"conninfo": conninfo, "poll_s": 0.1, "jobs": 0}
        again = await _script(python, "procrastinate_postgres", work, often)
    versions = await installing.versions(python, ("procrastinate", "psycopg"))
    return {
        "versions": {**versions, "postgresql": version},
        **_figures(said),
        "lateness_polling_every_100_ms": spread(again["lateness_ms"]),
    }


async def _apscheduler(work: Work) -> JsonObject:
    python = await installing.environment("apscheduler", ("apscheduler<4", "sqlalchemy"))
    with _folder() as folder:
        said = await _script(python, "apscheduler_sqlite", work, {"folder": str(folder)})
    versions = await installing.versions(python, ("apscheduler", "sqlalchemy"))
    return {"versions": versions, **_figures(said)}


async def _taskiq(work: Work, *, sync_always: bool) -> JsonObject:
    python = await installing.environment("taskiq", ("taskiq-nats",))
    async with Ground.prepared(sync_always=sync_always) as place:
        options = {
            "url": place.url,
            "user": conf.WORKER_USER,
            "password": place.worker_options.password,
            "durability": durability(sync_always=sync_always),
        }
        said = await _script(python, "taskiq_jetstream", work, options)
    versions = await installing.versions(python, ("taskiq", "taskiq-nats"))
    return {"versions": versions, **_figures(said)}


async def _taskiq_always(work: Work) -> JsonObject:
    return await _taskiq(work, sync_always=True)


async def _taskiq_default(work: Work) -> JsonObject:
    return await _taskiq(work, sync_always=False)


_PEERS: Final[Mapping[str, Callable[[Work], Awaitable[JsonObject]]]] = {
    "dbos_sqlite": _dbos,
    "procrastinate_postgresql": _procrastinate,
    "apscheduler_sqlite": _apscheduler,
    "taskiq_nats_always": _taskiq_always,
    "taskiq_nats_default": _taskiq_default,
}


def _figures(said: JsonObject) -> JsonObject:
    """A script's lists as spreads, its rates rounded."""
    figures: JsonObject = {"durability": said["durability"]}
    for name, value in said.items():
        if name.endswith("_ms"):
            figures[name.removesuffix("_ms")] = spread(value)
        elif name.endswith("_per_s"):
            figures[name] = round(value, 1)
    return figures


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-peer-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _script(python: Path, name: str, work: Work, options: Mapping[str, Any]) -> JsonObject:
    """Run one script; options go by its standard input, since one may be a password.

    Raises:
        NotInstalled: It failed or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(SCRIPTS / f"{name}.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
    )
    given = json.dumps({**asdict(work), **options}).encode()
    try:
        async with asyncio.timeout(SCRIPT_S):
            out, err = await process.communicate(given)
    except TimeoutError as error:
        raise NotInstalled(f"it took more than {SCRIPT_S} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise NotInstalled(f"it failed: {_last(err.decode(errors='replace').splitlines())}")
    figures: JsonObject = json.loads(out.splitlines()[-1])
    return figures


def _last(lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "no reason given"
