"""spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method='spawn') runs a function in several processes.

It calls fn(rank, *args) in nprocs processes that are fresh Pythons, for the ranks 0 to nprocs - 1. With join, it waits for all
of them, and the first failure ends the others and is raised: ProcessRaisedException with the traceback of the rank, or
ProcessExitedException. Without join, it returns a ProcessContext at once, whose join() does so. See start_processes() for other
start methods.

torch has this function, and the standard library a module of its name. Here it is one thing: `spawn(fn, nprocs=4)` calls
the function, and `spawn.get_executable()` is a name of the module: what a fresh Python gets from its parent, and how it begins.
"""
from __future__ import annotations

# This uses private names of the standard library.
# mypy: disable-error-code=attr-defined
import gc
import multiprocessing as _standard
import multiprocessing.context as _standard_context
import multiprocessing.resource_tracker as _tracker
import multiprocessing.process as process
import multiprocessing.spawn as _standard_spawn
import multiprocessing.util as util
import os
import pickle
import subprocess
import sys
import types
from multiprocessing.spawn import import_main_path, is_forking

from .. import _shoal
from . import reduction
from .popen_fork import drop_tracker, parent_sentinel

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple, Union

    from .ranks import ProcessContext

__all__ = ["freeze_support", "set_executable", "get_executable", "get_preparation_data", "get_command_line",
           "import_main_path"]

_executable: Optional[bytes] = None


def set_executable(exe: "Union[str, bytes, os.PathLike[str]]") -> None:
    """Sets the program that runs children. People who embed Python need it."""
    global _executable
    _executable = os.fsencode(exe)


def get_executable() -> Any:
    """Returns the program that runs children: that of set_executable(), else the standard module's."""
    return _executable if _executable is not None else _standard_spawn.get_executable()


def get_command_line(**kwds: Any) -> List[Any]:
    """Returns the command line of a child."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "--multiprocessing-fork"]
    return command_line("spawn", "spawn_main")


def command_line(module: str, function: str, *args: Any, **kwds: Any) -> List[Any]:
    """Returns the command line of a Python like this one that calls a function of this package."""
    arguments = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwds.items())])
    # The child finds this package even if only the parent's sys.path has it. prepare() replaces sys.path later.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # Until the child has its message there is no garbage worth looking for.
    code = (f"import gc, sys; gc.disable(); sys.path.append({root!r}); "
            f"from shoal.multiprocessing.{module} import {function}; {function}({arguments})")
    return [get_executable(), *subprocess._args_from_interpreter_flags(), "-c", code, "--multiprocessing-fork"]


def freeze_support() -> None:
    """Runs the child and ends it, if this process is the child of a frozen program."""
    if is_forking(sys.argv):
        spawn_main()


# ---- the parent ----

def get_preparation_data(name: str) -> Dict[str, Any]:
    """Returns what a child needs before it can unpickle its process object."""
    from . import context
    _standard_spawn._check_not_importing_main()
    data: Dict[str, Any] = {
        "log_to_stderr": util._log_to_stderr,
        "authkey": process.current_process().authkey,
        "name": name,
        "sys_path": [process.ORIGINAL_DIR if folder == "" else folder for folder in sys.path],
        "sys_argv": sys.argv,
        "orig_dir": process.ORIGINAL_DIR,
        "dir": os.getcwd(),
        "standard_start_method": _standard.get_start_method(allow_none=True),
        "shoal_start_method": context._default_context.get_start_method(allow_none=True),
    }
    torch = sys.modules.get("shoal.torch")
    if torch is not None and not torch.shares_grads():
        data["own_grads"] = True
    if util._logger is not None:
        data["log_level"] = util._logger.getEffectiveLevel()
    data.update(main_module())
    return data


def main_module() -> Dict[str, str]:
    """Tells the child how to get this program's main module: by name, by path, or not at all."""
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        return {"init_main_from_name": name}
    if path is None:
        return {}
    if not os.path.isabs(path) and process.ORIGINAL_DIR is not None:
        path = os.path.join(process.ORIGINAL_DIR, path)
    return {"init_main_from_path": os.path.normpath(path)}


def pickle_process(process_obj: Any, popen: Any, tracker_fd: Optional[int] = None) -> Tuple[bytes, List[_shoal.Shared]]:
    """Returns the data and the shared objects for a child that is about to be started."""
    data = get_preparation_data(process_obj.name)
    data["tracker_fd"] = tracker_fd
    data["outlive"] = process_obj._outlive
    _standard_context.set_spawning_popen(popen)
    try:
        body, objects = reduction.dumps(process_obj)
        data["fd_count"] = len(popen.fds_to_send)
        return pickle.dumps((data, body), pickle.HIGHEST_PROTOCOL), objects
    finally:
        _standard_context.set_spawning_popen(None)


# ---- the child ----

def prepare(data: Dict[str, Any]) -> None:
    """Makes this process like its parent: sys.path, sys.argv, the main module, the start methods."""
    from . import context
    _standard.set_start_method(data.pop("standard_start_method"), force=True)
    context._default_context.set_start_method(data.pop("shoal_start_method"), force=True)
    if data.pop("own_grads", False):
        from ..torch import share_grads
        share_grads(False)
    _standard_spawn.prepare(data)


def spawn_main() -> None:
    """Runs the process object that the parent has sent, and exits."""
    gc.freeze()
    gc.enable()
    sys.exit(_main(*_shoal.child_begin()))


def _main(data: bytes, objects: List[_shoal.Shared], server_socket: Optional[int] = None) -> int:
    process.current_process()._inheriting = True
    try:
        preparation, body = pickle.loads(data)
        tracker_fd = preparation.pop("tracker_fd")
        fd_count = preparation.pop("fd_count")
        if tracker_fd is not None:  # else this is a child of the fork server, which has it already
            _tracker._resource_tracker._fd = tracker_fd
        if server_socket is not None:
            from .forkserver import take_fds
            take_fds(server_socket, fd_count)
        if preparation.pop("outlive"):
            drop_tracker()
        prepare(preparation)
        process_obj = reduction.loads(body, objects)
    finally:
        del process.current_process()._inheriting
    code: int = process_obj._bootstrap(parent_sentinel(process_obj._parent_pid))
    return code


# ---- torch's function ----

class _CallableModule(types.ModuleType):
    def __call__(self, fn: Callable[..., Any], args: Tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
                 daemon: bool = False, start_method: str = "spawn") -> Optional[ProcessContext]:
        """Runs fn(rank, *args) in nprocs processes that are fresh Pythons. See start_processes()."""
        from .ranks import spawn
        return spawn(fn, args, nprocs, join, daemon, start_method)


def __getattr__(name: str) -> Any:
    from . import ranks
    if name in ranks.__all__:
        return getattr(ranks, name)
    return getattr(_standard_spawn, name)  # what is not here is the standard module's


sys.modules[__name__].__class__ = _CallableModule
