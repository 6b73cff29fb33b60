"""Behaviours of queues: B20 to B24 and B75."""
import os
import pickle
import queue
import signal
import threading
import time
import unittest

import shoal
import support
from shoal.multiprocessing.queues import AcknowledgedQueue
from support import LONG, Case, each_method, received, run_all

ROUNDS = 30


def send_for_ever(sender, count):
    send = getattr(sender, "send", None) or sender.put
    for i in range(1 << 30):
        count.value = i
        send((i, bytes(1000)))


# ---- B20 ----

def payload(i, largest):
    """A few messages of every size from nothing to the largest; most are small."""
    if i % 5000 == 4999:
        return bytes([i % 251]) * largest
    if i % 50 == 49:
        return bytes([i % 251]) * (i * 7919 % 65536)
    return b"" if i % 2 else bytes([i % 251]) * (i % 64)


def produce(messages, producer, count, largest):
    for i in range(count):
        messages.put((producer, i, payload(i, largest)))


def consume(messages, results, producers, largest):
    last, count = [-1] * producers, 0
    while True:
        message = messages.get()
        if message is None:
            break
        producer, i, data = message
        if i <= last[producer] or data != payload(i, largest):
            results.put(f"message {i} of producer {producer} is wrong")
            return
        last[producer] = i
        count += 1
    results.put(count)


class Flow(Case):
    def flow(self, ctx, count, largest):
        """4 producers and 4 consumers: nothing is lost or doubled if every message is right and the number adds up."""
        messages, results = ctx.Queue(), ctx.Queue()
        consumers = [ctx.Process(target=consume, args=(messages, results, 4, largest)) for _ in range(4)]
        for child in consumers:
            child.start()
        self.assertEqual(run_all(ctx, [(produce, messages, p, count, largest) for p in range(4)]), [0] * 4)
        for _ in consumers:
            messages.put(None)
        counts = [results.get(timeout=LONG) for _ in consumers]
        for child in consumers:
            child.join()
        self.assertEqual(sum(counts), 4 * count, counts)
        self.assertTrue(messages.empty())

    def test_b20_order_and_number(self):
        self.flow(support.mp.get_context("fork"), 25000, 4 << 20)

    @each_method
    def test_b20_every_start_method(self, ctx):
        self.flow(ctx, 5000, (64 if ctx.get_start_method() == "fork" else 4) << 20)


# ---- B21 ----

def take_when_told(messages, go):
    for _ in received(go):
        messages.get()


