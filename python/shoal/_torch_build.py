"""Finds or compiles the torch glue: a C++ module for exactly one version of torch and of Python.

A build of the package leaves a glue beside this file if torch's headers were there. For any other torch or Python the
glue is compiled at first use, into the user's cache directory; that takes 4 to 20 seconds, once, and a line on stderr
says so.

As a program, `_torch_build.py FOLDER LIBRARY` compiles the glue into FOLDER and links it with LIBRARY (libshoal.so). It
does nothing if torch or its headers are not there.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator

SOURCES = pathlib.Path(__file__).parent / "_torch_glue_src"
COMPILE_SECONDS = 300.0
"""The longest time that a compilation may take, and that a process waits for the compilation of another one."""


class Unavailable(Exception):
    """The glue cannot be had. The text says why."""


def torch_folder() -> pathlib.Path | None:
    """Returns the folder of the package torch, without importing it."""
    torch = sys.modules.get("torch") or importlib.util.find_spec("torch")
    places = getattr(torch, "__path__", None) or getattr(torch, "submodule_search_locations", None)
    return pathlib.Path(list(places)[0]) if places else None


def torch_version(folder: pathlib.Path) -> str:
    found = re.search(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)", (folder / "version.py").read_text(), re.M)
    if found is None:
        raise Unavailable(f"{folder}/version.py has no __version__")
    return found[1]


def file_name(version: str) -> str:
    """The name of the glue's file has the versions that it fits."""
    return f"_torch_glue.torch-{version}{sysconfig.get_config_var('EXT_SUFFIX')}"


def has_headers(folder: pathlib.Path) -> bool:
    return (folder / "include/ATen/MapAllocator.h").exists() and find_python_header() is not None


def find_python_header() -> str | None:
    include = sysconfig.get_path("include")
    return include if os.path.exists(os.path.join(include, "Python.h")) else None


def loaded_library() -> str:
    """Returns the path of the libshoal.so that this process uses."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].rstrip("\n")
            if re.search(r"/libshoal\.so[^/]*$", path):  # not libshoal_cuda.so
                return path
    raise Unavailable("libshoal.so is not loaded")


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if found is None:
        raise Unavailable("there is no C++ compiler")
    return found


def command(folder: pathlib.Path, library: str, output: str, standard: str) -> list[str]:
    """Returns the compiler's command line. Torch's libraries are found by their names when the glue is loaded, because
    torch has loaded them before; so is libshoal."""
    torch = sys.modules.get("torch")
    flags = []
    if torch is not None:
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    includes = [folder / "include", folder / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    for include in includes:
        flags += ["-isystem", str(include)]
    return [compiler(), f"-std={standard}", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *flags, f"-I{SOURCES}",
            str(SOURCES / "glue.cpp"), "-o", output,
            f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python", library]


def compile_glue(folder: pathlib.Path, library: str, target: pathlib.Path) -> None:
    """Compiles the glue to target. Others see either the whole file or none."""
    if not has_headers(folder):
        raise Unavailable("the headers of torch or of Python are not installed "
                          "(Debian: libtorch-dev, python3-dev)")
    errors = ""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".torch_glue.") as work:
        output = os.path.join(work, target.name)
        for standard in ("c++17", "c++20"):  # torch's headers need at least 17, later ones may need 20
            try:
                done = subprocess.run(command(folder, library, output, standard), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                      timeout=COMPILE_SECONDS)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"the compiler took longer than {COMPILE_SECONDS:.0f} s") from None
            if done.returncode == 0:
                os.replace(output, target)
                return
            errors = errors or done.stdout
    raise Unavailable("the compiler failed:\n" + "\n".join(errors.splitlines()[:20]))


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "shoal"


@contextlib.contextmanager
def only_one(path: pathlib.Path) -> Iterator[None]:
    """Lets one process at a time continue. The lock ends with its process."""
    with open(path, "w") as file:
        deadline = time.monotonic() + COMPILE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"another process holds {path}") from None
                time.sleep(0.05)
        yield


def source_hash() -> str:
    files = [pathlib.Path(__file__), *sorted(path for path in SOURCES.rglob("*") if path.is_file())]
    texts = [path.read_bytes() for path in files]  # this one has the command line
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def find_or_compile() -> pathlib.Path:
    """Returns the path of a glue that fits this torch and this Python, and compiles one if there is none."""
    folder = torch_folder()
    if folder is None:
        raise Unavailable("torch is not installed")
    version = torch_version(folder)
    name = file_name(version)
    beside = pathlib.Path(__file__).parent / name
    if beside.exists():
        return beside
    try:
        cached = cache_folder() / source_hash() / name
        if cached.exists():
            return cached
        cached.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        with only_one(cached.parent / "lock"):
            if not cached.exists():
                if has_headers(folder) and compiler():
                    print(f"shoal: compiling its module for torch {version}, once; this takes 4 to 20 seconds",
                          file=sys.stderr, flush=True)
                compile_glue(folder, loaded_library(), cached)
    except OSError as error:
        raise Unavailable(f"{error}") from error
    return cached


def main(package: str, library: str) -> None:
    global SOURCES
    SOURCES = pathlib.Path(package) / "_torch_glue_src"
    folder = torch_folder()
    if folder is not None and has_headers(folder) and (shutil.which("c++") or shutil.which("g++")):
        compile_glue(folder, library, pathlib.Path(package) / file_name(torch_version(folder)))


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, in which torch.py is not torch
    try:
        main(*sys.argv[1:])
    except Unavailable as reason:
        sys.exit(f"the torch glue: {reason}")
