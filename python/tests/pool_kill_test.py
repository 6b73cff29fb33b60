"""Workers of a pool die, in every way: no hang, the right error, right results, and nothing is left behind. (B28)"""

import errno
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
import unittest
import unittest.mock

import support
from pool_cases import LIMIT, PoolCase, exit_with, kill_self, leave, pid_of, square, survive_second, tell_and_wait
from shoal.multiprocessing.pool import Pool, WorkerDied

KILLS = 200
SEED = 20111


def square_or_wait(task):
    number, tell = task
    if tell is not None:
        tell_and_wait(tell)
    return square(number)


def raise_first(errors, function):
    """Wraps a function: its first calls raise these errors, which it removes from the list."""
    def call(**arguments):
        if errors:
            raise errors.pop()
        return function(**arguments)
    return call


def wait_for(pool, count):
    support.wait_until(lambda: len(pool._pool) == count)
    return list(pool._pool)


class Deaths(PoolCase):
    def test_ways_to_die(self):
        with self.Pool(1) as pool:
            for task, argument, text, exitcode in (
                    (kill_self, signal.SIGKILL, "ended by SIGKILL", -9),
                    (kill_self, signal.SIGTERM, "ended by SIGTERM", -15),
                    (exit_with, 123, "exited with code 123", 123),
                    (exit_with, 0, "exited with code 0", 0),
                    (leave, 3, "exited with code 3", 3)):
                worker = pool.apply(pid_of, (0,))
                text = rf"^worker 0 \(pid {worker}\) {text} while it ran task \d+$"
                with self.assertRaisesRegex(WorkerDied, text) as caught:
                    pool.apply(task, (argument,))
                self.assertEqual((caught.exception.pid, caught.exception.exitcode), (worker, exitcode))
            copy = pickle.loads(pickle.dumps(caught.exception))
            self.assertEqual((str(copy), copy.pid, copy.exitcode), (str(caught.exception), worker, 3))

    def test_chunk_of_a_dead_worker(self):
        with self.Pool(1) as pool:
            with self.assertRaisesRegex(WorkerDied, "while it ran tasks 0 to 3$"):
                pool.map(kill_self, [signal.SIGKILL] * 4, chunksize=4)

    def test_retries(self):
        path = f"/tmp/shoal-pool-test-{os.getpid()}"
        self.addCleanup(os.unlink, path)
        with self.Pool(2, retries=1) as pool:
            self.assertEqual(pool.map(survive_second, [path]), ["done"])
            with self.assertRaisesRegex(WorkerDied, "ended by SIGKILL while it ran task 0, which was run 2 times"):
                pool.map(kill_self, [signal.SIGKILL], chunksize=1)

    def test_a_worker_that_dies_idle_is_replaced(self):
        with self.Pool(1) as pool:
            first = pool.apply(pid_of, (0,))
            os.kill(first, signal.SIGKILL)
            self.assertNotEqual(pool.apply(pid_of, (0,)), first)

    def test_killing_workers_that_start_does_not_break_a_pool_with_others(self):
        hold = self.context.Queue()
        with self.Pool(2, hold.get) as pool:
            hold.put(None)
            first = pool.apply(pid_of, (0,))
            for _ in range(8):
                starting, = [process.pid for process in wait_for(pool, 2) if process.pid != first]
                os.kill(starting, signal.SIGKILL)
                support.wait_until(lambda: starting not in [process.pid for process in list(pool._pool)])
            self.assertEqual(pool.map(square, range(5)), [0, 1, 4, 9, 16])

    def test_a_start_that_fails_for_the_moment_does_not_break_the_pool(self):
        moments = [OSError(errno.EMFILE, "no fd"), OSError(errno.EAGAIN, "no process"), MemoryError("heap"),
                   OSError(f"opening a lifeline: {os.strerror(errno.EMFILE)}")]
        with self.Pool(1) as pool, unittest.mock.patch("shoal.multiprocessing.pool_workers._RETRY_START", 0.001):
            pool._workers._make_process = raise_first(moments, pool._workers._make_process)
            os.kill(pool._pool[0].pid, signal.SIGKILL)
            self.assertEqual(pool.map_async(square, [3]).get(LIMIT), [9])
            self.assertEqual(moments, [])

    def test_a_thread_of_the_pool_that_fails_breaks_the_pool(self):
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda args: None
        for part, method in ("_workers", "_replace"), ("_jobs", "_run_notes"):
            with self.subTest(method):
                self.break_by(part, method)

    def break_by(self, part, method):
        tell = self.context.Queue()
        pool = self.Pool(1)
        pending = pool.apply_async(tell_and_wait, (tell,))
        tell.get(timeout=LIMIT)
        bug = KeyError("a bug")
        with unittest.mock.patch.object(getattr(pool, part), method, side_effect=bug):
            pool._workers.wake()
            pool._jobs._note(int)
            with self.assertRaisesRegex(RuntimeError, "the pool failed before the task was done") as caught:
                pending.get(LIMIT)
        self.assertIs(caught.exception.__cause__, bug)
        with self.assertRaisesRegex(ValueError, "Pool not running") as caught:
            pool.map_async(square, [1])
        self.assertIs(caught.exception.__cause__, bug)
        pool.close()
        pool.join()
        bug.__traceback__ = None

    def test_join_returns_when_workers_are_killed_while_closing(self):
        tell = self.context.Queue()
        pool = self.Pool(2)
        results = [pool.apply_async(tell_and_wait, (tell,)) for _ in range(2)]
        pool.close()
        for _ in results:
            os.kill(tell.get(timeout=LIMIT), signal.SIGKILL)
        pool.join()
        for result in results:
            self.assertRaises(WorkerDied, result.get, 0)


