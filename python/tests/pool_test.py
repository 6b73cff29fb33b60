"""Tests of shoal.multiprocessing.pool: everything over fork, the main parts over spawn and forkserver. (B28)"""

import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings
import weakref

import shoal.multiprocessing as mp
from shoal import _shoal, world
from shoal.multiprocessing import pool as pools
from shoal.multiprocessing.pool_workers import WorkerDied

LIMIT = 10  # seconds after which a test has hung


def square(x, add=0):
    return x * x + add


def add(a, b):
    return a + b


def pid_of(_):
    return os.getpid()


def fail(x):
    raise KeyError(f"the value {x}")


def fail_at(bad, x):
    if x == bad:
        raise ValueError(f"{x} is bad")
    return -x


def identity(x):
    return x


def make_lambda(_):
    return lambda: 1


def exit_with(code):
    os._exit(code)


def leave(code):
    sys.exit(code)


def kill_self(number):
    os.kill(os.getpid(), number)
    while True:
        signal.pause()


class Unloadable:
    """Pickles, but raises when it is unpickled."""

    def __reduce__(self):
        return fail, ("of an object",)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("cannot pickle this")


class Counter:
    """Its method changes the object."""

    def __init__(self):
        self.count = 0

    def step(self, x):
        self.count += 1
        return self.count


class Tracked:
    alive = weakref.WeakSet()

    def __new__(cls):
        self = super().__new__(cls)
        cls.alive.add(self)
        return self


given = None


def remember(value):
    global given
    given = value


def recall(_=None):
    return given


def bad_initializer():
    raise OSError("no such model")


def tell_and_wait(tell):
    """Says who runs it and waits until it is killed."""
    tell.put(os.getpid())
    while True:
        signal.pause()


def ignore_and_wait(tell):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell_and_wait(tell)


def fill(place):
    array, row = place
    array[row] = row + 1


def fill_row(array, unused, row):
    fill((array, row))


