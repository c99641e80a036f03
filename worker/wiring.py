"""Which components a worker runs in each space."""

import time
from collections.abc import Sequence

from schemas.names import Names
from worker.bus.connection import Connection
from worker.checkpoints.plane import CheckpointPlane
from worker.component import SpaceComponent
from worker.evidence.plane import EvidencePlane
from worker.inventory import Inventory
from worker.ledger.service import LedgerPlane
from worker.planes import PLANES
from worker.settings import Settings
from worker.web.probes import Probes


def planes_of(
    conn: Connection, names: Names, settings: Settings, replica: str
) -> Sequence[SpaceComponent]:
    """The components of one space, in the order in which they start."""
    checkpoints = CheckpointPlane(conn, names, settings, replica, wall_ns=time.time_ns)
    ledger = LedgerPlane(conn, names, settings, replica, planes=PLANES)
    evidence = EvidencePlane(conn, names, settings, replica, ledger)
    probes = Probes(conn, names, replica, ledger, monotonic=time.monotonic)
    inventory = Inventory(conn, names, settings)
    return (checkpoints, ledger, evidence, inventory, probes)
