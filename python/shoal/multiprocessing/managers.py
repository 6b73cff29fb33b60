"""Managers: those of the standard module. Only the context is ours, so the server is a process of this world."""
import multiprocessing.managers as _standard
from multiprocessing.managers import *  # noqa: F401,F403
from multiprocessing.managers import (AcquirerProxy, ArrayProxy, AutoProxy, BarrierProxy, ConditionProxy,  # noqa: F401
                                      DictProxy, EventProxy, IteratorProxy, ListProxy, MakeProxyType, Namespace,
                                      NamespaceProxy, PoolProxy, RebuildProxy, RemoteError, Server, SharedMemoryServer,
                                      State, ValueProxy, convert_to_error, dispatch, public_methods)

from . import context

__all__ = _standard.__all__


class _OurContext:
    def __init__(self, *args, ctx=None, **kwds):
        super().__init__(*args, ctx=ctx or context._default_context.get_context(), **kwds)


class BaseManager(_OurContext, _standard.BaseManager):
    __doc__ = _standard.BaseManager.__doc__


class SyncManager(_OurContext, _standard.SyncManager):
    __doc__ = _standard.SyncManager.__doc__


class SharedMemoryManager(_OurContext, _standard.SharedMemoryManager):
    __doc__ = _standard.SharedMemoryManager.__doc__
