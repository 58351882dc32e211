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

// What an instruction needs to know of LDS for each of its lanes.
struct Window {
  Wave &w;
  Lds &lds;
  unsigned char *const data;
  uint32_t *const written, *const read;
  const uint32_t *const apart;
  const uint32_t size, barriers, now, mine;

  explicit Window(Wave &wave)
      : w(wave), lds(*wave.lds), data(lds.bytes.data()), written(lds.words.written.data()),
        read(lds.words.read.data()), apart(lds.apart.data()), size(static_cast<uint32_t>(lds.bytes.size())),
        barriers(lds.barriers), now(barriers << 8), mine(now | static_cast<uint32_t>(wave.number)) {}

  // Host address of the lane's bytes, NULL after a failure.
  template <bool write, bool atomic = false>
  __attribute__((always_inline)) unsigned char *reach(uint32_t address, uint32_t bytes, int lane) const {
    if (address > size || bytes > size - address) return beyond(address, bytes, lane);
    bool plain = !atomic;
    if (plain && ((address | bytes) & 3) == 0) {
      uint32_t k = address / 4;
      const uint32_t end = k + bytes / 4;
      for (; plain && k + 4 <= end; k += 4) plain = are_plain<write>(k);
      for (; plain && k < end; ++k) plain = apart[k] != barriers && is_plain<write>(written[k], read[k]);
    } else if (plain) {
      // Some bytes of a word that are apart already.
      plain = address % 4 + bytes <= 4 && apart[address / 4] == barriers;
      for (uint32_t k = address; plain && k < address + bytes; ++k)
        plain = is_plain<write>(lds.each.written[k], lds.each.read[k]);
    }
    return plain ? data + address : look<write, atomic>(address, bytes, lane);
  }

 private:
  // The most common answers of is_race(), and its effects: since the last barrier nobody but this wave touched
  // what has these marks, or nobody wrote it and it is read. false: not one of them, nothing happened.
  template <bool write>
  __attribute__((always_inline)) bool is_plain(uint32_t &wrote, uint32_t &reads) const {
    if (wrote >= now && (wrote & ~Lds::kAtomic) != mine) return false;
    if (write) {
      if (reads >= now && reads != mine) return false;
      wrote = mine;
    } else if (reads != mine) {
      reads = reads < now ? mine : mine | Lds::kSeveral;
    }
    return true;
  }

  // The same of four words from word k on.
  template <bool write>
  __attribute__((always_inline)) bool are_plain(uint32_t k) const {
    typedef uint32_t Four __attribute__((vector_size(16)));
    typedef int64_t Two __attribute__((vector_size(16)));
    Four wrote, reads, aparts;
    memcpy(&wrote, written + k, sizeof wrote);
    memcpy(&reads, read + k, sizeof reads);
    memcpy(&aparts, apart + k, sizeof aparts);
    const auto read_by_others = (reads >= now) & (reads != mine);
    auto bad = (aparts == barriers) | ((wrote >= now) & ((wrote & ~Lds::kAtomic) != mine));
    if (write) bad |= read_by_others;
    const Two found = (Two)bad;
    if (found[0] | found[1]) return false;
    if (write)
      wrote = Four{} + mine;
    else
      reads = ((Four)read_by_others & Lds::kSeveral) | mine;
    memcpy((write ? written : read) + k, write ? &wrote : &reads, sizeof wrote);
    return true;
  }

  static bool is_race(uint32_t &wrote, uint32_t &reads, uint32_t mine, bool write, uint32_t atomic) {
    const uint32_t now = mine >> 8, me = mine & 0x7f;
    const bool others_wrote = wrote >> 8 == now && (wrote & 0x7f) != me;
    const bool others_read = reads >> 8 == now && (reads & 0x7f) != me;
    // Atomics of several waves are in order among themselves.
    if (others_wrote && !(wrote & atomic)) return true;
    if (write) {
      if (others_read) return true;
      wrote = (others_wrote ? mine | Lds::kSeveral : mine) | atomic;
    } else {
      reads = others_read ? mine | Lds::kSeveral : mine;
    }
    return false;
  }

  // Bytes [begin, end) of word k.
  bool is_race_in(uint32_t k, uint32_t begin, uint32_t end, bool write, uint32_t atomic) const {
    if (begin == 0 && end == 4 && apart[k] != barriers) return is_race(written[k], read[k], mine, write, atomic);
    uint32_t *wrote = &lds.each.written[4 * k], *reads = &lds.each.read[4 * k];
    if (apart[k] != barriers)
      for (uint32_t i = 0; i < 4; ++i) {
        wrote[i] = written[k];
        reads[i] = read[k];
      }
    lds.apart[k] = barriers;
    for (uint32_t i = begin; i < end; ++i)
      if (is_race(wrote[i], reads[i], mine, write, atomic)) return true;
    return false;
  }

  template <bool write, bool atomic>
  __attribute__((noinline)) unsigned char *look(uint32_t address, uint32_t bytes, int lane) const {
    const uint32_t last = address + bytes - 1;
    for (uint32_t k = address / 4; k <= last / 4; ++k)
      if (is_race_in(k, k == address / 4 ? address % 4 : 0, k == last / 4 ? last % 4 + 1 : 4, write,
                     atomic ? Lds::kAtomic : 0))
        return raced(write ? "writes" : "reads", address, lane);
    return data + address;
  }

