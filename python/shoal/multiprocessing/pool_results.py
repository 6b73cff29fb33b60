"""The results of a pool: the objects that its calls return, and the thread that receives what the workers send."""
import collections
import itertools
import multiprocessing.pool as _standard
import sys
import threading
import time
from multiprocessing import TimeoutError
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from .. import _shoal
from .connection import wait_for_signals_too
from .pool_child import DIED, DONE, RAISED
from .pool_workers import CLOSE, RUN, TERMINATE, Death, WorkerDied, Workers

__all__ = ["ApplyResult", "AsyncResult", "MapResult", "IMapIterator", "IMapUnorderedIterator"]

#: How many results the handler thread takes at a time.
_BATCH = 1000

#: How long the handler thread waits, in seconds, before it tries again to take results while the heap is full.
_FULL_PAUSE = 0.05

_job_numbers = itertools.count(1)


# ---- results ----

class ApplyResult(_standard.ApplyResult):  # type: ignore[type-arg]
    """The result of one call, which may not be there yet."""

    def __init__(self, pool: Any, callback: Optional[Callable[[Any], Any]],
                 error_callback: Optional[Callable[[BaseException], Any]]) -> None:
        self._pool = pool  # the pool lives until the result is there
        self._job = next(_job_numbers)
        self._event = threading.Event()
        self._callback = callback
        self._error_callback = error_callback
        self._success = True
        self._value: Any = None
        self._room: Optional[threading.Semaphore] = None  # for tasks that are not done; None: no limit
        self._cache = pool._cache

    def ready(self) -> bool:
        """Returns whether the call has completed."""
        return self._event.is_set()

    def successful(self) -> bool:
        """Returns whether the call completed without an exception. Raises ValueError if it has not completed."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the result is there, or for `timeout` seconds."""
        wait_for_signals_too(self._event.wait, timeout)

    def get(self, timeout: Optional[float] = None) -> Any:
        """Returns the result, or raises what the call raised. Raises TimeoutError if it does not come in time."""
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        if self._success:
            return self._value
        raise self._value

    # The handler thread calls what follows.

    def _set(self, index: int, success: bool, value: Any) -> None:
        self._success = success
        self._value = value
        self._finish()

    def _finish(self) -> None:
        callback = self._callback if self._success else self._error_callback
        if callback:
            _run_callback(callback, self._value)
        self._cache.pop(self._job, None)
        self._event.set()
        self._pool = self._callback = self._error_callback = None

    def _abandon(self, error: BaseException) -> None:
        """Ends the wait for a result that will not come. No callback is called."""
        if not self._event.is_set():
            self._callback = self._error_callback = None
            self._success, self._value = False, error
            self._finish()
        if self._room is not None:
            self._room.release()

    def _set_length(self, length: int) -> None:
        """The length of a result is known from the beginning; that of an iterator is not."""

    def _describe(self, index: int) -> str:
        """Names a task, for an error."""
        return f"task {self._job}"


AsyncResult = ApplyResult


