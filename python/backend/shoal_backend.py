"""The hooks that pip calls (PEP 517 and PEP 660).

One setting: `--config-settings build-dir=FOLDER` builds in FOLDER and keeps it, so that a second build compiles only
what has changed. Without it, a wheel is built in a temporary folder.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import archives
import compiled

ROOT = pathlib.Path(__file__).resolve().parents[2]
Settings = dict[str, str] | None


@contextlib.contextmanager
def _build_folder(settings: Settings) -> Iterator[pathlib.Path]:
    unknown = set(settings or {}) - {"build-dir"}
    if unknown:
        raise SystemExit(f"shoal: unknown setting {', '.join(sorted(unknown))}; the only one is build-dir")
    if settings:
        yield (ROOT / settings["build-dir"]).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="shoal-build-") as folder:
        yield pathlib.Path(folder)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    with _build_folder(config_settings) as build, tempfile.TemporaryDirectory(prefix="shoal-wheel-") as stage:
        compiled.build(ROOT, build)
        package = compiled.collect(build, pathlib.Path(stage))
        print(compiled.describe(package))
        return archives.write_wheel(ROOT, package, compiled.platform_tag(package), pathlib.Path(wheel_directory))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return archives.write_metadata(ROOT, pathlib.Path(metadata_directory))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_editable(wheel_directory: str, config_settings: Settings = None,
                   metadata_directory: str | None = None) -> str:
    """The package is the one in the build folder, `build` unless a setting says otherwise. Its Python files are links to
    the sources; after a change of the C code run `cmake --build build --target python`."""
    with _build_folder(config_settings or {"build-dir": "build"}) as build:
        compiled.build(ROOT, build)
        return archives.write_editable(ROOT, build / "python", pathlib.Path(wheel_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return archives.write_sdist(ROOT, pathlib.Path(sdist_directory))
