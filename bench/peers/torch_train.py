"""PyTorch on one thread: training steps of the MNIST networks, and batches from a DataLoader with two workers.

SHOAL_DATA names the folder of the data. Batches are taken by index from normalised tensors in memory, which is PyTorch's
fastest way: no transform runs while training is measured.
"""
import gzip
import json
import os
import statistics
import time

import numpy
import torch
import torch.nn.functional as F

MEAN, DEVIATION = 0.1307, 0.3081
ROUNDS = 5


def tell(name, value):
    print(json.dumps({"name": name, "value": value, "unit": "1/s"}), flush=True)


def read(name, skip):
    with gzip.open(os.path.join(os.environ["SHOAL_DATA"], name)) as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), numpy.uint8, offset=skip).copy())


class MnistCnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.conv2_drop = torch.nn.Dropout2d()
        self.fc1 = torch.nn.Linear(320, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.view(-1, 320)))
        return F.log_softmax(self.fc2(F.dropout(x, training=self.training)), dim=1)


class FedavgCnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = torch.nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = torch.nn.Linear(3136, 512)
        self.fc2 = torch.nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.view(-1, 3136)))
        return F.log_softmax(self.fc2(x), dim=1)


def images_per_second(model, images, labels, batch, count, **settings):
    optimizer = torch.optim.SGD(model.parameters(), **settings)

    def steps(count):
        order = torch.randperm(len(images))
        for i in range(0, count, batch):
            chosen = order[i:i + batch]
            x, y = images[chosen], labels[chosen]
            optimizer.zero_grad()
            F.nll_loss(model(x), y).backward()
            optimizer.step()

    steps(10 * batch)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        steps(count)
        seconds.append(time.perf_counter() - begun)
    return count / statistics.median(seconds)


class Bytes(torch.utils.data.Dataset):
    """One byte a pixel; a sample is normalised when it is read."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return (self.images[i].float().div(255) - MEAN) / DEVIATION, self.labels[i]


def batches_per_second(images, labels, count):
    loader = torch.utils.data.DataLoader(
        Bytes(images, labels), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    rates = []
    for _ in range(3):
        begun = None
        for i, _batch in enumerate(loader):
            if i == 10:
                begun = time.perf_counter()  # by now the workers are running and prefetching
            if i == 10 + count:
                rates.append(count / (time.perf_counter() - begun))
                break
    return statistics.median(rates)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images = read("train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    labels = read("train-labels-idx1-ubyte.gz", 8).long()
    normal = (images.float().div(255) - MEAN) / DEVIATION
    tell("torch_train_mnist_cnn_images_per_second",
         images_per_second(MnistCnn(), normal, labels, 64, 6400, lr=0.01, momentum=0.5))
    tell("torch_train_fedavg_cnn_b10_images_per_second", images_per_second(FedavgCnn(), normal, labels, 10, 1000, lr=0.1))
    tell("torch_train_fedavg_cnn_b50_images_per_second", images_per_second(FedavgCnn(), normal, labels, 50, 1000, lr=0.1))
    tell("torch_loader_2_workers_batches_per_second", batches_per_second(images, labels, 300))


if __name__ == "__main__":
    main()
