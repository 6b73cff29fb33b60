#!/usr/bin/env python3
"""A reader and writer of safetensors files of its own, in nothing but Python: files go both ways.

usage: tests/safetensors/files.py check|write DIR

check reads DIR/ours.safetensors, which src/data/safetensors_test.c wrote, and demands what the test put in it;
write writes the same set to DIR/theirs.safetensors, in another order and without padding.
"""
import json
import os
import struct
import sys

FORMATS = {"I64": "q", "F64": "d", "F32": "f", "I32": "i", "U8": "B", "BOOL": "?", "F16": "e", "BF16": "H"}


def bf16(x):
    return struct.unpack("<H", struct.pack("<f", x)[2:])[0]


COUNT = [0, 1, 2, 3, 4]
WANTED = {
    "of.i64": ("I64", [5], COUNT),
    "of.f64": ("F64", [5], COUNT),
    "of.f32": ("F32", [5], COUNT),
    "of.i32": ("I32", [5], COUNT),
    "of.bf16": ("BF16", [5], [bf16(x) for x in COUNT]),
    "of.f16": ("F16", [5], COUNT),
    "of.u8": ("U8", [5], COUNT),
    "of.bool": ("BOOL", [2], [False, True]),
    "number": ("F32", [], [1.5]),
    "none": ("F32", [3, 0], []),
    'turned "ü" \\': ("F32", [3, 2], [0, 3, 1, 4, 2, 5]),
}
TEXTS = {"epoch": "3", "why": "läuft\n"}


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        assert length % 8 == 0, "the header is not padded"
        text = file.read(length)
        assert text[:1] == b"{" and text == text.rstrip(b" ") + b" " * (length - len(text.rstrip(b" ")))
        header = json.loads(text)
        data = file.read()
    texts = header.pop("__metadata__", {})
    at = 0
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        code = FORMATS[entry["dtype"]]
        size = struct.calcsize(code)
        assert begin == at and begin % size == 0, f"{name} begins at {begin}"
        tensors[name] = (entry["dtype"], entry["shape"], list(struct.unpack(f"<{(end - begin) // size}{code}", data[begin:end])))
        at = end
    assert at == len(data)
    return tensors, texts


def write(path, tensors, texts):
    header = {"__metadata__": texts}
    data = b""
    for name, (dtype, shape, numbers) in tensors.items():
        piece = struct.pack(f"<{len(numbers)}{FORMATS[dtype]}", *numbers)
        header[name] = {"data_offsets": [len(data), len(data) + len(piece)], "shape": shape, "dtype": dtype}
        data += piece
    text = json.dumps(header, ensure_ascii=True, indent=1).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    what, folder = sys.argv[1:]
    if what == "check":
        tensors, texts = read(os.path.join(folder, "ours.safetensors"))
        assert tensors == WANTED, f"{tensors} is not {WANTED}"
        assert texts == TEXTS, f"{texts} is not {TEXTS}"
    else:
        write(os.path.join(folder, "theirs.safetensors"), dict(reversed(WANTED.items())), TEXTS)


main()
