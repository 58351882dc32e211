// SPDX-License-Identifier: Apache-2.0
//
// What both passes do with one block of rows and one run of keys, per Highway target: K and V as
// float32 operands, which keys to visit, and the score steps between Q K^T and the exponential. A
// block is up to 3 vectors of rows (pairs of query and head); lanes beyond the last row repeat its
// coordinates.
#include <stdint.h>

#include "common/geometry.h"
#include "common/score.h"
#include "convert-inl.h"
#include "kernels.h"
#include "row_policy-inl.h"
#include "score-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

#if defined(TESSERA_CPU_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_BLOCK_INL_H_
    #undef TESSERA_CPU_BLOCK_INL_H_
  #else
    #define TESSERA_CPU_BLOCK_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Rows of K or V as float32 with a unit last stride.
struct Keys {
  const float *data;
  int64_t ld;
};

// Float32 rows a multiple of 1 KiB apart: a column of them falls into at most four sets of L1.
HWY_INLINE bool shares_sets(const tsr_layout &layout) {
  return layout.dtype == TSR_DTYPE_F32 && layout.stride[3] == 1 && layout.stride[2] % 256 == 0;
}

// Rows [row, row + n) of K or V of (b, g): in place if they are float32 rows at one distance, else
// converted and packed into buffer. Rows that share sets of L1 are packed too, unless any_distance: the
// caller reads whole lines, or few rows at a time. line: room for n elements.
static HWY_NOINLINE HWY_MAYBE_UNUSED Keys load_keys(const tsri_pages &pages, const tsr_layout &layout,
                                   const void *base, size_t dim, int64_t b, int64_t g, int64_t row,
                                   size_t n, float *buffer, float *line,
                                   bool any_distance = false) {
  const int64_t count = static_cast<int64_t>(n), *stride = layout.stride;
  if (layout.dtype == TSR_DTYPE_F32 && stride[3] == 1 && (any_distance || !shares_sets(layout) || n < 16) &&
      tsri_kv_run(&pages, row, count) == count) {
    return {static_cast<const float *>(base) + tsri_kv_offset(&pages, stride, b, g, row),
            stride[2]};
  }
  const size_t ld = static_cast<size_t>(tsri_cpu_packed_ld(static_cast<int64_t>(dim)));
  for (int64_t r = 0; r < count;) {
    const int64_t run = tsri_kv_run(&pages, row + r, count - r);
    const int64_t at = tsri_kv_offset(&pages, stride, b, g, row + r);
    float *to = buffer + static_cast<size_t>(r) * ld;
    if (stride[3] != 1 && stride[2] == 1) {  // a transposed view: its lines are the columns
      for (size_t x = 0; x < dim; ++x) {
        load_row_any(layout.dtype, base, at + static_cast<int64_t>(x) * stride[3], 1,
                     static_cast<size_t>(run), line);
        for (int64_t t = 0; t < run; ++t) to[static_cast<size_t>(t) * ld + x] = line[t];
      }
    } else {
      for (int64_t t = 0; t < run; ++t)
        load_row_any(layout.dtype, base, at + t * stride[2], stride[3], dim,
                     to + static_cast<size_t>(t) * ld);
    }
    r += run;
  }
  return {buffer, static_cast<int64_t>(ld)};
}

// Keys of [begin, end) that rows with these intervals may see, as one range; it starts at a multiple
// of `unit`, 8 or more, from `begin`, which is one of 4 from key 0, as dropout_tile needs.
HWY_INLINE void trim_keys(const tsri_mask_row &seen, int64_t begin, int64_t end, int64_t unit,
                          int64_t *key, size_t *keys) {
  const int64_t stop = HWY_MIN(end, HWY_MAX(seen.prefix, seen.hi));
  int64_t start = begin;
  if (begin >= seen.prefix && seen.lo > begin) start = begin + (seen.lo - begin) / unit * unit;
  *key = start;
  *keys = stop > start ? static_cast<size_t>(stop - start) : 0;
}

