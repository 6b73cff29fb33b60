"""How a pool ends: close, join, terminate, collection, the exit of the interpreter, Ctrl-C. (B28, B36, B71)"""

import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock
import warnings

from pool_cases import LIMIT, PoolCase, add, identity, ignore_and_wait, pid_of, square, tell_and_wait
from shoal import world
from shoal.multiprocessing import pool as pools
from support import wait_until_waiting


class Ends(PoolCase):
    def test_states(self):
        pool = self.Pool(1)
        with self.assertRaisesRegex(ValueError, "Pool is still running"):
            pool.join()
        self.assertRegex(repr(pool), r"<shoal\.multiprocessing\.pool\.Pool state=RUN pool_size=1>")
        last = pool.apply_async(square, (2,))
        pool.close()
        for call in (lambda: pool.apply(square, (1,)), lambda: pool.map(square, []), lambda: pool.imap(square, []),
                     pool.__enter__):
            with self.assertRaisesRegex(ValueError, "Pool not running"):
                call()
        pool.join()
        self.assertEqual(last.get(0), 4)
        pool.terminate()
        pool.join()

    def test_terminate_with_busy_workers_and_a_long_queue(self):
        tell = self.context.Queue()
        pool = self.Pool(2)
        busy = pool.map_async(tell_and_wait, [tell] * 1000, chunksize=1)
        endless = pool.imap(identity, itertools.count())
        tell.get(timeout=LIMIT)
        pool.terminate()
        pool.join()
        for wait in busy.get, endless.next:
            with self.assertRaisesRegex(RuntimeError, "the pool was terminated before the task was done"):
                wait(LIMIT)

    def test_terminate_with_stopped_workers(self):
        tell = self.context.Queue()
        pool = self.Pool(2)
        pool.map_async(tell_and_wait, [tell] * 2, chunksize=1)
        for _ in range(2):
            os.kill(tell.get(timeout=LIMIT), signal.SIGSTOP)
        pool.terminate()
        self.assertEqual([worker.exitcode for worker in pool._pool], [-signal.SIGTERM] * 2)

    def test_terminate_kills_what_ignores_sigterm(self):
        tell = self.context.Queue()
        pool = self.Pool(1)
        pool.apply_async(ignore_and_wait, (tell,))
        tell.get(timeout=LIMIT)
        pool.terminate()
        self.assertEqual([worker.exitcode for worker in pool._pool], [-signal.SIGKILL])

    def test_a_stopped_worker_is_not_taken_for_dead(self):
        """B36."""
        with self.Pool(2) as pool:
            worker = pool.apply(pid_of, (0,))
            os.kill(worker, signal.SIGSTOP)
            self.assertEqual(pool.map(square, range(100), chunksize=1)[-1], 99 * 99)
            os.kill(worker, signal.SIGCONT)
            self.assertIn(worker, [process.pid for process in pool._pool])

    def test_collection_ends_the_workers(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pool = self.Pool(2)
            processes = list(pool._pool)
            del pool
        self.assertIn("unclosed running multiprocessing pool", str(caught[0].message))
        self.assertIs(caught[0].category, ResourceWarning)
        caught.clear()  # a warning refers to the pool
        gc.collect()
        self.assertEqual([process.is_alive() for process in processes], [False, False])

    def test_no_memory_waits_for_the_garbage_collector(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        before = world.info().blocks_live
        for end in "close", "terminate":
            pool = self.Pool(2)
            self.assertEqual(pool.map(square, range(4)), [0, 1, 4, 9])
            self.assertEqual(list(pool.imap(square, range(4))), [0, 1, 4, 9])
            getattr(pool, end)()
            pool.join()
            pool._repopulate_pool()  # does nothing now
            self.assertEqual(multiprocessing.active_children(), [])
            del pool
            self.assertEqual(world.info().blocks_live, before)

    def test_a_pool_lives_until_its_results_are_there(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertEqual(self.Pool(1).apply_async(square, (5,)).get(LIMIT), 25)
            self.assertEqual(list(self.Pool(1).imap(square, iter(range(3)))), [0, 1, 4])

    def test_many_threads(self):
        with self.Pool(2) as pool:
            wrong = []

            def use(n):
                for i in range(20):
                    if pool.map(square, range(n, n + 20), chunksize=3) != [x * x for x in range(n, n + 20)]:
                        wrong.append(n)
                    if pool.apply(add, (n, i)) != n + i:
                        wrong.append(n)

            threads = [threading.Thread(target=use, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT)
            self.assertEqual(wrong, [])

    def test_threads_that_cannot_start(self):
        for name in "shoal-pool-workers", "shoal-pool-results":
            def start(thread, real=threading.Thread.start):
                if thread.name == name:
                    raise RuntimeError("can't start new thread")
                real(thread)
            with unittest.mock.patch.object(threading.Thread, "start", start):
                with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
                    self.Pool(2)
            self.assertEqual(multiprocessing.active_children(), [])

    def test_a_map_of_large_arguments_does_not_fill_the_heap(self):
        go = self.context.Queue()
        before = world.info().heap_used
        with self.Pool(1) as pool:
            waiting = pool.apply_async(go.get)
            result = pool.map_async(len, [b"x" * (1 << 20)] * 250, chunksize=1)
            self.assertLess(world.info().heap_used - before, 200 << 20)
            go.put(None)
            waiting.get(LIMIT)
            self.assertEqual(result.get(LIMIT), [1 << 20] * 250)

    def test_a_forked_child_cannot_use_the_pool(self):
        with self.Pool(1) as pool:
            child = os.fork()
            if child == 0:
                try:
                    pool.apply(square, (1,))
                except ValueError as error:
                    os._exit(0 if "belongs to the process that made it" in str(error) else 2)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_exit_of_the_interpreter_with_a_live_pool(self):
        for end in "", "import sys; sys.exit(0)", "del pool", "pool.map_async(time.sleep, [100] * 10)":
            done = subprocess.run([sys.executable, "-c", f"""if True:
                import os, time
                import shoal.multiprocessing as mp
                pool = mp.get_context("fork").Pool(2)
                print(*pool.map(abs, [-1, 2]), *(p.pid for p in pool._pool))
                {end}
                """], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual((done.returncode, done.stderr), (0, ""), end)
            one, two, *workers = map(int, done.stdout.split())
            self.assertEqual((one, two), (1, 2))
            for worker in workers:
                self.assertFalse(os.path.exists(f"/proc/{worker}"))

    def test_interrupt(self):
        """B71: Ctrl-C, which all processes of a terminal get."""
        for start in "with mp.get_context('fork').Pool(2) as pool:", "if pool := mp.get_context('fork').Pool(2):":
            program = subprocess.Popen([sys.executable, "-c", f"""if True:
                import signal, time
                import shoal.multiprocessing as mp
                {start}
                    done = pool.map_async(time.sleep, [100] * 10, chunksize=1)
                    print(*(p.pid for p in pool._pool), flush=True)
                    done.get()
                """], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            with program:
                workers = program.stdout.readline().split()
                wait_until_waiting(program.pid)
                os.killpg(program.pid, signal.SIGINT)
                program.wait(LIMIT)
                self.assertIn("KeyboardInterrupt", program.stderr.read())
            self.assertEqual(program.returncode, -signal.SIGINT)
            for worker in workers:
                self.assertFalse(os.path.exists(f"/proc/{worker}"))

    def test_interrupt_that_another_thread_gets(self):
        """B71: the kernel may give a signal to any thread; Python's handler runs in the main thread."""
        for call in "done.get()", "done.wait()", "next(pool.imap(time.sleep, [100]))", "pool.close(); pool.join()":
            program = subprocess.run([sys.executable, "-c", f"""if True:
                import os, signal, threading, time
                import shoal.multiprocessing as mp
                from shoal import world

                def interrupt():
                    while not any(entry.pid == os.getpid() and entry.state == "waiting" for entry in world.ps()):
                        time.sleep(0.001)
                    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

                with mp.get_context("fork").Pool(2) as pool:
                    done = pool.map_async(time.sleep, [100] * 10, chunksize=1)
                    threading.Thread(target=interrupt).start()
                    {call}
                """], stderr=subprocess.PIPE, text=True, timeout=LIMIT)
            self.assertEqual(program.returncode, -signal.SIGINT, call)
            self.assertIn("KeyboardInterrupt", program.stderr)

    def test_thread_pool_is_the_standard_one(self):
        self.assertIs(pools.ThreadPool, multiprocessing.pool.ThreadPool)


if __name__ == "__main__":
    unittest.main()
