// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing operands for all lanes, and what memory operations owe.
#include "wave.h"

#include <algorithm>

namespace tessera {
namespace amdgpu {

uint64_t Wave::mask(const Operand &o) const {
  if (o.kind == Kind::kConstant) return lanes == 64 ? o.wide : o.wide & 0xffffffffu;
  return lanes == 64 ? pair(o.reg) : s[o.reg];
}

void Wave::set_mask(const Operand &o, uint64_t x) {
  if (o.reg == kNull) return;
  s[o.reg] = static_cast<uint32_t>(x);
  if (lanes == 64) s[o.reg + 1] = static_cast<uint32_t>(x >> 32);
}

void Wave::starts(Counter counter, bool vector, int reg, int count, bool in_order) {
  under_way[counter].push_back(
      {vector, in_order, static_cast<uint16_t>(reg), static_cast<uint16_t>(count)});
  ++under_way_total;
  for (int r = reg; r < reg + count; ++r) ++(vector ? owed_vector : owed_scalar)[r];
}

void Wave::waits(Counter counter, uint32_t left) {
  std::vector<Transfer> &queue = under_way[counter];
  if (queue.size() <= left) return;
  // What may overtake is there for certain only when everything is.
  if (left > 0)
    for (const Transfer &t : queue)
      if (!t.in_order) return;
  const size_t done = queue.size() - left;
  for (size_t k = 0; k < done; ++k)
    for (int r = queue[k].reg; r < queue[k].reg + queue[k].count; ++r)
      --(queue[k].vector ? owed_vector : owed_scalar)[r];
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(done));
  under_way_total -= static_cast<uint32_t>(done);
}

bool Wave::owes(const Inst &inst) {
  for (const Inst *half = &inst; half; half = half->pair)
    for (int k = half->first_checked; k < half->operands; ++k) {
      const Operand &o = half->op[k];
      if (o.kind != Kind::kVector && o.kind != Kind::kScalar) continue;
      const uint8_t *owed = (o.kind == Kind::kVector ? owed_vector : owed_scalar) + o.reg;
      for (int r = 0; r < o.count; ++r)
        if (owed[r]) {
          fail("operand " + std::to_string(k) + " is still being loaded: a wait is missing");
          return true;
        }
    }
  return false;
}

unsigned char *MemoryMap::find(uint64_t address, uint32_t bytes, bool write) const {
  auto r = std::upper_bound(ranges.begin(), ranges.end(), address,
                            [](uint64_t a, const Range &range) { return a < range.begin; });
  if (r == ranges.begin()) return nullptr;
  --r;
  if (address >= r->end || bytes > r->end - address || (write && !r->writable)) return nullptr;
  last = static_cast<size_t>(r - ranges.begin());
  return reinterpret_cast<unsigned char *>(address);
}

uint32_t scalar_word(const Wave &w, const Operand &o) {
  return o.kind == Kind::kConstant ? o.word : w.s[o.reg];
}
uint64_t scalar_wide(const Wave &w, const Operand &o) {
  if (o.kind == Kind::kConstant) return o.wide;
  return o.reg == kNull ? 0 : w.pair(o.reg);
}
void set_scalar_word(Wave &w, const Operand &o, uint32_t x) {
  if (o.reg != kNull) w.s[o.reg] = x;
}
void set_scalar_wide(Wave &w, const Operand &o, uint64_t x) {
  if (o.reg != kNull) w.set_pair(o.reg, x);
}

namespace {

// Lane that DPP reads for lane l, -1: outside of the row of 16.
int dpp_source(const Inst &i, int l) {
  const int row = l & ~15, at = l & 15, n = i.lanes_arg;
  switch (i.lanes) {
    case Lanes::kSame:
      return l;
    case Lanes::kQuad:
      return (l & ~3) | (n >> 2 * (l & 3) & 3);
    case Lanes::kShiftLeft:
      return at + n < 16 ? l + n : -1;
    case Lanes::kShiftRight:
      return at - n >= 0 ? l - n : -1;
    case Lanes::kRotate:
      return row | ((at - n) & 15);
    case Lanes::kMirror:
      return row | (15 - at);
    case Lanes::kHalfMirror:
      return (l & ~7) | (7 - (l & 7));
    case Lanes::kShare:
      return row | n;
    case Lanes::kXor:
      return row | (at ^ n);
    case Lanes::kBroadcast15:
      return row == 0 ? -1 : row - 1;
    case Lanes::kBroadcast31:
      return l < 32 ? -1 : 31;
  }
  return -1;
}

void move_lanes(Wave &w, const Inst &i, const uint32_t *from, uint32_t *to) {
  const uint64_t exec = w.exec();
  w.reached = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int source = dpp_source(i, l);
    const bool there = source >= 0 && (exec >> source & 1);
    to[l] = there ? from[source] : 0;
    if (there || i.bound_zero) w.reached |= uint64_t{1} << l;
  }
}

uint32_t part_of(uint32_t x, Part part, bool sign_extend) {
  const int p = static_cast<int>(part);
  if (part == Part::kAll) return x;
  if (p <= static_cast<int>(Part::kByte3)) {
    const uint32_t byte = x >> 8 * (p - 1) & 0xff;
    return sign_extend ? static_cast<uint32_t>(static_cast<int8_t>(byte)) : byte;
  }
  const uint32_t word = part == Part::kWord0 ? x & 0xffff : x >> 16;
  return sign_extend ? static_cast<uint32_t>(static_cast<int16_t>(word)) : word;
}

// The register or constant, lanes moved and parts taken, without signs.
const uint32_t *read_raw(Wave &w, const Inst &i, int n, uint32_t *buffer) {
  const Operand &o = i.op[n];
  if (o.kind == Kind::kVector) {
    const uint32_t *row = w.row(o.reg);
    if (i.lanes == Lanes::kSame || n != 1) {
      if (o.part == Part::kAll) return row;
      for (int l = 0; l < w.lanes; ++l) buffer[l] = part_of(row[l], o.part, o.sign_extend);
      return buffer;
    }
    move_lanes(w, i, row, buffer);
    return buffer;
  }
  const uint32_t x = part_of(scalar_word(w, o), o.part, o.sign_extend);
  for (int l = 0; l < w.lanes; ++l) buffer[l] = x;
  return buffer;
}

} // namespace

