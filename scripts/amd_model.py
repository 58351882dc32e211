#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model of AMD's devices makes of compiled code objects: registers, shared memory and occupancy of every
kernel row, the instructions of its hot loop by the unit that executes them, and the rate that these bound.

    scripts/amd_model.py [--tools FOLDER] [--rows PROGRAM] [--markdown | --table] OBJECTS

OBJECTS holds <device>/<row>.co (backends/hip/objects of a build), PROGRAM prints the rows (unit_hip_rows
--list). The status is 1 where a kernel uses scratch memory, calls a function, is too long for its branches (128
KiB), falls back to a loop of compare and swap, parks accumulators in another register file, keeps more scalars in lanes of vector registers than
SCALARS_IN_LANES says, or leaves fewer waves to a SIMD than its rows plan.

The numbers are a model's and were never measured. They are of the loop over tiles without masks, whose instructions
are counted over all of its paths; a schedule may still keep a kernel below the bound: "serial" lets no unit work
beside another, "overlap" lets them as far as the units can, and "bound" is that or what power lets a device do. --table
prints bounds alone, of the kernels with matrix products. The status is 1 as well where one falls below LEAST.
"""
import argparse
import collections
import multiprocessing
import os
import re
import subprocess
import sys

# Processors (compute units; work-group processors on gfx11 and gfx12), GHz, what AMD's matrix instruction
# calculator and data sheets say of one: SIMDs, cycles of a matrix instruction by its name, bytes per cycle of
# shared memory and of the first cache, shared memory, cycles of a vector and of a transcendental instruction.
Device = collections.namedtuple("Device", "processors ghz wave matrix lds_band l1_band lds valu trans beside cap")
DEVICES = {
    "gfx90a": Device(104, 1.7, 64, {"32x32x8": (64, 16384), "16x16x16": (32, 8192), "16x16x4": (32, 2048)},
                     128, 64, 65536, 4, 16, True, 0.85),
    "gfx942": Device(304, 2.1, 64, {"32x32x8": (32, 16384), "16x16x16": (16, 8192), "16x16x4": (32, 2048)},
                     128, 64, 65536, 4, 16, True, 0.48),
    "gfx1100": Device(48, 2.5, 32, {"16x16x16": (32, 8192)}, 256, 128, 131072, 1, 4, False, 0.85),
    "gfx1201": Device(32, 2.97, 32, {"16x16x16": (16, 8192)}, 256, 128, 131072, 1, 4, False, 0.85),
}
# The part of the peak at which the power limit holds backward kernels, where a lower one than forward's is known.
CAP_BACKWARD = {"gfx942": 0.36}
# What must not be less, in TFLOP/s, of main kernels by the begin of their names: the bound, which power may set, and
# what the instructions make of it without and with units that work beside each other, which must stay near what it was.
Floor = collections.namedtuple("Floor", "bound serial overlap")
LEAST = {
    ("gfx942", "fwd_f16_d128_edge"): Floor(620, 690, 1080), ("gfx942", "fwd_bf16_d128_edge"): Floor(620, 670, 1080),
    ("gfx942", "bwd_f16_d128_edge"): Floor(430, 730, 920), ("gfx942", "bwd_bf16_d128_edge"): Floor(430, 720, 920),
    ("gfx1201", "fwd_f16_d128_edge"): Floor(130, 130, 130), ("gfx1201", "fwd_bf16_d128_edge"): Floor(130, 130, 130),
    ("gfx1100", "fwd_f16_d128_edge"): Floor(95, 95, 95), ("gfx1100", "fwd_bf16_d128_edge"): Floor(95, 95, 95),
}
# Kernels that keep scalars in lanes of a vector register, and how many at most; none of them in its hot loop, and
# no other kernel at all. (Those that go to memory are scratch, which no kernel has.)
SCALARS_IN_LANES = {"bwd_f16_d256_edge__gfx942_16x32": 15, "bwd_bf16_d256_edge__gfx9_16x32": 15}
# Waves that a SIMD must have room for: what the rows are compiled for (platform_amd.hpp).
PLANNED = {"gfx90a": 2, "gfx942": 2, "gfx1100": 6, "gfx1201": 6}
FORBIDDEN = ("scratch_", "s_swappc", "s_setpc", "v_accvgpr_", "global_atomic_cmpswap")
BYTES = (("b128", 16), ("dwordx4", 16), ("b96", 12), ("dwordx3", 12), ("b64", 8), ("dwordx2", 8))


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernels_of(readelf, path):
    """Metadata of each kernel of a code object, as {name: {key: number}}."""
    found = {}
    for part in re.split(r"\n  - (?=\.)", run(readelf, "--notes", path))[1:]:
        name = re.search(r"\.name: +(\S+)\n(?:.*\n)*?.*\.private_segment", part)
        numbers = {k: int(v) for k, v in re.findall(r"\.(\w+): +(\d+)\n", part)}
        if name and "private_segment_fixed_size" in numbers:
            found[name.group(1)] = numbers
    return found


def code_of(objdump, path):
    """Instructions of each function: [(address, name, operands)]."""
    functions, current = {}, None
    for line in run(objdump, "-d", "--no-show-raw-insn", path).splitlines():
        head = re.match(r"[0-9a-f]+ <(\S+)>:", line)
        if head:
            current = functions.setdefault(head.group(1), [])
            continue
        body = re.match(r"\t(\S+) ?(.*?) *// ([0-9A-F]+): ", line)
        if body and current is not None:
            current.append((int(body.group(3), 16), body.group(1), body.group(2)))
    return functions


def matrix_of(code):
    return sum(n.startswith(("v_mfma", "v_wmma")) for _, n, _ in code)


def blocks_of(code):
    """Basic blocks as (first, last) instruction, and the numbers of those that follow each."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    jumps, leaders = {}, {0}
    for i, (address, name, operands) in enumerate(code):
        if name.startswith(("s_cbranch", "s_branch")):
            offset = int(operands.split()[0])
            jumps[i] = index.get(address + 4 + 4 * (offset - 65536 if offset >= 32768 else offset))
            leaders |= {jumps[i], i + 1}
        elif name == "s_endpgm":
            leaders.add(i + 1)
    starts = sorted(n for n in leaders if n is not None and n < len(code))
    number = {n: i for i, n in enumerate(starts)}
    blocks, follow = [], []
    for n, first in enumerate(starts):
        last = (starts[n + 1] if n + 1 < len(starts) else len(code)) - 1
        blocks.append((first, last))
        name, after = code[last][1], []
        if last in jumps and jumps[last] is not None:
            after.append(number[jumps[last]])
        if name not in ("s_branch", "s_endpgm") and last + 1 in number:
            after.append(number[last + 1])
        follow.append(after)
    return blocks, follow


