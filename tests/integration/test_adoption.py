"""A live space of the predecessor is adopted in place, served by both, and given back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names, kv_stream
from tests.integration.test_interop import Owner, _spaces
from tests.support.plain import Streams
from tests.support.process import WorkerProcess, command, data_of, space_environment
from tests.support.server import WORKER_PASSWORD, Server
from tests.support.space import Space

DAY_NS = 86_400_000_000_000


@pytest.fixture
def cotal(server: Server, tmp_path: Path) -> Space:
    return Space(server, Names("cotal", f"c{next(_spaces):03d}"), tmp_path / "data")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Space], WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start_one(space: Space) -> WorkerProcess:
        started.append(WorkerProcess(space_environment(space), tmp_path / "worker.log"))
        return started[-1].wait_ready()

    yield start_one
    for one in started:
        one.kill()


@pytest.fixture
async def streams(server: Server) -> AsyncIterator[Streams]:
    one = await Streams.connect(server.url, "worker", WORKER_PASSWORD)
    yield one
    await one.nc.close()


@pytest.fixture
async def live(cotal: Space, streams: Streams) -> Owner:
    """The streams as the predecessor's own provisioning makes them, and one checkpoint in them."""
    names, prefix = cotal.names, f"cotal.{cotal.names.space}"
    timer = f"{prefix}.ept.*.*.*.*"
    for config in (
        {"name": names.epf_stream, "subjects": [f"{prefix}.epf.>"], "allow_direct": True},
        {"name": names.ept_req_stream, "subjects": [f"{timer}.schedule"], "max_age": DAY_NS // 24},
        {
            "name": names.ept_stream,
            "subjects": [f"{timer}.armed", f"{timer}.fire"],
            "allow_msg_schedules": True,
            "max_age": DAY_NS * 30,
        },
        {
            "name": kv_stream(names.records_bucket),
            "subjects": [f"$KV.{names.records_bucket}.>"],
            "max_msgs_per_subject": 1,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "discard": "new",
        },
    ):
        common = {"retention": "limits", "storage": "file", "num_replicas": 1}
        made = await streams.ask(f"STREAM.CREATE.{config['name']}", common | config)
        assert "error" not in made, made
    return Owner(cotal, streams)


async def configs(space: Space, streams: Streams) -> dict[str, Any]:
    listed = await streams.ask("STREAM.LIST", {"offset": 0})
    ours = f"_{space.names.space}"
    found = {}
    for one in listed["streams"] or ():
        config = one["config"]
        if config["name"].endswith(ours):
            config["metadata"] = {
                key: value
                for key, value in (config.get("metadata") or {}).items()
                if not key.startswith("_nats.")
            }
            found[config["name"]] = config
    return found


def setup(space: Space, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = command(["setup", *arguments, "--json"], space_environment(space))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return data_of(done.stdout)


async def arm(owner: Owner, token: str, deadline: int) -> None:
    """As the predecessor's own timer writer does it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline // 1000))
    headers = {
        "Nats-Schedule": f"@at {at}",
        "Nats-Schedule-Target": owner.timer(token, "fire"),
    }
    body = owner.timer_body(token, 1, deadline)
    assert await owner.streams.publish(owner.timer(token, "armed"), body, headers)


async def test_a_live_space_is_adopted_with_all_it_holds_and_both_sides_settle(
    cotal: Space, live: Owner, start: Callable[[Space], WorkerProcess]
) -> None:
    now = time.time_ns() // 1_000_000
    soon = (now // 1000 + 4) * 1000
    await live.mint("theirs", soon)
    await arm(live, "theirs", soon)
    await live.mint("open", now + 600_000)

    before = await configs(cotal, live.streams)
    planned = await asyncio.to_thread(setup, cotal, "--adopt", code=3)
    assert not planned["spaces"][0]["adopted"]
    assert await configs(cotal, live.streams) == before, "shown is not done"
    named = {
        (change["stream"], setting["what"]): setting["lasting"]
        for change in planned["spaces"][0]["changes"]
        for setting in change["settings"]
    }
    assert named[cotal.names.ept_stream, "max_age"] is False
    assert named[cotal.names.ept_stream, "subjects"] is False
    assert named[cotal.names.ept_stream, "allow_msg_ttl"] is True
    assert named[cotal.names.epf_stream, "deny_purge"] is True

    done = await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    assert done["spaces"][0]["adopted"]
    assert (await asyncio.to_thread(setup, cotal))["spaces"][0]["differences"] == []
    start(cotal)
    await live.streams.wait_last(cotal.names.epf_stream, live.fact("theirs"), 20)
    assert (await live.status("theirs"))["state"] == "expired"
    async with cotal.client("maria") as client:
        listed = await client.cp.list()
        assert [one.token for one in listed.items] == ["open"]
        # One of ours, which the other side settles by the records alone.
        await client.cp.mint("runs", "ours", deadline_at_ms=now + 600_000)
        status = await live.streams.last(
            kv_stream(cotal.names.records_bucket), f"{live.kv}.cp.runs.ours.status"
        )
        assert status is not None
        settled = json.loads(status.data)
        spec = settled["observedSpecRevision"]
        resumed = {
            "state": "resumed",
            "deadlineGeneration": 1,
            "deadline": now + 600_000,
            "observedSpecRevision": spec,
            "settledGeneration": 1,
            "settledTs": now,
            "settledHolder": {"id": "maria", "lifecycleUid": client.speaker.uid},
        }
        await live.streams.put(
            f"{live.kv}.cp.runs.ours.status",
            json.dumps(resumed, separators=(",", ":")).encode(),
            status.seq,
        )
        assert (await client.cp.wait_settled("runs", "ours", timeout_ms=10_000)).state == "resumed"
    refused = await asyncio.to_thread(
        command, ["setup", "--undo-adopt", "--yes"], space_environment(cotal)
    )
    assert refused.returncode == 3
    assert "can no longer be undone" in refused.stderr


async def test_an_adoption_is_undone_and_done_again(
    cotal: Space, live: Owner, streams: Streams
) -> None:
    deadline = time.time_ns() // 1_000_000 + 600_000
    await live.mint("open", deadline)
    await arm(live, "open", deadline // 1000 * 1000)
    before = await configs(cotal, streams)
    await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    again = await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    assert again["spaces"][0]["changes"] == []
    given = await asyncio.to_thread(setup, cotal, "--undo-adopt", "--yes")
    kept = set(given["spaces"][0]["kept"])
    assert kept == {
        f"{cotal.names.ept_stream}.allow_msg_ttl",
        f"{kv_stream(cotal.names.records_bucket)}.allow_rollup_hdrs",
        *(
            f"{stream}.{flag}"
            for stream, flag in (
                (cotal.names.epf_stream, "deny_delete"),
                (cotal.names.epf_stream, "deny_purge"),
                (kv_stream(cotal.names.records_bucket), "deny_purge"),
            )
        ),
    }
    after = await configs(cotal, streams)
    for name, config in after.items():
        for flag in (one.rpartition(".")[2] for one in kept if one.startswith(f"{name}.")):
            assert config.get(flag, False) is not before[name].get(flag, False)
            config[flag] = before[name].get(flag, False)
    assert {n: _plain(c) for n, c in after.items()} == {n: _plain(c) for n, c in before.items()}
    assert await live.armed("open") is not None
    assert (await live.status("open"))["state"] == "waiting"
    await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    assert (await asyncio.to_thread(setup, cotal))["spaces"][0]["differences"] == []


async def test_an_adoption_that_broke_off_goes_on(
    cotal: Space, live: Owner, streams: Streams
) -> None:
    assert live
    await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    names = cotal.names
    for stream in (names.res_stream, names.log_stream):
        await streams.ask(f"STREAM.DELETE.{stream}", {})
    await asyncio.to_thread(setup, cotal, "--adopt", "--yes")
    assert (await asyncio.to_thread(setup, cotal))["spaces"][0]["differences"] == []


@pytest.mark.usefixtures("live")
async def test_what_cannot_be_adopted_is_refused_by_name(
    cotal: Space, streams: Streams, space: Space
) -> None:
    def refusal(of: Space, *arguments: str) -> str:
        done = command(["setup", *arguments], space_environment(of))
        assert done.returncode == 3, done.stdout + done.stderr
        return done.stderr

    assert "already" in await asyncio.to_thread(refusal, space, "--adopt", "--yes")
    assert "not adopted" in await asyncio.to_thread(refusal, space, "--undo-adopt", "--yes")
    await streams.ask(f"STREAM.DELETE.{cotal.names.epf_stream}", {})
    config = {"name": cotal.names.epf_stream, "subjects": ["elsewhere.>"], "storage": "memory"}
    await streams.ask(f"STREAM.CREATE.{cotal.names.epf_stream}", config)
    assert "storage" in await asyncio.to_thread(refusal, cotal, "--adopt", "--yes")


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Without what means the same whether it is there or not."""
    return {key: value for key, value in config.items() if value not in (False, None, {}, 0, "")}
