"""Python's multiprocessing with spawn: does the same work as `shoal bench` and prints the same JSON lines."""
import json
import multiprocessing
import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from rounds import median_seconds  # noqa: E402

ROUNDS = 21
TRIPS = 100
MEETINGS = 100
INTS = 20000
SPAWNS = 5
WAIT = 60


def tell(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def answer(there, back):
    while (question := there.get(timeout=WAIT)) is not None:
        back.put(question * 3 + 1)


def queue_round_trip(context):
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(there, back))
    child.start()

    def trips():
        for i in range(TRIPS):
            there.put(i)
            if back.get(timeout=WAIT) != i * 3 + 1:
                sys.exit("a wrong answer")

    trips()
    tell("python_int_round_trip", median_seconds(trips, ROUNDS, TRIPS) * 1e6, "us")
    there.put(None)
    child.join()


def send_ints(queue, go):
    while go.get(timeout=WAIT):
        for i in range(INTS):
            queue.put(i)


def ints_one_way(context):
    queue, go = context.Queue(), context.Queue()
    child = context.Process(target=send_ints, args=(queue, go))
    child.start()

    def flow():
        go.put(True)
        for i in range(INTS):
            if queue.get(timeout=WAIT) != i:
                sys.exit("a wrong message")

    flow()
    tell("python_ints_per_second", 1 / median_seconds(flow, 5, INTS), "1/s")
    go.put(False)
    child.join()


def meet(barrier, count):
    for _ in range(count):
        barrier.wait(WAIT)


def barrier_wait(context):
    barrier = context.Barrier(2)
    child = context.Process(target=meet, args=(barrier, (ROUNDS + 1) * MEETINGS))
    child.start()
    meet(barrier, MEETINGS)
    tell("python_barrier_wait", median_seconds(lambda: meet(barrier, MEETINGS), ROUNDS, MEETINGS) * 1e6, "us")
    child.join()


def nothing():
    pass


def spawn_join(context):
    def four():
        children = [context.Process(target=nothing) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            if child.exitcode != 0:
                sys.exit("a child failed")

    four()
    tell("python_spawn_join_4", median_seconds(four, SPAWNS, 1) * 1e3, "ms")


def main():
    context = multiprocessing.get_context("spawn")
    for part in (queue_round_trip, ints_one_way, barrier_wait, spawn_join):
        part(context)


if __name__ == "__main__":
    main()
