/* SPDX-License-Identifier: Apache-2.0
 *
 * What the workers of one run of the split kernel share: where the keys of a sequence are cut into
 * chunks, where the partial state of a chunk lies, and the temporary memory of a worker. Filled by
 * decode.c, read by decode_simd.cc; nothing here knows Highway.
 *
 * A unit is a tile of rows of one sequence and KV head; a task is one chunk of a unit. Chunks are
 * cut at multiples of a number of keys from key 0. That number follows from the sequence's own rows
 * and keys, so results depend neither on threads nor on other sequences. */
#ifndef TESSERA_CPU_DECODE_JOB_H_
#define TESSERA_CPU_DECODE_JOB_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  TSRI_CPU_CHUNK = 512,       /* keys of a chunk, at least; doubled until there are at most */
  TSRI_CPU_CHUNKS = 32,       /*   so many per sequence, and for every doubling of */
  TSRI_CPU_CHUNK_ROWS = 16,   /*   so many rows: what a partial state costs stays a small
                                 fraction of its chunk's K and V */
  TSRI_CPU_SPLIT_ROWS = 1024, /* sequences with more rows than this are not split */
  TSRI_CPU_PART_HEAD = 16     /* floats before the state of a part: a cache line */
};

struct tsri_cpu_split {
  const tsr_resolved *problem;
  const tsr_args *args;
  tsri_cpu_tiles tiles;
  int64_t narrow_keys; /* per step of the narrow form, a power of two, at most tiles.keys */
  tsri_pages pages;
  tsri_dropout_key drop_key;
  /* [B + 1] sums over the sequences before: of tasks, of units, of floats in parts. */
  const int64_t *first_task, *first_unit, *first_part;
  float *parts;
  int32_t *open;          /* [units] chunks that are not done yet */
  unsigned char *scratch; /* workers' blocks, scratch_bytes apart */
  int64_t scratch_bytes;
};

/* How one sequence is cut. */
typedef struct tsri_cpu_cut {
  int64_t rows;  /* of a KV head */
  int64_t tiles; /* of rows; units of a KV head */
  int64_t keys;  /* of a chunk */
  int64_t first; /* first chunk with a key that some row may see */
  int64_t count; /* chunks, at least 1 */
} tsri_cpu_cut;

/* Keys of a chunk of a sequence with so many rows of a KV head and keys; INT64_MAX: it is not
 * split. */
TSRI_INLINE int64_t tsri_cpu_chunk_keys(int64_t rows, int64_t sk) {
  int64_t keys = TSRI_CPU_CHUNK, most = TSRI_CPU_CHUNK_ROWS;
  if (rows > TSRI_CPU_SPLIT_ROWS) return INT64_MAX;
  for (; most < rows; most *= 2) keys *= 2;
  while (keys * TSRI_CPU_CHUNKS < sk) keys *= 2;
  return keys;
}

TSRI_INLINE tsri_cpu_cut tsri_cpu_cut_of(const tsri_sequence *seq, const tsri_mask_rule *rule,
                                         int64_t group, int64_t tile_rows) {
  tsri_cpu_cut cut;
  cut.rows = seq->q.len * group;
  cut.tiles = (cut.rows + tile_rows - 1) / tile_rows;
  cut.keys = tsri_cpu_chunk_keys(cut.rows, rule->sk);
  cut.first = 0;
  cut.count = 1;
  if (cut.keys != INT64_MAX && seq->q.len > 0) {
    const tsri_mask_row seen = tsri_mask_rows_of(rule, 0, seq->q.len);
    const int64_t end = seen.prefix > seen.hi ? seen.prefix : seen.hi;
    if (seen.prefix == 0) cut.first = seen.lo / cut.keys;
    cut.count = (end + cut.keys - 1) / cut.keys - cut.first;
    if (cut.count < 1) cut.count = 1;
  }
  return cut;
}

/* Rows that a part has room for: whole vectors. */
TSRI_INLINE int64_t tsri_cpu_part_rows(int64_t rows, const tsri_cpu_tiles *tiles) {
  const int64_t most = rows < tiles->rows ? rows : tiles->rows;
  const int64_t unit = tiles->lanes > 16 ? tiles->lanes : 16;
  return (most + unit - 1) / unit * unit;
}

