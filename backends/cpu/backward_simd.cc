// SPDX-License-Identifier: Apache-2.0
//
// Backward, compiled once per Highway target; backward.c runs the tasks. Three kinds:
//   rows     D = rowsum(dO * O) - dLSE of some rows;
//   keys     a chunk of keys of one sequence and KV head against all its rows: dK and dV of the chunk,
//            its dBias, and its share of dQ in float32;
//   queries  dQ of some rows: the shares of the chunks in order, times the scale.
// In a key task K, V, dK and dV of a panel of keys stay in L2 while blocks of rows pass; per tile of
// keys and block: S^T = K Q^T, the score steps, dP^T = V dO^T, P and dS, dQ^T += K^T dS^T,
// dV += P^T dO, dK += dS^T Q. Everything has one owner and one order, so results do not depend on
// threads; where sums are cut depends on the sequence's own lengths.
#include "backward_job.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/backward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "block-inl.h"
#include "convert-inl.h"
#include "gradient-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// What all tasks of a run have in common.
class BackwardTask {
 public:
  BackwardTask(const tsri_cpu_backward &job, int32_t worker)
      : job_(job), p_(job.problem->p), args_(*job.args), steps_(*job.problem, *job.args) {
    tsri_workspace ws = {job.scratch + worker * job.scratch_bytes, 0};
    s_ = tsri_cpu_backward_scratch_take(&ws, &p_, &job.tiles);
    lanes_ = hn::Lanes(DF());
    dim_ = static_cast<size_t>(p_.dim_qk);
    dim_v_ = static_cast<size_t>(p_.dim_v);
    ld_ = (dim_ + lanes_ - 1) / lanes_ * lanes_;
    ld_v_ = (dim_v_ + lanes_ - 1) / lanes_ * lanes_;
    want_q_ = p_.dq.dtype != TSR_DTYPE_NONE;
    want_k_ = p_.dk.dtype != TSR_DTYPE_NONE;
    want_v_ = p_.dv.dtype != TSR_DTYPE_NONE;
    want_bias_ = p_.dbias.dtype != TSR_DTYPE_NONE;
    want_s_ = want_q_ || want_k_ || want_bias_;
  }

  void run_rows(int64_t task) {
    int64_t begin, end;
    if (!locate_rows(task, &begin, &end)) return;
    float *d = job_.d + row_number() + begin;
    for (int64_t r = begin; r < end; ++r) *d++ = row_delta(r);
  }

