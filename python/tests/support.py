"""What the tests of the behaviours share: one test for every start method, and a search for leaks after each. With it, Ctrl-C
works in a test and in what it starts, though a shell ignores it for what it starts with &."""
import functools
import gc
import multiprocessing
import os
import signal
import time
import unittest

import shoal.multiprocessing as mp
from shoal import world

METHODS = ("fork", "spawn", "forkserver")
LONG = 60  # seconds: for waits that must not end by their timeout

signal.signal(signal.SIGINT, signal.default_int_handler)


def each_method(test):
    """Runs a test once for each start method: test(self, ctx)."""

    @functools.wraps(test)
    def run(self):
        for method in METHODS:
            with self.subTest(method=method):
                test(self, mp.get_context(method))

    return run


def nothing():
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


class Case(unittest.TestCase):
    """After each test: no fd, child process or block of the heap more than before, and a clean audit."""

    @classmethod
    def setUpClass(cls):
        for method in METHODS:  # the first start of a method leaves something behind: a server, modules
            run_all(mp.get_context(method), [(nothing,)])

    def setUp(self):
        self.before = self.count()
        self.addCleanup(self.look_for_leaks)

    def count(self):
        gc.collect()
        return {"fds": fds(), "children": len(multiprocessing.active_children()), "blocks": world.info().blocks_live}

    def look_for_leaks(self):
        world.sweep()
        world.audit()
        limit = time.monotonic() + 5  # threads of torch and of the standard module close their fds a moment later
        after = self.count()
        while any(after[what] > number for what, number in self.before.items()) and time.monotonic() < limit:
            time.sleep(0.05)
            after = self.count()
        for what, number in self.before.items():
            self.assertLessEqual(after[what], number, f"the test left {what} behind")
