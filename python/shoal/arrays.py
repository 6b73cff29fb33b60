"""numpy arrays in shared memory.

An array that is made here is a plain numpy.ndarray whose elements are in the shared heap. Sent through a queue, as an
argument of a process or inside any object, it is the same memory in every process. Any other array travels by value.
"""
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from . import _shoal

Shape = Union[int, Sequence[int]]


def empty(shape: Shape, dtype: Any = float, order: str = "C") -> Any:
    """Makes an array in shared memory. Its elements are undefined."""
    return _make(shape, dtype, order, False)


def zeros(shape: Shape, dtype: Any = float, order: str = "C") -> Any:
    """Makes an array of zeros in shared memory."""
    return _make(shape, dtype, order, True)


def from_numpy(array: Any) -> Any:
    """Copies an array into shared memory. The copy has the same shape, dtype, order and class."""
    import numpy

    array = numpy.asanyarray(array)
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects cannot be in shared memory")
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    copy = _make(array.shape, array.dtype, order, False)
    copy[...] = array
    return copy if type(array) is numpy.ndarray else copy.view(type(array))


def share(array: Any) -> Any:
    """Returns the array itself if it is in shared memory, else a copy that is."""
    return array if is_shared(array) else from_numpy(array)


def is_shared(array: Any) -> bool:
    """Whether an array's elements are in shared memory, so that it travels by handle."""
    block = _shoal.block_of(array)
    return block is not None and not block.by_value


def _make(shape: Shape, dtype: Any, order: str, zeroed: bool) -> Any:
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError("an array of Python objects cannot be in shared memory")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    size = dtype.itemsize
    for n in sizes:
        if n < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= int(n)
    memory: Any = _shoal.Block(size, zeroed)
    order_: Any = order
    return numpy.ndarray(sizes, dtype, memory, order=order_)


def reduce_array(obj: Any, pickler: Any) -> Any:
    """For the pickler: an array in shared memory becomes the number of its block. NotImplemented for anything else."""
    block = _shoal.block_of(obj)
    if block is None or block.by_value or obj.dtype.hasobject:
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
