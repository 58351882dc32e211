/* SPDX-License-Identifier: Apache-2.0
 *
 * From which number of keys on the rows of a head need a delta of their own scores, see common/delta.h. */
#ifndef TESSERA_CPU_DELTA_H_
#define TESSERA_CPU_DELTA_H_

#include <stdint.h>

#include "tessera/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of KV head g of sequence b, whose O has 16 bits: rows that see more keys than this. */
float tsri_cpu_delta_most_keys(const tsr_resolved *problem, const tsr_args *args, int64_t b, int64_t g);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_CPU_DELTA_H_
