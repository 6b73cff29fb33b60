"""Processes as objects: the base class of every Process here, and what the running process knows of its relatives.

The functions and the base class are those of the standard module, so that active_children(), current_process() and
parent_process() of both modules tell the same.
"""
import multiprocessing.process as _standard
import os
from multiprocessing.process import (AuthenticationString, _cleanup, _dangling, active_children, current_process,  # noqa: F401
                                     parent_process)

__all__ = ["BaseProcess", "current_process", "active_children", "parent_process"]


class BaseProcess(_standard.BaseProcess):
    """A child process, in the world of its parent.

    It takes the arguments of multiprocessing.Process and one more: with outlive=True it continues when its parent dies.
    Otherwise it ends within a second of its parent's death, however the parent died.
    """

    _start_method: "str | None" = None

    def __init__(self, group=None, target=None, name=None, args=(), kwargs={}, *, daemon=None, outlive=False):
        super().__init__(group, target, name, args, kwargs, daemon=daemon)
        self._outlive = bool(outlive)

    def _bootstrap(self, parent_sentinel=None):
        from . import context
        if self._start_method is not None:
            context._force_start_method(self._start_method)
            self._start_method = None  # else the base class would change the start method of the standard module
        return super()._bootstrap(parent_sentinel)


def parent_sentinel(parent_pid: int) -> int:
    """Returns an fd that is readable once the parent is dead."""
    try:
        return os.pidfd_open(parent_pid)
    except ProcessLookupError:
        reader, writer = os.pipe()
        os.close(writer)
        return reader
