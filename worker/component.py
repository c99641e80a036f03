"""What the app supervises: something with a start, a run and a stop."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from schemas.results import Refusal
from schemas.strict_json import JsonObject
from worker.queries import QueryHandler


class Component(Protocol):
    """A part of the worker with a life of its own.

    ``start``, ``run`` and ``stop`` are called once each, in that order; ``stop`` also after a
    ``start`` that raised, and it must cope.

    Attributes:
        name: For logs and for reasons of not being ready.
    """

    name: str

    async def start(self) -> None:
        """Make everything ready that ``run`` needs.

        Raises:
            StartRefused: If the worker must not start like this.
            Unavailable: If the broker went away meanwhile; the worker starts over.
        """

    async def run(self) -> None:
        """Do the work until cancelled or stopped.

        Returning or raising while the worker is not stopping is a failure of the worker.
        """

    async def stop(self) -> None:
        """Take no new work, finish what is in flight, and end within four seconds."""

    def not_ready(self) -> list[str]:
        """Why work would not be served now; empty when ready."""
        ...


class SpaceComponent(Component, Protocol):
    """A component that serves one space: the checkpoint plane, or the ledger with its planes."""

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """Its queries by (plane, name)."""
        ...

    def status(self) -> JsonObject:
        """What ``sys.status`` shows of it; from memory, at once."""
        ...


@runtime_checkable
class Folding(Protocol):
    """A component whose state follows a log, so that one may ask how it is *after* a result."""

    async def wait_for(self, result_id: str) -> Refusal | None:
        """Wait until that result's command is folded; ``None`` once it is.

        Raises:
            BadInput: It is not a result id.
        """
        ...


@runtime_checkable
class Sampled(Protocol):
    """A component whose gauges are brought up to date when somebody asks for the metrics."""

    async def sample(self) -> None:
        """Set its gauges from what is so now."""
