// SPDX-License-Identifier: Apache-2.0
//
// What the CPU backend makes of a head before backward (delta.h): how many keys a row may see whose delta comes from the
// stored O. Keys and values around 1/2 have a part in common, those around 0 have none; rows that look at one key
// alone say nothing of the others.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends/cpu/delta.h"

enum { KEYS = 512, DIM = 64 };

static uint16_t q[KEYS * DIM], k[KEYS * DIM], v[KEYS * DIM];
static float lse[KEYS];
static uint32_t state = 1;

/* bfloat16 below its last places: the numbers are what they are. */
static uint16_t bf16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}
static float float_of(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}
/* Of mean 0 and deviation 1, nearly normal. */
static float drawn(void) {
  float sum = 0;
  int i;
  for (i = 0; i < 12; ++i) {
    state = state * 1664525u + 1013904223u;
    sum += (float)(state >> 8) / 16777216.0f;
  }
  return sum - 6;
}

/* mean: of keys and values. alone: the last rows so many look at key 0, by a column of their own. */
static void fill(float mean, int alone) {
  const float scale = 0.125f;
  int i, j, c;
  for (i = 0; i < KEYS; ++i)
    for (c = 0; c < DIM; ++c) {
      const int own = c == DIM - 1;
      k[i * DIM + c] = bf16_of(own ? (i == 0 ? 8.0f : 0.0f) : drawn() + mean);
      v[i * DIM + c] = bf16_of(drawn() + mean);
      q[i * DIM + c] = bf16_of(own ? (i >= KEYS - alone ? 20.0f : 0.0f) : drawn() * 0.06f);
    }
  for (i = 0; i < KEYS; ++i) {
    double sum = 0;
    for (j = 0; j < KEYS; ++j) {
      float dot = 0;
      for (c = 0; c < DIM; ++c) dot += float_of(q[i * DIM + c]) * float_of(k[j * DIM + c]);
      sum += exp((double)(dot * scale));
    }
    lse[i] = (float)log(sum);
  }
}

static tsr_problem *problem_of(tsr_resolved *problem, tsr_dtype dtype) {
  tsr_problem *p = &problem->p;
  tsr_layout *layouts[3];
  int i;
  memset(problem, 0, sizeof *problem);
  p->batch = p->heads_q = p->heads_kv = problem->group = 1;
  p->seq_q = p->seq_k = KEYS;
  p->dim_qk = p->dim_v = DIM;
  p->scale = 0.125f;
  p->window.left = p->window.right = TSR_UNBOUNDED;
  layouts[0] = &p->q;
  layouts[1] = &p->k;
  layouts[2] = &p->v;
  for (i = 0; i < 3; ++i) {
    layouts[i]->dtype = dtype;
    layouts[i]->stride[3] = 1;
    layouts[i]->stride[2] = DIM;
  }
  p->lse.stride[2] = 1;
  return p;
}

static float look(const tsr_resolved *problem, const void *queries, const void *keys, const void *values) {
  tsr_args args;
  memset(&args, 0, sizeof args);
  args.q = queries;
  args.k = keys;
  args.v = values;
  args.lse = lse;
  return tsri_cpu_delta_most(problem, &args, 0, 0);
}

static float most_keys(void) {
  tsr_resolved problem;
  problem_of(&problem, TSR_DTYPE_BF16);
  return look(&problem, q, k, v);
}

/* What is made of the same numbers in float32, values moved by `more` and queries `times` as large: the largest |LSE| of
 * rows that may take what is stored. LSE is that of these numbers if times is 1. */
static float most_lse(float mean, int alone, float more, float times) {
  static float q32[KEYS * DIM], k32[KEYS * DIM], v32[KEYS * DIM];
  tsr_resolved problem;
  tsr_problem *p = problem_of(&problem, TSR_DTYPE_F32);
  int i;
  fill(mean, alone);
  for (i = 0; i < KEYS * DIM; ++i) {
    q32[i] = float_of(q[i]) * times;
    k32[i] = float_of(k[i]);
    v32[i] = float_of(v[i]) + more;
  }
  p->scale = times > 1 ? 1 : 0.125f;
  return look(&problem, q32, k32, v32);
}

int main(void) {
  int failures = 0;
  float most;
  fill(0, 0);
  most = most_keys();
  if (!(most > KEYS)) failures += printf("FAIL nothing in common: %g keys, expected more than %d\n", (double)most, KEYS) > 0;
  fill(0.5f, 0);
  most = most_keys();
  if (!(most < KEYS)) failures += printf("FAIL a mean of 1/2: %g keys, expected fewer than %d\n", (double)most, KEYS) > 0;
  fill(0.5f, KEYS / 8);
  most = most_keys();
  if (!(most < KEYS)) failures += printf("FAIL and rows that see key 0 alone: %g keys, expected fewer than %d\n", (double)most, KEYS) > 0;
  most = most_lse(0, 0, 0, 8); /* scores of ordinary size */
  if (!(most == 16)) failures += printf("FAIL float32, nothing in common: |LSE| %g, expected 16\n", (double)most) > 0;
  most = most_lse(1, 0, -1, 8);
  if (!(most < 0)) failures += printf("FAIL float32, a mean of 1 of keys: |LSE| %g, expected none\n", (double)most) > 0;
  most = most_lse(0, 0, 2, 1);
  if (!(most < 0)) failures += printf("FAIL float32, a mean of 2 of values: |LSE| %g, expected none\n", (double)most) > 0;
  most = most_lse(0, KEYS, 2, 1);
  if (!(most == 16)) failures += printf("FAIL and rows that see key 0 alone: |LSE| %g, expected 16\n", (double)most) > 0;
  return failures != 0;
}
