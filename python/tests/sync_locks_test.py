"""Lock, RLock, Semaphore and BoundedSemaphore: B25, and B27 in sync_death_test.py."""

import gc
import os
import pickle
import threading
import unittest
import weakref

from shoal import _shoal
from shoal.multiprocessing import synchronize
from shoal.multiprocessing.synchronize import BoundedSemaphore, Condition, Lock, RLock, Semaphore

import sync_helpers
from sync_helpers import TestCase, alarm_after, fork, join

TOO_MANY = "semaphore or lock released too many times"
NOT_OWNED = "attempt to release recursive lock not owned by thread"


def in_thread(call, *args):
    """Runs a call in another thread and returns its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call(*args)))
    thread.start()
    thread.join()
    return results[0]


class Rules(TestCase):
    def test_b25_a_lock_is_not_recursive_and_anybody_may_release_it(self):
        lock = Lock()
        self.assertIs(lock.acquire(), True)
        self.assertIs(lock.acquire(False), False)
        self.assertIs(lock.acquire(block=False, timeout=5), False)
        self.assertIs(self.assert_takes(0.05, lock.acquire, True, 0.05), False)
        self.assertIs(lock.acquire(timeout=-1), False)
        self.assertIs(lock.acquire(timeout=0), False)
        self.assertIsNone(in_thread(lock.release))
        with self.assertRaisesRegex(ValueError, TOO_MANY):
            lock.release()
        lock.acquire()
        join(fork(lock.release))
        self.assertIs(lock.acquire(timeout=0.5), True)
        lock.release()

    def test_b25_an_rlock_belongs_to_its_thread(self):
        lock = RLock()
        for _ in range(3):
            self.assertIs(lock.acquire(), True)

        def not_mine():
            self.assertIs(lock.acquire(False), False)
            with self.assertRaisesRegex(AssertionError, NOT_OWNED):
                lock.release()

        in_thread(not_mine)
        join(fork(not_mine))
        for _ in range(3):
            self.assertIsNone(lock.release())
        with self.assertRaisesRegex(AssertionError, NOT_OWNED):
            lock.release()
        self.assertIs(in_thread(lambda: lock.acquire() and lock.release() is None), True)

    def test_with_releases_after_an_exception_too(self):
        for lock in Lock(), RLock(), Semaphore(), BoundedSemaphore(), Condition():
            with self.assertRaises(KeyError):
                with lock as entered:
                    self.assertIs(entered, True)
                    raise KeyError
            with lock:
                pass

    def test_b25_semaphores_count(self):
        semaphore = Semaphore(2)
        self.assertEqual(semaphore.get_value(), 2)
        self.assertIs(semaphore.acquire(), True)
        join(fork(semaphore.acquire))
        self.assertEqual(semaphore.get_value(), 0)
        self.assertIs(semaphore.acquire(False), False)
        self.assertIs(self.assert_takes(0.05, semaphore.acquire, True, 0.05), False)
        for _ in range(4):
            semaphore.release()
        self.assertEqual(semaphore.get_value(), 4)
        self.assertEqual(Semaphore().get_value(), 1)
        with self.assertRaises(ValueError):
            Semaphore(-1)

    def test_a_bounded_semaphore_has_a_bound(self):
        for value in 0, 1, 3:
            semaphore = BoundedSemaphore(value)
            with self.assertRaisesRegex(ValueError, TOO_MANY):
                semaphore.release()
            self.assertEqual(semaphore.get_value(), value)
            self.assertIs(semaphore.acquire(False), value > 0)
        with self.assertRaisesRegex(ValueError, TOO_MANY):
            full = Semaphore(synchronize.SEM_VALUE_MAX)
            full.release()

    def test_wrong_arguments(self):
        for lock in Lock(), RLock(), Semaphore(), Condition():
            for call in (lambda: lock.acquire(True, "a"), lambda: lock.acquire(waits=True), lambda: lock.acquire(1, 2, 3),
                         lambda: lock.acquire(True, block=True), lambda: type(lock)(nothing=1)):
                with self.assertRaises(TypeError):
                    call()
            self.assertIs(lock.acquire(False), True)  # nobody has it

    def test_every_way_to_name_an_argument(self):
        computed = "-block".replace("-", "")  # not interned, so not found by its address
        for lock in Lock(), RLock(), Semaphore(), Condition(), Condition(Lock()):
            for args, names in (((0,), {}), (([],), {}), ((False, None), {}), ((), {"block": 0}), ((), {computed: False}),
                                ((), {computed: True, "timeout": 0.0}), ((True,), {"timeout": 0}), ((1, -1), {})):
                with self.subTest(type(lock).__name__, args=args, names=names):
                    self.assertIs(lock.acquire(*args, **names), True)
                    self.assertIs(in_thread(lambda: lock.acquire(*args, **names)), False)
                    lock.release()

    def test_what_was_not_initialised_raises(self):
        for cls in Lock, RLock, Semaphore, Condition:
            with self.assertRaises(ValueError):
                cls.__new__(cls).acquire()

    def test_names_of_holders(self):
        for lock, free, held, other in (
                (Lock(), "<Lock(owner=None)>", "<Lock(owner={})>", "<Lock(owner={})>"),
                (RLock(), "<RLock(None, 0)>", "<RLock({}, 2)>", "<RLock({}, nonzero)>")):
            self.assertEqual(repr(lock), free)
            lock.acquire()
            if isinstance(lock, RLock):
                lock.acquire()
            self.assertEqual(repr(lock), held.format("MainProcess"))
            self.assertEqual(in_thread(repr, lock), other.format("SomeOtherThread"))
            join(fork(lambda: self.assertEqual(repr(lock), other.format("SomeOtherProcess"))))

            def mine():
                with lock:
                    return repr(lock)

            lock.release()
            if isinstance(lock, RLock):
                lock.release()
            self.assertRegex(in_thread(mine), r"MainProcess\|Thread-\d+")
            self.assertEqual(repr(lock), free)
        self.assertEqual(repr(Semaphore(3)), "<Semaphore(value=3)>")
        self.assertEqual(repr(BoundedSemaphore(3)), "<BoundedSemaphore(value=3, maxvalue=3)>")

    def test_semlock_is_what_the_standard_queue_uses(self):
        lock, rlock, semaphore = Lock(), RLock(), BoundedSemaphore(2)
        self.assertEqual((lock._semlock._get_value(), lock._semlock._is_mine(), lock._semlock._count()), (1, False, 0))
        lock.acquire()
        self.assertEqual((lock._semlock._get_value(), lock._semlock._is_mine(), lock._semlock._count()), (0, True, 1))
        self.assertIs(in_thread(lock._semlock._is_mine), False)
        join(fork(lambda: self.assertEqual((lock._is_mine(), lock._count(), lock._is_zero()), (False, 0, True))))
        rlock.acquire()
        rlock.acquire()
        self.assertEqual((rlock._semlock._is_mine(), rlock._semlock._count()), (True, 2))
        semaphore.acquire()
        self.assertEqual((semaphore._semlock._get_value(), semaphore._semlock._is_zero()), (1, False))
        self.assertEqual(semaphore._semlock.maxvalue, 2)


class Objects(TestCase):
    def test_pickle_alone_refuses(self):
        for obj in Lock(), RLock(), Semaphore(), BoundedSemaphore(), Condition(), synchronize.Event(), \
                synchronize.Barrier(2):
            name = type(obj).__name__
            with self.assertRaisesRegex(RuntimeError, f"^{name} objects should only be shared between processes through inheritance"):
                pickle.dumps(obj)

    def test_weak_references_attributes_and_collection(self):
        lock = Lock()
        lock.note = "mine"
        reference = weakref.ref(lock)
        del lock
        self.assertIsNone(reference())
        inner = RLock()
        condition = Condition(inner)
        inner.condition = condition  # a cycle
        reference = weakref.ref(condition)
        del inner, condition
        gc.collect()
        self.assertIsNone(reference())

    def test_subclasses_keep_what_they_replace(self):
        class Counting(Lock):
            def __init__(self, start):
                super().__init__()
                self.count = start

            def acquire(self, *args, **kwargs):
                self.count += 1
                return super().acquire(*args, **kwargs)

        class More(Counting):
            pass

        for cls in Counting, More:
            lock = cls(5)
            self.assertIs(lock.acquire(timeout=1), True)
            self.assertEqual(lock.count, 6)
            self.assertIs(_shoal.Lock.acquire(lock, False), False)

    def test_each_class_has_its_own_descriptors(self):
        """The interpreter calls a method of C in the short way only if the descriptor belongs to the object's class."""
        class Sub(Lock):
            pass

        for cls in Lock, RLock, Semaphore, BoundedSemaphore, Condition, Sub:
            self.assertIs(cls.acquire.__objclass__, cls)
            self.assertIs(cls.release.__objclass__, cls)

    def test_init_again_makes_another_lock(self):
        lock = Lock()
        lock.acquire()
        lock.__init__()
        self.assertIs(lock.acquire(False), True)


