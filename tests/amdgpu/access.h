// SPDX-License-Identifier: Apache-2.0
//
// What loads, stores and atomics of LDS and of global memory share: how many bytes a lane moves,
// which part of a register they are, and the arithmetic of atomics. An instruction's param holds
// all of it.
#ifndef TESSERA_TESTS_AMDGPU_ACCESS_H_
#define TESSERA_TESTS_AMDGPU_ACCESS_H_

#include "wave.h"

namespace tessera {
namespace amdgpu {

enum : int32_t {
  kAccessBytes = 0xff,    // of a lane
  kAccessSigned = 0x100, // 8 or 16 bits are extended with their sign
  kAccessLow = 0x200,     // 16 bits go to the low half of a register,
  kAccessHigh = 0x400,    // come from or go to the high half
  kAccessFlat = 0x800,    // address of any memory
  kAccessStride = 0x1000 // two addresses: offsets in 64 elements, not one
};

// The lane's registers row[0], row[lanes], ... from memory.
inline void load_lane(const Wave &w, const unsigned char *from, int32_t param, uint32_t *row) {
  const uint32_t bytes = param & kAccessBytes, lanes = static_cast<uint32_t>(w.lanes);
  if (bytes >= 4) {
    for (uint32_t k = 0; k < bytes / 4; ++k) memcpy(row + k * lanes, from + 4 * k, 4);
    return;
  }
  // A copy of a length that the compiler does not know would be a loop or a call.
  uint16_t word;
  uint32_t x = *from;
  if (bytes == 2) {
    memcpy(&word, from, 2);
    x = word;
  }
  if (param & kAccessSigned)
    x = static_cast<uint32_t>(bytes == 1 ? static_cast<int8_t>(x) : static_cast<int16_t>(x));
  // gfx9 with error-correcting memory does not say what becomes of the other half.
  const uint32_t old = w.family == Family::kGfx9 ? 0xffffffffu : *row;
  if (param & kAccessLow) x = (x & 0xffff) | (old & 0xffff0000u);
  if (param & kAccessHigh) x = x << 16 | (old & 0xffff);
  *row = x;
}

inline void store_lane(const Wave &w, unsigned char *to, int32_t param, const uint32_t *row) {
  const uint32_t bytes = param & kAccessBytes, lanes = static_cast<uint32_t>(w.lanes);
  if (bytes >= 4) {
    for (uint32_t k = 0; k < bytes / 4; ++k) memcpy(to + 4 * k, row + k * lanes, 4);
    return;
  }
  const uint32_t x = param & kAccessHigh ? *row >> 16 : *row;
  if (bytes == 2)
    memcpy(to, &x, 2);
  else
    memcpy(to, &x, 1);
}

enum class Atomic : int32_t {
  kAdd,
  kSub,
  kSwap,
  kCompareSwap,
  kMinU,
  kMaxU,
  kMinI,
  kMaxI,
  kAnd,
  kOr,
  kXor,
  kInc,
  kDec,
  kAddFloat,
  kAddWide,
  kCompareSwapWide
};

// The new value of a word; data[1] is the comparand of a compare-and-swap.
inline uint32_t atomic_result(Atomic op, uint32_t old, uint32_t x, uint32_t comparand) {
  const int32_t so = static_cast<int32_t>(old), sx = static_cast<int32_t>(x);
  switch (op) {
    case Atomic::kAdd:
      return old + x;
    case Atomic::kSub:
      return old - x;
    case Atomic::kSwap:
      return x;
    case Atomic::kCompareSwap:
      return old == comparand ? x : old;
    case Atomic::kMinU:
      return x < old ? x : old;
    case Atomic::kMaxU:
      return x > old ? x : old;
    case Atomic::kMinI:
      return sx < so ? x : old;
    case Atomic::kMaxI:
      return sx > so ? x : old;
    case Atomic::kAnd:
      return old & x;
    case Atomic::kOr:
      return old | x;
    case Atomic::kXor:
      return old ^ x;
    case Atomic::kInc:
      return old >= x ? 0 : old + 1;
    case Atomic::kDec:
      return old == 0 || old > x ? x : old - 1;
    case Atomic::kAddFloat:
      return as_word(as_float(old) + as_float(x));
    case Atomic::kAddWide:
    case Atomic::kCompareSwapWide:
      break;
  }
  return old;
}

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_ACCESS_H_
