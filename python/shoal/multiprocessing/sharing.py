"""What is shared of torch's tensors, and how: its sharing strategies, and grads."""
from __future__ import annotations

import sys

from ..torch import share_grads

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Set

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "share_grads"]

_STRATEGIES = {"file_descriptor", "file_system"}
_strategy = "file_descriptor"


def set_sharing_strategy(new_strategy: str) -> None:
    """Sets the strategy of torch. It matters only for memory that torch shares itself: tensors in the heap need neither fds
    nor files."""
    global _strategy
    if new_strategy not in _STRATEGIES:
        raise ValueError(f"unknown sharing strategy {new_strategy!r}: expected one of {sorted(_STRATEGIES)}")
    _strategy = new_strategy
    if "torch.multiprocessing" in sys.modules:
        tell_torch()


def tell_torch() -> None:
    """Sets the strategy in torch. If torch is imported later, _torch_import.py calls it then."""
    sys.modules["torch.multiprocessing"].set_sharing_strategy(_strategy)


def get_sharing_strategy() -> str:
    """Returns the strategy that was set, here or in torch."""
    torch = sys.modules.get("torch.multiprocessing")
    return _strategy if torch is None else str(torch.get_sharing_strategy())


def get_all_sharing_strategies() -> Set[str]:
    """Returns the names that set_sharing_strategy() accepts."""
    return set(_STRATEGIES)
