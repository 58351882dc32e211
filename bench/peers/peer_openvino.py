# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's ScaledDotProductAttention operator on its CPU plug-in (oneDNN and its own kernels inside).
float32 runs with float32 as inference precision; 16-bit types as bfloat16 or float16 precision, which the
plug-in takes only on processors with those instructions: what it really uses is in the record."""
from peer_api import NumpyCase, Refused, inputs, mask_array, need


class Peer:
    def __init__(self, config):
        self.np = need("numpy")
        self.ov = need("openvino")
        self.threads = config["threads"]
        self.core = self.ov.Core()
        self.versions = {"openvino": self.ov.__version__}

    def prepare(self, shape):
        if shape.direction != "forward":
            raise Refused("no backward pass")
        if shape.dtype != "f32":
            able = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            wanted = {"bf16": "BF16", "f16": "FP16"}[shape.dtype]
            if wanted not in able:
                raise Refused(f"the CPU plug-in offers no {wanted} on this processor")
        arrays = inputs(self.np, shape)
        return [lambda: Case(self, shape, arrays)]


class Case(NumpyCase):
    """Grouped heads: the queries of a group as rows of their key head (nothing may be masked then)."""

    def __init__(self, peer, shape, arrays):
        self.np, self.shape = peer.np, shape
        self.q, self.k, self.v = arrays
        np, ov, s = peer.np, peer.ov, shape
        if s.group > 1 and s.masked:
            raise Refused("no grouped heads together with a mask")
        ops = __import__("openvino.opset13", fromlist=["scaled_dot_product_attention"])
        rows = s.group * s.length
        sizes = [[1, s.heads_kv, rows, s.dim], [1, s.heads_kv, s.length_k, s.dim],
                 [1, s.heads_kv, s.length_k, s.dim]]
        names = [ops.parameter(size, np.float32) for size in sizes]
        feeds = [self.q.reshape(sizes[0]), self.k[None], self.v[None]]
        extra, causal = {}, s.mask == "causal"
        if s.window is not None:
            names.append(ops.parameter([1, 1, s.length, s.length_k], np.float32))
            feeds.append(mask_array(np, s, np.float32, -np.inf, 0)[None, None])
            extra["attention_mask"] = names[3]
            self.label = "mask tensor"
        node = ops.scaled_dot_product_attention(*names[:3], causal=causal, **extra)
        model = ov.Model([node], names, "attention")
        precision = {"f32": "f32", "f16": "f16", "bf16": "bf16"}[s.dtype]
        compiled = peer.core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": peer.threads, "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"})
        used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.label = ", ".join(x for x in (self.label, f"precision {used}") if x)
        self.request = compiled.create_infer_request()
        self.held = [ov.Tensor(np.ascontiguousarray(x), shared_memory=True) for x in feeds]
        for i, tensor in enumerate(self.held):
            self.request.set_input_tensor(i, tensor)

    def step(self):
        self.request.infer()

    def output(self):
        s = self.shape
        return self.request.get_output_tensor(0).data[0].reshape(s.heads, s.length, s.dim)

    def close(self):
        self.request = self.held = None
