// SPDX-License-Identifier: Apache-2.0
//
// Whether backward may take a row's numbers from what forward stored. delta = rowsum(dO O) of an O of 16 bits has an
// error d, by the rounding of O, that all keys of a row share, so that dQ is off by d times the mean key that the row
// sees. That is small beside what rounding P and dP costs anyhow, unless keys have a large part in common, or values
// have, whose part in common fills O while dS does not hold it: then the error grows with the number of keys. With A
// the squared mean key over the spread of keys, W the squared mean value over the mean square of values, and n / crowd the
// number of keys that a row's weight is spread over, error over what rounding costs is
//   A / 4 + (A + 1 / Dqk) W n / crowd
// (1 / Dqk: a row leans towards keys like its query). The factors are fitted: the dQ of standard attention has the
// same RMS where this is 2 and more (docs/numerics.md). A, W and crowd are estimated from a few rows of a head.
#ifndef TESSERA_COMMON_DELTA_H_
#define TESSERA_COMMON_DELTA_H_

#include <stdint.h>

#include "common/platform.h"
#include "tessera/tessera.h"

/* Queries of a head, and keys of each of them, whose weights are looked at. */
enum { TSRI_DELTA_QUERIES = 4, TSRI_DELTA_KEYS = 16 };

/* Of a group of query heads, the one of query n of TSRI_DELTA_QUERIES. */
TSRI_INLINE int64_t tsri_delta_head(int64_t n, int64_t group) {
  return group < TSRI_DELTA_QUERIES ? n % group : n * group / TSRI_DELTA_QUERIES;
}

/* Whether there are steps between q.k and a score. They are not gone through: all keys are taken to have the same
 * weight. */
TSRI_INLINE int tsri_delta_has_terms(const tsr_problem *p) {
  return p->softcap > 0 || p->alibi != TSR_ALIBI_NONE || p->bias.dtype != TSR_DTYPE_NONE ||
         p->mask.dtype != TSR_DTYPE_NONE || p->block_mask.dtype != TSR_DTYPE_NONE;
}

/* Keys that are looked at of n, a multiple of 32: every n / rows of them from the first on, which trained models often
 * look at most. They are TSRI_DELTA_PARTS samples, of which each has every so manyth: of each the squared mean is found
 * on its own. */
enum { TSRI_DELTA_PARTS = 4 };
TSRI_INLINE int32_t tsri_delta_rows(int64_t n) {
  const int64_t rows = n / 1024 * 32;
  return rows < 32 ? 32 : rows > 256 ? 256 : (int32_t)rows;
}

/* Of what is looked at of a head: the squared mean of keys and of values, less what chance makes of it, and their
 * spread, both summed over columns. */
typedef struct tsri_delta_facts {
  float key, key_spread;
  float value, value_spread;
  float crowd; /* n sum p^2 of a row that sees n keys, 1 if all have the same weight; of several, 1 over the mean of 1 / crowd */
} tsri_delta_facts;

/* The squared mean without chance: that of m rows has spread / m of it, give or take. */
TSRI_INLINE float tsri_delta_mean(float squares, float spread, int32_t m) {
  const float rest = squares - 1.25f * spread / (float)m;
  return rest > 0 ? rest : 0;
}

/* Rows that see more keys than this need a delta of their own scores. */
TSRI_INLINE float tsri_delta_most_keys(const tsri_delta_facts *f, int64_t dim_qk) {
  const float most = 3e38f;
  const float common = f->key_spread > 0 ? f->key / f->key_spread : f->key > 0 ? most : 0;
  const float left = 2 - common / 4;
  float each = 0;
  if (left <= 0) return 0;
  if (f->value > 0)
    each = (common + 1 / (float)dim_qk) * f->value / ((f->value + f->value_spread) * (f->crowd > 1 ? f->crowd : 1));
  return each > 0 ? left / each : most;
}

/* The largest |LSE| that makes P = e^(s - LSE) exact enough in float32. An LSE in [4, 8) is off by 2^-23.8 on average,
 * and so are all P of its row; twice that in [8, 16). Standard attention has no such error, but those of its scores,
 * which are larger where these are not small. q, k: squared lengths of rows. Fitted as above. */
TSRI_INLINE float tsri_delta_most_lse(float q, float k, float scale, int64_t dim_qk) {
  const float square = q * k * scale * scale / (float)dim_qk; /* of a score, on average */
  return square < 0.16f ? 4 : square < 0.64f ? 8 : 16;
}

/* Whether no row of a head of `keys` keys may take float32 P and delta from what is stored. The rounding of a stored
 * LSE, of O and of dO O stays in the sum of a row's dS, which is 0 in standard attention but for a rounding of delta,
 * and keys with a part in common carry it into dQ: there rows that a window, a mask, a bias or their scores leave few
 * keys are off by most. Of what values have in common as above. */
TSRI_INLINE int tsri_delta_shares_f32(const tsri_delta_facts *f, int64_t dim_qk, int64_t keys) {
  return !(f->key < 0.5f * f->key_spread) || (float)keys > tsri_delta_most_keys(f, dim_qk);
}

#endif  // TESSERA_COMMON_DELTA_H_
