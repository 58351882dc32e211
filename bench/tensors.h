// SPDX-License-Identifier: Apache-2.0
// Memory of one benchmark: dense tensors filled from a counter-based random source, and the strides
// that views of them (one head, some rows) are given to the oracle with.
#ifndef TESSERA_BENCH_TENSORS_H_
#define TESSERA_BENCH_TENSORS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera.h>

typedef struct bench_tensor {
  tsr_dtype dtype;
  int64_t shape[4];  // B, H, S, D
  int64_t stride[4];
  int64_t count;
  void *data;  // 64-byte aligned; NULL: absent
} bench_tensor;

// Dense memory in BHSD or BSHD order. False when memory does not suffice.
bool bench_tensor_create(bench_tensor *tensor, tsr_dtype dtype, tsr_order order, int64_t b,
                         int64_t h, int64_t s, int64_t d);
void bench_tensor_destroy(bench_tensor *tensor);

// Values of about a standard normal distribution; the same for one seed and stream on any machine.
void bench_tensor_fill(bench_tensor *tensor, uint64_t seed, uint64_t stream);

size_t bench_dtype_bytes(tsr_dtype dtype);
const char *bench_dtype_name(tsr_dtype dtype);  // "f32"

// Address of row (b, h, s).
void *bench_tensor_row(const bench_tensor *tensor, int64_t b, int64_t h, int64_t s);
// Rows [s, s + n) of head (b, h) as doubles, n * D values.
void bench_tensor_read(const bench_tensor *tensor, int64_t b, int64_t h, int64_t s, int64_t n,
                       double *out);
// A layout that addresses the tensor's memory by its strides.
tsr_layout bench_tensor_layout(const bench_tensor *tensor);

#endif  // TESSERA_BENCH_TENSORS_H_
