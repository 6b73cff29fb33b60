"""Locks, semaphores, conditions, events and barriers that processes share.

They have the interface of ``multiprocessing.synchronize``. They can be inherited, passed to a process when it is started,
and sent through a queue or pipe of ``shoal.multiprocessing``, under every start method.

If a process dies while it holds a Lock, an RLock or the lock of a Condition, the next ``acquire()`` gets it, with a
RuntimeWarning the first time. From then on ``owner_died`` is True in every process, until a holder sets it to False.
"""
from __future__ import annotations

import threading
import time
from multiprocessing import process

from shoal import _shoal

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Tuple, Union

__all__ = ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event"]

RECURSIVE_MUTEX, SEMAPHORE = range(2)
SEM_VALUE_MAX = 2 ** 31 - 1


def _this_thread_name() -> str:
    name = process.current_process().name
    thread = threading.current_thread().name
    return name if thread == "MainThread" else f"{name}|{thread}"


def _holder_name(lock: Any) -> str:
    """Who holds a lock, as the standard module says it."""
    if lock._is_mine():
        return _this_thread_name()
    if lock._get_value() == 1:
        return "None"
    return "SomeOtherThread" if lock._count() > 0 else "SomeOtherProcess"


def _rlock_text(name: str, lock: Any) -> str:
    holder = _holder_name(lock)
    count = lock._count() if lock._is_mine() else 0 if holder == "None" else "nonzero"
    return f"<{name}({holder}, {count})>"


class Lock(_shoal.Lock):
    """A lock that is not recursive. Any thread of any process may release it, not only the one that acquired it."""

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(owner={_holder_name(self)})>"


class RLock(_shoal.RLock):
    """A recursive lock: the thread that holds it may acquire it again, and must release it as often."""

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__()

    def __repr__(self) -> str:
        return _rlock_text(type(self).__name__, self)


class Semaphore(_shoal.Semaphore):
    """A counter. ``acquire()`` waits until it is over 0 and takes one from it, ``release()`` adds one.

    A semaphore has no owner: what a killed process took stays taken.
    """

    def __init__(self, value: int = 1, *, ctx: Any = None) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self.get_value()})>"


class BoundedSemaphore(Semaphore):
    """A semaphore whose value cannot become larger than it was at first: then ``release()`` raises ValueError."""

    def __init__(self, value: int = 1, *, ctx: Any = None) -> None:
        _shoal.Semaphore.__init__(self, value, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self.get_value()}, maxvalue={self.maxvalue})>"

    def _shoal_state(self) -> int:
        return self.maxvalue

    def _shoal_restore(self, maxvalue: int) -> None:
        self.maxvalue = maxvalue


class Condition(_shoal.Condition):
    """A condition with a lock: that of the caller, a Lock or an RLock, or a recursive one of its own."""

    def __init__(self, lock: Union[Lock, RLock, None] = None, *, ctx: Any = None) -> None:
        super().__init__(lock)

    def __repr__(self) -> str:
        lock = _rlock_text("RLock", self) if self._outer is None else self._outer
        return f"<{type(self).__name__}({lock}, unknown)>"  # the number of those who wait is not known

    def wait_for(self, predicate: Callable[[], Any], timeout: Optional[float] = None) -> Any:
        """Wait until predicate() is true, and return what it returned last. The caller must hold the lock."""
        end = None if timeout is None else time.monotonic() + timeout
        left = None
        result = predicate()
        while not result:
            if end is not None:
                left = end - time.monotonic()
                if left <= 0:
                    break
            self.wait(left)
            result = predicate()
        return result

    def _shoal_state(self) -> Any:
        return self._outer

    def _shoal_restore(self, lock: Union[Lock, RLock]) -> None:
        self._outer = lock


class Event(_shoal.Event):
    """A flag, clear at first, that can be set, cleared and waited for."""

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} at {id(self):#x} {'set' if self.is_set() else 'unset'}>"


class Barrier(_shoal.Barrier):
    """A barrier for a number of processes or threads, which leave it together.

    A party that dies breaks the barrier for the others, if it was started with the barrier, received it or has waited at
    it. One party calls ``action`` when all have come and before they leave. If more than ``parties`` processes or threads
    use a barrier with an action, some may leave before the action is done.
    """

    _action: Any = None  # a function
    _timeout: Optional[float] = None

    def __init__(self, parties: int, action: Optional[Callable[[], Any]] = None, timeout: Optional[float] = None, *,
                 ctx: Any = None) -> None:
        super().__init__(parties)
        self._shoal_restore((parties, action, timeout))

    def _shoal_state(self) -> Tuple[Any, ...]:
        return self.parties, self._action, self._timeout

    def _shoal_restore(self, state: Tuple[Any, ...]) -> None:
        parties, self._action, self._timeout = state
        self._configure(parties, self._timeout, self._action is not None)

    def __repr__(self) -> str:
        state = "broken" if self.broken else f"waiters={self.n_waiting}/{self.parties}"
        return f"<{type(self).__module__}.{type(self).__qualname__} at {id(self):#x}: {state}>"

    def _wait_with_action(self, timeout: Optional[float]) -> int:
        """wait() of a barrier with an action: all wait twice, and the last one to come does the action in between. Whoever
        cannot go on breaks the barrier, so that nobody waits for it."""
        if timeout is None:
            timeout = self._timeout
        end = None if timeout is None else time.monotonic() + timeout
        index = self._wait_plain(timeout)
        try:
            if index == self.parties - 1:
                self._action()
                end = None
            self._wait_plain(None if end is None else end - time.monotonic())
        except BaseException:
            self.abort()
            raise
        return index


for _cls in (Lock, RLock, Semaphore, Condition, Event, Barrier):
    _shoal.set_class(_cls)


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    import multiprocessing.synchronize as standard
    return getattr(standard, name)
