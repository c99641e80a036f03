"""What facts and queries of the system show: workers, the ledger, its snapshots and epochs."""

from typing import Annotated, Any

from pydantic import Field

from schemas.model import Closed, Message
from schemas.tokens import Count, Generation, HexDigest, Instant


class WorkerView(Closed):
    """A worker's process.

    Attributes:
        id: The id of its data directory, kept across restarts.
        version: Of tidegate.
        pid: Its process id, on its own host.
        started_at_ms: When it started, by its own clock.
        spaces: The spaces it serves.
    """

    id: str
    version: str
    pid: int
    started_at_ms: Instant
    spaces: list[str]


class BrokerView(Closed):
    """The broker as a worker sees it.

    Attributes:
        version: Of the server it is connected to; empty while it never was.
        rtt_ms: The last round trip; null before the first.
        reconnects: How often it connected anew.
        embedded: Whether the worker started the broker itself.
    """

    version: str
    rtt_ms: Annotated[float, Field(ge=0, strict=False)] | None = None
    reconnects: Count
    embedded: bool


class StatusView(Closed):
    """Answer of the query ``sys.status``.

    Attributes:
        at_ms: The worker's now.
        space: Which space was asked about.
        ready: Whether work is served.
        reasons: Why it is not.
        worker: The worker that answered.
        broker: Its broker.
        planes: What each plane says of itself, by its name; what that is may change.
    """

    at_ms: Instant
    space: str
    ready: bool
    reasons: list[str]
    worker: WorkerView
    broker: BrokerView
    planes: dict[str, dict[str, Any]]


class DigestView(Closed):
    """Answer of the query ``sys.digest``: equal in all replicas at one sequence of one epoch.

    Attributes:
        schema_version: Of the ledger's file.
        ruleset: In force.
        epoch: Of the log.
        watermark: Sequence of the last command folded.
        tables: A digest of every table.
        digest: Of all of it.
    """

    schema_version: Generation
    ruleset: Generation
    epoch: Generation
    watermark: Count
    tables: dict[str, HexDigest]
    digest: HexDigest


class SnapshotView(Closed):
    """A stored snapshot of the ledger.

    Attributes:
        name: In the object store.
        epoch: Of the log.
        watermark: Sequence of the last command in it.
        bytes: Its size.
        digest: Of its state.
    """

    name: str
    epoch: Generation
    watermark: Count
    bytes: Count
    digest: HexDigest


class SnapshotsView(Closed):
    """Answer of the query ``sys.snapshots``, the newest first."""

    snapshots: list[SnapshotView]


class TrimmedView(Closed):
    """Answer of the query ``sys.trim``.

    Attributes:
        removed: How many messages went.
        first_seq: Where the log begins now.
        snapshot: The one below which they went.
    """

    removed: Count
    first_seq: Count
    snapshot: SnapshotView


class SentView(Closed):
    """A command that a worker put into the log for an operator.

    Attributes:
        id: Of its result.
        command_id: Its command id.
        result: The outcome of its result, once it is folded.
        result_data: The data of its result.
    """

    id: str
    command_id: str
    result: str | None = None
    result_data: dict[str, Any] | None = None


class RebaseView(Closed):
    """Who begins a new epoch, and from where.

    Attributes:
        replica: The worker that had come furthest.
        epoch: The new epoch.
        base: Watermark that it begins from, in the old epoch.
    """

    replica: str
    epoch: Generation
    base: Count


class RulesetFact(Message):
    """Body of ``fact.sys.ruleset``: a ruleset came into force.

    Attributes:
        at_ms: When.
        version: Which.
    """

    at_ms: Instant
    version: Generation


class ClockSetBackFact(Message):
    """Body of ``fact.sys.clock_set_back``: log time was ahead and is the broker's again.

    Attributes:
        at_ms: When, by the clock that it was set to.
        back_ms: By how much.
    """

    at_ms: Instant
    back_ms: Generation


class RebasedFact(Message):
    """Body of ``fact.sys.rebased``: the log goes on in a new epoch.

    Attributes:
        at_ms: When.
        epoch: The new one.
        base: Watermark of the snapshot it began from, in the old epoch.
    """

    at_ms: Instant
    epoch: Generation
    base: Count
