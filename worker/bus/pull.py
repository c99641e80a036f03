"""Pulling: deliveries to acknowledge (``Puller``) and a log to read in order (``LogReader``)."""

from worker.bus.delivery import Delivery
from worker.bus.errors import GapError
from worker.bus.puller import Handler, Puller
from worker.bus.reader import LogReader

__all__ = ["Delivery", "GapError", "Handler", "LogReader", "Puller"]
