# SPDX-License-Identifier: Apache-2.0
"""One peer in a process of its own, driven by peer_run.py: one JSON object per line in, one out.

  {"op": "load"}                    versions, or {"absent": why}, or {"restart": environment}
  {"op": "prepare", "shape": {...}} checks every form the peer offers against float64 and keeps the
                                    fastest; or {"refused": why}, or {"wrong": what}
  {"op": "time", "seconds": X}      median seconds per call
  {"op": "peak"}                    bytes by which one call raises the highest resident size
  {"op": "drop"}                    frees the problem

Libraries print; the answers therefore go to a copy of standard output, and the rest to standard error.
"""
import ctypes
import importlib
import json
import os
import signal
import statistics
import sys
import time

from peer_api import BOUND, Absent, Refused, Restart, Shape, peak_bytes


class Worker:
    def __init__(self, module, config):
        self.module, self.config = module, config
        self.peer = self.case = None

    def load(self, _request):
        try:
            self.peer = importlib.import_module(self.module).Peer(self.config)
        except Absent as absent:
            return {"absent": str(absent)}
        except Restart as restart:
            return {"restart": restart.variables}
        return {"versions": self.peer.versions}

    def prepare(self, request):
        self.drop(request)
        shape = Shape(**request["shape"])
        wanted, why = request.get("variant"), []
        best = None
        try:
            forms = list(self.peer.prepare(shape))
        except Refused as refused:
            return {"refused": str(refused)}
        for make in forms:
            try:
                case = make()
            except Refused as refused:
                why.append(str(refused))
                continue
            if wanted is not None and case.label != wanted:
                case.close()
                continue
            start = time.perf_counter()
            case.step()
            seconds = time.perf_counter() - start
            error = case.error()
            if not error <= BOUND[shape.dtype]:
                return {"wrong": f"{case.label or self.module}: error {error:.3g} of the largest value, "
                                 f"allowed {BOUND[shape.dtype]:g}"}
            if len(forms) > 1 and seconds < 1:  # beyond that one call tells the forms apart
                seconds = self.measure(case, 0.05)
            if best is not None and best[0] <= seconds:
                case.close()
                continue
            if best is not None:
                best[1].close()
            best = (seconds, case, error)
        if best is None:
            return {"refused": "; ".join(dict.fromkeys(why)) or f"no form {wanted}"}
        self.case = best[1]
        return {"variant": self.case.label, "error": best[2]}

    @staticmethod
    def measure(case, seconds):
        """Median over the calls that fit, after one to warm up, which is all if it takes as long; a call
        that is over at once is timed in groups."""
        start = time.perf_counter()
        case.step()
        once = time.perf_counter() - start
        if once >= seconds:
            return once
        group = max(1, int(2e-4 / max(once, 1e-7)))
        samples, end = [], time.perf_counter() + seconds
        while not samples or time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(group):
                case.step()
            samples.append((time.perf_counter() - start) / group)
        return statistics.median(samples)

    def time(self, request):
        return {"seconds": self.measure(self.case, request["seconds"])}

    def peak(self, request):
        """In a fresh worker: nothing of the peer has run, so its scratch memory is still to come."""
        shape = Shape(**request["shape"])
        try:
            forms = list(self.peer.prepare(shape))
            case = next(c for c in (make() for make in forms)
                        if request.get("variant") in (None, c.label))
        except Refused as refused:
            return {"refused": str(refused)}
        except StopIteration:
            return {"refused": f"no form {request['variant']}"}
        with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
            reset.write("5")  # the highest size starts again from the present one
        before, _ = peak_bytes()
        case.step()
        _, after = peak_bytes()
        error = case.error()
        if not error <= BOUND[shape.dtype]:
            return {"wrong": f"{case.label}: error {error:.3g} of the largest value"}
        return {"bytes": max(0, after - before), "variant": case.label}

    def drop(self, _request):
        if self.case is not None:
            self.case.close()
        self.case = None
        return {}


def end_with_parent():
    """A call of a peer may last minutes; it must not outlive the run that was stopped."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, on Linux
    except (OSError, AttributeError):
        pass


def main():
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1], json.loads(sys.argv[2]))
    operations = {"load": worker.load, "prepare": worker.prepare, "time": worker.time,
                  "peak": worker.peak, "drop": worker.drop}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = operations[request["op"]](request)
        except Exception as error:  # a peer's own failure ends its part, not the run
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
