"""Making tensors from Python data, and giving them to numpy and torch. Neither package is needed to import this."""

from __future__ import annotations

import array
import sys
import typing
from collections.abc import Sequence

from shoal import _shoal
from shoal._shoal import Tensor

__all__ = ["Tensor", "from_dlpack", "tensor"]

# Names of numpy and torch, and the dtypes of the library.
_NAMES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "int32": "i32",
          "uint8": "u8", "bool_": "bool", "int": "i64"}
_DTYPES = {"f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool"}

# Formats of the buffer protocol. A long has 8 bytes on every system that the library runs on.
_FORMATS = {"f": "f32", "d": "f64", "e": "f16", "l": "i64", "q": "i64", "i": "i32", "B": "u8", "?": "bool"}

# How a list of numbers becomes bytes: the typecode of the module array, for each dtype that has one.
_TYPECODES = {"f32": "f", "f64": "d", "i64": "q", "i32": "i", "u8": "B"}


# Device types of DLPack.
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
_DEFAULT_STREAM = 1


def tensor(data: typing.Any, dtype: typing.Any = None, *, shared: bool = False, device: str | None = None) -> Tensor:
    """Makes a tensor from a copy of data: a number, nested lists, bytes, a numpy array, a torch tensor, or anything
    with the buffer protocol or DLPack.

    `dtype` is a name such as "f32" or "float32", or a dtype of numpy or torch. Without it, arrays keep theirs, and
    numbers become bool, i64 or f32, as in torch. The bits of bf16 elements, which numpy has no type for, are accepted
    as an array of uint16 together with dtype "bf16". With `shared`, the tensor is made in the shared heap.

    `device` is "cpu" or "cuda". Without it, a tensor of torch or Shoal on the GPU stays there, and all else is made on
    the CPU.
    """
    if device is not None and not str(device).startswith(("cpu", "cuda")):
        raise ValueError(f"the device {device} is unknown; there are 'cpu' and 'cuda'")
    name = None if dtype is None else _dtype_name(dtype)
    made = _from_object(data, name, shared and device != "cuda")
    if name is not None and made.dtype != name:
        made = made.to(name)
    if device is not None:
        made = made.to(str(device))
    return made.share() if shared else made


def from_dlpack(x: typing.Any) -> Tensor:
    """Makes a tensor over the memory of an object with `__dlpack__`, such as a torch tensor, without a copy.

    The memory belongs to the other library, so the tensor cannot be shared or put into a queue: `clone()` it first.
    On a GPU, Shoal's work waits for that of the other library's current stream. The memory stays where it is: a torch
    tensor can no longer be resized, on a GPU it can no longer be moved, and on the CPU the memory is no longer common
    once the torch tensor was shared or put.
    """
    made = Tensor._from_capsule(_capsule_of(x))
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor_type is not None and isinstance(x, tensor_type):
        from shoal.torch import pin
        pin(x)
    return made


def _capsule_of(x: typing.Any) -> typing.Any:
    """Asks another library for its memory. On a GPU it makes its default stream wait for the one that computed it, and
    Shoal's work then waits for that: Shoal's own stream is not given away, because then it would have to expect work of
    others in it."""
    kind = x.__dlpack_device__()[0]
    if kind not in (_CPU, _CUDA, _CUDA_HOST):
        raise BufferError("from_dlpack() takes tensors in the memory of the CPU or of a CUDA GPU only")
    stream = {"stream": _DEFAULT_STREAM} if kind == _CUDA else {}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # a library from before DLPack 1
        capsule = x.__dlpack__(**stream)
    if kind == _CUDA:
        _shoal.cuda_follow(_DEFAULT_STREAM)
    return capsule


def as_tensor(data: typing.Any) -> Tensor:
    """A tensor of data, without a copy where that is easy: for files, which only read it."""
    if isinstance(data, Tensor):
        return data
    return _from_torch(data.cpu()) if _is_torch(data) else tensor(data)


