"""torch's memory keeps its meaning: what torch or Shoal has shared never moves, whichever queue carries it.

The numbers Y1 to Y13 are those of the faults that these tests found. torch_share_test.py has the rows of BEHAVIOUR.
"""
import gc
import os
import subprocess
import sys
import textwrap
import unittest
import warnings

try:
    import numpy
    import torch
except ImportError:
    sys.exit(77)

import shoal
import shoal.multiprocessing as mp
import shoal.torch as shoal_torch
from shoal import _shoal

SECONDS = 300
METHODS = ("fork", "spawn", "forkserver")


def run_program(text, **environment):
    """Runs a program in a process of its own. Returns its output; what it writes to stderr fails the test."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, **environment})
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{done.returncode}: {done.stderr}")
    return done.stdout


def same_memory(a, b):
    """Returns whether a write through one is seen through the other."""
    first = (0,) * a.dim()
    before = a[first].item()
    with torch.no_grad():
        a[first] += 1
        same = b[first].item() == before + 1
        a[first] -= 1
    return same


# ---- the child ----

def add_one(tensors):
    with torch.no_grad():
        for tensor in tensors:
            tensor += 1
    return [tensor.flatten()[0].item() for tensor in tensors]


def echo(obj):
    return obj


def addresses(tensors):
    return [tensor.data_ptr() for tensor in tensors]


def serve(mine, inbox, outbox):
    """Runs what it is asked to. "mine" stands for the tensors that the process was started with."""
    while (message := inbox.get()) is not None:
        name, args = message
        outbox.put(globals()[name](mine if args == "mine" else args))
        del message, args


class Child:
    def __init__(self, context, mine):
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(mine, self.inbox, self.outbox))
        self.process.start()

    def call(self, name, args):
        self.inbox.put((name, args))
        return self.outbox.get(timeout=SECONDS)

    def end(self):
        self.inbox.put(None)
        self.process.join(SECONDS)
        assert self.process.exitcode == 0, self.process.exitcode


def by_share_memory(tensor):
    return tensor.share_memory_()


def by_fd(tensor):
    """As torch's own queues do."""
    shoal_torch._untyped(tensor)._share_fd_cpu_()
    return tensor


def by_file(tensor):
    shoal_torch._untyped(tensor)._share_filename_cpu_()
    return tensor


WAYS = (by_share_memory, by_fd, by_file)


