"""What a worker process of a pool runs. A spawned worker imports this, so it imports little.

A worker takes a task from an acknowledged queue, runs it, puts the result on another queue, and only then ends the
delivery. So when a worker dies, at whatever moment, the queue delivers its task again, and nothing is lost. Before it
runs a task, it writes the task's number into its place in shared memory, so that the parent can tell what it died of.
"""
from __future__ import annotations

from .. import _shoal
from . import reduction

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

__all__ = ["run_worker"]

# The outcomes of pool.c.
DONE, RAISED, GAVE_UP, NOTE, NO_START, NO_MEMORY = range(6)


def run_worker(tasks: Any, results: Any, places: Any, place: int, initializer: Optional[Callable[..., Any]],
               initargs: Any, most: int, deliveries: int) -> None:
    """The main function of a worker."""
    if initializer is not None:
        try:
            initializer(*initargs)
        except Exception as error:
            _tell_failed_start(results, error)
            raise
    _shoal.pool_work(tasks, results, places, place, most, deliveries, _load_function, _failure)


def run_task(function: Callable[..., Any], args: Any, kwds: Any) -> Any:
    """Runs a task that has its function with it."""
    return function(*args, **kwds)


def _tell_failed_start(results: Any, error: Exception) -> None:
    try:
        _shoal.pool_answer(results, NO_START, _failure(error, None, False))
    except Exception:  # it cannot be pickled; the traceback is on stderr
        _shoal.pool_answer(results, NO_START, RuntimeError(repr(error)))


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
