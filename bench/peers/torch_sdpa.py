#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's scaled_dot_product_attention on the CPU beside `tessera bench`, shape by shape.

The same as peer_run.py with this one peer, by default in float32 and bfloat16, full and causal, at four
lengths. Says so and exits with status 3 when PyTorch is absent.

  bench/peers/torch_sdpa.py build/cli/tessera --threads 2,16 --passes both --json out.jsonl
"""
import argparse
import sys

from peer_run import add_options, run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, dtypes="f32,bf16", masks="full,causal", lengths="128,512,2048,8192")
    return run(parser.parse_args(), ["torch"])


if __name__ == "__main__":
    sys.exit(main())
