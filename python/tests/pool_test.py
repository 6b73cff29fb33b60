"""Tests of shoal.multiprocessing.pool: the calls and their results. (B28)"""

import functools
import inspect
import itertools
import multiprocessing
import pickle
import signal
import threading
import time
import unittest

import shoal.multiprocessing as mp
import support
from pool_cases import (Counter, LIMIT, PoolCase, Tracked, Unloadable, Unpicklable, add, bad_initializer,
                        count_tracked, fail, fail_at, fill, fill_row, identity, kill_self, make_lambda, pid_of, quiet,
                        raise_unloadable, raise_unpicklable, recall, remember, square, tell_next)
from shoal.multiprocessing import pool as pools
from shoal.multiprocessing.pool import WorkerDied


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
            # y14: with the text of the error, too
            with self.assertRaisesRegex(WorkerDied, "the pool is broken: 3 workers in a row .*exited with code 1; "
                                                    "its initializer raised .*Error: .+"):
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


class Fork(Common, PoolCase):
    pass


class Spawn(Common, PoolCase):
    method = "spawn"


class ForkServer(Common, PoolCase):
    method = "forkserver"


class Results(PoolCase):
    def test_chunksize_must_be_a_positive_int(self):
        pool = self.Pool(1)
        for call in pool.map, pool.map_async, pool.starmap, pool.starmap_async, pool.imap, pool.imap_unordered:
            for wrong in 0, -1:
                with self.assertRaisesRegex(ValueError, rf"^Chunksize must be 1\+, not {wrong}$"):
                    call(square, [1, 2, 3], chunksize=wrong)
            with self.assertRaisesRegex(TypeError, "^Chunksize must be an int, not float$"):
                call(square, [1, 2, 3], chunksize=1.5)
        pool.close()
        pool.join()

    def test_number_left_tells_the_progress(self):
        tell = self.context.Queue()
        with self.Pool(1) as pool:
            result = pool.map_async(tell_next, [tell] * 3, chunksize=1)
            for left in 3, 2, 1:
                support.wait_until(lambda: result._number_left == left, LIMIT)
                tell.put(None)
            result.get(LIMIT)
            self.assertEqual(result._number_left, 0)

    def test_names_and_signatures(self):
        for name in "ApplyResult", "AsyncResult", "MapResult", "IMapIterator", "IMapUnorderedIterator", "WorkerDied":
            self.assertEqual(getattr(pools, name).__module__, "shoal.multiprocessing.pool")
        self.assertIn("index of its item", WorkerDied.__doc__)
        names = ["processes", "initializer", "initargs", "maxtasksperchild", "retries"]
        self.assertEqual(list(inspect.signature(mp.Pool).parameters), names)

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


class Failures(PoolCase):
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
            text = "UnloadableError.*1 and 2.*missing 1 required"
            with self.assertRaisesRegex(pools.MaybeEncodingError, text) as caught:
                pool.apply(raise_unloadable)
            self.assertIn("raise UnloadableError(1, 2)", caught.exception.__cause__.tb)
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


if __name__ == "__main__":
    unittest.main()
