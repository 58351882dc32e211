/* SPDX-License-Identifier: Apache-2.0
 *
 * What the workers of one backward run share: where keys are cut, where partial sums lie, and the
 * temporary memory of a worker. Filled by backward.c, read by backward_simd.cc; nothing here knows
 * Highway.
 *
 * Rows (pairs of query and head of a KV group, queries outermost) are padded per sequence to whole
 * vectors and numbered by sequence, then KV head: what is known of a row and the shares of dQ are
 * indexed by that number. */
#ifndef TESSERA_CPU_BACKWARD_JOB_H_
#define TESSERA_CPU_BACKWARD_JOB_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsri_cpu_backward_tiles {
  int64_t keys;  /* per tile, a multiple of 8 */
  int64_t panel; /* keys whose K, V, dK and dV stay in L2, a multiple of keys; no result depends on
                    it */
  int64_t most_chunks; /* chunks of a sequence, at most */
  int64_t least_keys;  /* of a chunk that is not the last, at least; a multiple of keys */
  int64_t whole;       /* sequences of at most so many keys are one tile and one chunk */
  int64_t lanes;       /* floats per vector, or 32 with amx; rows and dims are padded to it */
  int64_t amx;         /* 1: products on AMX tiles of bfloat16; keys is a multiple of 32 */
} tsri_cpu_backward_tiles;

/* Rows of a block. */
TSRI_INLINE int64_t tsri_cpu_block_rows(const tsri_cpu_backward_tiles *tiles) {
  return tiles->amx ? 32 : 3 * tiles->lanes;
}

/* Dims of a share of dQ. */
TSRI_INLINE int64_t tsri_cpu_dq_dims(const tsri_cpu_backward_tiles *tiles, int64_t dim) {
  return tiles->amx ? tsri_cpu_tile_dim(dim) : dim;
}

/* How dBias is summed. */
typedef struct tsri_cpu_dbias {
  int summed;        /* 1: several pairs add into an element */
  float *sums;       /* where dS is added: the output if it is float32, else workspace, or NULL: */
                     /*   each pair is rounded into an element of its own */
  int64_t stride[4]; /* of sums */
} tsri_cpu_dbias;

struct tsri_cpu_backward {
  const tsr_resolved *problem;
  const tsr_args *args;
  tsri_cpu_backward_tiles tiles;
  tsri_pages pages;
  tsri_dropout_key drop_key;
  const int64_t *first_row; /* [B + 1] padded rows of a KV head before each sequence, or NULL: */
  int64_t rows_each;        /* padded rows of a KV head of every sequence */
  int64_t rows_all;         /* of the whole problem */
  float *ref,
      *inverse;  /* [rows_all] P = 2^((s - ref) unit) inverse; ref of a row without keys: +inf */
  float *p_sink; /* [rows_all] e^(sink - LSE); with dSink */
  float *d;      /* [rows_all] sum of keep P dP, minus dLSE */
  float *most; /* [B, Hkv] what rows may have at most to take P and D from the stored LSE and O (delta.h): of float32
                  inputs |LSE|, of others keys; or NULL */
  float *dq;     /* [chunks][rows_all * dims] dQ^T without the scale, in blocks of rows */
  tsri_cpu_dbias dbias;
  /* A key task is (chunk, sequence, KV head); axes that dBias sums over are walked inside the task.
   */
  int64_t owners_b, owners_g, owners_c;
  /* A row task is (sequence, row_step rows, KV head). */
  int64_t row_step;
  const int64_t *first_task; /* [B + 1] row tasks before each sequence, or NULL: */
  int64_t tasks_each;        /* row tasks of every sequence */
  unsigned char *scratch;       /* workers' blocks, scratch_bytes apart */
  int64_t scratch_bytes;
};

/* Keys of a chunk of a sequence of sk keys. A function of the sequence alone, so that where sums
 * are cut depends on nothing else. */
