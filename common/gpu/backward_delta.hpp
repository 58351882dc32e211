// SPDX-License-Identifier: Apache-2.0
//
// Backward's look at a few rows of every KV head, in the preparing kernel: whether P and delta may come from the stored
// LSE and O (common/delta.h). Blocks of its own, three for a head: columns of K, columns of V, weights of some queries.
// What there is to load is asked for at once, so that rows take longer than this does.
#ifndef TESSERA_COMMON_GPU_BACKWARD_DELTA_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_DELTA_HPP_

#include "common/delta.h"
#include "common/gpu/arguments.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/gradient.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

// A sum over 32 neighbouring lanes.
TSRI_DEVICE float sum_of_32(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// Two neighbouring elements of a row of 16-bit ones, zeros beyond the end. The code is short on purpose: what a block
// waits for here is as much its instructions as its data.
TSRI_DEVICE uint32_t delta_pair(const tsr_layout &layout, const void *base, int64_t row, int64_t c, int64_t columns) {
  const uint16_t *from = static_cast<const uint16_t *>(base) + row + c * layout.stride[3];
  if (layout.stride[3] == 1 && row % 2 == 0 && layout.alignment % 4 == 0 && c + 1 < columns)
    return load_global<uint32_t>(reinterpret_cast<const uint32_t *>(from));
  const uint32_t low = c < columns ? load_global<uint16_t>(from) : 0u;
  return low | (c + 1 < columns ? static_cast<uint32_t>(load_global<uint16_t>(from + layout.stride[3])) << 16 : 0u);
}

// Of 64 bits, from the lane of number k of 32 neighbouring ones.
template <int kWave>
TSRI_DEVICE int64_t delta_shuffle(int64_t x, int k) {
  const int lane = thread_index() % kWave / 32 * 32 + k;
  const uint64_t bits = static_cast<uint64_t>(x);
  const uint64_t lo = shuffle(static_cast<uint32_t>(bits), lane), hi = shuffle(static_cast<uint32_t>(bits >> 32), lane);
  return static_cast<int64_t>(hi << 32 | lo);
}

TSRI_DEVICE float delta_low(bool half, uint32_t w) { return half ? Half::low(w) : BFloat16::low(w); }
TSRI_DEVICE float delta_high(bool half, uint32_t w) { return half ? Half::high(w) : BFloat16::high(w); }

// Of K or V: squared mean and spread of one of TSRI_DELTA_PARTS samples, by 32 lanes, which have two columns each.
template <int kWave>
TSRI_DEVICE DeltaPart delta_columns(const tsr_layout &layout, const void *base, const tsri_pages &pages,
                                    const tsri_span &span, int64_t b, int64_t g, int64_t columns) {
  constexpr int kTogether = 8; // loads under way
  const int part_of_block = thread_index() / 32, lane = thread_index() % 32;
  const int32_t all = tsri_delta_rows(span.len), count = all / TSRI_DELTA_PARTS;
  const bool half = layout.dtype == TSR_DTYPE_F16;
  const float m = 1.0f / static_cast<float>(count);
  int64_t rest;
  const int64_t step = divide(span.len, all, rest);
  DeltaPart part = {0.0f, 0.0f};
  TSRI_NO_UNROLL
  for (int64_t c0 = 0; c0 < columns; c0 += 64) { // by all lanes
    const int64_t c = c0 + lane * 2;
    float first[2] = {}, sum[2] = {}, squares[2] = {}; // less the first one, which may be large
    TSRI_NO_UNROLL
    for (int t0 = 0; t0 < count; t0 += kTogether) { // of which there is a multiple
      const int64_t row = span.begin + ((t0 + lane % kTogether) * TSRI_DELTA_PARTS + part_of_block) * step;
      const int64_t at = tsri_kv_offset(&pages, layout.stride, b, g, row); // of a row for each lane
      uint32_t w[kTogether];
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        w[k] = delta_pair(layout, base, delta_shuffle<kWave>(at, k), c, columns);
      if (t0 == 0) first[0] = delta_low(half, w[0]), first[1] = delta_high(half, w[0]);
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const float x = delta_low(half, w[k]) - first[0], y = delta_high(half, w[k]) - first[1];
        sum[0] += x;
        sum[1] += y;
        squares[0] = multiply_add(x, x, squares[0]);
        squares[1] = multiply_add(y, y, squares[1]);
      }
    }
    TSRI_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float off = sum[i] * m, mean = off + first[i];
      part.mean = multiply_add(mean, mean, part.mean);
      part.spread += larger(multiply_add(-off, off, squares[i] * m), 0.0f);
    }
  }
  part.mean = sum_of_32(part.mean);
  part.spread = sum_of_32(part.spread);
  return part;
}

