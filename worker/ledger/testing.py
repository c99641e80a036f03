"""Drives the real fold over a real file without a broker, for tests and model tests of planes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas import headers, strict_json, subjects
from schemas.names import Names
from schemas.subjects import Speaker
from worker.ledger import digest, store
from worker.ledger.fold import Batch, Fold
from worker.ledger.plane import Plane
from worker.ledger.rulesets import KNOWN, NEWEST
from worker.ledger.tx import Kind, OutRow

NAMES = Names("tidegate", "test")
UID = "a" * 26


@dataclass(frozen=True, slots=True)
class Logged:
    """A message as the log would hold it."""

    subject: str
    seq: int
    time_ms: int
    headers: Mapping[str, str]
    data: bytes


@dataclass
class FoldDriver:
    """One ledger file and the fold over it, fed by hand.

    Sequences follow each other by themselves; instants are given.

    Attributes:
        path: The file.
        planes: Planes to fold.
        rulesets: Rulesets it can fold under.
        ruleset: In force at the first command, as if the log had activated it before.
        said: Every outbox row so far, in order, less results.
        log: Every message fed so far, to replay it elsewhere.
    """

    path: Path
    planes: Sequence[Plane]
    names: Names = NAMES
    rulesets: frozenset[int] = KNOWN
    ruleset: int = NEWEST
    said: list[OutRow] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the file, as a worker that starts does."""
        self.db = store.open_ledger(self.path, self.names, self.planes)
        self.db.execute("UPDATE fold SET ruleset = ? WHERE ordinal = 0", (self.ruleset,))
        self.fold = Fold(self.db, self.names, self.planes, rulesets=self.rulesets)

    def close(self) -> None:
        """Close the file; what is committed stays."""
        self.db.close()

    def reopen(self) -> None:
        """Close and open again, as after a restart."""
        self.close()
        self.open()

    def message(
        self,
        principal: str,
        plane: str,
        verb: str,
        *key: str,
        body: Mapping[str, Any] | bytes | None = None,
        at_ms: int,
        command_id: str | None = None,
        uid: str = UID,
    ) -> Logged:
        """Make the next message of the log; ``v`` is put into a body that is a mapping."""
        raw = body if isinstance(body, bytes) else strict_json.dumps({"v": 1, **(body or {})})
        return Logged(
            subject=subjects.command(self.names, Speaker(principal, uid), plane, verb, *key),
            seq=(self.log[-1].seq if self.log else self.fold.state.watermark) + 1,
            time_ms=at_ms,
            headers={} if command_id is None else {headers.COMMAND: command_id},
            data=raw,
        )

    def send(
        self,
        principal: str,
        plane: str,
        verb: str,
        *key: str,
        body: Mapping[str, Any] | bytes | None = None,
        at_ms: int,
        command_id: str | None = None,
        uid: str = UID,
    ) -> dict[str, Any]:
        """Fold one command in a batch of its own and return its result's JSON."""
        made = self.message(
            principal, plane, verb, *key, body=body, at_ms=at_ms, command_id=command_id, uid=uid
        )
        (result,) = self.feed([made])
        return result

    def tick(self, *, at_ms: int) -> None:
        """Fold one ``sys.tick``."""
        self.feed([self.message("_worker", "sys", "tick", at_ms=at_ms)])

    def feed(self, messages: Sequence[Logged]) -> list[dict[str, Any]]:
        """Fold messages in one batch and return the results' JSON, in order."""
        batch = self.fold.apply_batch(messages)
        self.log.extend(messages)
        return self._results(batch)

    def digest(self) -> digest.Digest:
        """The digest of the logical state."""
        return digest.compute(self.db, self.planes)

    def _results(self, batch: Batch) -> list[dict[str, Any]]:
        results = []
        for row in batch.rows:
            if row.kind is Kind.RESULT:
                results.append(json.loads(row.body))
            else:
                self.said.append(row)
        return results
