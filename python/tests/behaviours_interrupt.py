"""Ctrl-C: B71."""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import support
from shoal import world

ROUNDS = 9

# Each blocks in one call. `mp` is the module; the program has one child, which waits until it is ended.
CALLS = {
    "queue get": "queue = mp.Queue()\ndef call(): queue.get()",
    "queue get with a timeout": "queue = mp.Queue()\ndef call(): queue.get(timeout=60)",
    "queue put": "queue = mp.Queue(1)\nqueue.put(1)\ndef call(): queue.put(2)",
    "simple queue get": "queue = mp.SimpleQueue()\ndef call(): queue.get()",
    "queue join": "queue = mp.JoinableQueue()\nqueue.put(1)\ndef call(): queue.join()",
    "pipe recv": "one, other = mp.Pipe()\ndef call(): one.recv()",
    "pipe poll": "one, other = mp.Pipe()\ndef call(): one.poll(60)",
    "lock": "lock = mp.Lock()\nlock.acquire()\ndef call(): lock.acquire()",
    "with lock": "lock = mp.Lock()\nlock.acquire()\ndef call():\n    with lock: pass",
    "semaphore": "semaphore = mp.Semaphore(0)\ndef call(): semaphore.acquire()",
    "condition": "condition = mp.Condition()\ndef call():\n    with condition: condition.wait()",
    "event": "event = mp.Event()\ndef call(): event.wait()",
    "barrier": "def call(): mp.Barrier(2).wait()",
    "process join": "def call(): child.join()",
    "connection wait": "queue = mp.Queue()\ndef call(): mp.connection.wait([queue, child.sentinel])",
    "pool get": "pool = mp.Pool(1)\nresult = pool.apply_async(sleep)\ndef call(): result.get()",
    "pool map": "pool = mp.Pool(1)\ndef call(): pool.map(sleep_for, [1])",
}

PROGRAM = """
import signal, sys, time
import shoal.multiprocessing as mp
import shoal.multiprocessing.connection

def sleep():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)

def sleep_for(n):
    sleep()

child = mp.get_context("fork").Process(target=sleep, daemon=True)
child.start()
{setup}
for _ in range({rounds}):
    try:
        print("ready", flush=True)
        call()
        print("the call returned", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


class Calls(unittest.TestCase):
    def interrupt(self, setup):
        """Returns the seconds from each signal to the exception."""
        program = subprocess.Popen([sys.executable, "-c", PROGRAM.format(setup=setup, rounds=ROUNDS)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        seconds = []
        with program:
            try:
                for _ in range(ROUNDS):
                    self.assertEqual(program.stdout.readline(), "ready\n", program.poll() and program.stderr.read())
                    support.wait_until(lambda: support.state_of(program.pid) == "S")
                    sent = support.quiet_time()
                    program.send_signal(signal.SIGINT)
                    self.assertEqual(program.stdout.readline(), "interrupted\n")
                    seconds.append(support.quiet_time() - sent)
                self.assertEqual(program.wait(support.LONG), 0, program.stderr.read())
            finally:
                program.kill()
        return seconds

    def test_b71_every_blocking_call(self):
        for name, setup in CALLS.items():
            with self.subTest(call=name):
                seconds = self.interrupt(setup)
                self.assertLess(statistics.median(seconds), 0.1, f"{name}: {seconds}")
                self.assertLess(max(seconds), 5, name)  # the machine may be busy


WHOLE = """
import os, sys
import shoal.multiprocessing as mp

def wait_in_get(queue, ready):
    ready.put(os.getpid())
    queue.get()

def wait_in_lock(lock, ready):
    ready.put(os.getpid())
    lock.acquire()

def wait_in_barrier(barrier, ready):
    ready.put(os.getpid())
    barrier.wait()

if __name__ == "__main__":
    mp.set_start_method(sys.argv[1])
    queue, ready, lock, barrier = mp.Queue(), mp.Queue(), mp.Lock(), mp.Barrier(2)
    lock.acquire()
    children = [mp.Process(target=wait_in_get, args=(queue, ready)), mp.Process(target=wait_in_lock, args=(lock, ready)),
                mp.Process(target=wait_in_barrier, args=(barrier, ready))]
    for child in children:
        child.start()
    print(*[ready.get() for _ in children], flush=True)
    for child in children:
        child.join()
"""


class WholeProgram(unittest.TestCase):
    def test_b71_children_end_and_nothing_is_left(self):
        """What a terminal does: all processes of the group get the signal."""
        for method in support.METHODS:
            with self.subTest(method=method):
                self.interrupt_group(method)

    def interrupt_group(self, method):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(WHOLE)
        program = subprocess.Popen([sys.executable, path, method], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        with program:
            try:
                pids = [int(word) for word in program.stdout.readline().split()]
                self.assertEqual(len(pids), 3)
                for pid in (*pids, program.pid):
                    support.wait_until(lambda: support.state_of(pid) == "S")
                os.killpg(program.pid, signal.SIGINT)
                errors = program.communicate(timeout=support.LONG)[1]
            finally:
                program.kill()
        self.assertIn(program.returncode, (1, -signal.SIGINT))
        self.assertIn("KeyboardInterrupt", errors)
        support.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
        self.assertFalse([entry for entry in world.ps() if entry.pid in (*pids, program.pid)])


if __name__ == "__main__":
    unittest.main()
