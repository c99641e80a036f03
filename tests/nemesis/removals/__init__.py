"""The product's guards as data: what to remove, and which tests must notice.

An edit is an exact fragment of a source file, found there exactly once, and what stands in its
place when the guard is gone. The program it leaves is whole: it starts, and does the ordinary
thing as before. Whoever rewrites such a line rewrites its fragment here; a test in the default run
says which.
"""

from typing import Final

from tests.nemesis.removals import admission, caps, checkpoints, ledger
from tests.nemesis.removals.guard import Edit, Guard

GUARDS: Final[tuple[Guard, ...]] = (
    *checkpoints.GUARDS,
    *ledger.GUARDS,
    *caps.GUARDS,
    *admission.GUARDS,
)
"""All of them."""

__all__ = ["GUARDS", "Edit", "Guard"]
