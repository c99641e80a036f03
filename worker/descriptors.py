"""Room for the files and sockets that a worker has open."""

import sys
from typing import Final

from worker.errors import StartRefused

WORKER: Final = 64
"""A worker's own: databases, sockets and what its libraries open, with room to spare."""

BROKER: Final = 128
"""What a broker of the worker's own has open beside its streams' files."""

SPACE: Final = 64
"""The files of one space's streams at such a broker."""


def provide(spaces: int, *, own_broker: bool) -> None:
    """Raise the limit on open files as far as it is too low and may be raised.

    Args:
        spaces: How many spaces are served.
        own_broker: Whether the worker starts a broker, which inherits the limit.

    Raises:
        StartRefused: It is too low and may not be raised.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = WORKER + (BROKER + SPACE * spaces if own_broker else 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise StartRefused(
            f"this process may have {hard} files open at once and needs {needed}: "
            "raise the limit (ulimit -n, LimitNOFILE= or --ulimit nofile=)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
