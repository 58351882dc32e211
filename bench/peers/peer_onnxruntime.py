# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on the CPU. Three operators can hold attention, and the fastest that takes the problem is
timed: com.microsoft.MultiHeadAttention (its flash kernel takes full float32 attention; `unidirectional`
is causal), com.microsoft.GroupQueryAttention (causal, grouped heads, local window) and ai.onnx.Attention.
Tensors are bound once, so that a call copies nothing. The graph is written with onnx's helpers."""
from peer_api import NumpyCase, Refused, inputs, mask_array, need


class Peer:
    def __init__(self, config):
        self.np = need("numpy")
        self.onnx = need("onnx")
        self.ort = need("onnxruntime")
        self.threads = config["threads"]
        self.spin = "1" if config.get("wait") == "active" else "0"
        self.versions = {"onnxruntime": self.ort.__version__, "onnx": self.onnx.__version__}

    def prepare(self, shape):
        if shape.direction != "forward":
            raise Refused("no backward pass for inference sessions")
        if shape.dtype == "bf16":
            raise Refused("no bfloat16 attention on the CPU")
        arrays = inputs(self.np, shape)
        forms = []
        if shape.dtype == "f32" and (shape.group == 1 or not shape.masked) and shape.window is None:
            forms.append(MultiHead)
        if (shape.masked or shape.length == 1) and shape.length <= shape.length_k:
            forms.append(GroupQuery)
        forms.append(Attention)
        return [lambda form=form: form(self, shape, arrays) for form in forms]


class Case(NumpyCase):
    """graph() gives (nodes, inputs by name, domain version); `bshd`: tensors are [1, S, H * D]."""
    bshd = True

    def __init__(self, peer, shape, arrays):
        self.np, self.shape = peer.np, shape
        self.q, self.k, self.v = arrays
        self.kind = self.np.float16 if shape.dtype == "f16" else self.np.float32
        helper = peer.onnx.helper
        element = (peer.onnx.TensorProto.FLOAT16 if shape.dtype == "f16"
                   else peer.onnx.TensorProto.FLOAT)
        node, feeds, opset = self.graph(helper)
        elements = {self.np.dtype(self.np.int32): peer.onnx.TensorProto.INT32,
                    self.np.dtype(self.np.bool_): peer.onnx.TensorProto.BOOL}
        ins = [helper.make_tensor_value_info(name, elements.get(x.dtype, element), x.shape)
               for name, x in feeds.items()]
        outs = [helper.make_tensor_value_info("o", element, None)]
        outs += [helper.make_tensor_value_info(name, element, None) for name in node.output[1:]]
        graph = helper.make_graph([node], "attention", ins, outs)
        model = helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
        options = peer.ort.SessionOptions()
        options.intra_op_num_threads = peer.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # As everybody else's threads; and none may spin on when its turn is over.
        options.add_session_config_entry("session.intra_op.allow_spinning", peer.spin)
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self.session = peer.ort.InferenceSession(model.SerializeToString(), options,
                                                     providers=["CPUExecutionProvider"])
            self.binding = self.session.io_binding()
            self.held = {name: peer.ort.OrtValue.ortvalue_from_numpy(self.np.ascontiguousarray(x))
                         for name, x in feeds.items()}
            for name, value in self.held.items():
                self.binding.bind_ortvalue_input(name, value)
            size = ((1, shape.length, shape.heads * shape.dim) if self.bshd
                    else (1, shape.heads, shape.length, shape.dim))
            self.o = peer.ort.OrtValue.ortvalue_from_shape_and_type(size, self.kind)
            self.binding.bind_ortvalue_output("o", self.o)
            self.bind_rest(node.output[1:])
            self.session.run_with_iobinding(self.binding)
        except Exception as error:  # its own error types: the operator has no kernel for this
            raise Refused(f"{self.label}: {error}".splitlines()[0][:200]) from error

    def bind_rest(self, names):
        for name in names:
            self.binding.bind_output(name)

    def fold(self, x):
        """[H, S, D] as [1, S, H * D]."""
        h, s, d = x.shape
        return x.transpose(1, 0, 2).reshape(1, s, h * d).astype(self.kind)

    def step(self):
        self.session.run_with_iobinding(self.binding)

    def output(self):
        o = self.o.numpy().astype(self.np.float32)[0]
        if self.bshd:
            o = o.reshape(self.shape.length, self.shape.heads, self.shape.dim).transpose(1, 0, 2)
        return o

    def close(self):
        self.session = self.binding = self.held = self.o = None


class MultiHead(Case):
    """Without grouped heads of its own: queries of a group become rows of their key head, which is the
    same problem when nothing is masked."""
    label = "MultiHeadAttention"

    def graph(self, helper):
        s, q = self.shape, self.q
        if s.group > 1:
            q = q.reshape(s.heads_kv, s.group * s.length, s.dim)
        node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft",
                                num_heads=s.heads_kv, unidirectional=int(s.mask == "causal"))
        return node, {"q": self.fold(q), "k": self.fold(self.k), "v": self.fold(self.v)}, 17

    def output(self):
        s = self.shape
        o = self.o.numpy()[0].reshape(s.group * s.length, s.heads_kv, s.dim).transpose(1, 0, 2)
        return o.reshape(s.heads, s.length, s.dim)

    def bind_rest(self, names):
        s = self.shape
        if s.group > 1:
            import onnxruntime as ort
            self.o = ort.OrtValue.ortvalue_from_shape_and_type(
                (1, s.group * s.length, s.heads_kv * s.dim), self.kind)
            self.binding.bind_ortvalue_output("o", self.o)


class GroupQuery(Case):
    """All keys but the queries' own are the past, in the buffer that the present shares."""
    label = "GroupQueryAttention"

    def graph(self, helper):
        s, np = self.shape, self.np
        past = s.length_k - s.length
        own = [self.fold(x[:, past:]) for x in (self.k, self.v)]
        node = helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens", "total"],
            ["o", "present_k", "present_v"], domain="com.microsoft", num_heads=s.heads,
            kv_num_heads=s.heads_kv, local_window_size=s.window if s.window is not None else -1)
        feeds = {"q": self.fold(self.q), "k": own[0], "v": own[1],
                 "past_k": self.k[None].astype(self.kind), "past_v": self.v[None].astype(self.kind),
                 "seqlens": np.array([s.length_k - 1], np.int32),
                 "total": np.array([s.length_k], np.int32)}
        return node, feeds, 17

    def bind_rest(self, names):
        for name, past in zip(names, ("past_k", "past_v")):
            self.binding.bind_ortvalue_output(name, self.held[past])


class Attention(Case):
    label = "Attention-23"
    bshd = False

    def graph(self, helper):
        s = self.shape
        feeds = {name: x[None].astype(self.kind)
                 for name, x in zip("qkv", (self.q, self.k, self.v))}
        if s.window is not None:
            feeds["mask"] = mask_array(self.np, s, bool, False, True)
            self.label = "Attention-23, mask tensor"
        node = helper.make_node("Attention", list(feeds), ["o"],
                                is_causal=int(s.mask == "causal"))
        return node, feeds, 23
