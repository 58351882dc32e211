// SPDX-License-Identifier: Apache-2.0
// The .npy format, versions 1.0, 2.0 and 3.0: one array, little-endian, C or Fortran order.
//
// A file is the six bytes 93 "NUMPY", two version bytes, a header length (2 bytes in 1.0, else 4),
// a Python dictionary literal {'descr', 'fortran_order', 'shape'}, and the elements. The header is
// parsed by a small strict parser; nothing is evaluated. The file must end with the last element.
#ifndef TESSERA_CLI_NPY_H_
#define TESSERA_CLI_NPY_H_

#include <stdbool.h>
#include <stddef.h>

#include "source.h"
#include "tensor_file.h"

// Longest header accepted. NumPy writes under 200 bytes for plain arrays.
enum { NPY_HEADER_LIMIT = 1 << 20 };

// Reads the whole array. Element types: <f2 <f4 <f8 <i4 <i8 |i1 |u1 |b1, the explicit name
// 'bfloat16', and two-byte void ('<V2', '|V2': how NumPy stores ml_dtypes.bfloat16, without saying
// so) only when `void2_is_bf16`.
bool npy_read(file_tensor *tensor, const byte_source *source, bool void2_is_bf16,
              cli_message *message);

// Formats the preamble and header (a multiple of 64 bytes) of a C-order array into `out`; returns
// its length, or 0 when the dtype has no .npy spelling or `capacity` is too small.
size_t npy_format_header(const file_tensor *tensor, char *out, size_t capacity);

#endif  // TESSERA_CLI_NPY_H_
