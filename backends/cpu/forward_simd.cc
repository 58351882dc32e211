// SPDX-License-Identifier: Apache-2.0
//
// Forward of one task: a tile of rows of one sequence and KV head against all keys they may see.
// Compiled once per Highway target; forward.c runs the tasks. Per step of tiles.keys keys each block
// of 3 vectors of rows does S^T = K Q^T, the score steps it needs, one step of the recurrence, and
// O^T += V^T P^T.
//
// A row's bits depend on its own inputs and on where the key steps are cut (multiples of tiles.keys
// from key 0), and on nothing else: keys that are skipped, trimmed or masked add exact zeros, lanes
// are independent, and every sum runs over its index in order.
#include "kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/forward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "block-inl.h"
#include "common/score.h"
#include "convert-inl.h"
#include "forward_task-inl.h"
#include "output_rows-inl.h"
#include "row_policy-inl.h"
#include "score-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

class ForwardTask : RowTask<kMaxVectors, false> {
 public:
  ForwardTask(const tsri_cpu_forward &job, int64_t task, int32_t worker)
      : RowTask(job, task, worker) {}

  void run() {
    start_rows();
    const tsri_mask_row seen = seen_keys();
    const int64_t end = HWY_MAX(seen.prefix, seen.hi), step = job_.tiles.keys;
    one_step_ = end <= step;
    begun_ = 0;
    in_rows_ = kOutputRows > 0 && in_place_ && dim_v_ % lanes_ == 0 &&
               (shares_sets(p_.v) ? kOutputRowsApart : one_step_);
    load_rows();
    for (int64_t j = 0; j < end; j += step) {
      // Steps stay cut at multiples of `step`; those between the prefix and the band are jumped
      // over.
      if (j >= seen.prefix && j + step <= seen.lo) j = seen.lo / step * step;
      step_keys(seen, j, HWY_MIN(j + step, rule_.sk));
    }
    if (in_rows_)
      finish_rows();
    else
      store_rows(dim_v_);
  }

 private:
  // Q^T times the sign of the scale, and O^T before the first key.
  void load_rows() {
    if (!in_rows_) memset(s_.o_t, 0, padded_rows() * dim_v_ * sizeof(float));
    for (size_t first = 0; first < rows_; first += block_) {
      const size_t width = block_lanes(first);
      for (size_t r = 0; r < width; r += kRows) {
        const float *rows[kRows];
        for (size_t t = 0; t < kRows; ++t) rows[t] = query_row(first + r + t, t);
        rows_to_lanes(rows, dim_, s_.q_t + first * dim_ + r, width);
      }
      if (p_.scale < 0) scale_tile(s_.q_t + first * dim_, dim_ * width, -1.0f);
    }
  }

  // A row of Q as float32: where it is, or converted into row t of the room for K.
  const float *query_row(size_t r, size_t t) {
    float *room = s_.k + t * static_cast<size_t>(tsri_cpu_packed_ld(p_.dim_qk));
    if (r >= rows_) {
      memset(room, 0, dim_ * sizeof(float));
      return room;
    }
    const int64_t at = offset_of(p_.q, r);
    if (p_.q.dtype == TSR_DTYPE_F32 && p_.q.stride[3] == 1)
      return static_cast<const float *>(args_.q) + at;
    load_row_any(p_.q.dtype, args_.q, at, p_.q.stride[3], dim_, room);
    return room;
  }

  Keys operand(const tsr_layout &layout, const void *base, size_t dim, int64_t key, size_t n,
               float *buffer, bool any_distance) const {
    return load_keys(job_.pages, layout, base, dim, b_, g_, seq_.k.begin + key, n, buffer,
                     s_.lines, any_distance);
  }

