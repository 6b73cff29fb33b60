"""Makes a Python whose `test` package speaks of `shoal.multiprocessing` instead of `multiprocessing`.

CPython's tests start interpreters with -E, -I and -S, which ignore PYTHONPATH and site-packages. So the copy is not put on a path: it is
a virtual environment whose home is a folder of links to the installed standard library, in which only a few files of `test` are replaced
and `shoal` is added. Every interpreter that a test starts as sys.executable finds the same files, whatever its options are.
"""
import os
import pathlib
import re
import sys

import adaptations

# The files that name the module. mp_fork_bomb and mp_preload are scripts that tests run.
FILES = ("_test_multiprocessing.py", "test_concurrent_futures.py", "test_multiprocessing_main_handling.py",
         "mp_fork_bomb.py", "mp_preload.py")

# Each form in which the sources, and the scripts inside their strings, name the module. A use such as `multiprocessing.Process` stays: the
# import before it binds the name to ours.
FORMS = (
    (r"\bimport multiprocessing, ", r"from shoal import multiprocessing; import "),
    (r"\bimport multiprocessing as\b", r"import shoal.multiprocessing as"),
    (r"\bimport multiprocessing(\.\w+)", r"import shoal.multiprocessing\1; from shoal import multiprocessing"),
    (r"(?<!from shoal )\bimport multiprocessing\b", r"from shoal import multiprocessing"),
    (r"\bfrom multiprocessing\b", r"from shoal.multiprocessing"),
    (r"'multiprocessing(\.[\w.]*)?'", r"'shoal.multiprocessing\1'"),
)


class Mismatch(Exception):
    """The installed tests are not those that the adaptations were written for."""


def transform(name: str, source: str) -> str:
    """Returns the source of test/NAME, pointed at ours and adapted."""
    for old, new, _reason in adaptations.TABLE.get(name, ()):
        if source.count(old) != 1:
            raise Mismatch(f"test/{name} holds this {source.count(old)} times, not once; adaptations.py needs mending:\n{old}")
        source = source.replace(old, new)
    for form, replacement in FORMS:
        source = re.sub(form, replacement, source)
    if left := re.search(r"(?<!from shoal )\b(?:import|from) +multiprocessing.*|__import__\(['\"]multiprocessing.*", source):
        raise Mismatch(f"test/{name} still names the standard module: {left[0]}")
    return source


def link_all(source: pathlib.Path, target: pathlib.Path, but: tuple[str, ...]) -> None:
    """Links each entry of SOURCE into the new folder TARGET."""
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        if entry.name not in but:
            (target / entry.name).symlink_to(entry.path)


def make(root: pathlib.Path, tests: pathlib.Path, package: pathlib.Path | None) -> pathlib.Path:
    """Makes the environment under ROOT and returns its interpreter. TESTS is the installed `test` package. PACKAGE is the folder of
    `shoal`; None leaves the tests as they are."""
    library = root / "home" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    link_all(tests.parent, library, but=("test",))
    link_all(tests, library / "test", but=("__pycache__", *FILES))
    for name in FILES:
        source = (tests / name).read_text()
        (library / "test" / name).write_text(transform(name, source) if package else source)
    if package:
        (library / "shoal").symlink_to(package.resolve())
    (root / "home" / "bin").mkdir()
    python = root / "env" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    (root / "env" / "pyvenv.cfg").write_text(f"home = {root}/home/bin\ninclude-system-site-packages = false\n")
    return python
