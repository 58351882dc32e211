// SPDX-License-Identifier: Apache-2.0
//
// Backward's passes over rows, limited by memory bandwidth and independent of the element type's unit:
// what every query row contributes (LSE in base two, delta = rowsum(dO * O) - dLSE, its band), the way
// from float sums to dQ, and dSink. Any strides.
#ifndef TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"
#include "common/gpu/score.hpp"

namespace tessera {
namespace gpu {

// Row `n` of [B, Hq, Sq] or, packed, of [Hq, total_q].
struct QueryRow {
  int64_t b, h, row; // b -1: in no slot; row of the tensor
};

TSRI_DEVICE QueryRow query_row(const tsr_problem &p, const tsr_args &a, int64_t n) {
  QueryRow r;
  if (!a.cu_q) {
    r.row = n % p.seq_q;
    r.h = n / p.seq_q % p.heads_q;
    r.b = n / p.seq_q / p.heads_q;
    return r;
  }
  r.row = n % p.total_q;
  r.h = n / p.total_q;
  int64_t lo = 0, hi = p.batch; // the last sequence that begins at or before the row
  while (hi - lo > 1) {
    const int64_t middle = lo + (hi - lo) / 2;
    if (tsri_index(a.cu_q, p.index_dtype, middle) <= r.row)
      lo = middle;
    else
      hi = middle;
  }
  const tsri_span span = tsri_span_of(a.cu_q, nullptr, nullptr, p.index_dtype, 0, p.total_q, lo);
  r.b = r.row >= span.slot_begin && r.row < span.slot_begin + span.slot_len ? lo : -1;
  return r;
}

TSRI_DEVICE int64_t query_rows(const tsr_problem &p, const tsr_args &a) {
  return a.cu_q ? p.heads_q * p.total_q : p.batch * p.heads_q * p.seq_q;
}

template <int kWave>
TSRI_DEVICE float sum_wave(float v) {
  for (int mask = kWave / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
  return v;
}

template <int kWave>
struct BackwardPrepare {
  using Args = BackwardArgs;
  static constexpr int kThreads = 128, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const int lane = thread_index() % kWave;
    const int64_t rows = query_rows(p, args.call.a);
    const int64_t step = static_cast<int64_t>(block_count()) * (kThreads / kWave);
    for (int64_t n = static_cast<int64_t>(block_index()) * (kThreads / kWave) +
                     thread_index() / kWave;
         n < rows; n += step) {
      const RowStat stat = stat_of(args, query_row(p, args.call.a, n), lane);
      if (lane == 0) args.stats[n] = stat;
      if (args.dq_sum)
        for (int c = lane; c < args.dq_columns; c += kWave) args.dq_sum[n * args.dq_columns + c] = 0;
    }
  }

  TSRI_DEVICE_MEMBER RowStat stat_of(const Args &args, const QueryRow &r, int lane) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    RowStat stat = {infinity(), 0.0f, INT32_MAX, INT32_MIN};
    if (r.b < 0) return stat;
    const tsri_sequence sequence = tsri_sequence_of(&p, &a, r.b);
    const int64_t i = r.row - sequence.q.begin;
    if (i < 0 || i >= sequence.q.len) return stat;
    const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
    const tsri_mask_row band = tsri_mask_row_of(&rule, i);
    stat.lo = static_cast<int32_t>(band.lo);
    stat.hi = static_cast<int32_t>(band.hi);
    const int64_t o = tsri_row_offset(p.o.stride, r.b, r.h, r.row);
    const int64_t g = tsri_row_offset(p.dout.stride, r.b, r.h, r.row);
    float sum = 0.0f;
    for (int c = lane; c < p.dim_v; c += kWave)
      sum = multiply_add(load_element(p.o.dtype, a.o, o + c * p.o.stride[3]),
                         load_element(p.dout.dtype, a.dout, g + c * p.dout.stride[3]), sum);
    stat.delta = sum_wave<kWave>(sum);
    if (p.dlse.dtype != TSR_DTYPE_NONE)
      stat.delta -= a.dlse[tsri_row_offset(p.dlse.stride, r.b, r.h, r.row)];
    const float lse = a.lse[tsri_row_offset(p.lse.stride, r.b, r.h, r.row)];
    if (lse != -infinity()) stat.lse2 = lse * static_cast<float>(TSRI_LOG2E);
    return stat;
  }
};

// dQ from its float sums: used rows, and zeros in the rest of every slot.
template <int kWave>
struct BackwardFinish {
  using Args = BackwardArgs;
  static constexpr int kThreads = 128, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    const int lane = thread_index() % kWave;
    const int64_t rows = query_rows(p, a);
    const int64_t step = static_cast<int64_t>(block_count()) * (kThreads / kWave);
    for (int64_t n = static_cast<int64_t>(block_index()) * (kThreads / kWave) +
                     thread_index() / kWave;
         n < rows; n += step) {
      const QueryRow r = query_row(p, a, n);
      if (r.b < 0) continue;
      const bool used = args.stats[n].lo <= args.stats[n].hi;
      const int64_t to = tsri_row_offset(p.dq.stride, r.b, r.h, r.row);
      for (int c = lane; c < p.dim_qk; c += kWave) {
        float x = used ? p.scale * args.dq_sum[n * args.dq_columns + c] : 0.0f;
        const int64_t at = to + c * p.dq.stride[3];
        if (p.accumulate & TSR_ACCUMULATE_DQ) x += load_element(p.dq.dtype, a.dq, at);
        store_element(p.dq.dtype, a.dq, at, x);
      }
    }
  }
};

// dsink[h] = - sum over rows of p_sink * delta, in double and in a fixed order.
template <int kWave>
struct BackwardSink {
  using Args = BackwardArgs;
  static constexpr int kThreads = 256, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = kThreads * sizeof(double);

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const int64_t h = block_index();
    const float sink = args.call.a.sink[h] * static_cast<float>(TSRI_LOG2E);
    const int64_t each = args.call.a.cu_q ? p.total_q : p.seq_q; // rows that follow each other
    const int64_t batches = args.call.a.cu_q ? 1 : p.batch;
    double sum = 0;
    for (int64_t n = thread_index(); n < batches * each; n += kThreads) {
      const RowStat stat = args.stats[(n / each * p.heads_q + h) * each + n % each];
      const float weight = exp2_of(sink - stat.lse2);
      if (stat.lo <= stat.hi && weight != 0.0f) sum -= static_cast<double>(weight) * stat.delta;
    }
    const uint32_t at = static_cast<uint32_t>(thread_index()) * 8;
    shared_at<double>(at) = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      sync_block();
      if (thread_index() < half)
        shared_at<double>(at) += shared_at<double>(at + static_cast<uint32_t>(half) * 8);
    }
    if (thread_index() != 0) return;
    float total = static_cast<float>(shared_at<double>(0));
    if (p.accumulate & TSR_ACCUMULATE_DSINK) total += args.call.a.dsink[h];
    args.call.a.dsink[h] = total;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_
