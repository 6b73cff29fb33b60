"""PyTorch's Hogwild example as a whole job: 4 spawned processes train one shared model for one epoch, then it is tested.

bench/compare times this program from outside, including imports. SHOAL_DATA names the folder of the data. Everything that could
be slow is done in PyTorch's fastest way: the images are read and normalised once and shared, and each process takes its batches
from them by index, in a different order; there is no DataLoader.
"""
import json

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from torch_train import DEVIATION, MEAN, MnistCnn, read

WORKERS, BATCH = 4, 64


def load(part):
    images = read(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    return (images.float().div_(255).sub_(MEAN).div_(DEVIATION)), read(f"{part}-labels-idx1-ubyte.gz", 8).long()


def train(rank, model, images, labels):
    torch.set_num_threads(1)
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    order = torch.randperm(len(images))
    for i in range(0, len(images), BATCH):
        chosen = order[i:i + BATCH]
        optimizer.zero_grad()
        F.nll_loss(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        right = sum((model(images[i:i + 1000]).argmax(1) == labels[i:i + 1000]).sum().item()
                    for i in range(0, len(images), 1000))
    return right / len(images)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = MnistCnn()
    model.share_memory()
    images, labels = load("train")
    images.share_memory_()
    labels.share_memory_()
    mp.spawn(train, args=(model, images, labels), nprocs=WORKERS)
    print(json.dumps({"name": "torch_hogwild_job_accuracy", "value": 100 * accuracy(model, *load("t10k")), "unit": "%"}))


if __name__ == "__main__":
    main()
