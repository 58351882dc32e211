// SPDX-License-Identifier: Apache-2.0
//
// Problems as data. cases.def holds one row per problem: seven sizes, then designated fields of
// tsr_case for whatever is not the default (zero). A row says what the problem is; inputs.c turns it
// into numbers, setup.c into memory and a tsr_problem. Read by conformance, `tessera check`, bench and
// fuzz, which makes rows of its own.
#ifndef TESSERA_TESTS_SUPPORT_CASES_H_
#define TESSERA_TESTS_SUPPORT_CASES_H_

#include <stdbool.h>
#include <stdint.h>

#include "tensor.h"
#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of Q, K and V. */
typedef enum tsr_dist {
  TSR_DIST_NORMAL = 0,
  TSR_DIST_UNIFORM,  /* [-1, 1) */
  TSR_DIST_OUTLIERS, /* normal, one element in 64 thirty times larger */
  TSR_DIST_ZERO_Q,   /* Q = 0: every allowed key has equal weight */
  TSR_DIST_OFFSET,   /* normal / 10 and a first column that adds case.offset_logit to every score */
  TSR_DIST_POSITIVE  /* [0, 1): keys and values have a large part in common */
} tsr_dist;

/* One special value put into the inputs, at elements that some query may see. */
typedef enum tsr_inject {
  TSR_INJECT_NONE = 0,
  TSR_INJECT_NAN_Q,      /* all of Q */
  TSR_INJECT_NAN_K,      /* one element of the last key of sequence 0 */
  TSR_INJECT_NAN_V,      /* likewise */
  TSR_INJECT_INF_V,      /* likewise, plus infinity */
  TSR_INJECT_INF_BOTH_V, /* +inf in one used row, -inf in another: their sum is NaN */
  TSR_INJECT_MINUS_INF_K, /* q = 1 and k = -inf in the first component: every score is -inf */
  TSR_INJECT_MINUS_INF_KEY, /* the same at the last key of sequence 0 alone, whose p is 0 */
  TSR_INJECT_INF_DOUT, /* one element of the first query of sequence 0 */
  TSR_INJECT_MINUS_INF_SMALL, /* likewise, that key otherwise zeros, and every q 2^-12 of what it was: units far apart */
  TSR_INJECT_LARGE_APART, /* q of the last query and k of the last key of head 0 are 2^80 in one component each, which is 0
                           * in all keys, or queries: large numbers, and scores 0 */
  TSR_INJECT_LARGE_V   /* 2^60 times the values of the last key of sequence 0, which no query sees */
} tsr_inject;

typedef enum tsr_bias_kind {
  TSR_BIAS_NONE = 0,
  TSR_BIAS_NORMAL,
  TSR_BIAS_LOWEST_KEYS, /* the dtype's most negative number at the first case.special keys */
  TSR_BIAS_LOWEST_ROW,  /* that number all over row 0, +1 elsewhere */
  TSR_BIAS_MINUS_INF,   /* -inf at a third of the keys and all over row 1 */
  TSR_BIAS_LEFT_PAD     /* -65504 where key < special or key > query, else 0 */
} tsr_bias_kind;

typedef enum tsr_mask_kind {
  TSR_MASK_NONE = 0,
  TSR_MASK_RANDOM,     /* six in ten allowed */
  TSR_MASK_ALL,        /* all allowed */
  TSR_MASK_NOTHING,    /* none allowed */
  TSR_MASK_LAST_ROW,   /* random, and the last query sees nothing */
  TSR_MASK_FIRST_ROWS, /* random, and the first case.special queries see nothing */
  TSR_MASK_TRIL,       /* key <= query */
  TSR_MASK_FIRST_KEYS, /* the first case.special keys are hidden */
  TSR_MASK_STRIPES,    /* 96 keys hidden, 32 shown, and so on: whole tiles are hidden */
  TSR_MASK_LAST_KEY,   /* only the last key is shown */
  TSR_MASK_KEYS_011010 /* keys 0, 3, 5, 6, 9, ... hidden, as in the report that names it */
} tsr_mask_kind;

typedef enum tsr_sink_kind {
  TSR_SINK_NONE = 0,
  TSR_SINK_NORMAL,
  TSR_SINK_LARGE,     /* 20 and more: the sink takes nearly everything */
  TSR_SINK_LOW,       /* -200 and less: no effect but in rows that see no key */
  TSR_SINK_MINUS_INF, /* no effect */
  TSR_SINK_HUGE       /* +-3e38 by turns of heads: finite, and no float32 in base two */
} tsr_sink_kind;

