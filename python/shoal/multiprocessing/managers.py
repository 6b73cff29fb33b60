"""Managers: those of the standard module. Only the context is ours, so the server is a process of this world."""
# The types of the standard module do not have all of its names.
# mypy: disable-error-code="attr-defined,no-redef"
import multiprocessing.managers as _standard
from multiprocessing.managers import *  # noqa: F401,F403
from multiprocessing.managers import (AcquirerProxy, ArrayProxy, AutoProxy, BarrierProxy, ConditionProxy,  # noqa: F401
                                      DictProxy, EventProxy, IteratorProxy, ListProxy, MakeProxyType, Namespace,
                                      NamespaceProxy, PoolProxy, RebuildProxy, RemoteError, Server, SharedMemoryServer,
                                      State, ValueProxy, convert_to_error, dispatch, public_methods)
from typing import Any, Optional

from . import context

__all__ = _standard.__all__


class _OurContext:
    def __init__(self, address: Any = None, authkey: Optional[bytes] = None, serializer: str = "pickle", ctx: Any = None,
                 *, shutdown_timeout: float = 1.0) -> None:
        ctx = ctx or context._default_context.get_context()
        super().__init__(address, authkey, serializer, ctx,  # type: ignore[call-arg]
                         shutdown_timeout=shutdown_timeout)


class BaseManager(_OurContext, _standard.BaseManager):
    __doc__ = _standard.BaseManager.__doc__


class SyncManager(_OurContext, _standard.SyncManager):
    __doc__ = _standard.SyncManager.__doc__


class SharedMemoryManager(_OurContext, _standard.SharedMemoryManager):
    __doc__ = _standard.SharedMemoryManager.__doc__


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    return getattr(_standard, name)
