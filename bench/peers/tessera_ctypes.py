# SPDX-License-Identifier: Apache-2.0
"""libtessera through ctypes, for scripts that hand it tensors of another library: a problem made from
tensors, a plan, runs on their memory and stream.

A tensor is anything with data_ptr(), dim(), size(i), stride(i) and dtype_name ("f32", "f16", "bf16"),
axes [B, H, S, D]; View wraps a PyTorch tensor. The structures are those of tessera.h for LP64 targets; tests
compare their offsets with the ones the C tests pin."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p

DTYPES = {None: 0, "f32": 1, "f16": 2, "bf16": 3, "f64": 4}
CAUSAL = {None: 0, "top-left": 1, "bottom-right": 2}
HOST, CUDA, HIP = 0, 1, 2
FORWARD, BACKWARD = 1, 2
STRIDED = 2


class Layout(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("order", c_int), ("stride", c_int64 * 4), ("alignment", c_int64)]


class Window(ctypes.Structure):
    _fields_ = [("kind", c_int), ("reserved", c_int32), ("left", c_int64), ("right", c_int64)]


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int), ("index", c_int32)]


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class Problem(ctypes.Structure):
    _fields_ = (
        fields(c_size_t, "struct_size") + fields(c_uint32, "passes arrays") +
        fields(c_int, "index_dtype determinism") +
        fields(c_int64, "batch heads_q heads_kv seq_q seq_k total_q total_k dim_qk dim_v") +
        fields(Layout, "q k v o lse max_logit") + fields(c_float, "scale softcap") +
        fields(Layout, "bias") + fields(c_int, "alibi") + fields(c_uint32, "sink") +
        fields(c_int, "causal") + fields(c_int32, "reserved0") + fields(c_int64, "diagonal") +
        fields(Window, "window") + fields(c_int64, "prefix") + fields(Layout, "mask block_mask") +
        fields(c_int64, "block_q block_k") + fields(c_float, "dropout") +
        fields(c_uint32, "reserved1") +
        fields(c_int64, "page_size num_pages max_pages page_table_stride") +
        fields(Layout, "q_scale k_scale v_scale") + fields(c_int64, "scale_rows_q scale_rows_k") +
        fields(Layout, "dout dlse dq dk dv dbias") + fields(c_uint32, "dsink accumulate") +
        fields(c_char_p, "backend kernel"))


class Args(ctypes.Structure):
    _fields_ = (
        fields(c_size_t, "struct_size") +
        fields(c_void_p, "q k v bias mask block_mask alibi sink q_scale k_scale v_scale cu_q cu_k "
                         "used_q used_k left_pad_q left_pad_k prefix diagonal page_table") +
        fields(c_uint64, "seed offset") +
        fields(c_void_p, "rng_state o lse max_logit dout dlse dq dk dv dbias dsink workspace") +
        fields(c_size_t, "workspace_size") + fields(c_void_p, "stream"))


class PlanInfo(ctypes.Structure):
    _fields_ = (fields(c_size_t, "struct_size") + fields(c_char_p, "backend kernel") +
                fields(c_int64, "tile_q tile_k") + fields(c_double, "flops bytes seconds") +
                fields(c_size_t, "workspace"))


class BackendInfo(ctypes.Structure):
    _fields_ = (fields(c_size_t, "struct_size") + fields(c_char_p, "name origin") +
                fields(c_int32, "available named_only") + fields(c_int, "device_kind") +
                fields(c_int32, "devices") + fields(c_char_p, "reason detail"))


class Refused(Exception):
    """The library said no; the text is its message."""


class View:
    """A PyTorch tensor as this module wants it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.dtype_name = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16",
                           "torch.float64": "f64"}[str(tensor.dtype)]
        self.data_ptr, self.dim = tensor.data_ptr, tensor.dim
        self.size, self.stride = tensor.size, tensor.stride


def layout_of(tensor):
    """Strides of a [B, H, S, D] or, for LSE, [B, H, S] tensor; the alignment its pointer has."""
    strides = [tensor.stride(i) for i in range(tensor.dim())] + [0] * (4 - tensor.dim())
    alignment = 1
    while alignment < 256 and tensor.data_ptr() % (2 * alignment) == 0:
        alignment *= 2
    return Layout(DTYPES[tensor.dtype_name], STRIDED, (c_int64 * 4)(*strides), alignment)


