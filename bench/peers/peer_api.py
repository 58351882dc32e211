# SPDX-License-Identifier: Apache-2.0
"""What every peer script shares: the problem, its inputs, the exact result, and what a peer must offer.

A peer is a module with a class `Peer` (see PEERS in peer_run.py). It lives in a worker process of its own
(peer_worker.py), so that its thread pool, its environment and its memory are its alone. Nothing here
needs more than Python; numpy is asked for where arrays are.
"""
import dataclasses
import importlib
import os


class Absent(Exception):
    """The peer is not on this machine; the text says what is missing."""


class Refused(Exception):
    """The peer has no such problem; the text says what it lacks."""


class Restart(Exception):
    """The worker must start again with these environment variables; a library reads them once."""

    def __init__(self, variables):
        super().__init__(str(variables))
        self.variables = variables


DTYPES = ("f32", "f16", "bf16")
# Largest error over largest exact value: a wrong mask, scale or head is beyond any of them. Some peers
# add up V in float16, which costs them several percent on long caches; the record holds the error.
BOUND = {"f32": 1e-4, "f16": 6e-2, "bf16": 6e-2}
ROUNDED = {"f32": 4, "f16": 2, "bf16": 2}  # bytes of an element


@dataclasses.dataclass(frozen=True)
class Shape:
    """Batch 1. mask: full, causal (queries and keys start together), or windowN (causal, the N latest)."""
    heads: int
    heads_kv: int
    length: int
    length_k: int
    dim: int
    dtype: str = "f32"
    mask: str = "full"
    direction: str = "forward"

    @property
    def window(self):
        """Keys a row sees at most, itself included; None: no bound."""
        return int(self.mask[6:]) if self.mask.startswith("window") else None

    @property
    def masked(self):
        return self.mask != "full"

    @property
    def group(self):
        return self.heads // self.heads_kv

    @property
    def decode(self):
        return self.length == 1 and self.length_k > 1

    def allowed(self, row):
        """Keys [first, last) that a row sees."""
        if not self.masked:
            return 0, self.length_k
        last = min(row + 1, self.length_k)
        return (0 if self.window is None else max(0, row + 1 - self.window)), last

    @property
    def flops(self):
        """4 D per pair of query and key; causal counts half of all pairs, as published figures do."""
        if self.mask == "causal":
            pairs = 0.5 * self.length * self.length_k
        elif self.masked:
            pairs = float(sum(last - first for first, last in map(self.allowed, range(self.length))))
        else:
            pairs = float(self.length) * self.length_k
        return 4.0 * self.heads * self.dim * pairs * (2.5 if self.direction == "backward" else 1)

    @property
    def kv_bytes(self):
        return 2 * self.heads_kv * self.length_k * self.dim * ROUNDED[self.dtype]

    def describe(self):
        keys = f"x{self.length_k}" if self.length_k != self.length else ""
        return f"{self.direction} {self.dtype} {self.mask} D {self.dim} N {self.length}{keys}"


def need(module, text=None):
    """Imports a module or says that it is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Absent(text or f"Python has no module {module} here ({error})") from error


def round_to(np, dtype, values):
    """float32 values that the type holds exactly."""
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        bits = bits + np.uint32(0x7fff) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (bits & np.uint32(0xffff0000)).view(np.float32)
    return values


def inputs(np, shape):
    """q [Hq, Sq, D], k and v [Hkv, Sk, D], and dO for a backward pass: about standard normal."""
    source = np.random.default_rng(1)
    sizes = [(shape.heads, shape.length), (shape.heads_kv, shape.length_k),
             (shape.heads_kv, shape.length_k)]
    if shape.direction == "backward":
        sizes.append((shape.heads, shape.length))
    return [round_to(np, shape.dtype, source.standard_normal(size + (shape.dim,), dtype=np.float32))
            for size in sizes]


def checked_rows(shape):
    """(head, row): at the start, middle and end of the first and the last head."""
    n = shape.length
    rows = sorted({r for r in (0, 1, 2, 63, 64, n // 2, n // 2 + 1, n - 2, n - 1) if 0 <= r < n})
    return [(head, row) for head in sorted({0, shape.heads - 1}) for row in rows]


def forward_error(np, shape, q, k, v, output):
    """Largest difference from float64 over the checked rows, over the largest exact value."""
    worst = largest = 0.0
    for head, row in checked_rows(shape):
        first, last = shape.allowed(row)
        keys = k[head // shape.group, first:last].astype(np.float64)
        score = keys @ q[head, row].astype(np.float64) / np.sqrt(shape.dim)
        p = np.exp(score - score.max())
        exact = p @ v[head // shape.group, first:last].astype(np.float64) / p.sum()
        worst = max(worst, float(np.abs(output[head, row] - exact).max()))
        largest = max(largest, float(np.abs(exact).max()))
        if not np.isfinite(output[head, row]).all():
            return float("inf")
    return worst / largest


class NumpyCase:
    """One problem in one form the peer offers. A peer's case sets `shape`, `np`, `q`, `k`, `v` and gives
    step() and output(): [Hq, Sq, D], float32."""
    label = ""

    def error(self):
        return forward_error(self.np, self.shape, self.q, self.k, self.v, self.output())

    def close(self):
        """Gives memory back."""


def mask_array(np, shape, dtype, hidden, shown):
    """[Sq, Sk] for peers whose only way to hide keys is a tensor."""
    row = np.arange(shape.length)[:, None]
    key = np.arange(shape.length_k)[None, :]
    seen = key <= row
    if shape.window is not None:
        seen &= key > row - shape.window
    return np.where(seen, np.array(shown, dtype), np.array(hidden, dtype))


def peak_bytes():
    """(resident now, most ever resident) of this process; Linux only."""
    found = {}
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            key, _, rest = line.partition(":")
            if key in ("VmRSS", "VmHWM"):
                found[key] = int(rest.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def processor_flags():
    """Instruction sets as Linux spells them; empty elsewhere."""
    if not os.path.exists("/proc/cpuinfo"):
        return set()
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    return set()
