# SPDX-License-Identifier: Apache-2.0
"""The exact result that comes before any timing: float64 by the formulas, for the first and the last KV
head with their query heads; of long sequences forward rows at the start, middle and end. Works on any
device PyTorch has."""

# Largest error over largest exact value. Rounded results and P rounded for the second product stay
# well below; a wrong mask, scale or head is far beyond.
BOUND = {"f32": {"forward": 1e-4, "backward": 1e-3},
         "f16": {"forward": 1e-2, "backward": 3e-2},
         "bf16": {"forward": 3e-2, "backward": 6e-2}}
# Past this many queries forward is compared by rows.
WHOLE = 4096


def checked_rows(torch, length, device):
    if length <= WHOLE:
        return torch.arange(length, device=device)
    parts = [torch.arange(a, a + 64, device=device)
             for a in (0, length // 2 - 32, length - 64)]
    return torch.cat(parts)


def checked_heads(shape):
    """(batch, KV head): first and last."""
    return sorted({(0, 0), (shape.batch - 1, shape.heads_kv - 1)})


def probabilities(torch, shape, q, k, rows):
    """P [rows, Sk] of one head; q, k float64. Causal counts from the bottom right corner."""
    s = q @ k.T / shape.dim ** 0.5
    if shape.causal:
        last = rows[:, None] + (shape.length_k - shape.length)
        s = s.masked_fill(torch.arange(shape.length_k, device=q.device)[None, :] > last,
                          float("-inf"))
    return torch.softmax(s, -1)


def forward_error(torch, shape, tensors, o):
    """Largest error over largest exact value."""
    rows = checked_rows(torch, shape.length, o.device)
    worst = largest = 0.0
    for b, g in checked_heads(shape):
        k, v = tensors["k"][b, g].double(), tensors["v"][b, g].double()
        for h in range(g * shape.group, (g + 1) * shape.group):
            p = probabilities(torch, shape, tensors["q"][b, h, rows].double(), k, rows)
            exact = p @ v
            worst = larger(torch, worst, o[b, h, rows].double() - exact)
            largest = max(largest, exact.abs().max().item())
    return worst / largest


def larger(torch, worst, difference):
    """The larger magnitude; infinite for NaN."""
    if not torch.isfinite(difference).all().item():
        return float("inf")
    return max(worst, difference.abs().max().item())


def backward_error(torch, shape, tensors, dq, dk, dv):
    """The worst of the three gradients, each over its own largest exact value. Queries go in blocks, so
    that a few matrices of one block are all that is held."""
    block = max(1, min(shape.length, (1 << 26) // shape.length_k))
    worst = 0.0
    for b, g in checked_heads(shape):
        k, v = tensors["k"][b, g].double(), tensors["v"][b, g].double()
        exact_k, exact_v = torch.zeros_like(k), torch.zeros_like(v)
        difference, largest = 0.0, 0.0
        for h in range(g * shape.group, (g + 1) * shape.group):
            for first in range(0, shape.length, block):
                rows = torch.arange(first, min(first + block, shape.length), device=k.device)
                q = tensors["q"][b, h, rows].double()
                dout = tensors["dout"][b, h, rows].double()
                p = probabilities(torch, shape, q, k, rows)
                exact_v += p.T @ dout
                dp = dout @ v.T
                ds = p * (dp - (p * dp).sum(-1, keepdim=True))
                exact_q = ds @ k / shape.dim ** 0.5
                exact_k += ds.T @ q / shape.dim ** 0.5
                difference = larger(torch, difference, dq[b, h, rows].double() - exact_q)
                largest = max(largest, exact_q.abs().max().item())
        worst = max(worst, difference / largest)
        for got, exact in ((dk, exact_k), (dv, exact_v)):
            worst = max(worst, larger(torch, 0.0, got[b, g].double() - exact) /
                        exact.abs().max().item())
    return worst
