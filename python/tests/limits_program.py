"""10,000 torch tensors through a queue, held by the receiver: limits_tensors.py runs it with little room.

usage: limits_program.py shoal.multiprocessing|torch.multiprocessing [SECONDS]

Each get waits for at most SECONDS (10).
"""
import importlib
import sys

import torch

COUNT = 10000


def put_all(queue, done):
    for i in range(COUNT):
        queue.put(torch.full((16,), float(i)))
    done.wait()


def main():
    mp = importlib.import_module(sys.argv[1]).get_context("fork")
    torch.set_num_threads(1)
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    queue, done = mp.Queue(), mp.Event()
    child = mp.Process(target=put_all, args=(queue, done), daemon=True)
    child.start()
    tensors = [queue.get(timeout=seconds) for _ in range(COUNT)]
    done.set()
    child.join()
    total = sum(float(tensor[0]) for tensor in tensors)
    print(f"{len(tensors)} tensors, the sum of their first elements is {total:.0f}")


if __name__ == "__main__":
    main()
