"""``tidegate status``: whether a worker serves a space, and how it is."""

import json

import typer

from schemas.strict_json import JsonObject
from worker.cli import common
from worker.cli.common import AsOption, ConfigOption, JsonFlag, NatsOption, SpaceOption
from worker.cli.instants import show_duration, show_instant


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog="Exit codes: 0 ready, 1 not ready or nobody there.")
    def status(
        space: SpaceOption = None,
        as_: AsOption = None,
        timeout: common.TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Show whether a worker serves a space, which one, and how it is."""
        session = common.session(
            config=config, nats=nats, space=space, as_=as_, as_json=as_json, timeout=timeout
        )

        async def work() -> JsonObject:
            async with session.client() as client:
                return await client.status()

        found = common.run_async(work())
        common.emit(found, as_json, _lines(found))
        raise typer.Exit(common.OK if found["ready"] else common.FAILED)


def _lines(found: JsonObject) -> list[str]:
    worker, broker = found["worker"], found["broker"]
    up_ms = found["at_ms"] - worker["started_at_ms"]
    rows = [
        ("space", found["space"]),
        ("ready", "yes" if found["ready"] else "no"),
        *(("because", reason) for reason in found["reasons"]),
        ("worker", f"{worker['id']}, version {worker['version']}, pid {worker['pid']}"),
        ("since", f"{show_instant(worker['started_at_ms'])} ({show_duration(up_ms)})"),
        ("broker", f"nats-server {broker['version']}, {broker['reconnects']} reconnects"),
    ]
    for name, shown in found["planes"].items():
        rows += [(f"{name}.{key}", _plain(value)) for key, value in shown.items()]
    return common.columns(rows)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