// 1 / crowd (n sum p^2, at least 1) of a query that 32 lanes have, from its stored LSE. Key 0 stands for itself and others for all that are not
// looked at.
template <int kWave>
TSRI_DEVICE DeltaPart delta_weights(const Call &call, const tsri_sequence &sequence, const tsri_mask_rule &rule,
                                    const tsri_pages &pages, int64_t b, int64_t g) {
  constexpr int kTogether = 8; // keys
  static_assert(TSRI_DELTA_KEYS % kTogether == 0, "whole turns");
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  const int number = thread_index() / 32, lane = thread_index() % 32;
  const int64_t i = (2 * number + 1) * sequence.q.len / (2 * TSRI_DELTA_QUERIES);
  const int64_t h = g * call.group + tsri_delta_head(number, call.group);
  const float lse = a.lse[tsri_row_offset(p.lse.stride, b, h, sequence.q.begin + i)];
  const tsri_mask_row band = tsri_mask_row_of(&rule, i);
  const int64_t seen = band.prefix + band.hi - band.lo;
  DeltaPart part = {1.0f, 0.0f};
  if (seen <= TSRI_DELTA_KEYS) return part;
  const bool half = p.q.dtype == TSR_DTYPE_F16;
  const int64_t q = tsri_row_offset(p.q.stride, b, h, sequence.q.begin + i);
  const float n = static_cast<float>(seen), share = (n - 1.0f) / (TSRI_DELTA_KEYS - 1);
  float sum = 0.0f;
  TSRI_NO_UNROLL
  for (int t0 = 0; t0 < TSRI_DELTA_KEYS; t0 += kTogether) {
    const Call &now = fresh_arguments(call); // nor these across this one
    const int64_t t = (t0 + lane % kTogether) * (seen / TSRI_DELTA_KEYS);
    const int64_t j = t < band.prefix ? t : t - band.prefix + band.lo;
    const int64_t at = tsri_kv_offset(&pages, now.p.k.stride, b, g, sequence.k.begin + j); // of a key for each lane
    float dot[kTogether] = {};
    TSRI_NO_UNROLL
    for (int64_t c0 = 0; c0 < now.p.dim_qk; c0 += 64) {
      const int64_t c = c0 + lane * 2;
      const uint32_t y = delta_pair(now.p.q, now.a.q, q, c, now.p.dim_qk);
      uint32_t x[kTogether];
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        x[k] = delta_pair(now.p.k, now.a.k, delta_shuffle<kWave>(at, k), c, now.p.dim_qk);
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        dot[k] = multiply_add(delta_low(half, x[k]), delta_low(half, y),
                              multiply_add(delta_high(half, x[k]), delta_high(half, y), dot[k]));
    }
    TSRI_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      const float w = exp2_of((sum_of_32(dot[k]) * now.p.scale - lse) * static_cast<float>(TSRI_LOG2E));
      sum += w * w * (t0 + k == 0 ? 1.0f : share);
    }
  }
  part.mean = 1.0f / larger(n * sum, 1.0f);
  return part;
}

// Squared length of a row of float32, by 32 lanes.
TSRI_DEVICE float delta_length(const tsr_layout &layout, const void *base, int64_t row, int64_t columns) {
  float sum = 0.0f;
  TSRI_NO_UNROLL
  for (int64_t c = thread_index() % 32; c < columns; c += 32) {
    const float x = load_global<float>(static_cast<const float *>(base) + row + c * layout.stride[3]);
    sum = multiply_add(x, x, sum);
  }
  return sum_of_32(sum);
}

