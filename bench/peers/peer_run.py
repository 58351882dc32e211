#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other libraries' CPU attention beside `tessera bench`, shape by shape, and prints ratios.

For every shape Tessera and the peers take turns (--rounds), in an order that rotates, so that all see the
same minutes of a shared machine; the table shows medians over the rounds, and for each peer its time
over Tessera's. Results are checked before they are timed: Tessera's by itself against its reference, a
peer's against float64. Records go to --json as one JSON object per line. A peer that is not on this
machine is one line; with none of them there the exit status is 3.

  bench/peers/peer_run.py build/cli/tessera --peers openblas,onnxruntime --threads 2,16 --json out.jsonl
  bench/peers/peer_run.py build/cli/tessera --decode 4096,32768 --dtypes f32,f16 --ggml /opt/ggml
"""
import argparse
import json
import math
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from peer_api import DTYPES, Shape

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = {"torch": "peer_torch", "onnxruntime": "peer_onnxruntime", "openvino": "peer_openvino",
         "onednn": "peer_onednn", "ggml": "peer_ggml", "openblas": "peer_openblas"}


# Spinning has an end: whoever's turn is over must be off the processors when the next one starts.
WAITING = {"passive": {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"},
           "active": {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "200000", "KMP_BLOCKTIME": "1"}}


def words(kind, accepted=None):
    """A comma-separated list for argparse."""
    def parse(text):
        out = []
        for word in text.split(","):
            try:
                out.append(kind(word))
            except ValueError:
                raise argparse.ArgumentTypeError(f"'{word}' is not a {kind.__name__}") from None
            if accepted is not None and not accepted(out[-1]):
                raise argparse.ArgumentTypeError(f"'{word}' is not accepted here")
        return out
    return parse


def add_options(parser, heads="16", dtypes="f32", masks="full,causal,window256", lengths="512,2048"):
    positive = words(int, lambda n: n > 0)
    parser.add_argument("tessera", help="path of the command line program")
    parser.add_argument("--threads", type=positive, default=[os.cpu_count()], help="counts")
    parser.add_argument("--heads", type=positive, default=heads)
    parser.add_argument("--lengths", type=positive, default=lengths)
    parser.add_argument("--dims", type=positive, default="64,128")
    parser.add_argument("--dtypes", type=words(str, DTYPES.__contains__), default=dtypes)
    parser.add_argument("--masks", default=masks, help="full, causal, windowN (causal, the N latest)",
                        type=words(str, lambda m: m in ("full", "causal") or (
                            m.startswith("window") and m[6:].isdigit() and int(m[6:]) > 0)))
    parser.add_argument("--passes", default="forward", choices=["forward", "backward", "both"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per side and round")
    parser.add_argument("--cap", type=float, default=60,
                        help="seconds a shape may take; rounds after the first are left out beyond that")
    parser.add_argument("--wait", choices=list(WAITING), default="passive",
                        help="threads without work, on every side: sleep (passive, for machines that "
                        "others use) or spin for a short while (active)")
    parser.add_argument("--json", help="file that records are appended to")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--peers", default=",".join(PEERS),
                        type=words(str, PEERS.__contains__), help="default: all")
    parser.add_argument("--decode", type=words(int, lambda n: n > 1),
                        help="instead: one query against caches of these lengths")
    parser.add_argument("--decode-heads", default="32,4", type=words(int, lambda n: n > 0),
                        help="query and key heads of --decode")
    parser.add_argument("--ggml", help="folder a ggml build was installed below")
    parser.add_argument("--onednn", help="folder of another oneDNN than the system's")
    parser.add_argument("--openblas", help="folder of another OpenBLAS than the system's")
    return parser.parse_args()


class TesseraFailed(Exception):
    """`tessera bench` refused the problem, or its result broke the bound; nothing was timed."""


class Worker:
    """A peer's process; `line` says why it is out, if it is."""

    def __init__(self, name, config, timeout=900):
        self.name, self.config, self.timeout = name, config, timeout
        self.process = self.log = None
        self.line, self.versions, self.environment = None, {}, {}
        answer = self.start()
        if "restart" in answer:
            self.environment = answer["restart"]
            self.stop()
            answer = self.start()
        if "versions" in answer:
            self.versions = dict(answer["versions"], **self.environment)
        else:
            self.line = answer.get("absent") or answer.get("failed") or "asks to be restarted again"
            self.stop()

    def start(self):
        environment = dict(os.environ, **WAITING[self.config.get("wait", "passive")])
        environment.update(self.environment, OMP_NUM_THREADS=str(self.config["threads"]))
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "peer_worker.py"),
             PEERS.get(self.name, self.name), json.dumps(self.config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment)
        return self.ask(op="load")

    def ask(self, **request):
        """The answer; a worker that died or hangs answers 'failed' and is out."""
        if self.process is None:
            return {"failed": self.line}
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
            line = self.process.stdout.readline() if ready else b""
        except OSError:
            line = b""
        if line:
            return json.loads(line)
        self.process.kill()
        status = self.process.wait()
        self.log.seek(0)
        last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
        self.line = f"its process ended with status {status}" + "".join(f": {x[:200]}" for x in last)
        self.stop()
        return {"failed": self.line}

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.log.close()
        self.process = None


