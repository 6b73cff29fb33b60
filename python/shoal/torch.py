"""torch tensors in Shoal's memory.

A tensor that is put on a queue, or given to a process, moves into Shoal's memory, the heap or that of the card: its
storage is replaced in place, so that all views of it, and Parameters, follow. From then on it is the same memory in all
processes that have it, and sending it again copies nothing. `is_shared()` is True afterwards, and the storage can no
longer be resized, as with `share_memory_()`.

Replacing a storage needs a little C++ for the torch that is installed (the "glue"). It comes with the package, or is
compiled at first use. Without it, only the tensor that was put moves, and other views keep the old memory; a warning
says so once.

Nothing here imports torch, unless a tensor arrives from another process.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shoal import _shoal, _tensor, _torch_build

__all__ = ["adopt", "is_adopted", "load"]

_lock = threading.RLock()
_glue: ModuleType | None = None
_tried = False
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


# ---- the glue ----

def load() -> Any:
    """Loads the glue for this torch, and compiles it if that was never done. Returns its functions for the extension as
    a capsule, or None if there is no way to get it; then a warning says why, once.

    The environment variable SHOAL_TORCH_GLUE=off does without it."""
    global _glue, _tried
    with _lock:
        if not _tried:
            _glue = _load_glue()
            _tried = True
        return None if _glue is None else _glue.api


def _load_glue() -> ModuleType | None:
    torch = _torch()
    try:
        if os.environ.get("SHOAL_TORCH_GLUE") == "off":
            raise _torch_build.Unavailable("SHOAL_TORCH_GLUE is off")
        path = str(_torch_build.find_or_compile())
        loader = importlib.machinery.ExtensionFileLoader("shoal._torch_glue", path)
        spec = importlib.util.spec_from_file_location("shoal._torch_glue", path, loader=loader)
        assert spec is not None
        glue = importlib.util.module_from_spec(spec)
        loader.exec_module(glue)
    except (_torch_build.Unavailable, ImportError) as error:
        warnings.warn(f"shoal moves torch tensors one by one, and other views of a tensor that is sent do not follow it, "
                      f"because its torch glue is not available: {error}", RuntimeWarning, stacklevel=2)
        return None
    sys.modules["shoal._torch_glue"] = glue
    _teach_torch_queues(torch, glue)
    return glue


def _teach_torch_queues(torch: Any, glue: ModuleType) -> None:
    """Lets torch's own queues carry tensors that are in the heap.

    They send the file of a storage's shared memory. A block is only a part of the world's file, so torch gets a copy of
    the storage in shared memory of its own. The copy exists as long as the storage, and is made anew at every put. So a
    receiver in another process sees what the tensor was at the last put, and what it writes stays there. Storages that
    are not in the heap are left to torch."""
    untyped = torch.UntypedStorage

    def replace(name: str, for_ours: Callable[..., Any]) -> None:
        original = getattr(untyped, name)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            data = _heap_bytes(torch, glue, self)
            return original(self, *args, **kwargs) if data is None else for_ours(original, self, data)

        setattr(untyped, name, method)

    def share(original: Callable[..., Any], storage: Any, data: Any) -> Any:
        copy = glue.mirror(data)
        copy = data.clone() if copy is None else copy.copy_(data)
        handle = original(_untyped(copy))
        glue.set_mirror(data, copy)
        return handle

    def count(original: Callable[..., Any], storage: Any, data: Any) -> Any:
        """Messages that are under way count as references to the copy's file."""
        copy = glue.mirror(data)
        if copy is not None:
            original(_untyped(copy))
        return storage

    replace("_share_fd_cpu_", share)
    replace("_share_filename_cpu_", share)
    replace("_shared_incref", count)
    replace("_shared_decref", count)
    replace("share_memory_", lambda original, storage, data: storage)


def start_cuda() -> Any:
    """For the glue: starts torch's CUDA, which otherwise Python does when it makes the first CUDA tensor, and returns the
    function that gives the address of the current stream. None in a torch without CUDA.

    A process that ends waits for its work on the card: others share its results, and the end of a process would cut it
    off. Finalizers, unlike atexit functions, run in forked children too."""
    torch = _torch()
    function = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if function is not None:
        torch.cuda.init()
        from multiprocessing import util  # torch has it
        util.Finalize(None, _finish_cuda_work, exitpriority=-100)
    return function


