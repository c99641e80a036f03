"""The open transaction that a transition works in, and what it may say to the outside."""

import sqlite3
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from schemas import headers, strict_json, subjects
from schemas.names import Names
from schemas.results import Accepted
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.ledger import keyed


class Kind(IntEnum):
    """What an outbox row is; stored as its number."""

    RESULT = 1
    FACT = 2
    GRANT = 3
    MESSAGE = 4
    DELETE = 5
    """Deletes one revision of a sealed payload instead of publishing to ``RES``."""

    KEYED = 6
    """A fact about something that must not be named outside: ``keyed.leave`` makes its body."""


MARK_TTL: Final = "168h"
"""How long a destroyed prompt's mark stays, so that a put which comes late is refused. The turn's
own row forbids its delivery for ever."""


class OutRow(NamedTuple):
    """One message the fold owes to the outside; a row of the table ``outbox``.

    Attributes:
        id: Its place among all rows of this replica; ids may have gaps.
        seq: Sequence of the command that said it.
        at_ms: Log time.
        kind: What it is.
        expect: Last sequence its subject must have: 0 (it is created, never overwritten), or a
            payload's revision.
        subject: Where it goes.
        body: Its bytes.
        trace: W3C trace context that it carries on, if it carries one.
    """

    id: int
    seq: int
    at_ms: int
    kind: Kind
    expect: int
    subject: str
    body: bytes
    trace: str | None = None

    @property
    def headers(self) -> dict[str, str] | None:
        """Headers it is published with."""
        if self.kind is Kind.DELETE:
            return {headers.KV_OPERATION: "DEL", headers.TTL: MARK_TTL}
        return None if self.trace is None else {headers.TRACEPARENT: self.trace}


Origin = tuple[str, str | None]
"""What a row is about: what the key of a command calls it (a request id, a user), and the trace
context of the command that it came from, if that had one.

A row carries on the trace context of its command, if the command names what the row is about;
whatever befalls a thing by time, or in passing, belongs to the command that the thing came from.
"""


class Outbox:
    """Collects what one batch says, in order.

    Attributes:
        rows: The rows of the open batch, not yet written.
        next_id: Id of the next row.
        muted: Whether what is said now is too old for anyone to hear; deletions still happen.
    """

    __slots__ = ("muted", "next_id", "rows")

    def __init__(self) -> None:
        self.rows: list[OutRow] = []
        self.next_id = 1
        self.muted = False

    def say(
        self,
        seq: int,
        at_ms: int,
        kind: Kind,
        subject: str,
        body: bytes,
        trace: str | None,
        expect: int = 0,
    ) -> None:
        """Add a row."""
        if self.muted and kind is not Kind.DELETE:
            return
        self.rows.append(OutRow(self.next_id, seq, at_ms, kind, expect, subject, body, trace))
        self.next_id += 1


