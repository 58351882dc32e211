// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins for tests/unit/test_plugin.c, one file per variant: FAKE_PLUGIN selects what is right or
// wrong with it. A good one is named by FAKE_PLUGIN_NAME, has one kernel that takes everything, and
// writes the number 7 into the first element of O, so that a test can see who ran.
#include <stdio.h>
#include <string.h>

#include "tessera/backend.h"

#define FAKE_GOOD 1
#define FAKE_NO_SYMBOL 2  /* a library, but no plug-in */
#define FAKE_OLD 3        /* its entry does not serve the host's ABI */
#define FAKE_OTHER_ABI 4  /* its entry serves anybody, its vtable has another number */
#define FAKE_EMPTY_SLOT 5 /* no run */
#define FAKE_BAD_NAME 6   /* upper case */
#define FAKE_NO_DRIVER 7  /* probe finds nothing */
#define FAKE_SHORT 8      /* built with a vtable that ends before the optional slots */
#define FAKE_NO_DEVICE 9  /* probe succeeds, and there is no device */
#define FAKE_TINY 10      /* a vtable without room for the required slots */

#ifndef FAKE_PLUGIN_NAME
  #define FAKE_PLUGIN_NAME "plugged"
#endif

#if FAKE_PLUGIN == FAKE_NO_SYMBOL
extern const int fake_plugin_is_a_library;
__attribute__((visibility("default"))) const int fake_plugin_is_a_library = 1;
#else

static int state_of_plugin;

static tsr_status fake_probe(const tsr_host *host, void **state, tsr_reason *detail) {
  (void)host;
  *state = &state_of_plugin;
  snprintf(detail->text, sizeof detail->text, "%s",
           FAKE_PLUGIN == FAKE_NO_DRIVER ? "libdriver.so.1 is not here" : "one device");
  return FAKE_PLUGIN == FAKE_NO_DRIVER ? TSR_STATUS_NOT_FOUND : TSR_STATUS_SUCCESS;
}

static void fake_close(void *state) {
  (void)state;
}

static int32_t fake_device_count(void *state) {
  (void)state;
  return FAKE_PLUGIN == FAKE_NO_DEVICE ? 0 : 1;
}

static tsr_status fake_device_info(void *state, int32_t index, tsr_device_info *info,
                                   tsr_reason *reason) {
  (void)state, (void)index, (void)info, (void)reason;
  return TSR_STATUS_SUCCESS;
}

static tsr_status fake_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  (void)state;
  if (index != 0) return TSR_STATUS_NOT_FOUND;
  info->name = "fwd_" FAKE_PLUGIN_NAME;
  info->pass = TSR_PASS_FORWARD;
  return TSR_STATUS_SUCCESS;
}

static tsr_status fake_supports(void *state, int32_t kernel, const tsr_resolved *problem,
                                tsr_estimate *estimate, tsr_reason *reason) {
  (void)state, (void)kernel, (void)problem, (void)reason;
  estimate->seconds = 1e-9;
  return TSR_STATUS_SUCCESS;
}

static tsr_status fake_plan_create(void *state, int32_t kernel, const tsr_resolved *problem,
                                   void **plan, tsr_reason *reason) {
  (void)state, (void)kernel, (void)problem, (void)reason;
  *plan = NULL;
  return TSR_STATUS_SUCCESS;
}

static void fake_plan_destroy(void *state, void *plan) {
  (void)state, (void)plan;
}

static tsr_status fake_run(void *state, void *plan, const tsr_args *args, tsr_reason *reason) {
  (void)state, (void)plan, (void)reason;
  *(float *)args->o = 7;
  return TSR_STATUS_SUCCESS;
}

static const tsr_backend vtable = {
    .struct_size = FAKE_PLUGIN == FAKE_SHORT  ? offsetof(tsr_backend, merge)
                   : FAKE_PLUGIN == FAKE_TINY ? offsetof(tsr_backend, run)
                                              : sizeof vtable,
    .abi = FAKE_PLUGIN == FAKE_OTHER_ABI ? TSR_BACKEND_ABI + 7 : TSR_BACKEND_ABI,
    .name = FAKE_PLUGIN == FAKE_BAD_NAME ? "UPPER" : FAKE_PLUGIN_NAME,
    .device_kind = TSR_DEVICE_HOST,
    .probe = fake_probe,
    .close = fake_close,
    .device_count = fake_device_count,
    .device_info = fake_device_info,
    .kernel_info = fake_kernel_info,
    .supports = fake_supports,
    .plan_create = fake_plan_create,
    .plan_destroy = fake_plan_destroy,
    .run = FAKE_PLUGIN == FAKE_EMPTY_SLOT ? NULL : fake_run,
};

TSR_BACKEND_ENTRY(fake) {
  if (FAKE_PLUGIN == FAKE_OLD && host_abi != TSR_BACKEND_ABI + 1) return NULL;
  return &vtable;
}
#endif
