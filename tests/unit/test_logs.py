"""Logs: one event a line, context per unit of work, and a sink that may fail."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from worker import logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers.clear()


def parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(lines: io.StringIO) -> None:
    logs.get(space="s").info("minted", token="t\nwith a line break")
    (event,) = parsed(lines)
    assert list(event)[:3] == ["at", "level", "event"]
    assert event["event"] == "minted"
    assert event["space"] == "s"
    assert event["token"] == "t\nwith a line break"


def test_less_severe_events_are_left_out(lines: io.StringIO) -> None:
    logs.get().debug("detail")
    assert parsed(lines) == []


async def test_a_hundred_interleaved_commands_keep_their_own_ids(lines: io.StringIO) -> None:
    log = logs.get()

    async def command(number: int) -> None:
        logs.clear()
        with logs.bound(command_id=f"c{number}"):
            for step in range(3):
                log.info("step", number=number, step=step)
                await asyncio.sleep(0)
        log.info("after", number=number)

    await asyncio.gather(*(command(number) for number in range(100)))
    events = parsed(lines)
    assert len(events) == 400
    for event in events:
        expected = f"c{event['number']}" if event["event"] == "step" else None
        assert event.get("command_id") == expected


def test_an_exception_shows_no_local_variables(lines: io.StringIO) -> None:
    def fail() -> None:
        password = "sentinel"  # noqa: F841  it must not be shown
        raise ValueError("broken")

    try:
        fail()
    except ValueError:
        logs.get().exception("failed")
    assert "sentinel" not in lines.getvalue().replace('password = "sentinel"', "")
    assert parsed(lines)[0]["exception"][0]["exc_value"] == "broken"


def test_an_error_given_as_a_field_is_its_type_and_sentence(lines: io.StringIO) -> None:
    logs.get().warning("lost", error=OSError("gone"))
    assert parsed(lines)[0]["error"] == "OSError: gone"


def test_a_librarys_own_logging_becomes_an_event(lines: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").error("it broke: %s", "badly")
    (event,) = parsed(lines)
    assert event["event"] == "library_log"
    assert event["text"] == "it broke: badly"
    assert event["library"] == "aiohttp.server"


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise ValueError("closed")


def test_a_sink_that_fails_never_hurts_the_work() -> None:
    logs.configure("info", "json", Broken())
    logs.get().info("lost")
    logging.getLogger("nats").error("lost too")
    structlog.reset_defaults()
    logging.getLogger().handlers.clear()


def test_a_field_that_no_encoding_holds_is_shown_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    logs.configure("info", "console", stream)
    try:
        logs.get().info("dropped", subject="a\udcff.\u00e9")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    assert b"dropped" in raw.getvalue()
    assert raw.getvalue().isascii()


def test_console_output_is_for_people() -> None:
    stream = io.StringIO()
    logs.configure("info", "console", stream)
    logs.get().info("minted", token="t")
    structlog.reset_defaults()
    assert "minted" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_a_reader_that_stands_still_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        with os.fdopen(writing, "w") as stream:
            logs.configure("info", "json", stream)
            log = logs.get()
            began = time.monotonic()
            for number in range(3_000):
                log.info("said", number=number, text="x" * 5_000)
            # Once it is waited for; a write that blocks would never end.
            assert time.monotonic() - began < 20
            taken = os.read(reading, 1 << 20)
            assert taken.startswith(b'{"at"')
            while taken:
                try:
                    taken = os.read(reading, 1 << 20)
                except BlockingIOError:
                    taken = b""
            log.info("heard_again")
            assert b'"heard_again"' in os.read(reading, 1 << 20)
    finally:
        os.close(reading)
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()


@pytest.mark.parametrize("configured", [False, True])
def test_a_program_that_uses_the_client_keeps_its_standard_output(configured: bool) -> None:
    lines = [
        "import structlog, sys",
        "from worker import logs",
        "log = logs.get(field=7)",
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory())" * configured,
        "log.info('told', more=8)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    written, silent = (done.stdout, done.stderr) if configured else (done.stderr, done.stdout)
    assert silent == ""
    for word in ("told", "field", "7", "more", "8"):
        assert word in written
