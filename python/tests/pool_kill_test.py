"""Kills the workers of a pool, 200 times each: no hang, the right error, right results, nothing left behind. (B28)"""

import os
import random
import signal
import threading
import time
import unittest

from pool_test import LIMIT, Checked, WorkerDied, square, tell_and_wait

KILLS = 200
SEED = 20111


def square_or_wait(task):
    number, tell = task
    if tell is not None:
        tell_and_wait(tell)
    return square(number)


class Kills(Checked):
    def test_worker_killed_in_a_task_under_map(self):
        numbers = random.Random(SEED)
        tell = self.context.Queue()
        with self.Pool(2) as pool:
            for _ in range(KILLS):
                bad = numbers.randrange(6)
                tasks = [(i, tell if i == bad else None) for i in range(6)]
                failing = pool.map_async(square_or_wait, tasks, chunksize=1)
                others = pool.map_async(square, range(20), chunksize=3)
                one = pool.imap_unordered(square, range(3))
                victim = tell.get(timeout=LIMIT)
                os.kill(victim, signal.SIGKILL)
                with self.assertRaises(WorkerDied) as caught:
                    failing.get(LIMIT)
                self.assertRegex(str(caught.exception),
                                 rf"^worker [01] \(pid {victim}\) ended by SIGKILL while it ran task {bad}$")
                self.assertEqual((caught.exception.pid, caught.exception.exitcode), (victim, -signal.SIGKILL))
                self.assertEqual(others.get(LIMIT), [x * x for x in range(20)])
                self.assertEqual(sorted(one), [0, 1, 4])
            self.assertEqual(len(pool._pool), 2)

    def test_workers_killed_at_any_moment_with_retries(self):
        numbers = random.Random(SEED)
        with self.Pool(3, retries=1000000) as pool:
            stop = threading.Event()
            kills = []

            def kill_some():
                while len(kills) < KILLS and not stop.is_set():
                    processes = list(pool._pool)
                    pid = numbers.choice(processes).pid if processes else None
                    # The pool would rightly give up if no worker lived long enough to become ready.
                    if pid is not None and pid not in kills and pool._workers.ready():
                        os.kill(pid, signal.SIGKILL)
                        kills.append(pid)
                    time.sleep(numbers.random() * 0.02)

            killer = threading.Thread(target=kill_some)
            killer.start()
            try:
                rounds = 0
                while killer.is_alive():
                    rounds += 1
                    count = numbers.randrange(1, 300)
                    self.assertEqual(pool.map_async(square, range(count), chunksize=1).get(LIMIT),
                                     [x * x for x in range(count)], f"seed {SEED}, round {rounds}")
                    self.assertEqual(sorted(pool.imap_unordered(square, range(50))), [x * x for x in range(50)])
                    self.assertEqual(list(pool.imap(square, iter(range(50)))), [x * x for x in range(50)])
            finally:
                stop.set()
                killer.join()
            self.assertEqual(len(kills), KILLS)
            pool.close()
            pool.join()


if __name__ == "__main__":
    unittest.main()
