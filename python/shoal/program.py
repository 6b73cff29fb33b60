"""C programs and Python in one world.

A Python process starts a C program as a child and gives it queues, locks, tensors and plain values. The program reads
them with shoal_child_begin and the calls of value.h. The other way round, a C program starts Python with
shoal_process_start_program, and the script reads its arguments with arguments().

The headers are in a clone of Shoal. A C program is compiled against the library of that clone, or that of a pip install:

    cc -I CLONE/include program.c -L CLONE/build/lib -lshoal -Wl,-rpath,CLONE/build/lib
    cc -I CLONE/include program.c SITE_PACKAGES/shoal/libshoal.so.0.3 -Wl,-rpath,SITE_PACKAGES/shoal
"""
import os
import signal
from typing import Any, Optional, Sequence, Union

from . import _shoal

__all__ = ["Program", "arguments", "set_result"]

Word = Union[str, bytes, "os.PathLike[str]"]


class Program:
    """A program that runs as a child in this process's world. It ends with this process.

    argv is a list of words; argv[0] is the program, a path or a name that is looked for in PATH. args is what its
    shoal_child_begin returns: best a dict with string keys, read there with
    shoal_arg_queue, shoal_arg_int and so on. Queues, locks, blocks and shoal.Tensor arrive as themselves. What only
    Python understands arrives as a foreign value, which C cannot read.
    """

    def __init__(self, argv: Sequence[Word], args: Any = None, name: Optional[str] = None) -> None:
        if isinstance(argv, (str, bytes, os.PathLike)):
            raise TypeError(f"argv must be a list of words, the program first: [{argv!r}], not {argv!r}")
        self._process = _shoal.start_c_program(argv, args, name)

    @property
    def pid(self) -> int:
        """The process ID."""
        return int(self._process.pid)

    @property
    def sentinel(self) -> int:
        """A file descriptor that is readable once the program has ended."""
        return int(self._process.sentinel)

    @property
    def exitcode(self) -> Optional[int]:
        """The exit status, or minus the number of the signal that ended it; None while it runs."""
        code: Optional[int] = self._process.poll()
        return code

    @property
    def result(self) -> Any:
        """What the program gave to shoal_return; None before it was joined, or if it gave nothing."""
        return _shoal.result_of(self._process)

    def join(self, timeout: Optional[float] = None) -> Optional[int]:
        """Waits until the program has ended and returns its exit code; None after the timeout."""
        code: Optional[int] = self._process.join(timeout)
        return code

    def is_alive(self) -> bool:
        """Returns whether the program still runs."""
        return self.exitcode is None

    def terminate(self) -> None:
        """Sends SIGTERM. Does nothing if the program has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL. Does nothing if the program has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal. Does nothing if the program has ended."""
        self._process.send_signal(number)

    def __repr__(self) -> str:
        code = self.exitcode
        return f"<Program pid={self.pid} {'started' if code is None else f'stopped exitcode={code}'}>"


def arguments() -> Any:
    """Returns the arguments that a C program gave to this Python process, and joins that program's world.

    Raises RuntimeError if this process was not started so.
    """
    return _shoal.program_arguments()


def set_result(obj: Any) -> None:
    """Sets the result of this process, for the C program that started it (shoal_process_result)."""
    _shoal.set_result(obj)
