// SPDX-License-Identifier: Apache-2.0
//
// Forward of one task of the split kernel: a tile of rows of one sequence and KV head against one
// chunk of its keys. Compiled once per Highway target; decode.c runs the tasks. A row is a pair
// (query, head of the group), so K and V are read once for all query heads of a group.
//
// Units with fewer rows than a vector has lanes take the narrow kernels of decode-inl.h, others the
// query lanes of tile-inl.h. The state (m, l, acc) of a chunk goes into its part; whoever finishes
// the last chunk of a unit merges its parts in order of keys and writes the rows.
#include "decode_job.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/decode_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "block-inl.h"
#include "common/score.h"
#include "convert-inl.h"
#include "decode-inl.h"
#include "decode_eight-inl.h"
#include "decode_unit-inl.h"
#include "row_policy-inl.h"
#include "score-inl.h"
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Keys of one step.
struct Step {
  int64_t key;
  size_t keys;
};

// Rows of K or V of a step, where they lie.
struct Rows {
  tsri_cpu_run_of_rows *runs;
  size_t count;
};

class SplitTask : SplitUnit {
 public:
  SplitTask(const tsri_cpu_split &job, int64_t task, int32_t worker)
      : SplitUnit(job, task, worker), step_keys_(narrow_ ? job.narrow_keys : job.tiles.keys) {}

  void run() {
    start_chunk();
    load_rows();
    fold_chunk();
    float *part = cut_.count > 1 ? job_.parts + part_at(chunk_) : own_.part;
    store_part(part);
    if (cut_.count == 1) return merge(part);
    int32_t *open = job_.open + unit_index_;
    if (__atomic_sub_fetch(open, 1, __ATOMIC_ACQ_REL) == 0) merge(job_.parts + part_at(0));
  }

 private:
  // ---------------------------------------------------------------------------- steps of keys

  // The next step of this chunk with a key that some row may see; no keys: none is left. Steps are
  // cut at multiples of step_keys_ from key 0; the start of one is trimmed to a multiple of 16, so
  // that a key keeps its lane.
  Step next_step() {
    const int64_t size = step_keys_;
    while (next_key_ < end_) {
      if (next_key_ >= seen_.prefix && next_key_ + size <= seen_.lo)
        next_key_ = seen_.lo / size * size;
      const int64_t stop = HWY_MIN(next_key_ + size, end_);
      int64_t start = next_key_;
      if (start >= seen_.prefix && seen_.lo > start) start += (seen_.lo - start) / 16 * 16;
      next_key_ += size;
      if (stop > start) return {start, static_cast<size_t>(stop - start)};
    }
    return {0, 0};
  }

  Rows find_rows(const tsr_layout &layout, const void *base, const Step &step,
                 tsri_cpu_run_of_rows *runs) const {
    const int64_t count = static_cast<int64_t>(step.keys), row = seq_.k.begin + step.key;
    Rows rows = {runs, 0};
    for (int64_t r = 0; r < count;) {
      const int64_t at = tsri_kv_offset(&job_.pages, layout.stride, b_, g_, row + r);
      runs[rows.count].base = static_cast<const unsigned char *>(base) + at * k_bytes_;
      runs[rows.count].rows = tsri_kv_run(&job_.pages, row + r, count - r);
      r += runs[rows.count++].rows;
    }
    return rows;
  }

  // Finds the first step, and asks for its keys while rows of Q are loaded.
  void start_chunk() {
    const int64_t group = job_.problem->group, last = row0_ + static_cast<int64_t>(rows_) - 1;
    seen_ = tsri_mask_rows_of(&rule_, row0_ / group, last / group + 1);
    next_key_ = 0, end_ = HWY_MAX(seen_.prefix, seen_.hi);
    if (cut_.keys != INT64_MAX) {
      next_key_ = (cut_.first + chunk_) * cut_.keys;
      end_ = HWY_MIN(end_, next_key_ + cut_.keys);
    }
    first_ = next_step();
    if (first_.keys == 0) return;
    k_ = find_rows(p_.k, args_.k, first_, own_.runs);
    v_ = find_rows(p_.v, args_.v, first_, own_.runs + job_.tiles.keys);
    const int64_t width = p_.dim_qk * k_bytes_, step = p_.k.stride[2] * k_bytes_;
    for (size_t i = 0; i < k_.count; ++i)
      for (int64_t t = 0; t < k_.runs[i].rows; ++t)
        for (int64_t x = 0; x < width; x += 64)
          __builtin_prefetch(k_.runs[i].base + t * step + x, 0, 2);
  }

