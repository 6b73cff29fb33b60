"""What a worker process of a pool runs. A spawned worker imports this, so it imports little.

The library's pool hands out the tasks (shoal/pool.h): when a worker dies, at whatever moment, it knows which task the
worker had, and nothing is lost.
"""
from __future__ import annotations

from .. import _shoal
from . import reduction

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

__all__ = ["run_worker"]

# The outcomes of pool.c.
DONE, RAISED, DIED, NO_MEMORY = range(4)


def run_worker(tasks: Any, answers: Any, places: Any, failures: Any, place: int,
               initializer: Optional[Callable[..., Any]], initargs: Any, most: int) -> None:
    """The main function of a worker."""
    if initializer is not None:
        try:
            initializer(*initargs)
        except Exception as error:
            _tell_failed_start(failures, error)
            raise
    _shoal.pool_work(tasks, answers, places, place, most, _load_function, _failure)


def run_task(function: Callable[..., Any], args: Any, kwds: Any) -> Any:
    """Runs a task that has its function with it."""
    return function(*args, **kwds)


def _tell_failed_start(failures: Any, error: Exception) -> None:
    try:
        failures.put(_failure(error, None, False))
    except Exception:  # it cannot be pickled; the traceback is on stderr
        failures.put(RuntimeError(repr(error)))


def _load_function(pickled: bytes) -> Any:
    return reduction.loads(pickled, [])


def _failure(error: Exception, result: Any, encoding: bool) -> Any:
    """Returns what to send instead of a result, because the task raised or its result cannot be sent."""
    import multiprocessing.pool as standard
    if encoding:
        return standard.MaybeEncodingError(error, result)  # type: ignore[attr-defined]
    report = standard.ExceptionWithTraceback(error, error.__traceback__)  # type: ignore[attr-defined]
    try:
        reduction.loads(*reduction.dumps(error))
    except Exception as problem:  # often an exception class whose __init__ takes other arguments than its args
        report.exc = standard.MaybeEncodingError(problem, error)  # type: ignore[attr-defined]
    return report