class SharedByTorch(unittest.TestCase):
    """A put, in whichever process, moves nothing that is shared already."""

    def setUp(self):
        self.parameters = [torch.nn.Parameter(way(torch.zeros(3))) for way in WAYS]
        self.arrays = [parameter.detach().numpy() for parameter in self.parameters]

    def check(self, context, values):
        """All processes have the same memory, which has this value, and so have the arrays."""
        self.assertEqual([array[0] for array in self.arrays], values)
        self.assertEqual([parameter[0].item() for parameter in self.parameters], values)

    def test_y1_y4_a_checkpoint_while_workers_train(self):
        for method in METHODS:
            with self.subTest(method=method):
                self.checkpoint(mp.get_context(method))

    def checkpoint(self, context):
        self.setUp()
        where = addresses(self.parameters)
        one, two = Child(context, self.parameters), Child(context, self.parameters)
        self.assertEqual(one.call("add_one", "mine"), [1] * 3)
        self.check(context, [1] * 3)
        states = context.Queue()
        states.put(dict(enumerate(parameter.detach() for parameter in self.parameters)))  # by the parent
        for way, (here, got) in zip(WAYS, zip(self.parameters, states.get(timeout=SECONDS).values())):
            self.assertTrue(same_memory(got, here), way)
        self.assertEqual(two.call("add_one", "mine"), [2] * 3)
        self.check(context, [2] * 3)
        for way, here, got in zip(WAYS, self.parameters, two.call("echo", "mine")):  # by a worker
            self.assertTrue(same_memory(got, here), way)
        self.assertEqual(one.call("add_one", self.parameters), [3] * 3)
        self.assertEqual(two.call("add_one", "mine"), [4] * 3)
        self.assertEqual(one.call("add_one", "mine"), [5] * 3)
        self.check(context, [5] * 3)
        self.assertEqual(addresses(self.parameters), where)
        one.end()
        two.end()

    def test_a_message_whose_sender_has_ended(self):
        """Memory in the heap needs no sender. Memory of torch's needs some process that has it."""
        context = mp.get_context("fork")
        queue = context.Queue()

        def send():
            queue.put(self.parameters)
            queue.put(by_share_memory(torch.ones(3)))
            queue.put(torch.ones(3))
            queue.put(by_fd(torch.ones(3)))
            os._exit(0)

        child = context.Process(target=send)
        child.start()
        child.join(SECONDS)
        for way, here, got in zip(WAYS, self.parameters, queue.get(timeout=SECONDS)):
            self.assertTrue(same_memory(got, here), way)
        self.assertEqual([queue.get(timeout=SECONDS).sum().item() for _ in range(2)], [3, 3])
        with self.assertRaisesRegex(RuntimeError, "has ended"):
            queue.get(timeout=SECONDS)

    def test_the_receiver_gets_the_storage_that_it_has(self):
        queue = mp.Queue()
        for way, parameter in zip(WAYS, self.parameters):
            queue.put((parameter, parameter.detach()[1:], shoal_torch._untyped(parameter)))
            got, part, storage = queue.get(timeout=SECONDS)
            identity = shoal_torch._untyped(parameter)._cdata
            self.assertEqual([shoal_torch._untyped(got)._cdata, shoal_torch._untyped(part)._cdata, storage._cdata],
                             [identity] * 3, way)
            self.assertIs(type(got), torch.nn.Parameter)

    def test_y1_without_an_array(self):
        """Making an array changes a storage, and must not be what protects it."""
        for way in WAYS:
            tensor, queue = way(torch.zeros(3)), mp.Queue()
            where = tensor.data_ptr()
            queue.put(tensor)
            self.assertTrue(same_memory(queue.get(timeout=SECONDS), tensor), way)
            self.assertEqual(tensor.data_ptr(), where, way)

    def test_share_leaves_it(self):
        where = addresses(self.parameters)
        shoal.share(self.parameters)
        self.assertEqual(addresses(self.parameters), where)


class ShoalsOwn(unittest.TestCase):
    """Y3: memory that is in the heap already stays there."""

    def test_y3_arrays_and_tensors(self):
        for method in ("fork", "spawn"):
            array, slices, matrix = shoal.zeros(3), shoal.zeros(6, "f4"), shoal.zeros((2, 3))
            first, second, third = (shoal.tensor([0., 0, 0]) for _ in range(3))
            tensors = [torch.from_numpy(array), torch.from_numpy(slices[2:5]), torch.from_numpy(matrix.T)[1:],
                       torch.frombuffer(array, dtype=torch.float64)[1:], first.torch(), torch.from_dlpack(second)]
            where = addresses(tensors)
            child = Child(mp.get_context(method), tensors)
            child.call("add_one", "mine")
            child.call("add_one", tensors)
            self.assertEqual(array.tolist(), [2, 4, 4], method)
            self.assertEqual(slices.tolist(), [0, 0, 2, 2, 2, 0], method)
            self.assertEqual(matrix.tolist(), [[0, 2, 2], [0, 2, 2]], method)
            self.assertEqual([first.tolist(), second.tolist(), third.tolist()], [[2, 2, 2], [2, 2, 2], [0, 0, 0]], method)
            self.assertEqual(addresses(tensors), where)
            self.assertTrue(all(tensor.is_shared() for tensor in tensors))
            for tensor, back in zip(tensors, child.call("echo", tensors)):
                self.assertTrue(same_memory(tensor, back))
            child.end()

    def test_y3_a_storage_that_is_a_part_of_a_block(self):
        array = shoal.zeros(6, "f4")
        tensor = torch.from_numpy(array[2:5])
        queue = mp.Queue()
        queue.put(shoal_torch._untyped(tensor))
        storage = queue.get(timeout=SECONDS)
        self.assertEqual(storage.nbytes(), 12)
        shoal_torch._bytes_of(storage).view(torch.float32).fill_(7)
        self.assertEqual(array.tolist(), [0, 0, 7, 7, 7, 0])

    def test_what_came_by_value_is_private(self):
        queue = mp.Queue()
        queue.put(numpy.zeros(100_000))
        array = queue.get(timeout=SECONDS)  # in a block of its own, by value
        tensor = torch.from_numpy(array)
        queue.put(tensor)
        queue.get(timeout=SECONDS).fill_(1)
        self.assertEqual((tensor[0].item(), array[0]), (1, 0))


