// SPDX-License-Identifier: Apache-2.0
//
// Life of a plan: validate, choose a kernel per pass, let it prepare, tell about it, free it.
#include "plan.h"

#include <string.h>

#include "validate.h"

tsr_status tsri_plan_prepare(const tsr_context *context, tsr_device device,
                             const tsr_problem *problem, tsr_plan *plan) {
  tsr_problem valid, given;
  memset(plan, 0, sizeof *plan);
  plan->context = context;
  TSRI_FORWARD(tsri_validate_device(device));
  TSRI_FORWARD(tsri_validate_problem(problem, &valid));
  /* The names, which a caller's shorter struct may not have. */
  TSRI_FORWARD(tsri_read_struct(&given, sizeof given, problem, "tsr_problem"));
  TSRI_FORWARD(tsri_check_device(context, device));
  TSRI_FORWARD(tsri_select(context, given.backend, given.kernel, valid.passes, &plan->selection));
  for (int i = 0; i < 2; ++i) {
    const tsr_pass pass = i ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD;
    if (!(valid.passes & (uint32_t)pass)) continue;
    plan->pass[i].present = 1;
    tsri_resolve_pass(&valid, device, pass, &plan->pass[i].problem);
  }
  return TSR_STATUS_SUCCESS;
}

/* Chooses and prepares one pass. */
static tsr_status create_pass(const tsr_plan *plan, tsri_planned *planned) {
  tsr_reason reason;
  memset(&reason, 0, sizeof reason);
  const tsr_status chosen =
      tsri_dispatch(plan->context, &plan->selection, &planned->problem, &planned->choice);
  tsri_dispatch_log(plan->context, &plan->selection, &planned->problem, &planned->choice);
  TSRI_FORWARD(chosen);
  const tsri_choice *c = &planned->choice;
  const tsr_status status = c->backend->vtable.plan_create(
      c->backend->state, c->kernel, &planned->problem, &planned->plan, &reason);
  TSRI_RETURN_IF(status != TSR_STATUS_SUCCESS, status, "%s/%s: %s", c->backend->name, c->info.name,
                 tsri_reason_text(&reason, tsr_status_string(status)));
  return TSR_STATUS_SUCCESS;
}

tsr_status tsr_plan_create(tsr_plan **out, tsr_context *given, tsr_device device,
                           const tsr_problem *problem) {
  const tsr_context *context;
  TSRI_INVALID_IF(!out, "out: found NULL, accepted a pointer to a tsr_plan *");
  *out = NULL;
  TSRI_FORWARD(tsri_context_or_default(given, &context));
  tsr_plan *plan = tsri_alloc(&context->allocator, sizeof *plan, 64);
  TSRI_RETURN_IF(!plan, TSR_STATUS_OUT_OF_MEMORY, "plan: the allocator gave no memory");
  tsr_status status = tsri_plan_prepare(context, device, problem, plan);
  int created = 0; /* passes before this one are whole */
  for (int i = 0; status == TSR_STATUS_SUCCESS && i < 2; ++i) {
    if (plan->pass[i].present) status = create_pass(plan, &plan->pass[i]);
    created = i + (status == TSR_STATUS_SUCCESS);
  }
  if (status == TSR_STATUS_SUCCESS) {
    *out = plan;
    return status;
  }
  tsri_log_write(&context->log, TSR_LOG_ERROR, "plan: %s", tsr_last_message());
  for (int i = created; i < 2; ++i) plan->pass[i].present = 0;
  tsr_plan_destroy(plan);
  return status;
}

void tsr_plan_destroy(tsr_plan *plan) {
  if (!plan) return;
  for (int i = 0; i < 2; ++i) {
    const tsri_planned *p = &plan->pass[i];
    if (p->present) p->choice.backend->vtable.plan_destroy(p->choice.backend->state, p->plan);
  }
  tsri_free(&plan->context->allocator, plan);
}

tsr_status tsri_plan_pass(const tsr_plan *plan, tsr_pass pass, const tsri_planned **out) {
  TSRI_INVALID_IF(!plan, "plan: found NULL, accepted a plan");
  TSRI_INVALID_IF(pass != TSR_PASS_FORWARD && pass != TSR_PASS_BACKWARD,
                  "pass: found %d, accepted 1 (forward) or 2 (backward)", (int)pass);
  *out = &plan->pass[pass == TSR_PASS_BACKWARD];
  TSRI_INVALID_IF(!(*out)->present, "pass: found %s, accepted a pass in the plan's passes",
                  tsri_pass_text(pass));
  return TSR_STATUS_SUCCESS;
}

tsr_status tsr_plan_workspace_size(const tsr_plan *plan, tsr_pass pass, size_t *bytes) {
  const tsri_planned *planned = NULL;
  TSRI_INVALID_IF(!bytes, "bytes: found NULL, accepted a pointer to a size_t");
  TSRI_FORWARD(tsri_plan_pass(plan, pass, &planned));
  *bytes = planned->choice.estimate.workspace;
  return TSR_STATUS_SUCCESS;
}

tsr_status tsr_plan_describe(const tsr_plan *plan, tsr_pass pass, tsr_plan_info *info) {
  tsr_plan_info ours = TSR_PLAN_INFO_INIT;
  const tsri_planned *planned = NULL;
  TSRI_FORWARD(tsri_check_out_struct(info, sizeof ours, "tsr_plan_info"));
  TSRI_FORWARD(tsri_plan_pass(plan, pass, &planned));
  const tsri_choice *c = &planned->choice;
  ours.backend = c->backend->name;
  ours.kernel = c->info.name;
  ours.tile_q = c->estimate.tile_q;
  ours.tile_k = c->estimate.tile_k;
  ours.flops = c->estimate.flops;
  ours.bytes = c->estimate.bytes;
  ours.seconds = c->estimate.seconds;
  ours.workspace = c->estimate.workspace;
  tsri_write_struct(info, &ours, sizeof ours);
  return TSR_STATUS_SUCCESS;
}