def _finish_cuda_work() -> None:
    with contextlib.suppress(RuntimeError):  # the card's context has failed, and somebody else has said so
        _torch().cuda.synchronize(_card())


def _card() -> int:
    """The number of the card that Shoal uses. The library refuses what is no number."""
    number = os.environ.get("SHOAL_CARD", "")
    return int(number) if number.isdecimal() else 0


def _torch() -> Any:
    """torch itself; its types say less than its versions need."""
    return importlib.import_module("torch")


def _untyped(tensor: Any) -> Any:
    """Returns the untyped storage of a tensor, in torch 1 and 2."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def _bytes_of(storage: Any) -> Any:
    """Returns a tensor of all bytes of an untyped storage."""
    torch = _torch()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _heap_bytes(torch: Any, glue: ModuleType, storage: Any) -> Any:
    """Returns a tensor of all bytes of a storage if it is in the heap, else None."""
    if storage.device.type != "cpu":
        return None
    data = _bytes_of(storage)
    return data if glue.is_adopted(data) else None


def adopt(tensor: Any) -> Any:
    """Moves the memory of a tensor into the heap, or into card memory of Shoal's, now, instead of when it is first sent.
    Returns the tensor."""
    if load() is not None:
        assert _glue is not None
        return _glue.adopt(tensor)
    _moved.memory_of(tensor)
    return tensor


def pin(tensor: Any) -> None:
    """Keeps the memory of a tensor that another holder of its address has, also after a move."""
    if load() is not None:
        assert _glue is not None
        _glue.pin(tensor)


def is_adopted(tensor: Any) -> bool:
    """Returns whether the memory of a tensor is Shoal's, in the heap or on the card."""
    if load() is not None:
        assert _glue is not None
        return bool(_glue.is_adopted(tensor))
    return _moved.find(tensor) is not None


def is_moved(tensor: Any) -> bool:
    """Returns whether the memory of a tensor is shared, in the heap or by torch itself. Never compiles the glue. Torch calls
    every tensor on a card shared, so there it counts whether the memory is Shoal's. A sparse tensor is if its parts are."""
    torch = _torch()
    if tensor.layout != torch.strided:
        parts = _reduce_sparse(torch, tensor)[1]
        return all(is_moved(part) for part in parts if isinstance(part, torch.Tensor))
    if tensor.device.type == "cuda":
        return _moved.find(tensor) is not None or (_glue is not None and bool(_glue.is_adopted(tensor)))
    return bool(tensor.is_shared()) or _moved.find(tensor) is not None


# ---- without the glue ----

class _Moved:
    """The storages that were moved without the glue, into blocks of the heap or, on a card, into Tensors of bytes. A
    storage is known by the address of its implementation, which nothing else gets as long as the weak reference exists."""

    def __init__(self) -> None:
        self.by_storage: dict[int, tuple[Any, Any]] = {}  # address -> weak reference, memory
        self.by_memory: dict[int, Any] = {}  # number -> weak reference

    def find(self, tensor: Any) -> Any:
        """Returns the memory of a tensor's storage, or None."""
        weak, memory = self.by_storage.get(_untyped(tensor)._cdata, (None, None))
        return memory if weak is not None and not weak.expired() else None

    def memory_of(self, tensor: Any) -> Any:
        """Returns the memory of a tensor's storage. Moves the tensor if it has none."""
        torch = _torch()
        with _lock:
            memory = self.find(tensor)
            if memory is None:
                if tensor.is_cuda and tensor.device.index != _card():
                    raise RuntimeError("the tensor is on another card than the one that Shoal uses in this process, which is "
                                       "the first, or number SHOAL_CARD: set SHOAL_CARD, or send tensor.cpu()")
                old = _untyped(tensor)
                size = max(old.nbytes(), 1)  # torch makes no tensor over an empty buffer
                memory = _shoal.Tensor("u8", (size,), device="cuda").share() if tensor.is_cuda else _shoal.Block(size)
                storage = self.storage_of(memory)
                if old.nbytes() > 0:
                    _bytes_of(storage)[:old.nbytes()].copy_(_bytes_of(old))
                with torch.no_grad():
                    tensor.data = _strided(storage, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())
            if tensor.is_cuda:
                _shoal.card_follow(_tensor.current_stream(torch, tensor.device.index))
            return memory

    def storage_of(self, memory: Any) -> Any:
        """Returns the storage over the memory, the same as long as it exists."""
        torch = _torch()
        on_card = isinstance(memory, _shoal.Tensor)
        number = -memory.storage_id if on_card else memory.id
        with _lock:
            weak = self.by_memory.get(number)
            storage = None if weak is None else torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                self.forget_expired()
                storage = _untyped(memory.torch() if on_card else torch.frombuffer(memory, dtype=torch.uint8))
                weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
                self.by_memory[number] = weak
                self.by_storage[storage._cdata] = (weak, memory)
            elif on_card:
                _shoal.card_precede(_tensor.current_stream(torch, storage.device.index))
            return storage

    def forget_expired(self) -> None:
        for address, (weak, _) in list(self.by_storage.items()):
            if weak.expired():
                del self.by_storage[address]
        for number, weak in list(self.by_memory.items()):
            if weak.expired():
                del self.by_memory[number]


