"""torch tensors through queues and process arguments: the rows of BEHAVIOUR about sharing, with torch.

Importing torch takes over a second, so each start method has one child that does what it is asked, and the repetitions
of a row are messages to it.
"""
import copy
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import unittest

try:
    import torch
except ImportError:
    sys.exit(77)

import shoal.multiprocessing as mp
import shoal.torch as shoal_torch
import shoal.world
from shoal import _shoal

TURNS = 30
SECONDS = 300
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]


def storage_of(tensor):
    """What identifies the storage of a tensor in this process."""
    return shoal_torch._untyped(tensor)._cdata


def same_storage(*tensors):
    return len({storage_of(tensor) for tensor in tensors}) == 1


# ---- what the child can do ----

kept = []


def keep(*objects):
    kept.append(objects)
    return len(kept)


def forget():
    kept.clear()
    gc.collect()


def echo(obj):
    return obj


def add_to_both(tensor, view):
    """Writes through each and returns what the other shows."""
    tensor[1, 0] += 100
    view[1] += 10
    return same_storage(tensor, view), view[0].item(), tensor[1, 1].item()


def is_same_as_kept(tensor):
    (first,) = kept[-1]
    first += 1
    return same_storage(first, tensor), tensor[0].item()


def overlap(storage, whole, row, column):
    storage_bytes = shoal_torch._bytes_of(storage)
    whole[1, 2] = 99
    return (same_storage(storage_bytes, whole, row, column), row[2].item(), column[1].item(),
            storage_bytes.view(torch.float32).reshape(3, 4)[1, 2].item())


def add_to_grad(tensor):
    tensor.grad += 1
    return tensor.requires_grad, tensor.is_leaf


def make_grad(tensor):
    absent = tensor.grad is None
    (tensor * 3).sum().backward()
    return absent, tensor.requires_grad, tensor.grad.tolist()


def train(module):
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    optimiser.zero_grad()
    module(torch.ones(4, 3) * torch.arange(4.)[:, None]).square().sum().backward()
    optimiser.step()
    return [type(parameter) is torch.nn.Parameter and parameter.requires_grad for parameter in module.parameters()]


def add_one(state):
    for tensor in state.values():
        tensor += 1


def change_parts(sparse):
    parts = sparse._values() if sparse.layout == torch.sparse_coo else sparse.values()
    parts *= 2
    return sparse


def tied(module):
    with torch.no_grad():
        module.one.weight += 1
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.one.weight += 1
    return module.one.weight is module.two.weight, other.one.weight is other.two.weight


def sum_of_kept():
    return sum(tensor.sum().item() for (tensor,) in kept)


def serve(inbox, outbox):
    while (message := inbox.get()) is not None:
        name, args = message
        del message
        try:
            outbox.put((True, globals()[name](*args)))
        except Exception as error:
            outbox.put((False, f"{type(error).__name__}: {error}"))
        del args


def add_three(tensors, done):
    for tensor in tensors:
        tensor += 3
    done.put([tensor.is_shared() for tensor in tensors])


def forward(inbox, outbox):
    for _ in range(TURNS):
        outbox.put(("keep", (inbox.get(),)))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight


class Rows:
    """What holds for every start method."""

    method = ""

    @classmethod
    def setUpClass(cls):
        shoal_torch.load()
        gc.collect()
        cls.before = cls.counts()
        cls.context = mp.get_context(cls.method)
        cls.inbox, cls.outbox = cls.context.Queue(), cls.context.Queue()
        cls.child = cls.context.Process(target=serve, args=(cls.inbox, cls.outbox))
        cls.child.start()

    @classmethod
    def tearDownClass(cls):
        cls.inbox.put(None)
        cls.child.join(SECONDS)
        code = cls.child.exitcode
        del cls.inbox, cls.outbox, cls.child
        gc.collect()
        shoal.world.sweep()
        shoal.world.audit()
        if code != 0 or cls.counts() != cls.before:
            raise AssertionError(f"exit code {code}, (storages, blocks) {cls.before} before, {cls.counts()} after")

    @staticmethod
    def counts():
        return shoal_torch._glue.cached(), shoal.world.info().blocks_live

    def tearDown(self):
        self.call("forget")

    def call(self, name, *args):
        self.inbox.put((name, args))
        done, result = self.outbox.get(timeout=SECONDS)
        self.assertTrue(done, result)
        return result

    def test_b1_tensor_and_view(self):
        for _ in range(TURNS):
            tensor = torch.arange(12.).reshape(3, 4)
            view = tensor[1]
            self.assertEqual(self.call("add_to_both", tensor, view), (True, 104, 15))
            self.assertEqual((view[0].item(), tensor[1, 1].item()), (104, 15))

    def test_b2_same_storage_again(self):
        for _ in range(TURNS):
            tensor = torch.zeros(4)
            self.call("keep", tensor)
            self.assertEqual(self.call("is_same_as_kept", tensor), (True, 1))
            self.assertEqual(tensor[0].item(), 1)
            back = self.call("echo", tensor)
            self.assertTrue(same_storage(tensor, back))
            back[0] = 5
            self.assertEqual(tensor[0].item(), 5)

    def test_b3_storage_whole_row_column(self):
        for _ in range(TURNS):
            whole = torch.arange(12.).reshape(3, 4)
            row, column = whole[1], whole[:, 2]
            self.assertEqual(self.call("overlap", shoal_torch._untyped(whole), whole, row, column), (True, 99, 99, 99))
            self.assertEqual((row[2].item(), column[1].item()), (99, 99))

    def test_b4_shared_after_put_and_empty(self):
        for dtype in DTYPES * 3:
            tensor, empty = torch.ones(3, dtype=dtype), torch.empty((2, 0, 3), dtype=dtype)
            self.assertFalse(tensor.is_shared())
            self.assertTrue(empty.clone().share_memory_().is_shared())
            back, empty_back = self.call("echo", (tensor, empty))
            self.assertTrue(tensor.is_shared())
            self.assertTrue(torch.equal(back, tensor))
            self.assertEqual((empty_back.shape, empty_back.dtype), (empty.shape, dtype))

    def test_y14_an_empty_tensor_can_be_resized_after_a_put(self):
        buffer, parameter = torch.empty(0), torch.nn.Parameter(torch.empty(0, 2))
        storage = shoal_torch._untyped(torch.empty(0))
        got = self.call("echo", (buffer, buffer[:], parameter, storage))
        self.assertEqual([type(each) for each in got], [torch.Tensor, torch.Tensor, torch.nn.Parameter, type(storage)])
        self.assertTrue(got[2].requires_grad and got[2].shape == (0, 2))
        for tensor in (buffer, got[0]):
            self.assertEqual(torch.add(torch.ones(3), 1, out=tensor).tolist(), [2, 2, 2])  # this resizes it
        self.call("echo", buffer)
        self.assertTrue(buffer.is_shared())

    def test_b5_captured_by_a_process(self):
        tensors = [torch.full((5,), float(i)) for i in range(TURNS)]
        if self.method == "fork":  # what is not shared before a fork is a copy after it
            for tensor in tensors:
                tensor.share_memory_()
        done = self.context.Queue()
        child = self.context.Process(target=add_three, args=(tensors, done))
        child.start()
        self.assertEqual(done.get(timeout=SECONDS), [True] * TURNS)
        child.join(SECONDS)
        self.assertEqual(child.exitcode, 0)
        self.assertEqual([tensor[4].item() for tensor in tensors], [i + 3 for i in range(TURNS)])

    def test_b6_grads(self):
        for turn in range(TURNS):
            for tensor in (torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(3))):
                self.assertEqual(self.call("make_grad", tensor), (True, True, [3, 3, 3]))
                self.assertIsNone(tensor.grad)
                tensor.grad = torch.full((3,), float(turn))
                self.assertEqual(self.call("add_to_grad", tensor), (True, True))
                self.assertEqual(tensor.grad.tolist(), [turn + 1] * 3)
                back = self.call("echo", tensor)
                self.assertTrue(same_storage(back.grad, tensor.grad))
                self.assertIs(type(back), type(tensor))

    def test_b7_not_a_leaf(self):
        leaf = torch.ones(3, requires_grad=True)
        queue = self.context.Queue()
        for _ in range(TURNS):
            for obj in (leaf * 2, [leaf * 2], {"loss": leaf * 2}, (object(), leaf * 2), torch.utils.data.TensorDataset(leaf * 2)):
                with self.assertRaisesRegex(RuntimeError, "detach"):
                    queue.put(obj)
        self.assertTrue(queue.empty())
        queue.put((leaf * 2).detach())
        self.assertEqual(queue.get(timeout=SECONDS).tolist(), [2, 2, 2])

    def test_b8_dtypes_and_shapes(self):
        for dtype in DTYPES:
            base = torch.arange(256).reshape(2, 2, 2, 2, 2, 2, 2, 2).to(dtype)
            flat = base.flatten()
            sent = [base, flat[3], flat[5:9], flat[::7], base.permute(7, 1, 2, 3, 4, 5, 6, 0), flat[0].expand(4, 3),
                    flat[256:], flat.reshape(16, 16).t(), torch.nn.Parameter(flat[:4], requires_grad=False)]
            for tensor, back in zip(sent, self.call("echo", sent)):
                self.assertEqual((back.dtype, back.shape, back.stride(), back.storage_offset(), type(back)),
                                 (dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), type(tensor)))
                self.assertTrue(torch.equal(back, tensor))
                self.assertTrue(same_storage(back, tensor))
        for _ in range(TURNS):
            for values in ([1, 2], [True, False]):
                parameter = torch.nn.Parameter(torch.tensor(values), requires_grad=False)
                back = self.call("echo", parameter)
                self.assertEqual((type(back), back.tolist(), back.requires_grad), (torch.nn.Parameter, values, False))

    def test_b8_what_pickle_carries(self):
        complex_numbers = torch.tensor([1 + 2j, 3 - 1j])
        sent = [torch.zeros([1] * 20), complex_numbers.conj(), complex_numbers.conj().imag,
                torch.quantize_per_tensor(torch.arange(4.), 0.5, 0, torch.quint8)]
        for _ in range(TURNS):
            for tensor in sent:
                back = self.call("echo", tensor)
                self.assertTrue(torch.equal(back, tensor))
                self.assertTrue(same_storage(back, tensor))
                self.assertEqual((back.is_conj(), back.is_neg(), back.dtype),
                                 (tensor.is_conj(), tensor.is_neg(), tensor.dtype))
            self.assertEqual(self.call("echo", torch.ones(2, 3, device="meta")).shape, (2, 3))
        if hasattr(torch.Tensor, "has_names"):  # newer versions of torch have no names of dimensions
            with self.assertRaises(RuntimeError):
                self.inbox.put(torch.ones(2, names=("n",)))

    def test_b9_sparse(self):
        matrix = torch.tensor([[0., 1, 0, 2], [0, 0, 3, 0], [4, 0, 0, 0], [0, 5, 0, 6]])
        for _ in range(TURNS):
            coo = torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 3]], [1., 2, 3], (4, 4))
            for sparse in (coo, coo.coalesce(), matrix.to_sparse_csr(), matrix.to_sparse_csc(), matrix.to_sparse_bsr((2, 2))):
                expected = sparse.to_dense() * 2
                back = self.call("change_parts", sparse)
                self.assertEqual(back.layout, sparse.layout)
                self.assertTrue(torch.equal(back.to_dense(), expected))
                self.assertTrue(torch.equal(sparse.to_dense(), expected))
                self.assertTrue(shoal.is_shared(sparse) and shoal.is_shared(back) and not shoal.is_shared(sparse.clone()))
                if sparse.layout == torch.sparse_coo:
                    self.assertEqual(back.is_coalesced(), sparse.is_coalesced())

    def test_b10_module_trains_in_the_child(self):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        for _ in range(TURNS):
            before = copy.deepcopy(module.state_dict())
            self.assertEqual(self.call("train", module), [True] * 6)
            moved = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
            self.assertIn("0.weight", moved)
            self.assertIn("1.running_mean", moved)
            self.assertIn("1.num_batches_tracked", moved)

    def test_b10_state_dict(self):
        module = torch.nn.Linear(3, 2)
        for _ in range(TURNS):
            before = module.weight.detach().clone()
            self.call("add_one", module.state_dict())
            self.assertTrue(torch.equal(module.weight, before + 1))
            other = torch.nn.Linear(3, 2)
            other.load_state_dict(self.call("echo", module.state_dict()))
            self.call("add_one", module.state_dict())
            self.assertTrue(torch.equal(other.weight, before + 1))

    def test_b11_no_new_blocks(self):
        tensor = torch.zeros(100)
        for turn in range(10000):
            tensor = self.call("echo", tensor)
            if turn == 100:
                blocks = shoal.world.info().blocks_live
        self.assertLessEqual(shoal.world.info().blocks_live, blocks)

    def test_b16_sent_on_to_a_third_process(self):
        first = self.context.Queue()
        middle = self.context.Process(target=forward, args=(first, self.inbox))
        middle.start()
        for turn in range(TURNS):
            first.put(torch.full((10,), float(turn)))
            self.assertEqual(self.outbox.get(timeout=SECONDS), (True, turn + 1))
        middle.join(SECONDS)
        self.assertEqual(middle.exitcode, 0)
        gc.collect()
        self.assertEqual(self.call("sum_of_kept"), 10 * sum(range(TURNS)))

    def test_b73_tied_weights_attributes_subclasses(self):
        for turn in range(TURNS):
            module = Tied()
            module.share_memory()
            before = module.one.weight.detach().clone()
            self.assertEqual(self.call("tied", module), (True, True))
            self.assertTrue(torch.equal(module.two.weight, before + 1))
            one, two = self.call("echo", (module.one.weight, module.two.weight))
            self.assertIs(one, two)
            tensor = torch.ones(3)
            tensor.note, tensor.self = turn, tensor
            back = self.call("echo", tensor)
            self.assertEqual(back.note, turn)
            self.assertIs(back.self, back)
            buffer = torch.ones(3).as_subclass(Sub)
            buffer.note = turn
            back = self.call("echo", buffer)
            self.assertEqual((type(back), back.note), (Sub, turn))
            self.assertTrue(same_storage(back, buffer))
            buffer.requires_grad_().grad = torch.full((3,), float(turn))
            back = self.call("echo", buffer)
            self.assertEqual((type(back), back.note, back.requires_grad), (Sub, turn, True))
            self.assertTrue(same_storage(back.grad, buffer.grad))
            lazy = self.call("echo", torch.nn.LazyLinear(3))
            self.assertIs(type(lazy.weight), torch.nn.UninitializedParameter)
            del tensor.self