def add(lock, counter, rounds):
    for _ in range(rounds):
        with lock:
            value = int.from_bytes(counter, "little")  # two steps that only the lock makes one
            counter[:] = (value + 1).to_bytes(8, "little")


class Waiting(TestCase):
    def test_b25_processes_and_threads_exclude_each_other(self):
        for lock in Lock(), RLock(), Semaphore(), Condition(), Condition(Lock()):
            block = _shoal.Block(8, True)
            counter = memoryview(block)
            pids = [fork(add, lock, counter, 1000) for _ in range(2)]
            threads = [threading.Thread(target=add, args=(lock, counter, 1000)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            join(*pids)
            self.assertEqual(int.from_bytes(counter, "little"), 4000)
            counter.release()

    def test_a_wait_lets_other_threads_run(self):
        lock, semaphore = Lock(), Semaphore(0)
        lock.acquire()
        for waiting in lock, semaphore:
            ran = threading.Event()
            thread = threading.Thread(target=lambda: ran.set() or waiting.release())
            thread.start()
            self.assertIs(waiting.acquire(timeout=sync_helpers.LONG), True)
            self.assertTrue(ran.is_set())
            thread.join()

    def test_b71_a_signal_ends_acquire(self):
        for lock in Lock(), Semaphore(1), RLock(), Condition(), Condition(RLock()):
            holder = threading.Thread(target=lambda: lock.acquire())
            holder.start()
            holder.join()
            for call in lock.acquire, lambda: lock.acquire(timeout=sync_helpers.LONG), lock.__enter__:
                self.assert_interrupted(call)

    def test_a_signal_that_does_not_raise_ends_nothing(self):
        seen = []
        lock = Lock()
        lock.acquire()
        with alarm_after(0.02, lambda *args: seen.append(1), 0.02):
            self.assertIs(self.assert_takes(0.15, lock.acquire, True, 0.15), False)
        self.assertGreaterEqual(len(seen), 2)

    def test_b74_a_plain_fork_beside_a_held_lock(self):
        lock, rlock = Lock(), RLock()
        started, done = threading.Event(), threading.Event()

        def hold():
            with lock, rlock:
                started.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        started.wait()

        def child(ready, get):
            self.assertIs(lock.acquire(False), False)
            self.assertIs(rlock.acquire(False), False)
            os.write(ready, b"1")
            self.assertIs(lock.acquire(timeout=sync_helpers.LONG), True)
            self.assertIs(rlock.acquire(timeout=sync_helpers.LONG), True)
            rlock.release()
            lock.release()

        get, ready = os.pipe()
        pid = fork(child, ready, get)
        os.read(get, 1)
        done.set()
        thread.join()
        join(pid)
        os.close(get)
        os.close(ready)


EXIT = """
import sys, threading
from shoal.multiprocessing.synchronize import *
lock = {make}
lock.acquire()
if sys.argv[1] == "wait":
    entered = threading.Event()
    def wait():
        entered.set()
        {call}
    threading.Thread(target=wait, daemon=True).start()
    entered.wait()
print("end")
"""


class Exit(TestCase):
    def test_b74_the_interpreter_exits_with_a_held_lock_and_with_a_thread_that_waits(self):
        for make, call in (("Lock()", "lock.acquire()"), ("RLock()", "lock.acquire()"), ("Semaphore()", "lock.acquire()"),
                           ("Condition()", "lock.acquire()"), ("Condition(Lock())", "lock.acquire()"),
                           ("Condition()", "c = Condition(); c.acquire(); c.wait()"), ("Lock()", "Event().wait()")):
            for how in "hold", "wait":
                with self.subTest(make=make, call=call, how=how):
                    self.assertEqual(sync_helpers.run(EXIT.format(make=make, call=call), how), "end\n")


if __name__ == "__main__":
    unittest.main()
