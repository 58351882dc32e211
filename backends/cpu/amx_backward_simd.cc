// SPDX-License-Identifier: Apache-2.0
//
// Backward in bfloat16 on the tile unit of Intel AMX; tasks are those of backward_task-inl.h, with
// blocks of 32 rows. The five products take bfloat16 and add in float32; P and dS are rounded to
// bfloat16 before theirs, as standard attention does, but what rounding takes from dS is added to
// dQ: where keys are alike, dS sums to 0 over them and nothing but the rounding would be left.
//
//   S^T = K Q^T, dP^T = V dO^T    over dims: A rows of K and V, B pairs of Q and dO
//   dQ^T += K^T dS^T              over keys: A columns of K, B words of two keys of dS^T
//   dV += P^T dO, dK += dS^T Q    over rows: A rows of P^T and dS^T, B doubles of dO and Q
//
// Both forms of dS^T and the one of P^T overwrite what they come from: of the 128 bytes of a key,
// the first 64 become its 32 rows in bfloat16, the others half of the words of two keys (of dS^T, or
// of what rounding took from it).
//
// Floors per 16 scores on one core: 160 D FLOPs at 1024 a clock are 2.5 D / 16 clocks of the tile
// unit, beside about 28 vector instructions on two ports.
#include "backward_job.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/amx_backward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "amx_pack-inl.h"
#include "amx_rows-inl.h"
#include "backward_task-inl.h"
#include "block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

#if TSRI_AMX_TARGET
class AmxBackward final : public BackwardTask {
 public:
  AmxBackward(const tsri_cpu_backward &job, int32_t worker)
      : BackwardTask(job, worker), line_(static_cast<size_t>(tsri_cpu_tile_line(&p_))) {
    tiles_.configure();
  }
  ~AmxBackward() { tiles_.release(); }

 private:
  static constexpr size_t kLanes = 32;  // rows of a block

  // K as rows and as columns, V as rows.
  void pack_panel(int64_t begin, size_t n) override {
    const uint16_t *rows[kTileDepth];
    k_columns_ = reinterpret_cast<uint8_t *>(s_.k) +
                 static_cast<size_t>(job_.tiles.panel) * ld_ * sizeof(uint16_t);
    for (size_t j = 0; j < n; j += kTileDepth) {
      const int64_t row = seq_.k.begin + begin + static_cast<int64_t>(j);
      const size_t exist = HWY_MIN(kTileDepth, n - j);
      rows_of_keys(job_.pages, p_.k, args_.k, dim_, b_, g_, row, exist, s_.rows16, line_, rows);
      pack_rows(rows, dim_, tile_at(static_cast<void *>(s_.k), j / kTileSide * (ld_ / kTileDepth)));
      pack_columns(rows, dim_, tile_at(static_cast<void *>(k_columns_), j / kTileDepth * (ld_ / kTileSide)));
      if (!want_s_) continue;
      rows_of_keys(job_.pages, p_.v, args_.v, dim_v_, b_, g_, row, exist, s_.rows16, line_, rows);
      pack_rows(rows, dim_v_,
                tile_at(static_cast<void *>(s_.v), j / kTileSide * (ld_v_ / kTileDepth)));
    }
  }

  void pack_block() override {
    pack_side(p_.q, args_.q, dim_, p_.scale < 0 ? 0x80008000u : 0, s_.q_t, s_.q);
    pack_side(p_.dout, args_.dout, dim_v_, 0, s_.do_t, s_.dout);
  }

  // Rows of the block in pairs, both halves alternating, and as doubles.
  void pack_side(const tsr_layout &layout, const void *base, size_t dim, uint32_t flip,
                 void *pairs, void *doubles) const {
    const uint16_t *rows[kLanes];
    for (size_t r = 0; r < kLanes; ++r)
      rows[r] = r < live_ ? row16(layout, base, offset_of(layout, row_at(r)), dim,
                                  s_.rows16 + r * line_)
                          : nullptr;
    pack_pairs(rows, dim, flip, 2, pairs);
    pack_pairs(rows + kTileSide, dim, flip, 2, tile_at(pairs, 1));
    pack_doubles(rows, dim, doubles);
  }

  void multiply_scores(const ScoreTile &t) override { products(t, s_.k, s_.q_t, ld_, s_.s_t); }
  void load_gradients(const ScoreTile &t) override {
    products(t, s_.v, s_.do_t, ld_v_, s_.g_t);
  }

  static size_t groups_of(const ScoreTile &t) { return (t.keys + kTileDepth - 1) / kTileDepth; }

