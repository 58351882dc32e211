// SPDX-License-Identifier: Apache-2.0
//
// Score steps of common/score.h on a warpgroup's accumulators, for the loop of forward.hpp: scale, softcap, bias,
// ALiBi, and dropout of probabilities. A step is a loop over all scores of a lane, so that what a problem does not
// have costs a branch a tile. The rules are those of common/gpu/score.hpp; there a lane takes one score at a time
// through all steps, with tanh and divisions of the compiler's library. What belongs to a row is found again for
// every tile: no register is left to keep it.
#ifndef TESSERA_BACKENDS_CUDA_SM90_SCORES_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_SCORES_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/store.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/bias.h"
#include "common/dropout.h"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/score.hpp"

namespace tessera {
namespace gpu {

// tanh without branches and without a division: as tanh_by_exp2 of common/gpu/tanh.hpp, within 4 ulp.
TSRI_DEVICE float tanh_fast(float x) {
  constexpr uint32_t kSign = 0x80000000u;
  const float a = bits_float(float_bits(x) & ~kSign), y = x * x;
  float p = multiply_add(-0.00633781124f, y, 0.021153722f);
  p = multiply_add(p, y, -0.0538821109f);
  p = multiply_add(p, y, 0.133329645f);
  p = multiply_add(p, y, -0.333333313f);
  const float near = multiply_add(x * y, p, x);
  const float far = multiply_add(-2.0f, inverse_of(exp2_of(a * 2.88539008f) + 1.0f), 1.0f);
  return a < 0.55f ? near : bits_float(float_bits(far) | (float_bits(x) & kSign));
}

// softcap * tanh, where an error of 1e-7 of the softcap is one of a score that its own rounding has too.
constexpr float kSmallCap = 64.0f;
TSRI_DEVICE float cap_small(float x, float factor, float cap, float twice) { // factor: 2 log2 e / cap
  return multiply_add(-twice, inverse_of(exp2_of(x * factor) + 1.0f), cap);
}

// U: unit; kCon accumulators of 16 keys are a lane's scores of two rows; kAhead of the rows have their bias asked for
// before scores are there.
template <class U, int kCon, int kAhead>
struct ScoreSteps {
  using Scores = typename U::Acc[kCon];

  // What dropout draws from, to shared memory at `at`; by one thread.
  TSRI_DEVICE_MEMBER void store_key(const Call &call, uint32_t at) {
    const tsr_args &a = call.a;
    if (call.p.dropout > 0)
      shared_at<tsri_dropout_key>(at) = a.rng_state ? tsri_dropout_key_make(a.rng_state[0], a.rng_state[1])
                                                    : tsri_dropout_key_make(a.seed, a.offset);
  }

  // The two rows of a lane: used rows of the sequence. One that is not there stands for one that is: nothing
  // beyond a tensor is read for it, and what comes of it is not used.
  struct Lines {
    int32_t i[2];
  };
  TSRI_DEVICE_MEMBER Lines lines(const WorkItem &item, int wave_row) {
    Lines rows;
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      rows.i[r] = smaller(larger(item.i0 + wave_row + U::free_of(r), 0), item.queries - 1);
    return rows;
  }

