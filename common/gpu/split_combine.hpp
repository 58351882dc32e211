// SPDX-License-Identifier: Apache-2.0
//
// The end of a split block: the states of its waves, which saw different keys, become one; the result is
// the output of a sequence that only this part sees, or a partial result. The block that arrives last
// merges the partial results of a row tile in the order of parts (so it does not matter which block that
// is). A merge of one part is the part itself, to the bit: how far a sequence is padded with keys that
// are not there changes nothing.
#ifndef TESSERA_COMMON_GPU_SPLIT_COMBINE_HPP_
#define TESSERA_COMMON_GPU_SPLIT_COMBINE_HPP_

#include "common/gpu/epilogue.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/split_rows.hpp"

namespace tessera {
namespace gpu {

// Shared by the threads of a block while it ends. l: the sum over all waves.
template <int kRows, int kWaves, int kThreads>
struct SplitTotals {
  float wave_m[kWaves][kRows], wave_l[kWaves][kRows];
  float lse[kRows], max[kRows], inverse[kRows];
  float largest[kThreads];
  uint32_t arrived;
};

// Four columns of a row: what a thread merges and stores at a time.
struct Quad {
  float x[4];
};

template <class U, int kDv, int kWaves, bool kAny>
struct SplitEnd {
  using E = typename U::Element;
  static constexpr int kRows = U::kFree, kThreads = kWaves * U::kWave;
  static constexpr int kPitch = kDv + 8; // floats of a row of sums: neighbouring rows in other banks
  static constexpr uint32_t kSumBytes = kWaves * kRows * kPitch * 4;
  static constexpr int kQuads = kDv / 4;
  static constexpr int kBatch = 8; // parts whose loads are under way together
  using Totals = SplitTotals<kRows, kWaves, kThreads>;

  struct Place { // where results go
    const SplitArgs &args;
    const SplitWork &work;
    const tsri_span &span;
    const SplitRow *row;
    Totals &totals;
    uint32_t sums; // offset of [kWaves][kRows][kPitch] floats
  };

  TSRI_DEVICE_MEMBER uint32_t sum_at(uint32_t sums, int wave, int row, int column) {
    return sums + static_cast<uint32_t>(((wave * kRows + row) * kPitch + column) * 4);
  }

  // Joins the waves' states: sums of each wave measured from the common maximum, and the numbers of the
  // rows. natural, unit: what makes a score natural, and base two. Barriers inside; the memory at
  // `sums` is free once all threads are here.
  template <class State>
  TSRI_DEVICE_MEMBER void join_waves(const Place &at, const State &state, float natural, float unit) {
    Totals &t = at.totals;
    const int wave = wave_index(U::kWave);
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const float l = U::sum_con(state.l[slot]);
      if (U::leads_row()) {
        t.wave_m[wave][U::free_of(slot)] = state.m[slot];
        t.wave_l[wave][U::free_of(slot)] = l;
      }
    }
    sync_block();
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int row = U::free_of(slot);
      const float factor = wave_factor(state.m[slot], joined_max(t, row), unit);
      TSRI_UNROLL
      for (int o = 0; o < kDv / U::kCon; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2)
          if (U::slot(e) == slot)
            shared_at<Pair>(sum_at(at.sums, wave, row, o * U::kCon + U::con_lane() + U::con_element(e))) =
                Pair{Softmax::rescale(state.out[0][o].x[e], factor),
                     Softmax::rescale(state.out[0][o].x[e + 1], factor)};
    }
    if (thread_index() < kRows) {
      const int row = thread_index();
      const float m = joined_max(t, row);
      float l = Softmax::start_sum();
      TSRI_UNROLL
      for (int w = 0; w < kWaves; ++w)
        l = Softmax::new_sum(t.wave_l[w][row], wave_factor(t.wave_m[w][row], m, unit), l);
      // Rows in padding were computed beside the others.
      const bool used = row >= at.work.first && row < at.work.last;
      t.lse[row] = used ? Softmax::log_sum_exp_in(natural, m, l) : -infinity();
      t.inverse[row] = Softmax::inverse_sum(l);
      // m has dropped a NaN, l has not: it is NaN after a NaN or a +inf score.
      t.max[row] = !used ? -infinity() : l != l && m != infinity() ? l : m * natural;
    }
    sync_block();
  }

  TSRI_DEVICE_MEMBER float joined_max(const Totals &t, int row) {
    float m = Softmax::start_max();
    TSRI_UNROLL
    for (int w = 0; w < kWaves; ++w) m = Softmax::new_max(m, t.wave_m[w][row]);
    return m;
  }

  TSRI_DEVICE_MEMBER float wave_factor(float m, float joined, float unit) {
    return kAny ? Softmax::correction_in(unit, m, Softmax::reference(joined))
                : Softmax::prob_ready(unit, m, Softmax::ready_reference(unit, joined));
  }

