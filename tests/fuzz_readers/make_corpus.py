#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpus of the reader fuzz targets: make_corpus.py OUTPUT_FOLDER.

Good files of every element type and version, and one file per class of damage. Python's standard
library only. The same files serve the regression replay in CTest, and more are derived from them by
truncation, so that every reader sees an end of file at every interesting place.
"""
import json
import os
import struct
import sys

DESCRS = {"<f4": 4, "<f2": 2, "<f8": 8, "<i4": 4, "<i8": 8, "|u1": 1, "|i1": 1, "|b1": 1,
          "<V2": 2, "bfloat16": 2}
DTYPES = {"F32": 32, "F16": 16, "BF16": 16, "F64": 64, "I32": 32, "I64": 64, "U8": 8, "BOOL": 8,
          "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "U32": 32, "U64": 64,
          "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "C64": 64}


def npy(descr="<f4", shape=(2, 3), fortran=False, version=(1, 0), body=None, header=None):
    if header is None:
        text = "(" + ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
        header = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, text)
    pad = -(len(header) + 1 + (10 if version[0] == 1 else 12)) % 64
    header = (header + " " * pad + "\n").encode("utf-8", "surrogateescape")
    if body is None:
        count = 1
        for n in shape:
            count *= n
        body = bytes(i * 37 & 255 for i in range(count * DESCRS.get(descr, 4)))
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header + body


def safetensors(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy_files():
    for i, descr in enumerate(DESCRS):
        yield "dtype_%d" % i, npy(descr)
    yield "scalar", npy("<f4", ())
    yield "vector", npy("<f4", (5,))
    yield "rank4", npy("<f2", (2, 1, 3, 4))
    yield "rank8", npy("|u1", (1, 2, 1, 2, 1, 1, 1, 3))
    yield "rank9", npy("|u1", (1,) * 9)
    yield "empty", npy("<f4", (0, 4))
    yield "fortran", npy("<f8", (3, 2), True)
    yield "version2", npy("<i4", (4,), version=(2, 0))
    yield "version3", npy("<i8", (4,), version=(3, 0))
    yield "version4", npy("<i8", (4,), version=(4, 0))
    yield "big_endian", npy(">f4")
    yield "object", npy("|O")
    yield "nan", npy("<f4", (2,), body=struct.pack("<2f", float("nan"), 1.0))
    yield "nan_f16", npy("<f2", (2,), body=struct.pack("<2H", 0x7e00, 0xfc00))
    yield "short", npy()[:-3]
    yield "long", npy() + b"x"
    yield "huge_shape", npy(shape=(1 << 62, 1 << 62), body=b"")
    yield "huge_shape_zero", npy(shape=(1 << 62, 1 << 62, 0), body=b"")
    yield "python2", npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }",
                         body=b"\0" * 8)
    yield "reordered", npy(header='{"shape": (2,), "fortran_order": False, "descr": "<f4"}',
                           body=b"\0" * 8)
    yield "structured", npy(header="{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
                            body=b"\0" * 8)
    yield "no_shape", npy(header="{'descr': '<f4', 'fortran_order': False, }", body=b"")
    yield "twice", npy(header="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}",
                       body=b"\0" * 4)
    yield "negative", npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", body=b"")
    yield "header_length", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"


def safetensors_files():
    at, header = 0, {}
    for name, bits in DTYPES.items():
        size = 8 * bits // 8
        header["t." + name] = entry(name, [2, 4], at, at + size)
        at += size
    yield "all_dtypes", safetensors(header, bytes(i * 29 & 255 for i in range(at)))
    header = {"__metadata__": {"format": "pt", "m.scale": "0.125"}, "q": entry("F32", [1, 2], 0, 8)}
    yield "metadata", safetensors(header, b"\0" * 8)
    yield "padded", safetensors(json.dumps(header).encode() + b"   \n", b"\0" * 8)
    yield "none", safetensors({})
    yield "zero_size", safetensors({"a": entry("F32", [0], 0, 0), "b": entry("U8", [1], 0, 1)}, b"x")
    yield "scalar", safetensors({"a": entry("F64", [], 0, 8)}, b"\0" * 8)
    yield "overlap", safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)},
                                 b"\0" * 6)
    yield "hole", safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)},
                              b"\0" * 10)
    yield "tail", safetensors({"a": entry("U8", [4], 0, 4)}, b"\0" * 5)
    yield "truncated", safetensors({"a": entry("F32", [4], 0, 16)}, b"\0" * 12)
    yield "backwards", safetensors({"a": entry("U8", [4], 4, 0)}, b"\0" * 4)
    yield "wrong_size", safetensors({"a": entry("F32", [2], 0, 4)}, b"\0" * 4)
    yield "overflow", safetensors({"a": entry("F32", [1 << 62, 1 << 62], 0, 4)}, b"\0" * 4)
    yield "negative", safetensors({"a": entry("F32", [-1], 0, 4)}, b"\0" * 4)
    yield "float_shape", safetensors({"a": entry("F32", [1.0], 0, 4)}, b"\0" * 4)
    yield "dtype", safetensors({"a": entry("Q7", [1], 0, 4)}, b"\0" * 4)
    yield "half_byte", safetensors({"a": entry("F4", [1], 0, 1)}, b"\0")
    yield "field", safetensors({"a": dict(entry("U8", [1], 0, 1), extra=1)}, b"\0")
    yield "duplicate", safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                   b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0")
    yield "metadata_number", safetensors({"__metadata__": {"a": 1}})
    yield "array", safetensors(b"[]")
    yield "huge_length", safetensors({}, length=1 << 60)
    yield "long_length", safetensors({}, length=1 << 20)
    yield "control", safetensors({"a\n\x1b[2J": entry("U8", [2], 0, 1)}, b"\0")
    yield "deep", safetensors(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_corpus.py OUTPUT_FOLDER")
    for kind, files in (("npy", npy_files()), ("safetensors", safetensors_files())):
        folder = os.path.join(sys.argv[1], kind)
        os.makedirs(folder, exist_ok=True)
        for name, data in files:
            cuts = {len(data)} | {n for n in (1, 5, 6, 8, 9, 10, 11, 12, len(data) // 2,
                                              len(data) - 1) if 0 < n < len(data)}
            for cut in cuts:
                tail = "" if cut == len(data) else "_cut%d" % cut
                with open(os.path.join(folder, name + tail), "wb") as out:
                    out.write(data[:cut])


if __name__ == "__main__":
    main()
