#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of 8-bit attention against double precision, by how Q, K and V are scaled.

Inputs have outliers: N(0, 1) + N(0, 100) with probability 0.001 (Shah et al. 2024, section 4.3). Each row of the
table quantises them to E4M3 with one scale per tensor, per head, or per block of rows, plain or after Q and K were
turned by one random rotation (signs, then a Hadamard matrix: scores stay what they are, outliers spread over the
head dimension), runs the library and prints the RMSE of O. "emulated" is the same quantised inputs through attention
in double precision: what no kernel can be better than but by luck. The library takes scaled tensors; the rotation is
the caller's, as here.

  bench/peers/fp8_errors.py build/lib/libtessera.so
"""
import argparse
import math
import sys

import tessera_ctypes as tessera

LARGEST = 448.0  # of E4M3


def make_rotation(torch, dim, device):
    """Random signs, then a Hadamard matrix; orthogonal."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    signs = torch.randint(0, 2, (dim, 1)).double() * 2 - 1
    return (signs * h / math.sqrt(dim)).to(device)


def quantise(torch, x, how, rows):
    """E4M3 elements, scales [B, H, n] and rows that share one."""
    b, h, s, _ = x.shape
    if how == "tensor":
        largest = x.abs().amax().reshape(1, 1, 1).expand(b, h, 1)
    elif how == "head":
        largest = x.abs().amax(dim=(2, 3)).reshape(b, h, 1)
    else:
        largest = x.abs().reshape(b, h, s // rows, -1).amax(dim=3)
    scale = (largest / LARGEST).float().contiguous()
    each = s // scale.shape[2]
    elements = (x / scale.repeat_interleave(each, dim=2).unsqueeze(3)).clamp(-LARGEST, LARGEST)
    return elements.to(torch.float8_e4m3fn), scale, each if how == "block" else 0


def restore(x, scale):
    return x.double() * scale.double().repeat_interleave(x.shape[2] // scale.shape[2], dim=2).unsqueeze(3)


def attend(torch, q, k, v):
    return torch.softmax(q.double() @ k.double().mT / math.sqrt(q.shape[3]), -1) @ v.double()


def run_library(torch, library, q, k, v, scales, rows, dtype, kernel):
    o = torch.full(q.shape, math.nan, dtype=dtype, device=q.device)
    tensors = {"q": q, "k": k, "v": v, "o": o, **scales}
    plan = tessera.Plan(library, {n: tessera.View(t) for n, t in tensors.items()}, tessera.FORWARD,
                        lambda n: torch.empty(n, dtype=torch.uint8, device=q.device),
                        device=(tessera.CUDA, 0), backend="cuda", kernel=kernel, scale_rows=rows)
    plan.run(tessera.FORWARD, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    name = plan.describe(tessera.FORWARD)["kernel"]
    plan.close()
    return o, name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libtessera.so with the CUDA backend")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--block", type=int, default=128, help="rows that share a scale")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("fp8_errors: PyTorch is absent", file=sys.stderr)
        return 3
    library = tessera.Library(options.library)
    print("| keys | inputs | scales | rotated | RMSE | emulated | kernel |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for length in (int(n) for n in options.lengths.split(",")):
        torch.manual_seed(options.seed)
        shape = (1, options.heads, length, options.dim)
        q, k, v = [torch.randn(shape, dtype=torch.float64) +
                   10 * torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < 0.001)
                   for _ in range(3)]
        q, k, v = [x.cuda() for x in (q, k, v)]
        exact = attend(torch, q, k, v)

        def rmse(o):
            return (o.double() - exact).square().mean().sqrt().item()

        for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
            inputs = [x.to(dtype) for x in (q, k, v)]
            o, kernel = run_library(torch, library, *inputs, {}, (0, 0), dtype, None)
            print(f"| {length} | {name} | | | {rmse(o):.2e} | {rmse(attend(torch, *inputs)):.2e} | {kernel} |")
        for how, turned in (("tensor", False), ("head", False), ("block", False), ("tensor", True), ("block", True)):
            rotation = make_rotation(torch, options.dim, q.device)
            parts, scales, rows = {}, {}, {}
            for part, x in (("q", q), ("k", k), ("v", v)):
                x = x @ rotation if turned and part != "v" else x
                parts[part], scales[part + "_scale"], rows[part] = quantise(torch, x, how, options.block)
            o, kernel = run_library(torch, library, *parts.values(), scales, (rows["q"], rows["k"]),
                                    torch.float16, options.kernel)
            best = attend(torch, *[restore(parts[p], scales[p + "_scale"]) for p in parts])
            print(f"| {length} | e4m3 | {how} | {'yes' if turned else 'no'} | {rmse(o):.2e} | {rmse(best):.2e} "
                  f"| {kernel} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
