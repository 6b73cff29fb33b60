#!/usr/bin/env python3
"""Writes ops.bin: inputs, results and gradients of ops as PyTorch computes them. README.md tells the format.

usage: tests/golden/generate.py        (needs torch; run by hand when a case is added, the file is committed)

A case is a name, which src/autograd/golden_test.c maps to a call, a function, and its inputs. Each runs in f32 and in f64
when it has an input of floats.
"""
import os
import struct

import torch
import torch.nn.functional as F

DTYPES = {
    torch.float32: (0, "<f4"), torch.float64: (1, "<f8"), torch.int64: (4, "<i8"), torch.int32: (5, "<i4"),
    torch.uint8: (6, "u1"), torch.bool: (7, "u1"),
}
FLOATS = (torch.float32, torch.float64)

cases = []
generator = torch.Generator().manual_seed(1)


def n(*shape):
    """Normal."""
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def p(*shape):
    """Positive, 0.5 to 2."""
    return 0.5 + 1.5 * torch.rand(shape, dtype=torch.float64, generator=generator)


def u(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=generator)


def t(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def i(below, *shape, dtype=torch.int64):
    return torch.randint(0, below, shape, generator=generator).to(dtype)


def b(*shape):
    return torch.rand(shape, generator=generator) < 0.5


def case(name, function, *inputs, grad=None):
    cases.append((name, function, inputs, grad))


ZEROS = [-1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0]

for shape in ((3, 4), (2, 1, 5)):
    case("abs", torch.abs, n(*shape))
    case("square", torch.square, n(*shape))
    case("sqrt", torch.sqrt, p(*shape))
    case("rsqrt", torch.rsqrt, p(*shape))
    case("reciprocal", torch.reciprocal, p(*shape))
    case("exp", torch.exp, n(*shape))
    case("log", torch.log, p(*shape))
    case("sin", torch.sin, n(*shape))
    case("cos", torch.cos, n(*shape))
    case("sigmoid", torch.sigmoid, 4 * n(*shape))
    case("tanh", torch.tanh, 2 * n(*shape))
    case("relu", torch.relu, n(*shape))
    case("gelu", F.gelu, 2 * n(*shape))
    case("neg", torch.neg, n(*shape))
    case("sign", torch.sign, n(*shape))
    case("add_scalar", lambda x: x + 1.5, n(*shape))
    case("mul_scalar", lambda x: x * -2.5, n(*shape))
    case("pow_scalar", lambda x: x ** 2.5, p(*shape))
    case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), n(*shape))
    case("clamp", lambda x: x.clamp(-1, 1), n(*shape))
    case("clone", torch.clone, n(*shape))
    case("fill_", lambda x: x * 0 + 2, n(*shape))
case("abs", torch.abs, t(ZEROS))
case("sign", torch.sign, t(ZEROS))
case("relu", torch.relu, t(ZEROS))
case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), t(ZEROS))
case("clamp", lambda x: x.clamp(-1, 1), t(ZEROS))
case("sigmoid", torch.sigmoid, t([-100.0, -30.0, 30.0, 100.0]))
case("abs", torch.abs, i(9, 6) - 4)
case("neg", torch.neg, i(9, 6, dtype=torch.int32))
case("logical_not", torch.logical_not, b(5))

PAIRS = (((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 3)))
for x, y in PAIRS:
    case("add", torch.add, n(*x), n(*y))
    case("sub", torch.sub, n(*x), n(*y))
    case("mul", torch.mul, n(*x), n(*y))
    case("div", torch.div, n(*x), p(*y))
    case("pow", torch.pow, p(*x), n(*y))
    case("maximum", torch.maximum, n(*x), n(*y))
    case("minimum", torch.minimum, n(*x), n(*y))
    case("where", torch.where, b(*torch.broadcast_shapes(x, y)), n(*x), n(*y))
    case("eq", torch.eq, i(3, *x), i(3, *y))
    case("ne", torch.ne, i(3, *x, dtype=torch.uint8), i(3, *y, dtype=torch.uint8))
    case("lt", torch.lt, n(*x), n(*y))
    case("le", torch.le, i(3, *x, dtype=torch.int32), i(3, *y, dtype=torch.int32))
    case("gt", torch.gt, n(*x), n(*y))
    case("ge", torch.ge, i(3, *x), i(3, *y))
    case("logical_and", torch.logical_and, b(*x), b(*y))
    case("logical_or", torch.logical_or, b(*x), b(*y))
