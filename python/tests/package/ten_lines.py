"""Ten lines for a package that was just installed: a child by each start method, a queue, a tensor, the audit."""
import shoal
import shoal.multiprocessing as mp


def double(tasks, results):
    t = tasks.get()
    memoryview(t)[0] *= 2
    results.put("doubled")


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        ctx = mp.get_context(method)
        tasks, results = ctx.Queue(), ctx.Queue()
        child = ctx.Process(target=double, args=(tasks, results))
        child.start()
        t = shoal.tensor([21, 1])
        tasks.put(t)
        assert results.get(timeout=60) == "doubled"
        child.join()
        print(method, t.tolist()[0], child.exitcode)
    del t, tasks, results, child
    shoal.world.audit()
