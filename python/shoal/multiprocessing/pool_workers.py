"""The worker processes of a pool, seen from their parent: how they are started, watched, replaced and ended."""
# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import errno
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Any, Callable, List, NamedTuple, Optional

from .. import _shoal
from .pool_child import run_worker

__all__ = ["WorkerDied"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

#: How long a worker may take to end after SIGTERM, in seconds. Then it is killed.
GRACE = 1.0

#: After how many seconds to try again to start a worker.
_RETRY_START = 0.1

# The library's errors have the reason in words only.
_PASSING = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN
_PASSING_TEXTS = tuple(os.strerror(number) for number in _PASSING)


class WorkerDied(RuntimeError):
    """The worker that ran a task died, and the task was not to be run again.

    The number of a task in the text is the index of its item in the iterable of the map, from 0. For apply and
    apply_async it is the number of the call, from 1, which counts the calls of all pools of this process.

    pid and exitcode are those of the worker. A negative exit code is the number of the signal that ended it.
    """

    def __init__(self, text: str, pid: Optional[int] = None, exitcode: Optional[int] = None) -> None:
        super().__init__(text)
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.pid, self.exitcode)


class Death(NamedTuple):
    """The end of a worker that the pool did not ask for."""

    place: int
    pid: int
    exitcode: int

    def __str__(self) -> str:
        return f"worker {self.place} (pid {self.pid}) {how_it_ended(self.exitcode)}"


def how_it_ended(exitcode: int) -> str:
    """Says in words what an exit code means."""
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"ended by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"ended by signal {-exitcode}"


class _Bell:
    """Wakes the thread that waits for the ends of workers."""

    def __init__(self) -> None:
        self._fd: int = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)


class Workers:
    """The workers of a pool, and the thread that keeps their number.

    The library's pool has the tasks; the thread tells it which workers have ended. It reports to `observer`: broken(text,
    error) when workers do not start any more. idle() says whether nothing is left to do. When a pool is closed and idle,
    or terminated, the thread ends the workers and then closes the queue of answers. If the thread fails, it ends the
    workers too.
    """

    def __init__(self, make_process: Callable[..., Any], count: int, initializer: Optional[Callable[..., Any]],
                 initargs: Any, most: Optional[int], retries: int, observer: Any) -> None:
        self.processes: List[Any] = []
        self.tasks: "_shoal.Queue[Any]" = _shoal.Queue()
        self.answers: "_shoal.Queue[Any]" = _shoal.Queue()
        self.state = RUN
        self.error: Optional[BaseException] = None  # of a thread of the pool that failed
        self._make_process = make_process
        self._count = count
        self._places: Any = _shoal.Block(count * 4, True)
        self._ready = memoryview(self._places).cast("I")  # not 0: the worker of this place has been ready for tasks
        self._failures: "_shoal.Queue[Any]" = _shoal.Queue()  # what initializers raised
        self._arguments = initializer, initargs, most or 0
        self.pool = _shoal.pool_make(self.tasks, self.answers, self._places, min(retries, (1 << 31) - 1))
        self._observer = observer
        self._failed_starts = 0  # in a row, while no other worker was ready
        self._broken = False
        self._over = False
        self._bell: Any = _Bell()
        self._lock = threading.Lock()  # around starting and reaping
        self._state_lock = threading.Lock()
        self.thread = threading.Thread(target=self._keep, name="shoal-pool-workers", daemon=True)

    def start(self) -> None:
        """Starts the workers. If one cannot be started, ends the others."""
        try:
            self.populate()
            self.thread.start()
        except BaseException:
            for process in self.processes:
                if process.exitcode is None:
                    process.terminate()
            for process in self.processes:
                process.join()
            raise

    def set_state(self, state: str) -> None:
        """Closes or terminates. The thread does the rest."""
        with self._state_lock:
            if self.state != TERMINATE:  # a pool that failed must not wait for its workers because it is closed later
                self.state = state
        self._bell.ring()

    def wake(self) -> None:
        """Lets the thread look whether the pool is idle."""
        self._bell.ring()

    def ready(self) -> bool:
        """Returns whether a worker can run tasks now: its initializer has returned."""
        return any(self._ready[process._place] for process in self.processes)

    def populate(self) -> None:
        """Starts workers for the places that have none."""
        with self._lock:
            taken = {process._place for process in self.processes}
            for place in range(self._count):
                if place not in taken and not self._over:
                    self._start(place)

    def _start(self, place: int) -> None:
        process = self._make_process(target=run_worker, args=(self.tasks, self.answers, self._places, self._failures, place,
                                                              *self._arguments))
        process.name = process.name.replace("Process", "PoolWorker")
        process.daemon = True
        process._place = place
        process.start()
        self.processes.append(process)

    # ---- the thread ----

    def _keep(self) -> None:
        try:
            while self.state == RUN or (self.state == CLOSE and not self._observer.idle()):
                delay = self._replace()
                self._wait(delay)
            self.tasks.shutdown()
            while self.processes and self.state != TERMINATE:
                self._wait(None)
                self._reap()
            self._end()
        except BaseException as unexpected:  # without this thread nobody would see that a worker dies
            self.error = unexpected
            self.set_state(TERMINATE)
            self.tasks.shutdown()
            self._end()
            raise
        finally:
            self.answers.shutdown()
            self._over = True
            self._observer = None  # it refers to this object: without garbage collection the queues would stay

    def _wait(self, delay: Optional[float]) -> None:
        wait([self._bell, *(process.sentinel for process in self.processes)], delay)
        self._bell.silence()

    def _reap(self) -> None:
        """Removes the workers that have ended, and reports those that died."""
        with self._lock:
            for process in list(self.processes):
                exitcode = process.exitcode
                if exitcode is not None:
                    process.join()
                    self.processes.remove(process)
                    self._account(process, exitcode)

    def _account(self, process: Any, exitcode: int) -> None:
        death = Death(process._place, process.pid, exitcode)
        if self.ready() or self._ready[process._place]:
            self._failed_starts = 0
        else:
            self._note_failed_start(str(death))
        _shoal.pool_lost(self.pool, process._place, tuple(death))

    def _note_failed_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts == max(3, self._count):
            self._broken = True
            error = None
            while not self._failures.empty():
                error = self._failures.get()
            self._observer.broken(f"the pool is broken: {self._failed_starts} workers in a row ended before they were "
                                  f"ready for a task; the last one: {reason}", error)

    def _replace(self) -> Optional[float]:
        """Replaces the workers that have ended. Returns after how many seconds to try again, if that failed."""
        self._reap()
        if self._broken:
            return None
        try:
            self.populate()
            return None
        except Exception as error:
            if not _is_passing(error):  # for example, arguments that cannot be pickled any more
                self._note_failed_start(f"it cannot be started: {error!r}")
            return _RETRY_START

    def _end(self) -> None:
        """Ends the workers that are left, even if they are stopped or ignore SIGTERM."""
        with self._lock:
            for process in self.processes:
                if process.exitcode is None:
                    process.terminate()
                    _resume(process.pid)
            end = time.monotonic() + GRACE
            for process in self.processes:
                process.join(max(0.0, end - time.monotonic()))
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
                process.join()


def _is_passing(error: Exception) -> bool:
    """Returns whether a start failed only because there is too little memory, or too many processes or files, just now."""
    return isinstance(error, MemoryError) or isinstance(error, OSError) and (
        error.errno in _PASSING or error.errno is None and str(error).endswith(_PASSING_TEXTS))


def _resume(pid: int) -> None:
    """Lets a stopped process get the signal that it was sent."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
