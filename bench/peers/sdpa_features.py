#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times forward with a feature on a GPU: Tessera's choice beside its other kernels and, where PyTorch has the
feature, its back ends; one process, the same tensors, turns taken.

Features: dense, paged (--page-sizes), softcap, alibi, bias, bias32 (float32), dropout. The first heads
are compared with float64 before anything is timed. Rates count the products alone: 4 B H Sq Sk D FLOPs, half of
that when causal.

  bench/peers/sdpa_features.py build/lib/libtessera.so --features paged,softcap --dims 64,128 --others any,paged
  bench/peers/sdpa_features.py build/lib/libtessera.so --features bias,dropout --peers efficient,cudnn"""
import argparse
import json
import sys

import sdpa_device
import tessera_ctypes as tsr
from sdpa_exact import BOUND, checked_rows
from sdpa_shapes import Shape

USED_K, ALIBI_PER_HEAD = 1 << 3, 1
SOFTCAP, DROPOUT, SEED = 20.0, 0.1, 1234



class Problem:
    """A shape with a feature: tensors, and what a plan needs beyond them."""

    def __init__(self, torch, shape, feature, page, device):
        self.torch, self.shape, self.feature = torch, shape, feature
        kind = {"f16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
        torch.manual_seed(1)

        def make(heads, length, dtype=kind, columns=shape.dim):
            return torch.randn(shape.batch, heads, length, columns, device=device).to(dtype)
        self.q = make(shape.heads, shape.length)
        self.k, self.v = make(shape.heads_kv, shape.length_k), make(shape.heads_kv, shape.length_k)
        self.o = torch.full_like(self.q, float("nan"))
        self.tensors, self.fields, self.pointers, self.kept = {}, {}, {}, []
        self.bias = self.slopes = None
        cache = {"k": self.k, "v": self.v}
        if feature == "paged":
            cache = self.pages(page, device)
        elif feature == "softcap":
            self.fields["softcap"] = SOFTCAP
        elif feature == "alibi":
            self.slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / shape.heads) for h in range(shape.heads)],
                                       device=device)
            self.fields["alibi"], self.pointers["alibi"] = ALIBI_PER_HEAD, self.slopes.data_ptr()
        elif feature in ("bias", "bias32"):
            # One for all sequences, as relative positions are.
            one = torch.randn(1, shape.heads, shape.length, shape.length_k, device=device)
            self.bias = one.to(torch.float32 if feature == "bias32" else kind).expand(shape.batch, -1, -1, -1)
            self.tensors["bias"], self.pointers["bias"] = self.bias, self.bias.data_ptr()
        elif feature == "dropout":
            self.fields["dropout"], self.pointers["seed"] = DROPOUT, SEED
        self.tensors.update(q=self.q, o=self.o, **cache)

    def pages(self, size, device):
        """K and V cut into pages that lie in a random order."""
        torch, shape = self.torch, self.shape
        each = -(-shape.length_k // size)
        count = each * shape.batch
        order = torch.randperm(count, device=device)
        table = order.to(torch.int32).view(shape.batch, each).contiguous()
        cache = {}
        for name, dense in (("k", self.k), ("v", self.v)):
            pool = torch.full((count, shape.heads_kv, size, shape.dim), float("nan"), dtype=dense.dtype,
                              device=device)
            padded = torch.nn.functional.pad(dense, (0, 0, 0, each * size - shape.length_k), value=float("nan"))
            pool[order] = padded.view(shape.batch, shape.heads_kv, each, size, shape.dim).transpose(1, 2).reshape(
                count, shape.heads_kv, size, shape.dim)
            cache[name] = pool
        used = torch.full((shape.batch,), shape.length_k, dtype=torch.int32, device=device)
        self.kept = [table, used]
        self.fields.update(arrays=USED_K, page_size=size, num_pages=count, max_pages=each, seq_k=0)
        self.pointers.update(page_table=table.data_ptr(), used_k=used.data_ptr())
        return cache

    def exact(self, rows, head=0):
        """O of rows of a head of the first sequence, float64."""
        torch, shape = self.torch, self.shape
        group = shape.heads // shape.heads_kv
        k, v = self.k[0, head // group].double(), self.v[0, head // group].double()
        s = self.q[0, head, rows].double() @ k.T / shape.dim ** 0.5
        keys = torch.arange(shape.length_k, device=k.device)[None, :]
        distance = (rows[:, None] + shape.length_k - shape.length - keys)
        if self.feature == "softcap":
            s = SOFTCAP * torch.tanh(s / SOFTCAP)
        if self.bias is not None:
            s = s + self.bias[0, head, rows].double()
        if self.slopes is not None:
            s = s - self.slopes[head].double() * distance.abs()
        if shape.causal:
            s = s.masked_fill(distance < 0, float("-inf"))
        p = torch.softmax(s, -1)
        if self.feature == "dropout":
            p = p * keep(torch, SEED, head, rows, shape.length_k) / (1 - DROPOUT)
        return p @ v

    def error(self, o):
        worst = largest = 0.0
        rows = checked_rows(self.torch, self.shape.length, o.device)
        for head in {0, self.shape.heads - 1}:
            exact = self.exact(rows, head)
            difference = o[0, head, rows].double() - exact
            if not self.torch.isfinite(difference).all().item():
                return float("inf")
            worst = max(worst, difference.abs().max().item())
            largest = max(largest, exact.abs().max().item())
        return worst / largest


def philox(torch, counter, key):
    """Philox4x32-10 on tensors of 32-bit numbers in int64."""
    low = 0xffffffff

    def product(a, factor):
        p = a * factor
        return (p >> 32) & low, p & low
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        (h0, l0), (h1, l1) = product(c0, 0xD2511F53), product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


def keep(torch, seed, head, rows, keys):
    """1 where dropout keeps, [rows, keys]; head counts over the batch."""
    zero = torch.zeros((), dtype=torch.int64)
    words = philox(torch, (zero, zero, zero, zero), (seed & 0xffffffff, seed >> 32))
    key = (int(words[0]), int(words[1]))
    quads = torch.arange(-(-keys // 4), device=rows.device)[None, :].expand(len(rows), -1)
    high = torch.zeros_like(quads)
    words = philox(torch, (quads, rows[:, None].expand_as(quads), high + head, high), key)
    return (torch.stack(words, -1).flatten(1)[:, :keys] >= int(DROPOUT * 2 ** 32)).double()


class Tessera:
    def __init__(self, problem, library, kernel):
        torch, device = problem.torch, problem.q.device
        self.problem, self.torch = problem, torch
        views = {n: tsr.View(t) for n, t in problem.tensors.items()}

        def allocate(size):
            return sdpa_device.Aligned(torch.empty(size + 64, dtype=torch.uint8, device=device))
        self.plan = tsr.Plan(library, views, tsr.FORWARD, allocate, device=(tsr.CUDA, device.index or 0),
                             causal="bottom-right" if problem.shape.causal else None, kernel=kernel,
                             fields=problem.fields, pointers=problem.pointers)
        self.about = self.plan.describe(tsr.FORWARD)

    def step(self, _):
        self.plan.run(tsr.FORWARD, self.torch.cuda.current_stream().cuda_stream)

    def error(self):
        self.problem.o.fill_(float("nan"))
        self.step(0)
        return self.problem.error(self.problem.o)


class Sdpa:
    def __init__(self, problem, name):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        torch, shape = problem.torch, problem.shape
        if problem.feature in ("paged", "softcap", "bias32"):
            raise ValueError("PyTorch has no such argument")
        self.problem, self.torch = problem, torch
        self.kernel = lambda: sdpa_kernel(getattr(SDPBackend, sdpa_device.PEERS[name]))
        self.options = {"enable_gqa": True} if shape.group > 1 else {}
        mask = problem.bias
        if problem.slopes is not None:
            i = torch.arange(shape.length, device=problem.q.device)[:, None] + shape.length_k - shape.length
            distance = (i - torch.arange(shape.length_k, device=problem.q.device)[None, :]).abs()
            mask = (-problem.slopes[:, None, None] * distance).to(problem.q.dtype)[None].expand(
                shape.batch, -1, -1, -1)
        if mask is not None and shape.causal:
            raise ValueError("a bias and is_causal exclude each other")
        if mask is not None:
            self.options["attn_mask"] = mask
        else:
            self.options["is_causal"] = shape.causal
        if problem.feature == "dropout":
            self.options["dropout_p"] = DROPOUT
        self.step(0)

    def step(self, _):
        p = self.problem
        with self.torch.no_grad(), self.kernel():
            return self.torch.nn.functional.scaled_dot_product_attention(p.q, p.k, p.v, **self.options)

    def error(self):
        # Its random numbers are others.
        return 0.0 if self.problem.feature == "dropout" else self.problem.error(self.step(0))


def candidates(problem, library, options):
    found = {}

    def add(name, make):
        try:
            one = make()
            one.relative_error = one.error()
        except (tsr.Refused, RuntimeError, ValueError) as problem_text:
            if not name.startswith("="):
                print(f"# {name}: {str(problem_text).splitlines()[0][:200]}")
            return None
        if not one.relative_error <= BOUND[problem.shape.dtype]["forward"]:
            print(f"# {name}: WRONG: error {one.relative_error:.3g} of the largest value")
            return None
        found[name] = one
        return one
    mine = add("tessera", lambda: Tessera(problem, library, options.kernel))
    others = [x for x in options.others.split(",") if x]
    for kernel in library.kernels("cuda", tsr.FORWARD):
        if any(x in kernel for x in others) and (mine is None or kernel != mine.about["kernel"]):
            add("=" + kernel, lambda kernel=kernel: Tessera(problem, library, kernel))
    for name in (x for x in options.peers.split(",") if x):
        add(name, lambda name=name: Sdpa(problem, name))
    return found


def time_problem(problem, page, library, options, about, timer):
    shape = problem.shape
    found = candidates(problem, library, options)
    if not found:
        return False
    samples = sdpa_device.time_all(problem.torch, timer, found, options)
    scale = shape.flops("forward") * 1e-12
    rates = {n: scale / sorted(s)[len(s) // 2] for n, s in samples.items()}
    feature = problem.feature + (str(page) if page else "")
    line = f"{feature:10} {shape.describe():36}"
    for name, rate in rates.items():
        if name == "tessera":
            line += f"  {found[name].about['kernel']} {rate:.4g}"
        else:
            over = f" ({rates['tessera'] / rate:.2f})" if "tessera" in rates else ""
            line += f"  {name} {rate:.4g}{over}"
    print(line, flush=True)
    record = dict(about, what="gpu attention feature", feature=feature, shape=shape.describe(), direction="forward",
                  unit="TFLOP/s", rates=rates, samples=samples,
                  errors={n: one.relative_error for n, one in found.items()})
    if "tessera" in found:
        record["tessera"] = found["tessera"].about
    if options.json:
        with open(options.json, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    return "tessera" in found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libtessera.so")
    parser.add_argument("--features", default="dense,paged,softcap,alibi,bias,dropout")
    parser.add_argument("--page-sizes", default="16,64,256")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--lengths", default="4096")
    parser.add_argument("--heads-kv", type=int, default=0, help="KV heads; 0: as many as query heads")
    parser.add_argument("--tokens", type=int, default=16384, help="queries of all sequences")
    parser.add_argument("--kernel", help="this one instead of the dispatcher's choice")
    parser.add_argument("--others", default="", help="also kernels whose names contain one of these words")
    parser.add_argument("--peers", default="", help="of " + ", ".join(sdpa_device.PEERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sample-seconds", type=float, default=0.01)
    parser.add_argument("--json", help="append records, one a line")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"# torch: absent: {error}")
        return 3
    if not torch.cuda.is_available():
        print("# torch: absent: it finds no CUDA device")
        return 3
    device = torch.device("cuda:0")
    library = tsr.Library(options.library)
    about = dict(sdpa_device.card(torch, device), version=library.version)
    print("# " + ", ".join(f"{k} {v}" for k, v in about.items()))
    print("# TFLOP/s; in brackets Tessera's rate over the other's")
    timer, right = sdpa_device.Timer(torch, device), True
    for dtype in options.dtypes.split(","):
        for dim in map(int, options.dims.split(",")):
            heads = 2048 // dim
            for length in map(int, options.lengths.split(",")):
                for mask in options.masks.split(","):
                    shape = Shape(max(1, options.tokens // length), heads, options.heads_kv or heads, length, length,
                                  dim, dtype, mask == "causal")
                    for feature in options.features.split(","):
                        pages = map(int, options.page_sizes.split(",")) if feature == "paged" else (0,)
                        for page in pages:
                            problem = Problem(torch, shape, feature, page, device)
                            right &= time_problem(problem, page, library, options, about, timer)
                            del problem
                            torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
