#!/usr/bin/env python3
"""Runs a command beside a world that is listed and cannot be found by its name: a copy of a world's beginning, without the name.

    tests/cli/nameless.py PID COMMAND [ARGUMENT ...]

PID is a process of the world, which is named after it. Exits as the command does."""
import fcntl
import os
import subprocess
import sys

BYTES = 4 << 20  # the header and the first slots

pid, command = sys.argv[1], sys.argv[2:]
folder = f"/proc/{pid}/fd"
path = next(f"{folder}/{fd}" for fd in os.listdir(folder) if os.readlink(f"{folder}/{fd}").startswith("/memfd:shoal:"))
with open(path, "rb", buffering=0) as world:
    size, seals = os.fstat(world.fileno()).st_size, fcntl.fcntl(world, fcntl.F_GET_SEALS)
    beginning = world.read(BYTES)
name = pid.encode() + bytes(1)
copy = os.memfd_create("shoal:", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(copy, size)
os.pwrite(copy, beginning.replace(name, bytes(len(name)), 1), 0)
fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
sys.exit(subprocess.run(command, check=False).returncode)
