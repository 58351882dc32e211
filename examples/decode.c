// SPDX-License-Identifier: Apache-2.0
//
// One decoding step over a paged KV cache, split into a shared prefix and each sequence's own suffix:
// two runs over disjoint keys, then tsr_merge joins them into exact attention over all keys. The
// answer is compared with a single run over everything.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { B = 2, HQ = 8, HKV = 2, D = 64, PAGE = 16, PAGES = 12, COLUMNS = 4 };

static const tsr_device kHost = {TSR_DEVICE_HOST, 0};

/* Attention of one query per sequence over the pages that table and used name. */
static tsr_status attend(const float *q, const float *cache_k, const float *cache_v,
                         const int32_t *table, const int32_t *used, float *o, float *lse) {
  tsr_plan *plan = NULL;
  tsr_problem p = TSR_PROBLEM_INIT;
  tsr_args a = TSR_ARGS_INIT;
  tsr_status status;
  p.arrays = TSR_ARRAY_USED_K;
  p.batch = B, p.heads_q = HQ, p.heads_kv = HKV, p.seq_q = 1, p.dim_qk = D;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
  p.page_size = PAGE, p.num_pages = PAGES, p.max_pages = COLUMNS;
  a.q = q, a.k = cache_k, a.v = cache_v, a.o = o, a.lse = lse;
  a.used_k = used, a.page_table = table;
  status = tsr_plan_create(&plan, NULL, kHost, &p);
  if (status == TSR_STATUS_SUCCESS) status = tsr_forward(plan, &a);
  tsr_plan_destroy(plan);
  return status;
}

int main(void) {
  /* Pages 0 and 1 hold a prefix of 32 tokens that both sequences share; their own tokens follow. */
  const int32_t shared[B * COLUMNS] = {0, 1, 0, 0, 0, 1, 0, 0}, shared_used[B] = {32, 32};
  const int32_t own[B * COLUMNS] = {5, 0, 0, 0, 7, 9, 0, 0}, own_used[B] = {9, 20};
  const int32_t all[B * COLUMNS] = {0, 1, 5, 0, 0, 1, 7, 9}, all_used[B] = {41, 52};
  static float q[B * HQ * D], k[PAGES * HKV * PAGE * D], v[PAGES * HKV * PAGE * D];
  static float o[3][B * HQ * D], lse[3][B * HQ], merged[B * HQ * D], merged_lse[B * HQ];
  const void *parts[2] = {o[0], o[1]};
  const float *lses[2] = {lse[0], lse[1]};
  tsr_merge_problem m = TSR_MERGE_PROBLEM_INIT;
  tsr_status status;
  double worst = 0;
  int wrong = 0;

  for (size_t i = 0; i < sizeof q / sizeof *q; ++i) q[i] = (float)(i * 37 % 97) / 48.0f - 1.0f;
  for (size_t i = 0; i < sizeof k / sizeof *k; ++i) {
    k[i] = (float)(i * 11 % 89) / 44.0f - 1.0f;
    v[i] = (float)(i * 17 % 83) / 41.0f - 1.0f;
  }
  m.parts = 2, m.batch = B, m.heads = HQ, m.seq = 1, m.dim_v = D;
  m.o_part.dtype = m.o.dtype = m.lse_part.dtype = m.lse.dtype = TSR_DTYPE_F32;
  if ((status = attend(q, k, v, shared, shared_used, o[0], lse[0])) ||
      (status = attend(q, k, v, own, own_used, o[1], lse[1])) ||
      (status = attend(q, k, v, all, all_used, o[2], lse[2])) ||
      (status = tsr_merge(NULL, kHost, &m, parts, lses, merged, merged_lse, NULL))) {
    fprintf(stderr, "%s: %s\n", tsr_status_string(status), tsr_last_message());
    return 1;
  }
  for (size_t i = 0; i < sizeof merged / sizeof *merged; ++i) {
    const double difference = fabs((double)merged[i] - o[2][i]);
    wrong |= !(difference < 1e-5); /* also when it is NaN, which no maximum would show */
    if (difference > worst) worst = difference;
  }
  printf("prefix and suffix merged against one run: largest difference %.2e\n", worst);
  return wrong;
}
