"""PyTorch on one GPU: training steps of the MNIST networks in one and in several processes, and a tensor sent and answered.

SHOAL_DATA names the folder of the data. PyTorch at its best: the data on the GPU, batches taken there by index, the whole
step captured as a CUDA graph; also as most people write it (eager). Several processes share the parameters (Hogwild) and run
under a private MPS daemon if the machine has one. f32 rows switch TF32 off; tf32 rows have it on for convolutions, which is
PyTorch's default, and for products.

usage: torch_cuda.py [steps|processes|tensors ...]    without arguments: all
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from torch_train import DEVIATION, MEAN, FedavgCnn, MnistCnn, read  # noqa: E402

SECONDS = 0.7  # for one measurement
WAIT = 120
MOST = 8  # processes
TRIPS = 200

# name, network, batch, learning rate, TF32, numbers of processes
STEPS = (
    ("mnist_cnn", MnistCnn, 64, 0.01, False, (4, MOST)),
    ("fedavg_cnn_b10", FedavgCnn, 10, 0.05, False, (4,)),
    ("fedavg_cnn_b50", FedavgCnn, 50, 0.05, False, (4,)),
    ("fedavg_cnn_b10_tf32", FedavgCnn, 10, 0.05, True, (4,)),
    ("fedavg_cnn_b50_tf32", FedavgCnn, 50, 0.05, True, (4,)),
)


def tell(name, value, unit="1/s"):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def data_on_card():
    images = (read("train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float() / 255 - MEAN) / DEVIATION
    return images.cuda(), read("train-labels-idx1-ubyte.gz", 8).long().cuda()


class Trainer:
    """Steps of one network on random batches; eager, or as a replayed graph."""

    def __init__(self, model, images, labels, batch, lr, tf32, graph):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        self.model, self.images, self.labels, self.batch = model, images, labels, batch
        self.sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5 if isinstance(model, MnistCnn) else 0)
        self.order = torch.randperm(len(labels), device="cuda")
        self.at = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.rows = torch.arange(batch, device="cuda")
        self.run = self.step
        if graph:
            self.capture()

    def step(self):
        numbers = self.order[(self.rows + self.at) % len(self.order)]
        self.at += self.batch
        self.sgd.zero_grad(set_to_none=True)
        loss = F.nll_loss(self.model(self.images[numbers]), self.labels[numbers])
        loss.backward()
        self.sgd.step()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.run = graph.replay

    def images_per_second(self, seconds=SECONDS):
        for _ in range(20):
            self.run()
        torch.cuda.synchronize()
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for _ in range(50):
                self.run()
            torch.cuda.synchronize()
            steps += 50
        return steps * self.batch / (time.perf_counter() - begun)


def steps():
    images, labels = data_on_card()
    for name, network, batch, lr, tf32, _ in STEPS:
        for graph in (False, True):
            trainer = Trainer(network().cuda(), images, labels, batch, lr, tf32, graph)
            tell(f"torch_cuda_{name}_{'graph' if graph else 'eager'}", trainer.images_per_second())


class Mps:
    """A private MPS daemon."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="torch-mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = self.folder
        self.program = shutil.which("nvidia-cuda-mps-control")
        if self.program:
            subprocess.run([self.program, "-d"], check=True)

    def __exit__(self, *_):
        if self.program:
            subprocess.run([self.program], input="quit\n", text=True, stdout=subprocess.DEVNULL, timeout=60)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            del os.environ[name]
        shutil.rmtree(self.folder, ignore_errors=True)


def train_in_process(rank, models, barrier, results):
    images, labels = data_on_card()
    for name, network, batch, lr, tf32, counts in STEPS:
        for count in counts:
            trainer = Trainer(models[name], images, labels, batch, lr, tf32, True) if rank < count else None
            barrier.wait(WAIT)
            if trainer:
                results.put((name, count, trainer.images_per_second(1.5)))
            barrier.wait(WAIT)


def processes():
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(MOST + 1), context.Queue()
    models = {name: network().cuda() for name, network, *_ in STEPS}
    children = [context.Process(target=train_in_process, args=(rank, models, barrier, results)) for rank in range(MOST)]
    for child in children:
        child.start()
    for name, *_, counts in STEPS:
        for count in counts:
            barrier.wait(WAIT)
            tell(f"torch_cuda_{name}_graph_{count}", sum(results.get(timeout=WAIT)[2] for _ in range(count)))
            barrier.wait(WAIT)
    for child in children:
        child.join(WAIT)


def answer(there, back):
    torch.cuda.synchronize()
    while (tensor := there.get(timeout=WAIT)) is not None:
        back.put(tensor.clone() + 1)
        del tensor


def tensors():
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(there, back))
    child.start()
    tensor = torch.zeros(16, device="cuda")
    seconds = []
    for trip in range(TRIPS + 20):
        begun = time.perf_counter()
        there.put(tensor)
        same = back.get(timeout=WAIT)
        seconds.append(time.perf_counter() - begun)
        if trip % 50 == 0 and float(same[0]) != 1:
            sys.exit("a wrong answer")
        del same
    tell("torch_cuda_tensor_round_trip", statistics.median(seconds[20:]) * 1e6, "us")
    there.put(None)
    child.join(WAIT)


def main():
    wanted = sys.argv[1:] or ["steps", "processes", "tensors"]
    if "processes" in wanted:  # first: a context that exists before the daemon does not use it
        with Mps():
            subprocess.run([sys.executable, __file__, "--inside"], check=True)
    if "--inside" in wanted:
        processes()
    if "steps" in wanted:
        steps()
    if "tensors" in wanted:
        tensors()


if __name__ == "__main__":
    main()
