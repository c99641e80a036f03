"""The version of this worker."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """``major.minor.patch`` of the installed distribution; ``0.0.0`` if it is not installed."""
    try:
        return metadata.version("tidegate")
    except metadata.PackageNotFoundError:
        return "0.0.0"
