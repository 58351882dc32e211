// SPDX-License-Identifier: Apache-2.0
//
// Backward's look at a few rows of every KV head, in the preparing kernel: whether P and delta may come from the stored
// LSE and O (common/delta.h). Blocks of its own, three for a head: columns of K, columns of V, and weights of some queries.
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

// Eight neighbouring 16-bit elements of a row. kWhole: 16 bytes at once; else any stride, and zeros beyond the end.
template <bool kWhole>
TSRI_DEVICE Chunk delta_chunk(const tsr_layout &layout, const void *base, int64_t row, int c, int64_t columns) {
  const uint16_t *from = static_cast<const uint16_t *>(base) + row;
  if (kWhole) return *reinterpret_cast<const Chunk *>(from + c * 8);
  uint64_t half[2] = {0, 0}; // seldom used, and registers are short
  TSRI_NO_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (c * 8 + i < columns)
      half[0] |= static_cast<uint64_t>(load_global<uint16_t>(from + (c * 8 + i) * layout.stride[3])) << (16 * i);
    if (c * 8 + i + 4 < columns)
      half[1] |= static_cast<uint64_t>(load_global<uint16_t>(from + (c * 8 + i + 4) * layout.stride[3])) << (16 * i);
  }
  return Chunk{{static_cast<uint32_t>(half[0]), static_cast<uint32_t>(half[0] >> 32), static_cast<uint32_t>(half[1]),
                static_cast<uint32_t>(half[1] >> 32)}};
}

TSRI_DEVICE float delta_element(tsr_dtype dtype, const Chunk &chunk, int i) {
  const uint32_t w = chunk.w[i / 2];
  if (dtype == TSR_DTYPE_F16) return i % 2 ? Half::high(w) : Half::low(w);
  return i % 2 ? BFloat16::high(w) : BFloat16::low(w);
}

// Of K or V: squared mean and spread of one of TSRI_DELTA_PARTS samples, by 32 lanes, which have eight columns and some
// of the rows each.
template <bool kWhole>
TSRI_DEVICE DeltaPart delta_columns(const tsr_layout &layout, const void *base, const tsri_pages &pages,
                                    const tsri_span &span, int64_t b, int64_t g, int64_t columns) {
  constexpr int kTogether = kWhole ? 4 : 1; // loads under way
  const int part_of_block = thread_index() / 32, lane = thread_index() % 32;
  const int32_t all = tsri_delta_rows(span.len), count = all / TSRI_DELTA_PARTS;
  int64_t rest;
  const int64_t step = divide(span.len, all, rest);
  const auto row_at = [&](int t) {
    return tsri_kv_offset(&pages, layout.stride, b, g, span.begin + (t * TSRI_DELTA_PARTS + part_of_block) * step);
  };
  const int chunks = static_cast<int>((columns + 7) / 8);
  int lanes = 1; // that share a row
  while (lanes < chunks && lanes < 32) lanes *= 2;
  const int apart = 32 / lanes;
  DeltaPart part = {0.0f, 0.0f};
  TSRI_NO_UNROLL
  for (int c0 = 0; c0 < chunks; c0 += 32) {
    const int c = smaller(c0 + lane % lanes, chunks - 1);
    const Chunk first = delta_chunk<kWhole>(layout, base, row_at(0), c, columns); // which may be large, and is taken off
    float sum[8] = {}, squares[8] = {};
    TSRI_NO_UNROLL
    for (int t0 = lane / lanes; t0 < count; t0 += apart * kTogether) {
      Chunk x[kTogether];
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        x[k] = delta_chunk<kWhole>(layout, base, row_at(smaller(t0 + k * apart, count - 1)), c, columns);
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k)
        TSRI_UNROLL
        for (int i = 0; i < 8; ++i) {
          const float y = delta_element(layout.dtype, x[k], i) - delta_element(layout.dtype, first, i);
          const float used = t0 + k * apart < count ? y : 0.0f;
          sum[i] += used;
          squares[i] = multiply_add(used, used, squares[i]);
        }
    }
    TSRI_UNROLL
    for (int i = 0; i < 8; ++i) {
      TSRI_NO_UNROLL
      for (int mask = lanes; mask < 32; mask *= 2) {
        sum[i] += shuffle_xor(sum[i], mask);
        squares[i] += shuffle_xor(squares[i], mask);
      }
      if (lane >= lanes || c0 + lane >= chunks) continue;
      const float m = 1.0f / static_cast<float>(count), off = sum[i] * m;
      const float mean = off + delta_element(layout.dtype, first, i);
      part.mean = multiply_add(mean, mean, part.mean);
      part.spread += larger(multiply_add(-off, off, squares[i] * m), 0.0f);
    }
  }
  part.mean = sum_of_32(part.mean);
  part.spread = sum_of_32(part.spread);
  return part;
}

