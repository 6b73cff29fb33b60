"""Writes the first images of MNIST to a folder: the data set of the programs that are tested in a sanitized build, where an image takes
20 times as long.

    tests/train/few_images.py <folder of MNIST> <new folder>
"""
import gzip
import os
import struct
import sys

TRAIN = 6000
TEST = 500


def copy(source, target, name, count, size):
    """The header has a word for each dimension; the first is the number of images."""
    with gzip.open(os.path.join(source, name + ".gz")) as file:
        head = 8 if size == 1 else 16
        data = file.read(head + count * size)
    with gzip.open(os.path.join(target, name + ".gz"), "wb") as file:
        file.write(data[:4] + struct.pack(">I", count) + data[8:])


def main(source, target):
    os.makedirs(target, exist_ok=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        copy(source, target, part + "-images-idx3-ubyte", count, 28 * 28)
        copy(source, target, part + "-labels-idx1-ubyte", count, 1)


main(*sys.argv[1:])
