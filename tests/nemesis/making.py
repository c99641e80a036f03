"""Histories made by hand: a small platform on paper, whose every promise can be broken."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.nemesis.history import events as ev
from tests.nemesis.history.events import Event, Json
from tests.nemesis.history.past import LEDGER

UID = "u" * 26
START_MS = 1_800_000_000_000
RUNNER, AGENT, PERSON, OPERATOR = (
    f"{principal}.{UID}" for principal in ("runner", "agent", "person", "_op")
)


@dataclass
class Paper:
    """Writes a history, one step a millisecond, both clocks together.

    Attributes:
        events: What happened.
        now_ms: The broker's time.
    """

    events: list[Event] = field(default_factory=list)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._seqs = {kind: itertools.count(1) for kind in ("log", "cmd", "res", "epf", "records")}
        self._journal = itertools.count(1)
        self.events.append(ev.Began(at_ns=self.ns, wall_ns=self.ns, seed=0, space="main", seats=1))

    @property
    def ns(self) -> int:
        return self.now_ms * 1_000_000

    def tick(self, ms: int = 1) -> None:
        self.now_ms += ms

    def stored(self, kind: Any, subject: str, body: Json, command_id: str = "") -> int:
        seq = next(self._seqs[kind])
        self.events.append(
            ev.Stored(
                kind=kind,
                seq=seq,
                time_ns=self.ns,
                subject=subject,
                command_id=command_id,
                body=body,
            )
        )
        return seq

    def call(
        self, who: str, plane: str, verb: str, key: str, body: Json, command_id: str = ""
    ) -> int:
        """A call begins; its number."""
        self.tick()
        number = next(self._numbers)
        self.events.append(
            ev.Called(
                at_ns=self.ns,
                call=number,
                who=who,
                plane=plane,
                verb=verb,
                key=tuple(key.split(".")) if key else (),
                body=body,
                command_id=command_id or f"command-{number:08d}",
            )
        )
        return number

    def _called(self, number: int) -> ev.Called:
        return next(e for e in self.events if isinstance(e, ev.Called) and e.call == number)

    def store(self, number: int) -> int:
        """The broker stores a call's command; its sequence."""
        self.tick()
        called = self._called(number)
        kind = "log" if called.plane in LEDGER else "cmd"
        subject = ".".join(
            ("tidegate.main.cmd", called.who, called.plane, called.verb, *called.key)
        )
        return self.stored(kind, subject, called.body, called.command_id)

    def result(self, number: int, seq: int, outcome: str, status: str = "ok", **data: Any) -> Json:
        """A worker stores a command's result."""
        called = self._called(number)
        ledger = called.plane in LEDGER
        said: Json = {
            "v": 1,
            "command_id": called.command_id,
            "id": f"1-{seq}" if ledger else f"{START_MS}-{seq}",
            "status": status,
            "outcome": outcome,
            "data": data,
        }
        if status != "ok":
            code = "not-found" if outcome == "not-found" else "conflict"
            said["error"] = {"code": code, "reason": outcome}
        self.tick()
        subject = f"tidegate.main.res.{called.who}.{called.plane}.{called.verb}.{said['id']}"
        self.stored("res", subject, said)
        return said

    def answer(self, number: int, result: Json | None, stored: bool = False) -> None:
        """A call ends."""
        self.tick()
        why = "" if result is not None else "timeout"
        self.events.append(
            ev.Answered(at_ns=self.ns, call=number, result=result, stored=stored, why=why)
        )

    def do(
        self,
        who: str,
        plane: str,
        verb: str,
        key: str,
        body: Json,
        outcome: str,
        status: str = "ok",
        command_id: str = "",
        **data: Any,
    ) -> int:
        """A whole call, from the beginning to its answer; its sequence."""
        number = self.call(who, plane, verb, key, body, command_id)
        seq = self.store(number)
        self.answer(number, self.result(number, seq, outcome, status, **data))
        return seq

    # Checkpoints.

    def mint(self, token: str, in_ms: int) -> int:
        """A checkpoint is minted; its deadline."""
        deadline = self.now_ms + in_ms
        view: Json = {"state": "waiting", "generation": 1, "deadline_at_ms": deadline}
        body: Json = {"deadline_at_ms": deadline}
        self.do(RUNNER, "cp", "mint", f"runs.{token}", body, "minted", **view)
        return deadline

    def settle(self, token: str, state: str, deadline: int, at_ms: int, **fact: Any) -> None:
        """The status, its fact, and what observers are told; ``fact`` changes the fact."""
        holder = {"id": "runner", "lifecycleUid": UID}
        resumed = state == "resumed"
        status: Json = {
            "state": state,
            "deadlineGeneration": 1,
            "deadline": deadline,
            "settledGeneration": 1,
            "settledTs": at_ms,
        }
        said: Json = {"v": 1, "token": token, "settle": state, "generation": 1, "ts": at_ms}
        if resumed:
            status["settledHolder"] = said["holder"] = holder
        self.stored("records", f"$KV.tidegate_records_main.cp.runs.{token}.status", status)
        self.stored("epf", f"tidegate.main.epf.runs.cp.{token}", {**said, **fact})
        self.observe(token, state)

    def observe(self, token: str, state: str) -> None:
        subject = f"tidegate.main.fact.cp.{state}.runs.{token}.1"
        self.stored("res", subject, {"v": 1, "generation": 1})

    def resume(self, token: str, deadline: int, command_id: str = "") -> int:
        """A resume that wins; when it settled."""
        at_ms = self.now_ms + 1
        view: Json = {"state": "resumed", "generation": 1, "settled_at_ms": at_ms}
        self.do(RUNNER, "cp", "resume", f"runs.{token}", {}, "resumed", "ok", command_id, **view)
        return at_ms

    # Caps.

    def confirmed(self, key: str, second: int, cap: int = 10, generation: int = 0) -> None:
        """A cap is reserved and confirmed."""
        body: Json = {"latest_expires_at_ms": second, "cap": cap}
        view: Json = {"expires_at_ms": second, "cap": cap, "generation": generation}
        self.do(AGENT, "cap", "reserve", f"ann.{key}", body, "reserved", **view)
        confirm: Json = {"grant_expires_at_ms": second}
        self.do(AGENT, "cap", "confirm", f"ann.{key}", confirm, "confirmed", **view)

    def stop(self, generation: int, ended: int | None = None) -> int:
        """A Stop; its sequence."""
        data: Json = {"generation": generation, "quiet_after_ms": self.now_ms + 2_000}
        if ended is not None:
            data["expires_at_ms"] = ended
        return self.do(PERSON, "cap", "stop", "ann", {}, "stopped", **data)

    def permit(self, number: int, allowed: bool, for_ms: int = 2_000) -> None:
        ends_ns = self.ns + for_ms * 1_000_000 if allowed else 0
        self.events.append(
            ev.Permitted(
                at_ns=self.ns, call=number, user="ann", allowed=allowed, ends_at_ns=ends_ns
            )
        )

    def authorize(self, second: int, amount: int, outcome: str = "allowed") -> int:
        """An authorization, answered and believed; its call."""
        number = self.call(
            AGENT, "cap", "authorize", "ann", {"amount": amount, "grant_expires_at_ms": second}
        )
        allowed = outcome == "allowed"
        seq = self.store(number)
        self.answer(number, self.result(number, seq, outcome, "ok" if allowed else "refused"))
        self.permit(number, allowed)
        return number

    # Admission.

    def journal(self, seq: int, turn: str, kind: str, before: str | None, after: str) -> None:
        place = next(self._journal)
        body: Json = {"v": 1, "sequence": place, "kind": f"request_{kind}", "to": after}
        body |= {"request": turn} | ({"from": before} if before else {})
        subject = f"tidegate.main.fact.adm.journal.request_{kind}.1-{seq}-{place}"
        self.stored("res", subject, body)

    def seats(self, limit: int) -> None:
        self.do(OPERATOR, "adm", "drain", "", {"to": limit}, "drained", seat_limit=limit)

    def admitted(self, request: str, generation: int = 1, who: str = AGENT) -> Json:
        """A turn is enqueued and gets its seat at once; its fence."""
        seq = self.do(who, "adm", "enqueue", request, {}, "queued")
        if generation == 1:
            self.journal(seq, request, "enqueued", None, "queued")
        self.journal(seq, request, "admitted", "queued", "admitted")
        fence: Json = {"lease_id": f"1-{seq}-{generation}", "generation": generation}
        subject = f"tidegate.main.grant.{who}.{request}.{generation}"
        self.stored("res", subject, {"v": 1, "request_id": request, **fence})
        return fence

    def act(self, verb: str, request: str, fence: Json, who: str = AGENT) -> None:
        """A fenced verb is accepted."""
        moves = {
            "start": ("starting", "admitted", "starting"),
            "intent": ("dispatch_intent", "starting", "dispatch_intent"),
            "active": ("active", "dispatch_intent", "active"),
            "complete": ("provider_terminal", "active", "completed"),
        }
        seq = self.do(who, "adm", verb, request, fence, verb)
        self.journal(seq, request, *moves[verb])

    def written(self, request: str, generation: int = 1, who: str = AGENT) -> None:
        self.tick()
        self.events.append(
            ev.Written(at_ns=self.ns, who=who, request_id=request, generation=generation)
        )

    def asked(self, plane: str, name: str, body: Json, data: Json | None, code: str = "") -> None:
        """A query is asked, and answered or refused."""
        self.tick()
        self.events.append(
            ev.Asked(at_ns=self.ns, plane=plane, name=name, body=body, data=data, code=code)
        )
        self.tick()

    def replica(self, name: str, watermark: int, digest: str) -> None:
        self.events.append(ev.Replica(name=name, watermark=watermark, digest=digest))

    def end(self) -> list[Event]:
        self.tick(60_000)
        return [*self.events, ev.Ended(at_ns=self.ns, now_ms=self.now_ms)]
