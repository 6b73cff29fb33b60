"""Where contexts, queues and processes fit: B70 and B76. behaviours_torch.py has DataLoader."""
import asyncio
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import selectors
import signal
import subprocess
import sys
import unittest

import support
from support import LONG, Case, each_method, received

ROUNDS = 30

UNCHANGED = """
import copyreg, sys
import multiprocessing, multiprocessing.context, multiprocessing.queues, multiprocessing.reduction

def state():
    return {{
        "start method": multiprocessing.get_start_method(allow_none=True),
        "default context": multiprocessing.context._default_context,
        "names": {{name: getattr(multiprocessing, name) for name in multiprocessing.__all__ if name != "reducer"}},
        "reducers": dict(multiprocessing.reduction.ForkingPickler._extra_reducers),
        "copyreg": dict(copyreg.dispatch_table),
        "pickler": multiprocessing.reduction.ForkingPickler.dumps,
        "queues": [multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue, multiprocessing.queues.JoinableQueue],
        **({{"torch": (torch.multiprocessing.get_sharing_strategy(), dict(torch.multiprocessing.__dict__))}} if {torch} else {{}}),
    }}

if {torch}:
    import torch, torch.multiprocessing
before = state()
import shoal.multiprocessing as mp
assert state() == before
ours = mp.get_context("fork")
queue = ours.Queue()
child = ours.Process(target=queue.put, args=(7,))
child.start()
assert queue.get() == 7
child.join()
if {torch}:
    tensor = torch.ones(3)
    queue.put(tensor)
    assert queue.get()[1] == 1
mp.set_start_method("spawn")
after = state()
if {torch}:  # it knows memory in the heap now, and leaves all other to torch
    reducers = after["reducers"]
    reducers[torch.UntypedStorage] = reducers[torch.UntypedStorage].__wrapped__
for what in before:
    assert before[what] == after[what], what

theirs = torch.multiprocessing.get_context("fork") if {torch} else multiprocessing.get_context("fork")
there, back = theirs.Queue(), theirs.Queue()
assert type(there).__module__ == "multiprocessing.queues"
child = theirs.Process(target=lambda: back.put([float(x) for x in there.get()]))
child.start()
there.put(torch.ones(2) if {torch} else (1.0, 1.0))
assert back.get() == [1, 1]
child.join()
assert type(multiprocessing.Queue()).__module__ == "multiprocessing.queues"
assert multiprocessing.get_start_method() == "fork"
"""


class Importing(unittest.TestCase):
    def test_b70_nothing_changes_for_the_standard_module(self):
        self.run_program(torch=False)

    def test_b70_nothing_changes_for_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.run_program(torch=True)

    def run_program(self, torch):
        done = subprocess.run([sys.executable, "-c", UNCHANGED.format(torch=torch)], capture_output=True, text=True, timeout=LONG)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


# ---- ProcessPoolExecutor ----

def double(number):
    return 2 * number


def end_by(number):
    os.kill(os.getpid(), number)


class Executor(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for method in support.METHODS:
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=support.mp.get_context(method)) as executor:
                executor.submit(double, 1).result(LONG)

    @each_method
    def test_b76_executor(self, ctx):
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=ctx) as executor:
            self.assertEqual(list(executor.map(double, range(ROUNDS), timeout=LONG)), [2 * n for n in range(ROUNDS)])
            self.assertRaises(ZeroDivisionError, executor.submit(divmod, 1, 0).result, LONG)

    @each_method
    def test_b76_executor_whose_worker_is_killed(self, ctx):
        for _ in range(ROUNDS if ctx.get_start_method() == "fork" else 3):
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=ctx) as executor:
                self.assertEqual(executor.submit(double, 4).result(LONG), 8)
                future = executor.submit(end_by, signal.SIGKILL)
                self.assertRaises(concurrent.futures.process.BrokenProcessPool, future.result, LONG)

    def test_b76_the_last_result_of_a_worker_counts_before_its_end(self):
        results = support.mp.get_context("fork").SimpleQueue()
        ended = [0]  # what the executor's wait returns if it has seen only that the worker has ended
        results.put("last")
        self.assertIn(results._reader, ended)
        self.assertEqual(results._reader.recv(), "last")
        self.assertNotIn(results._reader, ended)


# ---- connection.wait and selectors ----

def send_all(connection, queue, count):
    for i in range(count):
        connection.send(i)
        queue.put(i)
    connection.close()


def wait_for_end(queue):
    queue.get()


