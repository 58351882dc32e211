// SPDX-License-Identifier: Apache-2.0
//
// A unit of the split kernel, per Highway target: a tile of rows of one sequence and KV head. Which
// rows and chunk a task has, its rows of Q on their way in, the state of a chunk into its part, and
// the merge of all parts of a unit, in order of keys, into rows of O, LSE and maxima. What happens
// between is SplitTask's in decode_simd.cc.
#include "block-inl.h"
#include "common/score.h"
#include "decode-inl.h"
#include "decode_eight-inl.h"
#include "decode_job.h"

#if defined(TESSERA_CPU_DECODE_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_DECODE_UNIT_INL_H_
    #undef TESSERA_CPU_DECODE_UNIT_INL_H_
  #else
    #define TESSERA_CPU_DECODE_UNIT_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

class SplitUnit {
 protected:
  SplitUnit(const tsri_cpu_split &job, int64_t task, int32_t worker)
      : job_(job), p_(job.problem->p), args_(*job.args), steps_(*job.problem, *job.args) {
    tsri_workspace ws = {job.scratch + worker * job.scratch_bytes, 0};
    s_ = tsri_cpu_scratch_take(&ws, &p_, &job.tiles);
    own_ = tsri_cpu_split_scratch_take(&ws, &p_, &job.tiles);
    line_ = static_cast<size_t>(tsri_cpu_line_width(&p_, &job.tiles));
    lanes_ = hn::Lanes(DF());
    dim_ = static_cast<size_t>(p_.dim_qk);
    dim_v_ = static_cast<size_t>(p_.dim_v);
    wide_dim_ = static_cast<size_t>(tsri_cpu_padded_dim(p_.dim_qk, &job.tiles));
    wide_dim_v_ = static_cast<size_t>(tsri_cpu_padded_dim(p_.dim_v, &job.tiles));
    scale_ = p_.scale < 0 ? -p_.scale : p_.scale;
    natural_ = steps_.natural();
    unit_ = static_cast<float>(natural_ ? TSRI_LOG2E : scale_ * TSRI_LOG2E);
    k_bytes_ = tsri_dtype_bytes(p_.k.dtype);
    locate(task);
    const tsr_dtype v = p_.v.dtype;
    k_in_place_ =
        narrow_ && p_.k.dtype == TSR_DTYPE_F32 && p_.k.stride[3] == 1 && dim_ == wide_dim_;
    halves_k_ = narrow_ && in_halves(p_.k.dtype, dim_, lanes_);
    v_in_place_ = narrow_ && p_.v.stride[3] == 1 && dim_v_ == wide_dim_v_ &&
                  (v == TSR_DTYPE_F32 || v == TSR_DTYPE_F16 || v == TSR_DTYPE_I8 ||
                   in_halves(v, dim_v_, lanes_));
    eight_ = narrow_ == 8 && lanes_ == 16 && can_take_eight(p_);
  }

  // Sequence, KV head, tile and chunk of a task number.
  void locate(int64_t task) {
    int64_t low = 0, high = p_.batch;  // first_task[low] <= task < first_task[high]
    while (high - low > 1) {
      const int64_t mid = low + (high - low) / 2;
      (job_.first_task[mid] <= task ? low : high) = mid;
    }
    b_ = low;
    seq_ = tsri_sequence_of(&p_, &args_, b_);
    rule_ = tsri_sequence_rule(&p_, &seq_);
    steps_.start_sequence(b_, rule_);
    cut_ = tsri_cpu_cut_of(&seq_, &rule_, job_.problem->group, job_.tiles.rows);
    const int64_t index = task - job_.first_task[b_];
    chunk_ = index % cut_.count;
    unit_ix_ = index / cut_.count;
    unit_index_ = job_.first_unit[b_] + unit_ix_;
    g_ = unit_ix_ / cut_.tiles;
    row0_ = unit_ix_ % cut_.tiles * job_.tiles.rows;
    rows_ = static_cast<size_t>(HWY_MIN(cut_.rows - row0_, job_.tiles.rows));
    part_rows_ = static_cast<size_t>(tsri_cpu_part_rows(cut_.rows, &job_.tiles));
    narrow_ = narrow_rows(static_cast<size_t>(cut_.rows));
    // Blocks of up to 3 vectors of rows, as even as can be.
    const size_t vectors = (rows_ + lanes_ - 1) / lanes_, most = kMaxVectors;
    const size_t blocks = (vectors + most - 1) / most;
    block_ = (vectors + blocks - 1) / blocks * lanes_;
  }

  // Offset of the part of a chunk of this unit.
  int64_t part_at(int64_t chunk) const {
    return job_.first_part[b_] +
           (unit_ix_ * cut_.count + chunk) * tsri_cpu_part_floats(cut_.rows, p_.dim_v, &job_.tiles);
  }

