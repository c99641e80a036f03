"""One family of errors for client programs, all of it exported."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import worker.client
from schemas.subjects import Speaker
from worker import broker
from worker.bus import errors as bus_errors
from worker.client import BadInput, Client, ClientError, NoBroker, Settled, Unavailable
from worker.settings import Settings


def test_whatever_a_call_may_end_in_is_one_family() -> None:
    exported = {
        name: value
        for name in worker.client.__all__
        if isinstance(value := getattr(worker.client, name), type) and issubclass(value, Exception)
    }
    outside = {name for name, kind in exported.items() if not issubclass(kind, ClientError)}
    assert outside == {"BadInput"}, "an argument that cannot be is the program's own mistake"
    of_the_bus = {
        value for value in vars(bus_errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }  # fmt: skip
    assert all(issubclass(kind, ClientError) for kind in of_the_bus)


SLIPS: list[tuple[dict[str, Any], str, str]] = [
    ({"holder": "maria"}, "holder", "principal.uid"),
    ({"holder": "maria.NOT-A-UID"}, "uid", "uid"),
    ({"prompt": {"titel": "Ship?"}}, "prompt.title", "required"),
    ({"prompt": "Ship?"}, "prompt", "title"),
    ({"deadline_at_ms": datetime(2099, 1, 1)}, "deadline_at_ms", "zone"),  # noqa: DTZ001
    ({"deadline_at_ms": 1.5e12}, "deadline_at_ms", "whole milliseconds"),
    ({"deadline_at_ms": True}, "deadline_at_ms", "whole milliseconds"),
    ({"deadline_at_ms": "+15m"}, "deadline_at_ms", "whole milliseconds"),
]


@pytest.mark.parametrize(("slip", "field", "word"), SLIPS)
async def test_a_slip_of_a_program_is_a_sentence_before_anything_is_sent(
    slip: dict[str, Any], field: str, word: str
) -> None:
    client = Client("nats://127.0.0.1:1", Speaker("maria", "u" * 26))  # it is not even open
    with pytest.raises(BadInput) as caught:
        await client.cp.mint("runs", "one", **{"deadline_at_ms": 4_000_000_000_000, **slip})
    assert caught.value.field == field
    assert word in caught.value.message


def test_a_settlement_is_neither_true_nor_false() -> None:
    settled = Settled(
        endpoint="runs", token="t", state="resumed", generation=1, deadline_at_ms=1,
        answer={"value": "no"},
    )  # fmt: skip
    assert (settled.resumed, settled.value) == (True, "no")
    with pytest.raises(TypeError, match="resumed"):
        bool(settled)


async def test_a_program_without_a_broker_catches_one_error(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as caught:
        broker.client_options(Settings(data_dir=tmp_path))
    assert isinstance(caught.value, NoBroker)
    with pytest.raises(ClientError) as caught:
        async with Client("nats://127.0.0.1:1", Speaker("maria", "u" * 26)) as client:
            await client.cp.list()
    assert isinstance(caught.value, Unavailable)