class Library:
    def __init__(self, path):
        self.c = c = ctypes.CDLL(path)
        c.tsr_version_string.restype = c_char_p
        c.tsr_last_message.restype = c_char_p
        c.tsr_context_kernel_name.restype = c_char_p
        c.tsr_context_kernel_name.argtypes = [c_void_p, c_int32, c_int32]
        c.tsr_context_backend_count.argtypes = [c_void_p]
        c.tsr_context_backend_info.argtypes = [c_void_p, c_int32, POINTER(BackendInfo)]
        c.tsr_plan_create.argtypes = [POINTER(c_void_p), c_void_p, Device, POINTER(Problem)]
        c.tsr_plan_destroy.argtypes = [c_void_p]
        c.tsr_plan_destroy.restype = None
        c.tsr_plan_describe.argtypes = [c_void_p, c_int, POINTER(PlanInfo)]
        c.tsr_plan_workspace_size.argtypes = [c_void_p, c_int, POINTER(c_size_t)]
        c.tsr_forward.argtypes = c.tsr_backward.argtypes = [c_void_p, POINTER(Args)]

    @property
    def version(self):
        return self.c.tsr_version_string().decode()

    def check(self, status):
        if status != 0:
            raise Refused(f"status {status}: {self.c.tsr_last_message().decode(errors='replace')}")

    def backends(self):
        """name -> (index, information) of those that are available."""
        found = {}
        for i in range(self.c.tsr_context_backend_count(None)):
            info = BackendInfo(struct_size=ctypes.sizeof(BackendInfo))
            self.check(self.c.tsr_context_backend_info(None, i, byref(info)))
            if info.available:
                found[info.name.decode()] = (i, info)
        return found

    def kernels(self, backend, which):
        """Names of a backend's kernels of a pass."""
        index, prefix = self.backends()[backend][0], "fwd_" if which == FORWARD else "bwd_"
        names = []
        while True:
            name = self.c.tsr_context_kernel_name(None, index, len(names))
            if name is None:
                return [n for n in names if n.startswith(prefix)]
            names.append(name.decode())


class Plan:
    """One problem on given tensors. inputs: q, k, v, o, and for a backward pass also lse, dout, dq, dk,
    dv; lse may be given to a forward plan too. allocate(bytes) returns memory with data_ptr() for the
    workspace, aligned to 64 bytes. fields, pointers: more of tsr_problem and of tsr_args, by name, after what
    follows from the tensors."""

    def __init__(self, library, tensors, passes, allocate, *, device=(HOST, 0), causal=None,
                 backend=None, kernel=None, scale=0.0, determinism=0, fields=None, pointers=None):
        self.lib, self.tensors, self.handle = library, tensors, c_void_p()
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        p = Problem(struct_size=ctypes.sizeof(Problem), passes=passes, batch=q.size(0),
                    heads_q=q.size(1), heads_kv=k.size(1), seq_q=q.size(2), seq_k=k.size(2),
                    dim_qk=q.size(3), dim_v=v.size(3), scale=scale, causal=CAUSAL[causal],
                    determinism=determinism)
        for name, tensor in tensors.items():
            setattr(p, name, layout_of(tensor))
        for name, value in (fields or {}).items():
            setattr(p, name, value)
        self.pointers = pointers or {}
        p.backend = backend.encode() if backend else None
        p.kernel = kernel.encode() if kernel else None
        library.check(library.c.tsr_plan_create(byref(self.handle), None, Device(*device), byref(p)))
        self.args, self.memory = {}, []
        for which in (FORWARD, BACKWARD):
            if passes & which:
                self.args[which] = self._arguments(which, allocate)

    def _arguments(self, which, allocate):
        size = c_size_t()
        self.lib.check(self.lib.c.tsr_plan_workspace_size(self.handle, which, byref(size)))
        args = Args(struct_size=ctypes.sizeof(Args))
        for name in ("q", "k", "v", "o", "lse") + (("dout", "dq", "dk", "dv") if which == BACKWARD
                                                    else ()):
            if name in self.tensors:
                setattr(args, name, self.tensors[name].data_ptr())
        for name, value in self.pointers.items():
            setattr(args, name, value)
        if size.value:
            self.memory.append(allocate(size.value))
            args.workspace, args.workspace_size = self.memory[-1].data_ptr(), size.value
        return args

    def run(self, which, stream=None):
        """Enqueues the pass."""
        args = self.args[which]
        args.stream = stream
        call = self.lib.c.tsr_forward if which == FORWARD else self.lib.c.tsr_backward
        status = call(self.handle, byref(args))
        if status:
            self.lib.check(status)

    def describe(self, which):
        info = PlanInfo(struct_size=ctypes.sizeof(PlanInfo))
        self.lib.check(self.lib.c.tsr_plan_describe(self.handle, which, byref(info)))
        return {"backend": info.backend.decode(), "kernel": info.kernel.decode(),
                "tile": [info.tile_q, info.tile_k], "flops": info.flops, "bytes": info.bytes,
                "seconds_estimated": info.seconds, "workspace_bytes": info.workspace}

    def close(self):
        if self.handle:
            self.lib.c.tsr_plan_destroy(self.handle)
            self.handle = c_void_p()
