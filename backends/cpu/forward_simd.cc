// SPDX-License-Identifier: Apache-2.0
//
// Forward of one task: a tile of rows of one sequence and KV head against all keys they may see.
// Compiled once per Highway target; forward.c runs the tasks. A row is a pair (query, head of the
// group), queries outermost, so that grouped heads share every load of K and V and a tile spans few
// queries. The tile is cut into blocks of 3 vectors of rows; per step of tiles.keys keys each block
// does S^T = K Q^T, the score steps it needs, one step of the recurrence, and O^T += V^T P^T.
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
#include "row_policy-inl.h"
#include "score-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// A block of at most kMaxVectors vectors of the task's rows, and the keys it takes in one step.
struct Block {
  size_t first;  // row of the task
  size_t live;   // rows that exist; lanes beyond repeat the last one's coordinates
  size_t width;  // lanes
  int64_t key;   // first key
  size_t keys;
  Zones zones;  // what of it the rows need
};

class ForwardTask {
 public:
  ForwardTask(const tsri_cpu_forward &job, int64_t task, int32_t worker)
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

  void run() {
    load_rows();
    const int64_t last = static_cast<int64_t>(rows_) - 1;
    const tsri_mask_row seen = tsri_mask_rows_of(&rule_, s_.query[0], s_.query[last] + 1);
    const int64_t end = HWY_MAX(seen.prefix, seen.hi), step = job_.tiles.keys;
    for (int64_t j = 0; j < end; j += step) {
      // Steps stay cut at multiples of `step`; those between the prefix and the band are jumped
      // over.
      if (j >= seen.prefix && j + step <= seen.lo) j = seen.lo / step * step;
      step_keys(seen, j, HWY_MIN(j + step, rule_.sk));
    }
    store_rows();
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
  }

  size_t block_lanes(size_t first) const {
    const size_t most = kMaxVectors * lanes_;
    return HWY_MIN(most, (rows_ - first + lanes_ - 1) / lanes_ * lanes_);
  }

  // Coordinates of every row; Q^T times the sign of the scale; the state before the first key.
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
    memset(s_.o_t, 0, padded * dim_v_ * sizeof(float));
    for (size_t first = 0; first < rows_; first += kMaxVectors * lanes_) {
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
    const int64_t at = tsri_row_offset(p_.q.stride, b_, s_.head[r], seq_.q.begin + s_.query[r]);
    if (p_.q.dtype == TSR_DTYPE_F32 && p_.q.stride[3] == 1)
      return static_cast<const float *>(args_.q) + at;
    load_row_any(p_.q.dtype, args_.q, at, p_.q.stride[3], dim_, room);
    return room;
  }

  Keys operand(const tsr_layout &layout, const void *base, size_t dim, int64_t key, size_t n,
               float *buffer) const {
    return load_keys(job_.pages, layout, base, dim, b_, g_, seq_.k.begin + key, n, buffer,
                     s_.lines);
  }

  // Folds keys [begin, end) into every block that sees some of them.
  void step_keys(const tsri_mask_row &seen, int64_t begin, int64_t end) {
    int64_t key;
    size_t keys;
    trim_keys(seen, begin, end, &key, &keys);
    if (keys == 0) return;
    const Keys k = operand(p_.k, args_.k, dim_, key, keys, s_.k);
    const Keys v = operand(p_.v, args_.v, dim_v_, key, keys, s_.v);
    Block block;
    for (block.first = 0; block.first < rows_; block.first += block.width) {
      block.width = block_lanes(block.first);
      block.live = HWY_MIN(block.width, rows_ - block.first);
      const int64_t i0 = s_.query[block.first], i1 = s_.query[block.first + block.live - 1] + 1;
      trim_keys(tsri_mask_rows_of(&rule_, i0, i1), begin, end, &block.key, &block.keys);
      if (block.keys == 0) continue;
      const tsri_tile_class kind = tsri_mask_tile_class(
          &rule_, i0, i1, block.key, block.key + static_cast<int64_t>(block.keys));
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
    if (steps_.needed(kind) && !finish_scores(block, kind)) return;
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
    if (p_.dropout > 0) steps_.drop(score_tile_of(block), job_.drop_key, s_.s_t);
    float *o = s_.o_t + block.first * dim_v_;
    if (zones.whole)
      output_tile<NV>(v.data, v.ld, n, s_.s_t, dim_v_, o, a0, a1, a2);
    else
      output_zones<NV>(v.data, v.ld, zones, s_.s_t, dim_v_, o, a0, a1, a2);
  }

  ScoreTile score_tile_of(const Block &block) const {
    ScoreTile t;
    t.query = s_.query + block.first, t.head = s_.head + block.first;
    t.from = s_.from + block.first, t.to = s_.to + block.first, t.slope = s_.slope + block.first;
    t.width = block.width, t.key = block.key, t.keys = block.keys, t.zones = &block.zones;
    t.s = s_.s_t, t.term = s_.term, t.bias = s_.bias;
    t.lines = s_.lines, t.line = line_;
    t.lo = s_.lo, t.hi = s_.hi;
    return t;
  }

  // The score steps on S^T of a block. False: no key is allowed for any row.
  HWY_NOINLINE bool finish_scores(const Block &block, tsri_tile_class kind) {
    const auto cap = [this](float *s, size_t count)
                         HWY_ATTR { softcap_tile(s, count, p_.softcap); };
    return steps_.apply(score_tile_of(block), kind, scale_, cap);
  }

  // Divides by l, and writes O, LSE and the maxima. LSE replaces l, the natural maximum replaces m.
  void store_rows() {
    const DF d;
    for (size_t first = 0; first < rows_; first += kMaxVectors * lanes_) {
      const size_t width = block_lanes(first);
      float *o = s_.o_t + first * dim_v_;
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
              store_row_any(p_.o.dtype, rows[t], dim_v_, args_.o, output_at(first + r + t),
                            p_.o.stride[3]);
        }
      }
    }
    if (args_.lse) store_state(p_.lse.stride, args_.lse, s_.l);
    if (args_.max_logit) store_state(p_.max_logit.stride, args_.max_logit, s_.m);
  }

  int64_t output_at(size_t row) const {
    return tsri_row_offset(p_.o.stride, b_, s_.head[row], seq_.q.begin + s_.query[row]);
  }

  // Where a row of O is put together: where it goes, or row t of the room for V.
  float *output_row(size_t row, size_t t) {
    if (in_place_ && row < rows_) return static_cast<float *>(args_.o) + output_at(row);
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
  size_t rows_;
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
