#!/usr/bin/env python3
"""Writes the table of the rules test: one row for each function that include/shoal declares.

    generate.py SOURCE_ROOT OUTPUT.c

A row has the function's name, what it returns, its pointer parameters with their makers (arguments.c), a thunk that calls it, and what it
has to answer in each state. Types say most of it; table.py says the rest. A name in src/shoal.map without a row fails the build; so does a
maker that does not exist, and an entry of table.py for a function or a parameter that does not exist.
"""
import pathlib
import re
import sys

import table

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'docs' / 'man'))
import headers

SHARED = ['barrier', 'block', 'condition', 'delivery', 'event', 'lock', 'message', 'pipe', 'queue', 'rlock', 'semaphore', 'waitable']
PROCESS = ['future', 'iterator', 'pool', 'process']  # belong to the process that made them
PRIVATE = ['dataset', 'dlpack', 'env', 'loader', 'module', 'optimizer', 'sparse', 'tensor', 'tensors', 'value']
FUNCTIONS = {'shoal_target': 'target', 'shoal_task': 'task', 'shoal_transform': 'transform', 'shoal_grad_hook': 'hook'}
SPECIAL = {'shoal_process_options': 'process_options',
           'shoal_pool_options': 'pool_options', 'shoal_named': 'named'}
NUMBERS = {'timeout': 'SHOAL_NOW', 'capacity': '16'}


def declarations(root):
    for path in sorted(set((root / 'include/shoal').glob('*.h')) - {root / 'include/shoal/compat.h'}):
        text = path.read_text()
        text = headers.FROM_LIST.sub(lambda match: ' '.join(headers.from_list(match.group())), text)
        text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
        text = re.sub(r'^\s*#.*?(?<!\\)$', ' ', re.sub(r'\\\n', ' ', text), flags=re.M)
        text = re.sub(r'__attribute__\s*\(\(.*?\)\)', ' ', text)
        text = text.replace('SHOAL_MUST_USE', ' ')
        text = re.sub(r'extern "C" \{', ' ', text)
        text = re.sub(r'\b(struct|enum|union)\s+\w*\s*\{', '{', text)
        while re.search(r'\{[^{}]*\}', text):
            text = re.sub(r'\{[^{}]*\}', ' ', text)
        text = ' '.join(text.split())
        for statement in text.split(';'):
            m = re.match(r'^\s*\}?\s*((?:const )?\w+(?: const)?[ *]+(?:const \*)?)(shoal_\w+)\((.*)\)\s*$', statement)
            if m and not statement.strip().startswith(('typedef', 'static')):
                yield m.group(2), m.group(1).strip(), m.group(3)


def split(parameters):
    depth, parts, now = 0, [], ''
    for c in parameters:
        depth += c == '('
        depth -= c == ')'
        if c == ',' and depth == 0:
            parts.append(now.strip())
            now = ''
        else:
            now += c
    return parts + [now.strip()] if now.strip() and now.strip() != 'void' else parts


def parameter(text):
    m = re.match(r'^(.*)\(\*(\w+)\)\((.*)\)$', text)
    if m:
        return f'{m.group(1)}(*)({m.group(3)})', m.group(2)
    m = re.match(r'^(.*?)(\w+)(\[\w*\])?$', text)
    kind = m.group(1).strip() + (' *' if m.group(3) else '')
    return ' '.join(kind.replace('*', ' * ').split()), m.group(2)


def is_pointer(kind):
    return '*' in kind or kind in FUNCTIONS


def is_output(kind, label):
    return label.startswith('out') or label in ('buffer', 'results') or (label == 'folder' and 'const' not in kind)


def handle(kind):
    """'queue' for a parameter that is a handle of one; None for anything else."""
    m = re.match(r'^(?:const )?shoal_(\w+) \*$', kind)
    return m.group(1) if m and m.group(1) in SHARED + PROCESS + PRIVATE else None