  void fold_chunk() {
    const int64_t size = job_.tiles.keys;
    tsri_cpu_run_of_rows *other = own_.runs + 2 * size;
    Step step = first_;
    if (eight_ && step.keys != 0) list_rows(k_, p_.k, k_list_);
    while (step.keys != 0) {
      const Step next = next_step();
      Rows k_next = k_, v_next = v_;
      if (next.keys != 0) {
        k_next = find_rows(p_.k, args_.k, next, other);
        v_next = find_rows(p_.v, args_.v, next, other + size);
      }
      if (eight_) {
        list_rows(k_next, p_.k, k_list_next_);
        list_rows(v_, p_.v, own_.v_row);
      } else if (narrow_) {
        // Scores are computed while V of this step comes, outputs while K of the next one does.
        const size_t slots = (wide_dim_ + kSlot - 1) / kSlot, keys = step.keys;
        const size_t blocks = output_blocks(wide_dim_v_ / lanes_, narrow_);
        list_ahead(v_, p_.v, wide_dim_v_ / kSlot, own_.k_ahead, (keys + 15) / 16 * 16 * slots);
        list_ahead(k_next, p_.k, slots, own_.v_ahead, keys * blocks * (8 / narrow_));
      }
      fold_step(step, k_, v_);
      other = k_.runs;
      const void **list = k_list_;
      k_list_ = k_list_next_, k_list_next_ = list;
      step = next, k_ = k_next, v_ = v_next;
    }
  }

  // `most` addresses: the slots of all rows, as far as they go.
  void list_ahead(const Rows &rows, const tsr_layout &layout, size_t slots, const void **list,
                  size_t most) const {
    const int64_t step = layout.stride[2] * k_bytes_;
    const int64_t slot = k_bytes_ * static_cast<int64_t>(kSlot);
    size_t n = 0;
    if (slots == 0) slots = 1;
    for (size_t i = 0; i < rows.count && n < most; ++i) {
      const unsigned char *row = rows.runs[i].base;
      const size_t count = static_cast<size_t>(rows.runs[i].rows);
      if (step == slot * static_cast<int64_t>(slots)) {
        const size_t all = HWY_MIN(count * slots, most - n);
        for (size_t s = 0; s < all; ++s) list[n + s] = row + static_cast<int64_t>(s) * slot;
        n += all;
        continue;
      }
      for (size_t t = 0; t < count && n < most; ++t, row += step)
        for (size_t s = 0; s < slots && n < most; ++s)
          list[n++] = row + static_cast<int64_t>(s) * slot;
    }
    const void *last = list[n - 1];
    for (; n < most; ++n) list[n] = last;
  }

  // Scales of the keys of a step.
  void load_scales(const tsr_layout &layout, const float *scale, const Step &step,
                   float *out) const {
    const size_t padded = (step.keys + 15) / 16 * 16;
    const int64_t count = static_cast<int64_t>(step.keys), share = p_.scale_rows_k;
    for (int64_t r = 0; r < count;) {
      int64_t outer = b_, row = seq_.k.begin + step.key + r;
      const int64_t run = tsri_kv_run(&job_.pages, row, count - r);
      if (job_.pages.table) {
        outer = tsri_clamp(tsri_index(job_.pages.table, job_.pages.dtype,
                                      b_ * job_.pages.stride + row / job_.pages.size),
                           0, job_.pages.count - 1);
        row %= job_.pages.size;
      }
      const float *from = scale + tsri_row_offset(layout.stride, outer, g_, 0);
      for (int64_t t = 0; t < run; ++t) {
        const int64_t at = share == 1 ? row + t : share > 0 ? (row + t) / share : 0;
        out[r + t] = from[at * layout.stride[2]];
      }
      r += run;
    }
    for (size_t t = step.keys; t < padded; ++t) out[t] = 1.0f;
  }

