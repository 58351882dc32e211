// SPDX-License-Identifier: Apache-2.0
//
// Backends under a test's control; see fake_backend.h.
#include "tests/support/fake_backend.h"

#include <stdio.h>
#include <string.h>

fake_backend fake_backends[FAKE_BACKENDS];

typedef struct fake_state {
  fake_backend *fake;
  void *block;
} fake_state;

/* States live here, so that a backend with state_bytes 0 needs no memory at all. */
static fake_state states[FAKE_BACKENDS];

static void say(tsr_reason *reason, const char *text) {
  if (text) snprintf(reason->text, sizeof reason->text, "%s", text);
}

static tsr_status probe_number(int number, const tsr_host *host, void **state, tsr_reason *detail) {
  fake_backend *f = &fake_backends[number];
  ++f->probes;
  f->host = host;
  say(detail, f->probe_text);
  if (f->probe_status != TSR_STATUS_SUCCESS) return f->probe_status;
  states[number].fake = f;
  states[number].block = NULL;
  if (f->state_bytes) {
    states[number].block = host->alloc(host->context, f->state_bytes, 64);
    if (!states[number].block) return TSR_STATUS_OUT_OF_MEMORY;
  }
  *state = &states[number];
  ++f->open;
  return TSR_STATUS_SUCCESS;
}

static tsr_status probe_0(const tsr_host *h, void **s, tsr_reason *d) {
  return probe_number(0, h, s, d);
}
static tsr_status probe_1(const tsr_host *h, void **s, tsr_reason *d) {
  return probe_number(1, h, s, d);
}
static tsr_status probe_2(const tsr_host *h, void **s, tsr_reason *d) {
  return probe_number(2, h, s, d);
}

static void fake_close(void *state) {
  fake_state *s = state;
  ++s->fake->closes;
  --s->fake->open;
  s->fake->host->free(s->fake->host->context, s->block);
  s->block = NULL;
}

static int32_t fake_device_count(void *state) {
  return ((fake_state *)state)->fake->devices;
}

static tsr_status fake_device_info(void *state, int32_t index, tsr_device_info *info,
                                   tsr_reason *reason) {
  const fake_backend *f = ((fake_state *)state)->fake;
  say(reason, f->text);
  snprintf(info->name, sizeof info->name, "%s %d", f->vtable.name, index);
  info->compute_units = 7;
  return f->info_status;
}

static tsr_status fake_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  const fake_backend *f = ((fake_state *)state)->fake;
  if (index >= FAKE_KERNELS || !f->kernels[index].name) return TSR_STATUS_NOT_FOUND;
  info->name = f->kernels[index].name;
  info->pass = f->kernels[index].pass;
  return TSR_STATUS_SUCCESS;
}

static tsr_status fake_supports(void *state, int32_t kernel, const tsr_resolved *problem,
                                tsr_estimate *estimate, tsr_reason *reason) {
  const fake_kernel *k = &((fake_state *)state)->fake->kernels[kernel];
  (void)problem;
  say(reason, k->refusal);
  if (k->refusal) return TSR_STATUS_NOT_SUPPORTED;
  estimate->seconds = k->seconds;
  estimate->workspace = k->workspace;
  estimate->flops = 100;
  estimate->bytes = 200;
  estimate->tile_q = 16;
  estimate->tile_k = 32;
  return TSR_STATUS_SUCCESS;
}

static tsr_status fake_plan_create(void *state, int32_t kernel, const tsr_resolved *problem,
                                   void **plan, tsr_reason *reason) {
  fake_backend *f = ((fake_state *)state)->fake;
  say(reason, f->text);
  if (f->plan_status != TSR_STATUS_SUCCESS) return f->plan_status;
  *plan = NULL;
  if (f->plan_bytes) {
    *plan = f->host->alloc(f->host->context, f->plan_bytes, 64);
    if (!*plan) return TSR_STATUS_OUT_OF_MEMORY;
  }
  f->last_kernel = kernel;
  f->last_problem = *problem;
  ++f->plans;
  ++f->plans_alive;
  return TSR_STATUS_SUCCESS;
}

