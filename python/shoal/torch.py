"""torch tensors in Shoal's memory.

A tensor that is put on a queue, or given to a process, is shared afterwards. What happens to its storage depends on whose
memory it has:

- private memory of this process moves into Shoal's memory, the heap or that of the GPU. The storage is replaced in place, so
  that all views of it, and Parameters, follow;
- memory that is Shoal's already (`torch.from_numpy(shoal.zeros(3))`, `shoal.Tensor.torch()`) stays where it is;
- memory that torch has shared stays where it is, too, because other processes and numpy arrays use it. It travels as
  torch's own queues send it: by an fd, or by the name of a file.

From then on it is the same memory in all processes that have it, and sending it again copies nothing. `is_shared()` is True
afterwards, and the storage can no longer be resized, as with `share_memory_()`. In a program that has imported
shoal.multiprocessing, `share_memory_()` moves the storage into the heap at once.

Replacing a storage needs a little C++ for the torch that is installed (the "glue"). It comes with the package, or is
compiled at first use. Without it, torch shares the memory itself, by an fd for each storage; a warning says so once.

Nothing here imports torch, unless a tensor arrives from another process.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shoal import _shoal, _torch_build, _torch_import

__all__ = ["adopt", "is_adopted", "load", "share_grads"]

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
        warnings.warn(f"torch tensors are sent as torch.multiprocessing sends them, with an fd for each storage, because "
                      f"shoal's torch glue is not available: {error}", RuntimeWarning, stacklevel=2)
        return None
    sys.modules["shoal._torch_glue"] = glue
    _let_torch_send_blocks(torch)
    return glue


# ---- memory that torch would share ----

def share_in_the_heap() -> None:
    """Lets `share_memory_()` move storages into the heap, and new shared storages be made there, as those of DataLoader's
    workers. So they need no fd and no file, and need not move when they are sent."""
    torch = _torch()
    untyped = getattr(torch, "UntypedStorage", None)
    if untyped is None or hasattr(untyped.share_memory_, "_shoal"):
        return
    share, new = untyped.share_memory_, untyped._new_shared.__func__

    @functools.wraps(share)
    def share_memory_(self: Any) -> Any:
        if self.device.type != "cpu":
            return share(self)
        if not self.is_shared() and _shares_in_the_heap():
            assert _glue is not None
            _glue.adopt(_bytes_of(self))
        in_heap = _glue is not None and _glue.is_adopted(_bytes_of(self))
        return self if in_heap else share(self)

    @functools.wraps(new)
    def _new_shared(cls: Any, size: int, **options: Any) -> Any:
        if torch.device(options.get("device", "cpu")).type == "cpu" and _shares_in_the_heap():
            assert _glue is not None
            return _untyped(_glue.empty(size))
        return new(cls, size, **options)

    share_memory_._shoal = True  # type: ignore[attr-defined]
    untyped.share_memory_ = share_memory_
    untyped._new_shared = classmethod(_new_shared)


def _shares_in_the_heap() -> bool:
    """Not in a child of plain multiprocessing: it may be in no world, or in another than those it sends to."""
    from multiprocessing import process
    return (_torch_import.in_child or process.parent_process() is None) and load() is not None


# ---- torch's own queues ----

def _let_torch_send_blocks(torch: Any) -> None:
    """Lets the queues and processes of torch.multiprocessing carry storages that are in the heap, as the same memory. torch
    sends the file of a storage's shared memory, and a block is only a part of the world's file."""
    from multiprocessing.reduction import ForkingPickler

    original = ForkingPickler._extra_reducers[torch.UntypedStorage]  # type: ignore[attr-defined]

    @functools.wraps(original)
    def reduce_storage(storage: Any) -> Any:
        data = _bytes_of(storage) if storage.device.type == "cpu" else None
        if data is None or not is_adopted(data):
            return original(storage)
        meta, block = _shoal.torch_describe(data)  # type: ignore[misc]
        return _rebuild_sent_by_torch, (meta, _Parcel(block))

    ForkingPickler.register(torch.UntypedStorage, reduce_storage)


class _Parcel:
    """A block on its way through a queue of another module. Its sender keeps it until the receiver has opened it, as a
    sender of multiprocessing keeps an fd, and by the same thread. A receiver that is in no world joins the sender's."""

    _world: tuple[str, Any] | None = None  # its name, and a block by which a receiver sees that it is in the same one

    def __init__(self, block: Any) -> None:
        from multiprocessing import resource_sharer

        def send(connection: Any, pid: int) -> None:
            with contextlib.suppress(OSError, EOFError):  # the receiver has died, or refuses
                connection.send(block.id)
                connection.recv()  # it has opened the block
                connection.send(True)  # and this process has held it so long

        if _Parcel._world is None:
            proof: Any = _shoal.Block(16)
            memoryview(proof)[:] = secrets.token_bytes(16)
            _Parcel._world = _shoal.world_info()["name"], proof
        self.world, proof = _Parcel._world
        self.proof = proof.id, bytes(memoryview(proof))
        self.place = resource_sharer._resource_sharer.register(send, lambda: None)  # type: ignore[attr-defined]

    def open(self) -> Any:
        from multiprocessing import resource_sharer
        try:
            with contextlib.suppress(_shoal.Error):  # this process is in a world
                _shoal.world_join(self.world, True)
            with resource_sharer._resource_sharer.get_connection(self.place) as connection:  # type: ignore[attr-defined]
                number = connection.recv()
                self.check_world()
                block = _shoal.block_open(number)
                connection.send(True)
                connection.recv()
                return block
        except (OSError, EOFError) as error:
            raise RuntimeError("the process that sent this tensor has ended before it was received; a queue of "
                               "shoal.multiprocessing does not need its sender") from error

    def check_world(self) -> None:
        number, expected = self.proof
        try:
            proof: Any = _shoal.block_open(number)
            same = bytes(memoryview(proof)) == expected
        except FileNotFoundError:
            same = False
        if not same:
            raise RuntimeError("this tensor is in the memory of another world of Shoal's than the one of this process: "
                               "send tensor.clone()")


