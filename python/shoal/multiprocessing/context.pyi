"""Types of context.py: those of the standard module, with our classes."""

import ctypes
import multiprocessing.context as _standard
import multiprocessing.process as _process
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import (
    AuthenticationError as AuthenticationError,
    BufferTooShort as BufferTooShort,
    ProcessError as ProcessError,
    TimeoutError as TimeoutError,
    assert_spawning as assert_spawning,
    get_spawning_popen as get_spawning_popen,
    set_spawning_popen as set_spawning_popen,
)
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, overload

from . import queues, synchronize
from .connection import Connection
from .managers import SyncManager
from .pool import Pool as _Pool
from .sharedctypes import SynchronizedArray, SynchronizedBase

_LockLike: TypeAlias = synchronize.Lock | synchronize.RLock
_CT = TypeVar("_CT", bound=ctypes._CData)

# The factories return other classes than those of the standard module, which they resemble.
class BaseContext(_standard.BaseContext):
    def Manager(self) -> SyncManager: ...
    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]: ...  # type: ignore[override]
    def Barrier(  # type: ignore[override]
        self, parties: int, action: Callable[..., object] | None = None, timeout: float | None = None
    ) -> synchronize.Barrier: ...
    def BoundedSemaphore(self, value: int = 1) -> synchronize.BoundedSemaphore: ...  # type: ignore[override]
    def Condition(self, lock: _LockLike | None = None) -> synchronize.Condition: ...  # type: ignore[override]
    def Event(self) -> synchronize.Event: ...  # type: ignore[override]
    def Lock(self) -> synchronize.Lock: ...  # type: ignore[override]
    def RLock(self) -> synchronize.RLock: ...  # type: ignore[override]
    def Semaphore(self, value: int = 1) -> synchronize.Semaphore: ...  # type: ignore[override]
    def Queue(self, maxsize: int = 0) -> queues.Queue[Any]: ...  # type: ignore[override]
    def JoinableQueue(self, maxsize: int = 0) -> queues.JoinableQueue[Any]: ...  # type: ignore[override]
    def SimpleQueue(self, maxsize: int = 0) -> queues.SimpleQueue[Any]: ...  # type: ignore[override]
    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        retries: int = 0,
    ) -> _Pool: ...
    @overload
    def RawValue(self, typecode_or_type: type[_CT], *args: Any) -> _CT: ...
    @overload
    def RawValue(self, typecode_or_type: str, *args: Any) -> Any: ...
    @overload
    def RawArray(self, typecode_or_type: type[_CT], size_or_initializer: int | Sequence[Any]) -> ctypes.Array[_CT]: ...
    @overload
    def RawArray(self, typecode_or_type: str, size_or_initializer: int | Sequence[Any]) -> Any: ...
    @overload  # type: ignore[override]
    def Value(self, typecode_or_type: type[_CT], *args: Any, lock: Literal[False]) -> _CT: ...
    @overload
    def Value(self, typecode_or_type: str | type[Any], *args: Any, lock: bool | _LockLike = True) -> Any: ...
    @overload  # type: ignore[override]
    def Array(
        self, typecode_or_type: type[_CT], size_or_initializer: int | Sequence[Any], *, lock: Literal[False]
    ) -> ctypes.Array[_CT]: ...
    @overload
    def Array(
        self, typecode_or_type: str | type[Any], size_or_initializer: int | Sequence[Any], *,
        lock: bool | _LockLike = True
    ) -> Any: ...
    @overload  # type: ignore[override]
    def get_context(self, method: None = None) -> BaseContext: ...
    @overload
    def get_context(self, method: Literal["spawn"]) -> SpawnContext: ...
    @overload
    def get_context(self, method: Literal["fork"]) -> ForkContext: ...
    @overload
    def get_context(self, method: Literal["forkserver"]) -> ForkServerContext: ...
    @overload
    def get_context(self, method: str) -> BaseContext: ...
    @property
    def reducer(self) -> Any: ...
    @reducer.setter
    def reducer(self, value: Any) -> None: ...

class BaseProcess(_process.BaseProcess):
    _start_method: str | None
    _outlive: bool
    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] = {},
        *,
        daemon: bool | None = None,
        outlive: bool = False,
    ) -> None: ...
    def _bootstrap(self, parent_sentinel: int | None = None) -> int: ...

class Process(BaseProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any: ...

class ForkProcess(BaseProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any: ...

class SpawnProcess(BaseProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any: ...

class ForkServerProcess(BaseProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any: ...

class DefaultContext(BaseContext):
    Process: ClassVar[type[Process]]
    _actual_context: BaseContext | None
    def __init__(self, context: BaseContext) -> None: ...
    def set_start_method(self, method: str | None, force: bool = False) -> None: ...
    @overload
    def get_start_method(self, allow_none: Literal[False] = False) -> str: ...
    @overload
    def get_start_method(self, allow_none: bool) -> str | None: ...
    def get_all_start_methods(self) -> list[str]: ...

class ForkContext(BaseContext):
    _name: ClassVar[str]
    Process: ClassVar[type[ForkProcess]]

class SpawnContext(BaseContext):
    _name: ClassVar[str]
    Process: ClassVar[type[SpawnProcess]]

class ForkServerContext(BaseContext):
    _name: ClassVar[str]
    Process: ClassVar[type[ForkServerProcess]]

_concrete_contexts: dict[str, BaseContext]
_default_context: DefaultContext

def _force_start_method(method: str) -> None: ...