class PlainProcess(multiprocessing.get_context("fork").Process):
    """A process of the standard module, with children of its own: programs replace Pool.Process by such a class."""

    daemon = False


class PoolOfPlainProcesses(Pool):
    @staticmethod
    def Process(ctx, *args, **kwds):
        return PlainProcess(*args, **kwds)


class Kills(PoolCase):
    def test_workers_that_the_library_did_not_start(self):
        for retries, text in (0, r"task \d+$"), (2, r"task \d+, which was run 3 times$"):
            with PoolOfPlainProcesses(2, context=self.context, retries=retries) as pool:
                for _ in range(5):
                    with self.assertRaisesRegex(WorkerDied, f"ended by SIGKILL while it ran {text}"):
                        pool.apply(kill_self, (signal.SIGKILL,))
                    self.assertEqual(pool.map(square, range(5)), [0, 1, 4, 9, 16])

    def test_worker_killed_in_a_task_under_map(self):
        numbers = random.Random(SEED)
        tell = self.context.Queue()
        with self.Pool(2) as pool:
            for _ in range(KILLS):
                bad = numbers.randrange(6)
                tasks = [(i, tell if i == bad else None) for i in range(6)]
                failing = pool.map_async(square_or_wait, tasks, chunksize=1)
                others = pool.map_async(square, range(20), chunksize=3)
                one = pool.imap_unordered(square, range(3))
                victim = tell.get(timeout=LIMIT)
                os.kill(victim, signal.SIGKILL)
                with self.assertRaises(WorkerDied) as caught:
                    failing.get(LIMIT)
                self.assertRegex(str(caught.exception),
                                 rf"^worker [01] \(pid {victim}\) ended by SIGKILL while it ran task {bad}$")
                self.assertEqual((caught.exception.pid, caught.exception.exitcode), (victim, -signal.SIGKILL))
                self.assertEqual(others.get(LIMIT), [x * x for x in range(20)])
                self.assertEqual(sorted(one), [0, 1, 4])
            wait_for(pool, 2)  # the last one killed is replaced a moment later

    def test_workers_killed_at_any_moment_with_retries(self):
        numbers = random.Random(SEED)
        with self.Pool(3, retries=1000000) as pool:
            stop = threading.Event()
            kills = []

            def kill_some():
                while len(kills) < KILLS and not stop.is_set():
                    processes = list(pool._pool)
                    pid = numbers.choice(processes).pid if processes else None
                    # The pool would rightly give up if no worker lived long enough to become ready.
                    if pid is not None and pid not in kills and pool._workers.ready():
                        os.kill(pid, signal.SIGKILL)
                        kills.append(pid)
                    time.sleep(numbers.random() * 0.02)

            killer = threading.Thread(target=kill_some)
            killer.start()
            try:
                rounds = 0
                while killer.is_alive():
                    rounds += 1
                    count = numbers.randrange(1, 300)
                    self.assertEqual(pool.map_async(square, range(count), chunksize=1).get(LIMIT),
                                     [x * x for x in range(count)], f"seed {SEED}, round {rounds}")
                    self.assertEqual(sorted(pool.imap_unordered(square, range(50))), [x * x for x in range(50)])
                    self.assertEqual(list(pool.imap(square, iter(range(50)))), [x * x for x in range(50)])
            finally:
                stop.set()
                killer.join()
            self.assertEqual(len(kills), KILLS)
            pool.close()
            pool.join()


if __name__ == "__main__":
    unittest.main()