def _rebuild_sent_by_torch(meta: bytes, parcel: _Parcel) -> Any:
    return _storage_over(_shoal.torch_rebuild(meta, parcel.open()))


# ---- the GPU ----

def start_cuda() -> Any:
    """For the glue: starts torch's CUDA, which otherwise Python does when it makes the first CUDA tensor, and returns the
    function that gives the address of the current stream. None in a torch without CUDA.

    A process that ends waits for its work on the GPU: others share its results, and the end of a process would cut it
    off. Finalizers, unlike atexit functions, run in forked children too."""
    torch = _torch()
    function = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if function is not None:
        torch.cuda.init()
        from multiprocessing import util  # torch has it
        util.Finalize(None, _finish_cuda_work, exitpriority=-100)
    return function


def _finish_cuda_work() -> None:
    with contextlib.suppress(RuntimeError):  # the GPU's context has failed, and somebody else has said so
        _torch().cuda.synchronize(_card())


def _card() -> int:
    """The number of the GPU that Shoal uses. The library refuses what is no number."""
    number = os.environ.get("SHOAL_CUDA_DEVICE", os.environ.get("SHOAL_CARD", ""))  # its name in 0.2
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


def adopt(tensor: Any) -> Any:
    """Shares the memory of a tensor now, instead of when it is first sent: moves it into the heap, or into GPU memory of
    Shoal's. Memory that torch has shared stays where it is. Returns the tensor."""
    if load() is not None:
        assert _glue is not None
        return _glue.adopt(tensor)
    if tensor.device.type == "cpu" and _block_around(_untyped(tensor)) is None:
        _untyped(tensor).share_memory_()
    return tensor


def parts(tensor: Any) -> list[Any]:
    """Returns the tensors that have the memory of a tensor: itself, or the indices and values of a sparse one."""
    torch = _torch()
    if tensor.layout == torch.strided:
        return [tensor]
    return [part for part in _reduce_sparse(torch, tensor)[1] if isinstance(part, torch.Tensor)]


def pin(tensor: Any) -> None:
    """Keeps the memory of a tensor that another holder of its address has, also after a move."""
    if load() is not None:
        assert _glue is not None
        _glue.pin(tensor)


