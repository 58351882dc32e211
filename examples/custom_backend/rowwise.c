// SPDX-License-Identifier: Apache-2.0
//
// A whole backend in one file: exact attention, forward, float32, one query row after another with
// plain scalar code. It is slow and says so in its estimate; its use is to show every slot of the
// vtable. Per row the keys are folded one by one with the online softmax:
//   m' = max(m, s),  l' = e^(m-m') l + e^(s-m'),  acc' = e^(m-m') acc + e^(s-m') v
//   O = acc / l,     LSE = m + ln l,              a row without keys: O = 0, LSE = -inf
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/backend.h>

/* What this backend honours. Everything else is refused, so that nothing is ever ignored. One row
 * at a time in a fixed order: both levels of determinism hold for free. */
#define ROWWISE_FEATURES                                                        \
  (TSR_FEATURE_CAUSAL | TSR_FEATURE_GROUPED_HEADS | TSR_FEATURE_DETERMINISTIC | \
   TSR_FEATURE_BATCH_INVARIANT)

#define ROWWISE_DIM_MAX 512 /* the API's largest Dv */

typedef struct rowwise_state {
  tsr_host host; /* copied: its services stay valid as long as the state lives */
} rowwise_state;

typedef struct rowwise_plan {
  const tsr_resolved *problem; /* stays valid until plan_destroy */
} rowwise_plan;

static tsr_status rowwise_probe(const tsr_host *host, void **out, tsr_reason *detail) {
  rowwise_state *state = host->alloc(host->context, sizeof *state, 64);
  if (!state) {
    snprintf(detail->text, sizeof detail->text, "no memory for its state");
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  state->host = *host;
  snprintf(detail->text, sizeof detail->text, "scalar float32, the calling thread alone");
  *out = state;
  return TSR_STATUS_SUCCESS;
}

static void rowwise_close(void *opaque) {
  rowwise_state *state = opaque;
  const tsr_host host = state->host; /* the block goes before the call returns */
  host.free(host.context, state);
}

static int32_t rowwise_device_count(void *state) {
  (void)state;
  return 1;
}

static tsr_status rowwise_device_info(void *state, int32_t index, tsr_device_info *info,
                                      tsr_reason *reason) {
  (void)state, (void)index, (void)reason;
  snprintf(info->name, sizeof info->name, "one thread of the host");
  info->compute_units = 1;
  return TSR_STATUS_SUCCESS;
}

static tsr_status rowwise_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  (void)state;
  if (index != 0) return TSR_STATUS_NOT_FOUND;
  info->name = "fwd_f32_any_edge__rowwise";
  info->pass = TSR_PASS_FORWARD;
  return TSR_STATUS_SUCCESS;
}

/* Diagonal d of the causal rule j <= i + d; INT64_MAX where there is none. */
static int64_t diagonal_of(const tsr_problem *p) {
  switch (p->window.kind) {
    case TSR_WINDOW_TOP_LEFT:
      return 0;
    case TSR_WINDOW_BOTTOM_RIGHT:
      return p->seq_k - p->seq_q;
    case TSR_WINDOW_EXPLICIT:
      return p->diagonal;
    case TSR_WINDOW_NONE:
      break;
  }
  return INT64_MAX;
}

/* Keys that row i may see. d is far from overflow: the library bounds it. */
static int64_t keys_of(const tsr_problem *p, int64_t d, int64_t i) {
  if (d == INT64_MAX || i + d + 1 > p->seq_k) return p->seq_k;
  return i + d + 1 > 0 ? i + d + 1 : 0;
}

/* Number of (query, key) pairs of one head, in closed form: supports() must be quick. */
static double pairs_of(const tsr_problem *p, int64_t d) {
  const double sq = (double)p->seq_q, sk = (double)p->seq_k;
  if (d == INT64_MAX) return sq * sk;
  double first = -(double)d, full = sk - (double)d - 1; /* rows that see their first, all keys */
  first = first < 0 ? 0 : first > sq ? sq : first;
  full = full < first ? first : full > sq ? sq : full;
  return (full - first) * (first + full - 1 + 2 * (double)d + 2) / 2 + (sq - full) * sk;
}

static tsr_status refuse(tsr_reason *reason, const char *text) {
  snprintf(reason->text, sizeof reason->text, "%s", text);
  return TSR_STATUS_NOT_SUPPORTED;
}

