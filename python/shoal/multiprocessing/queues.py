"""Queues in shared memory, with the interface of multiprocessing.queues.

An object that was put is in shared memory when put returns: there is no feeder thread, what cannot be pickled raises
from put, and the sender may exit at once.
"""
from __future__ import annotations

import contextlib
import types
from queue import Empty, Full

from .. import _shoal
from .._shoal import Closed

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Dict, Iterator, List, Optional

__all__ = ["AcknowledgedQueue", "JoinableQueue", "Queue", "SimpleQueue"]


PIPE_BYTES = 1 << 20  # as SHOAL_PIPE_BYTES in shoal/queue.h


class Queue(_shoal.Queue):
    """A queue for any number of producers and consumers. maxsize 0 means no bound."""

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        super().__init__(maxsize)

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def _reader(self) -> "_End":
        return _End(self)

    def join_thread(self) -> None:
        """Does nothing: there is no feeder thread to wait for."""
        if not self._closed:
            raise AssertionError(f"Queue {self!r} not closed")

    def cancel_join_thread(self) -> None:
        """Does nothing: there is no feeder thread to wait for."""

    async def get_async(self) -> Any:
        """Takes the oldest object, without blocking the event loop.

        Uses fileno(). A cancelled call takes nothing.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            try:
                return self.get_nowait()
            except Empty:
                await self._readable(loop)

    async def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until there may be something to get. Several tasks may wait, but a loop knows one reader of an fd."""
        # The queue holds those that wait, and nothing global does: a loop that is closed while they wait, and they, can be
        # collected.
        loops: Dict[Any, List[asyncio.Future[None]]] = self.__dict__.setdefault("_waiting", {})
        waiting = loops.setdefault(loop, [])
        ready: asyncio.Future[None] = loop.create_future()
        waiting.append(ready)
        fd = self.fileno()
        if len(waiting) == 1:
            loop.add_reader(fd, _wake, waiting)
        try:
            await ready
        finally:
            waiting.remove(ready)
            if not waiting:
                loops.pop(loop, None)
                if not loop.is_closed():
                    loop.remove_reader(fd)

    async def put_async(self, obj: Any) -> None:
        """Puts an object, without blocking the event loop. Looks every few milliseconds while the queue is full."""
        import asyncio

        delay = 0.001
        while True:
            try:
                return self.put_nowait(obj)
            except Full:
                await asyncio.sleep(delay)
                delay = min(2 * delay, 0.02)


def _wake(waiting: List[asyncio.Future[None]]) -> None:
    for ready in waiting:
        if not ready.done():
            ready.set_result(None)


class JoinableQueue(Queue):
    """A queue that counts unfinished objects: task_done() for each that was taken, join() waits for all."""

    def task_done(self) -> None:
        """Reports that an object that was taken is done. Raises ValueError if it is called too often."""
        self._task_done()

    def join(self) -> None:
        """Waits until task_done() was called for every object that was put."""
        self._join()


class AcknowledgedQueue(Queue):
    """A queue from which nothing is lost when the process that took it dies.

    An object belongs to the queue until the block of `with queue.take() as obj:` has ended. If the process dies inside the
    block, or the block raises, the next one takes the object. So every object arrives at least once. join() waits until
    all are done. Only take() takes from this queue, and one object at a time for each queue object.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        _shoal.Queue.__init__(self, maxsize, acknowledge=True)

    def get(self, block: bool = True, timeout: Optional[float] = None) -> Any:
        """Raises ValueError: only take() takes from this queue."""
        raise ValueError("this is an acknowledged queue: take from it by `with queue.take() as obj`")

    def get_nowait(self) -> Any:
        """Raises ValueError: only take() takes from this queue."""
        self.get()

    async def get_async(self) -> Any:
        """Raises ValueError: only take() takes from this queue."""
        self.get()

    def join(self) -> None:
        """Waits until everything that was put is done."""
        self._join()

    @contextlib.contextmanager
    def take(self, timeout: Optional[float] = None) -> Iterator[Any]:
        """Takes the oldest object for the block of a with statement. Raises queue.Empty after the timeout."""
        obj, _ = self._take(timeout)
        try:
            yield obj
        except BaseException:
            self._return()
            raise
        self._done()


class SimpleQueue(_shoal.Queue):
    """A queue without timeouts. Like a pipe it holds up to 1 MiB, and at most maxsize objects if that is not 0: then a put waits."""

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        super().__init__(maxsize, maxbytes=PIPE_BYTES)

    def close(self) -> None:
        """Drops this process's reference. Other processes can still use the queue."""
        self._release()

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def _reader(self) -> "_End":
        return _End(self)

    @property
    def _writer(self) -> "_End":
        return _End(self)


class _End:
    """What concurrent.futures and others use of a queue's connections.

    ProcessPoolExecutor waits for results and for the end of workers at once, and takes a worker that has ended for dead
    unless `queue._reader in ready`. But an fd of ours becomes readable a moment after the put: a worker that puts its last
    result and exits could be seen before its result. `in` calls __eq__, so that looks at the queue itself.
    """

    def __init__(self, queue: _shoal.Queue) -> None:
        self._queue = queue

    def __eq__(self, other: object) -> bool:
        return self is other or not self._queue.empty()

    __hash__ = object.__hash__

    def fileno(self) -> int:
        return self._queue.fileno()

    def recv(self) -> Any:
        return self._queue.get()

    def send(self, obj: Any) -> None:
        self._queue.put(obj)

    def poll(self, timeout: Optional[float] = 0.0) -> bool:
        return not self._queue.empty()

    def close(self) -> None:
        self._queue.close()

    @property
    def closed(self) -> bool:
        return self._queue._closed


_shoal.set_class(Queue)