// n sum p^2 of a query that 32 lanes have, from its stored LSE; four of them share a key. Key 0 stands for itself and
// others for all that are not looked at. Rows of 16 bytes at once.
TSRI_DEVICE DeltaPart delta_weights(const Call &call, const tsri_sequence &sequence, const tsri_mask_rule &rule,
                                    const tsri_pages &pages, int64_t b, int64_t g) {
  constexpr int kTogether = 4, kKeys = TSRI_DELTA_KEYS / 8; // keys of four lanes
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  const int number = thread_index() / 32, lane = thread_index() % 32;
  const int64_t i = (2 * number + 1) * sequence.q.len / (2 * TSRI_DELTA_QUERIES);
  const int64_t h = g * call.group + static_cast<int64_t>(static_cast<uint32_t>(number) % static_cast<uint32_t>(call.group));
  const float lse = a.lse[tsri_row_offset(p.lse.stride, b, h, sequence.q.begin + i)];
  const tsri_mask_row band = tsri_mask_row_of(&rule, i);
  const int64_t seen = band.prefix + band.hi - band.lo;
  DeltaPart part = {1.0f, 0.0f};
  if (seen <= TSRI_DELTA_KEYS) return part;
  const int64_t q = tsri_row_offset(p.q.stride, b, h, sequence.q.begin + i);
  int64_t k[kKeys];
  float dot[kKeys] = {};
  TSRI_UNROLL
  for (int n = 0; n < kKeys; ++n) {
    const int32_t t = (lane / 4 + n * 8) * (static_cast<int32_t>(seen) / TSRI_DELTA_KEYS);
    const int64_t j = t < band.prefix ? t : t - band.prefix + band.lo;
    k[n] = tsri_kv_offset(&pages, p.k.stride, b, g, sequence.k.begin + j);
  }
  const int chunks = static_cast<int>(p.dim_qk / 8);
  TSRI_NO_UNROLL
  for (int c0 = lane % 4; c0 < chunks; c0 += 4 * kTogether) {
    Chunk x[kTogether], y[kKeys][kTogether];
    TSRI_UNROLL
    for (int c = 0; c < kTogether; ++c) {
      const int at = smaller(c0 + 4 * c, chunks - 1);
      x[c] = delta_chunk<true>(p.q, a.q, q, at, p.dim_qk);
      TSRI_UNROLL
      for (int n = 0; n < kKeys; ++n) y[n][c] = delta_chunk<true>(p.k, a.k, k[n], at, p.dim_qk);
    }
    TSRI_UNROLL
    for (int c = 0; c < kTogether; ++c)
      TSRI_UNROLL
      for (int n = 0; n < kKeys; ++n)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e)
          if (c0 + 4 * c < chunks)
            dot[n] = multiply_add(delta_element(p.q.dtype, x[c], e), delta_element(p.k.dtype, y[n][c], e), dot[n]);
  }
  const float n = static_cast<float>(seen), share = (n - 1.0f) / (TSRI_DELTA_KEYS - 1);
  float sum = 0.0f;
  TSRI_UNROLL
  for (int t = 0; t < kKeys; ++t) {
    for (int mask = 1; mask < 4; mask *= 2) dot[t] += shuffle_xor(dot[t], mask);
    const float w = exp2_of((dot[t] * p.scale - lse) * static_cast<float>(TSRI_LOG2E));
    sum += w * w * (lane / 4 + t == 0 ? 1.0f : share);
  }
  part.mean = n * sum_of_32(sum) / 4;
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
TSRI_DEVICE DeltaPart delta_lengths(const Call &call, const tsri_sequence &sequence, const tsri_pages &pages, int64_t what,
                                    int64_t b, int64_t g) {
  constexpr int kKeys = 4; // of 32 lanes
  const tsr_problem &p = call.p;
  const int number = thread_index() / 32;
  DeltaPart part = {0.0f, 0.0f};
  if (what == 2) {
    const int64_t h = g * call.group + static_cast<int64_t>(static_cast<uint32_t>(number) % static_cast<uint32_t>(call.group));
    const int64_t i = (2 * number + 1) * sequence.q.len / (2 * TSRI_DELTA_QUERIES);
    part.mean = delta_length(p.q, call.a.q, tsri_row_offset(p.q.stride, b, h, sequence.q.begin + i), p.dim_qk);
  }
  for (int t = 0; what == 0 && t < kKeys; ++t) {
    const int64_t j = (number * kKeys + t) * (sequence.k.len / (kKeys * kDeltaParts));
    part.spread += delta_length(p.k, call.a.k, tsri_kv_offset(&pages, p.k.stride, b, g, sequence.k.begin + j), p.dim_qk) / kKeys;
  }
  return part;
}

