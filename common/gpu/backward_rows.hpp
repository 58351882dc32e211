// SPDX-License-Identifier: Apache-2.0
//
// Backward's passes over rows, limited by memory bandwidth and independent of the element type's unit:
// what every query row contributes (LSE in base two, delta = rowsum(dO * O) - dLSE, its band), the way
// from float sums to dQ, and dSink. Any strides.
#ifndef TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_ROWS_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/backward_delta.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/gradient.hpp"
#include "common/gpu/key_work.hpp"
#include "common/gpu/platform.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// Row `n` of [B, Hq, Sq] or, packed, of [Hq, total_q].
struct QueryRow {
  int64_t b, h, row; // b -1: in no slot; row of the tensor
};

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

// Lanes that share a row: four, so that a wave works on several rows at once: what there is to find out about a
// row takes as long as its columns.
constexpr int kRowLanes = 4, kRowThreads = 128;

// body(n, lane) for every row n of the problem, with all its lanes. The lanes of a wave take the same number
// of turns, because they may meet in them: n may lie beyond the last row.
// By all blocks but the first `others`.
template <class Body>
TSRI_DEVICE void each_row(int64_t rows, int32_t others, const Body &body) {
  constexpr int rows_each = kRowThreads / kRowLanes;
  const int64_t step = (static_cast<int64_t>(block_count()) - others) * rows_each;
  for (int64_t first = (static_cast<int64_t>(block_index()) - others) * rows_each; first < rows; first += step)
    body(first + thread_index() / kRowLanes, thread_index() % kRowLanes);
}

