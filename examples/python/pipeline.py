"""A reader, two workers and a writer. One worker is killed in the middle of its work, and no item is lost.

The queue of the tasks is acknowledged: what a worker has taken belongs to the queue until the worker is done with it. So
when a worker dies, the next one gets its item. It may do work that the dead one had done already: the writer keeps one
result for each item.
"""
import os
import signal

import numpy

import shoal.multiprocessing as mp
from shoal.multiprocessing.queues import AcknowledgedQueue

ITEMS, WORKERS = 200, 2


def read(tasks):
    """Makes the items: noisy signals of 8,192 points."""
    random = numpy.random.default_rng(1)
    time = numpy.linspace(0, 1, 8192)
    for number in range(ITEMS):
        tasks.put((number, numpy.sin(2 * numpy.pi * (number + 1) * time) + random.normal(0, 0.5, time.size)))


def work(tasks, results, accident):
    """Finds the strongest frequency of each signal."""
    while True:
        with tasks.take() as item:
            if item is None:
                break
            number, points = item
            if number == 50 and not accident.is_set():
                accident.set()
                os.kill(os.getpid(), signal.SIGKILL)
            results.put((number, int(numpy.abs(numpy.fft.rfft(points)).argmax())))


def write(results, workers, start_worker):
    """Collects the results, and starts another worker when one has died."""
    found = {}
    while len(found) < ITEMS:
        for ready in mp.connection.wait([results, *(worker.sentinel for worker in workers)]):
            if ready is results:
                number, frequency = results.get()
                found[number] = frequency
            else:
                dead = next(worker for worker in workers if worker.sentinel == ready)
                dead.join()
                print(f"a worker ended with {dead.exitcode}: another one is started")
                workers.remove(dead)
                workers.append(start_worker())
    return found


def main():
    tasks, results, accident = AcknowledgedQueue(20), mp.Queue(), mp.Event()

    def start_worker():
        worker = mp.Process(target=work, args=(tasks, results, accident))
        worker.start()
        return worker

    reader = mp.Process(target=read, args=(tasks,))
    reader.start()
    workers = [start_worker() for _ in range(WORKERS)]
    found = write(results, workers, start_worker)
    for _ in workers:
        tasks.put(None)
    for process in (reader, *workers):
        process.join()
    right = sum(frequency == number + 1 for number, frequency in found.items())
    print(f"{len(found)} of {ITEMS} items, {right} frequencies are right")


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
