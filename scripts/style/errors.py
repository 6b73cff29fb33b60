"""Finds functions that do not leave on error as CONTRIBUTING.md says (Style). scripts/check-style runs it.

A rung is an if or a loop that runs only while an error variable is SHOAL_OK: if (err == SHOAL_OK && more) ...
A function keeps its error and climbs rungs only if it has something to undo at the end. So these are wrong:

  - nothing but a plain return follows the last rung: nothing is undone, so each step should return at once;
  - a function has more than LIMIT rungs: the steps belong into a function of their own, which returns at once;
  - a conditional expression skips a step after a failure: err == SHOAL_OK ? step() : err.
"""
import re

FOLDERS = ("src/", "cli/", "python/")
EXEMPT = ("src/kernels/cuda/conv2d.cu", "src/kernels/cuda/fedavg_cnn", "src/kernels/cuda/optim.cu")
LIMIT = 5

BRANCH = re.compile(r"\b(if|while|for)\s*\(")
TEST = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*([!=])=\s*SHOAL_OK\b")
CALL = re.compile(r"\w\s*\(")
TRANSPARENT = re.compile(r"\b(extern|namespace(\s+\w+)?)$")  # functions are inside: extern "C" {, namespace {
OPEN, CLOSE = "([{", ")]}"


def match_bracket(text, start):
    """The position after the bracket that closes the one at start."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in OPEN:
            depth += 1
        elif text[at] in CLOSE:
            depth -= 1
            if depth == 0:
                return at + 1
    return len(text)


def functions(text):
    """(begin, end) of each function's parameters and body, those that a macro defines too. text is code only."""
    at = text.find("{")
    while at >= 0:
        before = text[:at].rstrip()
        if TRANSPARENT.search(before):
            end = at + 1
        else:
            end = match_bracket(text, at)
            if before.endswith(")"):
                yield text.rfind("(", 0, at), end
        at = text.find("{", end)


