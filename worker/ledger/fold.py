"""The fold: a pure function of (state, command, sequence, timestamp, ruleset).

``apply_batch`` takes commands in log order and applies them in one SQLite transaction, each in its
own savepoint: subject, envelope, role, command-id memory, transition, result. Whatever a command
says goes to the outbox in the same transaction, so it is said if and only if it happened.
A crash at any point leaves the file as it was after some whole batch, and the watermark says which
(DESIGN sections 1, 3 and 5).
"""

import functools
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from schemas import envelope, headers, roles, strict_json, subjects
from schemas.codes import BadInput, Code
from schemas.commands import BODIES, LEDGER_PLANES
from schemas.commands.sys import Ruleset
from schemas.names import Names
from schemas.repeats import JUDGED_ANEW
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Command, Speaker
from worker.ledger import memory, rulesets, system
from worker.ledger.epochs import UNBOUND, Bound
from worker.ledger.errors import FoldFailed, LedgerError, LogGap, StorageFull
from worker.ledger.marks import LogMarks
from worker.ledger.plane import Plane
from worker.ledger.rulesets import KNOWN
from worker.ledger.system import Stop
from worker.ledger.tx import Kind, Outbox, OutRow, Tx

DERIVED_PREFIX: Final = "derived-"
"""Begins the id of a command that brought none; a client may only ask again with such an id."""

NO_NOTES: Final[Mapping[str, str]] = MappingProxyType({})

_LOAD = "SELECT epoch, watermark, now_ms, chain, ruleset, ordinal FROM fold"
_SAVE = "UPDATE fold SET epoch = ?, watermark = ?, now_ms = ?, chain = ?, ruleset = ?, ordinal = ?"
_PUT_OUT = "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM outbox WHERE id = ?"
_UNSAID = "SELECT id, seq, at_ms, kind, expect, subject, body, trace FROM outbox ORDER BY id"
_NOTE = "INSERT INTO local VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_STORAGE_ERRORS: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


class LogMessage(Protocol):
    """What the fold needs of a stored message."""

    @property
    def subject(self) -> str:
        """Its subject."""
        ...

    @property
    def seq(self) -> int:
        """Its sequence in the log."""
        ...

    @property
    def time_ms(self) -> int:
        """The broker's timestamp, floored to milliseconds."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; repeated names are in an attribute ``repeated``, if there is one."""
        ...

    @property
    def data(self) -> bytes:
        """Its body."""
        ...


