/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows of a head may take P and delta from the LSE and O that forward stored, see common/delta.h. */
#ifndef TESSERA_CPU_DELTA_H_
#define TESSERA_CPU_DELTA_H_

#include <stdint.h>

#include "tessera/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of KV head g of sequence b. Of float32 inputs: those whose |LSE| is at most this, none if it is
 * negative; of others: those that see at most so many keys. */
float tsri_cpu_delta_most(const tsr_resolved *problem, const tsr_args *args, int64_t b, int64_t g);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_CPU_DELTA_H_
