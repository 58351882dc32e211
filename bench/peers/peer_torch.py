# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on the CPU, forward and backward. Its flash kernel takes full and
causal attention; a window needs a boolean mask tensor. Grouped heads: enable_gqa, or the queries of a
group as rows of their key head, whichever is faster."""
from peer_api import mask_array, need


class Peer:
    def __init__(self, config):
        self.torch = need("torch")
        self.torch.set_num_threads(config["threads"])
        self.versions = {"torch": self.torch.__version__}

    def prepare(self, shape):
        if shape.group == 1:
            return [lambda: Case(self.torch, shape, "")]
        if shape.masked or shape.direction == "backward":
            return [lambda: Case(self.torch, shape, "enable_gqa")]
        return [lambda: Case(self.torch, shape, "enable_gqa"),
                lambda: Case(self.torch, shape, "group as rows")]


class Case:
    def __init__(self, torch, shape, label):
        self.torch, self.shape, self.label = torch, shape, label
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
        grad = shape.direction == "backward"
        torch.manual_seed(1)
        self.q = torch.randn(1, shape.heads, shape.length, shape.dim, dtype=kind)
        self.k, self.v = (torch.randn(1, shape.heads_kv, shape.length_k, shape.dim, dtype=kind)
                          for _ in range(2))
        self.options = {}
        if label == "enable_gqa":
            self.options["enable_gqa"] = True
        elif label:
            self.q = self.q.view(1, shape.heads_kv, shape.group * shape.length, shape.dim)
        if shape.mask == "causal":
            self.options["is_causal"] = True
        elif shape.masked:
            np = need("numpy")
            self.options["attn_mask"] = torch.from_numpy(mask_array(np, shape, bool, False, True))
            self.label = "mask tensor"
        self.o = None
        if grad:
            for x in (self.q, self.k, self.v):
                x.requires_grad_()
            self.g = torch.randn(1, shape.heads, shape.length, shape.dim, dtype=kind)
            self.o = self.attend()

    def attend(self):
        return self.torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v,
                                                                     **self.options)

    def step(self):
        if self.o is None:
            with self.torch.no_grad():
                self.attend()
        else:
            self.torch.autograd.grad(self.o, (self.q, self.k, self.v), self.g, retain_graph=True)

    def error(self):
        """Against float64 on one key head with its queries; of long sequences the last rows, which see
        most, and then no dK and dV, to which all rows add."""
        torch, group = self.torch, self.q.shape[1] // self.k.shape[1]
        rows = self.q.shape[2] if self.q.shape[2] <= 2048 else 64
        grad = self.o is not None
        one = [x.detach().double().requires_grad_(grad)
               for x in (self.q[:, :group, -rows:], self.k[:, :1], self.v[:, :1])]
        options = dict(self.options)
        if options.pop("is_causal", False):
            options["attn_mask"] = torch.ones(self.shape.length, self.shape.length_k,
                                              dtype=torch.bool).tril()
        if "attn_mask" in options:
            options["attn_mask"] = options["attn_mask"][-rows:]
        with torch.set_grad_enabled(grad):
            exact = torch.nn.functional.scaled_dot_product_attention(*one, **options)
            if grad:
                exact = torch.autograd.grad(exact, one, self.g[:, :group, -rows:].double())
                got = torch.autograd.grad(self.o, (self.q, self.k, self.v), self.g, retain_graph=True)
                got = [got[0][:, :group, -rows:], got[1][:, :1], got[2][:, :1]]
                if rows < self.q.shape[2]:
                    exact, got = exact[:1], got[:1]
            else:
                exact, got = [exact], [self.attend()[:, :group, -rows:]]
        worst = largest = 0.0
        for a, b in zip(got, exact):
            if not a.isfinite().all().item():
                return float("inf")
            worst = max(worst, (a.double() - b).abs().max().item())
            largest = max(largest, b.abs().max().item())
        return worst / largest

    def close(self):
        self.q = self.k = self.v = self.o = None
