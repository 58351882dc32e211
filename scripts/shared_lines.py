#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of their device code the GPU backends share: lines of code (no comments, no blank lines, no lines of
the host's emulation) of the files that the sources of their kernels include.

    scripts/shared_lines.py [--least PERCENT] [--least-used PERCENT] [TREE]

A file of common/ that both backends include is shared; what only one of them includes is its own, wherever it is.
"In use by both" is the stricter reading: files of ONE_SIDED are included by both, but programs of AMD alone are made
of them, because its copies to shared memory go through registers; there they are AMD's own and not CUDA's at all. The
copy engine's path of sm_90 has no counterpart on AMD; it is counted by itself. The status is 1 where a backend shares
less than --least of its lines, or than --least-used in the stricter reading.
"""
import argparse
import glob
import os
import re
import sys

ROOTS = {
    "hip": ["backends/hip/*.hip", "backends/hip/*.hip.in"],
    "cuda": ["backends/cuda/*.cu", "backends/cuda/*.cu.in", "backends/cuda/sm80/*.hpp", "backends/cuda/sm90/*.hpp"],
}
HOPPER = ("backends/cuda/sm90/", "backends/cuda/instance_engine")
HOST = ("common/gpu/platform_emulated.hpp", "common/gpu/emulator.hpp", "common/gpu/host/", "backends/cuda/kernels.h",
        "backends/cuda/sm90/emulated.hpp")
# In the files of both, but of units that copy through registers and of tiles that are sliced, which are AMD's.
ONE_SIDED = ("common/gpu/stage.hpp", "common/gpu/forward_staged.hpp", "common/gpu/backward_staged.hpp",
             "common/gpu/backward_stages.hpp", "common/gpu/forward_sliced.hpp", "common/gpu/backward_wide.hpp")
# What conditions of the sources are on a device; others are taken to hold.
DEFINED = {
    "hip": {"TSRI_GPU_AMD": True, "TSRI_GPU_CUDA": False, "TSRI_GPU_EMULATED": False, "__CUDACC__": False},
    "cuda": {"TSRI_GPU_AMD": False, "TSRI_GPU_CUDA": True, "TSRI_GPU_EMULATED": False, "__CUDACC__": True},
}


def device_lines(text, backend):
    """Lines of code that a device compiler of the backend sees, as far as the choice of backend decides."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    kept, stack = [], []  # of conditions: [whether this branch counts, whether one before did]
    for line in text.splitlines():
        line = re.sub(r"//.*", "", line).strip()
        word = re.match(r"#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*)", line)
        if word:
            kind, condition = word.groups()
            if kind == "endif":
                stack.pop()
            elif kind == "else":
                stack[-1] = [not stack[-1][1], True]
            else:
                known = re.fullmatch(r"(!?)\s*(?:defined\s*\(?)?\s*(\w+)\s*\)?", condition)
                value = True
                if known and known.group(2) in DEFINED[backend]:
                    value = DEFINED[backend][known.group(2)] != (known.group(1) == "!" or kind == "ifndef")
                elif "TSRI_GPU_EMULATED" in condition and "||" in condition:
                    value = True
                if kind == "elif":
                    unknown = not (known and known.group(2) in DEFINED[backend])
                    before = stack[-1][1] and not unknown
                    stack[-1] = [value and not before, before or value]
                else:
                    stack.append([value, value and bool(known and known.group(2) in DEFINED[backend])])
            continue
        if line and all(counts for counts, _ in stack):
            kept.append(line)
    return kept


def files_of(tree, backend):
    """All files of the tree that the backend's device sources include, but those of the host's emulation."""
    todo = [os.path.relpath(path, tree) for pattern in ROOTS[backend]
            for path in glob.glob(os.path.join(tree, pattern))]
    found = {}
    while todo:
        path = todo.pop()
        full = os.path.join(tree, path)
        if path in found or path.startswith(HOST) or not os.path.exists(full):
            continue
        with open(full) as f:
            found[path] = device_lines(f.read(), backend)
        todo += [m.group(1) for m in (re.match(r'#\s*include "(.*)"', line) for line in found[path]) if m]
    return {path: len(lines) for path, lines in found.items() if not path.startswith("api/")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--least-used", type=float, default=0)
    parser.add_argument("tree", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    args = parser.parse_args()
    found = {backend: files_of(args.tree, backend) for backend in ROOTS}
    if not all(found.values()):
        sys.exit("shared_lines: no device sources in " + args.tree)
    failed = False
    for backend, files in found.items():
        others = set().union(*(set(f) for b, f in found.items() if b != backend))
        shared = {p: n for p, n in files.items() if p in others and p.startswith("common/")}
        hopper = {p: n for p, n in files.items() if p.startswith(HOPPER)}
        own = {p: n for p, n in files.items() if p not in shared and p not in hopper}
        all_shared, all_own = sum(shared.values()), sum(own.values())
        part = 100.0 * all_shared / (all_shared + all_own)
        print(f"{backend}: {all_shared} lines of {all_shared + all_own} are shared: {part:.1f} %"
              + (f" ({sum(hopper.values())} more of the copy engine's path)" if hopper else ""))
        one_sided = sum(n for p, n in shared.items() if p in ONE_SIDED)
        used = all_shared - one_sided
        total = used + all_own + (one_sided if backend == "hip" else 0)
        part_used = 100.0 * used / total
        print(f"    in use by both: {used} of {total}: {part_used:.1f} % ({one_sided} are for units that copy through "
              "registers)")
        for path in sorted(own, key=own.get, reverse=True):
            print(f"    own: {own[path]:5d} {path}")
        if part < args.least:
            print(f"FAILED: {backend} shares less than {args.least:g} %")
            failed = True
        if part_used < args.least_used:
            print(f"FAILED: {backend} uses less than {args.least_used:g} % together with the other")
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
