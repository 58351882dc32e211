# SPDX-License-Identifier: Apache-2.0
"""bench/peers/tessera_ctypes.py on the CPU backend, with tensors that are ctypes arrays: offsets of its
structures against the ones the C tests pin, plans, runs of both passes against arithmetic in Python, refusals
in the library's words. And the shapes and options of the GPU comparison, which needs PyTorch for the rest."""
import ctypes
import math
import os
import random
import re
import subprocess
import sys
import unittest

SOURCE = os.environ["TESSERA_SOURCE"]
SCRIPTS = os.path.join(SOURCE, "bench", "peers")
sys.path.insert(0, SCRIPTS)
import sdpa_fa3  # noqa: E402
import sdpa_shapes  # noqa: E402
import tessera_ctypes as tsr  # noqa: E402

LIBRARY = os.environ["TESSERA_LIBRARY"]


class Array:
    """float32, [B, H, S, D] or [B, H, S], dense."""
    dtype_name = "f32"

    def __init__(self, *shape, values=None):
        self.shape = shape
        count = math.prod(shape)
        self.memory = (ctypes.c_float * (count + 64))(*(values or [math.nan] * count))

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def dim(self):
        return len(self.shape)

    def size(self, i):
        return self.shape[i]

    def stride(self, i):
        return math.prod(self.shape[i + 1:])

    def at(self, *index):
        return self.memory[sum(i * self.stride(n) for n, i in enumerate(index))]


