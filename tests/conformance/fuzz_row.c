// SPDX-License-Identifier: Apache-2.0
//
// See fuzz_row.h. Every decision draws from its own place of the counter-based source, so that a change
// of the generator moves as few other decisions as possible.
#include "fuzz_row.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/inputs.h"
#include "tests/support/numeric.h"

enum { LEN_Q = 0, LEN_K, LEFT_Q, LEFT_K, SLOT_Q, SLOT_K, PREFIXES, DIAGONALS };

/* -------------------------------------------------------------------------------------- drawing */

typedef struct dice {
  uint64_t seed, next;
} dice;

static int64_t roll(dice *d, int64_t lo, int64_t hi) {
  return tsr_test_integer(d->seed, 7777, d->next++, lo, hi);
}

static bool chance(dice *d, int percent) { return roll(d, 0, 99) < percent; }

static int64_t pick(dice *d, const int64_t *from, size_t count) {
  return from[roll(d, 0, (int64_t)count - 1)];
}

#define PICK(d, ...)                                                          \
  pick(d, (const int64_t[]){__VA_ARGS__},                                     \
       sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static int64_t draw_length(dice *d) {
  if (chance(d, 3)) return 0;
  if (chance(d, 30)) return roll(d, 1, 40);
  if (chance(d, 20)) return roll(d, 1, 330);
  return PICK(d, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191,
              192, 193, 255, 257);
}

static int64_t draw_dim(dice *d, int64_t largest) {
  int64_t dim = chance(d, 25) ? roll(d, 1, 140)
                              : PICK(d, 1, 2, 3, 7, 8, 16, 24, 32, 33, 40, 48, 63, 64, 64, 65, 72, 80,
                                     96, 100, 112, 128, 128, 129, 192, 256, 320, 512, 576);
  return dim > largest ? largest : dim;
}

static void draw_sizes(dice *d, tsr_case *c) {
  double cost;
  c->batch = chance(d, 2) ? 0 : PICK(d, 1, 1, 1, 2, 2, 3, 4, 5);
  c->heads_kv = chance(d, 1) ? 0 : PICK(d, 1, 1, 2, 2, 3, 5);
  c->heads_q = c->heads_kv * PICK(d, 1, 1, 1, 2, 3, 4, 8);
  c->dim_qk = draw_dim(d, 576);
  c->dim_v = chance(d, 70) ? c->dim_qk : draw_dim(d, 512);
  if (c->dim_v > 512) c->dim_v = 512;
  c->seq_q = chance(d, 25) ? PICK(d, 1, 1, 2, 3, 5) : draw_length(d);
  c->seq_k = chance(d, 25) ? c->seq_q : draw_length(d);
  if (c->seq_q < 4 && chance(d, 15)) c->seq_k = roll(d, 300, 2100);
  /* About ten million products at most: shrink what is long. */
  while (cost = (double)c->batch * (double)c->heads_q * (double)c->seq_q * (double)c->seq_k *
                (double)(c->dim_qk + c->dim_v),
         cost > 1.2e7) {
    if (c->heads_kv > 1)
      c->heads_q /= c->heads_kv, c->heads_kv = 1;
    else if (c->batch > 1)
      c->batch = 1;
    else if (c->seq_q > 16)
      c->seq_q = c->seq_q * 2 / 3;
    else
      c->seq_k = c->seq_k * 2 / 3;
  }
}

static int64_t *draw_array(dice *d, fuzz_row *f, int which, int64_t lo, int64_t hi) {
  int64_t b;
  for (b = 0; b < FUZZ_BATCH_MAX; ++b) f->array[which][b] = hi < lo ? lo : roll(d, lo, hi);
  return f->array[which];
}

/* Used lengths, padding and slots of one side. */
static void draw_side(dice *d, fuzz_row *f, bool queries) {
  tsr_case *c = &f->row;
  int64_t seq = queries ? c->seq_q : c->seq_k, b;
  int shift = queries ? 0 : 1;
  bool packed = queries ? c->packed_q : c->packed_k;
  bool paged = !queries && c->page_size;
  const int64_t *len = NULL, *left = NULL, *slot = NULL;
  if (packed || paged || chance(d, 25)) {
    len = draw_array(d, f, LEN_Q + shift, 0, seq);
    if (chance(d, 15)) f->array[LEN_Q + shift][0] = 0;
    if (chance(d, 50)) f->array[LEN_Q + shift][roll(d, 0, FUZZ_BATCH_MAX - 1)] = seq;
  }
  if (chance(d, packed ? 15 : 20)) {
    draw_array(d, f, LEFT_Q + shift, 0, seq);
    for (b = 0; b < FUZZ_BATCH_MAX; ++b) {
      int64_t room = len ? seq - len[b] : seq;
      if (f->array[LEFT_Q + shift][b] > room) f->array[LEFT_Q + shift][b] = room;
    }
    left = f->array[LEFT_Q + shift];
  }
  if (packed && chance(d, 20)) {
    for (b = 0; b < FUZZ_BATCH_MAX; ++b) {
      int64_t least = len[b] + (left ? left[b] : 0);
      f->array[SLOT_Q + shift][b] = roll(d, least, seq);
    }
    slot = f->array[SLOT_Q + shift];
  }
  if (queries)
    c->len_q = len, c->left_q = left, c->slot_q = slot;
  else
    c->len_k = len, c->left_k = left, c->slot_k = slot;
}

static void draw_lengths(dice *d, fuzz_row *f) {
  tsr_case *c = &f->row;
  c->packed_q = chance(d, 25);
  c->packed_k = c->packed_q ? chance(d, 80) : chance(d, 5);
  if (!c->packed_k && chance(d, 20)) c->page_size = PICK(d, 1, 3, 7, 8, 16, 16, 32, 64, 100, 256);
  c->index_i64 = chance(d, 25);
  /* 0 as a packed bound means that none is known, which pair tensors cannot do with. */
  if (c->packed_q && c->seq_q == 0) c->seq_q = 1;
  if (c->packed_k && c->seq_k == 0) c->seq_k = 1;
  if (c->packed_q || c->packed_k) c->lead = chance(d, 20) ? roll(d, 1, 5) : 0;
  draw_side(d, f, true);
  draw_side(d, f, false);
  if (c->page_size && !c->left_k && chance(d, 30)) c->share = roll(d, 0, c->seq_k);
}

/* An 8-bit cache; scales that rows share ask for rows at the same place in every layout. */
static void draw_cache(dice *d, fuzz_row *f) {
  tsr_case *c = &f->row;
  if (!chance(d, 12)) return;
  c->cache = (tsr_dtype)PICK(d, TSR_DTYPE_I8, TSR_DTYPE_I8, TSR_DTYPE_F8_E4M3, TSR_DTYPE_F8_E5M2);
  c->scale_rows = c->packed_k || c->left_k ? 1 : PICK(d, 1, 1, 0, 4, 16);
  if (c->cache == TSR_DTYPE_F8_E4M3) {
    c->q8 = chance(d, 60) && !(c->page_size && c->left_k); /* whose scales are of pages, which are not shifted */
    c->odd_scales = chance(d, 20);
  }
  if (c->q8) c->group = "all8"; /* for coverage.def */
  if (c->q8) c->scale_rows = c->packed_q || c->packed_k || c->left_q || c->left_k ? 0 : PICK(d, 0, 0, 128, 1);
  /* Rows that sequences share have the scale of sequence 0, and a page may have but one. */
  if (c->page_size && c->scale_rows != 1) c->share -= c->share % c->page_size;
  c->forward_only = true;
}

static void draw_layouts(dice *d, fuzz_row *f) {
  static const int64_t plain[] = {TSR_PATTERN_BHSD,       TSR_PATTERN_BSHD,
                                  TSR_PATTERN_BHSD_GAPS,  TSR_PATTERN_BSHD_GAPS,
                                  TSR_PATTERN_SBHD,       TSR_PATTERN_TRANSPOSED,
                                  TSR_PATTERN_EVERY_OTHER};
  tsr_case *c = &f->row;
  uint8_t *own[] = {&c->layout_q, &c->layout_k,   &c->layout_v,
                    &c->layout_o, &c->layout_lse, &c->layout_dout};
  size_t i;
  if (chance(d, 50)) c->layout = (tsr_pattern)pick(d, plain, 7);
  if (chance(d, 25))
    for (i = 0; i < 6; ++i) *own[i] = (uint8_t)(pick(d, plain, 7) + 1);
  if (chance(d, 6) && !c->page_size && !c->packed_k && !c->left_k) {
    c->layout_k = c->layout_v =
        (uint8_t)(1 + (chance(d, 50) ? TSR_PATTERN_SAME_BATCH : TSR_PATTERN_SAME_HEAD));
  }
  if (chance(d, 5) && c->seq_q < 20 && c->seq_k < 40 && !c->page_size) {
    static const int64_t huge[] = {TSR_PATTERN_HUGE_BATCH, TSR_PATTERN_HUGE_HEAD,
                                   TSR_PATTERN_HUGE_SEQ};
    c->layout = (tsr_pattern)pick(d, huge, 3);
    for (i = 0; i < 6; ++i) *own[i] = 0;
  }
  if (chance(d, 20)) c->alignment = PICK(d, 8, 16, 32, 64, 128);
}

static void draw_masks(dice *d, fuzz_row *f) {
  tsr_case *c = &f->row;
  int64_t span = c->seq_q + c->seq_k + 2;
  if (chance(d, 45)) c->causal = (tsr_causal)roll(d, 1, 3);
  if (chance(d, 25)) {
    c->window = c->causal ? (tsr_window_kind)(int)c->causal : (tsr_window_kind)roll(d, 1, 3);
    c->left = chance(d, 20) ? TSR_UNBOUNDED : roll(d, 0, span);
    c->right = chance(d, 20) ? TSR_UNBOUNDED : roll(d, 0, span / 2);
    if (chance(d, 30)) c->left = roll(d, 0, 9), c->right = roll(d, 0, 3);
  }
  if (c->causal == TSR_CAUSAL_EXPLICIT || c->window == TSR_WINDOW_EXPLICIT) {
    if (chance(d, 50))
      c->diagonals = draw_array(d, f, DIAGONALS, -c->seq_q, c->seq_k);
    else
      c->diagonal = chance(d, 10) ? PICK(d, -(INT64_C(1) << 45), INT64_C(1) << 45, INT32_MAX)
                                  : roll(d, -c->seq_q - 3, c->seq_k + 3);
  }
  if (chance(d, 10)) {
    if (chance(d, 50))
      c->prefixes = draw_array(d, f, PREFIXES, 0, c->seq_k + 2);
    else
      c->prefix = roll(d, 1, c->seq_k + 2);
  }
  if (chance(d, 20)) {
    c->mask = (tsr_mask_kind)roll(d, TSR_MASK_RANDOM, TSR_MASK_KEYS_011010);
    c->mask_bits = chance(d, 40);
    c->special = roll(d, 0, c->seq_k + 1);
    if (chance(d, 50)) c->mask_over = (uint32_t)roll(d, 0, 15);
  }
  if (chance(d, 8)) {
    c->block_q = PICK(d, 1, 5, 16, 64, 128);
    c->block_k = PICK(d, 1, 7, 16, 64, 128);
    if (chance(d, 50)) c->block_over = (uint32_t)roll(d, 0, 7);
  }
}

static void draw_scores(dice *d, fuzz_row *f) {
  tsr_case *c = &f->row;
  if (chance(d, 20)) c->scale = (float)roll(d, -8, 8) / 16.0f;
  if (chance(d, 15)) c->softcap = (float)PICK(d, 1, 5, 20, 50);
  if (chance(d, 20)) {
    c->bias = chance(d, 75) ? TSR_BIAS_NORMAL : TSR_BIAS_MINUS_INF;
    if (chance(d, 50)) c->bias_over = (uint32_t)roll(d, 0, 15);
    if (chance(d, 30)) c->bias_dtype = (tsr_dtype)roll(d, TSR_DTYPE_F32, TSR_DTYPE_BF16);
  }
  if (chance(d, 15)) c->alibi = (tsr_alibi)roll(d, 1, 2);
  if (chance(d, 15)) c->sink = (tsr_sink_kind)roll(d, 1, 3);
  if (chance(d, 15)) {
    c->dropout = (float)PICK(d, 1, 1, 5, 9, 10) / 10.0f;
    c->drop_seed = tsr_test_bits(d->seed, 1, 1);
    c->drop_offset = tsr_test_bits(d->seed, 1, 2);
  }
  c->dist = (tsr_dist)PICK(d, TSR_DIST_NORMAL, TSR_DIST_NORMAL, TSR_DIST_NORMAL, TSR_DIST_UNIFORM,
                           TSR_DIST_OUTLIERS, TSR_DIST_ZERO_Q, TSR_DIST_OFFSET);
  if (c->dist == TSR_DIST_OFFSET) c->offset_logit = (double)roll(d, -150, 150);
  if (c->dist == TSR_DIST_NORMAL && chance(d, 30)) c->amplitude = (double)PICK(d, 1, 2, 4, 8) / 4;
}

/* What came later; drawn last, so that older seeds stay what they were but for this. */
static void draw_more(dice *d, fuzz_row *f) {
  tsr_case *c = &f->row;
  uint8_t *same[] = {&c->layout_q, &c->layout_k, &c->layout_v, &c->layout_dout};
  if (chance(d, 15)) c->grad_wide = (uint32_t)roll(d, 1, 15);
  c->dout_f32 = chance(d, 10);
  if (c->cache && chance(d, 40)) c->scale_over = (uint32_t)roll(d, 1, 3);
  if (c->left_q || c->left_k) c->scale_over &= ~(uint32_t)TSR_OVER_B; /* row j is not at one place */
  if (c->page_size && chance(d, 30)) c->page_gap = roll(d, 1, 9);
  c->alibi_negative = c->alibi && chance(d, 30);
  c->rng_array = c->dropout > 0 && chance(d, 40);
  if (c->layout < TSR_PATTERN_HUGE_BATCH && !c->page_size && !c->share && chance(d, 6))
    *same[roll(d, 0, 3)] = (uint8_t)(1 + (chance(d, 50) ? TSR_PATTERN_SAME_SEQ : TSR_PATTERN_SAME_DIM));
  if (chance(d, 12)) c->dist = TSR_DIST_POSITIVE;
  if (chance(d, 12)) c->offset_v = (double)roll(d, -3, 3);
}

void fuzz_row_make(fuzz_row *f, uint64_t seed) {
  dice d = {seed, 0};
  tsr_case *c = &f->row;
  memset(f, 0, sizeof *f);
  snprintf(f->name, sizeof f->name, "fuzz_%llu", (unsigned long long)seed);
  c->name = f->name, c->group = "fuzz";
  c->seed = seed;
  f->dtype = (tsr_dtype)roll(&d, TSR_DTYPE_F32, TSR_DTYPE_BF16);
  draw_sizes(&d, c);
  draw_lengths(&d, f);
  draw_layouts(&d, f);
  draw_masks(&d, f);
  draw_scores(&d, f);
  c->o_f32 = chance(&d, 15);
  c->grad_f32 = chance(&d, 15);
  c->max_logit = chance(&d, 25);
  c->no_lse = chance(&d, 15);
  c->dlse = chance(&d, 20);
  if (chance(&d, 25)) c->grads = (uint32_t)roll(&d, 1, 31);
  if (chance(&d, 15)) c->accumulate = (uint32_t)roll(&d, 1, 31);
  c->determinism = (tsr_determinism)PICK(&d, 0, 0, 0, 1, 2);
  if (!tsr_inputs_grads(c)) c->forward_only = true;
  draw_cache(&d, f);
  draw_more(&d, f);
}

void fuzz_row_copy(fuzz_row *to, const fuzz_row *from) {
  const int64_t **pointers[] = {&to->row.len_q,  &to->row.len_k,  &to->row.left_q,
                                &to->row.left_k, &to->row.slot_q, &to->row.slot_k,
                                &to->row.prefixes, &to->row.diagonals};
  int i;
  *to = *from;
  to->row.name = to->name;
  for (i = 0; i < FUZZ_ARRAYS; ++i)
    if (*pointers[i]) *pointers[i] = to->array[i];
}

/* ------------------------------------------------------------------------------ fields as a list */

typedef enum field_type { INTEGER, REAL, ARRAY } field_type;

typedef struct field {
  const char *name;
  size_t offset, size;
  field_type type;
} field;

#define FIELD(name, type) {#name, offsetof(tsr_case, name), sizeof(((tsr_case *)0)->name), type}
static const field fields[] = {
    FIELD(index_i64, INTEGER),   FIELD(o_f32, INTEGER),       FIELD(grad_f32, INTEGER),
    FIELD(grad_wide, INTEGER),   FIELD(dout_f32, INTEGER),    FIELD(scale_over, INTEGER),
    FIELD(page_gap, INTEGER),    FIELD(rng_array, INTEGER),   FIELD(alibi_negative, INTEGER),
    FIELD(determinism, INTEGER), FIELD(alignment, INTEGER),   FIELD(layout, INTEGER),
    FIELD(layout_q, INTEGER),    FIELD(layout_k, INTEGER),    FIELD(layout_v, INTEGER),
    FIELD(layout_o, INTEGER),    FIELD(layout_lse, INTEGER),  FIELD(layout_dout, INTEGER),
    FIELD(share, INTEGER),       FIELD(page_size, INTEGER),   FIELD(slot_q, ARRAY),
    FIELD(slot_k, ARRAY),        FIELD(left_q, ARRAY),        FIELD(left_k, ARRAY),
    FIELD(packed_q, INTEGER),    FIELD(packed_k, INTEGER),    FIELD(lead, INTEGER),
    FIELD(len_q, ARRAY),         FIELD(len_k, ARRAY),         FIELD(no_lse, INTEGER),
    FIELD(max_logit, INTEGER),   FIELD(dlse, INTEGER),        FIELD(accumulate, INTEGER),
    FIELD(grads, INTEGER),       FIELD(scale, REAL),          FIELD(softcap, REAL),
    FIELD(bias, INTEGER),        FIELD(bias_dtype, INTEGER),  FIELD(bias_over, INTEGER),
    FIELD(alibi, INTEGER),       FIELD(sink, INTEGER),        FIELD(dropout, REAL),
    FIELD(drop_seed, INTEGER),   FIELD(drop_offset, INTEGER), FIELD(mask, INTEGER),
    FIELD(mask_bits, INTEGER),   FIELD(mask_over, INTEGER),   FIELD(block_q, INTEGER),
    FIELD(block_k, INTEGER),     FIELD(block_over, INTEGER),  FIELD(special, INTEGER),
    FIELD(q8, INTEGER),          FIELD(odd_scales, INTEGER),
    FIELD(cache, INTEGER),       FIELD(scale_rows, INTEGER),  FIELD(prefix, INTEGER),
    FIELD(prefixes, ARRAY),      FIELD(window, INTEGER),
    FIELD(left, INTEGER),        FIELD(right, INTEGER),       FIELD(causal, INTEGER),
    FIELD(diagonals, ARRAY),     FIELD(diagonal, INTEGER),    FIELD(dist, INTEGER),
    FIELD(offset_v, REAL),       FIELD(offset_logit, REAL),   FIELD(amplitude, REAL),      FIELD(forward_only, INTEGER),
    FIELD(seed, INTEGER)};
enum { FIELDS = (int)(sizeof fields / sizeof fields[0]) };

static bool field_is_zero(const tsr_case *row, const field *f) {
  const unsigned char *bytes = (const unsigned char *)row + f->offset;
  size_t i;
  for (i = 0; i < f->size; ++i)
    if (bytes[i]) return false;
  return true;
}

static void print_field(const tsr_case *row, const field *f, char *text, size_t capacity) {
  const unsigned char *at = (const unsigned char *)row + f->offset;
  size_t used;
  int64_t integer = 0, b;
  snprintf(text, capacity, ", .%s = ", f->name);
  used = strlen(text);
  if (f->type == ARRAY) {
    const int64_t *array;
    memcpy(&array, at, sizeof array);
    for (b = 0; b < row->batch && used + 40 < capacity; ++b, used = strlen(text))
      snprintf(text + used, capacity - used, "%s%lld", b ? ", " : "LENGTHS(", (long long)array[b]);
    snprintf(text + used, capacity - used, row->batch ? ")" : "LENGTHS(0)");
  } else if (f->type == REAL && f->size == sizeof(double)) {
    double real;
    memcpy(&real, at, sizeof real);
    snprintf(text + used, capacity - used, "%.17g", real);
  } else if (f->type == REAL) {
    float real;
    memcpy(&real, at, sizeof real);
    snprintf(text + used, capacity - used, "%.9gf", (double)real);
  } else {
    memcpy(&integer, at, f->size);
    if (f->size == 8)
      snprintf(text + used, capacity - used, "INT64_C(%lld)", (long long)integer);
    else
      snprintf(text + used, capacity - used, "%lld", (long long)integer);
  }
}

void fuzz_row_print(const fuzz_row *r, char *text, size_t capacity) {
  const tsr_case *c = &r->row;
  int i;
  snprintf(text, capacity, "TSR_CASE(%s, reports, %lld, %lld, %lld, %lld, %lld, %lld, %lld", c->name,
           (long long)c->batch, (long long)c->heads_q, (long long)c->heads_kv, (long long)c->seq_q,
           (long long)c->seq_k, (long long)c->dim_qk, (long long)c->dim_v);
  for (i = 0; i < FIELDS; ++i) {
    size_t used = strlen(text);
    if (!field_is_zero(c, &fields[i])) print_field(c, &fields[i], text + used, capacity - used);
  }
  snprintf(text + strlen(text), capacity - strlen(text), ", .dtypes = 1u << %d)", (int)r->dtype);
}

/* ------------------------------------------------------------------------------------ shrinking */

/* Keeps the candidate if it still fails. */
static bool try_row(fuzz_row *best, const fuzz_row *candidate, fuzz_fails_fn fails, void *state) {
  if (memcmp(&best->row, &candidate->row, sizeof best->row) == 0) return false;
  if (!fails(state, candidate)) return false;
  fuzz_row_copy(best, candidate);
  return true;
}

/* Cuts a length; arrays follow. */
static void limit_sequence(fuzz_row *r, bool queries, int64_t seq) {
  int shift = queries ? 0 : 1;
  int64_t b;
  *(queries ? &r->row.seq_q : &r->row.seq_k) = seq;
  for (b = 0; b < FUZZ_BATCH_MAX; ++b) {
    int64_t *len = &r->array[LEN_Q + shift][b], *left = &r->array[LEFT_Q + shift][b];
    int64_t *slot = &r->array[SLOT_Q + shift][b];
    if (*left > seq) *left = seq;
    if (*len > seq - *left) *len = seq - *left;
    if (*slot > seq) *slot = seq;
    if (*slot < *left + *len) *slot = *left + *len;
  }
}

void fuzz_row_shrink(fuzz_row *best, fuzz_fails_fn fails, void *state) {
  bool progress = true;
  int rounds, i;
  for (rounds = 0; progress && rounds < 12; ++rounds) {
    fuzz_row c;
    progress = false;
    for (i = 0; i < FIELDS; ++i) {
      if (field_is_zero(&best->row, &fields[i])) continue;
      fuzz_row_copy(&c, best);
      memset((unsigned char *)&c.row + fields[i].offset, 0, fields[i].size);
      progress |= try_row(best, &c, fails, state);
    }
    int64_t *sizes[] = {&c.row.batch, &c.row.heads_kv, &c.row.dim_qk, &c.row.dim_v};
    for (i = 0; i < 8; ++i) {
      fuzz_row_copy(&c, best);
      int64_t group = c.row.heads_kv ? c.row.heads_q / c.row.heads_kv : 0;
      int64_t *size = sizes[i / 2];
      if (*size <= 1) continue;
      *size = i % 2 ? *size - 1 : *size / 2;
      c.row.heads_q = c.row.heads_kv * group;
      progress |= try_row(best, &c, fails, state);
    }
    fuzz_row_copy(&c, best);
    c.row.heads_q = c.row.heads_kv; /* no group */
    progress |= try_row(best, &c, fails, state);
    for (i = 0; i < 4; ++i) {
      fuzz_row_copy(&c, best);
      int64_t seq = i < 2 ? c.row.seq_q : c.row.seq_k;
      if (seq <= 1) continue;
      limit_sequence(&c, i < 2, i % 2 ? seq - 1 : seq / 2);
      progress |= try_row(best, &c, fails, state);
    }
  }
}
