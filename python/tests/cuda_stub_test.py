"""Tensors of a GPU without one: over the stub driver, whose GPU memory is host memory. torch here knows no CUDA, but the glue makes CUDA
GPU tensors, without kernels; so what travels, identity and makers that die are tested here, and the rest by
cuda_torch_test.py on a GPU."""
import ctypes
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import unittest
import unittest.mock

import shoal

STUBS = pathlib.Path(shoal.__file__).absolute().parents[2] / "tests"
os.environ.setdefault("SHOAL_CUDA_DRIVER", str(STUBS / "libcuda_stub.so"))
os.environ.setdefault("SHOAL_CUDA_LIBRARY", str(STUBS / "libshoal_cuda_stub.so"))
if not os.path.exists(os.environ["SHOAL_CUDA_DRIVER"]):
    print("skipped: the stub driver is not built (the target cuda_stub)")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None

import support
from shoal import _shoal
from support import LONG, Case

CTX = support.mp.get_context("forkserver")
F32, I64, GRAD, PARAMETER = 6, 4, 1, 2  # of torch's dtypes, and of the glue's flags


def on_card(values, **options):
    return shoal.tensor(values, device="cuda", **options)


def describe(dtype, sizes, strides, offset=0, flags=0):
    """What the glue writes: see struct Header in torch/glue.cpp."""
    return struct.pack(f"<BBBBIq{2 * len(sizes)}q", 1, dtype, flags, len(sizes), 0, offset, *sizes, *strides)


def torch_on_card(values, flags=0):
    """A torch tensor on the GPU, of floats."""
    raw = struct.pack(f"{len(values)}f", *values)
    return _shoal.torch_rebuild(describe(F32, [len(values)], [1], flags=flags), on_card(raw))


def floats(x):
    """The elements of a contiguous torch tensor on the stub's GPU."""
    return list((ctypes.c_float * x.numel()).from_address(x.data_ptr()))


def set_first(x, value):
    ctypes.c_float.from_address(x.data_ptr()).value = value


class Control(ctypes.Structure):
    """struct sh_stub of tests/harness/cuda_stub/stub.h."""
    _fields_ = [("fail_call", ctypes.c_void_p), ("calls", ctypes.c_void_p), ("block", ctypes.CFUNCTYPE(None)),
                ("unblock", ctypes.CFUNCTYPE(None)), ("room", ctypes.c_void_p), ("held", ctypes.CFUNCTYPE(ctypes.c_size_t)),
                ("forbid", ctypes.c_void_p)]


DRIVER = ctypes.CDLL(os.environ["SHOAL_CUDA_DRIVER"])
STUB = Control.in_dll(DRIVER, "shoal_stub")


def new_stream():
    stream = ctypes.c_void_p()
    assert DRIVER.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream


def new_event():
    event = ctypes.c_void_p()
    assert DRIVER.cuEventCreate(ctypes.byref(event), 0) == 0
    return event


# ---- other processes ----

def echo_changed(requests, answers):
    """Adds 10 to the first element of each, and sends it back."""
    for x in iter(requests.get, None):
        set_first(x, floats(x)[0] + 10)
        answers.put(x)


def put_and_die(messages):
    messages.put({"card": on_card([1., 2.]), "number": 5})
    if torch is not None:
        messages.put(torch_on_card([3, 4]))
    os.kill(os.getpid(), signal.SIGKILL)


def put_blocked(messages, received):
    """Puts a tensor while another library's stream works on it, without end."""
    t = on_card([1., 2.])
    stream = new_stream()
    STUB.block()
    DRIVER.cuEventRecord(new_event(), stream)  # any work
    _shoal.cuda_follow(stream.value)
    messages.put(t)
    messages.put("more")
    if received is not None:
        received.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def get_without_a_card(messages, answers):
    try:
        messages.get(timeout=LONG)
    except shoal.Error as error:
        answers.put(str(error))


def take_and_die(messages):
    kept = [messages.get(timeout=LONG) for _ in range(3)]
    os.kill(os.getpid(), signal.SIGKILL)
    del kept


