// SPDX-License-Identifier: Apache-2.0
//
// ds_*: loads, stores and atomics of the memory that the waves of a block share. An address beyond
// what the launch asked for ends the launch, and so does a byte that two waves touch with no
// barrier in between, one of them writing: such a result depends on which wave is faster.
#include <stdio.h>

#include "access.h"

namespace tessera {
namespace amdgpu {

namespace {

bool is_race(Lds::Mark &mark, uint32_t mine, bool write, uint32_t atomic) {
  const uint32_t now = mine >> 8, me = mine & 0x7f;
  const bool others_wrote = mark.written >> 8 == now && (mark.written & 0x7f) != me;
  const bool others_read = mark.read >> 8 == now && (mark.read & 0x7f) != me;
  // Atomics of several waves are in order among themselves.
  if (others_wrote && !(mark.written & atomic)) return true;
  if (write) {
    if (others_read) return true;
    mark.written = (others_wrote ? mine | Lds::kSeveral : mine) | atomic;
  } else {
    mark.read = others_read ? mine | Lds::kSeveral : mine;
  }
  return false;
}

// Bytes [begin, end) of word k.
bool is_race_in(Lds &lds, uint32_t k, uint32_t begin, uint32_t end, uint32_t mine, bool write, uint32_t atomic) {
  Lds::Word &word = lds.words[k];
  if (begin == 0 && end == 4 && word.apart != lds.barriers) return is_race(word.mark, mine, write, atomic);
  Lds::Mark *marks = &lds.marks[4 * k];
  if (word.apart != lds.barriers)
    for (uint32_t i = 0; i < 4; ++i) marks[i] = word.mark;
  word.apart = lds.barriers;
  for (uint32_t i = begin; i < end; ++i)
    if (is_race(marks[i], mine, write, atomic)) return true;
  return false;
}

// Host address of the lane's bytes, NULL after a failure.
unsigned char *reach(Wave &w, uint32_t address, uint32_t bytes, int lane, bool write, bool atomic = false) {
  Lds &lds = *w.lds;
  if (address > lds.bytes.size() || bytes > lds.bytes.size() - address) {
    char text[160];
    snprintf(text, sizeof text, "touches %u bytes of LDS at 0x%x (lane %d), beyond its %zu bytes", bytes,
             address, lane, lds.bytes.size());
    w.fail(text);
    return nullptr;
  }
  const uint32_t mine = lds.barriers << 8 | static_cast<uint32_t>(w.number);
  const uint32_t last = address + bytes - 1;
  for (uint32_t k = address / 4; k <= last / 4; ++k)
    if (is_race_in(lds, k, k == address / 4 ? address % 4 : 0, k == last / 4 ? last % 4 + 1 : 4, mine, write,
                   atomic ? Lds::kAtomic : 0)) {
      char text[160];
      snprintf(text, sizeof text,
               "%s LDS at 0x%x (lane %d), which another wave touched since the last barrier: a "
               "barrier is missing",
               write ? "writes" : "reads", address, lane);
      w.fail(text);
      return nullptr;
    }
  return lds.bytes.data() + address;
}

void load(Wave &w, const Inst &i) {
  const uint32_t *address = w.row(i.op[1].reg);
  const uint32_t bytes = i.param & kAccessBytes, by = static_cast<uint32_t>(i.offset);
  const uint64_t exec = w.exec();
  uint32_t *row = w.row(i.op[0].reg);
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const unsigned char *from = reach(w, address[l] + by, bytes, l, false);
    if (!from) return;
    load_lane(w, from, i.param, row + l);
  }
  w.starts(kLocal, true, i.op[0].reg, i.op[0].count, true);
}

void store(Wave &w, const Inst &i) {
  const uint32_t *address = w.row(i.op[0].reg), *row = w.row(i.op[1].reg);
  const uint32_t bytes = i.param & kAccessBytes, by = static_cast<uint32_t>(i.offset);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    unsigned char *to = reach(w, address[l] + by, bytes, l, true);
    if (!to) return;
    store_lane(w, to, i.param, row + l);
  }
  w.starts(kLocal, true, 0, 0, true);
}

// Two elements, each with its offset in elements or in 64 of them.
void load_two(Wave &w, const Inst &i) {
  const uint32_t *address = w.row(i.op[1].reg);
  const uint32_t bytes = i.param & kAccessBytes, unit = bytes * (i.param & kAccessStride ? 64 : 1);
  const uint64_t exec = w.exec();
  uint32_t *row = w.row(i.op[0].reg);
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const uint32_t base = address[l]; // may be a register that is loaded
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t by = static_cast<uint32_t>(k ? i.offset1 : i.offset) * unit;
      const unsigned char *from = reach(w, base + by, bytes, l, false);
      if (!from) return;
      load_lane(w, from, i.param, row + k * bytes / 4 * static_cast<uint32_t>(w.lanes) + l);
    }
  }
  w.starts(kLocal, true, i.op[0].reg, i.op[0].count, true);
}

