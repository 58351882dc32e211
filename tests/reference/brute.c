// SPDX-License-Identifier: Apache-2.0
//
// One score at a time (brute.h). Index arrays are 32 bits wide here, as the rig makes them.
#include "brute.h"

#include <math.h>

static int64_t entry(const void *array, int64_t i) {
  return ((const int32_t *)array)[i];
}

brute_sequence brute_sequence_of(const ref_rig *rig, int64_t b) {
  const tsr_problem *p = &rig->p;
  const tsr_args *a = &rig->a;
  brute_sequence s = {0, p->seq_q, 0, p->seq_k};
  if (p->arrays & TSR_ARRAY_CU_Q) s.q0 = entry(a->cu_q, b), s.sq = entry(a->cu_q, b + 1) - s.q0;
  if (p->arrays & TSR_ARRAY_CU_K) s.k0 = entry(a->cu_k, b), s.sk = entry(a->cu_k, b + 1) - s.k0;
  if (p->arrays & TSR_ARRAY_LEFT_PAD_Q)
    s.q0 += entry(a->left_pad_q, b), s.sq -= entry(a->left_pad_q, b);
  if (p->arrays & TSR_ARRAY_LEFT_PAD_K)
    s.k0 += entry(a->left_pad_k, b), s.sk -= entry(a->left_pad_k, b);
  if (p->arrays & TSR_ARRAY_USED_Q) s.sq = entry(a->used_q, b);
  if (p->arrays & TSR_ARRAY_USED_K) s.sk = entry(a->used_k, b);
  return s;
}

/* Element of K or V through the page table. */
static double kv(const ref_rig *rig, const tsr_layout *layout, const void *data, int64_t b,
                 int64_t g, int64_t row, int64_t d) {
  const int64_t size = rig->p.page_size;
  if (!size) return rig_get(layout, data, b, g, row, d);
  return rig_get(layout, data, entry(rig->a.page_table, b * rig->p.max_pages + row / size), g,
                 row % size, d);
}

double brute_score(const ref_rig *rig, int64_t b, int64_t h, int64_t i, int64_t j) {
  const tsr_problem *p = &rig->p;
  const brute_sequence seq = brute_sequence_of(rig, b);
  const int64_t g = h * p->heads_kv / p->heads_q;
  double dot = 0, s;
  int64_t d;
  for (d = 0; d < p->dim_qk; d++)
    dot += rig_get(&p->q, rig->a.q, b, h, seq.q0 + i, d) *
           kv(rig, &p->k, rig->a.k, b, g, seq.k0 + j, d);
  s = dot * (double)p->scale;
  if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
  if (p->bias.dtype) s += rig_get(&p->bias, rig->a.bias, b, h, i, j);
  if (p->alibi)
    s -= (double)rig->slopes[(p->alibi == TSR_ALIBI_PER_HEAD ? 0 : b * p->heads_q) + h] *
         fabs((double)(i + seq.sk - seq.sq - j));
  return s;
}

static int64_t diagonal(const ref_rig *rig, int kind, int64_t b, const brute_sequence *seq) {
  if (kind == TSR_CAUSAL_TOP_LEFT) return 0;
  if (kind == TSR_CAUSAL_BOTTOM_RIGHT) return seq->sk - seq->sq;
  return (rig->p.arrays & TSR_ARRAY_DIAGONAL) ? entry(rig->a.diagonal, b) : rig->p.diagonal;
}

int brute_allowed(const ref_rig *rig, int64_t b, int64_t h, int64_t i, int64_t j) {
  const tsr_problem *p = &rig->p;
  const brute_sequence seq = brute_sequence_of(rig, b);
  const int64_t prefix = (p->arrays & TSR_ARRAY_PREFIX) ? entry(rig->a.prefix, b) : p->prefix;
  int in = 1;
  if (j >= seq.sk) return 0;
  if (p->causal && j > i + diagonal(rig, (int)p->causal, b, &seq)) in = 0;
  if (p->window.kind) {
    const int64_t from = j - (i + diagonal(rig, (int)p->window.kind, b, &seq));
    if (p->window.left != TSR_UNBOUNDED && from < -p->window.left) in = 0;
    if (p->window.right != TSR_UNBOUNDED && from > p->window.right) in = 0;
  }
  if (j < prefix) in = 1;
  if (p->mask.dtype) {
    const int64_t at = b * p->mask.stride[0] + h * p->mask.stride[1] + i * p->mask.stride[2] +
                       j * p->mask.stride[3];
    const uint8_t *mask = (const uint8_t *)rig->a.mask;
    if (p->mask.dtype == TSR_DTYPE_U8 && !mask[at]) in = 0;
    if (p->mask.dtype == TSR_DTYPE_BIT && !(mask[at / 8] & (1 << (at % 8)))) in = 0;
  }
  if (p->block_mask.dtype) {
    const int64_t *st = p->block_mask.stride;
    const uint8_t *mask = (const uint8_t *)rig->a.block_mask;
    if (!mask[b * st[0] + h * st[1] + i / p->block_q * st[2] + j / p->block_k * st[3]]) in = 0;
  }
  return in;
}

void brute_row(const ref_rig *rig, int64_t b, int64_t h, int64_t i, const uint8_t *keep, double *o,
               double *lse, double *max) {
  const tsr_problem *p = &rig->p;
  const brute_sequence seq = brute_sequence_of(rig, b);
  const int64_t g = h * p->heads_kv / p->heads_q;
  double sum = p->sink ? exp((double)rig->sink[h]) : 0;
  int64_t j, d;
  *max = -INFINITY;
  for (d = 0; d < p->dim_v; d++) o[d] = 0;
  for (j = 0; j < seq.sk; j++) {
    const double s = brute_score(rig, b, h, i, j);
    double weight = exp(s); /* scores of the random problems are small: no shift needed */
    if (!brute_allowed(rig, b, h, i, j)) continue;
    *max = fmax(*max, s);
    sum += weight;
    if (keep) {
      const int kept = keep[((b * p->heads_q + h) * p->seq_q + i) * p->seq_k + j];
      weight = kept ? weight / (1 - (double)p->dropout) : 0;
    }
    for (d = 0; d < p->dim_v; d++) o[d] += weight * kv(rig, &p->v, rig->a.v, b, g, seq.k0 + j, d);
  }
  *lse = log(sum);
  for (d = 0; d < p->dim_v; d++) o[d] = sum > 0 ? o[d] / sum : 0;
}