  // Rows that the narrow kernels would work with for a sequence of so many; 0: it takes query
  // lanes.
  size_t narrow_rows(size_t rows) const {
  #if HWY_TARGET != HWY_SCALAR
    for (size_t r = 1; r <= 8 && r < lanes_; r *= 2)
      if (r >= rows && can_repeat(lanes_, lanes_ / r)) return r;
  #else
    (void)rows;
  #endif
    return 0;
  }

  size_t block_lanes(size_t first) const {
    if (narrow_) return lanes_;
    return HWY_MIN(block_, (rows_ - first + lanes_ - 1) / lanes_ * lanes_);
  }

  // ------------------------------------------------------------------------------- rows of Q

  void load_rows() {
    const int64_t group = job_.problem->group;
    const size_t padded = (rows_ + lanes_ - 1) / lanes_ * lanes_;
    int64_t query = row0_ / group, member = row0_ % group;
    tsri_mask_row allowed = tsri_mask_row_of(&rule_, query);
    for (size_t r = 0; r < padded; ++r) {
      s_.query[r] = query;
      s_.head[r] = g_ * group + member;
      s_.from[r] = allowed.lo;
      s_.to[r] = allowed.hi;
      s_.m[r] = -__builtin_inff();
      s_.l[r] = 0.0f;
      if (p_.alibi != TSR_ALIBI_NONE) {
        const int64_t row_of = p_.alibi == TSR_ALIBI_PER_HEAD ? 0 : b_ * p_.heads_q;
        s_.slope[r] = args_.alibi[row_of + s_.head[r]];
      }
      if (r + 1 < rows_ && ++member == group) {  // lanes beyond the last row repeat it
        member = 0;
        allowed = tsri_mask_row_of(&rule_, ++query);
      }
    }
    if (narrow_) return load_narrow();
    memset(s_.o_t, 0, padded * dim_v_ * sizeof(float));
    for (size_t first = 0; first < rows_; first += block_) {
      const size_t width = block_lanes(first);
      for (size_t r = 0; r < width; r += kGroup) {
        const float *lines[kGroup];
        for (size_t t = 0; t < kGroup; ++t) lines[t] = query_line(first + r + t, t);
        rows_to_columns(lines, dim_, s_.q_t + first * dim_ + r, width);
      }
      if (p_.scale < 0) scale_tile(s_.q_t + first * dim_, dim_ * width, -1.0f);
    }
  }

  void load_narrow() {
    const size_t phases = eight_ ? 4 : lanes_ / narrow_;
    memset(own_.q, 0, wide_dim_ * narrow_ * sizeof(float));
    memset(own_.o, 0, narrow_ * wide_dim_v_ * sizeof(float));
    const float sign = p_.scale < 0 ? -1.0f : 1.0f;
    for (size_t r = 0; r < rows_; ++r) {
      const float *line = query_line(r, 0);
      if (halves_k_) line = part_halves(line, s_.lines + line_);
      float *to = own_.q + r * phases;
      if (phases == 2)
        spread_row<2>(line, sign, to);
      else if (phases == 4)
        spread_row<4>(line, sign, to);
      else if (phases == 8)
        spread_row<8>(line, sign, to);
      else
        spread_row<16>(line, sign, to);
    }
  }

  // A row of Q in runs of kPhases, one per group of them of all rows.
  template <size_t kPhases>
  void spread_row(const float *HWY_RESTRICT line, float sign, float *HWY_RESTRICT to) const {
    size_t x = 0;
    for (; x + kPhases <= dim_; x += kPhases, to += kPhases * narrow_)
      for (size_t e = 0; e < kPhases; ++e) to[e] = sign * line[x + e];
    for (; x < dim_; ++x) *to++ = sign * line[x];
  }

  // Elements in the order of load_halves.
  const float *part_halves(const float *line, float *out) const {
    const DF d;
    for (size_t x = 0; x < dim_; x += 2 * lanes_) {
      VF even, odd;
      hn::LoadInterleaved2(d, line + x, even, odd);
      hn::StoreU(even, d, out + x);
      hn::StoreU(odd, d, out + x + lanes_);
    }
    return out;
  }

  // A row of Q as float32: where it is, or converted into line t.
  const float *query_line(size_t r, size_t t) {
    float *line = s_.lines + t * line_;
    if (r >= rows_) {
      memset(line, 0, dim_ * sizeof(float));
      return line;
    }
    const int64_t at = tsri_row_offset(p_.q.stride, b_, s_.head[r], seq_.q.begin + s_.query[r]);
    if (p_.q.dtype == TSR_DTYPE_F32 && p_.q.stride[3] == 1)
      return static_cast<const float *>(args_.q) + at;
    load_row_any(p_.q.dtype, args_.q, at, p_.q.stride[3], dim_, line);
    return line;
  }

