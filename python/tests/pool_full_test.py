"""Pools while the heap is full: their calls raise MemoryError, nothing hangs, and afterwards they work. (B28)"""

import os
import subprocess
import sys
import unittest

from pool_cases import LIMIT

START = """if True:
    import gc, os, signal, support
    import shoal
    import shoal.multiprocessing as mp
    from shoal import _shoal

    def fill(sizes):
        blocks = []
        for size in sizes:
            try:
                while True:
                    blocks.append(_shoal.Block(size))
            except MemoryError:
                pass
        return blocks

    def fill_and_answer(answer):
        global kept
        kept = fill((1000000, 10000, 100, 10))
        return answer

    def answer_when(ready, go, size):
        ready.set()
        go.wait()
        return "y" * size

    def kill_workers():
        victims = {process.pid for process in pool._pool}
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        support.wait_until(lambda: not victims & {process.pid for process in list(pool._pool)})

    def print_error(call, *args):
        try:
            print("no error:", call(*args))
        except Exception as error:
            print(type(error).__name__, str(error).partition(" bytes")[0], sep=": ")

    LIMIT = 300
    context = mp.get_context("fork")
    ready, go = context.Event(), context.Event()
    pool = context.Pool(2)
    pool.map(abs, [1, 2])
"""

END = """
    print(pool.map_async(abs, [-1, 2, -3]).get(LIMIT))
    pool.close()
    pool.join()
"""


class FullHeap(unittest.TestCase):
    def run_program(self, text):
        """Returns the lines that a program wrote. It has a small heap, and a pool that works at the end."""
        done = subprocess.run([sys.executable, "-c", START + text + END], capture_output=True, text=True,
                              timeout=2 * LIMIT, cwd=os.path.dirname(os.path.abspath(__file__)),
                              env={**os.environ, "SHOAL_HEAP_LIMIT": "16M"})
        self.assertEqual(done.returncode, 0, done.stderr)
        *lines, last = done.stdout.splitlines()
        self.assertEqual(last, "[1, 2, 3]", done.stderr)
        return lines, done.stderr

    def test_calls_raise(self):
        lines, errors = self.run_program("""
    blocks = fill((1000000, 10000, 100, 10))
    print_error(pool.apply_async(len, ("x" * 10000,)).get, LIMIT)
    print_error(pool.map_async(len, ["x" * 10000] * 4).get, LIMIT)
    print_error(pool.imap(len, ["x" * 10000] * 4).next, LIMIT)
    del blocks
    """)
        for line in lines:
            self.assertRegex(line, "^MemoryError: heap: asked for")
        self.assertEqual((len(lines), errors), (3, ""))

    def test_a_worker_dies(self):
        lines, errors = self.run_program("""
    blocks = fill((1000000, 10000, 100, 10))
    victim = pool._pool[0].pid
    os.kill(victim, signal.SIGKILL)
    support.wait_until(lambda: victim not in [process.pid for process in list(pool._pool)])
    del blocks
    """)
        self.assertEqual((lines, errors), ([], ""))

    def test_a_result_is_too_large(self):
        lines, errors = self.run_program("""
    result = pool.apply_async(answer_when, (ready, go, 200000))
    ready.wait()
    blocks = fill((1000000, 10000))
    go.set()
    print_error(result.get, LIMIT)
    del blocks
    """)
        self.assertRegex(lines[0], "^MemoryError: there was no memory to send the result of task [0-9]+: heap: asked ")
        self.assertEqual(errors, "")

    def test_the_worker_itself_fills_the_heap(self):
        lines, errors = self.run_program("""
    print_error(pool.map_async(fill_and_answer, [1]).get, LIMIT)
    kill_workers()
    """)
        self.assertEqual((lines, errors), (["no error: [1]"], ""))  # a small result needs no memory

    def test_the_worker_itself_fills_the_heap_and_has_a_large_result(self):
        lines, errors = self.run_program("""
    print_error(pool.map_async(fill_and_answer, ["y" * 400]).get, LIMIT)
    kill_workers()
    """)
        self.assertRegex(lines[0], "^MemoryError: there was no memory to send the result of task 0: heap: asked for ")
        self.assertEqual(errors, "")


if __name__ == "__main__":
    unittest.main()