def split(text, mark):
    """The parts of text between marks that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in OPEN) - (char in CLOSE)
        if depth == 0 and text.startswith(mark, at):
            parts.append(text[begin:at])
            begin = at + len(mark)
    return parts + [text[begin:]]


def is_local(function, name):
    return re.search(rf"\bshoal_err\b[^;{{}}]*\b{name}\b", function) is not None


def is_ok(function, condition):
    """Returns whether the condition demands that a variable of the function is SHOAL_OK."""
    found = (TEST.fullmatch(part.strip()) for part in split(condition, "&&"))
    return any(match and match.group(2) == "=" and is_local(function, match.group(1)) for match in found)


def end_of_statement(text, at):
    """The position after the statement at or after at, with its else."""
    at += len(text[at:]) - len(text[at:].lstrip())
    branch = BRANCH.match(text, at)
    if text[at] == "{":
        return match_bracket(text, at)
    if not branch:
        return at + len(split(text[at:], ";")[0]) + 1
    at = end_of_statement(text, match_bracket(text, branch.end() - 1))
    other = re.compile(r"\s*else\b").match(text, at)
    return end_of_statement(text, other.end()) if other else at


def rungs(body):
    """(begin, end, has_else) of each rung."""
    for branch in BRANCH.finditer(body):
        after = match_bracket(body, branch.end() - 1)
        condition = body[branch.end():after - 1]
        if branch.group(1) == "for":
            condition = (split(condition, ";") + [""])[1]
        if is_ok(body, condition):
            end = end_of_statement(body, branch.start())
            yield branch.start(), end, end != end_of_statement(body, after)


def skipped_steps(body):
    """The position of each conditional expression that skips a call, or another such expression, after a failure."""
    for test in TEST.finditer(body):
        rest = re.compile(r"[^?;,{}]*").match(body, test.end()).group()
        question = test.end() + len(rest)
        if not is_local(body, test.group(1)) or not body.startswith("?", question) or rest.count("(") != rest.count(")"):
            continue
        end, depth = question, 0
        while end < len(body) and depth >= 0 and not (depth == 0 and body[end] in ",;"):
            depth += (body[end] in OPEN) - (body[end] in CLOSE)
            end += 1
        values = [value.strip() for value in split(body[question + 1:end - (depth < 0)].rstrip(";,"), ":")]
        good, bad = (values[:1], values[1:]) if test.group(2) == "=" else (values[1:], values[:1])
        if any(value in (test.group(1), "NULL") for value in bad) and any(CALL.search(value) for value in good):
            yield test.start()


def findings(name, text):
    """(line, text) of each finding in a file, whose text is code only: comments and strings are blank."""
    if not name.startswith(FOLDERS) or name.startswith(EXEMPT):
        return
    text = text.replace("\\\n", " \n")

    def line(position):
        return text.count("\n", 0, position) + 1

    for begin, end in functions(text):
        body = text[begin:end]
        found = list(rungs(body))
        if len(found) > LIMIT:
            yield line(begin + found[LIMIT][0]), f"{len(found)} steps behind an error test: move them into a function that returns at once"
        if found:
            first, last, has_else = max(found, key=lambda rung: rung[1])
            rest = body[last:].replace("}", "").strip()
            if not has_else and re.fullmatch(r"(return( \w+| \w+ == SHOAL_OK \?[^;()]*)?;)?", rest):
                yield line(begin + first), "nothing is undone after this step: return at once (SH_TRY)"
        for at in skipped_steps(body):
            yield line(begin + at), "a step in a conditional expression: return at once (SH_TRY), or write an if"


# As in scripts/check-style: path: (text, the lines that have to be found).
PLANTS = {
    "src/base/planted.c": (
        "shoal_err f(void)\n{\n    shoal_err err = a();\n    if (err == SHOAL_OK) {\n        err = b();\n    }\n    return err;\n}\n"
        "shoal_err g(void)\n{\n    shoal_err err = a();\n    for (int i = 0; err == SHOAL_OK && i < 3; i++) {\n        err = b(i);\n    }\n    return err;\n}\n"
        "void *h(void)\n{\n    shoal_err err = a();\n    unlock();\n    if (x && err == SHOAL_OK)\n        y = b();\n    return err == SHOAL_OK ? y : NULL;\n}\n",
        [4, 12, 21]),
    "src/base/planted_many.c": (
        "shoal_err f(void)\n{\n    shoal_err err = a();\n" + "    if (err == SHOAL_OK) {\n        err = b();\n    }\n" * 6 + "    undo();\n    return err;\n}\n", [19]),
    "cli/planted.c": (
        "shoal_err f(void)\n{\n    shoal_err err = a();\n    err = err == SHOAL_OK ? b(1, 2) : err;\n    err = err != SHOAL_OK ? err : c();\n"
        "    void *x = err == SHOAL_OK && y ? d() : NULL;\n    undo(x);\n    return err == SHOAL_OK\n               ? e()\n               : err;\n}\n",
        [4, 5, 6, 8]),
    "src/base/planted.h": (
        "extern \"C\" {\n#define EACH(name) \\\n    shoal_err name(void) \\\n    { \\\n        shoal_err err = a(); \\\n        return err == SHOAL_OK ? b(name) : err; \\\n    }\n}\n",
        [6]),
    "src/base/planted.cu": (
        "namespace\n{\nshoal_err f()\n{\n    shoal_err err = a<1>();\n    return err != SHOAL_OK ? err : sh_cuda_launched();\n}\n} // namespace\n", [6]),
    "python/planted.cpp": (
        "namespace glue {\nshoal_err f()\n{\n    shoal_err err = a();\n    if (err == SHOAL_OK)\n        err = b();\n    return err;\n}\n}\n", [5]),
    "src/base/allowed.c": (
        "shoal_err f(void)\n{\n    SH_TRY(a());\n    shoal_err err = b();\n" + "    if (err == SHOAL_OK) {\n        err = c();\n    }\n" * 5 + "    undo();\n    return err;\n}\n"
        "void *g(void)\n{\n    if (a() == SHOAL_OK) {\n        b();\n    }\n    return err == SHOAL_OK ? x : NULL;\n}\n"
        "PyObject *h(void)\n{\n    shoal_err err = a();\n    return err == SHOAL_OK ? to_python(x) : raise(err);\n}\n"
        "shoal_err i(void)\n{\n    if (err == SHOAL_OK) {\n        keep();\n    } else {\n        undo();\n    }\n    return err;\n}\n"
        "shoal_err j(void)\n{\n    if (err == SHOAL_OK || err == SHOAL_END) {\n        a();\n    }\n    return err;\n}\n"
        "shoal_err k(void)\n{\n    shoal_err err = a();\n    if (err == SHOAL_OK) {\n        b();\n    }\n    return err == SHOAL_ECLOSED ? SHOAL_OK : err;\n}\n"
        "void l(shoal_err err)\n{\n    char *text = err != SHOAL_OK ? strdup(x) : NULL;\n    keep(text);\n}\n",
        []),
}
