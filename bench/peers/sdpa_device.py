# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention back ends beside Tessera on one device: the same tensors, the same stream, one
process, turns taken shape by shape, because a power-limited card's clocks follow what ran before.

Everything is compared with float64 before it is timed (sdpa_exact.py), outputs poisoned first. A sample is as
many calls as fill --sample-seconds between two events; a device that sleeps while the host enqueues them
keeps the host's own time out of it. Copies of the inputs take turns until together they pass three times the
L2. Called by torch_sdpa.py --device."""
import json
import os
import statistics
import subprocess
import time

import sdpa_exact
import sdpa_fa3
import tessera_ctypes as tsr
from sdpa_shapes import SUITES

PEERS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION",
         "math": "MATH"}
FA3 = "fa3"  # not one of PyTorch's, see sdpa_fa3.py
SETS_MAX = 64


def add_options(parser):
    parser.add_argument("--library", dest="shared_object",
                        help="libtessera.so (default: beside the command line program)")
    parser.add_argument("--suite", default="prefill",
                        help="comma-separated: " + ", ".join(sorted(SUITES)))
    parser.add_argument("--backend", help="Tessera's backend (default: the dispatcher's choice)")
    parser.add_argument("--kernel", help="Tessera's kernel")
    parser.add_argument("--forced", action="store_true",
                        help="also every other kernel of the chosen backend by name")
    parser.add_argument("--deterministic", action="store_true",
                        help="also Tessera with determinism \"deterministic\", whose runs have to repeat bit by bit")
    parser.add_argument("--fa3", metavar="LIBRARY",
                        help="made from fa3_library.cu, for the peer fa3 (default: the package flash_attn_interface)")
    parser.add_argument("--only", help="only shapes whose description contains this text")


class Timer:
    """Events of CUDA; monotonic time on the host, where the logic is tested."""

    def __init__(self, torch, device):
        self.torch, self.cuda = torch, device.type == "cuda"

    def sleep(self, seconds):
        if self.cuda:
            self.torch.cuda._sleep(int(seconds * 1.7e9))

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        if not self.cuda:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


class Tensors:
    """Inputs of a shape in as many copies as the L2 asks for; outputs of Tessera's own."""

    def __init__(self, torch, shape, direction, device, l2_bytes):
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
        torch.manual_seed(1)

        def make(heads, length):
            return torch.randn(shape.batch, heads, length, shape.dim, dtype=torch.float32,
                               device=device).to(kind)
        first = {"q": make(shape.heads, shape.length), "k": make(shape.heads_kv, shape.length_k),
                 "v": make(shape.heads_kv, shape.length_k)}
        if direction == "backward":
            first["dout"] = make(shape.heads, shape.length)
        inputs = sum(t.numel() * t.element_size() for t in first.values())
        self.count = max(1, min(SETS_MAX, -(-3 * l2_bytes // max(inputs, 1))))
        self.sets = [first] + [{n: t.clone() for n, t in first.items()}
                               for _ in range(self.count - 1)]
        for one in self.sets:
            one["o"] = torch.full_like(one["q"], float("nan"))
            if direction == "backward":
                one["lse"] = torch.full(one["q"].shape[:3], float("nan"), dtype=torch.float32,
                                        device=device)
                for name in "qkv":
                    one["d" + name] = torch.full_like(one[name], float("nan"))


class Tessera:
    """Plans over every set."""

    def __init__(self, torch, library, shape, direction, tensors, device, options, kernel=None,
                 deterministic=False):
        self.torch, self.tensors, self.device = torch, tensors, device
        self.deterministic = deterministic
        self.which = tsr.BACKWARD if direction == "backward" else tsr.FORWARD
        passes = tsr.FORWARD | self.which
        place = (tsr.CUDA, device.index or 0) if device.type == "cuda" else (tsr.HOST, 0)
        self.plans = []
        shared = {}  # one workspace serves all sets: they run one after the other

        def allocate(size):
            if shared.get("size", 0) < size:
                shared["size"] = size
                shared["block"] = torch.empty(size + 64, dtype=torch.uint8, device=device)
            return Aligned(shared["block"])
        for one in tensors.sets:
            views = {n: tsr.View(t) for n, t in one.items()}
            self.plans.append(tsr.Plan(
                library, views, passes, allocate, device=place,
                causal="bottom-right" if shape.causal else None, backend=options.backend,
                kernel=kernel or options.kernel, determinism=int(deterministic)))
        self.about = self.plans[0].describe(self.which)
        if self.which == tsr.BACKWARD:
            for plan in self.plans:
                plan.run(tsr.FORWARD, self.stream())

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None

    def step(self, turn):
        self.plans[turn % len(self.plans)].run(self.which, self.stream())

    def error(self, shape):
        one = self.tensors.sets[0]
        self.step(0)
        if self.deterministic:
            self.repeat(one)
        if self.which == tsr.FORWARD:
            return sdpa_exact.forward_error(self.torch, shape, one, one["o"])
        return sdpa_exact.backward_error(self.torch, shape, one, one["dq"], one["dk"], one["dv"])

    def repeat(self, one, runs=4):
        names = ["o"] if self.which == tsr.FORWARD else ["dq", "dk", "dv"]
        first = {n: one[n].clone() for n in names}
        for _ in range(runs):
            self.step(0)
            for name, before in first.items():
                if not self.torch.equal(before, one[name]):
                    raise ValueError(f"deterministic {name} differs from run to run")

    def close(self):
        for plan in self.plans:
            plan.close()


class FlashAttention3:
    """What sdpa_fa3.py makes, checked as the others are."""

    def __init__(self, source, torch, shape, direction, tensors):
        self.torch, self.tensors, self.direction = torch, tensors, direction
        self.one = source.peer(torch, shape, direction, tensors)
        self.step, self.close = self.one.step, self.one.close

    def error(self, shape):
        compare = sdpa_exact.forward_error if self.direction == "forward" else sdpa_exact.backward_error
        return compare(self.torch, shape, self.tensors.sets[0], *self.one.results())


class Aligned:
    """A block from its first multiple of 64 on."""

    def __init__(self, block):
        self.block = block

    def data_ptr(self):
        return -(-self.block.data_ptr() // 64) * 64


class Sdpa:
    """One back end of PyTorch."""

    def __init__(self, torch, name, shape, direction, tensors):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.tensors = torch, tensors
        self.kernel = lambda: sdpa_kernel(getattr(SDPBackend, PEERS[name]))
        self.options = {"is_causal": shape.causal}
        if shape.group > 1:
            self.options["enable_gqa"] = True
        self.graphs = []
        if direction == "backward":
            for one in tensors.sets:
                leaves = [one[n].detach().clone().requires_grad_() for n in "qkv"]
                self.graphs.append((self.attend(*leaves), leaves, one["dout"]))
        else:
            with torch.no_grad():
                self.attend(*(tensors.sets[0][n] for n in "qkv"))

    def attend(self, q, k, v):
        with self.kernel():
            return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, **self.options)

    def step(self, turn):
        if not self.graphs:
            one = self.tensors.sets[turn % self.tensors.count]
            with self.torch.no_grad():
                return self.attend(one["q"], one["k"], one["v"])
        o, leaves, dout = self.graphs[turn % len(self.graphs)]
        return self.torch.autograd.grad(o, leaves, dout, retain_graph=True)

    def error(self, shape):
        one = self.tensors.sets[0]
        if not self.graphs:
            return sdpa_exact.forward_error(self.torch, shape, one, self.step(0))
        return sdpa_exact.backward_error(self.torch, shape, one, *self.step(0))

    def close(self):
        self.graphs = []


def candidates(torch, library, shape, direction, tensors, device, options, say):
    """name -> what can be timed; what cannot is said in a line."""
    found = {}

    def add(name, make):
        try:
            one = make()
            error = one.error(shape)
        except (tsr.Refused, RuntimeError, ValueError) as problem:
            if name.startswith("=") and isinstance(problem, tsr.Refused):
                return None  # of another type or tier
            say(f"# {name}: no {shape.describe()} {direction}: {str(problem).splitlines()[0][:160]}")
            return None
        if not error <= sdpa_exact.BOUND[shape.dtype][direction]:
            say(f"# {name}: WRONG {shape.describe()} {direction}: error {error:.3g} of the largest value")
            one.close()
            return None
        one.relative_error = error
        found[name] = one
        return one
    mine = add("tessera", lambda: Tessera(torch, library, shape, direction, tensors, device, options))
    if mine is not None and options.forced:
        which = tsr.BACKWARD if direction == "backward" else tsr.FORWARD
        for kernel in library.kernels(mine.about["backend"], which):
            if kernel != mine.about["kernel"] and "naive" not in kernel:
                add("=" + kernel, lambda kernel=kernel: Tessera(
                    torch, library, shape, direction, tensors, device, options, kernel))
    if options.deterministic:
        add("deterministic", lambda: Tessera(torch, library, shape, direction, tensors, device, options,
                                             deterministic=True))
    for name in options.peer_list:
        if name == FA3:
            add(name, lambda: FlashAttention3(options.fa3_source, torch, shape, direction, tensors))
        else:
            add(name, lambda name=name: Sdpa(torch, name, shape, direction, tensors))
    return found


def time_all(torch, timer, found, options):
    """name -> seconds per call, one per round; rounds rotate who begins."""
    samples = {name: [] for name in found}
    calls, turns = {}, 0
    for name, one in found.items():
        for turn in range(4):
            one.step(turn)
        begin = timer.mark()
        one.step(0)
        once = max(timer.seconds(begin, timer.mark()), 1e-6)
        calls[name] = max(1, min(200, int(options.sample_seconds / once)))
    names = list(found)
    for number in range(options.rounds):
        for name in names[number % len(names):] + names[:number % len(names)]:
            # Long calls hide the host's time by themselves.
            timer.sleep(min(0.04, 1e-4 * calls[name] + 1e-3) if calls[name] > 1 else 0)
            begin = timer.mark()
            for _ in range(calls[name]):
                found[name].step(turns)
                turns += 1
            samples[name].append(timer.seconds(begin, timer.mark()) / calls[name])
    return samples


def card(torch, device):
    """What belongs into every record."""
    about = {"torch": torch.__version__}
    if device.type != "cuda":
        return about
    facts = torch.cuda.get_device_properties(device)
    about.update(device=facts.name, units=facts.multi_processor_count, cuda=torch.version.cuda,
                 cudnn=torch.backends.cudnn.version())
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu",
             "--format=csv,noheader,nounits", "-i", str(device.index or 0)],
            capture_output=True, text=True, check=True, timeout=20).stdout
        names = ("driver", "core_mhz", "memory_mhz", "watts", "celsius")
        about.update(zip(names, (x.strip() for x in text.strip().split(","))))
    except (OSError, subprocess.SubprocessError):
        about["driver"] = "unknown"
    return about


def report(shape, direction, found, samples, about, options, say):
    """One line of the table and one record."""
    medians = {name: statistics.median(s) for name, s in samples.items()}
    spread = {name: (max(s) - min(s)) / medians[name] for name, s in samples.items()}
    scale = shape.kv_bytes * 1e-9 if shape.decode else shape.flops(direction) * 1e-12
    line = f"{direction:8} {shape.describe():40}"
    mine = medians.get("tessera")
    for name in ["tessera"] + ["deterministic"] * options.deterministic + options.peer_list:
        if name not in medians:
            line += f"  {name} -"
            continue
        line += f"  {name} {scale / medians[name]:.4g}"
        if name != "tessera" and mine:
            line += f" ({medians[name] / mine:.2f})"
    forced = {n[1:]: t for n, t in medians.items() if n.startswith("=")}
    if forced and mine:
        best = min(forced, key=forced.get)
        line += f"  best forced {best} {scale / forced[best]:.4g} ({mine / forced[best]:.2f})"
    say(line)
    record = dict(about, what="gpu attention", shape=shape.describe(), direction=direction,
                  unit="GB/s of K and V" if shape.decode else "TFLOP/s",
                  rates={n: scale / t for n, t in medians.items()}, seconds=medians,
                  spread=spread, samples=samples,
                  errors={n: one.relative_error for n, one in found.items()},
                  ratios={n: t / mine for n, t in medians.items()} if mine else {})
    if "tessera" in found:
        record["tessera"] = found["tessera"].about
    if options.json:
        with open(options.json, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    return record


def summary(records, peers, say):
    for name in peers:
        ratios = [r["ratios"][name] for r in records if name in r["ratios"]]
        if ratios:
            say(f"# time of {name} over Tessera's: geometric mean "
                f"{statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}, "
                f"{sum(x > 1 for x in ratios)} of {len(ratios)} above 1")


def run(options, say=print):
    """0: everything Tessera took was right; 1: it refused or was wrong somewhere; 3: no PyTorch."""
    try:
        import torch
    except ImportError as error:
        say(f"# torch: absent: {error}")
        return 3
    device = torch.device("cuda:0" if options.device == "cuda" else options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            say("# torch: absent: it finds no CUDA device")
            return 3
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    path = options.shared_object or os.path.join(
        os.path.dirname(os.path.abspath(options.cli)), "..", "lib", "libtessera.so")
    library = tsr.Library(path)
    about = dict(card(torch, device), version=library.version)
    if FA3 in options.peer_list:
        try:
            options.fa3_source = sdpa_fa3.load(options.fa3)
            about["fa3"] = options.fa3_source.version
        except (ImportError, OSError) as error:
            say(f"# fa3: absent: {error}")
            options.peer_list.remove(FA3)
    l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20) \
        if device.type == "cuda" else 0
    say("# " + ", ".join(f"{k} {v}" for k, v in about.items()))
    say("# TFLOP/s (decode: GB/s of K and V); in brackets the peer's time over Tessera's")
    timer, records, failed = Timer(torch, device), [], False
    for suite in options.suite.split(","):
        for shape in SUITES[suite](*([options.dtype] if options.dtype else [])):
            if options.only and options.only not in shape.describe():
                continue
            for direction in options.directions:
                if direction == "backward" and shape.decode:
                    continue
                tensors = Tensors(torch, shape, direction, device, l2)
                found = candidates(torch, library, shape, direction, tensors, device, options, say)
                failed |= "tessera" not in found
                if found:
                    samples = time_all(torch, timer, found, options)
                    records.append(report(shape, direction, found, samples, about, options, say))
                for one in found.values():
                    one.close()
                del tensors, found
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    summary(records, ["deterministic"] * options.deterministic + options.peer_list, say)
    return 1 if failed else 0