/* Axes of bias, mask or block mask that are broadcast through a stride of 0. */
enum { TSR_OVER_B = 1, TSR_OVER_H = 2, TSR_OVER_Q = 4, TSR_OVER_K = 8 };

/* Gradients. */
enum { TSR_GRAD_Q = 1, TSR_GRAD_K = 2, TSR_GRAD_V = 4, TSR_GRAD_BIAS = 8, TSR_GRAD_SINK = 16 };

typedef struct tsr_case {
  const char *name, *group;
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v;
  const char *note; /* where the case comes from */

  /* Types and layouts. */
  uint32_t dtypes; /* bits 1 << tsr_dtype; 0: F32, F16, BF16 */
  tsr_dtype cache; /* I8, F8_E4M3 or F8_E5M2: of K and V, with scales that are powers of two, so that
                      their values are exact in every dtype; 0: as Q */
  bool q8;         /* with cache: Q too is of its type */
  bool odd_scales; /* a third of the scales is negative, a third 0 */
  uint32_t scale_over; /* TSR_OVER_B, TSR_OVER_H: axes of the scales that have a stride of 0 */
  int64_t scale_rows; /* rows that share a scale, 0: all (of a page); 0 or 1 when packed or left padded */
  bool o_f32;      /* F32 output whatever the inputs are */
  bool grad_f32;
  uint32_t grad_wide; /* TSR_GRAD bits: gradients that are F32 whatever the inputs are */
  bool dout_f32;      /* F32 dO of an O that has 16 bits */
  bool index_i64;
  tsr_pattern layout; /* of every tensor; layout_x, when set, of one (a pattern + 1) */
  uint8_t layout_q, layout_k, layout_v, layout_o, layout_lse, layout_dout;
  int64_t alignment;  /* promised for every tensor */

  /* Lengths: arrays of batch elements; NULL means the whole slot. */
  const int64_t *len_q, *len_k;   /* used lengths */
  const int64_t *left_q, *left_k; /* left padding */
  const int64_t *slot_q, *slot_k; /* slots of packed tensors, when longer than left + len */
  bool packed_q, packed_k;
  bool no_bound;     /* packed: seq_q and seq_k of the problem are 0 */
  int64_t lead;      /* rows of packed tensors before the first slot */
  int64_t page_size; /* paged keys; needs len_k */
  int64_t page_gap;  /* entries between rows of the page table */
  int64_t share;     /* rows at the start of every sequence that use sequence 0's pages; whole pages where
                        rows share scales */

  /* Scores. */
  float scale, softcap;
  tsr_bias_kind bias;
  tsr_dtype bias_dtype; /* 0: of q */
  uint32_t bias_over;
  tsr_alibi alibi;
  bool alibi_negative; /* slopes of odd heads */
  tsr_sink_kind sink;

  /* Masks. */
  tsr_causal causal;
  int64_t diagonal;
  const int64_t *diagonals;
  tsr_window_kind window;
  int64_t left, right;
  int64_t prefix;
  const int64_t *prefixes;
  tsr_mask_kind mask;
  bool mask_bits;
  uint32_t mask_over;
  int64_t block_q, block_k; /* a random block mask when set */
  uint32_t block_over;
  int64_t special; /* see the kinds above */

  /* Dropout. */
  float dropout;
  uint64_t drop_seed, drop_offset;
  bool rng_array; /* both in memory of the device */

  /* Inputs. */
  tsr_dist dist;
  double amplitude;    /* factor on Q and K; 0: 1 */
  double amplitude_v;  /* factor on V; 0: 1 */
  double offset_v;     /* added to V */
  double offset_logit; /* TSR_DIST_OFFSET */
  tsr_inject inject;
  bool expect_nan; /* NaN is the right answer somewhere */
  uint64_t seed;

  /* Outputs and gradients. */
  bool no_lse, max_logit;
  bool forward_only; /* the backward pass does not apply */
  uint32_t grads;    /* TSR_GRAD bits; 0: all that apply */
  bool dlse;
  uint32_t accumulate; /* tsr_accumulate bits */
  tsr_determinism determinism;
} tsr_case;

/* Rows of cases.def. */
int32_t tsr_case_count(void);
const tsr_case *tsr_case_at(int32_t index);
const tsr_case *tsr_case_find(const char *name); /* NULL: no such row */

/* Groups, in order of first appearance. */
int32_t tsr_case_group_count(void);
const char *tsr_case_group(int32_t group);

/* dtype bits of a row, defaults resolved. */
uint32_t tsr_case_dtypes(const tsr_case *row);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_CASES_H_
