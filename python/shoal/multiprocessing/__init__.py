"""A drop-in for multiprocessing and torch.multiprocessing.

Change one import: `import shoal.multiprocessing as mp`. Queues then carry numpy arrays and torch tensors by handle, and
queues, locks and pools survive killed processes. Importing it changes nothing for programs that use multiprocessing or
torch.multiprocessing in the same process.
"""
import importlib
import sys

_util_was_there = "multiprocessing.util" in sys.modules  # the program has imported it, before this package does

from .. import _torch_import
from . import context, process, reduction
from . import spawn  # a module that can be called: torch's function

# The names of the standard module: the public names of the default context.
__all__ = [name for name in dir(context._default_context) if not name.startswith("_")]
globals().update((name, getattr(context._default_context, name)) for name in __all__)

# torch's names, by the module that has them, and submodules: they are imported at their first use, so that a child starts fast.
_NAMES = {
    "ranks": ("ENV_VAR_PARALLEL_START", "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException",
              "SpawnContext", "start_processes"),
    "reductions": ("init_reductions",),
    "sharing": ("get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "share_grads"),
    "thread_names": ("_get_thread_name", "_set_thread_name"),
}
_LATER = {"_atfork", "connection", "dummy", "forkserver", "heap", "managers", "pool", "popen_fork", "popen_forkserver",
          "popen_spawn_posix", "queue", "queues", "reductions", "resource_sharer", "resource_tracker", "shared_memory",
          "sharedctypes", "synchronize", "util"}

__all__ += ["spawn", *(name for module in ("ranks", "sharing") for name in _NAMES[module])]

SUBDEBUG = 5
SUBWARNING = 25


_torch_import.prepare()


def __getattr__(name):
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _NAMES.items():
        if name in names:
            globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_LATER})
