#!/usr/bin/python3
"""Writes the golden values of whole training steps: tests/golden_train/values.txt. README.md says what is in it.

Run by hand with a Python that has PyTorch (Debian's python3-torch will do):  /usr/bin/python3 tests/golden_train/generate.py
Everything is computed in f64 on one thread, from inputs that f32 holds exactly, so the file does not depend on the machine.

Inputs are not stored. Both sides compute them from a 32-bit linear congruential generator, s = 1664525 s + 1013904223, of which
each number takes the upper 16 bits, r. A parameter, the i-th of the model from 1, begins with seed seed + 7919 i and is
(r - 32768) / 32768 · 2^-k, where 2^-k is the greatest power of two that is at most 1 / sqrt(fan_in); a bias takes the fan of the weight
before it. Images: r / 65536 from seed + 100; labels: r % 10 from seed + 101; masks: 2 when r >= 32768, else 0, from
seed + 200 and seed + 201. All are exact in f32.

Values are PyTorch's in f64, so what the test sees is our rounding alone. Of a tensor over 96 elements 96 are stored, the i-th at
i · step % count; of every tensor also sum, 2-norm and greatest magnitude, which the elements between the samples take part in.

Compared are, with b the golden value and max the tensor's greatest magnitude:
- |a - b| <= 1e-5 max: the errors of a tensor are made by sums over the same activations, so they are alike in size, and small
  elements carry the errors of the large ones;
- and |a - b| <= 1e-4 |b| + 1e-6 max: yet an element that is not tiny must be right by itself;
- norm and greatest magnitude to 1e-5 of themselves; the sum to 1e-5 of sqrt(count) norms, its greatest possible size; the loss to 1e-5.

Errors seen are below 1e-6 of max. Two choices keep it so. A rounding error must not turn a decision: generate.py takes the first seed
for which every pool's winner leads, and every relu's input is away from 0, by 5e-6. And Adam's eps is 1e-3: with the usual 1e-8 the
first step is lr times the gradient's sign, and the sign of a gradient that is 0 but for rounding is arbitrary.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SAMPLES = 96  # values stored of a tensor that has more
MARGIN = 5e-6  # how far every decision (which wins a pool, what relu passes) must be from its turning point


# ---- numbers from a formula: golden_train.c has the same in C ----

def lcg(seed, count):
    """16-bit numbers: the upper halves of a 32-bit linear congruential generator (Numerical Recipes)."""
    numbers = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        numbers.append(seed >> 16)
    return torch.tensor(numbers, dtype=torch.float64)


def scale(fan_in):
    """The greatest power of two that is at most 1 / sqrt(fan_in)."""
    k = 0
    while 4**k < fan_in:
        k += 1
    return 2.0**-k


def fill(model, seed):
    fan_in = 1
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            if p.dim() > 1:  # a bias takes the fan of the weight before it
                fan_in = p[0].numel()
            numbers = (lcg(seed + 7919 * (i + 1), p.numel()) - 32768) / 32768 * scale(fan_in)
            p.copy_(numbers.reshape(p.shape))


def batch(seed, count):
    x = lcg(seed, count * 784).reshape(count, 1, 28, 28) / 65536
    return x, (lcg(seed + 1, count) % 10).long()


def mask(seed, *shape):
    """Multipliers of dropout with p = 0.5: 0 or 2."""
    count = 1
    for size in shape:
        count *= size
    return (lcg(seed, count) >= 32768).double().reshape(shape) * 2


# ---- the models ----

class Watch:
    """Keeps the smallest distance of any decision from its turning point."""

    def __init__(self):
        self.margin = float("inf")

    def relu(self, x):
        nonzero = x[x != 0].abs()  # a dropped unit is 0 on both sides
        self.margin = min(self.margin, nonzero.min().item())
        return F.relu(x)

    def pool(self, x):
        windows = F.unfold(x.reshape(-1, 1, *x.shape[2:]), 2, stride=2).transpose(1, 2).reshape(-1, 4)
        top = windows.sort(dim=1, descending=True).values
        deciding = top[:, 0] > 0  # below that relu passes nothing, whoever won
        self.margin = min(self.margin, (top[deciding, 0] - top[deciding, 1]).min().item())
        return F.max_pool2d(x, 2)


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x, watch, masks=None):
        x = watch.relu(watch.pool(self.conv1(x)))
        x = self.conv2(x)
        x = watch.relu(watch.pool(x * masks[0] if masks else x))
        x = watch.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x * masks[1] if masks else x), dim=1)


class FedavgCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(3136, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x, watch, masks=None):
        x = watch.relu(watch.pool(self.conv1(x)))  # the same as pooling after relu, with fewer decisions
        x = watch.relu(watch.pool(self.conv2(x)))
        x = watch.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
    # A larger eps than usual: at 1e-8 the first step is lr times the sign of the gradient, so a gradient that is 0 but for
    # rounding moves its parameter by the whole lr one way or the other.
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.002, eps=1e-3),
}


# ---- writing ----

def number(x):
    return f"{x:.9g}"


def write_tensor(out, name, t):
    """All values or, of a large one, SAMPLES of them, at (i * step) % count with an odd step near the golden ratio."""
    t = t.detach().flatten()
    n = t.numel()
    if n > SAMPLES:
        step = int(n * 0.6180339887) | 1
        while torch.gcd(torch.tensor(step), torch.tensor(n)) != 1:
            step += 2
        values = t[torch.tensor([i * step % n for i in range(SAMPLES)])]
    else:
        step, values = 1, t
    out.append(f"tensor {name} {n} {step} {len(values)} {number(t.sum())} {number(t.norm())} {number(t.abs().max())}")
    for i in range(0, len(values), 8):
        out.append(" ".join(number(v) for v in values[i:i + 8]))


def run(out, title, make, seed, count, optimizer, with_masks):
    model = make().double()
    fill(model, seed)
    x, y = batch(seed + 100, count)
    masks = [mask(seed + 200, count, 20, 1, 1), mask(seed + 201, count, 50)] if with_masks else None
    watch = Watch()
    steps = OPTIMIZERS[optimizer](model.parameters())
    out.append(f"case {title} {optimizer} {'masks' if with_masks else 'plain'} {seed} {count}")
    for step in (1, 2, 3):
        steps.zero_grad()
        loss = F.nll_loss(model(x, watch, masks), y)
        loss.backward()
        out.append(f"loss {step} {number(loss.item())}")
        if step == 1:
            for name, p in model.named_parameters():
                write_tensor(out, "grad " + name, p.grad)
        steps.step()
        if step != 2:
            for name, p in model.named_parameters():
                write_tensor(out, f"after{step} {name}", p)
    out.append("end")
    return watch.margin


def main():
    torch.set_num_threads(1)
    out = ["# Written by generate.py; README.md says what it is."]
    cases = [("mnist-cnn", MnistCnn, 4, False), ("mnist-cnn", MnistCnn, 4, True), ("fedavg-cnn", FedavgCnn, 2, False)]
    for title, make, count, with_masks in cases:
        for optimizer in OPTIMIZERS:
            for seed in range(1, 200):  # the first with a margin: there a rounding error turns no decision
                lines = []
                margin = run(lines, title, make, seed, count, optimizer, with_masks)
                if margin > MARGIN:
                    break
            else:
                raise SystemExit(f"{title}: no seed has a margin of {MARGIN}")
            print(f"{title} {optimizer} masks={with_masks}: seed {seed}, margin {margin:.2g}")
            out += lines
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "values.txt"), "w") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
