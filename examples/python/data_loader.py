"""PyTorch's DataLoader with our context: the batches of its workers come by handle."""
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import shoal.multiprocessing as mp

import mnist


def main():
    torch.set_num_threads(1)
    images, labels = mnist.load(train=False, count=10000)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True, num_workers=2,
                        multiprocessing_context=mp.get_context("fork"))
    begun, count, total = time.perf_counter(), 0, 0.0
    for x, y in loader:
        count += len(y)
        total += float(x.sum())
    seconds = time.perf_counter() - begun
    assert count == len(labels) and abs(total - float(images.sum())) < 1
    print(f"{count} images in {len(loader)} batches, {len(loader) / seconds:,.0f} batches/s")


if __name__ == "__main__":
    main()