  // Pointers to rows where they lie; returns how many.
  size_t point_to(const Rows &rows, const tsr_layout &layout, const void **out) const {
    const int64_t step = layout.stride[2] * k_bytes_;
    size_t n = 0;
    for (size_t i = 0; i < rows.count; ++i) {
      const unsigned char *row = rows.runs[i].base;
      const int64_t count = rows.runs[i].rows;
      for (int64_t t = 0; t < count; ++t, row += step) out[n++] = row;
    }
    return n;
  }

  // The same for a whole step and 16 keys more: the last row again.
  void list_rows(const Rows &rows, const tsr_layout &layout, const void **out) const {
    const size_t all = static_cast<size_t>(step_keys_) + 16;
    size_t n = point_to(rows, layout, out);
    for (const void *last = out[n - 1]; n < all; ++n) out[n] = last;
  }

  void fold_step(const Step &step, const Rows &k, const Rows &v) {
    const bool scales = p_.k_scale.dtype != TSR_DTYPE_NONE;
    if (scales) {
      load_scales(p_.k_scale, args_.k_scale, step, own_.k_scale);
      load_scales(p_.v_scale, args_.v_scale, step, own_.v_scale);
    }
#if HWY_TARGET != HWY_SCALAR
    constexpr size_t kMost = hn::MaxLanes(DF());
    const size_t phases = narrow_ ? lanes_ / narrow_ : 0;
    if constexpr (kMost >= 16) {
      if (narrow_ == 8 && phases == 2) return fold_narrow<8, 2>(step, k, v, scales);
      if (narrow_ == 4 && phases == 4) return fold_narrow<4, 4>(step, k, v, scales);
      if (narrow_ == 2 && phases == 8) return fold_narrow<2, 8>(step, k, v, scales);
      if (narrow_ == 1 && phases == 16) return fold_narrow<1, 16>(step, k, v, scales);
    }
    if constexpr (kMost == 8 || (HWY_HAVE_SCALABLE && kMost > 8)) {
      if (narrow_ == 4 && phases == 2) return fold_narrow<4, 2>(step, k, v, scales);
      if (narrow_ == 2 && phases == 4) return fold_narrow<2, 4>(step, k, v, scales);
      if (narrow_ == 1 && phases == 8) return fold_narrow<1, 8>(step, k, v, scales);
    }
    if constexpr (kMost == 4 || (HWY_HAVE_SCALABLE && kMost > 4)) {
      if (narrow_ == 2 && phases == 2) return fold_narrow<2, 2>(step, k, v, scales);
      if (narrow_ == 1 && phases == 4) return fold_narrow<1, 4>(step, k, v, scales);
    }
#endif
    fold_blocks(step, k, v, scales);
  }

  ScoreTile score_tile_of(size_t first, size_t width, const Step &step) {
    ScoreTile t;
    zones_ = zones_whole(step.keys, width / lanes_);
    t.zones = &zones_;
    t.query = s_.query + first, t.head = s_.head + first;
    t.from = s_.from + first, t.to = s_.to + first, t.slope = s_.slope + first;
    t.width = width, t.key = step.key, t.keys = step.keys;
    t.s = s_.s_t, t.term = s_.term, t.bias = s_.bias;
    t.lines = s_.lines, t.line = line_;
    t.lo = s_.lo, t.hi = s_.hi;
    return t;
  }

  HWY_NOINLINE bool finish_scores(const ScoreTile &tile, tsri_tile_class kind) {
    const auto cap = [this](float *s, size_t count)
                         HWY_ATTR { softcap_tile(s, count, p_.softcap); };
    return steps_.apply(tile, kind, scale_, cap);
  }