case("add_scaled", lambda x, y: x + 0.3 * y, n(3, 4), n(4))
case("copy_", lambda x, y: x * 0 + y, n(3, 4), n(4))
case("maximum", torch.maximum, t([1.0, 2.0, 3.0]), t([1.0, 3.0, 2.0]))
case("minimum", torch.minimum, t([1.0, 2.0, 3.0]), t([1.0, 3.0, 2.0]))
case("pow", torch.pow, t([0.0, 0.0, 2.0, -2.0]), t([0.0, 2.0, 0.0, 3.0]))
for kind in (torch.int64, torch.int32, torch.uint8):
    case("add", torch.add, i(100, 3, 2, dtype=kind), i(100, 2, dtype=kind))
    case("mul", torch.mul, i(9, 3, 2, dtype=kind), i(9, 2, dtype=kind))
    case("div", lambda x, y: torch.div(x, y, rounding_mode="trunc"), i(100, 3, 2, dtype=kind), 1 + i(9, 2, dtype=kind))
    case("sum.0", lambda x: x.sum(0), i(100, 3, 2, dtype=kind))
case("masked_fill", lambda x, m: x.masked_fill(m, 2.0), n(3, 4), b(3, 4))

case("view", lambda x: x.reshape(2, -1), n(3, 4))
case("permute", lambda x: x.permute(2, 0, 1), n(2, 3, 4))
case("expand", lambda x: x.expand(3, 2, -1), n(1, 4))
case("slice", lambda x: x[:, 1:6:2], n(2, 7))
case("select", lambda x: x.select(1, -1), n(2, 7))
case("to", lambda x: x.to(torch.float64), n(2, 3))
for shape in ((2, 3, 4), (5, 1, 2)):
    for name, function in (("sum", torch.sum), ("mean", torch.mean), ("prod", torch.prod)):
        case(name, function, n(*shape))
        case(name + ".0", lambda x, f=function: f(x, 0), n(*shape))
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True), n(*shape))
    for name, function in (("max", torch.max), ("min", torch.min)):
        case(name, function, n(*shape))
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True).values, n(*shape))
    for name, function in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        case(name, function, n(*shape))
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True), n(*shape))
    case("any.1.keep", lambda x: x.any(1, keepdim=True), b(*shape))
    case("all.1.keep", lambda x: x.all(1, keepdim=True), b(*shape))
    case("logsumexp", lambda x: x.logsumexp((0, 1, 2)), n(*shape))
    case("logsumexp.1.keep", lambda x: x.logsumexp(1, keepdim=True), 50 * n(*shape))
    case("norm", torch.norm, n(*shape))
case("max", torch.max, t([[1.0, 3.0], [3.0, 2.0]]))
case("min", torch.min, t([[1.0, 3.0], [1.0, 2.0]]))
case("prod", torch.prod, t([2.0, 0.0, 3.0]))
case("norm", torch.norm, t([0.0, 0.0]))

case("matmul", torch.matmul, n(3, 4), n(4, 2))
case("matmul", torch.matmul, n(2, 3, 4), n(4, 2))
case("matmul", torch.matmul, n(2, 1, 3, 4), n(3, 4, 2))
case("matmul", torch.matmul, i(9, 3, 4), i(9, 4, 2))
case("linear", F.linear, n(5, 3), n(4, 3), n(4))
case("linear", F.linear, n(2, 2, 3), n(4, 3), n(4))
case("linear_relu", lambda x, w, c: F.linear(x, w, c).relu(), n(5, 3), n(4, 3), n(4))

case("cat", lambda x, y, z: torch.cat((x, y, z), 1), n(2, 3), n(2, 1), n(2, 2))
case("stack", lambda x, y: torch.stack((x, y), 1), n(2, 3), n(2, 3))
case("index_select", lambda x, k: torch.index_select(x, 1, k), n(2, 3, 2), i(3, 5))
case("embedding", lambda w, k: F.embedding(k, w), n(4, 3), i(4, 2, 3))
case("gather", lambda x, k: torch.gather(x, 1, k), n(2, 4), i(4, 2, 3))
case("scatter_add", lambda x, k, s: x.scatter_add(0, k, s), n(3, 2), i(3, 4, 2), n(4, 2))
case("one_hot", lambda k: F.one_hot(k, 5), i(5, 2, 3))

