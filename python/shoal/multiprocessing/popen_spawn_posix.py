"""Starts a process as a fresh Python."""
import os
from multiprocessing import resource_tracker

from .. import _shoal
from . import popen_fork, spawn

__all__ = ["Popen"]


class _DupFd:
    """An fd that the child inherits, under the same number."""

    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return self.fd


class Popen(popen_fork.Popen):
    """A child that runs a fresh Python."""

    method = "spawn"
    DupFd = _DupFd

    def __init__(self, process_obj):
        self._fds = []
        super().__init__(process_obj)

    def duplicate_for_child(self, fd):
        """Makes a duplicate for the child and returns its number. The objects of the standard module call this."""
        self._fds.append(os.dup(fd))
        return self._fds[-1]

    def _launch(self, process_obj):
        try:
            data, objects = spawn.pickle_process(process_obj, self, self.duplicate_for_child(resource_tracker.getfd()))
            return _shoal.start_program(spawn.get_executable(), spawn.get_command_line(), data, objects, self._fds,
                                        process_obj.name, process_obj._outlive)
        finally:
            for fd in self._fds:
                os.close(fd)