  // Steps 1 and 2, where there is no softcap or a small one; and with any.
  TSRI_DEVICE_MEMBER void scale_small(Scores &s, const tsr_problem &p) {
    const float cap = p.softcap, factor = cap > 0 ? p.scale / cap * 2.88539008f : p.scale;
    if (cap > 0) {
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e) s[c].x[e] = cap_small(s[c].x[e], factor, cap, 2 * cap);
    } else {
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e) s[c].x[e] *= factor;
    }
  }
  TSRI_DEVICE_MEMBER void scale(Scores &s, const tsr_problem &p) {
    if (p.softcap <= kSmallCap) {
      scale_small(s, p);
      return;
    }
    const float cap = p.softcap, factor = p.scale / cap;
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) s[c].x[e] = cap * tanh_fast(s[c].x[e] * factor);
  }

  // 16-bit bias of a tile, asked for before its scores are there: a lane has eight neighbouring keys of every 32,
  // which make one access; what are its own keys it gets from its neighbours when they are added.
  struct Ahead {
    uint32_t w[2][kCon / 2][4];
    bool ready;
  };
  // Nothing is there: zeros, or the compiler would keep registers for what there might be.
  TSRI_DEVICE_MEMBER void forget(Ahead &ahead) {
    ahead.ready = false;
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      TSRI_UNROLL
      for (int n = 0; n < kCon / 2; ++n)
        TSRI_UNROLL
        for (int m = 0; m < 4; ++m) ahead.w[r][n][m] = 0;
  }
  TSRI_DEVICE_MEMBER void fetch(Ahead &ahead, const Call &call, const WorkItem &item, int32_t key0, int wave_row,
                                bool whole) {
    static_assert(kCon % 2 == 0, "whole groups of 32 keys");
    const tsr_layout &layout = call.p.bias;
    if (!whole || layout.dtype == TSR_DTYPE_NONE || layout.dtype == TSR_DTYPE_F32 || layout.stride[3] != 1 ||
        call.p.softcap > kSmallCap)
      return;
    const Lines rows = lines(item, wave_row);
    const uintptr_t at[2] = {reinterpret_cast<uintptr_t>(eight(call, item, rows, key0, 0)),
                             reinterpret_cast<uintptr_t>(eight(call, item, rows, key0, 1))};
    if (any_lane((at[0] | at[1]) % 16 != 0)) return;
    ahead.ready = true;
    fetch_rows<0, kAhead>(ahead, call, item, rows, key0);
  }
  // Where the lane's first eight keys of row r begin.
  TSRI_DEVICE_MEMBER const unsigned char *eight(const Call &call, const WorkItem &item, const Lines &rows,
                                                int32_t key0, int r) {
    return static_cast<const unsigned char *>(call.a.bias) +
           tsri_pair_offset(call.p.bias.stride, item.b, item.h, rows.i[r], key0 + 4 * U::con_lane()) * 2;
  }
  template <int kFirst, int kEnd>
  TSRI_DEVICE_MEMBER void fetch_rows(Ahead &ahead, const Call &call, const WorkItem &item, const Lines &rows,
                                     int32_t key0) {
    TSRI_UNROLL
    for (int r = kFirst; r < kEnd; ++r) {
      const unsigned char *row = eight(call, item, rows, key0, r);
      TSRI_UNROLL
      for (int n = 0; n < kCon / 2; ++n) fetch_chunk(ahead.w[r][n], row + 64 * n);
    }
  }
  template <class E>
  TSRI_DEVICE_MEMBER void add_ahead(Scores &s, Ahead &ahead) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      TSRI_UNROLL
      for (int n = 0; n < kCon / 2; ++n) {
        transpose_quad(ahead.w[r][n]);
        TSRI_UNROLL
        for (int m = 0; m < 4; ++m) { // eight keys
          float(&x)[8] = s[2 * n + m / 2].x;
          x[m % 2 * 4 + 2 * r] += E::low(ahead.w[r][n][m]);
          x[m % 2 * 4 + 2 * r + 1] += E::high(ahead.w[r][n][m]);
        }
      }
  }

  // Pairs of a row of bias from where the lane's first key is.
  template <class Load>
  TSRI_DEVICE_MEMBER void add_pairs(Scores &s, int slot, const unsigned char *row, int size, Load load) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Pair two = load(row + (16 * c + 8 * half) * size);
        s[c].x[4 * half + 2 * slot] += two.lo;
        s[c].x[4 * half + 2 * slot + 1] += two.hi;
      }
  }

  // whole: every row that is there sees all keys of the tile; otherwise only what a row sees is read.
  TSRI_DEVICE_MEMBER void add_bias(Scores &s, const Call &call, const WorkItem &item, const Lines &rows,
                                   int32_t key0, int wave_row, uint32_t bands, bool whole) {
    const tsr_layout &layout = call.p.bias;
    const int size = layout.dtype == TSR_DTYPE_F32 ? 4 : 2;
    const int32_t j0 = key0 + U::con_lane();
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const unsigned char *row = static_cast<const unsigned char *>(call.a.bias) +
                                 tsri_pair_offset(layout.stride, item.b, item.h, rows.i[r], j0) * size;
      const bool single = !whole || layout.stride[3] != 1 || reinterpret_cast<uintptr_t>(row) % (2 * size) != 0;
      if (any_lane(single)) {
        const Limits limits = row_limits(bands, wave_row + U::free_of(r), item.prefix, j0);
        TSRI_UNROLL
        for (int c = 0; c < kCon; ++c) {
          sync_wave(); // so many loads at a time: others would take registers
          TSRI_UNROLL
          for (int e = 0; e < 8; ++e) {
            const int32_t o = 16 * c + U::con_element(e);
            if (U::slot(e) == r && Limits::allows(limits, o))
              s[c].x[e] += load_element(layout.dtype, row, o * layout.stride[3]);
          }
        }
      } else if (layout.dtype == TSR_DTYPE_F32) {
        add_pairs(s, r, row, 4, [](const unsigned char *at) { return load_global<Pair>(at); });
      } else if (layout.dtype == TSR_DTYPE_BF16) {
        add_pairs(s, r, row, 2, [](const unsigned char *at) { return pair_of<BFloat16>(load_global<uint32_t>(at)); });
      } else {
        add_pairs(s, r, row, 2, [](const unsigned char *at) { return pair_of<Half>(load_global<uint32_t>(at)); });
      }
    }
  }
  template <class E>
  TSRI_DEVICE_MEMBER Pair pair_of(uint32_t two) {
    return Pair{E::low(two), E::high(two)};
  }

  // Distances are float32 from the start: exact up to 2^24 keys, within two units of the last place beyond.
  TSRI_DEVICE_MEMBER void add_alibi(Scores &s, const Call &call, const WorkItem &item, const Lines &rows,
                                    int32_t key0) {
    const int64_t head = item.h + (call.p.alibi == TSR_ALIBI_PER_BATCH_HEAD ? item.b * call.p.heads_q : 0);
    const float slope = -call.a.alibi[head];
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float from = static_cast<float>(static_cast<int64_t>(rows.i[r]) + item.keys - item.queries - key0 -
                                            U::con_lane());
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e)
          if (U::slot(e) == r) {
            const float distance = from - static_cast<float>(16 * c + U::con_element(e));
            s[c].x[e] = multiply_add(slope, larger_of(distance, -distance), s[c].x[e]);
          }
    }
  }

  // Steps 1 to 3; the interval rule is the caller's.
  TSRI_DEVICE_MEMBER void modify(Scores &s, Ahead &ahead, const Call &call, const WorkItem &item, int32_t key0,
                                 int wave_row, uint32_t bands, bool whole) {
    const Lines rows = lines(item, wave_row);
    if (ahead.ready) {
      fetch_rows<kAhead, 2>(ahead, call, item, rows, key0);
      scale_small(s, call.p);
      if (call.p.bias.dtype == TSR_DTYPE_BF16)
        add_ahead<BFloat16>(s, ahead);
      else
        add_ahead<Half>(s, ahead);
    } else {
      scale(s, call.p);
      if (call.p.bias.dtype != TSR_DTYPE_NONE) add_bias(s, call, item, rows, key0, wave_row, bands, whole);
    }
    if (call.p.alibi != TSR_ALIBI_NONE) add_alibi(s, call, item, rows, key0);
  }

  // Dropout of probabilities. Two neighbouring lanes have the halves of a group of four keys that the generator
  // makes at once: in each block of 16 keys either makes one group, and gives the other its half as two bits.
  TSRI_DEVICE_MEMBER void drop(Scores &s, const Call &call, tsri_dropout_key key, const WorkItem &item, int32_t key0,
                               int wave_row) {
    static_assert(kCon <= 8, "two bits for two rows of every accumulator");
    if (call.drop_threshold == 0) return;
    const uint32_t most = static_cast<uint32_t>(call.drop_threshold - 1); // of a word whose key is dropped
    const Lines rows = lines(item, wave_row);
    const int64_t head = item.b * call.p.heads_q + item.h;
    const int pair = thread_index() % 4, upper = pair & 1;
    uint32_t own = 0, given = 0;
    TSRI_NO_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int r = 0; r < 2; ++r) {
        const tsri_philox words =
            tsri_dropout_words(key, head, rows.i[r], key0 / 4 + 4 * c + 2 * upper + pair / 2);
        const uint32_t first = (words.w[0] > most) | (words.w[1] > most) << 1;
        const uint32_t second = (words.w[2] > most) | (words.w[3] > most) << 1;
        own |= (upper ? second : first) << (4 * c + 2 * r);
        given |= (upper ? first : second) << (4 * c + 2 * r);
      }
    const uint32_t got = shuffle_xor(given, 1);
    const uint32_t keep[2] = {upper ? got : own, upper ? own : got};
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e)
        if (!(keep[e / 4] >> (4 * c + 2 * U::slot(e) + e % 2) & 1)) s[c].x[e] = 0.0f;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_SCORES_HPP_
