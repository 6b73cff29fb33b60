"""Starts a process by fork."""
from __future__ import annotations

# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import atexit
import errno
import os
import signal
import sys
import threading
import warnings
from multiprocessing import resource_tracker, util
from types import FrameType

from .. import _shoal

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, NoReturn, Optional, Sequence

__all__ = ["Popen"]


def parent_sentinel(parent_pid: int) -> int:
    """Returns an fd that is readable once the parent is dead."""
    try:
        return os.pidfd_open(parent_pid)
    except OSError as error:
        reader, writer = os.pipe()
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # a system without pidfds: the parent seems to live
            os.close(writer)
        return reader


_RUNS_ATEXIT = sys.version_info >= (3, 13)  # forked children run the atexit functions that they have registered


def begin_forked() -> None:
    """Forgets the atexit functions of the parent, in a forked child."""
    if _RUNS_ATEXIT:
        atexit._clear()
        atexit.register(util._exit_function)


def end_forked(code: int) -> NoReturn:
    """Ends a forked child."""
    if _RUNS_ATEXIT:
        atexit._run_exitfuncs()
    _shoal.quick_exit(code)


def drop_tracker() -> None:
    """For a child that may outlive its parent: closes its fd of the parent's resource tracker. From Python 3.12 on a process
    waits for its tracker when it ends, and the tracker waits for all that have its fd."""
    tracker = resource_tracker._resource_tracker
    if tracker._fd is not None:
        os.close(tracker._fd)
        tracker._fd = tracker._pid = None


_exit_order_is_set = False


def _set_exit_order() -> None:
    """At exit, the children are joined before the atexit functions run that the program registered before its first start:
    so it is with the standard module, which imports multiprocessing.util, that joins them, at the first start. This package
    imports it earlier, so its function is registered again."""
    global _exit_order_is_set
    if not _exit_order_is_set:
        _exit_order_is_set = True
        if not sys.modules[__package__]._util_was_there:
            atexit.unregister(util._exit_function)
            atexit.register(util._exit_function)


_warned = False


def _warn_of_threads() -> None:
    """Warns once if the program has threads, as os.fork() does since Python 3.12. Those of this package do not count: it
    knows what they hold."""
    global _warned
    usual = (threading.main_thread(), threading.current_thread())
    if _warned or all(thread in usual or thread.name.startswith("shoal-") for thread in threading.enumerate()):
        return
    _warned = True
    level = 1
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("shoal.", "multiprocessing.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"This process (pid={os.getpid()}) is multi-threaded, use of fork may lead to deadlocks in the child. "
                  "Use spawn or forkserver instead.", DeprecationWarning, stacklevel=level)


class Popen:
    """A child that was forked."""

    method = "fork"
    fds_to_send: Sequence[int] = ()  # for the child of a fork server

    def __init__(self, process_obj: Any) -> None:
        _set_exit_order()
        util._flush_std_streams()
        self.returncode: Optional[int] = None
        self._handle: Any = self._launch(process_obj)
        self.pid = self._handle.pid
        self.sentinel = self._handle.sentinel

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def poll(self, flag: int = os.WNOHANG) -> Optional[int]:
        if self.returncode is None:
            self.returncode = self._handle.poll() if flag == os.WNOHANG else self._handle.join()
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> Optional[int]:
        if self.returncode is None:
            self.returncode = self._handle.join(timeout)
        return self.returncode

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        if self.returncode is None:
            self._handle.send_signal(number)

    def close(self) -> None:
        self._handle = None  # the last reference: closes the sentinel

    def _launch(self, process_obj: Any) -> _shoal.Process:
        _warn_of_threads()
        parent_pid = os.getpid()
        sys.audit("os.fork")
        handle = _shoal.fork(process_obj.name, process_obj._outlive)
        if handle is None:
            code = 1
            try:
                begin_forked()
                if process_obj._outlive:
                    drop_tracker()
                code = process_obj._bootstrap(parent_sentinel=parent_sentinel(parent_pid))
            finally:
                end_forked(code)
        return handle
