"""torch tensors on a GPU in messages: B1 to B6, B8, B15 and B16 (so B50), the order of streams, and makers that die. Needs a GPU
and a torch with CUDA; `make test-cuda` runs it."""
import collections
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)
if __name__ == "__main__" and not torch.cuda.is_available():  # a child of these tests may be one that sees no GPU
    print("skipped: torch has no CUDA GPU here")
    sys.exit(77)

import shoal
import shoal.torch
import support
from support import LONG, Case

CTX = support.mp.get_context("forkserver")  # its server has imported torch, and not used the GPU
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool, torch.complex64)
SECOND = 2_000_000_000  # cycles of torch.cuda._sleep: about a second
ALONE = bool(os.environ.get("SHOAL_TEST_WHOLE_CARD"))  # nobody else uses the GPU
SOON = 10  # seconds: for what must not wait without end

Pair = collections.namedtuple("Pair", "first second")


def identity(tensor):
    return tensor.untyped_storage()._cdata


# ---- what the other process does ----

def serve(requests, answers):
    for name, *args in iter(requests.get, None):
        answers.put(globals()[name](*args))
        del args


def echo(x):
    return x


def add(x, number):
    x += number
    torch.cuda.synchronize()  # the answer has no tensor, so nothing else lets the parent's stream wait for this one


def total(x):
    return float(x.sum())


def first(x):
    return float(x[0])


def write_to_view(tensor, view):
    view.fill_(7)
    return tensor.sum().item()


def same_storage(*tensors):
    return len({identity(x) for x in tensors}) == 1


def overlap(storage, whole, row, column):
    whole[1, 1] = 50
    row[0] = 60
    return row.tolist(), column.tolist(), storage.nbytes()


def grad_of(x):
    seen = None if x.grad is None else x.grad.tolist()
    if x.grad is None:
        x.grad = torch.ones_like(x)
    else:
        x.grad += 1
    torch.cuda.synchronize()  # as in add()
    return x.requires_grad, type(x).__name__, seen


