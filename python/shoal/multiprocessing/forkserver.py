"""The fork server."""
__all__ = ["set_forkserver_preload"]

_preload: list = ["__main__"]


def set_forkserver_preload(modules_names: list) -> None:
    """Sets the names of the modules that the fork server imports before it forks."""
    global _preload
    if not all(type(name) is str for name in modules_names):
        raise TypeError("module_names must be a list of strings")
    _preload = list(modules_names)
