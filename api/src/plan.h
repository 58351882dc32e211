// SPDX-License-Identifier: Apache-2.0
//
// A plan: a validated problem, the kernel chosen for each pass, and what the kernels prepared.
// Immutable once created.
#ifndef TESSERA_SRC_PLAN_H_
#define TESSERA_SRC_PLAN_H_

#include "dispatch.h"

/* One pass of a plan. */
typedef struct tsri_planned {
  int present;
  tsr_resolved problem;
  tsri_choice choice;
  void *plan; /* the backend's */
} tsri_planned;

struct tsr_plan {
  const tsr_context *context;
  tsri_selection selection;
  tsri_planned pass[2]; /* forward, backward */
};

/* The pass of a plan, or INVALID_ARGUMENT if it does not hold it. */
tsr_status tsri_plan_pass(const tsr_plan *plan, tsr_pass pass, const tsri_planned **out);

/* Validates and selects: fills everything of a plan but the choices. */
tsr_status tsri_plan_prepare(const tsr_context *context, tsr_device device,
                             const tsr_problem *problem, tsr_plan *plan);

#endif  // TESSERA_SRC_PLAN_H_