// What the vectors of a block of `width` lanes, `live` of them rows, need of an edge tile: the band of
// each. from, to: allowed keys of the rows.
HWY_INLINE Zones zones_of_band(const int64_t *from, const int64_t *to, size_t width, size_t live,
                               int64_t prefix, int64_t key, size_t keys) {
  const size_t lanes = hn::Lanes(DF()), vectors = width / lanes;
  if (key < prefix) return zones_whole(keys, vectors);
  const int64_t most = static_cast<int64_t>(keys);
  Zones z;
  for (size_t v = 0; v < vectors; ++v) {
    const size_t last = HWY_MIN((v + 1) * lanes, live) - 1;
    z.from[v] = static_cast<size_t>(tsri_clamp(from[v * lanes] - key, 0, most)) / 8 * 8;
    z.to[v] =
        HWY_MIN(keys, (static_cast<size_t>(tsri_clamp(to[last] - key, 0, most)) + 7) / 8 * 8);
    z.to[v] = HWY_MAX(z.from[v], z.to[v]);
  }
  zones_finish(keys, vectors, z);
  return z;
}

// One block against keys [key, key + keys): coordinates of its rows, and room of a tile's size.
struct ScoreTile {
  const int64_t *query, *head;  // [width] i and h
  const int64_t *from, *to;     // [width] the band's allowed keys
  const float *slope;           // [width] ALiBi
  size_t width;                 // lanes
  int64_t key;
  size_t keys;
  const Zones *zones;  // what of it is needed; the steps may leave anything elsewhere
  float *s;            // [keys][width]
  float *term, *bias;  // room: [keys][width] mask, bias
  float *lines;        // room: 4 lines of at least `keys` floats, `line` apart
  size_t line;
  int32_t *lo, *hi;  // room: [width]
};

// The steps of one problem on tiles of one sequence.
class ScoreSteps {
 public:
  ScoreSteps(const tsr_resolved &resolved, const tsr_args &args)
      : p_(resolved.p), args_(args), resolved_(resolved) {
    // Also where the factor of raw scores, scale log2 e, would be no float any more.
    const double scale = p_.scale < 0 ? -p_.scale : p_.scale;
    natural_ = p_.softcap > 0 || p_.bias.dtype != TSR_DTYPE_NONE || p_.alibi != TSR_ALIBI_NONE ||
               scale * TSRI_LOG2E > static_cast<double>(__FLT_MAX__);
    tensor_mask_ = p_.mask.dtype != TSR_DTYPE_NONE || p_.block_mask.dtype != TSR_DTYPE_NONE;
  }

  void start_sequence(int64_t b, const tsri_mask_rule &rule) {
    b_ = b;
    rule_ = rule;
  }

  // Whether apply() scales: problems with softcap, bias, ALiBi or a huge scale. Others keep dot
  // products.
  bool natural() const { return natural_; }
  // Whether a tile of this class needs apply().
  bool needed(tsri_tile_class kind) const {
    return natural_ || tensor_mask_ || kind != TSRI_TILE_FULL;
  }

  // Everything up to the mask. cap: given t.s and the number of scores, applies the softcap. False:
  // no key is allowed for any row, and t.s means nothing.
  template <class Cap>
  bool apply(const ScoreTile &t, tsri_tile_class kind, float scale, const Cap &cap) const {
    const size_t count = t.keys * t.width;
    const size_t ones = tensor_mask_ ? load_mask(t) : count;
    if (ones == 0) return false;
    if (natural_) {
      scale_tile(t.s, count, scale);
      if (p_.softcap > 0) cap(t.s, count);
      add_terms(t);
    }
    if (ones < count) mask_tile(t.s, t.term, count);
    if (kind == TSRI_TILE_EDGE) hide_edge(t);
    return true;
  }