  // [keys][kLanes] = rows of the panel from the tile's first key on, times the block's rows.
  HWY_NOINLINE void products(const ScoreTile &t, const void *keys, const void *pairs, size_t dims,
                             float *out) {
    const size_t chunks = dims / kTileDepth, first = static_cast<size_t>(t.key - panel_);
    const uint8_t *a = tile_at(keys, first / kTileSide * chunks);
    for (size_t g = 0; g < groups_of(t); ++g, a += 2 * chunks * kTileBytes) {
      const uint8_t *b = static_cast<const uint8_t *>(pairs);
      tiles_.zero<0>(), tiles_.zero<1>(), tiles_.zero<2>(), tiles_.zero<3>();
      for (size_t c = 0; c < chunks; ++c, b += 2 * kTileBytes)
        square(a + c * kTileBytes, 64, a + (chunks + c) * kTileBytes, b, 64, b + kTileBytes);
      store_sums(out + g * kTileDepth * kLanes, kLanes);
    }
  }

  void add_gradients(const ScoreTile &t) override {
    const size_t at = static_cast<size_t>(t.key - panel_), n = t.keys;
    if (want_v_) {
      round_rows(s_.s_t, n);
      add_keys(t, s_.s_t, s_.dout, s_.dv + at * ld_v_, ld_v_);
    }
    if (want_bias_) add_bias(t);
    if (!want_q_ && !want_k_) return;
    if (p_.softcap > 0) multiply_tile(s_.g_t, s_.slope_t, n * kLanes);
    round_both(s_.g_t, s_.s_t, n);
    if (want_q_) add_queries(t);
    if (want_k_) add_keys(t, s_.g_t, s_.q, s_.dk + at * ld_, ld_);
  }

  // dQ^T [dims][kLanes] += K^T dS^T.
  HWY_NOINLINE void add_queries(const ScoreTile &t) {
    const size_t line = ld_ / kTileSide;
    const size_t first = static_cast<size_t>(t.key - panel_) / kTileDepth * line;
    float *dq = share_of_dq(chunk_);
    for (size_t x = 0; x < line; x += 2, dq += kTileDepth * kLanes) {
      const uint8_t *a = tile_at(static_cast<const void *>(k_columns_), first + x);
      const float *b = s_.g_t + kTileSide, *rest = s_.s_t + kTileSide;
      load_sums(dq, kLanes);
      for (size_t g = 0; g < groups_of(t); ++g, a += line * kTileBytes) {
        square(a, 64, a + kTileBytes, b, 2 * kLanes * sizeof(float), b + kLanes);
        tiles_.load<6>(rest, 2 * kLanes * sizeof(float));
        tiles_.load<7>(rest + kLanes, 2 * kLanes * sizeof(float));
        tiles_.dot<0, 4, 6>();
        tiles_.dot<1, 4, 7>();
        tiles_.dot<2, 5, 6>();
        tiles_.dot<3, 5, 7>();
        b += kTileDepth * kLanes;
        rest += kTileDepth * kLanes;
      }
      store_sums(dq, kLanes);
    }
  }

  // dK or dV [keys][ld] += rows of weights times doubles of the block's rows.
  HWY_NOINLINE void add_keys(const ScoreTile &t, const float *weights, const void *doubles,
                             float *sums, size_t ld) {
    for (size_t g = 0; g < groups_of(t); ++g) {
      const float *a = weights + g * kTileDepth * kLanes;
      tiles_.load<4>(a, kLanes * sizeof(float));
      tiles_.load<5>(a + kTileSide * kLanes, kLanes * sizeof(float));
      for (size_t x = 0; x < ld / kTileSide; x += 2) {
        float *c = sums + g * kTileDepth * ld + x * kTileSide;
        load_sums(c, ld);
        tiles_.load<6>(tile_at(doubles, x), 64);
        tiles_.load<7>(tile_at(doubles, x + 1), 64);
        tiles_.dot<0, 4, 6>();
        tiles_.dot<1, 4, 7>();
        tiles_.dot<2, 5, 6>();
        tiles_.dot<3, 5, 7>();
        store_sums(c, ld);
      }
    }
  }

  // 2 x 2 tiles of sums += two tiles of A, `stride` bytes between rows, times two of B.
  HWY_INLINE void square(const void *a0, size_t a_stride, const void *a1, const void *b0,
                         size_t b_stride, const void *b1) {
    tiles_.load<6>(b0, b_stride);
    tiles_.load<4>(a0, a_stride);
    tiles_.dot<0, 4, 6>();
    tiles_.load<7>(b1, b_stride);
    tiles_.dot<1, 4, 7>();
    tiles_.load<5>(a1, a_stride);
    tiles_.dot<2, 5, 6>();
    tiles_.dot<3, 5, 7>();
  }

