"""Behaviours of shared memory, with numpy arrays: B11, B12, B15 and B16. behaviours_torch.py has them with tensors."""
import os
import signal
import unittest

import numpy

import shoal
import support
from shoal import world
from support import LONG, Case, each_method, fds, mappings, received, run_all

ROUNDS = 30


def array_of(i, by_handle=True, size=1000):
    """An array whose elements are all i."""
    array = shoal.empty(size, "i8") if by_handle else numpy.empty(size, "i8")
    array.fill(i)
    return array


def is_of(array, i):
    return bool((array == i).all())


# ---- B11 ----

def send_back(there, back):
    for array in received(there):
        back.put(array)


class Reuse(Case):
    @each_method
    def test_b11_no_new_memory_after_warm_up(self, ctx):
        there, back = ctx.Queue(), ctx.Queue()
        child = ctx.Process(target=send_back, args=(there, back))
        child.start()
        mine = array_of(1)
        messages = (mine, array_of(2, False, 100), array_of(3, False, 20000))
        for count in (300, 3334):
            used = world.info().heap_used
            for _ in range(count):
                for message in messages:
                    there.put(message)
                    arrived = back.get()
        self.assertTrue(is_of(arrived, 3))
        self.assertEqual(world.info().heap_used, used)
        del arrived
        there.put(None)
        child.join(LONG)
        self.assertEqual(child.exitcode, 0)


# ---- B12 ----

LIVE = 10000
CHAIN = 5000


def hold(messages, results):
    """Holds all of the arrays at once."""
    before = fds(), mappings()
    arrays = [messages.get() for _ in range(LIVE)]
    after = fds(), mappings()
    right = all(int(array[0]) == int(array[-1]) == i for i, array in enumerate(arrays))
    results.put((right, after[0] - before[0], after[1] - before[1]))


def send_on(source, target):
    for array in received(source):
        array += 1
        target.put(array)
    target.put(None)


def sum_up(source, results):
    results.put(sum(int(array[0]) for array in received(source)))


class Scale(Case):
    @each_method
    def test_b12_live_arrays_cost_no_fd_and_no_mapping(self, ctx):
        messages, results = ctx.Queue(), ctx.Queue()
        before = fds(), mappings()
        arrays = [array_of(i, size=4) for i in range(LIVE)]
        for array in arrays:
            messages.put(array)
        self.assertEqual(fds(), before[0])
        self.assertLess(mappings(), before[1] + 100)  # Python's own memory grows too
        self.assertEqual(run_all(ctx, [(hold, messages, results)]), [0])
        right, more_fds, more_mappings = results.get()
        self.assertTrue(right)
        self.assertEqual(more_fds, 0)
        self.assertLess(more_mappings, 100)

    @each_method
    def test_b12_a_chain_of_processes(self, ctx):
        first, second, results = ctx.Queue(100), ctx.Queue(100), ctx.Queue()
        children = [ctx.Process(target=send_on, args=(first, second)), ctx.Process(target=sum_up, args=(second, results))]
        for child in children:
            child.start()
        blocks = world.info().blocks_live
        for i in range(CHAIN):
            first.put(array_of(i, size=4))
        first.put(None)
        self.assertEqual(results.get(), CHAIN * (CHAIN - 1) // 2 + CHAIN)
        for child in children:
            child.join(LONG)
        self.assertLessEqual(world.info().blocks_live, blocks)


# ---- B15 and B16 ----

def put_and_end(messages, i, way):
    messages.put((i, array_of(i), array_of(-i, False)))
    if way == "_exit":
        os._exit(0)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def pass_on(source, target):
    for _ in range(ROUNDS):
        target.put(source.get())


def make_arrays(target):
    for i in range(ROUNDS):
        target.put({"number": i, "array": array_of(i), "copy": array_of(-i, False, 20000)})


class Ends(Case):
    @each_method
    def test_b15_the_sender_ends_at_once(self, ctx):
        messages = ctx.Queue()
        for way, code in (("return", 0), ("_exit", 0), ("kill", -signal.SIGKILL)):
            codes = run_all(ctx, [(put_and_end, messages, i, way) for i in range(ROUNDS // 3)])
            self.assertEqual(codes, [code] * (ROUNDS // 3))
            arrived = {i: (shared, copy) for i, shared, copy in (messages.get(timeout=LONG) for _ in codes)}
            self.assertEqual(sorted(arrived), list(range(ROUNDS // 3)))
            for i, (shared, copy) in arrived.items():
                self.assertTrue(is_of(shared, i) and is_of(copy, -i))
            self.assertTrue(messages.empty())

    @each_method
    def test_b16_an_array_outlives_the_two_processes_it_came_from(self, ctx):
        first, second = ctx.Queue(), ctx.Queue()
        self.assertEqual(run_all(ctx, [(make_arrays, first)]), [0])
        self.assertEqual(run_all(ctx, [(pass_on, first, second)]), [0])
        for i in range(ROUNDS):
            message = second.get()
            self.assertEqual(message["number"], i)
            self.assertTrue(is_of(message["array"], i) and is_of(message["copy"], -i))


if __name__ == "__main__":
    unittest.main()