  // ------------------------------------------------------------------------------ narrow form

#if HWY_TARGET != HWY_SCALAR
  // Narrow scores to one lane per row and back, for the score steps that not every problem has.
  HWY_NOINLINE void spread(size_t n, size_t phases) {
    for (size_t j = 0; j < n; ++j)
      for (size_t x = 0; x < lanes_; ++x)
        s_.s_t[j * lanes_ + x] =
            own_.narrow[j / phases * lanes_ + HWY_MIN(x, narrow_ - 1) * phases + j % phases];
  }
  HWY_NOINLINE void gather(size_t n, size_t phases) {
    for (size_t j = 0; j < n; ++j)
      for (size_t r = 0; r < narrow_; ++r)
        own_.narrow[j / phases * lanes_ + r * phases + j % phases] = s_.s_t[j * lanes_ + r];
  }

  // Lanes of the last vector that belong to no key.
  void hide_tail(size_t n, size_t phases) {
    if (n % phases == 0) return;
    float *last = own_.narrow + n / phases * lanes_;
    for (size_t r = 0; r < narrow_; ++r)
      for (size_t e = n % phases; e < phases; ++e) last[r * phases + e] = -__builtin_inff();
  }

  template <int R, int P>
  HWY_NOINLINE void fold_narrow(const Step &step, const Rows &k, const Rows &v, bool scales) {
    const DF d;
    const size_t n = step.keys, vectors = (n + P - 1) / P;
    float *HWY_RESTRICT s = own_.narrow;
    const int64_t i0 = s_.query[0], i1 = s_.query[rows_ - 1] + 1;
    const tsri_tile_class kind =
        tsri_mask_tile_class(&rule_, i0, i1, step.key, step.key + static_cast<int64_t>(n));
    if (kind == TSRI_TILE_SKIP) return;
    if (eight_)
      score_rows_eight(n);
    else
      score_keys<P>(k, n);
    if (scales) scale_keys<P>(s, n, own_.k_scale);
    if (steps_.needed(kind)) {
      spread(n, P);
      if (!finish_scores(score_tile_of(0, lanes_, step), kind)) return;
      gather(n, P);
    }
    hide_tail(n, P);
    found_ = true;
    // m is the same in all lanes of a row, l a share of the row's.
    const VF old = hn::Load(d, s_.m);
    const VF top = max_phases<P>(max_narrow(s, vectors, old));
    const VF ref = Recurrence::reference(top), unit = hn::Set(d, unit_);
    const VF sum = softmax_narrow(s, vectors, unit, ref);
    const VF correction = Recurrence::correction_in(unit, old, ref);
    hn::Store(top, d, s_.m);
    hn::Store(Recurrence::new_sum(hn::Load(d, s_.l), correction, sum), d, s_.l);
    hn::Store(correction, d, alpha_);
    if (p_.dropout > 0) {
      spread(n, P);
      steps_.drop(score_tile_of(0, lanes_, step), job_.drop_key, s_.s_t);
      gather(n, P);
    }
    if (scales) scale_keys<P>(s, n, own_.v_scale);
    if (!eight_) point_to(v, p_.v, own_.v_row);
    if (!v_in_place_) copy_v(n);
    const tsr_dtype type = v_in_place_ ? p_.v.dtype : TSR_DTYPE_F32;
    if (type == TSR_DTYPE_BF16)
      add_output<R, P, BF16>(n);
    else if (type == TSR_DTYPE_F16)
      add_output<R, P, F16>(n);
    else if (type == TSR_DTYPE_I8)
      add_output<R, P, I8>(n);
    else
      add_output<R, P, F32>(n);
  }