TSRI_INLINE int64_t tsri_cpu_chunk_keys(const tsri_cpu_backward_tiles *tiles, int64_t sk) {
  const int64_t one = tiles->whole > tiles->least_keys ? tiles->whole : tiles->least_keys;
  const int64_t each = sk / tiles->most_chunks + (sk % tiles->most_chunks != 0);
  const int64_t whole = (each + tiles->keys - 1) / tiles->keys * tiles->keys;
  if (sk <= tiles->whole) return one;
  return whole > tiles->least_keys ? whole : tiles->least_keys;
}

TSRI_INLINE int64_t tsri_cpu_chunk_count(const tsri_cpu_backward_tiles *tiles, int64_t sk) {
  const int64_t keys = tsri_cpu_chunk_keys(tiles, sk);
  return (sk + keys - 1) / keys;
}

/* Rows of a KV head of sq queries, padded to whole vectors. */
TSRI_INLINE int64_t tsri_cpu_padded_rows(int64_t sq, int64_t group, int64_t lanes) {
  return (tsri_mul_sat(sq, group) + lanes - 1) / lanes * lanes;
}

/* Padded rows of a KV head before sequence b, over all KV heads. */
TSRI_INLINE int64_t tsri_cpu_first_row(const tsri_cpu_backward *job, int64_t b) {
  return (job->first_row ? job->first_row[b] : b * job->rows_each) * job->problem->p.heads_kv;
}

/* Temporary memory of one worker; a block is 3 vectors of rows. */
typedef struct tsri_cpu_backward_scratch {
  float *q_t, *do_t;                 /* [dim][block] Q^T, dO^T */
  float *q, *dout;                   /* [block][dim in whole vectors] the same as rows */
  float *s_t, *g_t;                  /* [span + 8][block] S then P (after dropout), dP then dS */
  float *keep;                       /* [span][block] dropout's factor */
  float *slope_t;                    /* [span][block] derivative of the softcap */
  float *term, *bias;                /* [span][block] mask as 0 and 1, and bias, transposed */
  float *k, *v;                      /* [panel][packed ld] float32 */
  float *dk, *dv;                    /* [panel][dim in whole vectors] */
  float *lines;                      /* [4][line] rows on their way in or out */
  float *ref, *inverse, *d, *p_sink; /* [block] of the job's arrays */
  float *m, *l, *e;                  /* [block] maximum, sum of w = 2^((s - m) unit), sum of w dP */
  float *l_rest, *e_rest;            /* [block] what rounding took from these sums */
  float *slope;                      /* [block] ALiBi */
  int64_t *query, *head;             /* [block] i and h */
  int64_t *from, *to;                /* [block] allowed keys of the band */
  int32_t *lo, *hi;                  /* [block] */
  uint16_t *rows16;                  /* [32][tile line] 16-bit rows; with amx */
  int64_t line;                      /* floats between lines */
} tsri_cpu_backward_scratch;

/* Keys of the largest tile of sequences of at most seq_k keys. */
TSRI_INLINE int64_t tsri_cpu_tile_bound(const tsri_cpu_backward_tiles *tiles, int64_t seq_k) {
  const int64_t held = seq_k < tiles->whole ? seq_k : tiles->whole;
  const int64_t unit = tiles->amx ? 32 : 8;
  return held > tiles->keys ? (held + unit - 1) / unit * unit : tiles->keys;
}

