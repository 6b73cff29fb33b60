"""ctypes objects in shared memory, with or without a lock.

The interface is that of ``multiprocessing.sharedctypes``. The objects can be inherited, passed to a process when it is
started, and sent through a queue or pipe of ``shoal.multiprocessing``: they are the same memory in every process. So is a
part of one, such as a structure in an array of structures.
"""
import ctypes
import weakref
from typing import Any, Sequence, Tuple, Union

from .. import _shoal
from .reduction import take_object
from .synchronize import RLock

__all__ = ["RawValue", "RawArray", "Value", "Array", "copy", "synchronized"]

typecode_to_type = {
    "c": ctypes.c_char, "u": ctypes.c_wchar,
    "b": ctypes.c_byte, "B": ctypes.c_ubyte,
    "h": ctypes.c_short, "H": ctypes.c_ushort,
    "i": ctypes.c_int, "I": ctypes.c_uint,
    "l": ctypes.c_long, "L": ctypes.c_ulong,
    "q": ctypes.c_longlong, "Q": ctypes.c_ulonglong,
    "f": ctypes.c_float, "d": ctypes.c_double,
}

_CData: Any = ctypes._SimpleCData.__base__  # of every ctypes object


def _at(type_: Any, block: _shoal.Block, offset: int) -> Any:
    """Returns the ctypes object at an offset in a block. It keeps the block."""
    obj = type_.from_buffer(block, offset)
    obj._wrapper = block
    return obj


def _new_value(type_: Any) -> Any:
    """Returns a ctypes object of zeros."""
    return _at(type_, _shoal.Block(max(ctypes.sizeof(type_), 1), True), 0)


def RawValue(typecode_or_type: Any, *args: Any) -> Any:
    """Return a ctypes object in shared memory. The arguments are those of its type."""
    obj = _new_value(typecode_to_type.get(typecode_or_type, typecode_or_type))
    obj.__init__(*args)
    return obj


def RawArray(typecode_or_type: Any, size_or_initializer: Union[int, Sequence[Any]]) -> Any:
    """Return a ctypes array in shared memory: of zeros, if its size is given, or with the elements of a sequence."""
    type_: Any = typecode_to_type.get(typecode_or_type, typecode_or_type)
    if isinstance(size_or_initializer, int):
        return _new_value(type_ * size_or_initializer)
    array = _new_value(type_ * len(size_or_initializer))
    array.__init__(*size_or_initializer)
    return array


def Value(typecode_or_type: Any, *args: Any, lock: Any = True, ctx: Any = None) -> Any:
    """Return a ctypes object in shared memory with a lock around each access.

    lock may be a lock, True for a new RLock, or False for none; then the result is that of RawValue().
    """
    return _with_lock(RawValue(typecode_or_type, *args), lock, ctx)


def Array(typecode_or_type: Any, size_or_initializer: Union[int, Sequence[Any]], *, lock: Any = True,
          ctx: Any = None) -> Any:
    """Return a ctypes array in shared memory with a lock around each access. lock is as for Value()."""
    return _with_lock(RawArray(typecode_or_type, size_or_initializer), lock, ctx)


def _with_lock(obj: Any, lock: Any, ctx: Any) -> Any:
    if isinstance(lock, int):
        lock = bool(lock)
    if lock is False:
        return obj
    if lock is True:
        lock = None
    if lock is not None and not hasattr(lock, "acquire"):
        raise AttributeError(f"{lock!r} has no method 'acquire'")
    return synchronized(obj, lock, ctx)


def copy(obj: Any) -> Any:
    """Return a copy of a ctypes object in shared memory."""
    new = _new_value(type(obj))
    ctypes.pointer(new)[0] = obj
    return new


# ---- with a lock ----

def synchronized(obj: Any, lock: Any = None, ctx: Any = None) -> "SynchronizedBase":
    """Return a wrapper of a ctypes object that holds a lock during each access: the one given, or a new RLock."""
    assert not isinstance(obj, SynchronizedBase), "object already synchronized"
    if isinstance(obj, ctypes._SimpleCData):
        return Synchronized(obj, lock, ctx)
    if isinstance(obj, ctypes.Array):
        cls = SynchronizedString if obj._type_ is ctypes.c_char else SynchronizedArray
        return cls(obj, lock, ctx)
    wrapped: SynchronizedBase = _structure_class(type(obj))(obj, lock, ctx)
    return wrapped