  // Scores of a step. What is not float32 rows of whole vectors is copied, 16 keys at a time, into
  // memory that stays in L1.
  template <int P>
  HWY_INLINE void score_keys(const Rows &k, size_t n) {
    point_to(k, p_.k, own_.k_row);
    for (size_t t = 0; t < 16; ++t) own_.k_row[n + t] = own_.k_row[n - 1];
    if (k_in_place_)
      return score_narrow<P, true>(own_.k_row, n, own_.q, wide_dim_, own_.narrow, own_.k_ahead);
    const size_t ld = static_cast<size_t>(tsri_cpu_packed_ld(p_.dim_qk));
    for (size_t t = 0; t < 16; ++t) own_.k_copy[t] = s_.k + t * ld;
    for (size_t j = 0; j < n; j += 16) {
      const size_t count = HWY_MIN(n - j, size_t{16});
      widen_rows_any(p_.k.dtype, halves_k_, own_.k_row + j, p_.k.stride[3], (count + 7) / 8 * 8,
                     dim_, wide_dim_, s_.k, ld);
      score_narrow<P, false>(own_.k_copy, count, own_.q, wide_dim_, own_.narrow + j / P * lanes_,
                             own_.k_ahead + j / 8 * wide_dim_ / 4);
    }
  }

  // The same by decode_eight-inl.h.
  HWY_INLINE void score_rows_eight(size_t n) {
  #if TSRI_CPU_EIGHT
    const tsr_dtype type = p_.k.dtype;
    if (type == TSR_DTYPE_BF16)
      score_eight<BF16>(k_list_, own_.v_row, n, dim_, own_.q, s_.k, own_.narrow);
    else if (type == TSR_DTYPE_F16)
      score_eight<F16>(k_list_, own_.v_row, n, dim_, own_.q, s_.k, own_.narrow);
    else if (type == TSR_DTYPE_I8)
      score_eight<I8>(k_list_, own_.v_row, n, dim_, own_.q, s_.k, own_.narrow);
    else
      score_eight<F32>(k_list_, own_.v_row, n, dim_, own_.q, s_.k, own_.narrow);
  #else
    (void)n;
  #endif
  }

  void copy_v(size_t n) {
    const size_t ld = static_cast<size_t>(tsri_cpu_packed_ld(p_.dim_v));
    widen_rows_any(p_.v.dtype, false, own_.v_row, p_.v.stride[3], n, dim_v_, wide_dim_v_, s_.v, ld);
    for (size_t r = 0; r < n; ++r) own_.v_row[r] = s_.v + r * ld;
  }

  template <int R, int P, class E>
  HWY_INLINE void add_output(size_t n) {
    const void *const *ahead = eight_ ? k_list_next_ : own_.v_ahead;
    output_narrow<R, P, E>(own_.v_row, n, own_.narrow, wide_dim_v_ / lanes_, own_.o, wide_dim_v_,
                           alpha_, ahead, eight_);
  }
#endif  // HWY_TARGET != HWY_SCALAR

  // --------------------------------------------------------------------------- query lanes

  // Float32 rows at one distance: in place, or converted.
  Keys operand(const Rows &rows, const tsr_layout &layout, size_t dim, size_t n, const void **list,
               float *buffer) const {
    if (layout.dtype == TSR_DTYPE_F32 && layout.stride[3] == 1 && rows.count == 1 &&
        (layout.stride[2] % 256 != 0 || n < 16))
      return {reinterpret_cast<const float *>(rows.runs[0].base), layout.stride[2]};
    const size_t ld = static_cast<size_t>(tsri_cpu_packed_ld(static_cast<int64_t>(dim)));
    point_to(rows, layout, list);
    widen_rows_any(layout.dtype, false, list, layout.stride[3], n, dim, dim, buffer, ld);
    return {buffer, static_cast<int64_t>(ld)};
  }

  HWY_NOINLINE void fold_blocks(const Step &step, const Rows &k_rows, const Rows &v_rows,
                                bool scales) {
    const Keys k = operand(k_rows, p_.k, dim_, step.keys, own_.k_row, s_.k);
    const Keys v = operand(v_rows, p_.v, dim_v_, step.keys, own_.v_row, s_.v);
    for (size_t first = 0, width; first < rows_; first += width) {
      width = block_lanes(first);
      const size_t live = HWY_MIN(width, rows_ - first);
      const int64_t i0 = s_.query[first], i1 = s_.query[first + live - 1] + 1;
      const tsri_tile_class kind = tsri_mask_tile_class(&rule_, i0, i1, step.key,
                                                        step.key + static_cast<int64_t>(step.keys));
      if (kind == TSRI_TILE_SKIP) continue;
      const size_t vectors = width / lanes_;
      if (vectors == 3)
        fold_block<3>(step, first, k, v, kind, scales);
      else if (vectors == 2)
        fold_block<2>(step, first, k, v, kind, scales);
      else
        fold_block<1>(step, first, k, v, kind, scales);
    }
  }

