"""The queue's heads: a tree whose root knows the next turn, so that nobody reads the queue.

A *line* holds the queued turns of one agent at one owner for one model, in plain order. Lines hang
under their owner, owners under their model, models under a *tier*: one priority of the push turns,
or of one principal's pull turns. Every node offers its parent three turns of all that stand below
it, each the first in plain order (enqueued_at, request id):

- ``head``: of all,
- ``idle``: of those whose agent holds no seat,
- ``aged``: of those older than half their queue timeout.

A node is *parked* when it is found blocked: a model that cools down and a silent owner offer
nothing, a line whose agent holds a seat offers no idle turn. Parking is lazy: nothing happens to
the queue when a cooldown begins or an owner falls silent; a node is parked when a decision meets
it, at most once per blockage, and offers again when the blockage ends. A decision therefore reads
and writes a number of nodes that does not depend on the length of the queue.
"""

import re
import sqlite3
from typing import Final, NamedTuple

from schemas.codes import BadInput
from worker.ledger.plane import Swept

TIER: Final = 1
MODEL: Final = 2
OWNER: Final = 3
LINE: Final = 4

LAST_NODE: Final = 2**63 - 1
_NODE: Final = re.compile(r"[0-9]{1,18}")

PUSH: Final = "*"
"""Key of the tiers of push turns; no principal is called that."""

_PATH: Final = """
SELECT line.node, line.parked, line.head_at_ms, line.head_id,
       owner.node, owner.parked, model.node, model.parked, tier.node
FROM adm_heads tier
JOIN adm_heads model ON model.parent = tier.node AND model.key = ? AND model.priority = 0
JOIN adm_heads owner ON owner.parent = model.node AND owner.key = ? AND owner.priority = 0
JOIN adm_heads line ON line.parent = owner.node AND line.key = ? AND line.priority = 0
WHERE tier.parent = 0 AND tier.key = ? AND tier.priority = ?
"""
_GROW: Final = """
INSERT INTO adm_heads (parent, level, key, priority, parked) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (parent, key, priority) DO NOTHING
"""
_CHILD: Final = "SELECT node FROM adm_heads WHERE parent = ? AND key = ? AND priority = ?"
_UP: Final = "SELECT parent, level, parked FROM adm_heads WHERE node = ?"
_OFFERS: Final = """
SELECT line.node, line.head_id, line.idle_id, line.aged_id,
       owner.node, owner.head_id, owner.idle_id, owner.aged_id,
       model.node, model.head_id, model.idle_id, model.aged_id,
       tier.node, tier.head_id, tier.idle_id, tier.aged_id
FROM adm_heads line
JOIN adm_heads owner ON owner.node = line.parent
JOIN adm_heads model ON model.node = owner.parent
JOIN adm_heads tier ON tier.node = model.parent
WHERE line.node = ?
"""
_BEST: Final = """
SELECT head_id, idle_id, aged_id, node, by_age FROM adm_heads INDEXED BY adm_heads_tier
WHERE parent = 0 AND key = ? AND head_id IS NOT NULL ORDER BY priority DESC LIMIT 1
"""


def _raise(offer: str) -> str:
    return f"""
UPDATE adm_heads SET {offer}_at_ms = ?1, {offer}_id = ?2
WHERE node IN (?3, ?4, ?5, ?6)
AND ({offer}_id IS NULL OR ({offer}_at_ms, {offer}_id) > (?1, ?2))
"""  # noqa: S608 - the name comes from the three below


_RAISE_HEAD: Final = _raise("head")
_RAISE_IDLE: Final = _raise("idle")
_RAISE_AGED: Final = _raise("aged")

