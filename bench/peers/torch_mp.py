"""torch.multiprocessing with spawn, one thread a process: tensors by handle, and processes that have PyTorch loaded."""
import json
import os
import statistics
import sys
import time

import torch
import torch.multiprocessing as multiprocessing

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from rounds import median_seconds  # noqa: E402

ROUNDS = 21
TRIPS = 20
HANDLES = 500
SPAWNS = 1
WAIT = 120


def tell(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def answer(there, back):
    torch.set_num_threads(1)
    while (tensor := there.get(timeout=WAIT)) is not None:
        tensor[0] += 1
        back.put(tensor)


def handle_round_trip(context):
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(there, back))
    child.start()
    tensor = torch.zeros(16).share_memory_()

    def trips():
        for _ in range(TRIPS):
            before = float(tensor[0])
            there.put(tensor)
            same = back.get(timeout=WAIT)
            if float(same[0]) != before + 1 or float(tensor[0]) != before + 1:
                sys.exit("a wrong answer")

    trips()
    tell("torch_handle_round_trip", median_seconds(trips, ROUNDS, TRIPS) * 1e6, "us")
    there.put(None)
    child.join()


def send_handles(queue, go):
    torch.set_num_threads(1)
    while go.get(timeout=WAIT):
        tensors = [torch.full((256,), float(i)).share_memory_() for i in range(HANDLES)]
        for tensor in tensors:
            queue.put(tensor)
        go.get(timeout=WAIT)


def handles_one_way(context):
    queue, go = context.Queue(), context.Queue()
    child = context.Process(target=send_handles, args=(queue, go))
    child.start()
    seconds = []
    for _ in range(5):
        go.put(True)
        first = queue.get(timeout=WAIT)
        begun = time.perf_counter()
        for i in range(1, HANDLES):
            if float(queue.get(timeout=WAIT)[0]) != i:
                sys.exit("a wrong message")
        seconds.append((time.perf_counter() - begun) / (HANDLES - 1))
        del first
        go.put(True)
    tell("torch_handles_per_second", 1 / statistics.median(seconds), "1/s")
    go.put(False)
    child.join()


def nothing(rank):
    pass


def spawn_join(context):
    def four():
        multiprocessing.spawn(nothing, nprocs=4)

    tell("torch_spawn_join_4", median_seconds(four, SPAWNS, 1) * 1e3, "ms")


def main():
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    for part in (handle_round_trip, handles_one_way, spawn_join):
        part(context)


if __name__ == "__main__":
    main()