def to_numpy(t: Tensor) -> typing.Any:
    """See Tensor.numpy. The array holds a buffer of the tensor, so the memory lives as long as the array."""
    import numpy

    if t.device != "cpu":
        raise TypeError("the tensor is on the GPU, which numpy cannot read: use t.cpu().numpy()")
    memory: typing.Any = t  # typeshed knew no buffers of other classes before 3.12
    return numpy.asarray(memoryview(memory))


def to_torch(t: Tensor) -> typing.Any:
    """See Tensor.torch. torch before 2.0 does not import bool, so bool travels as bytes."""
    import torch

    if t.dtype == "bool":
        stream = None
        if t.device == "cuda":
            stream = current_stream(torch, t.__dlpack_device__()[1]) or _DEFAULT_STREAM
        return torch.from_dlpack(t.__dlpack__(_bool_as_bytes=True, stream=stream)).view(torch.bool)
    return torch.from_dlpack(t)


def current_stream(torch: typing.Any, card: int) -> int:
    """Returns the address of torch's current stream on a GPU; 0 is the default stream."""
    return int(torch.cuda.current_stream(card).cuda_stream)


def _dtype_name(dtype: typing.Any) -> str:
    name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    name = _NAMES.get(name, name)
    if name not in _DTYPES:
        raise TypeError(f"dtype {dtype!r} is not supported; supported are {', '.join(sorted(_DTYPES))}")
    return name


def _is_torch(data: typing.Any) -> bool:
    return type(data).__module__.partition(".")[0] == "torch" and hasattr(data, "detach")


def _from_torch(data: typing.Any) -> Tensor:
    import torch

    plain = data.detach() if data.device.type == "cuda" else data.detach().cpu()
    if plain.dtype == torch.bool:
        return Tensor._from_capsule(_capsule_of(plain.view(torch.uint8)), True)
    return Tensor._from_capsule(_capsule_of(plain))


def _from_object(data: typing.Any, dtype: str | None, shared: bool) -> Tensor:
    if isinstance(data, Tensor):
        return data.clone()
    if _is_torch(data):
        return _from_torch(data).clone()
    if str(getattr(data, "dtype", "")) == "bfloat16" and hasattr(data, "view"):  # ml_dtypes, which has no buffer
        data, dtype = data.view("uint16"), "bf16"
    try:
        view = memoryview(data)
    except TypeError:
        if hasattr(data, "__dlpack__"):
            return from_dlpack(data).clone()
        return _from_numbers(data, dtype, shared)
    return _from_buffer(view, dtype, shared)


def _from_buffer(view: memoryview, dtype: str | None, shared: bool) -> Tensor:
    have = _FORMATS.get(view.format.lstrip("@="))
    if have is None and dtype == "bf16" and view.format == "H":
        have = "bf16"
    if have is None:
        raise TypeError(f"elements of format {view.format!r} are not supported; supported dtypes are "
                        f"{', '.join(sorted(_DTYPES))}")
    return Tensor(have, tuple(view.shape or ()), view if view.c_contiguous else view.tobytes(), shared)


def _from_numbers(data: typing.Any, dtype: str | None, shared: bool) -> Tensor:
    flat: list[typing.Any] = []
    shape = _flatten(data, flat)
    kinds = {type(x) for x in flat}
    have = dtype
    if have is None:
        have = "bool" if kinds == {bool} else "i64" if kinds and kinds <= {bool, int} else "f32"
    if have == "bool":
        raw = bytes(bool(x) for x in flat)
    else:
        have = have if have in _TYPECODES else "f32"  # bf16 and f16: the caller converts
        raw = array.array(_TYPECODES[have], flat).tobytes()
    return Tensor(have, shape, raw, shared)


def _flatten(data: typing.Any, flat: list[typing.Any]) -> tuple[int, ...]:
    """Appends the numbers of nested lists, and returns their shape."""
    if not isinstance(data, Sequence) or isinstance(data, str):
        flat.append(data)
        return ()
    shapes = {_flatten(member, flat) for member in data}
    if len(shapes) > 1:
        raise ValueError("the lists have different lengths or depths")
    return (len(data), *(shapes.pop() if shapes else ()))