  // ------------------------------------------------------------------------ parts and their merge

  void store_part(float *part) {
    part[0] = found_ ? 1.0f : 0.0f;
    if (!found_) return;
    float *m = part + TSRI_CPU_PART_HEAD, *l = m + part_rows_, *acc = l + part_rows_;
  #if HWY_TARGET != HWY_SCALAR
    if (narrow_) {
      const size_t phases = lanes_ / narrow_;
      HWY_ALIGN_MAX float shares[HWY_MAX_BYTES / sizeof(float)];
      const VF share = hn::Load(DF(), s_.l);
      const VF sum = phases == 2   ? sum_phases<2>(share)
                     : phases == 4 ? sum_phases<4>(share)
                     : phases == 8 ? sum_phases<8>(share)
                                   : sum_phases<16>(share);
      hn::Store(sum, DF(), shares);
      for (size_t r = 0; r < part_rows_; ++r) {
        const size_t lane = HWY_MIN(r, rows_ - 1) * phases;
        m[r] = s_.m[lane], l[r] = shares[lane];
      }
      for (size_t r = 0; r < rows_; ++r) store_acc(own_.o + r * wide_dim_v_, acc + r * wide_dim_v_);
      return;
    }
  #endif
    for (size_t r = 0; r < part_rows_; ++r) {
      m[r] = s_.m[HWY_MIN(r, rows_ - 1)];
      l[r] = s_.l[HWY_MIN(r, rows_ - 1)];
    }
    for (size_t first = 0; first < rows_; first += block_) {
      const size_t width = block_lanes(first);
      for (size_t r = 0; r < width; r += kGroup) {
        columns_to_rows(s_.o_t + first * dim_v_ + r, width, dim_v_, s_.lines, line_);
        for (size_t t = 0; t < kGroup && first + r + t < rows_; ++t)
          memcpy(acc + (first + r + t) * wide_dim_v_, s_.lines + t * line_, dim_v_ * sizeof(float));
      }
    }
  }

  #if HWY_TARGET != HWY_SCALAR
  // A row of O; columns of even and odd dims are put together again.
  void store_acc(const float *HWY_RESTRICT o, float *HWY_RESTRICT acc) const {
    const DF d;
    if (!v_in_place_ || p_.v.dtype != TSR_DTYPE_BF16) {
      memcpy(acc, o, wide_dim_v_ * sizeof(float));
      return;
    }
    for (size_t x = 0; x < dim_v_; x += 2 * lanes_)
      hn::StoreInterleaved2(hn::Load(d, o + x), hn::Load(d, o + x + lanes_), d, acc + x);
  }
  #endif

  // All parts of this unit, in order of keys: one vector of rows at a time.
  HWY_NOINLINE void merge(const float *parts) {
    const size_t floats =
        static_cast<size_t>(tsri_cpu_part_floats(cut_.rows, p_.dim_v, &job_.tiles));
    for (size_t first = 0; first < rows_; first += lanes_) {
      const size_t live = HWY_MIN(lanes_, rows_ - first);
      merge_rows(parts, floats, first, live);
    }
  }

  void merge_rows(const float *parts, size_t floats, size_t first, size_t live) {
    const DF d;
    const size_t count = static_cast<size_t>(cut_.count);
    const VF unit = hn::Set(d, unit_);
    VF top = Recurrence::start_max(), sum = Recurrence::start_sum();
    for (size_t c = 0; c < count; ++c) {
      const float *part = parts + c * floats;
      if (part[0] != 0.0f)
        top = Recurrence::new_max(top, hn::LoadU(d, part + TSRI_CPU_PART_HEAD + first));
    }
    const VF ref = Recurrence::reference(top);
    memset(own_.o, 0, live * wide_dim_v_ * sizeof(float));
    for (size_t c = 0; c < count; ++c) {
      const float *part = parts + c * floats, *m = part + TSRI_CPU_PART_HEAD;
      if (part[0] == 0.0f) continue;
      const float *l = m + part_rows_, *acc = l + part_rows_;
      const VF weight = Recurrence::correction_in(unit, hn::LoadU(d, m + first), ref);
      sum = Recurrence::new_sum(hn::LoadU(d, l + first), weight, sum);
      hn::Store(weight, d, alpha_);
      for (size_t r = 0; r < live; ++r)
        add_row(acc + (first + r) * wide_dim_v_, alpha_[r], own_.o + r * wide_dim_v_);
    }
    finish_rows(first, live, top, sum);
  }