void store_two(Wave &w, const Inst &i) {
  const uint32_t *address = w.row(i.op[0].reg);
  const uint32_t bytes = i.param & kAccessBytes, unit = bytes * (i.param & kAccessStride ? 64 : 1);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t by = static_cast<uint32_t>(k ? i.offset1 : i.offset) * unit;
      unsigned char *to = reach(w, address[l] + by, bytes, l, true);
      if (!to) return;
      store_lane(w, to, i.param, w.row(i.op[1 + k].reg) + l);
    }
  }
  w.starts(kLocal, true, 0, 0, true);
}

// param: which Atomic, and kAccessHigh where the old value is returned.
void atomic(Wave &w, const Inst &i) {
  const bool returns = i.param & kAccessHigh;
  const int first = returns ? 1 : 0;
  const Atomic op = static_cast<Atomic>(i.param & ~kAccessHigh);
  const uint32_t *address = w.row(i.op[first].reg), *data = w.row(i.op[first + 1].reg);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    unsigned char *at = reach(w, address[l] + static_cast<uint32_t>(i.offset), 4, l, true, true);
    if (!at) return;
    uint32_t old;
    memcpy(&old, at, 4);
    const uint32_t x = atomic_result(op, old, data[l], 0);
    memcpy(at, &x, 4);
    if (returns) w.row(i.op[0].reg)[l] = old;
  }
  w.starts(kLocal, true, returns ? i.op[0].reg : 0, returns ? 1 : 0, true);
}

struct Named {
  const char *name;
  int32_t param;
};
constexpr Named kLoadNames[] = {{"u8", 1},
                                {"i8", 1 | kAccessSigned},
                                {"u16", 2},
                                {"i16", 2 | kAccessSigned},
                                {"b32", 4},
                                {"b64", 8},
                                {"b96", 12},
                                {"b128", 16},
                                {"u16_d16", 2 | kAccessLow},
                                {"u16_d16_hi", 2 | kAccessHigh},
                                {"u8_d16", 1 | kAccessLow},
                                {"u8_d16_hi", 1 | kAccessHigh}};
constexpr Named kStoreNames[] = {{"b8", 1},
                                 {"b16", 2},
                                 {"b32", 4},
                                 {"b64", 8},
                                 {"b96", 12},
                                 {"b128", 16},
                                 {"b16_d16_hi", 2 | kAccessHigh},
                                 {"b8_d16_hi", 1 | kAccessHigh}};
struct NamedAtomic {
  const char *name;
  Atomic op;
};
constexpr NamedAtomic kAtomicNames[] = {
    {"add_u32", Atomic::kAdd},  {"sub_u32", Atomic::kSub},     {"min_u32", Atomic::kMinU},
    {"max_u32", Atomic::kMaxU}, {"min_i32", Atomic::kMinI},    {"max_i32", Atomic::kMaxI},
    {"and_b32", Atomic::kAnd},  {"or_b32", Atomic::kOr},       {"xor_b32", Atomic::kXor},
    {"inc_u32", Atomic::kInc},  {"add_f32", Atomic::kAddFloat}};

} // namespace

void add_lds(Table &t) {
  // gfx9's names, then those of later families.
  for (const bool late : {false, true}) {
    const std::string loads = late ? "ds_load_" : "ds_read_", stores = late ? "ds_store_" : "ds_write_";
    for (const Named &n : kLoadNames)
      t[loads + n.name] = {
          load, kModOffset | ((n.param & (kAccessLow | kAccessHigh)) ? 0u : uint32_t{kModLoad}), n.param};
    for (const Named &n : kStoreNames) t[stores + n.name] = {store, kModOffset, n.param};
    for (const int bytes : {4, 8}) {
      const std::string type = bytes == 4 ? "_b32" : "_b64";
      t[late ? "ds_load_2addr" + type : "ds_read2" + type] = {load_two, kModOffset | kModLoad, bytes};
      t[late ? "ds_load_2addr_stride64" + type : "ds_read2st64" + type] = {load_two, kModOffset | kModLoad,
                                                                           bytes | kAccessStride};
      t[late ? "ds_store_2addr" + type : "ds_write2" + type] = {store_two, kModOffset, bytes};
      t[late ? "ds_store_2addr_stride64" + type : "ds_write2st64" + type] = {store_two, kModOffset,
                                                                             bytes | kAccessStride};
    }
  }
  for (const NamedAtomic &n : kAtomicNames) {
    const std::string name = n.name;
    t["ds_" + name] = {atomic, kModOffset, static_cast<int32_t>(n.op)};
    const size_t type = name.find('_') + 1;
    t["ds_" + name.substr(0, type) + "rtn_" + name.substr(type)] = {atomic, kModOffset,
                                                                    static_cast<int32_t>(n.op) | kAccessHigh};
  }
}

} // namespace amdgpu
} // namespace tessera
