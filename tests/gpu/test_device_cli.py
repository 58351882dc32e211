#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line on a backend whose tensors live on a device. The driver is the fake one of the tests and
the backend computes by the reference, so what is tested is everything around a kernel; spoiled on purpose
(FAKE_GPU, FAKE_CUDA_FAULT) it must be found out."""
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from harness import CAPTURE, CliTest, noise, npy_of  # noqa: E402

QUICK = ("--repeats", 3, "--warmup", 1, "--sample-seconds", 0.001)


def spoiled(**variables):
    return {"env": dict(os.environ, **variables)}


class Device(CliTest):
    def test_info_and_explain(self):
        info = self.good_json("info", "--json")
        mine = [b for b in info["backends"] if b["name"] == "fakegpu"][0]
        self.assertEqual((mine["available"], mine["device_kind"], mine["devices"]), (True, "cuda", 2))
        for words in (["--backend", "fakegpu:1"], ["--device", "cuda:1"],
                      ["--backend", "fakegpu", "--device", "1"]):
            text = self.good("explain", "--sq", 64, *words)
            self.assertIn("fakegpu/fwd_any_rows__fakegpu", text)
            self.assertIn("on cuda 1", text)
        self.refused("explain", "--sq", 64, "--device", "cuda:9", words=["cuda 9"])
        self.refused("explain", "--sq", 64, "--device", "moon", words=["--device", "moon", "cuda:N"])
        self.refused("explain", "--sq", 64, "--backend", "fakegpu:x", words=["--backend", "x"])

    def test_check(self):
        lines = self.good_json_lines("check", "--backend", "fakegpu", "--quick", "--pass", "both",
                                     "--kernel", "*", "--json")
        self.assertGreater(len(lines), 20)
        self.assertEqual({line["verdict"] for line in lines}, {"ok"})
        strides = [line for line in lines if line["group"] == "strides"][0]
        self.assertGreater(strides["skipped"], 0)  # address space without memory
        self.good("check", "--backend", "fakegpu:1", "--group", "basic", "--dtype", "bf16")

    def test_check_finds_out(self):
        for how, words in (({"FAKE_GPU": "overrun"}, ["o: byte", "was written"]),
                           ({"FAKE_GPU": "underrun"}, ["o: byte -", "was written"]),
                           ({"FAKE_GPU": "wrong"}, ["max "]),
                           ({"FAKE_GPU": "deaf"}, ["found nan"]),
                           ({"FAKE_CUDA_FAULT": "5"}, ["CUDA_ERROR_ILLEGAL_ADDRESS", "device error"])):
            done = self.run_cli("check", "--backend", "fakegpu", "--quick", "--group", "basic",
                                **spoiled(**how))
            self.assertEqual(done.returncode, 1, how)
            for word in words:
                self.assertIn(word, done.stdout.decode(), how)
        self.good("check", "--backend", "fakegpu", "--quick", "--group", "basic",
                  **spoiled(FAKE_CUDA_PINNED="1"))

    def test_bench(self):
        records = self.good_json_lines("bench", "--backend", "fakegpu", "--sq", "40,130", "--d", 32,
                                       "--dtype", "bf16", "--causal", "top-left", "--json", *QUICK)
        self.assertEqual(len(records), 2)
        for record in records:
            self.assertEqual(record["device"]["ordinal"], 0)
            self.assertGreater(record["device"]["copy_bytes_per_second"], 0)
            self.assertGreater(record["seconds"]["median"], 0)
            self.assertLessEqual(record["check"]["error_over_bound"], 1)
            self.assertNotIn("probe", record)
        self.assertGreater(records[0]["input_sets"], 1)  # small tensors take turns
        record = self.good_json_lines("bench", "--device", "cuda:1", "--pass", "backward", "--sq", 70,
                                      "--hq", 4, "--hkv", 2, "--dtype", "f16", "--json", *QUICK)[0]
        self.assertEqual((record["pass"], record["device"]["ordinal"]), ("backward", 1))

    def test_bench_checks_first(self):
        for how in ("wrong", "deaf"):
            done = self.run_cli("bench", "--backend", "fakegpu", "--sq", 64, *QUICK,
                                **spoiled(FAKE_GPU=how))
            self.assertEqual(done.returncode, 1)
            self.assertIn("not timed", done.stderr.decode())
        done = self.run_cli("bench", "--backend", "fakegpu", "--sq", 64, *QUICK,
                            **spoiled(FAKE_CUDA_FAULT="2"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS", done.stderr.decode())
        self.refused("bench", "--backend", "fakegpu", "--standard", "--sq", 64, words=["standard"])
        self.refused("bench", "--backend", "fakegpu", "--memory", "--sq", 64, words=["--memory"])

    def test_kernels_by_name(self):
        arguments = ["bench", "--backend", "fakegpu", "--sq", 60, "--forced", "--json", "--records",
                     "records.jsonl", *QUICK]
        lines = self.good_json_lines(*arguments)
        self.assertEqual([(x["kernel"], x["kernel_named"]) for x in lines],
                         [("fwd_any_rows__fakegpu_slow", True), ("fwd_any_rows__fakegpu", False)])
        self.assertEqual(lines[0]["check"]["extent"], "the chosen kernel's result")
        self.assertEqual(lines[0]["check"]["error_over_bound"], 0)  # the same bits
        self.assertEqual(lines[1]["best_forced"]["kernel"], "fwd_any_rows__fakegpu_slow")
        self.assertEqual(self.read("records.jsonl").count(b"\n"), 2)
        done = self.run_cli(*arguments, **spoiled(FAKE_GPU="second"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("differs from the chosen kernel's result", done.stderr.decode())
        self.assertEqual(done.stdout.count(b"\n"), 1)  # the chosen one is timed all the same
        done = self.run_cli("check", "--backend", "fakegpu", "--quick", "--group", "basic", "--kernel",
                            "*", **spoiled(FAKE_GPU="second"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("fwd_any_rows__fakegpu_slow", done.stdout.decode())

    def test_suites(self):
        self.refused("bench", "--suite", "all", words=["--suite", "prefill"])
        self.refused("bench", "--suite", "short", "--sq", 5, words=["--suite"])
        self.refused("bench", "--suite", "short", "--memory", words=["--memory", "--suite"])
        self.refused("bench", "--forced", "--kernel", "x", words=["--forced", "--kernel"])

    def test_run_equals_host(self):
        for name, shape, seed in (("q", (2, 4, 5, 8), 1), ("k", (2, 2, 9, 8), 2), ("v", (2, 2, 9, 8), 3)):
            self.write(name + ".npy", npy_of(noise(shape, seed)))
        self.write("used.npy", lengths([9, 4]))
        common = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--causal", "bottom-right",
                  "--used-k", "used.npy", "--alibi", "auto", "--quiet"]
        self.good(*common, "--backend", "reference", "--o", "a.npy", "--lse", "la.npy")
        self.good(*common, "--backend", "fakegpu:1", "--o", "b.npy", "--lse", "lb.npy")
        self.assertEqual(self.read("a.npy"), self.read("b.npy"))
        self.assertEqual(self.read("la.npy"), self.read("lb.npy"))
        report = self.good_json(*common, "--backend", "fakegpu", "--compare", "cpu", "--json")
        self.assertLess(report["compare"]["o"]["max_error"], 1e-5)
        report = self.good_json(*common, "--compare", "fakegpu", "--json")
        self.assertLess(report["compare"]["o"]["max_error"], 1e-5)

    def test_demo(self):
        lines = self.good_json_lines("demo", CAPTURE, "--backend", "fakegpu", "--repeats", 2, "--json")
        self.assertTrue(lines and all(line["correct"] for line in lines))
        self.assertIn("device", lines[0])


def lengths(values):
    """A .npy of int32."""
    head = b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % len(values)
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head +
            struct.pack("<%di" % len(values), *values))


if __name__ == "__main__":
    unittest.main()
