// SPDX-License-Identifier: Apache-2.0
//
// Out of memory at every allocation: through the allocator hook, the n-th request fails (alone, then
// with all that follow). Whatever fails says OUT_OF_MEMORY, nothing is kept, and the same calls succeed
// afterwards.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

typedef struct heap {
  int64_t live, calls;
  int64_t fail_at; /* index of the request that fails; -1: none */
  bool for_ever;   /* and all after it */
} heap;

static void *heap_alloc(void *user, size_t size, size_t alignment) {
  heap *h = (heap *)user;
  void *block;
  int64_t n = __atomic_fetch_add(&h->calls, 1, __ATOMIC_RELAXED);
  if (h->fail_at >= 0 && (n == h->fail_at || (h->for_ever && n > h->fail_at))) return NULL;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  block = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment + alignment);
  if (block) __atomic_fetch_add(&h->live, 1, __ATOMIC_RELAXED);
  return block;
}

static void heap_free(void *user, void *block) {
  heap *h = (heap *)user;
  cr_assert_not_null(block);
  __atomic_fetch_sub(&h->live, 1, __ATOMIC_RELAXED);
  free(block);
}

/* A run where the library must find its own workspace. */
static tsr_status run_without_workspace(tsr_context *context, const tsr_setup *setup,
                                        const char *backend) {
  tsr_plan *plan = NULL;
  tsr_args args = setup->args;
  tsr_status status = tsr_backends_plan(&plan, context, setup, backend, NULL);
  if (status != TSR_STATUS_SUCCESS) {
    cr_assert_null(plan);
    return status;
  }
  args.workspace = NULL, args.workspace_size = 0;
  args.dout = NULL, args.dlse = NULL, args.dsink = NULL;
  args.dq = args.dk = args.dv = args.dbias = NULL;
  status = tsr_forward(plan, &args);
  if (status == TSR_STATUS_SUCCESS && setup->passes & TSR_PASS_BACKWARD) {
    args = setup->args;
    args.workspace = NULL, args.workspace_size = 0, args.max_logit = NULL;
    status = tsr_backward(plan, &args);
  }
  tsr_plan_destroy(plan);
  return status;
}

/* What the calls beside runs work on. */
typedef struct small {
  uint8_t mask[64];
  float o, lse, merged, merged_lse;
} small;

static tsr_status everything(heap *h, tsr_setup *setup, const char *backend, small *memory) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  tsr_status status;
  /* Merge and dropout mask are this backend's too; the reference takes them only when it is named. */
  options.backend = backend;
  options.allocator.user = h;
  options.allocator.alloc = heap_alloc;
  options.allocator.free = heap_free;
  status = tsr_context_create(&context, &options);
  if (status != TSR_STATUS_SUCCESS) {
    cr_assert_null(context);
    return status;
  }
  status = run_without_workspace(context, setup, backend);
  if (status == TSR_STATUS_SUCCESS) {
    tsr_dropout_problem d = {sizeof d};
    d.batch = d.heads = 1, d.seq_q = d.seq_k = 8, d.dropout = 0.5f;
    d.mask.dtype = TSR_DTYPE_U8;
    status = tsr_dropout_mask(context, setup->device, &d, memory->mask, NULL);
  }
  if (status == TSR_STATUS_SUCCESS) {
    tsr_merge_problem m = {sizeof m};
    const void *parts[2] = {&memory->o, &memory->o};
    const float *lses[2] = {&memory->lse, &memory->lse};
    m.parts = 2, m.batch = m.heads = m.seq = m.dim_v = 1;
    m.o_part.dtype = m.lse_part.dtype = m.o.dtype = m.lse.dtype = TSR_DTYPE_F32;
    status = tsr_merge(context, setup->device, &m, parts, lses, &memory->merged,
                       &memory->merged_lse, NULL);
  }
  if (status == TSR_STATUS_SUCCESS) status = tsr_setup_settle(setup);
  tsr_context_destroy(context);
  return status;
}

