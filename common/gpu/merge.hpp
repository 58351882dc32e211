// SPDX-License-Identifier: Apache-2.0
//
// Merging partial results by their LSE, a wave per row, and the keep mask of dropout as a tensor, a
// thread per four keys. The weights and the merged LSE are the recurrence's own (see
// common/online_softmax-inl.h). The result may overwrite a part: every element is written by the lane
// that read it of all parts, and LSE after the whole wave has read.
#ifndef TESSERA_COMMON_GPU_MERGE_HPP_
#define TESSERA_COMMON_GPU_MERGE_HPP_

#include "common/dropout.h"
#include "common/geometry.h"
#include "common/gpu/element.hpp"
#include "common/gpu/merge_arguments.hpp"
#include "common/gpu/platform.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

template <int kWave>
struct Merge {
  using Args = MergeArgs;
  static constexpr int kThreads = kMergeThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER const void *o_part(const Args &a, int64_t t) {
    return a.table ? a.table[t] : a.o_parts[t];
  }
  TSRI_DEVICE_MEMBER const float *lse_part(const Args &a, int64_t t) {
    return a.table ? static_cast<const float *>(a.table[a.p.parts + t]) : a.lse_parts[t];
  }

  TSRI_DEVICE_MEMBER void row(const Args &a, int64_t index) {
    const tsr_merge_problem &p = a.p;
    const int lane = thread_index() % kWave;
    const int64_t i = index % p.seq, h = index / p.seq % p.heads, b = index / p.seq / p.heads;
    const int64_t lse_at = tsri_row_offset(p.lse_part.stride, b, h, i);
    const int64_t o_at = tsri_row_offset(p.o_part.stride, b, h, i);
    const int64_t out_at = tsri_row_offset(p.o.stride, b, h, i);
    float largest = -infinity(), weights = 0.0f;
    for (int64_t t = lane; t < p.parts; t += kWave)
      largest = larger_of(largest, lse_part(a, t)[lse_at]);
    for (int step = kWave / 2; step > 0; step /= 2)
      largest = larger_of(largest, shuffle_xor(largest, step));
    for (int64_t t = lane; t < p.parts; t += kWave)
      weights += Softmax::weight(lse_part(a, t)[lse_at], largest);
    for (int step = kWave / 2; step > 0; step /= 2) weights += shuffle_xor(weights, step);
    const float inverse = Softmax::inverse_sum(weights);
    for (int64_t c = lane; c < p.dim_v; c += kWave) {
      float sum = 0.0f;
      for (int64_t t = 0; t < p.parts; ++t) {
        const float lse = lse_part(a, t)[lse_at];
        // An empty part's O may hold anything: it is not read.
        if (lse == -infinity()) continue;
        const float x = load_element(p.o_part.dtype, o_part(a, t), o_at + c * p.o_part.stride[3]);
        sum = multiply_add(Softmax::weight(lse, largest), x, sum);
      }
      store_element(p.o.dtype, a.o, out_at + c * p.o.stride[3], sum * inverse);
    }
    sync_wave();
    if (lane == 0 && a.lse)
      a.lse[tsri_row_offset(p.lse.stride, b, h, i)] = Softmax::merged_lse(largest, weights);
  }

  TSRI_DEVICE_MEMBER void block(const Args &a) {
    constexpr int kRows = kThreads / kWave; // of a block at once
    const int64_t rows = a.p.batch * a.p.heads * a.p.seq;
    for (int64_t r = block_index() * kRows + thread_index() / kWave; r < rows;
         r += block_count() * kRows)
      row(a, r);
  }
};

// Writes a piece of the table of pointers, which the host may not copy while a stream is captured.
struct MergeTable {
  using Args = MergeTableArgs;
  static constexpr int kThreads = kMergeThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;
  TSRI_DEVICE_MEMBER void block(const Args &a) {
    for (int i = thread_index(); i < a.count; i += kThreads) a.table[i] = a.values[i];
  }
};

struct KeepMask {
  using Args = KeepMaskArgs;
  static constexpr int kThreads = kMergeThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;
  TSRI_DEVICE_MEMBER void block(const Args &a) {
    const tsr_dropout_problem &p = a.p;
    const tsri_dropout_key key = tsri_dropout_key_make(p.seed, p.offset);
    const int64_t quads = (p.seq_k + 3) / 4, total = p.batch * p.heads * p.seq_q * quads;
    for (int64_t n = block_index() * kThreads + thread_index(); n < total;
         n += block_count() * kThreads) {
      const int64_t quad = n % quads, i = n / quads % p.seq_q, head = n / quads / p.seq_q;
      const tsri_philox words = tsri_dropout_words(key, head, i, quad);
      uint8_t *row =
          a.mask + tsri_row_offset(p.mask.stride, head / p.heads, head % p.heads, i);
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e)
        if (4 * quad + e < p.seq_k)
          row[(4 * quad + e) * p.mask.stride[3]] = words.w[e] >= a.threshold;
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_MERGE_HPP_