  void run_queries(int64_t task) {
    int64_t begin, end;
    if (!locate_rows(task, &begin, &end)) return;
    const int64_t chunks = tsri_cpu_chunk_count(&job_.tiles, seq_.k.len);
    for (int64_t first = begin; first < end; first += static_cast<int64_t>(width_)) {
      start_block(first);
      store_queries(chunks);
    }
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
      }
  }

 private:
  void start_head(int64_t b, int64_t g) {
    b_ = b;
    g_ = g;
    seq_ = tsri_sequence_of(&p_, &args_, b);
    rule_ = tsri_sequence_rule(&p_, &seq_);
    rows_ = seq_.q.len * job_.problem->group;
    steps_.start_sequence(b, rule_);
  }

  // Number of the first row of this head.
  int64_t row_number() const {
    return tsri_cpu_first_row(&job_, b_) +
           g_ * tsri_cpu_padded_rows(seq_.q.len, job_.problem->group, job_.tiles.lanes);
  }

  // Rows [begin, end) of a row task; false if it has none.
  bool locate_rows(int64_t task, int64_t *begin, int64_t *end) {
    const int64_t head = task / job_.row_splits;
    start_head(head / p_.heads_kv, head % p_.heads_kv);
    *begin = task % job_.row_splits * job_.row_step;
    *end = HWY_MIN(*begin + job_.row_step, rows_);
    return *begin < *end;
  }

  int64_t head_of(int64_t row) const {
    return g_ * job_.problem->group + row % job_.problem->group;
  }
  int64_t query_of(int64_t row) const { return row / job_.problem->group; }
  // Element offset of a row in a [B, Hq, Sq, ..] tensor.
  int64_t offset_of(const tsr_layout &layout, int64_t row) const {
    return tsri_row_offset(layout.stride, b_, head_of(row), seq_.q.begin + query_of(row));
  }

  float row_delta(int64_t row) {
    const DF d;
    float *dout = s_.lines, *o = s_.lines + s_.line;
    load_row_any(p_.dout.dtype, args_.dout, offset_of(p_.dout, row), p_.dout.stride[3], dim_v_, dout);
    load_row_any(p_.o.dtype, args_.o, offset_of(p_.o, row), p_.o.stride[3], dim_v_, o);
    for (size_t x = dim_v_; x < ld_v_; ++x) dout[x] = o[x] = 0.0f;
    VF sum = hn::Zero(d);
    for (size_t x = 0; x < ld_v_; x += lanes_)
      sum = hn::MulAdd(hn::Load(d, dout + x), hn::LoadU(d, o + x), sum);
    const float dot = hn::GetLane(hn::SumOfLanes(d, sum));
    return p_.dlse.dtype == TSR_DTYPE_NONE ? dot : dot - args_.dlse[offset_of(p_.dlse, row)];
  }

  // Rows first .. first + live_ - 1 in width_ lanes.
  void start_block(int64_t first) {
    const size_t left = static_cast<size_t>(rows_ - first);
    first_ = first;
    width_ = HWY_MIN(kMaxVectors * lanes_, (left + lanes_ - 1) / lanes_ * lanes_);
    live_ = HWY_MIN(width_, left);
  }

  int64_t row_at(size_t lane) const {
    return first_ + static_cast<int64_t>(HWY_MIN(lane, live_ - 1));
  }

  float *share_of_dq(int64_t chunk) const {
    return job_.dq + (chunk * job_.rows_all + row_number() + first_) * p_.dim_qk;
  }

  void store_queries(int64_t chunks) {
    const DF d;
    const size_t count = dim_ * width_;
    const VF scale = hn::Set(d, p_.scale);
    for (size_t x = 0; x < count; x += lanes_) {
      VF sum = hn::Zero(d);
      for (int64_t c = 0; c < chunks; ++c) sum = hn::Add(sum, hn::Load(d, share_of_dq(c) + x));
      hn::Store(hn::Add(hn::Mul(sum, scale), hn::Zero(d)), d, s_.q_t + x);
    }
    for (size_t r = 0; r < live_; r += kGroup) {
      columns_to_rows(s_.q_t + r, width_, dim_, s_.q, ld_);
      for (size_t t = 0; t < kGroup && r + t < live_; ++t) {
        const int64_t row = row_at(r + t);
        float *line = s_.q + t * ld_;
        // An empty row has no gradient, whatever K holds.
        if (args_.lse[offset_of(p_.lse, row)] == -__builtin_inff()) memset(line, 0, dim_ * sizeof(float));
        store_gradient(p_.dq, args_.dq, offset_of(p_.dq, row), TSR_ACCUMULATE_DQ, line, dim_);
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
    if (want_q_) {
      first_ = 0;
      const int64_t padded =
          tsri_cpu_padded_rows(seq_.q.len, job_.problem->group, job_.tiles.lanes);
      memset(share_of_dq(chunk), 0, static_cast<size_t>(padded) * dim_ * sizeof(float));
    }
    for (int64_t j = begin; j < end; j += job_.tiles.panel)
      run_panel(j, HWY_MIN(j + job_.tiles.panel, end));
  }

  // All rows against keys [begin, end).
  void run_panel(int64_t begin, int64_t end) {
    const size_t n = static_cast<size_t>(end - begin);
    bool loaded = false;
    panel_ = begin;
    if (want_k_) memset(s_.dk, 0, n * ld_ * sizeof(float));
    if (want_v_) memset(s_.dv, 0, n * ld_v_ * sizeof(float));
    for (int64_t first = 0; first < rows_; first += static_cast<int64_t>(width_)) {
      start_block(first);
      const int64_t i0 = query_of(first), i1 = query_of(row_at(live_ - 1)) + 1;
      const tsri_mask_row seen = tsri_mask_rows_of(&rule_, i0, i1);
      int64_t key;
      size_t keys;
      trim_keys(seen, begin, end, &key, &keys);
      if (keys == 0) continue;
      if (!loaded) {
        const int64_t row = seq_.k.begin + begin;
        k_ = load_keys(job_.pages, p_.k, args_.k, dim_, b_, g_, row, n, s_.k, s_.lines);
        if (want_s_) v_ = load_keys(job_.pages, p_.v, args_.v, dim_v_, b_, g_, row, n, s_.v, s_.lines);
        loaded = true;
      }
      load_block();
      for (int64_t j = begin; j < end; j += job_.tiles.keys)
        run_tile(seen, i0, i1, j, HWY_MIN(j + job_.tiles.keys, end));
    }
    if (want_k_) store_keys(p_.dk, args_.dk, TSR_ACCUMULATE_DK, s_.dk, ld_, dim_, n, p_.scale);
    if (want_v_) store_keys(p_.dv, args_.dv, TSR_ACCUMULATE_DV, s_.dv, ld_v_, dim_v_, n, 1.0f);
  }

  void store_keys(const tsr_layout &layout, void *base, uint32_t accumulate, float *rows, size_t ld,
                  size_t dim, size_t n, float factor) {
    const DF d;
    const VF f = hn::Set(d, factor);
    for (size_t r = 0; r < n; ++r, rows += ld) {
      for (size_t x = 0; x < ld; x += lanes_)
        hn::Store(hn::Add(hn::Mul(hn::Load(d, rows + x), f), hn::Zero(d)), d, rows + x);
      store_gradient(layout, base,
                     tsri_row_offset(layout.stride, b_, g_,
                                     seq_.k.begin + panel_ + static_cast<int64_t>(r)),
                     accumulate, rows, dim);
    }
  }

  // Coordinates, LSE and D of the block's rows; Q and dO as rows and transposed.
  void load_block() {
    const int64_t number = row_number() + first_;
    for (size_t r = 0; r < width_; ++r) {
      const int64_t row = row_at(r);
      s_.query[r] = query_of(row);
      s_.head[r] = head_of(row);
      const tsri_mask_row allowed = tsri_mask_row_of(&rule_, s_.query[r]);
      s_.from[r] = allowed.lo;
      s_.to[r] = allowed.hi;
      // Empty rows and lanes without a row: every P is 2^-inf = 0.
      const float lse = r < live_ ? args_.lse[offset_of(p_.lse, row)] : -__builtin_inff();
      s_.lse[r] = lse == -__builtin_inff() ? __builtin_inff() : lse;
      s_.d[r] = r < live_ && want_s_ ? job_.d[number + static_cast<int64_t>(r)] : 0.0f;
      if (p_.alibi != TSR_ALIBI_NONE)
        s_.slope[r] = args_.alibi[(p_.alibi == TSR_ALIBI_PER_HEAD ? 0 : b_ * p_.heads_q) + s_.head[r]];
    }
    load_rows(p_.q, args_.q, dim_, ld_, s_.q, s_.q_t);
    load_rows(p_.dout, args_.dout, dim_v_, ld_v_, s_.dout, s_.do_t);
  }

  void load_rows(const tsr_layout &layout, const void *base, size_t dim, size_t ld, float *rows,
                 float *columns) {
    for (size_t r = 0; r < width_; ++r) {
      float *row = rows + r * ld;
      if (r < live_)
        load_row_any(layout.dtype, base, offset_of(layout, row_at(r)), layout.stride[3], dim, row);
      for (size_t x = r < live_ ? dim : 0; x < ld; ++x) row[x] = 0.0f;
    }
    for (size_t r = 0; r < width_; r += kGroup) {
      const float *lines[kGroup];
      for (size_t t = 0; t < kGroup; ++t) lines[t] = rows + (r + t) * ld;
      rows_to_columns(lines, dim, columns + r, width_);
    }
  }

  void run_tile(const tsri_mask_row &seen, int64_t i0, int64_t i1, int64_t begin, int64_t end) {
    ScoreTile t;
    trim_keys(seen, begin, end, &t.key, &t.keys);
    if (t.keys == 0) return;
    const tsri_tile_class kind = tsri_mask_tile_class(&rule_, i0, i1, t.key,
                                                      t.key + static_cast<int64_t>(t.keys));
    if (kind == TSRI_TILE_SKIP) return;
    t.query = s_.query, t.head = s_.head, t.from = s_.from, t.to = s_.to, t.slope = s_.slope;
    t.width = width_;
    t.s = s_.s_t, t.term = s_.term, t.bias = s_.bias;
    t.lines = s_.lines, t.line = static_cast<size_t>(s_.line);
    t.lo = s_.lo, t.hi = s_.hi;
    const size_t vectors = width_ / lanes_;
    if (vectors == 3)
      fold<3>(t, kind);
    else if (vectors == 2)
      fold<2>(t, kind);
    else
      fold<1>(t, kind);
  }

  // [n][width] = rows of K or V times columns of the block.
  template <int NV>
  static HWY_NOINLINE void products(const float *keys, int64_t ld, size_t n, const float *columns,
                                    size_t dim, float *out) {
    VF unused = hn::Zero(DF());
    score_tile<NV, false>(keys, ld, n, columns, dim, out, unused, unused, unused);
  }

  template <int NV>
  static HWY_NOINLINE void add_queries(const float *k, int64_t ld, size_t n, const float *ds, size_t dim,
                                       float *dq) {
    const VF one = hn::Set(DF(), 1.0f);
    output_tile<NV>(k, ld, n, ds, dim, dq, one, one, one);
  }

  // One tile.
  template <int NV>
  void fold(const ScoreTile &t, tsri_tile_class kind) {
    const size_t n = t.keys, at = static_cast<size_t>(t.key - panel_);
    const float *k = k_.data + (t.key - panel_) * k_.ld;
    products<NV>(k, k_.ld, n, s_.q_t, dim_, s_.s_t);
    if (steps_.needed(kind)) {
      const auto cap = [this](float *s, size_t count) HWY_ATTR {
        softcap_gradient_tile(s, s_.slope_t, count, p_.softcap);
      };
      if (!steps_.apply(t, kind, p_.scale, cap)) return;
    }
    if (want_s_) products<NV>(v_.data + (t.key - panel_) * v_.ld, v_.ld, n, s_.do_t, dim_v_, s_.g_t);
    finish_scores(t);
    if (want_v_) rows_product(s_.s_t, width_, n, live_, s_.dout, ld_v_, s_.dv + at * ld_v_);
    if (!want_s_) return;
    if (want_bias_) add_bias(t);
    if (p_.softcap > 0) multiply_tile(s_.g_t, s_.slope_t, n * width_);
    if (want_q_) add_queries<NV>(k, k_.ld, n, s_.g_t, dim_, share_of_dq(chunk_));
    if (want_k_) rows_product(s_.g_t, width_, n, live_, s_.q, ld_, s_.dk + at * ld_);
  }

  // P and dS.
  HWY_NOINLINE void finish_scores(const ScoreTile &t) {
    const float factor = steps_.natural() ? 1.0f : p_.scale;
    float *s = s_.s_t, *g = s_.g_t;
    if (p_.dropout > 0) {
      const DF d;
      for (size_t x = 0; x < t.keys * width_; x += lanes_) hn::Store(hn::Set(d, 1.0f), d, s_.keep + x);
      steps_.drop(t, job_.drop_key, s_.keep);
      if (want_s_)
        gradient_tile<true, true>(s, g, s_.keep, t.keys, width_, s_.lse, s_.d, factor);
      else
        gradient_tile<false, true>(s, g, s_.keep, t.keys, width_, s_.lse, s_.d, factor);
    } else if (want_s_) {
      gradient_tile<true, false>(s, g, s_.keep, t.keys, width_, s_.lse, s_.d, factor);
    } else {
      gradient_tile<false, false>(s, g, s_.keep, t.keys, width_, s_.lse, s_.d, factor);
    }
  }

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

  const tsri_cpu_backward &job_;
  const tsr_problem &p_;
  const tsr_args &args_;
  ScoreSteps steps_;
  tsri_cpu_backward_scratch s_;
  size_t lanes_, dim_, dim_v_, ld_, ld_v_;
  bool want_q_, want_k_, want_v_, want_bias_;
  bool want_s_;  // dS is needed: for anything but dV
  int64_t b_ = 0, g_ = 0;
  tsri_sequence seq_ = {};
  tsri_mask_rule rule_ = {};
  int64_t rows_ = 0;  // of the sequence and KV head
  int64_t chunk_ = 0, panel_ = 0;
  Keys k_ = {}, v_ = {};  // of the panel
  int64_t first_ = 0;     // of the block
  size_t width_ = 0, live_ = 0;
};

void backward_rows(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  BackwardTask(*job, worker).run_rows(task);
}

void backward_keys(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  BackwardTask(*job, worker).run_keys(task);
}

void backward_queries(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  BackwardTask(*job, worker).run_queries(task);
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