/* Cuts a worker's block; with ws->base NULL it only counts. */
TSRI_INLINE tsri_cpu_backward_scratch tsri_cpu_backward_scratch_take(
    tsri_workspace *ws, const tsr_problem *p, const tsri_cpu_backward_tiles *tiles) {
  const int64_t f = sizeof(float), i8 = sizeof(int64_t), i4 = sizeof(int32_t);
  const int64_t block = tsri_cpu_block_rows(tiles), span = tsri_cpu_tile_bound(tiles, p->seq_k);
  const int64_t tile = span * block;
  const int64_t dq = (p->dim_qk + tiles->lanes - 1) / tiles->lanes * tiles->lanes;
  const int64_t dv = (p->dim_v + tiles->lanes - 1) / tiles->lanes * tiles->lanes;
  const int64_t dim = dq > dv ? dq : dv;
  const int biased = p->bias.dtype != TSR_DTYPE_NONE;
  const int masked = p->mask.dtype != TSR_DTYPE_NONE || p->block_mask.dtype != TSR_DTYPE_NONE;
  tsri_cpu_backward_scratch s;
  s.line = dim > tiles->panel ? dim : tiles->panel; /* no tile is larger than a panel */
  s.line = (s.line > block ? s.line : block) + 16;
  s.q_t = (float *)tsri_workspace_take(ws, tsri_cpu_dq_dims(tiles, p->dim_qk) * block, f);
  s.do_t = (float *)tsri_workspace_take(ws, tsri_cpu_dq_dims(tiles, p->dim_v) * block, f);
  s.q = (float *)tsri_workspace_take(ws, dq * block, f);
  s.dout = (float *)tsri_workspace_take(ws, dv * block, f);
  s.s_t = (float *)tsri_workspace_take(ws, tile + 8 * block, f);
  s.g_t = (float *)tsri_workspace_take(ws, tile + 8 * block, f);
  s.keep = (float *)tsri_workspace_take(ws, p->dropout > 0 ? tile : 0, f);
  s.slope_t = (float *)tsri_workspace_take(ws, p->softcap > 0 ? tile : 0, f);
  s.term = (float *)tsri_workspace_take(ws, masked ? tile : 0, f);
  s.bias = (float *)tsri_workspace_take(ws, biased ? tile : 0, f);
  /* With amx K as tiles of rows and of columns, V as tiles of rows, all of 16 bits. */
  s.k = (float *)tsri_workspace_take(
      ws, tiles->panel * (tiles->amx ? dq : tsri_cpu_packed_ld(p->dim_qk)), f);
  s.v = (float *)tsri_workspace_take(
      ws, tiles->panel * (tiles->amx ? dv / 2 : tsri_cpu_packed_ld(p->dim_v)), f);
  s.dk = (float *)tsri_workspace_take(ws, p->dk.dtype != TSR_DTYPE_NONE ? tiles->panel * dq : 0, f);
  s.dv = (float *)tsri_workspace_take(ws, p->dv.dtype != TSR_DTYPE_NONE ? tiles->panel * dv : 0, f);
  s.lines = (float *)tsri_workspace_take(ws, 4 * s.line, f);
  s.ref = (float *)tsri_workspace_take(ws, block, f);
  s.inverse = (float *)tsri_workspace_take(ws, block, f);
  s.p_sink = (float *)tsri_workspace_take(ws, block, f);
  s.m = (float *)tsri_workspace_take(ws, block, f);
  s.l = (float *)tsri_workspace_take(ws, block, f);
  s.e = (float *)tsri_workspace_take(ws, block, f);
  s.l_rest = (float *)tsri_workspace_take(ws, block, f);
  s.e_rest = (float *)tsri_workspace_take(ws, block, f);
  s.d = (float *)tsri_workspace_take(ws, block, f);
  s.slope = (float *)tsri_workspace_take(ws, block, f);
  s.query = (int64_t *)tsri_workspace_take(ws, block, i8);
  s.head = (int64_t *)tsri_workspace_take(ws, block, i8);
  s.from = (int64_t *)tsri_workspace_take(ws, block, i8);
  s.to = (int64_t *)tsri_workspace_take(ws, block, i8);
  s.lo = (int32_t *)tsri_workspace_take(ws, block, i4);
  s.hi = (int32_t *)tsri_workspace_take(ws, block, i4);
  s.rows16 = (uint16_t *)tsri_workspace_take(ws, tiles->amx ? 32 * tsri_cpu_tile_line(p) : 0, 2);
  return s;
}

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_CPU_BACKWARD_JOB_H_ */
