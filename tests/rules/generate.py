#!/usr/bin/env python3
"""Writes the table of the rules test: one row for each function that include/shoal declares.

    generate.py SOURCE_ROOT OUTPUT.c

A row has the function's name, what it returns, its parameters by kind, and a thunk that calls it with arguments which
rules.c makes by type. A name in shoal.map without a row fails the build; so does a type without a maker.
"""
import pathlib
import re
import sys

# Functions of which a blind call with made arguments makes no sense, with the reason.
SKIP = {
    'shoal_init': 'ends or becomes a child; tests/ends.c and proc/ have it',
    'shoal_fail': 'takes a format',
}

# Parameters that may be NULL, by function; '*' in the name stands for anything.
OPTIONAL = {
    'shoal_world_create': ['options', 'name'],
    'shoal_world_join': [],
    'shoal_linear': ['b'], 'shoal_linear_relu': ['b'], 'shoal_conv2d': ['b', 'options'],
    'shoal_conv2d_pool_relu': ['b'], 'shoal_max_pool2d': [], 'shoal_avg_pool2d': [],
    'shoal_layer_norm': ['weight', 'bias'],
    'shoal_lstm_cell': ['b_ih', 'b_hh'],
    'shoal_nll_loss_with': ['weight'],
    'shoal_backward_with': ['grad'],
    'shoal_tensor_set_grad': ['grad'],
    'shoal_clip_grad_norm': ['out_norm'],
    'shoal_evaluate': ['out_loss', 'out_accuracy'],
    'shoal_set_log': ['hook', 'context'],
    'shoal_world_sweep': ['out_recovered'], 'shoal_child_begin': ['out_rank', 'out_args'],
    'shoal_value_as_bytes': ['out_size'], 'shoal_arg_bytes': ['out_size'],
    'shoal_value_as_foreign': ['out_tag', 'out_size'],
    'shoal_barrier_wait': ['out_index'],
    'shoal_data_verify': ['folder'], 'shoal_data_copy': ['from'],
    'shoal_mnist_at': ['directory'], 'shoal_fashion_mnist_at': ['directory'],
    'shoal_dataset_name': ['set'],
    'shoal_spawn': ['args'], 'shoal_spawn_with': ['args', 'out_results', 'results'],
    'shoal_process_start': ['args'], 'shoal_process_start_program': ['args'], 'shoal_process_join': ['out_status'],
    'shoal_train_run': ['options', 'out_result'], 'shoal_train_check': ['options'],
    'shoal_tensor_format': ['buffer'], 'shoal_module_format': ['buffer'], 'shoal_value_format': ['buffer'],
    'shoal_scoped': ['t'], 'shoal_tensor_grad': ['t'],
}
ALWAYS_OPTIONAL = {'context', 'state', 'options', 'release', 'transform', 'settings', 'out_id', 'init_args'}


def declarations(root):
    for path in sorted((root / 'include/shoal').glob('*.h')):
        text = path.read_text()
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


NUMBERS = {'int', 'int64_t', 'uint64_t', 'size_t', 'uint32_t', 'int32_t', 'double', 'bool', 'unsigned', 'unsigned int'}
FUNCTIONS = {'shoal_target', 'shoal_task', 'shoal_transform', 'shoal_grad_hook', 'shoal_train_callback'}


def main():
    root, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    names = re.findall(r'^\s+(shoal_\w+);', (root / 'shoal.map').read_text(), re.M)
    table = {}
    for name, result, parameters in declarations(root):
        table.setdefault(name, (result, [parameter(p) for p in split(parameters) if p != '...']))
    missing = [n for n in names if n not in table and n not in SKIP]
    if missing:
        sys.exit(f'generate.py: no declaration found of {", ".join(missing)}')
    lines = ['/* Written by generate.py. */', '#include "rules.h"', '',
             '#pragma GCC diagnostic ignored "-Wpedantic" /* functions travel as void * */', '']
    rows = []
    for name in names:
        if name in SKIP:
            rows.append(f'    {{.name = "{name}", .skipped = "{SKIP[name]}"}},')
            continue
        result, ps = table[name]
        arguments, kinds = [], []
        optional = OPTIONAL.get(name, [])
        for i, (kind, label) in enumerate(ps):
            if '*' not in kind and '(' not in kind and kind not in FUNCTIONS:
                special = {'timeout': 'SHOAL_NOW', 'capacity': '16'}.get(label)
                arguments.append(special or ('0' if kind == 'bool' else '1' if kind in NUMBERS else f'({kind})0'))
                continue
            may = label in optional or label in ALWAYS_OPTIONAL
            is_out = label.startswith('out') or label in ('it', 'buffer', 'folder', 'fetched')
            base = re.sub(r'^const ', '', kind).replace(' ', '')
            maker = ('rules_make_value()' if kind == 'shoal_value *' else
                     'rules_make_shoal_block()' if label == 'object' else
                     'rules_numbers()' if base in ('shoal_waitable*', 'shoal_delivery*') else
                     'rules_function()' if kind in FUNCTIONS or '(*)' in kind else
                     'rules_out()' if is_out else f'rules_make_{base[:-1]}()' if base.endswith('*') and
                     base.count('*') == 1 and base.startswith('shoal_') and not base.endswith(('options*', 'type*'))
                     else 'rules_text()' if base == 'char*' else 'rules_numbers()')
            cast = '(void *)' if '(*)' not in kind and kind not in FUNCTIONS else '(void *)'
            arguments.append(f'null == {i} ? NULL : {cast}{maker}')
            kinds.append(f'{{{i}, "{label}", {"true" if may else "false"}}}')
        call = f'({name})({", ".join(arguments)})'
        how = ('RULES_ERR' if result == 'shoal_err' else 'RULES_VOID' if result == 'void' else
               'RULES_POINTER' if '*' in result else 'RULES_PLAIN')
        body = {'RULES_ERR': f'    r->err = {call};', 'RULES_VOID': f'    {call};',
                'RULES_POINTER': f'    r->pointer = {call};',
                'RULES_PLAIN': f'    (void){call};'}[how]
        lines += [f'static void call_{name}(int null, rules_result *r)', '{', '    (void)null;', '    (void)r;', body, '}', '']
        own = 'true' if result.startswith('shoal_') and not result.startswith('shoal_err') and not name.endswith('_retain') else 'false'
        rows.append(f'    {{.name = "{name}", .returns = {how}, .expression = {own}, .call = call_{name},\n'
                    f'     .pointers = {len(kinds)}, .pointer = {{{", ".join(kinds) or "{0}"}}}}},')
    lines += ['const rules_row rules_table[] = {'] + rows + ['};', '',
              'const size_t rules_count = sizeof rules_table / sizeof rules_table[0];', '']
    out.write_text('\n'.join(lines))


main()
