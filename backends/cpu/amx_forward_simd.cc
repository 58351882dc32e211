// SPDX-License-Identifier: Apache-2.0
//
// Forward of one task in bfloat16 on the tile unit of Intel AMX; forward.c runs the tasks. The form
// is that of forward_simd.cc, lanes being rows: S^T = K Q^T and O^T = V^T P^T, everything between
// them vertical and shared with it. Products take the elements as they are and add in float32; P is
// rounded to bfloat16 before V, as standard attention does, and summed before rounding.
//
// A block is 32 rows. Per step of tiles.keys keys, K and V^T are packed into tiles once per task and
// used by all its blocks. A product has 2 x 2 tiles of sums, so that each tile that is loaded is
// used twice. P^T overwrites S^T in place, two keys to a word.
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
#include "block-inl.h"
#include "forward_task-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

#if TSRI_AMX_TARGET
constexpr size_t kRows = 32;  // of a block

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
    const int64_t end = HWY_MAX(seen.prefix, seen.hi), step = job_.tiles.keys;
    for (int64_t j = 0; j < end; j += step) {
      if (j >= seen.prefix && j + step <= seen.lo) j = seen.lo / step * step;
      step_keys(seen, j, HWY_MIN(j + step, rule_.sk));
    }
    tiles_.release();
    store_rows(dims_v_);
  }

 private:
  uint8_t *q_of(const Block &block) const {
    return tile_at(static_cast<void *>(s_.q_t), block.first / kTileSide * chunks_);
  }

  // A row as contiguous bfloat16: where it is, or copied into a line.
  const uint16_t *row_of(const tsr_layout &layout, const void *base, int64_t at, size_t dim,
                         uint16_t *line) const {
    const uint16_t *from = static_cast<const uint16_t *>(base) + at;
    if (layout.stride[3] == 1) return from;
    for (size_t x = 0; x < dim; ++x) line[x] = from[static_cast<int64_t>(x) * layout.stride[3]];
    return line;
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
                      ? row_of(p_.q, args_.q, offset_of(p_.q, first + t), dim_, line_of(t))
                      : nullptr;
      pack_pairs(rows, dim_, flip, 2,
                 tile_at(static_cast<void *>(s_.q_t),
                         first / kRows * 2 * chunks_ + first / kTileSide % 2));
    }
  }

  // Pointers to 32 rows of K or V from key `key` on, of which n exist.
  void load_keys16(const tsr_layout &layout, const void *base, size_t dim, int64_t key, size_t n,
                   const uint16_t **rows) const {
    const int64_t row = seq_.k.begin + key;
    for (size_t t = 0; t < kTileDepth; ++t) rows[t] = nullptr;
    for (size_t t = 0; t < n;) {
      const int64_t at = row + static_cast<int64_t>(t);
      const int64_t run = tsri_kv_run(&job_.pages, at, static_cast<int64_t>(n - t));
      int64_t offset = tsri_kv_offset(&job_.pages, layout.stride, b_, g_, at);
      for (int64_t u = 0; u < run; ++u, ++t, offset += layout.stride[2])
        rows[t] = row_of(layout, base, offset, dim, line_of(t));
    }
  }

  // Folds keys [begin, end) into every block that sees some of them. Ranges are cut to whole tiles
  // from `begin`.
  void step_keys(const tsri_mask_row &seen, int64_t begin, int64_t end) {
    int64_t key;
    size_t keys;
    trim_tiles(seen, begin, end, &key, &keys);
    if (keys == 0) return;
    for (size_t j = 0; j < keys; j += kTileDepth) {
      const uint16_t *rows[kTileDepth];
      const size_t n = HWY_MIN(kTileDepth, keys - j);
      load_keys16(p_.k, args_.k, dim_, key + static_cast<int64_t>(j), n, rows);
      pack_rows(rows, dim_, tile_at(static_cast<void *>(s_.k), j / kTileSide * chunks_));
      load_keys16(p_.v, args_.v, dim_v_, key + static_cast<int64_t>(j), n, rows);
      pack_columns(rows, dim_v_,
                   tile_at(static_cast<void *>(s_.v), j / kTileDepth * (dims_v_ / kTileSide)));
    }
    Block block;
    for (block.first = 0; block.first < rows_; block.first += kRows) {
      block.width = kRows;
      block.live = HWY_MIN(kRows, rows_ - block.first);
      trim_tiles(seen_keys(block), begin, end, &block.key, &block.keys);
      if (block.keys == 0) continue;
      const tsri_tile_class kind = class_of(block);
      if (kind != TSRI_TILE_SKIP)
        fold(block, static_cast<size_t>(block.key - key) / kTileDepth, kind);
    }
  }

  static void trim_tiles(const tsri_mask_row &seen, int64_t begin, int64_t end, int64_t *key,
                         size_t *keys) {
    const int64_t depth = static_cast<int64_t>(kTileDepth);
    const int64_t stop = HWY_MIN(end, HWY_MAX(seen.prefix, seen.hi));
    *key = begin;
    if (begin >= seen.prefix && seen.lo > begin) *key += (seen.lo - begin) / depth * depth;
    *keys = stop > *key ? static_cast<size_t>(stop - *key) : 0;
  }

  // One block, one step; group: where its keys begin in the packed ones, in units of 32.
  HWY_NOINLINE void fold(const Block &block, size_t group, tsri_tile_class kind) {
    const DF d;
    const size_t n = block.keys, groups = (n + kTileDepth - 1) / kTileDepth;
    float *m = s_.m + block.first, *l = s_.l + block.first;
    const VF old0 = hn::Load(d, m), old1 = hn::Load(d, m + lanes_);
    for (size_t g = 0; g < groups; ++g)
      score_tiles(tile_at(static_cast<const void *>(s_.k), (group + g) * 2 * chunks_), q_of(block),
                  s_.s_t + g * kTileDepth * kRows);
    if (steps_.needed(kind) && !finish_scores(block, kind)) return;
    max_tile<2>(s_.s_t, n, m);
    const VF r0 = Recurrence::reference(hn::Load(d, m));
    const VF r1 = Recurrence::reference(hn::Load(d, m + lanes_));
    const VF unit = hn::Set(d, unit_);
    VF t0 = r0, t1 = r0;
    if (p_.dropout > 0) {
      VF t2 = r0;
      softmax_tile<2>(s_.s_t, n, unit, r0, r1, r0, t0, t1, t2);
      steps_.drop(score_tile_of(block), job_.drop_key, s_.s_t);
      pair_tile(n);
    } else {
      softmax_pairs(n, unit, r0, r1, t0, t1);
    }
    const VF a0 = Recurrence::correction_in(unit, old0, r0);
    const VF a1 = Recurrence::correction_in(unit, old1, r1);
    hn::Store(Recurrence::new_sum(hn::Load(d, l), a0, t0), d, l);
    hn::Store(Recurrence::new_sum(hn::Load(d, l + lanes_), a1, t1), d, l + lanes_);
    float *o = s_.o_t + block.first * dims_v_;
    rescale_rows(o, a0, a1);
    for (size_t x = 0; x < dims_v_; x += kTileDepth)
      output_tiles(tile_at(static_cast<const void *>(s_.v),
                           group * (dims_v_ / kTileSide) + x / kTileSide),
                   groups, o + x * kRows);
  }

  // S^T of 32 keys [32][kRows].
  HWY_INLINE void score_tiles(const uint8_t *k, const uint8_t *q, float *s) {
    constexpr size_t kLine = kRows * sizeof(float);
    tiles_.zero<0>(), tiles_.zero<1>(), tiles_.zero<2>(), tiles_.zero<3>();
    for (size_t c = 0; c < chunks_; ++c) {
      tiles_.load<6>(q + 2 * c * kTileBytes, 64);
      tiles_.load<7>(q + (2 * c + 1) * kTileBytes, 64);
      tiles_.load<4>(k + c * kTileBytes, 64);
      tiles_.dot<0, 4, 6>();
      tiles_.dot<1, 4, 7>();
      tiles_.load<5>(k + (chunks_ + c) * kTileBytes, 64);
      tiles_.dot<2, 5, 6>();
      tiles_.dot<3, 5, 7>();
    }
    tiles_.store<0>(s, kLine);
    tiles_.store<1>(s + kTileSide, kLine);
    tiles_.store<2>(s + kTileSide * kRows, kLine);
    tiles_.store<3>(s + kTileSide * kRows + kTileSide, kLine);
  }

  // 32 dims of O^T += V^T P^T over `groups` times 32 keys; v: the first tile of these dims.
  HWY_INLINE void output_tiles(const uint8_t *v, size_t groups, float *o) {
    constexpr size_t kLine = kRows * sizeof(float);
    const size_t next = dims_v_ / kTileSide * kTileBytes;
    const float *p = s_.s_t;
    tiles_.load<0>(o, kLine);
    tiles_.load<1>(o + kTileSide, kLine);
    tiles_.load<2>(o + kTileSide * kRows, kLine);
    tiles_.load<3>(o + kTileSide * kRows + kTileSide, kLine);
    for (size_t g = 0; g < groups; ++g, v += next, p += kTileSide * kRows) {
      tiles_.load<6>(p, kLine);
      tiles_.load<7>(p + kTileSide, kLine);
      tiles_.load<4>(v, 64);
      tiles_.dot<0, 4, 6>();
      tiles_.dot<1, 4, 7>();
      tiles_.load<5>(v + kTileBytes, 64);
      tiles_.dot<2, 5, 6>();
      tiles_.dot<3, 5, 7>();
    }
    tiles_.store<0>(o, kLine);
    tiles_.store<1>(o + kTileSide, kLine);
    tiles_.store<2>(o + kTileSide * kRows, kLine);
    tiles_.store<3>(o + kTileSide * kRows + kTileSide, kLine);
  }

  // O^T *= alpha, unless alpha is 1 in every lane.
  HWY_INLINE void rescale_rows(float *o, VF a0, VF a1) const {
    const DF d;
    const VF one = hn::Set(d, 1.0f);
    if (hn::AllTrue(d, hn::And(hn::Eq(a0, one), hn::Eq(a1, one)))) return;
    for (size_t x = 0; x < dims_v_ * kRows; x += kRows) {
      hn::Store(Recurrence::rescale(hn::Load(d, o + x), a0), d, o + x);
      hn::Store(Recurrence::rescale(hn::Load(d, o + x + lanes_), a1), d, o + x + lanes_);
    }
  }

  // Scores to P^T in words of two keys, in place, and the sum over keys of each lane before
  // rounding. Keys up to a whole tile get 0.
  HWY_INLINE void softmax_pairs(size_t n, VF unit, VF r0, VF r1, VF &sum0, VF &sum1) const {
    const DF d;
    const float *s = s_.s_t;
    float *p = s_.s_t;
    VF t0 = hn::Zero(d), t1 = t0;
    size_t j = 0;
    for (; j + 2 <= n; j += 2, s += 2 * kRows, p += kRows) {
      const VF a0 = Recurrence::prob_in(unit, hn::Load(d, s), r0);
      const VF a1 = Recurrence::prob_in(unit, hn::Load(d, s + kTileSide), r1);
      const VF b0 = Recurrence::prob_in(unit, hn::Load(d, s + kRows), r0);
      const VF b1 = Recurrence::prob_in(unit, hn::Load(d, s + kRows + kTileSide), r1);
      t0 = hn::Add(hn::Add(t0, a0), b0);
      t1 = hn::Add(hn::Add(t1, a1), b1);
      store_pair(a0, b0, p);
      store_pair(a1, b1, p + kTileSide);
    }
    if (j < n) {
      const VF a0 = Recurrence::prob_in(unit, hn::Load(d, s), r0);
      const VF a1 = Recurrence::prob_in(unit, hn::Load(d, s + kTileSide), r1);
      t0 = hn::Add(t0, a0);
      t1 = hn::Add(t1, a1);
      store_pair(a0, hn::Zero(d), p);
      store_pair(a1, hn::Zero(d), p + kTileSide);
      p += kRows;
    }
    clear_pairs(n, p);
    sum0 = t0;
    sum1 = t1;
  }

  static HWY_INLINE void store_pair(VF a, VF b, float *p) {
    _mm512_store_si512(p, pair_words(a.raw, b.raw));
  }

  // Words from p on up to those of the last tile.
  void clear_pairs(size_t n, float *p) const {
    const size_t words = (n + kTileDepth - 1) / kTileDepth * kTileSide * kRows;
    const size_t done = static_cast<size_t>(p - s_.s_t);
    if (done < words) memset(p, 0, (words - done) * sizeof(float));
  }

  // P^T as float32 to words of two keys, in place.
  HWY_NOINLINE void pair_tile(size_t n) const {
    const DF d;
    const float *s = s_.s_t;
    float *p = s_.s_t;
    for (size_t j = 0; j < n; j += 2, s += 2 * kRows, p += kRows)
      for (size_t x = 0; x < kRows; x += kTileSide) {
        const VF a = hn::Load(d, s + x);
        store_pair(a, j + 1 < n ? hn::Load(d, s + x + kRows) : hn::Zero(d), p + x);
      }
    clear_pairs(n, p);
  }

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

void tsri_cpu_amx_install(int64_t target, tsri_cpu_kernels *kernels) {
  #if HWY_ARCH_X86_64
  if (target <= HWY_AVX3) kernels->amx_forward = TSRI_CPU_FUNCTION(tessera, amx_forward, target);
  #else
  (void)target;
  (void)kernels;
  #endif
}
#endif
