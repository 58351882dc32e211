// SPDX-License-Identifier: Apache-2.0
//
// Forward of one task in bfloat16 on the tile unit of Intel AMX; forward.c runs the tasks. The form
// is that of forward_simd.cc, lanes being rows: S^T = K Q^T and O^T = V^T P^T, everything between
// them vertical and shared with it. Products take the elements as they are and add in float32; P is
// rounded to bfloat16 before V, as standard attention does, and summed before rounding.
//
// A block is 32 rows. Keys come in chunks of some steps: K and V^T of a chunk are packed into tiles
// once per task, stay in L2, and are used by all its blocks, while Q^T, O^T and S^T of a block stay in
// L1. A product has 2 x 2 tiles of sums, so that each tile that is loaded is
// used twice. P^T has two keys to a word. Products of neighbouring blocks run between the vectors of a
// block's softmax: the tile unit works beside the vector units.
//
// What scores are measured from stays as long as the sums of a step allow it (trial_max of the
// recurrence), so most steps neither look for a maximum nor rescale O^T.
//
// Floors per 16 scores on one core: 64 D FLOPs at 1024 a clock are D / 16 clocks of the tile unit;
// about 20 instructions on two vector ports are 10 clocks of softmax.
#include "kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/amx_forward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "amx_pack-inl.h"
#include "amx_rows-inl.h"
#include "amx_softmax-inl.h"
#include "block-inl.h"
#include "forward_task-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

#if TSRI_AMX_TARGET
constexpr size_t kBlockRows = kPairRows;  // of a block
// Sum of a step up to which its row keeps what scores are measured from.
constexpr float kMostSum = 4096.0f;

class AmxForwardTask : RowTask<2, true> {
 public:
  AmxForwardTask(const tsri_cpu_forward &job, int64_t task, int32_t worker)
      : RowTask(job, task, worker),
        chunks_((dim_ + kTileDepth - 1) / kTileDepth),
        dims_v_((dim_v_ + kTileDepth - 1) / kTileDepth * kTileDepth) {}

  void run() {
    tiles_.configure();
    load_rows();
    const tsri_mask_row seen = seen_keys();
    const int64_t end = HWY_MAX(seen.prefix, seen.hi);
    const int64_t chunk = job_.tiles.keys * TSRI_CPU_AMX_STEPS;
    for (int64_t j = 0; j < end; j += chunk) {
      if (j >= seen.prefix && j + chunk <= seen.lo) j = seen.lo / chunk * chunk;
      run_chunk(seen, j, HWY_MIN(j + chunk, rule_.sk));
    }
    tiles_.release();
    store_rows(dims_v_);
  }

 private:
  uint8_t *q_of(const Block &block) const {
    return tile_at(static_cast<void *>(s_.q_t), block.first / kTileSide * chunks_);
  }

  uint16_t *line_of(size_t r) const {
    return s_.rows16 + r * static_cast<size_t>(tsri_cpu_tile_line(&p_));
  }

  // Q times the sign of the scale, in pairs, tiles of both halves of a block alternating; O = 0.
  void load_rows() {
    start_rows();
    memset(s_.o_t, 0, padded_rows() * dims_v_ * sizeof(float));
    const uint32_t flip = p_.scale < 0 ? 0x80008000u : 0;
    for (size_t first = 0; first < padded_rows(); first += kTileSide) {
      const uint16_t *rows[kTileSide];
      for (size_t t = 0; t < kTileSide; ++t)
        rows[t] = first + t < rows_
                      ? row16(p_.q, args_.q, offset_of(p_.q, first + t), dim_, line_of(t))
                      : nullptr;
      pack_pairs(rows, dim_, flip, 2,
                 tile_at(static_cast<void *>(s_.q_t),
                         first / kBlockRows * 2 * chunks_ + first / kTileSide % 2));
    }
  }

  // Pointers to 32 rows of K or V from key `key` on, of which n exist.
  void load_keys16(const tsr_layout &layout, const void *base, size_t dim, int64_t key, size_t n,
                   const uint16_t **rows) const {
    rows_of_keys(job_.pages, layout, base, dim, b_, g_, seq_.k.begin + key, n, s_.rows16,
                 static_cast<size_t>(tsri_cpu_tile_line(&p_)), rows);
  }

