// SPDX-License-Identifier: Apache-2.0
//
// Backward's passes over rows, limited by memory bandwidth and independent of the element type's unit:
// what every query row contributes (LSE in base two, delta = rowsum(dO * O) - dLSE, its band), the way
// from float sums to dQ, and dSink. Any strides.
#ifndef TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/gradient.hpp"
#include "common/gpu/platform.hpp"
#include "common/gpu/score.hpp"

namespace tessera {
namespace gpu {

// Row `n` of [B, Hq, Sq] or, packed, of [Hq, total_q].
struct QueryRow {
  int64_t b, h, row; // b -1: in no slot; row of the tensor
};

// n / d and n % d; 64-bit division is a subroutine of a hundred instructions on a device.
TSRI_DEVICE int64_t divide(int64_t n, int64_t d, int64_t &rest) {
  if (n <= UINT32_MAX && d <= UINT32_MAX) {
    const uint32_t quotient = static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
    rest = static_cast<uint32_t>(n) - quotient * static_cast<uint32_t>(d);
    return quotient;
  }
  rest = n % d;
  return n / d;
}

TSRI_DEVICE QueryRow query_row(const tsr_problem &p, const tsr_args &a, int64_t n) {
  QueryRow r;
  if (!a.cu_q) {
    r.b = divide(divide(n, p.seq_q, r.row), p.heads_q, r.h);
    return r;
  }
  r.h = divide(n, p.total_q, r.row);
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

// Lanes that share a row: eight, so that a wave works on several rows at once and each lane moves 16
// bytes of 64 to 128 of a row.
constexpr int kRowLanes = 8, kRowThreads = 128;

// body(n, lane) for every row n of the problem, with all its lanes. The lanes of a wave take the same number
// of turns, because they may meet in them: n may lie beyond the last row.
template <class Body>
TSRI_DEVICE void each_row(int64_t rows, const Body &body) {
  constexpr int rows_each = kRowThreads / kRowLanes;
  const int64_t step = static_cast<int64_t>(block_count()) * rows_each;
  for (int64_t first = static_cast<int64_t>(block_index()) * rows_each; first < rows; first += step)
    body(first + thread_index() / kRowLanes, thread_index() % kRowLanes);
}

template <int kWave>
struct BackwardPrepare {
  using Args = BackwardArgs;
  static constexpr int kThreads = kRowThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int64_t rows = query_rows(args.call.p, args.call.a);
    each_row(rows, [&args, rows](int64_t n, int lane) {
      QueryRow row = {-1, 0, 0};
      if (n < rows) row = query_row(args.call.p, args.call.a, n);
      const RowStat stat = stat_of(args, row, lane);
      if (n >= rows) return;
      if (lane == 0) args.stats[n] = stat;
      if (lane == 0 && args.weight) args.weight[n] = 1.0f;
      if (!args.dq_sum) return;
      for (int chunk = 0; chunk < args.dq_chunks; ++chunk) {
        Chunk *sum = reinterpret_cast<Chunk *>(args.dq_sum + (chunk * rows + n) * args.dq_columns);
        for (int c = lane; c < args.dq_columns / 4; c += kRowLanes) sum[c] = Chunk{{0, 0, 0, 0}};
      }
    });
  }

  TSRI_DEVICE_MEMBER RowStat stat_of(const Args &args, const QueryRow &r, int lane) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    RowStat stat = {infinity(), 0.0f, INT32_MAX, INT32_MIN};
    float sum = 0.0f;
    bool used = false;
    if (r.b >= 0) {
      const tsri_sequence sequence = tsri_sequence_of(&p, &a, r.b);
      const int64_t i = r.row - sequence.q.begin;
      used = i >= 0 && i < sequence.q.len;
      if (used) {
        const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
        const tsri_mask_row band = tsri_mask_row_of(&rule, i);
        stat.lo = static_cast<int32_t>(band.lo);
        stat.hi = static_cast<int32_t>(band.hi);
        sum = dot(args, r, lane);
      }
    }
    for (int mask = kRowLanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (!used) return stat;
    stat.delta = sum;
    if (p.dlse.dtype != TSR_DTYPE_NONE)
      stat.delta -= a.dlse[tsri_row_offset(p.dlse.stride, r.b, r.h, r.row)];
    const float lse = a.lse[tsri_row_offset(p.lse.stride, r.b, r.h, r.row)];
    if (lse != -infinity()) stat.lse = plain_nan(lse * args.lse_unit);
    stat.delta = plain_nan(stat.delta);
    return stat;
  }

  // This lane's part of sum dO * O of a row.
  TSRI_DEVICE_MEMBER float dot(const Args &args, const QueryRow &r, int lane) {
    const tsr_problem &p = args.call.p;
    const int64_t o = tsri_row_offset(p.o.stride, r.b, r.h, r.row);
    const int64_t g = tsri_row_offset(p.dout.stride, r.b, r.h, r.row);
    float sum = 0.0f;
    const bool pairs = (args.call.vector & kVectorO) && (args.call.vector & kVectorDout) &&
                       p.o.dtype == p.dout.dtype && p.o.dtype != TSR_DTYPE_F32;
    if (!pairs) {
      for (int c = lane; c < p.dim_v; c += kRowLanes)
        sum = multiply_add(load_element(p.o.dtype, args.call.a.o, o + c * p.o.stride[3]),
                           load_element(p.dout.dtype, args.call.a.dout, g + c * p.dout.stride[3]),
                           sum);
      return sum;
    }
    const uint16_t *x = static_cast<const uint16_t *>(args.call.a.o) + o;
    const uint16_t *y = static_cast<const uint16_t *>(args.call.a.dout) + g;
    for (int c = lane * 8; c < p.dim_v; c += kRowLanes * 8) {
      const Chunk u = *reinterpret_cast<const Chunk *>(x + c);
      const Chunk v = *reinterpret_cast<const Chunk *>(y + c);
      TSRI_UNROLL
      for (int w = 0; w < 4; ++w) {
        if (p.o.dtype == TSR_DTYPE_F16) {
          sum = multiply_add(Half::low(u.w[w]), Half::low(v.w[w]), sum);
          sum = multiply_add(Half::high(u.w[w]), Half::high(v.w[w]), sum);
        } else {
          sum = multiply_add(BFloat16::low(u.w[w]), BFloat16::low(v.w[w]), sum);
          sum = multiply_add(BFloat16::high(u.w[w]), BFloat16::high(v.w[w]), sum);
        }
      }
    }
    return sum;
  }
};

// dO in the element type of the products, where the caller has it in float32: [B, Hq, Sq, Dv] without
// gaps, packed [Hq, total_q, Dv]. Rows that are in no used part are left as they are: nobody reads them.
template <int kWave>
struct BackwardConvert {
  using Args = BackwardConvertArgs;
  static constexpr int kThreads = kRowThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const int64_t rows = query_rows(p, args.call.a);
    each_row(rows, [&args, &p, rows](int64_t n, int lane) {
      if (n >= rows) return;
      const QueryRow r = query_row(p, args.call.a, n);
      if (r.b < 0 || !is_used(p, args.call.a, r)) return;
      const int64_t from = tsri_row_offset(p.dout.stride, r.b, r.h, r.row);
      for (int64_t c = lane; c < p.dim_v; c += kRowLanes)
        store_element(args.dtype, args.to, n * p.dim_v + c,
                      load_element(p.dout.dtype, args.call.a.dout, from + c * p.dout.stride[3]));
    });
  }

