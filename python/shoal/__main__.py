"""`python -m shoal ...` is the program `shoal ...`."""

from __future__ import annotations

import os
import sys
import typing

from shoal._cli import program


def main() -> typing.NoReturn:
    """Replaces this process by the program, with the arguments of this one."""
    path = program()
    os.execv(path, ["shoal", *sys.argv[1:]])


if __name__ == "__main__":
    main()