TSRI_DEVICE DeltaPart delta_part(const BackwardArgs &args, int64_t what, int64_t b, int64_t g) {
  const tsr_problem &p = args.call.p;
  const tsr_args &a = args.call.a;
  const tsri_sequence sequence = tsri_sequence_of(&p, &a, b);
  const tsri_pages pages = tsri_pages_of(&p, &a);
  if (sequence.q.len > 0 && sequence.k.len > args.few_keys) {
    if (p.q.dtype == TSR_DTYPE_F32) return delta_lengths(args.call, sequence, pages, what, b, g);
    if (what < 2) {
      const tsr_layout layout = what == 0 ? p.k : p.v;
      const void *base = what == 0 ? a.k : a.v;
      const int64_t columns = what == 0 ? p.dim_qk : p.dim_v;
      if (args.call.vector & (what == 0 ? kVectorK : kVectorV))
        return delta_columns<true>(layout, base, pages, sequence.k, b, g, columns);
      return delta_columns<false>(layout, base, pages, sequence.k, b, g, columns);
    }
    if ((args.call.vector & kVectorQ) && (args.call.vector & kVectorK) && !tsri_delta_has_terms(&p))
      return delta_weights(fresh_arguments(args).call, sequence, tsri_sequence_rule(&p, &sequence), pages, b, g);
  }
  return DeltaPart{what == 2 ? 1.0f : 0.0f, 0.0f};
}

// By `count` blocks, of which this is number `first`.
template <int kThreads>
TSRI_DEVICE void find_delta(const BackwardArgs &args, int64_t first, int64_t count) {
  static_assert(kThreads == 32 * kDeltaParts && kDeltaParts == TSRI_DELTA_QUERIES && kDeltaParts == TSRI_DELTA_PARTS,
                "32 lanes for a query, and for a sample");
  const tsr_problem &p = args.call.p;
  TSRI_NO_UNROLL
  for (int64_t n = first; n < p.batch * p.heads_kv * kDeltaBlocks; n += count) {
    int64_t what, g;
    const int64_t head = divide(n, kDeltaBlocks, what), b = divide(head, p.heads_kv, g);
    const DeltaPart part = delta_part(fresh_arguments(args), what, b, g); // nothing of it in registers across the loop
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
                                  tsri_delta_mean(sum[1][0], sum[1][1], rows), sum[1][1], sum[2][0]};
  return tsri_delta_most_keys(&facts, args.call.p.dim_qk);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_DELTA_HPP_
