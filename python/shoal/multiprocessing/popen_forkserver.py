"""Starts a process by the fork server."""
from __future__ import annotations

from multiprocessing import resource_sharer

from .. import _shoal
from . import forkserver, popen_fork, spawn

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Popen"]


class Popen(popen_fork.Popen):
    """A child of the fork server."""

    method = "forkserver"
    DupFd = resource_sharer.DupFd  # the child asks this process for fds that it needs

    def _launch(self, process_obj: Any) -> _shoal.Process:
        data, objects = spawn.pickle_process(process_obj, self)
        return forkserver.start(data, objects, process_obj.name, process_obj._outlive)
