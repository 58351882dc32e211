// SPDX-License-Identifier: Apache-2.0
//
// Sequences of different lengths packed one after the other, no padding: the plan is made once for
// the capacity, the lengths are given at run time. Prints what the planner chose and why.
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { B = 4, H = 4, D = 32, TOTAL = 100 };

static int report(const char *what, tsr_status status) {
  if (status == TSR_STATUS_SUCCESS) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, tsr_status_string(status), tsr_last_message());
  return 1;
}

int main(void) {
  /* Lengths 17, 0, 50, 33: an empty sequence is fine. */
  const int32_t cu[B + 1] = {0, 17, 17, 67, 100};
  const size_t n = (size_t)TOTAL * H * D;
  float *q = malloc(n * sizeof *q), *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
  float *o = malloc(n * sizeof *o);
  char text[4096];
  tsr_plan *plan = NULL;
  int failed = 1;

  tsr_problem p = TSR_PROBLEM_INIT;
  p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  p.batch = B;
  p.heads_q = p.heads_kv = H;
  p.total_q = p.total_k = TOTAL;
  p.dim_qk = D;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TSR_DTYPE_F32;
  p.q.order = p.k.order = p.v.order = p.o.order = TSR_ORDER_BSHD; /* [total, H, D] */
  p.causal = TSR_CAUSAL_TOP_LEFT;

  tsr_args a = TSR_ARGS_INIT;
  a.q = q, a.k = k, a.v = v, a.o = o;
  a.cu_q = a.cu_k = cu;

  const tsr_device host = {TSR_DEVICE_HOST, 0};
  if (!q || !k || !v || !o) goto done;
  for (size_t i = 0; i < n; ++i) {
    q[i] = (float)(i * 13 % 101) / 101.0f;
    k[i] = (float)(i * 29 % 103) / 103.0f;
    v[i] = (float)(i * 7 % 107) / 107.0f;
  }
  if (report("plan", tsr_plan_create(&plan, NULL, host, &p))) goto done;
  if (report("explain", tsr_plan_explain(plan, text, sizeof text, NULL))) goto done;
  if (report("forward", tsr_forward(plan, &a))) goto done;
  printf("%s\n", text);
  for (int b = 0; b < B; ++b)
    if (cu[b] < cu[b + 1])
      printf("sequence %d, first row: O = %.5f (its own V: %.5f)\n", b, o[(size_t)cu[b] * H * D],
             v[(size_t)cu[b] * H * D]);
    else
      printf("sequence %d is empty\n", b);
  failed = 0;
done:
  tsr_plan_destroy(plan);
  free(q), free(k), free(v), free(o);
  return failed;
}