  // Folds keys [begin, end) into every block that sees some of them. Ranges are cut to whole tiles
  // from `begin`.
  void run_chunk(const tsri_mask_row &seen, int64_t begin, int64_t end) {
    int64_t key;
    size_t keys;
    trim_tiles(seen, begin, end, &key, &keys);
    if (keys == 0) return;
    for (size_t j = 0; j < keys; j += kTileDepth) {
      const uint16_t *rows[kTileDepth];
      const size_t n = HWY_MIN(kTileDepth, keys - j);
      load_keys16(p_.k, args_.k, dim_, key + static_cast<int64_t>(j), n, rows);
      keys_[j / kTileDepth] =
          key_tiles(rows, n, tile_at(static_cast<void *>(s_.k), j / kTileSide * chunks_));
      load_keys16(p_.v, args_.v, dim_v_, key + static_cast<int64_t>(j), n, rows);
      pack_columns(rows, dim_v_,
                   tile_at(static_cast<void *>(s_.v), j / kTileDepth * (dims_v_ / kTileSide)));
    }
    run_blocks(begin, end, key);
  }

  // Tiles of 32 keys: `chunk` bytes to the next 32 dims, `half` to the next 16 keys, `line` to the
  // next key.
  struct KeyTiles {
    const uint8_t *base;
    size_t line, chunk, half;
  };

  // Rows of K where they lie, if they are whole tiles at one distance, else packed.
  KeyTiles key_tiles(const uint16_t *const *rows, size_t n, uint8_t *room) const {
    if (n == kTileDepth && dim_ % kTileDepth == 0 && p_.k.stride[3] == 1) {
      const int64_t step = rows[1] - rows[0];
      bool even = step > 0;
      for (size_t r = 1; r < kTileDepth; ++r) even = even && rows[r] - rows[r - 1] == step;
      if (even) {
        const size_t line = static_cast<size_t>(step) * sizeof(uint16_t);
        return {reinterpret_cast<const uint8_t *>(rows[0]), line, kTileDepth * sizeof(uint16_t),
                kTileSide * line};
      }
    }
    pack_rows(rows, dim_, room);
    return {room, kTileDepth * sizeof(uint16_t), kTileBytes, chunks_ * kTileBytes};
  }

  // A block and its keys of one step.
  struct Fold {
    Block block;
    tsri_tile_class kind;
    size_t group, groups;  // where its keys begin in the packed ones, and how many, in units of 32
    float *s, *p;          // S^T and P^T
    float *alpha;          // [kBlockRows], if `moved`
    bool folds;            // some key is allowed
    bool moved;            // O^T must be multiplied by alpha
  };

  // Blocks one after the other, each step by step, in a pipeline of three stages, so that the tile
  // unit and the vector units work at the same time: scores of one step and output of another
  // between the vectors of a third's softmax.
  void run_blocks(int64_t begin, int64_t end, int64_t key) {
    Fold folds[3];
    Fold *before = nullptr, *now = nullptr;
    size_t first = 0, count = 0;
    int64_t step = begin;
    for (;;) {
      Fold *after = next_fold(&first, &step, begin, end, key, &folds[count % 3]);
      if (after) {
        const size_t room = static_cast<size_t>(job_.tiles.keys) * kBlockRows;
        after->s = s_.s_t + count % 2 * room;
        after->p = s_.s_t + 2 * room + count % 2 * (room / 2);
        after->alpha = alpha_ + count % 2 * kBlockRows;
        ++count;
      }
      if (before && before->moved) rescale_rows(*before);
      if (now)
        fold(before, now, after);
      else
        finish_work(TileWork(*this, before, after));
      if (!now && !after) return;
      before = now && now->folds ? now : nullptr;
      now = after;
    }
  }

