"""A program as users write it, for mypy --strict. It is not run."""

import asyncio

import shoal
import shoal.multiprocessing as mp
from shoal import world
from shoal.multiprocessing.queues import Queue


def work(tasks: "Queue[int]", results: "Queue[tuple[int, float]]") -> None:
    while (task := tasks.get(timeout=5.0)) >= 0:
        results.put((task, task * 0.5))


def square(x: int) -> int:
    return x * x


def show(event: dict[str, object]) -> bool:
    return event["event"] != "epoch"


async def wait_for(queue: "Queue[int]") -> int:
    return await queue.get_async()


def main() -> None:
    mp.set_start_method("spawn", force=True)
    tasks: "Queue[int]" = mp.Queue()
    results: "Queue[tuple[int, float]]" = mp.Queue(maxsize=10)
    children: list[mp.Process] = [mp.Process(target=work, args=(tasks, results), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    tasks.put(3)
    number, half = results.get()
    total: float = number + half
    for child in children:
        child.join(1.0)
        code: int | None = child.exitcode
        print(code, child.pid, child.name)

    ctx = mp.get_context("fork")
    lock = ctx.Lock()
    with lock:
        died: bool = lock.owner_died
    event, barrier = ctx.Event(), ctx.Barrier(2, timeout=1.0)
    event.set()
    print(event.wait(0.1), barrier.n_waiting, died, total, asyncio.run(wait_for(tasks)))
    receiver, sender = mp.Pipe(duplex=False)
    sender.send("text")
    text: str = receiver.recv()
    with ctx.Pool(2) as pool:
        squares: list[int] = pool.map(square, range(10))
    print(text, squares)

    array = shoal.zeros((2, 3), dtype="f4")
    rows: int = array.shape[0]
    print(rows, shoal.from_numpy(array).sum(), shoal.empty_like(array, dtype=int), shoal.full(3, 1.5).mean())
    t = shoal.tensor([[1.0, 2.0]], dtype="f64", shared=True)
    shape: tuple[int, ...] = t.shape
    shoal.save("a.safetensors", {"t": t, "u": shoal.from_dlpack(t)}, {"by": "me"})
    weights = shoal.load("a.safetensors", framework="torch")
    done = shoal.train("hogwild", workers=2, epochs=1, progress=show, save="m.safetensors")
    curve: list[float] = [epoch["test_loss"] for epoch in done.epochs]
    print(shape, weights, curve, done.test_accuracy, done.weights)
    for process in world.ps():
        print(process.pid, process.state, world.audit().blocks)
    raise shoal.Closed("done")


if __name__ == "__main__":
    main()
