// SPDX-License-Identifier: Apache-2.0
//
// Backward with products on vectors, compiled once per Highway target; tasks are those of
// backward_task-inl.h. S^T = K Q^T, dP^T = V dO^T and dQ^T += K^T dS^T are forward's micro-kernels in
// query lanes; dV += P^T dO and dK += dS^T Q contract over query lanes (gradient-inl.h).
#include <string.h>

#include "backward_job.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/backward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "backward_block-inl.h"
#include "backward_task-inl.h"
#include "block-inl.h"
#include "convert-inl.h"
#include "gradient-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

class VectorBackward final : public BackwardTask {
 public:
  VectorBackward(const tsri_cpu_backward &job, int32_t worker) : BackwardTask(job, worker) {}

 private:
  void pack_panel(int64_t begin, size_t n) override {
    const int64_t row = seq_.k.begin + begin;
    k_ = load_keys(job_.pages, p_.k, args_.k, dim_, b_, g_, row, n, s_.k, s_.lines);
    if (want_s_) v_ = load_keys(job_.pages, p_.v, args_.v, dim_v_, b_, g_, row, n, s_.v, s_.lines);
  }

  void pack_block() override {
    q_ = load_rows(p_.q, args_.q, dim_, ld_, s_.q, s_.q_t);
    if (p_.scale < 0) scale_tile(s_.q_t, dim_ * width_, -1.0f);
    dout_ = load_rows(p_.dout, args_.dout, dim_v_, ld_v_, s_.dout, s_.do_t);
  }

  // The block's rows transposed, and as rows of whole vectors: where they are, unless they are a
  // multiple of 1 KiB apart, or copied into room.
  Keys load_rows(const tsr_layout &layout, const void *base, size_t dim, size_t ld, float *room,
                 float *columns) {
    Keys rows = {room, static_cast<int64_t>(ld)};
    if (in_place(layout, dim) && job_.problem->group == 1 && layout.stride[2] % 256 != 0)
      rows = {static_cast<const float *>(base) + offset_of(layout, first_), layout.stride[2]};
    for (size_t r = rows.data == room ? 0 : live_; r < width_; ++r) {
      float *row = room + r * ld;
      if (r < live_)
        load_row_any(layout.dtype, base, offset_of(layout, row_at(r)), layout.stride[3], dim, row);
      for (size_t x = r < live_ ? dim : 0; x < ld; ++x) row[x] = 0.0f;
    }
    for (size_t r = 0; r < width_; r += kRows) {
      const float *lines[kRows];
      for (size_t t = 0; t < kRows; ++t)
        lines[t] = r + t < live_ ? rows.data + static_cast<int64_t>(r + t) * rows.ld
                                 : room + (r + t) * ld;
      rows_to_lanes(lines, dim, columns + r, width_);
    }
    return rows;
  }

  void multiply_scores(const ScoreTile &t) override {
    by_width(t, k_, s_.q_t, dim_, s_.s_t);
  }

  void load_gradients(const ScoreTile &t) override {
    by_width(t, v_, s_.do_t, dim_v_, s_.g_t);
  }

  void by_width(const ScoreTile &t, const Keys &keys, const float *columns, size_t dim,
                float *out) const {
    const float *from = keys.data + (t.key - panel_) * keys.ld;
    const size_t vectors = width_ / lanes_;
    if (vectors == 3)
      products<3>(from, keys.ld, *t.zones, columns, dim, out);
    else if (vectors == 2)
      products<2>(from, keys.ld, *t.zones, columns, dim, out);
    else
      products<1>(from, keys.ld, *t.zones, columns, dim, out);
  }

  // [keys][width] = rows of K or V times columns of the block.
  template <int NV>
  static HWY_NOINLINE void products(const float *keys, int64_t ld, const Zones &z,
                                    const float *columns, size_t dim, float *out) {
    if (z.whole)
      score_tile<NV>(keys, ld, z.to[0], columns, dim, out);
    else
      score_zones<NV>(keys, ld, z, columns, dim, out);
  }

  template <int NV>
  static HWY_NOINLINE void add_queries(const float *k, int64_t ld, const Zones &z, const float *ds,
                                       size_t dim, float *dq) {
    const VF one = hn::Set(DF(), 1.0f);
    if (z.whole)
      output_tile<NV>(k, ld, z.to[0], ds, dim, dq, one, one, one);
    else
      output_zones<NV>(k, ld, z, ds, dim, dq, one, one, one);
  }

  // dK or dV of the tile's keys += P^T or dS^T times the block's rows.
  void add_keys(const ScoreTile &t, const float *weights, const Keys &rows, float *sums,
                size_t ld) const {
    for (size_t i = 0; i < t.zones->segments; ++i) {
      const Zones::Segment &part = t.zones->segment[i];
      const size_t from = part.first * lanes_, to = HWY_MIN(live_, from + part.count * lanes_);
      rows_product(weights + part.begin * width_ + from, width_, part.end - part.begin, to - from,
                   rows.data + static_cast<int64_t>(from) * rows.ld,
                   static_cast<size_t>(rows.ld), sums + part.begin * ld, ld);
    }
  }

  // A tile's P and dS into every gradient. dQ takes few keys at a time: its sums and rounding
  // errors, and what it reads again per dim, stay small.
  void add_gradients(const ScoreTile &t) override {
    const size_t at = static_cast<size_t>(t.key - panel_), n = t.keys;
    if (want_v_) add_keys(t, s_.s_t, dout_, s_.dv + at * ld_v_, ld_v_);
    if (want_bias_) add_bias(t);
    if (!want_q_ && !want_k_) return;
    if (p_.softcap > 0) multiply_tile(s_.g_t, s_.slope_t, n * width_);
    const float *k = k_.data + (t.key - panel_) * k_.ld;
    const size_t step = static_cast<size_t>(job_.tiles.keys);
    const size_t vectors = width_ / lanes_;
    for (size_t j = 0; want_q_ && j < n; j += step) {
      const Zones part = zones_cut(*t.zones, j, HWY_MIN(j + step, n), vectors);
      const float *keys = k + static_cast<int64_t>(j) * k_.ld, *ds = s_.g_t + j * width_;
      if (vectors == 3)
        add_queries<3>(keys, k_.ld, part, ds, dim_, share_of_dq(chunk_));
      else if (vectors == 2)
        add_queries<2>(keys, k_.ld, part, ds, dim_, share_of_dq(chunk_));
      else
        add_queries<1>(keys, k_.ld, part, ds, dim_, share_of_dq(chunk_));
    }
    if (want_k_) add_keys(t, s_.g_t, q_, s_.dk + at * ld_, ld_);
  }

  Keys k_ = {}, v_ = {};     // of the panel
  Keys q_ = {}, dout_ = {};  // rows of the block
};

void backward_rows(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  VectorBackward(*job, worker).run_rows(task);
}

void backward_keys(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  VectorBackward(*job, worker).run_keys(task);
}

void backward_queries(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  VectorBackward(*job, worker).run_queries(task);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "targets.h"
namespace tessera {
HWY_EXPORT(backward_rows);
HWY_EXPORT(backward_keys);
HWY_EXPORT(backward_queries);
}  // namespace tessera

void tsri_cpu_backward_install(int64_t target, tsri_cpu_kernels *kernels) {
  kernels->backward_rows = TSRI_CPU_FUNCTION(tessera, backward_rows, target);
  kernels->backward_keys = TSRI_CPU_FUNCTION(tessera, backward_keys, target);
  kernels->backward_queries = TSRI_CPU_FUNCTION(tessera, backward_queries, target);
}
#endif
