// SPDX-License-Identifier: Apache-2.0
//
// Instructions that carry values between lanes, or between a lane and the scalar registers.
#include "per_lane.h"

namespace tessera {
namespace amdgpu {

namespace {

// The first lane that is on, lane 0 when none is.
void read_first(Wave &w, const Inst &i) {
  if (i.op[1].kind != Kind::kVector) return set_scalar_word(w, i.op[0], scalar_word(w, i.op[1]));
  const uint64_t exec = w.exec();
  set_scalar_word(w, i.op[0], w.row(i.op[1].reg)[exec ? __builtin_ctzll(exec) : 0]);
}

void read_lane(Wave &w, const Inst &i) {
  const uint32_t lane = scalar_word(w, i.op[2]) & static_cast<uint32_t>(w.lanes - 1);
  set_scalar_word(w, i.op[0], w.row(i.op[1].reg)[lane]);
}

void write_lane(Wave &w, const Inst &i) {
  const uint32_t lane = scalar_word(w, i.op[2]) & static_cast<uint32_t>(w.lanes - 1);
  w.row(i.op[0].reg)[lane] = scalar_word(w, i.op[1]);
}

// Bits of the mask below the lane, of the 32 that param names, added to the second source.
void count_below(Wave &w, const Inst &i) {
  Values<uint32_t> mask, base, out;
  mask.read(w, i, 1);
  base.read(w, i, 2);
  for (int l = 0; l < w.lanes; ++l) {
    const int n = l - i.param;
    const uint32_t below = n <= 0 ? 0 : n >= 32 ? 0xffffffffu : (1u << n) - 1;
    out.set(l, base[l] + static_cast<uint32_t>(__builtin_popcount(mask[l] & below)));
  }
  out.write(w, i, 0);
}

// Lane l takes what the lane that its address names holds, 0 where that one is off. The LDS
// hardware does it, so that the result has to be waited for.
void pull(Wave &w, const Inst &i) {
  Values<uint32_t> address, data;
  uint32_t out[64];
  address.read(w, i, 1);
  data.read(w, i, 2);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    const uint32_t from =
        (address[l] + static_cast<uint32_t>(i.offset)) / 4 & static_cast<uint32_t>(w.lanes - 1);
    out[l] = exec >> from & 1 ? data[static_cast<int>(from)] : 0;
  }
  write_words(w, i, 0, out);
  w.starts(kLocal, true, i.op[0].reg, 1, true);
}

// The other way: lane l gives to the lane that its address names; the last giver wins.
void push(Wave &w, const Inst &i) {
  Values<uint32_t> address, data;
  uint32_t out[64] = {};
  address.read(w, i, 1);
  data.read(w, i, 2);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l)
    if (exec >> l & 1)
      out[(address[l] + static_cast<uint32_t>(i.offset)) / 4 & static_cast<uint32_t>(w.lanes - 1)] = data[l];
  write_words(w, i, 0, out);
  w.starts(kLocal, true, i.op[0].reg, 1, true);
}

// Lane l of 16 takes lane (selector nibble l) of its own 16, or (param) of the other 16 of a wave
// of 32. op_sel: also from lanes that are off; 0 where they are.
void permute_16(Wave &w, const Inst &i) {
  const uint64_t select = scalar_word(w, i.op[2]) | static_cast<uint64_t>(scalar_word(w, i.op[3])) << 32;
  uint32_t from[64];
  memcpy(from, w.row(i.op[1].reg), sizeof *from * static_cast<size_t>(w.lanes));
  uint32_t *to = w.row(i.op[0].reg);
  const uint64_t exec = w.exec();
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const int source = ((l & ~15) ^ (i.param ? 16 : 0)) | static_cast<int>(select >> 4 * (l & 15) & 15);
    if ((i.select & 1) || (exec >> source & 1))
      to[l] = from[source];
    else if (i.select & 2)
      to[l] = 0;
  }
}

} // namespace

void add_lanes(Table &t) {
  t["v_readfirstlane_b32"] = {read_first, 0, 0};
  t["v_readlane_b32"] = {read_lane, 0, 0};
  t["v_writelane_b32"] = {write_lane, 0, 0};
  t["v_mbcnt_lo_u32_b32"] = {count_below, 0, 0};
  t["v_mbcnt_hi_u32_b32"] = {count_below, 0, 32};
  t["ds_bpermute_b32"] = {pull, kModOffset, 0};
  t["ds_permute_b32"] = {push, kModOffset, 0};
  t["v_permlane16_b32"] = {permute_16, kModSelect, 0};
  t["v_permlanex16_b32"] = {permute_16, kModSelect, 1};
}

} // namespace amdgpu
} // namespace tessera