  // The next step, from the one at key *step of the block at row *first on, in which the block sees
  // a key; NULL after the last one of [begin, end).
  Fold *next_fold(size_t *first, int64_t *step, int64_t begin, int64_t end, int64_t key,
                  Fold *fold) const {
    Block &block = fold->block;
    for (; *first < rows_; *first += kBlockRows, *step = begin) {
      block.first = *first;
      block.width = kBlockRows;
      block.live = HWY_MIN(kBlockRows, rows_ - block.first);
      const tsri_mask_row seen = seen_keys(block);
      while (*step < end) {
        const int64_t at = *step;
        *step += job_.tiles.keys;
        trim_tiles(seen, at, HWY_MIN(*step, end), &block.key, &block.keys);
        if (block.keys == 0) continue;
        fold->kind = class_of(block);
        if (fold->kind == TSRI_TILE_SKIP) continue;
        block.zones = zones_whole(block.keys, 2);
        fold->group = static_cast<size_t>(block.key - key) / kTileDepth;
        fold->groups = (block.keys + kTileDepth - 1) / kTileDepth;
        return fold;
      }
    }
    return nullptr;
  }

  static void trim_tiles(const tsri_mask_row &seen, int64_t begin, int64_t end, int64_t *key,
                         size_t *keys) {
    trim_keys(seen, begin, end, static_cast<int64_t>(kTileDepth), key, keys);
  }

  // What the tile unit has to do beside the softmax of a block, in steps of 4 products: output of
  // the block before, scores of the one after; either may be NULL.
  class TileWork {
   public:
    TileWork(AmxForwardTask &task, const Fold *before, const Fold *after)
        : task_(task), tiles_(task.tiles_), before_(before), after_(after) {
      if (after) scores_ = after->groups * task.chunks_;
      if (before) outputs_ = before->groups * (task.dims_v_ / kTileDepth);
    }
    // Steps that are left; scores go first, for outputs use the same registers.
    size_t scores() const { return scores_; }
    size_t outputs() const { return outputs_; }
    HWY_INLINE void advance_scores() {
      --scores_;
      add_scores();
    }
    HWY_INLINE void advance_outputs() {
      --outputs_;
      add_outputs();
    }

   private:
    static constexpr size_t kLine = kBlockRows * sizeof(float);

    // S^T of 16 keys over 64 dims, all there are: Q stays in registers, and half as many tiles are loaded.
    HWY_INLINE void add_scores_of_two() {
      const KeyTiles &keys = task_.keys_[after_->group + outer_];
      const uint8_t *k = keys.base + inner_ * keys.half;
      if (outer_ == 0 && inner_ == 0) {
        const uint8_t *q = task_.q_of(after_->block);
        tiles_.load<4>(q, 64);
        tiles_.load<5>(q + kTileBytes, 64);
        tiles_.load<6>(q + 2 * kTileBytes, 64);
        tiles_.load<7>(q + 3 * kTileBytes, 64);
      }
      tiles_.zero<0>(), tiles_.zero<1>();
      tiles_.load<2>(k, keys.line);
      tiles_.dot<0, 2, 4>();
      tiles_.dot<1, 2, 5>();
      tiles_.load<3>(k + keys.chunk, keys.line);
      tiles_.dot<0, 3, 6>();
      tiles_.dot<1, 3, 7>();
      float *to = after_->s + (outer_ * kTileDepth + inner_ * kTileSide) * kBlockRows;
      tiles_.store<0>(to, kLine);
      tiles_.store<1>(to + kTileSide, kLine);
      outer_ += inner_, inner_ ^= 1;
      if (scores_ == 0) outer_ = 0;
    }

    // S^T of 32 keys += 32 dims.
    HWY_INLINE void add_scores() {
      const size_t chunks = task_.chunks_;
      if (chunks == 2) return add_scores_of_two();
      const KeyTiles &keys = task_.keys_[after_->group + outer_];
      const uint8_t *q = task_.q_of(after_->block) + 2 * inner_ * kTileBytes;
      const uint8_t *k = keys.base + inner_ * keys.chunk;
      if (inner_ == 0) tiles_.zero<0>(), tiles_.zero<1>(), tiles_.zero<2>(), tiles_.zero<3>();
      tiles_.load<6>(q, 64);
      tiles_.load<4>(k, keys.line);
      tiles_.dot<0, 4, 6>();
      tiles_.load<7>(q + kTileBytes, 64);
      tiles_.dot<1, 4, 7>();
      tiles_.load<5>(k + keys.half, keys.line);
      tiles_.dot<2, 5, 6>();
      tiles_.dot<3, 5, 7>();
      if (++inner_ < chunks) return;
      store_sums(after_->s + outer_ * kTileDepth * kBlockRows);
      inner_ = 0;
      outer_ = scores_ > 0 ? outer_ + 1 : 0;
    }

