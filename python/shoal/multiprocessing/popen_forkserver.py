"""Starts a process by a fork server."""
from . import popen_spawn_posix

__all__ = ["Popen"]


class Popen(popen_spawn_posix.Popen):
    """A child of the fork server."""

    method = "forkserver"

    def _launch(self, process_obj):
        raise NotImplementedError("the start method forkserver does not work yet: use fork or spawn")
