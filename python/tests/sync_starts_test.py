"""Locks, values and arrays under every start method: one made here works in children that were started in any way (B25)."""

import gc
import threading
import unittest

import shoal.multiprocessing as mp
from shoal import world
from shoal.multiprocessing import synchronize

from sync_helpers import LONG

METHODS = "fork", "spawn", "forkserver"
ROUNDS = 200


class Together:
    """One of everything. An object of a class of its own: all of it is pickled as parts of this one."""

    def __init__(self, ctx, parties):
        self.locks = [ctx.Lock(), ctx.RLock(), ctx.Semaphore(1), ctx.BoundedSemaphore(1), ctx.Condition(),
                      ctx.Condition(ctx.Lock())]
        self.counts = ctx.RawArray("q", len(self.locks))
        self.total = ctx.Value("i", 0)
        self.begin = ctx.Event()
        self.barrier = ctx.Barrier(parties, timeout=LONG)
        self.action = ctx.Barrier(parties, self.add_one, LONG)
        self.acted = ctx.RawValue("i", 0)

    def add_one(self):
        self.acted.value += 1


def work(all):
    assert all.begin.wait(LONG)
    for i, lock in enumerate(all.locks):
        for _ in range(ROUNDS):
            with lock:
                all.counts[i] += 1  # two steps that only the lock makes one
    with all.total.get_lock():
        all.total.value += 1
    with all.locks[5]:
        all.locks[5].notify_all()
    all.barrier.wait()
    all.action.wait()
    assert all.acted.value == 1
    all.barrier.wait()


def make(method, queue):
    """Makes locks in a child and sends them."""
    ctx = mp.get_context(method)
    queue.put((ctx.Lock(), ctx.RLock(), ctx.Condition(ctx.RLock()), ctx.Barrier(2, timeout=LONG), ctx.Event()))


def use(lock, rlock, condition, barrier, event):
    barrier.wait()
    with lock, rlock, condition:
        event.set()
        condition.notify()


class Starts(unittest.TestCase):
    def setUp(self):
        self.before = world.info().blocks_live

    def tearDown(self):
        """No child and no shared object is left. The fork server and the resource tracker stay."""
        self.assertEqual(mp.active_children(), [])
        gc.collect()
        world.audit()
        self.assertEqual(world.info().blocks_live, self.before)

    def test_b25_one_of_everything_made_under_one_method_and_used_under_all(self):
        for method in METHODS:
            with self.subTest(method=method):
                ctx = mp.get_context(method)
                all = Together(ctx, len(METHODS) + 1)
                children = [mp.get_context(m).Process(target=work, args=(all,)) for m in METHODS]
                for child in children:
                    child.start()
                all.begin.set()
                with all.locks[5]:
                    self.assertTrue(all.locks[5].wait_for(lambda: all.total.value == len(METHODS), LONG))
                work(all)
                for child in children:
                    child.join()
                    self.assertEqual(child.exitcode, 0)
                self.assertEqual(list(all.counts), [ROUNDS * (len(METHODS) + 1)] * len(all.locks))
                self.assertFalse(all.barrier.broken)  # the children have ended, but were not killed
                for child in children:
                    child.close()

    def test_b25_what_a_child_made_works_in_children_of_other_methods(self):
        queue = mp.Queue()
        for method, other in zip(METHODS, METHODS[1:] + METHODS[:1]):
            maker = mp.get_context(method).Process(target=make, args=(method, queue))
            maker.start()
            made = queue.get(timeout=LONG)
            maker.join()
            self.assertEqual([type(obj) for obj in made],
                             [getattr(synchronize, name) for name in ("Lock", "RLock", "Condition", "Barrier", "Event")])
            user = mp.get_context(other).Process(target=use, args=made)
            condition, barrier, event = made[2:]
            with condition:
                user.start()
                barrier.wait()
                self.assertIs(condition.wait(LONG), True)
            self.assertTrue(event.is_set())
            user.join()
            self.assertEqual(user.exitcode, 0)
            user.close()
            maker.close()
        queue.close()

    def test_threads_of_this_process_and_a_spawned_child(self):
        ctx = mp.get_context("spawn")
        all = Together(ctx, 3)
        child = ctx.Process(target=work, args=(all,))
        child.start()
        threads = [threading.Thread(target=work, args=(all,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        all.begin.set()
        for thread in threads:
            thread.join()
        child.join()
        self.assertEqual((child.exitcode, list(all.counts)), (0, [ROUNDS * 3] * len(all.locks)))
        child.close()


if __name__ == "__main__":
    unittest.main()