class Waiting(Case):
    @each_method
    def test_b76_wait(self, ctx):
        for module in (multiprocessing.connection, support.mp.connection):
            reader, writer = ctx.Pipe(False)
            queue = ctx.Queue()
            child = ctx.Process(target=send_all, args=(writer, queue, ROUNDS))
            child.start()
            writer.close()
            got, waiting = {"pipe": [], "queue": []}, [reader, queue, child.sentinel]
            self.assertEqual(multiprocessing.connection.wait([ctx.Queue()], 0), [])
            while waiting:
                ready = module.wait(waiting, LONG)
                self.assertTrue(ready, "waited in vain")
                if queue in ready:
                    got["queue"].append(queue.get())
                    if len(got["queue"]) == ROUNDS:
                        waiting.remove(queue)
                if reader in ready:
                    try:
                        got["pipe"].append(reader.recv())
                    except EOFError:
                        waiting.remove(reader)
                if child.sentinel in ready:
                    waiting.remove(child.sentinel)
            self.assertEqual(got, {"pipe": list(range(ROUNDS)), "queue": list(range(ROUNDS))})
            child.join()
            reader.close()

    def test_b76_wait_sees_at_once_what_was_sent(self):
        ctx = support.mp.get_context("fork")
        (one, other), queue = ctx.Pipe(), ctx.Queue()
        ended, writer = os.pipe()
        os.close(writer)  # always ready, like the sentinel of a process that has ended
        self.assertEqual(support.mp.connection.wait([one, queue], 0.01), [])  # asks for the fds
        for i in range(ROUNDS):
            other.send(i)
            queue.put(i)
            self.assertCountEqual(support.mp.connection.wait([one, ended, queue], LONG), [one, ended, queue])
            self.assertEqual((one.recv(), queue.get()), (i, i))
            self.assertEqual(support.mp.connection.wait([one, ended, queue], LONG), [ended])
        os.close(ended)

    @each_method
    def test_b76_wait_sees_a_killed_worker(self, ctx):
        for _ in range(10 if ctx.get_start_method() == "fork" else 3):
            queue = ctx.Queue()
            child = ctx.Process(target=wait_for_end, args=(queue,))
            child.start()
            support.wait_until_waiting(child.pid)
            self.assertEqual(multiprocessing.connection.wait([queue, child.sentinel], 0), [])
            os.kill(child.pid, signal.SIGKILL)
            self.assertEqual(multiprocessing.connection.wait([queue, child.sentinel], LONG), [child.sentinel])
            child.join()

    def test_b76_the_far_end_of_a_pipe_dies(self):
        ctx = support.mp.get_context("fork")
        for _ in range(5):  # the fd of a pipe shows a death after a second at the latest
            one, other = ctx.Pipe()
            child = ctx.Process(target=wait_in_recv, args=(other,))
            child.start()
            other.close()
            os.kill(child.pid, signal.SIGKILL)
            self.assertEqual(multiprocessing.connection.wait([one], LONG), [one])
            self.assertRaises(EOFError, one.recv)
            child.join()

    def test_b76_selectors(self):
        ctx = support.mp.get_context("fork")
        queue, (one, other) = ctx.Queue(), ctx.Pipe()
        with selectors.DefaultSelector() as selector:
            selector.register(queue, selectors.EVENT_READ, "queue")
            selector.register(one, selectors.EVENT_READ, "pipe")
            for i in range(ROUNDS):
                self.assertEqual(selector.select(0), [])
                child = ctx.Process(target=put_into, args=(queue if i % 2 else other, i))
                child.start()
                ready = selector.select(LONG)
                self.assertEqual([key.data for key, _ in ready], ["queue" if i % 2 else "pipe"])
                self.assertEqual((queue.get if i % 2 else one.recv)(), i)
                child.join()


def wait_in_recv(connection):
    connection.recv()


def put_into(target, obj):
    (target.put if hasattr(target, "put") else target.send)(obj)


# ---- asyncio ----

def send_back(there, back):
    for message in received(there):
        back.put(message)


class Asyncio(Case):
    @each_method
    def test_b76_get_async_and_put_async(self, ctx):
        there, back = ctx.Queue(2), ctx.Queue()
        child = ctx.Process(target=send_back, args=(there, back))
        child.start()

        async def send():
            for i in range(ROUNDS):
                await there.put_async(i)

        async def talk():
            _, found, ticks = await asyncio.gather(send(), take(), tick())
            self.assertEqual(found, list(range(ROUNDS)))
            self.assertGreater(ticks, 0)

        async def take():
            return [await back.get_async() for _ in range(ROUNDS)]

        async def tick():
            ticks = 0
            while ticks < 10:  # the loop goes on while the others wait
                await asyncio.sleep(0)
                ticks += 1
            return ticks

        asyncio.run(asyncio.wait_for(talk(), LONG))
        there.put(None)
        child.join(LONG)
        self.assertEqual(child.exitcode, 0)

    def test_b76_many_tasks_wait_for_one_queue(self):
        queue = support.mp.Queue()

        async def talk():
            tasks = [asyncio.create_task(queue.get_async()) for _ in range(10)]
            await asyncio.sleep(0.01)
            tasks[0].cancel()
            for i in range(9):
                queue.put(i)
            return sorted(await asyncio.gather(*tasks[1:]))

        self.assertEqual(asyncio.run(asyncio.wait_for(talk(), LONG)), list(range(9)))
        self.assertTrue(queue.empty())

    def test_b76_add_reader_and_a_killed_worker(self):
        ctx = support.mp.get_context("fork")

        async def talk(queue, child):
            loop, ended, got = asyncio.get_running_loop(), asyncio.Event(), []
            loop.add_reader(queue.fileno(), lambda: got.append(queue.get_nowait()))
            loop.add_reader(child.sentinel, ended.set)
            try:
                while not got:
                    await asyncio.sleep(0.001)
                os.kill(child.pid, signal.SIGKILL)
                await ended.wait()
            finally:
                loop.remove_reader(queue.fileno())
                loop.remove_reader(child.sentinel)
            return got

        for _ in range(ROUNDS):
            queue, hold = ctx.Queue(), ctx.Queue()
            child = ctx.Process(target=put_and_wait, args=(queue, hold))
            child.start()
            self.assertEqual(asyncio.run(asyncio.wait_for(talk(queue, child), LONG)), ["alive"])
            child.join()
            self.assertEqual(child.exitcode, -signal.SIGKILL)


def put_and_wait(queue, hold):
    queue.put("alive")
    hold.get()


if __name__ == "__main__":
    unittest.main()
