#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the conformance cases, run through the HIP backend on the executor, notice a faulty kernel: the source of
a kernel row is copied, one line of it is changed, and the code object takes the shipped one's place.

    planted.py --clang CLANG --source TREE --rows FOLDER --cli TESSERA --work FOLDER DEVICE ROW

FOLDER of --rows has the generated source <ROW>.hip. The unchanged copy must pass, and every fault must fail.
The environment is that of the tests of the fake driver (FAKE_HIP_DEVICES and so on).
"""
import argparse
import os
import shutil
import subprocess
import sys

# What goes wrong, the file, the text there, what it becomes.
FAULTS = [
    ("a barrier is missing", "common/gpu/forward_staged.hpp",
     "sync_block(); // the tile has been read by all", ""),
    ("lanes take the operands of their neighbours", "backends/hip/{unit}/unit.hpp",
     "p.r[0] = E::pack_numbers(acc.x[4 * step], acc.x[4 * step + 1]);",
     "p.r[0] = E::pack_numbers(acc.x[4 * step + 1], acc.x[4 * step]);"),
    ("the mask of the last tile is off by one", "common/gpu/score.hpp",
     "band.hi = static_cast<int32_t>(row.hi);", "band.hi = static_cast<int32_t>(row.hi) + 1;"),
    ("a tile goes beyond its shared memory", "common/gpu/forward.hpp",
     "kV = kK + kBuffers * TileK::kBytes;", "kV = kK + kBuffers * TileK::kBytes + 1024;"),
]
LANES_GFX11 = ("for (int i = 0; i < 4; ++i) p.r[i] = E::pack_numbers(acc.x[2 * i], acc.x[2 * i + 1]);",
               "for (int i = 0; i < 4; ++i) p.r[i] = E::pack_numbers(acc.x[2 * i + 1], acc.x[2 * i]);")


def compile_row(args, tree, target):
    command = [args.clang, "-x", "hip", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-ffp-contract=off",
               f"-I{args.source}/api/include", f"-I{tree}", f"--offload-arch={args.device}",
               "--offload-device-only", "--no-gpu-bundle-output", os.path.join(args.rows, args.row + ".hip"),
               "-o", target]
    subprocess.run(command, check=True)


def check(args, folder):
    """Status and last lines of a run of the cases with the code objects of a folder."""
    command = [args.cli, "check", "--backend", "hip", "--kernel", args.row, "--pass", "forward", "--group",
               "basic"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, FAKE_HIP_OBJECTS=folder))
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def main():
    parser = argparse.ArgumentParser()
    for name in ("clang", "source", "rows", "cli", "work"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("device")
    parser.add_argument("row")
    args = parser.parse_args()
    unit = "gfx9" if args.device.startswith("gfx9") else "gfx11"
    failures = 0
    for n, (what, file, old, new) in enumerate([("unchanged", None, "", "")] + FAULTS):
        tree = os.path.join(args.work, f"planted_{args.device}_{n}")
        shutil.rmtree(tree, ignore_errors=True)
        for part in ("common", "backends/hip"):
            shutil.copytree(os.path.join(args.source, part), os.path.join(tree, part))
        if file:
            if "{unit}" in file and unit == "gfx11":
                old, new = LANES_GFX11
            path = os.path.join(tree, file.format(unit=unit))
            with open(path) as f:
                text = f.read()
            if text.count(old) != 1:
                sys.exit(f"planted: {path} has {text.count(old)} times: {old}")
            with open(path, "w") as f:
                f.write(text.replace(old, new))
        folder = os.path.join(tree, "objects")
        os.mkdir(folder)
        compile_row(args, tree, os.path.join(folder, f"tsri_hip_{args.row}.co"))
        status, lines = check(args, folder)
        good = (status == 0) == (file is None)
        failures += not good
        print(f"{'ok' if good else 'FAILED'}: {what}: status {status}: {lines[-1] if lines else ''}")
        if not good:
            print("\n".join(lines[-20:]))
        shutil.rmtree(tree)
    print(f"planted: {len(FAULTS)} faults and a kernel as it is, {failures} failure(s)")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
