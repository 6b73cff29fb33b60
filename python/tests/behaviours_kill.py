"""Processes that are killed beside a queue (B15, B40): nothing hangs, what was put arrives, and the audit is clean."""
import os
import queue
import random
import signal
import threading
import time
import unittest

import numpy

import shoal
import support
from shoal import world
from support import LONG, Case

KILLS = 200
SEED = 20261116


def produce_without_end(messages, told):
    """Tells how many messages are in the queue for certain: told[0] is raised after each put."""
    i = 0
    while True:
        messages.put((i, numpy.full(1 + i * 37 % 20000, i)) if i % 3 else (i, "text" * (i % 50)))
        i += 1
        told[0] = i


def consume_without_end(messages, told):
    while True:
        told[0] += 1
        messages.get()


def put_one(messages):
    messages.put("after the death")


def is_right(message):
    i, content = message
    return bool((content == i).all()) if i % 3 else content == "text" * (i % 50)


class Kills(Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)

    def kill_soon(self, child, ready):
        """Kills the child somewhere in its loop: where, the clock decides."""
        support.wait_until(ready)
        limit = time.perf_counter() + self.random.random() * 0.002
        while time.perf_counter() < limit:
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.join(LONG)
        self.assertEqual(child.exitcode, -signal.SIGKILL)
        child.close()

    def test_b15_b40_a_producer_is_killed_between_puts(self):
        ctx = support.mp.get_context("fork")
        for kill in range(KILLS):
            with self.subTest(kill=kill, seed=SEED):
                messages, told = ctx.Queue(), shoal.zeros(1, "i8")
                child = ctx.Process(target=produce_without_end, args=(messages, told))
                child.start()
                self.kill_soon(child, lambda: told[0] > 0)
                arrived = []
                while True:
                    try:
                        arrived.append(messages.get(timeout=0 if messages.empty() else LONG))
                    except queue.Empty:
                        break
                self.assertEqual([i for i, _ in arrived], list(range(len(arrived))))
                self.assertTrue(all(map(is_right, arrived)))
                # The one put that was under way may have happened or not.
                self.assertIn(len(arrived) - int(told[0]), (0, 1))
                put_one(messages)
                self.assertEqual(messages.get(timeout=LONG), "after the death")
        world.audit()

    def test_b40_a_consumer_is_killed_inside_get(self):
        """Half of them wait in an empty queue, the others are busy taking."""
        ctx = support.mp.get_context("fork")
        for kill in range(KILLS):
            with self.subTest(kill=kill, seed=SEED):
                messages, told = ctx.Queue(), shoal.zeros(1, "i8")
                count = 0 if kill % 2 else 3000
                for i in range(count):
                    messages.put((i, "text"))
                child = ctx.Process(target=consume_without_end, args=(messages, told))
                child.start()
                self.kill_soon(child, lambda: told[0] > 0)
                rest = []
                while not messages.empty():
                    rest.append(messages.get(timeout=LONG)[0])
                # The child took the first ones, one of them perhaps while it was killed.
                taken = count - len(rest)
                self.assertEqual(rest, list(range(taken, count)))
                self.assertLessEqual(taken, int(told[0]))
                self.assertGreaterEqual(taken, int(told[0]) - 1)
                put_one(messages)
                self.assertEqual(messages.get(timeout=LONG), "after the death")
        world.audit()

    def test_b40_others_go_on_beside_the_dead(self):
        """Two producers and a consumer live on while their neighbours in the same queue are killed again and again."""
        ctx = support.mp.get_context("fork")
        messages, results = ctx.Queue(50), ctx.Queue()
        survivors = [ctx.Process(target=put_numbers, args=(messages, name, 5000)) for name in ("one", "two")]
        for child in survivors:
            child.start()
        victims = threading.Thread(target=self.kill_producers, args=(ctx, messages))
        victims.start()
        found = {"one": [], "two": []}
        while not all(len(numbers) == 5000 for numbers in found.values()):
            name, i = messages.get(timeout=LONG)
            if name in found:
                found[name].append(i)
        for child in survivors:
            child.join(LONG)
        self.stop = True
        while victims.is_alive():
            try:
                messages.get(timeout=0.01)
            except queue.Empty:
                pass
        self.assertEqual(found, {"one": list(range(5000)), "two": list(range(5000))})
        self.assertTrue(results.empty())

    stop = False

    def kill_producers(self, ctx, messages):
        while not self.stop:
            told = shoal.zeros(1, "i8")
            child = ctx.Process(target=put_victims, args=(messages, told))
            child.start()
            self.kill_soon(child, lambda: told[0] > 0)


def put_numbers(messages, name, count):
    for i in range(count):
        messages.put((name, i))


def put_victims(messages, told):
    while True:
        told[0] += 1
        messages.put(("victim", numpy.zeros(100)))


if __name__ == "__main__":
    unittest.main()
