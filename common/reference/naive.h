// SPDX-License-Identifier: Apache-2.0
//
// The baseline of the accuracy contract and of every comparison of memory traffic: standard
// attention as three separate passes over whole [B, Hq, Sq, Sk] matrices in the working dtype,
//   S = round(scale Q K^T)    P = round(softmax(S)) in float32    O = round(P V)
// and its gradients with dP and dS materialised and rounded too. Products accumulate in float32, in
// blocks of 128 terms. The working dtype W is Q's, or O's when Q has 8 bits. One matrix serves S
// and P in forward; backward keeps P and dP/dS, and S as well when a softcap needs its derivative.
#ifndef TESSERA_COMMON_REFERENCE_NAIVE_H_
#define TESSERA_COMMON_REFERENCE_NAIVE_H_

#include "reference_call.h"

/* The kernel refuses problems whose matrices are larger than this together. */
#define TSRI_NAIVE_LIMIT ((int64_t)8 << 30)

/* Sizes of the blocks in which products are computed; N is padded to NAIVE_LANES. */
enum { TSRI_NAIVE_BLOCK = 64, TSRI_NAIVE_DEPTH = 128, TSRI_NAIVE_LANES = 8 };

/* The working dtype: F32, F16 or BF16. */
tsr_dtype tsri_naive_dtype(const tsr_resolved *r);
/* Bytes of the materialised matrices of a pass. */
int64_t tsri_naive_matrix_bytes(const tsr_resolved *r, tsr_pass pass);

tsri_ref_memory tsri_naive_forward_memory(const tsr_resolved *r);
extern const tsri_ref_phase tsri_naive_forward_phases[3];

tsri_ref_memory tsri_naive_backward_memory(const tsr_resolved *r);
enum { TSRI_NAIVE_BACKWARD_PHASES = 8 };
extern const tsri_ref_phase tsri_naive_backward_phases[TSRI_NAIVE_BACKWARD_PHASES];

#endif  // TESSERA_COMMON_REFERENCE_NAIVE_H_