def maker(name, kind, label):
    """The name of what makes the argument."""
    if label in table.ARGUMENTS.get(name, {}):
        return table.ARGUMENTS[name][label]
    if kind in FUNCTIONS:
        return FUNCTIONS[kind]
    if '(*)' in kind:
        return f'{label}_function'
    m = re.match(r'^shoal_(value_as|arg)_(\w+)$', name)
    if m and kind == 'const shoal_value *':
        return f'{"value" if m.group(1) == "value_as" else "args"}_{m.group(2)}'
    if handle(kind) == 'value':
        return 'value_int'
    if handle(kind):
        return handle(kind)
    if kind == 'const char *':
        return 'text_x'
    m = re.match(r'^(?:const )?(shoal_\w+) \*$', kind)
    return SPECIAL.get(m.group(1), 'zeros') if m else 'zeros'


def takes(name, kind, label):
    cleans_up = re.search(r'_(destroy|release)$', name) and name != 'shoal_scope_release'
    if kind == 'shoal_value *' or cleans_up or label in table.TAKES_ALWAYS.get(name, []):
        return 'RULES_ALWAYS'
    return 'RULES_ON_SUCCESS' if label in table.TAKES_ON_SUCCESS.get(name, []) else 'RULES_NEVER'


def dropped(name, result, how):
    """The type of a result that is the caller's, or None."""
    m = re.match(r'^shoal_(\w+) \*$', result)
    if how != 'RULES_POINTER' or not m or m.group(1) not in SHARED + PROCESS + PRIVATE or re.search(table.BORROWED, name):
        return None
    if m.group(1) == 'tensor' and name not in table.OWN_TENSORS:
        return None
    return m.group(1)


def dropped_output(name, kind):
    m = re.match(r'^shoal_(\w+) \* \*$', kind)
    if name in table.BORROWED_OUTPUTS:
        return None
    return m.group(1) if m else 'delivery' if kind == 'shoal_delivery *' else None


def answers(name, how, handles):
    """What the row has to answer: when all is well, after leaving, after the end began, in a child of a plain fork."""
    cleans_up = re.search(r'_(destroy|release|close|leave|terminate)$', name) and how == 'RULES_VOID'
    works, reason = table.WORKS.get(name, ('SHOAL_OK', ''))
    shared = any(h in SHARED + PROCESS for h in handles)
    own = any(h in PROCESS for h in handles)
    gone = 'SHOAL_ESTATE' if shared and not cleans_up else 'RULES_WORKS'
    by_type = {
        'left': gone,
        'ended': 'SHOAL_ESTATE' if name in table.NEEDS_WORLD else gone,
        'forked': 'RULES_WORKS' if cleans_up else 'SHOAL_EFORK' if 'pipe' in handles or own else 'RULES_WORKS',
    }
    out = {'works': 'RULES_NULL' if works == 'NULL' else works}
    for state, answer in by_type.items():
        answer = table.DESIGN[state].get(name, (answer, ''))[0]
        out[state] = 'RULES_WORKS' if answer == 'WORKS' else answer
    return out


def check_table(rows):
    """Every name and parameter in table.py exists."""
    wrong = []
    for facts in (table.NULLABLE, table.ARGUMENTS, table.NULL_GIVES_NULL, table.TAKES_ALWAYS, table.TAKES_ON_SUCCESS):
        for name, labels in facts.items():
            wrong += [f'{name}({label})' for label in labels if name not in rows or label not in [p[1] for p in rows[name][1]]]
    for names in (table.SKIP, table.HEAVY, table.STARTS, table.OWN_TENSORS, table.WORKS, table.NEEDS_WORLD, table.WRITES_AND_FAILS, *table.DESIGN.values()):
        wrong += [n for n in names if n not in rows]
    if wrong:
        sys.exit(f'table.py names what does not exist: {", ".join(wrong)}')


