"""Tests of spawn() and start_processes(): ranks, results, the first failure (B30, B31, B35)."""
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest

import shoal.multiprocessing as mp
from support import LONG, OneMethod, for_each_method, wait_until_blocked
from shoal.multiprocessing import ranks


class Signature(unittest.TestCase):
    def test_spawn_shows_the_signature_of_torch(self):
        expected = "fn args=() nprocs=1 join=True daemon=False start_method='spawn'"
        for function in (mp.spawn, mp.start_processes):
            parameters = inspect.signature(function).parameters.values()
            self.assertEqual(" ".join(str(each.replace(annotation=each.empty)) for each in parameters), expected)
        self.assertIn(expected.replace(" ", ", "), mp.spawn.__doc__)  # what help() shows


def put_rank(rank, queue, word):
    queue.put((rank, word))


def misbehave(rank, bad_rank, how, begun):
    """The bad rank fails once the others wait."""
    if rank != bad_rank:
        if how == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun.put(rank)
        signal.pause()
    if how == "wait":
        signal.pause()
    for _ in range(2):
        begun.get()
    if how == "signal":
        os.abort()
    if how == "exit":
        sys.exit(123)
    raise ValueError(f"rank {rank} cannot go on")


def end_after_the_failure(rank, begun, ended):
    """Rank 0 fails while the others run, and they end by themselves when it is gone."""
    if rank == 0:
        others = [begun.get() for _ in range(2)]
        for connection in others:
            connection.send(os.getpid())
        sys.exit(123)
    here, there = mp.Pipe()
    begun.put(there)
    pid = here.recv()
    while os.path.exists(f"/proc/{pid}"):  # the parent reaps it when it sees the failure
        time.sleep(0.01)
    ended.put(rank)


def raise_interrupt(rank):
    raise KeyboardInterrupt


def nest(rank, queue):
    """A rank that is not a daemon may start processes itself."""
    mp.start_processes(put_rank, (queue, rank), nprocs=2, start_method="fork")


class Ranks(OneMethod):
    def start(self, *args, **kwds):
        return mp.start_processes(*args, start_method=self.method, **kwds)

    def test_b30_every_rank_runs_once(self):
        queue = self.ctx.SimpleQueue()
        self.assertIsNone(self.start(put_rank, (queue, "word"), nprocs=4))
        self.assertEqual(sorted(queue.get() for _ in range(4)), [(rank, "word") for rank in range(4)])
        self.assertTrue(queue.empty())

    def fail(self, how):
        begun = self.ctx.SimpleQueue()
        with self.assertRaises(mp.ProcessException) as caught:
            self.start(misbehave, (1, how, begun), nprocs=3)
        self.assertEqual(mp.active_children(), [])
        self.assertEqual(caught.exception.error_index, 1)
        self.assertNotIn(caught.exception.pid, (0, os.getpid(), None))
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy), copy.error_index, copy.pid),
                         (type(caught.exception), str(caught.exception), 1, caught.exception.pid))
        return caught.exception

    def test_b31_an_exception_keeps_its_traceback_and_ends_the_others(self):
        error = self.fail("raise")
        self.assertIs(type(error), mp.ProcessRaisedException)
        self.assertTrue(str(error).startswith("\n\n-- Process 1 terminated with the following error:\nTraceback"))
        self.assertIn("in misbehave\n", str(error))
        self.assertIn("ValueError: rank 1 cannot go on\n", str(error))

    def test_b30_a_signal_is_named(self):
        error = self.fail("signal")
        self.assertIs(type(error), mp.ProcessExitedException)
        self.assertEqual(str(error), "process 1 terminated with signal SIGABRT")
        self.assertEqual((error.exit_code, error.signal_name), (-6, "SIGABRT"))

    def test_b30_an_exit_code_is_named(self):
        error = self.fail("exit")
        self.assertIs(type(error), mp.ProcessExitedException)
        self.assertEqual(str(error), "process 1 terminated with exit code 123")
        self.assertEqual((error.exit_code, error.signal_name), (123, None))

    def test_b35_ranks_that_ignore_sigterm_are_killed_after_the_grace_time(self):
        grace, ranks.GRACE = ranks.GRACE, 0.3
        try:
            began = time.monotonic()
            self.fail("stubborn")
            self.assertGreater(time.monotonic() - began, 0.3)
        finally:
            ranks.GRACE = grace

    def test_without_join_the_ranks_are_returned(self):
        begun = self.ctx.SimpleQueue()
        context = self.start(misbehave, (3, "raise", begun), nprocs=2, join=False, daemon=True)
        self.assertEqual(sorted(begun.get() for _ in range(2)), [0, 1])
        self.assertEqual(context.pids(), [process.pid for process in context.processes])
        self.assertTrue(all(process.daemon for process in context.processes))
        self.assertFalse(context.join(0.01))
        os.kill(context.pids()[0], signal.SIGTERM)
        with self.assertRaisesRegex(mp.ProcessExitedException, "process 0 terminated with signal SIGTERM"):
            context.join(LONG)

    def test_a_rank_may_start_ranks(self):
        queue = self.ctx.SimpleQueue()
        self.start(nest, (queue,), nprocs=2)
        self.assertEqual(sorted(queue.get() for _ in range(4)), [(0, 0), (0, 1), (1, 0), (1, 1)])

    def test_b31_of_two_failures_the_first_is_reported(self):
        started = self.start(put_rank, (self.ctx.SimpleQueue(), ""), nprocs=3, join=False)
        for process in started.processes:
            process.join()
        for rank, moment in ((0, 2.0), (1, 1.0), (2, 3.0)):  # as if all had failed before anyone looked
            started.error_queues[rank].put((moment, f"rank {rank}"))
        self.assertIn("rank 1", str(started._first_failure([0, 1, 2])))
        for rank in (0, 2):
            started.error_queues[rank].put((1.0, f"rank {rank}"))
        self.assertIn("process 1 terminated with exit code", str(started._first_failure([0, 1, 2])))

    def test_b71_ctrl_c_ends_the_ranks(self):
        begun = self.ctx.SimpleQueue()

        def interrupt():
            self.assertEqual({begun.get(), begun.get()}, {0, 2})
            wait_until_blocked(os.getpid())
            os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            self.start(misbehave, (1, "wait", begun), nprocs=3)
        thread.join()
        self.assertEqual(mp.active_children(), [])

    def test_y15_a_keyboard_interrupt_in_a_rank_is_its_failure(self):
        with self.assertRaisesRegex(mp.ProcessRaisedException, "KeyboardInterrupt"):
            self.start(raise_interrupt, nprocs=2)

    def test_y15_ranks_may_end_by_themselves_in_the_grace_period(self):
        begun, ended = self.ctx.SimpleQueue(), self.ctx.SimpleQueue()
        context = self.start(end_after_the_failure, (begun, ended), nprocs=3, join=False)
        with self.assertRaisesRegex(mp.ProcessExitedException, "process 0 terminated with exit code 123"), self.assertNoLogs():
            while not context.join(grace_period=LONG):
                pass
        self.assertEqual([process.exitcode for process in context.processes], [123, 0, 0])
        self.assertEqual({ended.get(), ended.get()}, {1, 2})

    def test_y15_after_the_grace_period_comes_sigterm_then_sigkill(self):
        begun = self.ctx.SimpleQueue()
        context = self.start(misbehave, (1, "stubborn", begun), nprocs=3, join=False)
        with self.assertLogs(level="WARNING") as logs, self.assertRaises(mp.ProcessRaisedException):
            while not context.join(grace_period=0.1):
                pass
        self.assertEqual([process.exitcode for process in context.processes], [-signal.SIGKILL, 1, -signal.SIGKILL])
        pids = context.pids()
        self.assertEqual([record.getMessage().split(" via")[0] for record in logs.records[:2]],
                         [f"Terminating process {pids[rank]}" for rank in (0, 2)])
        self.assertEqual([record.args for record in logs.records[2:]], [(pids[0],), (pids[2],)])