static void fake_plan_destroy(void *state, void *plan) {
  fake_backend *f = ((fake_state *)state)->fake;
  --f->plans_alive;
  f->host->free(f->host->context, plan);
}

static tsr_status fake_run(void *state, void *plan, const tsr_args *args, tsr_reason *reason) {
  fake_backend *f = ((fake_state *)state)->fake;
  (void)plan;
  ++f->runs;
  f->last_args = *args;
  say(reason, f->text);
  return f->run_status;
}

static tsr_status fake_merge(void *state, int32_t device, const tsr_merge_problem *problem,
                             const void *const *o_parts, const float *const *lse_parts, void *o,
                             float *lse, void *stream, tsr_reason *reason) {
  fake_backend *f = ((fake_state *)state)->fake;
  (void)device, (void)o_parts, (void)lse_parts, (void)o, (void)lse, (void)stream;
  ++f->merges;
  f->last_merge = *problem;
  say(reason, f->text);
  return f->merge_status;
}

static tsr_status fake_mask(void *state, int32_t device, const tsr_dropout_problem *problem,
                            uint8_t *mask, void *stream, tsr_reason *reason) {
  fake_backend *f = ((fake_state *)state)->fake;
  (void)device, (void)mask, (void)stream;
  ++f->masks;
  f->last_mask = *problem;
  say(reason, f->text);
  return f->mask_status;
}

static const tsr_backend *entry_0(uint32_t abi) {
  return abi == TSR_BACKEND_ABI ? &fake_backends[0].vtable : NULL;
}
static const tsr_backend *entry_1(uint32_t abi) {
  return abi == TSR_BACKEND_ABI ? &fake_backends[1].vtable : NULL;
}
static const tsr_backend *entry_2(uint32_t abi) {
  return abi == TSR_BACKEND_ABI ? &fake_backends[2].vtable : NULL;
}

/* Stands in for the table that the build configures (api/src/builtin_backends.c.in): the linker
 * takes this definition and leaves the archive's alone. */
extern const tsr_backend_entry_fn tsri_builtin_backends[];
const tsr_backend_entry_fn tsri_builtin_backends[] = {entry_0, entry_1, entry_2, NULL};

void fake_reset(void) {
  static const char *const names[FAKE_BACKENDS] = {"alpha", "beta", "gamma"};
  tsr_status (*const probes[FAKE_BACKENDS])(const tsr_host *, void **, tsr_reason *) = {
      probe_0, probe_1, probe_2};
  memset(fake_backends, 0, sizeof fake_backends);
  for (int i = 0; i < FAKE_BACKENDS; ++i) {
    fake_backend *f = &fake_backends[i];
    const tsr_backend vtable = {
        sizeof vtable, TSR_BACKEND_ABI,  names[i],          TSR_DEVICE_HOST,  0,
        probes[i],     fake_close,       fake_device_count, fake_device_info, fake_kernel_info,
        fake_supports, fake_plan_create, fake_plan_destroy, fake_run,         fake_merge,
        fake_mask};
    f->vtable = vtable;
    f->devices = 1;
    f->probe_status = i ? TSR_STATUS_NOT_FOUND : TSR_STATUS_SUCCESS;
    f->probe_text = i ? "switched off" : "switched on";
  }
  fake_backends[0].kernels[0] = (fake_kernel){"fwd_alpha", TSR_PASS_FORWARD, 1.0, 0, NULL};
  fake_backends[0].kernels[1] = (fake_kernel){"bwd_alpha", TSR_PASS_BACKWARD, 2.0, 0, NULL};
}

tsr_problem fake_problem(void) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = 3;
  p.seq_k = 5;
  p.dim_qk = 8;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TSR_DTYPE_F32;
  return p;
}

tsr_problem fake_problem_backward(void) {
  tsr_problem p = fake_problem();
  p.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  p.lse.dtype = p.dout.dtype = TSR_DTYPE_F32;
  p.dq.dtype = p.dk.dtype = p.dv.dtype = TSR_DTYPE_F32;
  return p;
}
