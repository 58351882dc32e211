#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the conformance cases, run through the HIP backend on the executor, notice a faulty kernel: the source of
a kernel row is copied, one line of it is changed, and the code object takes the shipped one's place.

    planted.py --clang CLANG --source TREE --rows FOLDER --cli TESSERA --work FOLDER DEVICE ROW

FOLDER of --rows has the generated source <ROW>.hip. The unchanged copy must pass, and every fault must fail the cases
that rows.py runs with every kernel of every device.
The environment is that of the tests of the fake driver (FAKE_HIP_DEVICES and so on).
"""
import argparse
import os
import shutil
import subprocess
import sys

NEAR = ("return !s.pages.table && s.row_bytes >= 0 && s.row_bytes < (int64_t{1} << 31) / rows;", "return true;")
# Operands of the second product from registers: those of a neighbour.
LANES = {
    "gfx9": ("p.r[0] = E::pack_numbers(acc.x[4 * step], acc.x[4 * step + 1]);",
             "p.r[0] = E::pack_numbers(acc.x[4 * step + 1], acc.x[4 * step]);"),
    "gfx11": ("p.r[i] = L::half() ? other : own;", "p.r[i] = L::half() ? own : other;"),
    "gfx12": ("for (int i = 0; i < 4; ++i) p.r[i] = E::pack_numbers(acc.x[2 * i], acc.x[2 * i + 1]);",
              "for (int i = 0; i < 4; ++i) p.r[i] = E::pack_numbers(acc.x[2 * i + 1], acc.x[2 * i]);"),
}


def faults_of_slices(backward):
    """The same of rows whose tiles pass through shared memory by slices of columns."""
    if not backward:
        own = "common/gpu/forward_sliced.hpp"
        return [
            ("a barrier is missing", own, "copy_wait<0>();\n        sync_block();", "copy_wait<0>();"),
            ("scores are those of the last slice", own, "add_part<U>(s, part);",
             "clear<U>(s);\n        add_part<U>(s, part);"),
            ("a tile goes beyond its shared memory", "common/gpu/forward.hpp",
             "kV = kK + kBuffers * TileK::kBytes;", "kV = kK + kBuffers * TileK::kBytes + 4096;"),
        ]
    own = "common/gpu/backward_wide.hpp"
    return [
        ("a barrier is missing", own, "sync_block(); // dS is complete", ""),
        ("products take another slice than that of their chunk", own, "const int slice = order.last + 1 + n;",
         "const int slice = order.last + n;"),
        ("dQ on its own: a tile goes beyond its shared memory", own, "kK = Base::kQ + Base::TileQ::kBytes;",
         "kK = Base::kQ + Base::TileQ::kBytes + 4096;"),
    ]


def faults_of(arch, row):
    """What goes wrong, the file, the text there, what it becomes."""
    backward = row.startswith("bwd_")
    if "_d576x" in row:
        return faults_of_slices(backward)
    unit = "backends/hip/gfx9/unit.hpp" if arch == "gfx9" else "backends/hip/gfx11/unit.hpp"
    faults = [("lanes take the operands of their neighbours", unit, *LANES[arch])]
    if not backward:
        return faults + [
            ("a barrier is missing", "common/gpu/forward_staged.hpp",
             "sync_block(); // the tile has been read by all", ""),
            ("the mask of the last tile is off by one", "common/gpu/score.hpp",
             "band.hi = static_cast<int32_t>(row.hi);", "band.hi = static_cast<int32_t>(row.hi) + 1;"),
            ("a tile goes beyond its shared memory", "common/gpu/forward.hpp",
             "kV = kK + kBuffers * TileK::kBytes;", "kV = kK + kBuffers * TileK::kBytes + 1024;"),
            ("distances of rows lose what is beyond 32 bits", "common/gpu/stage.hpp", *NEAR),
        ]
    own = "common/gpu/backward_query.hpp"
    faults += [
        ("dQ on its own: the mask is off by one", own, "key0 + c * U::kCon + U::con_lane() + U::con_element(e), shared",
         "key0 + c * U::kCon + U::con_lane() + U::con_element(e) + 1, shared"),
        ("dQ on its own: the last query is left out", own,
         "const int last = smaller(sq - i0, wave_row() + kFree * U::kFree);\n    if (first >= last) return false;",
         "const int last = smaller(sq - 1 - i0, wave_row() + kFree * U::kFree);\n    if (first >= last) return false;"),
    ]
    if arch == "gfx9":
        main = "common/gpu/backward_staged.hpp"
        return faults + [
            ("a barrier is missing", main, "sync_block(); // dS is complete; the tile has been read by all", ""),
            ("sums of dQ: the last query is left out", main,
             "if (!kFull && first + f * U::kFree >= rows) continue;",
             "if (!kFull && first + f * U::kFree >= rows - 1) continue;"),
            ("dK and dV: the mask is off by one", main,
             "const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(0);",
             "const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(0) + 1;"),
            ("a tile goes beyond its shared memory", main, "kO = kQ + TileQ::kBytes;",
             "kO = kQ + TileQ::kBytes + 4096;"),
            ("distances of rows lose what is beyond 32 bits", "common/gpu/stage.hpp", *NEAR),
        ]
    main = "common/gpu/backward.hpp"
    return faults + [
        ("a barrier is missing", main,
         "sync_block(); // this tile has arrived; everybody is done with the one before", ""),
        ("sums of dQ: the last query is left out", main, "if (row + U::free_of(0) + down >= rows) continue;",
         "if (row + U::free_of(0) + down >= rows - 1) continue;"),
        ("dK and dV: the mask is off by one", main,
         "const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(slot);",
         "const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(slot) + 1;"),
        ("a tile goes beyond its shared memory", main, "kO = kWide ? kQ : kQ + kTiles * TileQ::kBytes;",
         "kO = kQ + kTiles * TileQ::kBytes + 4096;"),
    ]


def compile_row(args, tree, target):
    command = [args.clang, "-x", "hip", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-ffp-contract=off",
               f"-I{args.source}/api/include", f"-I{tree}", f"--offload-arch={args.device}",
               "--offload-device-only", "--no-gpu-bundle-output", os.path.join(args.rows, args.row + ".hip"),
               "-o", target]
    subprocess.run(command, check=True)


def check(args, backward, folder):
    """Whether the cases that all kernels run pass with the code objects of a folder, and the last lines of those that
    do not."""
    sliced = "_d576x" in args.row
    runs = [["--group", "kernels", "--case", "d576" if sliced else "d128"]]
    runs += [] if sliced else [["--group", "strides", "--case", "wide"]]
    if backward:
        runs.insert(1, runs[0] + ["--determinism", "deterministic"])
    environment = dict(os.environ, FAKE_HIP_OBJECTS=folder)
    for run in runs:
        command = [args.cli, "check", "--backend", "hip", "--kernel", args.row, "--dtype", args.row.split("_")[1],
                   "--pass", "both" if backward else "forward", *run]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return False, (done.stdout + done.stderr).strip().splitlines()
    return True, []


def plant(args, tree, fault):
    for part in ("common", "backends/hip"):
        shutil.copytree(os.path.join(args.source, part), os.path.join(tree, part))
    if not fault:
        return
    _, file, old, new = fault
    path = os.path.join(tree, file)
    with open(path) as f:
        text = f.read()
    if text.count(old) != 1:
        sys.exit(f"planted: {path} has {text.count(old)} times: {old}")
    with open(path, "w") as f:
        f.write(text.replace(old, new))


def main():
    parser = argparse.ArgumentParser()
    for name in ("clang", "source", "rows", "cli", "work"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("device")
    parser.add_argument("row")
    args = parser.parse_args()
    backward = args.row.startswith("bwd_")
    faults = faults_of("gfx9" if args.device.startswith("gfx9") else args.device[:5], args.row)
    failures = 0
    for n, fault in enumerate([None] + faults):
        tree = os.path.join(args.work, f"planted_{args.device}_{args.row}_{n}")
        shutil.rmtree(tree, ignore_errors=True)
        plant(args, tree, fault)
        folder = os.path.join(tree, "objects")
        os.mkdir(folder)
        code = os.path.join(folder, f"tsri_hip_{args.row}.co")
        compile_row(args, tree, code)
        for other in ("stats", "dq"):  # a file for each of its kernels
            shutil.copy(code, os.path.join(folder, f"tsri_hip_{args.row}_{other}.co"))
        passed, lines = check(args, backward, folder)
        good = passed == (fault is None)
        failures += not good
        seen = "passed" if passed else next((x.strip() for x in lines if "FAIL hip" in x or "fake" in x), str(lines))
        print(f"{'ok' if good else 'FAILED'}: {fault[0] if fault else 'unchanged'}: {seen[:250]}")
        if not good:
            print("\n".join(lines[-20:]))
        shutil.rmtree(tree)
    print(f"planted: {len(faults)} faults and a kernel as it is, {failures} failure(s)")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
