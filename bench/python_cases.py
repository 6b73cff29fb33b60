"""The same work with shoal.multiprocessing, Python's multiprocessing or torch.multiprocessing, for bench/compare python.

usage: python_cases.py MODULE CASE

Checks the answers first, then measures a number of short rounds and prints the median as one JSON line. Children are
forked, except in spawn_4. SHOAL_DATA names the folder of MNIST for the case loader.
"""
import importlib
import itertools
import json
import os
import statistics
import sys
import time

from rounds import median_seconds

ROUNDS = 11
NOTHING = "nothing"  # stands for the end: None is a value that travels


def warm_seconds(work, count, rounds=ROUNDS):
    """Runs work once to warm up, then measures it."""
    work()
    return median_seconds(work, rounds, count)


def require(condition, what):
    if not condition:
        sys.exit(f"a wrong answer: {what}")


class Echo:
    """A process that does something with each message and sends a message back."""

    def __init__(self, mp, answer):
        self.there, self.back = mp.Queue(), mp.Queue()
        self.child = mp.Process(target=self.serve, args=(answer,))
        self.child.start()

    def serve(self, answer):
        while True:
            message = self.there.get()
            if isinstance(message, str):
                break
            self.back.put(answer(message))

    def ask(self, message):
        self.there.put(message)
        return self.back.get()

    def end(self):
        self.there.put(NOTHING)
        self.child.join()
        require(self.child.exitcode == 0, "the child failed")


def add_one_once(tensor):
    """Changes a tensor that was not changed before, so that the timed messages cost only their transport."""
    if tensor.numel() == 17:
        tensor.add_(1)
    return tensor


def torch_tensor(mp):
    """A shared tensor there and back through two queues."""
    import torch

    torch.set_num_threads(1)
    echo = Echo(mp, add_one_once)
    check = torch.zeros(17).share_memory_()
    require(bool((echo.ask(check) == 1).all() and (check == 1).all()), "the child's write is not in the parent's tensor")
    tensor = torch.zeros(16).share_memory_()

    def trips():
        for _ in range(100):
            echo.ask(tensor)

    value = warm_seconds(trips, 100) * 1e6
    echo.end()
    return value, "us"


def tensor_sum(tensors):
    return sum(float(tensor.sum()) for tensor in tensors.values()) if "check" in tensors else len(tensors)


def torch_dict(mp):
    """A dict of 20 small tensors there and its length back; new tensors in each message."""
    import torch

    torch.set_num_threads(1)
    echo = Echo(mp, tensor_sum)
    check = {f"layer{i}": torch.full((16,), float(i)) for i in range(19)}
    check["check"] = torch.ones(16)
    require(echo.ask(check) == 16 * (sum(range(19)) + 1), "the sum of the tensors")
    seconds = []
    for _ in range(ROUNDS):
        messages = [{f"layer{i}": torch.full((16,), float(i)) for i in range(20)} for _ in range(10)]
        begun = time.perf_counter()
        for message in messages:
            require(echo.ask(message) == 20, "the number of tensors")
        seconds.append((time.perf_counter() - begun) / len(messages))
    echo.end()
    return statistics.median(seconds) * 1e6, "us"


def ends_of(array):
    return int(array[0]) + int(array[-1])


def numpy_array(mp):
    """A numpy array of 1 MiB there, by value, and an int back."""
    import numpy

    echo = Echo(mp, ends_of)
    array = numpy.zeros(1 << 20, numpy.uint8)
    for i in range(5):
        array[0], array[-1] = i, 2 * i
        require(echo.ask(array) == 3 * i, "the elements of the array")

    def trips():
        for _ in range(50):
            echo.ask(array)

    value = warm_seconds(trips, 50) * 1e6
    echo.end()
    return value, "us"


INTS = 20000


def send_ints(queue, go):
    while go.get():
        for i in range(INTS):
            queue.put(i)


def ints(mp):
    """Small ints one way."""
    queue, go = mp.Queue(), mp.Queue()
    child = mp.Process(target=send_ints, args=(queue, go))
    child.start()
    go.put(True)
    require([queue.get() for _ in range(INTS)] == list(range(INTS)), "the order of the ints")

    def flow():
        go.put(True)
        get = queue.get
        for _ in itertools.repeat(None, INTS):
            get()

    value = 1 / warm_seconds(flow, INTS, 7)
    go.put(False)
    child.join()
    return value, "1/s"