_moved = _Moved()


def _strided(storage: Any, dtype: Any, offset: int, size: Any, stride: Any) -> Any:
    torch = _torch()
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


# ---- pickling: what the short way in C does not carry ----

def reduce_torch(obj: Any, pickler: Any) -> Any:
    """Returns what pickles a tensor or a storage (as `__reduce_ex__` does), with its memory shared. Returns
    NotImplemented for any other object. pickler.add_object takes a shared object along and returns its number."""
    torch: Any = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is None:
        return NotImplemented
    if isinstance(obj, tensor_type):
        return _reduce_tensor(torch, obj, pickler)
    if isinstance(obj, torch.UntypedStorage):
        return _reduce_untyped(obj, pickler)
    if isinstance(obj, torch.storage.TypedStorage):
        untyped = obj._untyped_storage if hasattr(obj, "_untyped_storage") else obj.untyped()
        return _rebuild_typed, (type(obj), untyped, obj.dtype)
    return NotImplemented


def _reduce_tensor(torch: Any, tensor: Any, pickler: Any) -> Any:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor with requires_grad that is not a leaf cannot be sent to another process, because "
                           "its graph stays here; send tensor.detach()")
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"tensors on {tensor.device} cannot be sent; send tensor.cpu()")
    parameter = type(tensor) is torch.nn.Parameter
    if type(tensor) is not torch.Tensor and not parameter:
        return _reduce_subclass(tensor)
    short = _reduce_short(tensor, pickler)
    if short is not None:
        return short
    torch.utils.hooks.warn_if_has_hooks(tensor)
    return (_rebuild_dressed, (*_reduce_data(torch, tensor, pickler), parameter, tensor.requires_grad),
            (tensor.grad, dict(tensor.__dict__)), None, None, _dress)


def _reduce_subclass(tensor: Any) -> Any:
    """torch's own way, or that of the class; its storages come back here. The grad, which torch leaves out, is added."""
    reduced = tensor.__reduce_ex__(2)
    if not tensor.requires_grad and tensor.grad is None:
        return reduced
    if len(reduced) != 2:
        if tensor.grad is None:
            return reduced
        raise RuntimeError(f"a {type(tensor).__name__} with a grad cannot be sent, because of its __reduce_ex__")
    return _rebuild_dressed, (*reduced, False, tensor.requires_grad), (tensor.grad, {}), None, None, _dress


def _reduce_data(torch: Any, tensor: Any, pickler: Any) -> Any:
    """A tensor without what _dress adds: a function and its arguments."""
    if tensor.layout != torch.strided:
        return _reduce_sparse(torch, tensor)
    if tensor.device.type in ("cpu", "cuda") and not tensor.is_quantized and not tensor.is_nested and not _has_names(tensor):
        return _reduce_dense(torch, tensor, pickler)
    return tensor.__reduce_ex__(2)


def _has_names(tensor: Any) -> bool:
    """Returns whether the dimensions of a tensor have names. Newer versions of torch do not have them any more."""
    return hasattr(tensor, "has_names") and bool(tensor.has_names())


def _reduce_short(tensor: Any, pickler: Any) -> Any:
    """A tensor that is nothing but its memory. Returns None for any other."""
    if load() is not None:
        described = _shoal.torch_describe(tensor)
        if described is None:
            return None
        meta, memory = described
        return _rebuild_short, (meta, pickler.add_object(memory))
    return None


