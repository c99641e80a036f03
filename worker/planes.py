"""The planes that the ledger folds, in the order in which time reaches them."""

from worker.ledger.plane import Plane

PLANES: tuple[Plane, ...] = ()
"""Every plane of this version; a file's schema is made of all of them."""