  TSRI_DEVICE_MEMBER bool is_used(const tsr_problem &p, const tsr_args &a, const QueryRow &r) {
    const tsri_span q = tsri_sequence_of(&p, &a, r.b).q;
    return r.row >= q.begin && r.row < q.begin + q.len;
  }
};

// dQ from its float sums: used rows, and zeros in the rest of every slot.
template <int kWave>
struct BackwardFinish {
  using Args = BackwardArgs;
  static constexpr int kThreads = kRowThreads, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = 0;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const int64_t rows = query_rows(p, args.call.a);
    each_row(rows, [&args, &p, rows](int64_t n, int lane) {
      if (n >= rows) return;
      const QueryRow r = query_row(p, args.call.a, n);
      if (r.b < 0) return;
      const float factor = args.stats[n].lo <= args.stats[n].hi ? p.scale : 0.0f;
      for (int chunk = 0; chunk < args.dq_chunks; ++chunk)
        finish_row(args, r, args.dq_sum + (chunk * rows + n) * args.dq_columns, lane, factor,
                   chunk * args.dq_columns, args.dq_turned ? static_cast<int>(n & 3) * 8 : 0);
    });
  }

  // Columns of one chunk; column c is at c ^ turn. sum is 0 where factor is: nobody adds to an unused row.
  TSRI_DEVICE_MEMBER void finish_row(const Args &args, const QueryRow &r, const float *sum, int lane,
                                     float factor, int column, int turn) {
    const tsr_problem &p = args.call.p;
    void *dq = args.call.a.dq;
    const int64_t to = tsri_row_offset(p.dq.stride, r.b, r.h, r.row) + column * p.dq.stride[3];
    const int columns = smaller(static_cast<int>(p.dim_qk) - column, args.dq_columns);
    const bool add = p.accumulate & TSR_ACCUMULATE_DQ;
    if (!(args.call.vector & kVectorDq) || p.dq.dtype == TSR_DTYPE_F32 || add) {
      for (int c = lane; c < columns; c += kRowLanes) {
        const int64_t at = to + c * p.dq.stride[3];
        const float x = factor * sum[c ^ turn];
        store_element(p.dq.dtype, dq, at, add ? load_element(p.dq.dtype, dq, at) + x : x);
      }
      return;
    }
    uint16_t *row = static_cast<uint16_t *>(dq) + to;
    for (int c = lane * 8; c < columns; c += kRowLanes * 8) {
      const Chunk a = *reinterpret_cast<const Chunk *>(sum + (c ^ turn));
      const Chunk b = *reinterpret_cast<const Chunk *>(sum + (c ^ turn) + 4);
      Chunk y;
      TSRI_UNROLL
      for (int w = 0; w < 4; ++w) {
        const float lo = factor * bits_float(w < 2 ? a.w[2 * w] : b.w[2 * w - 4]);
        const float hi = factor * bits_float(w < 2 ? a.w[2 * w + 1] : b.w[2 * w - 3]);
        y.w[w] = p.dq.dtype == TSR_DTYPE_F16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
      }
      *reinterpret_cast<Chunk *>(row + c) = y;
    }
  }
};