def survive_second(path):
    """Kills its worker the first time and returns the second time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)


def fds():
    return len(os.listdir("/proc/self/fd"))


class Checked(unittest.TestCase):
    """Each test leaves no process, thread, fd or memory behind."""

    method = "fork"

    def setUp(self):
        self.context = mp.get_context(self.method)
        try:
            self.Pool(1).terminate()  # makes what stays: the world, the fork server
        except NotImplementedError as error:
            self.skipTest(str(error))
        gc.collect()
        self.before = threading.active_count(), fds(), _shoal.audit()["blocks"]
        self.addCleanup(self.check_leaks)

    def check_leaks(self):
        deadline = time.monotonic() + LIMIT
        while True:
            gc.collect()
            after = threading.active_count(), fds(), _shoal.audit()["blocks"]
            if after == self.before and not multiprocessing.active_children():
                return
            if time.monotonic() > deadline or sys.exc_info()[0] is not None:
                break
        self.assertEqual(after, self.before, "threads, fds, blocks")
        self.assertEqual(multiprocessing.active_children(), [])

    def Pool(self, *args, **kwds):
        return self.context.Pool(*args, **kwds)


class Common:
    """What is tested over every start method."""

    def test_calls(self):
        with self.Pool(2) as pool:
            self.assertEqual(pool.apply(square, (3,)), 9)
            self.assertEqual(pool.apply(square, [3], {"add": 1}), 10)
            self.assertEqual(pool.map(square, range(20)), [x * x for x in range(20)])
            self.assertEqual(pool.map(square, range(20), chunksize=3), [x * x for x in range(20)])
            self.assertEqual(pool.starmap(add, [(1, 2), [3, 4]]), [3, 7])
            self.assertEqual(pool.starmap(add, [(1, 2), (3, 4), (5, 6)], chunksize=2), [3, 7, 11])
            self.assertEqual(list(pool.imap(square, range(5))), [0, 1, 4, 9, 16])
            self.assertEqual(sorted(pool.imap_unordered(square, range(5), chunksize=2)), [0, 1, 4, 9, 16])
            self.assertEqual(pool.map_async(square, [5]).get(LIMIT), [25])
            with self.assertRaises(KeyError) as caught:
                pool.apply(fail, (7,))
            self.assertIn("in fail", str(caught.exception.__cause__))
            pool.close()
            pool.join()

    def test_initializer(self):
        with self.Pool(2, remember, ("hello",)) as pool:
            self.assertEqual(pool.map(recall, range(4)), ["hello"] * 4)

    def test_killed_worker(self):
        with self.Pool(2) as pool:
            with self.assertRaisesRegex(WorkerDied, r"^worker \d \(pid \d+\) ended by SIGKILL while it ran task 0$"):
                pool.map(kill_self, [signal.SIGKILL], chunksize=1)
            self.assertEqual(pool.map(square, range(10)), [x * x for x in range(10)])

    def test_maxtasksperchild(self):
        with self.Pool(1, maxtasksperchild=2) as pool:
            pids = pool.map(pid_of, range(6), chunksize=1)
            self.assertEqual([len(list(group)) for _, group in itertools.groupby(pids)], [2, 2, 2])

    def test_failing_initializer_breaks_the_pool(self):
        with self.Pool(2, quiet(bad_initializer)) as pool:
            with self.assertRaisesRegex(WorkerDied, "the pool is broken: 3 workers in a row .*exited with code 1"):
                pool.map(square, range(10))
            with self.assertRaises(WorkerDied) as caught:
                pool.apply(square, (1,))
            self.assertIsInstance(caught.exception.__cause__, OSError)
            pool.close()
            pool.join()

    def test_shared_arrays_are_filled_for_the_caller(self):
        try:
            from shoal import arrays
        except ImportError:
            self.skipTest("numpy is not here")
        array = arrays.zeros((4, 1000), "i4")
        with self.Pool(2) as pool:
            pool.map(fill, [(array, row) for row in range(3)])
            pool.map(functools.partial(fill_row, array, b"large" * 1000), [3])
        self.assertEqual([row.tolist() for row in array], [[row + 1] * 1000 for row in range(4)])


class quiet:
    """Calls a function with stderr closed: its traceback would only confuse the reader of a test's output."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        return self.function(*args)


class Fork(Common, Checked):
    pass


class Spawn(Common, Checked):
    method = "spawn"


class ForkServer(Common, Checked):
    method = "forkserver"