class Block:
    def __init__(self, size):
        self.memory = (ctypes.c_char * (size + 64))()

    def data_ptr(self):
        return -(-ctypes.addressof(self.memory) // 64) * 64


def noise(*shape):
    return Array(*shape, values=[random.uniform(-1, 1) for _ in range(math.prod(shape))])


class Layouts(unittest.TestCase):
    def test_offsets_are_the_pinned_ones(self):
        kinds = {"tsr_layout": tsr.Layout, "tsr_window": tsr.Window, "tsr_device": tsr.Device,
                 "tsr_problem": tsr.Problem, "tsr_args": tsr.Args, "tsr_plan_info": tsr.PlanInfo,
                 "tsr_backend_info": tsr.BackendInfo}
        with open(os.path.join(SOURCE, "tests", "abi", "layout.c"), encoding="utf-8") as source:
            text = source.read()
        seen = {name: set() for name in kinds}
        for name, field, offset in re.findall(r"AT\((\w+),\s*(\w+),\s*(\d+)\)", text):
            if name in kinds:
                self.assertEqual(getattr(kinds[name], field).offset, int(offset), (name, field))
                seen[name].add(field)
        for name, size in re.findall(r"SIZE\((\w+),\s*(\d+)\)", text):
            if name in kinds:
                self.assertEqual(ctypes.sizeof(kinds[name]), int(size), name)
        for name, kind in kinds.items():
            self.assertEqual({f[0] for f in kind._fields_}, seen[name], name)


class Runs(unittest.TestCase):
    B, HQ, HKV, SQ, SK, D = 2, 4, 2, 5, 7, 8

    def setUp(self):
        random.seed(3)
        self.lib = tsr.Library(LIBRARY)
        self.t = {"q": noise(self.B, self.HQ, self.SQ, self.D),
                  "k": noise(self.B, self.HKV, self.SK, self.D),
                  "v": noise(self.B, self.HKV, self.SK, self.D),
                  "o": Array(self.B, self.HQ, self.SQ, self.D)}

    def row(self, b, h, i, causal):
        """Probabilities of a row and its KV head."""
        g = h // (self.HQ // self.HKV)
        keys = range(self.SK if not causal else i + self.SK - self.SQ + 1)
        s = [sum(self.t["q"].at(b, h, i, d) * self.t["k"].at(b, g, j, d) for d in range(self.D)) /
             math.sqrt(self.D) for j in keys]
        total = sum(math.exp(x) for x in s)
        return g, [math.exp(x) / total for x in s]

    def test_forward(self):
        for causal in (None, "bottom-right"):
            plan = tsr.Plan(self.lib, self.t, tsr.FORWARD, Block, causal=causal, backend="cpu")
            about = plan.describe(tsr.FORWARD)
            self.assertEqual(about["backend"], "cpu")
            self.assertTrue(about["kernel"].startswith("fwd_f32"))
            plan.run(tsr.FORWARD)
            for b, h, i in ((0, 0, 0), (1, 3, 4), (1, 2, 2)):
                g, p = self.row(b, h, i, causal)
                for d in range(self.D):
                    exact = sum(x * self.t["v"].at(b, g, j, d) for j, x in enumerate(p))
                    self.assertAlmostEqual(self.t["o"].at(b, h, i, d), exact, places=5)
            plan.close()
            plan.close()

    def test_backward(self):
        t = dict(self.t, lse=Array(self.B, self.HQ, self.SQ),
                 dout=noise(self.B, self.HQ, self.SQ, self.D),
                 dq=Array(self.B, self.HQ, self.SQ, self.D),
                 dk=Array(self.B, self.HKV, self.SK, self.D),
                 dv=Array(self.B, self.HKV, self.SK, self.D))
        plan = tsr.Plan(self.lib, t, tsr.FORWARD | tsr.BACKWARD, Block, backend="cpu")
        plan.run(tsr.FORWARD)
        plan.run(tsr.BACKWARD)
        b, g, j = 1, 1, 6
        for d in range(self.D):
            exact = sum(self.row(b, h, i, None)[1][j] * t["dout"].at(b, h, i, d)
                        for h in (2, 3) for i in range(self.SQ))
            self.assertAlmostEqual(t["dv"].at(b, g, j, d), exact, places=5)
        for name in ("dq", "dk"):
            self.assertFalse(any(math.isnan(x) for x in t[name].memory[:math.prod(t[name].shape)]))
        plan.close()

    def test_refusals_and_names(self):
        self.assertIn("cpu", self.lib.backends())
        self.assertTrue(all(n.startswith("bwd_") for n in self.lib.kernels("cpu", tsr.BACKWARD)))
        with self.assertRaisesRegex(tsr.Refused, "dim_qk|q"):
            tsr.Plan(self.lib, dict(self.t, k=noise(self.B, 3, self.SK, self.D)), tsr.FORWARD,
                     Block)
        with self.assertRaisesRegex(tsr.Refused, "cuda"):
            tsr.Plan(self.lib, self.t, tsr.FORWARD, Block, device=(tsr.CUDA, 31))


class Script(unittest.TestCase):
    def test_shapes(self):
        rows = sdpa_shapes.SUITES["prefill"]()
        self.assertEqual(len(rows), 18)
        self.assertEqual({r.batch * r.length for r in rows}, {16384})
        self.assertEqual({r.heads * r.dim for r in rows}, {2048})
        self.assertEqual(rows[0].flops("backward"), 2.5 * rows[0].flops("forward"))
        decode = sdpa_shapes.SUITES["decode"]()[0]
        self.assertTrue(decode.decode and decode.kv_bytes == 2 * 8 * 16384 * 128 * 2)

    def test_call_of_fa3(self):
        """Fields as fa3_library.cu declares them, which no compiler of these tests reads."""
        with open(os.path.join(SCRIPTS, "fa3_library.cu"), encoding="utf-8") as file:
            body = re.search(r"struct fa3_call {(.*?)};", file.read(), re.S)[1]
        kinds = {"void": ctypes.c_void_p, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
        declared = []
        for line in re.sub(r"//.*", "", body).split(";"):
            found = re.match(r"\s*(?:const )?(\w+) (.*)", line)
            if found:
                declared += [(name.strip(" *"), kinds[found[1]]) for name in found[2].split(",")]
        self.assertEqual(declared, sdpa_fa3.Call._fields_)

    def test_options(self):
        for words in (["--peers", "abacus"], ["--suite", "all"], ["--rounds", "0"]):
            done = subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "torch_sdpa.py"), "x",
                                   "--device", "cuda", *words], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words[1], done.stderr)


if __name__ == "__main__":
    unittest.main()
