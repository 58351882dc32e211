#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every class of bad file and bad option: one line on stderr that names the option and what is
accepted, status 2, and no output file, new or half written."""
import os
import resource
import signal
import struct
import subprocess
import time
import unittest

from harness import PROGRAM, CliTest, entry, noise, npy, npy_of, safetensors, safetensors_of

NAN = struct.pack("<f", float("nan"))
SHAPE = (1, 2, 4, 8)
ELEMENTS = 64


def plain(dtype="F32", size=4):
    return {"q": entry(dtype, list(SHAPE), 0, ELEMENTS * size)}


# name of the file, its bytes, and a word that the message must hold
BAD_NPY = {
    "empty": (b"", "empty"),
    "one_byte": (b"\x93", "truncated"),
    "random": (bytes(range(200)), "no .npy file"),
    "text": (b"hello world, this is text\n" * 9, "no .npy file"),
    "truncated_header": (npy("<f4", SHAPE)[:40], "truncated"),
    "truncated_data": (npy("<f4", SHAPE)[:-5], "truncated"),
    "no_data": (npy("<f4", SHAPE, body=b""), "truncated"),
    "longer": (npy("<f4", SHAPE) + b"x", "longer"),
    "huge_header": (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 64, "header of 2147483647"),
    "version_9": (b"\x93NUMPY\x09\x00" + npy("<f4", SHAPE)[8:], "version 9.0"),
    "int32": (npy("<i4", SHAPE), "I32"),
    "bool": (npy("|b1", SHAPE), "BOOL"),
    "object": (npy("|O", SHAPE, body=b"\0" * 512), "descr '|O'"),
    "complex": (npy("<c8", SHAPE, body=b"\0" * 512), "descr '<c8'"),
    "void2": (npy("<V2", SHAPE), "--dtype bf16"),
    "big_endian": (npy(">f4", SHAPE), "little-endian"),
    "structured": (npy(header="{'descr': [('x', '<f4')], 'fortran_order': False, "
                       "'shape': (64,)}", body=b"\0" * 256), "structured"),
    "rank_2": (npy("<f4", (8, 8)), "dimensions"),
    "rank_9": (npy("<f4", (1,) * 9), "dimensions"),
    "negative": (npy(header="{'descr': '<f4', 'fortran_order': False, 'shape': (1,2,-4,8)}",
                     body=b""), "shape"),
    "overflow": (npy("<f4", (1 << 40, 1 << 40, 4, 8), body=b""), "2^63"),
    "claims_terabytes": (npy("<f4", (1, 2, 1 << 36, 8), body=b"\0" * 64), "truncated"),
    "nan": (npy("<f4", SHAPE, body=NAN * ELEMENTS), "NaN"),
    "one_nan": (npy("<f4", SHAPE, body=b"\0" * 4 * 63 + NAN), "flat index 63"),
    "other_heads": (npy("<f4", (1, 3, 4, 8), body=b"\0" * 384), "heads"),
    "other_dim": (npy("<f4", (1, 2, 4, 9), body=b"\0" * 288), "head dimension"),
    "other_batch": (npy("<f4", (2, 2, 4, 8), body=b"\0" * 512), "batch"),
    "duplicate_key": (npy(header="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, "
                          "'shape': (1,2,4,8)}", body=b"\0" * 256), "twice"),
    "missing_key": (npy(header="{'descr': '<f4', 'shape': (1,2,4,8)}", body=b"\0" * 256),
                    "fortran_order"),
    "code": (npy(header="__import__('os').system('true')", body=b"\0" * 256), "dictionary"),
}

BAD_SAFETENSORS = {
    "empty": (b"", "empty"),
    "seven": (b"\x10\0\0\0\0\0\0", "truncated"),
    "random": (bytes(range(1, 200)), "header of"),
    "npy": (npy("<f4", SHAPE), "header of"),
    "huge_header": (safetensors({}, length=1 << 60), "header of"),
    "long_header": (safetensors(plain(), b"\0" * 256, length=4096), "truncated"),
    "no_json": (safetensors(b"{broken"), "JSON"),
    "array": (safetensors(b"[1, 2]"), "begin with '{'"),
    "deep": (safetensors(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"), "JSON"),
    "truncated": (safetensors(plain(), b"\0" * 200), "truncated"),
    "tail": (safetensors(plain(), b"\0" * 260), "after its last tensor"),
    "hole": (safetensors({"q": entry("F32", list(SHAPE), 4, 260)}, b"\0" * 260), "hole"),
    "overlap": (safetensors(dict(plain(), x=entry("U8", [8], 250, 258)), b"\0" * 258), "inside"),
    "backwards": (safetensors({"q": entry("F32", list(SHAPE), 256, 0)}, b"\0" * 256), "backwards"),
    "wrong_size": (safetensors({"q": entry("F32", [1, 2, 4, 9], 0, 256)}, b"\0" * 256), "span"),
    "overflow": (safetensors({"q": entry("F32", [1 << 40, 1 << 40], 0, 256)}, b"\0" * 256), "2^63"),
    "fraction": (safetensors({"q": entry("F32", [1.5, 2], 0, 256)}, b"\0" * 256), "integer"),
    "dtype": (safetensors(plain("Q4"), b"\0" * 256), "dtype"),
    "int64": (safetensors(plain("I64", 8), b"\0" * 512), "I64"),
    "field": (safetensors({"q": dict(plain()["q"], stride=[1])}, b"\0" * 256), "fields"),
    "duplicate": (safetensors(b'{"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                              b'"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"), "JSON"),
    "metadata": (safetensors({"__metadata__": {"n": 1}}), "no string"),
    "control": (safetensors({"\n\x1b[31mq": entry("F32", [3], 0, 4)}, b"\0" * 4), "span"),
    "nan": (safetensors(plain(), NAN * ELEMENTS), "NaN"),
    "other_name": (safetensors({"x": plain()["q"], "y": entry("U8", [1], 256, 257)}, b"\0" * 257),
                   'no tensor "q"'),
}


class BadInput(CliTest):
    def setUp(self):
        super().setUp()
        for name, seed in (("q", 1), ("k", 2), ("v", 3)):
            self.write(name + ".npy", npy_of(noise(SHAPE, seed)))
        self.keep = sorted(os.listdir(self.folder))

    def refused_run(self, *arguments, status=2, words=(), q="q.npy", k="k.npy", outputs=True,
                    **options):
        before = sorted(os.listdir(self.folder))
        command = ["run", "--q", q, "--k", k, "--v", "v.npy"]
        if outputs:
            command += ["--o", "o.npy", "--lse", "out.safetensors:lse"]
        text = self.refused(*command, *arguments, status=status, words=words, **options)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        return text

    def test_bad_npy(self):
        for name, (data, word) in BAD_NPY.items():
            with self.subTest(name):
                self.write("bad.npy", data)
                self.refused_run(k="bad.npy", words=["--k", word])

    def test_bad_safetensors(self):
        for name, (data, word) in BAD_SAFETENSORS.items():
            with self.subTest(name):
                self.write("bad.safetensors", data)
                self.refused_run(q="bad.safetensors", words=["--q: bad.safetensors", word])

    def test_not_a_file(self):
        os.mkdir(self.path("dir.npy"))
        os.mkfifo(self.path("pipe.npy"))
        os.symlink("nowhere.npy", self.path("dangling.npy"))
        for name, word in (("dir.npy", "a directory"), ("pipe.npy", "a pipe"),
                           ("missing.npy", "No such file"), ("dangling.npy", "No such file"),
                           ("q.npy/x.npy", "Not a directory"), ("q.txt", "extension"),
                           ("q.npz", "extension"), ("q.safetensors:", "no tensor name")):
            with self.subTest(name):
                self.refused_run(q=name, words=["--q", word])
        os.symlink("/dev/zero", self.path("zero.npy"))
        self.refused_run(q="zero.npy", words=["a device"])

    def test_unreadable(self):
        os.chmod(self.path("k.npy"), 0)
        if os.access(self.path("k.npy"), os.R_OK):
            self.skipTest("this user may read everything")
        self.refused_run(words=["--k", "Permission denied"])

    def test_name_stays_on_one_line(self):
        self.refused_run(q="two\nlines\x1b[2J.npy", words=["No such file"])
        self.refused_run(q="x" * 3000 + ".npy", words=["--q"])
        self.refused_run(q="x" * 9000 + ".npy", words=["9004 bytes long"])

    def test_tensor_names(self):
        self.write("two.safetensors", safetensors_of({"a": (noise(SHAPE, 1), "F32"),
                                                      "b": (noise(SHAPE, 2), "F32")}))
        self.refused_run(q="two.safetensors", words=['no tensor "q"', "a, b"])
        self.refused_run(q="two.safetensors:c", words=['no tensor "c"', "a, b"])

    def test_mixed_types(self):
        self.write("half.npy", npy_of(noise(SHAPE, 2), "<f2"))
        self.refused_run(k="half.npy", words=["--k", "dtype"])

    def test_feature_files(self):
        self.write("i32.npy", npy("<i4", (3,)))
        self.write("f32.npy", npy("<f4", (3,)))
        self.write("mask.npy", npy("|u1", (5, 4)))
        self.write("table.npy", npy("<i4", (2, 2)))
        for arguments, words in (
                (("--bias", "i32.npy"), ["--bias", "I32"]),
                (("--bias", "f32.npy"), ["--bias", "[1, 2, 4, 4]"]),
                (("--mask", "f32.npy"), ["--mask", "F32"]),
                (("--mask", "mask.npy"), ["--mask", "[5, 4]"]),
                (("--alibi", "f32.npy"), ["--alibi", "query heads"]),
                (("--sink", "f32.npy"), ["--sink", "query heads"]),
                (("--used-k", "f32.npy"), ["--used-k", "F32"]),
                (("--used-k", "i32.npy"), ["--used-k", "batch"]),
                (("--cu-seqlens-q", "i32.npy"), ["--q", "packed"]),
                (("--page-table", "table.npy"), ["--page-table", "batch"]),
                (("--page-size", "4"), ["--page-size", "--page-table"]),
                (("--block-q", "4"), ["--block-mask"]),
        ):
            with self.subTest(arguments):
                self.refused_run(*arguments, words=words)

    def test_bad_lengths(self):
        self.write("qp.npy", npy("<f4", (2, 9, 8), body=bytes(576)))
        self.write("cu.npy", npy("<i4", (3,), body=struct.pack("<3i", 0, 9, 4)))
        self.refused("run", "--q", "qp.npy", "--k", "qp.npy", "--v", "qp.npy", "--cu-seqlens-q",
                     "cu.npy", "--cu-seqlens-k", "cu.npy", "--o", "o.npy", words=["--cu-seqlens-q", "cu_q"])
        self.write("table.npy", npy("<i4", (1, 2), body=struct.pack("<2i", 0, 99)))
        self.write("used.npy", npy("<i8", (1,), body=struct.pack("<q", 6)))
        self.refused_run("--page-table", "table.npy", "--used-k", "used.npy", words=["--page-table"])
        self.refused_run("--page-table", "table.npy", words=["--used-k", "USED_K"])
        self.write("used.npy", npy("<i8", (1,), body=struct.pack("<q", 1 << 40)))
        self.refused_run("--used-k", "used.npy", words=["--used-k", "used_k"])

    def test_options(self):
        for arguments, words in (
                (("--frobnicate",), ["--frobnicate"]),
                (("--causal",), ["--causal", "no value"]),
                (("--causal", "yes"), ["--causal", "top-left"]),
                (("--window", "3"), ["--window", "L,R"]),
                (("--window", "3,0"), ["--window", "diagonal"]),
                (("--window", "-1,0,top-left"), ["--window", "from 0"]),
                (("--causal", "2", "--window", "1,1,3"), ["--window", "same diagonal"]),
                (("--causal", "top-left", "--window", "1,1,bottom-right"), ["invalid argument"]),
                (("--scale", "big"), ["--scale"]),
                (("--scale", "nan"), ["--scale", "finite"]),
                (("--scale", "1e-60"), ["--scale", "float32"]),
                (("--scale", "1e60"), ["--scale"]),
                (("--softcap", "1e-60"), ["--softcap", "float32"]),
                (("--softcap", "-1"), ["--softcap"]),
                (("--dropout", "1.5"), ["--dropout"]),
                (("--seed", "1"), ["--seed", "--dropout"]),
                (("--seed", "-1", "--dropout", "0.5"), ["--seed"]),
                (("--prefix", "-3"), ["--prefix"]),
                (("--layout", "sbhd"), ["--layout", "bhsd"]),
                (("--dtype", "f32"), ["--dtype", "bf16"]),
                (("--out-dtype", "int8"), ["--out-dtype"]),
                (("--determinism", "maybe"), ["--determinism"]),
                (("--threads", "0"), ["--threads"]),
                (("--threads", "9999999999"), ["--threads"]),
                (("--backend", "abacus"), ["--backend", "abacus"]),
                (("--kernel", "abacus"), ["--kernel", "abacus"]),
                (("--compare", "abacus"), ["--compare", "abacus"]),
                (("--alibi", "auto", "--alibi", "k.npy"), ["--alibi"]),
                (("--json=yes",), ["--json", "no value"]),
                (("-x",), ["-x"]),
                (("stray",), ["stray"]),
        ):
            with self.subTest(arguments):
                self.refused_run(*arguments, words=words)
        self.refused("run", "--k", "k.npy", "--v", "v.npy", words=["--q", "not given"])
        self.refused(words=["no command"])
        self.refused("dance", words=["dance", "info"])
        for command in ("info", "explain", "check", "bench", "demo"):
            self.refused(command, "--frobnicate", words=["--frobnicate"])

    def test_outputs(self):
        os.mkdir(self.path("dir.npy"))
        for arguments, words in (
                (("--o", "o.txt"), ["--o", "extension"]),
                (("--o", "nowhere/o.npy"), ["--o", "nowhere"]),
                (("--o", "q.npy/o.npy"), ["--o"]),
                (("--o", "dir.npy"), ["--o", "no regular file"]),
                (("--o", "q.npy"), ["--o", "--q"]),
                (("--o", "./k.npy"), ["--o", "--k"]),
                (("--o", "x.npy", "--lse", "x.npy"), ["--lse", "x.npy"]),
                (("--o", "x.safetensors:a", "--lse", "x.safetensors:a"), ["--lse"]),
        ):
            with self.subTest(arguments):
                self.refused_run(*arguments, words=words, outputs=False)

    def test_failed_write_keeps_old_files(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

        self.write("o.npy", b"old output")
        self.write("lse.npy", b"old lse")
        text = self.refused("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--lse", "lse.npy",
                            "--o", "o.npy", status=1, words=["cannot be written"],
                            preexec_fn=small_files)
        self.assertIn("npy", text)
        self.assertEqual(self.read("o.npy"), b"old output")
        self.assertEqual(self.read("lse.npy"), b"old lse")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(self.keep + ["o.npy", "lse.npy"]))

    def test_failed_rename_is_taken_back(self):
        self.write("l.npy", b"old lse")
        locked = subprocess.run(["chattr", "+i", "l.npy"], cwd=self.folder, check=False,
                                stderr=subprocess.DEVNULL)
        if locked.returncode != 0:
            self.skipTest("no immutable files here")
        self.addCleanup(subprocess.run, ["chattr", "-i", self.path("l.npy")], check=False)
        command = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--o", "o.npy", "--lse",
                   "l.npy"]
        for old in (None, b"old output"):
            if old:
                self.write("o.npy", old)
            before = sorted(os.listdir(self.folder))
            self.refused(*command, status=1, words=["l.npy", "put in place"])
            self.assertEqual(sorted(os.listdir(self.folder)), before)
            self.assertEqual(self.read("l.npy"), b"old lse")
            if old:
                self.assertEqual(self.read("o.npy"), old)

    def test_interrupt_leaves_no_file(self):
        # One key and many queries: little work, and an output large enough to be met while written.
        rows = 1 << 18
        self.write("q.npy", npy("<f4", (1, 1, rows, 64), body=bytes(rows * 256)))
        self.write("k.npy", npy("<f4", (1, 1, 1, 64), body=bytes(256)))
        before = set(os.listdir(self.folder))
        done = subprocess.Popen([*PROGRAM, "run", "--q", "q.npy", "--k", "k.npy", "--v", "k.npy", "--o",
                                 "o.npy", "--lse", "lse.npy", "--quiet"], cwd=self.folder,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while done.poll() is None and set(os.listdir(self.folder)) == before:
            time.sleep(0.001)
        done.send_signal(signal.SIGINT)
        status = done.wait()
        left = set(os.listdir(self.folder)) - before
        # Too late to interrupt means that both are whole; else there is nothing.
        self.assertIn((status, left), [(-signal.SIGINT, set()), (0, {"o.npy", "lse.npy"}),
                                       (-signal.SIGINT, {"o.npy", "lse.npy"})])

    def test_allow_nan(self):
        self.write("bad.npy", BAD_NPY["one_nan"][0])
        self.good("run", "--q", "q.npy", "--k", "k.npy", "--v", "bad.npy", "--allow-nan", "--o",
                  "o.npy")
        self.assertTrue(os.path.exists(self.path("o.npy")))

    def test_demo_files(self):
        good = noise(SHAPE, 1)
        parts = {"m.l00." + p: (good, "F32") for p in "qkv"}
        meta = {"m.scale": "0.5", "m.causal": "none"}
        for name, (tensors, metadata), word in (
                ("no layer", ({"q": (good, "F32")}, meta), "no tensor named"),
                ("no v", ({n: parts[n] for n in ("m.l00.q", "m.l00.k")}, meta), "m.l00.v"),
                ("no scale", (parts, {"m.causal": "none"}), "scale"),
                ("bad scale", (parts, dict(meta, **{"m.scale": "x"})), "finite number"),
                ("bad causal", (parts, dict(meta, **{"m.causal": "diagonal"})), "top-left"),
                ("types", (dict(parts, **{"m.l00.k": (good, "F16")}), meta), "belong together")):
            with self.subTest(name):
                self.write("demo.safetensors", safetensors_of(tensors, metadata))
                done = self.run_cli("demo", "demo.safetensors", "--json")
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr.count(b"\n"), 1)
                self.assertIn(word, done.stderr.decode())
        self.refused("demo", words=["no file given"])
        self.refused("demo", "missing.safetensors", words=["No such file"])


if __name__ == "__main__":
    unittest.main()
