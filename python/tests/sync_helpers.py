"""What the tests of the locks share: forked children, and signals that come while a call waits."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback

from shoal import _shoal
import support
from support import LONG


def fork(target, *args) -> int:
    """Starts a plain forked child that runs target(*args) and exits with status 0, or 1 after an exception."""
    pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        target(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        _shoal.quick_exit(status)


def join(*pids: int) -> None:
    """Waits for children, and demands status 0 of each."""
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(statuses):
        raise AssertionError(f"children ended with {statuses}")


def kill(pid: int) -> None:
    """Kills a child and waits for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Interrupted(Exception):
    """What the signal handler raises."""


def interrupt(number: int, frame: object) -> None:
    """A signal handler."""
    raise Interrupted


@contextlib.contextmanager
def alarm_after(seconds: float, handler=interrupt, again: float = 0):
    """SIGALRM comes after a time, and again."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(program: str, *args: str, timeout: float = LONG) -> str:
    """Runs a Python program in a process of its own, demands status 0, and returns what it printed on both outputs."""
    done = subprocess.run([sys.executable, "-c", program, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(f"the program ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class TestCase(support.Case):
    """A test that leaves no child, no fd and no shared object behind."""

    methods = ()
    patience = 0

    def assert_takes(self, seconds: float, call, *args) -> object:
        """Demands that a call takes this time, and returns what it returned."""
        begin = time.monotonic()
        result = call(*args)
        self.assertGreaterEqual(time.monotonic() - begin, seconds * 0.99)
        self.assertLess(time.monotonic() - begin, seconds + LONG)
        return result

    def assert_interrupted(self, call, *args) -> None:
        """Demands that a signal ends a call soon: within 100 ms on a free machine, and here within a second."""
        begin = support.quiet_time()
        with self.assertRaises(Interrupted), alarm_after(0.02):
            call(*args)
        self.assertLess(support.quiet_time() - begin, 1.02)
