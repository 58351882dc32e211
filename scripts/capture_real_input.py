#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures Q, K and V of real models on real text into tests/data/real_qkv.safetensors.

Decides which models, texts, layers and dtypes the committed file holds. Beside each layer's
inputs it stores O and LSE, computed here in float64 from the stored (rounded) inputs, so that
tests have an answer that no part of the library took part in. All arithmetic is float64, so the
file does not depend on the order in which a BLAS adds. `--check` makes it again and compares.
"""
import argparse
import os
import pathlib
import sys
import tempfile

from realmodel import env

MAX_BYTES = 2_000_000
MAX_LOSS = 3.0  # nats per token; measured 2.80, and 5.08 with the other rotary layout

# A. Lincoln, address at Gettysburg, 1863. Public domain.
LINCOLN = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, "
    "conceived in Liberty, and dedicated to the proposition that all men are created equal.\n\n"
    "Now we are engaged in a great civil war, testing whether that nation, or any nation so "
    "conceived and so dedicated, can long endure. We are met on a great battle-field of that war. "
    "We have come to dedicate a portion of that field, as a final resting place for those who here "
    "gave their lives that that nation might live. It is altogether fitting and proper that we "
    "should do this.\n\n"
    "But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- "
    "this ground. The brave men, living and dead, who struggled here, have consecrated it, far "
    "above our poor power to add or detract. The world will little note, nor long remember what we "
    "say here, but it can never forget what they did here. It is for us the living, rather, to be "
    "dedicated here to the unfinished work which they who fought here have thus far so nobly "
    "advanced.")
# C. Darwin, On the Origin of Species, 1859; M. Faraday, The Chemical History of a Candle, 1861.
# Public domain.
DARWIN = (
    "When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in the "
    "distribution of the inhabitants of South America, and in the geological relations of the "
    "present to the past inhabitants of that continent.")
FARADAY = (
    "There is no better, there is no more open door by which you can enter into the study of "
    "natural philosophy than by considering the physical phenomena of a candle.")

SMOLLM2_TOKENS, MINILM_TOKENS = 227, 31  # primes: no tile divides them
SMOLLM2_LAYERS = {7: "BF16", 22: "F16"}
MINILM_LAYERS = {0: "F32", 5: "F16"}


def rounded(array, dtype):
    """(tensor as stored, the same values widened to float64)."""
    import numpy as np
    from realmodel.safetensors import Bf16
    if dtype == "BF16":
        stored = Bf16.round(array)
        return stored, stored.widen().astype(np.float64)
    stored = array.astype({"F16": np.float16, "F32": np.float32}[dtype])
    return stored, stored.astype(np.float64)


def recorder(tensors, model, layers, scale, causal):
    """capture() callback that stores the chosen layers of `model` with their O and LSE."""
    import numpy as np
    from realmodel.attention import attend

    def capture(layer, q, k, v):
        if layer not in layers:
            return
        name, inputs = "%s.l%02d." % (model, layer), []
        for part, array in zip("qkv", (q, k, v)):
            tensors[name + part], wide = rounded(array, layers[layer])
            inputs.append(wide)
        output, lse = attend(*inputs, scale, causal)
        tensors[name + "o"], _ = rounded(output, layers[layer])
        tensors[name + "lse"] = lse.astype(np.float32)
    return capture


def describe(model, package, licence, source, text, scale, causal, layers):
    version, digest = env.MODEL_PACKAGES[package]
    return {model + "." + key: value for key, value in {
        "package": "%s %s (PyPI), wheel SHA-256 %s" % (package, version, digest),
        "licence": licence, "text_source": source, "text": text, "scale": repr(scale),
        "causal": causal, "layers": ",".join("%02d" % layer for layer in layers)}.items()}


def build(cache):
    """Bytes of the captured file."""
    from realmodel import minilm, safetensors, smollm2
    tensors = {}
    metadata = {"layout": "q, k, v, o: [B, H, S, D]; lse: [B, H, S], natural log",
                "written_by": "scripts/capture_real_input.py",
                "expected": "o and lse: float64 attention on the stored q, k, v, then rounded"}

    model = minilm.MiniLM(env.model_wheel(cache, minilm.PACKAGE))
    rows = [model.tokenize(text)[:MINILM_TOKENS] for text in (DARWIN, FARADAY)]
    if any(len(row) != MINILM_TOKENS for row in rows):
        raise SystemExit("error: a MiniLM text has fewer than %d tokens" % MINILM_TOKENS)
    model.hidden(rows, recorder(tensors, "minilm", MINILM_LAYERS, model.scale, causal=False))
    metadata.update(describe(
        "minilm", minilm.PACKAGE, "weights Apache-2.0 (all-MiniLM-L6-v2), package MIT",
        "C. Darwin, On the Origin of Species, 1859; M. Faraday, The Chemical History of a "
        "Candle, 1861; public domain; batch rows in this order, cut to %d tokens" % MINILM_TOKENS,
        DARWIN + "\n" + FARADAY, model.scale, "none", MINILM_LAYERS))

    model = smollm2.SmolLM2(env.model_wheel(cache, smollm2.PACKAGE))
    ids = model.tokenize(LINCOLN)[:SMOLLM2_TOKENS]
    if len(ids) != SMOLLM2_TOKENS:
        raise SystemExit("error: the SmolLM2 text has %d tokens, fewer than %d"
                         % (len(ids), SMOLLM2_TOKENS))
    logits = model.logits(
        ids, recorder(tensors, "smollm2", SMOLLM2_LAYERS, model.scale, causal=True))
    loss = model.loss(ids, logits)
    print("smollm2: %.3f nats per token on the text (at most %.1f accepted)" % (loss, MAX_LOSS))
    if not loss <= MAX_LOSS:
        raise SystemExit("error: the decoder does not predict its text; nothing is written")
    metadata.update(describe(
        "smollm2", smollm2.PACKAGE, "Apache-2.0 (SmolLM2-135M-Instruct, Q4_1; package too)",
        "A. Lincoln, address at Gettysburg, 1863; public domain; cut to %d tokens"
        % SMOLLM2_TOKENS, LINCOLN, model.scale, "bottom-right", SMOLLM2_LAYERS))

    data = safetensors.encode(tensors, metadata)
    if len(data) > MAX_BYTES:
        raise SystemExit("error: %d bytes, more than %d" % (len(data), MAX_BYTES))
    return data


def check(data, path):
    """0 if `path` holds the same data, one unit in the last place allowed per element.

    That unit is what another machine's float64 summation order can change when a value lies
    within about 1e-14 of a rounding boundary.
    """
    import numpy as np
    from realmodel import safetensors
    made, made_metadata = safetensors.decode(data)
    found, found_metadata = safetensors.decode(pathlib.Path(path).read_bytes())
    if made_metadata != found_metadata or made.keys() != found.keys():
        print("%s: tensors or metadata are not those this script writes" % path, file=sys.stderr)
        return 1
    bad = 0
    for name in sorted(made):
        a, b = (safetensors.bits(x[name]).astype(np.int64) for x in (made, found))
        step = int(abs(a - b).max()) if a.shape == b.shape else -1
        if step not in (0, 1):
            print("%s: %s differs (%s)" % (path, name, "shape" if step < 0 else
                                           "%d units in the last place" % step), file=sys.stderr)
            bad += 1
    print("%s: %d tensors, %d differ" % (path, len(made), bad))
    return 1 if bad else 0


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder for the environment and packages")
    parser.add_argument("--out", default=str(root / "tests/data/real_qkv.safetensors"))
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit 1 if the file differs from what would be written")
    options = parser.parse_args()
    env.enter(options.cache, ["numpy"])
    data = build(options.cache)
    if options.check:
        return check(data, options.out)
    folder = pathlib.Path(options.out).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, options.out)
    print("%s: %d bytes" % (options.out, len(data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
