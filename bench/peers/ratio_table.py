#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Markdown table from records of peer_run.py: one row per shape, a column per peer with its time over
Tessera's. Of several records of one shape and peer the last counts.

  bench/peers/ratio_table.py bench/results/*-peers.jsonl
"""
import json
import statistics
import sys


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: ratio_table.py FILE.jsonl...")
    shapes, peers = {}, []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as lines:
            for record in map(json.loads, lines):
                if record.get("what") != "cpu attention" or "peer_versions" not in record:
                    continue
                key = tuple(record[k] for k in ("threads", "pass", "dtype", "mask", "heads", "heads_kv",
                                                "dim", "length", "length_k"))
                name = record["peer"].split()[0]
                if name not in peers:
                    peers.append(name)
                shapes.setdefault(key, {})[name] = record
    group = None
    for key in sorted(shapes, key=lambda k: (k[:3], k[7] == 1, k[3:])):
        threads, direction, dtype, mask, heads, heads_kv, dim, length, keys = key
        decode = length == 1
        if group != (threads, direction, dtype, decode):
            group = (threads, direction, dtype, decode)
            unit = "GB/s of K and V" if decode else "GFLOP/s"
            print(f"\n{direction}, {dtype}, {threads} threads\n")
            print(f"| mask | heads | D | {'keys' if decode else 'N'} | {unit} | of FMA | " +
                  " | ".join(peers) + " |")
            print("| --- " * (6 + len(peers)) + "|")
        records = shapes[key]
        one = next(iter(records.values()))
        seconds = statistics.median(one["tessera_seconds"])
        if decode:
            speed = f"{2 * heads_kv * keys * dim * (4 if dtype == 'f32' else 2) / seconds / 1e9:.1f}"
        else:
            pairs = length * keys * (0.5 if mask == "causal" else 1.0)
            if mask.startswith("window"):
                pairs = sum(min(i + 1, int(mask[6:])) for i in range(length))
            flops = 4 * heads * dim * pairs * (2.5 if direction == "backward" else 1)
            speed = f"{flops / seconds / 1e9:.0f}"
        cells = [f"{records[p]['ratio']:.2f}" if "ratio" in records.get(p, {}) else "" for p in peers]
        print(f"| {mask} | {heads if heads == heads_kv else f'{heads}/{heads_kv}'} | {dim} | {keys} | "
              f"{speed} | {statistics.median(one['fma_fraction']):.2f} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
