"""numpy arrays in shared memory.

An array that is made here is a plain numpy.ndarray whose elements are in the shared heap. Sent through a queue, as an
argument of a process or inside any object, it is the same memory in every process. Any other array travels by value.
"""
from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, TypeVar, Union

from . import _shoal

if TYPE_CHECKING:  # numpy is imported at the first use
    from numpy import ndarray
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Arrays = TypeVar("Arrays", bound="ndarray[Any, Any]")

Shape = Union[int, Sequence[int]]


def empty(shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """Makes an array in shared memory. Its elements are undefined."""
    return _make(shape, dtype, order, False)


def zeros(shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """Makes an array of zeros in shared memory."""
    return _make(shape, dtype, order, True)


def ones(shape: Shape, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """Makes an array of ones in shared memory."""
    return full(shape, 1, dtype, order)


def full(shape: Shape, fill_value: Any, dtype: DTypeLike | None = None, order: str = "C") -> NDArray[Any]:
    """Makes an array in shared memory whose elements are fill_value. The dtype is that of the value unless given."""
    import numpy

    array = _make(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype, order, False)
    array[...] = fill_value
    return array


def empty_like(array: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Makes an array in shared memory with the shape and the order of another one, and its dtype unless one is given.
    Its elements are undefined."""
    return _make_like(array, dtype, False)


def zeros_like(array: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Makes an array of zeros in shared memory with the shape and the order of another one, and its dtype unless one is
    given."""
    return _make_like(array, dtype, True)


def from_numpy(array: Arrays) -> Arrays:
    """Copies an array into shared memory. The copy has the same shape, dtype, order and class."""
    import numpy

    if _is_torch(array):
        raise TypeError("from_numpy() takes numpy arrays; shoal.share() shares a torch tensor in place")
    array = numpy.asanyarray(array)
    copy: Any = _make_like(array, None, False)
    copy[...] = array
    shared: Arrays = copy if type(array) is numpy.ndarray else copy.view(type(array))
    return shared


def share(x: Any) -> Any:
    """Shares numpy arrays, torch tensors, modules and optimisers, `shoal.Tensor`s, and dicts, lists and tuples of them, and
    returns x.

    A tensor is moved into shared memory in place; memory that torch has already shared stays where it is. Of a module its
    parameters and buffers are shared, of an optimiser its parameters and their state; grads are not. numpy has no way to move
    an array: in place of one whose elements are not in shared memory, a copy is returned that is, and a dict or a list gets
    the copy. An array that occurs twice is copied once. Numbers and strings in a dict, a list or a tuple stay as they are.
    Raises TypeError for anything else, and says where it is.
    """
    return _share(x, "x", {})


def _share(x: Any, where: str, seen: Dict[int, Tuple[Any, Any]]) -> Any:
    """seen: the containers and arrays that were met, by their ids, each with what is returned for it. A container may contain
    itself, and what occurs twice is shared once. The originals are kept so that no id is used again."""
    if isinstance(x, _shoal.Tensor):
        return x.share()
    if _is_torch(x):
        return _share_tensor(x, where)
    torch: Any = sys.modules.get("torch")
    if id(x) in seen:
        return seen[id(x)][1]
    if isinstance(x, (dict, list, tuple)):
        seen[id(x)] = x, x
        seen[id(x)] = x, _share_members(x, where, seen)
        return seen[id(x)][1]
    if torch is not None and isinstance(x, torch.nn.Module):
        for name, tensor in [*x.named_parameters(), *x.named_buffers()]:
            _share_tensor(tensor, f"{where}.{name}")
        return x
    if torch is not None and isinstance(x, torch.optim.Optimizer):
        for i, group in enumerate(x.param_groups):
            _share(group["params"], f"{where}.param_groups[{i}]['params']", seen)
        for i, state in enumerate(x.state.values()):
            _share_state(state, f"{where}.state[{i}]")
        return x
    if _is_array(x) or where == "x" and _is_plain(x) and not isinstance(x, (str, bytes, type(None))):
        seen[id(x)] = x, x if is_shared(x) else from_numpy(x)
        return seen[id(x)][1]
    if where != "x" and _is_plain(x):
        return x
    raise TypeError(f"shoal.share() cannot share {where}, {_with_article(type(x).__name__)}: it takes numpy arrays, torch "
                    "tensors, modules and optimisers, shoal.Tensors, and dicts, lists and tuples of them")


def _share_members(x: Any, where: str, seen: Dict[int, Tuple[Any, Any]]) -> Any:
    if isinstance(x, dict):
        for key, value in x.items():
            shared = _share(value, f"{where}[{key!r}]", seen)
            if shared is not value:
                x[key] = shared
        return x
    members = [_share(value, f"{where}[{i}]", seen) for i, value in enumerate(x)]
    if all(shared is value for shared, value in zip(members, x)):
        return x
    if isinstance(x, list):
        x[:] = members
        return x
    return type(x)(*members) if hasattr(x, "_fields") else type(x)(members)


def _share_state(x: Any, where: str) -> None:
    """Shares the tensors in the state of an optimiser, which may contain anything beside them."""
    if _is_torch(x):
        _share_tensor(x, where)
    elif isinstance(x, dict):
        for key, value in x.items():
            _share_state(value, f"{where}[{key!r}]")
    elif isinstance(x, (list, tuple)):
        for i, value in enumerate(x):
            _share_state(value, f"{where}[{i}]")


def _share_tensor(x: Any, where: str) -> Any:
    from .torch import adopt, parts
    try:
        for part in parts(x):
            adopt(part)
    except (TypeError, RuntimeError, ValueError) as error:
        raise type(error)(f"shoal.share() cannot share {where}: {error}") from error
    return x


def _is_array(x: Any) -> bool:
    array_type = getattr(sys.modules.get("numpy"), "ndarray", None)
    return array_type is not None and isinstance(x, array_type)


def _is_plain(x: Any) -> bool:
    numpy_scalar = getattr(sys.modules.get("numpy"), "generic", float)
    return x is None or isinstance(x, (bool, int, float, complex, str, bytes, numpy_scalar))


def _with_article(name: str) -> str:
    return f"an {name}" if name[:1] in "AEIOUaeiou" else f"a {name}"


def is_shared(x: Any) -> bool:
    """Returns whether the elements of a numpy array, a torch tensor or a `shoal.Tensor` are in shared memory. For a torch
    tensor, that may be torch's own."""
    if isinstance(x, _shoal.Tensor):
        return x.is_shared
    if _is_torch(x):
        from .torch import is_moved
        return is_moved(x)
    block = _shoal.block_of(x)
    return block is not None and not block.by_value


def _is_torch(x: Any) -> bool:
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(x, tensor_type)


def _make_like(array: Any, dtype: Any, zeroed: bool) -> NDArray[Any]:
    import numpy

    array = numpy.asanyarray(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return _make(array.shape, array.dtype if dtype is None else dtype, order, zeroed)


def _sizes(shape: Shape) -> Tuple[int, ...]:
    sizes: Any = shape
    try:
        return tuple(map(operator.index, sizes)) if hasattr(sizes, "__len__") else (operator.index(sizes),)
    except TypeError:
        raise TypeError(f"the shape must be a whole number or several of them, not {shape!r}") from None


def _make(shape: Shape, dtype: Any, order: str, zeroed: bool) -> NDArray[Any]:
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError("an array of Python objects cannot be in shared memory")
    sizes = _sizes(shape)
    if any(n < 0 for n in sizes):
        raise ValueError("negative dimensions are not allowed")
    size = dtype.itemsize * math.prod(sizes)
    if size > sys.maxsize:
        raise MemoryError(f"an array of the shape {sizes} and the dtype {dtype} has {size} bytes")
    memory: Any = _shoal.Block(size, zeroed)
    order_: Any = order
    return numpy.ndarray(sizes, dtype, memory, order=order_)


def reduce_array(obj: Any, pickler: Any) -> Any:
    """For the pickler: an array in shared memory becomes the number of its block. Any other array travels by value, and
    the receiver may write to its own copy; numpy makes a read-only one of a read-only array from protocol 5 on, so the
    pickler gets a copy of that. NotImplemented for anything else."""
    import numpy

    block = _shoal.block_of(obj)
    if block is None or block.by_value or obj.dtype.hasobject:
        if type(obj) is numpy.ndarray and not obj.flags.writeable:
            return obj.copy(order="K").__reduce_ex__(5)
        return NotImplemented
    interface = obj.__array_interface__
    offset = interface["data"][0] - block.address
    state = getattr(obj, "__dict__", None)
    parts = (type(obj), pickler.add_object(block), obj.shape, obj.dtype, offset, obj.strides, interface["data"][1], state)
    return _rebuild, parts


def _rebuild(cls: type, number: int, shape: Tuple[int, ...], dtype: Any, offset: int, strides: Tuple[int, ...],
             read_only: bool, state: Optional[Dict[str, Any]]) -> Any:
    import numpy

    from .multiprocessing.reduction import take_object

    array: Any = numpy.ndarray(shape, dtype, take_object(number), offset, strides)
    if cls is not numpy.ndarray:
        array = array.view(cls)
    if state:  # the attributes of a subclass; __setstate__ of an array wants something else
        array.__dict__.update(state)
    if read_only:
        array.flags.writeable = False
    return array