case("conv2d", F.conv2d, n(2, 1, 6, 5), n(3, 1, 3, 3), n(3))
case("conv2d", F.conv2d, n(1, 3, 4, 4), n(2, 3, 2, 1), n(2))
case("conv2d.options", lambda x, w, c: F.conv2d(x, w, c, (2, 1), (1, 2), (1, 2), 2), n(2, 4, 6, 5), n(4, 2, 3, 2), n(4))
case("conv2d_pool_relu", lambda x, w, c: F.max_pool2d(F.conv2d(x, w, c, padding=1), 2).relu(), n(2, 2, 6, 7), n(3, 2, 3, 3), n(3))
case("max_pool2d", lambda x: F.max_pool2d(x, 2), n(2, 2, 5, 4))
case("max_pool2d", lambda x: F.max_pool2d(x, 2), t([[[[1.0, 1.0, 2.0, 0.0], [1.0, 0.0, 2.0, 2.0]]]]))
case("max_pool2d.options", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1)), n(2, 2, 6, 5))
case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), n(2, 2, 5, 4))
case("avg_pool2d.options", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1)), n(2, 2, 6, 5))

for shape in ((3, 4), (2, 5, 3)):
    case("softmax.1", lambda x: x.softmax(1), 3 * n(*shape))
    case("log_softmax.1", lambda x: x.log_softmax(1), 3 * n(*shape))
    case("log_softmax.0", lambda x: x.log_softmax(0), 3 * n(*shape))
case("log_softmax.1", lambda x: x.log_softmax(1), t([[1000.0, 0.0, -1000.0]]))
SOME = torch.tensor([1, -100, 0, 3])
case("nll_loss", F.nll_loss, n(4, 5), i(5, 4))
case("nll_loss", F.nll_loss, n(4, 5), SOME)
case("nll_loss.weight", lambda x, k, w: F.nll_loss(x, k, w.detach()), n(4, 5), SOME, p(5))
case("nll_loss.none", lambda x, k: F.nll_loss(x, k, reduction="none"), n(4, 5), SOME)
case("nll_loss.sum", lambda x, k: F.nll_loss(x, k, reduction="sum"), n(2, 5, 2), torch.tensor([[1, -100], [0, 3]]))
case("cross_entropy", F.cross_entropy, 3 * n(4, 5), SOME)
case("cross_entropy.none", lambda x, k: F.cross_entropy(x, k, reduction="none"), 3 * n(4, 5), SOME)
case("cross_entropy.sum", lambda x, k: F.cross_entropy(x, k, reduction="sum"), 3 * n(4, 5), SOME)
LOSSES = (("mse_loss", F.mse_loss), ("l1_loss", F.l1_loss), ("smooth_l1_loss", F.smooth_l1_loss),
          ("bce_with_logits", F.binary_cross_entropy_with_logits))
for name, function in LOSSES:
    for reduction in ("mean", "sum", "none"):
        case(name + "." + reduction, lambda x, y, f=function, r=reduction: f(x, y, reduction=r), 2 * n(3, 4), u(3, 4))
case("smooth_l1_loss.none", lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), t([0.0, 1.0, -1.0, 3.0]), t([0.0, 0.0, 0.0, 0.5]))
case("l1_loss.none", lambda x, y: F.l1_loss(x, y, reduction="none"), t([0.0, 1.0]), t([0.0, 3.0]))
case("bce_with_logits.none", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
     t([-80.0, -20.0, 0.0, 20.0, 80.0]), t([0.0, 0.0, 0.5, 1.0, 0.0]))

case("layer_norm", lambda x, w, c: F.layer_norm(x, w.shape, w, c, 1e-5), n(3, 6), n(6), n(6))
case("layer_norm.2", lambda x, w, c: F.layer_norm(x, w.shape, w, c, 1e-5), n(3, 2, 4), n(2, 4), n(2, 4))
case("layer_norm.plain", lambda x: F.layer_norm(x, x.shape[1:], None, None, 1e-3), n(3, 6))


def lstm(x, h, c, w_ih, w_hh, b_ih, b_hh):
    new_h, new_c = torch.lstm_cell(x, (h, c), w_ih, w_hh, b_ih, b_hh)
    return new_h + 0.5 * new_c


case("lstm_cell", lstm, n(2, 3), n(2, 4), n(2, 4), n(16, 3), n(16, 4), n(16), n(16))
case("lstm_cell", lstm, n(1, 1), n(1, 2), n(1, 2), n(8, 1), n(8, 2), n(8), n(8))


# ---- corners: NaN, infinities, wrap-around, nothing, eight dims, repeated rows, large numbers ----