PAIRS = 100000


def add_under_lock(lock, number):
    for _ in range(1000):
        with lock:
            number[0] += 1


def check_lock(mp):
    lock, number = mp.Lock(), mp.RawArray("q", 1)
    children = [mp.Process(target=add_under_lock, args=(lock, number)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    require(number[0] == 2000, "the sum that two processes counted under the lock")
    return lock


def lock_pair(mp):
    """acquire and release of a lock that nobody else wants."""
    lock = check_lock(mp)

    def pairs():
        for _ in itertools.repeat(None, PAIRS):
            lock.acquire()
            lock.release()

    return warm_seconds(pairs, PAIRS) * 1e9, "ns"


def lock_with(mp):
    """`with lock:` of a lock that nobody else wants."""
    lock = check_lock(mp)

    def pairs():
        for _ in itertools.repeat(None, PAIRS):
            with lock:
                pass

    return warm_seconds(pairs, PAIRS) * 1e9, "ns"


MEETINGS = 200


def meet(barrier, rounds, seen):
    last = 0
    for _ in range(rounds):
        last += barrier.wait() == 0
    seen.put(last)


def barrier(mp):
    """A barrier of two processes."""
    both, seen = mp.Barrier(2), mp.Queue()
    count = MEETINGS * (ROUNDS + 1)
    child = mp.Process(target=meet, args=(both, count, seen))
    child.start()
    first = [0]

    def meetings():
        first[0] += sum(both.wait() == 0 for _ in range(MEETINGS))

    value = warm_seconds(meetings, MEETINGS) * 1e6
    require(first[0] + seen.get() == count, "one party of each meeting is told 0")
    child.join()
    return value, "us"


TASKS = 10000


def negate(number):
    return -number


def pool_map(mp):
    """Pool.map of 10,000 small tasks with chunksize 1, 2 workers."""
    numbers = list(range(TASKS))
    with mp.Pool(2) as pool:
        def tasks():
            require(pool.map(negate, numbers, chunksize=1) == [-n for n in numbers], "the results of the tasks")

        return warm_seconds(tasks, 1, 5) * 1e3, "ms"


def read_mnist(torch):
    import gzip

    import numpy

    def read(name, skip):
        with gzip.open(os.path.join(os.environ["SHOAL_DATA"], name)) as file:
            return torch.from_numpy(numpy.frombuffer(file.read(), numpy.uint8, offset=skip).copy())

    images = read("t10k-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float().div_(255)
    return images, read("t10k-labels-idx1-ubyte.gz", 8).long()


def loader(mp):
    """Batches of 64 from a DataLoader over a TensorDataset of MNIST's 10,000 test images, 2 workers."""
    import torch

    torch.set_num_threads(1)
    images, labels = read_mnist(torch)
    dataset = torch.utils.data.TensorDataset(images, labels)
    batches = torch.utils.data.DataLoader(dataset, batch_size=64, num_workers=2, persistent_workers=True,
                                          multiprocessing_context=mp)
    found = list(batches)
    require(torch.equal(torch.cat([x for x, _ in found]), images), "the images of the batches")
    require(torch.equal(torch.cat([y for _, y in found]), labels), "the labels of the batches")
    del found
    rates = []
    for _ in range(7):
        begun, count = None, 0
        for _ in batches:
            if begun is None:
                begun = time.perf_counter()  # by now the workers have work
            count += 1
        rates.append((count - 1) / (time.perf_counter() - begun))
    return statistics.median(rates), "1/s"


# ---- round trips, on idle cores and with a busy loop on each core ----

def answer_pipe(there, back):
    while (message := there.recv()) != NOTHING:
        back.send(message)


def answer_queue(there, back):
    while (message := there.get()) != NOTHING:
        back.put(message)


def burn():
    while True:
        pass


class BusyCores:
    """Keeps each core of this process busy, with a process that has the same priority."""

    def __enter__(self):
        from multiprocessing import get_context

        self.loops = [get_context("fork").Process(target=burn) for _ in os.sched_getaffinity(0)]
        for loop in self.loops:
            loop.start()

    def __exit__(self, *_):
        for loop in self.loops:
            loop.kill()
            loop.join()


def trips(mp, kind, children):
    """A number of ints to each of the children and back; all are sent before the first is received."""
    links, started = [], []
    for _ in range(children):
        if kind == "Pipe":
            ours, theirs = mp.Pipe()
            links.append((ours.send, ours.recv))
            started.append(mp.Process(target=answer_pipe, args=(theirs, theirs)))
        else:
            there, back = getattr(mp, kind)(), getattr(mp, kind)()
            links.append((there.put, back.get))
            started.append(mp.Process(target=answer_queue, args=(there, back)))
        started[-1].start()

    def go(message):
        for send, _ in links:
            send(message)
        return [receive() for _, receive in links]

    require([go(i) for i in range(300)] == [[i] * children for i in range(300)], "the answers")
    end, count, begun = time.perf_counter() + 1.5, 0, time.perf_counter()
    while time.perf_counter() < end:  # the mean: a median would hide the time slices of others
        for _ in range(20):
            go(1)
        count += 20
    value = (time.perf_counter() - begun) / count * 1e6
    for send, _ in links:
        send(NOTHING)
    for child in started:
        child.join()
    return value, "us"


def trip_case(name, kind, children, busy):
    def case(mp):
        if not busy:
            return trips(mp, kind, children)
        with BusyCores():
            return trips(mp, kind, children)

    case.__name__ = name
    return case


TRIPS = [trip_case(f"{name}_trip{'' if children == 1 else f'_{children}'}{'_busy' if busy else ''}", kind, children, busy)
         for name, kind, children in (("pipe", "Pipe", 1), ("queue", "Queue", 1), ("simple", "SimpleQueue", 1), ("pipe", "Pipe", 8))
         for busy in (False, True)]


# ---- plain containers ----

def container_case(name, make):
    def case(mp):
        """Puts a container into a queue and takes it again, in one process."""
        queue, message = mp.Queue(), make()
        queue.put(message)
        require(queue.get() == message, "the container")
        repeats = max(5, 20000 // len(message))

        def there_and_back():
            for _ in range(repeats):
                queue.put(message)
                queue.get()

        return warm_seconds(there_and_back, repeats) * 1e6, "us"

    case.__name__ = name
    return case


CONTAINERS = [container_case(f"{kind}_{size}", make) for size in (10, 100, 1000, 10000) for kind, make in (
    ("dict", lambda size=size: {f"key{i}": i for i in range(size)}), ("list", lambda size=size: list(range(size))))]


# ---- Gymnasium ----

def vector_case(name, count, shared):
    def case(mp):
        """Steps of a vector of CartPole environments, each in a process, of Gymnasium from PyPI."""
        import gymnasium
        from gymnasium.vector import async_vector_env

        async_vector_env.multiprocessing = sys.modules[mp.__module__.rpartition(".")[0]]  # its import changed, nothing else
        envs = async_vector_env.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count, shared_memory=shared, context="fork")
        envs.reset(seed=1)
        actions = envs.action_space.sample()

        def steps():
            for _ in range(100):
                require(envs.step(actions)[0].shape == (count, 4), "the observations")

        value = 1 / warm_seconds(steps, 100)
        envs.close()
        return value, "1/s"

    case.__name__ = name
    return case


VECTORS = [vector_case(f"gym_{count}{'_shared' if shared else ''}", count, shared) for count in (2, 4, 8) for shared in (False, True)]


def nothing():
    pass


def spawn_4(mp):
    """Starts and joins 4 processes by spawn."""
    mp = mp.get_context("spawn")

    def four():
        children = [mp.Process(target=nothing) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            require(child.exitcode == 0, "a child failed")

    return warm_seconds(four, 1) * 1e3, "ms"


CASES = {case.__name__: case for case in (
    torch_tensor, numpy_array, ints, torch_dict, lock_pair, lock_with, barrier, pool_map, loader, spawn_4, *TRIPS, *CONTAINERS,
    *VECTORS)}


def main():
    module, case = sys.argv[1:]
    value, unit = CASES[case](importlib.import_module(module).get_context("fork"))
    print(json.dumps({"name": f"{module}.{case}", "value": value, "unit": unit}), flush=True)


if __name__ == "__main__":
    main()
