# SPDX-License-Identifier: Apache-2.0
"""Shared by the command line's tests: a scratch folder per test, runs of the program, file makers,
and plain-Python attention to compare results with. Python's standard library only."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("TESSERA_SOURCE",
                        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# The program, behind an emulator in a cross build.
PROGRAM = [word for word in os.environ.get("TESSERA_CLI_EMULATOR", "").split("|") if word]
PROGRAM.append(os.environ["TESSERA_CLI"])
sys.path.insert(0, os.path.join(SOURCE, "tests", "fuzz_readers"))
from make_corpus import entry, npy, safetensors  # noqa: E402,F401

CAPTURE = os.path.join(SOURCE, "tests", "data", "real_qkv.safetensors")


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-cli-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as out:
            out.write(data)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as source:
            return source.read()

    def run_cli(self, *arguments, **options):
        return subprocess.run(PROGRAM + [str(a) for a in arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, cwd=self.folder, check=False, **options)

    def good(self, *arguments, **options):
        done = self.run_cli(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done.stdout.decode()

    def refused(self, *arguments, status=2, words=(), **options):
        """The contract of bad input: one printable line on stderr, nothing on stdout, the status."""
        done = self.run_cli(*arguments, **options)
        text = done.stderr.decode("utf-8", "replace")
        self.assertEqual(done.returncode, status, text + done.stdout.decode())
        self.assertEqual(text.count("\n"), 1, repr(text))
        self.assertTrue(text.endswith("\n") and text.startswith("tessera: "), repr(text))
        self.assertTrue(all(c >= " " for c in text[:-1]), repr(text))
        self.assertEqual(done.stdout, b"")
        for word in words:
            self.assertIn(word, text)
        return text

    def good_json(self, *arguments):
        return json.loads(self.good(*arguments))

    def good_json_lines(self, *arguments):
        return [json.loads(line) for line in self.good(*arguments).splitlines()]


# ------------------------------------------------------------------------------------- tensors

class Tensor:
    """A flat list of Python floats with a shape, in C order."""

    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), list(values)

    def at(self, *index):
        flat = 0
        for size, i in zip(self.shape, index):
            flat = flat * size + i
        return self.values[flat]

    def permuted(self, axes):
        shape = [self.shape[a] for a in axes]
        out = []

        def walk(prefix):
            if len(prefix) == len(shape):
                index = [0] * len(shape)
                for position, axis in enumerate(axes):
                    index[axis] = prefix[position]
                out.append(self.at(*index))
                return
            for i in range(shape[len(prefix)]):
                walk(prefix + [i])
        walk([])
        return Tensor(shape, out)


def noise(shape, seed):
    source = random.Random(seed)
    count = math.prod(shape)
    # Multiples of 1/8 are exact in every type the program reads.
    return Tensor(shape, [source.randint(-16, 16) / 8 for _ in range(count)])


CODES = {"<f4": "f", "<f2": "e", "<f8": "d", "<i4": "i", "<i8": "q", "|u1": "B", "|b1": "B"}
NAMES = {"F32": "f", "F16": "e", "F64": "d", "I32": "i", "I64": "q", "U8": "B", "BOOL": "B"}


def bf16_bytes(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)  # exact values: nothing to round


def npy_of(tensor, descr="<f4", fortran=False):
    values = tensor.values
    if fortran:
        values = tensor.permuted(list(range(len(tensor.shape)))[::-1]).values
    if descr in ("<V2", "bfloat16"):
        body = bf16_bytes(values)
    else:
        code = CODES[descr]
        if code in "iqB":
            values = [int(v) for v in values]
        body = struct.pack("<%d%s" % (len(values), code), *values)
    return npy(descr, tensor.shape, fortran, body=body)


def safetensors_of(tensors, metadata=None):
    """tensors: {name: (Tensor, dtype name)}"""
    header, body = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (tensor, dtype) in tensors.items():
        if dtype == "BF16":
            data = bf16_bytes(tensor.values)
        else:
            data = struct.pack("<%d%s" % (len(tensor.values), NAMES[dtype]), *tensor.values)
        header[name] = entry(dtype, list(tensor.shape), len(body), len(body) + len(data))
        body += data
    return safetensors(header, body)


def parse_npy(data):
    assert data[:8] == b"\x93NUMPY\x01\x00" and len(data) >= 10
    size = struct.unpack("<H", data[8:10])[0]
    assert (10 + size) % 64 == 0 and data[9 + size:10 + size] == b"\n"
    header = eval(data[10:10 + size].decode())  # a dictionary literal written by the program
    assert header["fortran_order"] is False
    return decode(header["descr"].replace("<V2", "BF16"), header["shape"], data[10 + size:])


def decode(dtype, shape, body):
    if dtype == "BF16":
        body = b"".join(b"\0\0" + body[i:i + 2] for i in range(0, len(body), 2))
        dtype = "F32"
    code = CODES.get(dtype) or NAMES[dtype]
    count = math.prod(shape)
    return Tensor(shape, struct.unpack("<%d%s" % (count, code), body))


def parse_safetensors(data):
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        out[name] = decode(info["dtype"], info["shape"], data[8 + size + begin:8 + size + end])
    return out


# ------------------------------------------------------------------------------------ attention

def attention(q, k, v, scale=None, allowed=lambda b, h, i, j: True, score=lambda s, b, h, i, j: s,
              sink=None):
    """O and LSE of [B, H, S, D] tensors, straight from the formulas."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = k.shape[1], k.shape[2], v.shape[3]
    scale = 1 / math.sqrt(D) if scale is None else scale
    out, lse = [], []
    for b in range(B):
        for h in range(Hq):
            g = h // (Hq // Hkv)
            for i in range(Sq):
                s = {j: score(scale * sum(q.at(b, h, i, d) * k.at(b, g, j, d) for d in range(D)),
                              b, h, i, j) for j in range(Sk) if allowed(b, h, i, j)}
                terms = list(s.values()) + ([sink[h]] if sink else [])
                if not terms:
                    out += [0.0] * Dv
                    lse.append(-math.inf)
                    continue
                top = max(terms)
                total = sum(math.exp(t - top) for t in terms)
                lse.append(top + math.log(total))
                out += [sum(math.exp(x - top) / total * v.at(b, g, j, d) for j, x in s.items())
                        for d in range(Dv)]
    return Tensor((B, Hq, Sq, Dv), out), Tensor((B, Hq, Sq), lse)


def worst(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return max([0.0] + [0.0 if x == y else abs(x - y) for x, y in zip(a.values, b.values)])
