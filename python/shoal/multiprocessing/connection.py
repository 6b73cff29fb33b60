"""Pipes in shared memory, and the names of multiprocessing.connection.

Pipe and Connection are ours. Client and Listener, which talk through sockets, and everything else are the standard
module's. wait takes both kinds of connections, queues, sentinels of processes and whatever else has a fileno().
"""
from __future__ import annotations

import multiprocessing.connection as _standard
import threading
import time
from multiprocessing.connection import Client, Listener

from .. import _shoal

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, List, Optional, Tuple

__all__ = ["Client", "Listener", "Pipe", "wait"]

#: How long the main thread sleeps at a time while it waits, in seconds: as long as the library does.
_SLICE = 0.05


class Connection(_shoal.Connection):
    """One end of a pipe. The other end gets EOFError when every process has closed this one or died.

    Connection(fd) makes the standard module's connection over a file descriptor.
    """

    def __new__(cls, handle: int, readable: bool = True, writable: bool = True) -> Any:
        return _standard.Connection(handle, readable, writable)


def Pipe(duplex: bool = True) -> Tuple[Connection, Connection]:
    """Makes a pipe and returns its two ends. Without duplex, the first receives and the second sends."""
    ends: Tuple[Connection, Connection] = _shoal.pipe(Connection, duplex)
    return ends


def wait_for_signals_too(wait: Callable[[Optional[float]], Any], timeout: Optional[float] = None) -> Any:
    """Returns wait(timeout), and lets a signal end the wait.

    Python's locks and system calls miss a signal that arrives just before they sleep, or that the kernel gives to another
    thread: they sleep on. Only the main thread runs signal handlers, so the main thread wakes up every 50 ms."""
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE if end is None else end - time.monotonic()
        done = wait(max(0.0, min(left, _SLICE)))
        if done or left < _SLICE:
            return done


def wait(object_list: Iterable[Any], timeout: Optional[float] = None) -> List[Any]:
    """Waits until at least one object is ready and returns the list of those that are.

    Objects are connections, queues, sentinels, sockets or file descriptors.
    """
    objects: List[Any] = list(object_list)
    others = [obj for obj in objects if not isinstance(obj, (_shoal.Connection, _shoal.Queue))]
    ours = [obj for obj in objects if isinstance(obj, (_shoal.Connection, _shoal.Queue))]
    if not ours:
        return _wait(others, timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    ready: List[Any] = [obj for obj in ours if _ready(obj)]
    ready += _standard.wait(others, 0) if others else []
    while not ready:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        # An fd of ours follows the object with a short delay, so it only says when to look.
        woken = _wait(objects, left)
        ready = [obj for obj in ours if _ready(obj)] + [obj for obj in others if obj in woken]
    return ready


def _wait(objects: List[Any], timeout: Optional[float]) -> List[Any]:
    ready: List[Any] = wait_for_signals_too(lambda seconds: _standard.wait(objects, seconds), timeout)
    return ready


def _ready(obj: Any) -> bool:
    """Returns whether one of ours has something to take now, or its other end is closed."""
    return obj.poll() if isinstance(obj, _shoal.Connection) else not obj.empty()


_shoal.set_class(Connection)


def __getattr__(name: str) -> Any:
    return getattr(_standard, name)