static tsr_status rowwise_supports(void *state, int32_t kernel, const tsr_resolved *problem,
                                   tsr_estimate *estimate, tsr_reason *reason) {
  const tsr_problem *p = &problem->p;
  const uint32_t beyond = problem->features & ~(uint32_t)ROWWISE_FEATURES;
  (void)state, (void)kernel;
  if (p->q.dtype != TSR_DTYPE_F32 || p->k.dtype != TSR_DTYPE_F32 || p->o.dtype != TSR_DTYPE_F32) {
    return refuse(reason, "takes float32 q, k, v and o only");
  }
  if (p->arrays & TSR_ARRAY_DIAGONAL) return refuse(reason, "takes one diagonal for all sequences");
  if (beyond & TSR_FEATURE_STRIDED_LAST) return refuse(reason, "needs a last stride of 1");
  if (beyond) {
    snprintf(reason->text, sizeof reason->text,
             "knows causal masks and grouped heads, not features 0x%x", beyond);
    return TSR_STATUS_NOT_SUPPORTED;
  }
  const double heads = (double)p->batch * (double)p->heads_q;
  const double pairs = heads * pairs_of(p, diagonal_of(p));
  const double columns = (double)(p->dim_qk + p->dim_v);
  estimate->flops = 2 * pairs * columns;
  /* No tiling: every row reads its keys and values again. */
  estimate->bytes = 4 * columns * (pairs + heads * (double)p->seq_q);
  estimate->seconds = estimate->flops / 1e9 + 1e-6; /* about one scalar operation a nanosecond */
  return TSR_STATUS_SUCCESS;
}

static tsr_status rowwise_plan_create(void *opaque, int32_t kernel, const tsr_resolved *problem,
                                      void **out, tsr_reason *reason) {
  rowwise_state *state = opaque;
  (void)kernel;
  rowwise_plan *plan = state->host.alloc(state->host.context, sizeof *plan, 64);
  if (!plan) {
    snprintf(reason->text, sizeof reason->text, "no memory for a plan");
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  plan->problem = problem;
  *out = plan;
  return TSR_STATUS_SUCCESS;
}

static void rowwise_plan_destroy(void *opaque, void *plan) {
  rowwise_state *state = opaque;
  state->host.free(state->host.context, plan);
}

/* One query row. Returns its LSE. */
static float attend(const tsr_problem *p, const float *q, const float *k, const float *v,
                    int64_t keys, float *o) {
  float acc[ROWWISE_DIM_MAX];
  float m = -INFINITY, l = 0;
  memset(acc, 0, sizeof acc);
  for (int64_t j = 0; j < keys; ++j, k += p->k.stride[2], v += p->v.stride[2]) {
    float s = 0;
    for (int64_t d = 0; d < p->dim_qk; ++d) s += q[d] * k[d];
    s *= p->scale;
    const float top = fmaxf(m, s);
    const float base = top == -INFINITY ? 0 : top; /* -inf - -inf would be NaN */
    const float keep = expf(m - base), weight = expf(s - base);
    l = keep * l + weight;
    for (int64_t d = 0; d < p->dim_v; ++d) acc[d] = keep * acc[d] + weight * v[d];
    m = top;
  }
  for (int64_t d = 0; d < p->dim_v; ++d) o[d] = l == 0 ? 0 : acc[d] / l;
  return l == 0 ? -INFINITY : m + logf(l);
}

static int64_t offset(const tsr_layout *t, int64_t b, int64_t h, int64_t i) {
  return b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static tsr_status rowwise_run(void *state, void *opaque, const tsr_args *args, tsr_reason *reason) {
  const rowwise_plan *plan = opaque;
  const tsr_problem *p = &plan->problem->p;
  const int64_t diagonal = diagonal_of(p);
  (void)state, (void)reason;
  for (int64_t b = 0; b < p->batch; ++b) {
    for (int64_t h = 0; h < p->heads_q; ++h) {
      const int64_t g = h / plan->problem->group;
      const float *k = (const float *)args->k + offset(&p->k, b, g, 0);
      const float *v = (const float *)args->v + offset(&p->v, b, g, 0);
      for (int64_t i = 0; i < p->seq_q; ++i) {
        const float lse =
            attend(p, (const float *)args->q + offset(&p->q, b, h, i), k, v,
                   keys_of(p, diagonal, i), (float *)args->o + offset(&p->o, b, h, i));
        if (args->lse) args->lse[offset(&p->lse, b, h, i)] = lse;
      }
    }
  }
  return TSR_STATUS_SUCCESS;
}

/* merge and dropout_mask are optional and absent: the library asks the next backend. */
static const tsr_backend vtable = {
    .struct_size = sizeof(tsr_backend),
    .abi = TSR_BACKEND_ABI,
    .name = "rowwise",
    .device_kind = TSR_DEVICE_HOST,
    .probe = rowwise_probe,
    .close = rowwise_close,
    .device_count = rowwise_device_count,
    .device_info = rowwise_device_info,
    .kernel_info = rowwise_kernel_info,
    .supports = rowwise_supports,
    .plan_create = rowwise_plan_create,
    .plan_destroy = rowwise_plan_destroy,
    .run = rowwise_run,
};

TSR_BACKEND_ENTRY(rowwise) {
  return host_abi == TSR_BACKEND_ABI ? &vtable : NULL;
}