// Of float32 inputs there are lengths alone: of a few keys, and of a query.
TSRI_DEVICE DeltaPart delta_lengths(const Call &call, const tsri_sequence &sequence, const tsri_pages &pages,
                                    int64_t what, int64_t b, int64_t g) {
  constexpr int kKeys = 4; // of 32 lanes
  const tsr_problem &p = call.p;
  const int number = thread_index() / 32;
  DeltaPart part = {0.0f, 0.0f};
  if (what == 2) {
    const int64_t h = g * call.group + tsri_delta_head(number, call.group);
    const int64_t i = (2 * number + 1) * sequence.q.len / (2 * TSRI_DELTA_QUERIES);
    part.mean = delta_length(p.q, call.a.q, tsri_row_offset(p.q.stride, b, h, sequence.q.begin + i), p.dim_qk);
  }
  for (int t = 0; what == 0 && t < kKeys; ++t) {
    const int64_t j = (number * kKeys + t) * (sequence.k.len / (kKeys * kDeltaParts));
    const int64_t k = tsri_kv_offset(&pages, p.k.stride, b, g, sequence.k.begin + j);
    part.spread += delta_length(p.k, call.a.k, k, p.dim_qk) / kKeys;
  }
  return part;
}

template <int kWave>
TSRI_DEVICE DeltaPart delta_part(const BackwardArgs &args, int64_t what, int64_t b, int64_t g) {
  const tsr_problem &p = args.call.p;
  const tsr_args &a = args.call.a;
  const tsri_sequence sequence = tsri_sequence_of(&p, &a, b);
  const tsri_pages pages = tsri_pages_of(&p, &a);
  if (sequence.q.len > 0 && sequence.k.len > args.few_keys) {
    if (p.q.dtype == TSR_DTYPE_F32) return delta_lengths(args.call, sequence, pages, what, b, g);
    if (what < 2) {
      const tsr_layout &layout = what == 0 ? p.k : p.v;
      const void *base = what == 0 ? a.k : a.v;
      const int64_t columns = what == 0 ? p.dim_qk : p.dim_v;
      return delta_columns<kWave>(layout, base, pages, sequence.k, b, g, columns);
    }
    if (!tsri_delta_has_terms(&p))
      return delta_weights<kWave>(fresh_arguments(args).call, sequence, tsri_sequence_rule(&p, &sequence), pages, b, g);
  }
  return DeltaPart{what == 2 ? 1.0f : 0.0f, 0.0f};
}

// By `count` blocks, of which this is number `first`.
template <int kThreads, int kWave>
TSRI_DEVICE void find_delta(const BackwardArgs &args, int64_t first, int64_t count) {
  static_assert(kThreads == 32 * kDeltaParts && kDeltaParts == TSRI_DELTA_QUERIES && kDeltaParts == TSRI_DELTA_PARTS,
                "32 lanes for a query, and for a sample");
  const tsr_problem &p = args.call.p;
  TSRI_NO_UNROLL
  for (int64_t n = first; n < p.batch * p.heads_kv * kDeltaBlocks; n += count) {
    int64_t what, g;
    const int64_t head = divide(n, kDeltaBlocks, what), b = divide(head, p.heads_kv, g);
    // Nothing of the arguments is in registers across the loop.
    const DeltaPart part = delta_part<kWave>(fresh_arguments(args), what, b, g);
    if (thread_index() % 32 == 0) args.delta[n * kDeltaParts + thread_index() / 32] = part;
  }
}

// What was found of a KV head of sequence b with `keys` keys: of float32 inputs the largest |LSE|, of others the most
// keys, of rows that may take P and delta from what is stored.
TSRI_DEVICE float delta_most(const BackwardArgs &args, int64_t b, int64_t g, int64_t keys) {
  const DeltaPart *parts = args.delta + (b * args.call.p.heads_kv + g) * (kDeltaBlocks * kDeltaParts);
  float sum[kDeltaBlocks][2] = {};
  TSRI_UNROLL
  for (int i = 0; i < kDeltaBlocks * kDeltaParts; i += 2) { // two at a time
    const Chunk both = *reinterpret_cast<const Chunk *>(parts + i);
    TSRI_UNROLL
    for (int w = 0; w < 4; ++w) sum[i / kDeltaParts][w % 2] += bits_float(both.w[w]) / kDeltaParts;
  }
  if (args.call.p.q.dtype == TSR_DTYPE_F32)
    return tsri_delta_most_lse(sum[2][0], sum[0][1], args.call.p.scale, args.call.p.dim_qk);
  const int32_t rows = tsri_delta_rows(keys) / TSRI_DELTA_PARTS;
  const tsri_delta_facts facts = {tsri_delta_mean(sum[0][0], sum[0][1], rows), sum[0][1],
                                  tsri_delta_mean(sum[1][0], sum[1][1], rows), sum[1][1], 1.0f / sum[2][0]};
  return tsri_delta_most_keys(&facts, args.call.p.dim_qk);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_DELTA_HPP_
