"""Types into an interactive zsh that completes with FOLDER/_shoal, and waits for what has to appear.

  zsh.py FOLDER TYPED EXPECTED [TYPED EXPECTED ...]
"""
import os
import pty
import select
import sys
import time

LIMIT = 300


def wait_for(terminal, text):
    seen = b""
    end = time.monotonic() + LIMIT
    while text.encode() not in seen:
        left = end - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            sys.exit(f"'{text}' did not appear: {seen[-2000:]!r}")
        seen += os.read(terminal, 65536)


def main():
    folder, pairs = sys.argv[1], sys.argv[2:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", HOME=folder)
        os.execvp("zsh", ["zsh", "-f", "-i"])
    os.write(terminal, f"PS1=; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; print rea'dy'\n".encode())
    wait_for(terminal, "ready")
    for typed, expected in zip(pairs[::2], pairs[1::2]):
        os.write(terminal, typed.encode() + b"\t")
        wait_for(terminal, expected)
        os.write(terminal, b"\x15")
    os.close(terminal)
    os.waitpid(pid, 0)


main()
