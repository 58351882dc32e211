// SPDX-License-Identifier: Apache-2.0
//
// global_* and flat_*: loads, stores and atomics of the device's memory. Lanes are carried out in
// rising order. An address outside of the known blocks ends the launch.
#include <stdio.h>

#include "access.h"

namespace tessera {
namespace amdgpu {

namespace {

// Address of a lane: 64 bits of two registers, or 32 bits on top of a scalar base.
struct Addresses {
  const uint32_t *low, *high;
  uint64_t base;

  Addresses(Wave &w, const Inst &i, const Operand &address, const Operand *scalar) {
    low = w.row(address.reg);
    high = address.count == 2 ? w.row(address.reg + 1) : nullptr;
    base = static_cast<uint64_t>(static_cast<int64_t>(i.offset));
    if (scalar && scalar->kind == Kind::kScalar) base += scalar_wide(w, *scalar);
  }
  uint64_t operator[](int l) const {
    return base + low[l] + (high ? static_cast<uint64_t>(high[l]) << 32 : 0);
  }
};

void stray(Wave &w, const char *what, uint32_t bytes, uint64_t address, int lane) {
  char text[200];
  int n = snprintf(text, sizeof text, "%s %u bytes at 0x%llx (lane %d), which is no memory of the device",
                   what, bytes, static_cast<unsigned long long>(address), lane);
  for (const MemoryMap::Range &r : w.memory->ranges) {
    const uint64_t slack = 1 << 20;
    if (address >= r.begin && address < r.end && address + bytes <= r.end)
      snprintf(text + n, sizeof text - static_cast<size_t>(n), " that may be written");
    else if (address >= r.begin && address - r.begin < r.end - r.begin + slack)
      snprintf(text + n, sizeof text - static_cast<size_t>(n), ": %lld bytes from the end of a block",
               static_cast<long long>(address - r.end));
    else if (address < r.begin && r.begin - address < slack)
      snprintf(text + n, sizeof text - static_cast<size_t>(n), ": %lld bytes before a block",
               static_cast<long long>(r.begin - address));
  }
  w.fail(text);
}

// gfx9 counts stores with loads. Flat accesses count as LDS too; on gfx9 they may overtake.
void count(Wave &w, const Inst &i, bool load, int reg, int registers) {
  const bool flat = i.param & kAccessFlat;
  const bool in_order = !flat || w.family != Family::kGfx9;
  w.starts(load || w.family == Family::kGfx9 ? kLoads : kStores, true, reg, registers, in_order);
  if (flat) w.starts(kLocal, true, reg, registers, in_order);
}

void load(Wave &w, const Inst &i) {
  const Addresses addresses(w, i, i.op[1], i.operands > 2 ? &i.op[2] : nullptr);
  const uint32_t bytes = i.param & kAccessBytes;
  const uint64_t exec = w.exec();
  uint32_t *row = w.row(i.op[0].reg);
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const uint64_t address = addresses[l];
    const unsigned char *from = w.memory->at(address, bytes, false);
    if (!from) return stray(w, "reads", bytes, address, l);
    load_lane(w, from, i.param, row + l);
  }
  count(w, i, true, i.op[0].reg, i.op[0].count);
}

void store(Wave &w, const Inst &i) {
  const Addresses addresses(w, i, i.op[0], i.operands > 2 ? &i.op[2] : nullptr);
  const uint32_t bytes = i.param & kAccessBytes;
  const uint64_t exec = w.exec();
  const uint32_t *row = w.row(i.op[1].reg);
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const uint64_t address = addresses[l];
    unsigned char *to = w.memory->at(address, bytes, true);
    if (!to) return stray(w, "writes", bytes, address, l);
    store_lane(w, to, i.param, row + l);
  }
  count(w, i, false, 0, 0);
}

// param: which Atomic, with kAccessFlat.
void atomic(Wave &w, const Inst &i) {
  const bool returns = i.modifiers & kModReturn;
  const int first = returns ? 1 : 0;
  const Atomic op = static_cast<Atomic>(i.param & ~kAccessFlat);
  const bool wide = op == Atomic::kAddWide || op == Atomic::kCompareSwapWide;
  const bool has_scalar = !(i.param & kAccessFlat);
  const Addresses addresses(w, i, i.op[first], has_scalar ? &i.op[first + 2] : nullptr);
  const uint32_t *data = w.row(i.op[first + 1].reg), *second = data + w.lanes;
  const uint32_t bytes = wide ? 8 : 4;
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const uint64_t address = addresses[l];
    unsigned char *at = address % bytes ? nullptr : w.memory->at(address, bytes, true);
    if (!at) return stray(w, "changes", bytes, address, l);
    uint64_t old = 0;
    memcpy(&old, at, bytes);
    const uint64_t given = data[l] | (wide ? static_cast<uint64_t>(second[l]) << 32 : 0);
    const auto expected = [&] { // in the two registers behind what is to be stored
      return second[w.lanes + l] | static_cast<uint64_t>(second[2 * w.lanes + l]) << 32;
    };
    const uint64_t x = op == Atomic::kCompareSwapWide ? (old == expected() ? given : old)
                       : wide ? old + given
                              : atomic_result(op, static_cast<uint32_t>(old), data[l],
                                              op == Atomic::kCompareSwap ? second[l] : 0);
    memcpy(at, &x, bytes);
    if (!returns) continue;
    w.row(i.op[0].reg)[l] = static_cast<uint32_t>(old);
    if (wide) w.row(i.op[0].reg + 1)[l] = static_cast<uint32_t>(old >> 32);
  }
  if (returns)
    count(w, i, true, i.op[0].reg, i.op[0].count);
  else
    count(w, i, false, 0, 0);
}

