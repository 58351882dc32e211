/* SPDX-License-Identifier: Apache-2.0
 *
 * The C face of the Highway sources: what a worker needs to compute one tile of rows, and one table
 * of functions per instruction set. Nothing here knows Highway. Filled by forward.c, called through
 * the table that tsri_cpu_kernels_find returned. */
#ifndef TESSERA_CPU_KERNELS_H_
#define TESSERA_CPU_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#include "common/dropout.h"
#include "common/dtype.h"
#include "common/geometry.h"
#include "common/workspace.h"
#include "tessera/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tile sizes of a plan. Results do not depend on rows, only on keys (where the sums are cut). */
typedef struct tsri_cpu_tiles {
  int64_t rows;  /* of Q per task: a multiple of lanes */
  int64_t keys;  /* per step, a multiple of 8 */
  int64_t lanes; /* floats per vector */
  int64_t amx;   /* 1: products on AMX tiles of bfloat16; rows and keys are multiples of 32 */
} tsri_cpu_tiles;

/* Temporary memory of one worker; widths in floats. A "row" is a pair (query, head of the group).
 */
typedef struct tsri_cpu_scratch {
  float *q_t;            /* [dim_qk][rows], in blocks of rows; with tiles.amx q_t, k and v are tiles */
  float *o_t;            /* [dim_v][rows], in blocks of rows */
  float *s_t;            /* [keys + 8][block] scores, then probabilities; with tiles.amx two of scores, two of P */
  float *k, *v;          /* [keys][packed ld] float32 */
  float *term, *bias;    /* [keys][block] mask as 0 and 1, and bias, transposed */
  float *lines;          /* [4][max(keys, dim)] rows on their way in or out */
  float *m, *l;          /* [rows] state of the recurrence */
  float *slope;          /* [rows] ALiBi */
  int64_t *query, *head; /* [rows] i and h */
  int64_t *from, *to;    /* [rows] allowed keys of the band */
  int32_t *lo, *hi;      /* [block] allowed keys, or other integers, relative to a tile */
  uint16_t *rows16;      /* [32][tile line] 16-bit rows on their way into tiles; with tiles.amx */
} tsri_cpu_scratch;

/* One run of forward, shared by its workers. */
typedef struct tsri_cpu_forward {
  const tsr_resolved *problem;
  const tsr_args *args;
  tsri_cpu_tiles tiles;
  tsri_pages pages;
  tsri_dropout_key drop_key;
  const int64_t *first_task; /* [B + 1] number of tasks before each sequence, or NULL: */
  int64_t tasks_each;        /* tasks of every sequence */
  unsigned char *scratch;    /* workers' blocks, scratch_bytes apart */
  int64_t scratch_bytes;
} tsri_cpu_forward;

/* Distance between packed rows of K or V, in floats: whole cache lines, and not a multiple of 512
 * bytes, so that a column of keys spreads over the sets of L1. */
TSRI_INLINE int64_t tsri_cpu_packed_ld(int64_t dim) {
  const int64_t ld = (dim + 15) / 16 * 16;
  return ld % 128 == 0 ? ld + 16 : ld;
}

/* Steps whose K and V a worker of the AMX kernels keeps packed. */
#define TSRI_CPU_AMX_STEPS 2

/* A head dim padded to the depth of AMX tiles. */
TSRI_INLINE int64_t tsri_cpu_tile_dim(int64_t dim) { return (dim + 31) / 32 * 32; }

/* Elements between the lines of tsri_cpu_scratch.rows16. */
TSRI_INLINE int64_t tsri_cpu_tile_line(const tsr_problem *p) {
  return tsri_cpu_tile_dim(p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v);
}

