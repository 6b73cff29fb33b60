"""Files of tensors: safetensors, by the library, without the package of that name."""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Mapping

from shoal import _shoal
from shoal._tensor import as_tensor

__all__ = ["load", "load_metadata", "save"]

_HEADER_MAX = 100_000_000  # the limit of the format


def load(path: str | os.PathLike[str], framework: str = "numpy") -> dict[str, typing.Any]:
    """Reads a safetensors file and returns its tensors by name, in the order of the file.

    `framework` is "numpy", "torch" or "shoal" (`shoal.Tensor`). The dtypes are those of the file. numpy has no bf16:
    such a tensor becomes an array of uint16 with its bits; torch and shoal have bf16.

    Raises FileNotFoundError, OSError, `shoal.Error` if the file is damaged (with file and byte), or TypeError if it has
    an element type that is not supported.
    """
    convert = _CONVERTERS.get(framework)
    if convert is None:
        raise ValueError(f"unknown framework {framework!r}; known are {', '.join(sorted(_CONVERTERS))}")
    return {name: convert(tensor) for name, tensor in _shoal.safetensors_read(path).items()}


def save(path: str | os.PathLike[str], tensors: Mapping[str, typing.Any],
         metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors by name to a safetensors file: arrays of numpy, tensors of torch or `shoal.Tensor`s, mixed at will.

    The file is either the old one or the new one at every moment: a temporary file is written, synced and renamed.
    `metadata` has texts by name. Elements that are not of a dtype of shoal raise TypeError, and nothing is written;
    bf16 bits in an array of uint16 must be named as such: `shoal.tensor(array, dtype="bf16")`.
    """
    if not isinstance(path, (str, bytes, os.PathLike)) or not isinstance(tensors, Mapping):
        raise TypeError("save() takes a path and then a dict of tensors by name, not "
                        f"{type(path).__name__} and {type(tensors).__name__}")
    texts = dict(metadata or {})
    for text in (*tensors, *texts, *texts.values()):
        if not isinstance(text, str):
            raise TypeError(f"names and metadata must be strings, not {text!r}")
    named = {}
    for name, data in tensors.items():
        try:
            named[name] = as_tensor(data)
        except TypeError as error:
            raise TypeError(f"tensor {name!r}: {error}") from None
    _shoal.safetensors_write(path, named, texts)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads only the metadata of a safetensors file: texts by name, empty if it has none."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, _HEADER_MAX))
    try:
        found = json.loads(header).get("__metadata__", {})
        return {str(key): str(text) for key, text in found.items()}
    except (ValueError, AttributeError):
        raise _shoal.Error(f"{os.fspath(path)} is not a safetensors file") from None


_CONVERTERS: dict[str, typing.Callable[[_shoal.Tensor], typing.Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "torch": lambda tensor: tensor.torch(),
    "shoal": lambda tensor: tensor,
}
