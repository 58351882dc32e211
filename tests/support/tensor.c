// SPDX-License-Identifier: Apache-2.0
//
// See tensor.h. A pattern is a rule from dims to strides; everything else follows from strides.
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS and MAP_NORESERVE */
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "numeric.h"

/* Strides just past what an int32 holds, odd so that a wrapped product lands on no valid row. */
#define HUGE_STRIDE ((int64_t)0x80000000 + 4099)
/* Rows as far apart as 16-byte loads may have them, and sixteen of them past what 32 bits of bytes hold. */
#define WIDE_STRIDE ((int64_t)0x10000000 + 4096)

/* Bytes before and after a device's block; NaN in every float type, -1 as an index. */
enum { CANARY = 0xff, CANARY_BYTES = 4096 };

static _Thread_local char reason[600];

const char *tsr_block_reason(void) { return reason; }

static bool refuse(const char *why) {
  snprintf(reason, sizeof reason, "%s", why);
  return false;
}

bool tsr_block_create(tsr_block *block, size_t size, size_t alignment, bool sparse) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t body;
  unsigned char *map;
  memset(block, 0, sizeof *block);
  if (alignment == 0) alignment = 1;
  if (size > (SIZE_MAX >> 2)) return refuse("no room: the size passes the address space");
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  body = (rounded + page - 1) / page * page;
  map = (unsigned char *)mmap(NULL, body + 2 * page, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return refuse("no room in host memory");
  if (body && mprotect(map + page, body, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, body + 2 * page);
    return refuse("no room in host memory");
  }
  if (body && !sparse) memset(map + page, 0xa5, body);
  block->map = map;
  block->map_size = body + 2 * page;
  block->size = size;
  block->data = map + page + body - rounded;
  return true;
}

/* map: what the driver gave. From a multiple of CANARY_BYTES on: canary, the smallest offset that leaves
 * data with no more alignment than asked for, data, canary. */
static bool create_on_gpu(tsr_block *block, const tsr_gpu *gpu, size_t size, size_t alignment, bool sparse) {
  size_t shift = alignment <= 256 ? alignment : 0;
  size_t total = 3 * (size_t)CANARY_BYTES + shift + size;
  unsigned char *begin;
  if (!tsr_gpu_alloc(gpu, TSR_GPU_SHARED, total, &block->map)) return refuse(tsr_gpu_error());
  block->map_size = total;
  block->gpu = gpu;
  block->size = size;
  begin = (unsigned char *)block->map;
  begin += (CANARY_BYTES - (uintptr_t)begin % CANARY_BYTES) % CANARY_BYTES;
  block->data = begin + CANARY_BYTES + shift;
  begin = (unsigned char *)block->map;
  memset(begin, CANARY, (size_t)(block->data - begin));
  memset(block->data + size, CANARY, (size_t)(begin + total - block->data) - size);
  if (!sparse) memset(block->data, 0xa5, size);
  return true;
}

bool tsr_block_create_on(tsr_block *block, tsr_device device, size_t size, size_t alignment,
                         bool sparse) {
  const tsr_gpu *gpu;
  if (device.kind == TSR_DEVICE_HOST) return tsr_block_create(block, size, alignment, sparse);
  memset(block, 0, sizeof *block);
  if (alignment == 0) alignment = 1;
  /* A device whose memory is the host's may have it: its test says so. */
  if (sparse && !getenv("TSR_TEST_SPARSE_DEVICES"))
    return refuse("address space without memory behind it does not exist on this device");
  if (size > (SIZE_MAX >> 2)) return refuse("no room: the size passes the address space");
  gpu = tsr_gpu_open(device);
  if (!gpu) return refuse(tsr_gpu_error());
  return create_on_gpu(block, gpu, size, alignment, sparse);
}

void tsr_block_destroy(tsr_block *block) {
  if (block->gpu)
    tsr_gpu_free(block->gpu, TSR_GPU_SHARED, block->map);
  else if (block->map)
    munmap(block->map, block->map_size);
  memset(block, 0, sizeof *block);
}

bool tsr_block_intact(const tsr_block *block, int64_t *where) {
  const unsigned char *at = (const unsigned char *)block->map;
  const unsigned char *end;
  if (!block->gpu) return true;
  for (end = at + block->map_size; at < end; ++at) {
    if (at == block->data) at += block->size;
    if (at == end || *at == CANARY) continue;
    if (where) *where = (int64_t)(at - block->data);
    return false;
  }
  return true;
}