struct Named {
  const char *name;
  int32_t param;
};
constexpr Named kLoadNames[] = {{"ubyte", 1},
                                {"u8", 1},
                                {"sbyte", 1 | kAccessSigned},
                                {"i8", 1 | kAccessSigned},
                                {"ushort", 2},
                                {"u16", 2},
                                {"sshort", 2 | kAccessSigned},
                                {"i16", 2 | kAccessSigned},
                                {"dword", 4},
                                {"b32", 4},
                                {"dwordx2", 8},
                                {"b64", 8},
                                {"dwordx3", 12},
                                {"b96", 12},
                                {"dwordx4", 16},
                                {"b128", 16},
                                {"short_d16", 2 | kAccessLow},
                                {"d16_b16", 2 | kAccessLow},
                                {"short_d16_hi", 2 | kAccessHigh},
                                {"d16_hi_b16", 2 | kAccessHigh},
                                {"ubyte_d16", 1 | kAccessLow},
                                {"d16_u8", 1 | kAccessLow},
                                {"ubyte_d16_hi", 1 | kAccessHigh},
                                {"d16_hi_u8", 1 | kAccessHigh}};
constexpr Named kStoreNames[] = {{"byte", 1},
                                 {"b8", 1},
                                 {"short", 2},
                                 {"b16", 2},
                                 {"dword", 4},
                                 {"b32", 4},
                                 {"dwordx2", 8},
                                 {"b64", 8},
                                 {"dwordx3", 12},
                                 {"b96", 12},
                                 {"dwordx4", 16},
                                 {"b128", 16},
                                 {"short_d16_hi", 2 | kAccessHigh},
                                 {"d16_hi_b16", 2 | kAccessHigh},
                                 {"byte_d16_hi", 1 | kAccessHigh},
                                 {"d16_hi_b8", 1 | kAccessHigh}};
struct NamedAtomic {
  const char *name;
  Atomic op;
};
constexpr NamedAtomic kAtomicNames[] = {{"add", Atomic::kAdd},
                                        {"add_u32", Atomic::kAdd},
                                        {"sub", Atomic::kSub},
                                        {"sub_u32", Atomic::kSub},
                                        {"swap", Atomic::kSwap},
                                        {"swap_b32", Atomic::kSwap},
                                        {"cmpswap", Atomic::kCompareSwap},
                                        {"cmpswap_b32", Atomic::kCompareSwap},
                                        {"umin", Atomic::kMinU},
                                        {"min_u32", Atomic::kMinU},
                                        {"umax", Atomic::kMaxU},
                                        {"max_u32", Atomic::kMaxU},
                                        {"smin", Atomic::kMinI},
                                        {"min_i32", Atomic::kMinI},
                                        {"smax", Atomic::kMaxI},
                                        {"max_i32", Atomic::kMaxI},
                                        {"and", Atomic::kAnd},
                                        {"and_b32", Atomic::kAnd},
                                        {"or", Atomic::kOr},
                                        {"or_b32", Atomic::kOr},
                                        {"xor", Atomic::kXor},
                                        {"xor_b32", Atomic::kXor},
                                        {"inc", Atomic::kInc},
                                        {"inc_u32", Atomic::kInc},
                                        {"dec", Atomic::kDec},
                                        {"dec_u32", Atomic::kDec},
                                        {"add_f32", Atomic::kAddFloat},
                                        {"add_x2", Atomic::kAddWide},
                                        {"add_u64", Atomic::kAddWide},
                                        {"cmpswap_x2", Atomic::kCompareSwapWide},
                                        {"cmpswap_b64", Atomic::kCompareSwapWide}};

} // namespace

void add_global(Table &t) {
  const uint32_t common = kModOffset | kModCache;
  for (const bool flat : {false, true}) {
    const std::string prefix = flat ? "flat_" : "global_";
    const int32_t bit = flat ? kAccessFlat : 0;
    for (const Named &n : kLoadNames)
      t[prefix + "load_" + n.name] = {
          load, common | ((n.param & (kAccessLow | kAccessHigh)) ? 0u : uint32_t{kModLoad}), n.param | bit};
    for (const Named &n : kStoreNames) t[prefix + "store_" + n.name] = {store, common, n.param | bit};
    for (const NamedAtomic &n : kAtomicNames)
      t[prefix + "atomic_" + n.name] = {atomic, common | kModReturn, static_cast<int32_t>(n.op) | bit};
  }
}

} // namespace amdgpu
} // namespace tessera