def answer(t, answers):
    answers.put(t.tolist())


def pass_on(first, second):
    second.put(first.get(timeout=LONG))
    os.kill(os.getpid(), signal.SIGKILL)


def make_while_torch_fails(answers):
    """In a process of its own: torch's CUDA is started once."""
    def fail():
        raise RuntimeError("torch does not start")

    import shoal.torch
    shoal.torch.start_cuda = fail
    before = shoal.cuda_memory()["asked"]
    try:
        torch_on_card([1] * 1000)
    except RuntimeError as error:
        answers.put((str(error), shoal.cuda_memory()["asked"] - before))


# ---- the tests ----

class Tensors(unittest.TestCase):
    def test_making_and_moving(self):
        t = on_card([[1., 2], [3, 4]])
        self.assertEqual((t.device, t.dtype, t.shape, t.__dlpack_device__()), ("cuda", "f32", (2, 2), (2, 0)))
        self.assertEqual(t.tolist(), [[1, 2], [3, 4]])
        self.assertEqual(repr(t), repr(t.cpu())[:-1] + ", cuda)")
        self.assertEqual(float(on_card(3.5)), 3.5)
        self.assertEqual(on_card([1, 2], dtype="bf16").tolist(), [1, 2])
        back = t.cpu()
        self.assertEqual((back.device, back.numpy().tolist()), ("cpu", t.tolist()))
        self.assertEqual(back.to("cuda").storage_id == t.storage_id, False)
        self.assertEqual(t.cuda().storage_id, t.storage_id)
        self.assertEqual(t.clone().device, "cuda")
        self.assertEqual(shoal.tensor(t).device, "cuda")
        self.assertEqual(shoal.tensor(t, device="cpu").device, "cpu")
        self.assertEqual(_shoal.Tensor("i64", (2, 3), device="cuda:0").tolist(), [[0] * 3] * 2)
        self.assertEqual(on_card(b"").size, 0)

    def test_refusals_are_one_sentence(self):
        t = on_card([1., 2.])
        for call, error, text in (
                (t.numpy, TypeError, r"on the GPU.*t\.cpu\(\)\.numpy\(\)"),
                (lambda: memoryview(t), BufferError, r"on the GPU.*t\.cpu\(\)"),
                (lambda: t.__array_interface__, BufferError, "on the GPU"),
                (lambda: t.to("cuda:3"), ValueError, "uses GPU 0, not 3"),
                (lambda: on_card([1], shared=True).to("cuda:x"), ValueError, "cuda:x is unknown"),
                (lambda: t.to("tpu"), TypeError, "unknown dtype or device tpu; the devices are 'cpu' and 'cuda'"),
                (lambda: shoal.tensor([1.], device="gpu"), ValueError, "the device gpu is unknown"),
                (lambda: shoal.tensor([1.], device="f64"), ValueError, "the device f64 is unknown"),
                (lambda: t[0], TypeError, r"no indexing: use t\.torch\(\).*, or t\.cpu\(\)\.numpy\(\)"),
                (lambda: t.to(3), TypeError, "a device"),
                (lambda: t.__dlpack__(stream=0), ValueError, "stream 0"),
                (lambda: t.__dlpack__(stream=-7), ValueError, "stream -7"),
                (lambda: t.__dlpack__(dl_device=(1, 0), copy=False), BufferError, "only a copy"),
                (lambda: t.__dlpack__(dl_device=(2, 5)), BufferError, "only a copy"),
                (lambda: t.cpu().__dlpack__(dl_device=(2, 0)), BufferError, "to the CPU only"),
                (lambda: shoal.from_dlpack(t).share(), ValueError, "clone"),
                (lambda: _shoal.Tensor("f32", (2,), b"123", device="cuda"), ValueError, "needs 8")):
            with self.assertRaisesRegex(error, text) as caught:
                call()
            self.assertNotIn("\n", str(caught.exception))

    def test_dlpack_with_streams(self):
        t = on_card([1., 2.])
        for stream in (None, 1, 2, -1):
            for version in (None, (1, 0)):
                capsule = t.__dlpack__(stream=stream, max_version=version)
                self.assertEqual(_shoal.Tensor._from_capsule(capsule).tolist(), [1, 2])
        t.__dlpack__()  # a capsule that nobody takes
        copy = _shoal.Tensor._from_capsule(t.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
        self.assertEqual((copy.device, copy.tolist()), ("cpu", [1, 2]))
        same = shoal.from_dlpack(t)
        self.assertEqual((same.device, same.tolist()), ("cuda", [1, 2]))
        del t
        self.assertEqual(same.tolist(), [1, 2])

    def test_memory(self):
        t = on_card(bytes(1 << 20))
        memory = shoal.cuda_memory()
        self.assertEqual(list(memory), ["asked", "held", "free", "total"])
        self.assertTrue(1 << 20 <= memory["asked"] <= memory["held"] <= memory["total"] - memory["free"])
        del t
        self.assertGreater(memory["asked"], shoal.cuda_memory()["asked"])
        self.assertGreaterEqual(shoal.empty_cache(), 0)
        self.assertEqual(shoal.empty_cache(), 0)

    def test_without_a_card(self):
        """Each process says it in the library's sentence."""
        code = ("import shoal\n"
                "for call in (lambda: shoal.tensor(1., device='cuda'), lambda: shoal.train(device='cuda', epochs=1),\n"
                "             lambda: shoal.tensor(1.).cuda()):\n"
                "    try:\n"
                "        call()\n"
                "    except shoal.Error as error:\n"
                "        print(error)\n"
                "shoal.synchronize()\n")
        environment = {**os.environ, "SHOAL_CUDA_DRIVER": "/nowhere/libcuda.so"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(done.stdout.splitlines()), 3)
        for line in done.stdout.splitlines():
            self.assertRegex(line, "/nowhere/libcuda.so|no CUDA")


def use_the_card(queue, tensor, messages):
    """Tries what a forked child may try, and puts the errors."""
    errors = []
    for call in (tensor.tolist, lambda: queue.put(tensor), lambda: on_card([1]), shoal.synchronize,
                 lambda: messages.get(timeout=LONG)):
        try:
            call()
            errors.append("no error")
        except shoal.Error as error:
            errors.append(str(error))
    queue.put(errors)


def add_one(x):
    return x + 1


class Numbers:
    """A data set for a DataLoader."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((3,), float(index))


class Forks(Case):
    """B33: a process that has used the GPU forks."""

    methods = ("fork",)

    def count(self):
        shoal.synchronize()
        shoal.empty_cache()
        return {what: number for what, number in super().count().items() if what != "fds"}

    def check(self, errors):
        self.assertEqual(len(errors), 5)
        for error in errors:
            self.assertIn("this process was forked after its parent had used the GPU", error)

    def test_the_child_is_told(self):
        ctx = support.mp.get_context("fork")
        queue, messages, tensor = ctx.Queue(), ctx.Queue(), on_card([1, 2])
        messages.put(tensor)
        process = ctx.Process(target=use_the_card, args=(queue, tensor, messages))
        process.start()
        self.check(queue.get(timeout=LONG))
        process.join(LONG)
        self.assertEqual(process.exitcode, 0)
        messages.put(tensor)
        self.assertEqual((tensor.tolist(), messages.get(timeout=LONG).tolist()), ([1, 2], [1, 2]))

    def test_a_plain_fork_is_told(self):
        queue, messages, tensor = support.mp.Queue(), support.mp.Queue(), on_card([1, 2])
        messages.put(tensor)
        pid = os.fork()
        if pid == 0:
            try:
                use_the_card(queue, tensor, messages)
            finally:
                os._exit(0)
        self.check(queue.get(timeout=LONG))
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(tensor.tolist(), [1, 2])

    def test_a_pool_of_forked_workers(self):
        tensor = on_card([1, 2])
        with support.mp.get_context("fork").Pool(2) as pool:
            self.assertEqual(pool.map(add_one, range(20)), list(range(1, 21)))
        self.assertEqual(tensor.tolist(), [1, 2])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_a_data_loader_in_a_program_that_uses_the_card(self):
        tensor = on_card([1, 2])
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2,
                                             multiprocessing_context=support.mp.get_context("fork"))
        for _ in range(2):
            self.assertEqual([batch[0, 0].item() for batch in loader], [4.0 * i for i in range(10)])
            self.assertEqual(tensor.tolist(), [1, 2])


class Messages(Case):
    methods = ("forkserver",)

    def count(self):
        """GPU memory of others stays mapped for a while, with an fd of the stub's; memory of this process is kept for later."""
        shoal.synchronize()
        shoal.empty_cache()
        return {what: number for what, number in super().count().items() if what != "fds"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        queue = CTX.Queue()
        queue.put(on_card([1]))
        queue.get()

    def test_a_maker_is_killed(self):
        messages = CTX.Queue()
        self.assertEqual(support.run_all(CTX, [(put_and_die, messages)]), [-signal.SIGKILL])
        message = messages.get(timeout=LONG)
        self.assertEqual((message["card"].device, message["card"].tolist(), message["number"]), ("cuda", [1, 2], 5))
        if torch is not None:
            self.assertEqual(floats(messages.get(timeout=LONG)), [3, 4])

    def test_unfinished_work_of_a_dead_maker(self):
        messages = CTX.Queue()
        self.assertEqual(support.run_all(CTX, [(put_blocked, messages, None)]), [-signal.SIGKILL])
        with self.assertRaisesRegex(shoal.Error, "died before that work was done"):
            messages.get(timeout=LONG)
        self.assertEqual(messages.get(timeout=LONG), "more")
        shoal.synchronize()

    def test_a_maker_dies_while_another_library_waits(self):
        """As torch does in x.item(): nobody waits in Shoal, and no other process notices deaths."""
        messages, received, stream = CTX.Queue(), CTX.Event(), new_stream()
        maker = CTX.Process(target=put_blocked, args=(messages, received))
        maker.start()
        t = messages.get(timeout=LONG)
        _shoal.cuda_precede(stream.value)
        self.assertNotEqual(DRIVER.cuStreamQuery(stream), 0)
        received.set()

        def goes_on():
            _shoal.cuda_precede(stream.value)  # notices no death; the stub's streams go on when they are asked
            return DRIVER.cuStreamQuery(stream) == 0

        support.wait_until(goes_on)
        with self.assertRaisesRegex(shoal.Error, "died before that work was done"):
            shoal.synchronize()
        shoal.synchronize()
        maker.join(LONG)
        maker.close()
        self.assertEqual(t.tolist(), [1, 2])

    def test_a_receiver_without_a_card(self):
        messages, answers = CTX.Queue(), CTX.Queue()
        messages.put(on_card([1.]))
        ctx = support.mp.get_context("spawn")
        os.environ["SHOAL_STUB_CARDS"] = "0"
        self.addCleanup(os.environ.pop, "SHOAL_STUB_CARDS")
        self.assertEqual(support.run_all(ctx, [(get_without_a_card, messages, answers)]), [0])
        self.assertRegex(answers.get(timeout=LONG), "no CUDA GPU")

    def test_b53_a_killed_consumer_leaks_nothing(self):
        messages = CTX.Queue()
        shoal.empty_cache()
        before = shoal.cuda_memory()
        for _ in range(3):
            t = on_card(bytes(64 << 20))
            for _ in range(4):
                messages.put(t)
            del t
            self.assertEqual(support.run_all(CTX, [(take_and_die, messages)]), [-signal.SIGKILL])
            messages.get(timeout=LONG)
        shoal.empty_cache()
        after = shoal.cuda_memory()
        self.assertEqual((after["asked"], after["held"]), (before["asked"], before["held"]))

    def test_sent_on(self):
        first, second = CTX.Queue(), CTX.Queue()
        t = on_card([5., 6.])
        first.put(t)
        del t
        self.assertEqual(support.run_all(CTX, [(pass_on, first, second)]), [-signal.SIGKILL])
        self.assertEqual(second.get(timeout=LONG).tolist(), [5, 6])

    def test_started_with_a_tensor_by_a_program_with_threads(self):
        """Threads make a difference to the library's locks; a program that uses a real GPU always has some."""
        answers, end = CTX.Queue(), threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        self.assertEqual(support.run_all(CTX, [(answer, on_card([1., 2.]), answers)]), [0])
        with CTX.Pool(1) as pool:
            self.assertEqual(pool.apply(support.do_nothing, (on_card([3.]),)), None)
        end.set()
        thread.join()
        self.assertEqual(answers.get(timeout=LONG), [1, 2])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_both_ways(self):
        requests, answers = CTX.Queue(), CTX.Queue()
        other = CTX.Process(target=echo_changed, args=(requests, answers))
        other.start()
        x = torch_on_card([1, 2, 3])
        self.assertEqual(x.device, torch.device("cuda:0"))
        self.assertTrue(shoal.is_shared(x))
        for number in (11, 21):
            requests.put(x)
            back = answers.get(timeout=LONG)
            self.assertEqual((back.data_ptr(), back.storage()._cdata), (x.data_ptr(), x.storage()._cdata))
            self.assertEqual(floats(x), [number, 2, 3])
        for y, flags in ((torch_on_card([1], GRAD), (True, "Tensor")),
                         (torch_on_card([1], GRAD | PARAMETER), (True, "Parameter"))):
            requests.put(y)
            back = answers.get(timeout=LONG)
            self.assertEqual((back.requires_grad, type(back).__name__), flags)
        requests.put(None)
        other.join(LONG)
        self.assertEqual(other.exitcode, 0)
        other.close()

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_fails_and_leaks_nothing(self):
        answers = CTX.Queue()
        self.assertEqual(support.run_all(CTX, [(make_while_torch_fails, answers)]), [0])
        self.assertEqual(answers.get(timeout=LONG), ("torch does not start", 0))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_refusals(self):
        messages = CTX.Queue()
        with unittest.mock.patch("torch.cuda._lazy_init"):
            x = torch.from_dlpack(on_card([1., 2.]).__dlpack__())
        with self.assertRaisesRegex(RuntimeError, r"cannot be moved: send tensor\.clone"):
            messages.put(x)
        os.environ["SHOAL_CUDA_DEVICE"] = "1"
        self.addCleanup(os.environ.pop, "SHOAL_CUDA_DEVICE")
        for call in messages.put, shoal.share:
            with self.assertRaisesRegex(RuntimeError, r"on another GPU.*: set SHOAL_CUDA_DEVICE, or send tensor\.cpu\(\)"):
                call(x)
        with self.assertRaisesRegex(ValueError, "clone"):  # an error of the library, as the extension raises it
            _shoal.torch_rebuild(describe(F32, [1], [1]), shoal.from_dlpack(on_card(bytes(4))))
        self.assertEqual(messages.qsize(), 0)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_lies_within_its_memory(self):
        t = on_card(bytes(48))
        for good in (describe(F32, [3, 4], [4, 1]), describe(I64, [6], [1]), describe(F32, [0, 9], [9, 1]), describe(F32, [], [], 11)):
            self.assertTrue(_shoal.torch_rebuild(good, t).is_cuda)
        for bad in (describe(F32, [13], [1]), describe(F32, [3, 4], [5, 1]), describe(F32, [], [], 12), describe(F32, [-1], [1]), b"x"):
            with self.assertRaises(ValueError):
                _shoal.torch_rebuild(bad, t)
        for other in (on_card([1., 2.]), shoal.tensor(bytes(48)), on_card([[1]])):
            with self.assertRaises(ValueError):
                _shoal.torch_rebuild(describe(F32, [1], [1]), other)


if __name__ == "__main__":
    support.mp.set_forkserver_preload(["torch", "shoal.torch"] if torch is not None else [])
    unittest.main()
