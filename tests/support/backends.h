// SPDX-License-Identifier: Apache-2.0
//
// Which backends and kernels this machine has, through the public API alone, and the runs that every
// comparison starts from: ref64 (the reference on a dense float64 copy) and naive (its materialised
// baseline in the case's dtype).
#ifndef TESSERA_TESTS_SUPPORT_BACKENDS_H_
#define TESSERA_TESTS_SUPPORT_BACKENDS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "setup.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Available backends in registry order, on host memory or on a device that this machine has, also
 * those that are used only when named. Fills names up to capacity, returns how many there are. wanted
 * NULL: all, or those that the environment's TSR_TEST_BACKENDS names (comma-separated); else only that
 * one. */
int32_t tsr_backends_list(tsr_context *context, const char *wanted, const char **names,
                          int32_t capacity);

/* Where a backend's tensors live: host memory, or its device of that ordinal. */
tsr_device tsr_backends_device(tsr_context *context, const char *backend, int32_t ordinal);

/* Name of the i-th kernel of a pass of a backend; NULL past the last one. */
const char *tsr_backends_kernel(tsr_context *context, const char *backend, tsr_pass pass,
                                int32_t i);

/* Makes a plan of setup->problem for setup->device on a backend and kernel (NULL: dispatcher's choice). */
tsr_status tsr_backends_plan(tsr_plan **plan, tsr_context *context, const tsr_setup *setup,
                             const char *backend, const char *kernel);

typedef enum tsr_truth { TSR_TRUTH_REF64 = 0, TSR_TRUTH_NAIVE = 1 } tsr_truth;

/* Runs the reference on the dense form of inputs. dtype is TSR_TRUTH_NAIVE's; ref64 is float64. False
 * with a reason. */
bool tsr_backends_truth(tsr_context *context, const tsr_inputs *in, tsr_truth which,
                        uint32_t passes, tsr_results *results, char *why, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_BACKENDS_H_
