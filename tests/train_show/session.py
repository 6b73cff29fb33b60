"""Runs a command in a terminal, and checks each frame that it draws."""
import fcntl
import os
import pty
import re
import resource
import select
import struct
import termios
import time

from terminal import Terminal

LIMIT = 150  # seconds for anything to happen
FRAME_ROW = r"^(all|worker [0-9]+)( |$)|^ +done +(epoch|loss)"


class Session:
    """A command that runs in its own terminal."""

    def __init__(self, command, rows=24, columns=80, cwd=".", **environment):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        self.screen, self.begun = Terminal(rows, columns), time.monotonic()
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "NO_COLOR"))}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, size)
            os.chdir(cwd)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.execve(command[0], command, {**keep, "TERM": "xterm", **environment})
        self.raw, self.narrow, self.checked = b"", columns < 80, True

    def read(self):
        assert select.select([self.fd], [], [], LIMIT)[0], f"no output for {LIMIT} s: " + self.show()
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        self.screen.feed(data)
        if data.endswith(b"A") and self.checked:
            self.check_frame()
        return bool(data)

    def show(self):
        return "\n".join(self.screen.text())

    def check_frame(self):
        """The screen has one set of rows, below all other text, and none is wider than the terminal."""
        text = self.screen.text()
        if self.screen.columns < 10:
            return  # too narrow to recognise a row; the frames after the next resize are checked
        rows = [i for i, line in enumerate(text) if re.match(r"all( |$)", line)]
        assert len(rows) == 1, self.show()
        assert not any("worker 0 " in line for line in text[:rows[0]]), self.show()
        assert all(len(line) < self.screen.columns for line in text[rows[0]:]), self.show()
        assert len(text) - rows[0] < self.screen.rows, self.show()
        assert not self.screen.cursor and self.screen.column == 0

    def wait(self, condition):
        while not condition():
            assert self.read(), "ended too early: " + self.show()

    def frames(self, n):
        wanted = self.screen.frames + n
        self.wait(lambda: self.screen.frames >= wanted)

    def resize(self, rows, columns, breaks):
        """Changes the size of the terminal. Frames that were drawn for the old size are not checked."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.checked = False
        while select.select([self.fd], [], [], 0)[0]:
            assert self.read(), "ended too early: " + self.show()
        self.screen.resize(rows, columns, breaks)
        self.narrow = self.narrow or columns < 80
        self.frames(1)
        self.screen.forget_above(FRAME_ROW)  # a frame for the old size, drawn on a screen that has too few rows for it
        self.checked = True
        self.frames(2)

    def end(self):
        """Waits for the end of the command, checks what it left on the screen, and returns the exit status."""
        while self.read():
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        text = self.show()
        assert self.screen.cursor, "the cursor is still hidden"
        assert not self.screen.unknown, self.screen.unknown
        assert not re.search("━|─|##|---|^all |^worker [0-9]+ |done +epoch", text, re.MULTILINE), text
        seconds = time.monotonic() - self.begun
        texts = len(re.findall(rb"[0-9]/[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ %|started again|workers?, ", self.raw))
        # On a narrow terminal texts are cut, and cannot be counted.
        assert self.narrow or self.screen.frames <= 10 * seconds + texts + 1, f"{self.screen.frames} frames in {seconds:.1f} s, {texts} texts"
        return os.waitstatus_to_exitcode(status)
