"""Writes wheels and sdists."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import pathlib
import re
import subprocess
import tarfile
import tomllib
import zipfile

# Debian's names of what is in the libraries and the program. Their licences ask that the notices go with them.
_BROUGHT = ["libmsgpack-dev", "zlib1g-dev", "libjansson-dev", "libinih-dev", "libpng-dev"]

# The same sources give the same bytes.
_TIME = (2026, 1, 1, 0, 0, 0)


def version(root: pathlib.Path) -> str:
    text = (root / "include/shoal/version.h").read_text()
    found = re.search(r'#define SHOAL_VERSION "([^"]+)"', text)
    assert found is not None
    return found[1]


def _project(root: pathlib.Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def _metadata(root: pathlib.Path) -> str:
    project = _project(root)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version(root)}",
             f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}",
             *(f"Classifier: {name}" for name in project["classifiers"]),
             *(f"Project-URL: {label}, {address}" for label, address in project.get("urls", {}).items()),
             "Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (root / project["readme"]).read_text()


def _entry_points(root: pathlib.Path) -> str:
    scripts = _project(root)["scripts"]
    return "[console_scripts]\n" + "".join(f"{name} = {target}\n" for name, target in scripts.items())


class _Wheel:
    """A wheel that is being written. RECORD, the list of its files with their hashes, is the last of them."""

    def __init__(self, root: pathlib.Path, tag: str, folder: pathlib.Path) -> None:
        self.root, self.tag = root, tag
        self.info = f"shoal-{version(root)}.dist-info"
        self.name = f"shoal-{version(root)}-{tag}.whl"
        self.file = zipfile.ZipFile(folder / self.name, "w", zipfile.ZIP_DEFLATED)
        self.record = io.StringIO()

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, _TIME)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self.file.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.write(f"{name},sha256={digest},{len(data)}\n")

    def finish(self) -> str:
        pure = "true" if self.tag.endswith("-any") else "false"
        self.add(f"{self.info}/METADATA", _metadata(self.root).encode())
        self.add(f"{self.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: shoal_backend\nRoot-Is-Purelib: {pure}\n"
                                       f"Tag: {self.tag}\n".encode())
        self.add(f"{self.info}/entry_points.txt", _entry_points(self.root).encode())
        self.add(f"{self.info}/LICENSE", (self.root / "LICENSE").read_bytes())
        self.record.write(f"{self.info}/RECORD,,\n")
        self.file.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", _TIME), self.record.getvalue())
        self.file.close()
        return self.name


def write_metadata(root: pathlib.Path, folder: pathlib.Path) -> str:
    """Writes the folder of metadata that a wheel will have, and returns its name. pip asks for it before the build."""
    info = folder / f"shoal-{version(root)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(root))
    (info / "entry_points.txt").write_text(_entry_points(root))
    return info.name


def write_wheel(root: pathlib.Path, package: pathlib.Path, platform_tag: str, folder: pathlib.Path) -> str:
    """Writes a wheel of the files in a folder `shoal`, and returns its name."""
    wheel = _Wheel(root, f"cp311-abi3-{platform_tag}", folder)
    for name in _BROUGHT:
        path = pathlib.Path(f"/usr/share/doc/{name}/copyright")
        if path.exists():
            wheel.add(f"{wheel.info}/licenses/{name}", path.read_bytes())
    for path in sorted(package.rglob("*")):
        if path.is_file():
            wheel.add(path.relative_to(package.parent).as_posix(), path.read_bytes(), os.access(path, os.X_OK))
    return wheel.finish()


def write_editable(root: pathlib.Path, path: pathlib.Path, folder: pathlib.Path) -> str:
    """Writes a wheel that adds a folder to sys.path."""
    wheel = _Wheel(root, "py3-none-any", folder)
    wheel.add("shoal-editable.pth", f"{path}\n".encode())
    return wheel.finish()


def _sources(root: pathlib.Path) -> list[str]:
    """What git knows; without git, all that is no build. The data sets stay out: they are large, and nothing is compiled of
    them."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    return sorted(name for name in listed if (root / name).is_file() and name != "PKG-INFO"
                  and not name.startswith(("build/", "data/", ".git/")) and "__pycache__" not in name)


def write_sdist(root: pathlib.Path, folder: pathlib.Path) -> str:
    """Writes an archive of the sources, and returns its name."""
    base = f"shoal-{version(root)}"
    with tarfile.open(folder / f"{base}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in _sources(root):
            archive.add(root / name, f"{base}/{name}", recursive=False)
        data = _metadata(root).encode()
        entry = tarfile.TarInfo(f"{base}/PKG-INFO")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return f"{base}.tar.gz"
