// SPDX-License-Identifier: Apache-2.0
//
// The text of a choice: the problem in one line, then for each pass the kernel with its predicted
// figures, and every other candidate with the reason why it was refused or ranked lower.
#include <string.h>

#include "plan.h"

#define LL long long

static void add_problem(tsri_text *text, const tsr_plan *plan) {
  const tsr_resolved *r = &plan->pass[plan->pass[0].present ? 0 : 1].problem;
  const tsr_problem *p = &r->p;
  uint32_t features = 0;
  for (int i = 0; i < 2; ++i) {
    if (plan->pass[i].present) features |= plan->pass[i].problem.features;
  }
  tsri_text_add(text,
                "problem: B %lld, Hq %lld, Hkv %lld, Sq %lld, Sk %lld, Dqk %lld, Dv %lld; q %s, "
                "k %s, o %s; on %s %d\n",
                (LL)p->batch, (LL)p->heads_q, (LL)p->heads_kv, (LL)p->seq_q, (LL)p->seq_k,
                (LL)p->dim_qk, (LL)p->dim_v, tsri_dtype_text(p->q.dtype),
                tsri_dtype_text(p->k.dtype), tsri_dtype_text(p->o.dtype),
                tsri_device_text(r->device.kind), r->device.index);
  tsri_text_add(text, "features: ");
  tsri_text_add_features(text, features);
  tsri_text_add(text, "\n");
}

static void add_pass(tsri_text *text, const tsr_plan *plan, const tsri_planned *planned,
                     const tsri_choice *chosen) {
  const char *pass = tsri_pass_text((tsr_pass)planned->problem.p.passes);
  if (chosen) {
    const tsr_estimate *e = &chosen->estimate;
    tsri_text_add(text, "%s: %s/%s\n  tile ", pass, chosen->backend->name, chosen->info.name);
    if (e->tile_q || e->tile_k) {
      tsri_text_add(text, "%lld x %lld", (LL)e->tile_q, (LL)e->tile_k);
    } else {
      tsri_text_add(text, "whole rows");
    }
    tsri_text_add(text, ", %.4g FLOP, %.4g bytes moved, %.3g s estimated, workspace %zu bytes\n",
                  e->flops, e->bytes, e->seconds, e->workspace);
  } else {
    tsri_text_add(text, "%s: no kernel\n", pass);
  }
  const size_t before = text->length;
  tsri_text_add(text, "  other candidates:\n    ");
  const size_t start = text->length;
  tsri_dispatch_list(plan->context, &plan->selection, &planned->problem, chosen, "\n    ", text);
  if (text->length == start) {
    text->length = before;
    tsri_text_add(text, "  no other candidate");
  }
  tsri_text_add(text, "\n");
}

static tsr_status check_text(const char *text, size_t capacity) {
  TSRI_INVALID_IF(!text && capacity, "text: found NULL with capacity %zu, accepted a buffer",
                  capacity);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsr_explain(tsr_context *given, tsr_device device, const tsr_problem *problem,
                       char *buffer, size_t capacity, size_t *needed) {
  const tsr_context *context;
  tsr_plan plan; /* never leaves this function, so its kernels prepare nothing */
  TSRI_FORWARD(check_text(buffer, capacity));
  tsri_text text = tsri_text_over(buffer, capacity);
  tsr_status status = tsri_context_or_default(given, &context);
  if (status == TSR_STATUS_SUCCESS) status = tsri_plan_prepare(context, device, problem, &plan);
  if (status != TSR_STATUS_SUCCESS) {
    tsri_text_add(&text, "%s: %s\n", tsr_status_string(status), tsr_last_message());
  } else {
    add_problem(&text, &plan);
  }
  const int prepared = status == TSR_STATUS_SUCCESS;
  for (int i = 0; prepared && i < 2; ++i) {
    tsri_planned *p = &plan.pass[i];
    if (!p->present) continue;
    const tsr_status found = tsri_dispatch(context, &plan.selection, &p->problem, &p->choice);
    add_pass(&text, &plan, p, found == TSR_STATUS_SUCCESS ? &p->choice : NULL);
    if (status == TSR_STATUS_SUCCESS) status = found;
  }
  if (needed) *needed = text.length + 1;
  return status;
}

tsr_status tsr_plan_explain(const tsr_plan *plan, char *buffer, size_t capacity, size_t *needed) {
  TSRI_INVALID_IF(!plan, "plan: found NULL, accepted a plan");
  TSRI_FORWARD(check_text(buffer, capacity));
  tsri_text text = tsri_text_over(buffer, capacity);
  add_problem(&text, plan);
  for (int i = 0; i < 2; ++i) {
    const tsri_planned *p = &plan->pass[i];
    if (p->present) add_pass(&text, plan, p, &p->choice);
  }
  if (needed) *needed = text.length + 1;
  return TSR_STATUS_SUCCESS;
}
