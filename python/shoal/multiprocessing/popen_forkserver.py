"""Starts a process by the fork server."""
from multiprocessing import resource_sharer
from typing import Any

from .. import _shoal
from . import forkserver, popen_fork, spawn

__all__ = ["Popen"]


class Popen(popen_fork.Popen):
    """A child of the fork server."""

    method = "forkserver"
    DupFd = resource_sharer.DupFd  # the child asks this process for fds that it needs

    def _launch(self, process_obj: Any) -> _shoal.Process:
        data, objects = spawn.pickle_process(process_obj, self)
        return forkserver.start(data, objects, process_obj.name, process_obj._outlive)
