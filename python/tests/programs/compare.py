#!/usr/bin/env python3
"""Runs a program with torch.multiprocessing and with shoal.multiprocessing, and compares what they print.

    compare.py PROGRAM METHOD ... [-- ARGUMENT ...]

The program differs in one line, `import torch.multiprocessing as mp`. It gets the start method and the arguments, and prints a JSON object in its
last line, which depends on no method: with torch it runs by the first one only. Ends with 77 if the program does: it cannot run here, and says why.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LINE = 'import torch.multiprocessing as mp\n'
LIMIT_S = 100  # the slowest takes 15 on an idle machine


def run(program, module, method, arguments):
    source = (HERE / f'{program}.py').read_text()
    assert source.count(LINE) == 1 and source.count('multiprocessing as') == 1, f'{program}.py must have the line {LINE!r} once'
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f'{program}.py'
        path.write_text(source.replace(LINE, f'import {module} as mp\n'))
        out = pathlib.Path(folder) / 'out'  # a file, because processes that outlive the program would keep a pipe open
        with out.open('w') as stdout:
            process = subprocess.Popen([sys.executable, path, method, *arguments], stdout=stdout, start_new_session=True,
                                       env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'})
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = 'hangs'
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what is left of it
            except ProcessLookupError:
                pass
        text = out.read_text()
    if status == 77:
        print(text, end='')
        sys.exit(77)
    lines = text.splitlines()
    return json.loads(lines[-1]) if status == 0 and lines else {'exit status': status, 'output': text}


def main():
    words = sys.argv[1:]
    arguments = words[words.index('--') + 1:] if '--' in words else []
    program, *methods = words[:words.index('--')] if '--' in words else words
    wrong, wanted = 0, run(program, 'torch.multiprocessing', methods[0], arguments)
    for method in methods:
        got = run(program, 'shoal.multiprocessing', method, arguments)
        same = wanted == got and 'exit status' not in got
        wrong += not same
        print(f'{program} {method}: {"the same" if same else "DIFFERENT"}')
        for key in {**wanted, **got} if not same else ():
            if wanted.get(key) != got.get(key) or key in ('exit status', 'output'):
                print(f'    {key}: torch {wanted.get(key)!r}, shoal {got.get(key)!r}')
    sys.exit(wrong != 0)


main()