const uint32_t *read_words(Wave &w, const Inst &i, int n, uint32_t *buffer) {
  const Operand &o = i.op[n];
  const uint32_t *from = read_raw(w, i, n, buffer);
  if (!o.negate && !o.absolute) return from;
  const uint32_t keep = o.absolute ? 0x7fffffffu : 0xffffffffu, flip = o.negate ? 0x80000000u : 0;
  for (int l = 0; l < w.lanes; ++l) buffer[l] = (from[l] & keep) ^ flip;
  return buffer;
}

void read_halves(Wave &w, const Inst &i, int n, uint16_t *buffer) {
  const Operand &o = i.op[n];
  uint32_t words[64];
  const uint32_t *from = read_raw(w, i, n, words);
  const bool high = i.select >> (n - 1) & 1;
  const uint32_t keep = o.absolute ? 0x7fffu : 0xffffu, flip = o.negate ? 0x8000u : 0;
  for (int l = 0; l < w.lanes; ++l) {
    const uint32_t x = o.kind == Kind::kConstant ? o.half : high ? from[l] >> 16 : from[l];
    buffer[l] = static_cast<uint16_t>((x & keep) ^ flip);
  }
}

void read_wides(Wave &w, const Inst &i, int n, uint64_t *buffer) {
  const Operand &o = i.op[n];
  if (o.kind == Kind::kVector) {
    const uint32_t *low = w.row(o.reg), *high = w.row(o.reg + 1);
    for (int l = 0; l < w.lanes; ++l) buffer[l] = low[l] | static_cast<uint64_t>(high[l]) << 32;
  } else {
    const uint64_t x = scalar_wide(w, o);
    for (int l = 0; l < w.lanes; ++l) buffer[l] = x;
  }
  if (!o.negate && !o.absolute) return;
  const uint64_t top = uint64_t{1} << 63;
  for (int l = 0; l < w.lanes; ++l)
    buffer[l] = (buffer[l] & (o.absolute ? ~top : ~uint64_t{0})) ^ (o.negate ? top : 0);
}

void write_words(Wave &w, const Inst &i, int n, const uint32_t *values) {
  uint32_t *row = w.row(i.op[n].reg);
  uint64_t exec = w.exec();
  if (i.modifiers & kModDpp) exec &= w.reached;
  if (i.to == Part::kAll && exec == w.all()) {
    memcpy(row, values, sizeof *row * static_cast<size_t>(w.lanes));
    return;
  }
  const int p = static_cast<int>(i.to);
  const bool word = p >= static_cast<int>(Part::kWord0);
  const int shift = i.to == Part::kAll ? 0 : word ? 16 * (p - static_cast<int>(Part::kWord0)) : 8 * (p - 1);
  const uint32_t field = i.to == Part::kAll ? 0xffffffffu : (word ? 0xffffu : 0xffu) << shift;
  for (int l = 0; l < w.lanes; ++l)
    if (exec >> l & 1) row[l] = (i.keeps ? row[l] & ~field : 0) | (values[l] << shift & field);
}

// The other half of the register: 0 on gfx9, kept by later families.
void write_halves(Wave &w, const Inst &i, int n, const uint16_t *values) {
  const uint32_t *row = w.row(i.op[n].reg);
  uint32_t words[64];
  for (int l = 0; l < w.lanes; ++l)
    words[l] = (w.family == Family::kGfx9 || i.to != Part::kAll ? 0 : row[l] & 0xffff0000u) | values[l];
  write_words(w, i, n, words);
}

void write_wides(Wave &w, const Inst &i, int n, const uint64_t *values) {
  uint32_t *low = w.row(i.op[n].reg), *high = w.row(i.op[n].reg + 1);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l)
    if (exec >> l & 1) {
      low[l] = static_cast<uint32_t>(values[l]);
      high[l] = static_cast<uint32_t>(values[l] >> 32);
    }
}

} // namespace amdgpu
} // namespace tessera
