"""Pipes in shared memory, and the names of multiprocessing.connection.

Pipe and Connection are ours. Client and Listener, which talk through sockets, and everything else are the standard
module's. wait takes both kinds of connections, queues, sentinels of processes and whatever else has a fileno().
"""
import multiprocessing.connection as _standard
from multiprocessing.connection import Client, Listener
from typing import Any, Iterable, List, Optional, Tuple

from .. import _shoal

__all__ = ["Client", "Listener", "Pipe", "wait"]


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


def wait(object_list: Iterable[Any], timeout: Optional[float] = None) -> List[Any]:
    """Waits until at least one object is ready and returns the list of those that are.

    Objects are connections, queues, sentinels, sockets or file descriptors.
    """
    return _standard.wait(list(object_list), timeout)


_shoal.set_class(Connection)


def __getattr__(name: str) -> Any:
    return getattr(_standard, name)
