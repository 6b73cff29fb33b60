"""Synchronous training: each step uses the average of the workers' gradients, so all see the same model all the time.

The workers send their gradients through a queue. What travels is a handle: the memory is shared, so a worker fills the
same tensors again for its next step. A barrier keeps the steps apart.
"""
import torch
import torch.nn.functional as F

import shoal.multiprocessing as mp

import mnist

WORKERS, STEPS, BATCH = 2, 60, 64


def work(rank, model, gradients, barrier):
    torch.set_num_threads(1)
    images, labels = mnist.load(train=True, count=WORKERS * STEPS * BATCH)
    for step in range(STEPS):
        first = (step * WORKERS + rank) * BATCH  # each worker has its own part of the batch
        model.zero_grad()
        F.cross_entropy(model(images[first:first + BATCH]), labels[first:first + BATCH]).backward()
        gradients.put((rank, [parameter.grad for parameter in model.parameters()]))
        barrier.wait()  # the parent has all gradients ...
        barrier.wait()  # ... and has changed the model


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = mnist.Net()
    gradients, barrier = mp.Queue(), mp.Barrier(WORKERS + 1)
    context = mp.spawn(work, (model, gradients, barrier), WORKERS, join=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for _ in range(STEPS):
        barrier.wait()
        received = [part for _, part in sorted((gradients.get() for _ in range(WORKERS)), key=lambda message: message[0])]
        for parameter, *parts in zip(model.parameters(), *received):
            parameter.grad = torch.stack(parts).mean(0)
        optimizer.step()  # the workers' model is the same memory
        barrier.wait()
    while not context.join():
        pass
    print(f"{STEPS} steps of {WORKERS} workers: {mnist.accuracy(model, *mnist.load(train=False, count=2000)):.1f} % are right")


if __name__ == "__main__":
    main()
