// SPDX-License-Identifier: Apache-2.0
//
// Micro-kernels on one tile, per Highway target, in the "query lanes" form: a lane is a row of Q,
// so scores are S^T = K Q^T, outputs O^T = V^T P^T, and everything between is vertical. K and V are
// read as scalars that are broadcast, in their own layout, and need no packing.
//
//   Q^T [dim][W]    S^T, P^T [keys][W]    O^T [dim_v][W]     W = NV vectors of rows, NV = 1 .. 3
//
// A block of MR keys (or MR dims of V) times NV vectors keeps MR * NV sums in registers. Every
// element is summed over the inner index in order by fused multiply-add, whatever MR and NV are, so
// a row's bits do not depend on the block it fell into.
//
// At the edges of a band each vector of rows needs other keys. Zones say which; what lies outside
// them is neither computed nor read, and would have added exact zeros.
#include <stddef.h>
#include <stdint.h>

#include "row_policy-inl.h"

#if defined(TESSERA_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_TILE_INL_H_
    #undef TESSERA_CPU_TILE_INL_H_
  #else
    #define TESSERA_CPU_TILE_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Vectors per block of rows, and rows of the register block: 24 + 4 of 32 registers, or 12 + 4
// of 16.
constexpr int kMaxVectors = 3;
  #if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
template <int NV>
constexpr int kBlock = NV == 1 ? 8 : 4;
  #else
template <int NV>
constexpr int kBlock = 8;
  #endif

// Keys of a tile that each vector of a block needs, as multiples of 8 or the end of the tile;
// neither end falls from one vector to the next. Segments: runs of keys that the same vectors need.
struct Zones {
  struct Segment {
    size_t begin, end;
    size_t first, count;  // vectors
  };
  size_t from[kMaxVectors], to[kMaxVectors];
  Segment segment[2 * kMaxVectors - 1];
  size_t segments;
  bool whole;  // every vector needs every key
};

HWY_INLINE Zones zones_whole(size_t n, size_t vectors) {
  Zones z;
  for (size_t v = 0; v < kMaxVectors; ++v) z.from[v] = 0, z.to[v] = n;
  z.segment[0] = {0, n, 0, vectors};
  z.segments = 1;
  z.whole = true;
  return z;
}

// From from[] and to[], of which those of the first `vectors` are set.
static HWY_NOINLINE HWY_MAYBE_UNUSED void zones_finish(size_t n, size_t vectors, Zones &z) {
  size_t cut[2 * kMaxVectors], cuts = 0;
  z.whole = true;
  for (size_t v = 0; v < vectors; ++v) {
    z.whole = z.whole && z.from[v] == 0 && z.to[v] == n;
    for (size_t at : {z.from[v], z.to[v]}) {
      size_t i = cuts++;
      for (; i > 0 && cut[i - 1] > at; --i) cut[i] = cut[i - 1];
      cut[i] = at;
    }
  }
  z.segments = 0;
  for (size_t i = 0; i + 1 < cuts; ++i) {
    if (cut[i] == cut[i + 1]) continue;
    Zones::Segment part = {cut[i], cut[i + 1], 0, 0};
    while (part.first < vectors && z.to[part.first] <= part.begin) ++part.first;
    while (part.first + part.count < vectors && z.from[part.first + part.count] <= part.begin)
      ++part.count;
    if (part.count > 0) z.segment[z.segments++] = part;
  }
}

// The same for keys [begin, end) of the tile, counted from `begin`, a multiple of 8.
HWY_INLINE Zones zones_cut(const Zones &from, size_t begin, size_t end, size_t vectors) {
  if (from.whole) return zones_whole(end - begin, vectors);
  Zones z;
  for (size_t v = 0; v < vectors; ++v) {
    z.from[v] = HWY_MIN(HWY_MAX(from.from[v], begin), end) - begin;
    z.to[v] = HWY_MIN(HWY_MAX(from.to[v], begin), end) - begin;
  }
  zones_finish(end - begin, vectors, z);
  return z;
}

  // Vectors may not be array elements or members on targets of unknown length: names are made by
  // hand.
  #define TSRI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

  // Products are unrolled so that the end of a loop over a usual head dim is foreseen.
  #ifdef __clang__
    #define TSRI_UNROLL _Pragma("clang loop unroll_count(4)")
  #else
    #define TSRI_UNROLL _Pragma("GCC unroll 4")
  #endif

