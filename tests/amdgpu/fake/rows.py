#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether every kernel that is shipped for a device runs, and is right: the cases of group "kernels" with every
kernel in turn, forward, backward and with deterministic gradients, and those whose rows are far apart; and after that
the list of what the executor ran to its end against the list of what the code objects hold.

    rows.py --rows UNIT_HIP_ROWS --cli TESSERA --refusals FILE --work FOLDER [--also PROGRAM]... DEVICE

FILE: cases that the device refuses, see `tessera check --refusals`. PROGRAM: a test that runs what has no place
among the cases. The environment is that of the tests of the fake driver (FAKE_HIP_DEVICES and so on).
"""
import argparse
import os
import subprocess
import sys

KERNELS, WIDE = ("--group", "kernels"), ("--group", "strides", "--case", "wide")
RUNS = (("--pass", "forward", *KERNELS), ("--pass", "both", *KERNELS),
        ("--pass", "both", "--determinism", "deterministic", *KERNELS),
        ("--pass", "forward", *WIDE), ("--pass", "both", *WIDE))


def kernels_of(rows, *archs):
    """Names of all kernels that the library has for architectures, such as gfx9 and gfx942."""
    def lines(option):
        return subprocess.run([rows, option], check=True, capture_output=True, text=True).stdout.splitlines()
    own = [line.split()[1] for line in lines("--list") if any(f"__{a}_" in line.split()[0] for a in archs)]
    return set(own), set(lines("--list-shared"))


def main():
    parser = argparse.ArgumentParser()
    for name in ("rows", "cli", "refusals", "work"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("device")
    args = parser.parse_args()
    arch = "gfx9" if args.device.startswith("gfx9") else args.device[:5]
    record = os.path.join(args.work, f"launches_{args.device}")
    if os.path.exists(record):
        os.remove(record)
    environment = dict(os.environ, FAKE_HIP_LAUNCHES=record)
    failures = []
    commands = [[args.cli, "check", "--backend", "hip", "--strict", "--refusals", args.refusals, "--kernel", "*", *run]
                for run in RUNS]
    for command in commands + [[program, "-j1", "--color=never"] for program in args.also]:
        print(" ".join(command), flush=True)
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            failures.append(f"status {status} of {' '.join(command)}")
    ran = set()
    if os.path.exists(record):
        with open(record) as f:
            ran = set(f.read().split())
    own, shared = kernels_of(args.rows, arch, args.device)
    if not own:
        failures.append(f"the library has no kernels for {args.device}")
    for kernel in sorted(own | (shared if args.also else set())):
        if kernel not in ran:
            failures.append(f"{kernel} did not run")
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"rows: {len(ran & own)} of {len(own)} kernels for {args.device} and {len(ran & shared)} of {len(shared)} "
          f"for all devices ran; {len(failures)} failure(s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
