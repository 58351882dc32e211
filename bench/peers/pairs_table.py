#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Markdown tables from records of cpu_pairs.py that have one build of Tessera beside other libraries: per shape the
time of the fastest of them over Tessera's, and which it is (t PyTorch, d oneDNN, g ggml, b OpenBLAS); bold
below 1. Then per library how many shapes, the geometric mean, the least, and the shapes below its aim. Of several
records of one shape the last counts.

  bench/peers/pairs_table.py bench/results/*-cells.jsonl
"""
import json
import math
import sys

AIMS = {"torch": 1.25, "onednn": 1.2, "ggml": 2.5, "openblas": 1.0}  # float32 forward
LETTERS = {"torch": "t", "onednn": "d", "ggml": "g", "openblas": "b"}
MASKS = ("full", "causal")


def ratios(record):
    """Peer: its time over Tessera's; empty if the record has no peer, or several builds."""
    sides = record["sides"]
    mine = [s["median_s"] for n, s in sides.items() if n not in AIMS]
    if len(mine) != 1:
        return {}
    return {n: s["median_s"] / mine[0] for n, s in sides.items() if n in AIMS}


def read(paths):
    """{(pass, dtype, threads): {(N, mask, heads, D): ratios}}."""
    tables = {}
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for record in map(json.loads, lines):
                if record.get("what") != "cpu pairs":
                    continue
                direction, dtype, sizes, mask = record["shape"].split(":")
                heads, length, dim = sizes.split("x")
                found = ratios(record)
                if found and heads.isdigit() and length.isdigit():
                    key = (direction, dtype, record["threads"])
                    tables.setdefault(key, {})[(int(length), mask, int(heads), int(dim))] = found
    return tables


def order(row):
    length, mask, heads = row
    return length, MASKS.index(mask) if mask in MASKS else len(MASKS), mask, heads


def cell(found):
    if not found:
        return ""
    name = min(found, key=found.get)
    text = f"{found[name]:.2f} {LETTERS[name]}"
    return f"**{text}**" if found[name] < 1 else text


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: pairs_table.py FILE.jsonl...")
    for (direction, dtype, threads), shapes in sorted(read(sys.argv[1:]).items()):
        dims = sorted({key[3] for key in shapes})
        print(f"\n{direction}, {dtype}, {threads} threads\n")
        print("| N | mask | heads | " + " | ".join(f"D {d}" for d in dims) + " |")
        print("| --- " * (3 + len(dims)) + "|")
        for length, mask, heads in sorted({key[:3] for key in shapes}, key=order):
            cells = [cell(shapes.get((length, mask, heads, d))) for d in dims]
            print(f"| {length} | {mask} | {heads} | " + " | ".join(cells) + " |")
        print()
        for name, aim in AIMS.items():
            here = {key: found[name] for key, found in shapes.items() if name in found}
            if here:
                mean = math.exp(sum(map(math.log, here.values())) / len(here))
                print(f"{name}: {len(here)} shapes, geometric mean {mean:.2f}, least {min(here.values()):.2f}; "
                      f"{sum(x < aim for x in here.values())} below {aim}, {sum(x < 1 for x in here.values())} below 1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
