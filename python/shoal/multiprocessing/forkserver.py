"""The fork server: a Python without threads, which has imported what its children need, and forks them.

Each process that uses the start method forkserver has a server of its own. It starts with the first child, ends with the
process, and is started again if it dies.
"""
from __future__ import annotations

# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import atexit
import contextlib
import gc
import importlib
import multiprocessing
import multiprocessing.resource_tracker as _tracker
import os
import select
import signal
import socket
import sys
import threading
from multiprocessing import util

from .. import _shoal, world
from . import popen_fork, spawn

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence

__all__ = ["ensure_running", "set_forkserver_preload"]

FDS_PER_MESSAGE = 200  # Linux sends at most 253

received_fds: List[int] = []  # by a child of a server, from its parent


class ForkServer:
    """The fork server of this process."""

    _fd_sender: Optional[FdSender] = None

    def __init__(self) -> None:
        self._forget()
        self._preload_modules: List[str] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has no server yet."""
        self._lock = threading.Lock()
        self._command: Optional[List[Any]] = None
        self._tracker_fd: Any = None  # that of the command
        self._close_sender()

    def _close_sender(self) -> None:
        if self._fd_sender is not None:
            self._fd_sender.close()
            self._fd_sender = None

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

    def start(self, data: bytes, objects: List[_shoal.Shared], name: str, outlive: bool,
              fds: Sequence[int] = ()) -> _shoal.Process:
        """Lets the server fork a child, which gets the fds as received_fds. Returns its handle."""
        with self._lock:
            tracker_fd: Any = _tracker.getfd()
            if self._fd_sender is None:
                self._fd_sender = FdSender()
            if self._command is None or self._tracker_fd != tracker_fd:
                self._command = self._make_command(tracker_fd, self._fd_sender.server_fd)
                self._tracker_fd = tracker_fd
                atexit.unregister(self._stop)
                atexit.register(self._stop)
            with self._fd_sender.sending(fds):
                process = _shoal.start_program(spawn.get_executable(), self._command, data, objects,
                                               [tracker_fd, self._fd_sender.server_fd], name, outlive, by_server=True)
                if fds:
                    self._fd_sender.wait(process)
            return process

    def _make_command(self, tracker_fd: int, socket_fd: int) -> List[Any]:
        """The command must stay the same as long as the server is to stay the same."""
        paths: Dict[str, Any] = {}
        if self._preload_modules:
            paths = {"sys_path": sys.path, "main_path": spawn.main_module().get("init_main_from_path")}
        command: List[Any] = spawn.command_line("forkserver", "main", self._preload_modules, tracker_fd, socket_fd, **paths)
        return command

    def _stop(self) -> None:
        """Ends the server, at exit and in tests. From Python 3.12 on the interpreter waits for the resource tracker when it
        ends, and the tracker waits for all that have its fd."""
        with self._lock:
            _shoal.fork_server_stop()
            self._command = None
            self._close_sender()


class FdSender:
    """Sends fds to the children of a server, one child at a time: through a pair of sockets, of which the server and so each
    child inherits one.

    The fds are in the socket before the child starts, and the parent waits until the child has taken them or has ended; then
    it takes back what is left. So a child never waits, and fds of a child that was killed do not stay anywhere.
    """

    def __init__(self) -> None:
        self._own, self._inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._inherited.setblocking(False)
        self.server_fd = self._inherited.fileno()

    def close(self) -> None:
        """Closes both ends, in this process."""
        self._own.close()
        self._inherited.close()

    @contextlib.contextmanager
    def sending(self, fds: Sequence[int]) -> Iterator[None]:
        """Sends fds for the child that is started in the block."""
        try:
            for begin in range(0, len(fds), FDS_PER_MESSAGE):
                socket.send_fds(self._own, [b"fds"], fds[begin:begin + FDS_PER_MESSAGE])
            yield
        finally:
            if fds:
                _receive_fds(self._own)
                for fd in _receive_fds(self._inherited):
                    os.close(fd)

    def wait(self, process: _shoal.Process) -> None:
        """Waits until the child has taken its fds, or has ended."""
        poll = select.poll()
        poll.register(self._own, select.POLLIN)
        poll.register(process.sentinel, select.POLLIN)
        try:
            poll.poll()
        except BaseException:  # Ctrl-C: nobody will know this child, and it must not take the fds of another
            process.send_signal(signal.SIGKILL)
            process.join()
            raise


def _receive_fds(end: socket.socket) -> List[int]:
    """Takes all messages that are in a socket, and returns their fds."""
    fds: List[int] = []
    try:
        data = b"begin"
        while data:
            data, more, _, _ = socket.recv_fds(end, 16, FDS_PER_MESSAGE, socket.MSG_CMSG_CLOEXEC)
            fds += more
    except BlockingIOError:
        pass
    return fds


_forkserver = ForkServer()
ensure_running = _forkserver.ensure_running
set_forkserver_preload = _forkserver.set_forkserver_preload
start = _forkserver.start


# ---- the server ----

def main(modules: List[str], tracker_fd: int, socket_fd: int, sys_path: Optional[List[str]] = None,
         main_path: Optional[str] = None) -> None:
    """Runs the server, and each of its children."""
    _tracker._resource_tracker._fd = tracker_fd
    if sys_path is not None:
        sys.path[:] = sys_path
    _preload(modules, main_path)
    if modules and _is_in_a_world():
        # A module has made shared objects, but children of a server can inherit none: begin again without the modules.
        command = spawn.command_line("forkserver", "main", [], tracker_fd, socket_fd)
        os.execv(command[0], command)
    for fd in (tracker_fd, socket_fd):
        os.set_inheritable(fd, False)
    gc.freeze()
    gc.enable()
    util._close_stdin()
    message = _shoal.fork_server_begin()
    if message is not None:
        _run_child(socket_fd, *message)


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


def _run_child(socket_fd: int, data: bytes, objects: List[_shoal.Shared]) -> None:
    code = 1
    try:
        popen_fork.begin_forked()
        code = spawn._main(data, objects, socket_fd) if data else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        util._flush_std_streams()
        popen_fork.end_forked(code)


def take_fds(socket_fd: int, count: int) -> None:
    """Takes the fds that the parent has sent to this child, and tells it so."""
    with socket.socket(fileno=socket_fd) as end:
        if count > 0:
            end.setblocking(False)
            received_fds[:] = _receive_fds(end)
            if len(received_fds) != count:
                raise OSError(f"{count} file descriptors were sent to this process, but {len(received_fds)} arrived")
            with contextlib.suppress(BrokenPipeError):  # the parent is dead
                end.send(b"taken")


def __getattr__(name: str) -> Any:
    """What is not here is the standard module's."""
    import multiprocessing.forkserver as standard
    return getattr(standard, name)
