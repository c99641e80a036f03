"""Recognises a log that is not the one that was folded, and finds what the two have in common.

A broker whose store was replaced by an older copy of itself hands out sequences a second time.
Folding on would repeat some commands and drop others in silence, so nothing is folded until the
ledger has been rebased (DESIGN section 5).
"""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from schemas import roles, subjects
from schemas.codes import BadInput
from schemas.commands.sys import Rebase
from schemas.names import Names
from worker.bus.errors import Unavailable
from worker.bus.headers import Headers
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage, StreamInfo
from worker.bus.octets import to_bytes
from worker.bus.reader import LogReader
from worker.ledger.errors import LedgerError, Regressed
from worker.ledger.marks import Remembered, fingerprint

CREATED: Final = "log_created"
"""Local note: when the log's stream was created, as the broker writes it."""

LAST_SEEN: Final = "log_last_seen"
"""Local note: the highest sequence that the log was ever seen to have."""

_SPOTS: Final = 4

EXACT_MS: Final = 5_000
"""How long one message may take to be read byte by byte."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What this replica noted of the log.

    Attributes:
        created: The stream's creation; empty if it was never noted.
        last_seen: Highest sequence ever seen.
    """

    created: str
    last_seen: int

    @classmethod
    def read(cls, db: sqlite3.Connection) -> "Notes":
        """Read them."""
        noted = dict(db.execute("SELECT name, value FROM local").fetchall())
        return cls(noted.get(CREATED, ""), int(noted.get(LAST_SEEN, "0")))


@dataclass(frozen=True, slots=True)
class Beginning:
    """A command that begins an epoch, as the log holds it.

    Attributes:
        rebase: What it says.
        seq: Where it stands.
        at_ms: The broker's timestamp on it.
    """

    rebase: Rebase
    seq: int
    at_ms: int


class MetRebase(LedgerError):
    """The next command begins another epoch, from a snapshot.

    Attributes:
        begun: The command.
    """

    reason = "rebase"

    def __init__(self, begun: Beginning) -> None:
        self.begun = begun
        super().__init__(f"the log was rebased into epoch {begun.rebase.epoch}")


async def prove(
    js: JetStream, info: StreamInfo, watermark: int, remembered: Remembered, notes: Notes
) -> None:
    """Prove that a log is the one that was folded up to ``watermark``.

    Raises:
        Regressed: It is not.
        BusError: The broker did not answer.
    """
    if notes.created and notes.created != info.created:
        raise Regressed(watermark, f"its stream was created at {info.created}, not {notes.created}")
    if info.last_seq < watermark:
        raise Regressed(watermark, f"it ends at {info.last_seq}")
    if info.last_seq < notes.last_seen:
        raise Regressed(watermark, f"it ends at {info.last_seq}, and reached {notes.last_seen}")
    for seq in _spots(remembered, info.first_seq, watermark):
        if not await _matches(js, info.name, seq, remembered):
            raise Regressed(watermark, f"its message {seq} is missing or another one")


async def find_common(js: JetStream, info: StreamInfo, remembered: Remembered) -> int:
    """The highest sequence up to which a log is known to be the one that was folded.

    Two copies of one log share a beginning and nothing after it, so bisection finds its end, among
    the messages whose fingerprint is remembered.

    Returns:
        That sequence; the one before the log's first if they share nothing that is still there.

    Raises:
        BusError: The broker did not answer.
    """
    known = remembered.sequences(info.first_seq, info.last_seq)
    low, high = 0, len(known)
    while low < high:
        middle = (low + high) // 2
        if await _matches(js, info.name, known[middle], remembered):
            low = middle + 1
        else:
            high = middle
    return known[low - 1] if low else max(0, info.first_seq - 1)


async def find_rebase(
    js: JetStream, names: Names, info: StreamInfo, after: int, epoch: int
) -> Beginning | None:
    """The command after a sequence that begins an epoch, if the log holds one.

    Raises:
        BusError: The broker did not answer.
    """
    async for begun in beginnings(js, names, info, after):
        if begun.rebase.epoch == epoch:
            return begun
    return None


async def beginnings(
    js: JetStream, names: Names, info: StreamInfo, after: int
) -> AsyncIterator[Beginning]:
    """The commands after a sequence that begin an epoch, in order.

    Raises:
        BusError: The broker did not answer.
    """
    subject = f"{names.prefix}.cmd.*.*.sys.rebase"
    seq = after + 1
    while True:
        message = await js.next_message(info.name, max(seq, 1), subject)
        if message is None:
            return
        rebase = _as_rebase(names, message)
        if rebase is not None:
            yield Beginning(rebase, message.seq, message.time_ms)
        seq = message.seq + 1


def _as_rebase(names: Names, message: StoredMessage) -> Rebase | None:
    try:
        command = subjects.parse_command(names, message.subject)
        if not roles.may_speak(command.speaker.principal, "sys", "rebase") or command.key:
            return None
        return Rebase.from_bytes(message.data)
    except BadInput:
        return None


async def _matches(js: JetStream, stream: str, seq: int, remembered: Remembered) -> bool:
    message = await js.message(stream, seq)
    if message is None:
        # It may have been trimmed since the info was read, which is no difference.
        return seq < (await js.stream_info(stream)).first_seq
    if "\ufffd" in message.subject:
        message = await _exactly(js, message)
    return remembered.print_of(seq) in (fingerprint(message), fingerprint(_as_once_read(message)))


async def _exactly(js: JetStream, told: StoredMessage) -> StoredMessage:
    """A message with the bytes of its subject, which the broker's JSON does not carry.

    A consumer's copy of the stream may lag behind its leader, but holds nothing else than it.

    Raises:
        BusError: It could not be read.
    """
    reader = await LogReader.open(js, told.stream, told.seq, batch=1)
    try:
        found = await reader.next_batch(1, EXACT_MS)
    finally:
        await reader.close()
    if not found or (found[0].time_ns, found[0].data) != (told.time_ns, told.data):
        raise Unavailable(f"{told.stream}: no replica gave message {told.seq} as it is stored")
    return found[0]


def _as_once_read(message: StoredMessage) -> StoredMessage:
    """A message as it was read when a file of an earlier version noted its fingerprint.

    Bytes that are not UTF-8 were all the same then.
    """

    def lossy(text: str) -> str:
        return to_bytes(text).decode("utf-8", "replace")

    headers = Headers({lossy(name): lossy(value) for name, value in message.headers.items()})
    return replace(message, subject=lossy(message.subject), headers=headers)


def _spots(remembered: Remembered, first_seq: int, watermark: int) -> list[int]:
    """The watermark and a few sequences before it, of those that are remembered."""
    lasts = [last for _, last, _ in remembered.rows if first_seq <= last <= watermark]
    if not lasts:
        return []
    picked = {lasts[(len(lasts) - 1) * part // _SPOTS] for part in range(_SPOTS + 1)}
    return sorted(picked, reverse=True)
