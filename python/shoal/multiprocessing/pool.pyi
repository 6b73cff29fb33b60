"""Types of pool.py: those of the standard module, and what is added."""

import multiprocessing.pool as _standard
from collections.abc import Callable, Iterable
from multiprocessing.pool import (
    ApplyResult as ApplyResult,
    AsyncResult as AsyncResult,
    IMapIterator as IMapIterator,
    IMapUnorderedIterator as IMapUnorderedIterator,
    MapResult as MapResult,
    ThreadPool as ThreadPool,
)
from typing import Any

from .pool_workers import WorkerDied as WorkerDied

__all__ = ["Pool", "ThreadPool", "WorkerDied"]

class Pool(_standard.Pool):
    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        retries: int = 0,
    ) -> None: ...