def tessera_record(options, shape, threads, check):
    """One run of `tessera bench`; its record."""
    command = [options.tessera, "bench", "--hq", str(shape.heads), "--hkv", str(shape.heads_kv),
               "--sq", str(shape.length), "--sk", str(shape.length_k), "--d", str(shape.dim),
               "--dtype", shape.dtype, "--threads", str(threads), "--pass", shape.direction, "--json",
               "--repeats", "5", "--warmup", "1", "--sample-seconds", str(options.seconds / 5)]
    if shape.masked:
        command += ["--causal", "top-left"]
    if shape.window is not None:
        command += ["--window", f"{shape.window - 1},0"]
    if not check:
        command += ["--no-check"]
    environment = dict(os.environ, **WAITING[options.wait])
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise TesseraFailed(f"status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[0])


def speed(shape, seconds):
    return (f"{shape.kv_bytes / seconds / 1e9:8.1f}" if shape.decode
            else f"{shape.flops / seconds / 1e9:8.0f}")


class Session:
    """The peers of one thread count, their table and their records."""

    def __init__(self, options, names, threads, folder):
        config = {"threads": threads, "folder": folder, "wait": options.wait}
        config.update({name: getattr(options, name, None) for name in ("ggml", "onednn", "openblas")})
        self.options, self.threads = options, threads
        self.workers = [Worker(name, config) for name in names]
        for worker in self.workers:
            if worker.line is not None:
                print(f"# {worker.name}: absent: {worker.line}", flush=True)
            else:
                print(f"# {worker.name}: " + ", ".join(f"{k} {v}" for k, v in worker.versions.items()))
        self.workers = [w for w in self.workers if w.line is None]
        self.said, self.ratios = set(), []

    def close(self):
        for worker in self.workers:
            worker.stop()

    def head(self, decode):
        unit = "GB/s of K and V" if decode else "GFLOP/s"
        print(f"{'thr':>3} {'pass':8} {'dtype':5} {'mask':9} {'Hq/kv':>6} {'D':>4} {'N':>7} "
              f"{'tessera':>8} {'of FMA':>6}" +
              "".join(f" {w.name:>8.8} {'ratio':>6}" for w in self.workers) + f"   {unit}", flush=True)

    def say(self, worker, shape, text):
        """Once per peer and reason."""
        if (worker.name, text) not in self.said:
            self.said.add((worker.name, text))
            print(f"# {worker.name}: {shape.describe()}: {text}", flush=True)

    def compare(self, shape, out):
        fields = {key: getattr(shape, key) for key in Shape.__dataclass_fields__}
        start, ready = time.monotonic(), {}
        for worker in self.workers:
            answer = worker.ask(op="prepare", shape=fields)
            if "variant" in answer:
                ready[worker.name] = dict(answer, seconds=[])
            else:
                self.say(worker, shape, "; ".join(f"{k}: {v}" for k, v in answer.items()))
                ready[worker.name] = answer
        runners = [w for w in self.workers if "seconds" in ready[w.name]]
        ours, records = [], []
        for turn in range(self.options.rounds):
            if turn > 0 and time.monotonic() - start > self.options.cap:
                break
            order = [None] + runners
            shift = turn % len(order)
            for side in order[shift:] + order[:shift]:
                if side is None:
                    records.append(tessera_record(self.options, shape, self.threads, turn == 0))
                    ours.append(records[-1]["seconds"]["median"])
                    continue
                answer = side.ask(op="time", seconds=self.options.seconds)
                if "seconds" in answer:
                    ready[side.name]["seconds"].append(answer["seconds"])
                else:
                    ready[side.name]["failed"] = answer.get("failed", "no time")
                    self.say(side, shape, ready[side.name]["failed"])
        for worker in runners:
            worker.ask(op="drop")
        self.report(shape, ours, records, ready, out)

    def summarise(self):
        """Per peer: how many shapes, the mean ratio, and where Tessera is behind."""
        for worker in self.workers:
            ratios = [(r, s) for name, r, s in self.ratios if name == worker.name]
            if ratios:
                mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
                least, where = min(ratios, key=lambda x: x[0])
                print(f"# {worker.name}: {len(ratios)} shapes, ratio {mean:.2f} (geometric mean), least "
                      f"{least:.2f} ({where}), below 1 at {sum(r < 1 for r, _ in ratios)}", flush=True)

    def report(self, shape, ours, records, ready, out):
        mine = statistics.median(ours)
        rates = [r["fraction_of_fma_rate"] for r in records]
        keys = f"{shape.length_k}" if shape.decode else f"{shape.length}"
        cells = ""
        for worker in self.workers:
            times = ready[worker.name].get("seconds")
            if times:
                self.ratios.append((worker.name, statistics.median(times) / mine, shape.describe()))
            cells += (f" {speed(shape, statistics.median(times))} {statistics.median(times) / mine:6.2f}"
                      if times else f" {'-':>8} {'-':>6}")
        print(f"{self.threads:3} {shape.direction:8} {shape.dtype:5} {shape.mask:9} "
              f"{shape.heads:3}/{shape.heads_kv:<2} {shape.dim:4} {keys:>7} {speed(shape, mine)} "
              f"{statistics.median(rates):6.2f}{cells}", flush=True)
        for worker in self.workers if out else ():
            answer = ready[worker.name]
            times = answer.get("seconds")
            peer = {"peer": " ".join(f"{k} {v}" for k, v in list(worker.versions.items())[:1]),
                    "peer_versions": worker.versions}
            if times:
                peer.update(peer_form=answer["variant"], peer_error=answer["error"], peer_seconds=times,
                            ratio=statistics.median(times) / mine)
            else:
                peer["peer_reason"] = answer.get("refused") or answer.get("wrong") or answer.get("failed")
            base = {"what": "cpu attention", "date": time.strftime("%Y-%m-%d"),
                    "threads": self.threads, "pass": shape.direction, "dtype": shape.dtype,
                    "mask": shape.mask, "heads": shape.heads, "heads_kv": shape.heads_kv,
                    "dim": shape.dim, "length": shape.length, "length_k": shape.length_k,
                    "tessera_seconds": ours}
            rest = {"fma_fraction": rates, "kernel": records[0]["kernel"], "check": records[0]["check"],
                    "wait_policy": self.options.wait,
                    "version": records[0]["version"], "machine": records[0]["machine"],
                    "probe": records[0]["probe"]}
            if "read_beside" in records[0]:
                rest["read_fraction"] = [r["read_beside"]["fraction"] for r in records]
            out.write(json.dumps({**base, **peer, **rest}) + "\n")
            out.flush()


def shapes_of(options):
    directions = ["forward", "backward"] if options.passes == "both" else [options.passes]
    if getattr(options, "decode", None):
        heads, heads_kv = (options.decode_heads * 2)[:2]
        return [Shape(heads, heads_kv, 1, keys, dim, dtype)
                for dtype in options.dtypes for dim in options.dims for keys in options.decode]
    return [Shape(heads, heads, length, length, dim, dtype, mask, direction)
            for direction in directions for dtype in options.dtypes for mask in options.masks
            for heads in options.heads for dim in options.dims for length in options.lengths]


def run(options, names):
    """Exit status: 0; 1 when Tessera failed at a shape; 3 when no peer is there."""
    shapes = shapes_of(options)
    folder = tempfile.mkdtemp(prefix="tessera-peers-")
    out = open(options.json, "a", encoding="utf-8") if options.json else None
    status = 0
    try:
        for threads in options.threads:
            session = Session(options, names, threads, folder)
            try:
                if not session.workers:
                    print("no peer is on this machine: nothing compared", file=sys.stderr)
                    status = 3
                    continue
                session.head(bool(getattr(options, "decode", None)))
                for shape in shapes:
                    try:
                        session.compare(shape, out)
                    except TesseraFailed as failed:
                        print(f"tessera: {shape.describe()}: {failed}", file=sys.stderr, flush=True)
                        status = 1
                session.summarise()
            finally:
                session.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if out:
            out.close()
    return status


def main():
    options = arguments()
    if options.decode and len(options.decode_heads) == 2 and \
            options.decode_heads[0] % options.decode_heads[1]:
        sys.exit(f"--decode-heads: {options.decode_heads[0]} query heads are not a multiple of "
                 f"{options.decode_heads[1]} key heads")
    return run(options, options.peers)


if __name__ == "__main__":
    sys.exit(main())
