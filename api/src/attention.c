// SPDX-License-Identifier: Apache-2.0
//
// Running: forward and backward of a plan, the one-call form, merging of partial results, and the
// dropout mask. Each checks its pointers, lends workspace where the caller gave none, and calls the
// backend; a reason that comes back becomes the thread's message.
#include <string.h>

#include "plan.h"
#include "validate.h"

static tsr_status failed(tsr_status status, const char *backend, const char *what,
                         tsr_reason *reason) {
  TSRI_RETURN(status, "%s/%s: %s", backend, what,
              tsri_reason_text(reason, tsr_status_string(status)));
}

static tsr_status run_pass(const tsr_plan *plan, tsr_pass pass, const tsr_args *given) {
  const tsri_planned *planned = NULL;
  tsr_args args;
  tsr_reason reason;
  TSRI_FORWARD(tsri_plan_pass(plan, pass, &planned));
  const tsri_choice *c = &planned->choice;
  const tsr_allocator *allocator = &plan->context->allocator;
  const size_t needed = c->estimate.workspace;
  TSRI_FORWARD(tsri_validate_run(&planned->problem, needed, given, &args));
  void *lent = NULL;
  if (!args.workspace && needed && planned->problem.device.kind == TSR_DEVICE_HOST) {
    lent = tsri_alloc(allocator, needed, 64);
    TSRI_RETURN_IF(!lent, TSR_STATUS_OUT_OF_MEMORY,
                   "workspace: the allocator gave no %zu bytes for this run", needed);
    args.workspace = lent;
    args.workspace_size = needed;
  }
  memset(&reason, 0, sizeof reason);
  const tsr_status status =
      c->backend->vtable.run(c->backend->state, planned->plan, &args, &reason);
  tsri_free(allocator, lent);
  if (status != TSR_STATUS_SUCCESS) return failed(status, c->backend->name, c->info.name, &reason);
  return status;
}

tsr_status tsr_forward(const tsr_plan *plan, const tsr_args *args) {
  return run_pass(plan, TSR_PASS_FORWARD, args);
}

tsr_status tsr_backward(const tsr_plan *plan, const tsr_args *args) {
  return run_pass(plan, TSR_PASS_BACKWARD, args);
}

tsr_status tsr_attention(tsr_context *context, tsr_device device, const tsr_tensor *q,
                         const tsr_tensor *k, const tsr_tensor *v, const tsr_tensor *o,
                         const tsr_tensor *lse, tsr_causal causal, float scale, void *stream) {
  tsr_problem problem;
  tsr_args args;
  tsr_plan *plan;
  TSRI_FORWARD(tsri_validate_attention(q, k, v, o, lse, causal, scale, &problem, &args));
  args.stream = stream;
  TSRI_FORWARD(tsr_plan_create(&plan, context, device, &problem));
  /* On GPUs the kernels may still run when the plan goes: backends free host state only. */
  const tsr_status status = tsr_forward(plan, &args);
  tsr_plan_destroy(plan);
  return status;
}

/* What merge and dropout_mask share: the first backend, in order of registration, that has the slot
 * and takes the problem. */
typedef tsr_status (*slot_fn)(const tsri_backend *backend, int32_t device, const void *call,
                              tsr_reason *reason);

static tsr_status first_backend(const tsr_context *context, tsr_device device, const char *what,
                                slot_fn slot, const void *call) {
  char list[TSRI_MESSAGE_BYTES - 256];
  tsri_text text = tsri_text_over(list, sizeof list);
  tsri_selection selection;
  TSRI_FORWARD(tsri_check_device(context, device));
  TSRI_FORWARD(tsri_select(context, NULL, NULL, 0, &selection));
  for (int32_t i = 0; i < context->registry.count; ++i) {
    const tsri_backend *b = &context->registry.items[i];
    tsr_reason reason;
    tsr_status status = TSR_STATUS_NOT_SUPPORTED;
    if (!tsri_backend_refusal(context, &selection, i, device, 0, &reason)) {
      memset(&reason, 0, sizeof reason);
      status = slot(b, device.index, call, &reason);
    }
    if (status == TSR_STATUS_SUCCESS) {
      tsri_log_write(&context->log, TSR_LOG_PLAN, "%s: %s", what, b->name);
      return status;
    }
    if (status != TSR_STATUS_NOT_SUPPORTED) return failed(status, b->name, what, &reason);
    tsri_text_add(&text, "%s%s: %s", text.length ? "; " : "", b->name,
                  tsri_reason_text(&reason, "refused without a reason"));
  }
  TSRI_RETURN(TSR_STATUS_NOT_SUPPORTED, "no backend takes the %s: %s", what,
              text.length ? list : "this build has no backend");
}

typedef struct merge_call {
  tsr_merge_problem problem;
  const void *const *o_parts;
  const float *const *lse_parts;
  void *o;
  float *lse;
  void *stream;
} merge_call;

static tsr_status merge_slot(const tsri_backend *b, int32_t device, const void *call,
                             tsr_reason *reason) {
  const merge_call *m = call;
  if (!b->vtable.merge) {
    tsri_reason_set(reason, "cannot merge");
    return TSR_STATUS_NOT_SUPPORTED;
  }
  return b->vtable.merge(b->state, device, &m->problem, m->o_parts, m->lse_parts, m->o, m->lse,
                         m->stream, reason);
}

tsr_status tsr_merge(tsr_context *given, tsr_device device, const tsr_merge_problem *problem,
                     const void *const *o_parts, const float *const *lse_parts, void *o, float *lse,
                     void *stream) {
  const tsr_context *context;
  merge_call call;
  TSRI_FORWARD(
      tsri_validate_merge(problem, device, o_parts, lse_parts, o, lse, stream, &call.problem));
  TSRI_FORWARD(tsri_context_or_default(given, &context));
  call.o_parts = o_parts;
  call.lse_parts = lse_parts;
  call.o = o;
  call.lse = lse;
  call.stream = stream;
  return first_backend(context, device, "merge", merge_slot, &call);
}

typedef struct dropout_call {
  tsr_dropout_problem problem;
  uint8_t *mask;
  void *stream;
} dropout_call;

static tsr_status dropout_slot(const tsri_backend *b, int32_t device, const void *call,
                               tsr_reason *reason) {
  const dropout_call *d = call;
  if (!b->vtable.dropout_mask) {
    tsri_reason_set(reason, "cannot write dropout masks");
    return TSR_STATUS_NOT_SUPPORTED;
  }
  return b->vtable.dropout_mask(b->state, device, &d->problem, d->mask, d->stream, reason);
}

tsr_status tsr_dropout_mask(tsr_context *given, tsr_device device,
                            const tsr_dropout_problem *problem, uint8_t *mask, void *stream) {
  const tsr_context *context;
  dropout_call call;
  TSRI_FORWARD(tsri_validate_dropout(problem, device, mask, stream, &call.problem));
  TSRI_FORWARD(tsri_context_or_default(given, &context));
  call.mask = mask;
  call.stream = stream;
  return first_backend(context, device, "dropout mask", dropout_slot, &call);
}
