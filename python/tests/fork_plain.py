"""Plain forks, plain multiprocessing and threads beside our queues and arrays (B74): nothing is corrupted, nothing hangs."""
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest
import zlib

import numpy

import shoal
import support
from shoal import world
from support import LONG, Case, received

FORKS = 1000


def checksum(array):
    return zlib.crc32(numpy.ascontiguousarray(array))


class Traffic:
    """A thread that sends arrays through a pair of queues all the time and checks each."""

    def __init__(self, ctx):
        self.there, self.back, self.stop, self.count, self.error = ctx.Queue(), ctx.Queue(), False, 0, None
        self.thread = threading.Thread(target=self.run)
        self.child = ctx.Process(target=send_back, args=(self.there, self.back))

    def run(self):
        try:
            while not self.stop:
                array = numpy.full(1 + self.count * 37 % 20000, self.count)
                self.there.put((self.count, array))
                number, arrived = self.back.get(timeout=LONG)
                if number != self.count or checksum(arrived) != checksum(array):
                    raise AssertionError(f"message {self.count} is damaged")
                self.count += 1
        except BaseException as error:  # the main thread reports it
            self.error = error

    def __enter__(self):
        self.child.start()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join(LONG)
        self.there.put(None)
        self.child.join(LONG)


def send_back(there, back):
    for message in received(there):
        back.put(message)


def square(queue, number):
    queue.put(number * number)


class PlainForks(Case):
    def fork(self, check):
        """Forks behind our back. Returns the pid; the child ends with 0 if check() is true."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if check() else 2
            finally:
                os._exit(code)
        return pid

    def test_b74_a_thousand_forks_beside_threads_and_queues(self):
        ctx = support.mp.get_context("fork")
        shared = shoal.from_numpy(numpy.random.default_rng(7).integers(0, 255, 100000, numpy.uint8))
        private = support.mp.Queue()
        private.put(numpy.arange(50000))
        received = private.get()
        answers = support.mp.Queue()
        sums = checksum(shared), checksum(received)
        plain = multiprocessing.get_context("fork").Queue()
        with Traffic(ctx) as one, Traffic(ctx) as two:
            for i in range(FORKS):
                def check():
                    if i % 10 == 0:
                        answers.put(i)  # a forked child is a member of the world: it may use what its parent holds
                    good = (checksum(shared), checksum(received)) == sums
                    received[0] = -1  # reaches nobody: the array came by value
                    return good

                pid = self.fork(check)
                if i % 50 == 0:
                    process = multiprocessing.get_context("fork").Process(target=square, args=(plain, i))
                    process.start()
                    self.assertEqual(plain.get(timeout=LONG), i * i)
                    process.join(LONG)
                    process.close()
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
                if i % 10 == 0:
                    self.assertEqual(answers.get(timeout=LONG), i)
        plain.close()
        plain.join_thread()
        for traffic in (one, two):
            self.assertIsNone(traffic.error)
            self.assertGreater(traffic.count, 100)
        self.assertEqual((checksum(shared), checksum(received)), sums)

    def test_b74_what_a_plain_fork_may_not_do_raises(self):
        """The ends of a pipe stay with the parent, and so does a pool."""
        one, other = support.mp.Pipe()

        def check():
            try:
                one.send(1)
            except shoal.Error as error:
                return "fork" in str(error)
            return False

        for _ in range(30):
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(self.fork(check), 0)[1]), 0)
        one.send(2)
        self.assertEqual(other.recv(), 2)


# ---- the end of the interpreter ----

EXITS = {
    "live objects in globals": """
        queue, lock, event, barrier = mp.Queue(), mp.Lock(), mp.Event(), mp.Barrier(2)
        one, other = mp.Pipe()
        value, array, shared = mp.Value('i'), mp.Array('d', 10), shoal.zeros(1000)
        queue.put([lock, shared])
        lock.acquire()
    """,
    "cycles": """
        for make in (mp.Queue, mp.Lock, mp.Event):
            cycle = [make()]
            cycle.append(cycle)
            obj = type('Holder', (), {})()
            obj.self, obj.shared = obj, make()
        array = shoal.zeros(10)
        holder = numpy.array([array, None], dtype=object)
        holder[1] = holder
    """,
    "a daemon thread inside get": """
        queue = mp.Queue()
        threading.Thread(target=queue.get, daemon=True).start()
        wait_until_waiting(os.getpid())
    """,
    "a daemon thread inside acquire": """
        lock = mp.Lock()
        lock.acquire()
        threading.Thread(target=lock.acquire, daemon=True).start()
        wait_until_waiting(os.getpid())
    """,
    "a daemon process inside get": """
        queue = mp.Queue()
        child = mp.get_context('fork').Process(target=queue.get, daemon=True)
        child.start()
        wait_until_waiting(child.pid)
    """,
    "objects that die in atexit and in __del__": """
        import atexit
        queue = mp.Queue()
        atexit.register(lambda: queue.put(1))
        class Last:
            def __init__(self): self.queue = mp.Queue()
            def __del__(self): self.queue.put(2)
        last = Last()
        last.itself = last
    """,
    "an exception": """
        queue, lock = mp.Queue(), mp.Lock()
        with lock:
            sys.exit(0)
    """,
    "a pool that nobody closed": """
        pool = mp.Pool(2)
        result = pool.map_async(abs, range(100))
        assert result.get(60) == list(range(100))
    """,
    "garbage in any order": """
        import gc, random
        random.seed(3)
        objects = []
        for _ in range(2000):
            make = random.choice((mp.Queue, mp.Lock, mp.Event, mp.Pipe, lambda: shoal.zeros(random.randrange(5000))))
            obj = make()
            if isinstance(obj, type(mp.Queue())):
                obj.put(objects[-3:] if random.random() < 0.3 and all(not isinstance(o, tuple) for o in objects[-3:]) else obj)
            objects.append(obj)
            if len(objects) > 100:
                random.shuffle(objects)
                del objects[50:]
    """,
}

EXIT_PROGRAM = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import numpy
import shoal
import shoal.multiprocessing as mp
from support import wait_until_waiting
{body}
"""


class Exits(unittest.TestCase):
    def test_b74_the_interpreter_ends(self):
        import textwrap

        tests = os.path.dirname(os.path.abspath(__file__))
        for name, body in EXITS.items():
            for _ in range(3):
                with self.subTest(name):
                    program = EXIT_PROGRAM.format(tests=tests, body=textwrap.dedent(body))
                    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
