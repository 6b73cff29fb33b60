#!/usr/bin/env python3
"""Makes the manual pages: those of section 3 from the public headers, and shoal(1), which is written by hand.

usage: docs/man/pages.py SCDOC FOLDER    writes FOLDER/man1 and FOLDER/man3, with the program scdoc
       docs/man/pages.py --names         prints each name that has a page

Two kinds of page in section 3:
  - A topic, such as shoal_queue(3): docs/man/shoal_queue.3.scd has what is written by hand, and this program adds the declarations
    and the comments of the topic's headers.
  - One page for each function, type and macro with arguments: its declaration, the comment above it, and where to read on.
A constant is a link to the page that explains it.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # no folder of compiled Python beside the sources
import headers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "..", "include", "shoal")
WIDTH = 67  # of code: man indents it by 11 columns, and a terminal has 80

# The headers of each topic. When two headers declare a name, the first one explains it.
TOPICS = {
    "shoal": ["shoal"],
    "shoal_world": ["world"],
    "shoal_error": ["error", "log", "version"],
    "shoal_time": ["time"],
    "shoal_queue": ["queue"],
    "shoal_sync": ["sync"],
    "shoal_process": ["process"],
    "shoal_pool": ["pool"],
    "shoal_binding": ["binding", "interrupt", "message"],
    "shoal_tensor": ["tensor", "dtype", "device", "dlpack"],
    "shoal_ops": ["ops", "reduction"],
    "shoal_autograd": ["autograd"],
    "shoal_nn": ["nn", "optim"],
    "shoal_data": ["data", "file"],
    "shoal_share": ["share"],
    "shoal_env": ["env"],
    "shoal_train": ["train"],
    "shoal_block": ["block", "handle"],
    "shoal_value": ["value"],
}
NO_PAGE = {"cxx", "compat"}  # what only C++ sees, and old names


# ---- text ----

def escape(text):
    """A text in which scdoc sees no marks. Some letters mean something to it at the beginning of a line only."""
    return re.sub(r"([\\*_]|^[#\-\[\]|;.`])", r"\\\1", text)


def inline(text):
    """Names of functions and types are bold, what is in backticks is underlined."""
    plain, *rest = re.split(r"(`[^`]+`|\bshoal_\w+)", text)
    out = escape(plain)
    for name, plain in zip(rest[::2], rest[1::2]):
        mark = "_" if name.startswith("`") else "*"
        out += mark + escape(name.strip("`")) + mark + escape("x" + plain)[1:]  # not the beginning of a line
    return out


def first_line(name):
    return f'{name}(3) "Shoal" "Shoal"'  # short: long names leave no room for "Library Functions Manual" between them


def literal(lines):
    return ["```", *(line.replace("\\", "\\\\") for line in lines), "```", ""]


def blocks(lines):
    """The parts of a comment: [kind, term, lines]. Four spaces or more are code, a word and two spaces are a term and its text, "1. " is a
    step of a list; all else is text."""
    found = []
    goes_on = False  # the next line belongs to the same text
    for i, line in enumerate(lines):
        term = re.match(r" {1,3}(\w+(?: \w+)*) {2,}(.*)", line)
        if not line:
            goes_on = False
        elif line.startswith("    ") and not goes_on:
            if found and found[-1][0] == "code":
                found[-1][2] += ([""] if not lines[i - 1] else []) + [line[4:]]
            else:
                found.append(["code", None, [line[4:]]])
        elif term:
            found.append(["term", term.group(1), [term.group(2)]])
            goes_on = True
        elif goes_on and not re.match(r"\d+\. ", line):
            found[-1][2].append(line.strip())
        else:
            found.append(["text", None, [line.strip()]])
            goes_on = True
    return found


def markup(lines):
    """A comment for scdoc."""
    out = []
    for kind, term, text in blocks(lines):
        if kind == "code":
            out += literal(text)
        elif kind == "term":
            out += [f"*{escape(term)}*", "\t" + inline(" ".join(text)), ""]
        else:
            out += [inline(" ".join(text)), ""]
    return out


def summary(declaration, group):
    """One line for the section NAME: the comment's first sentence, as far as its colon when three words stand before that."""
    text = re.sub(r"\s+", " ", " ".join(declaration.comment or group.comment)).replace("`", "")
    sentence = re.split(r"(?<=[.;]) ", re.sub(r" \([^()]*\)", "", text))[0].rstrip(".;:")
    for verb, word in (("retain", "Add"), ("release", "Drop")):  # their comment is about both
        if declaration.name.endswith("_" + verb):
            sentence = re.sub("^Add or drop ", word + " ", sentence)
    short = re.split(r": |, such as ", sentence)[0]
    text = short if short.count(" ") >= 2 else sentence
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


# ---- declarations ----

