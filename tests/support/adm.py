"""The admission plane as tests drive it: the real fold over a real file, instants given by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import strict_json
from schemas.results import Accepted, Verdict
from schemas.subjects import Speaker
from worker.admission.plane import PLANE
from worker.admission.queries import payload_place
from worker.ledger.plane import View
from worker.ledger.rulesets import NEWEST
from worker.ledger.testing import NAMES, FoldDriver
from worker.ledger.tx import Kind, OutRow

Json = dict[str, Any]

T0 = 1_700_000_000_000
"""Where log time begins in tests."""

CONNECTOR = "conn"
UID = "a" * 26
UID2 = "b" * 26
OPERATOR = "_op"
WORKER = "_worker"
HOST = "host-1"
KEY = b"k" * 32


def process(pid: int = 10, *, pgrp: int | None = None, host: str = HOST, **other: Any) -> Json:
    """The identity of a process; by default it leads its own group."""
    return {
        "host": host,
        "boot_id": "boot-1",
        "pid": pid,
        "start_ticks": 1_000 + pid,
        "pid_ns": 4_026_531_836,
        "ppid": 1,
        "pgrp": pid if pgrp is None else pgrp,
        "session": pid,
        **other,
    }


CONNECTOR_PROCESS = process(10)
CHILD_PROCESS = process(20)


class Admission:
    """One ledger with the admission plane alone.

    Attributes:
        driver: The fold and its file.
        now_ms: Instant of the next command, unless it says otherwise.
    """

    def __init__(self, folder: Path, *, ruleset: int = NEWEST, **policy: Any) -> None:
        self.driver = FoldDriver(folder / "ledger.db", [PLANE], ruleset=ruleset)
        self.now_ms = T0
        if policy:
            assert self.send("policy", by=OPERATOR, epoch=1, **policy)["outcome"] == "claimed"

    def close(self) -> None:
        self.driver.close()

    def send(
        self,
        verb: str,
        request: str | None = None,
        *,
        by: str = CONNECTOR,
        uid: str = UID,
        at: int | None = None,
        command_id: str | None = None,
        plane: str = "adm",
        **body: Any,
    ) -> Json:
        """Fold one command at an instant (by default now) and return its result."""
        if at is not None:
            self.now_ms = max(self.now_ms, at)
        return self.driver.send(
            by,
            plane,
            verb,
            *(() if request is None else (request,)),
            body=body,
            at_ms=self.now_ms if at is None else at,
            command_id=command_id,
            uid=uid,
        )

    def enqueue(
        self,
        request: str,
        agent: str = "agent-1",
        *,
        provider: str = "acme",
        model: str = "m1",
        uid: str = UID,
        by: str = CONNECTOR,
        at: int | None = None,
        **body: Any,
    ) -> Json:
        """Enqueue a turn."""
        return self.send(
            "enqueue",
            request,
            uid=uid,
            by=by,
            at=at,
            session_id=f"session-of-{agent}",
            agent_id=agent,
            fingerprint=f"print-of-{request}",
            provider=provider,
            model=model,
            **body,
        )

    def tick(self, at: int | None = None) -> None:
        """Let time pass to an instant."""
        if at is not None:
            self.now_ms = max(self.now_ms, at)
        self.driver.tick(at_ms=self.now_ms)

    def turn(self, request: str) -> Json:
        """The turn as ``adm.request`` shows it."""
        answer = self.query("request", request_id=request)
        assert isinstance(answer, Accepted), answer
        return answer.data

    def state(self, request: str) -> str:
        """Where a turn is."""
        return str(self.turn(request)["state"])

    def fence(self, request: str) -> Json:
        """The fence fields that a body carries for a turn that holds a seat."""
        lease = self.turn(request)["lease"]
        return {"lease_id": lease["lease_id"], "generation": lease["generation"]}

    def step(self, verb: str, request: str, **body: Any) -> Json:
        """A verb under the turn's own fence."""
        return self.send(verb, request, **self.fence(request), **body)

    def intend(self, request: str, *, channel: str = "pty", **body: Any) -> Json:
        """The intent of a turn, with a connector and a child that leads its own group."""
        identity: Json = {"connector": CONNECTOR_PROCESS}
        if channel != "http":
            identity["child"] = CHILD_PROCESS
        return self.step("intent", request, channel=channel, identity=identity, **body)

    def bring_to(self, state: str, request: str, *, channel: str = "pty", uid: str = UID) -> None:
        """Enqueue a push turn and lead it to a state; capacity must be free."""
        self.enqueue(request, agent=f"agent-of-{request}", uid=uid, identity=CONNECTOR_PROCESS)
        steps = {
            "admitted": (),
            "starting": ("start",),
            "dispatch_intent": ("start", "intent"),
            "active": ("start", "intent", "active"),
            "dispatch_ambiguous": ("start", "intent", "ambiguous"),
            "recovery_required": ("start", "intent", "recover"),
            "completed": ("start", "intent", "active", "complete"),
        }[state]
        for verb in steps:
            if verb == "intent":
                result = self.intend(request, channel=channel, uid=uid)
            else:
                more = {"outcome": "completed"} if verb == "complete" else {}
                result = self.step(verb, request, uid=uid, **more)
            assert result["status"] == "ok", result
        assert self.state(request) == state

    def evidence(
        self,
        request: str,
        *,
        connector: str = "gone",
        child: str | None = None,
        group: str = "none",
        by: str = WORKER,
        **changes: Any,
    ) -> Json:
        """What an observer of the turn's own host saw, under the turn's own fence."""
        turn = self.turn(request)
        body: Json = {
            "request_id": request,
            "host": HOST,
            "connector": CONNECTOR_PROCESS,
            "connector_state": connector,
            "group_state": group,
            "observed_at_ms": self.now_ms,
        }
        if child is not None:
            body |= {"child": CHILD_PROCESS, "child_state": child}
        if "lease" in turn:
            lease = turn["lease"]
            body["fence"] = {
                "lease_id": lease["lease_id"],
                "request_id": request,
                "generation": lease["generation"],
                "owner": lease["owner"],
            }
        return self.send("evidence", plane="sys", by=by, **{**body, **changes})

    def liveness(self, state: str, seen_at_ms: int, *, uid: str = UID, by: str = CONNECTOR) -> Json:
        """What the worker says of an owner's beats."""
        owner = {"principal": by, "uid": uid}
        return self.send(
            "liveness", plane="sys", by=WORKER, owner=owner, state=state, seen_at_ms=seen_at_ms
        )

    def policy(self) -> Json:
        """The policy as ``adm.policy`` shows it."""
        answer = self.query("policy")
        assert isinstance(answer, Accepted)
        return answer.data

    def view(self, *, by: str = CONNECTOR, uid: str = UID) -> View:
        """What a query sees now."""
        state = self.driver.fold.state
        return View(
            db=self.driver.db,
            names=NAMES,
            now_ms=self.now_ms,
            epoch=state.epoch,
            watermark=state.watermark,
            ruleset=state.ruleset,
            speaker=Speaker(by, uid),
            space_key=KEY,
        )

    def query(self, name: str, *, by: str = CONNECTOR, uid: str = UID, **body: Any) -> Verdict:
        """Ask as a principal."""
        handler = payload_place if name == "payload" else PLANE.queries[name]
        return handler(self.view(by=by, uid=uid), strict_json.dumps({"v": 1, **body}))

    def answer(self, name: str, **body: Any) -> Json:
        """The data of a query that is answered."""
        verdict = self.query(name, **body)
        assert isinstance(verdict, Accepted), verdict
        return verdict.data

    def said(self, kind: Kind, containing: str = "") -> list[OutRow]:
        """Outbox rows of a kind whose subject holds a text, in order."""
        return [row for row in self.driver.said if row.kind is kind and containing in row.subject]

    def grants(self) -> list[str]:
        """Request ids in the order in which seats were pushed."""
        return [json.loads(row.body)["request_id"] for row in self.said(Kind.GRANT)]

    def lost(self) -> list[Json]:
        """Every ``lease_lost`` message, in order."""
        return [json.loads(row.body) for row in self.said(Kind.MESSAGE, ".lease_lost.")]

    def events(self) -> list[tuple[str, str | None, str | None]]:
        """Every row of the journal as (kind, from, to)."""
        events: list[Mapping[str, Any]] = self.answer("events", limit=1000)["events"]
        return [(event["kind"], event.get("from"), event.get("to")) for event in events]


def fold_again(driver: FoldDriver, folder: Path) -> str:
    """Replay a driver's whole log into an empty file and return the digest it leads to."""
    again = FoldDriver(folder / "again.db", [PLANE], ruleset=driver.ruleset)
    try:
        again.feed(driver.log)
        return again.digest().whole
    finally:
        again.close()
