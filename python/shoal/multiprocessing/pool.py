"""Pools of worker processes, with the interface of multiprocessing.pool.

A worker may die at any moment, and no task is lost: it fails with WorkerDied, which names the signal, or it is run
again if the pool was made with retries.
"""
import collections
import itertools
import multiprocessing.pool as _standard
import os
import sys
import threading
import types
import warnings
from multiprocessing import TimeoutError, util
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback, ThreadPool
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from .. import _shoal
from . import context as _contexts
from . import reduction
from .pool_workers import CLOSE, DONE, GAVE_UP, NO_START, NOTE, RAISED, RUN, TERMINATE, Death, WorkerDied, Workers

__all__ = ["Pool", "ThreadPool", "WorkerDied"]

WorkerDied.__module__ = __name__

INIT = "INIT"

# How pool.c calls a function.
_ONE, _STAR, _CHUNK, _STARS, _KEYWORDS = range(5)

#: How many results the handler thread takes at a time.
_BATCH = 1000

#: map() puts tasks of about this many bytes at once. For the rest, a thread waits until others are done.
_AT_ONCE = 64 << 20

#: A pickled function up to this size is sent with every task, and pickled once.
_SMALL_FUNCTION = 512

_job_numbers = itertools.count(1)


# ---- results ----

class ApplyResult(_standard.ApplyResult):
    """The result of one call, which may not be there yet."""

    def __init__(self, pool: "Pool", callback: Optional[Callable[[Any], Any]],
                 error_callback: Optional[Callable[[BaseException], Any]]) -> None:
        self._pool: Optional[Pool] = pool  # the pool lives until the result is there
        self._job = next(_job_numbers)
        self._event = threading.Event()
        self._callback = callback
        self._error_callback = error_callback
        self._success = True
        self._value: Any = None
        self._deaths: Dict[int, Death] = {}
        self._room: Optional[threading.Semaphore] = None  # for tasks that are not done; None: no limit
        self._cache = pool._cache

    def ready(self) -> bool:
        """Whether the call has completed."""
        return self._event.is_set()

    def successful(self) -> bool:
        """Whether the call completed without an exception. Raises ValueError if it has not completed."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the result is there, or for `timeout` seconds."""
        self._event.wait(timeout)

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

    def _is_open(self, index: int) -> bool:
        """Whether the result of a task is still missing."""
        return not self._event.is_set()

    def _describe(self, index: int) -> str:
        """Names a task, for an error."""
        return f"task {self._job}"


AsyncResult = ApplyResult


