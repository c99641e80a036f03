"""The planes that the ledger folds, in the order in which time reaches them."""

from typing import Final

from worker.admission.plane import PLANE as ADMISSION
from worker.caps.plane import PLANE as CAPS
from worker.ledger.plane import Plane

PLANES: Final[tuple[Plane, ...]] = (ADMISSION, CAPS)
"""Every plane of this version; a file's schema is made of all of them."""
