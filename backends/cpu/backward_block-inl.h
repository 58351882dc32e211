// SPDX-License-Identifier: Apache-2.0
//
// What a backward task knows of its place, per Highway target: the sequence and KV head, a block of
// rows with Q and dO as rows and transposed, a panel of keys, and the rows' state, which turns
// scores into P and dS:
//   P = 2^((s - ref) unit) inverse      D = sum of keep P dP, minus dLSE      p_sink = e^(sink -
//   LSE)
// The state comes from the stored LSE and O, or from sums over the scores (backward_simd.cc says
// when).
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backward_job.h"
#include "block-inl.h"
#include "convert-inl.h"
#include "gradient-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

#if defined(TESSERA_CPU_BACKWARD_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_BACKWARD_BLOCK_INL_H_
    #undef TESSERA_CPU_BACKWARD_BLOCK_INL_H_
  #else
    #define TESSERA_CPU_BACKWARD_BLOCK_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// One block of rows of one sequence and KV head, and a panel of its keys.
class BackwardBlock {
 protected:
  // K and V of keys [begin, begin + n) of a panel, as operands of products.
  virtual void pack_panel(int64_t, size_t) {}
  // Q and dO of the block, as operands.
  virtual void pack_block() {}

  BackwardBlock(const tsri_cpu_backward &job, int32_t worker)
      : job_(job), p_(job.problem->p), args_(*job.args), steps_(*job.problem, *job.args) {
    tsri_workspace ws = {job.scratch + worker * job.scratch_bytes, 0};
    s_ = tsri_cpu_backward_scratch_take(&ws, &p_, &job.tiles);
    lanes_ = hn::Lanes(DF());
    dim_ = static_cast<size_t>(p_.dim_qk);
    dim_v_ = static_cast<size_t>(p_.dim_v);
    const size_t unit = static_cast<size_t>(job.tiles.lanes);
    ld_ = (dim_ + unit - 1) / unit * unit;
    ld_v_ = (dim_v_ + unit - 1) / unit * unit;
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

  int64_t head_of(int64_t row) const {
    return g_ * job_.problem->group + row % job_.problem->group;
  }
  int64_t query_of(int64_t row) const { return row / job_.problem->group; }
  // Element offset of a row in a [B, Hq, Sq, ..] tensor.
  int64_t offset_of(const tsr_layout &layout, int64_t row) const {
    return tsri_row_offset(layout.stride, b_, head_of(row), seq_.q.begin + query_of(row));
  }

  // A row of dO or O as float32 and whole vectors: where it is, or in line t.
  const float *whole_row(const tsr_layout &layout, const void *base, int64_t row, int64_t t) {
    const int64_t at = offset_of(layout, row);
    if (in_place(layout, dim_v_)) return static_cast<const float *>(base) + at;
    float *line = s_.lines + t * s_.line;
    load_row_any(layout.dtype, base, at, layout.stride[3], dim_v_, line);
    for (size_t x = dim_v_; x < ld_v_; ++x) line[x] = 0.0f;
    return line;
  }

  // Whether rows lie in memory as they are read: float32 in whole units of ld_ and ld_v_, which on tiles
  // are two vectors.
  bool in_place(const tsr_layout &layout, size_t dim) const {
    return layout.dtype == TSR_DTYPE_F32 && layout.stride[3] == 1 &&
           dim % static_cast<size_t>(job_.tiles.lanes) == 0;
  }

  float row_delta(int64_t row) {
    const DF d;
    const float *dout = whole_row(p_.dout, args_.dout, row, 0);
    const float *o = whole_row(p_.o, args_.o, row, 1);
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
    const float *most = job_.most ? job_.most + b_ * p_.heads_kv + g_ : nullptr;
    const float large = p_.q.dtype != TSR_DTYPE_F32 ? 256.0f : most ? *most : 16.0f;
    if (rows_ < kFewRows || natural_ < 1e-20f) return false;  // LSE / natural_ may not overflow
    for (size_t r = 0; r < live_; ++r) {
      const float lse = stored_lse(row_at(r));
      if ((lse > large || lse < -large) && lse != -__builtin_inff()) return false;
    }
    if (p_.o.dtype != TSR_DTYPE_F32) {
      const tsri_mask_row seen = seen_keys();
      const int64_t keys = seen.prefix + seen.hi - seen.lo;
      return keys > kFewKeys && !(most && p_.q.dtype != TSR_DTYPE_F32 && static_cast<float>(keys) > *most);
    }
    for (size_t r = 0; r < live_; ++r) {  // dS of one key is 0, which sums in two orders do not give
      const tsri_mask_row row = tsri_mask_row_of(&rule_, query_of(row_at(r)));
      if (tsri_mask_row_count(&row) <= 1) return false;
    }
    return true;
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

  void start_state() {
    for (size_t r = 0; r < width_; ++r) {
      s_.m[r] = -__builtin_inff();
      s_.l[r] = s_.e[r] = s_.l_rest[r] = s_.e_rest[r] = 0.0f;
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
      const VF m = hn::Load(d, s_.m + x), logit = hn::LoadU(d, sink + x);
      const VF l = whole_sum(hn::Load(d, s_.l + x), hn::Load(d, s_.l_rest + x));
      const VF e = whole_sum(hn::Load(d, s_.e + x), hn::Load(d, s_.e_rest + x));
      VF inverse = Recurrence::inverse_sum(l), p_sink = hn::Zero(d);
      // Not e times inverse: P sums to l times inverse, and the rounding of inverse would leave a
      // multiple of D in the sum of dS.
      VF mean = RowPolicy::select_eq(l, hn::Zero(d), hn::Zero(d), hn::Div(e, l));
      if (p_.sink) {
        // Weights of the keys and of the sink against the larger of both.
        const VF top_m = hn::Mul(m, natural), top = Recurrence::new_max(top_m, logit);
        const VF w = Recurrence::weight(top_m, top), v = Recurrence::weight(logit, top);
        const VF all = Recurrence::inverse_sum(Recurrence::new_sum(l, w, v));
        inverse = hn::Mul(w, all);
        p_sink = hn::Mul(v, all);
        mean = hn::Mul(e, inverse);
      }
      const VF delta = hn::Sub(mean, hn::LoadU(d, dlse + x));
      // No key: P is 0.
      hn::Store(RowPolicy::select_eq(l, hn::Zero(d), hn::Set(d, __builtin_inff()), m), d,
                s_.ref + x);
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
    const size_t most = static_cast<size_t>(tsri_cpu_block_rows(&job_.tiles));
    const size_t unit = static_cast<size_t>(job_.tiles.lanes);
    width_ = HWY_MIN(most, (left + unit - 1) / unit * unit);
    live_ = HWY_MIN(width_, left);
  }

  int64_t row_at(size_t lane) const {
    return first_ + static_cast<int64_t>(HWY_MIN(lane, live_ - 1));
  }

  // Keys that some row of the block may see.
  tsri_mask_row seen_keys() const {
    return tsri_mask_rows_of(&rule_, query_of(first_), query_of(row_at(live_ - 1)) + 1);
  }

  // K and V of keys [begin, begin + n), once the block sees any of them; false if it does not.
  bool load_panel(int64_t begin, size_t n, const tsri_mask_row &seen, int64_t end) {
    int64_t key;
    size_t keys;
    trim_keys(seen, begin, end, job_.tiles.amx ? 32 : 8, &key, &keys);
    if (keys == 0) return false;
    if (packed_ && panel_loaded_ == begin) return true;
    pack_panel(begin, n);
    packed_ = true;
    panel_loaded_ = begin;
    return true;
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
        s_.slope[r] =
            args_.alibi[(p_.alibi == TSR_ALIBI_PER_HEAD ? 0 : b_ * p_.heads_q) + s_.head[r]];
    }
    pack_block();
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
  int64_t panel_ = 0, panel_loaded_ = 0;
  bool packed_ = false;  // the panel's operands are there
  int64_t first_ = 0;     // of the block
  size_t width_ = 0, live_ = 0;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_BACKWARD_BLOCK_INL_H_
