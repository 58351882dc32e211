// SPDX-License-Identifier: Apache-2.0
//
// Backward tasks, per Highway target; backward.c runs them. Products are a kernel's:
// backward_simd.cc (vectors), amx_backward_simd.cc (matrix tiles). Three kinds of task:
//   rows     what P and dS need of some rows: from the stored LSE and O, or computed again (below);
//   keys     a chunk of keys of one sequence and KV head against all its rows: dK and dV of the
//   chunk,
//            its dBias, and its share of dQ in float32;
//   queries  dQ of some rows: the shares of the chunks in order, times the scale.
// In a key task K, V, dK and dV of a panel of keys stay in L2 while blocks of rows pass; per tile
// of keys and block: S^T = K Q^T, the score steps, dP^T = V dO^T, P and dS, dQ^T += K^T dS^T, dV +=
// P^T dO, dK += dS^T Q. Everything has one owner and one order, so results do not depend on
// threads; where sums are cut depends on the sequence's own lengths.
//
// P = exp(s - LSE) and D = rowsum(dO * O) - dLSE inherit the rounding of what forward stored: that
// of LSE is a relative error |LSE| 2^-24 of a whole row of P, that of a 16-bit O reaches D. Both
// are harmless in long rows of ordinary size. Where they are not, maximum, sum and D are computed
// from the scores again: at no cost in sequences short enough to be one tile, with two more
// products for rows of a large LSE, if O has 16 bits for rows of few keys and of heads whose keys and
// values have parts in common, and in float32 for heads whose keys or values have large ones (common/delta.h).
#include <string.h>

#include "backward_block-inl.h"
#include "backward_job.h"
#include "block-inl.h"
#include "convert-inl.h"
#include "gradient-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

#if defined(TESSERA_CPU_BACKWARD_TASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_BACKWARD_TASK_INL_H_
    #undef TESSERA_CPU_BACKWARD_TASK_INL_H_
  #else
    #define TESSERA_CPU_BACKWARD_TASK_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

class BackwardTask : protected BackwardBlock {
 public:
  BackwardTask(const tsri_cpu_backward &job, int32_t worker) : BackwardBlock(job, worker) {}

  void run_rows(int64_t task) {
    int64_t begin, end;
    if (!locate_rows(task, &begin, &end)) return;
    if (whole() && seq_.k.len > 0) return;  // the key task finds out
    for (int64_t first = begin; first < end; first += static_cast<int64_t>(width_)) {
      start_block(first);
      if (trusted())
        use_stored();
      else
        compute_state();
      keep_state();
    }
  }

  void run_queries(int64_t task) {
    int64_t begin, end;
    if (!locate_rows(task, &begin, &end)) return;
    if (tsri_cpu_chunk_count(&job_.tiles, seq_.k.len) == 1) return;  // its key task did it
    store_query_rows(begin, end);
  }

