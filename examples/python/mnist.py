"""MNIST and a small network, for the examples with PyTorch."""
import gzip
import os

import numpy
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.normpath(os.environ.get("SHOAL_DATA", os.path.join(HERE, "..", "..", "data")))
if os.path.basename(FOLDER) != "mnist":  # it holds several data sets
    FOLDER = os.path.join(FOLDER, "mnist")


def load(train, count):
    """Returns the first images, normalised, and their labels."""
    name = "train" if train else "t10k"
    with gzip.open(os.path.join(FOLDER, f"{name}-images-idx3-ubyte.gz")) as file:
        pixels = numpy.frombuffer(file.read(16 + count * 28 * 28), numpy.uint8, offset=16)
    with gzip.open(os.path.join(FOLDER, f"{name}-labels-idx1-ubyte.gz")) as file:
        labels = numpy.frombuffer(file.read(8 + count), numpy.uint8, offset=8)
    images = torch.from_numpy(pixels.astype(numpy.float32)).view(-1, 1, 28, 28)
    return (images / 255 - 0.1307) / 0.3081, torch.from_numpy(labels.astype(numpy.int64))


class Net(torch.nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.hidden = torch.nn.Linear(320, 50)
        self.out = torch.nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.out(F.relu(self.hidden(x.flatten(1))))


@torch.no_grad()
def accuracy(model, images, labels):
    """The share of the images that the model classifies correctly, in percent."""
    return 100 * float((model(images).argmax(1) == labels).float().mean())
