/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether this process may use the tile unit of Intel AMX. Called once per context by backend.c. */
#ifndef TESSERA_CPU_AMX_H_
#define TESSERA_CPU_AMX_H_

#ifdef __cplusplus
extern "C" {
#endif

/* FLOPs of a core and clock: a product of 16 x 32 by 32 x 16 every 16 clocks. */
#define TSRI_CPU_AMX_FLOPS 1024.0

/* NULL if kernels on bfloat16 tiles can run here (the first call asks the system for the tiles'
 * state, which holds for the process), else why not; static text. Any thread. */
const char *tsri_cpu_amx_missing(void);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_CPU_AMX_H_ */