NAN, INF = float("nan"), float("inf")
BIG = 3.4028234663852886e38
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0, 1e30, -1e-30]
UNARY = (("abs", torch.abs), ("square", torch.square), ("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt),
         ("reciprocal", torch.reciprocal), ("exp", torch.exp), ("log", torch.log), ("sigmoid", torch.sigmoid),
         ("tanh", torch.tanh), ("relu", torch.relu), ("gelu", F.gelu), ("neg", torch.neg), ("sign", torch.sign),
         ("add_scalar", lambda x: x + 1.5), ("mul_scalar", lambda x: x * -2.5), ("pow_scalar", lambda x: x ** 2.5),
         ("leaky_relu", lambda x: F.leaky_relu(x, 0.1)), ("clamp", lambda x: x.clamp(-1, 1)),
         ("clamp.nan", lambda x: x.clamp(NAN, 1)), ("clamp.above", lambda x: x.clamp(min=0)),
         ("relu_", lambda x: x.clone().relu_()), ("clamp_", lambda x: x.clone().clamp_(-1, 1)),
         ("mul_scalar_", lambda x: x.clone().mul_(-2.5)))
EIGHT = (2, 1, 2, 1, 3, 1, 2, 1)
for name, function in UNARY:
    case(name, function, t(SPECIAL))
    case(name, function, p(0, 3))
    case(name, function, p(*EIGHT))
    case(name, function, p(1, 5).expand(3, 5))
for power in (2.0, 3.0):
    case("pow_scalar.%d" % power, lambda x, e=power: x ** e, t(SPECIAL))
    case("pow_scalar.%d" % power, lambda x, e=power: x ** e, n(*EIGHT))
for name, function in (("sin", torch.sin), ("cos", torch.cos)):
    case(name, function, t([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0, 1e4]))

VALUES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5]
LEFT = t([x for x in VALUES for _ in VALUES])
RIGHT = t([y for _ in VALUES for y in VALUES])
BINARY = (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div), ("maximum", torch.maximum),
          ("minimum", torch.minimum), ("pow", torch.pow), ("mul_", lambda x, y: x.clone().mul_(y)),
          ("div_", lambda x, y: x.clone().div_(y)))
COMPARE = (("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge))
for name, function in BINARY + COMPARE:
    case(name, function, LEFT, RIGHT)
    case(name, function, p(0, 3), p(3))
    case(name, function, p(*EIGHT), p(2, 1))
    case(name, function, p(1, 5).expand(3, 5), p(3, 5))
case("where", torch.where, b(49), LEFT, RIGHT)
case("where", torch.where, b(*EIGHT), n(3, 1, 1, 1), n(2, 1))
case("masked_fill", lambda x, m: x.masked_fill(m, 2.0), LEFT, b(49))

RANGES = ((torch.int64, -2 ** 63, 2 ** 63 - 1), (torch.int32, -2 ** 31, 2 ** 31 - 1), (torch.uint8, 0, 255))
for kind, low, high in RANGES:
    ends = t([low, low + 1, 0, 1, 7, high - 1, high], kind)
    for name, function in (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("maximum", torch.maximum),
                           ("minimum", torch.minimum)) + COMPARE:
        case(name, function, ends[:, None].expand(7, 7), ends)
    for name, function in (("neg", torch.neg), ("square", torch.square), ("relu", torch.relu), ("sign", torch.sign),
                           ("sum", torch.sum), ("prod", torch.prod), ("max", torch.max), ("min", torch.min),
                           ("argmax", torch.argmax), ("argmin", torch.argmin), ("clamp.above", lambda x: x.clamp(min=0)),
                           ("clamp.byte", lambda x: x.clamp(0, 255))):
        case(name, function, ends)
    case("sum.0", lambda x: x.sum(0), torch.stack((ends, ends)))
    case("div", lambda x, y: torch.div(x, y, rounding_mode="trunc"), ends, t([1, 2, 3, 7, 5, 2, 3], kind))
case("sum", torch.sum, b(9))
case("max.1.keep", lambda x: x.max(1, keepdim=True).values, b(3, 4))
for name, function in (("eq", torch.eq), ("lt", torch.lt), ("ge", torch.ge)):
    case(name, function, b(7), b(7))

REDUCE = (("sum", torch.sum), ("mean", torch.mean), ("prod", torch.prod))
EXTREME = (("max", torch.max), ("min", torch.min))
WITH_NAN = t([[1.0, NAN, 3.0, NAN], [2.0, 2.0, -INF, 1.0], [INF, INF, 0.5, -1.0]])
for rows in (WITH_NAN, WITH_NAN[1:], p(*EIGHT), p(1, 5).expand(3, 5)):
    for name, function in REDUCE:
        case(name, function, rows)
        case(name + ".0", lambda x, f=function: f(x, 0), rows)
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True), rows)
    for name, function in EXTREME:
        case(name, function, rows)
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True).values, rows)
    for name, function in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        case(name, function, rows)
        case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True), rows)
    case("logsumexp.1.keep", lambda x: x.logsumexp(1, keepdim=True), rows)
    case("norm", torch.norm, rows)
