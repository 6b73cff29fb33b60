"""Prepares torch when a program has imported it and shoal.multiprocessing, in either order (shoal/torch.py).

This module imports nothing that takes time: every child imports it.
"""
import sys

in_child = False
"""True if shoal.multiprocessing has started this process."""


def prepare() -> None:
    """Prepares torch, now or when it is imported."""
    if "torch" in sys.modules:
        _prepare_now()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def begin_child() -> None:
    """Called in each process that shoal.multiprocessing has started, before its target runs."""
    global in_child
    in_child = True


def _prepare_now() -> None:
    from shoal.torch import share_in_the_heap
    share_in_the_heap()


class _Finder:
    """Finds torch once, and prepares it after its import. All else is left to the other finders."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch" or self not in sys.meta_path:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                execute(module)
                _prepare_now()
                sharing = sys.modules.get("shoal.multiprocessing.sharing")
                if sharing is not None:
                    sharing.tell_torch()

            setattr(spec.loader, "exec_module", exec_module)
        return spec
