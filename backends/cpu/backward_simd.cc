// SPDX-License-Identifier: Apache-2.0
//
// Backward, compiled once per Highway target; backward.c runs the tasks. Three kinds:
//   rows     what P and dS need of some rows: from the stored LSE and O, or computed again (below);
//   keys     a chunk of keys of one sequence and KV head against all its rows: dK and dV of the chunk,
//            its dBias, and its share of dQ in float32;
//   queries  dQ of some rows: the shares of the chunks in order, times the scale.
// In a key task K, V, dK and dV of a panel of keys stay in L2 while blocks of rows pass; per tile of
// keys and block: S^T = K Q^T, the score steps, dP^T = V dO^T, P and dS, dQ^T += K^T dS^T,
// dV += P^T dO, dK += dS^T Q. Everything has one owner and one order, so results do not depend on
// threads; where sums are cut depends on the sequence's own lengths.
//
// P = exp(s - LSE) and D = rowsum(dO * O) - dLSE inherit the rounding of what forward stored: that of LSE
// is a relative error |LSE| 2^-24 of a whole row of P, that of a 16-bit O reaches D. Both are harmless in
// long rows of ordinary size. Where they are not, maximum, sum and D are computed from the scores again:
// at no cost in sequences short enough to be one tile, with two more products for rows of a large LSE
// and, if O has 16 bits, for rows of few keys.
#include <math.h>
#include <string.h>

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
    scale_ = p_.scale < 0 ? -p_.scale : p_.scale;
    natural_ = steps_.natural() ? 1.0f : scale_;
    unit_ = static_cast<float>(natural_ * TSRI_LOG2E);
    want_q_ = p_.dq.dtype != TSR_DTYPE_NONE;
    want_k_ = p_.dk.dtype != TSR_DTYPE_NONE;
    want_v_ = p_.dv.dtype != TSR_DTYPE_NONE;
    want_bias_ = p_.dbias.dtype != TSR_DTYPE_NONE;
    const bool scores = want_q_ || want_k_ || want_bias_;
    key_tasks_ = scores || want_v_;
    want_s_ = scores || p_.dsink != 0;
  }

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

  // Whether all keys of the sequence are one tile.
  bool whole() const { return key_tasks_ && seq_.k.len <= job_.tiles.whole; }

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
      sum = hn::MulAdd(hn::LoadU(d, dout + x), hn::LoadU(d, o + x), sum);
    return hn::GetLane(hn::SumOfLanes(d, sum)) - upstream_lse(row);
  }

  float upstream_lse(int64_t row) const {
    return p_.dlse.dtype == TSR_DTYPE_NONE ? 0.0f : args_.dlse[offset_of(p_.dlse, row)];
  }

  float stored_lse(int64_t row) const { return args_.lse[offset_of(p_.lse, row)]; }

  // Whether the stored LSE and O of the block's rows are accurate enough.
  bool trusted() const {
    constexpr int64_t kFewKeys = 128, kFewRows = 64;
    const float large = p_.q.dtype == TSR_DTYPE_F32 ? 16.0f : 256.0f;
    if (rows_ < kFewRows || natural_ < 1e-20f) return false;  // LSE / natural_ may not overflow
    for (size_t r = 0; r < live_; ++r) {
      const float lse = stored_lse(row_at(r));
      if ((lse > large || lse < -large) && lse != -__builtin_inff()) return false;
    }
    if (p_.o.dtype == TSR_DTYPE_F32) return true;
    const tsri_mask_row seen = seen_keys();
    return seen.prefix + seen.hi - seen.lo > kFewKeys;
  }

  void use_stored() {
    for (size_t r = 0; r < live_; ++r) {
      const int64_t row = row_at(r);
      const float lse = stored_lse(row);
      // An empty row: every P is 2^-inf = 0. Else e^(ref - LSE) makes up for the rounding of ref.
      const bool empty = lse == -__builtin_inff();
      s_.ref[r] = empty ? __builtin_inff() : lse / natural_;
      const double more = static_cast<double>(s_.ref[r]) * natural_ - static_cast<double>(lse);
      s_.inverse[r] = empty ? 1.0f : static_cast<float>(1.0 + more);
      s_.d[r] = want_s_ ? row_delta(row) : 0.0f;
      s_.p_sink[r] = 0.0f;
      if (p_.dsink && !empty) s_.p_sink[r] = expf(args_.sink[head_of(row)] - lse);
    }
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

  void start_state() {
    for (size_t r = 0; r < width_; ++r) {
      s_.m[r] = -__builtin_inff();
      s_.l[r] = s_.e[r] = 0.0f;
    }
  }

  // From m, l and e to what P and dS need.
  void finish_state() {
    const DF d;
    const VF natural = hn::Set(d, natural_);
    float *sink = s_.lines, *dlse = s_.lines + s_.line;
    for (size_t r = 0; r < width_; ++r) {
      sink[r] = p_.sink ? args_.sink[head_of(row_at(r))] : -__builtin_inff();
      dlse[r] = upstream_lse(row_at(r));
    }
    for (size_t x = 0; x < width_; x += lanes_) {
      const VF m = hn::Load(d, s_.m + x), l = hn::Load(d, s_.l + x), logit = hn::LoadU(d, sink + x);
      VF inverse = Recurrence::inverse_sum(l), p_sink = hn::Zero(d);
      if (p_.sink) {
        // Weights of the keys and of the sink against the larger of both.
        const VF top_m = hn::Mul(m, natural), top = Recurrence::new_max(top_m, logit);
        const VF w = Recurrence::weight(top_m, top), v = Recurrence::weight(logit, top);
        const VF all = Recurrence::inverse_sum(Recurrence::new_sum(l, w, v));
        inverse = hn::Mul(w, all);
        p_sink = hn::Mul(v, all);
      }
      const VF delta = hn::MulSub(hn::Load(d, s_.e + x), inverse, hn::LoadU(d, dlse + x));
      // No key: P is 0.
      hn::Store(RowPolicy::select_eq(l, hn::Zero(d), hn::Set(d, __builtin_inff()), m), d, s_.ref + x);
      hn::Store(inverse, d, s_.inverse + x);
      hn::Store(p_sink, d, s_.p_sink + x);
      hn::Store(delta, d, s_.d + x);
    }
  }

  // The block's state into the job's arrays.
  void keep_state() const {
    const int64_t at = row_number() + first_;
    memcpy(job_.ref + at, s_.ref, live_ * sizeof(float));
    memcpy(job_.inverse + at, s_.inverse, live_ * sizeof(float));
    memcpy(job_.d + at, s_.d, live_ * sizeof(float));
    if (p_.dsink) memcpy(job_.p_sink + at, s_.p_sink, live_ * sizeof(float));
  }

  // The reverse. Lanes without a row: every P is 0.
  void recall_state() {
    const int64_t at = row_number() + first_;
    for (size_t r = 0; r < width_; ++r) {
      const int64_t i = at + static_cast<int64_t>(r);
      s_.ref[r] = r < live_ ? job_.ref[i] : __builtin_inff();
      s_.inverse[r] = r < live_ ? job_.inverse[i] : 1.0f;
      s_.d[r] = r < live_ ? job_.d[i] : 0.0f;
    }
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

  // Keys that some row of the block may see.
  tsri_mask_row seen_keys() const {
    return tsri_mask_rows_of(&rule_, query_of(first_), query_of(row_at(live_ - 1)) + 1);
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
    const int64_t step = whole() ? n : job_.tiles.keys;
    panel_ = begin;
    k_.data = nullptr;
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

  // K and V of keys [begin, begin + n), once the block sees any of them; false if it does not.
  bool load_panel(int64_t begin, size_t n, const tsri_mask_row &seen, int64_t end) {
    int64_t key;
    size_t keys;
    trim_keys(seen, begin, end, &key, &keys);
    if (keys == 0) return false;
    if (k_.data && panel_loaded_ == begin) return true;
    const int64_t row = seq_.k.begin + begin;
    k_ = load_keys(job_.pages, p_.k, args_.k, dim_, b_, g_, row, n, s_.k, s_.lines);
    if (want_s_) v_ = load_keys(job_.pages, p_.v, args_.v, dim_v_, b_, g_, row, n, s_.v, s_.lines);
    panel_loaded_ = begin;
    return true;
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

  // Coordinates of the block's rows; Q and dO as rows and transposed.
  void load_block() {
    for (size_t r = 0; r < width_; ++r) {
      const int64_t row = row_at(r);
      s_.query[r] = query_of(row);
      s_.head[r] = head_of(row);
      const tsri_mask_row allowed = tsri_mask_row_of(&rule_, s_.query[r]);
      s_.from[r] = allowed.lo;
      s_.to[r] = allowed.hi;
      if (p_.alibi != TSR_ALIBI_NONE)
        s_.slope[r] = args_.alibi[(p_.alibi == TSR_ALIBI_PER_HEAD ? 0 : b_ * p_.heads_q) + s_.head[r]];
    }
    load_rows(p_.q, args_.q, dim_, ld_, s_.q, s_.q_t);
    if (p_.scale < 0) scale_tile(s_.q_t, dim_ * width_, -1.0f);
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

  // What a tile is for: rows of known state; their state; both at once, the tile being all keys.
  enum Purpose { kKnown, kState, kWhole };

  void run_tile(const tsri_mask_row &seen, int64_t begin, int64_t end, Purpose purpose) {
    ScoreTile t;
    tsri_tile_class kind = TSRI_TILE_SKIP;
    trim_keys(seen, begin, end, &t.key, &t.keys);
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
    if (vectors == 3)
      fold<3>(t, kind, purpose);
    else if (vectors == 2)
      fold<2>(t, kind, purpose);
    else
      fold<1>(t, kind, purpose);
  }

  // [n][width] = rows of K or V times columns of the block.
  template <int NV>
  static HWY_NOINLINE void products(const float *keys, int64_t ld, size_t n, const float *columns,
                                    size_t dim, float *out) {
    score_tile<NV>(keys, ld, n, columns, dim, out);
  }

  template <int NV>
  static HWY_NOINLINE void add_queries(const float *k, int64_t ld, size_t n, const float *ds, size_t dim,
                                       float *dq) {
    const VF one = hn::Set(DF(), 1.0f);
    output_tile<NV>(k, ld, n, ds, dim, dq, one, one, one);
  }

  // One tile.
  template <int NV>
  void fold(const ScoreTile &t, tsri_tile_class kind, Purpose purpose) {
    if (t.keys == 0 || !load_scores<NV>(t, kind)) {
      if (purpose == kWhole) end_state();
      return;
    }
    if (want_s_)
      products<NV>(v_.data + (t.key - panel_) * v_.ld, v_.ld, t.keys, s_.do_t, dim_v_, s_.g_t);
    if (p_.dropout > 0) load_keep(t);
    // Without dropout and dP the passes have less to do.
    if (want_s_)
      p_.dropout > 0 ? finish_scores<true, true>(t, purpose) : finish_scores<true, false>(t, purpose);
    else
      p_.dropout > 0 ? finish_scores<false, true>(t, purpose)
                     : finish_scores<false, false>(t, purpose);
    if (purpose != kState) add_gradients<NV>(t);
  }

  // S^T with all steps up to the mask; false if no key is allowed.
  template <int NV>
  bool load_scores(const ScoreTile &t, tsri_tile_class kind) {
    products<NV>(k_.data + (t.key - panel_) * k_.ld, k_.ld, t.keys, s_.q_t, dim_, s_.s_t);
    if (!steps_.needed(kind)) return true;
    const auto cap = [this](float *s, size_t count) HWY_ATTR {
      softcap_gradient_tile(s, s_.slope_t, count, p_.softcap);
    };
    return steps_.apply(t, kind, scale_, cap);
  }

  // P and dS of a tile, or the rows' state.
  template <bool kGrad, bool kDrop>
  HWY_NOINLINE void finish_scores(const ScoreTile &t, Purpose purpose) {
    float *s = s_.s_t, *g = s_.g_t;
    if (purpose == kKnown)
      return gradient_tile<kGrad, kDrop>(s, g, s_.keep, t.keys, width_, s_.ref, s_.inverse, s_.d,
                                         unit_);
    state_tile<kGrad, kDrop>(s, g, s_.keep, t.keys, width_, unit_, s_.m, s_.l, s_.e);
    if (purpose == kState) return;
    end_state();
    finish_tile<kGrad, kDrop>(s, g, s_.keep, t.keys, width_, s_.inverse, s_.d);
  }

  void end_state() {
    finish_state();
    keep_state();
  }

  HWY_NOINLINE void load_keep(const ScoreTile &t) {
    const DF d;
    for (size_t x = 0; x < t.keys * width_; x += lanes_) hn::Store(hn::Set(d, 1.0f), d, s_.keep + x);
    steps_.drop(t, job_.drop_key, s_.keep);
  }

  // A tile's P and dS into every gradient. dQ takes few keys at a time: its sums and rounding errors,
  // and what it reads again per dim, stay small.
  template <int NV>
  void add_gradients(const ScoreTile &t) {
    const size_t at = static_cast<size_t>(t.key - panel_), n = t.keys;
    if (want_v_) rows_product(s_.s_t, width_, n, live_, s_.dout, ld_v_, s_.dv + at * ld_v_);
    if (want_bias_) add_bias(t);
    if (!want_q_ && !want_k_) return;
    if (p_.softcap > 0) multiply_tile(s_.g_t, s_.slope_t, n * width_);
    const float *k = k_.data + (t.key - panel_) * k_.ld;
    const size_t step = static_cast<size_t>(job_.tiles.keys);
    for (size_t j = 0; want_q_ && j < n; j += step)
      add_queries<NV>(k + static_cast<int64_t>(j) * k_.ld, k_.ld, HWY_MIN(step, n - j),
                      s_.g_t + j * width_, dim_, share_of_dq(chunk_));
    if (want_k_) rows_product(s_.g_t, width_, n, live_, s_.q, ld_, s_.dk + at * ld_);
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
  float scale_;           // magnitude; the sign goes into Q^T
  float natural_, unit_;  // positive factors from scores to natural ones and to base two
  bool want_q_, want_k_, want_v_, want_bias_;
  bool want_s_;     // dS is needed: for anything but dV
  bool key_tasks_;  // key tasks are run
  int64_t b_ = 0, g_ = 0;
  tsri_sequence seq_ = {};
  tsri_mask_rule rule_ = {};
  int64_t rows_ = 0;  // of the sequence and KV head
  int64_t chunk_ = 0, panel_ = 0, panel_loaded_ = 0;
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
