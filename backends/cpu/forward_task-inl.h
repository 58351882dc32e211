// SPDX-License-Identifier: Apache-2.0
//
// What every forward kernel does with one task, per Highway target: which rows it has, what they may
// see, their state before the first key, and O, LSE and maxima from the state after the last. How
// scores and outputs are computed is the kernel's: forward_simd.cc (vectors), amx_forward_simd.cc
// (matrix tiles).
//
// A task is a tile of rows of one sequence and KV head. A row is a pair (query, head of the group),
// queries outermost, so that grouped heads share every load of K and V and a tile spans few
// queries. The tile is cut into blocks of kVectors vectors of rows; O^T of a block is
// [dim_v][width].
#include <string.h>

#include "block-inl.h"
#include "common/score.h"
#include "convert-inl.h"
#include "kernels.h"
#include "row_policy-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

#if defined(TESSERA_CPU_FORWARD_TASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_FORWARD_TASK_INL_H_
    #undef TESSERA_CPU_FORWARD_TASK_INL_H_
  #else
    #define TESSERA_CPU_FORWARD_TASK_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Rows of a task in at most kVectors vectors, and the keys they take in one step.
struct Block {
  size_t first;  // row of the task
  size_t live;   // rows that exist; lanes beyond repeat the last one's coordinates
  size_t width;  // lanes
  int64_t key;   // first key
  size_t keys;
  Zones zones;  // what of it the rows need
};

// kWhole: blocks always have kVectors vectors, else as many as their rows need.
template <int kVectors, bool kWhole>
class RowTask {
 protected:
  RowTask(const tsri_cpu_forward &job, int64_t task, int32_t worker)
      : job_(job), p_(job.problem->p), args_(*job.args), steps_(*job.problem, *job.args) {
    tsri_workspace ws = {job.scratch + worker * job.scratch_bytes, 0};
    s_ = tsri_cpu_scratch_take(&ws, &p_, &job.tiles);
    line_ = static_cast<size_t>(tsri_cpu_line_width(&p_, &job.tiles));
    lanes_ = hn::Lanes(DF());
    dim_ = static_cast<size_t>(p_.dim_qk);
    dim_v_ = static_cast<size_t>(p_.dim_v);
    scale_ = p_.scale < 0 ? -p_.scale : p_.scale;
    natural_ = steps_.natural();
    unit_ = static_cast<float>(natural_ ? TSRI_LOG2E : scale_ * TSRI_LOG2E);
    in_place_ = p_.o.dtype == TSR_DTYPE_F32 && p_.o.stride[3] == 1;
    locate(task);
  }

  size_t block_lanes(size_t first) const {
    return kWhole ? block_ : HWY_MIN(block_, (rows_ - first + lanes_ - 1) / lanes_ * lanes_);
  }

  // Rows and the lanes that complete their last block.
  size_t padded_rows() const {
    const size_t unit = kWhole ? kVectors * lanes_ : lanes_;
    return (rows_ + unit - 1) / unit * unit;
  }

  // Coordinates of every row, and its state before the first key.
  void start_rows() {
    const int64_t group = job_.problem->group;
    const size_t padded = padded_rows();
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
  }

  // Keys that some row of the task may see.
  tsri_mask_row seen_keys() const {
    return tsri_mask_rows_of(&rule_, s_.query[0], s_.query[rows_ - 1] + 1);
  }

  // Keys that some row of the block may see.
  tsri_mask_row seen_keys(const Block &block) const {
    return tsri_mask_rows_of(&rule_, s_.query[block.first],
                             s_.query[block.first + block.live - 1] + 1);
  }

  // What the mask makes of the block's rows and keys.
  tsri_tile_class class_of(const Block &block) const {
    return tsri_mask_tile_class(&rule_, s_.query[block.first],
                                s_.query[block.first + block.live - 1] + 1, block.key,
                                block.key + static_cast<int64_t>(block.keys));
  }

  // Offset of row r in Q or O.
  int64_t offset_of(const tsr_layout &layout, size_t r) const {
    return tsri_row_offset(layout.stride, b_, s_.head[r], seq_.q.begin + s_.query[r]);
  }

  ScoreTile score_tile_of(const Block &block, float *s) const {
    ScoreTile t;
    t.query = s_.query + block.first, t.head = s_.head + block.first;
    t.from = s_.from + block.first, t.to = s_.to + block.first, t.slope = s_.slope + block.first;
    t.width = block.width, t.key = block.key, t.keys = block.keys, t.zones = &block.zones;
    t.s = s, t.term = s_.term, t.bias = s_.bias;
    t.lines = s_.lines, t.line = line_;
    t.lo = s_.lo, t.hi = s_.hi;
    return t;
  }

  // The score steps on S^T of a block. False: no key is allowed for any row.
  HWY_NOINLINE bool finish_scores(const Block &block, tsri_tile_class kind, float *s) {
    const auto cap = [this](float *x, size_t count)
                         HWY_ATTR { softcap_tile(x, count, p_.softcap); };
    return steps_.apply(score_tile_of(block, s), kind, scale_, cap);
  }

