"""Reads the public headers, for the manual pages.

This is not a parser of C. It knows the regular form of our own headers: a comment, and below it the declarations that it is about.
Whatever has another form raises BadHeader, so that no declaration is left out in silence.
"""
import dataclasses
import functools
import os
import re


class BadHeader(Exception):
    pass


@dataclasses.dataclass
class Declaration:
    kind: str  # "function", "callback", "struct", "enum", "opaque", "macro" (with arguments) or "constant"
    name: str  # empty for an enum without a name
    text: str  # in C, without comments and on one line; of structs and enums: what stands before the brace
    members: list = dataclasses.field(default_factory=list)  # of structs and enums: (C text, name, comment)
    note: str = ""  # the comment on its own line
    comment: list = None  # the lines of the comment that is about this declaration only


@dataclasses.dataclass
class Group:
    """Declarations under one comment. Without declarations: a text between groups."""
    comment: list
    declarations: list = dataclasses.field(default_factory=list)

    def is_complete(self):
        """Types come before the functions that use them, so that a group may go on behind the blank line after a type."""
        return any(d.kind in ("function", "macro") for d in self.declarations)


COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)

# Macros that other macros are made of.
INTERNAL = re.compile(r"SHOAL_((\w+_)?H|DECLARE_\w+|MUST_USE|CAT_?|COUNT_?|LIST_\d+|MAP_\d+|BY_HANDLE|OPTIM_\w+|OPTIONS)$")

FORMS = (
    ("opaque", re.compile(r"typedef struct (shoal_\w+) \1;")),
    ("callback", re.compile(r"typedef [\w *]+\(\*(shoal_\w+)\)\(.*\);")),
    ("function", re.compile(r"[\w *]+[ *](shoal_\w+)\(.*\);")),
)
BODY = re.compile(r"(?:typedef (struct|enum) (shoal_\w+)|(enum)) \{(.*)\}(?: (\w+))?;", re.DOTALL)


# Declarations that are made of a list of types, such as SHOAL_HANDLES(SHOAL_DECLARE_TYPE).
FROM_LIST = re.compile(r"(SHOAL_\w+)\((SHOAL_DECLARE_\w+)\)$", re.MULTILINE)
INCLUDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../include/shoal")


@functools.cache
def macro(name):
    """The argument of a macro of the headers that has one, and what it is made of."""
    for header in sorted(os.listdir(INCLUDE)):
        with open(os.path.join(INCLUDE, header), encoding="utf-8") as file:
            match = re.search(rf"^#define {name}\((\w+)\)((?:.*\\\n)*.*)", file.read(), re.MULTILINE)
        if match:
            return match.group(1), match.group(2).replace("\\\n", " ")
    raise BadHeader(f"{name} is not defined")


def types_of(name):
    """The types in a list such as SHOAL_HANDLES. A list may contain another one."""
    argument, body = macro(name)
    for word, inner in re.findall(r"(\w+)\((\w+)\)", body):
        yield from [inner] if word == argument else types_of(word)


def from_list(text):
    """The declarations that SHOAL_HANDLES(SHOAL_DECLARE_TYPE) stands for."""
    match = FROM_LIST.match(text)
    argument, body = macro(match.group(2))
    for name in types_of(match.group(1)):
        for declaration in re.sub(rf"(##)?\b{argument}\b(##)?", name, body).split(";")[:-1]:
            yield declaration.strip() + ";"


def squeeze(text):
    text = re.sub(r"\s+", " ", text.replace("SHOAL_MUST_USE", "")).strip()
    return text.replace(" [", "[")


def comment_lines(text):
    """The lines of a comment without its marks."""
    lines = text[2:-2].rstrip().split("\n")
    return [lines[0].strip()] + [re.sub(r"^\s*\* ?", "", line).rstrip() for line in lines[1:]]


def one_line(comment):
    return " ".join(line.strip() for line in comment_lines(comment)).strip()


def read_members(body, separator):
    """Members of a struct or an enum. A comment is about the member on whose line it begins, or else about the next one."""
    members = []
    above = ""
    rest = body
    while rest.strip():
        comment = re.match(r"\s*(/\*.*?\*/)", rest, re.DOTALL)
        if comment:
            above = f"{above} {one_line(comment.group(1))}".strip()
            rest = rest[comment.end():]
            continue
        depth = 0
        for end, letter in enumerate(COMMENT.sub(lambda match: "\0" * len(match.group()), rest)):
            depth += (letter in "({") - (letter in ")}")
            if letter == separator and depth == 0:
                break
        else:
            raise BadHeader(f"a member without an end: {rest.strip()[:60]}")
        text = squeeze(COMMENT.sub("", rest[:end]))
        text = re.sub(r"^SHOAL_OPTIONS\((\w+ \w+),.*\)$", r"\1", text)  # without its old names
        union = re.fullmatch(r"union \{ (.*?); .*\}", text)  # a member, and its name in version 0.2
        if union:
            above = one_line(COMMENT.search(rest).group())
            text = union.group(1)
        rest = rest[end + 1:]
        beside = re.match(r"[ \t]*(/\*.*?\*/)", rest, re.DOTALL)
        if beside:
            above = f"{above} {one_line(beside.group(1))}".strip()
            rest = rest[beside.end():]
        name = re.search(r"\(\*(\w+)\)", text) or re.search(r"(\w+(?:, \w+)*)(?:\[[^\]]*\](?:, )?\w*)*(?: =.*)?$", text)
        members.append((text + separator, name.group(1), above))
        above = ""
    return members


