"""Names of everything Tidegate keeps on the broker for one space (DESIGN section 4)."""

from dataclasses import dataclass

from schemas import tokens
from schemas.codes import BadInput


@dataclass(frozen=True, slots=True)
class Names:
    """Stream, bucket and durable names of one space under one root.

    Attributes:
        root: First token of every subject; ``cotal`` makes the timer plane a Cotal space's.
        space: The tenant.
    """

    root: str
    space: str

    def __post_init__(self) -> None:
        if not tokens.is_root(self.root):
            raise BadInput("root", "bad-token", "root must match [A-Za-z0-9_-]{1,32}")
        if not tokens.is_space(self.space):
            raise BadInput("space", "bad-token", "space must match [A-Za-z0-9_-]{1,64}")
        if self.space.startswith("REQ_"):
            # EPT_REQ_x would be both the timers of space REQ_x and the requests of space x.
            raise BadInput("space", "reserved-space", "a space must not begin with REQ_")

    @property
    def prefix(self) -> str:
        """``<root>.<space>``, with which every subject of the space begins."""
        return f"{self.root}.{self.space}"

    @property
    def cmd_stream(self) -> str:
        """Checkpoint commands."""
        return f"CMD_{self.space}"

    @property
    def log_stream(self) -> str:
        """The ordered log of admission, cap and system commands."""
        return f"LOG_{self.space}"

    @property
    def res_stream(self) -> str:
        """Results, grants and facts."""
        return f"RES_{self.space}"

    @property
    def ept_stream(self) -> str:
        """Armed, fired and cancelled timers (message schedules on)."""
        return f"EPT_{self.space}"

    @property
    def ept_req_stream(self) -> str:
        """Timer requests of foreign owners (message schedules off)."""
        return f"EPT_REQ_{self.space}"

    @property
    def epf_stream(self) -> str:
        """Settle facts, one per checkpoint, for ever."""
        return f"EPF_{self.space}"

    @property
    def records_bucket(self) -> str:
        """Checkpoint records, prompts and answers."""
        return f"{self.root}_records_{self.space}"

    @property
    def payloads_bucket(self) -> str:
        """Sealed prompts."""
        return f"{self.root}_payloads_{self.space}"

    @property
    def keys_bucket(self) -> str:
        """The space's own keys; workers only."""
        return f"{self.root}_keys_{self.space}"

    @property
    def leases_bucket(self) -> str:
        """The publishing lease of the fold's replicas; workers only, for speed only."""
        return f"{self.root}_leases_{self.space}"

    @property
    def snapshots_bucket(self) -> str:
        """Object store of the ledger's snapshots."""
        return f"{self.root}_snapshots_{self.space}"

    @property
    def cp_durable(self) -> str:
        """Shared consumer of checkpoint commands."""
        return f"cp_{self.space}"

    @property
    def timers_durable(self) -> str:
        """Shared consumer of foreign timer requests."""
        return f"timers_{self.space}"

    @property
    def fires_durable(self) -> str:
        """Shared consumer of fired timers."""
        return f"fires_{self.space}"


def kv_stream(bucket: str) -> str:
    """The stream behind a key-value bucket."""
    return f"KV_{bucket}"


def object_stream(bucket: str) -> str:
    """The stream behind an object store."""
    return f"OBJ_{bucket}"