class Results(Checked):
    def test_async_result(self):
        with self.Pool(1) as pool:
            tell = self.context.Queue()
            slow = pool.apply_async(tell.get, callback=None)
            self.assertFalse(slow.ready())
            with self.assertRaisesRegex(ValueError, "not ready"):
                slow.successful()
            with self.assertRaises(multiprocessing.TimeoutError):
                slow.get(timeout=0.01)
            tell.put("now")
            self.assertEqual(slow.get(LIMIT), "now")
            self.assertTrue(slow.ready() and slow.successful())
            bad = pool.apply_async(fail, (1,))
            bad.wait(LIMIT)
            self.assertFalse(bad.successful())
            self.assertIsInstance(slow, multiprocessing.pool.AsyncResult)

    def test_callbacks(self):
        with self.Pool(2) as pool:
            seen = []
            pool.apply_async(square, (3,), callback=seen.append).wait(LIMIT)
            pool.apply_async(fail, (3,), {}, seen.append, lambda e: seen.append(type(e))).wait(LIMIT)
            pool.map_async(square, [1, 2], callback=seen.append).wait(LIMIT)
            pool.starmap_async(add, [(1,)], error_callback=lambda e: seen.append(type(e))).wait(LIMIT)
            self.assertEqual(seen, [9, KeyError, [1, 4], TypeError])

    def test_callback_that_raises_is_reported_and_the_pool_goes_on(self):
        reports = []
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda args: reports.append(args.exc_type)
        with self.Pool(1) as pool:
            self.assertEqual(pool.apply_async(square, (2,), callback=fail).get(LIMIT), 4)
            self.assertEqual(pool.apply(square, (3,)), 9)
        self.assertEqual(reports, [KeyError])

    def test_callback_may_terminate_the_pool(self):
        pool = self.Pool(1)
        pool.apply_async(square, (2,), callback=lambda _: pool.terminate()).wait(LIMIT)
        pool.join()

    def test_imap_next_with_timeout(self):
        with self.Pool(1) as pool:
            tell = self.context.Queue()
            iterator = pool.imap(tell_next, [tell] * 2)
            with self.assertRaises(multiprocessing.TimeoutError):
                iterator.next(timeout=0.01)
            tell.put(1)
            tell.put(2)
            self.assertEqual([iterator.next(LIMIT), iterator.next(LIMIT)], [1, 2])
            with self.assertRaises(StopIteration):
                iterator.next()
            self.assertIsInstance(iterator, multiprocessing.pool.IMapIterator)

    def test_imap_over_an_endless_iterable(self):
        with self.Pool(2) as pool:
            taken = itertools.count()
            results = pool.imap(square, map(lambda i: next(taken), itertools.count()))
            self.assertEqual(list(itertools.islice(results, 1000)), [x * x for x in range(1000)])
            self.assertEqual(set(itertools.islice(pool.imap_unordered(identity, itertools.repeat(5)), 300)), {5})

    def test_close_while_an_imap_still_takes_arguments(self):
        pool = self.Pool(2)
        gate = threading.Event()

        def numbers():
            yield 1
            gate.wait(LIMIT)
            yield from range(200)

        results = pool.imap(square, numbers())
        pool.close()
        gate.set()
        pool.join()
        self.assertEqual(list(results), [1] + [x * x for x in range(200)])

    def test_imap_whose_iterable_waits_for_its_results(self):
        with self.Pool(2) as pool:
            results = []

            def chained():
                yield 2
                for _ in range(5):
                    while not results:
                        time.sleep(0)
                    yield results.pop()

            seen = [(results.append(y), y)[1] for y in pool.imap(functools.partial(add, 1), chained())]
        self.assertEqual(seen, [3, 4, 5, 6, 7, 8])

    def test_iterables_that_raise(self):
        def broken():
            yield 1
            yield 2
            raise OSError("the disk is gone")

        class Sized(list):
            def __iter__(self):
                return broken()

        with self.Pool(2) as pool:
            with self.assertRaises(OSError):
                pool.map(square, broken())
            result = pool.map_async(square, Sized([1, 2, 3]))
            with self.assertRaises(OSError) as caught:
                result.get(LIMIT)
            self.assertIsNone(caught.exception.__cause__)
            for chunksize, good in (1, [1, 4]), (2, [1, 4]), (4, []):
                results = pool.imap(square, broken(), chunksize)
                self.assertEqual([next(results) for _ in good], good)
                with self.assertRaises(OSError):
                    next(results)

    def test_nothing_to_do(self):
        with self.Pool(1) as pool:
            self.assertEqual(pool.map(square, []), [])
            self.assertEqual(list(pool.imap(square, [])), [])
            self.assertEqual(list(pool.imap_unordered(square, iter([]), 3)), [])
            self.assertEqual(pool.starmap_async(square, iter(())).get(), [])


def tell_next(queue):
    return queue.get()


