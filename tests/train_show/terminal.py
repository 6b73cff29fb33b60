"""A small terminal emulator, as far as the program needs one: what a screen would show after these bytes."""
import re

TOKEN = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])|([\x20-\x7e\x80-\xff]+)|([\r\n\x08])|(.)", re.DOTALL)


class Terminal:
    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.lines = [[]]  # all lines so far; the screen shows the last ones
        self.row = self.column = 0
        self.cursor = True  # visible
        self.breaks = True  # a row that is too long is wrapped; otherwise it is cut
        self.colors = 0  # how often a colour was set
        self.frames = 0  # how often the cursor went back up
        self.unknown = []
        self.rest = b""

    def resize(self, rows, columns, breaks):
        """Changes the size. breaks: rows that are now too long are wrapped, as modern terminals do; otherwise they are cut."""
        self.rows, self.columns = rows, columns
        lines, row = [], 0
        for i, line in enumerate(self.lines):
            if i == self.row:
                row = len(lines)
            while breaks and len(line) > columns:
                lines.append(line[:columns])
                line = line[columns:]
            lines.append(line[:columns])
        self.lines, self.row, self.column = lines, row, min(self.column, columns - 1)

    def top(self):
        return max(0, len(self.lines) - self.rows)

    def forget_above(self, pattern):
        """Removes the lines that match from those that have left the screen: no program can clear them there."""
        top = self.top()
        kept = [line for line in self.lines[:top] if not re.search(pattern, "".join(line))]
        self.lines[:top] = kept
        self.row -= top - len(kept)

    def put(self, character):
        if self.column == self.columns and self.breaks:
            self.feed(b"\r\n")
        self.column = min(self.column, self.columns - 1)
        line = self.lines[self.row]
        line.extend(" " * (self.column + 1 - len(line)))
        line[self.column] = character
        self.column += 1

    def control(self, private, numbers, kind):
        n = int(numbers) if numbers.isdigit() else None
        if private and numbers == "25" and kind in "hl":
            self.cursor = kind == "h"
        elif private and numbers == "7" and kind in "hl":
            self.breaks = kind == "h"
        elif kind == "m":
            self.colors += 1
        elif kind == "A" and n:
            self.row = max(self.row - n, self.top())
            self.frames += 1
        elif kind == "K" and n in (None, 0):
            del self.lines[self.row][self.column:]
        elif kind == "J" and n in (None, 0):
            del self.lines[self.row][self.column:]
            del self.lines[self.row + 1:]
        else:
            self.unknown.append((private, numbers, kind))

    def feed(self, data):
        data = self.rest + data
        cut = re.search(rb"(\x1b(\[[?0-9;]*)?|[\xc0-\xdf]|[\xe0-\xff][\x80-\xbf]{0,1}|[\xf0-\xff][\x80-\xbf]{2})\Z", data)
        self.rest = data[cut.start():] if cut else b""
        data = data[:cut.start()] if cut else data
        for private, numbers, kind, text, move, other in TOKEN.findall(data):
            if kind:
                self.control(private.decode(), numbers.decode(), kind.decode())
            elif text:
                for character in text.decode("utf-8", "replace"):
                    self.put(character)
            elif move == b"\r":
                self.column = 0
            elif move == b"\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append([])
            else:
                self.unknown.append(other or move)

    def text(self):
        return ["".join(line).rstrip() for line in self.lines]
