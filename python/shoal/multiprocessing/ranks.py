"""spawn() and start_processes(): torch's way to run one function in several processes, and to hear of the first failure."""
from __future__ import annotations

import signal
import sys
import time
import warnings

from . import context

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["ENV_VAR_PARALLEL_START", "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException",
           "SpawnContext", "spawn", "start_processes"]

#: Seconds from SIGTERM to SIGKILL for the other ranks, once one has failed, unless join() gets a grace period. As in torch.
GRACE = 30.0

#: torch starts ranks by the fork server in parallel if this variable is 1, because its start waits until the child has imported
#: the program. Here a start waits for no child, so that ranks always start in parallel, and the variable has no effect.
ENV_VAR_PARALLEL_START = "TORCH_MP_PARALLEL_START"


class ProcessException(Exception):
    """A rank failed. error_index is the rank, and error_pid, or pid, its process ID."""

    def __init__(self, msg: str, error_index: int, error_pid: int):
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.pid = self.error_pid = error_pid

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.pid)


class ProcessRaisedException(ProcessException):
    """A rank raised an exception. The text has its traceback."""


class ProcessExitedException(ProcessException):
    """A signal ended a rank, or it exited with a status other than 0."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: Optional[str] = None):
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.pid, self.exit_code, self.signal_name)


def _run(fn: Callable[..., Any], rank: int, args: Tuple[Any, ...], error_queue: Any) -> None:
    try:
        fn(rank, *args)
    except (Exception, KeyboardInterrupt) as error:
        import traceback
        error_queue.put((time.monotonic(), traceback.format_exc()))
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


class ProcessContext:
    """The ranks that start_processes(join=False) has started."""

    def __init__(self, processes: List[Any], error_queues: List[Any]):
        self.processes = processes
        self.error_queues = error_queues
        self.sentinels = {process.sentinel: rank for rank, process in enumerate(processes)}

    def pids(self) -> List[int]:
        """Returns the process IDs, by rank."""
        return [process.pid for process in self.processes]

    def join(self, timeout: Optional[float] = None, grace_period: Optional[float] = None) -> bool:
        """Waits until a rank has ended, at most for a timeout in seconds.

        Returns True once all ranks have returned, and False if some still run: call it again then. If a rank fails, the
        others are ended and the failure is raised: ProcessRaisedException with the traceback of the rank, or
        ProcessExitedException. With a grace period in seconds, the others have so long to end by themselves, and as long
        again from SIGTERM to SIGKILL. Without, they get SIGTERM at once, and SIGKILL after 30 seconds.
        """
        from .connection import wait
        if not self.sentinels:
            return True
        failed = []
        for sentinel in wait(list(self.sentinels), timeout):
            rank = self.sentinels.pop(sentinel)
            self.processes[rank].join()
            if self.processes[rank].exitcode != 0:
                failed.append(rank)
        if failed:
            if grace_period is not None:
                _join_all(self.processes, grace_period)
            _end(self.processes, grace_period)
            raise self._first_failure(failed)
        return not self.sentinels

    def _first_failure(self, failed: List[int]) -> ProcessException:
        """Of ranks that failed at about the same time, one that was killed or exited counts first: those that raised may
        have done so because of it."""
        raised: Dict[int, Tuple[float, str]] = {rank: self.error_queues[rank].get() for rank in failed
                                                if not self.error_queues[rank].empty()}
        others = [rank for rank in failed if rank not in raised]
        rank = others[0] if others else min(raised, key=lambda rank: raised[rank][0])
        code, pid = self.processes[rank].exitcode, self.processes[rank].pid
        if rank in raised:
            text = f"\n\n-- Process {rank} terminated with the following error:\n{raised[rank][1]}"
            return ProcessRaisedException(text, rank, pid)
        if code >= 0:
            return ProcessExitedException(f"process {rank} terminated with exit code {code}", rank, pid, code)
        name = _signal_name(-code)
        return ProcessExitedException(f"process {rank} terminated with signal {name}", rank, pid, code, name)


def _join_all(processes: List[Any], seconds: float) -> None:
    limit = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))


def _end(processes: List[Any], grace_period: Optional[float] = None) -> None:
    import logging
    log = logging.getLogger("torch.multiprocessing.spawn")  # torch's, which programs may have configured
    for process in processes:
        if process.is_alive():
            log.warning("Terminating process %s via signal SIGTERM", process.pid)
            process.terminate()
    _join_all(processes, GRACE if grace_period is None else grace_period)
    for process in processes:
        if process.is_alive():
            log.warning("Process %s did not end by SIGTERM: killing it via signal SIGKILL", process.pid)
            process.kill()
        process.join()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


class SpawnContext(ProcessContext):
    """The old name of ProcessContext."""

    def __init__(self, processes: List[Any], error_queues: List[Any]):
        warnings.warn("SpawnContext is renamed to ProcessContext", stacklevel=2)
        super().__init__(processes, error_queues)


def start_processes(fn: Callable[..., Any], args: Tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
                    start_method: str = "spawn") -> Optional[ProcessContext]:
    """Runs fn(rank, *args) in nprocs processes, ranks 0 to nprocs - 1.

    With join, waits for all of them; the first failure ends the others and is raised (ProcessContext.join). Without,
    returns a ProcessContext at once.
    """
    ctx: Any = context._default_context.get_context(start_method)
    queues = [ctx.SimpleQueue() for _ in range(nprocs)]
    processes: List[Any] = []
    try:
        for rank in range(nprocs):
            process = ctx.Process(target=_run, args=(fn, rank, args, queues[rank]), daemon=daemon)
            process.start()
            processes.append(process)
        ranks = ProcessContext(processes, queues)
        if not join:
            return ranks
        while not ranks.join():
            pass
    except BaseException:  # a rank cannot be started or has failed, or Ctrl-C
        _end(processes)
        raise
    return None


def spawn(fn: Callable[..., Any], args: Tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
          start_method: str = "spawn") -> Optional[ProcessContext]:
    """Runs fn(rank, *args) in nprocs processes that are fresh Pythons. See start_processes()."""
    if start_method != "spawn":
        warnings.warn(f"spawn() always uses the start method spawn (got {start_method!r}): use start_processes() for others",
                      FutureWarning, stacklevel=2)
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
