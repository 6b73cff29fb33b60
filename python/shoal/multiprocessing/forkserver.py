"""The fork server: a Python without threads, which has imported what its children need, and forks them.

Each process that uses the start method forkserver has a server of its own. It starts with the first child, ends with the
process, and is started again if it dies.
"""
from __future__ import annotations

# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import atexit
import gc
import importlib
import multiprocessing
import multiprocessing.resource_tracker as _tracker
import os
import sys
import threading
from multiprocessing import util

from .. import _shoal, world
from . import popen_fork, spawn

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

__all__ = ["ensure_running", "set_forkserver_preload"]


class ForkServer:
    """The fork server of this process."""

    def __init__(self) -> None:
        self._forget()
        self._preload_modules: List[str] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has no server yet."""
        self._lock = threading.Lock()
        self._command: Optional[List[Any]] = None
        self._tracker_fd: Any = None  # that of the command

    @property
    def _forkserver_pid(self) -> Optional[int]:
        return _shoal.fork_server_pid() or None

    def set_forkserver_preload(self, modules_names: List[str]) -> None:
        """Sets the names of the modules that the server imports before it forks. A server that runs is replaced at the next
        start. A module that makes shared objects is imported by each child, not by the server."""
        if not all(type(name) is str for name in modules_names):
            raise TypeError("module_names must be a list of strings")
        self._preload_modules = list(modules_names)
        self._command = None

    def ensure_running(self) -> None:
        """Starts the server, if it does not run, and waits until it serves."""
        self.start(b"", [], "no one", False).join()

    def start(self, data: bytes, objects: List[_shoal.Shared], name: str, outlive: bool) -> _shoal.Process:
        """Lets the server fork a child. Returns its handle."""
        with self._lock:
            tracker_fd: Any = _tracker.getfd()
            if self._command is None or self._tracker_fd != tracker_fd:
                self._command, self._tracker_fd = self._make_command(tracker_fd), tracker_fd
                atexit.unregister(self._stop)
                atexit.register(self._stop)
            return _shoal.start_program(spawn.get_executable(), self._command, data, objects, [tracker_fd], name, outlive,
                                        by_server=True)

    def _make_command(self, tracker_fd: int) -> List[Any]:
        """The command must stay the same as long as the server is to stay the same."""
        paths: Dict[str, Any] = {}
        if self._preload_modules:
            paths = {"sys_path": sys.path, "main_path": spawn.main_module().get("init_main_from_path")}
        command: List[Any] = spawn.command_line("forkserver", "main", self._preload_modules, tracker_fd, **paths)
        return command

    def _stop(self) -> None:
        """Ends the server, at exit and in tests. From Python 3.12 on the interpreter waits for the resource tracker when it
        ends, and the tracker waits for all that have its fd."""
        with self._lock:
            _shoal.fork_server_stop()
            self._command = None


_forkserver = ForkServer()
ensure_running = _forkserver.ensure_running
set_forkserver_preload = _forkserver.set_forkserver_preload
start = _forkserver.start


# ---- the server ----

def main(modules: List[str], tracker_fd: int, sys_path: Optional[List[str]] = None, main_path: Optional[str] = None) -> None:
    """Runs the server, and each of its children."""
    _tracker._resource_tracker._fd = tracker_fd
    if sys_path is not None:
        sys.path[:] = sys_path
    _preload(modules, main_path)
    if modules and _is_in_a_world():
        # A module has made shared objects, but children of a server can inherit none: begin again without the modules.
        command = spawn.command_line("forkserver", "main", [], tracker_fd)
        os.execv(command[0], command)
    os.set_inheritable(tracker_fd, False)
    gc.freeze()
    gc.enable()
    util._close_stdin()
    message = _shoal.fork_server_begin()
    if message is not None:
        _run_child(*message)


def _preload(modules: List[str], main_path: Optional[str]) -> None:
    for name in modules:
        try:
            if name != "__main__":
                importlib.import_module(name)
            elif main_path is not None:
                multiprocessing.current_process()._inheriting = True
                spawn.import_main_path(main_path)
        except ImportError:
            pass
        finally:
            vars(multiprocessing.current_process()).pop("_inheriting", None)
    util._flush_std_streams()


def _is_in_a_world() -> bool:
    return any(entry.pid == os.getpid() and entry.state != "reserved" for entry in world.ps())


def _run_child(data: bytes, objects: List[_shoal.Shared]) -> None:
    code = 1
    try:
        popen_fork.begin_forked()
        code = spawn._main(data, objects) if data else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        util._flush_std_streams()
        popen_fork.end_forked(code)


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    import multiprocessing.forkserver as standard
    return getattr(standard, name)
