// SPDX-License-Identifier: Apache-2.0
//
// Backward's look at a few rows of every KV head, in the preparing kernel: whether delta may come from the stored O
// (common/delta.h). Blocks of its own, three for a head: columns of K, columns of V, and weights of some queries.
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

// Of the columns of K or V, a thread each: squared mean, less chance, and spread.
template <int kThreads>
TSRI_DEVICE DeltaPart delta_columns(const tsr_layout &layout, const void *base, const tsri_pages &pages,
                                    const tsri_span &span, int64_t b, int64_t g, int64_t columns) {
  constexpr int kTogether = 8; // loads under way
  const int64_t count = tsri_delta_rows(span.len);
  DeltaPart part = {0.0f, 0.0f};
  TSRI_NO_UNROLL
  for (int64_t c = thread_index(); c < columns; c += kThreads) {
    float first = 0.0f, sum = 0.0f, squares = 0.0f; // less the first one, which may be large
    TSRI_NO_UNROLL
    for (int64_t t0 = 0; t0 < count; t0 += kTogether) {
      float x[kTogether];
      TSRI_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        const int64_t row = span.begin + tsri_delta_row(span.len, count, smaller(t0 + t, count - 1));
        x[t] = load_element(layout.dtype, base,
                            tsri_kv_offset(&pages, layout.stride, b, g, row) + c * layout.stride[3]);
      }
      if (t0 == 0) first = x[0];
      TSRI_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        const float y = t0 + t < count ? x[t] - first : 0.0f;
        sum += y;
        squares = multiply_add(y, y, squares);
      }
    }
    const float m = static_cast<float>(count), mean = sum / m;
    const float spread = larger(squares / m - mean * mean, 0.0f);
    part.mean = multiply_add(first + mean, first + mean, part.mean);
    part.spread += spread;
  }
  part.mean = sum_of_32(part.mean);
  part.spread = sum_of_32(part.spread);
  return part;
}

// 32 lanes have a query, and a key each: n sum p^2 from the stored LSE, where key 0 stands for itself and others for
// all that are not looked at.
TSRI_DEVICE DeltaPart delta_weights(const Call &call, const tsri_sequence &sequence, const tsri_mask_rule &rule,
                                    const tsri_pages &pages, int64_t b, int64_t g) {
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  const int number = thread_index() / 32, lane = thread_index() % 32;
  const int64_t i = tsri_delta_row(sequence.q.len, 2 * TSRI_DELTA_QUERIES, 2 * number + 1);
  const int64_t h = g * call.group + number % call.group;
  const tsri_mask_row band = tsri_mask_row_of(&rule, i);
  const int64_t seen = band.prefix + band.hi - band.lo;
  DeltaPart part = {1.0f, 0.0f};
  if (seen <= TSRI_DELTA_KEYS) return part;
  const int64_t t = tsri_delta_row(seen, TSRI_DELTA_KEYS, lane);
  const int64_t j = t < band.prefix ? t : t - band.prefix + band.lo;
  const int64_t q = tsri_row_offset(p.q.stride, b, h, sequence.q.begin + i);
  const int64_t k = tsri_kv_offset(&pages, p.k.stride, b, g, sequence.k.begin + j);
  float dot = 0.0f;
  TSRI_NO_UNROLL
  for (int64_t c0 = 0; c0 < p.dim_qk; c0 += 8)
    TSRI_UNROLL
    for (int c = 0; c < 8; ++c)
      if (c0 + c < p.dim_qk)
        dot = multiply_add(load_element(p.q.dtype, a.q, q + (c0 + c) * p.q.stride[3]),
                           load_element(p.k.dtype, a.k, k + (c0 + c) * p.k.stride[3]), dot);
  const float lse = a.lse[tsri_row_offset(p.lse.stride, b, h, sequence.q.begin + i)];
  const float w = exp2_of((dot * p.scale - lse) * static_cast<float>(TSRI_LOG2E));
  const float n = static_cast<float>(seen), share = (n - 1.0f) / (TSRI_DELTA_KEYS - 1);
  part.mean = n * sum_of_32(w * w * (lane == 0 ? 1.0f : share));
  return part;
}

// Blocks [0, count) of those that look.
template <int kThreads>
TSRI_DEVICE void find_delta(const BackwardArgs &args, int64_t first, int64_t count) {
  static_assert(kThreads == 32 * kDeltaParts && kDeltaParts == TSRI_DELTA_QUERIES, "a query of 32 lanes");
  const tsr_problem &p = args.call.p;
  const tsr_args &a = args.call.a;
  const tsri_pages pages = tsri_pages_of(&p, &a);
  TSRI_NO_UNROLL
  for (int64_t n = first; n < p.batch * p.heads_kv * kDeltaBlocks; n += count) {
    int64_t what, g;
    const int64_t head = divide(n, kDeltaBlocks, what), b = divide(head, p.heads_kv, g);
    const tsri_sequence sequence = tsri_sequence_of(&p, &a, b);
    DeltaPart part = {what == 2 ? 1.0f : 0.0f, 0.0f};
    if (sequence.q.len > 0 && sequence.k.len > args.few_keys) {
      if (what == 0)
        part = delta_columns<kThreads>(p.k, a.k, pages, sequence.k, b, g, p.dim_qk);
      else if (what == 1)
        part = delta_columns<kThreads>(p.v, a.v, pages, sequence.k, b, g, p.dim_v);
      else if (!tsri_delta_has_terms(&p))
        part = delta_weights(args.call, sequence, tsri_sequence_rule(&p, &sequence), pages, b, g);
    }
    if (thread_index() % 32 == 0) args.delta[n * kDeltaParts + thread_index() / 32] = part;
  }
}

// What was found of a KV head of sequence b with `keys` keys.
TSRI_DEVICE float delta_most_keys(const BackwardArgs &args, int64_t b, int64_t g, int64_t keys) {
  if (!args.delta) return infinity();
  const DeltaPart *parts = args.delta + (b * args.call.p.heads_kv + g) * (kDeltaBlocks * kDeltaParts);
  DeltaPart sum[kDeltaBlocks] = {};
  TSRI_UNROLL
  for (int i = 0; i < kDeltaBlocks * kDeltaParts; ++i) {
    sum[i / kDeltaParts].mean += parts[i].mean;
    sum[i / kDeltaParts].spread += parts[i].spread;
  }
  const int64_t rows = tsri_delta_rows(keys);
  const tsri_delta_facts facts = {tsri_delta_mean(sum[0].mean, sum[0].spread, rows), sum[0].spread,
                                  tsri_delta_mean(sum[1].mean, sum[1].spread, rows), sum[1].spread,
                                  sum[2].mean / kDeltaParts};
  return tsri_delta_most_keys(&facts, args.call.p.dim_qk);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_DELTA_HPP_
