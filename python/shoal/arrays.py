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
    """Shares a numpy array, a torch tensor or a `shoal.Tensor`, and returns it.

    A tensor is moved into shared memory in place. numpy has no way to do that: of an array whose elements are not in
    shared memory, a copy is returned that is.
    """
    if isinstance(x, _shoal.Tensor):
        return x.share()
    if _is_torch(x):
        from .torch import adopt
        return adopt(x)
    return x if is_shared(x) else from_numpy(x)


def is_shared(x: Any) -> bool:
    """Whether the elements of a numpy array, a torch tensor or a `shoal.Tensor` are in shared memory. For a torch
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
