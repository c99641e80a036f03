"""Recording: every event goes to the file at once, and a client that records its own calls."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from schemas.model import Closed
from schemas.results import Result
from tests.nemesis.history import events
from tests.nemesis.history.events import Event, Json
from worker.client import Authorization, CallTimeout, Client, new_command_id
from worker.client.errors import Answer, Refused


class Recorder:
    """Appends events to a history's file.

    Attributes:
        path: The file.
        calls: How many calls were made so far.
    """

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = path
        self.clock_ns = clock_ns
        self.calls = 0
        self._numbers = itertools.count(1)
        self._file = path.open("w", buffering=1 << 16)

    def add(self, event: Event) -> None:
        self._file.write(events.line(event))

    def called(
        self,
        who: str,
        plane: str,
        verb: str,
        key: Sequence[str],
        body: Json,
        command_id: str,
    ) -> int:
        """A call begins; its number."""
        call = self.calls = next(self._numbers)
        self.add(
            events.Called(
                at_ns=self.clock_ns(),
                call=call,
                who=who,
                plane=plane,
                verb=verb,
                key=tuple(key),
                body=body,
                command_id=command_id,
            )
        )
        return call

    def injected(
        self,
        fault: str,
        target: str,
        phase: Literal["begin", "end", "skipped", "note"],
        note: str = "",
    ) -> None:
        self.add(
            events.Injected(
                at_ns=self.clock_ns(), fault=fault, target=target, phase=phase, note=note
            )
        )
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class RecordedClient(Client):
    """A client of ours that records what it sends and what it is told."""

    def __init__(self, recorder: Recorder, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = recorder
        self._last_call = 0

    @property
    def who(self) -> str:
        return f"{self.speaker.principal}.{self.speaker.uid}"

    async def send(
        self,
        plane: str,
        verb: str,
        key: Sequence[str],
        body: Closed | Mapping[str, Any],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        recorder = self._recorder
        command_id = command_id or new_command_id()
        value = body.to_object() if isinstance(body, Closed) else {"v": 1, **body}
        call = recorder.called(self.who, plane, verb, key, value, command_id)
        result: Result | None = None
        stored, why = False, "cancelled"
        try:
            result = await super().send(
                plane, verb, key, body, command_id=command_id, timeout_ms=timeout_ms
            )
        except CallTimeout as timeout:
            stored, why = timeout.stored, "timeout"
            raise
        except Exception as error:
            why = type(error).__name__
            raise
        finally:
            recorder.add(
                events.Answered(
                    at_ns=recorder.clock_ns(),
                    call=call,
                    result=None if result is None else result.to_object(),
                    stored=stored,
                    why="" if result is not None else why,
                )
            )
        return result

    async def query(
        self,
        plane: str,
        name: str,
        body: Closed | Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Answer:
        began_ns = self._recorder.clock_ns()
        data: Json | None = None
        code = ""
        try:
            answer = await super().query(plane, name, body, timeout_ms=timeout_ms)
            data = answer.data
        except Refused as refused:
            code = str(refused.code)
            raise
        finally:
            if data is not None or code:
                value = body.to_object() if isinstance(body, Closed) else {"v": 1, **body}
                self._recorder.add(
                    events.Asked(
                        at_ns=began_ns, plane=plane, name=name, body=value, data=data, code=code
                    )
                )
        return answer

    async def authorize(
        self, user: str, *, amount: int, grant_expires_at_ms: int, command_id: str, timeout_ms: int
    ) -> Authorization:
        """Ask the send gate, and record what was concluded.

        The call is known by its command id and by being the last one with it before this.
        """
        before = self._recorder.calls
        told = await self.cap.authorize(
            user,
            amount=amount,
            grant_expires_at_ms=grant_expires_at_ms,
            command_id=command_id,
            timeout_ms=timeout_ms,
        )
        self._recorder.add(
            events.Permitted(
                at_ns=self._recorder.clock_ns(),
                call=before + 1,
                user=user,
                allowed=told.allowed,
                ends_at_ns=int(told.ends_at_s * 1e9) if told.allowed else 0,
            )
        )
        return told