class MapResult(ApplyResult):
    """The list of results of a map, which may not be there yet."""

    def __init__(self, pool: Any, chunksize: int, length: int, callback: Optional[Callable[[Any], Any]],
                 error_callback: Optional[Callable[[BaseException], Any]]) -> None:
        super().__init__(pool, callback, error_callback)
        self._value = [None] * length
        self._chunksize = chunksize
        # Chunks that are not done. Programs read it to show their progress, so it has the standard module's name.
        self._number_left = -(-length // chunksize) if chunksize > 0 else 0
        if not self._number_left:
            self._event.set()
            self._pool = None

    def _set(self, index: int, success: bool, value: Any) -> None:
        if self._success:
            if not success:
                self._success, self._value = False, value
            elif self._chunksize == 1:
                self._value[index] = value
            else:
                self._value[index * self._chunksize:(index + 1) * self._chunksize] = value
        self._number_left -= 1
        if not self._number_left:
            self._finish()
        if self._room is not None:
            self._room.release()

    def _describe(self, index: int) -> str:
        return _describe_chunk(index, self._chunksize)


def _describe_chunk(index: int, chunksize: int) -> str:
    first = index * chunksize
    return f"task {first}" if chunksize == 1 else f"tasks {first} to {first + chunksize - 1}"


class IMapIterator(_standard.IMapIterator):  # type: ignore[type-arg]
    """An iterator over results, in the order of the arguments."""

    def __init__(self, pool: Any, chunksize: int = 1) -> None:
        self._pool = pool
        self._job = next(_job_numbers)
        self._cond = threading.Condition(threading.Lock())
        self._items: Deque[Tuple[bool, Any]] = collections.deque()
        self._index = 0  # how many results have come, or for the ordered one, have come in order
        self._length: Optional[int] = None
        self._unsorted: Dict[int, Tuple[bool, Any]] = {}
        self._chunksize = chunksize
        self._cache = pool._cache
        self._room = threading.Semaphore(pool._window)

    def __iter__(self) -> "IMapIterator":
        return self

    def next(self, timeout: Optional[float] = None) -> Any:
        """Returns the next result, or raises what its task raised. Raises TimeoutError if it does not come in time."""
        def wait(seconds: Optional[float]) -> Any:
            return self._cond.wait_for(lambda: self._items or self._index == self._length, seconds)

        with self._cond:
            if not wait_for_signals_too(wait, timeout):
                raise TimeoutError
            if not self._items:
                self._pool = None
                raise StopIteration
            success, value = self._items.popleft()
        if success:
            return value
        raise value

    __next__ = next

    def _set(self, index: int, success: bool, value: Any) -> None:
        with self._cond:
            self._arrange(index, (success, value))
            self._room.release()
            self._check_end()

    def _arrange(self, index: int, item: Tuple[bool, Any]) -> None:
        self._unsorted[index] = item
        while self._index in self._unsorted:
            self._items.append(self._unsorted.pop(self._index))
            self._index += 1
            self._cond.notify()

    def _set_length(self, length: int) -> None:
        with self._cond:
            self._length = length
            self._check_end()

    def _check_end(self) -> None:
        if self._index == self._length:
            self._cond.notify_all()
            self._cache.pop(self._job, None)
            self._pool = None

    def _abandon(self, error: BaseException) -> None:
        with self._cond:
            if self._index != self._length:
                self._items.append((False, error))
                self._index += 1
                self._length = self._index
                self._check_end()
        self._room.release()

    def _describe(self, index: int) -> str:
        return _describe_chunk(index, self._chunksize)


class IMapUnorderedIterator(IMapIterator):
    """An iterator over results, in the order in which they come."""

    def _arrange(self, index: int, item: Tuple[bool, Any]) -> None:
        self._items.append(item)
        self._index += 1
        self._cond.notify()


def _run_callback(callback: Callable[[Any], Any], value: Any) -> None:
    """A callback that raises is reported like an exception of a thread, and the pool goes on."""
    try:
        callback(value)
    except Exception:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _no_memory(result: Any, index: int, reason: Optional[str]) -> MemoryError:
    return MemoryError(f"there was no memory to send the result of {result._describe(index)}"
                       + (f": {reason}" if reason else ""))


# ---- what the pool and its threads share ----

class Jobs:
    """The results that are waited for, and the thread that receives them.

    It does not refer to the pool, so that the pool can be collected while the thread runs.
    """

    def __init__(self, retries: int) -> None:
        self.cache: Dict[int, Any] = {}
        self.workers: Workers
        self._retries = retries
        self._notes: Deque[Callable[[], None]] = collections.deque()
        self._broken: Optional[str] = None
        self._start_error: Optional[BaseException] = None
        self.thread = threading.Thread(target=self._handle, name="shoal-pool-results", daemon=True)

    def add(self, result: Any) -> None:
        """Registers a result. Raises ValueError if the pool does not run any more."""
        self.cache[result._job] = result
        if self.workers.state != RUN:  # looked at after adding, so either this sees it or _handle sees the result
            self.cache.pop(result._job, None)
            self.workers.wake()
            raise ValueError("Pool not running") from self.workers.error

    def put(self, result: Any, index: int, call: int, function: Any, x: Any, more: bool = False) -> int:
        """Puts a task; more: another follows at once. If it cannot be pickled, it fails. Returns about how many bytes it
        takes; -1 if it has no use, because the pool was terminated."""
        size = 0
        try:
            if function.pickle is None:
                x = (function.function, x)
            size = _shoal.pool_put(self.workers.pool, result._job, index, call, function.pickle, function.keep, x,
                                   more)
        except _shoal.Closed:
            return -1
        except Exception as error:
            self.fail(result, index, error)
        if self._broken is not None:
            self._note(self._fail_all)
        return size

    def fail(self, result: Any, index: int, error: BaseException) -> None:
        """Lets a task fail, in the handler thread like all others."""
        def let_it_fail() -> None:
            if result._job in self.cache:
                result._set(index, False, error)
        self._note(let_it_fail)

    # ---- called by the workers' thread ----

    def idle(self) -> bool:
        return not self.cache

    def broken(self, text: str, error: Optional[BaseException]) -> None:
        def become_broken() -> None:
            self._broken, self._start_error = text, error
            self._fail_all()
        self._note(become_broken)

    # ---- the handler thread ----

    def _note(self, note: Callable[[], None]) -> None:
        """Lets the handler thread call a function."""
        self._notes.append(note)
        try:
            self.workers.answers.put(0)  # it ends the wait
        except (_shoal.Closed, MemoryError):  # with a full heap, the handler thread sees it a second later at the latest
            pass

    def _handle(self) -> None:
        try:
            while self._take_batch():
                pass
        except BaseException as unexpected:
            self.workers.error = unexpected
            self.workers.set_state(TERMINATE)
            raise
        finally:
            cause = self.workers.error
            error = RuntimeError(f"the pool {'failed' if cause else 'was terminated'} before the task was done")
            error.__cause__ = cause
            for result in list(self.cache.values()):
                result._abandon(error)

    def _take_batch(self) -> bool:
        batch: Optional[List[Any]] = []
        try:
            batch = _shoal.pool_collect(self.workers.pool, _BATCH)
        except MemoryError:  # the heap is full, perhaps for a moment only; nothing is lost
            time.sleep(_FULL_PAUSE)
        if batch is None or self.workers.state == TERMINATE:
            return False
        cache = self.cache
        for job, index, outcome, value in batch:
            result = cache.get(job)
            if result is None:
                continue  # nobody waits for it any more
            if outcome <= RAISED:
                result._set(index, outcome == DONE, value)
            else:
                error = self._died(result, index, Death(*value)) if outcome == DIED else _no_memory(result, index, value)
                result._set(index, False, error)
        self._run_notes()
        if self.workers.state == CLOSE and not cache:
            self.workers.wake()
        return True

    def _run_notes(self) -> None:
        while self._notes:
            self._notes.popleft()()

    def _died(self, result: Any, index: int, death: Death) -> WorkerDied:
        text = f"{death} while it ran {result._describe(index)}"
        if self._retries:
            text += f", which was run {self._retries + 1} times"
        return WorkerDied(text, death.pid, death.exitcode)

    def _fail_all(self) -> None:
        text = str(self._broken)
        if self._start_error is not None:
            text += f"; its initializer raised {type(self._start_error).__name__}: {self._start_error}"
        error = WorkerDied(text)
        error.__cause__ = self._start_error
        for result in list(self.cache.values()):
            result._abandon(error)
