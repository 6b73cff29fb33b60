"""Processes that share memory, queues and tensors.

`shoal.multiprocessing` is a drop-in for `multiprocessing` and `torch.multiprocessing`.

`shoal.empty`, `shoal.zeros`, `shoal.full`, `shoal.from_numpy` and others give numpy arrays in shared memory, and
`shoal.share` shares a torch tensor in place. `shoal.Tensor` is the type that C and Python programs exchange;
`shoal.tensor` and `shoal.from_dlpack` make one. `shoal.load` and
`shoal.save` read and write safetensors files. `shoal.train` trains a model with several processes. `shoal.world` shows
the processes that share memory. `python -m shoal` is the program `shoal`.
"""

from __future__ import annotations

import importlib

from shoal._shoal import Closed, Error, Tensor, __version__, cuda_memory, empty_cache, synchronize

card_memory = cuda_memory  # its name in 0.2

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    import typing

    from shoal import multiprocessing, world
    from shoal._files import load, load_metadata, save
    from shoal._tensor import from_dlpack, tensor
    from shoal._train import Training, train
    from shoal.arrays import empty, empty_like, from_numpy, full, is_shared, ones, share, zeros, zeros_like

__all__ = ["Closed", "Error", "Tensor", "Training", "cuda_memory", "empty", "empty_cache", "empty_like", "from_dlpack",
           "from_numpy", "full", "is_shared", "load", "load_metadata", "multiprocessing", "ones", "save", "share",
           "synchronize", "tensor", "train", "world", "zeros", "zeros_like"]

# A child that is spawned imports this package, so what a program may not need is imported at its first use. The value
# is the module that has the name; None: the name is that of a module of this package.
_LATER: dict[str, str | None] = {
    "Training": "shoal._train",
    "empty": "shoal.arrays",
    "empty_like": "shoal.arrays",
    "from_dlpack": "shoal._tensor",
    "from_numpy": "shoal.arrays",
    "full": "shoal.arrays",
    "is_shared": "shoal.arrays",
    "load": "shoal._files",
    "load_metadata": "shoal._files",
    "multiprocessing": None,
    "ones": "shoal.arrays",
    "save": "shoal._files",
    "share": "shoal.arrays",
    "tensor": "shoal._tensor",
    "train": "shoal._train",
    "world": None,
    "zeros": "shoal.arrays",
    "zeros_like": "shoal.arrays",
}


def __getattr__(name: str) -> typing.Any:
    try:
        module = _LATER[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if module is None:
        return importlib.import_module(f"shoal.{name}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
