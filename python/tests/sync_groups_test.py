"""Condition, Event and Barrier: B25, B26."""

import os
import threading
import time
import unittest

from shoal import _shoal
from shoal.multiprocessing.synchronize import Barrier, Condition, Event, Lock, RLock, Semaphore

import sync_helpers
from support import quiet_time
from sync_helpers import LONG, TestCase, fork, join, kill

BrokenBarrierError = threading.BrokenBarrierError


def conditions():
    """A condition of each kind."""
    return [Condition(), Condition(Lock()), Condition(RLock())]


def spin(predicate) -> None:
    """Waits until something is true that has no event: that others wait."""
    end = time.monotonic() + LONG
    while not predicate():
        if time.monotonic() > end:
            raise AssertionError("it did not become true")
        time.sleep(0.001)


def wait_and_tell(condition, ready, woken, timeout=None):
    with condition:
        ready.release()
        if condition.wait(timeout):
            woken.release()


class Conditions(TestCase):
    def test_b25_notify_wakes_as_many_as_it_says(self):
        for condition in conditions():
            ready, woken = Semaphore(0), Semaphore(0)
            pids = [fork(wait_and_tell, condition, ready, woken) for _ in range(3)]
            threads = [threading.Thread(target=wait_and_tell, args=(condition, ready, woken)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(6):
                ready.acquire()
            for n, wake in ((1, condition.notify), (3, lambda: condition.notify(2)), (3, lambda: condition.notify(n=0)),
                            (3, lambda: condition.notify(-1)), (6, condition.notify_all), (6, condition.notify)):
                with condition:  # each of the six has the lock no more, so it waits
                    wake()
                spin(lambda: woken.get_value() >= n)
                self.assertEqual(woken.get_value(), n)
            for thread in threads:
                thread.join()
            join(*pids)

    def test_wait_times_out_and_has_the_lock_again(self):
        for condition in conditions():
            with condition:
                self.assertIs(condition.wait(0), False)
                self.assertIs(condition.wait(-1), False)
                self.assertIs(self.assert_takes(0.05, condition.wait, 0.05), False)
                self.assertTrue(condition._is_mine())
            self.assertFalse(condition._is_mine())

    def test_wait_gives_up_a_recursive_lock_completely(self):
        for condition in Condition(), Condition(RLock()):
            for _ in range(3):
                condition.acquire()
            thread = threading.Thread(target=lambda: condition.acquire() and (condition.notify(), condition.release()))
            thread.start()
            self.assertIs(condition.wait(LONG), True)
            self.assertEqual(condition._count(), 3)
            thread.join()
            for _ in range(3):
                condition.release()
            with self.assertRaises(AssertionError):
                condition.release()

    def test_the_lock_must_be_held(self):
        for condition in conditions():
            for hold in lambda: None, lambda: condition.acquire():
                thread = threading.Thread(target=hold)
                thread.start()
                thread.join()
                with self.assertRaisesRegex(AssertionError, r"must acquire\(\) condition before using wait\(\)"):
                    condition.wait(0)
                for call in condition.notify, condition.notify_all:
                    with self.assertRaisesRegex(AssertionError, "lock is not owned"):
                        call()

    def test_the_lock_may_be_held_through_another_object(self):
        for lock in Lock(), RLock():
            condition, other = Condition(lock), type(lock)._adopt(lock)
            with other:
                self.assertIs(condition.wait(0.001), False)
                condition.notify()
                self.assertIs(lock.acquire(False), isinstance(lock, RLock))

    def test_only_our_locks(self):
        for lock in threading.Lock(), Semaphore(), Event(), 3:
            with self.assertRaises(TypeError):
                Condition(lock)

    def test_wait_for(self):
        for condition in conditions():
            block = _shoal.Block(1, True)
            state = memoryview(block)

            def step():
                for value in range(1, 5):
                    with condition:
                        state[0] = value
                        condition.notify()

            with condition:
                pid = fork(step)
                self.assertEqual(condition.wait_for(lambda: state[0] == 4 and "four"), "four")
            join(pid)
            with condition:
                self.assertIs(self.assert_takes(0.05, condition.wait_for, lambda: False, 0.05), False)
                self.assertEqual(condition.wait_for(lambda: 0, -1), 0)
            state.release()

    def test_b71_a_signal_ends_wait_and_the_lock_is_held(self):
        for condition in conditions():
            with condition:
                for call in condition.wait, lambda: condition.wait(LONG), lambda: condition.wait_for(lambda: False):
                    self.assert_interrupted(call)
                    self.assertTrue(condition._is_mine())
            self.assertIs(condition.acquire(False), True)
            condition.release()

    def test_a_signal_during_the_return_of_wait_comes_with_the_lock_held(self):
        """The waiter is notified, and interrupted while another has the lock. (A condition with a lock of its own runs
        signal handlers only when it has that again.)"""
        for condition in Condition(Lock()), Condition(RLock()):
            interrupted = threading.Event()

            def hold():
                with condition:
                    condition.notify()
                    interrupted.wait(LONG)

            def handler(number, frame):
                interrupted.set()
                raise sync_helpers.Interrupted

            thread = threading.Thread(target=hold)
            with condition:
                thread.start()
                with sync_helpers.alarm_after(0.05, handler):
                    with self.assertRaises(sync_helpers.Interrupted):
                        condition.wait(LONG)
                self.assertTrue(condition._is_mine())
            thread.join()

    def test_no_notice_is_lost_between_two_that_take_turns(self):
        for condition in conditions():
            block = _shoal.Block(1, True)
            turn = memoryview(block)

            def play(mine):
                for _ in range(300):
                    with condition:
                        self.assertTrue(condition.wait_for(lambda: turn[0] == mine, LONG))
                        turn[0] = 1 - mine
                        condition.notify()

            pid = fork(play, 1)
            play(0)
            join(pid)
            turn.release()

    def test_repr(self):
        self.assertEqual(repr(Condition()), "<Condition(<RLock(None, 0)>, unknown)>")
        condition = Condition(Lock())
        with condition:
            self.assertEqual(repr(condition), "<Condition(<Lock(owner=MainProcess)>, unknown)>")


class Events(TestCase):
    def test_b25_an_event(self):
        event = Event()
        self.assertIs(event.is_set(), False)
        self.assertIs(event.wait(0), False)
        self.assertIs(event.wait(timeout=-3.5), False)
        self.assertIs(self.assert_takes(0.05, event.wait, 0.05), False)
        self.assertRegex(repr(event), "^<Event at 0x[0-9a-f]+ unset>$")
        pid = fork(event.set)
        self.assertIs(event.wait(), True)
        join(pid)
        self.assertIs(event.wait(0), True)
        self.assertIs(event.is_set(), True)
        self.assertRegex(repr(event), "^<Event at 0x[0-9a-f]+ set>$")
        event.clear()
        self.assertIs(event.is_set(), False)

    def test_b71_a_signal_ends_wait(self):
        event = Event()
        self.assert_interrupted(event.wait)
        self.assert_interrupted(event.wait, LONG)


def waits(barrier, n, indices):
    for _ in range(n):
        index = barrier.wait()
        indices[index] += 1


class Barriers(TestCase):
    def test_b26_all_leave_together_each_with_another_number(self):
        for action in None, lambda: None:
            barrier = Barrier(4, action)
            block = _shoal.Block(4 * 8, True)
            counts = memoryview(block).cast("q")
            pids = [fork(waits, barrier, 100, counts) for _ in range(2)]
            thread = threading.Thread(target=waits, args=(barrier, 100, counts))
            thread.start()
            waits(barrier, 100, counts)
            thread.join()
            join(*pids)
            self.assertEqual(counts.tolist(), [100] * 4)  # in each round, one party has each number
            self.assertEqual((barrier.parties, barrier.n_waiting, barrier.broken), (4, 0, False))
            counts.release()

    def test_a_barrier_of_one(self):
        ran = []
        self.assertEqual([Barrier(1).wait() for _ in range(3)], [0, 0, 0])
        self.assertEqual(Barrier(1, lambda: ran.append(1)).wait(), 0)
        self.assertEqual(ran, [1])
        for parties in 0, -1:
            with self.assertRaises(ValueError):
                Barrier(parties)

    def test_the_action_runs_once_before_anybody_leaves(self):
        block = _shoal.Block(8, True)
        rounds = memoryview(block).cast("q")

        def act():
            rounds[0] += 1

        barrier = Barrier(3, act)

        after = Barrier(3)  # nobody begins the next round before all have looked

        def party():
            for n in range(1, 201):
                barrier.wait()
                self.assertEqual(rounds[0], n)
                after.wait()

        pids = [fork(party) for _ in range(2)]
        party()
        join(*pids)
        rounds.release()

    def test_an_action_that_raises_breaks_the_barrier(self):
        def act():
            raise KeyError("act")

        barrier = Barrier(3, act)
        outcomes = []

        def party():
            try:
                barrier.wait()
            except Exception as error:
                outcomes.append(type(error))

        threads = [threading.Thread(target=party) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertCountEqual(outcomes, [KeyError, BrokenBarrierError, BrokenBarrierError])
        self.assertTrue(barrier.broken)
        self.assertRegex(repr(barrier), r"^<shoal.multiprocessing.synchronize.Barrier at 0x[0-9a-f]+: broken>$")
        barrier.reset()
        self.assertFalse(barrier.broken)
        self.assertRegex(repr(barrier), r": waiters=0/3>$")

    def test_timeouts_break_it(self):
        for action in None, lambda: None:
            for barrier, timeout in (Barrier(2, action), 0.02), (Barrier(2, action, 0.02), None), (Barrier(2, action, 9), 0):
                with self.assertRaises(BrokenBarrierError):
                    barrier.wait(timeout)
                self.assertTrue(barrier.broken)
                with self.assertRaises(BrokenBarrierError):
                    barrier.wait()

    def test_b26_abort_and_reset(self):
        for action in None, lambda: None:
            barrier = Barrier(3, action)
            for end, broken in (barrier.abort, True), (barrier.reset, False):

                def party():
                    with self.assertRaises(BrokenBarrierError):
                        barrier.wait(LONG)

                pids = [fork(party) for _ in range(2)]
                spin(lambda: barrier.n_waiting == 2)
                end()
                join(*pids)
                self.assertIs(barrier.broken, broken)
                barrier.reset()
            waiting = fork(barrier.wait), fork(barrier.wait)
            barrier.wait(LONG)
            join(*waiting)

    def test_b26_a_dead_party_breaks_it_for_the_others(self):
        for action in None, lambda: None:
            barrier = Barrier(3, action)
            pid = fork(barrier.wait)
            spin(lambda: barrier.n_waiting == 1)
            killer = threading.Thread(target=lambda: (spin(lambda: barrier.n_waiting == 2), kill(pid)))
            killer.start()
            begin = quiet_time()
            with self.assertRaises(BrokenBarrierError):
                barrier.wait(LONG)
            self.assertLess(quiet_time() - begin, 2)  # 100 ms on a free machine
            killer.join()

    def test_a_party_that_dies_in_the_action_breaks_it(self):
        get, put = os.pipe()
        barrier = Barrier(2, lambda: os.write(put, b"1") and time.sleep(LONG))

        def last():
            spin(lambda: barrier.n_waiting == 1)
            barrier.wait()

        pid = fork(last)
        killer = threading.Thread(target=lambda: os.read(get, 1) and kill(pid))
        killer.start()
        with self.assertRaises(BrokenBarrierError):
            barrier.wait(LONG)
        self.assertTrue(barrier.broken)
        killer.join()
        os.close(get)
        os.close(put)

    def test_b71_a_signal_ends_wait(self):
        for action in None, lambda: None:
            barrier = Barrier(2, action)
            self.assert_interrupted(barrier.wait)
            barrier.reset()
            self.assert_interrupted(barrier.wait, LONG)

    def test_a_signal_in_the_action_breaks_it(self):
        barrier = Barrier(2, lambda: time.sleep(LONG))

        def first():
            with self.assertRaises(BrokenBarrierError):
                barrier.wait(LONG)

        pid = fork(first)
        spin(lambda: barrier.n_waiting == 1)
        self.assert_interrupted(barrier.wait)
        join(pid)


if __name__ == "__main__":
    unittest.main()
