"""Hogwild on a CUDA GPU: four processes train one model, whose parameters are in GPU memory that they share.

With torch.multiprocessing, the process that made the model would have to stay; here the last one that holds it is enough.
"""
import torch
import torch.nn.functional as F

import shoal.multiprocessing as mp

import mnist

PROCESSES, IMAGES, BATCH = 4, 6000, 64


def train(rank, model):
    torch.manual_seed(rank)
    images, labels = (data.cuda() for data in mnist.load(train=True, count=IMAGES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for chosen in torch.randperm(IMAGES, device="cuda").split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()  # changes the parameters of all processes


def main():
    if not torch.cuda.is_available():
        raise SystemExit("this example needs a CUDA GPU and a torch that can use it")
    torch.manual_seed(1)
    model = mnist.Net().cuda()
    mp.spawn(train, (model,), nprocs=PROCESSES)  # CUDA does not work across a fork
    images, labels = (data.cuda() for data in mnist.load(train=False, count=2000))
    print(f"{PROCESSES} processes: {mnist.accuracy(model, images, labels):.1f} % of the test images are right")


if __name__ == "__main__":
    main()