  // Folds keys [begin, end) into every block that sees some of them.
  void step_keys(const tsri_mask_row &seen, int64_t begin, int64_t end) {
    int64_t key;
    size_t keys;
    trim_keys(seen, begin, end, 8, &key, &keys);
    if (keys == 0) return;
    const Keys k = operand(p_.k, args_.k, dim_, key, keys, s_.k, in_rows_);
    const Keys v = operand(p_.v, args_.v, dim_v_, key, keys, s_.v, in_rows_);
    Block block;
    for (block.first = 0; block.first < rows_; block.first += block.width) {
      block.width = block_lanes(block.first);
      block.live = HWY_MIN(block.width, rows_ - block.first);
      trim_keys(seen_keys(block), begin, end, 8, &block.key, &block.keys);
      if (block.keys == 0) continue;
      const tsri_tile_class kind = class_of(block);
      if (kind == TSRI_TILE_SKIP) continue;
      const Keys kb = {k.data + (block.key - key) * k.ld, k.ld};
      const Keys vb = {v.data + (block.key - key) * v.ld, v.ld};
      const size_t vectors = block.width / lanes_;
      block.zones = kind == TSRI_TILE_FULL
                        ? zones_whole(block.keys, vectors)
                        : zones_of_band(s_.from + block.first, s_.to + block.first, block.width,
                                        block.live, rule_.prefix, block.key, block.keys);
      if (vectors == 3)
        fold<3>(block, kb, vb, kind);
      else if (vectors == 2)
        fold<2>(block, kb, vb, kind);
      else
        fold<1>(block, kb, vb, kind);
    }
  }

  // One block, one step.
  template <int NV>
  HWY_NOINLINE void fold(const Block &block, const Keys &k, const Keys &v, tsri_tile_class kind) {
    const DF d;
    const size_t n = block.keys, lanes = lanes_;
    const Zones &zones = block.zones;
    const float *q = s_.q_t + block.first * dim_;
    float *m = s_.m + block.first, *l = s_.l + block.first;
    const VF old0 = hn::Load(d, m);
    const VF old1 = NV > 1 ? hn::Load(d, m + lanes) : old0;
    const VF old2 = NV > 2 ? hn::Load(d, m + 2 * lanes) : old0;
    if (zones.whole)
      score_tile<NV>(k.data, k.ld, n, q, dim_, s_.s_t);
    else
      score_zones<NV>(k.data, k.ld, zones, q, dim_, s_.s_t);
    if (steps_.needed(kind) && !finish_scores(block, kind, s_.s_t)) return;
    if (zones.whole)
      max_tile<NV>(s_.s_t, n, m);
    else
      max_zones(s_.s_t, zones, block.width, m);
    const VF r0 = Recurrence::reference(hn::Load(d, m));
    const VF r1 = NV > 1 ? Recurrence::reference(hn::Load(d, m + lanes)) : r0;
    const VF r2 = NV > 2 ? Recurrence::reference(hn::Load(d, m + 2 * lanes)) : r0;
    const VF unit = hn::Set(d, unit_);
    VF t0 = r0, t1 = r0, t2 = r0;
    if (zones.whole) {
      softmax_tile<NV>(s_.s_t, n, unit, r0, r1, r2, t0, t1, t2);
    } else {
      t0 = softmax_vector(s_.s_t, block.width, zones.from[0], zones.to[0], unit, r0);
      if (NV > 1)
        t1 = softmax_vector(s_.s_t + lanes, block.width, zones.from[1], zones.to[1], unit, r1);
      if (NV > 2)
        t2 = softmax_vector(s_.s_t + 2 * lanes, block.width, zones.from[2], zones.to[2], unit, r2);
    }
    const VF a0 = Recurrence::correction_in(unit, old0, r0);
    const VF a1 = Recurrence::correction_in(unit, old1, r1);
    const VF a2 = Recurrence::correction_in(unit, old2, r2);
    hn::Store(Recurrence::new_sum(hn::Load(d, l), a0, t0), d, l);
    if (NV > 1) hn::Store(Recurrence::new_sum(hn::Load(d, l + lanes), a1, t1), d, l + lanes);
    if (NV > 2)
      hn::Store(Recurrence::new_sum(hn::Load(d, l + 2 * lanes), a2, t2), d, l + 2 * lanes);
    if (p_.dropout > 0) steps_.drop(score_tile_of(block, s_.s_t), job_.drop_key, s_.s_t);
    if (in_rows_) {
      if constexpr (kOutputRows > 0) output_in_rows<NV>(block, v, a0, a1, a2);
      return;
    }
    float *o = s_.o_t + block.first * dim_v_;
    if (zones.whole)
      output_tile<NV>(v.data, v.ld, n, s_.s_t, dim_v_, o, a0, a1, a2);
    else
      output_zones<NV>(v.data, v.ld, zones, s_.s_t, dim_v_, o, a0, a1, a2);
  }

  // A row of O, or room for a lane that is none.
  float *row_of_output(size_t row) {
    return row < rows_ ? static_cast<float *>(args_.o) + offset_of(p_.o, row) : s_.o_t;
  }