_REFRESH_LINE: Final = """
UPDATE adm_heads SET
(head_at_ms, head_id) = (
    SELECT r.enqueued_at_ms, r.request_id FROM adm_requests r
    WHERE r.node = adm_heads.node ORDER BY r.enqueued_at_ms, r.request_id LIMIT 1),
(idle_at_ms, idle_id) = (
    SELECT r.enqueued_at_ms, r.request_id FROM adm_requests r
    WHERE r.node = adm_heads.node AND adm_heads.parked = 0
    ORDER BY r.enqueued_at_ms, r.request_id LIMIT 1),
(aged_at_ms, aged_id) = (
    SELECT r.enqueued_at_ms, r.request_id FROM adm_requests r
    WHERE r.node = adm_heads.node AND r.aged = 1
    ORDER BY r.enqueued_at_ms, r.request_id LIMIT 1)
WHERE node = ?
"""
_REFRESH: Final = """
UPDATE adm_heads SET
(head_at_ms, head_id) = (
    SELECT c.head_at_ms, c.head_id FROM adm_heads c
    WHERE c.parent = adm_heads.node AND c.head_id IS NOT NULL
    ORDER BY c.head_at_ms, c.head_id LIMIT 1),
(idle_at_ms, idle_id) = (
    SELECT c.idle_at_ms, c.idle_id FROM adm_heads c
    WHERE c.parent = adm_heads.node AND c.idle_id IS NOT NULL
    ORDER BY c.idle_at_ms, c.idle_id LIMIT 1),
(aged_at_ms, aged_id) = (
    SELECT c.aged_at_ms, c.aged_id FROM adm_heads c
    WHERE c.parent = adm_heads.node AND c.aged_id IS NOT NULL
    ORDER BY c.aged_at_ms, c.aged_id LIMIT 1)
WHERE node = ?
"""
_PARK: Final = """
UPDATE adm_heads SET parked = 1, head_at_ms = NULL, head_id = NULL,
idle_at_ms = NULL, idle_id = NULL, aged_at_ms = NULL, aged_id = NULL WHERE node = ?
"""
_PARK_LINE: Final = (
    "UPDATE adm_heads SET parked = 1, idle_at_ms = NULL, idle_id = NULL WHERE node = ?"
)
_PARKED: Final = "SELECT node, parent FROM adm_heads WHERE level = ? AND key = ? AND parked = 1"
_UNPARK: Final = "UPDATE adm_heads SET parked = 0 WHERE node = ?"
_AGEING: Final = """
SELECT request_id, node, enqueued_at_ms FROM adm_requests
WHERE node IS NOT NULL AND aged = 0 AND aged_at_ms <= ? ORDER BY aged_at_ms, request_id LIMIT ?
"""
_AGE: Final = "UPDATE adm_requests SET aged = 1 WHERE request_id = ?"
_WENT: Final = "UPDATE adm_heads SET by_age = ? WHERE node = ?"
_CLEAR_LINE: Final = (
    "DELETE FROM adm_heads WHERE node = ? AND level = 4 AND head_id IS NULL RETURNING parent"
)
_CLEAR_OWNER: Final = """
DELETE FROM adm_heads WHERE node = ?1 AND level = 3
AND NOT EXISTS (SELECT 1 FROM adm_heads c WHERE c.parent = ?1)
"""
_OPEN: Final = "SELECT node FROM adm_heads WHERE level = ?1 AND (parked = 0 OR ?1 = ?2)"
# A node is made after its parent, so its number is higher.
_NODES_BELOW: Final = "SELECT node FROM adm_heads WHERE node < ? ORDER BY node DESC LIMIT ?"
_EMPTY_NODE: Final = """
DELETE FROM adm_heads WHERE node = ?1 AND CASE level WHEN 4 THEN head_id IS NULL ELSE NOT EXISTS
(SELECT 1 FROM adm_heads c WHERE c.parent = ?1) END
"""
_EMPTY_LINES: Final = "DELETE FROM adm_heads WHERE level = 4 AND head_id IS NULL"
_EMPTY: Final = """
DELETE FROM adm_heads WHERE level = ? AND NOT EXISTS
(SELECT 1 FROM adm_heads c WHERE c.parent = adm_heads.node)
"""


class Place(NamedTuple):
    """Where a turn stands, level by level.

    Attributes:
        tier: ``PUSH``, or the principal whose pull turns these are.
        priority: -100..100.
        model: As ``model_key`` makes it.
        owner: As ``owner_key`` makes it.
        agent: The agent's id.
    """

    tier: str
    priority: int
    model: str
    owner: str
    agent: str


class Offer(NamedTuple):
    """What the best tier offers.

    Attributes:
        head_id: The first in plain order.
        idle_id: The first whose agent holds no seat, as far as is known.
        aged_id: The first that has aged.
        tier: Its node.
        by_age: Whether its last admission went by age.
    """

    head_id: str
    idle_id: str | None
    aged_id: str | None
    tier: int
    by_age: int


def model_key(provider: str, model: str) -> str:
    """Key of a (provider, model); neither can hold the character between them."""
    return f"{provider}\x1f{model}"


def owner_key(principal: str, uid: str) -> str:
    """Key of an owner."""
    return f"{principal}.{uid}"


def enter(
    db: sqlite3.Connection, place: Place, request_id: str, at_ms: int, *, aged: bool = False
) -> int:
    """Let a turn stand in its line, and return that line's node.

    The caller writes the node into the turn's row, before or after.

    Args:
        db: The connection.
        place: Where.
        request_id: The turn.
        at_ms: When it was enqueued.
        aged: Whether it has aged already.
    """
    key = (place.model, place.owner, place.agent, place.tier, place.priority)
    path = db.execute(_PATH, key).fetchone() or _grow(db, place, key)
    line, busy, head_at_ms, head_id, owner, owner_parked, model, model_parked, tier = path
    if owner_parked:
        owner = model = tier = line
    elif model_parked:
        model = tier = line
    open_path = (line, owner, model, tier)
    if head_id is None or (at_ms, request_id) < (head_at_ms, head_id):
        db.execute(_RAISE_HEAD, (at_ms, request_id, *open_path))
        if not busy:
            db.execute(_RAISE_IDLE, (at_ms, request_id, *open_path))
    if aged:
        db.execute(_RAISE_AGED, (at_ms, request_id, *open_path))
    return int(line)


