"""torch's functions for the name of a thread, as ps and top show it."""
from __future__ import annotations

__all__ = ["_get_thread_name", "_set_thread_name"]

_FILE = "/proc/thread-self/comm"


def _set_thread_name(name: str) -> None:
    """Sets the name of this thread. Linux keeps the first 15 bytes."""
    with open(_FILE, "w", encoding="utf-8") as file:
        file.write(name)


def _get_thread_name() -> str:
    """Returns the name of this thread."""
    with open(_FILE, encoding="utf-8", errors="replace") as file:
        return file.read().removesuffix("\n")
