#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's scaled_dot_product_attention on the CPU beside `tessera bench`, shape by shape.

For every shape the two sides take turns (--rounds), so that both see the same minutes of a shared
machine; the table prints medians over all rounds and the ratio. Tessera checks its own result against
its reference before it is timed; PyTorch's is checked against float64 here. Records go to --json as one
JSON object per line. Says so and exits with status 3 when PyTorch is absent.

  bench/peers/torch_sdpa.py build/cli/tessera --threads 2,16 --json out.jsonl
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tessera", help="path of the command line program")
    parser.add_argument("--threads", default=str(os.cpu_count()), help="comma-separated counts")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--lengths", default="128,512,2048,8192")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--passes", default="forward", help="forward, backward or both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per side and round")
    parser.add_argument("--json", help="file that records are appended to")
    return parser.parse_args()


def tessera_record(options, threads, length, dim, dtype, mask, direction, check):
    """One run of `tessera bench`; its record."""
    command = [options.tessera, "bench", "--hq", str(options.heads), "--sq", str(length), "--d",
               str(dim), "--dtype", dtype, "--threads", str(threads), "--pass", direction, "--json",
               "--repeats", "5", "--warmup", "1", "--sample-seconds", str(options.seconds / 5)]
    if mask == "causal":
        command += ["--causal", "top-left"]
    if not check:
        command += ["--no-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[0])


class Torch:
    """One shape on PyTorch's side."""

    def __init__(self, torch, heads, length, dim, dtype, mask, direction):
        self.torch, self.causal, self.direction = torch, mask == "causal", direction
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        grad = direction == "backward"
        self.q, self.k, self.v = (torch.randn(1, heads, length, dim, dtype=kind, requires_grad=grad)
                                  for _ in range(3))
        self.g = torch.randn(1, heads, length, dim, dtype=kind)
        self.o = self.attend() if grad else None

    def attend(self):
        return self.torch.nn.functional.scaled_dot_product_attention(
            self.q, self.k, self.v, is_causal=self.causal)

    def step(self):
        if self.direction == "forward":
            with self.torch.no_grad():
                self.attend()
        else:
            self.torch.autograd.grad(self.o, (self.q, self.k, self.v), self.g, retain_graph=True)

    def error(self):
        """Largest difference from float64 on one head."""
        with self.torch.no_grad():
            one = [x[:, :1].double() for x in (self.q, self.k, self.v)]
            exact = self.torch.nn.functional.scaled_dot_product_attention(*one,
                                                                          is_causal=self.causal)
            return (self.attend()[:, :1].double() - exact).abs().max().item()

    def time(self, seconds):
        self.step()
        samples, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(samples) < 3:
            start = time.perf_counter()
            self.step()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)


def main():
    options = arguments()
    try:
        import torch
    except ImportError as error:
        print(f"PyTorch is absent ({error}): nothing compared", file=sys.stderr)
        return 3
    out = open(options.json, "a") if options.json else None
    directions = ["forward", "backward"] if options.passes == "both" else [options.passes]
    print(f"{'thr':>3} {'pass':8} {'dtype':5} {'mask':6} {'D':>4} {'N':>6} {'tessera':>9} "
          f"{'torch':>9}  GFLOP/s {'ratio':>6} {'of FMA':>7}")
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        for direction in directions:
            for dtype in options.dtypes.split(","):
                for mask in options.masks.split(","):
                    for dim in map(int, options.dims.split(",")):
                        for length in map(int, options.lengths.split(",")):
                            compare(options, torch, out, threads, direction, dtype, mask, dim,
                                    length)
    return 0


def compare(options, torch, out, threads, direction, dtype, mask, dim, length):
    shape = (length, dim, dtype, mask, direction)
    peer = Torch(torch, options.heads, *shape)
    error = peer.error()
    ours, theirs, rate = [], [], []
    for turn in range(options.rounds):
        record = tessera_record(options, threads, *shape, check=turn == 0)
        ours.append(record["seconds"]["median"])
        rate.append(record["fraction_of_fma_rate"])
        theirs.append(peer.time(options.seconds))
    a, b = statistics.median(ours), statistics.median(theirs)
    flops = 4.0 * options.heads * length * length * dim * (0.5 if mask == "causal" else 1)
    flops *= 2.5 if direction == "backward" else 1
    print(f"{threads:3} {direction:8} {dtype:5} {mask:6} {dim:4} {length:6} {flops / a / 1e9:9.0f} "
          f"{flops / b / 1e9:9.0f}          {b / a:6.2f} {statistics.median(rate):7.2f}", flush=True)
    if out:
        json.dump({"what": "cpu attention", "peer": f"torch {torch.__version__}",
                   "date": time.strftime("%Y-%m-%d"), "threads": threads, "pass": direction,
                   "dtype": dtype, "mask": mask, "heads": options.heads, "dim": dim,
                   "length": length, "tessera_seconds": ours, "torch_seconds": theirs,
                   "ratio": b / a, "torch_max_error": error, "fma_fraction": rate,
                   "kernel": record["kernel"], "version": record["version"],
                   "machine": record["machine"], "probe": record["probe"]}, out)
        out.write("\n")
        out.flush()


if __name__ == "__main__":
    sys.exit(main())