class MapResult(ApplyResult):
    """The list of results of a map, which may not be there yet."""

    def __init__(self, pool: "Pool", chunksize: int, length: int, callback: Optional[Callable[[Any], Any]],
                 error_callback: Optional[Callable[[BaseException], Any]]) -> None:
        super().__init__(pool, callback, error_callback)
        self._value = [None] * length
        self._chunksize = chunksize
        self._left = -(-length // chunksize) if chunksize > 0 else 0
        self._seen = bytearray(self._left)
        if not self._left:
            self._event.set()
            self._pool = None

    def _set(self, index: int, success: bool, value: Any) -> None:
        if self._seen[index]:
            return  # a task that was run twice, because its first worker died after it had put the result
        self._seen[index] = 1
        if self._success:
            if not success:
                self._success, self._value = False, value
            elif self._chunksize == 1:
                self._value[index] = value
            else:
                self._value[index * self._chunksize:(index + 1) * self._chunksize] = value
        self._left -= 1
        if not self._left:
            self._finish()
        if self._room is not None:
            self._room.release()

    def _is_open(self, index: int) -> bool:
        return not self._seen[index]

    def _describe(self, index: int) -> str:
        return _describe_chunk(index, self._chunksize)


def _describe_chunk(index: int, chunksize: int) -> str:
    first = index * chunksize
    return f"task {first}" if chunksize == 1 else f"tasks {first} to {first + chunksize - 1}"


class IMapIterator(_standard.IMapIterator):
    """An iterator over results, in the order of the arguments."""

    def __init__(self, pool: "Pool", chunksize: int) -> None:
        self._pool: Optional[Pool] = pool
        self._job = next(_job_numbers)
        self._cond = threading.Condition(threading.Lock())
        self._items: Deque[Tuple[bool, Any]] = collections.deque()
        self._index = 0  # how many results have come, or for the ordered one, have come in order
        self._length: Optional[int] = None
        self._unsorted: Dict[int, Tuple[bool, Any]] = {}
        self._chunksize = chunksize
        self._deaths: Dict[int, Death] = {}
        self._cache = pool._cache
        self._room = threading.Semaphore(pool._window)

    def __iter__(self) -> "IMapIterator":
        return self

    def next(self, timeout: Optional[float] = None) -> Any:
        """Returns the next result, or raises what its task raised. Raises TimeoutError if it does not come in time."""
        with self._cond:
            if not self._cond.wait_for(lambda: self._items or self._index == self._length, timeout):
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
            if not self._is_open(index):
                return
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

    def _is_open(self, index: int) -> bool:
        return index >= self._index and index not in self._unsorted

    def _describe(self, index: int) -> str:
        return _describe_chunk(index, self._chunksize)


class IMapUnorderedIterator(IMapIterator):
    """An iterator over results, in the order in which they come."""

    def __init__(self, pool: "Pool", chunksize: int) -> None:
        super().__init__(pool, chunksize)
        self._early: set = set()  # those that came before one with a lower index
        self._low = 0  # all below have come

    def _arrange(self, index: int, item: Tuple[bool, Any]) -> None:
        self._early.add(index)
        while self._low in self._early:
            self._early.remove(self._low)
            self._low += 1
        self._items.append(item)
        self._index += 1
        self._cond.notify()

    def _is_open(self, index: int) -> bool:
        return index >= self._low and index not in self._early


def _run_callback(callback: Callable[[Any], Any], value: Any) -> None:
    """A callback that raises is reported like an exception of a thread, and the pool goes on."""
    try:
        callback(value)
    except Exception:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


# ---- what the pool and its threads share ----

class _Jobs:
    """The results that are waited for, and the thread that receives them.

    It does not refer to the pool, so that the pool can be collected while the thread runs.
    """

    def __init__(self, retries: int) -> None:
        self.cache: Dict[int, Any] = {}
        self.workers: Workers
        self._retries = retries
        self._notes: Deque[Callable[[], None]] = collections.deque()
        self._gave_up: List[Tuple[int, int]] = []  # tasks that failed; the deaths of their workers are not known yet
        self._idle_death: Optional[Death] = None  # the last one
        self._broken: Optional[str] = None
        self._start_error: Optional[BaseException] = None
        self.thread = threading.Thread(target=self._handle, name="shoal-pool-results", daemon=True)

    def add(self, result: Any) -> None:
        """Registers a result. Raises ValueError if the pool does not run any more."""
        self.cache[result._job] = result
        if self.workers.state != RUN:  # looked at after adding, so either this sees it or _handle sees the result
            self.cache.pop(result._job, None)
            self.workers.wake()
            raise ValueError("Pool not running")

    def put(self, result: Any, index: int, call: int, function: "_Function", x: Any) -> int:
        """Puts a task. If it cannot be pickled, it fails. Returns about how many bytes it takes; -1 if it has no use,
        because the pool was terminated."""
        size = 0
        try:
            if function.pickle is None:
                x = (function.function, x)
            size = _shoal.pool_put(self.workers.tasks, result._job, index, call, function.pickle, function.keep, x)
        except _shoal.Closed:
            return -1
        except Exception as error:
            self.fail(result, index, error)
        if self._broken is not None:
            self._note(self._fail_all)
        return size

    def fail(self, result: Any, index: int, error: BaseException) -> None:
        """Lets a task fail, in the handler thread like all others."""
        self._note(lambda: result._is_open(index) and result._set(index, False, error))

    # ---- called by the workers' thread ----

    def idle(self) -> bool:
        return not self.cache

    def died(self, death: Death) -> None:
        self._note(lambda: self._take_death(death))

    def unexplained(self) -> List[Tuple[int, int]]:
        return list(self._gave_up)

    def looked(self, asked: List[Tuple[int, int]]) -> None:
        self._note(lambda: self._explain_by_guess(asked))

    def broken(self, text: str) -> None:
        def become_broken() -> None:
            self._broken = text
            self._fail_all()
        self._note(become_broken)

    # ---- the handler thread ----

    def _note(self, note: Callable[[], None]) -> None:
        """Lets the handler thread call a function."""
        self._notes.append(note)
        try:
            _shoal.pool_answer(self.workers.results, NOTE, None)
        except _shoal.Closed:
            pass

    def _handle(self) -> None:
        error: BaseException = RuntimeError("the pool was terminated before the task was done")
        try:
            while self._take_batch():
                pass
        except BaseException as unexpected:
            error = unexpected
            self.workers.set_state(TERMINATE)
            raise
        finally:
            for result in list(self.cache.values()):
                result._abandon(error)

    def _take_batch(self) -> bool:
        batch = _shoal.pool_collect(self.workers.results, _BATCH)
        if batch is None or self.workers.state == TERMINATE:
            return False
        cache = self.cache
        for job, index, outcome, value in batch:
            if outcome <= RAISED:
                result = cache.get(job)
                if result is not None:
                    result._set(index, outcome == DONE, value)
            elif outcome == GAVE_UP:
                self._gave_up.append((job, index))
                self._explain()
                if self._gave_up:
                    self.workers.wake()
            elif outcome == NO_START:
                self._start_error = value
            else:
                self._run_notes()
        if self.workers.state == CLOSE and not cache:
            self.workers.wake()
        return True

    def _run_notes(self) -> None:
        while self._notes:
            self._notes.popleft()()

    def _take_death(self, death: Death) -> None:
        result = self.cache.get(death.job)
        if result is not None:
            result._deaths[death.index] = death
        elif not death.job:
            self._idle_death = death
        self._explain()

    def _explain(self) -> None:
        """Lets the tasks fail whose last worker died, as far as these deaths are known."""
        waiting, self._gave_up = self._gave_up, []
        for job, index in waiting:
            result = self.cache.get(job)
            if result is None or not result._is_open(index):
                continue
            death = result._deaths.get(index)
            if death is None:
                self._gave_up.append((job, index))
            else:
                self._fail_by_death(result, index, death)

    def _explain_by_guess(self, asked: List[Tuple[int, int]]) -> None:
        """All deaths are known now. A worker of what is left died after it took the task, and before it wrote that."""
        for job, index in set(asked).intersection(self._gave_up):
            self._gave_up.remove((job, index))
            result = self.cache.get(job)
            if result is not None and result._is_open(index):
                self._fail_by_death(result, index, self._idle_death)

    def _fail_by_death(self, result: Any, index: int, death: Optional[Death]) -> None:
        text = f"{death or 'a worker ended'} while it ran {result._describe(index)}"
        if self._retries:
            text += f", which was run {self._retries + 1} times"
        error = WorkerDied(text, death.pid, death.exitcode) if death else WorkerDied(text)
        result._set(index, False, error)

    def _fail_all(self) -> None:
        error = WorkerDied(str(self._broken))
        error.__cause__ = self._start_error
        for result in list(self.cache.values()):
            result._abandon(error)


class _Function:
    """A function, pickled once for many tasks."""

    __slots__ = ("function", "pickle", "keep")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.pickle: Optional[bytes] = None  # None: it is pickled with each argument
        self.keep = _is_global(function)  # the worker may keep it; others may have a state that a task changes
        try:
            pickle, objects = reduction.dumps(function)
            if not objects and len(pickle) <= _SMALL_FUNCTION:
                self.pickle = pickle
        except Exception:
            pass  # each task raises it again


def _is_global(function: Callable[..., Any]) -> bool:
    if isinstance(function, types.BuiltinFunctionType):
        return isinstance(function.__self__, (types.ModuleType, type(None)))
    return type(function) in (types.FunctionType, type)


def _chunks(items: Iterable[Any], size: int) -> Iterator[Tuple[Any, ...]]:
    iterator = iter(items)
    while True:
        chunk = tuple(itertools.islice(iterator, size))
        if not chunk:
            return
        yield chunk


# ---- the pool ----

class Pool(_standard.Pool):
    """A pool of worker processes that run functions.

    processes is the number of workers; the default is the number of CPUs. Each calls initializer(*initargs) first.
    After maxtasksperchild tasks a worker is replaced by a fresh one.

    A worker that dies is replaced too. Its task fails with WorkerDied, or is run again, up to `retries` times. If
    workers end again and again before they are ready, for example because the initializer raises, the pool is broken:
    all tasks fail with WorkerDied.
    """

    def __init__(self, processes: Optional[int] = None, initializer: Optional[Callable[..., Any]] = None,
                 initargs: Iterable[Any] = (), maxtasksperchild: Optional[int] = None, context: Any = None, *,
                 retries: int = 0) -> None:
        self._pool: List[Any] = []
        self._state = INIT
        self._pid = os.getpid()
        if processes is None:
            processes = getattr(os, "process_cpu_count", os.cpu_count)() or 1
        if processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError("retries must be a non-negative int")
        self._ctx = context or _contexts._default_context.get_context()
        self._processes = processes
        self._window = max(64, 8 * processes)  # tasks that are not done, where there is a limit
        self._last_function: Optional[_Function] = None
        self._jobs = _Jobs(retries)
        self._cache = self._jobs.cache
        make_process = self.Process
        ctx = self._ctx
        self._workers = Workers(lambda **arguments: make_process(ctx, **arguments), processes, initializer,
                                tuple(initargs), maxtasksperchild, retries, self._jobs)
        self._jobs.workers = self._workers
        self._pool = self._workers.processes
        self._workers.start()
        try:
            self._jobs.thread.start()
        except BaseException:
            self._workers.set_state(TERMINATE)
            self._workers.thread.join()
            raise
        self._terminate = util.Finalize(self, _terminate, (self._workers, self._jobs), exitpriority=15)
        self._state = RUN

    @staticmethod
    def Process(ctx: Any, *args: Any, **kwds: Any) -> Any:
        """Makes the process object of a worker."""
        return ctx.Process(*args, **kwds)

    def __del__(self, _warn: Any = warnings.warn, _run: str = RUN, _getpid: Callable[[], int] = os.getpid) -> None:
        if self._state == _run and self._pid == _getpid():
            _warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        cls = type(self)
        return f"<{cls.__module__}.{cls.__qualname__} state={self._state} pool_size={len(self._pool)}>"

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __enter__(self) -> "Pool":
        self._check_running()
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self.terminate()

    def _check_running(self) -> None:
        if self._state != RUN:
            raise ValueError("Pool not running")
        if self._pid != os.getpid():
            raise ValueError("Pool not running in this process: it belongs to the process that made it")

    def _repopulate_pool(self) -> None:
        self._workers.populate()

    # ---- calls ----

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Dict[str, Any] = {}) -> Any:
        """Runs func(*args, **kwds) in a worker and returns its result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Dict[str, Any] = {},
                    callback: Optional[Callable[[Any], Any]] = None,
                    error_callback: Optional[Callable[[BaseException], Any]] = None) -> ApplyResult:
        """Like apply, but returns at once. A thread of the pool calls callback(result) or error_callback(exception)."""
        self._check_running()
        result = ApplyResult(self, callback, error_callback)
        self._jobs.add(result)
        if kwds:
            self._jobs.put(result, 0, _KEYWORDS, self._function(func), (args, kwds))
        else:
            self._jobs.put(result, 0, _STAR, self._function(func), args)
        return result

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: Optional[int] = None) -> List[Any]:
        """Runs func(x) for each x and returns the list of results. A worker gets chunksize of them at a time."""
        return self._map(func, iterable, False, chunksize, None, None).get()

    def map_async(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: Optional[int] = None,
                  callback: Optional[Callable[[Any], Any]] = None,
                  error_callback: Optional[Callable[[BaseException], Any]] = None) -> MapResult:
        """Like map, but returns at once."""
        return self._map(func, iterable, False, chunksize, callback, error_callback)

    def starmap(self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]],
                chunksize: Optional[int] = None) -> List[Any]:
        """Runs func(*x) for each x and returns the list of results."""
        return self._map(func, iterable, True, chunksize, None, None).get()

    def starmap_async(self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]],
                      chunksize: Optional[int] = None, callback: Optional[Callable[[Any], Any]] = None,
                      error_callback: Optional[Callable[[BaseException], Any]] = None) -> MapResult:
        """Like starmap, but returns at once."""
        return self._map(func, iterable, True, chunksize, callback, error_callback)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """Runs func(x) for each x and returns an iterator over the results, in order."""
        return self._imap(IMapIterator, func, iterable, chunksize)

    def imap_unordered(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        """Like imap, but the results are in the order in which they come."""
        return self._imap(IMapUnorderedIterator, func, iterable, chunksize)

    def _function(self, func: Callable[..., Any]) -> _Function:
        last = self._last_function
        if last is None or last.function is not func:
            last = _Function(func)
            self._last_function = last if last.keep else None
        return last

    def _map(self, func: Callable[..., Any], iterable: Iterable[Any], star: bool, chunksize: Optional[int],
             callback: Optional[Callable[[Any], Any]],
             error_callback: Optional[Callable[[BaseException], Any]]) -> MapResult:
        self._check_running()
        error: Optional[Exception] = None
        items: Any = iterable
        if type(iterable) not in (list, tuple, range):
            try:
                items = list(iterable)
            except Exception as raised:
                if not hasattr(iterable, "__len__"):
                    raise
                items, error = [None], raised  # the standard module reports it through the result
        if chunksize is None:
            chunksize = -(-len(items) // (self._processes * 4))
        result = MapResult(self, chunksize if items else 0, len(items), callback, error_callback)
        if not items:
            return result
        self._jobs.add(result)
        if error is not None:
            self._jobs.fail(result, 0, error)
            return result
        if chunksize == 1:
            call, units = _STAR if star else _ONE, items
        else:
            call, units = _STARS if star else _CHUNK, _chunks(items, chunksize)
        self._put_all(result, self._function(func), call, enumerate(units))
        return result

    def _put_all(self, result: MapResult, function: _Function, call: int, units: Iterator[Tuple[int, Any]]) -> None:
        """Puts the tasks of a map. If they are large, only some: they need not be in shared memory all at once."""
        size = 0
        for index, unit in units:
            put = self._jobs.put(result, index, call, function, unit)
            size += put
            if put < 0:
                return
            if size > _AT_ONCE:
                result._room = threading.Semaphore(self._window)
                _start_feeding(self._jobs, result, function, call, units)
                return

    def _imap(self, kind: Any, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int) -> Iterator[Any]:
        self._check_running()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        result = kind(self, chunksize)
        self._jobs.add(result)
        call, units = (_ONE, iterable) if chunksize == 1 else (_CHUNK, _chunks(iterable, chunksize))
        feed = _start_feeding  # the iterable may be endless, or wait for something
        if isinstance(iterable, (list, tuple, range)) and len(iterable) <= self._window * chunksize:
            feed = _feed
        feed(self._jobs, result, self._function(func), call, enumerate(units))
        return result if chunksize == 1 else (item for chunk in result for item in chunk)

    # ---- the end ----

    def close(self) -> None:
        """Takes no more tasks. The workers end when all tasks are done."""
        if self._state == RUN:
            self._state = CLOSE
            self._workers.set_state(CLOSE)

    def terminate(self) -> None:
        """Ends the workers at once: SIGTERM, and SIGKILL a second later. Tasks that are not done fail."""
        self._state = TERMINATE
        self._terminate()

    def join(self) -> None:
        """Waits until the workers have ended. close() or terminate() must come before."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        if self._state not in (CLOSE, TERMINATE):
            raise ValueError("In unknown state")
        _join_threads(self._workers, self._jobs)


def _terminate(workers: Workers, jobs: _Jobs) -> None:
    workers.set_state(TERMINATE)
    _join_threads(workers, jobs)


def _join_threads(workers: Workers, jobs: _Jobs) -> None:
    for thread in (workers.thread, jobs.thread):
        if thread is not threading.current_thread():
            thread.join()


def _start_feeding(*arguments: Any) -> None:
    threading.Thread(target=_feed, args=arguments, name="shoal-pool-tasks", daemon=True).start()


def _feed(jobs: _Jobs, result: Any, function: _Function, call: int, units: Iterator[Tuple[int, Any]]) -> None:
    """Puts tasks, but only as many at a time as there is room for."""
    index = -1
    try:
        for index, unit in units:
            result._room.acquire()
            if result._job not in jobs.cache or jobs.put(result, index, call, function, unit) < 0:
                return  # nobody waits for the results any more
    except BaseException as error:  # of the iterable
        index += 1
        jobs.fail(result, index, error)
    result._set_length(index + 1)
