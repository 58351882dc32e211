// SPDX-License-Identifier: Apache-2.0
//
// See backends.h. Kernel names begin with the operation ("fwd_", "bwd_"); the baseline's contain
// "naive", which is all that is assumed about them.
#include "backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numeric.h"

/* Whether a name stands in a comma-separated list; NULL and "" name everything. */
static bool listed(const char *list, const char *name) {
  size_t length = strlen(name);
  const char *at = list;
  if (!list || !*list) return true;
  for (; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
    if (strncmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ',')) return true;
  return false;
}

int32_t tsr_backends_list(tsr_context *context, const char *wanted, const char **names,
                          int32_t capacity) {
  int32_t i, found = 0, count = tsr_context_backend_count(context);
  const char *list = getenv("TSR_TEST_BACKENDS");
  for (i = 0; i < count; ++i) {
    tsr_backend_info info = {0};
    info.struct_size = sizeof info;
    if (tsr_context_backend_info(context, i, &info) != TSR_STATUS_SUCCESS) continue;
    if (!info.available || info.devices < 1) continue;
    if (wanted ? strcmp(wanted, info.name) != 0 : !listed(list, info.name)) continue;
    if (found < capacity) names[found] = info.name;
    found++;
  }
  return found;
}

tsr_device tsr_backends_device(tsr_context *context, const char *backend, int32_t ordinal) {
  tsr_device device = {TSR_DEVICE_HOST, 0};
  int32_t i, count = tsr_context_backend_count(context);
  for (i = 0; i < count; ++i) {
    tsr_backend_info info = {0};
    info.struct_size = sizeof info;
    if (tsr_context_backend_info(context, i, &info) != TSR_STATUS_SUCCESS) continue;
    if (strcmp(backend, info.name) != 0 || info.device_kind == TSR_DEVICE_HOST) continue;
    device.kind = info.device_kind;
    device.index = ordinal;
  }
  return device;
}

const char *tsr_backends_kernel(tsr_context *context, const char *backend, tsr_pass pass,
                                int32_t i) {
  const char *prefix = pass == TSR_PASS_FORWARD ? "fwd_" : "bwd_";
  int32_t b, k, count = tsr_context_backend_count(context);
  for (b = 0; b < count; ++b) {
    tsr_backend_info info = {0};
    const char *name;
    info.struct_size = sizeof info;
    if (tsr_context_backend_info(context, b, &info) != TSR_STATUS_SUCCESS) continue;
    if (strcmp(info.name, backend) != 0) continue;
    for (k = 0; (name = tsr_context_kernel_name(context, b, k)) != NULL; ++k)
      if (strncmp(name, prefix, 4) == 0 && i-- == 0) return name;
  }
  return NULL;
}

tsr_status tsr_backends_plan(tsr_plan **plan, tsr_context *context, const tsr_setup *setup,
                             const char *backend, const char *kernel) {
  tsr_problem problem = setup->problem;
  problem.backend = backend;
  problem.kernel = kernel;
  return tsr_plan_create(plan, context, setup->device, &problem);
}

static const char *naive_kernel(tsr_context *context, tsr_pass pass, tsr_dtype dtype) {
  char part[32];
  const char *name;
  int32_t i;
  snprintf(part, sizeof part, "_%s_", tsr_test_dtype_name(dtype));
  for (i = 0; (name = tsr_backends_kernel(context, "reference", pass, i)) != NULL; ++i)
    if (strstr(name, "naive") && strstr(name, part)) return name;
  return NULL;
}

static bool run_truth(tsr_context *context, tsr_setup *setup, tsr_truth which, char *why,
                      size_t capacity) {
  tsr_plan *forward = NULL, *backward = NULL;
  const char *kernel = NULL, *kernel_backward = NULL;
  tsr_status status;
  if (which == TSR_TRUTH_NAIVE) {
    kernel = naive_kernel(context, TSR_PASS_FORWARD, setup->dtype);
    kernel_backward = naive_kernel(context, TSR_PASS_BACKWARD, setup->dtype);
    if (!kernel || (setup->passes & TSR_PASS_BACKWARD && !kernel_backward)) {
      snprintf(why, capacity, "the reference backend has no naive kernel for %s",
               tsr_test_dtype_name(setup->dtype));
      return false;
    }
  }
  status = tsr_backends_plan(&forward, context, setup, "reference", kernel);
  if (status == TSR_STATUS_SUCCESS && kernel_backward && setup->passes & TSR_PASS_BACKWARD)
    status = tsr_backends_plan(&backward, context, setup, "reference", kernel_backward);
  if (status == TSR_STATUS_SUCCESS) status = tsr_setup_run(setup, forward, backward);
  if (status != TSR_STATUS_SUCCESS)
    snprintf(why, capacity, "reference (%s): %s: %s",
             which == TSR_TRUTH_NAIVE ? "naive" : "ref64", tsr_status_string(status),
             tsr_setup_message(setup));
  tsr_plan_destroy(forward);
  tsr_plan_destroy(backward);
  return status == TSR_STATUS_SUCCESS;
}

bool tsr_backends_truth(tsr_context *context, const tsr_inputs *in, tsr_truth which,
                        uint32_t passes, tsr_results *results, char *why, size_t capacity) {
  size_t lengths = (size_t)in->row->batch + 1;
  int64_t *lens = (int64_t *)malloc(2 * lengths * sizeof(int64_t));
  tsr_dtype dtype = which == TSR_TRUTH_REF64 ? TSR_DTYPE_F64 : in->dtype;
  tsr_setup setup;
  bool ok = false;
  memset(results, 0, sizeof *results);
  if (!lens) {
    snprintf(why, capacity, "out of memory");
    return false;
  }
  tsr_case form = tsr_setup_dense_form(in, lens, lens + lengths);
  if (tsr_setup_create(&setup, in, &form, dtype, passes, why, capacity)) {
    ok = run_truth(context, &setup, which, why, capacity) &&
         tsr_setup_gather(&setup, results, why, capacity);
    tsr_setup_destroy(&setup);
  }
  free(lens);
  return ok;
}
