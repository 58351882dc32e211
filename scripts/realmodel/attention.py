# SPDX-License-Identifier: Apache-2.0
"""Softmax attention written out: O = softmax(scale Q K^T) V, whole matrices, float64.

Called by both models' forward passes and, on the stored (rounded) tensors, for the expected
outputs of the captured data. It is deliberately a second, independent statement of the maths:
no code and no tile order in common with the library.
"""
import numpy as np


def attend(q, k, v, scale, causal):
    """q [B, Hq, S, D], k and v [B, Hkv, S, D] -> O [B, Hq, S, D], natural-log LSE [B, Hq, S].

    Query head h reads key/value head h // (Hq / Hkv). `causal` allows key j <= query i.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    score = scale * (q @ k.swapaxes(-1, -2))
    if causal:
        row, column = np.ogrid[:score.shape[-2], :score.shape[-1]]
        score = np.where(column <= row, score, -np.inf)
    peak = score.max(axis=-1, keepdims=True)
    weight = np.exp(score - peak)
    total = weight.sum(axis=-1, keepdims=True)
    return (weight @ v) / total, (peak + np.log(total))[..., 0]