def leave(db: sqlite3.Connection, line: int, request_id: str) -> None:
    """Let nodes that offered a turn look for their next best.

    The caller has taken the node out of the turn's row before.
    """
    path = db.execute(_OFFERS, (line,)).fetchone()
    refresh = _REFRESH_LINE
    for at in range(0, len(path), 4):
        if request_id not in path[at + 1 : at + 4]:
            return
        db.execute(refresh, (path[at],))
        refresh = _REFRESH


def clear(db: sqlite3.Connection, line: int) -> None:
    """Remove a line in which nobody stands, and its owner if that was the last one.

    So what connectors leave behind costs nothing; tiers and models are few, and stay.
    """
    for (owner,) in db.execute(_CLEAR_LINE, (line,)).fetchall():
        db.execute(_CLEAR_OWNER, (owner,))


def went(db: sqlite3.Connection, tier: int, *, by_age: bool) -> None:
    """Note of a tier whether its last admission went by age."""
    db.execute(_WENT, (int(by_age), tier))


def best(db: sqlite3.Connection, tier: str) -> Offer | None:
    """What the highest priority that offers anything offers."""
    row = db.execute(_BEST, (tier,)).fetchone()
    return None if row is None else Offer._make(row)


def park(db: sqlite3.Connection, node: int, level: int) -> None:
    """Let a blocked node offer nothing, a line of a busy agent no idle turn."""
    db.execute(_PARK_LINE if level == LINE else _PARK, (node,))
    _lift(db, db.execute(_UP, (node,)).fetchone()[0])


def unpark(db: sqlite3.Connection, level: int, key: str) -> None:
    """Let every parked node of a model, an owner or an agent offer again."""
    for node, parent in db.execute(_PARKED, (level, key)).fetchall():
        db.execute(_UNPARK, (node,))
        db.execute(_REFRESH_LINE if level == LINE else _REFRESH, (node,))
        _lift(db, parent)


def age(db: sqlite3.Connection, now_ms: int, limit: int) -> None:
    """Mark turns that have become older than half their queue timeout, the first to do so first."""
    for request_id, line, at_ms in db.execute(_AGEING, (now_ms, limit)).fetchall():
        db.execute(_AGE, (request_id,))
        path, node = [line], db.execute(_UP, (line,)).fetchone()[0]
        while node:
            parent, _, parked = db.execute(_UP, (node,)).fetchone()
            if parked:
                break
            path.append(node)
            node = parent
        path += [line] * (4 - len(path))
        db.execute(_RAISE_AGED, (at_ms, request_id, *path))


def refresh_all(db: sqlite3.Connection) -> None:
    """Let every node look for its best anew, from the lines up."""
    for level in (LINE, OWNER, MODEL, TIER):
        refresh = _REFRESH_LINE if level == LINE else _REFRESH
        for (node,) in db.execute(_OPEN, (level, LINE)).fetchall():
            db.execute(refresh, (node,))


def sweep(db: sqlite3.Connection) -> None:
    """Remove nodes below which nobody stands."""
    db.execute(_EMPTY_LINES)
    for level in (OWNER, MODEL, TIER):
        db.execute(_EMPTY, (level,))


def sweep_some(db: sqlite3.Connection, after: str, room: int) -> Swept:
    """As ``sweep``, for so many nodes below a node (the newest first), children before parents.

    Raises:
        BadInput: ``after`` is no node.
    """
    if after and not _NODE.fullmatch(after):
        raise BadInput("after", "bad-cursor", "after is not one that a prune has answered")
    nodes = db.execute(_NODES_BELOW, (int(after or LAST_NODE), room)).fetchall()
    removed = sum(db.execute(_EMPTY_NODE, one).rowcount for one in nodes)
    return Swept(removed, len(nodes), str(nodes[-1][0]) if len(nodes) == room else None)


def _lift(db: sqlite3.Connection, node: int) -> None:
    while node:
        parent, _, parked = db.execute(_UP, (node,)).fetchone()
        if parked:
            return
        db.execute(_REFRESH, (node,))
        node = parent


def _grow(db: sqlite3.Connection, place: Place, key: tuple[str | int, ...]) -> tuple[int, ...]:
    parent = 0
    for level, name in enumerate((place.tier, place.model, place.owner, place.agent), TIER):
        at = (parent, name, place.priority if level == TIER else 0)
        db.execute(_GROW, (at[0], level, at[1], at[2]))
        parent = db.execute(_CHILD, at).fetchone()[0]
    path: tuple[int, ...] = db.execute(_PATH, key).fetchone()
    return path