  // x = keep ? x * factor : 0.
  HWY_NOINLINE void drop(const ScoreTile &t, tsri_dropout_key key, float *x) const {
    uint32_t *query = reinterpret_cast<uint32_t *>(t.lo),
             *head = reinterpret_cast<uint32_t *>(t.hi);
    for (size_t r = 0; r < t.width; ++r) {
      query[r] = static_cast<uint32_t>(t.query[r]);
      head[r] = static_cast<uint32_t>(b_ * p_.heads_q + t.head[r]);
    }
    dropout_tile(x, t.keys, t.width, t.key, query, head, key, resolved_.drop_threshold,
                 resolved_.keep_scale);
  }

 private:
  void add_terms(const ScoreTile &t) const {
    if (p_.bias.dtype != TSR_DTYPE_NONE) {
      load_bias(t);
      add_tile(t.s, t.bias, t.keys * t.width);
    }
    if (p_.alibi != TSR_ALIBI_NONE) {
      for (size_t r = 0; r < t.width; ++r)
        t.lo[r] = static_cast<int32_t>(t.query[r] + rule_.sk - rule_.sq - t.key);
      alibi_tile(t.s, t.keys, t.width, t.slope, t.lo);
    }
  }

  HWY_NOINLINE void hide_edge(const ScoreTile &t) const {
    const int64_t most = static_cast<int64_t>(t.keys);
    for (size_t r = 0; r < t.width; ++r) {
      t.lo[r] = static_cast<int32_t>(tsri_clamp(t.from[r] - t.key, 0, most));
      t.hi[r] = static_cast<int32_t>(tsri_clamp(t.to[r] - t.key, 0, most));
    }
    interval_tile(t.s, *t.zones, t.width,
                  static_cast<int32_t>(tsri_clamp(rule_.prefix - t.key, 0, most)), t.lo, t.hi);
  }

  HWY_NOINLINE void load_bias(const ScoreTile &t) const {
    for (size_t r = 0; r < t.width; r += kGroup) {
      const float *lines[kGroup];
      int64_t last = -1;
      for (size_t u = 0; u < kGroup; ++u) {
        const int64_t at =
            tsri_pair_offset(p_.bias.stride, b_, t.head[r + u], t.query[r + u], t.key);
        lines[u] = t.lines + u * t.line;
        if (u > 0 && at == last)
          lines[u] = lines[u - 1];
        else
          bias_line(p_.bias, args_.bias, at, t.keys, t.lines + u * t.line);
        last = at;
      }
      rows_to_columns(lines, t.keys, t.bias + r, t.width);
    }
  }

  // Mask and block mask into term; returns the number of allowed elements.
  HWY_NOINLINE size_t load_mask(const ScoreTile &t) const {
    size_t ones = 0;
    for (size_t r = 0; r < t.width; r += kGroup) {
      const float *lines[kGroup];
      for (size_t u = 0; u < kGroup; ++u) {
        float *line = t.lines + u * t.line;
        lines[u] = line;
        ones += load_mask_line(t, r + u, line);
      }
      rows_to_columns(lines, t.keys, t.term + r, t.width);
    }
    return ones;
  }

  size_t load_mask_line(const ScoreTile &t, size_t row, float *line) const {
    size_t ones = t.keys;
    if (p_.mask.dtype != TSR_DTYPE_NONE) {
      const int64_t at = tsri_pair_offset(p_.mask.stride, b_, t.head[row], t.query[row], t.key);
      ones = mask_line(p_.mask, args_.mask, at, t.keys, line);
    } else {
      for (size_t j = 0; j < t.keys; ++j) line[j] = 1.0f;
    }
    if (p_.block_mask.dtype != TSR_DTYPE_NONE) {
      const int64_t at =
          tsri_pair_offset(p_.block_mask.stride, b_, t.head[row], t.query[row] / p_.block_q, 0);
      ones -= block_mask_line(p_.block_mask, args_.block_mask, at, p_.block_k, t.key, t.keys, line);
    }
    return ones;
  }

  const tsr_problem &p_;
  const tsr_args &args_;
  const tsr_resolved &resolved_;
  bool natural_, tensor_mask_;
  int64_t b_ = 0;
  tsri_mask_rule rule_ = {};
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_BLOCK_INL_H_