def slow_fill(x, number):
    torch.cuda._sleep(SECOND // 4)
    x.fill_(number)
    return x


def put_and_end(messages, way):
    for i in range(10):
        messages.put((i, torch.full((100, 100), float(i), device="cuda")))
    torch.cuda.synchronize()
    shoal.synchronize()
    if way == "_exit":
        os._exit(0)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def pass_on(first, second):
    second.put(first.get(timeout=LONG))
    os.kill(os.getpid(), signal.SIGKILL)


def make_and_wait(messages, go):
    messages.put(torch.arange(10., device="cuda"))
    shoal.synchronize()
    go.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def keep_busy():
    """About a second of work. In short kernels: under MPS, a process that is killed inside a long one harms others. Few enough
    that enqueuing them does not wait."""
    for _ in range(900):
        torch.cuda._sleep(SECOND // 1000)


def put_and_die(messages, finished, received):
    """Puts zeros, then ones, and dies before or after these are computed. Ends with 3 if it cannot die before."""
    x = torch.zeros(1000, device="cuda")
    messages.put(x.clone())
    torch.cuda._sleep(1)
    x += 0  # torch loads a kernel when it is first used, and waits for the GPU then
    shoal.share(x)
    torch.cuda.synchronize()
    shoal.synchronize()
    if not finished:
        keep_busy()
    x += 1
    messages.put(x)
    if received is not None:
        received.wait()
    if finished:
        torch.cuda.synchronize()
        shoal.synchronize()
    elif torch.cuda.current_stream().query():
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def take_and_die(messages):
    x = messages.get(timeout=LONG)
    x += 1
    torch.cuda.synchronize()
    os.kill(os.getpid(), signal.SIGKILL)


def train_step(module, x):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x).square().sum().backward()
    optimizer.step()
    torch.cuda.synchronize()


def forward(module, x):
    with torch.no_grad():
        return module(x)[0].clone()


def keys_and_total(message):
    return sorted(message), float(message["list"][0].sum() + message["pair"].second.sum() + message["pair"].first)


def add_in_pool(x):
    x += 1
    return Pair(x, x.sum() * 2)


def echo_in_pipe(end):
    x = end.recv()
    x *= 2
    end.send(x)
    end.send(x[1:])


def wait_for_event(event, x):
    event.wait()
    return float(x.sum())


def add_in_rank(rank, x):
    x[rank] += rank + 1


def put_errors(queue, *calls):
    for call in calls:
        try:
            call()
            queue.put("no error")
        except Exception as error:
            queue.put(str(error))


def add_up_and_send_on(messages, answers):
    x = messages.get(timeout=LONG)
    answers.put(float(x.sum()))
    put_errors(answers, lambda: answers.put(x))


def total_or_error(messages, answers):
    """How a process sees a tensor of the GPU that has another CUDA_VISIBLE_DEVICES, or none."""
    try:
        x = messages.get(timeout=LONG)
        answers.put((str(x.device), float(x.sum())))
    except shoal.Error as error:
        answers.put(str(error))


def last(x):
    return int(x[-1]), x.numel()


# ---- the tests ----

class Torch(Case):
    methods = ("forkserver",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.requests, cls.answers = CTX.Queue(), CTX.Queue()
        cls.other = CTX.Process(target=serve, args=(cls.requests, cls.answers))
        cls.other.start()
        cls.ask(cls, "echo", torch.zeros(1, device="cuda"))

    @classmethod
    def tearDownClass(cls):
        cls.requests.put(None)
        cls.other.join(LONG)
        assert cls.other.exitcode == 0

    def count(self):
        """The driver opens files when it likes, and lent GPU memory comes back when it is needed."""
        return {"children": super().count()["children"]}

    def ask(self, name, *args):
        self.requests.put((name, *args))
        return self.answers.get(timeout=LONG)

    def test_b1_a_tensor_and_its_view(self):
        x = torch.zeros(3, 4, device="cuda")
        self.assertEqual(self.ask("write_to_view", x, x[1]), 28)
        self.assertEqual(x.sum().item(), 28)

    def test_b2_the_same_storage(self):
        x = torch.arange(6., device="cuda")
        self.assertTrue(self.ask("same_storage", x, x[2:]))
        back = self.ask("echo", x)
        self.assertEqual(identity(back), identity(x))
        back += 1
        self.assertEqual(x.tolist(), [1, 2, 3, 4, 5, 6])

    def test_b3_overlaps(self):
        x = torch.zeros(3, 3, device="cuda")
        row, column, size = self.ask("overlap", x.untyped_storage(), x, x[1], x[:, 1])
        self.assertEqual((row, column, size), ([60, 50, 0], [0, 50, 0], 36))
        self.assertEqual(x[1].tolist(), [60, 50, 0])

    def test_b4_is_shared_and_empty(self):
        x = torch.zeros(3, device="cuda")
        self.assertFalse(shoal.is_shared(x))
        shoal.share(x)
        self.assertTrue(shoal.is_shared(x))
        y = torch.zeros(3, device="cuda")
        self.ask("total", y)
        self.assertTrue(shoal.is_shared(y))
        for dtype in DTYPES:
            back = self.ask("echo", torch.empty(0, 3, dtype=dtype, device="cuda"))
            self.assertEqual((back.shape, back.dtype, back.device.type), ((0, 3), dtype, "cuda"))

    def test_b5_a_process_captures_it(self):
        x = torch.arange(4., device="cuda")
        self.assertEqual(support.run_all(CTX, [(add, x, 3)]), [0])
        self.assertEqual(x.tolist(), [3, 4, 5, 6])

    def test_b6_grads_and_parameters(self):
        x = torch.ones(2, device="cuda", requires_grad=True)
        self.assertEqual(self.ask("grad_of", x), (True, "Tensor", None))
        self.assertIsNone(x.grad)
        x.grad = torch.full_like(x, 5)
        self.assertEqual(self.ask("grad_of", x), (True, "Tensor", [5, 5]))
        self.assertEqual(x.grad.tolist(), [6, 6])
        p = torch.nn.Parameter(torch.ones(2, device="cuda"))
        self.assertEqual(self.ask("grad_of", p), (True, "Parameter", None))
        with self.assertRaisesRegex(RuntimeError, "not a leaf"):
            self.ask("echo", p * 2)
        layer = torch.nn.Linear(3, 2).cuda()
        weights = self.ask("echo", dict(layer.state_dict()))
        self.assertEqual(identity(weights["weight"]), identity(layer.weight))

    def test_b8_dtypes_and_shapes(self):
        base = torch.arange(48)
        for dtype in DTYPES:
            x = base.to("cuda").to(dtype)
            for y in (x, x[5], x[3:40:2], x.view(2, 3, 8).permute(2, 0, 1), x.view(1, 2, 1, 3, 1, 2, 2, 2), x[:0]):
                back = self.ask("echo", y)
                self.assertTrue(torch.equal(back, y) and back.stride() == y.stride() and back.dtype == dtype)
        x = torch.arange(4, device="cuda") * (1 + 2j)
        self.assertTrue(torch.equal(self.ask("echo", x.conj()), x.conj()))
        sparse = torch.eye(3, device="cuda").to_sparse()
        self.assertFalse(shoal.is_shared(sparse))
        self.assertTrue(torch.equal(self.ask("echo", sparse).to_dense(), torch.eye(3, device="cuda")))
        self.assertTrue(shoal.is_shared(sparse))

    def test_b15_the_sender_ends_at_once(self):
        ways = {"return": 0, "_exit": 0, "kill": -signal.SIGKILL}
        queues = {way: CTX.Queue() for way in ways}
        self.assertEqual(support.run_all(CTX, [(put_and_end, queues[way], way) for way in ways]), list(ways.values()))
        for messages in queues.values():
            for i in range(10):
                number, x = messages.get(timeout=LONG)
                self.assertTrue(number == i and torch.equal(x, torch.full((100, 100), float(i), device="cuda")))

    def test_b16_sent_on_and_outlives_both(self):
        first, second, go = CTX.Queue(), CTX.Queue(), CTX.Event()
        maker = CTX.Process(target=make_and_wait, args=(first, go))
        middle = CTX.Process(target=pass_on, args=(first, second))
        maker.start()
        middle.start()
        middle.join(LONG)
        go.set()
        maker.join(LONG)
        x = second.get(timeout=LONG)
        self.assertEqual(x.tolist(), list(range(10)))
        self.assertEqual(self.ask("total", x), 45)

    def test_the_storage_moves_once(self):
        x = torch.arange(12., device="cuda").view(3, 4)
        view, before = x[1], x.data_ptr()
        self.ask("total", x)
        moved = x.data_ptr()
        self.assertNotEqual(moved, before)
        self.assertEqual(view.data_ptr(), moved + 16)
        self.assertEqual(view.tolist(), [4, 5, 6, 7])
        self.ask("add", x, 1)
        self.assertEqual((x.data_ptr(), view.tolist()), (moved, [5, 6, 7, 8]))
        with self.assertRaises(RuntimeError):
            x.untyped_storage().resize_(1000)
        self.assertTrue(torch.equal(x @ x.T, x.clone() @ x.clone().T))

    def test_threads_move_the_same_storage(self):
        for _ in range(20):
            x = torch.arange(1000., device="cuda")
            threads = [threading.Thread(target=shoal.share, args=(x,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertTrue(shoal.is_shared(x))
            self.assertEqual(self.ask("total", x), 499500)

    def test_a_lazy_copy_moves(self):
        x = torch.arange(4., device="cuda")
        lazy = torch._lazy_clone(x)
        self.ask("add", lazy, 1)
        self.assertEqual((lazy.tolist(), x.tolist()), ([1, 2, 3, 4], [0, 1, 2, 3]))

    def test_memory_of_others_is_not_moved(self):
        x = shoal.tensor([1., 2.], device="cuda").torch()
        with self.assertRaisesRegex(RuntimeError, "clone"):
            self.ask("echo", x)
        self.assertEqual(self.ask("total", x.clone()), 3)

    def test_order_a_long_kernel_before_the_put(self):
        x = torch.zeros(1000, device="cuda")
        for number in (1, 2):  # the first put moves the storage
            torch.cuda._sleep(SECOND // 4)
            x.fill_(number)
            self.assertEqual(self.ask("total", x), 1000 * number)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SECOND // 4)
            x.fill_(3)
            self.assertEqual(self.ask("total", x), 3000)

    def test_order_what_the_other_did_is_seen(self):
        x = torch.zeros(1000, device="cuda")
        for number in (1, 2, 3):
            back = self.ask("slow_fill", x, number)
            self.assertEqual(back.sum().item(), 1000 * number)

    def test_freed_memory_is_not_used_too_early(self):
        result = torch.zeros(1 << 20, device="cuda")
        for number in range(1, 6):
            x = torch.full((1 << 20,), float(number), device="cuda")
            shoal.share(x)
            torch.cuda._sleep(SECOND // 10)
            result.copy_(x)
            del x
            y = shoal.tensor(b"\xff" * (4 << 20), device="cuda")  # most likely at the same place
            self.assertEqual(result.unique().tolist(), [number])
            del y

    def test_card_memory_comes_back(self):
        before = shoal.cuda_memory()["held"], torch.cuda.memory_reserved()
        for number in range(200):
            x = torch.full((2 << 20,), float(number), device="cuda")  # 8 MiB
            self.assertEqual(self.ask("first", x), number)
            del x
        self.assertLess(shoal.cuda_memory()["held"] - before[0], 200 << 20)
        self.assertLess(torch.cuda.memory_reserved() - before[1], 200 << 20)

    # ---- deaths ----

    def start(self, target, *args):
        process = CTX.Process(target=target, args=args)
        process.start()
        return process

    def assert_killed(self, process):
        process.join(LONG)
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        process.close()

    def test_b53_finished_work_of_a_dead_maker(self):
        messages = CTX.Queue()
        self.assert_killed(self.start(put_and_die, messages, True, None))
        self.assertEqual(messages.get(timeout=LONG).sum().item(), 0)
        self.assertEqual(messages.get(timeout=LONG).sum().item(), 1000)
        shoal.synchronize()

    def test_b53_unfinished_work_of_a_dead_maker(self):
        messages = CTX.Queue()
        self.assert_killed(self.start(put_and_die, messages, False, None))
        self.assertEqual(messages.get(timeout=LONG).sum().item(), 0)
        begin = time.monotonic()
        with self.assertRaisesRegex(shoal.Error, "died before that work was done"):
            messages.get(timeout=LONG)
            shoal.synchronize()
        self.assertLess(time.monotonic() - begin, SOON)
        shoal.synchronize()

    def test_b53_a_maker_dies_while_torch_waits(self):
        messages, received = CTX.Queue(), CTX.Event()
        maker = self.start(put_and_die, messages, False, received)
        messages.get(timeout=LONG)
        x = messages.get(timeout=LONG)
        received.set()
        begin = time.monotonic()
        torch.cuda.synchronize()
        self.assertLess(time.monotonic() - begin, SOON)
        with self.assertRaisesRegex(shoal.Error, "died before that work was done"):
            shoal.synchronize()
        shoal.synchronize()
        self.assert_killed(maker)
        self.assertIn(x.sum().item(), (0, 1000))

    def test_b53_a_killed_consumer_leaks_nothing(self):
        def free():
            gc.collect()
            torch.cuda.synchronize()
            shoal.synchronize()
            torch.cuda.empty_cache()
            shoal.empty_cache()
            return torch.cuda.mem_get_info()[0]

        messages = CTX.Queue()
        before, held = free(), shoal.cuda_memory()["held"]
        for number in range(2):
            x = torch.full((512 << 20,), float(number), device="cuda")  # 2 GiB
            messages.put(x)
            messages.put(x[:10])  # stays in the queue
            self.assert_killed(self.start(take_and_die, messages))
            self.assertEqual(x[-1].item(), number + 1)
            del x
            messages.get(timeout=LONG)
        free()
        self.assertEqual(shoal.cuda_memory()["held"], held)
        if ALONE:
            support.wait_until(lambda: before - free() < 1 << 30, SOON)

    # ---- what torch's manual says of torch.multiprocessing and CUDA ----

    def test_containers(self):
        one = torch.ones(4, device="cuda")
        message = {"list": [one, one[1:]], "pair": Pair(2, one * 3), "text": "x"}
        self.assertEqual(self.ask("keys_and_total", message), (["list", "pair", "text"], 18))
        back = self.ask("echo", message)
        self.assertIsInstance(back["pair"], Pair)
        self.assertTrue(same_storage(one, *back["list"]))

    def test_modules(self):
        linear = torch.nn.Linear(3, 3).cuda()
        module = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(3).cuda(), linear)
        self.assertIs(module.share_memory(), module)
        before = linear.weight.detach().clone()
        self.assertEqual(support.run_all(CTX, [(train_step, module, torch.randn(8, 3, device="cuda"))]), [0])
        self.assertFalse(torch.equal(linear.weight, before))
        self.assertEqual(module[1].num_batches_tracked.item(), 1)
        back = self.ask("echo", module)
        self.assertIs(back[0].weight, back[2].weight)
        self.assertTrue(same_storage(back[0].weight, linear.weight))
        lstm, x = torch.nn.LSTM(4, 5, 2).cuda(), torch.randn(7, 2, 4, device="cuda")  # its weights are parts of one storage
        expected = forward(lstm, x)
        self.assertTrue(torch.allclose(self.ask("forward", lstm, x), expected))
        self.assertTrue(torch.allclose(forward(lstm, x), expected))

    def test_pools_and_pipes(self):
        xs = [torch.full((3,), float(i), device="cuda") for i in range(4)]
        with CTX.Pool(2) as pool:
            results = pool.map(add_in_pool, xs)
        for i, (x, result) in enumerate(zip(xs, results)):
            self.assertEqual((x.tolist(), result.second.item()), ([i + 1] * 3, 6 * (i + 1)))
            self.assertEqual(identity(result.first), identity(x))
        here, there = CTX.Pipe()
        process = self.start(echo_in_pipe, there)
        here.send(xs[0])
        self.assertTrue(same_storage(here.recv(), here.recv(), xs[0]))
        self.assertEqual(xs[0].tolist(), [2, 2, 2])
        process.join(LONG)
        process.close()

    def test_events(self):
        x = torch.zeros(1000, device="cuda")
        event = torch.cuda.Event(interprocess=True)
        shoal.share(x)
        torch.cuda._sleep(SECOND // 4)
        x += 1
        event.record()
        self.assertEqual(self.ask("wait_for_event", event, x), 1000)

    def test_ranks_by_spawn(self):
        x = torch.zeros(2, device="cuda")
        support.mp.spawn(add_in_rank, (x,), nprocs=2)
        self.assertEqual(x.tolist(), [1, 2])

    def test_b33_a_forked_child_is_told(self):
        """By a call of ours. torch's own calls fail in its own words."""
        ctx = support.mp.get_context("fork")
        queue = ctx.Queue()
        x = torch.zeros(2, device="cuda")
        shoal.share(x)
        process = ctx.Process(target=put_errors, args=(queue, lambda: shoal.tensor([1.], device="cuda"), x.sum))
        process.start()
        self.assertIn("this process was forked after its parent had used the GPU", queue.get(timeout=support.LONG))
        self.assertNotEqual(queue.get(timeout=support.LONG), "no error")
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.assertEqual((x + 1).tolist(), [1, 1])

    def test_other_visible_devices(self):
        ctx, before = support.mp.get_context("spawn"), os.environ.get("CUDA_VISIBLE_DEVICES")
        queues = [ctx.Queue() for _ in range(4)]
        processes = [ctx.Process(target=total_or_error, args=queues[i:i + 2]) for i in (0, 2)]
        try:
            for process, cards in zip(processes, (f"GPU-{torch.cuda.get_device_properties(0).uuid}", "")):
                os.environ["CUDA_VISIBLE_DEVICES"] = cards
                process.start()
        finally:
            os.environ.pop("CUDA_VISIBLE_DEVICES")
            if before is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = before
        x = torch.ones(5, device="cuda")
        queues[0].put(x)
        queues[2].put(x)
        self.assertEqual(queues[1].get(timeout=LONG), ("cuda:0", 5))
        self.assertRegex(queues[3].get(timeout=LONG), "GPU")
        for process in processes:
            process.join(LONG)
            process.close()

    def test_more_than_two_gigabytes(self):
        x = torch.zeros((5 << 30) // 2, dtype=torch.uint8, device="cuda")
        x[-1] = 77
        self.assertEqual(self.ask("last", x), (77, x.numel()))
        y = torch.zeros((3 << 29, 2), dtype=torch.uint8, device="cuda")[:, 1]
        y[-1] = 78
        self.assertEqual(self.ask("last", y), (78, y.numel()))

    def test_torchs_count_of_memory(self):
        x = torch.zeros(1 << 20, device="cuda")
        before, asked = torch.cuda.memory_allocated(), shoal.cuda_memory()["asked"]
        shoal.share(x)
        self.assertEqual(torch.cuda.memory_allocated(), before - (4 << 20))
        self.assertGreaterEqual(shoal.cuda_memory()["asked"], asked + (4 << 20))
        torch.cuda.empty_cache()
        self.assertEqual(self.ask("total", x), 0)

    @unittest.skipUnless(ALONE, "SHOAL_TEST_WHOLE_CARD is not set: others may use the GPU, too")
    def test_whole_card_torch_makes_room(self):
        torch.cuda.empty_cache()
        shoal.empty_cache()
        x = torch.full((1 << 30,), 5., device="cuda")  # 4 GiB
        torch.cuda.synchronize()
        rest = torch.cuda.mem_get_info()[0] - (3 << 30)
        torch.empty(rest, dtype=torch.uint8, device="cuda")  # torch keeps it for later
        shoal.share(x)
        self.assertEqual((x[0].item(), x[-1].item()), (5, 5))

    def test_deletes_in_any_order(self):
        choose = random.Random(7)
        kept = []
        for number in range(60):
            x = torch.full((choose.randrange(1, 100000),), float(number), device="cuda")
            cycle = [x[-1:]]
            cycle.append(cycle)
            kept.append((number, self.ask("echo", x) if choose.random() < 0.5 else x, x[-1:]))
            self.requests.put(("echo", x))  # nobody has taken it when x goes
            del x, cycle
            torch.full((50000,), -1., device="cuda")
            while len(kept) > 10:
                value, *tensors = kept.pop(choose.randrange(len(kept)))
                self.assertEqual({t[-1].item() for t in tensors}, {value})
            gc.collect(choose.randrange(3))
            self.assertEqual(self.answers.get(timeout=LONG)[0].item(), number)

    def test_without_the_glue(self):
        done = subprocess.run([sys.executable, "-W", "ignore", __file__, "WithoutGlue"], text=True, capture_output=True,
                              env={**os.environ, "SHOAL_TORCH_GLUE": "off"}, timeout=LONG)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_not_in_a_capture(self):
        x, unmoved = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        shoal.share(x)
        graph = torch.cuda.CUDAGraph()
        queue = CTX.Queue()
        with torch.cuda.graph(graph):
            x += 1
            for tensor in (x, unmoved):
                with self.assertRaisesRegex(RuntimeError, "captur"):
                    queue.put(tensor)
        graph.replay()
        graph.replay()
        self.assertEqual(x.tolist(), [2] * 4)
        self.assertEqual(self.ask("total", x), 8)


@unittest.skipUnless(os.environ.get("SHOAL_TORCH_GLUE") == "off", "Torch.test_without_the_glue runs it")
class WithoutGlue(unittest.TestCase):
    def test_torchs_own_way(self):
        """A tensor arrives, and torch refuses to send on what another process has made."""
        messages, answers = CTX.Queue(), CTX.Queue()
        process = CTX.Process(target=add_up_and_send_on, args=(messages, answers))
        process.start()
        x = torch.arange(4., device="cuda")
        messages.put(x)
        self.assertEqual(answers.get(timeout=LONG), 6)
        self.assertIn("received from another process", answers.get(timeout=LONG))
        process.join(LONG)
        self.assertEqual(process.exitcode, 0)
        self.assertEqual(x.tolist(), [0, 1, 2, 3])


class DLPack(unittest.TestCase):
    def test_from_torch_waits_for_its_stream(self):
        x = torch.zeros(1000, device="cuda")
        torch.cuda._sleep(SECOND // 4)
        x.fill_(5)
        t = shoal.from_dlpack(x)
        self.assertEqual((t.device, t.tolist()), ("cuda", [5] * 1000))
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(SECOND // 4)
            x.fill_(6)
            self.assertEqual(shoal.from_dlpack(x).tolist(), [6] * 1000)
        with self.assertRaisesRegex(ValueError, "clone"):
            t.share()
        with self.assertRaisesRegex(RuntimeError, "clone"):
            shoal.share(x)

    def test_to_torch_and_back(self):
        for dtype in ("f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"):
            t = shoal.tensor([[0, 1, 1], [1, 0, 1]], dtype, device="cuda")
            x = t.torch()
            self.assertEqual((x.device.type, x.cpu().tolist()), ("cuda", t.tolist()))
            self.assertEqual(shoal.tensor(x).tolist(), t.tolist())
        t = shoal.tensor([1., 2.], device="cuda")
        x = torch.from_dlpack(t)
        x += 1
        torch.cuda.synchronize()
        self.assertEqual(t.tolist(), [2, 3])
        self.assertEqual(torch.from_dlpack(t.cpu()).tolist(), [2, 3])

    def test_what_torch_was_given_lives_as_long_as_it_uses_it(self):
        result = torch.zeros(1 << 20, device="cuda")
        for number in range(1, 6):
            x = torch.from_dlpack(shoal.tensor([float(number)] * (1 << 12), device="cuda"))
            torch.cuda._sleep(SECOND // 10)
            result[:1 << 12].copy_(x)
            del x
            y = shoal.tensor(b"\xff" * (4 << 12), device="cuda")
            self.assertEqual(result[:1 << 12].unique().tolist(), [number])
            del y


if __name__ == "__main__":
    support.mp.set_forkserver_preload(["torch", "shoal.torch"])
    unittest.main()
