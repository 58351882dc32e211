// SPDX-License-Identifier: Apache-2.0
//
// Rows of kernels.def as the shared host code sees them. One row is one line of kernels.def and one
// generated file (instance*.cu.in), whose object exports the row as tsri_cuda_row_<name>. A handle of a
// device function is that of a __global__ function; in the emulated build it is a function that takes a
// pointer to the argument struct.
#ifndef TESSERA_BACKENDS_CUDA_KERNELS_H_
#define TESSERA_BACKENDS_CUDA_KERNELS_H_

#include "common/gpu/host/kernels.h"

#endif // TESSERA_BACKENDS_CUDA_KERNELS_H_
