"""torch's function to run something after a fork."""
from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would slow the start of every child
if TYPE_CHECKING:
    from typing import Any, Callable

__all__ = ["register_after_fork"]


def register_after_fork(func: Callable[[], Any]) -> None:
    """Registers a function that is called in each child after a fork."""
    os.register_at_fork(after_in_child=func)