  // The sums from and to a matrix of 32 x 32, `ld` floats between rows.
  HWY_INLINE void load_sums(const float *c, size_t ld) {
    tiles_.load<0>(c, ld * sizeof(float));
    tiles_.load<1>(c + kTileSide, ld * sizeof(float));
    tiles_.load<2>(c + kTileSide * ld, ld * sizeof(float));
    tiles_.load<3>(c + kTileSide * ld + kTileSide, ld * sizeof(float));
  }
  HWY_INLINE void store_sums(float *c, size_t ld) {
    tiles_.store<0>(c, ld * sizeof(float));
    tiles_.store<1>(c + kTileSide, ld * sizeof(float));
    tiles_.store<2>(c + kTileSide * ld, ld * sizeof(float));
    tiles_.store<3>(c + kTileSide * ld + kTileSide, ld * sizeof(float));
  }

  // Lanes without a row count as 0, whatever their keys held.
  HWY_INLINE void load_lanes(const float *x, VF &low, VF &high) const {
    const DF d;
    low = hn::Load(d, x);
    high = hn::Load(d, x + kTileSide);
    if (live_ == kLanes) return;
    low = hn::IfThenElseZero(hn::FirstN(d, live_), low);
    high = hn::IfThenElseZero(hn::FirstN(d, live_ - HWY_MIN(live_, kTileSide)), high);
  }

  // P^T of n keys as rows of bfloat16; keys up to a whole tile get 0.
  HWY_NOINLINE void round_rows(float *x, size_t n) const {
    VF low, high;
    for (size_t j = 0; j < n; ++j, x += kLanes) {
      load_lanes(x, low, high);
      _mm512_store_si512(x, row_words(low.raw, high.raw));
    }
    for (size_t j = n; j % kTileDepth != 0; ++j, x += kLanes)
      _mm512_store_si512(x, _mm512_setzero_si512());
  }

  // dS^T of n keys as rows of bfloat16 and as words of two keys; what rounding took, as words, beside
  // the rows of P^T.
  HWY_NOINLINE void round_both(float *x, float *rest, size_t n) const {
    const DF d;
    const size_t padded = (n + kTileDepth - 1) / kTileDepth * kTileDepth;
    for (size_t j = 0; j < padded; j += 2, x += 2 * kLanes, rest += 2 * kLanes) {
      VF a_low = hn::Zero(d), a_high = a_low, b_low = a_low, b_high = a_low;
      if (j < n) load_lanes(x, a_low, a_high);
      if (j + 1 < n) load_lanes(x + kLanes, b_low, b_high);
      const Words a = row_words(a_low.raw, a_high.raw), b = row_words(b_low.raw, b_high.raw);
      _mm512_store_si512(x, a);
      _mm512_store_si512(x + kTileSide, pair_words(a_low.raw, b_low.raw));
      _mm512_store_si512(x + kLanes, b);
      _mm512_store_si512(x + kLanes + kTileSide, pair_words(a_high.raw, b_high.raw));
      _mm512_store_si512(rest + kTileSide,
                         pair_words(left(a_low.raw, _mm512_castsi512_si256(a)),
                                    left(b_low.raw, _mm512_castsi512_si256(b))));
      _mm512_store_si512(rest + kLanes + kTileSide,
                         pair_words(left(a_high.raw, _mm512_extracti64x4_epi64(a, 1)),
                                    left(b_high.raw, _mm512_extracti64x4_epi64(b, 1))));
    }
  }

  // x minus what it was rounded to.
  static HWY_INLINE __m512 left(__m512 x, __m256i rounded) {
    return _mm512_sub_ps(
        x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
  }

  Tiles tiles_;
  size_t line_;                   // elements of a line of s_.rows16
  uint8_t *k_columns_ = nullptr;  // K of the panel as columns
};

void amx_backward_rows(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  AmxBackward(*job, worker).run_rows(task);
}

void amx_backward_keys(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  AmxBackward(*job, worker).run_keys(task);
}

void amx_backward_queries(const tsri_cpu_backward *job, int64_t task, int32_t worker) {
  AmxBackward(*job, worker).run_queries(task);
}
#else
// Never called: tsri_cpu_amx_backward_install leaves them out.
void amx_backward_rows(const tsri_cpu_backward *, int64_t, int32_t) {}
void amx_backward_keys(const tsri_cpu_backward *, int64_t, int32_t) {}
void amx_backward_queries(const tsri_cpu_backward *, int64_t, int32_t) {}
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "targets.h"
namespace tessera {
HWY_EXPORT(amx_backward_rows);
HWY_EXPORT(amx_backward_keys);
HWY_EXPORT(amx_backward_queries);
}  // namespace tessera

void tsri_cpu_amx_backward_install(int64_t target, tsri_cpu_kernels *kernels) {
  #if HWY_ARCH_X86_64
  if (target > HWY_AVX3) return;
  kernels->amx_backward_rows = TSRI_CPU_FUNCTION(tessera, amx_backward_rows, target);
  kernels->amx_backward_keys = TSRI_CPU_FUNCTION(tessera, amx_backward_keys, target);
  kernels->amx_backward_queries = TSRI_CPU_FUNCTION(tessera, amx_backward_queries, target);
  #else
  (void)target;
  (void)kernels;
  #endif
}
#endif
