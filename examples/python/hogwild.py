"""Hogwild, as in PyTorch's notes on multiprocessing: four processes train one model at the same time, without a lock.

It is a program for torch.multiprocessing. Only the import was changed.
"""
import torch
import torch.nn.functional as F

import shoal.multiprocessing as mp

import mnist

PROCESSES, IMAGES, BATCH = 4, 6000, 64


def train(rank, model):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    images, labels = mnist.load(train=True, count=IMAGES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for chosen in torch.randperm(IMAGES).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()  # changes the parameters of all processes


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = mnist.Net()
    model.share_memory()
    processes = [mp.Process(target=train, args=(rank, model)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode != 0 for process in processes):
        raise SystemExit("a process failed")
    print(f"{PROCESSES} processes: {mnist.accuracy(model, *mnist.load(train=False, count=2000)):.1f} % of the test images are right")


if __name__ == "__main__":
    main()