  // Row j of a tile times factor[j].
  void scale_rows(float *s, size_t n, size_t width, const float *factor) const {
    for (size_t j = 0; j < n; ++j) scale_tile(s + j * width, width, factor[j]);
  }

  template <int NV>
  HWY_NOINLINE void fold_block(const Step &step, size_t first, const Keys &k, const Keys &v,
                               tsri_tile_class kind, bool scales) {
    const DF d;
    const size_t n = step.keys, lanes = lanes_, width = NV * lanes;
    float *m = s_.m + first, *l = s_.l + first;
    const VF old0 = hn::Load(d, m);
    const VF old1 = NV > 1 ? hn::Load(d, m + lanes) : old0;
    const VF old2 = NV > 2 ? hn::Load(d, m + 2 * lanes) : old0;
    score_tile<NV>(k.data, k.ld, n, s_.q_t + first * dim_, dim_, s_.s_t);
    if (scales) scale_rows(s_.s_t, n, width, own_.k_scale);
    const ScoreTile tile = score_tile_of(first, width, step);
    if (steps_.needed(kind) && !finish_scores(tile, kind)) return;
    found_ = true;
    max_tile<NV>(s_.s_t, n, m);
    const VF r0 = Recurrence::reference(hn::Load(d, m));
    const VF r1 = NV > 1 ? Recurrence::reference(hn::Load(d, m + lanes)) : r0;
    const VF r2 = NV > 2 ? Recurrence::reference(hn::Load(d, m + 2 * lanes)) : r0;
    const VF unit = hn::Set(d, unit_);
    VF t0 = r0, t1 = r0, t2 = r0;
    softmax_tile<NV>(s_.s_t, n, unit, r0, r1, r2, t0, t1, t2);
    const VF a0 = Recurrence::correction_in(unit, old0, r0);
    const VF a1 = Recurrence::correction_in(unit, old1, r1);
    const VF a2 = Recurrence::correction_in(unit, old2, r2);
    hn::Store(Recurrence::new_sum(hn::Load(d, l), a0, t0), d, l);
    if (NV > 1) hn::Store(Recurrence::new_sum(hn::Load(d, l + lanes), a1, t1), d, l + lanes);
    if (NV > 2)
      hn::Store(Recurrence::new_sum(hn::Load(d, l + 2 * lanes), a2, t2), d, l + 2 * lanes);
    if (p_.dropout > 0) steps_.drop(tile, job_.drop_key, s_.s_t);
    if (scales) scale_rows(s_.s_t, n, width, own_.v_scale);
    output_tile<NV>(v.data, v.ld, n, s_.s_t, dim_v_, s_.o_t + first * dim_v_, a0, a1, a2);
  }

  tsri_mask_row seen_;  // by the rows of this unit
  int64_t step_keys_;
  int64_t next_key_, end_;  // of this chunk
  Step first_;
  Rows k_ = {nullptr, 0}, v_ = {nullptr, 0};  // of the step at hand
  const void **k_list_ = own_.k_row;          // of the step at hand, and of the next one
  const void **k_list_next_ = own_.k_row + job_.tiles.keys + 16;
  Zones zones_;                               // of the tile at hand: all of it
};

void split(const tsri_cpu_split *job, int64_t task, int32_t worker) {
  SplitTask(*job, task, worker).run();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "targets.h"
namespace tessera {
HWY_EXPORT(split);
}

void tsri_cpu_split_install(int64_t target, tsri_cpu_kernels *kernels) {
  kernels->split = TSRI_CPU_FUNCTION(tessera, split, target);
}
#endif
