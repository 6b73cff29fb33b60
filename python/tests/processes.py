"""What the tests of processes share."""
import gc
import os
import unittest
from multiprocessing import resource_tracker

from shoal import world
import shoal.multiprocessing as mp
from support import LONG, METHODS  # noqa: F401


def fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def child_count() -> int:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return len(file.read().split())


def state_of(pid: int) -> str:
    """The state of a process as ps shows it: R, S, T, Z ...; an empty string if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def do_nothing(*args):
    pass


class NothingIsLeft(unittest.TestCase):
    """After each test there are as many fds, children and blocks as before, and the audit finds nothing."""

    method = "fork"

    @classmethod
    def setUpClass(cls):
        if cls is NothingIsLeft:
            raise unittest.SkipTest("a base class")
        cls.ctx = mp.get_context(cls.method)
        resource_tracker.ensure_running()
        process = cls.ctx.Process(target=do_nothing)  # starts the fork server, which stays
        process.start()
        process.join()

    def counts(self):
        gc.collect()
        world.sweep()
        return fd_count(), child_count(), world.info().blocks_live

    def setUp(self):
        self.before = self.counts()

    def tearDown(self):
        self.assertEqual(mp.active_children(), [])
        self.assertEqual(self.counts(), self.before, "fds, children and blocks before and after")
        world.audit()


def for_each_method(base, namespace, methods=METHODS):
    """Makes one test class for each start method."""
    for method in methods:
        name = f"{base.__name__}_{method}"
        namespace[name] = type(name, (base,), {"method": method, "__module__": base.__module__})
    del namespace[base.__name__]
