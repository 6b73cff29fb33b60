"""torch's sharing strategies. There is one here: memory is shared through the heap of the world."""
from __future__ import annotations

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Set

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy"]

_STRATEGIES = {"file_descriptor", "file_system"}
_strategy = "file_descriptor"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepts the strategies of torch. It has no effect: tensors need neither fds nor files."""
    global _strategy
    if new_strategy not in _STRATEGIES:
        raise ValueError(f"unknown sharing strategy {new_strategy!r}: want one of {sorted(_STRATEGIES)}")
    _strategy = new_strategy


def get_sharing_strategy() -> str:
    """Returns the strategy that was set."""
    return _strategy


def get_all_sharing_strategies() -> Set[str]:
    """Returns the names that set_sharing_strategy() accepts."""
    return set(_STRATEGIES)