  // Factors of one vector of rows, after their last key: finish_vector as numbers.
  void factors(size_t row, float *factor, bool *empty) {
    const DF d;
    hn::Store(finish_vector(row), d, factor);
    for (size_t t = 0; t < lanes_; ++t)
      empty[t] = factor[t] == 0 && s_.l[row + t] == -__builtin_inff();
  }

  // The step of a block, from P^T in s_.s_t to rows of O.
  template <int NV>
  HWY_NOINLINE void output_in_rows(const Block &block, const Keys &v, VF a0, VF a1, VF a2) {
    const DF d;
    HWY_ALIGN float alpha[kMaxVectors * HWY_LANES(float)], factor[kMaxVectors * HWY_LANES(float)];
    bool empty[kMaxVectors * HWY_LANES(float)];
    const uint64_t bit = uint64_t{1} << (block.first / lanes_);
    const bool first = (begun_ & bit) == 0;
    begun_ |= bit;
    hn::Store(a0, d, alpha);
    if (NV > 1) hn::Store(a1, d, alpha + lanes_);
    if (NV > 2) hn::Store(a2, d, alpha + 2 * lanes_);
    if (one_step_)
      for (size_t x = 0; x < block.width; x += lanes_)
        factors(block.first + x, factor + x, empty + x);
    constexpr size_t R = kOutputRows > 0 ? kOutputRows : 1;
    OutputRows rows[kMaxVectors * HWY_LANES(float) / R];
    size_t groups = 0;
    for (size_t r = 0; r < block.live; r += R, ++groups) {
      for (size_t t = 0; t < R; ++t) rows[groups].o[t] = row_of_output(block.first + r + t);
      rows[groups].alpha = first ? nullptr : alpha + r;
      rows[groups].factor = one_step_ ? factor + r : nullptr;
      rows[groups].empty = empty + r;
    }
    for (size_t x = 0, left = dim_v_ / lanes_; left > 0;) {
      // One vector alone has a load per product: 4 = 2 + 2.
      const size_t take = left == 1 ? 1 : left == 2 || left == 4 ? 2 : 3;
      for (size_t g = 0; g < groups; ++g) {
        const size_t z = g * R / lanes_, from = block.zones.from[z];
        const size_t n = block.zones.to[z] - from;
        const float *vz = v.data + static_cast<int64_t>(from) * v.ld;
        const float *p = s_.s_t + from * block.width + g * R;
        if (take == 3)
          output_rows_block<3, R>(vz, v.ld, n, p, block.width, x, rows[g]);
        else if (take == 1)
          output_rows_block<1, R>(vz, v.ld, n, p, block.width, x, rows[g]);
        else
          output_rows_block<2, R>(vz, v.ld, n, p, block.width, x, rows[g]);
      }
      left -= take;
      x += take * lanes_;
    }
  }

  // What store_rows does where rows of O have been summed in place.
  void finish_rows() {
    const DF d;
    HWY_ALIGN float factor[HWY_LANES(float)];
    bool empty[HWY_LANES(float)];
    for (size_t first = 0; first < rows_; first += block_) {
      const size_t width = block_lanes(first);
      const bool begun = begun_ >> (first / lanes_) & 1;
      if (begun && one_step_) continue;
      for (size_t x = 0; x < width; x += lanes_) {
        factors(first + x, factor, empty);
        for (size_t t = 0; t < lanes_ && first + x + t < rows_; ++t) {
          float *o = row_of_output(first + x + t);
          const VF f = hn::Set(d, factor[t]);
          if (!begun || empty[t])
            memset(o, 0, dim_v_ * sizeof(float));
          else
            for (size_t y = 0; y < dim_v_; y += lanes_)
              hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, o + y), f), hn::Zero(d)), d, o + y);
        }
      }
    }
    if (args_.lse) store_state(p_.lse.stride, args_.lse, s_.l);
    if (args_.max_logit) store_state(p_.max_logit.stride, args_.max_logit, s_.m);
  }

  bool in_rows_;    // O is summed in the caller's rows, not in O^T
  bool one_step_;   // no row of the task sees keys of a second step
  uint64_t begun_;  // bit first / lanes of a block: its rows hold a sum
};

void forward(const tsri_cpu_forward *job, int64_t task, int32_t worker) {
  ForwardTask(*job, task, worker).run();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "targets.h"
namespace tessera {
HWY_EXPORT(forward);
}

void tsri_cpu_forward_install(int64_t target, tsri_cpu_kernels *kernels) {
  kernels->forward = TSRI_CPU_FUNCTION(tessera, forward, target);
}
#endif