    // 32 dims of O^T += 32 keys.
    HWY_INLINE void add_outputs() {
      const size_t line = task_.dims_v_ / kTileSide;
      float *o = task_.s_.o_t + before_->block.first * task_.dims_v_ + outer_ * kTileDepth * kBlockRows;
      const float *p = before_->p + inner_ * kTileSide * kBlockRows;
      const uint8_t *v = tile_at(static_cast<const void *>(task_.s_.v),
                                 (before_->group + inner_) * line + 2 * outer_);
      if (inner_ == 0) {
        tiles_.load<0>(o, kLine);
        tiles_.load<1>(o + kTileSide, kLine);
        tiles_.load<2>(o + kTileSide * kBlockRows, kLine);
        tiles_.load<3>(o + kTileSide * kBlockRows + kTileSide, kLine);
      }
      tiles_.load<6>(p, kLine);
      tiles_.load<4>(v, 64);
      tiles_.dot<0, 4, 6>();
      tiles_.load<7>(p + kTileSide, kLine);
      tiles_.dot<1, 4, 7>();
      tiles_.load<5>(v + kTileBytes, 64);
      tiles_.dot<2, 5, 6>();
      tiles_.dot<3, 5, 7>();
      if (++inner_ < before_->groups) return;
      store_sums(o);
      inner_ = 0;
      ++outer_;
    }

    HWY_INLINE void store_sums(float *to) {
      tiles_.store<0>(to, kLine);
      tiles_.store<1>(to + kTileSide, kLine);
      tiles_.store<2>(to + kTileSide * kBlockRows, kLine);
      tiles_.store<3>(to + kTileSide * kBlockRows + kTileSide, kLine);
    }

    AmxForwardTask &task_;
    Tiles &tiles_;
    const Fold *before_, *after_;
    size_t scores_ = 0, outputs_ = 0;  // steps left
    size_t outer_ = 0, inner_ = 0;     // of the product at hand
  };

  static HWY_NOINLINE void finish_work(TileWork work) {
    while (work.scores() > 0) work.advance_scores();
    while (work.outputs() > 0) work.advance_outputs();
  }

  // P^T of a step, measured from m0 and m1, its sums, and the tile work of its neighbours.
  HWY_INLINE void weigh(const Fold &now, VF m0, VF m1, const TileWork &work, VF &sum0, VF &sum1) {
    const DF d;
    const size_t keys = now.block.keys;
    const VF unit = hn::Set(d, unit_), r0 = Recurrence::reference(m0), r1 = Recurrence::reference(m1);
    if (p_.dropout > 0) {
      VF sum2 = r0;
      finish_work(work);
      softmax_tile<2>(now.s, keys, unit, r0, r1, r0, sum0, sum1, sum2);
      steps_.drop(score_tile_of(now.block, now.s), job_.drop_key, now.s);
      pair_tile(now.s, keys, now.p);
    } else if (ready()) {
      softmax_pairs<ReadyProb>(now.s, now.p, keys, unit, hn::Mul(unit, r0), hn::Mul(unit, r1), sum0, sum1,
                               work);
    } else {
      softmax_pairs<ExactProb>(now.s, now.p, keys, unit, r0, r1, sum0, sum1, work);
    }
  }

  // Where nothing else is compared with the sum, the factor of the scores goes into the references;
  // scores times it must not overflow.
  bool ready() const { return !args_.lse && !p_.sink && p_.dropout == 0 && unit_ <= 1.0f; }

  // 2^((m - to) unit). Of a row without a key so far m is -inf: alpha is 0.
  HWY_INLINE VF alpha_of(VF m, VF to) const {
    const VF unit = hn::Set(DF(), unit_), ref = Recurrence::reference(to);
    return ready() ? Recurrence::correction(hn::Mul(unit, m), hn::Mul(unit, ref))
                   : Recurrence::correction_in(unit, m, ref);
  }