// Scores of keys 0 .. n-1 at k (rows `ld` apart) against NV vectors of a block of rows `width`
// lanes wide, over `dim` dims; added to what S^T holds if kAdd. Rows of S^T up to the next multiple
// of the block may be overwritten.
template <int NV, bool kAdd>
static HWY_NOINLINE void score_part(const float *k, int64_t ld, size_t n,
                                    const float *HWY_RESTRICT q, size_t width, size_t dim,
                                    float *HWY_RESTRICT s) {
  constexpr int MR = kBlock<NV>;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < n; j += MR) {
    const size_t last = n - 1 - j;
  #define TSRI_DECLARE(i)                                           \
    VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0; \
    const float *HWY_RESTRICT k##i = k + static_cast<int64_t>(j + HWY_MIN(size_t{i}, last)) * ld;
    TSRI_EACH_ROW(TSRI_DECLARE)
  #undef TSRI_DECLARE
    const float *HWY_RESTRICT qx = q;
    TSRI_UNROLL
    for (size_t x = 0; x < dim; ++x, qx += width) {
      const VF b0 = hn::Load(d, qx);
      const VF b1 = NV > 1 ? hn::Load(d, qx + lanes) : b0;
      const VF b2 = NV > 2 ? hn::Load(d, qx + 2 * lanes) : b0;
  #define TSRI_STEP(i)                                            \
    if constexpr (i < MR) {                                       \
      const VF c = hn::Set(d, k##i[x]);                           \
      a##i##0 = hn::MulAdd(c, b0, a##i##0);                       \
      if constexpr (NV > 1) a##i##1 = hn::MulAdd(c, b1, a##i##1); \
      if constexpr (NV > 2) a##i##2 = hn::MulAdd(c, b2, a##i##2); \
    }
      TSRI_EACH_ROW(TSRI_STEP)
  #undef TSRI_STEP
    }
    float *HWY_RESTRICT sj = s + j * width;
  #define TSRI_JOIN(x, at) hn::Store(kAdd ? hn::Add(hn::Load(d, sj + (at)), x) : x, d, sj + (at))
  #define TSRI_FINISH(i)                                              \
    if constexpr (i < MR) {                                           \
      TSRI_JOIN(a##i##0, i *width);                                   \
      if constexpr (NV > 1) TSRI_JOIN(a##i##1, i *width + lanes);     \
      if constexpr (NV > 2) TSRI_JOIN(a##i##2, i *width + 2 * lanes); \
    }
    TSRI_EACH_ROW(TSRI_FINISH)
  #undef TSRI_FINISH
  #undef TSRI_JOIN
  }
}

// All dims of S^T = K Q^T for NV vectors of a block. Sums over many dims are cut into parts that are
// added afterwards, which keeps the rounding error of dim 576 near that of dim 128.
template <int NV>
HWY_INLINE void score_run(const float *k, int64_t ld, size_t n, const float *HWY_RESTRICT q,
                          size_t width, size_t dim, float *HWY_RESTRICT s) {
  constexpr size_t kWhole = 128, kPart = 64;
  size_t done = dim <= kWhole ? dim : kPart;
  score_part<NV, false>(k, ld, n, q, width, done, s);
  for (; done < dim; done += kPart)
    score_part<NV, true>(k + done, ld, n, q + done * width, width, HWY_MIN(kPart, dim - done), s);
}

template <int NV>
HWY_INLINE void score_tile(const float *k, int64_t ld, size_t n, const float *HWY_RESTRICT q,
                           size_t dim, float *HWY_RESTRICT s) {
  score_run<NV>(k, ld, n, q, NV * hn::Lanes(DF()), dim, s);
}

template <int NV>
static HWY_NOINLINE HWY_MAYBE_UNUSED void score_zones(const float *k, int64_t ld, const Zones &z,
                                                      const float *HWY_RESTRICT q, size_t dim,
                                                      float *HWY_RESTRICT s) {
  const size_t lanes = hn::Lanes(DF()), width = NV * lanes;
  for (size_t i = 0; i < z.segments; ++i) {
    const Zones::Segment &part = z.segment[i];
    const float *from = k + static_cast<int64_t>(part.begin) * ld;
    const size_t n = part.end - part.begin, skip = part.first * lanes;
    float *to = s + part.begin * width + skip;
    if (part.count == 1) score_run<1>(from, ld, n, q + skip, width, dim, to);
    if constexpr (NV > 1)
      if (part.count == 2) score_run<2>(from, ld, n, q + skip, width, dim, to);
    if constexpr (NV > 2)
      if (part.count == 3) score_run<3>(from, ld, n, q + skip, width, dim, to);
  }
}

// Maximum over keys of every row, folded into m[width]. Kept out of score_part: with three more
// live vectors gcc reloads operands of every product. Two chains a vector, because a maximum takes
// 4 cycles.
template <int NV>
HWY_INLINE void max_tile(const float *HWY_RESTRICT s, size_t n, float *HWY_RESTRICT m) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  VF a0 = hn::Load(d, m), a1 = a0, a2 = a0;
  if constexpr (NV > 1) a1 = hn::Load(d, m + lanes);
  if constexpr (NV > 2) a2 = hn::Load(d, m + 2 * lanes);
  VF b0 = a0, b1 = a1, b2 = a2;
  size_t j = 0;
  for (; j + 2 <= n; j += 2, s += 2 * width) {
    a0 = RowPolicy::max(a0, hn::Load(d, s));
    if constexpr (NV > 1) a1 = RowPolicy::max(a1, hn::Load(d, s + lanes));
    if constexpr (NV > 2) a2 = RowPolicy::max(a2, hn::Load(d, s + 2 * lanes));
    b0 = RowPolicy::max(b0, hn::Load(d, s + width));
    if constexpr (NV > 1) b1 = RowPolicy::max(b1, hn::Load(d, s + width + lanes));
    if constexpr (NV > 2) b2 = RowPolicy::max(b2, hn::Load(d, s + width + 2 * lanes));
  }
  if (j < n) {
    a0 = RowPolicy::max(a0, hn::Load(d, s));
    if constexpr (NV > 1) a1 = RowPolicy::max(a1, hn::Load(d, s + lanes));
    if constexpr (NV > 2) a2 = RowPolicy::max(a2, hn::Load(d, s + 2 * lanes));
  }
  hn::Store(RowPolicy::max(a0, b0), d, m);
  if constexpr (NV > 1) hn::Store(RowPolicy::max(a1, b1), d, m + lanes);
  if constexpr (NV > 2) hn::Store(RowPolicy::max(a2, b2), d, m + 2 * lanes);
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void max_zones(const float *HWY_RESTRICT s, const Zones &z,
                                                    size_t width, float *HWY_RESTRICT m) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t x = 0, v = 0; x < width; x += lanes, ++v) {
    VF top = hn::Load(d, m + x);
    for (size_t j = z.from[v]; j < z.to[v]; ++j)
      top = RowPolicy::max(top, hn::Load(d, s + j * width + x));
    hn::Store(top, d, m + x);
  }
}

// MR dims of O^T = alpha O^T + V^T P^T over n keys. A tile is summed apart and joins O at the end:
// rounding errors then grow with the tile and the number of tiles, not with the number of keys.
template <int NV, int MR, bool kZones>
static HWY_NOINLINE void output_block(const float *HWY_RESTRICT v, int64_t ld, size_t n,
                                      const Zones *zones, const float *HWY_RESTRICT p,
                                      float *HWY_RESTRICT o, const VF &alpha0, const VF &alpha1,
                                      const VF &alpha2) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  #define TSRI_DECLARE(i) VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0;
  TSRI_EACH_ROW(TSRI_DECLARE)
  #undef TSRI_DECLARE
  #define TSRI_STEP(i)                                                      \
    if constexpr (i < MR) {                                                 \
      const VF c = hn::Set(d, vj[i]);                                       \
      if constexpr (F == 0) a##i##0 = hn::MulAdd(c, b0, a##i##0);           \
      if constexpr (F <= 1 && L > 1) a##i##1 = hn::MulAdd(c, b1, a##i##1); \
      if constexpr (L > 2) a##i##2 = hn::MulAdd(c, b2, a##i##2);            \
    }
  // Keys of a segment into vectors first .. last - 1. The next lines of V, and those of the next
  // step, are asked for: a column of V is no pattern that a prefetcher knows.
  #define TSRI_KEYS(first, last)                                            \
    constexpr int F = first, L = last;                                      \
    const float *HWY_RESTRICT vj = v + static_cast<int64_t>(begin) * ld;    \
    const float *HWY_RESTRICT pj = p + begin * width;                       \
    TSRI_UNROLL                                                             \
    for (size_t j = begin; j < end; ++j, vj += ld, pj += width) {           \
      const VF b0 = F == 0 ? hn::Load(d, pj) : hn::Zero(d);                 \
      const VF b1 = F <= 1 && L > 1 ? hn::Load(d, pj + lanes) : b0;         \
      const VF b2 = L > 2 ? hn::Load(d, pj + 2 * lanes) : b0;               \
      if constexpr (!kZones) {                                              \
        __builtin_prefetch(vj + 16);                                        \
        __builtin_prefetch(vj + ahead, 0, 2);                               \
      }                                                                     \
      TSRI_EACH_ROW(TSRI_STEP)                                              \
    }
  const int64_t ahead = static_cast<int64_t>(n) * ld;
  if constexpr (!kZones) {
    const size_t begin = 0, end = n;
    TSRI_KEYS(0, NV)
  } else {
    for (size_t i = 0; i < zones->segments; ++i) {
      const size_t begin = zones->segment[i].begin, end = zones->segment[i].end;
      const size_t which = zones->segment[i].first * 4 + zones->segment[i].count;
      if (which == NV) {
        TSRI_KEYS(0, NV)
      } else if (which == 1) {
        TSRI_KEYS(0, 1)
      } else if (NV > 1 && which == 4 + NV - 1) {
        TSRI_KEYS(1, NV)
      } else if (NV > 2 && which == 2) {
        TSRI_KEYS(0, 2)
      } else if (NV > 2 && which == 5) {
        TSRI_KEYS(1, 2)
      } else if (NV > 2) {
        TSRI_KEYS(2, 3)
      }
    }
  }
  #undef TSRI_KEYS
  #undef TSRI_STEP
  #define TSRI_JOIN(x, alpha, at) \
    hn::Store(Recurrence::new_sum(hn::Load(d, o + (at)), alpha, x), d, o + (at))
  #define TSRI_FINISH(i)                                                      \
    if constexpr (i < MR) {                                                   \
      TSRI_JOIN(a##i##0, alpha0, i *width);                                   \
      if constexpr (NV > 1) TSRI_JOIN(a##i##1, alpha1, i *width + lanes);     \
      if constexpr (NV > 2) TSRI_JOIN(a##i##2, alpha2, i *width + 2 * lanes); \
    }
  TSRI_EACH_ROW(TSRI_FINISH)
  #undef TSRI_FINISH
  #undef TSRI_JOIN
}

// All dims of O^T: whole blocks, then the rest in halves, so that nothing beyond a row of V is
// read.
template <int NV, bool kZones>
HWY_INLINE void output_dims(const float *v, int64_t ld, size_t n, const Zones *z,
                            const float *HWY_RESTRICT p, size_t dim, float *HWY_RESTRICT o,
                            VF alpha0, VF alpha1, VF alpha2) {
  constexpr int MR = kBlock<NV>;
  const size_t width = NV * hn::Lanes(DF());
  size_t x = 0;
  #define TSRI_DIMS(m)                                                                        \
    output_block<NV, m, kZones>(v + x, ld, n, z, p, o + x * width, alpha0, alpha1, alpha2); \
    x += m
  while (x + MR <= dim) {
    TSRI_DIMS(MR);
  }
  if (MR > 4 && (dim - x) & 4) {
    TSRI_DIMS(4);
  }
  if ((dim - x) & 2) {
    TSRI_DIMS(2);
  }
  if ((dim - x) & 1) {
    TSRI_DIMS(1);
  }
  #undef TSRI_DIMS
}

template <int NV>
HWY_INLINE void output_tile(const float *v, int64_t ld, size_t n, const float *HWY_RESTRICT p,
                            size_t dim, float *HWY_RESTRICT o, VF alpha0, VF alpha1, VF alpha2) {
  output_dims<NV, false>(v, ld, n, nullptr, p, dim, o, alpha0, alpha1, alpha2);
}

template <int NV>
HWY_INLINE void output_zones(const float *v, int64_t ld, const Zones &z,
                             const float *HWY_RESTRICT p, size_t dim, float *HWY_RESTRICT o,
                             VF alpha0, VF alpha1, VF alpha2) {
  if constexpr (NV > 1) {
    output_dims<NV, true>(v, ld, 0, &z, p, dim, o, alpha0, alpha1, alpha2);
  } else {
    const size_t width = hn::Lanes(DF());
    output_tile<1>(v + static_cast<int64_t>(z.from[0]) * ld, ld, z.to[0] - z.from[0],
                   p + z.from[0] * width, dim, o, alpha0, alpha1, alpha2);
  }
}

// Scores to probabilities in place, and the sum over keys of each lane: p = 2^((s - r) unit).
template <int NV>
HWY_INLINE void softmax_tile(float *HWY_RESTRICT s, size_t n, VF unit, VF r0, VF r1, VF r2,
                             VF &sum0, VF &sum1, VF &sum2) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  VF t0 = hn::Zero(d), t1 = t0, t2 = t0;
  for (size_t j = 0; j < n; ++j, s += width) {
    const VF p0 = Recurrence::prob_in(unit, hn::Load(d, s), r0);
    hn::Store(p0, d, s);
    t0 = hn::Add(t0, p0);
    if constexpr (NV > 1) {
      const VF p1 = Recurrence::prob_in(unit, hn::Load(d, s + lanes), r1);
      hn::Store(p1, d, s + lanes);
      t1 = hn::Add(t1, p1);
    }
    if constexpr (NV > 2) {
      const VF p2 = Recurrence::prob_in(unit, hn::Load(d, s + 2 * lanes), r2);
      hn::Store(p2, d, s + 2 * lanes);
      t2 = hn::Add(t2, p2);
    }
  }
  sum0 = t0;
  sum1 = t1;
  sum2 = t2;
}

// One vector of rows of the same, keys [from, to).
HWY_INLINE VF softmax_vector(float *HWY_RESTRICT s, size_t width, size_t from, size_t to, VF unit,
                             VF r) {
  const DF d;
  VF sum = hn::Zero(d);
  for (size_t j = from; j < to; ++j) {
    const VF p = Recurrence::prob_in(unit, hn::Load(d, s + j * width), r);
    hn::Store(p, d, s + j * width);
    sum = hn::Add(sum, p);
  }
  return sum;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_TILE_INL_H_