// What every row contributes. A wave takes as many rows as it has lanes: what there is to find out about a row is its
// lane's, and only its columns are shared. kUnits: some rows have units of work, see key_work.hpp.
template <int kWave, bool kUnits>
struct BackwardPrepare {
  using Args = BackwardArgs;
  static constexpr int kThreads = kRowThreads, kMinBlocks = 5; // as many loads under way as registers allow
  static constexpr uint32_t kSharedBytes = 0;
  static constexpr int kRows = kWave / kRowLanes; // of a wave at a time
  static constexpr int kTogether = 4; // times as many are loaded at once

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    release_later();
    const int64_t rows = query_rows(args.call.p, args.call.a);
    const int32_t units = kUnits ? args.order.blocks : 0, others = units + args.delta_blocks;
    const int32_t block = place_of(args, units);
    if constexpr (kUnits)
      if (block < units) {
        find_units<kThreads, kWave>(args);
        return;
      }
    if (block < others) {
      find_delta<kThreads, kWave>(args, block - units, args.delta_blocks);
      return;
    }
    const int64_t step = (static_cast<int64_t>(block_count()) - others) * kThreads;
    const int64_t first = (static_cast<int64_t>(block) - others) * kThreads + thread_index();
    for (int64_t n = first; n - thread_index() % kWave < rows; n += step) { // whole waves
      bool coarse = false;
      const QueryRow row = n < rows ? query_row(args.call.p, args.call.a, n) : QueryRow{-1, 0, 0};
      const RowStat stat = stat_of(args, row, coarse);
      coarse = any_of_lanes<kCoarseRows>(coarse);
      if (n >= rows) continue;
      if (n % kCoarseRows == 0) args.coarse[n / kCoarseRows] = coarse;
      args.stats[n] = stat;
      if (args.weight) args.weight[n] = 1.0f;
    }
    if (!args.dq_sum) return;
    Chunk *sum = reinterpret_cast<Chunk *>(args.dq_sum);
    for (int64_t i = first; i < args.dq_floats / 4; i += step) sum[i] = Chunk{{0, 0, 0, 0}};
  }

  // Which block this one is of those that work on units, heads, rows, in this order. Those of heads wait for memory and
  // those of rows fill it: from the first one of heads on they are started in turn.
  TSRI_DEVICE_MEMBER int32_t place_of(const Args &args, int32_t units) {
    const int32_t all = static_cast<int32_t>(block_index()), heads = args.delta_blocks;
    const int32_t n = all - units, rows = static_cast<int32_t>(block_count()) - units - heads;
    const int32_t turns = 2 * smaller(heads, rows);
    if (n < 0) return all;
    if (n < turns) return units + n / 2 + (n % 2 ? heads : 0);
    return heads > rows ? all - rows : all;
  }

  template <int kLanes>
  TSRI_DEVICE_MEMBER bool any_of_lanes(bool x) {
    uint32_t any = x;
    for (int mask = kLanes / 2; mask > 0; mask /= 2) any |= shuffle_xor(any, mask);
    return any != 0;
  }

  // Of this lane's row. coarse: becomes true where it is. By whole waves.
  TSRI_DEVICE_MEMBER RowStat stat_of(const Args &args, const QueryRow &r, bool &coarse) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    RowStat stat = {infinity(), 0.0f, INT32_MAX, INT32_MIN};
    bool used = false;
    int64_t keys = 0, queries = 0;
    float lse = 0.0f, dlse = 0.0f; // asked for before the rest is, which takes as long
    const int64_t o = r.b >= 0 ? tsri_row_offset(p.o.stride, r.b, r.h, r.row) : 0;
    const int64_t g = r.b >= 0 ? tsri_row_offset(p.dout.stride, r.b, r.h, r.row) : 0;
    if (r.b >= 0) {
      lse = a.lse[tsri_row_offset(p.lse.stride, r.b, r.h, r.row)];
      if (p.dlse.dtype != TSR_DTYPE_NONE) dlse = a.dlse[tsri_row_offset(p.dlse.stride, r.b, r.h, r.row)];
      const tsri_sequence sequence = tsri_sequence_of(&p, &a, r.b);
      const int64_t i = r.row - sequence.q.begin;
      used = i >= 0 && i < sequence.q.len;
      if (used) {
        const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
        const tsri_mask_row band = tsri_mask_row_of(&rule, i);
        stat.lo = static_cast<int32_t>(band.lo);
        stat.hi = static_cast<int32_t>(band.hi);
        keys = rule.prefix + band.hi - band.lo;
        queries = sequence.q.len;
      }
    }
    const float sum = dot(args, used, o, g);
    if (!used) return stat;
    stat.delta = p.dlse.dtype != TSR_DTYPE_NONE ? sum - dlse : sum;
    if (lse != -infinity()) stat.lse = plain_nan(in_stats_unit(lse, args.lse_unit));
    stat.delta = plain_nan(stat.delta);
    coarse = is_coarse(args, queries, keys, stat.lse);
    return stat;
  }

  // sum dO * O of this lane's row, which begin at o and g. kRowLanes lanes share a row, kRows rows are
  // under way at a time.
  TSRI_DEVICE_MEMBER float dot(const Args &args, bool used, int64_t o, int64_t g) {
    float sum[kRowLanes] = {};
    if (!takes_chunks(args))
      sum_elements(args, used, o, g, sum);
    else if (args.call.p.o.dtype == TSR_DTYPE_F16)
      sum_chunks<Half>(args, used, o, g, sum);
    else
      sum_chunks<BFloat16>(args, used, o, g, sum);
    const int lane = thread_index() % kWave;
    float mine = 0.0f;
    TSRI_UNROLL
    for (int k = 0; k < kRowLanes; ++k) {
      for (int mask = kRowLanes / 2; mask > 0; mask /= 2) sum[k] += shuffle_xor(sum[k], mask);
      const float other = shuffle(sum[k], lane % kRows * kRowLanes);
      if (lane / kRows == k) mine = other;
    }
    return mine;
  }
  TSRI_DEVICE_MEMBER bool takes_chunks(const Args &args) {
    const tsr_problem &p = args.call.p;
    return (args.call.vector & kVectorO) && (args.call.vector & kVectorDout) && p.o.dtype == p.dout.dtype &&
           p.o.dtype != TSR_DTYPE_F32;
  }
  TSRI_DEVICE_MEMBER int64_t shuffle_wide(int64_t x, int lane) {
    const uint64_t bits = static_cast<uint64_t>(x);
    const uint64_t lo = shuffle(static_cast<uint32_t>(bits), lane);
    const uint64_t hi = shuffle(static_cast<uint32_t>(bits >> 32), lane);
    return static_cast<int64_t>(hi << 32 | lo);
  }
  // Which lane's row this lane helps with.
  TSRI_DEVICE_MEMBER int helped(int k) { return k * kRows + thread_index() % kWave / kRowLanes; }

  template <class E>
  TSRI_DEVICE_MEMBER void sum_chunks(const Args &args, bool used, int64_t o, int64_t g, float (&sum)[kRowLanes]) {
    TSRI_UNROLL
    for (int k0 = 0; k0 < kRowLanes; k0 += kTogether) {
      const uint16_t *x[kTogether], *y[kTogether];
      bool some[kTogether];
      TSRI_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        x[k] = static_cast<const uint16_t *>(args.call.a.o) + shuffle_wide(o, helped(k0 + k));
        y[k] = static_cast<const uint16_t *>(args.call.a.dout) + shuffle_wide(g, helped(k0 + k));
        some[k] = shuffle(static_cast<uint32_t>(used), helped(k0 + k)) != 0;
      }
      TSRI_NO_UNROLL
      for (int c = thread_index() % kRowLanes * 8; c < args.call.p.dim_v; c += kRowLanes * 8) {
        Chunk u[kTogether] = {}, v[kTogether] = {};
        TSRI_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          if (some[k]) u[k] = *reinterpret_cast<const Chunk *>(x[k] + c);
          if (some[k]) v[k] = *reinterpret_cast<const Chunk *>(y[k] + c);
        }
        TSRI_UNROLL
        for (int k = 0; k < kTogether; ++k)
          TSRI_UNROLL
          for (int w = 0; w < 4; ++w) {
            sum[k0 + k] = multiply_add(E::low(u[k].w[w]), E::low(v[k].w[w]), sum[k0 + k]);
            sum[k0 + k] = multiply_add(E::high(u[k].w[w]), E::high(v[k].w[w]), sum[k0 + k]);
          }
      }
    }
  }
  TSRI_DEVICE_MEMBER void sum_elements(const Args &args, bool used, int64_t o, int64_t g, float (&sum)[kRowLanes]) {
    const tsr_problem &p = args.call.p;
    int64_t x[kRowLanes], y[kRowLanes];
    bool some[kRowLanes];
    TSRI_UNROLL
    for (int k = 0; k < kRowLanes; ++k) {
      x[k] = shuffle_wide(o, helped(k));
      y[k] = shuffle_wide(g, helped(k));
      some[k] = shuffle(static_cast<uint32_t>(used), helped(k)) != 0;
    }
    TSRI_NO_UNROLL
    for (int c = thread_index() % kRowLanes; c < p.dim_v; c += kRowLanes)
      TSRI_UNROLL
      for (int k = 0; k < kRowLanes; ++k)
        if (some[k])
          sum[k] = multiply_add(load_element(p.o.dtype, args.call.a.o, x[k] + c * p.o.stride[3]),
                                load_element(p.dout.dtype, args.call.a.dout, y[k] + c * p.dout.stride[3]), sum[k]);
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
    each_row(rows, 0, [&args, &p, rows](int64_t n, int lane) {
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
  // Of 32 lanes: eight queries x 32 columns, rows apart so that neither way of going through has bank conflicts.
  static constexpr uint32_t kLine = 36, kPart = 8 * kLine * 4;
  static constexpr uint32_t kSharedBytes = kThreads / 32 * kPart;

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    wait_for_earlier();
    const tsr_problem &p = args.call.p;
    if (args.dq_tile_q) finish_tiles(args);
    if (args.dq_tile_q && !args.call.a.used_q && !args.call.a.left_pad_q) return;
    const int64_t rows = query_rows(p, args.call.a);
    each_row(rows, 0, [&args, &p, rows](int64_t n, int lane) {
      if (n >= rows) return;
      const QueryRow r = query_row(p, args.call.a, n);
      if (r.b < 0) return;
      const bool used = args.stats[n].lo <= args.stats[n].hi; // to others nobody added
      if (args.dq_tile_q) {
        const float none[8] = {};
        if (!used)
          for (int c = lane * 8; c < p.dim_qk; c += kRowLanes * 8) store_dq(args, r.b, r.h, r.row, c, none);
        return;
      }
      for (int chunk = 0; chunk < args.dq_chunks; ++chunk)
        finish_row(args, r, args.dq_sum + (chunk * rows + n) * args.dq_columns, lane, used ? p.scale : 0.0f,
                   chunk * args.dq_columns);
    });
  }

  // Tiles in the order of accumulators, see sum_index(): 32 lanes take eight queries at a time, and of them 32
  // columns, which each lane has four of eight of one query after a detour through shared memory.
  TSRI_DEVICE_MEMBER void finish_tiles(const BackwardArgs &args) {
    const int thread = thread_index(), lane = thread % 32;
    const uint32_t part = static_cast<uint32_t>(thread / 32) * kPart;
    const int64_t step = static_cast<int64_t>(block_count()) * (kThreads / 32);
    const int eights = args.dq_tile_q / 8;
    const int64_t units = args.dq_floats / (8 * args.dq_columns);
    const int64_t first = static_cast<int64_t>(block_index()) * (kThreads / 32) + thread / 32;
    for (int64_t unit = first; unit < units; unit += step) {
      int64_t eight;
      const int64_t tile = divide(unit, eights, eight);
      const SumTile owner = sum_tile(args.call.p, args.call.a, args.dq_tile_q, tile);
      const int q = static_cast<int>(eight) * 8;
      if (owner.b < 0 || owner.i0 + q >= owner.q.len) continue;
      const float *from = args.dq_sum + tile * args.dq_tile_q * args.dq_columns + lane * 4;
      const QueryRow row = {owner.b, owner.h, owner.q.begin + owner.i0 + q + lane / 4};
      const bool used = owner.i0 + q + lane / 4 < owner.q.len;
      for (int c = 0; c < args.dq_columns; c += 32) {
        Chunk x[2];
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half)
          x[half] = *reinterpret_cast<const Chunk *>(
              from + sum_index(q, c + 16 * half, args.dq_tile_q, args.dq_part_q));
        sync_wave();
        TSRI_UNROLL
        for (int i = 0; i < 8; ++i) { // query 2 (lane % 4) + i % 2, column lane / 4, + 8, of each half
          const int column = i / 4 * 16 + i / 2 % 2 * 8 + lane / 4, line = 2 * (lane % 4) + i % 2;
          shared_at<uint32_t>(part + (static_cast<uint32_t>(line) * kLine + static_cast<uint32_t>(column)) * 4) =
              x[i / 4].w[i % 4];
        }
        sync_wave();
        const int column = c + lane % 4 * 8;
        const uint32_t at = part + (static_cast<uint32_t>(lane / 4) * kLine + static_cast<uint32_t>(lane) % 4 * 8) * 4;
        const Chunk lo = shared_at<Chunk>(at), hi = shared_at<Chunk>(at + 16);
        float y[8];
        TSRI_UNROLL
        for (int i = 0; i < 4; ++i) {
          y[i] = args.call.p.scale * bits_float(lo.w[i]);
          y[i + 4] = args.call.p.scale * bits_float(hi.w[i]);
        }
        if (used && column < args.call.p.dim_qk) store_dq(args, row.b, row.h, row.row, column, y);
      }
    }
  }

  // Columns of one chunk. sum is 0 where factor is.
  TSRI_DEVICE_MEMBER void finish_row(const BackwardArgs &args, const QueryRow &r, const float *sum, int lane,
                                     float factor, int column) {
    const int columns = smaller(static_cast<int>(args.call.p.dim_qk) - column, args.dq_columns);
    for (int c = lane * 8; c < columns; c += kRowLanes * 8) {
      float y[8];
      TSRI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const Chunk x = *reinterpret_cast<const Chunk *>(sum + c + 4 * i);
        TSRI_UNROLL
        for (int w = 0; w < 4; ++w) y[4 * i + w] = factor * bits_float(x.w[w]);
      }
      store_dq(args, r.b, r.h, r.row, column + c, y);
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
    const int64_t batches = args.call.a.cu_q ? p.batch > 0 : p.batch; // of no sequence there is no row
    double sum = 0;
    for (int64_t n = thread_index(); n < batches * each; n += kThreads) {
      const int64_t row = (n / each * p.heads_q + h) * each + n % each;
      const RowStat stat = args.stats[row];
      if (stat.lo > stat.hi) continue;
      const float weight = args.weight ? share(stat.lse, args.weight[row], sink)
                                       : exp2_of(in_stats_unit(sink, args.lse_unit) - stat.lse);
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