class Bounds(Case):
    def test_b21_full_and_empty(self):
        for kind in (support.mp.Queue, support.mp.JoinableQueue):
            bounded = kind(2)
            self.assertRaises(queue.Empty, bounded.get_nowait)
            self.assertRaises(queue.Empty, bounded.get, False)
            bounded.put(1)
            bounded.put(2)
            self.assertTrue(bounded.full())
            self.assertRaises(queue.Full, bounded.put_nowait, 3)
            for call, error in ((lambda: bounded.put(3, timeout=0.03), queue.Full), (bounded.get, None), (bounded.get, None),
                                (lambda: bounded.get(timeout=0.03), queue.Empty)):
                begun = time.monotonic()
                if error is None:
                    call()
                else:
                    self.assertRaises(error, call)
                    self.assertGreaterEqual(time.monotonic() - begun, 0.03)
            self.assertEqual(bounded.qsize(), 0)

    @each_method
    def test_b21_a_put_waits_for_room(self, ctx):
        bounded, go = ctx.Queue(1), ctx.Queue()
        child = ctx.Process(target=take_when_told, args=(bounded, go))
        child.start()
        for i in range(ROUNDS):
            bounded.put(i)
            self.assertRaises(queue.Full, bounded.put, i, timeout=0.001)
            go.put(True)
            bounded.put(i, timeout=LONG)  # there is room once the child has taken the first
            go.put(True)
        go.put(None)
        child.join()
        self.assertTrue(bounded.empty())

    @each_method
    def test_y7_pipes_and_simple_queues_have_room_for_a_mebibyte(self, ctx):
        """A fast producer filled the memory: a pipe had no bound."""
        ends = ctx.Pipe(False)
        simple = ctx.SimpleQueue()
        for get, put in ((ends[0].recv, ends[1].send), (simple.get, simple.put)):
            for i in range(10000):  # more than a pipe of the system holds
                put(i)
            self.assertEqual([get() for _ in range(10000)], list(range(10000)))
        count = ctx.Value("q", 0)
        for get, sender in ((ends[0].recv, ends[1]), (simple.get, simple)):
            child = ctx.Process(target=send_for_ever, args=(sender, count))
            child.start()
            for i in range(5000):
                self.assertEqual(get()[0], i)
                self.assertLess(count.value - i, 1100 + 16)
            child.kill()
            child.join()

    def test_y7_maxsize_of_a_simple_queue(self):
        simple = support.mp.SimpleQueue(2)
        simple.put(1)
        simple.put(2)
        self.assertTrue(simple.full())
        self.assertRaises(queue.Full, simple.put, 3, timeout=0.001)

    def test_y7_a_sender_that_waits_sees_the_end(self):
        ctx = support.mp.get_context("fork")
        reader, writer = ctx.Pipe(False)
        child = ctx.Process(target=time.sleep, args=(LONG,))
        child.start()
        reader.close()
        threading.Timer(0.2, child.kill).start()
        with self.assertRaises(BrokenPipeError):
            while True:
                writer.send_bytes(bytes(1000))
        child.join()

    def test_b21_shutdown_wakes_everyone(self):
        for _ in range(ROUNDS):
            bounded, empty, found = support.mp.Queue(1), support.mp.Queue(), []
            bounded.put(0)

            def wait_in(call, *args):
                try:
                    call(*args)
                except shoal.Closed:
                    found.append(True)

            threads = [threading.Thread(target=wait_in, args=(bounded.put, 1)) for _ in range(2)]
            threads += [threading.Thread(target=wait_in, args=(empty.get,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            bounded.shutdown()
            empty.shutdown()
            for thread in threads:
                thread.join(LONG)
            self.assertEqual(len(found), 4)
            self.assertEqual(bounded.get(), 0)  # what was put before can still be taken
            self.assertRaises(shoal.Closed, bounded.get)


# ---- B22 and B75 ----

class Unpicklable:
    def __reduce__(self):
        raise ValueError("this one cannot be pickled")


class Poison:
    """Fails when it is unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


def echo(there, back):
    for message in received(there):
        back.put(message)


class Failures(Case):
    def test_b22_b75_what_cannot_be_pickled_is_an_error_of_put(self):
        messages = support.mp.Queue()
        before = shoal.world.info().blocks_live
        wrong = ((lambda: None, (AttributeError, pickle.PicklingError)), (Unpicklable(), ValueError),
                 ([1, {"deep": Unpicklable()}], ValueError), (threading.Lock(), TypeError), ((i for i in ()), TypeError))
        for _ in range(ROUNDS):
            for obj, error in wrong:
                self.assertRaises(error, messages.put, obj)
        self.assertTrue(messages.empty())
        self.assertEqual(shoal.world.info().blocks_live, before)

    @each_method
    def test_b22_b75_the_items_around_it_arrive(self, ctx):
        there, back = ctx.Queue(), ctx.Queue()
        child = ctx.Process(target=echo, args=(there, back))
        child.start()
        for i in range(ROUNDS):
            there.put(("before", i))
            self.assertRaises(ValueError, there.put, Unpicklable())
            there.put(("after", i))
            self.assertEqual([back.get(timeout=LONG) for _ in range(2)], [("before", i), ("after", i)])
        there.put(None)
        child.join()

    @each_method
    def test_b75_what_fails_to_unpickle_is_an_error_of_get(self, ctx):
        results = ctx.Queue()
        self.assertEqual(run_all(ctx, [(put_poison, results)]), [0])
        for i in range(ROUNDS):
            self.assertEqual(results.get(), i)
            self.assertRaises(ValueError, results.get)
        self.assertEqual(results.get(), "the end")

    def test_b75_in_a_pipe_too(self):
        one, other = support.mp.Pipe()
        for i in range(ROUNDS):
            self.assertRaises(ValueError, one.send, Unpicklable())
            one.send(Poison())
            one.send(i)
            self.assertRaises(ValueError, other.recv)
            self.assertEqual(other.recv(), i)


def put_poison(results):
    for i in range(ROUNDS):
        results.put(i)
        results.put([Poison(), i])
    results.put("the end")


# ---- B23 ----

def answer_in_each(pairs):
    """Takes pairs of queues from a queue, and answers through them."""
    for there, back in received(pairs):
        back.put(there.get() + 1)


class Queues(Case):
    @each_method
    def test_b23_a_queue_through_a_queue(self, ctx):
        """The queues that are sent are made after the child has started."""
        pairs = ctx.Queue()
        child = ctx.Process(target=answer_in_each, args=(pairs,))
        child.start()
        for i in range(ROUNDS):
            make = (ctx.Queue, ctx.JoinableQueue, ctx.SimpleQueue)[i % 3]
            there, back = make(), make()
            pairs.put((there, back))
            there.put(i)
            self.assertEqual(back.get(), i + 1)
        pairs.put(None)
        child.join(LONG)
        self.assertEqual(child.exitcode, 0)

    def test_b23_pickled_elsewhere_it_raises(self):
        for one in (support.mp.Queue(), support.mp.JoinableQueue(), support.mp.SimpleQueue(), support.mp.Lock()):
            self.assertRaises(RuntimeError, pickle.dumps, one)


# ---- acknowledged queues ----

def die_with_an_item(tasks):
    with tasks.take():
        os.kill(os.getpid(), signal.SIGKILL)


class Acknowledged(Case):
    @each_method
    def test_what_a_killed_process_took_comes_again(self, ctx):
        tasks = AcknowledgedQueue()
        for i in range(3):
            tasks.put(i)
        self.assertEqual(run_all(ctx, [(die_with_an_item, tasks)]), [-signal.SIGKILL])
        for i in range(3):
            with tasks.take(LONG) as number:
                self.assertEqual(number, i)
        tasks.join()

    def test_what_failed_comes_again(self):
        tasks = AcknowledgedQueue(5)
        tasks.put("item")
        for _ in range(ROUNDS):
            with self.assertRaises(ZeroDivisionError), tasks.take() as item:
                self.assertEqual(item, "item")
                1 / 0
        self.assertRaises(ValueError, tasks._done)
        with tasks.take():
            self.assertRaises(ValueError, tasks.take().__enter__)
        tasks.join()
        with self.assertRaises(queue.Empty), tasks.take(0):
            pass
        self.assertRaises(ValueError, tasks.get)


# ---- B24 ----

def work(tasks):
    for _ in received(tasks):
        tasks.task_done()
    tasks.task_done()


class Joinable(Case):
    @each_method
    def test_b24_join_waits_for_every_item(self, ctx):
        tasks = ctx.JoinableQueue()
        children = [ctx.Process(target=work, args=(tasks,)) for _ in range(2)]
        for child in children:
            child.start()
        for _ in range(ROUNDS):
            for i in range(20):
                tasks.put(i)
            tasks.join()
            self.assertTrue(tasks.empty())
        for _ in children:
            tasks.put(None)
        tasks.join()
        for child in children:
            child.join(LONG)
            self.assertEqual(child.exitcode, 0)
        self.assertRaises(ValueError, tasks.task_done)

    def test_b24_join_does_not_return_early(self):
        tasks, joined = support.mp.JoinableQueue(), []
        tasks.put(1)
        tasks.put(2)
        thread = threading.Thread(target=lambda: joined.append(tasks.join()))
        thread.start()
        for _ in range(2):
            self.assertEqual(joined, [])
            tasks.get()
            self.assertEqual(joined, [])
            tasks.task_done()
        thread.join(LONG)
        self.assertEqual(joined, [None])
        self.assertRaises(ValueError, tasks.task_done)


if __name__ == "__main__":
    unittest.main()