  unsigned char *beyond(uint32_t address, uint32_t bytes, int lane) const {
    char text[160];
    snprintf(text, sizeof text, "touches %u bytes of LDS at 0x%x (lane %d), beyond its %zu bytes", bytes,
             address, lane, lds.bytes.size());
    w.fail(text);
    return nullptr;
  }

  unsigned char *raced(const char *does, uint32_t address, int lane) const {
    char text[160];
    snprintf(text, sizeof text,
             "%s LDS at 0x%x (lane %d), which another wave touched since the last barrier: a "
             "barrier is missing",
             does, address, lane);
    w.fail(text);
    return nullptr;
  }
};

// Whole words of all lanes: the sizes that are used most, known to the compiler.
template <uint32_t bytes>
bool load_words(const Window &window, const uint32_t *address, uint32_t by, uint32_t *row) {
  const int lanes = window.w.lanes;
  const uint64_t exec = window.w.exec();
  for (int l = 0; l < lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const unsigned char *from = window.reach<false>(address[l] + by, bytes, l);
    if (!from) return false;
    for (int k = 0; k < static_cast<int>(bytes / 4); ++k) memcpy(row + k * lanes + l, from + 4 * k, 4);
  }
  return true;
}

template <uint32_t bytes>
bool store_words(const Window &window, const uint32_t *address, uint32_t by, const uint32_t *row) {
  const int lanes = window.w.lanes;
  const uint64_t exec = window.w.exec();
  for (int l = 0; l < lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    unsigned char *to = window.reach<true>(address[l] + by, bytes, l);
    if (!to) return false;
    for (int k = 0; k < static_cast<int>(bytes / 4); ++k) memcpy(to + 4 * k, row + k * lanes + l, 4);
  }
  return true;
}

// One element of every lane; false after a failure.
bool load_lanes(const Window &window, const uint32_t *address, uint32_t by, int32_t param, uint32_t *row) {
  const uint32_t bytes = param & kAccessBytes;
  if (bytes == 4) return load_words<4>(window, address, by, row);
  if (bytes == 8) return load_words<8>(window, address, by, row);
  if (bytes == 16) return load_words<16>(window, address, by, row);
  const uint64_t exec = window.w.exec();
  for (int l = 0; l < window.w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const unsigned char *from = window.reach<false>(address[l] + by, bytes, l);
    if (!from) return false;
    load_lane(window.w, from, param, row + l);
  }
  return true;
}

bool store_lanes(const Window &window, const uint32_t *address, uint32_t by, int32_t param, const uint32_t *row) {
  const uint32_t bytes = param & kAccessBytes;
  if (bytes == 4) return store_words<4>(window, address, by, row);
  if (bytes == 8) return store_words<8>(window, address, by, row);
  if (bytes == 16) return store_words<16>(window, address, by, row);
  const uint64_t exec = window.w.exec();
  for (int l = 0; l < window.w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    unsigned char *to = window.reach<true>(address[l] + by, bytes, l);
    if (!to) return false;
    store_lane(window.w, to, param, row + l);
  }
  return true;
}

void load(Wave &w, const Inst &i) {
  if (load_lanes(Window(w), w.row(i.op[1].reg), static_cast<uint32_t>(i.offset), i.param, w.row(i.op[0].reg)))
    w.starts(kLocal, true, i.op[0].reg, i.op[0].count, true);
}

void store(Wave &w, const Inst &i) {
  if (store_lanes(Window(w), w.row(i.op[0].reg), static_cast<uint32_t>(i.offset), i.param, w.row(i.op[1].reg)))
    w.starts(kLocal, true, 0, 0, true);
}

// Two elements, each with its offset in elements or in 64 of them.
void load_two(Wave &w, const Inst &i) {
  const int bytes = i.param & kAccessBytes;
  const uint32_t unit = static_cast<uint32_t>(i.param & kAccessStride ? 64 * bytes : bytes);
  const Window window(w);
  uint32_t address[64]; // its register may be one that is loaded
  memcpy(address, w.row(i.op[1].reg), sizeof *address * static_cast<size_t>(w.lanes));
  if (load_lanes(window, address, static_cast<uint32_t>(i.offset) * unit, bytes, w.row(i.op[0].reg)) &&
      load_lanes(window, address, static_cast<uint32_t>(i.offset1) * unit, bytes, w.row(i.op[0].reg + bytes / 4)))
    w.starts(kLocal, true, i.op[0].reg, i.op[0].count, true);
}

void store_two(Wave &w, const Inst &i) {
  const int bytes = i.param & kAccessBytes;
  const uint32_t unit = static_cast<uint32_t>(i.param & kAccessStride ? 64 * bytes : bytes);
  const Window window(w);
  const uint32_t *address = w.row(i.op[0].reg);
  if (store_lanes(window, address, static_cast<uint32_t>(i.offset) * unit, bytes, w.row(i.op[1].reg)) &&
      store_lanes(window, address, static_cast<uint32_t>(i.offset1) * unit, bytes, w.row(i.op[2].reg)))
    w.starts(kLocal, true, 0, 0, true);
}

// param: which Atomic, and kAccessHigh where the old value is returned.
void atomic(Wave &w, const Inst &i) {
  const bool returns = i.param & kAccessHigh;
  const int first = returns ? 1 : 0;
  const Atomic op = static_cast<Atomic>(i.param & ~kAccessHigh);
  const uint32_t *address = w.row(i.op[first].reg), *data = w.row(i.op[first + 1].reg);
  const uint64_t exec = w.exec();
  const Window window(w);
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    unsigned char *at = window.reach<true, true>(address[l] + static_cast<uint32_t>(i.offset), 4, l);
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