static int64_t multiple_of_8(int64_t n) { return (n + 7) / 8 * 8; }

/* Strides of a pattern; returns whether the block must be sparse. Rows of BIT start on bytes. */
static bool pattern_strides(tsr_pattern pattern, const int64_t dim[4], bool bits,
                            int64_t stride[4]) {
  int64_t H = dim[1], S = dim[2], D = bits ? multiple_of_8(dim[3]) : dim[3];
  int64_t step = bits ? 8 : 1;
  stride[3] = 1;
  switch (pattern) {
    case TSR_PATTERN_BSHD:
      stride[1] = D, stride[2] = H * D, stride[0] = S * H * D;
      return false;
    case TSR_PATTERN_BHSD_GAPS:
      stride[2] = D + 3 * step, stride[1] = S * stride[2] + 5 * step;
      stride[0] = H * stride[1] + 7 * step;
      return false;
    case TSR_PATTERN_BSHD_GAPS:
      stride[1] = D, stride[2] = 3 * H * D, stride[0] = S * stride[2];
      return false;
    case TSR_PATTERN_SBHD:
      stride[1] = D, stride[0] = H * D, stride[2] = dim[0] * H * D;
      return false;
    case TSR_PATTERN_TRANSPOSED:
      stride[2] = step, stride[3] = bits ? 1 : S + 1;
      if (bits) stride[2] = D;
      stride[1] = bits ? S * D : D * stride[3], stride[0] = H * stride[1];
      return false;
    case TSR_PATTERN_EVERY_OTHER:
      stride[3] = bits ? 1 : 2, stride[2] = 2 * D, stride[1] = S * stride[2];
      stride[0] = H * stride[1];
      return false;
    case TSR_PATTERN_HUGE_BATCH:
      stride[2] = D, stride[1] = S * D, stride[0] = HUGE_STRIDE * step;
      return true;
    case TSR_PATTERN_HUGE_HEAD:
      stride[2] = D, stride[0] = S * D, stride[1] = HUGE_STRIDE * step;
      return true;
    case TSR_PATTERN_HUGE_SEQ:
      stride[0] = H * D, stride[1] = D, stride[2] = HUGE_STRIDE * step;
      return true;
    case TSR_PATTERN_WIDE_SEQ:
      stride[0] = H * D, stride[1] = D, stride[2] = WIDE_STRIDE * step;
      return true;
    case TSR_PATTERN_SAME_BATCH:
      stride[2] = D, stride[1] = S * D, stride[0] = 0;
      return false;
    case TSR_PATTERN_SAME_HEAD:
      stride[2] = D, stride[1] = 0, stride[0] = S * D;
      return false;
    case TSR_PATTERN_SAME_SEQ:
      stride[2] = 0, stride[1] = D, stride[0] = H * D;
      return false;
    case TSR_PATTERN_SAME_DIM:
      stride[3] = 0, stride[2] = step, stride[1] = S * step, stride[0] = H * stride[1];
      return false;
    default:
      stride[2] = D, stride[1] = S * D, stride[0] = H * S * D;
      return false;
  }
}

static bool buffer_finish(tsr_buffer *buffer, tsr_device device, int64_t alignment) {
  int64_t last = 0, i;
  bool empty = false, bits = buffer->dtype == TSR_DTYPE_BIT;
  int64_t bytes = bits ? 1 : tsr_test_dtype_bytes(buffer->dtype);
  for (i = 0; i < 4; ++i) {
    if (buffer->dim[i] == 0) empty = true;
    last += (buffer->dim[i] - 1) * buffer->stride[i];
  }
  buffer->elements = empty ? 0 : last + 1;
  int64_t units = bits ? (buffer->elements + 7) / 8 : buffer->elements;
  size_t align = alignment ? (size_t)alignment : (size_t)bytes;
  if (!tsr_block_create_on(&buffer->block, device, (size_t)(units * bytes), align, buffer->sparse))
    return false;
  buffer->layout.dtype = buffer->dtype;
  buffer->layout.alignment = alignment;
  if (buffer->sparse) return true;
  for (i = 0; i < units; ++i) tsr_test_poison(buffer->dtype, buffer->block.data, i);
  buffer->mark = (unsigned char *)calloc((size_t)buffer->elements + 1, 1);
  if (!buffer->mark) tsr_block_destroy(&buffer->block);
  return buffer->mark != NULL;
}

static const tsr_device host = {TSR_DEVICE_HOST, 0};