// dsink[h] = - sum over rows of p_sink * delta, in double and in a fixed order.
template <int kWave>
struct BackwardSink {
  using Args = BackwardArgs;
  static constexpr int kThreads = 256, kMinBlocks = 1;
  static constexpr uint32_t kSharedBytes = kThreads * sizeof(double);

  // p of a sink beside a row whose p are `factor` e^(score - max): factor e^(sink - max), by way of what
  // the factor was made of where the sink is the larger.
  TSRI_DEVICE_MEMBER float share(float max, float factor, float sink) {
    if (!(sink > max)) return factor * Softmax::weight(sink, max);
    const float keys = Softmax::weight(max, sink);
    return keys > 0.0f ? factor / keys : 1.0f;
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const int64_t h = block_index();
    const float sink = args.call.a.sink[h];
    const int64_t each = args.call.a.cu_q ? p.total_q : p.seq_q; // rows that follow each other
    const int64_t batches = args.call.a.cu_q ? 1 : p.batch;
    double sum = 0;
    for (int64_t n = thread_index(); n < batches * each; n += kThreads) {
      const int64_t row = (n / each * p.heads_q + h) * each + n % each;
      const RowStat stat = args.stats[row];
      if (stat.lo > stat.hi) continue;
      const float weight = args.weight ? share(stat.lse, args.weight[row], sink)
                                       : exp2_of(sink * args.lse_unit - stat.lse);
      if (weight != 0.0f) sum -= static_cast<double>(weight) * stat.delta;
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