def torch_child(inbox, outbox, own_world=False):
    """Uses torch's own queues only."""
    if own_world:
        shoal.world.create("own")
    while True:
        try:
            tensors = inbox.get()
        except RuntimeError as error:
            outbox.put(f"{error}")
            continue
        if tensors is None:
            return
        add_one(tensors)
        outbox.put(tensors)
        del tensors


class ThroughTorch(unittest.TestCase):
    """Y5: torch.multiprocessing carries what is in the heap as the same memory."""

    def test_y5_same_memory(self):
        for method in METHODS:
            with self.subTest(method=method):
                self.through(torch.multiprocessing.get_context(method))

    def through(self, context, queue_type="Queue"):
        inbox, outbox = context.Queue(), context.Queue()
        child = context.Process(target=torch_child, args=(inbox, outbox))
        child.start()
        base = shoal_torch.adopt(torch.zeros(12))
        tensors = [base[4:8], torch.nn.Parameter(base), torch.zeros(3).share_memory_(), torch.zeros(2)]
        where = addresses(tensors[:3])
        for turn in range(1, 4):
            inbox.put(tensors)
            back = outbox.get(timeout=SECONDS)
            self.assertEqual([tensor[-1].item() for tensor in tensors], [2 * turn, turn, turn, turn])
            for here, there in zip(tensors[:3], back):
                self.assertTrue(same_memory(here, there))
                self.assertEqual(shoal_torch._untyped(here)._cdata, shoal_torch._untyped(there)._cdata)
            del back
        self.assertEqual(addresses(tensors[:3]), where)
        inbox.put(None)
        child.join(SECONDS)
        self.assertEqual(child.exitcode, 0)

    def test_y5_as_arguments(self):
        tensor = shoal_torch.adopt(torch.zeros(3))
        for method in ("fork", "spawn"):
            child = torch.multiprocessing.get_context(method).Process(target=add_one, args=([tensor],))
            child.start()
            child.join(SECONDS)
            self.assertEqual(child.exitcode, 0)
        self.assertEqual(tensor.tolist(), [2, 2, 2])

    def test_y5_another_world_is_refused(self):
        context = torch.multiprocessing.get_context("spawn")
        inbox, outbox = context.Queue(), context.Queue()
        child = context.Process(target=torch_child, args=(inbox, outbox, True))
        child.start()
        inbox.put([shoal_torch.adopt(torch.zeros(3))])
        self.assertRegex(outbox.get(timeout=SECONDS), "another world")
        inbox.put([torch.zeros(3)])
        self.assertEqual(outbox.get(timeout=SECONDS)[0].tolist(), [1, 1, 1])
        inbox.put(None)
        child.join(SECONDS)

    def test_a_sender_that_has_ended(self):
        context = torch.multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(shoal_torch.adopt(torch.ones(3))))
        child.start()
        child.join(SECONDS)
        with self.assertRaisesRegex(RuntimeError, "has ended"):
            queue.get()

    def test_blocks_go(self):
        """What was received keeps nothing in the sender."""
        gc.collect()
        before = shoal.world.info().blocks_live
        self.through(torch.multiprocessing.get_context("fork"))
        gc.collect()
        shoal.world.sweep()
        self.assertLessEqual(shoal.world.info().blocks_live, before + 1)  # the proof of the world


