"""Starts a process as a fresh Python."""
from __future__ import annotations

import os
from multiprocessing import resource_tracker

from .. import _shoal
from . import popen_fork, spawn

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, List

__all__ = ["Popen"]


class _DupFd:
    """An fd that the child inherits, under the same number."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        return self.fd


class Popen(popen_fork.Popen):
    """A child that runs a fresh Python."""

    method = "spawn"
    DupFd = _DupFd

    def __init__(self, process_obj: Any) -> None:
        self._fds: List[int] = []
        super().__init__(process_obj)

    def duplicate_for_child(self, fd: int) -> int:
        """Makes a duplicate for the child and returns its number. The objects of the standard module call this."""
        self._fds.append(os.dup(fd))
        return self._fds[-1]

    def _launch(self, process_obj: Any) -> _shoal.Process:
        try:
            tracker_fd: Any = resource_tracker.getfd()
            data, objects = spawn.pickle_process(process_obj, self, self.duplicate_for_child(tracker_fd))
            return _shoal.start_program(spawn.get_executable(), spawn.get_command_line(), data, objects, self._fds,
                                        process_obj.name, process_obj._outlive)
        finally:
            for fd in self._fds:
                os.close(fd)