for name, function in REDUCE:
    case(name, function, p(0, 3))
    case(name + ".0", lambda x, f=function: f(x, 0), p(0, 3))
    case(name + ".1.keep", lambda x, f=function: f(x, 1, keepdim=True), p(2, 0, 3))
case("any.1.keep", lambda x: x.any(1, keepdim=True), b(2, 0, 3))
case("all.1.keep", lambda x: x.all(1, keepdim=True), b(2, 0, 3))
case("norm", torch.norm, p(0, 3))

SCORES = (t([[-BIG] * 4, [BIG] * 4, [1e38, 1e38, 0.0, -1e38]]), 1e12 + t([[0.0, 1.0, 2.0, 3.0], [-4.0, 0.0, 4.0, 0.0]]),
          t([[-INF, 0.0, 1.0, -INF], [INF, 0.0, 1.0, 2.0], [NAN, 0.0, 1.0, 2.0], [-INF] * 4]), p(0, 4), p(3, 0),
          p(*EIGHT), p(1, 5).expand(3, 5), 1e6 * n(3, 70))
for scores in SCORES:
    case("softmax.1", lambda x: x.softmax(1), scores)
    case("softmax.0", lambda x: x.softmax(0), scores)
    case("log_softmax.1", lambda x: x.log_softmax(1), scores)
    case("log_softmax.0", lambda x: x.log_softmax(0), scores)
for scores in SCORES[:3]:
    for reduction in ("mean", "sum", "none"):
        name = "cross_entropy" if reduction == "mean" else "cross_entropy." + reduction
        case(name, lambda x, k, r=reduction: F.cross_entropy(x, k, reduction=r), scores, i(4, scores.shape[0]))
case("cross_entropy.sum", lambda x, k: F.cross_entropy(x, k, reduction="sum"), p(0, 4), i(4, 0))
case("cross_entropy.none", lambda x, k: F.cross_entropy(x, k, reduction="none"), 1e12 + 3 * n(2, 4, 3), i(4, 2, 3))

# bce_with_logits: only where PyTorch's own answer is the limit (its formula has inf - inf for the others).
LOSS_X = [NAN, INF, -INF, 0.0, 1.0, 1.0, 3.0, 1e30]
LOSS_T = [0.0, 0.0, 2.0, 0.0, NAN, INF, -INF, 0.0]
for name, function in LOSSES:
    keep = [k for k in range(8) if name != "bce_with_logits" or k not in (2, 5, 6)]
    x, y = t([LOSS_X[k] for k in keep]), t([LOSS_T[k] for k in keep])
    for reduction in ("mean", "sum", "none"):
        case(name + "." + reduction, lambda x, y, f=function, r=reduction: f(x, y, reduction=r), x, y)
        case(name + "." + reduction, lambda x, y, f=function, r=reduction: f(x, y, reduction=r), n(*EIGHT), u(*EIGHT))
        case(name + "." + reduction, lambda x, y, f=function, r=reduction: f(x, y, reduction=r), n(0, 3), u(0, 3))

case("linear", F.linear, t([[NAN, 1.0, 0.0], [INF, 1.0, 0.0], [0.0, 1.0, 2.0]]), n(4, 3), n(4))
case("linear_relu", lambda x, w, c: F.linear(x, w, c).relu(), t([[NAN, 1.0, 0.0], [0.0, 1.0, 2.0]]), n(4, 3), n(4))
for rows, inner, outer in ((0, 3, 4), (2, 0, 4), (1, 130, 17), (7, 33, 9), (20, 40, 19)):
    case("linear", F.linear, n(rows, inner), n(outer, inner), n(outer))
    case("linear_relu", lambda x, w, c: F.linear(x, w, c).relu(), n(rows, inner), n(outer, inner), n(outer))
    case("matmul", torch.matmul, n(rows, inner), n(inner, outer))
case("linear", F.linear, n(2, 1, 2, 1, 1, 1, 2, 3), n(4, 3), n(4))
case("matmul", torch.matmul, n(2, 1, 2, 1, 1, 1, 2, 3), n(2, 1, 3, 4))

