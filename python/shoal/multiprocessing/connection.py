"""Pipes in shared memory, and the names of multiprocessing.connection.

Pipe and Connection are ours; Client and Listener, which talk through sockets, are the standard module's. wait takes
both kinds of connections, queues, processes' sentinels and everything else with a fileno().
"""
from multiprocessing.connection import Client, Listener, answer_challenge, deliver_challenge
from multiprocessing.connection import wait as _wait_for_fds
from typing import Any, Iterable, List, Optional, Tuple

from .. import _shoal

__all__ = ["Client", "Listener", "Pipe", "wait", "Connection"]


class Connection(_shoal.Connection):
    """One end of a pipe. The other end gets EOFError when every process has closed this one or died."""


def Pipe(duplex: bool = True) -> Tuple[Connection, Connection]:
    """Makes a pipe and returns its two ends. Without duplex, the first receives and the second sends."""
    ends: Tuple[Connection, Connection] = _shoal.pipe(Connection, duplex)
    return ends


def wait(object_list: Iterable[Any], timeout: Optional[float] = None) -> List[Any]:
    """Waits until at least one object is ready and returns the list of those that are.

    Objects are connections, queues, sentinels, sockets or file descriptors.
    """
    return _wait_for_fds(list(object_list), timeout)


_shoal.set_class(Connection)
