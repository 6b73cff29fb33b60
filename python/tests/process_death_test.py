"""B32: a parent that dies by SIGKILL takes its children, and theirs, within a second; those that asked to stay, stay."""
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from multiprocessing import resource_tracker

import shoal.multiprocessing as mp
from support import LONG, OneMethod, for_each_method, quiet_time, state_of

TOGETHER = 5  # families that die at the same time
TIMES = 6


def sleep_as_grandchild(queue):
    queue.put(os.getpid())
    signal.pause()


def run_child(method, queue, outlive):
    process = mp.get_context(method).Process(target=sleep_as_grandchild, args=(queue,), outlive=outlive)
    process.start()
    queue.put(os.getpid())
    signal.pause()


def run_parent(method, queue, outlive=False):
    process = mp.get_context(method).Process(target=run_child, args=(method, queue, outlive))
    process.start()
    signal.pause()


def tell_tracker(queue):
    fd = resource_tracker._resource_tracker._fd
    resource_tracker.ensure_running()  # it has one of its own
    queue.put((fd, os.getpid()))
    resource_tracker._resource_tracker._stop()


def see_parent_die(method, queue):
    parent = mp.parent_process()
    queue.put((os.getpid(), parent.pid, parent.name, parent.is_alive()))
    parent.join(LONG)
    queue.put(parent.is_alive())


def run_parent_of_watcher(method, queue):
    process = mp.get_context(method).Process(target=see_parent_die, args=(method, queue))
    process.start()
    signal.pause()


def wait_for_end(pids, limit):
    """Waits until all of some processes, which may be nobody's children any more, have ended. Returns those that have not."""
    poll = select.poll()
    fds = {}
    for pid in pids:
        try:
            fds[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            pass
    for fd in fds:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + limit
    while fds and time.monotonic() < deadline:
        for fd, _ in poll.poll(max(0, deadline - time.monotonic()) * 1000):
            poll.unregister(fd)
            os.close(fd)
            del fds[fd]
    for fd in fds:
        os.close(fd)
    return list(fds.values())


class Death(OneMethod):
    def start_family(self, target, *args):
        """A family is a parent, which is a forked child of this process, its child and its grandchild."""
        queue = mp.get_context("fork").Queue()
        parent = mp.get_context("fork").Process(target=target, args=(self.method, queue, *args))
        parent.start()
        return parent, queue

    def kill(self, parents):
        for parent in parents:
            parent.kill()
        for parent in parents:
            parent.join()

    def test_b32_children_and_grandchildren_end_within_a_second(self):
        for _ in range(TIMES):
            families = [self.start_family(run_parent) for _ in range(TOGETHER)]
            pids = [queue.get(timeout=LONG) for _, queue in families for _ in range(2)]
            self.assertEqual(len(set(pids)), 2 * TOGETHER)
            killed = quiet_time()
            self.kill([parent for parent, _ in families])
            self.assertEqual(wait_for_end(pids, LONG), [])
            self.assertLess(quiet_time() - killed, 1)

    def test_b32_those_that_asked_to_stay_stay(self):
        parent, queue = self.start_family(run_parent, True)
        pids = [queue.get(timeout=LONG) for _ in range(2)]
        self.kill([parent])
        (grandchild,) = wait_for_end(pids, 1.0)
        self.assertIn(state_of(grandchild), "RS")
        os.kill(grandchild, signal.SIGKILL)
        self.assertEqual(wait_for_end([grandchild], LONG), [])

    def test_a_child_sees_the_death_of_its_parent(self):
        parent, queue = self.start_family(run_parent_of_watcher)
        pid, parent_pid, parent_name, alive = queue.get(timeout=LONG)
        self.assertEqual((parent_pid, parent_name, alive), (parent.pid, parent.name, True))
        self.kill([parent])
        self.assertIs(queue.get(timeout=LONG), False)
        self.assertEqual(wait_for_end([pid], LONG), [])

    def test_y14_a_parent_that_executes_another_program(self):
        """Its children end, and say why. The new program waits for the end of its input, which the test gives it."""
        if self.method == "forkserver":
            self.skipTest("a child of the server cannot tell whether its parent has died")
        code = ("import os, sys, time\n"
                "import shoal.multiprocessing as mp\n"
                "def sleep(queue):\n"
                "    queue.put(os.getpid())\n"
                "    time.sleep(600)\n"
                "if __name__ == '__main__':\n"
                f"    ctx = mp.get_context({self.method!r})\n"
                "    queue = ctx.Queue()\n"
                "    ctx.Process(target=sleep, args=(queue,)).start()\n"
                "    pid = queue.get()\n"
                "    os.execv(sys.executable, [sys.executable, '-c', f'print({pid}, flush=True); input()'])\n")
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w") as file:
                file.write(code)
            parent = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
            pid = int(parent.stdout.readline())
            self.assertEqual(parent.stderr.readline(), f"shoal: process {pid} ends because its parent, process {parent.pid}, has "
                                                       "executed another program; a process with outlive=True goes on\n")
            parent.communicate("\n", timeout=LONG)
            self.assertEqual(wait_for_end([pid], LONG), [])

    def test_a_process_that_outlives_does_not_hold_the_resource_tracker(self):
        queue = self.ctx.SimpleQueue()
        process = self.ctx.Process(target=tell_tracker, args=(queue,), outlive=True)
        process.start()
        self.assertEqual(queue.get(), (None, process.pid))
        process.join()
        self.assertEqual(process.exitcode, 0)


for_each_method(Death, globals())

if __name__ == "__main__":
    unittest.main()