# For N1: products that overflow in f32 or in f64, depending on their order; infinite gradients; tensors of nothing and without dims.
WIDE = [0.0, 1e-30, 1e-160, 0.5, 3.0, 1e20, 2e38, 1e200, 1.5e308, INF, NAN]
PAIRED = t([x for x in WIDE for _ in WIDE]), t([g for _ in WIDE for g in WIDE])
for name, function in (("square", torch.square), ("rsqrt", torch.rsqrt), ("reciprocal", torch.reciprocal),
                       ("pow_scalar.2", lambda x: x ** 2.0)):
    case(name, function, PAIRED[0], grad=PAIRED[1])
for name, function in (("sigmoid", torch.sigmoid), ("tanh", torch.tanh), ("gelu", F.gelu)):
    for gradient in (INF, -INF, NAN, 1e38, 0.0):
        case(name, function, t([-2.0, 0.0, 0.5, 3.0]), grad=torch.full((4,), gradient, dtype=torch.float64))
for reduction in ("mean", "sum", "none"):
    for gradient in (1e-30, 0.5, 3.0, 1e38):
        case("mse_loss." + reduction, lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r),
             t([2e38, -2e38, 1.7e308, 1e-30, 1.0, INF]), t([0.0, 1.0, -1.0, 0.0, -1e38, 0.0]),
             grad=torch.full((6,) if reduction == "none" else (), gradient, dtype=torch.float64))
HERE, MORE = torch.tensor([[1, 0], [1, 2]]), n(3, 4)
assert torch.equal(torch.zeros(3, 2).double().scatter_add(0, HERE, MORE), torch.zeros(3, 2).double().scatter_add(0, HERE, MORE[:2, :2]))
case("scatter_add", lambda x, k, s: x.scatter_add(0, k, s[:2, :2]), n(3, 2), HERE, MORE)  # PyTorch has no gradient of a larger source
case("index_select.0", lambda x, k: torch.index_select(x, 0, k), t(5.0), torch.tensor([0]))
case("index_select.0", lambda x, k: torch.index_select(x, 0, k), t(5.0), torch.tensor(0))
case("index_select.0", lambda x, k: torch.index_select(x, 0, k), n(3, 2), torch.tensor(1))
case("cat", lambda x, y, z: torch.cat((x, y, z), 1), n(2, 3), n(0), n(2, 2))
case("cat", lambda x, y, z: torch.cat((x, y, z), 1), n(0), n(0), n(2, 2))
case("layer_norm", lambda x, w, c: F.layer_norm(x, w.shape, w, c, 1e-5), n(2, 0), n(0), n(0))
case("layer_norm", lambda x, w, c: F.layer_norm(x, w.shape, w, c, 1e-5), n(0, 3), n(3), n(3))


def record(role, tensor):
    code, numpy_type = DTYPES[tensor.dtype]
    head = struct.pack("<cBBx", role, code, tensor.dim()) + struct.pack("<%dq" % tensor.dim(), *tensor.shape)
    return head + tensor.detach().contiguous().numpy().astype(numpy_type).tobytes()


def run(name, function, inputs, grad, dtype):
    given = [x.detach().to(dtype).requires_grad_(True) if x.dtype in FLOATS else x for x in inputs]
    result = function(*given)
    records = [record(b"i", x) for x in given] + [record(b"o", result)]
    if result.requires_grad:
        weights = (torch.randn(result.shape, dtype=torch.float64, generator=generator) if grad is None else grad).to(result.dtype)
        result.backward(weights)
        records.append(record(b"w", weights))
        for x in given:
            if x.dtype in FLOATS:
                records.append(record(b"g", x.grad if x.grad is not None else torch.zeros_like(x)))
    text = name.encode()
    return struct.pack("<BB", len(text), len(records)) + text + b"".join(records)


def main():
    out = []
    for name, function, inputs, grad in cases:
        floats = any(x.dtype in FLOATS for x in inputs)
        for dtype in FLOATS if floats else FLOATS[:1]:
            out.append(run(name, function, inputs, grad, dtype))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.bin")
    with open(path, "wb") as file:
        file.write(b"SHOALGLD" + struct.pack("<I", len(out)) + b"".join(out))
    print("%s: %d runs of %d cases, %d bytes, torch %s" % (
        path, len(out), len({name for name, *_ in cases}), os.path.getsize(path), torch.__version__))


main()
