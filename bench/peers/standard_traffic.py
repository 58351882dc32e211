#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GFLOP, bytes of device memory and time of standard attention beside Tessera, forward and backward: the
comparison of figure 2 (left) of Dao et al. 2022, "FlashAttention". By default at the shape of GPT-2 medium.

Standard attention is matmul, softmax, matmul of PyTorch with its autograd, probabilities in the tensors' own
type. Both are compared with float64 before they are measured. Bytes are what Nsight Compute counted at the
memory (dram__bytes_read.sum, dram__bytes_write.sum) over all kernels of one forward and one backward pass, with
caches as the passes before left them; beside them what was predicted: of Tessera by the plan, of standard
attention by counting each tensor at each kernel that has to read or write it. FLOPs are those of the matrix
products, 2 B H N^2 D each: standard attention has six, Tessera seven because backward makes the scores again.

  bench/peers/standard_traffic.py build/cli/tessera --json out.jsonl
"""
import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys

import sdpa_device
import sdpa_exact
import tessera_ctypes as tsr
from sdpa_shapes import BYTES, Shape

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
PASSES = (("forward", tsr.FORWARD), ("backward", tsr.BACKWARD))


class Standard:
    """softmax(Q K^T / sqrt(D)) V with the matrices in memory."""

    products = {"forward": 2, "backward": 4}
    kernel = {"forward": "matmul, softmax, matmul", "backward": "autograd of it"}

    def __init__(self, torch, shape, tensors):
        self.torch, self.scale = torch, shape.dim ** -0.5
        self.leaves = [tensors[n].detach().clone().requires_grad_() for n in "qkv"]
        self.dout = tensors["dout"]

    def forward(self):
        q, k, v = self.leaves
        scores = self.torch.matmul(q * self.scale, k.transpose(-1, -2))
        self.o = self.torch.matmul(self.torch.softmax(scores, dim=-1), v)
        return self.o

    def backward(self):
        return self.torch.autograd.grad(self.o, self.leaves, self.dout)

    @staticmethod
    def predicted(shape):
        size = BYTES[shape.dtype]
        matrix = shape.batch * shape.heads * shape.length * shape.length_k * size
        rows = shape.batch * shape.heads * shape.length * shape.dim * size
        # Scores, softmax, outputs; dP, dV, softmax's gradient, dQ, dK. Of rows: Q scaled and read again, K; V,
        # O; dO and V, dO and dV; K and dQ, Q and dK, dQ scaled.
        return {"forward": 4 * matrix + 6 * rows, "backward": 7 * matrix + 10 * rows}


class Fused:
    products = {"forward": 2, "backward": 5}

    def __init__(self, torch, library, shape, tensors, device):
        self.torch, self.tensors = torch, dict(tensors)
        one = self.tensors
        one["o"] = torch.full_like(one["q"], float("nan"))
        one["lse"] = torch.full(one["q"].shape[:3], float("nan"), dtype=torch.float32, device=device)
        for name in "qkv":
            one["d" + name] = torch.full_like(one[name], float("nan"))

        def allocate(size):
            return sdpa_device.Aligned(torch.empty(size + 64, dtype=torch.uint8, device=device))
        self.plan = tsr.Plan(library, {n: tsr.View(t) for n, t in one.items()}, tsr.FORWARD | tsr.BACKWARD,
                             allocate, device=(tsr.CUDA, device.index or 0))
        self.about = {name: self.plan.describe(which) for name, which in PASSES}
        self.kernel = {name: self.about[name]["kernel"] for name, _ in PASSES}

    def run(self, which):
        self.plan.run(which, self.torch.cuda.current_stream().cuda_stream)

    def forward(self):
        self.run(tsr.FORWARD)
        return self.tensors["o"]

    def backward(self):
        self.run(tsr.BACKWARD)
        return tuple(self.tensors["d" + n] for n in "qkv")

    def predicted(self, _):
        return {name: self.about[name]["bytes"] for name, _ in PASSES}


def make(torch, name, options, shape):
    device = torch.device("cuda:0")
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = sdpa_device.Tensors(torch, shape, "backward", device, 0).sets[0]
    tensors = {n: tensors[n] for n in ("q", "k", "v", "dout")}
    if name == "standard":
        return Standard(torch, shape, tensors), tensors
    return Fused(torch, tsr.Library(options.shared_object), shape, tensors, device), tensors


def check(torch, shape, one, tensors):
    for direction, error in (("forward", sdpa_exact.forward_error(torch, shape, tensors, one.forward().detach())),
                             ("backward", sdpa_exact.backward_error(torch, shape, tensors, *one.backward()))):
        if not error <= sdpa_exact.BOUND[shape.dtype][direction]:
            raise ValueError(f"{direction}: wrong, error {error:.3g} of the largest value")


def worker(options, shape):
    """Under the profiler: one pass counted, after others that it does not count."""
    import torch
    one, _ = make(torch, options.worker, options, shape)
    for _ in range(3):
        one.forward()
        one.backward()
    run = one.forward if options.direction == "forward" else one.backward
    one.forward()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    return 0


def counted_bytes(options, name, direction, say):
    """Bytes read and written at the memory, and kernels; None where the profiler is not to be had."""
    program = shutil.which(options.ncu)
    if program is None:
        say(f"# bytes: '{options.ncu}' is not there: not measured")
        return None
    command = [program, "--csv", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
               "--metrics", ",".join(METRICS), sys.executable, os.path.abspath(__file__), options.cli,
               "--library", options.shared_object, "--worker", name, "--direction", direction]
    for field in ("batch", "heads", "length", "dim", "dtype"):
        command += [f"--{field}", str(getattr(options, field))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    total, kernels = dict.fromkeys(METRICS, 0.0), set()
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row["Metric Name"] in total:
            total[row["Metric Name"]] += float(row["Metric Value"].replace(",", "")) * SCALE[row["Metric Unit"]]
            kernels.add(row["ID"])
    if done.returncode or not kernels:
        reason = (done.stdout + done.stderr).strip().splitlines()
        say(f"# bytes of {name} {direction}: not measured: {reason[-1] if reason else done.returncode}")
        return None
    return {"read": total[METRICS[0]], "written": total[METRICS[1]], "kernels": len(kernels)}


def time_both(torch, found, rounds):
    """(name, direction) -> seconds, one a round; turns interleaved."""
    timer = sdpa_device.Timer(torch, torch.device("cuda:0"))
    samples = {(name, direction): [] for name in found for direction, _ in PASSES}
    for number in range(rounds + 3):
        for name, one in found.items():
            timer.sleep(2e-3)
            marks = [timer.mark()]
            for direction, _ in PASSES:
                getattr(one, direction)()
                marks.append(timer.mark())
            for i, (direction, _) in enumerate(PASSES):
                if number >= 3:
                    samples[name, direction].append(timer.seconds(marks[i], marks[i + 1]))
    return samples


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cli", help="the tessera program; its library lies in ../lib")
    parser.add_argument("--library", dest="shared_object", help="libtessera.so (default: beside the program)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), default="f16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute's command line program")
    parser.add_argument("--json", help="append records, one a line")
    parser.add_argument("--worker", choices=("standard", "tessera"), help=argparse.SUPPRESS)
    parser.add_argument("--direction", choices=("forward", "backward"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("batch", "heads", "length", "dim", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}; accepted: 1 and more")
    if not options.shared_object:
        options.shared_object = os.path.join(os.path.dirname(os.path.abspath(options.cli)), "..", "lib",
                                             "libtessera.so")
    return options


def report(options, shape, found, samples, about, say):
    say(f"{shape.describe()}: GFLOP | GB counted (read + written) | GB predicted | ms | kernels")
    for direction in ("forward", "backward", "both"):
        parts = [direction] if direction != "both" else [d for d, _ in PASSES]
        for name, one in found.items():
            gflop = sum(one.products[d] for d in parts) * 2e-9 * shape.batch * shape.heads * \
                shape.length * shape.length_k * shape.dim
            counts = [about["counted"][name, d] for d in parts]
            predicted = sum(one.predicted(shape)[d] for d in parts)
            seconds = sum(statistics.median(samples[name, d]) for d in parts)
            counted = "not measured" if None in counts else \
                f"{sum(c['read'] + c['written'] for c in counts) * 1e-9:.2f} " \
                f"({sum(c['read'] for c in counts) * 1e-9:.2f} + {sum(c['written'] for c in counts) * 1e-9:.2f})"
            say(f"{direction:8} {name:8} {gflop:7.1f} | {counted} | {predicted * 1e-9:.2f} | {seconds * 1e3:.3f} | "
                f"{'; '.join(one.kernel[d] for d in parts)}")
            if options.json:
                record = dict(about["card"], what="standard attention", shape=shape.describe(), name=name,
                              direction=direction, gflop=gflop, counted=counts, predicted_bytes=predicted,
                              seconds=seconds, samples=[samples[name, d] for d in parts],
                              kernels=[one.kernel[d] for d in parts])
                with open(options.json, "a", encoding="utf-8") as out:
                    out.write(json.dumps(record) + "\n")


def main():
    options = arguments()
    shape = Shape(options.batch, options.heads, options.heads, options.length, options.length, options.dim,
                  options.dtype)
    if options.worker:
        return worker(options, shape)
    try:
        import torch
    except ImportError as error:
        print(f"# torch: absent: {error}")
        return 3
    if not torch.cuda.is_available():
        print("# torch: absent: it finds no CUDA device")
        return 3
    counted = {(name, d): counted_bytes(options, name, d, print)
               for name in ("standard", "tessera") for d, _ in PASSES}
    card = sdpa_device.card(torch, torch.device("cuda:0"))
    print("# " + ", ".join(f"{k} {v}" for k, v in card.items()))
    found = {}
    for name in ("standard", "tessera"):
        found[name], tensors = make(torch, name, options, shape)
        check(torch, shape, found[name], tensors)
    samples = time_both(torch, found, options.rounds)
    report(options, shape, found, samples, {"card": card, "counted": counted}, print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
