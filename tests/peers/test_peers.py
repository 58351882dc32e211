# SPDX-License-Identifier: Apache-2.0
"""bench/peers/ without any peer and with one made for the purpose: absence is one line and status 3,
refusals and wrong results are reported and not timed, records hold what the README says. Python's
standard library only; no figure of time or memory of a real library is judged."""
import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["TESSERA_SOURCE"]
CLI = os.environ["TESSERA_CLI"]
SCRIPTS = os.path.join(SOURCE, "bench", "peers")
sys.path[:0] = [SCRIPTS, os.path.dirname(os.path.abspath(__file__))]
import cpu_pairs  # noqa: E402
import peer_api  # noqa: E402
import peer_run  # noqa: E402

OPTIONAL = ("numpy", "torch", "onnx", "onnxruntime", "openvino")


class PeersTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-peers-test-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def bare(self):
        """An environment in which no peer's module can be imported, installed or not."""
        for module in OPTIONAL:
            with open(os.path.join(self.folder, module + ".py"), "w", encoding="ascii") as out:
                out.write("raise ImportError('kept away by the test')\n")
        return dict(os.environ, PYTHONPATH=self.folder)

    def script(self, name, *arguments, environment=None):
        return subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, name), *arguments],
                              capture_output=True, text=True, env=environment, check=False)

    def test_absent_peers_are_one_line_each(self):
        done = self.script("peer_run.py", CLI, environment=self.bare())
        self.assertEqual(done.returncode, 3, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(peer_run.PEERS), done.stdout)
        for line, name in zip(lines, peer_run.PEERS):
            self.assertTrue(line.startswith(f"# {name}: absent: "), line)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_torch_script_says_that_it_is_absent(self):
        done = self.script("torch_sdpa.py", CLI, "--threads", "1", "--passes", "both", "--dtypes",
                           "f32", "--lengths", "16", environment=self.bare())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("# torch: absent: ", done.stdout)

    def test_pairs_script(self):
        done = self.script("cpu_pairs.py", "--library", "a=libtessera.so", "forward:f32:4x8x16:full",
                           environment=self.bare())
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("PyTorch is not here", done.stderr)
        done = self.script("cpu_pairs.py", "--library", "a=libtessera.so", "--peers", "onednn,abacus",
                           "forward:f32:4x8x16:full", environment=self.bare())
        self.assertEqual(done.returncode, 2)
        self.assertIn("'abacus' is not one of", done.stderr)
        shape = cpu_pairs.Shape("backward:bf16:32/4x8/64x16:full")
        self.assertEqual((shape.heads, shape.heads_kv, shape.length, shape.keys, shape.dim, shape.backward),
                         (32, 4, 8, 64, 16, True))
        self.assertEqual(shape.flops(), 4 * 32 * 8 * 64 * 16 * 2.5)
        self.assertEqual(cpu_pairs.Shape("forward:f32:2x4x8:window2").flops(), 4 * 2 * (1 + 2 + 2 + 2) * 8)
        self.assertEqual(cpu_pairs.Shape("forward:f32:2x4x8:causal").flops(), 4 * 2 * 8 * 8)
        for wrong in ("forward:f32:2x4:full", "forward:f32:2x4x8:window", "forward:f64:2x4x8:full", "back:f32:2x4x8:full",
                      "forward:f32:2x0x8:full"):
            with self.assertRaises(argparse.ArgumentTypeError):
                cpu_pairs.shape_of(wrong)

    def test_pairs_table(self):
        path = os.path.join(self.folder, "cells.jsonl")
        sides = {"new": 2.0, "torch": 5.0, "onednn": 1.5, "ggml": 8.0}
        one = {"what": "cpu pairs", "shape": "forward:f32:8x128x64:full", "threads": 2,
               "sides": {n: {"median_s": x} for n, x in sides.items()}}
        later = dict(one, shape="forward:f32:8x128x32:causal", sides={n: {"median_s": x} for n, x in {
            "new": 1.0, "openblas": 1.25}.items()})
        twice = dict(one, shape="forward:f32:8x256x64:full", sides={n: {"median_s": 1.0} for n in ("a", "b", "torch")})
        with open(path, "w", encoding="utf-8") as out:
            for record in (one, later, twice):
                out.write(json.dumps(record) + "\n")
        done = self.script("pairs_table.py", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 128 | full | 8 |  | **0.75 d** |", done.stdout)
        self.assertIn("| 128 | causal | 8 | 1.25 b |  |", done.stdout)
        self.assertNotIn("256", done.stdout)  # two builds: no one ratio
        self.assertIn("onednn: 1 shapes, geometric mean 0.75, least 0.75; 1 below 1.2, 1 below 1", done.stdout)
        self.assertIn("torch: 1 shapes, geometric mean 2.50, least 2.50; 0 below 1.25, 0 below 1", done.stdout)

    def test_turns_rotate_and_warm_up(self):
        calls = []

        class Side:
            def __init__(self, name):
                self.name = name

            def step(self):
                calls.append(self.name)
        times = cpu_pairs.take_turns([Side("a"), Side("b")], 0, 9)
        self.assertEqual({n: len(t) for n, t in times.items()}, {"a": 3, "b": 3})
        self.assertEqual("".join(calls), "abbaabbaab")
        times = cpu_pairs.take_turns([Side("a")], 0, 9, least=1)
        self.assertEqual(len(times["a"]), 1)

    def test_bad_options(self):
        for arguments in (("--peers", "abacus"), ("--lengths", "0"), ("--masks", "window"),
                          ("--dtypes", "f64"), ("--passes", "sideways")):
            with self.subTest(arguments):
                done = self.script("peer_run.py", CLI, *arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn(arguments[0], done.stderr)
        done = self.script("peer_run.py", CLI, "--decode", "64", "--decode-heads", "5,2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--decode-heads", done.stderr)

    def test_memory_table_without_peers(self):
        path = os.path.join(self.folder, "memory.jsonl")
        done = self.script("memory_table.py", CLI, "--lengths", "64,96", "--threads", "1", "--json",
                           path, environment=self.bare())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("openblas: absent", done.stdout)
        with open(path, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        self.assertEqual([(r["pass"], r["length"]) for r in records],
                         [("forward", 64), ("forward", 96), ("backward", 64), ("backward", 96)])
        self.assertEqual(records[0]["peers"]["openblas"]["form"], "built-in")
        self.assertIsNone(records[2]["peers"]["openblas"]["extra_peak_bytes"])

    def compare(self, dims, status=0):
        """Standard output and records of the fake peer at some head dimensions."""
        path = os.path.join(self.folder, "records.jsonl")
        parser = argparse.ArgumentParser()
        peer_run.add_options(parser, masks="full", lengths="16")
        options = parser.parse_args([CLI, "--threads", "1", "--heads", "2", "--dims", dims, "--rounds",
                                     "2", "--seconds", "0.01", "--json", path])
        here = os.path.dirname(os.path.abspath(__file__))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = here
        try:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                found = peer_run.run(options, ["fake_peer"])
        finally:
            os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
        self.assertEqual(found, status)
        with open(path, encoding="utf-8") as lines:
            return text.getvalue(), [json.loads(line) for line in lines]

    def test_a_peer_that_restarts_refuses_errs_and_dies(self):
        text, (good, refused, wrong, dead, after) = self.compare("16,24,32,40,56")
        self.assertIn("# fake_peer: fake 1.0, FAKE_READY 1", text)
        self.assertEqual(good["peer"], "fake 1.0")
        self.assertEqual(good["peer_form"], "second")  # the faster of the two
        self.assertEqual(len(good["peer_seconds"]), 2)
        self.assertEqual(len(good["tessera_seconds"]), 2)
        self.assertGreater(good["ratio"], 0)
        self.assertEqual(good["check"]["extent"], "whole result")
        for key in ("machine", "probe", "kernel", "version", "fma_fraction", "wait_policy"):
            self.assertIn(key, good)
        self.assertEqual(refused["peer_reason"], "no head dimension 24")
        self.assertIn("error 1 of the largest value", wrong["peer_reason"])
        self.assertIn("ended with status 7", dead["peer_reason"])
        self.assertIn("ended with status 7", after["peer_reason"])
        for record in (refused, wrong, dead, after):
            self.assertNotIn("peer_seconds", record)
        self.assertEqual(text.count("no head dimension 24"), 1)
        table = self.script("ratio_table.py", os.path.join(self.folder, "records.jsonl"))
        self.assertEqual(table.returncode, 0, table.stderr)
        rows = [line for line in table.stdout.splitlines() if line.startswith("| full")]
        self.assertEqual(len(rows), 5, table.stdout)
        self.assertIn(f"{good['ratio']:.2f}", rows[0])

    def test_a_refusal_of_tessera_is_status_1(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            text, records = self.compare("16,100000", status=1)
        self.assertEqual(len(records), 1)
        self.assertIn("tessera: forward f32 full D 100000", errors.getvalue())
        self.assertIn("# fake_peer: 1 shapes", text)

    def test_peak_of_a_call(self):
        here = os.path.dirname(os.path.abspath(__file__))
        os.environ["PYTHONPATH"] = here
        self.addCleanup(os.environ.pop, "PYTHONPATH", None)
        worker = peer_run.Worker("fake_peer", {"threads": 1, "folder": self.folder})
        self.addCleanup(worker.stop)
        self.assertIsNone(worker.line)
        fields = dict(heads=1, heads_kv=1, length=8, length_k=8, dim=48)
        answer = worker.ask(op="peak", shape=fields, variant="second")
        self.assertEqual(answer["variant"], "second")
        self.assertGreater(answer["bytes"], 30 << 20)

    def test_drivers_are_clean(self):
        """Those whose library's headers are here compile without a warning."""
        compiler = shutil.which("cc")
        # Other libraries have a cblas.h too: the macro tells whose it is.
        ours = "#ifndef OPENBLAS_VERSION\n#error another library's\n#endif\n"
        for header, more, name in (("cblas.h", ours, "openblas"), ("dnnl.h", "", "onednn"),
                                   ("ggml.h", "", "ggml")):
            wanted = f"#include <{header}>\n{more}"
            probe = subprocess.run([compiler or "cc", "-E", "-"], input=wanted,
                                   capture_output=True, text=True, check=False) if compiler else None
            with self.subTest(name):
                if probe is None or probe.returncode != 0:
                    self.skipTest(f"no {header}")
                done = subprocess.run(
                    [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp",
                     "-fsyntax-only", "-I", SCRIPTS, os.path.join(SCRIPTS, f"driver_{name}.c")],
                    capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_shapes(self):
        shape = peer_api.Shape(8, 2, 6, 6, 16, mask="window4")
        self.assertEqual([shape.allowed(i) for i in (0, 3, 4, 5)], [(0, 1), (0, 4), (1, 5), (2, 6)])
        self.assertEqual(shape.flops, 4 * 8 * 16 * (1 + 2 + 3 + 4 + 4 + 4))
        self.assertEqual(shape.group, 4)
        causal = peer_api.Shape(8, 8, 6, 6, 16, mask="causal", direction="backward")
        self.assertEqual(causal.flops, 2.5 * 4 * 8 * 16 * 18)
        cache = peer_api.Shape(32, 4, 1, 1000, 128, dtype="f16")
        self.assertTrue(cache.decode)
        self.assertEqual(cache.kv_bytes, 2 * 4 * 1000 * 128 * 2)
        self.assertIn((31, 0), peer_api.checked_rows(cache))


if __name__ == "__main__":
    unittest.main()
