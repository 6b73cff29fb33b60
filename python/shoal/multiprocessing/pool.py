"""Pools of worker processes, with the interface of multiprocessing.pool.

A worker may die at any moment, and no task is lost: it fails with WorkerDied, which names the signal, or it is run
again if the pool was made with retries.
"""
import itertools
import multiprocessing.pool as _standard
import operator
import os
import threading
import types
import warnings
from multiprocessing import util
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback, ThreadPool
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from . import context as _contexts
from . import reduction
from .connection import wait_for_signals_too
from .pool_child import run_task
from .pool_results import ApplyResult, AsyncResult, IMapIterator, IMapUnorderedIterator, Jobs, MapResult
from .pool_workers import CLOSE, RUN, TERMINATE, WorkerDied, Workers

__all__ = ["Pool", "ThreadPool", "WorkerDied"]

for _class in WorkerDied, ApplyResult, MapResult, IMapIterator, IMapUnorderedIterator:
    _class.__module__ = __name__  # where programs find them

INIT = "INIT"

# How pool.c calls a function.
_ONE, _STAR, _CHUNK, _STARS, _KEYWORDS = range(5)

#: map() puts tasks of about this many bytes at once. For the rest, a thread waits until others are done.
_AT_ONCE = 64 << 20

#: A pickled function up to this size is sent with every task, and pickled once.
_SMALL_FUNCTION = 512


# ---- functions ----

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


def _check_chunksize(chunksize: Any) -> int:
    try:
        number = operator.index(chunksize)
    except TypeError:
        raise TypeError(f"Chunksize must be an int, not {type(chunksize).__name__}") from None
    if number < 1:
        raise ValueError(f"Chunksize must be 1+, not {number}")
    return number


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
        self._jobs = Jobs(retries)
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

    @property
    def _taskqueue(self) -> "_TaskQueue":
        return _TaskQueue(self)

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
        if chunksize is not None:
            chunksize = _check_chunksize(chunksize)
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
        size, last = 0, result._number_left - 1
        for index, unit in units:
            put = self._jobs.put(result, index, call, function, unit, index < last)
            size += put
            if put < 0:
                return
            if size > _AT_ONCE:
                result._room = threading.Semaphore(self._window)
                _start_feeding(self._jobs, result, function, call, units)
                return

    def _imap(self, kind: Any, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int) -> Iterator[Any]:
        self._check_running()
        chunksize = _check_chunksize(chunksize)
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


class _TaskQueue:
    """The standard module's queue of tasks, for programs that add a way to call: `istarmap` is a common one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def put(self, item: Any) -> None:
        """Puts the tasks of Pool._guarded_task_generation(), with the _set_length of an IMapIterator for their results."""
        tasks, set_length = item
        result = getattr(set_length, "__self__", None)
        if not isinstance(result, IMapIterator):
            raise NotImplementedError("a pool of shoal takes such tasks for an IMapIterator only: put (tasks, result._set_length)")
        self._pool._jobs.add(result)
        _start_feeding(self._pool._jobs, result, self._pool._function(run_task), _STAR, ((task[1], task[2:]) for task in tasks))


def _terminate(workers: Workers, jobs: Jobs) -> None:
    workers.set_state(TERMINATE)
    _join_threads(workers, jobs)


def _join_threads(workers: Workers, jobs: Jobs) -> None:
    for thread in (workers.thread, jobs.thread):
        if thread is not threading.current_thread():
            wait_for_signals_too(lambda seconds: thread.join(seconds) or not thread.is_alive())


def _start_feeding(*arguments: Any) -> None:
    threading.Thread(target=_feed, args=arguments, name="shoal-pool-tasks", daemon=True).start()


def _feed(jobs: Jobs, result: Any, function: _Function, call: int, units: Iterator[Tuple[int, Any]]) -> None:
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


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    return getattr(_standard, name)