def read_declaration(text, where):
    beside = re.search(r";\s*(/\*.*?\*/)$", text, re.DOTALL)
    note = one_line(beside.group(1)) if beside else ""
    code = text[:beside.start() + 1] if beside else text
    body = BODY.fullmatch(code)
    if body:
        kind, name = body.group(1) or body.group(3), body.group(2) or ""
        if (body.group(5) or "") != name:
            raise BadHeader(f"{where}: {name} has another name behind its members")
        head = f"typedef {kind} {name}" if name else kind
        return Declaration(kind, name, head, read_members(body.group(4), ";" if kind == "struct" else ","), note)
    code = squeeze(COMMENT.sub("", code))
    for kind, form in FORMS:
        match = form.fullmatch(code)
        if match:
            return Declaration(kind, match.group(1), code, note=note)
    raise BadHeader(f"{where}: docs/man/headers.py does not understand: {code[:100]}")


def read_macro(text, where):
    text = text.replace("\\\n", " ")
    comment = COMMENT.search(text)
    match = re.fullmatch(r"#define (\w+)(\([^)]*\))?(.*)", squeeze(COMMENT.sub("", text)))
    if not match:
        raise BadHeader(f"{where}: docs/man/headers.py does not understand: {text[:100]}")
    name, arguments, value = match.groups()
    if INTERNAL.match(name):
        return None
    note = one_line(comment.group()) if comment else ""
    return Declaration("macro" if arguments else "constant", name, f"#define {name}{arguments or value}", note=note)


def is_finished(text):
    code = COMMENT.sub("", text)
    if FROM_LIST.match(text):
        return True
    if "/*" in code or code.count("{") != code.count("}"):
        return False
    return code.rstrip().endswith("}" if code.startswith("static inline") else ";")


def pieces(text, path):
    """What C sees of a header, in order: (line number, blank line before, text)."""
    seen = []  # for each #if that is open: is C here? None: neither branch is for readers
    blank = False
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        condition = re.match(r"#(if|ifdef|ifndef|else|endif)\b\s*(.*)", line)
        if condition:
            word, what = condition.groups()
            if word == "endif":
                seen.pop()
            elif word == "else":
                seen[-1] = None if seen[-1] is None else not seen[-1]
            elif what in ("defined(__GNUC__)", "__clang__"):
                seen.append(None)
            elif what == "__cplusplus" or what.endswith("_H"):
                seen.append(word == "ifndef")
            else:
                raise BadHeader(f"{path}:{number}: docs/man/headers.py does not understand: {line}")
            continue
        if not all(seen) or re.match(r"#(include|undef)\b", line):
            continue
        if not line.strip():
            blank = True
            continue
        while not (line.rstrip().endswith("*/") if line.startswith("/*") else
                   not line.endswith("\\") if line.startswith("#") else is_finished(line)):
            following = next(lines, None)
            if following is None:
                raise BadHeader(f"{path}:{number}: has no end: {line[:60]}")
            line += "\n" + following[1]
        for piece in from_list(line) if FROM_LIST.match(line) else [line]:
            yield number, blank, piece
            blank = False


def read_header(path):
    """Returns the comment at the top, and the groups."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    every = list(pieces(text, path))
    if not every or not every[0][2].startswith("/*"):
        raise BadHeader(f"{path}:1: no comment at the top")
    overview = comment_lines(every[0][2])
    groups = []
    open_group = None
    own = None  # a comment inside of a group is about the next declaration only
    for i, (number, blank, text) in enumerate(every[1:], 1):
        where = f"{path}:{number}"
        if text.startswith("/*"):
            following = every[i + 1] if i + 1 < len(every) else None
            if following is None or following[1] or following[2].startswith("/*"):
                groups.append(Group(comment_lines(text)))
                open_group = None
            elif blank or open_group is None:
                open_group = Group(comment_lines(text))
                groups.append(open_group)
            else:
                own = comment_lines(text)
            continue
        if text.startswith("static inline"):
            continue  # a helper of a macro
        declaration = read_macro(text, where) if text.startswith("#") else read_declaration(text, where)
        if declaration:
            declaration.comment = own
            if open_group is None or (blank and open_group.is_complete()):
                open_group = Group([])
                groups.append(open_group)
            open_group.declarations.append(declaration)
            if declaration.kind not in ("opaque", "constant") and not (open_group.comment or own):
                raise BadHeader(f"{where}: no comment above {declaration.name}")
        own = None
    return overview, groups
