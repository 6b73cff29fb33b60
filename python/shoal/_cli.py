"""The program `shoal`, which comes with the package."""

from __future__ import annotations

import os
import pathlib


def program() -> str:
    """Returns the path of the program: that of the wheel, or that of the build folder."""
    package = pathlib.Path(__file__).parent
    build = package.parent.parent  # the Python files of a build folder are links, but __file__ is the link's path
    for path in (package / "bin/shoal", build / "shoal"):
        if os.access(path, os.X_OK):
            return str(path)
    raise FileNotFoundError(f"the program shoal is missing: neither {package}/bin/shoal nor {build}/shoal")
