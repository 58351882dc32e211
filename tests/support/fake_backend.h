// SPDX-License-Identifier: Apache-2.0
//
// Backends whose every answer a test chooses: what probe says, which kernels exist, what they
// claim, what a run returns. They compute nothing; they count calls and keep what they were given.
// Linking this file into an INTERNAL test replaces the library's table of built-in backends by
// these three, named "alpha", "beta" and "gamma"; a backend with probe_status NOT_FOUND (the
// default of beta and gamma) is absent.
#ifndef TESSERA_TESTS_SUPPORT_FAKE_BACKEND_H_
#define TESSERA_TESTS_SUPPORT_FAKE_BACKEND_H_

#include "tessera/backend.h"

enum { FAKE_BACKENDS = 3, FAKE_KERNELS = 6 };

typedef struct fake_kernel {
  const char *name; /* NULL ends the list */
  tsr_pass pass;
  double seconds;
  size_t workspace;
  const char *refusal; /* NULL: takes every problem */
} fake_kernel;

typedef struct fake_backend {
  /* Set by tests before a context is made. */
  tsr_backend vtable; /* name, device_kind and named_only may be changed; slots too */
  tsr_status probe_status;
  const char *probe_text; /* reason or detail */
  int32_t devices;
  fake_kernel kernels[FAKE_KERNELS];
  size_t state_bytes; /* taken from the host's allocator by probe; 0: none */
  size_t plan_bytes;  /* likewise by plan_create */
  tsr_status plan_status, run_status, merge_status, mask_status, info_status;
  const char *text; /* reason of the failures above */

  /* What happened. */
  int probes, closes, open, plans, plans_alive, runs, merges, masks;
  const tsr_host *host;
  int32_t last_kernel;
  tsr_resolved last_problem;
  tsr_args last_args;
  tsr_merge_problem last_merge;
  tsr_dropout_problem last_mask;
} fake_backend;

extern fake_backend fake_backends[FAKE_BACKENDS];

/* Everything back to the start: alpha with one forward and one backward kernel, the others absent.
 */
void fake_reset(void);

/* A valid problem: B 2, Hq 4, Hkv 2, Sq 3, Sk 5, D 8, float32, dense, forward. */
tsr_problem fake_problem(void);
/* The same with a backward pass and every gradient of q, k, v. */
tsr_problem fake_problem_backward(void);

#endif  // TESSERA_TESTS_SUPPORT_FAKE_BACKEND_H_
