"""Types of the package: the names of the standard module, from the default context, and those of torch."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import context as context, process as process, reduction as reduction
from .context import _default_context
from .ranks import (
    ENV_VAR_PARALLEL_START as ENV_VAR_PARALLEL_START,
    ProcessContext as ProcessContext,
    ProcessException as ProcessException,
    ProcessExitedException as ProcessExitedException,
    ProcessRaisedException as ProcessRaisedException,
    SpawnContext as SpawnContext,
    start_processes as start_processes,
)
from .sharing import (
    get_all_sharing_strategies as get_all_sharing_strategies,
    get_sharing_strategy as get_sharing_strategy,
    set_sharing_strategy as set_sharing_strategy,
    share_grads as share_grads,
)
from .thread_names import _get_thread_name as _get_thread_name, _set_thread_name as _set_thread_name

class _Spawn(ModuleType):
    """The module spawn, which can be called: torch's function."""

    def __call__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> ProcessContext | None: ...

spawn: _Spawn

SUBDEBUG: int
SUBWARNING: int

AuthenticationError = context.AuthenticationError
BufferTooShort = context.BufferTooShort
ProcessError = context.ProcessError
TimeoutError = context.TimeoutError
Process = context.Process

Array = _default_context.Array
Barrier = _default_context.Barrier
BoundedSemaphore = _default_context.BoundedSemaphore
Condition = _default_context.Condition
Event = _default_context.Event
JoinableQueue = _default_context.JoinableQueue
Lock = _default_context.Lock
Manager = _default_context.Manager
Pipe = _default_context.Pipe
Pool = _default_context.Pool
Queue = _default_context.Queue
RLock = _default_context.RLock
RawArray = _default_context.RawArray
RawValue = _default_context.RawValue
Semaphore = _default_context.Semaphore
SimpleQueue = _default_context.SimpleQueue
Value = _default_context.Value
active_children = _default_context.active_children
allow_connection_pickling = _default_context.allow_connection_pickling
cpu_count = _default_context.cpu_count
current_process = _default_context.current_process
freeze_support = _default_context.freeze_support
get_all_start_methods = _default_context.get_all_start_methods
get_context = _default_context.get_context
get_logger = _default_context.get_logger
get_start_method = _default_context.get_start_method
log_to_stderr = _default_context.log_to_stderr
parent_process = _default_context.parent_process
reducer = _default_context.reducer
set_executable = _default_context.set_executable
set_forkserver_preload = _default_context.set_forkserver_preload
set_start_method = _default_context.set_start_method
