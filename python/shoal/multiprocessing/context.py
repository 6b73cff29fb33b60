"""Contexts: everything that depends on the start method, and the factories of shared objects."""
import multiprocessing as _standard
import multiprocessing.context as _standard_context
import multiprocessing.process as _standard_process
from multiprocessing.context import (AuthenticationError, BufferTooShort, ProcessError, TimeoutError, assert_spawning,
                                     get_spawning_popen, set_spawning_popen)

from .. import _torch_import
from . import reduction

__all__ = ()


class BaseContext(_standard_context.BaseContext):
    """What all contexts share: the factories of shared objects."""

    def Manager(self):
        """Returns a manager with a running server process."""
        from .managers import SyncManager
        manager = SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    def Pipe(self, duplex=True):
        """Returns two connections, the ends of a pipe."""
        from .connection import Pipe
        return Pipe(duplex)

    def Lock(self):
        """Returns a lock, which is not recursive."""
        from .synchronize import Lock
        return Lock(ctx=self.get_context())

    def RLock(self):
        """Returns a recursive lock."""
        from .synchronize import RLock
        return RLock(ctx=self.get_context())

    def Condition(self, lock=None):
        """Returns a condition."""
        from .synchronize import Condition
        return Condition(lock, ctx=self.get_context())

    def Semaphore(self, value=1):
        """Returns a semaphore."""
        from .synchronize import Semaphore
        return Semaphore(value, ctx=self.get_context())

    def BoundedSemaphore(self, value=1):
        """Returns a semaphore that cannot be released more often than it was acquired."""
        from .synchronize import BoundedSemaphore
        return BoundedSemaphore(value, ctx=self.get_context())

    def Event(self):
        """Returns an event."""
        from .synchronize import Event
        return Event(ctx=self.get_context())

    def Barrier(self, parties, action=None, timeout=None):
        """Returns a barrier."""
        from .synchronize import Barrier
        return Barrier(parties, action, timeout, ctx=self.get_context())

    def Queue(self, maxsize=0):
        """Returns a queue."""
        from .queues import Queue
        return Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize=0):
        """Returns a queue with task_done() and join()."""
        from .queues import JoinableQueue
        return JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self, maxsize=0):
        """Returns a queue with only get(), put(), empty() and close()."""
        from .queues import SimpleQueue
        return SimpleQueue(maxsize, ctx=self.get_context())

    def Pool(self, processes=None, initializer=None, initargs=(), maxtasksperchild=None, *, retries=0):
        """Returns a pool of processes. A task whose worker dies is run again, up to `retries` times."""
        from .pool import Pool
        return Pool(processes, initializer, initargs, maxtasksperchild, context=self.get_context(), retries=retries)

    def RawValue(self, typecode_or_type, *args):
        """Returns a ctypes object in shared memory, without a lock."""
        from .sharedctypes import RawValue
        return RawValue(typecode_or_type, *args)

    def RawArray(self, typecode_or_type, size_or_initializer):
        """Returns a ctypes array in shared memory, without a lock."""
        from .sharedctypes import RawArray
        return RawArray(typecode_or_type, size_or_initializer)

    def Value(self, typecode_or_type, *args, lock=True):
        """Returns a ctypes object in shared memory, with a lock."""
        from .sharedctypes import Value
        return Value(typecode_or_type, *args, lock=lock, ctx=self.get_context())

    def Array(self, typecode_or_type, size_or_initializer, *, lock=True):
        """Returns a ctypes array in shared memory, with a lock."""
        from .sharedctypes import Array
        return Array(typecode_or_type, size_or_initializer, lock=lock, ctx=self.get_context())

    def freeze_support(self):
        """Runs the child and ends it, if this process is the child of a frozen program."""
        from .spawn import freeze_support
        freeze_support()

    def allow_connection_pickling(self):
        """Does nothing: connections can always be sent."""

    def set_executable(self, executable):
        """Sets the program that runs children which are not forked."""
        from .spawn import set_executable
        set_executable(executable)

    def set_forkserver_preload(self, module_names):
        """Sets the names of the modules that the fork server imports, so that its children need not."""
        from .forkserver import set_forkserver_preload
        set_forkserver_preload(module_names)

    def get_context(self, method=None):
        """Returns the context of a start method, or this one."""
        if method is None:
            return self
        try:
            return _concrete_contexts[method]
        except KeyError:
            raise ValueError(f"cannot find context for {method!r}") from None

    @property
    def reducer(self):
        """The module that pickles what is sent to other processes."""
        return globals()["reduction"]

    @reducer.setter
    def reducer(self, value):
        globals()["reduction"] = value


