"""Compiles the package with cmake and collects its files."""

from __future__ import annotations

import pathlib
import platform
import re
import shutil
import subprocess
import sys


def _fail(sentence: str) -> None:
    """pip shows what a backend prints, and a traceback only for exceptions."""
    sys.exit(f"shoal: {sentence}")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        _fail(f"{what} failed: {' '.join(command)}\n{done.stdout}")


def build(root: pathlib.Path, folder: pathlib.Path) -> None:
    """Builds the target `wheel` in a folder, and configures the folder first if that was not done."""
    if shutil.which("cmake") is None:
        _fail("building it needs cmake, which is not installed (Debian: scripts/setup installs all that it needs)")
    if not (folder / "CMakeCache.txt").exists():
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            _fail("building it needs a C compiler, which is not installed (Debian: scripts/setup installs all that it "
                  "needs)")
        _run(["cmake", "-S", str(root), "-B", str(folder), *(["-GNinja"] if shutil.which("ninja") else []),
              "-DCMAKE_BUILD_TYPE=Release", "-DSHOAL_TESTS=OFF"], "cmake")
    cache = (folder / "CMakeCache.txt").read_text()
    if re.search(r"^SHOAL_PYTHON_INCLUDE:.*NOTFOUND", cache, re.MULTILINE):
        _fail("building it needs Python.h, which is not installed (Debian: python3-dev)")
    _run(["cmake", "--build", str(folder), "--parallel", "--target", "wheel"], "the build")


def collect(folder: pathlib.Path, stage: pathlib.Path) -> pathlib.Path:
    """Copies the package from the build folder to stage/shoal, as it is when installed."""
    package = stage / "shoal"
    shutil.copytree(folder / "python/shoal", package, ignore=_leave_out)
    _run(["cmake", "--install", str(folder), "--component", "python", "--strip", "--prefix", str(stage)],
         "cmake --install")
    return package


def describe(package: pathlib.Path) -> str:
    """What is compiled in the package, with its sizes; pip shows it with -v."""
    binaries = [*sorted(package.glob("*.so*")), package / "bin/shoal"]
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 2**20:.1f} MiB" for path in binaries)
    cuda = "with CUDA" if (package / "libshoal_cuda.so").exists() else "without CUDA: nvcc was not found, or SHOAL_CUDA is off"
    return f"shoal: {cuda}; {sizes}"


def _leave_out(folder: str, names: list[str]) -> list[str]:
    """Compiled Python, and links to sources that were removed since the build."""
    return [name for name in names if name == "__pycache__" or not (pathlib.Path(folder) / name).exists()]


def platform_tag(package: pathlib.Path) -> str:
    """The oldest glibc that has all symbols which the package uses: manylinux_2_34_x86_64. Without readelf nobody knows, and
    the wheel is for this system alone."""
    machine = platform.machine()
    readelf = shutil.which("readelf")
    binaries = [*package.glob("*.so*"), package / "bin/shoal"]
    if readelf is None:
        return f"linux_{machine}"
    text = subprocess.run([readelf, "-W", "--version-info", *map(str, binaries)], capture_output=True, text=True,
                          check=True).stdout
    newest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", text))
    return f"manylinux_2_{newest}_{machine}"