def make_property(name: str) -> property:
    """Returns a property that reads and writes an attribute of the wrapped object with the lock held."""
    def get(self: "SynchronizedBase") -> Any:
        self._lock.acquire()  # half as long as a with statement
        try:
            return getattr(self._obj, name)
        finally:
            self._lock.release()

    def set(self: "SynchronizedBase", value: Any) -> None:
        self._lock.acquire()
        try:
            setattr(self._obj, name, value)
        finally:
            self._lock.release()

    return property(get, set)


_structure_classes: "weakref.WeakKeyDictionary[type, type]" = weakref.WeakKeyDictionary()


def _structure_class(type_: Any) -> type:
    if type_ not in _structure_classes:
        properties = {field[0]: make_property(field[0]) for field in type_._fields_}
        _structure_classes[type_] = type("Synchronized" + type_.__name__, (SynchronizedBase,), properties)
    return _structure_classes[type_]


class SynchronizedBase:
    """A ctypes object and its lock. It has the lock's acquire() and release(), and works in a with statement."""

    def __init__(self, obj: Any, lock: Any = None, ctx: Any = None) -> None:
        self._obj = obj
        self._lock = lock if lock is not None else RLock(ctx=ctx)
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *args: Any) -> Any:
        return self._lock.__exit__(*args)

    def __reduce__(self) -> Any:
        raise RuntimeError(f"{type(self).__name__} objects should only be shared between processes through inheritance, as "
                           "an argument of a process of shoal.multiprocessing, or through one of its queues or pipes")

    def get_obj(self) -> Any:
        """Return the ctypes object."""
        return self._obj

    def get_lock(self) -> Any:
        """Return the lock."""
        return self._lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} wrapper for {self._obj}>"


class Synchronized(SynchronizedBase):
    """A simple value and its lock. ``with v.get_lock(): v.value += 1`` is one step for the other processes."""

    @property
    def value(self) -> Any:
        """The value. It is read and written with the lock held."""
        self._lock.acquire()
        try:
            return self._obj.value  # quicker than make_property("value")
        finally:
            self._lock.release()

    @value.setter
    def value(self, value: Any) -> None:
        self._lock.acquire()
        try:
            self._obj.value = value
        finally:
            self._lock.release()


class SynchronizedArray(SynchronizedBase):
    """An array and its lock."""

    def __len__(self) -> int:
        return len(self._obj)

    def __getitem__(self, i: Any) -> Any:
        with self._lock:
            return self._obj[i]

    def __setitem__(self, i: Any, value: Any) -> None:
        with self._lock:
            self._obj[i] = value


class SynchronizedString(SynchronizedArray):
    """An array of bytes and its lock."""

    value = make_property("value")
    raw = make_property("raw")


# ---- for the pickler ----

def reduce_ctypes(obj: Any, pickler: Any) -> Any:
    """For the pickler: a ctypes object in shared memory, or a part of one, becomes the number of its block, and one with a
    lock becomes the two. NotImplemented for anything else."""
    if isinstance(obj, SynchronizedBase):
        return synchronized, (obj._obj, obj._lock)
    if not isinstance(obj, _CData):
        return NotImplemented
    whole: Any = obj
    while whole._b_base_ is not None:
        whole = whole._b_base_
    block = getattr(whole, "_wrapper", None)
    if not isinstance(block, _shoal.Block):
        return NotImplemented
    element, lengths = _dimensions(type(obj))
    return _rebuild, (element, lengths, pickler.add_object(block), ctypes.addressof(obj) - block.address)


def _dimensions(type_: Any) -> Tuple[Any, Tuple[int, ...]]:
    """Array types that ctypes makes have no name to pickle them by: returns the type of the elements and the lengths."""
    lengths: Tuple[int, ...] = ()
    while issubclass(type_, ctypes.Array) and type_ is type_._type_ * type_._length_:
        lengths = (type_._length_,) + lengths
        type_ = type_._type_
    return type_, lengths


def _rebuild(type_: Any, lengths: Tuple[int, ...], number: int, offset: int) -> Any:
    for length in lengths:
        type_ = type_ * length
    return _at(type_, take_object(number), offset)


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    import multiprocessing.sharedctypes as standard
    return getattr(standard, name)
