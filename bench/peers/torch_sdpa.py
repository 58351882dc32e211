#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's scaled_dot_product_attention beside Tessera, shape by shape.

On the CPU: peer_run.py with this one peer, by default in float32 and bfloat16, full and causal, at four
lengths. With --device cuda: PyTorch's back ends cudnn, flash, efficient and math and Tessera in one process on
the same tensors (sdpa_device.py), and FlashAttention-3, which PyTorch has not (sdpa_fa3.py). Says so and exits
with status 3 when PyTorch is absent.

  bench/peers/torch_sdpa.py build/cli/tessera --threads 2,16 --passes both --json out.jsonl
  bench/peers/torch_sdpa.py build/cli/tessera --device cuda --suite prefill,short --passes both
  bench/peers/torch_sdpa.py build/cli/tessera --device cuda --suite decode --peers cudnn,flash
  bench/peers/torch_sdpa.py build/cli/tessera --device cuda --passes both --peers cudnn,fa3 --fa3 ./libfa3.so
"""
import argparse
import sys

import sdpa_device
from peer_run import add_options, run
from sdpa_shapes import SUITES


def device_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cli", help="the tessera program; its library lies in ../lib")
    parser.add_argument("--device", required=True, help="cuda, cuda:N; cpu for tests of the script")
    parser.add_argument("--passes", default="forward", choices=("forward", "backward", "both"))
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), help="instead of the suites' own")
    parser.add_argument("--peers", default="cudnn,flash,efficient,math")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sample-seconds", type=float, default=0.01)
    parser.add_argument("--json", help="append records, one a line")
    sdpa_device.add_options(parser)
    options = parser.parse_args(arguments)
    options.peer_list = [p for p in options.peers.split(",") if p]
    options.directions = ("forward", "backward") if options.passes == "both" else (options.passes,)
    for name in options.peer_list:
        if name not in sdpa_device.PEERS and name != sdpa_device.FA3:
            parser.error(f"--peers: '{name}'; accepted: {', '.join(sdpa_device.PEERS)}, {sdpa_device.FA3}")
    for name in options.suite.split(","):
        if name not in SUITES:
            parser.error(f"--suite: '{name}'; accepted: {', '.join(sorted(SUITES))}")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds}; accepted: 1 and more")
    return options


def main():
    if any(a == "--device" or a.startswith("--device=") for a in sys.argv[1:]):
        return sdpa_device.run(device_options(sys.argv[1:]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, dtypes="f32,bf16", masks="full,causal", lengths="128,512,2048,8192")
    return run(parser.parse_args(), ["torch"])


if __name__ == "__main__":
    sys.exit(main())
