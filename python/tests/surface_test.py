"""The names of multiprocessing and of torch.multiprocessing that programs import from ours."""
import importlib
import inspect
import multiprocessing
import pkgutil
import threading
import types
import unittest

import shoal
import shoal.multiprocessing as mp
import shoal.multiprocessing.pool as mpp
from support import for_each_method, OneMethod

try:
    import torch.multiprocessing
except ImportError:
    torch = None

#: Public names that programs find in a module by accident or that are about its inside.
NOT_HERE = {"torch.multiprocessing.pool.clean_worker"}


def submodules(package):
    """Returns the names of a package's submodules that can be imported on this system, with those of its folders."""
    names = []
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(found.name)
        except ImportError:  # popen_spawn_win32
            continue
        names.append(found.name.removeprefix(package.__name__ + "."))
    return names


def public_names(module):
    """Returns the names that a module says are public, or those that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]


class Names(unittest.TestCase):
    def check(self, theirs):
        names = submodules(theirs)
        self.assertGreaterEqual(len(names), 5)
        for name in names:
            with self.subTest(module=f"{theirs.__name__}.{name}"):
                ours = importlib.import_module(f"shoal.multiprocessing.{name}")
                module = importlib.import_module(f"{theirs.__name__}.{name}")
                missing = [each for each in public_names(module)
                           if not hasattr(ours, each) and f"{module.__name__}.{each}" not in NOT_HERE]
                self.assertEqual(missing, [])
                if "." not in name:
                    self.assertIs(getattr(mp, name), ours)
        self.assertEqual([name for name in public_names(theirs) if not hasattr(mp, name)], [])
        values = [name for name, value in vars(theirs).items() if not name.startswith("_") and not isinstance(value, types.ModuleType)]
        self.assertEqual([name for name in values if not hasattr(mp, name)], [])

    def test_y12_every_module_and_name_of_the_standard_library_is_here(self):
        self.check(multiprocessing)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_y12_every_module_and_name_of_torch_is_here(self):
        self.check(torch.multiprocessing)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_y15_functions_take_the_arguments_of_torch(self):
        theirs = torch.multiprocessing
        pairs = [(theirs.spawn, mp.spawn), (theirs.start_processes, mp.start_processes),
                 (theirs.ProcessContext.join, mp.ProcessContext.join), (theirs.ProcessRaisedException, mp.ProcessRaisedException),
                 (theirs.ProcessExitedException, mp.ProcessExitedException)]
        for function, ours in pairs:
            known = inspect.signature(ours).parameters
            for parameter in inspect.signature(function).parameters.values():
                with self.subTest(function=function, parameter=parameter.name):
                    self.assertIn(parameter.name, known)
                    self.assertEqual(known[parameter.name].default, parameter.default)

    def test_names_of_0_2_are_here(self):
        self.assertIs(shoal.card_memory, shoal.cuda_memory)  # its name in 0.2

    def test_y15_a_thread_has_a_name(self):
        def work():
            mp._set_thread_name("a name that is too long")
            names.append(mp._get_thread_name())
        names = []
        own = mp._get_thread_name()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(names, ["a name that is "])
        self.assertEqual(mp._get_thread_name(), own)


class Child(OneMethod):
    """What the modules of torch give works between processes."""

    def test_y12_queues_of_the_module_queue(self):
        from shoal.multiprocessing.queue import ConnectionWrapper, Queue, SimpleQueue
        queue, simple = Queue(2, ctx=self.ctx), SimpleQueue(ctx=self.ctx)
        receiver, sender = self.ctx.Pipe(duplex=False)
        process = self.ctx.Process(target=send_three, args=(queue, simple, ConnectionWrapper(sender)))
        process.start()
        self.assertEqual((queue.get(), simple.get(), ConnectionWrapper(receiver).recv()), (1, 2, 3))
        process.join()
        self.assertRaises(mp.queue.Empty, queue.get_nowait)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_y12_what_reductions_gives_can_be_sent(self):
        from multiprocessing.reduction import ForkingPickler  # torch 2.15 no longer has the name

        from shoal.multiprocessing.reductions import init_reductions, reduce_tensor
        init_reductions()
        ForkingPickler.register(Locked, reduce_locked)
        queue, back = self.ctx.Queue(), self.ctx.Queue()
        tensor = torch.arange(4.0)
        process = self.ctx.Process(target=rebuild, args=(queue, back))
        process.start()
        queue.put(reduce_tensor(tensor))
        queue.put(Locked())
        self.assertEqual((back.get(), back.get()), (6.0, "from Locked"))
        process.join()
        self.assertEqual(tensor[0], 7)


def send_three(queue, simple, connection):
    queue.put(1)
    simple.put(2)
    connection.send(3)


class Locked:
    """A class that pickle alone cannot send."""

    def __init__(self):
        self.lock = threading.Lock()


def reduce_locked(obj):
    return str, ("from Locked",)


def rebuild(queue, back):
    function, args = queue.get()
    tensor = function(*args)
    back.put(float(tensor.sum()))
    tensor[0] = 7
    back.put(queue.get())


for_each_method(Child, globals())


# ---- istarmap, as it is found on the web ----

def istarmap(self, func, iterable, chunksize=1):
    self._check_running()
    if chunksize < 1:
        raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
    task_batches = mpp.Pool._get_tasks(func, iterable, chunksize)
    result = mpp.IMapIterator(self)
    self._taskqueue.put((self._guarded_task_generation(result._job, mpp.starmapstar, task_batches), result._set_length))
    return (item for chunk in result for item in chunk)


def divide(a, b):
    return a / b


def pairs_then_error(count):
    for i in range(count):
        yield 2 * i, 2
    raise KeyError("the pairs have ended")


class Istarmap(unittest.TestCase):
    def test_y11_the_recipe_works(self):
        with mp.Pool(2) as pool:
            for chunksize in (1, 7):
                with self.subTest(chunksize=chunksize):
                    pairs = [(2 * i, 2) for i in range(1000)]
                    self.assertEqual(list(istarmap(pool, divide, pairs, chunksize)), list(range(1000)))
            self.assertEqual(list(istarmap(pool, divide, [])), [])
            pool.close()
            pool.join()
            self.assertRaises(ValueError, istarmap, pool, divide, [(1, 1)])

    def test_y11_errors_of_the_recipe_arrive(self):
        with mp.Pool(2) as pool:
            results = istarmap(pool, divide, [(4, 2), (1, 0), (9, 3)])
            self.assertEqual(next(results), 2)
            self.assertRaises(ZeroDivisionError, next, results)
            results = istarmap(pool, divide, pairs_then_error(3))
            self.assertEqual([next(results) for _ in range(3)], [0, 1, 2])
            self.assertRaises(KeyError, next, results)

    def test_y11_what_cannot_work_says_so(self):
        with mp.Pool(1) as pool:
            with self.assertRaisesRegex(NotImplementedError, "IMapIterator"):
                pool._taskqueue.put(([(1, 0, divide, (4, 2), {})], None))


if __name__ == "__main__":
    unittest.main()
