"""A drop-in for multiprocessing and torch.multiprocessing.

Change one import: `import shoal.multiprocessing as mp`. Queues then carry numpy arrays and torch tensors by handle, and
queues, locks and pools survive killed processes. Importing it changes nothing for programs that use multiprocessing or
torch.multiprocessing in the same process.
"""
import importlib

from . import context, process, reduction
from .ranks import (ProcessContext, ProcessException, ProcessExitedException, ProcessRaisedException, SpawnContext,
                    start_processes)
from . import spawn  # a module that can be called: torch's function
from .sharing import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy

# The names of the standard module: the public names of the default context.
__all__ = [name for name in dir(context._default_context) if not name.startswith("_")]
globals().update((name, getattr(context._default_context, name)) for name in __all__)

__all__ += ["ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "SpawnContext",
            "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn", "start_processes"]

SUBDEBUG = 5
SUBWARNING = 25

# Submodules that are imported at their first use.
_LATER = {"connection", "dummy", "forkserver", "heap", "managers", "pool", "popen_fork", "popen_forkserver",
          "popen_spawn_posix", "queues", "resource_sharer", "resource_tracker", "shared_memory", "sharedctypes", "synchronize",
          "util"}


def __getattr__(name):
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
