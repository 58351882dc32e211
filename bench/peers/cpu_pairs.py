#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds of Tessera and other libraries' CPU attention in one process, on the same tensors, call by call in turn.

Finer than peer_run.py, whose sides have a process each and a turn of 0.3 s: minutes of a shared machine differ by
more than what is asked. Every side's result is compared with float64 before it is timed; a wrong one ends the run
with status 1. The thread count is OMP_NUM_THREADS, so each count is a run of its own. Records go to --json.
PyTorch takes part unless --no-torch is given; --peers adds libraries that have a C driver (peer_c.py), each in
the fastest of its forms. Threads must sleep while it is not their turn: OMP_WAIT_POLICY=passive.

  OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive bench/peers/cpu_pairs.py \\
    --library new=build/lib/libtessera.so --library old=/tmp/old/libtessera.so backward:f32:16x512x128:full
A shape is pass:dtype:HEADSxNxD:mask, or HEADS/KVxNQ/NKxD; mask is full, causal, or windowN (causal, the N latest).
"""
import argparse
import ctypes
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time

import tessera_ctypes as tsr
from peer_api import BOUND, Absent, Restart

DRIVERS = ("openblas", "onednn", "ggml")
ROWS = 32  # compared, at the end, where most keys are seen


class Shape:
    def __init__(self, text):
        self.text = text
        self.direction, self.dtype, sizes, self.mask = text.split(":")
        heads, length, dim = sizes.split("x")
        self.heads, self.heads_kv = [int(x) for x in (heads + "/" + heads).split("/")[:2]]
        self.length, self.keys = [int(x) for x in (length + "/" + length).split("/")[:2]]
        self.dim = int(dim)
        self.window = int(self.mask[6:]) if self.mask.startswith("window") else 0
        self.backward = self.direction == "backward"

    def flops(self):
        pairs = self.length * self.keys
        if self.mask == "causal":
            pairs /= 2
        if self.window:
            full = min(self.window, self.length)
            pairs = full * self.length - full * (full - 1) / 2
        return 4 * self.heads * pairs * self.dim * (2.5 if self.backward else 1)

    def mask_of(self, torch, rows):
        """Allowed pairs of the last `rows` rows, or None."""
        if self.mask == "full":
            return None
        i = torch.arange(self.length - rows, self.length)[:, None]
        j = torch.arange(self.keys)[None, :]
        seen = j <= i
        return seen & (j > i - self.window) if self.window else seen


def shape_of(text):
    """For argparse, which turns a ValueError into its message."""
    try:
        shape = Shape(text)
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"'{text}' is not pass:dtype:HEADSxNxD:mask") from None
    if (shape.direction not in ("forward", "backward") or shape.dtype not in BOUND or
            not (shape.mask in ("full", "causal") or shape.window > 0) or
            min(shape.heads, shape.heads_kv, shape.length, shape.keys, shape.dim) < 1):
        raise argparse.ArgumentTypeError(f"'{text}' is not accepted here")
    return shape


def drivers(text):
    names = text.split(",")
    wrong = [n for n in names if n not in DRIVERS]
    if wrong:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is not one of {', '.join(DRIVERS)}")
    return names


def tensors_of(torch, shape):
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
    torch.manual_seed(1)
    t = {"q": torch.randn(1, shape.heads, shape.length, shape.dim).to(kind),
         "k": torch.randn(1, shape.heads_kv, shape.keys, shape.dim).to(kind),
         "v": torch.randn(1, shape.heads_kv, shape.keys, shape.dim).to(kind)}
    if shape.backward:
        t["dout"] = torch.randn(1, shape.heads, shape.length, shape.dim).to(kind)
    return t


def exact(torch, shape, t):
    """O of the last rows of the first and the last head in float64; dQ of them with backward, and dK and dV of the
    last key head where few enough pairs make them affordable."""
    group = shape.heads // shape.heads_kv
    rows = min(ROWS, shape.length)
    whole = shape.backward and shape.length <= 1024
    out = {}
    for kv in (0, shape.heads_kv - 1):
        here = shape.length if whole else rows
        q = t["q"][:, kv * group:(kv + 1) * group, -here:].double().requires_grad_(shape.backward)
        k, v = (t[n][:, kv:kv + 1].double().requires_grad_(shape.backward) for n in "kv")
        s = q @ k.transpose(-1, -2) / shape.dim ** 0.5
        seen = shape.mask_of(torch, here)
        if seen is not None:
            s = s.masked_fill(~seen, float("-inf"))
        o = s.softmax(-1) @ v
        out[("o", kv)] = o[:, :, -rows:].detach()
        if shape.backward:
            g = t["dout"][:, kv * group:(kv + 1) * group, -here:].double()
            dq, dk, dv = torch.autograd.grad(o, (q, k, v), g)
            out[("dq", kv)] = dq[:, :, -rows:]
            if whole:
                out[("dk", kv)], out[("dv", kv)] = dk, dv
    return out


def worst_error(shape, wanted, got):
    group = shape.heads // shape.heads_kv
    worst = 0.0
    for (name, kv), value in wanted.items():
        if name not in got:
            continue
        x = got[name]
        if name in ("dk", "dv"):
            x = x[:, kv:kv + 1]
        else:
            x = x[:, kv * group:(kv + 1) * group, -value.shape[2]:]
        error = ((x.double() - value).abs().max() / value.abs().max()).item()
        worst = error if not error <= worst else worst
    return worst


class Tessera:
    def __init__(self, torch, name, library, shape, t, lse):
        self.name = name
        mine = dict(t, o=torch.full_like(t["q"], float("nan")))
        if shape.backward or lse:
            mine["lse"] = torch.empty(1, shape.heads, shape.length, dtype=torch.float32)
        if shape.backward:
            mine.update({"d" + n: torch.full_like(t[n], float("nan")) for n in "qkv"})
        self.which = tsr.BACKWARD if shape.backward else tsr.FORWARD
        views = {n: tsr.View(x) for n, x in mine.items()}
        fields = {"window": tsr.Window(1, 0, shape.window - 1, 0)} if shape.window else None
        self.plan = tsr.Plan(library, views, 3 if shape.backward else 1,
                             lambda n: Aligned(torch, n), backend="cpu", fields=fields,
                             causal="top-left" if shape.mask == "causal" else None)
        self.plan.run(tsr.FORWARD)
        if shape.backward:
            self.plan.run(tsr.BACKWARD)
        self.got = mine
        self.kernel = self.plan.describe(self.which)["kernel"]

    def step(self):
        self.plan.run(self.which)


class Aligned:
    def __init__(self, torch, size):
        self.memory = torch.empty(size + 64, dtype=torch.uint8)

    def data_ptr(self):
        return (self.memory.data_ptr() + 63) // 64 * 64


class PyTorch:
    def __init__(self, torch, shape, t):
        self.name, self.kernel, self.torch, self.shape = "torch", "", torch, shape
        self.options = {"is_causal": shape.mask == "causal"}
        if shape.window:  # PyTorch has no windows: a mask tensor, which takes its flash kernel too
            self.options["attn_mask"] = shape.mask_of(torch, shape.length)
        if shape.heads != shape.heads_kv:
            self.options["enable_gqa"] = True
        self.t = {n: x.detach().clone().requires_grad_(shape.backward) for n, x in t.items()}
        self.o = self.attend()
        self.got = {"o": self.o.detach()}
        if shape.backward:
            self.got.update(zip(("dq", "dk", "dv"), self.grad()))

    def attend(self):
        return self.torch.nn.functional.scaled_dot_product_attention(
            self.t["q"], self.t["k"], self.t["v"], **self.options)

    def grad(self):
        return self.torch.autograd.grad(self.o, (self.t["q"], self.t["k"], self.t["v"]),
                                        self.t["dout"], retain_graph=True)

    def step(self):
        if self.shape.backward:
            self.grad()
        else:
            with self.torch.no_grad():
                self.attend()


class Driven:
    """A library behind a C driver, in the fastest of the forms that take the shape; LookupError if none does."""

    def __init__(self, torch, name, peer, shape, t):
        from peer_c import TYPES, DriverShape
        self.name, self.peer, self.driver = name, peer, peer.loaded
        self.given = DriverShape(shape.heads, shape.heads_kv, shape.length, shape.keys, shape.dim,
                                 int(shape.mask != "full"), shape.window, TYPES[shape.dtype], int(shape.backward),
                                 peer.threads, shape.dim ** -0.5)
        names = ["q", "k", "v"] + ["dout"] * shape.backward
        self.arrays = [t[n].float().contiguous() for n in names]
        forms, why, form = [], [], 0
        while self.driver.peer_form(form) is not None:
            reason = self.open(form)
            if reason:
                why.append(reason)
            else:
                start = time.perf_counter()
                self.step()
                seconds = time.perf_counter() - start
                if seconds < 0.5:  # the first call pays for memory
                    start = time.perf_counter()
                    self.step()
                    seconds = time.perf_counter() - start
                forms.append((seconds, form))
            form += 1
        if not forms:
            raise LookupError(f"{name}: " + "; ".join(dict.fromkeys(why)))
        best = min(forms)[1]
        self.kernel = self.driver.peer_form(best).decode()
        if best != form - 1:
            self.open(best)
            self.step()
        self.got = {}
        for which, n in enumerate(("dq", "dk", "dv") if shape.backward else ("o",), int(shape.backward)):
            self.got[n] = torch.empty_like(t[n[1] if shape.backward else "q"], dtype=torch.float32)
            self.driver.peer_output(which, self.got[n].data_ptr())

    def open(self, form):
        """None, or why not."""
        reason = ctypes.create_string_buffer(256)
        pointers = [x.data_ptr() for x in self.arrays] + [None] * (4 - len(self.arrays))
        if self.driver.peer_open(ctypes.byref(self.given), form, *pointers, reason, 256):
            self.driver.peer_close()
            return reason.value.decode(errors="replace")
        return None

    def step(self):
        self.driver.peer_run()

    def close(self):
        self.driver.peer_close()


def take_turns(sides, seconds, rounds, least=3):
    """Calls of the sides in turn, in an order that rotates; two rounds warm up, or one if it takes long."""
    times, turn, warm, end = {s.name: [] for s in sides}, 0, 2, None
    while turn < warm + least or (turn < rounds and time.perf_counter() < end):
        began = time.perf_counter()
        if turn == warm:
            end = began + seconds
        for i in range(len(sides)):
            side = sides[(i + turn) % len(sides)]
            start = time.perf_counter()
            side.step()
            passed = time.perf_counter() - start
            if turn >= warm:
                times[side.name].append(passed)
        if turn == 0 and time.perf_counter() - began > (min(2, 10 * seconds) or 2):
            warm = 1
        turn += 1
    return times


def measure(torch, options, libraries, peers, shape):
    text = shape.text
    t = tensors_of(torch, shape)
    sides = [Tessera(torch, name, lib, shape, t, options.lse) for name, lib in libraries]
    if not options.no_torch:
        sides.append(PyTorch(torch, shape, t))
    refused = {}
    for name, peer in peers:
        try:
            sides.append(Driven(torch, name, peer, shape, t))
        except LookupError as error:
            refused[name] = str(error)
    wanted = exact(torch, shape, t)
    errors = {s.name: worst_error(shape, wanted, s.got) for s in sides}
    bad = [n for n, e in errors.items() if not e <= BOUND[shape.dtype]]
    times = take_turns(sides, options.seconds, options.rounds, options.least)
    median = {n: statistics.median(x) for n, x in times.items()}
    words = [f"{text:38}"]
    for s in sides:
        ms = median[s.name] * 1e3
        words.append(f"{s.name} {ms:.3f} ms" + (
            f" {shape.flops() / ms / 1e6:.0f} GF" if shape.length > 1 else
            f" {2 * shape.heads_kv * shape.keys * shape.dim * t['k'].element_size() / ms / 1e6:.1f} GB/s"))
        words[-1] += "".join(f" {median[x.name] / median[s.name]:.2f}x" for x in sides
                             if isinstance(s, Tessera) and not isinstance(x, Tessera))
    print(" | ".join(words), f"| error {max(errors.values()):.1e}", flush=True)
    if options.json:
        record = {"what": "cpu pairs", "shape": text, "threads": options.threads,
                  "wait": os.environ.get("OMP_WAIT_POLICY", "default"), "lse": bool(options.lse),
                  "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "cpu": options.cpu,
                  "peers": {name: peer.versions[name] for name, peer in peers}, "refused": refused,
                  "sides": {s.name: {"kernel": s.kernel, "median_s": median[s.name],
                                     "best_s": min(times[s.name]), "calls": len(times[s.name]),
                                     "error": errors[s.name]} for s in sides}}
        with open(options.json, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    for s in sides:
        if isinstance(s, Tessera):
            s.plan.close()
        elif isinstance(s, Driven):
            s.close()
    if bad:
        print(f"{text}: wrong: {', '.join(bad)}", file=sys.stderr)
    return not bad


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def peers_of(options, folder):
    """(name, peer) of --peers; a library that reads a variable once makes the script start again with it."""
    peers = []
    for name in options.peers:
        config = {"threads": options.threads, "folder": folder, name: getattr(options, name)}
        try:
            peers.append((name, importlib.import_module("peer_" + name).Peer(config)))
        except Restart as restart:
            os.environ.update(restart.variables)
            os.execv(sys.executable, [sys.executable] + sys.argv)
        except Absent as absent:
            print(f"{name}: absent: {absent}", file=sys.stderr)
    return peers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=[], type=drivers, help="of openblas, onednn, ggml, separated by commas")
    for name in DRIVERS:
        parser.add_argument("--" + name, metavar="FOLDER", help="where it is installed, if not in the system")
    parser.add_argument("--library", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--seconds", type=float, default=1.0, help="of turns per shape")
    parser.add_argument("--rounds", type=int, default=400, help="at most")
    parser.add_argument("--least", type=int, default=3, help="rounds, however long they take")
    parser.add_argument("--lse", action="store_true", help="forward stores LSE, as PyTorch always does")
    parser.add_argument("--no-torch", action="store_true", help="the libraries among themselves")
    parser.add_argument("--json", help="append records, one a line")
    parser.add_argument("shapes", nargs="+", type=shape_of)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("PyTorch is not here", file=sys.stderr)
        return 3
    options.threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
    options.cpu = cpu_name()
    torch.set_num_threads(options.threads)
    libraries = [(n, tsr.Library(p)) for n, p in (x.split("=", 1) for x in options.library)]
    with tempfile.TemporaryDirectory(prefix="tessera-pairs-") as folder:
        peers = peers_of(options, folder)
        right = [measure(torch, options, libraries, peers, shape) for shape in options.shapes]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