class Sub(torch.Tensor):
    pass


class Fork(Rows, unittest.TestCase):
    method = "fork"


class Spawn(Rows, unittest.TestCase):
    method = "spawn"


class Forkserver(Rows, unittest.TestCase):
    method = "forkserver"


class OneProcess(unittest.TestCase):
    def test_b12_live_tensors_cost_no_fds_and_no_mappings(self):
        def counts():
            with open("/proc/self/maps") as maps:
                return len(os.listdir("/proc/self/fd")), sum("memfd" in line for line in maps)
        queue = mp.Queue()
        tensors = [torch.full((100,), float(i)) for i in range(100)]
        for tensor in tensors:
            queue.put(tensor)
            queue.get()
        before = counts()
        for i in range(10000):
            queue.put(torch.full((100,), float(i)))
            tensors.append(queue.get())
        self.assertEqual(tensors[-1][99].item(), 9999)
        after = counts()
        self.assertEqual(after[0], before[0])
        self.assertLess(after[1] - before[1], 20)

    def test_b74_threads_and_plain_forks(self):
        """Threads adopt, receive and drop storages while the process forks; the children do the same."""
        def work(turns):
            queue = mp.Queue()
            for turn in range(turns):
                tensor = torch.full((50,), float(turn))
                queue.put(tensor)
                back = queue.get(timeout=SECONDS)
                wrong = not same_storage(tensor, back)
                del tensor
                if wrong or back.sum().item() != 50 * turn:
                    failed.append(turn)
        failed = []
        threads = [threading.Thread(target=work, args=(1000,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(TURNS):
            child = os.fork()
            if child == 0:
                signal.alarm(SECONDS)  # ends a child that hangs
                work(20)
                os._exit(len(failed))
            codes.append(os.waitpid(child, 0)[1])
        for thread in threads:
            thread.join()
        self.assertEqual((failed, codes), ([], [0] * TURNS))
        gc.collect()
        shoal.world.sweep()
        shoal.world.audit()

    def test_b62_hostile_descriptions(self):
        tensor = torch.arange(4.)
        meta, block = _shoal.torch_describe(tensor)
        self.assertEqual(_shoal.torch_rebuild(meta, block).tolist(), [0, 1, 2, 3])

        def at(place, size, value):
            return meta[:place] + (value % 2 ** (8 * size)).to_bytes(size, "little") + meta[place + size:]
        version, dtype, flags, dims, zero, offset, sizes, strides = 0, 1, 2, 3, 4, 8, 16, 24
        hostile = [b"", meta[:-1], meta + b"\0", at(version, 1, 2), at(dtype, 1, 255), at(dtype, 1, 12), at(flags, 1, 4),
                   at(dims, 1, 2), at(dims, 1, 255), at(zero, 4, 1), at(offset, 8, 1), at(offset, 8, -1), at(sizes, 8, 5),
                   at(offset, 8, 2 ** 62), at(sizes, 8, -1), at(sizes, 8, 2 ** 62), at(strides, 8, 2), at(strides, 8, -1),
                   at(strides, 8, 2 ** 62), at(dtype, 1, 7)]  # 7 is float64, twice as large
        for description in hostile:
            with self.assertRaises(ValueError, msg=description.hex()):
                _shoal.torch_rebuild(description, block)
        self.assertEqual(_shoal.torch_rebuild(at(strides, 8, 0), block).tolist(), [0, 0, 0, 0])

    def test_without_the_glue(self):
        script = textwrap.dedent("""
            import torch, warnings
            warnings.simplefilter("ignore")
            import shoal
            import shoal.multiprocessing as mp

            def work(inbox, outbox):
                for _ in range(3):
                    obj = inbox.get()
                    tensors = obj.parameters() if isinstance(obj, torch.nn.Module) else [obj]
                    with torch.no_grad():
                        for tensor in tensors:
                            tensor += 1
                    outbox.put(obj)

            context = mp.get_context("fork")
            inbox, outbox = context.Queue(), context.Queue()
            child = context.Process(target=work, args=(inbox, outbox))
            child.start()
            for obj in (torch.zeros(3), torch.arange(6.)[2:4], torch.nn.Linear(2, 2, bias=False)):
                tensor = obj.weight if isinstance(obj, torch.nn.Module) else obj
                before = tensor.detach().clone()
                inbox.put(obj)
                back = outbox.get(timeout=300)
                back = back.weight if isinstance(obj, torch.nn.Module) else back
                assert torch.equal(tensor, before + 1), tensor
                assert shoal.is_shared(tensor) and not shoal.is_shared(before)
                assert type(back) is type(tensor) and back.data_ptr() == tensor.data_ptr()
                assert back.requires_grad == tensor.requires_grad
            child.join()
        """)
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "SHOAL_TORCH_GLUE": "off"})


if __name__ == "__main__":
    unittest.main()
