"""Starts a process by the fork server."""
from __future__ import annotations

from .. import _shoal
from . import forkserver, popen_fork, spawn

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, List

__all__ = ["Popen"]


class _DupFd:
    """An fd that is sent to the child with its start."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        return forkserver.received_fds[self.index]


class Popen(popen_fork.Popen):
    """A child of the fork server."""

    method = "forkserver"
    DupFd = _DupFd

    def __init__(self, process_obj: Any) -> None:
        self.fds_to_send: List[int] = []
        super().__init__(process_obj)

    def duplicate_for_child(self, fd: int) -> int:
        """Registers an fd for the child and returns its index. The objects of the standard module call this."""
        self.fds_to_send.append(fd)
        return len(self.fds_to_send) - 1

    def _launch(self, process_obj: Any) -> _shoal.Process:
        data, objects = spawn.pickle_process(process_obj, self)
        return forkserver.start(data, objects, process_obj.name, process_obj._outlive, self.fds_to_send)
