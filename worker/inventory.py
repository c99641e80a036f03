"""A space's streams under a running worker: still there, still right, and still the same ones.

At its start a worker proves its streams. Afterwards somebody may delete one, edit one, or delete it
and make it anew, and what used it would go on as if it had held nothing. A stream is the same one
if the broker created it at the same instant; the data directory remembers when that was.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from schemas.names import Names
from schemas.strict_json import JsonObject
from worker import files, logs
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.topology import Severity, Survey
from worker.queries import QueryHandler
from worker.settings import Settings
from worker.spaces import remembered_id, space_dir, topology_of

LOOK_S: Final = 10.0
FILE_NAME: Final = "streams.json"
CONFIRM: Final = "tidegate setup --confirm-streams"

log = logs.get()


class Inventory:
    """Looks at a space's streams every ten seconds, and says what is wrong with them.

    Args:
        conn: A connection in the workers' account.
        names: The space.
        settings: The worker's settings.
    """

    name = "streams"

    def __init__(self, conn: Connection, names: Names, settings: Settings) -> None:
        self._names = names
        self._settings = settings
        self._topology = topology_of(conn, names, settings)
        self._stopping = asyncio.Event()
        self._wrong: list[str] = []

    async def start(self) -> None:
        """Look once, and remember streams that were never seen before.

        Raises:
            BusError: The broker does not answer.
        """
        await self._look()

    async def run(self) -> None:
        """Look again and again, until stopped."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
                    return
            try:
                await self._look()
            except (BusError, OSError) as error:
                log.debug("streams_not_looked_at", space=self._names.space, error=error)

    async def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def not_ready(self) -> list[str]:
        """What is wrong with the streams."""
        return list(self._wrong)

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """None."""
        return {}

    def status(self) -> JsonObject:
        """What ``sys.status`` shows."""
        return {"wrong": list(self._wrong)}

    async def _look(self) -> None:
        survey = await self._topology.survey()
        known = remembered_id(self._settings.data_dir, self._names.space)
        wrong = [f"the stream {stream} is gone" for stream in survey.missing]
        wrong += [
            str(one)
            for one in self._topology.compare(survey, known)
            if one.severity is Severity.DANGER and one.what not in survey.missing
        ]
        wrong += [
            f"the stream {stream} was deleted and made anew, what it held is gone: "
            f"see why, then {CONFIRM}"
            for stream in made_anew(self._settings.data_dir, self._names, survey)
        ]
        for sentence in wrong:
            if sentence not in self._wrong:
                log.error("stream_wrong", space=self._names.space, what=sentence)
        self._wrong = wrong
        path = _path(self._settings.data_dir, self._names)
        before = _read(path)
        now = {stream: info.created for stream, info in survey.found.items()} | before
        if now != before:
            try:
                _write(path, now)
            except OSError as error:
                # As on a full disk; it is noted at a later look.
                log.warning("streams_not_noted", path=str(path), error=error.strerror)


def made_anew(data_dir: Path, names: Names, survey: Survey) -> list[str]:
    """Streams that are other ones than this data directory remembers."""
    known = _read(_path(data_dir, names))
    return [
        stream
        for stream, info in survey.found.items()
        if stream in known and known[stream] != info.created
    ]


def confirm(data_dir: Path, names: Names, survey: Survey) -> list[str]:
    """Remember the streams as they are now; returns those that had been made anew."""
    anew = made_anew(data_dir, names, survey)
    path = _path(data_dir, names)
    files.private_dir(path.parent)
    _write(path, _read(path) | {stream: info.created for stream, info in survey.found.items()})
    return anew


def _path(data_dir: Path, names: Names) -> Path:
    return space_dir(data_dir, names.space) / FILE_NAME


def _read(path: Path) -> dict[str, str]:
    try:
        return {str(k): str(v) for k, v in json.loads(path.read_bytes())["streams"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        log.warning("streams_file_unreadable", path=str(path))
        return {}


def _write(path: Path, streams: Mapping[str, str]) -> None:
    content = {"v": 1, "streams": dict(streams)}
    files.replace_private(path, (json.dumps(content, indent=1) + "\n").encode())