bool tsr_buffer_create(tsr_buffer *buffer, tsr_dtype dtype, const int64_t dim[4],
                       tsr_pattern pattern, bool packed, int64_t alignment) {
  return tsr_buffer_create_on(buffer, host, dtype, dim, pattern, packed, alignment);
}

bool tsr_buffer_create_on(tsr_buffer *buffer, tsr_device device, tsr_dtype dtype,
                          const int64_t dim[4], tsr_pattern pattern, bool packed,
                          int64_t alignment) {
  memset(buffer, 0, sizeof *buffer);
  buffer->dtype = dtype;
  memcpy(buffer->dim, dim, sizeof buffer->dim);
  if (packed && pattern == TSR_PATTERN_HUGE_BATCH) pattern = TSR_PATTERN_BHSD; /* nothing is huge then */
  buffer->sparse = pattern_strides(pattern, dim, dtype == TSR_DTYPE_BIT, buffer->stride);
  if (packed) buffer->stride[0] = 0;
  /* The dense orders mean unpadded rows, which a row of bits need not be. */
  bool dense = pattern <= TSR_PATTERN_BSHD && !(dtype == TSR_DTYPE_BIT && dim[3] % 8 != 0);
  buffer->layout.order = dense ? (tsr_order)pattern : TSR_ORDER_STRIDED;
  if (!dense) memcpy(buffer->layout.stride, buffer->stride, sizeof buffer->stride);
  return buffer_finish(buffer, device, alignment);
}

bool tsr_buffer_create_strided(tsr_buffer *buffer, tsr_dtype dtype, const int64_t dim[4],
                               const int64_t stride[4], int64_t alignment) {
  memset(buffer, 0, sizeof *buffer);
  buffer->dtype = dtype;
  memcpy(buffer->dim, dim, sizeof buffer->dim);
  memcpy(buffer->stride, stride, sizeof buffer->stride);
  memcpy(buffer->layout.stride, stride, sizeof buffer->stride);
  buffer->layout.order = TSR_ORDER_STRIDED;
  return buffer_finish(buffer, host, alignment);
}

void tsr_buffer_destroy(tsr_buffer *buffer) {
  free(buffer->mark);
  tsr_block_destroy(&buffer->block);
  memset(buffer, 0, sizeof *buffer);
}

void *tsr_buffer_data(const tsr_buffer *buffer) { return buffer->block.data; }

int64_t tsr_buffer_offset(const tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, int64_t d) {
  return b * buffer->stride[0] + h * buffer->stride[1] + s * buffer->stride[2] +
         d * buffer->stride[3];
}

void tsr_buffer_write_row(tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, const double *row) {
  int64_t d, offset = tsr_buffer_offset(buffer, b, h, s, 0);
  for (d = 0; d < buffer->dim[3]; ++d, offset += buffer->stride[3]) {
    if (buffer->dtype == TSR_DTYPE_BIT) {
      unsigned char *byte = buffer->block.data + offset / 8, bit = (unsigned char)(1 << offset % 8);
      *byte = (unsigned char)(row[d] != 0 ? *byte | bit : *byte & ~bit);
    } else {
      tsr_test_store(buffer->dtype, buffer->block.data, offset, row[d]);
    }
    if (buffer->mark) buffer->mark[offset] = 1;
  }
  if (!buffer->sparse || buffer->dim[3] == 0) return;
  int64_t unit = buffer->dtype == TSR_DTYPE_BIT ? 8 : 1; /* elements that are poisoned together */
  int64_t end = offset - buffer->stride[3] + 1; /* a broadcast axis does not move offset */
  int64_t first = (end + unit - 1) / unit;
  for (d = first; d < first + 64 && (d + 1) * unit <= buffer->elements; ++d)
    tsr_test_poison(buffer->dtype, buffer->block.data, d);
}

void tsr_buffer_read_row(tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, double *row) {
  int64_t d, offset = tsr_buffer_offset(buffer, b, h, s, 0);
  for (d = 0; d < buffer->dim[3]; ++d, offset += buffer->stride[3]) {
    row[d] = tsr_test_load(buffer->dtype, buffer->block.data, offset);
    if (buffer->mark) buffer->mark[offset] = 1;
  }
}

bool tsr_buffer_gaps_intact(const tsr_buffer *buffer, int64_t *where) {
  int64_t i;
  if (!buffer->mark) return true;
  for (i = 0; i < buffer->elements; ++i) {
    if (buffer->mark[i] || tsr_test_is_poison(buffer->dtype, buffer->block.data, i)) continue;
    if (where) *where = i;
    return false;
  }
  return true;
}