def is_adopted(tensor: Any) -> bool:
    """Returns whether the memory of a tensor is Shoal's, in the heap or on the GPU."""
    if load() is not None:
        assert _glue is not None
        return bool(_glue.is_adopted(tensor))
    return tensor.device.type == "cpu" and _block_around(_untyped(tensor)) is not None


def is_moved(tensor: Any) -> bool:
    """Returns whether the memory of a tensor is shared, in the heap or by torch itself. Never compiles the glue. Torch calls
    every tensor on a GPU shared, so there it counts whether the memory is Shoal's. A sparse tensor is if its parts are."""
    torch = _torch()
    if tensor.layout != torch.strided:
        return all(is_moved(part) for part in parts(tensor))
    if tensor.device.type == "cuda":
        return _glue is not None and bool(_glue.is_adopted(tensor))
    return bool(tensor.is_shared()) or _block_around(_untyped(tensor)) is not None


# ---- without the glue ----

def _block_around(storage: Any) -> Any:
    """Returns the block that contains the bytes of a CPU storage, or None. What came by value belongs to this process."""
    block = _shoal.block_find(storage.data_ptr()) if storage.nbytes() > 0 else None
    return None if block is None or _shoal.block_is_by_value(block.id) else block


def _reduce_in_block(storage: Any, block: Any, pickler: Any) -> Any:
    return _rebuild_in_block, (pickler.add_object(block), storage.data_ptr() - block.address, storage.nbytes())


def _rebuild_in_block(number: int, offset: int, size: int) -> Any:
    torch = _torch()
    return _untyped(torch.frombuffer(_take(number), dtype=torch.uint8, offset=offset, count=size))


# ---- memory that torch has shared ----

def _reduce_torchs(torch: Any, storage: Any, by_fd: bool) -> Any:
    """Pickles a storage as torch does. Memory that is private yet, torch moves, in place."""
    from multiprocessing.reduction import DupFd

    reductions = torch.multiprocessing.reductions
    if by_fd:
        fd, size = storage._share_fd_cpu_()
        file = reductions.fd_id(fd)
        reductions.shared_cache[file] = reductions.StorageWeakRef(storage)
        return _rebuild_from_fd, (DupFd(fd), size, file)
    manager, name, size = storage._share_filename_cpu_()
    storage._shared_incref()  # for the message, until the receiver has opened it
    reductions.shared_cache[name] = reductions.StorageWeakRef(storage)
    return reductions.rebuild_storage_filename, (torch.UntypedStorage, manager, name, size)


def _rebuild_empty(device: str) -> Any:
    torch = _torch()
    return _untyped(torch.empty(0, dtype=torch.uint8, device=device))


def _rebuild_from_fd(sent: Any, size: int, file: tuple[int, int]) -> Any:
    """As torch does, but the sender may have ended if another process has the file, too."""
    torch = _torch()
    reductions = torch.multiprocessing.reductions
    try:
        fd = sent.detach()
    except (OSError, EOFError) as error:
        fd = _find_file(file)
        if fd is None:
            raise RuntimeError("the process that sent this tensor has ended, and so has the memory that torch had shared: "
                               "keep it alive until the tensor is received, or send tensor.clone()") from error
    try:
        storage = reductions.storage_from_cache(torch.UntypedStorage, file)
        if storage is None:
            storage = torch.UntypedStorage._new_shared_fd_cpu(fd, size)
            reductions.shared_cache[file] = reductions.StorageWeakRef(storage)
        return storage
    finally:
        os.close(fd)


def _find_file(file: tuple[int, int]) -> int | None:
    """Opens a file that a process of this user's worlds has open. Returns None if there is none."""
    pids = dict.fromkeys([os.getpid(), os.getppid(), *(entry["pid"] for entry in _shoal.world_list())])
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = f"/proc/{pid}/fd/{name}"
                    status = os.stat(path)
                    if (status.st_ino, status.st_dev) == file:
                        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return None


# ---- grads ----

_grads = True
_told_of_grads = False


