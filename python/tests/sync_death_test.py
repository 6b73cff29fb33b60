"""Locks whose holder was killed: B27."""

import os
import signal
import threading
import unittest
import warnings

from shoal import world
from shoal.multiprocessing.synchronize import Condition, Lock, RLock, Semaphore

from sync_helpers import LONG, TestCase, fork, join, kill

TIMES = 200


def hold_and_pause(lock, ready) -> None:
    lock.acquire()
    ready.release()
    signal.pause()


class Holders(TestCase):
    def die_with(self, lock, ready) -> None:
        """A child takes the lock and is killed."""
        pid = fork(hold_and_pause, lock, ready)
        ready.acquire()
        kill(pid)

    def test_b27_the_lock_of_a_killed_process_is_handed_on_with_one_warning(self):
        for make, times in ((Lock, TIMES), (RLock, TIMES), (Condition, TIMES), (lambda: Condition(Lock()), 10),
                            (lambda: Condition(RLock()), 10)):
            lock, ready = make(), Semaphore(0)
            self.assertIs(lock.owner_died, False)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for i in range(times):
                    self.die_with(lock, ready)
                    if i % 2:
                        self.assertIs(lock.acquire(timeout=LONG), True)
                        self.assertIs(lock.owner_died, True)
                        lock.release()
                    with lock:
                        self.assertIs(lock.owner_died, True)
                    self.assertIs(lock.owner_died, True)
                    with lock:
                        lock.owner_died = False
                        self.assertIs(lock.owner_died, False)
                    with lock:
                        self.assertIs(lock.owner_died, False)
                    world.audit()
            self.assertEqual([w.category for w in seen], [RuntimeWarning])
            self.assertIn("died while it held this lock", str(seen[0].message))
            self.assertEqual(seen[0].filename, __file__)

    def test_b27_every_process_sees_the_death_until_a_holder_marks_it(self):
        for lock in Lock(), RLock(), Condition(), Condition(Lock()), Condition(RLock()):
            def look(died) -> None:
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    with lock:
                        self.assertIs(lock.owner_died, died)
                    with lock:
                        pass
                self.assertEqual(len(seen), died)

            self.die_with(lock, Semaphore(0))
            for _ in range(2):
                join(fork(look, True))
            self.die_with(lock, Semaphore(0))  # again, before anyone marks it
            with self.assertWarns(RuntimeWarning), lock:
                lock.owner_died = False
                self.assertIs(lock.owner_died, False)
            join(fork(look, False))
            self.die_with(lock, Semaphore(0))
            self.assertIs(lock.acquire(timeout=LONG), True)
            self.assertIs(lock.owner_died, True)
            lock.release()

    def test_only_a_holder_marks(self):
        for lock in Lock(), RLock(), Condition(), Condition(Lock()):
            with self.assertRaises(PermissionError):
                lock.owner_died = False
            self.die_with(lock, Semaphore(0))
            with self.assertWarns(RuntimeWarning), lock:
                pass
            with self.assertRaises(PermissionError):
                lock.owner_died = False
            with lock:
                with self.assertRaises(ValueError):
                    lock.owner_died = True
                with self.assertRaises(TypeError):
                    del lock.owner_died
                self.assertIs(lock.owner_died, True)
                lock.owner_died = False
            self.assertIs(lock.owner_died, False)

    def test_b27_a_recursive_lock_after_a_death(self):
        for lock in RLock(), Condition(), Condition(RLock()):
            self.die_with(lock, Semaphore(0))
            with self.assertWarns(RuntimeWarning), lock:
                with lock:
                    self.assertEqual(lock._count(), 2)
                    lock.owner_died = False
                self.assertTrue(lock._is_mine())
            self.assertEqual(lock._count(), 0)

    def test_b27_killed_at_any_moment(self):
        """The child acquires and releases all the time, so it holds the lock or not when it is killed."""
        for lock in Lock(), RLock(), Condition(), Condition(Lock()):
            ready, handed_on = Semaphore(0), 0

            def take_turns():
                while True:
                    with lock:
                        ready.release()

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for i in range(20):
                    pid = fork(take_turns)
                    for _ in range(i * 10 + 1):
                        ready.acquire()
                    kill(pid)
                    while ready.acquire(False):
                        pass
                    self.assertIs(lock.acquire(timeout=LONG), True)
                    handed_on += lock.owner_died
                    lock.owner_died = False  # nothing happens if it was False
                    lock.release()
                    world.audit()
            self.assertGreater(handed_on, 0)

    def test_b27_one_who_waits_gets_it(self):
        for lock in Lock(), RLock(), Condition():
            ready = Semaphore(0)
            pid = fork(hold_and_pause, lock, ready)
            ready.acquire()
            thread = threading.Timer(0.05, kill, (pid,))
            thread.start()
            with self.assertWarns(RuntimeWarning):
                self.assertIs(lock.acquire(timeout=LONG), True)
            self.assertIs(lock.owner_died, True)
            thread.join()
            lock.release()

    def test_a_warning_that_is_an_error_leaves_the_lock_free(self):
        for lock in Lock(), RLock(), Condition(), Condition(Lock()):
            self.die_with(lock, Semaphore(0))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with self.assertRaises(RuntimeWarning):
                    lock.acquire()
            self.assertIs(lock.owner_died, True)
            join(fork(lambda: self.assertIs(lock.acquire(False), True) or lock.release()))

    def test_a_killed_waiter_takes_no_notice_with_it(self):
        for condition in Condition(), Condition(Lock()):
            ready, woken = Semaphore(0), Semaphore(0)

            def wait():
                with condition:
                    ready.release()
                    condition.wait()
                woken.release()

            first = fork(wait)
            ready.acquire()
            with condition:  # the first one waits
                second = fork(wait)
            ready.acquire()
            with condition:
                kill(first)
                condition.notify()
            self.assertIs(woken.acquire(timeout=LONG), True)
            join(second)

    def test_a_killed_notifier_leaves_the_condition_usable(self):
        for condition in Condition(), Condition(Lock()):
            ready = Semaphore(0)

            def notify_and_pause():
                with condition:
                    condition.notify()
                    ready.release()
                    signal.pause()

            with condition:
                pid = fork(notify_and_pause)
                thread = threading.Thread(target=lambda: (ready.acquire(), kill(pid)))
                thread.start()
                with self.assertWarns(RuntimeWarning):
                    self.assertIs(condition.wait(LONG), True)
                self.assertIs(condition.owner_died, True)
            thread.join()
            with condition:
                self.assertIs(condition.wait(0), False)

    def test_a_semaphore_has_no_owner(self):
        semaphore = Semaphore(1)
        self.die_with(semaphore, Semaphore(0))
        self.assertIs(semaphore.acquire(False), False)
        self.assertFalse(hasattr(semaphore, "owner_died"))

    def test_an_exit_with_the_lock_hands_it_on(self):
        lock = Lock()
        join(fork(lock.acquire))
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        join(pid)
        with self.assertWarns(RuntimeWarning):
            self.assertIs(lock.acquire(timeout=LONG), True)


if __name__ == "__main__":
    unittest.main()