  // One block, one step: its softmax, and the tile work of its neighbours.
  HWY_NOINLINE void fold(const Fold *before, Fold *now, const Fold *after) {
    const DF d;
    const Block &block = now->block;
    float *m = s_.m + block.first, *l = s_.l + block.first;
    const TileWork work(*this, before, after);
    now->folds = !steps_.needed(now->kind) || finish_scores(block, now->kind, now->s);
    now->moved = false;
    if (!now->folds) return finish_work(work);
    const VF none = hn::Set(d, -__builtin_inff()), most = hn::Set(d, kMostSum);
    const VF old0 = hn::Load(d, m), old1 = hn::Load(d, m + lanes_);
    VF a0 = hn::Set(d, 1.0f), a1 = a0, t0 = hn::Zero(d), t1 = t0;
    // Maxima that are asked for must be found. Where sums are exact the largest P must be 1, which rounding
    // does not touch: a row of one large P would show its rounding in O.
    const bool trial = ready() && !args_.max_logit &&
                       !hn::AllTrue(d, hn::And(hn::Eq(old0, none), hn::Eq(old1, none)));
    if (trial) {
      weigh(*now, old0, old1, work, t0, t1);
      now->moved = !hn::AllTrue(d, hn::And(hn::And(hn::Gt(old0, none), hn::Le(t0, most)),
                                           hn::And(hn::Gt(old1, none), hn::Le(t1, most))));
    }
    if (!trial || now->moved) {
      now->moved = true;
      max_tile<2>(now->s, block.keys, m);
      VF m0 = hn::Load(d, m), m1 = hn::Load(d, m + lanes_);
      if (trial) {
        m0 = Recurrence::trial_max(old0, t0, m0, most);
        m1 = Recurrence::trial_max(old1, t1, m1, most);
        hn::Store(m0, d, m);
        hn::Store(m1, d, m + lanes_);
      }
      a0 = alpha_of(old0, m0);
      a1 = alpha_of(old1, m1);
      weigh(*now, m0, m1, trial ? TileWork(*this, nullptr, nullptr) : work, t0, t1);
      hn::Store(a0, d, now->alpha);
      hn::Store(a1, d, now->alpha + lanes_);
    }
    hn::Store(Recurrence::new_sum(hn::Load(d, l), a0, t0), d, l);
    hn::Store(Recurrence::new_sum(hn::Load(d, l + lanes_), a1, t1), d, l + lanes_);
  }

  // O^T *= alpha, unless alpha is 1 in every lane.
  HWY_INLINE void rescale_rows(const Fold &fold) const {
    const DF d;
    const VF one = hn::Set(d, 1.0f);
    const VF a0 = hn::Load(d, fold.alpha), a1 = hn::Load(d, fold.alpha + lanes_);
    if (hn::AllTrue(d, hn::And(hn::Eq(a0, one), hn::Eq(a1, one)))) return;
    float *o = s_.o_t + fold.block.first * dims_v_;
    for (size_t x = 0; x < dims_v_ * kBlockRows; x += kBlockRows) {
      hn::Store(Recurrence::rescale(hn::Load(d, o + x), a0), d, o + x);
      hn::Store(Recurrence::rescale(hn::Load(d, o + x + lanes_), a1), d, o + x + lanes_);
    }
  }

  HWY_ALIGN_MAX float alpha_[2 * kBlockRows];  // of the folds at hand
  KeyTiles keys_[TSRI_CPU_AMX_STEPS * 128 / kTileDepth];
  Tiles tiles_;
  size_t chunks_;  // of 32 dims of Q and K
  size_t dims_v_;  // of V and O, padded
};

void amx_forward(const tsri_cpu_forward *job, int64_t task, int32_t worker) {
  AmxForwardTask(*job, task, worker).run();
}
#else
// Never called: amx_forward_install leaves it out.
void amx_forward(const tsri_cpu_forward *, int64_t, int32_t) {}
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "targets.h"
namespace tessera {
HWY_EXPORT(amx_forward);
}

void tsri_cpu_amx_forward_install(int64_t target, tsri_cpu_kernels *kernels) {
  #if HWY_ARCH_X86_64
  if (target <= HWY_AVX3) kernels->amx_forward = TSRI_CPU_FUNCTION(tessera, amx_forward, target);
  #else
  (void)target;
  (void)kernels;
  #endif
}
#endif