def split_arguments(text):
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def wrap(text, indent=""):
    """A declaration in lines of at most WIDTH: arguments are aligned behind the parenthesis, or indented when that leaves no room."""
    if len(indent + text) <= WIDTH or "(" not in text:
        return [indent + text]
    opening, closing = re.search(r"(?<=[\w)])\(", text).start(), text.rindex(")")
    head, tail = indent + text[:opening + 1], text[closing:]
    *arguments, last = split_arguments(text[opening + 1:closing])
    pieces = [argument + "," for argument in arguments] + [last + tail]
    column = len(head)
    if column + max(map(len, pieces)) > WIDTH:
        column = len(indent) + 8
    lines = [head]
    for piece in pieces:
        longer = lines[-1] + ("" if lines[-1] == head else " ") + piece
        if len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(" " * column + piece)
    return lines


def code_of(declaration):
    if declaration.kind not in ("struct", "enum"):
        return wrap(declaration.text)
    lines = [declaration.text + " {"]
    for text, _, _ in declaration.members:
        nested = re.fullmatch(r"(.*\{) (.*;) (\} \w+;)", text)
        if nested:
            inner = ["        " + part for part in re.findall(r"[^; ][^;]*;", nested.group(2))]
            lines += ["    " + nested.group(1), *inner, "    " + nested.group(3)]
        else:
            lines += wrap(text, "    ")
    return lines + ["}" + (f" {declaration.name}" if declaration.name else "") + ";"]


def synopsis(header_names, groups):
    lines = [f"#include <shoal/{name}.h>" for name in header_names]
    before = None
    for group in groups:
        for declaration in group.declarations:
            big = declaration.kind in ("struct", "enum")
            if declaration is group.declarations[0] or big or before:
                lines.append("")
            lines += code_of(declaration)
            before = big
    return ["# SYNOPSIS", "", *literal(lines)]


def members_of(declaration):
    """What the comments say about the members."""
    lines = []
    for _, name, comment in declaration.members:
        if comment:
            lines += [f"*{escape(name)}*", "\t" + inline(comment), ""]
    return lines


# ---- pages ----