def share_grads(share: bool = True) -> None:
    """Sets whether a tensor that is sent takes its grad along, which is then shared like the tensor. It is so by default,
    as PyTorch's documentation says. `share_grads(False)` leaves the grad out, as PyTorch's code does: the receiver's
    `grad` is None, and each process has its own. Children that are started later do the same."""
    global _grads
    _grads = bool(share)


def shares_grads() -> bool:
    """Returns what share_grads() has set."""
    return _grads


def _grad_to_send(tensor: Any) -> Any:
    global _told_of_grads
    grad = tensor.grad if _grads else None
    if grad is not None and not _told_of_grads:
        _told_of_grads = True
        warnings.warn("a tensor was sent to another process together with its grad, so these processes now share the grad "
                      "and add to the same one. Set grad to None before, or call "
                      "shoal.multiprocessing.share_grads(False), if each process should have its own", RuntimeWarning,
                      stacklevel=2)
    return grad


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
            (_grad_to_send(tensor), dict(tensor.__dict__)), None, None, _dress)


def _reduce_subclass(tensor: Any) -> Any:
    """torch's own way, or that of the class; its storages come back here. The grad, which torch leaves out, is added."""
    reduced = tensor.__reduce_ex__(2)
    grad = _grad_to_send(tensor)
    if not tensor.requires_grad and grad is None:
        return reduced
    if len(reduced) != 2:
        if grad is None:
            return reduced
        raise RuntimeError(f"a {type(tensor).__name__} with a grad cannot be sent, because of its __reduce_ex__")
    return _rebuild_dressed, (*reduced, False, tensor.requires_grad), (grad, {}), None, None, _dress


def _reduce_data(torch: Any, tensor: Any, pickler: Any) -> Any:
    """A tensor without what _dress adds: a function and its arguments."""
    if tensor.layout != torch.strided:
        return _reduce_sparse(torch, tensor)
    return _reduce_dense(torch, tensor, pickler) if _is_plain(tensor) else tensor.__reduce_ex__(2)


def _is_plain(tensor: Any) -> bool:
    """Returns whether a tensor is an array of numbers. Newer versions of torch have no names of dimensions any more."""
    named = hasattr(tensor, "has_names") and tensor.has_names()
    return tensor.device.type in ("cpu", "cuda") and not (tensor.is_quantized or tensor.is_nested or named)


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
    if load() is not None:
        bare = _reduce_short(tensor.detach(), pickler)
        if bare is not None:
            return bare
    elif tensor.is_cuda:
        return torch.multiprocessing.reductions.reduce_tensor(tensor.detach())
    # memory that torch shares, or more dimensions than the short way has
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
    if storage.nbytes() == 0:  # there is nothing to share, and the sender may resize it
        return _rebuild_empty, (storage.device.type,)
    torch = _torch()
    if load() is None:
        if storage.device.type != "cpu":
            raise RuntimeError(f"storages on {storage.device} cannot be sent without shoal's torch glue; send a tensor")
        block = _block_around(storage)
        if block is not None:
            return _reduce_in_block(storage, block, pickler)
        return _reduce_torchs(torch, storage, torch.multiprocessing.get_sharing_strategy() != "file_system")
    assert _glue is not None
    data = _bytes_of(storage)
    described = _shoal.torch_describe(data)
    if described is not None:
        meta, memory = described
        return _rebuild_storage, (meta, pickler.add_object(memory))
    if storage.device.type == "cpu" and _glue.is_shared_by_torch(data):
        return _reduce_torchs(torch, storage, _glue.has_fd(data))
    raise RuntimeError("this storage cannot be sent to another process")


# ---- unpickling ----

def _take(number: int) -> Any:
    from shoal.multiprocessing import reduction
    return reduction.take_object(number)


def _rebuild_short(meta: bytes, number: int) -> Any:
    return _shoal.torch_rebuild(meta, _take(number))


def _rebuild_storage(meta: bytes, number: int) -> Any:
    return _storage_over(_shoal.torch_rebuild(meta, _take(number)))


def _storage_over(data: Any) -> Any:
    """Returns the storage of exactly the bytes of a tensor: its own, unless they are a part of a block."""
    torch = _torch()
    whole = _untyped(data)
    return whole if data.numel() == whole.nbytes() else _untyped(torch.from_numpy(data.numpy()))


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
