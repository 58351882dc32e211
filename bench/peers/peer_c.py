# SPDX-License-Identifier: Apache-2.0
"""Peers driven from C: a driver_*.c is compiled with the local compiler into the run's own folder and
called through driver.h's functions. Compiling happens once per run; a header or library that is missing
makes the peer absent, with the compiler's first error as the reason."""
import ctypes
import os
import shutil
import subprocess

from peer_api import Absent, NumpyCase, Refused, inputs, need

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"f32": 0, "f16": 1, "bf16": 2}


class DriverShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("heads", "heads_kv", "seq_q", "seq_k", "dim", "causal", "window", "dtype", "backward",
                 "threads")] + [("scale", ctypes.c_float)]


def library_flags(prefix, *names):
    """Compiler and linker flags of libraries of the system, or of those installed below a folder."""
    flags = [f"-l{name}" for name in names]
    if not prefix:
        return flags
    library = os.path.join(os.path.abspath(prefix), "lib")
    # Old-style tags: the path holds for the libraries that these need in turn.
    return ["-I", os.path.join(prefix, "include"), "-L", library, "-Wl,--disable-new-dtags",
            f"-Wl,-rpath,{library}", *flags]


def compile_driver(name, folder, flags):
    """The shared object of driver_<name>.c."""
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang")
                     if c and shutil.which(c)), None)
    if compiler is None:
        raise Absent("no C compiler to build its driver with")
    target = os.path.join(folder, f"{name}.so")
    if not os.path.exists(target):
        done = subprocess.run(
            [compiler, "-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
             "-fopenmp", "-shared", "-fPIC", "-I", HERE, os.path.join(HERE, f"driver_{name}.c"), "-o",
             target + ".new", *flags, "-lm"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [x for x in done.stderr.splitlines() if "error" in x or "cannot find" in x]
            raise Absent("its driver does not build: " + (errors or ["no message"])[0].strip())
        os.replace(target + ".new", target)
    try:
        return ctypes.CDLL(target)
    except OSError as error:
        raise Absent(f"its driver does not load: {error}") from error


class DriverPeer:
    """A subclass sets `driver` and `label`, and gives flags(config)."""

    def __init__(self, config):
        self.np = need("numpy")
        self.threads = config["threads"]
        self.loaded = library = compile_driver(self.driver, config["folder"], self.flags(config))
        for function in (library.peer_version, library.peer_form):
            function.restype = ctypes.c_char_p
        library.peer_open.argtypes = [ctypes.POINTER(DriverShape), ctypes.c_int] + [
            ctypes.c_void_p] * 4 + [ctypes.c_char_p, ctypes.c_size_t]
        library.peer_output.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self.versions = {self.label: library.peer_version().decode()}

    def flags(self, config):
        """Compiler and linker flags; Absent when the configuration names nothing to link."""
        raise NotImplementedError

    def prepare(self, shape):
        arrays = [self.np.ascontiguousarray(x) for x in inputs(self.np, shape)]
        count, forms = 0, []
        while self.loaded.peer_form(count) is not None:
            forms.append(lambda form=count: DriverCase(self, shape, arrays, form))
            count += 1
        return forms


class DriverCase(NumpyCase):
    """A driver holds one problem: opening another form replaces it, so step() opens its own again."""
    current = None

    def __init__(self, peer, shape, arrays, form):
        self.np, self.shape, self.peer, self.form = peer.np, shape, peer, form
        self.arrays = arrays
        self.q, self.k, self.v = arrays[:3]
        self.label = peer.loaded.peer_form(form).decode()
        self.reopen()

    def reopen(self):
        s, reason = self.shape, ctypes.create_string_buffer(256)
        self.given = DriverShape(
            s.heads, s.heads_kv, s.length, s.length_k, s.dim, int(s.masked), s.window or 0,
            TYPES[s.dtype], int(s.direction == "backward"), self.peer.threads, s.dim ** -0.5)
        pointers = [x.ctypes.data for x in self.arrays] + [None] * (4 - len(self.arrays))
        DriverCase.current = None
        if self.peer.loaded.peer_open(ctypes.byref(self.given), self.form, *pointers, reason, 256):
            self.peer.loaded.peer_close()
            raise Refused(reason.value.decode(errors="replace"))
        DriverCase.current = self

    def step(self):
        if DriverCase.current is not self:
            self.reopen()
        self.peer.loaded.peer_run()

    def fetch(self, which, like):
        out = self.np.empty_like(like)
        self.peer.loaded.peer_output(which, out.ctypes.data)
        return out

    def output(self):
        return self.fetch(0, self.q)

    def error(self):
        """Forward by rows; backward on the first key head, exactly, while its scores are small, and the
        rows of dQ that see most beyond that."""
        if self.shape.direction == "forward":
            return super().error()
        np, s = self.np, self.shape
        group, rows = s.group, s.length if s.length <= 2048 else 64
        q, dout = (x[:group, -rows:].astype(np.float64) for x in (self.q, self.arrays[3]))
        k, v = self.k[0].astype(np.float64), self.v[0].astype(np.float64)
        score = q @ k.T * s.dim ** -0.5
        for i in range(rows):
            first, last = s.allowed(s.length - rows + i)
            score[:, i, :first] = score[:, i, last:] = -np.inf
        p = np.exp(score - score.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        dp = dout @ v.T
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * s.dim ** -0.5
        pairs = [(self.fetch(1, self.q)[:group, -rows:], ds @ k)]
        if rows == s.length:
            pairs += [(self.fetch(2, self.k)[0], (ds.swapaxes(1, 2) @ q).sum(axis=0)),
                      (self.fetch(3, self.v)[0], (p.swapaxes(1, 2) @ dout).sum(axis=0))]
        errors = [np.abs(got - exact).max() / np.abs(exact).max() for got, exact in pairs]
        return float(max(errors)) if np.isfinite(errors).all() else float("inf")

    def close(self):
        if DriverCase.current is self:
            self.peer.loaded.peer_close()
            DriverCase.current = None
