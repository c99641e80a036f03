"""One family of errors for client programs, all of it exported."""

from pathlib import Path

import pytest

import worker.client
from schemas.subjects import Speaker
from worker import broker
from worker.bus import errors as bus_errors
from worker.client import Client, ClientError, NoBroker, Unavailable
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


async def test_a_program_without_a_broker_catches_one_error(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as caught:
        broker.client_options(Settings(data_dir=tmp_path))
    assert isinstance(caught.value, NoBroker)
    with pytest.raises(ClientError) as caught:
        async with Client("nats://127.0.0.1:1", Speaker("maria", "u" * 26)) as client:
            await client.cp.list()
    assert isinstance(caught.value, Unavailable)