# ---- the default context ----

class BaseProcess(_standard_process.BaseProcess):
    """A child process, in the world of its parent.

    It takes the arguments of multiprocessing.Process and one more: with outlive=True it continues when its parent dies.
    Otherwise it ends within a second of its parent's death, however the parent died.
    """

    _start_method: "str | None" = None
    _outlive = False

    def __init__(self, group=None, target=None, name=None, args=(), kwargs={}, *, daemon=None, outlive=False):
        super().__init__(group, target, name, args, kwargs, daemon=daemon)
        self._outlive = bool(outlive)

    def _bootstrap(self, parent_sentinel=None):
        if self._start_method is not None:
            _force_start_method(self._start_method)
            self._start_method = None  # else the base class would change the start method of the standard module
        _torch_import.begin_child()
        return super()._bootstrap(parent_sentinel)


class Process(BaseProcess):
    __doc__ = BaseProcess.__doc__
    _start_method = None

    @staticmethod
    def _Popen(process_obj):
        return _default_context.get_context().Process._Popen(process_obj)

    @staticmethod
    def _after_fork():
        return _default_context.get_context().Process._after_fork()


class DefaultContext(BaseContext):
    """The context behind the functions of the package. Its start method can be set once."""

    Process = Process

    def __init__(self, context):
        self._default_context = context
        self._actual_context = None

    def get_context(self, method=None):
        """Returns the context of a start method, or of the one that is set. This sets the default if none was."""
        if method is not None:
            return super().get_context(method)
        if self._actual_context is None:
            self._actual_context = self._default_context
        return self._actual_context

    def set_start_method(self, method, force=False):
        """Sets the start method. Only with force can it be set again; None then stands for the default."""
        if self._actual_context is not None and not force:
            raise RuntimeError("context has already been set")
        self._actual_context = None if method is None and force else self.get_context(method)

    def get_start_method(self, allow_none=False):
        """Returns the start method. This sets the default if none was, unless allow_none is true."""
        if self._actual_context is None and allow_none:
            return None
        return self.get_context()._name

    def get_all_start_methods(self):
        """Returns the start methods, the default one first."""
        return _standard.get_all_start_methods()


# ---- one context for each start method ----

class ForkProcess(BaseProcess):
    __doc__ = BaseProcess.__doc__
    _start_method = "fork"

    @staticmethod
    def _Popen(process_obj):
        from .popen_fork import Popen
        return Popen(process_obj)


class SpawnProcess(BaseProcess):
    __doc__ = BaseProcess.__doc__
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj):
        from .popen_spawn_posix import Popen
        return Popen(process_obj)

    @staticmethod
    def _after_fork():
        """Does nothing: the process was not forked."""


class ForkServerProcess(BaseProcess):
    __doc__ = BaseProcess.__doc__
    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj):
        from .popen_forkserver import Popen
        return Popen(process_obj)


class ForkContext(BaseContext):
    """Children are forks of this process."""
    _name = "fork"
    Process = ForkProcess


class SpawnContext(BaseContext):
    """Children are fresh Pythons."""
    _name = "spawn"
    Process = SpawnProcess


class ForkServerContext(BaseContext):
    """Children are forks of a server process, which has few modules and no threads."""
    _name = "forkserver"
    Process = ForkServerProcess


_concrete_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}
_default_context = DefaultContext(_concrete_contexts[_standard.get_all_start_methods()[0]])


def _force_start_method(method):
    _default_context._actual_context = _concrete_contexts[method]