/* Floats of a row of K, V or O in this kernel's buffers: whole vectors and cache lines. */
TSRI_INLINE int64_t tsri_cpu_padded_dim(int64_t dim, const tsri_cpu_tiles *tiles) {
  const int64_t unit = tiles->lanes > 16 ? tiles->lanes : 16;
  return (dim + unit - 1) / unit * unit;
}

/* Floats of a part: head (1 in its first float if the chunk has keys, else 0 and no more is
 * defined), m and l of the rows, then acc, row by row. */
TSRI_INLINE int64_t tsri_cpu_part_floats(int64_t rows, int64_t dim_v, const tsri_cpu_tiles *tiles) {
  const int64_t most = rows < tiles->rows ? rows : tiles->rows;
  return TSRI_CPU_PART_HEAD + 2 * tsri_cpu_part_rows(rows, tiles) +
         tsri_mul_sat(most, tsri_cpu_padded_dim(dim_v, tiles));
}

/* Rows of K or V in memory that follow each other at one distance. */
typedef struct tsri_cpu_run {
  const unsigned char *base;
  int64_t rows;
} tsri_cpu_run_of_rows;

/* What one worker has beside tsri_cpu_scratch. */
typedef struct tsri_cpu_split_scratch {
  float *q;                    /* [padded dim_qk][rows] of the narrow kernel */
  float *o;                    /* [max(lanes, 8)][padded dim_v] */
  float *narrow;               /* [keys + 16][rows] scores of the narrow kernel */
  float *part;                 /* a part that is not shared, or in the making */
  float *k_scale, *v_scale;    /* [keys + 16] */
  const void **k_row;          /* [2][keys + 16] where K lies */
  const void **v_row;          /* [keys + 16] where V lies, or float32 copies of it */
  const void **k_copy;         /* [16] float32 copies of rows of K */
  tsri_cpu_run_of_rows *runs;  /* [4][keys]: K and V, this step and the next */
  const void **k_ahead;        /* [keys + 16][padded dim_qk / 32 + 1] */
  const void **v_ahead;        /* [keys][padded dim_v / 8 + 16] */
} tsri_cpu_split_scratch;

TSRI_INLINE tsri_cpu_split_scratch tsri_cpu_split_scratch_take(tsri_workspace *ws,
                                                               const tsr_problem *p,
                                                               const tsri_cpu_tiles *tiles) {
  const int64_t f = sizeof(float), keys = tiles->keys, lanes = tiles->lanes;
  const int64_t dim = tsri_cpu_padded_dim(p->dim_qk, tiles);
  const int64_t dim_v = tsri_cpu_padded_dim(p->dim_v, tiles);
  tsri_cpu_split_scratch s;
  s.q = (float *)tsri_workspace_take(ws, dim * 8, f);
  s.o = (float *)tsri_workspace_take(ws, (lanes > 8 ? lanes : 8) * dim_v, f);
  s.narrow = (float *)tsri_workspace_take(ws, (keys + 16) * 8, f);
  s.part = (float *)tsri_workspace_take(ws, tsri_cpu_part_floats(tiles->rows, p->dim_v, tiles), f);
  s.k_scale = (float *)tsri_workspace_take(ws, keys + 16, f);
  s.v_scale = (float *)tsri_workspace_take(ws, keys + 16, f);
  s.k_row = (const void **)tsri_workspace_take(ws, 2 * (keys + 16), sizeof(void *));
  s.k_copy = (const void **)tsri_workspace_take(ws, 16, sizeof(void *));
  s.v_row = (const void **)tsri_workspace_take(ws, keys + 16, sizeof(void *));
  s.runs = (tsri_cpu_run_of_rows *)tsri_workspace_take(ws, 4 * keys, sizeof *s.runs);
  s.k_ahead = (const void **)tsri_workspace_take(ws, (keys + 16) * (dim / 32 + 1), sizeof(void *));
  s.v_ahead = (const void **)tsri_workspace_take(ws, keys * (dim_v / 8 + 16), sizeof(void *));
  return s;
}

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_CPU_DECODE_JOB_H_ */