  // Four columns of this block's result, divided. Never -0, which a merge would not keep.
  TSRI_DEVICE_MEMBER Quad own_quad(const Place &at, int row, int column) {
    Quad q = {{0.0f, 0.0f, 0.0f, 0.0f}};
    TSRI_UNROLL
    for (int w = 0; w < kWaves; ++w) {
      const Quad x = shared_quad(sum_at(at.sums, w, row, column));
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) q.x[e] += x.x[e];
    }
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) q.x[e] = multiply_add(q.x[e], at.totals.inverse[row], 0.0f);
    return q;
  }

  TSRI_DEVICE_MEMBER Quad as_quad(const Chunk &c) {
    return Quad{{bits_float(c.w[0]), bits_float(c.w[1]), bits_float(c.w[2]), bits_float(c.w[3])}};
  }
  TSRI_DEVICE_MEMBER Quad shared_quad(uint32_t offset) { return as_quad(shared_at<Chunk>(offset)); }

  // Four floats of a row of part_o; one by one where rows do not begin at multiples of 16 bytes.
  TSRI_DEVICE_MEMBER Quad load_quad(const float *from, int left, bool vector) {
    Quad q = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (!kAny || vector) {
      q = as_quad(*reinterpret_cast<const Chunk *>(from));
    } else {
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e)
        if (e < left) q.x[e] = from[e];
    }
    return q;
  }
  TSRI_DEVICE_MEMBER void store_quad(float *to, int left, bool vector, const Quad &q) {
    if (!kAny || vector) {
      *reinterpret_cast<Chunk *>(to) =
          Chunk{{float_bits(q.x[0]), float_bits(q.x[1]), float_bits(q.x[2]), float_bits(q.x[3])}};
    } else {
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e)
        if (e < left) to[e] = q.x[e];
    }
  }

  // Stores a finished row's four columns and, with the first ones, its numbers. lse: of all keys, or
  // -inf; the sink joins here. Rows in padding have lse -inf.
  TSRI_DEVICE_MEMBER void finish_quad(const Place &at, int row, int column, Quad q, float lse,
                                      float max_logit) {
    const Call &call = at.args.call;
    const tsr_problem &p = call.p;
    const SplitRow r = at.row[row];
    const int64_t tensor_row = at.span.slot_begin + r.query + at.work.pad;
    const bool empty = lse == -infinity();
    float factor = p.dropout > 0 ? call.keep_scale : 1.0f;
    if (p.sink && row >= at.work.first && row < at.work.last) {
      const float sink = call.a.sink[r.head], top = Softmax::new_max(lse, sink);
      const float weight = Softmax::weight(lse, top);
      const float total = weight + Softmax::weight(sink, top);
      factor *= weight * Softmax::inverse_sum(total);
      lse = Softmax::merged_lse(top, total);
    }
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) q.x[e] = empty ? 0.0f : q.x[e] * factor;
    if (column == 0) store_row_numbers(call, at.work.b, r.head, tensor_row, lse, max_logit);
    const int64_t begin = tsri_row_offset(p.o.stride, at.work.b, r.head, tensor_row);
    store_output(call, begin, column, q);
  }

  TSRI_DEVICE_MEMBER void store_output(const Call &call, int64_t begin, int column, const Quad &q) {
    const tsr_problem &p = call.p;
    const int left = static_cast<int>(p.dim_v) - column;
    if ((call.vector & kVectorO) && left >= 4) {
      if (p.o.dtype == TSR_DTYPE_F32) {
        store_quad(static_cast<float *>(call.a.o) + begin + column, left, true, q);
        return;
      }
      if constexpr (DtypeOf<E>::value != TSR_DTYPE_F32) {
        struct alignas(8) Words {
          uint32_t w[2];
        };
        *reinterpret_cast<Words *>(static_cast<E *>(call.a.o) + begin + column) =
            Words{{E::pack(q.x[0], q.x[1]), E::pack(q.x[2], q.x[3])}};
        return;
      }
    }
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e)
      if (e < left)
        store_element(p.o.dtype, call.a.o, begin + (column + e) * p.o.stride[3], q.x[e]);
  }

  // The result of a block that saw all keys there are to see.
  TSRI_DEVICE_MEMBER void store_whole(const Place &at) {
    const int columns = static_cast<int>(at.args.call.p.dim_v), first = at.work.chunk * kDv;
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < at.work.rows * kQuads; i += kThreads) {
      const int row = i / kQuads, column = i % kQuads * 4;
      if (first + column >= columns) continue;
      finish_quad(at, row, first + column, own_quad(at, row, column), at.totals.lse[row],
                  at.totals.max[row]);
    }
  }

  // Index of a row of a part. All chunks of a unit write the same numbers of a row.
  TSRI_DEVICE_MEMBER int64_t part_row(const Place &at, int32_t part, int row) {
    return (at.work.unit * at.args.splits + part) * kRows + row;
  }

  TSRI_DEVICE_MEMBER void store_part(const Place &at) {
    const SplitArgs &args = at.args;
    const int64_t columns = args.call.p.dim_v;
    const int first = at.work.chunk * kDv;
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < (at.work.last - at.work.first) * kQuads; i += kThreads) {
      const int row = at.work.first + i / kQuads, column = i % kQuads * 4;
      const int left = static_cast<int>(columns) - first - column;
      if (left > 0)
        store_quad(args.part_o + part_row(at, at.work.part, row) * columns + first + column, left,
                   columns % 4 == 0, own_quad(at, row, column));
    }
    const int row = thread_index();
    if (row < kRows) {
      args.part_lse[part_row(at, at.work.part, row)] = at.totals.lse[row];
      if (kAny && args.part_max) args.part_max[part_row(at, at.work.part, row)] = at.totals.max[row];
    }
  }

  // Whether this block is the last of its unit and chunk to have stored its part. Barriers inside.
  TSRI_DEVICE_MEMBER bool arrives_last(const Place &at) {
    fence_device();
    sync_block();
    if (thread_index() == 0) {
      const int64_t counter = at.work.unit * at.args.chunks + at.work.chunk;
      at.totals.arrived = atomic_increment(at.args.counters + counter);
    }
    sync_block();
    if (at.totals.arrived + 1 != static_cast<uint32_t>(at.work.live)) return false;
    fence_device();
    return true;
  }

  // Largest LSE of every row over all parts.
  TSRI_DEVICE_MEMBER void find_largest(const Place &at) {
    constexpr int kLines = kThreads / kRows;
    const int row = thread_index() % kRows, line = thread_index() / kRows;
    float largest = -infinity();
    TSRI_NO_UNROLL
    for (int32_t n = line; n < at.work.live; n += kLines)
      largest = Softmax::new_max(
          largest, at.args.part_lse[part_row(at, SplitWork::live_part(at.work, n), row)]);
    at.totals.largest[thread_index()] = largest;
    sync_block();
    if (line == 0) {
      TSRI_UNROLL
      for (int n = 1; n < kLines; ++n)
        largest = Softmax::new_max(largest, at.totals.largest[n * kRows + row]);
      at.totals.lse[row] = largest;
    }
    sync_block();
  }

  TSRI_DEVICE_MEMBER float merged_max(const Place &at, int row) {
    float max = -infinity();
    const int32_t parts = kAny && at.args.part_max ? at.work.live : 0;
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < parts; ++n) {
      const float x = at.args.part_max[part_row(at, SplitWork::live_part(at.work, n), row)];
      max = x != x || max != max ? x + max : larger_of(max, x);
    }
    return max;
  }

  // Merges all parts of a unit, for the columns of this chunk.
  TSRI_DEVICE_MEMBER void combine(const Place &at) {
    const SplitArgs &args = at.args;
    const int columns = static_cast<int>(args.call.p.dim_v), first = at.work.chunk * kDv;
    const bool vector = columns % 4 == 0;
    find_largest(at);
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < at.work.rows * kQuads; i += kThreads) {
      const int row = i / kQuads, column = first + i % kQuads * 4, left = columns - column;
      if (left <= 0) continue;
      const bool used = row >= at.work.first && row < at.work.last;
      const float largest = used ? at.totals.lse[row] : -infinity();
      Quad sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
      float weights = Softmax::start_sum();
      TSRI_NO_UNROLL
      for (int32_t n0 = 0; used && n0 < at.work.live; n0 += kBatch) {
        Quad x[kBatch];
        float lse[kBatch];
        TSRI_UNROLL
        for (int n = 0; n < kBatch; ++n) {
          const int32_t last = smaller(n0 + n, at.work.live - 1);
          const int64_t from = part_row(at, SplitWork::live_part(at.work, last), row);
          lse[n] = n0 + n < at.work.live ? args.part_lse[from] : -infinity();
          x[n] = load_quad(args.part_o + from * columns + column, left, vector);
        }
        TSRI_UNROLL
        for (int n = 0; n < kBatch; ++n) {
          // An empty part adds nothing, whatever its columns hold.
          if (lse[n] == -infinity()) continue;
          const float weight = Softmax::weight(lse[n], largest);
          weights += weight;
          TSRI_UNROLL
          for (int e = 0; e < 4; ++e) sum.x[e] = multiply_add(weight, x[n].x[e], sum.x[e]);
        }
      }
      const float inverse = Softmax::inverse_sum(weights);
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) sum.x[e] *= inverse;
      finish_quad(at, row, column, sum, Softmax::merged_lse(largest, weights),
                  used && column == 0 ? merged_max(at, row) : -infinity());
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_SPLIT_COMBINE_HPP_
