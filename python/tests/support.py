"""What the tests share: one test for every start method, and a search for leaks after each. With it, Ctrl-C works in a test and in
what it starts, though a shell ignores it for what it starts with &."""
import functools
import gc
import os
import signal
import time
import unittest
from multiprocessing import resource_tracker

import shoal.multiprocessing as mp
from shoal import world

METHODS = ("fork", "spawn", "forkserver")
LONG = 300  # seconds: for waits that must not end by their timeout

signal.signal(signal.SIGINT, signal.default_int_handler)


def quiet_time():
    """A time in seconds that stands still while any process of the machine waits for a core: for what must happen within a second or
    two, whatever else the machine has to do."""
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            return time.monotonic() - int(file.readline().rpartition("=")[2]) / 1e6
    except OSError:
        return time.monotonic()


def each_method(test):
    """Runs a test once for each start method: test(self, ctx)."""

    @functools.wraps(test)
    def run(self):
        for method in METHODS:
            with self.subTest(method=method):
                test(self, mp.get_context(method))

    return run


def for_each_method(base, namespace):
    """Makes one test class of a subclass of OneMethod for each start method."""
    for method in METHODS:
        name = f"{base.__name__}_{method}"
        namespace[name] = type(name, (base,), {"method": method, "__module__": base.__module__})
    del namespace[base.__name__]


def do_nothing(*args):
    pass


def run_all(ctx, targets, timeout=LONG):
    """Starts a process for each (function, arguments...), waits for them and returns their exit codes."""
    children = [ctx.Process(target=target, args=args) for target, *args in targets]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
    codes = [child.exitcode for child in children]
    for child in children:
        child.join()
        child.close()
    return codes


def received(queue):
    """Yields what comes through a queue, until None."""
    while (message := queue.get(timeout=LONG)) is not None:
        yield message


def fds():
    """The number of file descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1  # one is that of the folder itself


def children():
    """The number of child processes that the main thread has started."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return len(file.read().split())


def state_of(pid):
    """The state of a process as ps shows it: R, S, T, Z ...; an empty string if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def mappings():
    """The number of memory mappings of this process."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        return sum(1 for _ in file)


def wait_until(condition, timeout=LONG):
    """Waits for a state of another process that nothing announces, such as its sleep in a call."""
    limit = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError("waited in vain")
        time.sleep(0.001)


def wait_until_waiting(pid):
    """Waits until a process waits inside a call of shoal."""
    wait_until(lambda: any(entry.pid == pid and entry.state == "waiting" for entry in world.ps()))


def wait_until_blocked(pid):
    """Waits until the main thread of a process sleeps in a system call, and not for another of its threads."""
    def is_blocked():
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.readline().split()[0] not in ("running", "202")  # 202: futex
    wait_until(is_blocked)


class Case(unittest.TestCase):
    """After each test: no fd, child process or block of the heap more than before, and a clean audit."""

    methods = METHODS  # the start methods that the tests use
    patience = LONG  # threads of torch and of the standard module close their fds a moment after the test

    @classmethod
    def setUpClass(cls):
        for method in cls.methods:  # the first start of a method leaves something behind: a server, modules
            run_all(mp.get_context(method), [(do_nothing,)])

    def setUp(self):
        self.before = self.count()
        self.addCleanup(self.look_for_leaks)

    def count(self):
        gc.collect()
        world.sweep()
        mp.active_children()  # reaps those that have ended
        return {"fds": fds(), "children": children(), "blocks": world.info().blocks_live}

    def look_for_leaks(self):
        limit = time.monotonic() + self.patience
        after = self.count()
        while any(after[what] > number for what, number in self.before.items()) and time.monotonic() < limit:
            time.sleep(0.05)
            after = self.count()
        for what, number in self.before.items():
            self.assertLessEqual(after[what], number, f"the test left {what} behind")
        world.audit()


class OneMethod(Case):
    """Tests of processes with one start method."""

    method = "fork"
    patience = 0

    @classmethod
    def setUpClass(cls):
        cls.ctx = mp.get_context(cls.method)
        cls.methods = (cls.method,)
        resource_tracker.ensure_running()
        super().setUpClass()

    def look_for_leaks(self):
        self.assertEqual(mp.active_children(), [])
        super().look_for_leaks()