static void inject(const char *name, const char *backend, uint32_t passes) {
  const tsr_case *row = tsr_case_find(name);
  heap clean = {0, 0, -1, false};
  char why[256];
  tsr_inputs in;
  tsr_setup setup;
  tsr_status status;
  tsr_block block;
  small *memory;
  int64_t n, failed = 0;
  int mode;
  const tsr_device device = tsr_backends_device(NULL, backend, 0);
  cr_assert(tsr_inputs_create(&in, row, TSR_DTYPE_F32));
  cr_assert(tsr_setup_create_on(&setup, device, &in, row, TSR_DTYPE_F32, passes, why, sizeof why));
  cr_assert(tsr_block_create_on(&block, device, sizeof *memory, 64, false), "%s",
            tsr_block_reason());
  memory = (small *)(void *)block.data;
  memory->o = 1, memory->lse = 2;
  status = everything(&clean, &setup, backend, memory);
  if (status == TSR_STATUS_NOT_SUPPORTED) {
    cr_assert(!conform_required(backend, passes & TSR_PASS_BACKWARD ? TSR_PASS_BACKWARD
                                                                    : TSR_PASS_FORWARD,
                                row->group, TSR_DTYPE_F32));
  } else {
    cr_assert_eq(status, TSR_STATUS_SUCCESS, "%s: %s", backend, tsr_setup_message(&setup));
    cr_assert_eq(clean.live, 0);
    cr_assert_gt(clean.calls, 2);
    for (mode = 0; mode < 2; ++mode)
      for (n = 0; n < clean.calls; ++n) {
        heap h = {0, 0, n, mode == 1};
        status = everything(&h, &setup, backend, memory);
        cr_assert_eq(h.live, 0, "%s %s: %lld blocks kept after request %lld failed", backend, name,
                     (long long)h.live, (long long)n);
        if (status == TSR_STATUS_SUCCESS) continue; /* it can do without: fine */
        failed++;
        cr_assert_eq(status, TSR_STATUS_OUT_OF_MEMORY, "%s %s: request %lld: %s: %s", backend, name,
                     (long long)n, tsr_status_string(status), tsr_last_message());
      }
    cr_assert_gt(failed, 0);
  }
  tsr_block_destroy(&block);
  tsr_setup_destroy(&setup);
  tsr_inputs_destroy(&in);
}

Test(oom, every_allocation) {
  static const char *const cases[] = {"square_64", "packed_features", "paged_features",
                                      "gqa_decode", "dropout"};
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  size_t c;
  for (n = 0; n < count; ++n)
    for (c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
      inject(cases[c], names[n], TSR_PASS_FORWARD);
      inject(cases[c], names[n], TSR_PASS_FORWARD | TSR_PASS_BACKWARD);
    }
}

/* Plans are the library's only memory between calls: many of them come and go without a trace. */
Test(oom, plans_leave_nothing) {
  heap h = {0, 0, -1, false};
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  const tsr_case *row = tsr_case_find("square_64");
  char why[256];
  tsr_inputs in;
  tsr_setup setup;
  int64_t before;
  int i;
  options.allocator.user = &h;
  options.allocator.alloc = heap_alloc;
  options.allocator.free = heap_free;
  cr_assert_eq(tsr_context_create(&context, &options), 0);
  cr_assert(tsr_inputs_create(&in, row, TSR_DTYPE_F32));
  cr_assert(tsr_setup_create(&setup, &in, row, TSR_DTYPE_F32, 1, why, sizeof why));
  before = h.live;
  for (i = 0; i < 100; ++i) {
    tsr_plan *plan = NULL;
    cr_assert_eq(tsr_backends_plan(&plan, context, &setup, "reference", NULL), 0);
    cr_assert_gt(h.live, before);
    tsr_plan_destroy(plan);
    cr_assert_eq(h.live, before);
  }
  tsr_context_destroy(context);
  cr_assert_eq(h.live, 0);
  tsr_setup_destroy(&setup);
  tsr_inputs_destroy(&in);
}
