#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""info, explain, check, bench and demo: what they print, as text and as JSON, and their statuses."""
import os
import shutil
import unittest

from harness import CAPTURE, CliTest


class Commands(CliTest):
    def test_help_and_version(self):
        self.assertIn("explain", self.good("--help"))
        self.assertRegex(self.good("--version"), r"^tessera \d+\.\d+\.\d+\n$")
        for command in ("info", "run", "demo", "explain", "check", "bench"):
            self.assertIn("--json", self.good(command, "--help"))

    def test_info(self):
        info = self.good_json("info", "--json")
        backends = {b["name"]: b for b in info["backends"]}
        self.assertTrue(backends["reference"]["named_only"])
        self.assertLessEqual({"cpu", "cuda", "hip"}, set(backends))  # absent ones with their reason
        self.assertTrue(backends["reference"]["kernels"])
        for backend in backends.values():
            self.assertEqual(backend["available"], backend["reason"] == "")
        self.assertGreater(info["machine"]["threads"], 0)
        self.assertTrue(any(d["kind"] == "host" for d in info["devices"]))
        text = self.good("info", "--kernels")
        for name, backend in backends.items():
            self.assertIn(name, text)
            for kernel in backend["kernels"]:
                self.assertIn(kernel, text)

    def test_explain(self):
        text = self.good("explain", "--b", "2", "--hq", "8", "--hkv", "2", "--sq", "100", "--d", "80",
                         "--dtype", "bf16", "--causal", "bottom-right", "--with", "lse,bias,sink")
        for word in ("bfloat16", "causal", "bias", "sink"):
            self.assertIn(word, text)
        plan = self.good_json("explain", "--json")
        self.assertTrue(plan["planned"])
        self.assertGreater(len(plan["text"]), 2)
        self.good("explain", "--sq", "1", "--sk", "4096", "--page-size", "16")
        self.good("explain", "--pass", "both", "--backend", "reference")
        self.refused("explain", "--with", "magic", words=["--with", "magic", "bias"])
        self.refused("explain", "--sq", "1,2", words=["--sq"])
        self.refused("explain", "--hq", "8", "--hkv", "3", words=["--hq", "heads_kv"])
        self.refused("explain", "--d", "100000", words=["--d", "dim_qk"])

    def test_explain_says_why_not(self):
        done = self.run_cli("explain", "--dtype", "f64")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count(b"\n"), 1)
        self.assertIn(b"float64", done.stdout + done.stderr)

    def test_check(self):
        lines = self.good_json_lines("check", "--group", "basic", "--quick", "--json")
        self.assertIn("reference", {line["backend"] for line in lines})
        for line in lines:
            self.assertEqual(line["verdict"], "ok")
            self.assertGreater(line["passed"], 0)
            self.assertLessEqual(line["worst_error_over_bound"], 1)
        text = self.good("check", "--group", "causal", "--dtype", "bf16")
        self.assertEqual(len(text.splitlines()), len(lines))

    def test_check_of_one_kernel(self):
        kernel = "fwd_f32_full__naive"
        lines = self.good_json_lines("check", "--group", "basic", "--quick", "--kernel", kernel,
                                     "--json")
        self.assertEqual({line["backend"] for line in lines}, {"reference"})
        self.refused("check", "--kernel", "fwd_nothing", words=["--kernel", "fwd_nothing"])

    def test_check_of_a_backward_kernel(self):
        # Cases that have no backward pass are none of its.
        lines = self.good_json_lines("check", "--group", "basic", "--quick", "--pass", "both", "--backend", "reference",
                                     "--kernel", "bwd_f32_full__naive", "--json")
        self.assertTrue(all(line["failed"] == 0 and line["passed"] > 0 for line in lines))

    def test_strict_check(self):
        check = ("check", "--group", "basic", "--case", "of", "--kernel", "fwd_f32_full__naive")
        self.good(*check)
        refused = self.run_cli(*check, "--strict")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn(b"refused", refused.stdout)
        mine, others = "f32", ("f16", "bf16")

        def with_list(*lines):
            with open(self.path("list"), "w") as f:
                f.write("\n".join(lines) + "\n")
            return self.run_cli(*check, "--strict", "--refusals", "list")

        needed = [f"forward {d} basic/*  # a kernel has one type" for d in others]
        self.assertEqual(with_list("# a comment", "", *needed).returncode, 0)
        self.assertEqual(with_list(needed[0]).returncode, 1)
        stale = with_list(*needed, f"* {mine} basic/one_*")
        self.assertEqual(stale.returncode, 1)
        self.assertIn(b"line 3", stale.stderr)
        self.assertEqual(with_list("forward f16").returncode, 2)
        self.assertEqual(with_list("forward f16 basic/* inexactly").returncode, 2)
        broken = (*check, "--dtype", mine, "--scale-bound", "1e-9", "--strict", "--refusals", "list")
        self.assertEqual(with_list(*needed, f"forward {mine} basic/* inexact").returncode, 1)  # none is
        self.assertEqual(self.run_cli(*broken).returncode, 0)
        self.assertEqual(with_list(*needed).returncode, 0)
        self.assertEqual(self.run_cli(*broken).returncode, 1)
        self.refused(*check, "--strict", "--refusals", "missing", words=["--refusals", "missing"])
        self.refused(*check, "--refusals", "list", words=["--refusals", "--strict"])

    def test_check_fails_when_bounds_are_broken(self):
        done = self.run_cli("check", "--group", "basic", "--quick", "--scale-bound", "0")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count(b"\n"), 1)
        self.assertIn(b"broke their bounds", done.stderr)
        self.assertIn(b"FAIL", done.stdout)
        self.refused("check", "--scale-bound", "-1", words=["--scale-bound"])
        self.refused("check", "--group", "nothing", words=["--group", "basic"])
        self.refused("check", "--backend", "abacus", words=["abacus"])
        self.refused("check", "--case", "no such case", words=["no case"])

    def test_bench(self):
        arguments = ("bench", "--hq", "4", "--hkv", "2", "--sq", "64,96", "--d", "32", "--causal",
                     "bottom-right", "--repeats", "3", "--sample-seconds", "0.001", "--standard")
        records = self.good_json_lines(*arguments, "--json")
        self.assertEqual([r["problem"]["seq_q"] for r in records], [64, 96])
        for r in records:
            times = r["seconds"]
            self.assertTrue(0 < times["min"] <= times["median"] <= times["max"])
            self.assertEqual(times["samples"], 3)
            self.assertEqual(r["check"]["extent"], "whole result")
            self.assertLessEqual(r["check"]["error_over_bound"], 1)
            self.assertGreater(r["probe"]["fma_flops_f32"], 0)
            self.assertEqual(r["probe"]["fma_by_threads"][-1],
                             [r["probe"]["threads"], r["probe"]["fma_flops_f32"]])
            self.assertEqual(r["fma_beside"]["windows"], 3)
            self.assertEqual(r["probe"]["read"]["best"], r["probe"]["read_bytes_per_second"])
            self.assertGreater(r["standard_attention"]["seconds"]["median"], 0)
            self.assertGreater(r["bytes_predicted"], 0)
            self.assertTrue(r["bytes_measured"] is None or r["bytes_measured"] > 0)
            self.assertTrue(r["bytes_measured_by"])
        self.assertIn("roofline", self.good(*arguments))
        large = self.good_json("bench", "--hq", "2", "--sq", "2048", "--d", "256", "--dtype", "f16",
                               "--window", "300,0,bottom-right", "--repeats", "1", "--sample-seconds",
                               "0.001", "--layout", "bshd", "--sk", "3000", "--json", "--hkv", "1")
        self.assertEqual(large["check"]["extent"], "sampled rows")
        unchecked = self.good_json("bench", "--sq", "64", "--repeats", "1", "--no-check", "--json",
                                   "--sample-seconds", "0.001")
        self.assertEqual(unchecked["check"]["extent"], "not checked")

    def test_bench_backward(self):
        r = self.good_json("bench", "--backend", "reference", "--pass", "backward", "--sq", "24",
                           "--hq", "4", "--hkv", "2", "--d", "16", "--repeats", "1",
                           "--sample-seconds", "0.001", "--json")
        self.assertEqual(r["pass"], "backward")
        self.assertLessEqual(r["check"]["error_over_bound"], 1)

    def test_bench_memory(self):
        arguments = ("bench", "--memory", "--hq", "1", "--sq", "512,2048", "--d", "16")
        records = self.good_json_lines(*arguments, "--standard", "--json")
        for n, r in zip((512, 2048), records):
            self.assertEqual(r["tensor_bytes"], 4 * n * 16 * 4)
            self.assertEqual(r["lse_bytes"], 4 * n)
            # Sizes of a process are known to about half a mebibyte.
            self.assertGreater(r["extra_peak_bytes"] + (1 << 20), r["workspace_bytes"])
            self.assertGreater(r["standard_extra_peak_bytes"] + (1 << 20), 4 * n * n)
        backward = self.good_json_lines(*arguments, "--pass", "backward", "--json")
        self.assertEqual(backward[0]["tensor_bytes"], 8 * 512 * 16 * 4)
        self.assertIsNone(backward[0]["standard_extra_peak_bytes"])
        self.assertIn("extra peak", self.good(*arguments))

    def test_bench_refusals(self):
        for arguments, words in ((("--sq", "0"), ["no rows"]),
                                 (("--repeats", "0"), ["--repeats"]),
                                 (("--sample-seconds", "0"), ["--sample-seconds"]),
                                 (("--plot", "x.png"), ["--plot", ".svg"]),
                                 (("--pass", "backward", "--backend", "cpu", "--kernel", "none"),
                                  ["--kernel"]),
                                 (("--standard", "--dropout", "0.5"), ["--standard"]),
                                 (("--standard", "--pass", "backward", "--backend", "reference"),
                                  ["--standard"]),
                                 (("--memory", "--plot", "x.svg"), ["--plot", "--memory"]),
                                 (("--memory", "--no-check"), ["--no-check", "--memory"]),
                                 (("--memory", "--standard", "--pass", "backward"),
                                  ["--standard"]),
                                 (("--hkv", "3"), ["--hq"]),
                                 (("--sq", "1,2,x"), ["--sq"])):
            with self.subTest(arguments):
                self.refused("bench", *arguments, words=words)

    def test_plot(self):
        arguments = ("bench", "--hq", "2", "--sq", "32,64", "--d", "16", "--repeats", "2",
                     "--sample-seconds", "0.001", "--plot", "speed.svg")
        self.refused(*arguments, words=["gnuplot"], env={"PATH": self.folder})
        self.assertFalse(os.path.exists(self.path("speed.svg")))
        if shutil.which("gnuplot") is None:
            return
        self.good(*arguments)
        self.assertIn(b"<svg", self.read("speed.svg")[:400])
        self.assertEqual(os.listdir(self.folder), ["speed.svg"])

    def test_demo(self):
        records = self.good_json_lines("demo", CAPTURE, "--json", "--repeats", "1")
        layers = {r["layer"] for r in records}
        self.assertGreaterEqual(len(layers), 4)
        for backend in {r["backend"] for r in records}:
            self.assertEqual({r["layer"] for r in records if r["backend"] == backend}, layers)
        for r in records:
            self.assertTrue(r["correct"])
            self.assertLessEqual(r["check"]["error_over_bound"], 1)
            self.assertLessEqual(r["stored_error_over_bound"], 1)
        text = self.good("demo", CAPTURE, "--repeats", "1", "--backend", "reference")
        self.assertIn("smollm2", text)
        self.assertIn("standard attention", text)


if __name__ == "__main__":
    unittest.main()