  void run_keys(int64_t task) {
    const int64_t g0 = task % job_.owners_g, rest = task / job_.owners_g;
    const int64_t b0 = rest % job_.owners_b, c0 = rest / job_.owners_b;
    const int64_t b1 = job_.owners_b == p_.batch ? b0 + 1 : p_.batch;
    const int64_t g1 = job_.owners_g == p_.heads_kv ? g0 + 1 : p_.heads_kv;
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t g = g0; g < g1; ++g) {
        start_head(b, g);
        const int64_t chunks = tsri_cpu_chunk_count(&job_.tiles, seq_.k.len);
        const int64_t c1 = job_.owners_c > 1 ? HWY_MIN(c0 + 1, chunks) : chunks;
        for (int64_t c = c0; c < c1; ++c) run_chunk(c);
        // Tasks of chunks that a sequence does not have leave dQ to the one that made its share.
        if (want_q_ && chunks == 1 && c0 == 0) store_query_rows(0, rows_);
      }
  }

 protected:
  // Tasks live on the stack. Neither a virtual destructor nor a pure function: both would need the
  // C++ library, which programs in C do not link.
  ~BackwardTask() = default;

  // What products are computed with, beside pack_panel and pack_block.
  //
  // s_t = K Q^T and g_t = V dO^T of a tile.
  virtual void multiply_scores(const ScoreTile &) {}
  virtual void load_gradients(const ScoreTile &) {}
  // P (after dropout) in s_t and dS in g_t into every gradient; may overwrite both.
  virtual void add_gradients(const ScoreTile &) {}

  void trim(const tsri_mask_row &seen, int64_t begin, int64_t end, int64_t *key,
            size_t *keys) const {
    trim_keys(seen, begin, end, job_.tiles.amx ? 32 : 8, key, keys);
  }

  float *share_of_dq(int64_t chunk) const {
    return job_.dq + (chunk * job_.rows_all + row_number() + first_) *
                         tsri_cpu_dq_dims(&job_.tiles, p_.dim_qk);
  }

  int64_t chunk_ = 0;

 private:
  // Rows [begin, end) of a row task; false if it has none.
  bool locate_rows(int64_t task, int64_t *begin, int64_t *end) {
    int64_t b, index = task;
    if (job_.first_task) {
      int64_t low = 0, high = p_.batch;  // first_task[low] <= task < first_task[high]
      while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        (job_.first_task[mid] <= task ? low : high) = mid;
      }
      b = low;
      index -= job_.first_task[low];
    } else {
      b = task / job_.tasks_each;
      index -= b * job_.tasks_each;
    }
    start_head(b, index % p_.heads_kv);
    *begin = index / p_.heads_kv * job_.row_step;
    *end = HWY_MIN(*begin + job_.row_step, rows_);
    return *begin < *end;
  }

  // From the scores of all keys.
  void compute_state() {
    load_block();
    start_state();
    const tsri_mask_row seen = seen_keys();
    for (int64_t j = 0; j < seq_.k.len; j += job_.tiles.keys) {
      const int64_t end = HWY_MIN(j + job_.tiles.keys, seq_.k.len);
      panel_ = j;
      load_panel(j, static_cast<size_t>(end - j), seen, end);
      run_tile(seen, j, end, kState);
    }
    finish_state();
  }

  // Whether the block sees a key of a chunk. Elsewhere its share of dQ is 0 and is not kept.
  bool sees_chunk(const tsri_mask_row &seen, int64_t chunk) const {
    const int64_t size = tsri_cpu_chunk_keys(&job_.tiles, seq_.k.len);
    int64_t key;
    size_t keys;
    trim(seen, chunk * size, HWY_MIN(chunk * size + size, seq_.k.len), &key, &keys);
    return keys > 0;
  }

  // dQ of rows [begin, end), of whole blocks, from its shares.
  void store_query_rows(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += static_cast<int64_t>(width_)) {
      start_block(first);
      store_queries();
    }
  }

  HWY_NOINLINE void store_queries() {
    const DF d;
    const size_t count = dim_ * width_;
    const int64_t chunks = tsri_cpu_chunk_count(&job_.tiles, seq_.k.len);
    const tsri_mask_row seen = seen_keys();
    const float *sum = nullptr;
    for (int64_t c = 0; c < chunks; ++c) {
      if (!sees_chunk(seen, c)) continue;
      const float *share = share_of_dq(c);
      if (sum)
        for (size_t x = 0; x < count; x += lanes_)
          hn::Store(hn::Add(hn::Load(d, sum + x), hn::Load(d, share + x)), d, s_.q_t + x);
      sum = sum ? s_.q_t : share;
    }
    if (!sum) memset(s_.q_t, 0, count * sizeof(float));
    if (!sum || !kWholeVectors) {
      if (sum && sum != s_.q_t) memcpy(s_.q_t, sum, count * sizeof(float));
      sum = s_.q_t;
    }
    const VF scale = hn::Set(d, p_.scale);
    const auto finish = [&](VF x)
                            HWY_ATTR { return hn::Add(hn::Mul(x, scale), hn::Zero(d)); };
    for (size_t x = 0; x < width_; x += lanes_) before_rows(s_.q_t + x, width_, dim_, finish);
    const bool direct = p_.dq.dtype == TSR_DTYPE_F32 && p_.dq.stride[3] == 1 &&
                        !(p_.accumulate & TSR_ACCUMULATE_DQ);
    for (size_t r = 0; r < live_; r += kRows) {
      float *rows[kRows];
      for (size_t t = 0; t < kRows; ++t)
        rows[t] = direct && r + t < live_
                      ? static_cast<float *>(args_.dq) + offset_of(p_.dq, row_at(r + t))
                      : s_.q + (r + t) * ld_;
      lanes_to_rows(sum + r, width_, dim_, rows, finish);
      for (size_t t = 0; t < kRows && r + t < live_; ++t) {
        const int64_t row = row_at(r + t);
        // An empty row has no gradient, whatever K holds.
        if (args_.lse[offset_of(p_.lse, row)] == -__builtin_inff())
          memset(rows[t], 0, dim_ * sizeof(float));
        if (!direct)
          store_gradient(p_.dq, args_.dq, offset_of(p_.dq, row), TSR_ACCUMULATE_DQ, rows[t], dim_);
      }
    }
  }

  // Writes a row of a gradient, or adds it.
  void store_gradient(const tsr_layout &layout, void *base, int64_t at, uint32_t accumulate,
                      float *row, size_t n) {
    if (p_.accumulate & accumulate) {
      float *held = s_.lines;
      load_row_any(layout.dtype, base, at, layout.stride[3], n, held);
      for (size_t x = 0; x < n; ++x) row[x] += held[x];
    }
    store_row_any(layout.dtype, row, n, base, at, layout.stride[3]);
  }

  void run_chunk(int64_t chunk) {
    const int64_t size = tsri_cpu_chunk_keys(&job_.tiles, seq_.k.len);
    const int64_t begin = chunk * size, end = HWY_MIN(begin + size, seq_.k.len);
    chunk_ = chunk;
    for (int64_t first = 0; want_q_ && first < rows_; first += static_cast<int64_t>(width_)) {
      start_block(first);
      if (sees_chunk(seen_keys(), chunk))
        memset(share_of_dq(chunk), 0,
               width_ * static_cast<size_t>(tsri_cpu_dq_dims(&job_.tiles, p_.dim_qk)) *
                   sizeof(float));
    }
    for (int64_t j = begin; j < end; j += job_.tiles.panel)
      run_panel(j, HWY_MIN(j + job_.tiles.panel, end));
  }

  // All rows against keys [begin, end).
  void run_panel(int64_t begin, int64_t end) {
    const size_t n = static_cast<size_t>(end - begin);
    const int64_t step = whole() ? n : job_.tiles.keys;
    panel_ = begin;
    packed_ = false;
    if (want_k_) memset(s_.dk, 0, n * ld_ * sizeof(float));
    if (want_v_) memset(s_.dv, 0, n * ld_v_ * sizeof(float));
    for (int64_t first = 0; first < rows_; first += static_cast<int64_t>(width_)) {
      start_block(first);
      const tsri_mask_row seen = seen_keys();
      if (!whole() && !load_panel(begin, n, seen, end)) continue;
      if (whole()) load_panel(begin, n, seen, end);
      load_block();
      if (whole())
        start_state();
      else
        recall_state();
      for (int64_t j = begin; j < end; j += step)
        run_tile(seen, j, HWY_MIN(j + step, end), whole() ? kWhole : kKnown);
    }
    if (want_k_) store_keys(p_.dk, args_.dk, TSR_ACCUMULATE_DK, s_.dk, ld_, dim_, n, p_.scale);
    if (want_v_) store_keys(p_.dv, args_.dv, TSR_ACCUMULATE_DV, s_.dv, ld_v_, dim_v_, n, 1.0f);
  }

  void store_keys(const tsr_layout &layout, void *base, uint32_t accumulate, float *rows, size_t ld,
                  size_t dim, size_t n, float factor) {
    const DF d;
    const VF f = hn::Set(d, factor);
    const bool direct = in_place(layout, dim) && !(p_.accumulate & accumulate);
    for (size_t r = 0; r < n; ++r, rows += ld) {
      if (direct) {
        float *to = static_cast<float *>(base) +
                    tsri_row_offset(layout.stride, b_, g_,
                                    seq_.k.begin + panel_ + static_cast<int64_t>(r));
        for (size_t x = 0; x < dim; x += lanes_)
          hn::StoreU(hn::Add(hn::Mul(hn::Load(d, rows + x), f), hn::Zero(d)), d, to + x);
        continue;
      }
      for (size_t x = 0; x < ld; x += lanes_)
        hn::Store(hn::Add(hn::Mul(hn::Load(d, rows + x), f), hn::Zero(d)), d, rows + x);
      store_gradient(
          layout, base,
          tsri_row_offset(layout.stride, b_, g_, seq_.k.begin + panel_ + static_cast<int64_t>(r)),
          accumulate, rows, dim);
    }
  }

  // What a tile is for: rows of known state; their state; both at once, the tile being all keys.
  enum Purpose { kKnown, kState, kWhole };

  void run_tile(const tsri_mask_row &seen, int64_t begin, int64_t end, Purpose purpose) {
    ScoreTile t;
    tsri_tile_class kind = TSRI_TILE_SKIP;
    trim(seen, begin, end, &t.key, &t.keys);
    if (t.keys > 0)
      kind = tsri_mask_tile_class(&rule_, query_of(first_), query_of(row_at(live_ - 1)) + 1, t.key,
                                  t.key + static_cast<int64_t>(t.keys));
    if (kind == TSRI_TILE_SKIP) t.keys = 0;
    if (t.keys == 0 && purpose != kWhole) return;
    t.query = s_.query, t.head = s_.head, t.from = s_.from, t.to = s_.to, t.slope = s_.slope;
    t.width = width_;
    t.s = s_.s_t, t.term = s_.term, t.bias = s_.bias;
    t.lines = s_.lines, t.line = static_cast<size_t>(s_.line);
    t.lo = s_.lo, t.hi = s_.hi;
    const size_t vectors = width_ / lanes_;
    // dBias and the tile unit take whole tiles.
    const Zones zones = kind != TSRI_TILE_EDGE || want_bias_ || job_.tiles.amx
                            ? zones_whole(t.keys, vectors)
                            : zones_of_band(s_.from, s_.to, width_, live_, rule_.prefix, t.key,
                                            t.keys);
    t.zones = &zones;
    fold(t, kind, purpose);
  }

  // One tile.
  void fold(const ScoreTile &t, tsri_tile_class kind, Purpose purpose) {
    if (t.keys == 0 || !load_scores(t, kind)) {
      if (purpose == kWhole) end_state();
      return;
    }
    if (want_s_) load_gradients(t);
    if (p_.dropout > 0) load_keep(t);
    // Without dropout and dP the passes have less to do.
    if (want_s_)
      p_.dropout > 0 ? finish_scores<true, true>(t, purpose)
                     : finish_scores<true, false>(t, purpose);
    else
      p_.dropout > 0 ? finish_scores<false, true>(t, purpose)
                     : finish_scores<false, false>(t, purpose);
    if (purpose != kState) add_gradients(t);
  }

  // S^T with all steps up to the mask; false if no key is allowed.
  bool load_scores(const ScoreTile &t, tsri_tile_class kind) {
    multiply_scores(t);
    if (!steps_.needed(kind)) return true;
    const auto cap = [this](float *s, size_t count)
                         HWY_ATTR { softcap_gradient_tile(s, s_.slope_t, count, p_.softcap); };
    return steps_.apply(t, kind, scale_, cap);
  }


  // P and dS of a tile, or the rows' state.
  template <bool kGrad, bool kDrop>
  HWY_NOINLINE void finish_scores(const ScoreTile &t, Purpose purpose) {
    float *s = s_.s_t, *g = s_.g_t;
    if (purpose == kKnown)
      return gradient_tile<kGrad, kDrop>(s, g, s_.keep, *t.zones, width_, s_.ref, s_.inverse, s_.d,
                                         unit_);
    const RowSums sums = {s_.m, s_.l, s_.l_rest, s_.e, s_.e_rest};
    state_tile<kGrad, kDrop>(s, g, s_.keep, *t.zones, width_, unit_, sums);
    if (purpose == kState) return;
    end_state();
    finish_tile<kGrad, kDrop>(s, g, s_.keep, *t.zones, width_, s_.inverse, s_.d);
  }

  void end_state() {
    finish_state();
    keep_state();
  }

  HWY_NOINLINE void load_keep(const ScoreTile &t) {
    const DF d;
    for (size_t x = 0; x < t.keys * width_; x += lanes_)
      hn::Store(hn::Set(d, 1.0f), d, s_.keep + x);
    steps_.drop(t, job_.drop_key, s_.keep);
  }

 protected:
  // dS of the tile into dBias.
  HWY_NOINLINE void add_bias(const ScoreTile &t) {
    const int64_t *stride = job_.dbias.stride;
    if (job_.dbias.sums && stride[2] == 0) return add_bias_over_queries(t);
    for (size_t r = 0; r < live_; r += kGroup) {
      columns_to_rows(s_.g_t + r, width_, t.keys, s_.lines, static_cast<size_t>(s_.line));
      for (size_t u = 0; u < kGroup && r + u < live_; ++u) {
        const float *row = s_.lines + u * static_cast<size_t>(s_.line);
        const int64_t at = tsri_pair_offset(stride, b_, s_.head[r + u], s_.query[r + u], t.key);
        if (!job_.dbias.sums)
          store_bias_row(row, t.keys, at);
        else if (stride[3] == 0)
          job_.dbias.sums[at] += static_cast<float>(sum_of(row, t.keys, 1));
        else
          for (size_t j = 0; j < t.keys; ++j)
            job_.dbias.sums[at + static_cast<int64_t>(j) * stride[3]] += row[j];
      }
    }
  }

 private:
  static double sum_of(const float *x, size_t n, size_t step) {
    double sum = 0;
    for (size_t i = 0; i < n; i += step) sum += static_cast<double>(x[i]);
    return sum;
  }

  void store_bias_row(const float *row, size_t n, int64_t at) {
    const tsr_layout &layout = p_.dbias;
    const bool add = (p_.accumulate & TSR_ACCUMULATE_DBIAS) != 0;
    if (!add) return store_row_any(layout.dtype, row, n, args_.dbias, at, layout.stride[3]);
    for (size_t j = 0; j < n; ++j) {
      const int64_t to = at + static_cast<int64_t>(j) * layout.stride[3];
      tsri_store_f32(layout.dtype, args_.dbias, to,
                     tsri_load_f32(layout.dtype, args_.dbias, to) + row[j]);
    }
  }

  // Elements shared by all queries: the rows of a head (of all heads, if they share too) are summed
  // first, so that few roundings reach the element.
  void add_bias_over_queries(const ScoreTile &t) {
    const int64_t *stride = job_.dbias.stride;
    const size_t heads = stride[1] == 0 ? 1 : static_cast<size_t>(job_.problem->group);
    for (size_t u = 0; u < HWY_MIN(heads, live_); ++u) {
      const int64_t at = tsri_pair_offset(stride, b_, s_.head[u], 0, t.key);
      double all = 0;
      for (size_t j = 0; j < t.keys; ++j) {
        const double sum = sum_of(s_.g_t + j * width_ + u, live_ - u, heads);
        if (stride[3] == 0)
          all += sum;
        else
          job_.dbias.sums[at + static_cast<int64_t>(j) * stride[3]] += static_cast<float>(sum);
      }
      if (stride[3] == 0) job_.dbias.sums[at] += static_cast<float>(all);
    }
  }

};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_BACKWARD_TASK_INL_H_
