#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of attention besides its tensors: Tessera against standard attention, over the length.

Each figure is the growth of the highest resident size over one call in a process of its own; Q, K, V, O
(and backward dO, dQ, dK, dV) lie in memory before. Tessera through `tessera bench --memory`, which also
says what workspace the plan asks for; standard attention through OpenBLAS with all scores kept
(driver_openblas.c), or, without OpenBLAS, the built-in one, forward only. --peers adds others. The
column KiB/row shows what is linear: it stays where it is while N grows.

  bench/peers/memory_table.py build/cli/tessera --heads 2 --dim 64 --json memory.jsonl
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from peer_api import DTYPES, Shape
from peer_run import PEERS, Worker, words

MIB = 1 << 20
STANDARD = {"openblas": "all scores at once"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tessera", help="path of the command line program")
    parser.add_argument("--lengths", type=words(int, lambda n: n > 0), default="1024,2048,4096,16384")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--mask", choices=["full", "causal"], default="full")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", type=words(str, PEERS.__contains__), default="openblas")
    parser.add_argument("--ggml", help="folder a ggml build was installed below")
    parser.add_argument("--json", help="file that records are appended to")
    return parser.parse_args()


def tessera(options, shape, standard):
    command = [options.tessera, "bench", "--memory", "--json", "--hq", str(shape.heads), "--sq",
               str(shape.length), "--d", str(shape.dim), "--dtype", shape.dtype, "--threads",
               str(options.threads), "--pass", shape.direction]
    command += ["--causal", "top-left"] if shape.masked else []
    command += ["--standard"] if standard else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def peer_peak(options, name, shape, folder):
    """(bytes, form) or (None, why), measured in a fresh worker."""
    worker = Worker(name, {"threads": options.threads, "folder": folder, "ggml": options.ggml})
    if worker.line is not None:
        return None, f"absent: {worker.line}"
    fields = {key: getattr(shape, key) for key in Shape.__dataclass_fields__}
    answer = worker.ask(op="peak", shape=fields, variant=STANDARD.get(name))
    worker.stop()
    if "bytes" in answer:
        return answer["bytes"], answer["variant"]
    return None, "; ".join(f"{k}: {v}" for k, v in answer.items())


def main():
    options = arguments()
    folder = tempfile.mkdtemp(prefix="tessera-peers-")
    out = open(options.json, "a", encoding="utf-8") if options.json else None
    reasons = set()
    print(f"# peak MiB besides the tensors; {options.heads} heads, D {options.dim}, {options.dtype}, "
          f"{options.mask}, {options.threads} threads")
    print(f"{'pass':8} {'N':>6} {'tensors':>8} {'workspace':>9} {'tessera':>8} {'KiB/row':>8}" +
          "".join(f" {name:>11} {'x tessera':>9}" for name in ["standard" if n in STANDARD else n
                                                           for n in options.peers]))
    try:
        for direction in ("forward", "backward"):
            for length in options.lengths:
                shape = Shape(options.heads, options.heads, length, length, options.dim, options.dtype,
                              options.mask, direction)
                peaks = {name: peer_peak(options, name, shape, folder) for name in options.peers}
                alone = all(peaks.get(name, (None,))[0] is None for name in STANDARD)
                record = tessera(options, shape, alone and direction == "forward")
                if alone and record["standard_extra_peak_bytes"] is not None and \
                        "openblas" in peaks:
                    reasons.add(f"# openblas: {peaks['openblas'][1]}; standard is the built-in one, "
                                "which keeps a gibibyte of scores at most")
                    peaks["openblas"] = (record["standard_extra_peak_bytes"], "built-in")
                mine = record["extra_peak_bytes"]
                cells = ""
                for name, (bytes_, text) in peaks.items():
                    if bytes_ is None:
                        reasons.add(f"# {name}: {direction}: {text}")
                    cells += (f" {bytes_ / MIB:11.1f} {bytes_ / mine:9.1f}" if bytes_ is not None
                              else f" {'-':>11} {'-':>9}")
                print(f"{direction:8} {length:6} {record['tensor_bytes'] / MIB:8.1f} "
                      f"{record['workspace_bytes'] / MIB:9.1f} {mine / MIB:8.1f} "
                      f"{mine / 1024 / (length * options.heads):8.2f}{cells}", flush=True)
                if out:
                    out.write(json.dumps({
                        "what": "cpu attention memory", "date": time.strftime("%Y-%m-%d"),
                        "threads": options.threads, "pass": direction, "dtype": options.dtype,
                        "mask": options.mask, "heads": options.heads, "dim": options.dim,
                        "length": length, **{k: record[k] for k in (
                            "kernel", "tensor_bytes", "workspace_bytes", "lse_bytes",
                            "extra_peak_bytes")},
                        "peers": {name: {"extra_peak_bytes": b, "form": t}
                                  for name, (b, t) in peaks.items()},
                        "version": record["version"], "machine": record["machine"]}) + "\n")
                    out.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if out:
            out.close()
    for line in sorted(reasons):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