@dataclass(slots=True)
class State:
    """Where the fold stands; one row of the file.

    Attributes:
        epoch: The log's epoch.
        watermark: Sequence of the last command folded.
        now_ms: Log time.
        chain: Chain value of the last result.
        ruleset: The ruleset in force.
        ordinal: Commands folded so far, over all epochs.
    """

    epoch: int
    watermark: int
    now_ms: int
    chain: str
    ruleset: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction did.

    Attributes:
        applied: Commands folded.
        watermark: Sequence reached, committed.
        rows: Outbox rows written, in order.
        stop: Why the next command was not folded, if it must not be; ``None`` if all were.
        ticked: Whether a tick was among them.
    """

    applied: int
    watermark: int
    rows: tuple[OutRow, ...]
    stop: Stop | None
    ticked: bool


class Fold:
    """The fold of one space over one connection; used in the connection's thread only.

    Attributes:
        state: Where it stands.
        bound: What stamps before this epoch's beginning are believed.
        rulesets: Rulesets this worker can fold under.

    Args:
        db: As ``store.open_ledger`` returns it.
        names: The space.
        planes: Its planes.
        rulesets: Rulesets this worker can fold under.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        names: Names,
        planes: Sequence[Plane],
        *,
        rulesets: frozenset[int] = KNOWN,
    ) -> None:
        self._db = db
        self.bound = UNBOUND
        self._names = names
        self._planes = {plane.name: plane for plane in planes}
        self.rulesets = rulesets
        self._system = system.System(planes, rulesets)
        self._memory = memory.Memory(db)
        self._marks = LogMarks(db)
        self._outbox = Outbox()
        self._savepoint = db.cursor()
        self._ticked = False
        self._seq = 0
        self.state = self._load()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection it folds over."""
        return self._db

    def due_at(self) -> int | None:
        """The earliest instant of log time at which a tick would change something."""
        instants = (plane.due_at(self._db) for plane in self._planes.values())
        return min((instant for instant in instants if instant is not None), default=None)

    def apply_batch(
        self,
        messages: Sequence[LogMessage],
        *,
        say_from_ms: int = 0,
        said: Sequence[int] = (),
        notes: Mapping[str, str] = NO_NOTES,
    ) -> Batch:
        """Fold messages in one transaction and commit it.

        Args:
            messages: Consecutive messages of the log, the first one after the watermark.
            say_from_ms: Commands with an older timestamp say nothing: their outbox rows are not
                written, since what they would say has left the results' stream long ago.
            said: Ids of outbox rows of earlier batches that are dropped in the same transaction.
            notes: What this replica notes for itself, in the same transaction.

        Returns:
            What was done, committed and on disk.

        Raises:
            LogGap: If a message is not the next one; nothing was changed.
            StorageFull: If the disk is; nothing was changed.
            FoldFailed: If a transition broke; nothing was changed.
        """
        applied, stop = 0, None
        with self._transaction():
            if said:
                self._db.executemany(_DROP, [(number,) for number in said])
            self._note(notes)
            for message in messages:
                self._seq = message.seq
                self._outbox.muted = message.time_ms < say_from_ms
                stop = self._fold(message)
                if stop is not None:
                    break
                applied += 1
            self._write()
            self._commit()
        rows = tuple(self._outbox.rows)
        batch = Batch(applied, self.state.watermark, rows, stop, self._ticked)
        self._outbox.rows.clear()
        self._ticked = False
        return batch

    def drop(self, ids: Sequence[int]) -> None:
        """Drop outbox rows that were said, in a transaction of their own.

        Raises:
            StorageFull: If the disk is; they are said again after a restart, which does no harm.
        """
        with self._transaction():
            self._db.executemany(_DROP, [(number,) for number in ids])
            self._commit()

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something for this replica alone, in a transaction of its own."""
        with self._transaction():
            self._note(notes)
            self._commit()

    def unsaid(self) -> list[OutRow]:
        """The outbox rows in the file, in order."""
        return [
            OutRow(number, seq, at_ms, Kind(kind), *rest)
            for number, seq, at_ms, kind, *rest in self._db.execute(_UNSAID)
        ]

    def reload(self) -> None:
        """Read the state again from the file, as after a rollback or a rebase."""
        self._outbox.rows.clear()
        self._ticked = False
        self._memory.reload()
        self._marks.reload()
        self.state = self._load()

    def _load(self) -> State:
        last = self._db.execute("SELECT max(id) FROM outbox").fetchone()[0]
        self._outbox.next_id = max(self._outbox.next_id, (last or 0) + 1)
        self.bound = Bound.read(self._db)
        return State(*self._db.execute(_LOAD).fetchone())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        db = self._db
        self._seq = 0
        done = False
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            done = True
        except LedgerError:
            raise
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE_ERRORS:
                raise StorageFull from error
            raise FoldFailed(self._seq) from error
        except Exception as error:
            raise FoldFailed(self._seq) from error
        finally:
            if db.in_transaction:
                db.rollback()
            if not done:
                # A commit that failed may have ended the transaction by itself, either way: only
                # the file knows where it stands now.
                self.reload()

    def _note(self, notes: Mapping[str, str]) -> None:
        for item in notes.items():
            self._db.execute(_NOTE, item)

    def _write(self) -> None:
        self._memory.flush()
        self._marks.flush()
        if self._outbox.rows:
            self._db.executemany(_PUT_OUT, self._outbox.rows)
        state = self.state
        self._db.execute(
            _SAVE,
            (
                state.epoch,
                state.watermark,
                state.now_ms,
                state.chain,
                state.ruleset,
                state.ordinal,
            ),
        )

    def _commit(self) -> None:
        self._db.execute("COMMIT")

    def _fold(self, message: LogMessage) -> Stop | None:
        state, seq = self.state, message.seq
        if seq != state.watermark + 1:
            raise LogGap(state.watermark + 1, seq)
        if state.ruleset not in self.rulesets:
            # A newer version folded this file before.
            return Stop("unknown-ruleset", seq, Ruleset(v=1, version=state.ruleset))
        stamp_ms = self.bound.stamp_ms(seq, message.time_ms)
        now_ms = max(state.now_ms, stamp_ms)
        digest = memory.digest_of(message.subject, message.data)
        trace = envelope.traceparent_of(message.headers)
        command_id, given = "", None
        speaker: Speaker | None = None
        plane = verb = ""
        said_before = len(self._outbox.rows)
        tail: bytes | Stop | None
        try:
            command = subjects.parse_command(self._names, message.subject)
            speaker, plane, verb = command.speaker, command.plane, command.verb
            given = envelope.command_id_of(message.headers)
            command_id = given or self._derived(seq)
            _check_allowed(speaker.principal, plane, verb, state.ruleset)
            tx = Tx(
                self._db,
                self._names,
                state.epoch,
                seq,
                now_ms,
                speaker,
                command_id,
                state.ruleset,
                self._outbox,
                command.key,
                trace,
                stamp_ms=stamp_ms,
            )
            if plane == "sys" and verb == "tick":
                self._tick(tx, message.data)
                tail = None
            else:
                tail = self._answer(tx, command, given is not None, digest, message)
                now_ms = tx.now_ms
        except BadInput as bad:
            del self._outbox.rows[said_before:]
            tail = _tail(Refusal.of(bad))
        if isinstance(tail, Stop):
            return tail
        if tail is not None:
            plain = self._plain(seq, now_ms, command_id or self._derived(seq), tail)
            state.chain = chained(state.chain, plain)
            if not self._outbox.muted:
                # A plane that no subject of a result can name is not repeated in one.
                known = speaker if plane in LEDGER_PLANES else None
                self._say_result(seq, now_ms, known, plane, verb, plain, trace)
        state.now_ms = now_ms
        state.watermark = seq
        state.ordinal += 1
        self._memory.forget_old(now_ms)
        self._marks.add(message, digest)
        return None

    def _derived(self, seq: int) -> str:
        """The id of a command that brought none, or none that can be used."""
        return f"{DERIVED_PREFIX}{self.state.epoch}-{seq:016d}"

    def _answer(
        self, tx: Tx, command: Command, given: bool, digest: bytes, message: LogMessage
    ) -> bytes | Stop:
        """The verdict part of the result: recorded, or judged now and recorded."""
        data, written = message.data, digest
        if given and tx.ruleset >= rulesets.MENDED:
            # One intent may be written in many ways; before this ruleset each was another command.
            digest = memory.digest_of(message.subject, memory.meaning_of(data))
        plane = self._planes.get(command.plane)
        key = memory.key_of(command.speaker.principal, tx.command_id)
        known = self._memory.find(key, tx.now_ms) if given else None
        anew = plane is not None and command.verb in plane.judged_anew
        if known is not None:
            if known.digest not in (digest, written):
                return _REUSED
            if not anew:
                if tx.ruleset < rulesets.MENDED or not _permits(command, known.verdict):
                    return known.verdict
                before = memory.parsed(known.verdict)
                tx.before = before if isinstance(before, Accepted) else None
        elif given and tx.command_id.startswith(DERIVED_PREFIX):
            raise BadInput(
                headers.COMMAND,
                "reserved-command-id",
                f"a command id of your own must not begin with {DERIVED_PREFIX}",
            )
        body = BODIES[command.plane, command.verb].under(tx.ruleset, data)
        run = self._savepoint.execute
        run("SAVEPOINT command")
        try:
            verdict = self._judge(tx, plane, command, body)
        except BadInput:
            # Bad input takes back what its command wrote, and nothing else.
            run("ROLLBACK TO command")
            run("RELEASE command")
            raise
        run("RELEASE command")
        if isinstance(verdict, Stop):
            return verdict
        tail = _tail(verdict)
        if known is None:
            self._memory.add(self.state.ordinal + 1, tx.now_ms, key, digest, b"" if anew else tail)
        return tail

    def _judge(self, tx: Tx, plane: Plane | None, command: Command, body: object) -> Verdict | Stop:
        if plane is None:
            said = self._system.handle(tx, self.state, self._memory, command, body)
            if not isinstance(said, Stop):
                self._after_all(tx)
            return said
        verdict = plane.handlers[command.verb](tx, command.key, body)
        if plane.after is not None:
            plane.after(tx)
        return verdict

    def _tick(self, tx: Tx, data: bytes) -> None:
        """Let time pass; a tick is not remembered and gets no result."""
        BODIES["sys", "tick"].from_bytes(data)
        self._ticked = True
        try:
            for plane in self._planes.values():
                plane.tick(tx)
            self._after_all(tx)
        except BadInput as bad:
            raise RuntimeError("time itself was taken for bad input") from bad

    def _after_all(self, tx: Tx) -> None:
        for plane in self._planes.values():
            if plane.after is not None:
                plane.after(tx)

    def _plain(self, seq: int, now_ms: int, command_id: str, tail: bytes) -> bytes:
        """A result's JSON without its chain, as ``results.build`` would write it."""
        head = f'{{"v":1,"command_id":"{command_id}","id":"{self.state.epoch}-{seq}"'
        return b'%b,"at_ms":%d,%b}' % (head.encode(), now_ms, tail)

    def _say_result(
        self,
        seq: int,
        now_ms: int,
        speaker: Speaker | None,
        plane: str,
        verb: str,
        plain: bytes,
        trace: str | None,
    ) -> None:
        result_id = f"{self.state.epoch}-{seq}"
        subject = subjects.result(self._names, speaker, plane, verb, result_id)
        body = b'%b,"chain":"%b"}' % (plain[:-1], self.state.chain.encode())
        self._outbox.say(seq, now_ms, Kind.RESULT, subject, body, trace)