  HWY_INLINE void add_row(const float *HWY_RESTRICT acc, float weight,
                          float *HWY_RESTRICT o) const {
    const DF d;
    const VF w = hn::Set(d, weight);
    for (size_t x = 0; x < dim_v_; x += lanes_)
      hn::Store(Recurrence::new_sum(hn::LoadU(d, acc + x), w, hn::Load(d, o + x)), d, o + x);
  }

  // Divides by l and writes O, LSE and the maxima of one vector of rows. The sink joins here.
  void finish_rows(size_t first, size_t live, VF m, VF l) {
    const DF d;
    HWY_ALIGN_MAX float values[3][HWY_MAX_BYTES / sizeof(float)];
    const VF natural = hn::Set(d, natural_ ? 1.0f : scale_), logit = hn::Mul(m, natural);
    VF sum = l, factor = hn::Set(d, 1.0f), lse;
    if (p_.sink) {
      for (size_t t = 0; t < lanes_; ++t)
        values[0][t] = args_.sink[s_.head[first + HWY_MIN(t, live - 1)]];
      const VF sink = hn::Load(d, values[0]), top = Recurrence::new_max(logit, sink);
      factor = Recurrence::weight(logit, top);
      sum = Recurrence::new_sum(l, factor, Recurrence::weight(sink, top));
      lse = Recurrence::merged_lse(top, sum);
    } else {
      lse = Recurrence::log_sum_exp_in(natural, m, l);
    }
    // The running maximum drops NaN, the sum does not: it is NaN after a NaN or a +inf score.
    const auto lost =
        hn::And(hn::Not(hn::Eq(l, l)), hn::Not(hn::Eq(m, hn::Set(d, __builtin_inff()))));
    hn::Store(lse, d, values[0]);
    hn::Store(hn::IfThenElse(lost, l, logit), d, values[1]);
    hn::Store(Recurrence::rescale(Recurrence::inverse_sum(sum), factor), d, values[2]);
    for (size_t r = 0; r < live; ++r) {
      const int64_t head = s_.head[first + r], row = seq_.q.begin + s_.query[first + r];
      float *o = own_.o + r * wide_dim_v_;
      // Empty rows are cleared, not multiplied by 0: V may hold infinities.
      if (values[2][r] == 0.0f && values[0][r] == -__builtin_inff())
        memset(o, 0, dim_v_ * sizeof(float));
      else
        finish_row(o, values[2][r]);
      store_row_any(p_.o.dtype, o, dim_v_, args_.o, tsri_row_offset(p_.o.stride, b_, head, row),
                    p_.o.stride[3]);
      if (args_.lse) args_.lse[tsri_row_offset(p_.lse.stride, b_, head, row)] = values[0][r];
      if (args_.max_logit)
        args_.max_logit[tsri_row_offset(p_.max_logit.stride, b_, head, row)] = values[1][r];
    }
  }

  // Adding +0 turns -0 into +0: masked keys may have added zeros or not.
  void finish_row(float *o, float factor) const {
    const DF d;
    const VF f = hn::Set(d, factor);
    for (size_t x = 0; x < dim_v_; x += lanes_)
      hn::Store(hn::Add(hn::Mul(hn::Load(d, o + x), f), hn::Zero(d)), d, o + x);
  }

  const tsri_cpu_split &job_;
  const tsr_problem &p_;
  const tsr_args &args_;
  ScoreSteps steps_;
  tsri_cpu_scratch s_;
  tsri_cpu_split_scratch own_;
  HWY_ALIGN_MAX float alpha_[HWY_MAX_BYTES / sizeof(float)];
  size_t line_, lanes_, dim_, dim_v_, wide_dim_, wide_dim_v_;
  float scale_;      // magnitude; the sign goes into Q
  bool natural_;     // scores are scaled before softcap, bias or ALiBi; else they are dot products
  float unit_;       //   and unit_ times a difference of scores is in base two
  bool halves_k_;    // K in the order of load_halves
  bool k_in_place_;  // K is read where it lies
  bool v_in_place_;  // V is read where it lies
  bool eight_;       // the narrow form takes decode_eight-inl.h for scores
  bool found_ = false;  // the chunk has a key that some row may see
  int64_t k_bytes_;     // of an element of K or V
  int64_t b_, g_;
  tsri_sequence seq_;
  tsri_mask_rule rule_;
  tsri_cpu_cut cut_;
  int64_t chunk_, unit_ix_, unit_index_, row0_;
  size_t rows_, part_rows_;
  size_t narrow_;  // rows of the narrow form, or 0: query lanes
  size_t block_;   // of these
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_DECODE_UNIT_INL_H_
