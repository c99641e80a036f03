"""The private parts of nats-py that we replace or rely on still have the shape we know."""

import inspect
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from worker.bus.wire import WireClient, WireParser

REPLACED = {
    "_select_next_server": ("self",),
    "_process_info": ("self", "info", "initial_connection"),
    "_read_loop": ("self",),
    "_process_err": ("self", "err_msg"),
    "_process_op_err": ("self", "e"),
    "_process_pong": ("self",),
    "_send_ping": ("self", "future"),
    "_send_command": ("self", "cmd", "priority"),
    "_flush_pending": ("self", "force_flush"),
}
CALLED = {
    "_connect_to_server": ("self", "s"),
    "_process_ping": ("self",),
    "_process_connect_init": ("self",),
    "_connect_command": ("self",),
}
FIELDS = (
    "_ps",
    "_transport",
    "_subs",
    "_pongs",
    "_pings_outstanding",
    "_status",
    "_server_pool",
    "_server_info",
    "_current_server",
    "_reading_task",
    "_ping_interval_task",
    "_flusher_task",
    "_public_nkey",
    "_auth_configured",
)


@pytest.mark.parametrize(("name", "parameters"), [*REPLACED.items(), *CALLED.items()])
def test_the_method_takes_what_it_took(name: str, parameters: tuple[str, ...]) -> None:
    method = getattr(Client, name)
    assert tuple(inspect.signature(method).parameters) == parameters
    assert inspect.iscoroutinefunction(method) == (name != "_connect_command")


@pytest.mark.parametrize("name", REPLACED)
def test_the_method_is_replaced_by_one_that_takes_as_much(name: str) -> None:
    ours = getattr(WireClient, name)
    assert ours is not getattr(Client, name)
    assert len(inspect.signature(ours).parameters) == len(REPLACED[name])


@pytest.mark.parametrize("name", FIELDS)
def test_the_field_exists(name: str) -> None:
    assert hasattr(Client(), name)


def test_the_parser_is_made_of_reset_and_parse() -> None:
    assert tuple(inspect.signature(Parser.parse).parameters) == ("self", "data")
    assert tuple(inspect.signature(Parser.reset).parameters) == ("self",)
    assert issubclass(WireParser, Parser)


def test_the_handshake_reads_info_before_it_writes() -> None:
    source = inspect.getsource(Client._process_connect_init)
    assert source.index("_process_info(") < source.index("connect_tls(", source.index("readline"))
    assert source.index("_process_info(") < source.index("_connect_command()")


def test_the_read_loop_feeds_the_parser_we_put_in() -> None:
    assert "self._ps" in inspect.getsource(WireClient._read_loop)
    transport: Any = TcpTransport
    assert "_io_writer" in vars(transport())