def chained(previous: str, plain: bytes) -> str:
    """The chain value of a result: SHA-256 over the previous value and the result without it.

    Args:
        previous: 64 hexadecimal digits.
        plain: The result's JSON as published, less its last field, ``chain``.
    """
    return hashlib.sha256(previous.encode() + plain).hexdigest()


def _check_allowed(principal: str, plane: str, verb: str, ruleset: int) -> None:
    refused = _why_not(principal, plane, verb, ruleset)
    if refused is not None:
        # Made anew each time: an exception that is raised again keeps alive every frame that it
        # ever passed through, and what these hold of a batch.
        raise BadInput("subject", refused.reason, refused.message, code=refused.code)


@functools.lru_cache(maxsize=4096)
def _why_not(principal: str, plane: str, verb: str, ruleset: int) -> Refusal | None:
    if plane not in LEDGER_PLANES:
        return Refusal(
            Code.BAD_REQUEST, "unknown-plane", "the subject names no plane of the ledger"
        )
    if (plane, verb) not in BODIES or ruleset < system.SINCE.get((plane, verb), rulesets.FIRST):
        return Refusal(Code.BAD_REQUEST, "unknown-verb", "the plane has no such verb")
    if not roles.may_speak(principal, plane, verb):
        return Refusal(
            Code.PERMISSION_DENIED, "wrong-role", "this principal may not send this verb"
        )
    return None


def _permits(command: Command, verdict: bytes) -> bool:
    """Whether a recorded verdict is an ``ok`` that permits something, which only now can decide."""
    return (command.plane, command.verb) in JUDGED_ANEW and verdict.startswith(b'"status":"ok"')


def _tail(verdict: Verdict) -> bytes:
    """The verdict's fields of a result, without the braces; kept verbatim for repeats."""
    if isinstance(verdict, Accepted):
        return strict_json.dumps(
            {"status": "ok", "outcome": verdict.outcome, "data": verdict.data}
        )[1:-1]
    return strict_json.dumps(
        {
            "status": verdict.status,
            "outcome": verdict.reason,
            "data": verdict.data,
            "error": verdict.error().to_object(),
        }
    )[1:-1]


_REUSED: Final = _tail(
    Refusal(
        Code.CONFLICT,
        "command-id-reused",
        "this command id was used for another command; one intent, one id",
    )
)