def loops_of(follow):
    """Natural loops, {header: set of blocks}: a branch back to a block that every way to the branch passes."""
    before = [[] for _ in follow]
    for n, after in enumerate(follow):
        for m in after:
            before[m].append(n)
    everything = (1 << len(follow)) - 1
    dominators = [1] + [everything] * (len(follow) - 1)
    changed = True
    while changed:
        changed = False
        for n in range(1, len(follow)):
            common = everything
            for m in before[n]:
                common &= dominators[m]
            common |= 1 << n
            changed = changed or common != dominators[n]
            dominators[n] = common
    loops = {}
    for n, after in enumerate(follow):
        for head in after:
            if not dominators[n] >> head & 1:
                continue
            body, todo = loops.setdefault(head, {head}), [n]
            while todo:
                m = todo.pop()
                if m not in body:
                    body.add(m)
                    todo += before[m]
    return loops


def hot_loop(code):
    """The instructions of the loop that holds the most matrix instructions, of those without another such loop
    inside; the shortest of equals, which is that of tiles without masks."""
    if not matrix_of(code):
        return []
    blocks, follow = blocks_of(code)
    matrix = [matrix_of(code[first:last + 1]) for first, last in blocks]
    loops = {head: body for head, body in loops_of(follow).items() if any(matrix[n] for n in body)}
    inner = [body for head, body in loops.items() if not any(other != head and other in body for other in loops)]
    hot = max(inner, key=lambda body: (sum(matrix[n] for n in body),
                                       -sum(blocks[n][1] - blocks[n][0] + 1 for n in body)), default=[])
    return [i for n in sorted(hot) for i in code[blocks[n][0]:blocks[n][1] + 1]]


def bytes_of(name):
    """Bytes that a lane moves; what is narrower than a bank takes a bank."""
    size = next((n for text, n in BYTES if text in name), 4)
    return size * (2 if "2addr" in name or re.search(r"_(read|write)2", name) else 1)