for_each_method(Ranks, globals())


class Interrupt(unittest.TestCase):
    def test_b71_ctrl_c_that_another_thread_gets(self):
        """The kernel may give a signal to any thread; Python's handler runs in the main thread."""
        program = subprocess.run([sys.executable, "-c", f"""if True:
            import os, signal, sys, threading, time
            sys.path.append({os.path.dirname(os.path.abspath(__file__))!r})
            import support
            import shoal.multiprocessing as mp

            def interrupt():
                support.wait_until_blocked(os.getpid())
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)

            context = mp.start_processes(lambda rank: time.sleep(100), nprocs=1, join=False, start_method="fork", daemon=True)
            threading.Thread(target=interrupt).start()
            context.join()
            """], stderr=subprocess.PIPE, text=True, timeout=LONG)
        self.assertEqual(program.returncode, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", program.stderr)


class Names(unittest.TestCase):
    def test_spawn_is_a_function_and_a_module(self):
        import shoal.multiprocessing.spawn
        self.assertIs(mp.spawn, sys.modules["shoal.multiprocessing.spawn"])
        queue = mp.SimpleQueue()
        mp.spawn(put_rank, args=(queue, 1), nprocs=2)
        self.assertEqual(sorted(queue.get() for _ in range(2)), [(0, 1), (1, 1)])
        self.assertTrue(callable(mp.spawn.get_executable))
        with self.assertWarnsRegex(FutureWarning, "start_processes"):
            mp.spawn(put_rank, args=(queue, 1), nprocs=1, start_method="fork")

    def test_sharing_strategies_are_accepted(self):
        before = mp.get_sharing_strategy()
        self.assertIn(before, mp.get_all_sharing_strategies())
        for strategy in mp.get_all_sharing_strategies():
            mp.set_sharing_strategy(strategy)
            self.assertEqual(mp.get_sharing_strategy(), strategy)
        mp.set_sharing_strategy(before)
        with self.assertRaises(ValueError):
            mp.set_sharing_strategy("pigeon")


if __name__ == "__main__":
    unittest.main()