class Manual:
    def __init__(self):
        known = {name for names in TOPICS.values() for name in names}
        there = {name[:-2] for name in os.listdir(INCLUDE) if name.endswith(".h")} - NO_PAGE
        if known != there:
            raise headers.BadHeader(f"TOPICS of docs/man/pages.py and include/shoal differ in: {', '.join(sorted(known ^ there))}")
        self.headers = {name: headers.read_header(os.path.join(INCLUDE, name + ".h")) for name in known}
        self.hand = {topic: self.read_topic(topic) for topic in TOPICS}
        self.pages = {}  # name: (topic, header, group, declaration)
        self.links = {}  # name: page
        for topic, names in TOPICS.items():
            for name in names:
                for group in self.headers[name][1]:
                    self.take(topic, name, group)
        for topic, sections in self.hand.items():
            for name in re.findall(r"shoal_\w+", sections["NAME"].split(" - ")[0]):
                self.links[name] = topic
        # No link where there is a page. man does not distinguish capitals: with a link SHOAL_REDUCTION_SUM, shoal_sum would be two pages.
        pages = {name.lower() for name in [*TOPICS, *self.pages]}
        self.links = {name: page for name, page in self.links.items() if name.lower() not in pages}

    def take(self, topic, header, group):
        """A page for each declaration. A constant is a link to the first page of its group."""
        page = topic
        for declaration in reversed(group.declarations):
            if declaration.kind not in ("opaque", "constant") and declaration.name:
                page = declaration.name
        for declaration in group.declarations:
            if declaration.kind == "opaque":
                self.links.setdefault(declaration.name, topic)
            elif declaration.kind == "constant":
                self.links.setdefault(declaration.name, page)
            else:
                if declaration.name:
                    self.pages.setdefault(declaration.name, (topic, header, group, declaration))
                if declaration.kind == "enum":
                    for _, name, _ in declaration.members:
                        self.links.setdefault(name, declaration.name or page)

    @staticmethod
    def read_topic(topic):
        """The sections that are written by hand."""
        sections = {}
        section = ""
        code = False
        with open(os.path.join(HERE, topic + ".3.scd"), encoding="utf-8") as file:
            for line in file:
                code ^= line.startswith("```")
                if line.startswith("# ") and not code:
                    section = line[2:].strip()
                    sections[section] = ""
                elif section:
                    sections[section] += line
        return sections

    def topic_page(self, topic):
        names = TOPICS[topic]
        hand = dict(self.hand[topic])
        lines = [first_line(topic), "", "# NAME", hand.pop("NAME")]
        groups = [group for name in names for group in self.headers[name][1]]
        lines += synopsis(names, [group for group in groups if group.declarations])
        lines += ["# DESCRIPTION", ""]
        for name in names:
            lines += [f"## <shoal/{name}.h>", ""] if len(names) > 1 else []
            lines += markup(self.headers[name][0])
        lines.append(hand.pop("DESCRIPTION", ""))
        lines += ["# FUNCTIONS AND TYPES", ""] if groups else []
        for group in groups:
            lines += self.group_text(group)
        for heading, text in hand.items():
            lines += [f"# {heading}", text]
        return "\n".join(lines)

    @staticmethod
    def group_text(group):
        """A comment of the form "---- title ----" begins a section. A text between groups begins with its title."""
        comment = group.comment
        lines = []
        title = re.match(r"---- (.*) ----$", comment[0]) if comment else None
        if title:
            lines += [f"# {title.group(1).upper()}", ""]
            comment = comment[1:]
        if not comment:
            return []  # constants whose names say all
        named = [d for d in group.declarations if d.kind != "opaque"]
        between = re.match(r"([\w ]{2,30})[.:] ", comment[0]) if comment and not named else None
        if named:
            names = ", ".join((escape(d.name) or "enum") + ("()" if d.kind in ("function", "macro") else "") for d in named)
            lines += [f"## {names}", ""]
        elif between:
            lines += [f"## {escape(between.group(1))}", ""]
        lines += markup(comment)
        for declaration in named:
            if declaration.note:
                lines += [f"*{escape(declaration.name)}*: {inline(declaration.note)}", ""]
            if declaration.comment:
                lines += [f"*{escape(declaration.name)}*", "", *markup(declaration.comment)]
            lines += members_of(declaration)
        return lines

    def name_page(self, name):
        topic, header, group, declaration = self.pages[name]
        used = set(re.findall(r"\bshoal_\w+", declaration.text)) - {name}
        beside = [self.pages[word][3] for word in sorted(used)
                  if word in self.pages and self.pages[word][1] == header and self.pages[word][3].kind in ("struct", "callback")]
        beside += [other for other in group.declarations if other.kind == "constant"]
        used -= {"shoal_err"} if "shoal_err" not in " ".join(group.comment) else set()
        lines = [first_line(name), "", "# NAME", "", f"{escape(name)} - {escape(summary(declaration, group))}", ""]
        lines += synopsis([header], [headers.Group([], [*beside, declaration])])
        lines += ["# DESCRIPTION", "", *markup(group.comment)]
        lines += markup(declaration.comment or [])
        if declaration.note:
            lines += [f"*{escape(name)}*: {inline(declaration.note)}", ""]
        for other in [*beside, declaration]:
            lines += members_of(other)
        lines += [f"*{escape(topic)}*(3) has an overview and an example.", ""]
        text = " ".join([*group.comment, *(declaration.comment or []), *(member for member, _, _ in declaration.members)])
        siblings = {d.name for d in group.declarations if d.kind in ("function", "macro", "callback")}
        mentioned = siblings | used | set(re.findall(r"\bshoal_\w+", text))
        see = sorted(word for word in mentioned if word in self.pages and word != name)
        see = [topic] + [word for word in see if word != topic]
        lines += ["# SEE ALSO", "", ", ".join(f"*{escape(word)}*(3)" for word in see), ""]
        return "\n".join(lines)

    def write(self, scdoc, folder):
        def write_page(job):
            name, text = job
            run = subprocess.run([scdoc], input=text.encode(), capture_output=True)
            if run.returncode:
                raise headers.BadHeader(f"{name}: {run.stderr.decode().strip()}")
            with open(os.path.join(folder, name), "wb") as file:
                file.write(re.sub(rb"^(\.TH .*)$", rb"\1\n.nh", run.stdout, count=1, flags=re.MULTILINE))  # names are not hyphenated

        for section in ("man1", "man3"):
            shutil.rmtree(os.path.join(folder, section), ignore_errors=True)
            os.makedirs(os.path.join(folder, section))
        with open(os.path.join(HERE, "shoal.1.scd"), encoding="utf-8") as file:
            jobs = [("man1/shoal.1", file.read())]
        jobs += [(f"man3/{name}.3", self.topic_page(name)) for name in TOPICS]
        jobs += [(f"man3/{name}.3", self.name_page(name)) for name in self.pages]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write_page, jobs))
        for name, page in self.links.items():
            with open(os.path.join(folder, f"man3/{name}.3"), "w", encoding="utf-8") as file:
                file.write(f".so man3/{page}.3\n")


def main():
    try:
        manual = Manual()
        if sys.argv[1:] == ["--names"]:
            print("\n".join([*TOPICS, *manual.pages, *manual.links]))
        elif len(sys.argv) == 3:
            manual.write(*sys.argv[1:])
        else:
            sys.exit(__doc__)
    except headers.BadHeader as error:
        sys.exit(f"docs/man/pages.py: {error}")


if __name__ == "__main__":
    main()
