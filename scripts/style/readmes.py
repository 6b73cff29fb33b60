"""Finds source files that no README names, and names in READMEs without a file. scripts/check-style runs it.

A file belongs to the README of its folder or, if the folder has none, of the nearest folder above. A name is a word in
backticks: `lock.c`, `cpu/iter.h`. It may stand for several: `queue_*.c`, `<group>.h`, `conv2d_{rows,channels}.c`. A
name stands for the header and the source of one stem, so `lock.h` names lock.c, too. `rules/` names all files in
that folder. A test beside its source (lock_test.c) needs no name. A folder with a README is named in that of the
folder above.
"""
import os
import re

SOURCES = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp", ".py")
# A README of 20 lines lists no files here: each is of its own, and says at its head what it is.
FREE = ("python/tests/", "tests/fuzz/", "tests/golden")

WORD = re.compile(r"`([^`\s]+)`")
BRACES = re.compile(r"\{([^{}]*)\}")


def expand(name):
    """All names that {a,b} in a name stands for."""
    braces = BRACES.search(name)
    if not braces:
        return [name]
    return [more for part in braces.group(1).split(",") for more in expand(name[:braces.start()] + part + name[braces.end():])]


def pattern(name):
    return "".join("[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", re.sub(r"<\w+>", "*", name)))


def names_of(text):
    """(line, name) of each name in a README."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORD.findall(line):
            for name in expand(word):
                yield number, name


def is_file(files, folder, name):
    """Whether the name, seen from the folder or the root, or the end of a path, is that of a file."""
    path = os.path.normpath(os.path.join(folder, name))
    found = re.compile(rf"(?:{pattern(path)}|(?:.*/)?{pattern(name)})")
    return any(found.fullmatch(file) for file in files)


def stands_for(name):
    """A pattern of the files, seen from the folder, that the name stands for."""
    if name.endswith("/"):
        return re.compile(pattern(name) + ".*")
    stem, ending = os.path.splitext(name)
    return re.compile(pattern(stem if ending in SOURCES else name) + r"\.\w+")


def home(folder, readmes):
    """The folder, or the nearest above it, that has a README; empty if none has."""
    while folder and folder not in readmes:
        folder = os.path.dirname(folder)
    return folder


def findings(files, read):
    """(path, line, text) of each finding. files: the paths of the tree; read(path) returns the text of one."""
    readmes = {os.path.dirname(file) for file in files if file.count("/") and file.endswith("/README.md")}
    known, named_in = {}, {}
    for folder in sorted(readmes):
        named = list(names_of(read(f"{folder}/README.md")))
        named_in[folder] = [name.rstrip("/") for _, name in named]
        known[folder] = [stands_for(name) for _, name in named]
        for line, name in named:
            if name.endswith(SOURCES) and not name.startswith("_") and not is_file(files, folder, name):
                yield f"{folder}/README.md", line, f"there is no file {name}"
    for file in files:
        folder = home(os.path.dirname(file), readmes)
        inner = file[len(folder) + 1:]
        if not file.endswith(SOURCES) or not folder or file.startswith(FREE) or os.path.splitext(inner)[0].endswith("_test"):
            continue
        if not any(name.fullmatch(inner) for name in known[folder]):
            yield file, 1, f"{folder}/README.md does not name it"
    for folder in readmes:
        above = home(os.path.dirname(folder), readmes)
        if above and not any(f"/{name}".endswith(folder[len(above):]) for name in named_in[above]):
            yield f"{folder}/README.md", 1, f"{above}/README.md does not name the folder"


# As in scripts/check-style: path: (text, the lines that have to be found).
PLANTS = {
    "src/base/README.md": (
        "# base\n\n`known.h`, `gone.c`, `{left,right}.c`, `<group>_fast.c`\n`sub/` `src/os/fd.h` `fd.h` `SH_X` `lost/none.h`\n`a_*.c`\n", [3, 4]),
    "src/base/known.c": ("int a;\n", []),
    "src/base/left.c": ("int a;\n", []),
    "src/base/right.c": ("int a;\n", []),
    "src/base/sum_fast.c": ("int a;\n", []),
    "src/base/sub/inner.c": ("int a;\n", []),
    "src/base/a_b.c": ("int a;\n", []),
    "src/base/own_test.c": ("int a;\n", []),
    "src/base/planted.c": ("int a;\n", [1]),
    "src/base/planted.cuh": ("int a;\n", [1]),
    "src/base/deep/planted.cpp": ("int a;\n", [1]),
    "cli/planted.h": ("int a;\n", [1]),
    "src/base/planted/README.md": ("# planted\n", [1]),
    "src/base/sub/README.md": ("# sub\n\n`inner.c`\n", []),
}
