#!/usr/bin/env python3
"""Writes CUDA sources as C++ that tests/harness/cuda_host/cuda_runtime.h understands: sources.py IN OUT

kernel<<<grid, block, ...>>>(arguments)   becomes   sh_host_launch({grid, block, ...}, [=](const auto &...a) { kernel(a...); }, arguments)
extern __shared__ T name[];               becomes   T *const name = (T *)sh_fiber_shared();

Lines keep their numbers."""

import re
import sys


def start_of_call(text, end):
    """Where the expression begins that ends before text[end]: a name, perhaps with template arguments."""
    at = end
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(text[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def end_of_parentheses(text, at):
    """Where the parenthesis that opens at text[at] has closed."""
    depth = 0
    while True:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at


def rewrite(text):
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];",
        r"\1 *const \2 = (\1 *)sh_fiber_shared();",
        text,
    )
    while (opens := text.find("<<<")) >= 0:
        closes = text.index(">>>", opens)
        start = start_of_call(text, opens)
        arguments = closes + len(">>>")
        end = end_of_parentheses(text, arguments)
        kernel = f"[=](const auto &...a) {{ {text[start:opens]}(a...); }}"
        call = f"sh_host_launch({{{text[opens + 3:closes]}}}, {kernel}, {text[arguments + 1:end]}"
        text = text[:start] + call + text[end:]
    return text


if __name__ == "__main__":
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        written = rewrite(file.read())
    with open(out, "w", encoding="utf-8") as file:
        file.write(f'#line 1 "{source}"\n{written}')