@dataclass(slots=True)
class Tx:
    """One command inside the batch's transaction.

    Everything a transition may read is here or in the tables; it reads no clock, no randomness and
    no environment, so that every replica derives the same rows and the same messages.

    Attributes:
        db: The connection; an open transaction, inside this command's savepoint.
        names: The space.
        epoch: The log's epoch.
        seq: The command's sequence in the log.
        now_ms: Log time: the latest broker timestamp seen so far, this command's included.
        speaker: Who speaks, from the subject.
        command_id: The client's id of this command, or one derived from epoch and sequence.
        ruleset: The ruleset in force.
        outbox: Where messages are said.
        key: What follows the verb in the command's subject, token by token.
        trace: The command's W3C trace context, if it has a valid one.
        before: What this very command was answered before, if it comes again and its verb is
            judged anew (``schemas.repeats``): an ``ok``, which permits nothing by itself.
        stamp_ms: The broker's timestamp on this command alone.
    """

    db: sqlite3.Connection
    names: Names
    epoch: int
    seq: int
    now_ms: int
    speaker: Speaker
    command_id: str
    ruleset: int
    outbox: Outbox
    key: tuple[str, ...] = ()
    trace: str | None = None
    before: Accepted | None = None
    stamp_ms: int = 0
    _said: int = 0

    @property
    def result_id(self) -> str:
        """``<epoch>-<seq>``: id of this command's result."""
        return f"{self.epoch}-{self.seq}"

    def fact(
        self,
        plane: str,
        kind: str,
        key: tuple[str, ...],
        body: JsonObject,
        about: Origin | None = None,
    ) -> None:
        """State a public fact: ``fact.<plane>.<kind>.<key…>.<epoch>-<seq>-<n>``.

        Args:
            plane: ``adm``, ``cap`` or ``sys``.
            kind: A stable word.
            key: Tokens of the subject that name what it is about.
            body: What is so; ``v`` and ``at_ms`` are put before it.
            about: What it is about, if that came to be by a command.
        """
        subject = subjects.ledger_fact(self.names, plane, kind, key, self._next_id())
        self._say(Kind.FACT, subject, self._body(body), self._trace(about))

    def keyed_fact(
        self,
        plane: str,
        kind: str,
        key: tuple[str, ...],
        body: JsonObject,
        about: Origin | None,
    ) -> None:
        """State a public fact about something that is not named in public.

        The fold holds no key, so the row holds the name; when it leaves, ``keyed.leave`` puts the
        name's HMAC under the space's key in its place.

        Args:
            plane: As for ``fact``.
            kind: As for ``fact``.
            key: As for ``fact``; the name must not be among its tokens.
            body: As for ``fact``.
            about: What the fact is about; ``None`` if it is about nothing in particular.
        """
        subject = subjects.ledger_fact(self.names, plane, kind, key, self._next_id())
        name = "" if about is None else about[0]
        self._say(Kind.KEYED, subject, self._body({**body, keyed.NAME: name}), self._trace(about))

    def grant(self, owner: Speaker, turn: Origin, generation: int, body: JsonObject) -> None:
        """Announce a seat to its owner: ``grant.<owner>.<request id>.<generation>``, created once.

        It carries on the trace context of the turn's own command, whichever one gave the seat.

        Args:
            owner: Who got it.
            turn: For which turn.
            generation: Of the lease.
            body: What the owner needs to know; ``v`` and ``at_ms`` are put before it.
        """
        subject = subjects.grant(self.names, owner, turn[0], generation)
        self._say(Kind.GRANT, subject, self._body(body), turn[1])

    def message(
        self, owner: Speaker, plane: str, kind: str, body: JsonObject, about: Origin
    ) -> None:
        """Tell one life of one principal something it did not ask for.

        It arrives among its results: ``res.<owner>.<plane>.<kind>.<epoch>-<seq>-<n>``.

        Args:
            owner: Whom.
            plane: ``adm`` or ``cap``.
            kind: A stable word that is no verb, such as ``lease_lost``.
            body: What; ``v`` and ``at_ms`` are put before it.
            about: What it is about.
        """
        subject = subjects.result(self.names, owner, plane, kind, self._next_id())
        self._say(Kind.MESSAGE, subject, self._body(body), self._trace(about))

    def delete_payload(self, key: str, revision: int) -> None:
        """Delete exactly this revision of a sealed payload, after the commit.

        Args:
            key: Its key in the payload bucket.
            revision: The revision that was enqueued; a later one is left alone.
        """
        self._say(Kind.DELETE, f"$KV.{self.names.payloads_bucket}.{key}", b"", None, revision)

    def _trace(self, about: Origin | None) -> str | None:
        if about is None or (self.trace is not None and about[0] in self.key):
            return self.trace
        return about[1]

    def _say(
        self, kind: Kind, subject: str, body: bytes, trace: str | None, expect: int = 0
    ) -> None:
        self.outbox.say(self.seq, self.now_ms, kind, subject, body, trace, expect)

    def _next_id(self) -> str:
        self._said += 1
        return f"{self.epoch}-{self.seq}-{self._said}"

    def _body(self, body: JsonObject) -> bytes:
        if self.outbox.muted:
            # Nobody will read it; the subject is still built, for its checks may refuse.
            return b""
        return strict_json.dumps({"v": 1, "at_ms": self.now_ms, **body})