class Failures(Checked):
    def test_what_cannot_be_pickled_fails_alone(self):
        with self.Pool(2) as pool:
            good = pool.apply_async(square, (2,))
            with self.assertRaisesRegex(RuntimeError, "cannot pickle this"):
                pool.apply(identity, (Unpicklable(),))
            with self.assertRaises((pickle.PicklingError, AttributeError)):
                pool.map(lambda x: x, range(10))
            results = pool.imap(identity, [1, Unpicklable(), 3])
            self.assertEqual(next(results), 1)
            with self.assertRaises(RuntimeError):
                next(results)
            self.assertEqual(next(results), 3)
            self.assertEqual(good.get(LIMIT), 4)

    def test_arguments_that_cannot_be_unpickled_fail_alone(self):
        with self.Pool(1) as pool:
            before = pool.apply(pid_of, (0,))
            with self.assertRaisesRegex(KeyError, "of an object"):
                pool.apply(identity, (Unloadable(),))
            self.assertEqual(pool.apply(pid_of, (0,)), before)

    def test_results_that_cannot_be_sent_fail_alone(self):
        with self.Pool(1) as pool:
            before = pool.apply(pid_of, (0,))
            with self.assertRaises(pools.MaybeEncodingError) as caught:
                pool.apply(make_lambda, (0,))
            self.assertIn("Error sending result", str(caught.exception))
            with self.assertRaisesRegex(KeyError, "of an object"):
                pool.apply(Unloadable)
            with self.assertRaises(pools.MaybeEncodingError):
                pool.apply(raise_unpicklable)
            self.assertEqual(pool.apply(pid_of, (0,)), before)

    def test_remote_traceback(self):
        with self.Pool(1) as pool:
            with self.assertRaises(ValueError) as caught:
                pool.map(functools.partial(fail_at, 3), range(5), chunksize=1)
        self.assertEqual(caught.exception.args, ("3 is bad",))
        self.assertIsInstance(caught.exception.__cause__, multiprocessing.pool.RemoteTraceback)
        self.assertIn('raise ValueError(f"{x} is bad")', caught.exception.__cause__.tb)

    def test_a_method_does_not_keep_its_object_between_tasks(self):
        with self.Pool(1) as pool:
            self.assertEqual(pool.map(Counter().step, range(5), chunksize=1), [1] * 5)

    def test_arguments_and_results_are_released(self):
        with self.Pool(2) as pool:
            objects = [Tracked() for _ in range(10)]
            results = pool.map(identity, objects)
            self.assertEqual(len(Tracked.alive), 20)
            del objects, results
            self.assertEqual(pool.apply(count_tracked), 0)
        self.assertEqual(len(Tracked.alive), 0)

    def test_arguments_of_pool(self):
        for processes in 0, -1:
            with self.assertRaisesRegex(ValueError, "Number of processes must be at least 1"):
                self.Pool(processes)
        for value in 0, -1, 0.5, "12":
            with self.assertRaisesRegex(ValueError, "maxtasksperchild must be a positive int or None"):
                self.Pool(1, maxtasksperchild=value)
        with self.assertRaisesRegex(TypeError, "initializer must be a callable"):
            self.Pool(1, 7)
        for value in -1, 1.5:
            with self.assertRaisesRegex(ValueError, "retries"):
                self.Pool(1, retries=value)
        with self.Pool(1) as pool:
            for call in pool.imap, pool.imap_unordered:
                with self.assertRaisesRegex(ValueError, r"Chunksize must be 1\+, not 0"):
                    call(square, [], 0)
            with self.assertRaisesRegex(NotImplementedError, "pool objects cannot be passed between processes"):
                pickle.dumps(pool)


def raise_unpicklable():
    raise UnpicklableError()


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


def count_tracked():
    return len(Tracked.alive)


def take_and_die(tasks):
    tasks._take(None)
    os.kill(os.getpid(), signal.SIGKILL)


def answer_and_die(tasks, results):
    """What a worker does that is killed after it has put its result, and before the queue knows that."""
    (header, x), _ = tasks._take(None)
    job, index = struct.unpack_from("qq", header)
    results.put([struct.pack("qqq", job, index, 0), square(x)])
    os.kill(os.getpid(), signal.SIGKILL)


def wait_until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen")
        time.sleep(0)


def wait_for(pool, count):
    wait_until(lambda: len(pool._pool) == count)
    return list(pool._pool)


