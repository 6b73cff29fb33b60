"""The names of torch.multiprocessing.queue. The queues are those of queues.py."""
from __future__ import annotations

from queue import Empty, Full

from .queues import Queue, SimpleQueue
from .reduction import ForkingPickler

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ConnectionWrapper", "Empty", "ForkingPickler", "Full", "Queue", "SimpleQueue"]


class ConnectionWrapper:
    """Passes everything on to a connection. torch needs it to send tensors; connections of this package do so themselves."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    def __getattr__(self, name: str) -> Any:
        if "conn" not in self.__dict__:  # while it is unpickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'conn'")
        return getattr(self.conn, name)
