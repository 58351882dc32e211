// SPDX-License-Identifier: Apache-2.0
//
// Checks the plug-in through the public API, as its users would see it: it is found in the folder
// given, agrees with the reference on causal attention with grouped heads and an empty row, and
// refuses what it does not know with a reason.   check_rowwise <folder of rowwise.so>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 5, SK = 3, D = 8 };

static const tsr_device host = {TSR_DEVICE_HOST, 0};
static float q[B * HQ * SQ * D], k[B * HKV * SK * D], v[B * HKV * SK * D];

static void fill(float *x, int n, int seed) {
  for (int i = 0; i < n; ++i) x[i] = (float)((i * 37 + seed) % 101) / 50.0f - 1.0f;
}

static tsr_problem problem_for(const char *backend) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = B;
  p.heads_q = HQ;
  p.heads_kv = HKV;
  p.seq_q = SQ;
  p.seq_k = SK;
  p.dim_qk = D;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
  p.causal = TSR_CAUSAL_BOTTOM_RIGHT; /* rows 0 and 1 see no key */
  p.backend = backend;
  return p;
}

static int run(tsr_context *context, const char *backend, float *o, float *lse) {
  const tsr_problem p = problem_for(backend);
  tsr_args a = TSR_ARGS_INIT;
  tsr_plan *plan = NULL;
  a.q = q;
  a.k = k;
  a.v = v;
  a.o = o;
  a.lse = lse;
  tsr_status status = tsr_plan_create(&plan, context, host, &p);
  if (status == TSR_STATUS_SUCCESS) status = tsr_forward(plan, &a);
  if (status != TSR_STATUS_SUCCESS) {
    printf("%s: %s: %s\n", backend, tsr_status_string(status), tsr_last_message());
  }
  tsr_plan_destroy(plan);
  return status == TSR_STATUS_SUCCESS;
}

/* Largest difference; NaN counts as infinite unless both are the same infinity. */
static double difference(const float *a, const float *b, int n) {
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    const double d = a[i] == b[i] ? 0 : fabs((double)a[i] - (double)b[i]);
    if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
  }
  return worst;
}

int main(int argc, char **argv) {
  static float o[2][B * HQ * SQ * D], lse[2][B * HQ * SQ];
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context;
  int good = 1;
  if (argc != 2) {
    printf("usage: check_rowwise <folder of rowwise.so>\n");
    return 2;
  }
  options.plugin_path = argv[1];
  if (tsr_context_create(&context, &options) != TSR_STATUS_SUCCESS) {
    printf("no context: %s\n", tsr_last_message());
    return 1;
  }
  fill(q, B * HQ * SQ * D, 1);
  fill(k, B * HKV * SK * D, 2);
  fill(v, B * HKV * SK * D, 3);
  good = run(context, "rowwise", o[0], lse[0]) && run(context, "reference", o[1], lse[1]);
  const double o_error = difference(o[0], o[1], B * HQ * SQ * D);
  const double lse_error = difference(lse[0], lse[1], B * HQ * SQ);
  printf("rowwise against reference: O differs by %.2g, LSE by %.2g\n", o_error, lse_error);
  good = good && o_error < 1e-6 && lse_error < 1e-6;

  tsr_problem p = problem_for("rowwise");
  tsr_plan *plan = NULL;
  p.softcap = 30;
  const tsr_status status = tsr_plan_create(&plan, context, host, &p);
  printf("softcap: %s: %s\n", tsr_status_string(status), tsr_last_message());
  good = good && status == TSR_STATUS_NOT_SUPPORTED && strstr(tsr_last_message(), "rowwise");
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  puts(good ? "ok" : "FAILED");
  return good ? 0 : 1;
}