  // Divides by l, and writes O, LSE and the maxima. LSE replaces l, the natural maximum replaces m.
  // dims: lines of O^T of a block.
  void store_rows(size_t dims) {
    const DF d;
    for (size_t first = 0; first < rows_; first += block_) {
      const size_t width = block_lanes(first);
      float *o = s_.o_t + first * dims;
      for (size_t x = 0; x < width; x += lanes_) {
        const VF factor = finish_vector(first + x);
        // Empty rows are cleared, not multiplied by 0: their keys may have scores of -inf and V of
        // inf.
        const auto empty =
            hn::And(hn::Eq(factor, hn::Zero(d)),
                    hn::Eq(hn::Load(d, s_.l + first + x), hn::Set(d, -__builtin_inff())));
        const auto finish = [&](VF sum) HWY_ATTR {
          // Adding +0 turns -0 into +0: masked keys may have added zeros or not.
          return hn::IfThenZeroElse(empty, hn::Add(hn::Mul(sum, factor), hn::Zero(d)));
        };
        before_rows(o + x, width, dim_v_, finish);
        for (size_t r = x; r < x + lanes_; r += kRows) {
          float *rows[kRows];
          for (size_t t = 0; t < kRows; ++t) rows[t] = output_row(first + r + t, t);
          lanes_to_rows(o + r, width, dim_v_, rows, finish);
          for (size_t t = 0; t < kRows && first + r + t < rows_; ++t)
            if (!in_place_)
              store_row_any(p_.o.dtype, rows[t], dim_v_, args_.o, offset_of(p_.o, first + r + t),
                            p_.o.stride[3]);
        }
      }
    }
    if (args_.lse) store_state(p_.lse.stride, args_.lse, s_.l);
    if (args_.max_logit) store_state(p_.max_logit.stride, args_.max_logit, s_.m);
  }

  // Where a row of O is put together: where it goes, or row t of the room for V.
  float *output_row(size_t row, size_t t) {
    if (in_place_ && row < rows_) return static_cast<float *>(args_.o) + offset_of(p_.o, row);
    return s_.v + t * static_cast<size_t>(tsri_cpu_packed_ld(p_.dim_v));
  }

  // 1 / l of one vector of rows, after the sink joined.
  HWY_INLINE VF finish_vector(size_t row) {
    const DF d;
    const VF natural = hn::Set(d, natural_ ? 1.0f : scale_);
    const VF m = hn::Load(d, s_.m + row), l = hn::Load(d, s_.l + row);
    const VF logit = hn::Mul(m, natural);
    VF sum = l, factor = hn::Set(d, 1.0f), lse;
    if (p_.sink) {
      for (size_t t = 0; t < lanes_; ++t) s_.lines[t] = args_.sink[s_.head[row + t]];
      const VF sink = hn::Load(d, s_.lines), top = Recurrence::new_max(logit, sink);
      factor = Recurrence::weight(logit, top);
      sum = Recurrence::new_sum(l, factor, Recurrence::weight(sink, top));
      lse = Recurrence::merged_lse(top, sum);
    } else {
      lse = Recurrence::log_sum_exp_in(natural, m, l);
    }
    hn::Store(lse, d, s_.l + row);
    // The running maximum drops NaN, the sum does not: it is NaN after a NaN or a +inf score.
    const auto lost =
        hn::And(hn::Not(hn::Eq(l, l)), hn::Not(hn::Eq(m, hn::Set(d, __builtin_inff()))));
    hn::Store(hn::IfThenElse(lost, l, logit), d, s_.m + row);
    return Recurrence::rescale(Recurrence::inverse_sum(sum), factor);
  }

  void store_state(const int64_t *stride, float *out, const float *value) {
    for (size_t r = 0; r < rows_; ++r)
      out[tsri_row_offset(stride, b_, s_.head[r], seq_.q.begin + s_.query[r])] = value[r];
  }

 private:
  // Sequence, KV head and rows of a task number.
  void locate(int64_t task) {
    int64_t index = task;
    if (job_.first_task) {
      int64_t low = 0, high = p_.batch;  // first_task[low] <= task < first_task[high]
      while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        (job_.first_task[mid] <= task ? low : high) = mid;
      }
      b_ = low;
      index -= job_.first_task[low];
    } else {
      b_ = task / job_.tasks_each;
      index -= b_ * job_.tasks_each;
    }
    seq_ = tsri_sequence_of(&p_, &args_, b_);
    rule_ = tsri_sequence_rule(&p_, &seq_);
    steps_.start_sequence(b_, rule_);
    const int64_t group = job_.problem->group;
    const int64_t all = seq_.q.len * group, size = job_.tiles.rows;
    const int64_t tiles = (all + size - 1) / size;
    g_ = index / tiles;
    // The last tile first: under a causal mask it has the most keys.
    row0_ = (tiles - 1 - index % tiles) * size;
    rows_ = static_cast<size_t>(HWY_MIN(all - row0_, size));
    // Blocks as even as can be: one vector alone has more loads per product.
    const size_t vectors = (rows_ + lanes_ - 1) / lanes_, blocks = (vectors + kVectors - 1) / kVectors;
    block_ = (kWhole ? kVectors : (vectors + blocks - 1) / blocks) * lanes_;
  }

 protected:
  const tsri_cpu_forward &job_;
  const tsr_problem &p_;
  const tsr_args &args_;
  ScoreSteps steps_;
  tsri_cpu_scratch s_;
  size_t line_, lanes_, dim_, dim_v_;
  float scale_;   // magnitude; the sign goes into Q^T
  bool natural_;  // scores get softcap, bias or ALiBi, so they are scaled first; else they are
  float unit_;    //   dot products, and unit_ times a difference of scores is in base two
  bool in_place_;  // rows of O are written where they belong
  int64_t b_, g_;
  tsri_sequence seq_;
  tsri_mask_rule rule_;
  int64_t row0_;
  size_t rows_, block_;  // of the task, of a block
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_FORWARD_TASK_INL_H_
