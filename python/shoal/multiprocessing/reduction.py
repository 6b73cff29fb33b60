"""How objects are pickled for other processes.

A message has bytes and a list of shared objects. The bytes are a pickle, in which a shared object (queue, lock, memory) is a
number into the list. Large buffers, such as the elements of numpy arrays, are not in the pickle either: they are copied once
into a block of shared memory, and the receiver uses the block as it is.
"""
from __future__ import annotations

# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import copyreg
import io
import multiprocessing.reduction as _standard
import pickle
import sys
import threading
from multiprocessing.reduction import HAVE_SEND_HANDLE, AbstractReducer, DupFd, recvfds, sendfds

from .. import _shoal

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["send_handle", "recv_handle", "ForkingPickler", "register", "dump", "DupFd", "sendfds", "recvfds"]

#: Buffers of at least this size travel in a block of shared memory, smaller ones in the pickle.
LARGE = 65536

_extra_reducers: Dict[type, Callable[[Any], Any]] = {}


def register(type: type, reduce: Callable[[Any], Any]) -> None:
    """Registers a function that reduces the objects of a type. It is used by this package only."""
    _extra_reducers[type] = reduce


def _dispatch_table() -> Dict[Any, Any]:
    """What copyreg, the standard module and this one know, the last first."""
    return {**copyreg.dispatch_table, **_standard.ForkingPickler._extra_reducers, **_extra_reducers}


class _Buffers(list[_shoal.Shared]):
    """The blocks of a message, for its buffers. The pickler does not refer to itself through this, so it and all that it has
    pickled are freed at once."""

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Returns whether a buffer stays in the pickle; otherwise copies it to a block."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        block = _shoal.Block(raw.nbytes)
        memory: Any = block  # whose buffer the types do not know
        memoryview(memory)[:] = raw
        self.append(block)
        return False


class Pickler(pickle.Pickler):
    """Pickles one message: the pickle goes to a file, and the objects beside it are in `objects()`."""

    def __init__(self, file: Any) -> None:
        self._buffers = _Buffers()
        self._shared: List[_shoal.Shared] = []
        self._reducers = _memory_reducers()
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._buffers.take)
        self.dispatch_table = _dispatch_table()

    def add_object(self, obj: _shoal.Shared) -> int:
        """Adds a shared object to the message and returns its number, for take_object()."""
        self._shared.append(obj)
        return len(self._shared)

    def objects(self) -> List[_shoal.Shared]:
        """Returns the objects of the message: the buffers in the order of the pickle, then the numbered objects, the last
        one first. So a number counts from the end, and the pickle need not say how many buffers there are."""
        return self._buffers + self._shared[::-1]

    def reducer_override(self, obj: Any) -> Any:
        """Reduces what is in shared memory to a number. Everything else goes the usual way."""
        if isinstance(obj, _shoal.Shared):
            return _rebuild, (type(obj), self.add_object(obj), obj._shoal_state()), _state_of(obj)
        for reduce in self._reducers:
            reduced = reduce(obj, self)
            if reduced is not NotImplemented:
                return reduced
        return NotImplemented


def _memory_reducers() -> List[Callable[[Any, Any], Any]]:
    """Returns the functions that know objects whose memory may be shared, as far as this program can have such objects."""
    reducers: List[Callable[[Any, Any], Any]] = []
    if "shoal.multiprocessing.sharedctypes" in sys.modules:
        from .sharedctypes import reduce_ctypes
        reducers.append(reduce_ctypes)
    if "numpy" in sys.modules:
        from ..arrays import reduce_array
        reducers.append(reduce_array)
    if "torch" in sys.modules:
        from ..torch import reduce_torch
        reducers.append(reduce_torch)
    return reducers


# ---- a whole message ----

def dumps(obj: Any) -> Tuple[bytes, List[_shoal.Shared]]:
    """Pickles an object for another process of this world. Returns the bytes and the shared objects."""
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump(obj)
    return file.getvalue(), pickler.objects()


class _Loading(threading.local):
    """The objects of the messages that this thread is unpickling, the innermost last."""

    def __init__(self) -> None:
        self.stack: List[List[_shoal.Shared]] = []


_loading = _Loading()


def loads(data: Any, objects: List[_shoal.Shared]) -> Any:
    """Makes the object that dumps() has pickled."""
    _loading.stack.append(objects)
    try:
        return pickle.loads(data, buffers=map(_private, objects))
    finally:
        _loading.stack.pop()


def _private(block: Any) -> memoryview:
    """The bytes of a block that came by value: they belong to this process alone."""
    block.by_value = True
    return memoryview(block)


def take_object(number: int) -> Any:
    """Returns a shared object of the message that is being unpickled."""
    return _loading.stack[-1][-number]


def _state_of(obj: _shoal.Shared) -> Any:
    """The attributes that a program has added to a shared object: what its class's __getstate__ gives, or all."""
    own = type(obj).__getstate__ if hasattr(type(obj), "__getstate__") else None
    if own not in (None, getattr(object, "__getstate__", None), _shoal.Shared.__getstate__):
        return obj.__getstate__()
    attributes = {name: value for name, value in getattr(obj, "__dict__", {}).items() if name != "_waiting"}
    return attributes or None


def _rebuild(cls: Any, number: int, state: Any) -> Any:
    obj = cls._adopt(take_object(number))
    if state is not None:
        obj._shoal_restore(state)
    return obj


# ---- what people use ----

class ForkingPickler(pickle.Pickler):
    """A pickler that knows what was registered here and in the standard module.

    It makes bytes alone, so it cannot pickle shared objects: only a start, a put and a send can.
    """

    _extra_reducers = _extra_reducers
    register = staticmethod(register)
    loads = staticmethod(pickle.loads)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table = _dispatch_table()

    @classmethod
    def dumps(cls, obj: Any, protocol: Optional[int] = None) -> memoryview:
        """Returns the pickle of an object as a buffer."""
        file = io.BytesIO()
        cls(file, protocol).dump(obj)
        return file.getbuffer()


def dump(obj: Any, file: Any, protocol: Optional[int] = None) -> None:
    """Pickles an object to a file with ForkingPickler."""
    ForkingPickler(file, protocol).dump(obj)


def send_handle(conn: Any, handle: int, destination_pid: Optional[int]) -> None:
    """Sends an fd through a connection."""
    conn.send(DupFd(handle))


def recv_handle(conn: Any) -> int:
    """Receives an fd that send_handle() has sent. The caller owns it."""
    return int(conn.recv().detach())


_shoal.set_pickle(dumps, loads)


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    return getattr(_standard, name)
