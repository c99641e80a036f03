"""What a plane gives to the fold: its tables, its verbs and what time alone does to it."""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from schemas.names import Names
from schemas.results import Verdict
from schemas.subjects import Speaker
from worker.ledger.tx import Tx

NO_SPACE_KEY: Final = "no-space-key"
"""Reason of a query that needs the space's key while it has not been read: it is asked again."""

Handler = Callable[[Tx, tuple[str, ...], Any], Verdict]
"""A transition: (transaction, key tokens of the subject, checked body) to a verdict.

It may raise ``BadInput`` for a key outside its grammar: then nothing it wrote stays. A ``Refusal``
that it *returns* keeps what it wrote (a reservation found expired, say). Anything else it raises
rolls the whole batch back and stops the fold.
"""


class Swept(NamedTuple):
    """What one sweep did.

    Attributes:
        removed: Rows that are gone.
        looked: Rows that it looked at.
        after: Where the next sweep goes on; ``None`` if there is nothing more to look at.
    """

    removed: int
    looked: int
    after: str | None


Sweep = Callable[[Tx, int, str, int], Swept]
"""Removes one kind of rows: (transaction, settled before, where to go on, how many to look at).

It begins at ``""`` and looks at no more rows than that, so its cost is bounded whatever there is.
"""


def nothing_due(_: sqlite3.Connection) -> int | None:
    """Time alone changes nothing."""
    return None


def no_tick(_: Tx) -> None:
    """Time alone changes nothing."""


@dataclass(frozen=True, slots=True)
class View:
    """What a query sees: the state after some whole batch; it must not write.

    Attributes:
        db: The connection, outside any transaction.
        names: The space.
        now_ms: The later of log time and the broker's clock.
        epoch: The log's epoch.
        watermark: Sequence of the last command folded.
        ruleset: The ruleset in force.
        speaker: Who asks.
        space_key: The space's key for ``keyed.hmac_of``; ``None`` until it has been read.
    """

    db: sqlite3.Connection
    names: Names
    now_ms: int
    epoch: int
    watermark: int
    ruleset: int
    speaker: Speaker
    space_key: bytes | None = None


Query = Callable[[View, bytes], Verdict]
"""Answers one query from the tables: (view, raw body) to a verdict.

It runs in the connection's thread, after the fold has reached the ``after`` of the body, if it has
one. It may raise ``BadInput``.
"""


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of the ledger.

    Attributes:
        name: ``adm`` or ``cap``: the token in subjects.
        schema: SQL of its STRICT tables and their indexes.
        tables: Its tables, all of which the digest covers in primary-key order.
        handlers: Verb to transition; one for every verb the wire contract gives the plane.
        tick: What time alone decides; run by ``sys.tick``. A verb whose rules need it calls it.
        due_at: The earliest instant, in milliseconds of log time, at which ``tick`` would change
            something, in O(log n); ``None`` if nothing waits for time.
        after: Run after each command of this plane and after each of ``sys``.
        on_sys: ``liveness`` and ``evidence`` to the transition that hears them.
        prune: Removes at once what settled before an instant, before ruleset 3; what must never be
            reused stays.
        sweeps: From ruleset 3 on, the same by kinds of rows, a part at a time, in this order.
        rewind: Run where log time was set back: what had happened by then has happened by now.
        judged_anew: Verbs that are never answered from the memory of command ids: a repeat is
            judged at its own sequence. Another body under the same id stays a conflict.
        queries: Name to what answers it (``show`` of the plane ``cap`` is the query ``cap.show``).
    """

    name: str
    schema: str
    tables: tuple[str, ...]
    handlers: Mapping[str, Handler]
    tick: Callable[[Tx], None] = no_tick
    due_at: Callable[[sqlite3.Connection], int | None] = nothing_due
    after: Callable[[Tx], None] | None = None
    on_sys: Mapping[str, Handler] = field(default_factory=lambda: MappingProxyType({}))
    prune: Callable[[Tx, int], None] | None = None
    sweeps: Mapping[str, Sweep] = field(default_factory=lambda: MappingProxyType({}))
    rewind: Callable[[Tx], None] | None = None
    judged_anew: frozenset[str] = frozenset({"authorize"})
    queries: Mapping[str, Query] = field(default_factory=lambda: MappingProxyType({}))
