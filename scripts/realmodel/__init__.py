# SPDX-License-Identifier: Apache-2.0
"""Small real models for data capture and end-to-end checks, in plain numpy and float64.

env.py          virtual environment and pinned, hash-checked model packages
safetensors.py  reading and writing the one container format the project commits
minilm.py       all-MiniLM-L6-v2: tokenizer and encoder (full attention, 12 heads of 32)
smollm2.py      SmolLM2-135M: tokenizer and decoder (causal, 9 query heads on 3 KV heads of 64)
attention.py    softmax attention written out, the only attention these models use

Nothing here uses Tessera: the point is an answer that does not depend on it.
"""
