"""Which planes a worker serves in each space."""

from collections.abc import Sequence

from schemas.names import Names
from worker.bus.connection import Connection
from worker.component import SpaceComponent
from worker.settings import Settings


def planes_of(conn: Connection, names: Names, settings: Settings) -> Sequence[SpaceComponent]:
    """The planes of one space, in the order in which they start."""
    return ()
