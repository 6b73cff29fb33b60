"""Processes that share memory, queues and tensors.

`shoal.multiprocessing` is a drop-in for `multiprocessing` and `torch.multiprocessing`. `shoal.world` shows the
processes that share memory.
"""

from __future__ import annotations

import importlib
import typing

from shoal._shoal import Closed, Error, Tensor

if typing.TYPE_CHECKING:
    from shoal import multiprocessing, world
    from shoal._files import load, load_metadata, save
    from shoal._tensor import from_dlpack, tensor

__all__ = ["Closed", "Error", "Tensor", "from_dlpack", "load", "load_metadata", "multiprocessing", "save", "tensor", "world"]

# A child that is spawned imports this package, so what a program may not need is imported at its first use. The value
# is the module that has the name; None: the name is that of a module of this package.
_LATER: dict[str, str | None] = {
    "from_dlpack": "shoal._tensor",
    "load": "shoal._files",
    "load_metadata": "shoal._files",
    "multiprocessing": None,
    "save": "shoal._files",
    "tensor": "shoal._tensor",
    "world": None,
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