class Deaths(Checked):
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

    def test_a_worker_that_dies_between_taking_a_task_and_noting_it(self):
        with self.Pool(1) as pool:
            worker = pool.apply(pid_of, (0,))
            os.kill(worker, signal.SIGSTOP)
            thief = self.context.Process(target=take_and_die, args=(pool._workers.tasks,))
            thief.start()
            result = pool.apply_async(square, (1,))
            thief.join(LIMIT)
            os.kill(worker, signal.SIGCONT)
            with self.assertRaisesRegex(WorkerDied, "^a worker ended while it ran task"):
                result.get(LIMIT)

    def test_a_worker_that_dies_between_its_result_and_the_end_of_the_task(self):
        for retries in 0, 1:
            with self.Pool(1, retries=retries) as pool:
                for call in pool.map_async, pool.imap, pool.imap_unordered:
                    worker = pool.apply(pid_of, (0,))
                    os.kill(worker, signal.SIGSTOP)
                    queues = pool._workers.tasks, pool._workers.results
                    thief = self.context.Process(target=answer_and_die, args=queues)
                    thief.start()
                    results = call(square, [2, 3, 4], 1)
                    thief.join(LIMIT)
                    os.kill(worker, signal.SIGCONT)
                    self.assertEqual(results.get(LIMIT) if call == pool.map_async else list(results), [4, 9, 16])

    def test_killing_workers_that_start_does_not_break_a_pool_with_others(self):
        hold = self.context.Queue()
        with self.Pool(2, hold.get) as pool:
            hold.put(None)
            first = pool.apply(pid_of, (0,))
            for _ in range(8):
                starting, = [process.pid for process in wait_for(pool, 2) if process.pid != first]
                os.kill(starting, signal.SIGKILL)
                wait_until(lambda: starting not in [process.pid for process in list(pool._pool)])
            self.assertEqual(pool.map(square, range(5)), [0, 1, 4, 9, 16])

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


