"""A C program and a Python process exchange values, tensors and a lock through queues.

usage: c_and_python.py PATH_OF_C_WORKER    (build/examples/c_worker)
"""
import sys

import shoal
import shoal.multiprocessing as mp
from shoal.program import Program

TIMES = 10000


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    there, back, lock = mp.Queue(), mp.Queue(), mp.Lock()
    worker = Program(sys.argv[1:2], {"there": there, "back": back})

    there.put({"do": "sum", "numbers": [1, 2, 3.5]})
    print("the sum is", back.get()["result"])

    tensor = shoal.tensor([[1.0, 2.0], [3.0, 4.0]])
    there.put({"do": "double", "tensor": tensor})
    print("C doubled", int(back.get()["result"]), "elements in place:", tensor.tolist())

    counter = shoal.tensor([0])
    there.put({"do": "count", "times": TIMES, "lock": lock, "counter": counter})
    elements = memoryview(counter)
    for _ in range(TIMES):
        with lock:
            elements[0] += 1
    back.get()
    print("both together counted to", elements[0])

    there.put(None)
    if worker.join() != 0:
        sys.exit("the worker failed")


if __name__ == "__main__":
    main()