def write_row(name, result, parameters, makers, drops):
    how = ('RULES_ERR' if result == 'shoal_err' else 'RULES_VOID' if result == 'void' else
           'RULES_POINTER' if '*' in result else 'RULES_PLAIN')
    arguments, entries = [], []
    for kind, label in parameters:
        if not is_pointer(kind):
            special = table.ARGUMENTS.get(name, {}).get(label) or NUMBERS.get(label)
            arguments.append(special or ('0' if kind == 'bool' else f'({kind})0' if kind.startswith('shoal_') else '1'))
            continue
        arguments.append(f'({kind})a[{len(entries)}]')
        nullable = ('RULES_ALLOWED' if label in table.NULLABLE.get(name, []) else
                    'RULES_GIVES_NULL' if label in table.NULL_GIVES_NULL.get(name, []) else 'RULES_REFUSED')
        if is_output(kind, label):
            drop = dropped_output(name, kind)
            drops.add(drop)
            entries.append(f'{{.name = "{label}", .null = {nullable}, .drop_out = {f"rules_drop_{drop}" if drop else "NULL"}}}')
        else:
            makers.add(maker(name, kind, label))
            made = str(handle(kind) is not None and label != 'args').lower()
            entries.append(f'{{.name = "{label}", .null = {nullable}, .made = {made}, .takes = {takes(name, kind, label)}, '
                           f'.maker = &rules_{maker(name, kind, label)}}}')
    call = f'({name})({", ".join(arguments)})'
    body = {'RULES_ERR': f'r->err = {call};', 'RULES_VOID': f'{call};', 'RULES_POINTER': f'r->pointer = {call};',
            'RULES_PLAIN': f'r->nonzero = {call} != 0;'}[how]
    if result == 'shoal_train_options':
        body = f'(void){call};'
    thunk = f'static void call_{name}(void **a, rules_result *r)\n{{\n    (void)a;\n    (void)r;\n    {body}\n}}\n'
    drop = dropped(name, result, how)
    drops.add(drop)
    a = answers(name, how, [handle(k) for k, l in parameters if handle(k) and not is_output(k, l)])
    expression = result.startswith('shoal_') and how == 'RULES_POINTER'
    row = (f'    {{.name = "{name}", .returns = {how}, .expression = {str(expression).lower()}, .call = call_{name},\n'
           f'     .writes_and_fails = {str(name in table.WRITES_AND_FAILS).lower()},\n'
           f'     .heavy = {str(name in table.HEAVY).lower()}, .starts = {str(name in table.STARTS).lower()},\n'
           f'     .drop_result = {f"rules_drop_{drop}" if drop else "NULL"},\n'
           f'     .works = {a["works"]}, .answer = {{{a["left"]}, {a["ended"]}, {a["forked"]}}},\n'
           f'     .pointers = {len(entries)}, .pointer = {{{", ".join(entries) or "{0}"}}}}},')
    return thunk, row


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    names = re.findall(r'^\s+(shoal_\w+);', (root / 'src' / 'shoal.map').read_text(), re.M)
    rows = {}
    for name, result, parameters in declarations(root):
        rows.setdefault(name, (result, [parameter(p) for p in split(parameters) if p != '...']))
    missing = [n for n in names if n not in rows and n not in table.SKIP]
    if missing:
        sys.exit(f'generate.py: no declaration found of {", ".join(missing)}')
    rows.setdefault('shoal_fail', ('shoal_err', []))
    check_table(rows)
    makers, drops, thunks, lines = set(), set(), [], []
    for name in names:
        if name in table.SKIP:
            lines.append(f'    {{.name = "{name}", .skipped = "{table.SKIP[name]}"}},')
        else:
            thunk, row = write_row(name, *rows[name], makers, drops)
            thunks.append(thunk)
            lines.append(row)
    out.write_text('\n'.join(
        ['/* Written by generate.py. */', '#include "rules.h"', '',
         '#pragma GCC diagnostic ignored "-Wpedantic" /* functions travel as void * */',
         '#pragma GCC diagnostic ignored "-Wcast-qual"', ''] +
        [f'extern const rules_maker rules_{m};' for m in sorted(makers)] +
        [f'void rules_drop_{d}(void *thing);' for d in sorted(d for d in drops if d)] + [''] + thunks +
        ['const rules_row rules_table[] = {'] + lines +
        ['};', '', 'const size_t rules_count = sizeof rules_table / sizeof rules_table[0];', '']))


main()