/* Cuts a worker's block; with ws->base NULL it only counts. */
TSRI_INLINE tsri_cpu_scratch tsri_cpu_scratch_take(tsri_workspace *ws, const tsr_problem *p,
                                                   const tsri_cpu_tiles *tiles) {
  const int64_t f = sizeof(float), block = (tiles->amx ? 2 : 3) * tiles->lanes;
  const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
  const int64_t line = (dim > tiles->keys ? dim : tiles->keys) + 16;
  const int64_t dim_q = tiles->amx ? tsri_cpu_tile_dim(p->dim_qk) / 2 : p->dim_qk;
  const int64_t dim_o = tiles->amx ? tsri_cpu_tile_dim(p->dim_v) : p->dim_v;
  const int64_t held = tiles->keys * (tiles->amx ? TSRI_CPU_AMX_STEPS : 1);
  tsri_cpu_scratch s;
  s.q_t = (float *)tsri_workspace_take(ws, tiles->rows * dim_q, f);
  s.o_t = (float *)tsri_workspace_take(ws, tiles->rows * dim_o, f);
  s.s_t = (float *)tsri_workspace_take(ws, (tiles->amx ? 3 * tiles->keys : tiles->keys + 8) * block, f);
  s.k = (float *)tsri_workspace_take(
      ws, held * (tiles->amx ? dim_q : tsri_cpu_packed_ld(p->dim_qk)), f);
  s.v = (float *)tsri_workspace_take(
      ws, held * (tiles->amx ? dim_o / 2 : tsri_cpu_packed_ld(p->dim_v)), f);
  s.term = (float *)tsri_workspace_take(ws, tiles->keys * block, f);
  s.bias = (float *)tsri_workspace_take(ws, tiles->keys * block, f);
  s.lines = (float *)tsri_workspace_take(ws, 4 * line, f);
  s.m = (float *)tsri_workspace_take(ws, tiles->rows, f);
  s.l = (float *)tsri_workspace_take(ws, tiles->rows, f);
  s.slope = (float *)tsri_workspace_take(ws, tiles->rows, f);
  s.query = (int64_t *)tsri_workspace_take(ws, tiles->rows, sizeof(int64_t));
  s.head = (int64_t *)tsri_workspace_take(ws, tiles->rows, sizeof(int64_t));
  s.from = (int64_t *)tsri_workspace_take(ws, tiles->rows, sizeof(int64_t));
  s.to = (int64_t *)tsri_workspace_take(ws, tiles->rows, sizeof(int64_t));
  s.lo = (int32_t *)tsri_workspace_take(ws, block, sizeof(int32_t));
  s.hi = (int32_t *)tsri_workspace_take(ws, block, sizeof(int32_t));
  s.rows16 = (uint16_t *)tsri_workspace_take(ws, tiles->amx ? 32 * tsri_cpu_tile_line(p) : 0,
                                             sizeof(uint16_t));
  return s;
}

/* Distance between the lines of tsri_cpu_scratch.lines. */
TSRI_INLINE int64_t tsri_cpu_line_width(const tsr_problem *p, const tsri_cpu_tiles *tiles) {
  const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
  return (dim > tiles->keys ? dim : tiles->keys) + 16;
}

/* One merge of partial results, shared by its workers; layouts are resolved. */
typedef struct tsri_cpu_merge {
  const tsr_merge_problem *problem;
  const void *const *o_parts;
  const float *const *lse_parts;
  void *o;
  float *lse;
} tsri_cpu_merge;

/* One keep mask. */
typedef struct tsri_cpu_keep {
  const tsr_dropout_problem *problem;
  tsri_dropout_key key;
  uint64_t threshold;
  uint8_t *mask;
} tsri_cpu_keep;

/* One run of backward, shared by its workers: backward_job.h. */
typedef struct tsri_cpu_backward tsri_cpu_backward;

/* One run of the split kernel, shared by its workers: decode_job.h. */
typedef struct tsri_cpu_split tsri_cpu_split;

/* Functions of one instruction set. */
typedef struct tsri_cpu_kernels {
  const char *target; /* Highway's name of it: "AVX3"; static */
  int32_t lanes;      /* floats per vector */
  int32_t fused;      /* 1: has fused multiply-add, else a product and a sum */
  /* Rows of one task: of sequence b, then KV head, then tile of rows, last tile first. */
  void (*forward)(const tsri_cpu_forward *job, int64_t task, int32_t worker);
  /* The same on AMX tiles, for tiles.amx; NULL on instruction sets that have none. */
  void (*amx_forward)(const tsri_cpu_forward *job, int64_t task, int32_t worker);
  /* One chunk of keys of a tile of rows; the last one of a tile merges them. */
  void (*split)(const tsri_cpu_split *job, int64_t task, int32_t worker);
  /* Backward: D of the rows of a row task; dK, dV, dBias and partial dQ of a key task; dQ of a row
   * task. */
  void (*backward_rows)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  void (*backward_keys)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  void (*backward_queries)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  /* The same on AMX tiles, for tiles.amx, or NULL. */
  void (*amx_backward_rows)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  void (*amx_backward_keys)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  void (*amx_backward_queries)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
  /* Row (b, h, i) = index of a merge. */
  void (*merge)(const tsri_cpu_merge *job, int64_t index);
  /* Row (b, h, i) = index of a keep mask. */
  void (*keep)(const tsri_cpu_keep *job, int64_t index);
} tsri_cpu_kernels;

/* The index-th instruction set that this build has and this processor can run, best first; 0 past
 * the last one. */
int tsri_cpu_kernels_at(int32_t index, tsri_cpu_kernels *kernels);

/* The one of that name (letter case ignored), or the best one for NULL; 0 if there is none such. */
int tsri_cpu_kernels_find(const char *target, tsri_cpu_kernels *kernels);

/* Each Highway source fills in its functions for one of Highway's targets. */
void tsri_cpu_forward_install(int64_t target, tsri_cpu_kernels *kernels);
void tsri_cpu_backward_install(int64_t target, tsri_cpu_kernels *kernels);
void tsri_cpu_amx_forward_install(int64_t target, tsri_cpu_kernels *kernels);
void tsri_cpu_amx_backward_install(int64_t target, tsri_cpu_kernels *kernels);
void tsri_cpu_split_install(int64_t target, tsri_cpu_kernels *kernels);
void tsri_cpu_merge_install(int64_t target, tsri_cpu_kernels *kernels);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_CPU_KERNELS_H_ */