def _reduce_dense(torch: Any, tensor: Any, pickler: Any) -> Any:
    """Tensors with a lazy conjugation or negation share the memory of the tensor without it."""
    if tensor.is_conj():
        return _conjugate, (tensor.detach().conj(),)
    if tensor.is_neg():
        return _negate, (torch._neg_view(tensor.detach()),)
    if load() is None:
        memory = _moved.memory_of(tensor)
        return _rebuild_strided, (pickler.add_object(memory), tensor.dtype, tensor.storage_offset(), tuple(tensor.size()),
                                  tensor.stride())
    bare = _reduce_short(tensor.detach(), pickler)
    if bare is not None:
        return bare
    # more dimensions than the short way has
    return _strided, (_untyped(tensor), tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())


def _reduce_sparse(torch: Any, tensor: Any) -> Any:
    parts = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return _rebuild_coo, (parts._indices(), parts._values(), tuple(tensor.size()), tensor.is_coalesced())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = parts.crow_indices(), parts.col_indices()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = parts.ccol_indices(), parts.row_indices()
    else:
        raise RuntimeError(f"a tensor with the layout {tensor.layout} cannot be sent to another process")
    return _rebuild_compressed, (*indices, parts.values(), tuple(tensor.size()), tensor.layout)


def _reduce_untyped(storage: Any, pickler: Any) -> Any:
    if storage.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"storages on {storage.device} cannot be sent")
    data = _bytes_of(storage)
    if load() is not None and _shoal.torch_describe(data) is None:
        raise RuntimeError("this storage cannot be sent to another process")
    return _untyped, (data,)


# ---- unpickling ----

def _take(number: int) -> Any:
    from shoal.multiprocessing import reduction
    return reduction.take_object(number)


def _rebuild_short(meta: bytes, number: int) -> Any:
    return _shoal.torch_rebuild(meta, _take(number))


def _rebuild_strided(number: int, dtype: Any, offset: int, size: Any, stride: Any) -> Any:
    return _strided(_moved.storage_of(_take(number)), dtype, offset, size, stride)


def _rebuild_typed(cls: Any, untyped: Any, dtype: Any) -> Any:
    torch = _torch()
    if cls is not torch.storage.TypedStorage:
        return cls(wrap_storage=untyped)
    if "_internal" in cls.__new__.__code__.co_varnames:
        return cls(wrap_storage=untyped, dtype=dtype, _internal=True)  # else torch 2 warns
    return cls(wrap_storage=untyped, dtype=dtype)


def _conjugate(tensor: Any) -> Any:
    return tensor.conj()


def _negate(tensor: Any) -> Any:
    torch = _torch()
    return torch._neg_view(tensor)


def _rebuild_coo(indices: Any, values: Any, size: Any, coalesced: bool) -> Any:
    torch = _torch()
    unchecked = getattr(torch, "_sparse_coo_tensor_unsafe", None)  # before torch 2
    tensor = unchecked(indices, values, size) if unchecked else torch.sparse_coo_tensor(
        indices, values, size, check_invariants=False)
    return tensor._coalesced_(coalesced)


def _rebuild_compressed(compressed: Any, plain: Any, values: Any, size: Any, layout: Any) -> Any:
    torch = _torch()
    unchecked = getattr(torch, "_sparse_compressed_tensor_unsafe", None)  # before torch 2
    if unchecked:
        return unchecked(compressed, plain, values, size, layout=layout)
    return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, check_invariants=False)


def _rebuild_dressed(make: Callable[..., Any], args: Any, parameter: bool, requires_grad: bool) -> Any:
    torch = _torch()
    tensor = make(*args)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    if requires_grad and not tensor.is_leaf:  # as_subclass(), by which torch rebuilds a subclass, is an operation
        attributes, tensor = tensor.__dict__, tensor.detach()
        tensor.__dict__.update(attributes)
    return tensor.requires_grad_() if requires_grad and not tensor.requires_grad else tensor


def _dress(tensor: Any, state: Any) -> None:
    """Grad and attributes come after the tensor, because they may refer to it."""
    grad, attributes = state
    if grad is not None:
        tensor.grad = grad
    for name, value in attributes.items():
        setattr(tensor, name, value)
