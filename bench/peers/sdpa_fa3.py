# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 as a peer of sdpa_device.py: a library made from fa3_library.cu, by ctypes, or the Python package
flash_attn_interface, whichever there is. Both get the same tensors [B, H, S, D] as everybody; the package, which
wants [B, S, H, D], by views. What a call costs its user is timed: of backward the passes before and after the
main one too, and from the library no allocation, because workspace and results are made beforehand."""
import ctypes

import tessera_ctypes as tsr


class Call(ctypes.Structure):
    """fa3_call of fa3_library.cu."""
    _fields_ = (tsr.fields(ctypes.c_void_p, "q k v dout o lse dq dk dv workspace") +
                tsr.fields(ctypes.c_int32, "batch heads length length_k dim causal") +
                tsr.fields(ctypes.c_float, "scale"))


class Library:
    """Entries by pass and head dimension; ValueError for those that it was built without."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        if not hasattr(self.lib, "fa3_commit"):
            raise OSError(f"{path} is not made from fa3_library.cu")
        self.lib.fa3_commit.restype = ctypes.c_char_p
        self.version = self.lib.fa3_commit().decode()

    def entry(self, name, dim, result, arguments):
        try:
            found = getattr(self.lib, f"fa3_{name}_{dim}")
        except AttributeError:
            raise ValueError(f"the library has no fa3_{name}_{dim}") from None
        found.restype, found.argtypes = result, arguments
        return found

    def run(self, direction, dim):
        return self.entry(direction, dim, ctypes.c_int, [ctypes.POINTER(Call), ctypes.c_void_p])

    def workspace(self, direction, call):
        return self.entry("workspace_" + direction, call.dim, ctypes.c_int64, [ctypes.POINTER(Call)])(call)

    def peer(self, torch, shape, direction, tensors):
        return FromLibrary(self, torch, shape, direction, tensors)


class FromLibrary:
    def __init__(self, library, torch, shape, direction, tensors):
        if shape.dtype != "bf16" or shape.group > 1:
            raise ValueError("the library has bf16 and as many heads of keys as of queries")
        self.torch, self.tensors, self.direction = torch, tensors, direction
        self.function = library.run(direction, shape.dim)
        self.calls, self.kept, size = [], [], 256
        for one in tensors.sets:
            t = {n: one[n] for n in ("q", "k", "v", "dout") if n in one}
            t["o"] = torch.full_like(t["q"], float("nan"))
            t["lse"] = torch.full(t["q"].shape[:3], float("nan"), dtype=torch.float32, device=t["q"].device)
            if direction == "backward":
                t.update({"d" + n: torch.full_like(t[n], float("nan")) for n in "qkv"})
            call = Call(batch=shape.batch, heads=shape.heads, length=shape.length, length_k=shape.length_k,
                        dim=shape.dim, causal=int(shape.causal), scale=shape.dim ** -0.5,
                        **{n: x.data_ptr() for n, x in t.items()})
            size = max(size, *(library.workspace(way, call) for way in {"forward", direction}))
            self.kept.append(t)
            self.calls.append(call)
        self.block = torch.empty(size + 256, dtype=torch.uint8, device=tensors.sets[0]["q"].device)
        for call in self.calls:
            call.workspace = -(-self.block.data_ptr() // 256) * 256
            if direction == "backward":
                self.launch(library.run("forward", shape.dim), call)

    def launch(self, function, call):
        if function(call, self.torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("not of this head dimension or device")

    def step(self, turn):
        self.launch(self.function, self.calls[turn % len(self.calls)])

    def results(self):
        self.step(0)
        return [self.kept[0][n] for n in (["o"] if self.direction == "forward" else ["dq", "dk", "dv"])]

    def close(self):
        self.calls, self.kept, self.block = [], [], None


class Package:
    def __init__(self):
        import flash_attn_interface
        self.module = flash_attn_interface
        self.version = getattr(flash_attn_interface, "__version__", "of the package")

    def peer(self, torch, shape, direction, tensors):
        return FromPackage(self.module, torch, shape, direction, tensors)


class FromPackage:
    def __init__(self, module, torch, shape, direction, tensors):
        self.torch, self.shape, self.direction, self.tensors = torch, shape, direction, tensors
        self.attention = module.flash_attn_func
        self.graphs = []
        if direction == "backward":
            for one in tensors.sets:
                leaves = [one[n].detach().clone().requires_grad_() for n in "qkv"]
                self.graphs.append((self.attend(*leaves), leaves, one["dout"]))
        else:
            self.step(0)

    def attend(self, *inputs):
        o = self.attention(*(x.transpose(1, 2) for x in inputs), causal=self.shape.causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)  # older versions return LSE too

    def step(self, turn):
        if not self.graphs:
            one = self.tensors.sets[turn % self.tensors.count]
            with self.torch.no_grad():
                return [self.attend(one["q"], one["k"], one["v"])]
        o, leaves, dout = self.graphs[turn % len(self.graphs)]
        return self.torch.autograd.grad(o, leaves, dout, retain_graph=True)

    def results(self):
        return self.step(0)

    def close(self):
        self.graphs = []


def load(path):
    """The library at `path`, or the package; ImportError or OSError where there is none."""
    return Library(path) if path else Package()
