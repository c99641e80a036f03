"""Bodies of the system verbs: what workers and witnesses put into the log (DESIGN sections 1, 5).

Accepted only from principals ``_worker…`` and, for evidence, ``_witness…``.
"""

import base64
import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field

from schemas.model import Body, Closed, Query
from schemas.tokens import Count, Generation, HexDigest, Instant, Label, Name, Principal, Uid


class Tick(Body):
    """Time has passed; it carries no instant, the broker's timestamp is the clock."""

    PLANE = "sys"
    VERB = "tick"


class Ruleset(Body):
    """Activate a ruleset; a worker that does not know it stops folding.

    Attributes:
        version: The ruleset's number.
    """

    PLANE = "sys"
    VERB = "ruleset"

    version: Annotated[int, Field(ge=1, le=1_000_000)]


class Prune(Body):
    """Remove terminal rows and remembered command ids older than an instant.

    Attributes:
        before_at_ms: Rows settled before this instant go; seconds and ids that must never be
            reused stay.
        after: Where to go on: ``next`` of the result before. One command removes a part.
    """

    PLANE = "sys"
    VERB = "prune"
    SINCE = {"after": 3}  # noqa: RUF012 - frozen with its class

    before_at_ms: Instant
    after: Annotated[str, Field(max_length=256)] | None = None


class Rebase(Body):
    """After a log regression: continue in a new epoch from a stored snapshot.

    Attributes:
        epoch: The new epoch, the old one plus one.
        digest: Digest of the snapshot's logical state.
        base: Watermark of the snapshot in the old epoch.
        common: Highest sequence that old and new log have in common.
        snapshot: Its name in the object store.
    """

    PLANE = "sys"
    VERB = "rebase"

    epoch: Generation
    digest: HexDigest
    base: Count
    common: Count
    snapshot: Annotated[str, Field(min_length=1, max_length=256)]


class Owner(Closed):
    """One life of one principal."""

    principal: Principal
    uid: Uid


class Clock(Body):
    """Set log time back to the broker's timestamp on this command, where it was ahead.

    Known from ruleset 3 on. Seconds, ids and generations that were used stay used.
    """

    PLANE = "sys"
    VERB = "clock"


class Liveness(Body):
    """An owner fell silent, or was heard again.

    Attributes:
        owner: Who.
        state: ``silent`` or ``alive``.
        seen_at_ms: When it was last heard, by the broker's clock.
    """

    PLANE = "sys"
    VERB = "liveness"

    owner: Owner
    state: Literal["silent", "alive"]
    seen_at_ms: Instant


class ProcessIdentity(Closed):
    """What makes a Linux process the same (spec/admission.md, Recovery).

    Attributes:
        host: Host id, by default the machine id.
        boot_id: The kernel's boot id.
        pid: Process id in its own pid namespace.
        start_ticks: Field 22 of ``/proc/<pid>/stat``.
        pid_ns: Inode of the pid namespace.
        ppid: Hint.
        pgrp: Hint; 0 means no group evidence.
        session: Hint.
    """

    host: Label
    boot_id: Label
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    start_ticks: Count
    pid_ns: Count
    ppid: Count = 0
    pgrp: Count = 0
    session: Count = 0


def witness_of(host: str) -> str:
    """The principal that a host's witness speaks as: only it is believed about that host.

    Args:
        host: The host's id, as in ``ProcessIdentity``.

    Returns:
        ``_witness-<host>``; a host that is no token stands as 26 characters of lower-case base32 of
        the SHA-256 of its id.
    """
    if _HOST_TOKEN.fullmatch(host):
        return f"_witness-{host}"
    digest = base64.b32encode(hashlib.sha256(host.encode()).digest()).decode().lower()
    return f"_witness-{digest[:26]}"


_HOST_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,55}")


class Fence(Closed):
    """The full fence of a lease."""

    lease_id: Name
    request_id: Name
    generation: Generation
    owner: Owner


class Evidence(Body):
    """What an observer on a host saw of one lease's processes.

    Attributes:
        request_id: The turn.
        fence: The lease's full fence; absent for a queued request's owner.
        host: The observer's host.
        connector: Identity looked at.
        child: Identity looked at, if the intent named one.
        connector_state: What was seen of the connector.
        child_state: What was seen of the child.
        group_state: Whether the child's process group still holds a process.
        observed_at_ms: Observer's instant, for people only.
    """

    PLANE = "sys"
    VERB = "evidence"

    request_id: Name
    fence: Fence | None = None
    host: Label
    connector: ProcessIdentity
    child: ProcessIdentity | None = None
    connector_state: Literal["alive", "gone", "unverifiable"]
    child_state: Literal["alive", "gone", "unverifiable", "none"] = "none"
    group_state: Literal["empty", "alive", "unverifiable", "none"] = "none"
    observed_at_ms: Instant


class StatusQuery(Query):
    """Body of the query ``sys.status``: what a worker runs, and how it is.

    Attributes:
        after: A ledger result's id; the answer waits, 5 s at most, until the fold has reached it.
    """

    after: str | None = None


class DigestQuery(Query):
    """Body of the query ``sys.digest``: a digest of the ledger's state, per table and in all.

    Attributes:
        after: Result id that the digest must already include.
    """

    after: str | None = None


class SnapshotsQuery(Query):
    """Body of the query ``sys.snapshots``: which snapshots of the ledger there are."""


class SnapshotQuery(Query):
    """Body of the query ``sys.snapshot``: store a snapshot now and read it back."""


class TrimQuery(Query):
    """Body of the query ``sys.trim``: remove what lies in the log below a verified snapshot."""


class PruneQuery(Query):
    """Body of the query ``sys.prune``: have the worker send that command.

    Attributes:
        before_at_ms: Rows settled before this instant go.
        after: Where to go on: ``result_data.next`` of the answer before, until there is none.
    """

    before_at_ms: Instant
    after: Annotated[str, Field(max_length=256)] | None = None


class RulesetQuery(Query):
    """Body of the query ``sys.ruleset``: have the worker send that command.

    Attributes:
        version: The ruleset to activate.
        force: Also if a worker that answers does not know it, and would stop folding.
    """

    version: Annotated[int, Field(ge=1, le=1_000_000)]
    force: bool = False


class ClockQuery(Query):
    """Body of the query ``sys.clock``: have the worker set log time back to the broker's clock."""


class RebaseQuery(Query):
    """Body of the query ``sys.rebase``: have one replica begin a new epoch from its own file.

    Attributes:
        replica: Whose file is right; needed after a divergence. Else the one that came furthest.
    """

    replica: Annotated[str, Field(min_length=1, max_length=64)] | None = None


BODIES: tuple[type[Body], ...] = (Tick, Ruleset, Prune, Rebase, Clock, Liveness, Evidence)