class Grads(unittest.TestCase):
    """Y2: a grad that exists is shared, with one warning; share_grads(False) leaves it out, as torch does."""

    def tearDown(self):
        mp.share_grads(True)

    def through(self, tensor):
        queue = mp.Queue()
        queue.put([tensor])
        return queue.get(timeout=SECONDS)[0]

    def test_y2_shared_with_a_warning(self):
        output = run_program("""
            import torch, warnings
            import shoal.multiprocessing as mp
            parameter = torch.nn.Parameter(torch.zeros(2))
            queue = mp.Queue()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                queue.put(parameter)
                assert not told
                parameter.grad = torch.ones(2)
                for _ in range(3):
                    queue.put(parameter)
            assert queue.get().grad is None
            for _ in range(3):
                queue.get().grad.add_(1)
            print(parameter.grad.tolist(), [str(w.message) for w in told if "share_grads" in str(w.message)].__len__())
        """)
        self.assertEqual(output, "[4.0, 4.0] 1\n")

    def test_y2_left_out(self):
        mp.share_grads(False)
        for tensor in (torch.nn.Parameter(torch.zeros(2)), torch.zeros(2, requires_grad=True).share_memory_(),
                       torch.zeros(2).as_subclass(Sub).requires_grad_()):
            tensor.grad, tensor.note = torch.ones(2), 1
            got = self.through(tensor)
            self.assertIsNone(got.grad)
            self.assertTrue(got.requires_grad and same_memory(got, tensor))
            self.assertIsNotNone(tensor.grad)
        child = Child(mp.get_context("spawn"), [])
        self.assertIs(child.call("echo", tensor).grad, None)
        self.assertFalse(child.call("grads_are_shared", None))
        child.end()


def grads_are_shared(_):
    return shoal_torch.shares_grads()


class Sub(torch.Tensor):
    pass


