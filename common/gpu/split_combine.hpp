// SPDX-License-Identifier: Apache-2.0
//
// The end of a split block: the states of its waves, which saw different keys, become one; the result is
// the output of a sequence that only this part sees, or a partial result. The block that ends last
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

// Shared by the threads of a block while it ends. wave_l: measured from the maximum of all waves.
template <int kRows, int kWaves, int kThreads>
struct SplitTotals {
  float wave_m[kWaves][kRows], wave_l[kWaves][kRows];
  float lse[kRows]; // largest of all parts
  float largest[kThreads];
  uint32_t last;
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
  static constexpr int kBatch = 16; // parts whose loads are under way together
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

  // Joins the waves' states: sums of each wave measured from the common maximum. natural, unit: what makes a
  // score natural, and base two. Barriers inside; the memory at `sums` is free once all threads are here.
  template <class State>
  TSRI_DEVICE_MEMBER void join_waves(const Place &at, const State &state, float unit) {
    Totals &t = at.totals;
    const int wave = wave_index(U::kWave);
    float l[U::kRows];
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      l[slot] = U::sum_con(state.l[slot]);
      if (U::leads_row()) t.wave_m[wave][U::free_of(slot)] = state.m[slot];
    }
    sync_block();
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int row = U::free_of(slot);
      if (row < at.work.first || row >= at.work.last) continue; // nobody reads them
      const float factor = wave_factor(state.m[slot], joined_max(t, row), unit);
      if (U::leads_row()) t.wave_l[wave][row] = Softmax::rescale(l[slot], factor);
      TSRI_UNROLL
      for (int o = 0; o < kDv / U::kCon; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2)
          if (U::slot(e) == slot)
            shared_at<Pair>(sum_at(at.sums, wave, row, o * U::kCon + U::con_lane() + U::con_element(e))) =
                Pair{Softmax::rescale(state.out[0][o].x[e], factor),
                     Softmax::rescale(state.out[0][o].x[e + 1], factor)};
    }
    sync_block();
  }

  TSRI_DEVICE_MEMBER float joined_sum(const Totals &t, int row) {
    float l = Softmax::start_sum();
    TSRI_UNROLL
    for (int w = 0; w < kWaves; ++w) l += t.wave_l[w][row];
    return l;
  }

  // LSE and maximum of a row of the block. Rows in padding were computed beside the others.
  struct RowNumbers {
    float lse, max;
  };
  TSRI_DEVICE_MEMBER RowNumbers row_numbers(const Place &at, int row, float natural) {
    if (row < at.work.first || row >= at.work.last) return RowNumbers{-infinity(), -infinity()};
    const float m = joined_max(at.totals, row), l = joined_sum(at.totals, row);
    // m has dropped a NaN, l has not: it is NaN after a NaN or a +inf score.
    return RowNumbers{Softmax::log_sum_exp_in(natural, m, l), l != l && m != infinity() ? l : m * natural};
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
    const float inverse = Softmax::inverse_sum(joined_sum(at.totals, row));
    TSRI_UNROLL
    for (int w = 0; w < kWaves; ++w) {
      const Quad x = shared_quad(sum_at(at.sums, w, row, column));
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) q.x[e] += x.x[e];
    }
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) q.x[e] = multiply_add(q.x[e], inverse, 0.0f);
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
  TSRI_DEVICE_MEMBER void store_whole(const Place &at, float natural) {
    const int columns = static_cast<int>(at.args.call.p.dim_v), first = at.work.chunk * kDv;
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < at.work.rows * kQuads; i += kThreads) {
      const int row = i / kQuads, column = i % kQuads * 4;
      if (first + column >= columns) continue;
      const RowNumbers numbers = row_numbers(at, row, natural);
      finish_quad(at, row, first + column, own_quad(at, row, column), numbers.lse, numbers.max);
    }
  }

  // Index of a row of a part. All chunks of a unit write the same numbers of a row.
  TSRI_DEVICE_MEMBER int64_t part_row(const Place &at, int32_t part, int row) {
    return (at.work.unit * at.args.splits + part) * kRows + row;
  }

  TSRI_DEVICE_MEMBER void store_part(const Place &at, float natural) {
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
    const int row = thread_index() - (kThreads - kRows); // by the last wave, which may have no columns
    if (row >= 0) {
      const RowNumbers numbers = row_numbers(at, row, natural);
      args.part_lse[part_row(at, at.work.part, row)] = numbers.lse;
      if (kAny && args.part_max) args.part_max[part_row(at, at.work.part, row)] = numbers.max;
    }
  }

  // Parts of a unit and chunk that are done, in the low 24 bits under the tag of the launch. Memory holds
  // anything before: each block makes sure of the tag when it begins, while its tiles are on their way, and
  // the last to end leaves 0, so that a recorded launch can run again. Nothing has to be cleared before.
  static constexpr int kCountBits = 24;

  TSRI_DEVICE_MEMBER uint64_t *counter_of(const SplitArgs &args, const SplitWork &work) {
    return args.counters + work.unit * args.chunks + work.chunk;
  }
  // By the thread that ends_last counts with. value: what was read there before. Where it has changed since,
  // another block has begun the count.
  TSRI_DEVICE_MEMBER void begin_count(const SplitArgs &args, const SplitWork &work, uint64_t value) {
    if (value >> kCountBits != args.tag)
      replace_word(counter_of(args, work), value, args.tag << kCountBits);
  }

  // Whether this block is the last of its unit and chunk to have stored its part. Barriers inside.
  TSRI_DEVICE_MEMBER bool ends_last(const Place &at) {
    fence_device();
    sync_block();
    if (thread_index() == 0) {
      const uint64_t before = increment_word(counter_of(at.args, at.work));
      at.totals.last = before + 1 == (at.args.tag << kCountBits) + static_cast<uint32_t>(at.work.live);
    }
    sync_block();
    if (!at.totals.last) return false;
    fence_device();
    if (thread_index() == 0) store_word(counter_of(at.args, at.work), 0); // after the fence, which would wait
    return true;
  }

  // Whether there is room for a weight of every part and row at `sums`, once the block's own part is stored.
  TSRI_DEVICE_MEMBER bool fits(const Place &at) {
    return at.work.live <= static_cast<int32_t>(kSumBytes / (kRows * sizeof(float)));
  }
  TSRI_DEVICE_MEMBER float &weight_at(const Place &at, int32_t n, int row) {
    return shared_at<float>(at.sums + static_cast<uint32_t>((n * kRows + row) * 4));
  }

  // Largest LSE of every row over all parts, and what each part weighs against it; -1: it is empty.
  TSRI_DEVICE_MEMBER void find_weights(const Place &at) {
    constexpr int kLines = kThreads / kRows;
    const int row = thread_index() % kRows, line = thread_index() / kRows;
    const bool keep = fits(at);
    float largest = -infinity();
    TSRI_NO_UNROLL
    for (int32_t n = line; n < at.work.live; n += kLines) {
      const float lse = at.args.part_lse[part_row(at, SplitWork::live_part(at.work, n), row)];
      if (keep) weight_at(at, n, row) = lse;
      largest = Softmax::new_max(largest, lse);
    }
    at.totals.largest[thread_index()] = largest;
    sync_block();
    TSRI_UNROLL
    for (int n = 0; n < kLines; ++n) largest = Softmax::new_max(largest, at.totals.largest[n * kRows + row]);
    if (line == 0) at.totals.lse[row] = largest;
    TSRI_NO_UNROLL
    for (int32_t n = line; keep && n < at.work.live; n += kLines)
      weight_at(at, n, row) = weight_of(weight_at(at, n, row), largest);
    sync_block();
  }

  TSRI_DEVICE_MEMBER float weight_of(float lse, float largest) {
    return lse == -infinity() ? -1.0f : Softmax::weight(lse, largest);
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

  // Four columns, from `column` on, of a row of kBatch parts from the n-th on; the last of them again where
  // there are not so many.
  TSRI_DEVICE_MEMBER void load_batch(const Place &at, Quad (&x)[kBatch], int row, int column, int32_t n) {
    const int columns = static_cast<int>(at.args.call.p.dim_v);
    const float *from = at.args.part_o + part_row(at, 0, row) * columns + column;
    TSRI_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int64_t part = SplitWork::live_part(at.work, smaller(n + k, at.work.live - 1));
      x[k] = load_quad(from + part * (kRows * columns), columns - column, columns % 4 == 0);
    }
  }

  // Merges all parts of a unit, for the columns of this chunk. The first columns are on their way while the
  // weights are found: every round trip to memory is time in which nothing else happens.
  TSRI_DEVICE_MEMBER void combine(const Place &at) {
    const int columns = static_cast<int>(at.args.call.p.dim_v), first = at.work.chunk * kDv;
    const int items = at.work.rows * kQuads;
    const bool keeps = fits(at);
    Quad x[kBatch];
    const auto seen = [&at, first, columns](int i) { // whether there is anything to load for an item
      const int row = i / kQuads;
      return row >= at.work.first && row < at.work.last && first + i % kQuads * 4 < columns;
    };
    if (seen(thread_index()))
      load_batch(at, x, thread_index() / kQuads, first + thread_index() % kQuads * 4, 0);
    find_weights(at);
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < items; i += kThreads) {
      const int row = i / kQuads, column = first + i % kQuads * 4;
      if (column >= columns) continue;
      const bool used = seen(i);
      const float largest = used ? at.totals.lse[row] : -infinity();
      Quad sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
      float weights = Softmax::start_sum();
      TSRI_NO_UNROLL
      for (int32_t n0 = 0; used && n0 < at.work.live; n0 += kBatch) {
        if (i != thread_index() || n0 > 0) load_batch(at, x, row, column, n0);
        TSRI_UNROLL
        for (int k = 0; k < kBatch; ++k) {
          const int32_t n = n0 + k;
          if (n >= at.work.live) break;
          const float weight =
              keeps ? weight_at(at, n, row)
                    : weight_of(at.args.part_lse[part_row(at, SplitWork::live_part(at.work, n), row)], largest);
          if (weight < 0.0f) continue; // an empty part adds nothing, whatever its columns hold
          weights += weight;
          TSRI_UNROLL
          for (int e = 0; e < 4; ++e) sum.x[e] = multiply_add(weight, x[k].x[e], sum.x[e]);
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