def count(loop, wave):
    c = collections.Counter()
    for _, name, _ in loop:
        if name.startswith(("v_mfma", "v_wmma")):
            c["matrix"] += 1
            c["shape " + re.search(r"\d+x\d+x\d+", name).group(0)] += 1
        elif re.match(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", name):
            c["trans"] += 1
        elif name.startswith("v_pk_") and "f32" in name:
            c["packed"] += 1
            c["valu"] += 1
        elif name.startswith("v_"):
            c["valu"] += 1
        elif name.startswith("ds_") and "permute" not in name and "swizzle" not in name:
            c["lds"] += 1
            c["lds bytes"] += bytes_of(name) * wave
        elif name.startswith("ds_"):
            c["lds"] += 1
            c["lds bytes"] += 4 * wave
        elif name.startswith(("global_", "flat_", "buffer_")):
            c["vmem"] += 1
            c["vmem bytes"] += bytes_of(name) * wave
        elif "barrier" in name and "wait" not in name:
            c["barriers"] += 1
        elif not re.match(r"s_(wait|nop|delay|set|clause)", name):
            c["salu"] += 1
    c["all"] = len(loop)
    return c


def waves_by_registers(device, registers):
    if DEVICES[device].wave == 64:
        granted = -(-max(registers, 1) // 8) * 8
        return min(8, 512 // granted)
    granted = -(-max(registers, 1) // 24) * 24
    return min(16, 1536 // granted)


def bound(device, c, waves, per_processor):
    """(TFLOP/s serial, TFLOP/s overlapped, limiting unit) of the matrix instructions of a hot loop."""
    d = DEVICES[device]
    cycles = flop = 0
    for key, n in c.items():
        if key.startswith("shape "):
            each, work = d.matrix[key[6:]]
            cycles += n * each
            flop += n * work
    w = waves
    matrix = w * cycles
    lds = per_processor * c["lds bytes"] / d.lds_band
    l1 = per_processor * c["vmem bytes"] / d.l1_band
    waits = 50 * c["barriers"]
    if d.beside:
        valu = w * (d.valu * (c["valu"] + c["matrix"]) + d.trans * c["trans"])
        issue = 4 * max(c["all"], w * max(c["lds"], c["vmem"], c["salu"]))
        units = {"matrix": matrix + 4 * w * c["packed"], "vector": valu, "shared memory": lds, "cache": l1,
                 "issue": issue}
        serial = matrix + valu - d.valu * w * c["matrix"]
    else:
        units = {"matrix and vector": matrix + w * (c["valu"] + d.trans * c["trans"]), "shared memory": lds,
                 "cache": l1}
        serial = units["matrix and vector"]
    limit = max(units, key=units.get)
    ideal = units[limit] + waits
    serial = max(serial, units[limit]) + waits
    total = per_processor * flop * d.processors * d.ghz * 1e-3
    return total / serial, total / ideal, limit


def is_main(kernel, begin):
    return kernel.startswith(begin) and "_split_" not in kernel and not kernel.endswith(("_dq", "_stats", "_bias"))


def judge(device, path, tools, rows):
    """Lines and failures of one code object."""
    lines, failures = [], []
    functions = code_of(tools["objdump"], path)
    for name, k in kernels_of(tools["readelf"], path).items():
        code = functions.get(name, [])
        where = f"{device} {name}"
        if not code:
            failures.append(f"{where}: no code")
        for key in ("private_segment_fixed_size", "vgpr_spill_count"):
            if k.get(key, 0):
                failures.append(f"{where}: {key} is {k[key]}")
        for word in FORBIDDEN:
            # Of 64 bits it is asked for; of 32 it stands for an addition of floats.
            hits = sum(n.startswith(word) and not n.endswith(("_x2", "_b64")) for _, n, _ in code)
            if hits:
                failures.append(f"{where}: {hits} of {word}")
        registers = k["vgpr_count"]  # of both files on gfx9
        room = waves_by_registers(device, registers)
        if room < PLANNED[device]:
            failures.append(f"{where}: {registers} registers leave {room} waves to a SIMD, planned are "
                            f"{PLANNED[device]}")
        line = {"device": device, "kernel": re.sub(r"^tsri_hip_", "", name), "vgpr": registers,
                "agpr": k.get("agpr_count", 0), "sgpr": k["sgpr_count"], "spilled": k.get("sgpr_spill_count", 0)}
        row = rows.get(name)
        loop = hot_loop(code)
        most = SCALARS_IN_LANES.get(line["kernel"], 0)
        if line["spilled"] > most:
            failures.append(f"{where}: {line['spilled']} scalars in lanes of vector registers, not {most}")
        moves = sum(n.startswith(("v_writelane", "v_readlane")) for _, n, _ in loop)
        if line["spilled"] and moves:
            failures.append(f"{where}: keeps scalars in lanes, and {moves} are moved in the hot loop")
        if row and not loop:
            failures.append(f"{where}: no loop has a matrix instruction")
        if row and loop:
            threads, shared, dtype = row
            d = DEVICES[device]
            each = threads // d.wave
            blocks = max(1, min(d.lds // max(shared, 1), room * 4 // each if room * 4 >= each else 1))
            waves = max(1, blocks * each / 4)
            c = count(loop, d.wave)
            serial, overlap, limit = bound(device, c, waves, blocks * each)
            if dtype == "f32" and not d.beside:  # six products of planes make one
                serial, overlap = serial / 6, overlap / 6
            peak = max(work / cycles for cycles, work in d.matrix.values()) * 4 * d.processors * d.ghz * 1e-3
            part = CAP_BACKWARD.get(device, d.cap) if line["kernel"].startswith("bwd_") else d.cap
            line.update(lds=shared, waves=waves, c=c, serial=serial, overlap=overlap, limit=limit, cap=peak * part)
            line["bound"] = min(overlap, line["cap"])
            line["by"] = limit if line["bound"] == overlap else "power"
            floor = next((f for (d, begin), f in LEAST.items() if d == device and is_main(line["kernel"], begin)), None)
            for what, least in (floor._asdict() if floor else {}).items():
                if line[what] < least:
                    failures.append(f"{where}: {what} is {line[what]:.0f} TFLOP/s, not {least}")
        lines.append(line)
    return lines, failures


def show(line, markdown):
    c = line.get("c")
    text = [line["device"], line["kernel"], f"{line['vgpr']}+{line['agpr']}", str(line["sgpr"])]
    if c:
        text += [str(line["lds"]), f"{line['waves']:g}", str(c["matrix"]), str(c["valu"]), str(c["trans"]),
                 f"{c['lds']} ({c['lds bytes'] // 1024} KiB)", f"{c['vmem']} ({c['vmem bytes'] // 1024} KiB)",
                 f"{line['serial']:.0f}", f"{line['overlap']:.0f}", f"{line['bound']:.0f}", line["by"]]
    else:
        text += ["-"] * 11
    return "| " + " | ".join(text) + " |" if markdown else "  ".join(text)


def table(lines):
    """Bounds of kernels, one column for each device of an architecture."""
    archs = collections.OrderedDict()
    for line in lines:
        if "bound" in line:
            arch = re.search(r"__(gfx[0-9a-f]+)_", line["kernel"]).group(1)
            row = archs.setdefault(arch, {}).setdefault(line["kernel"].replace(f"__{arch}_", " "), {})
            row[line["device"]] = (f"{line['vgpr']} | {line['waves']:g} | {line['serial']:.0f} | "
                                   f"{line['bound']:.0f} | {line['by']}")
    for arch, rows in archs.items():
        devices = sorted({d for row in rows.values() for d in row})
        print(f"\n| {arch} | " + " | ".join(f"{d}: registers | waves | serial | bound | by" for d in devices) + " |")
        print("| --- |" + " --- | --- | --- | --- | --- |" * len(devices))
        for kernel in sorted(rows):
            print(f"| {kernel} | " + " | ".join(rows[kernel].get(d, " | | | |") for d in devices) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default="")
    parser.add_argument("--rows")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", default="", help="kernels whose name holds this text")
    parser.add_argument("objects")
    args = parser.parse_args()
    tools = {}
    for tool in ("readelf", "objdump"):
        names = [os.path.join(args.tools, f"llvm-{tool}-19"), os.path.join(args.tools, f"llvm-{tool}"),
                 f"llvm-{tool}-19", f"llvm-{tool}"]
        tools[tool] = next((n for n in names if subprocess.run(["sh", "-c", f"command -v {n}"],
                                                               capture_output=True).returncode == 0), None)
        if not tools[tool]:
            sys.exit(f"amd_model: llvm-{tool} was not found")
    rows = {}
    if args.rows:
        for line in run(args.rows, "--list").splitlines():
            name, symbol, threads, shared, _ = line.split()
            rows[symbol] = (int(threads), int(shared), name.split("_")[1])
    columns = ("device", "kernel", "vgpr+agpr", "sgpr", "shared", "waves a SIMD", "matrix", "vector", "exp", "LDS",
               "memory", "serial TFLOP/s", "overlap TFLOP/s", "bound TFLOP/s", "limit")
    print("A model's bounds, not measurements.")
    if not args.table:
        print("| " + " | ".join(columns) + " |" if args.markdown else "  ".join(columns))
    if args.markdown:
        print("| " + " | ".join("---" for _ in columns) + " |")
    failures, everything, work = [], [], []
    for device in sorted(d for d in os.listdir(args.objects) if d in DEVICES):
        folder = os.path.join(args.objects, device)
        work += [(device, os.path.join(folder, file), tools, rows)
                 for file in sorted(f for f in os.listdir(folder) if f.endswith(".co") and args.only in f)]
    with multiprocessing.Pool() as pool:
        for lines, bad in pool.starmap(judge, work, chunksize=1):
            failures += bad
            everything += lines
            for line in lines if not args.table else []:
                print(show(line, args.markdown))
    seen = len(everything)
    for device, begin in LEAST if rows and not args.only else []:
        if any(w[0] == device for w in work) and not any(
                line["device"] == device and "bound" in line and is_main(line["kernel"], begin) for line in everything):
            failures.append(f"{device}: no kernel {begin}, of which the bound has to be known")
    if args.table:
        table(everything)
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{seen} kernels, {len(failures)} failure(s)")
    return 1 if failures or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