class Memory(unittest.TestCase):
    def test_y8_private_memory_is_given_back(self):
        """64 MiB of numpy's memory exist once after the move."""
        private, moved = map(int, run_program("""
            import numpy, torch, shoal.multiprocessing as mp
            def private():
                with open("/proc/self/status") as file:
                    return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
            queue = mp.Queue()
            queue.put(torch.zeros(3))
            before = private()
            tensors = [torch.from_numpy(numpy.ones((1024, 1024), "f4")) for _ in range(16)]
            made = private() - before
            queue.put(tensors)
            queue.get()
            assert sum(t.sum().item() for t in tensors) == 16 * 1024 * 1024
            print(made, private() - before)
        """).split())
        self.assertGreater(private, 60 * 1024)
        self.assertLess(moved, 8 * 1024)

    def test_y8_y9_two_thousand_shared_tensors(self):
        """After share_memory_(), they need neither fds nor memory twice, whichever is imported first."""
        for imports in ("import torch, shoal.multiprocessing as mp", "import shoal.multiprocessing as mp, torch"):
            output = run_program(f"""
                import resource
                {imports}
                resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
                tensors = [torch.full((10,), float(i)).share_memory_() for i in range(2000)]
                module = torch.nn.Linear(4, 4).share_memory()
                where = [t.data_ptr() for t in tensors]
                def work():
                    for t in tensors:
                        t += 1
                    queue.put([module, *tensors])
                context = mp.get_context("fork")
                queue = context.Queue()
                process = context.Process(target=work)
                process.start()
                process.join()
                got, *rest = queue.get()
                assert got.weight.data_ptr() == module.weight.data_ptr()
                assert [t.data_ptr() for t in rest] == where == [t.data_ptr() for t in tensors]
                print(sum(t[3].item() for t in tensors))
            """)
            self.assertEqual(output, f"{sum(range(2001))}.0\n")

    def test_y9_share_takes_what_people_give_it(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        self.assertIs(shoal.share(model), model)
        self.assertIs(shoal.share(optimizer), optimizer)
        self.assertTrue(all(shoal.is_shared(t) for t in model.state_dict().values()))
        states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        self.assertTrue(states and all(shoal.is_shared(t) for t in states))
        optimizer.step()
        state = {"model": torch.nn.Linear(2, 2).state_dict(), "epoch": 3, "name": "x", "list": [torch.ones(2), None],
                 "array": numpy.ones(3), "pair": (numpy.ones(2), torch.eye(3).to_sparse()), "t": shoal.tensor([1.0])}
        state["self"] = state
        self.assertIs(shoal.share(state), state)
        self.assertTrue(shoal.is_shared(state["model"]["weight"]) and shoal.is_shared(state["list"][0]))
        self.assertTrue(all(shoal.is_shared(x) for x in (state["array"], *state["pair"], state["t"])))
        self.assertEqual((state["epoch"], state["name"], state["list"][1]), (3, "x", None))
        self.assertTrue(shoal.is_shared(shoal.share((torch.ones(2), 5))[0]))
        for wrong, place in (({"a": [1, {"b": object()}]}, r"x\['a'\]\[1\]\['b'\], an object"), (len, "x, a builtin"),
                             ([torch.ones(2, device="meta")], r"x\[0\]")):
            with self.assertRaisesRegex(TypeError, place):
                shoal.share(wrong)


class Strategies(unittest.TestCase):
    def test_torch_has_the_same_strategy(self):
        """Set before torch is imported, after it, or in torch."""
        output = run_program("""
            import shoal.multiprocessing as mp
            mp.set_sharing_strategy("file_system")
            import torch.multiprocessing as theirs
            print(theirs.get_sharing_strategy(), mp.get_sharing_strategy())
            mp.set_sharing_strategy("file_descriptor")
            print(theirs.get_sharing_strategy(), mp.get_sharing_strategy())
            theirs.set_sharing_strategy("file_system")
            print(theirs.get_sharing_strategy(), mp.get_sharing_strategy())
        """)
        self.assertEqual(output.split(), ["file_system"] * 2 + ["file_descriptor"] * 2 + ["file_system"] * 2)


class WithoutGlue(unittest.TestCase):
    """Y13: then torch moves private memory, and everything is right, with an fd for each storage."""

    def test_y13_views_follow(self):
        for method in ("fork", "spawn"):
            output = run_program(f"""
                import sys, warnings
                sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
                import torch, shoal
                from torch_meaning_test import *
                if __name__ == "__main__":
                    with warnings.catch_warnings(record=True) as told:
                        warnings.simplefilter("always")
                        base, array = torch.arange(6.), shoal.zeros(3)
                        part, whole, over = base[2:4], torch.nn.Parameter(base), torch.from_numpy(array)
                        shared = by_fd(torch.zeros(2))
                        child = Child(mp.get_context({method!r}), [])
                        child.call("add_one", [part, over, shared])
                        child.call("add_one", [part, over, shared])
                        print(base.tolist(), whole.tolist() == base.tolist(), array.tolist(), shared.tolist())
                        for tensor, back in zip([part, over, shared], child.call("echo", [part, over, shared])):
                            assert same_memory(tensor, back)
                        child.end()
                    print(sum("not available" in str(w.message) for w in told))
            """, SHOAL_TORCH_GLUE="off", PYTHONWARNINGS="ignore")
            self.assertEqual(output, "[0.0, 1.0, 4.0, 5.0, 4.0, 5.0] True [2.0, 2.0, 2.0] [2.0, 2.0]\n1\n")


if __name__ == "__main__":
    mp.set_forkserver_preload(["torch"])
    unittest.main()
