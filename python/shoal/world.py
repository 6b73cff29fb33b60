"""The world of this process: one shared heap and the processes attached to it.

A process is in at most one world. The first queue, lock or shared array makes it, and children are born into it, so
most programs never call anything here. This module is for looking (`ps`, `info`, `audit`), for housekeeping (`sweep`,
`trim`), and for programs that want a world with a name or a limit (`create`) or join one from outside (`join`).
"""

from __future__ import annotations

from typing import NamedTuple

from shoal import _shoal

__all__ = ["Audit", "Info", "Process", "audit", "create", "info", "join", "leave", "ps", "sweep", "trim"]


def _explain(cls: type, **texts: str) -> None:
    """Gives the fields of a named tuple their docstrings, for help()."""
    for name, text in texts.items():
        getattr(cls, name).__doc__ = text


class Process(NamedTuple):
    """A process of a world, as `ps` lists it."""

    world: str
    world_used: int
    world_limit: int
    world_recovered: int
    pid: int
    slot: int
    name: str
    state: str
    doing: str
    references: int
    cached: int


_explain(
    Process,
    world="The name of the world.",
    world_used="The bytes of memory that the heap of the world uses now, cached free blocks included.",
    world_limit="The bytes that the heap of the world may use.",
    world_recovered="How many dead processes of the world were recovered since it was made.",
    pid="The process ID.",
    slot="The number of the process in its world, from 0; it is free again after the end of the process.",
    name="The name of the process, as given at its start.",
    state='"running", "waiting", "reserved" (a child that is starting) or "dead" (it has ended and is not recovered yet).',
    doing='What the process does or waits for, such as "gets from queue 17"; otherwise empty.',
    references="How many blocks the process holds references to.",
    cached="How many free blocks the process keeps for its own use.",
)


class Info(NamedTuple):
    """Statistics of a world. Sizes are in bytes."""

    name: str
    reserved: int
    heap_limit: int
    heap_used: int
    blocks_live: int
    bytes_live: int
    processes: int
    recovered: int
    locks_repaired: int


_explain(
    Info,
    name="The name of the world.",
    reserved="The address space that is kept for the heap.",
    heap_limit="What the heap may use.",
    heap_used="What the heap uses now, cached free blocks included.",
    blocks_live="Blocks that a process or a message refers to.",
    bytes_live="The sum of the sizes of these blocks, as they were asked for.",
    processes="Processes in the world; those that are starting, or dead and not recovered, count too.",
    recovered="Dead processes whose references were dropped since the world was made.",
    locks_repaired="Locks that were repaired because their holder died.",
)


class Audit(NamedTuple):
    """What an audit without findings has counted."""

    blocks: int
    references: int


_explain(
    Audit,
    blocks="Live blocks that were checked.",
    references="References found to these blocks.",
)


def ps() -> list[Process]:
    """Lists the processes of all worlds of this user, like the command `shoal ps`.

    It needs no world and joins none.
    """
    return [Process(**entry) for entry in _shoal.world_list()]


def info() -> Info:
    """Returns statistics of this process's world, and makes a world if there is none.

    It walks the whole heap: it is for tests and tools, not for loops.
    """
    return Info(**_shoal.world_info())


def audit() -> Audit:
    """Checks every invariant of the world, after recovering dead processes. Raises `shoal.Error` with the first finding.

    Call it while no other process works in the world (they may wait): operations in progress look like damage.
    """
    return Audit(**_shoal.audit())


def sweep() -> int:
    """Recovers dead processes: drops the references and repairs the locks that they held. Returns how many there were.

    Calls that wait, and joining a process, do so by themselves; a supervisor may call it.
    """
    return _shoal.world_sweep()


def trim() -> None:
    """Returns the memory of free blocks to the system."""
    _shoal.world_trim()


def create(name: str | None = None, heap_limit: int = 0) -> None:
    """Makes a world with a name, for `join` and `ps`, or with a limit of its heap in bytes.

    It must come before anything else that needs a world: `shoal.Error` if this process is already in one. Without a
    name the world has the pid of the process as its name. A `heap_limit` of 0 stands for the environment variable
    SHOAL_HEAP_LIMIT, or else for the memory of the machine or its cgroup.
    """
    _shoal.world_create(name, heap_limit)


def join(name: str, unpickle: bool = False) -> None:
    """Joins a world of the same user by its name, to watch it or to make objects and start processes in it.

    Only programs that trust each other should exchange pickles. So in a process that joined a world, receiving an
    object that was pickled raises an error unless `unpickle` is true. Plain values (numbers, strings, bytes, lists,
    dicts, tensors) are received without pickle.

    Raises FileNotFoundError if there is no such world, and `shoal.Error` if this process is already in one.
    """
    _shoal.world_join(name, unpickle)


def leave() -> None:
    """Drops all references of this process and detaches it from its world. The other members go on.

    Afterwards queues, locks and blocks of that world can only be dropped. Arrays and tensors over its memory must not
    be used: their memory is gone, and reading it ends the process. No other thread may be inside a call of shoal. The
    next call that needs a world makes a new one. Python does this at exit, so few programs need it.
    """
    _shoal.world_leave()
