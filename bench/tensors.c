// SPDX-License-Identifier: Apache-2.0
// Dense tensors of a benchmark (see tensors.h).
#define _GNU_SOURCE
#include "tensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "accuracy.h"

size_t bench_dtype_bytes(tsr_dtype dtype) {
  return dtype == TSR_DTYPE_F64 ? 8 : dtype == TSR_DTYPE_F32 ? 4 : 2;
}

const char *bench_dtype_name(tsr_dtype dtype) {
  return dtype == TSR_DTYPE_F64   ? "f64"
         : dtype == TSR_DTYPE_F32 ? "f32"
         : dtype == TSR_DTYPE_F16 ? "f16"
                                  : "bf16";
}

bool bench_tensor_create(bench_tensor *tensor, tsr_dtype dtype, tsr_order order, int64_t b,
                         int64_t h, int64_t s, int64_t d) {
  *tensor = (bench_tensor){.dtype = dtype, .shape = {b, h, s, d}};
  tensor->stride[3] = 1;
  tensor->stride[order == TSR_ORDER_BSHD ? 1 : 2] = d;
  tensor->stride[order == TSR_ORDER_BSHD ? 2 : 1] = order == TSR_ORDER_BSHD ? h * d : s * d;
  int64_t bytes;
  if (__builtin_mul_overflow(b, h, &tensor->count) ||
      __builtin_mul_overflow(tensor->count, s, &tensor->count) ||
      __builtin_mul_overflow(tensor->count, d, &tensor->count) ||
      __builtin_mul_overflow(tensor->count, (int64_t)bench_dtype_bytes(dtype), &bytes) ||
      bytes > INT64_MAX - 4096) {
    return false;
  }
  tensor->stride[0] = h * s * d;
  // Large tensors lie in large pages, as the probe's array does, where the system gives them.
  size_t page = bytes > (int64_t)1 << 22 ? (size_t)1 << 21 : 4096;
  size_t room = ((size_t)bytes + page) / page * page;
  tensor->data = aligned_alloc(page, room);
  if (tensor->data == NULL) return false;
#ifdef MADV_HUGEPAGE
  if (page > 4096) madvise(tensor->data, room, MADV_HUGEPAGE);
#endif
  memset(tensor->data, 0, (size_t)bytes);
  return true;
}

void bench_tensor_destroy(bench_tensor *tensor) {
  free(tensor->data);
  *tensor = (bench_tensor){.dtype = TSR_DTYPE_NONE};
}

static uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= UINT64_C(0xd6e8feb86659fd93);
  x ^= x >> 32;
  x *= UINT64_C(0xd6e8feb86659fd93);
  return x ^ x >> 32;
}

// The sum of four uniform 16-bit numbers, shifted and scaled to mean 0 and variance 1.
static double normal(uint64_t seed, uint64_t stream, uint64_t i) {
  uint64_t bits = mix(mix(mix(seed + UINT64_C(0x9e3779b97f4a7c15)) + stream) + i);
  double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
               (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
  return (sum / 65536.0 - 2.0 + 2.0 / 65536.0) * 1.7320508075688772;
}

void bench_tensor_fill(bench_tensor *tensor, uint64_t seed, uint64_t stream) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < tensor->count; ++i) {
    accuracy_store(tensor->dtype, tensor->data, i, normal(seed, stream, (uint64_t)i));
  }
}

void *bench_tensor_row(const bench_tensor *tensor, int64_t b, int64_t h, int64_t s) {
  int64_t offset = b * tensor->stride[0] + h * tensor->stride[1] + s * tensor->stride[2];
  return (char *)tensor->data + offset * (int64_t)bench_dtype_bytes(tensor->dtype);
}

void bench_tensor_read(const bench_tensor *tensor, int64_t b, int64_t h, int64_t s, int64_t n,
                       double *out) {
  for (int64_t i = 0; i < n; ++i) {
    const void *row = bench_tensor_row(tensor, b, h, s + i);
    for (int64_t d = 0; d < tensor->shape[3]; ++d) {
      *out++ = accuracy_load(tensor->dtype, row, d);
    }
  }
}

tsr_layout bench_tensor_layout(const bench_tensor *tensor) {
  tsr_layout layout = {.dtype = tensor->dtype, .order = TSR_ORDER_STRIDED};
  memcpy(layout.stride, tensor->stride, sizeof layout.stride);
  return layout;
}