class Ends(Checked):
    def test_states(self):
        pool = self.Pool(1)
        with self.assertRaisesRegex(ValueError, "Pool is still running"):
            pool.join()
        self.assertRegex(repr(pool), r"<shoal\.multiprocessing\.pool\.Pool state=RUN pool_size=1>")
        last = pool.apply_async(square, (2,))
        pool.close()
        for call in (lambda: pool.apply(square, (1,)), lambda: pool.map(square, []), lambda: pool.imap(square, []),
                     pool.__enter__):
            with self.assertRaisesRegex(ValueError, "Pool not running"):
                call()
        pool.join()
        self.assertEqual(last.get(0), 4)
        pool.terminate()
        pool.join()

    def test_terminate_with_busy_workers_and_a_long_queue(self):
        tell = self.context.Queue()
        pool = self.Pool(2)
        busy = pool.map_async(tell_and_wait, [tell] * 1000, chunksize=1)
        endless = pool.imap(identity, itertools.count())
        tell.get(timeout=LIMIT)
        pool.terminate()
        pool.join()
        for wait in busy.get, endless.next:
            with self.assertRaisesRegex(RuntimeError, "the pool was terminated before the task was done"):
                wait(LIMIT)

    def test_terminate_with_stopped_workers(self):
        tell = self.context.Queue()
        pool = self.Pool(2)
        pool.map_async(tell_and_wait, [tell] * 2, chunksize=1)
        for _ in range(2):
            os.kill(tell.get(timeout=LIMIT), signal.SIGSTOP)
        pool.terminate()
        self.assertEqual([worker.exitcode for worker in pool._pool], [-signal.SIGTERM] * 2)

    def test_terminate_kills_what_ignores_sigterm(self):
        tell = self.context.Queue()
        pool = self.Pool(1)
        pool.apply_async(ignore_and_wait, (tell,))
        tell.get(timeout=LIMIT)
        pool.terminate()
        self.assertEqual([worker.exitcode for worker in pool._pool], [-signal.SIGKILL])

    def test_a_stopped_worker_is_not_taken_for_dead(self):
        """B36."""
        with self.Pool(2) as pool:
            worker = pool.apply(pid_of, (0,))
            os.kill(worker, signal.SIGSTOP)
            self.assertEqual(pool.map(square, range(100), chunksize=1)[-1], 99 * 99)
            os.kill(worker, signal.SIGCONT)
            self.assertIn(worker, [process.pid for process in pool._pool])

    def test_collection_ends_the_workers(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pool = self.Pool(2)
            processes = list(pool._pool)
            del pool
        self.assertIn("unclosed running multiprocessing pool", str(caught[0].message))
        self.assertIs(caught[0].category, ResourceWarning)
        caught.clear()  # a warning refers to the pool
        gc.collect()
        self.assertEqual([process.is_alive() for process in processes], [False, False])

    def test_a_pool_lives_until_its_results_are_there(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertEqual(self.Pool(1).apply_async(square, (5,)).get(LIMIT), 25)
            self.assertEqual(list(self.Pool(1).imap(square, iter(range(3)))), [0, 1, 4])

    def test_many_threads(self):
        with self.Pool(2) as pool:
            wrong = []

            def use(n):
                for i in range(20):
                    if pool.map(square, range(n, n + 20), chunksize=3) != [x * x for x in range(n, n + 20)]:
                        wrong.append(n)
                    if pool.apply(add, (n, i)) != n + i:
                        wrong.append(n)

            threads = [threading.Thread(target=use, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT)
            self.assertEqual(wrong, [])

    def test_threads_that_cannot_start(self):
        for name in "shoal-pool-workers", "shoal-pool-results":
            def start(thread, real=threading.Thread.start):
                if thread.name == name:
                    raise RuntimeError("can't start new thread")
                real(thread)
            with unittest.mock.patch.object(threading.Thread, "start", start):
                with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
                    self.Pool(2)
            self.assertEqual(multiprocessing.active_children(), [])

    def test_a_map_of_large_arguments_does_not_fill_the_heap(self):
        go = self.context.Queue()
        before = world.info().heap_used
        with self.Pool(1) as pool:
            waiting = pool.apply_async(go.get)
            result = pool.map_async(len, [b"x" * (1 << 20)] * 250, chunksize=1)
            self.assertLess(world.info().heap_used - before, 200 << 20)
            go.put(None)
            waiting.get(LIMIT)
            self.assertEqual(result.get(LIMIT), [1 << 20] * 250)

    def test_a_forked_child_cannot_use_the_pool(self):
        with self.Pool(1) as pool:
            child = os.fork()
            if child == 0:
                try:
                    pool.apply(square, (1,))
                except ValueError as error:
                    os._exit(0 if "belongs to the process that made it" in str(error) else 2)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_exit_of_the_interpreter_with_a_live_pool(self):
        for end in "", "import sys; sys.exit(0)", "del pool", "pool.map_async(time.sleep, [100] * 10)":
            done = subprocess.run([sys.executable, "-c", f"""if True:
                import os, time
                import shoal.multiprocessing as mp
                pool = mp.get_context("fork").Pool(2)
                print(*pool.map(abs, [-1, 2]), *(p.pid for p in pool._pool))
                {end}
                """], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual((done.returncode, done.stderr), (0, ""), end)
            one, two, *workers = map(int, done.stdout.split())
            self.assertEqual((one, two), (1, 2))
            for worker in workers:
                self.assertFalse(os.path.exists(f"/proc/{worker}"))

    def test_interrupt(self):
        """B71: Ctrl-C, which all processes of a terminal get."""
        for start in "with mp.get_context('fork').Pool(2) as pool:", "if pool := mp.get_context('fork').Pool(2):":
            program = subprocess.Popen([sys.executable, "-c", f"""if True:
                import signal, time
                import shoal.multiprocessing as mp
                {start}
                    done = pool.map_async(time.sleep, [100] * 10, chunksize=1)
                    print(*(p.pid for p in pool._pool), flush=True)
                    done.get()
                """], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            with program:
                workers = program.stdout.readline().split()
                os.killpg(program.pid, signal.SIGINT)
                program.wait(LIMIT)
                self.assertIn("KeyboardInterrupt", program.stderr.read())
            self.assertEqual(program.returncode, -signal.SIGINT)
            for worker in workers:
                self.assertFalse(os.path.exists(f"/proc/{worker}"))

    def test_thread_pool_is_the_standard_one(self):
        self.assertIs(pools.ThreadPool, multiprocessing.pool.ThreadPool)


if __name__ == "__main__":
    unittest.main()
