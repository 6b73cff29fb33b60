"""The worker processes of a pool, seen from their parent: how they are started, watched, replaced and ended."""
# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import errno
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from .. import _shoal
from .pool_child import run_worker

__all__ = ["WorkerDied"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

#: How long a worker may take to end after SIGTERM, in seconds. Then it is killed.
GRACE = 1.0

# A place in shared memory has four integers: the job of the running task or 0, its index, whether the worker is ready,
# and whether it ended because there was no memory for a result.
_PLACE_WORDS = 4
_JOB, _INDEX, _READY, _NO_MEMORY = range(4)

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
    job: int
    """The job of the task that it ran; 0 if it ran none."""
    index: int  # type: ignore[assignment]  # not the method of tuples
    no_memory: bool
    """There was no memory for the task's result, nor to send that."""

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

    The thread reports to `observer`: died(Death), broken(text) when workers do not start any more, and looked(tasks)
    when it has reported all deaths that unexplained() asked for. idle() says whether nothing is left to do. When a pool
    is closed and idle, or terminated, the thread ends the workers and then closes the queue of results. If the thread
    fails, it ends the workers too.
    """

    def __init__(self, make_process: Callable[..., Any], count: int, initializer: Optional[Callable[..., Any]],
                 initargs: Any, most: Optional[int], retries: int, observer: Any) -> None:
        self.processes: List[Any] = []
        self.tasks: "_shoal.Queue[Any]" = _shoal.Queue(0, acknowledge=True)
        self.results: "_shoal.Queue[Any]" = _shoal.Queue()
        self.state = RUN
        self.error: Optional[BaseException] = None  # of a thread of the pool that failed
        self._make_process = make_process
        self._count = count
        self._places: Any = _shoal.Block(count * _PLACE_WORDS * 8, True)
        self._words = memoryview(self._places).cast("q")
        self._arguments = initializer, initargs, most or 0, min(retries + 1, 1 << 31)
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
        """Whether a worker can run tasks now: its initializer has returned."""
        return any(self._words[process._place * _PLACE_WORDS + _READY] for process in self.processes)

    def populate(self) -> None:
        """Starts workers for the places that have none."""
        with self._lock:
            taken = {process._place for process in self.processes}
            for place in range(self._count):
                if place not in taken and not self._over:
                    self._start(place)

    def _start(self, place: int) -> None:
        base = place * _PLACE_WORDS
        for word in range(_PLACE_WORDS):
            self._words[base + word] = 0
        process = self._make_process(target=run_worker,
                                     args=(self.tasks, self.results, self._places, place, *self._arguments))
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
            self.results.shutdown()
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

    def _wait_for_ends(self, asked: List[Tuple[int, int]]) -> None:
        """Waits for the workers of tasks that the queue has taken back. One that exits by itself gives its task back a
        little before its end."""
        for process in list(self.processes) if asked else ():
            job, index = self._words[process._place * _PLACE_WORDS:][_JOB:_READY]
            if (job, index) in asked:
                process.join(GRACE)

    def _account(self, process: Any, exitcode: int) -> None:
        base = process._place * _PLACE_WORDS
        job, index, ready, no_memory = self._words[base:base + _PLACE_WORDS]
        death = Death(process._place, process.pid, exitcode, job, index, bool(no_memory))
        if ready or self.ready():
            self._failed_starts = 0
        else:
            self._note_failed_start(str(death))
        if job or exitcode or not ready:
            self._observer.died(death)

    def _note_failed_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts == max(3, self._count):
            self._broken = True
            self._observer.broken(f"the pool is broken: {self._failed_starts} workers in a row ended before they were "
                                  f"ready for a task; the last one: {reason}")

    def _replace(self) -> Optional[float]:
        """Replaces the workers that have ended. Returns after how many seconds to try again, if that failed."""
        asked = self._observer.unexplained()
        self._wait_for_ends(asked)
        self._reap()
        if asked:
            self._observer.looked(asked)
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
    """Whether a start failed only because there is too little memory, or too many processes or files, just now."""
    return isinstance(error, MemoryError) or isinstance(error, OSError) and (
        error.errno in _PASSING or error.errno is None and str(error).endswith(_PASSING_TEXTS))


def _resume(pid: int) -> None:
    """Lets a stopped process get the signal that it was sent."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
