#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tessera run`: results against attention computed here, formats, layouts, and every feature
option's effect. A feature that were parsed and dropped would fail its test."""
import math
import unittest

from harness import (CliTest, Tensor, attention, noise, npy_of, parse_npy, parse_safetensors,
                     safetensors_of, worst)

B, HQ, HKV, SQ, SK, D, DV = 2, 4, 2, 5, 7, 8, 6
TOLERANCE = 2e-6


class Run(CliTest):
    def setUp(self):
        super().setUp()
        self.q = noise((B, HQ, SQ, D), 1)
        self.k = noise((B, HKV, SK, D), 2)
        self.v = noise((B, HKV, SK, DV), 3)
        self.write_qkv()

    def write_qkv(self, descr="<f4", fortran=False):
        for name, tensor in (("q", self.q), ("k", self.k), ("v", self.v)):
            self.write(name + ".npy", npy_of(tensor, descr, fortran))

    def attend(self, *arguments):
        self.good("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--o", "o.npy", "--lse",
                  "lse.npy", *arguments)
        return parse_npy(self.read("o.npy")), parse_npy(self.read("lse.npy"))

    def expect(self, *arguments, tolerance=TOLERANCE, **model):
        """The program's results on both backends equal the model's."""
        want_o, want_lse = attention(self.q, self.k, self.v, **model)
        for backend in ("cpu", "reference"):
            o, lse = self.attend("--backend", backend, *arguments)
            self.assertLess(worst(o, want_o), tolerance, backend)
            self.assertLess(worst(lse, want_lse), TOLERANCE, backend)
        return o

    def test_plain(self):
        self.expect()

    def test_causal(self):
        self.expect("--causal", "top-left", allowed=lambda b, h, i, j: j <= i)
        self.expect("--causal", "bottom-right", allowed=lambda b, h, i, j: j <= i + SK - SQ)
        self.expect("--causal", "1", allowed=lambda b, h, i, j: j <= i + 1)
        self.expect("--causal", "-2", allowed=lambda b, h, i, j: j <= i - 2)  # rows without a key

    def test_window(self):
        self.expect("--window", "1,2,top-left", allowed=lambda b, h, i, j: i - 1 <= j <= i + 2)
        self.expect("--window", "1,inf,3", allowed=lambda b, h, i, j: j >= i + 2)
        self.expect("--window", "2,5", "--causal", "bottom-right",
                    allowed=lambda b, h, i, j: i + 2 - 2 <= j <= i + 2)

    def test_prefix(self):
        self.expect("--causal", "top-left", "--prefix", "3",
                    allowed=lambda b, h, i, j: j <= i or j < 3)
        self.write("prefix.npy", npy_of(Tensor((B,), [1, 4]), "<i4"))
        self.expect("--causal", "top-left", "--prefix-per-sequence", "prefix.npy",
                    allowed=lambda b, h, i, j: j <= i or j < (1, 4)[b])

    def test_diagonal_per_sequence(self):
        self.write("diagonal.npy", npy_of(Tensor((B,), [0, 2]), "<i8"))
        self.expect("--causal", "0", "--diagonal-per-sequence", "diagonal.npy",
                    allowed=lambda b, h, i, j: j <= i + (0, 2)[b])

    def test_scale_and_softcap(self):
        self.expect("--scale", "0.25", scale=0.25)
        self.expect("--softcap", "1.5", score=lambda s, b, h, i, j: 1.5 * math.tanh(s / 1.5))

    def test_bias(self):
        bias = noise((1, HQ, SQ, SK), 9)
        self.write("bias.npy", npy_of(bias))
        self.expect("--bias", "bias.npy", score=lambda s, b, h, i, j: s + bias.at(0, h, i, j))
        row = noise((SK,), 10)
        self.write("row.npy", npy_of(row, "<f2"))
        self.expect("--bias", "row.npy", score=lambda s, b, h, i, j: s + row.at(j))
        self.write("fortran.npy", npy_of(bias, fortran=True))
        self.expect("--bias", "fortran.npy", score=lambda s, b, h, i, j: s + bias.at(0, h, i, j))

    def test_mask(self):
        mask = Tensor((B, 1, SQ, SK), [(7 * n) % 3 != 0 for n in range(B * SQ * SK)])
        self.write("mask.npy", npy_of(mask, "|b1"))
        self.expect("--mask", "mask.npy", allowed=lambda b, h, i, j: mask.at(b, 0, i, j))
        blocks = Tensor((3, 2), [1, 0, 1, 1, 0, 0])
        self.write("blocks.npy", npy_of(blocks, "|u1"))
        self.expect("--block-mask", "blocks.npy", "--block-q", "2", "--block-k", "4",
                    allowed=lambda b, h, i, j: blocks.at(i // 2, j // 4))

    def test_alibi(self):
        slopes = Tensor((HQ,), [0.5, 0.25, 0.125, 1.0])
        self.write("slopes.npy", npy_of(slopes))
        self.expect("--alibi", "slopes.npy",
                    score=lambda s, b, h, i, j: s - slopes.at(h) * abs(i + SK - SQ - j))
        self.expect("--alibi", "auto",
                    score=lambda s, b, h, i, j: s - 2 ** (-2 * (h + 1)) * abs(i + SK - SQ - j))

    def test_sink(self):
        sink = [0.5, -1.0, 2.0, 0.0]
        self.write("sink.npy", npy_of(Tensor((HQ,), sink)))
        self.expect("--sink", "sink.npy", sink=sink)

    def test_dropout(self):
        plain, _ = self.attend()
        once, _ = self.attend("--dropout", "0.5", "--seed", "7")
        again, _ = self.attend("--dropout", "0.5", "--seed", "7", "--backend", "reference")
        other, _ = self.attend("--dropout", "0.5", "--seed", "8")
        moved, _ = self.attend("--dropout", "0.5", "--seed", "7", "--offset", "1000")
        self.assertLess(worst(once, again), TOLERANCE)
        for x in (plain, other, moved):
            self.assertGreater(worst(once, x), 1e-3)
        nothing, lse = self.attend("--dropout", "1")
        self.assertEqual(set(nothing.values), {0.0})
        self.assertTrue(all(math.isfinite(x) for x in lse.values))

    def test_used_lengths_and_left_padding(self):
        used, left = (3, 5), (4, 1)
        self.write("used.npy", npy_of(Tensor((B,), used), "<i4"))
        self.write("left.npy", npy_of(Tensor((B,), left), "<i4"))
        self.expect("--used-k", "used.npy", allowed=lambda b, h, i, j: j < used[b])
        self.expect("--used-k", "used.npy", "--left-pad-k", "left.npy",
                    allowed=lambda b, h, i, j: left[b] <= j < left[b] + used[b])
        # Queries beyond the used part are written as zero, LSE as -inf.
        self.write("used_q.npy", npy_of(Tensor((B,), (2, 5)), "<i8"))
        o, lse = self.attend("--used-q", "used_q.npy")
        self.assertEqual([o.at(0, h, i, d) for h in range(HQ) for i in (2, 3, 4) for d in range(DV)],
                         [0.0] * (HQ * 3 * DV))
        self.assertEqual(lse.at(0, 0, 2), -math.inf)

    def test_packed(self):
        want_o, want_lse = attention(self.q, self.k, self.v,
                                     allowed=lambda b, h, i, j: j <= i + SK - SQ)
        # [B, H, S, D] to [H, B * S, D]
        for name, t in (("q", self.q), ("k", self.k), ("v", self.v)):
            moved = t.permuted([1, 0, 2, 3])
            packed = Tensor((t.shape[1], B * t.shape[2], t.shape[3]), moved.values)
            self.write(name + ".npy", npy_of(packed))
        self.write("cu_q.npy", npy_of(Tensor((B + 1,), [0, SQ, 2 * SQ]), "<i4"))
        self.write("cu_k.npy", npy_of(Tensor((B + 1,), [0, SK, 2 * SK]), "<i8"))  # mixed integers
        o, lse = self.attend("--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-k", "cu_k.npy", "--causal",
                             "bottom-right")
        self.assertEqual(o.shape, (HQ, B * SQ, DV))
        self.assertEqual(lse.shape, (HQ, B * SQ))
        o = Tensor((HQ, B, SQ, DV), o.values).permuted([1, 0, 2, 3])
        lse = Tensor((HQ, B, SQ), lse.values).permuted([1, 0, 2])
        self.assertLess(worst(o, want_o), TOLERANCE)
        self.assertLess(worst(lse, want_lse), TOLERANCE)

    def test_paged(self):
        want_o, _ = attention(self.q, self.k, self.v)
        page, table = 3, [[4, 0, 2], [1, 5, 3]]
        for name, t in (("k", self.k), ("v", self.v)):
            dim = t.shape[3]
            pages = [0.0] * (6 * HKV * page * dim)
            for b in range(B):
                for j in range(SK):
                    for h in range(HKV):
                        for d in range(dim):
                            at = ((table[b][j // page] * HKV + h) * page + j % page) * dim + d
                            pages[at] = t.at(b, h, j, d)
            self.write(name + ".npy", npy_of(Tensor((6, HKV, page, dim), pages)))
        self.write("table.npy", npy_of(Tensor((B, 3), sum(table, [])), "<i4"))
        self.write("used.npy", npy_of(Tensor((B,), [SK, SK]), "<i4"))
        for descr, fortran in (("<i4", False), ("<i8", True)):
            self.write("table.npy", npy_of(Tensor((B, 3), sum(table, [])), descr, fortran))
            o, _ = self.attend("--page-table", "table.npy", "--page-size", str(page), "--used-k",
                               "used.npy")
            self.assertLess(worst(o, want_o), TOLERANCE)
        self.refused("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--page-table",
                     "table.npy", "--page-size", "4", "--used-k", "used.npy", words=["--page-size"])

    def test_layouts(self):
        want_o, want_lse = attention(self.q, self.k, self.v)
        self.write_qkv(fortran=True)
        o, lse = self.attend()
        self.assertLess(worst(o, want_o), TOLERANCE)
        axes = [0, 2, 1, 3]
        for name, t in (("q", self.q), ("k", self.k), ("v", self.v)):
            self.write(name + ".npy", npy_of(t.permuted(axes)))
        o, lse = self.attend("--layout", "bshd")
        self.assertLess(worst(o, want_o.permuted(axes)), TOLERANCE)
        self.assertLess(worst(lse, want_lse), TOLERANCE)

    def test_types(self):
        want_o, want_lse = attention(self.q, self.k, self.v)
        for descr, arguments, error in (("<f2", (), 2e-3), ("<V2", ("--dtype", "bf16"), 2e-2),
                                        ("bfloat16", (), 2e-2),
                                        ("<f8", ("--backend", "reference"), 1e-7)):
            with self.subTest(descr):
                self.write_qkv(descr)
                o, lse = self.attend(*arguments)
                self.assertLess(worst(o, want_o), error)
                self.assertLess(worst(lse, want_lse), TOLERANCE)
                o, _ = self.attend("--out-dtype", "f32", *arguments) if descr != "<f8" else (o, 0)
                self.assertLess(worst(o, want_o), TOLERANCE)

    def test_safetensors(self):
        want_o, want_lse = attention(self.q, self.k, self.v)
        for dtype, error in (("F32", TOLERANCE), ("F16", 2e-3), ("BF16", 2e-2)):
            with self.subTest(dtype):
                self.write("qkv.safetensors", safetensors_of(
                    {"extra": (noise((3,), 0), "F64"), "q": (self.q, dtype), "k": (self.k, dtype),
                     "layer.v": (self.v, dtype)}, {"note": "x"}))
                self.good("run", "--q", "qkv.safetensors", "--k", "qkv.safetensors:k", "--v",
                          "qkv.safetensors:layer.v", "--o", "out.safetensors", "--lse",
                          "out.safetensors:L", "--max-logit", "max.npy")
                out = parse_safetensors(self.read("out.safetensors"))
                self.assertEqual(set(out), {"o", "L"})
                self.assertLess(worst(out["o"], want_o), error)
                self.assertLess(worst(out["L"], want_lse), TOLERANCE)
                top = parse_npy(self.read("max.npy"))
                self.assertTrue(all(m <= x + 1e-6 for m, x in zip(top.values, want_lse.values)))
                # What the program wrote, it reads.
                self.good("run", "--q", "out.safetensors:o", "--k", "out.safetensors:o", "--v",
                          "out.safetensors:o", "--allow-nan")

    def test_json_and_compare(self):
        text = self.good_json("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--lse", "l.npy",
                              "--compare", "reference", "--json", "--threads", "1")
        self.assertEqual(text["problem"]["heads_kv"], HKV)
        self.assertEqual(text["plan"]["backend"], "cpu")
        self.assertLess(text["compare"]["o"]["max_error"], TOLERANCE)
        self.assertLess(text["compare"]["lse"]["max_error"], TOLERANCE)
        self.assertEqual(text["written"], ["l.npy"])
        self.assertIn("compared", self.good("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy",
                                            "--compare", "reference"))

    def test_determinism(self):
        runs = [self.attend("--determinism", level)[0].values
                for level in ("deterministic", "deterministic", "batch-invariant")]
        self.assertEqual(runs[0], runs[1])
        self.assertLess(max(abs(a - b) for a, b in zip(runs[0], runs[2])), TOLERANCE)

    def test_no_rows(self):
        self.q = Tensor((B, HQ, 0, D), [])
        self.write_qkv()
        o, lse = self.attend()
        self.assertEqual(o.shape, (B, HQ, 0, DV))
        self.q, self.k, self.v = noise((B, HQ, SQ, D), 1), Tensor((B, HKV, 0, D), []), Tensor(
            (B, HKV, 0, DV), [])
        self.write_qkv()
        o, lse = self.attend()
        self.assertEqual(set(o.values), {0.0})
        self.assertEqual(set(lse.values), {-math.inf})

    def test_progress(self):
        # Long enough that progress may show on any machine; what it shows is checked, not when.
        self.q, self.k, self.v = (noise((1, 2, 1500, 16), s) for s in (1, 2, 3))
        self.write_qkv()
        done = self.run_cli("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--backend",
                            "reference")
        self.assertEqual(done.returncode, 0)
        for line in done.stderr.decode().splitlines():
            self.assertRegex(line, r"^run: (step \d+, [\d.]+ % \(\d+ of \d+ tasks\)|[\d.]+ s)")
        quiet = self.run_cli("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--quiet")
        self.assertEqual(quiet.stderr, b"")


if __name__ == "__main__":
    unittest.main()
