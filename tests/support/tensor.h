// SPDX-License-Identifier: Apache-2.0
//
// Memory for tests. A block's last byte touches an inaccessible page (and an inaccessible page lies
// before it), so an over-read of one byte is a fault. On a device the block lies between canaries
// instead, all NaN when read and looked at after a run, and on the least alignment that was asked for.
// A buffer is a strided tensor in a block, filled with poison first; rows are then written into it and
// read back, every element that belongs to a row is remembered, and what is left must still be poison
// after a run. Sparse buffers reserve address space without memory, for strides past 2^31 elements.
#ifndef TESSERA_TESTS_SUPPORT_TENSOR_H_
#define TESSERA_TESTS_SUPPORT_TENSOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device_memory.h"
#include "tessera/tessera.h"

typedef struct tsr_block {
  unsigned char *data;
  size_t size;
  void *map;
  size_t map_size;
  const tsr_gpu *gpu; /* NULL: host memory */
} tsr_block;

/* size bytes, data a multiple of alignment (a power of two up to a page). The end touches the guard
 * page when size is a multiple of alignment. sparse: pages are zero and cost memory only when
 * touched; else bytes are 0xa5. False when the machine has no room. */
bool tsr_block_create(tsr_block *block, size_t size, size_t alignment, bool sparse);
void tsr_block_destroy(tsr_block *block);

/* The same in memory that a device's kernels may use. On GPUs data can be read and written by the host
 * while the device is idle, its address is no multiple of 2 * alignment (up to 256), and sparse blocks
 * do not exist. False with a reason in tsr_block_reason(). */
bool tsr_block_create_on(tsr_block *block, tsr_device device, size_t size, size_t alignment,
                         bool sparse);

/* Why the calling thread's last block was not made. */
const char *tsr_block_reason(void);

/* Whether the canaries around a device's block are whole; else the offset from data of the first byte
 * that is not. Always true for host memory, whose guard pages need no look. */
bool tsr_block_intact(const tsr_block *block, int64_t *where);

/* How the axes [B, H, S, D] lie in memory. */
typedef enum tsr_pattern {
  TSR_PATTERN_BHSD = 0,
  TSR_PATTERN_BSHD,
  TSR_PATTERN_BHSD_GAPS,   /* rows padded, heads and batches apart */
  TSR_PATTERN_BSHD_GAPS,   /* as one of three tensors interleaved in [B, S, 3, H, D] */
  TSR_PATTERN_SBHD,        /* sequence outermost */
  TSR_PATTERN_TRANSPOSED,  /* [B, H, D, S]: the last stride is not 1 */
  TSR_PATTERN_EVERY_OTHER, /* last stride 2 */
  TSR_PATTERN_HUGE_BATCH,  /* stride past 2^31 elements on that axis: virtual memory */
  TSR_PATTERN_HUGE_HEAD,
  TSR_PATTERN_HUGE_SEQ,
  TSR_PATTERN_WIDE_SEQ,    /* likewise, 2^28 elements and multiples of 16 bytes between rows */
  TSR_PATTERN_SAME_BATCH, /* stride 0: inputs only */
  TSR_PATTERN_SAME_HEAD,
  TSR_PATTERN_SAME_SEQ,
  TSR_PATTERN_SAME_DIM,
  TSR_PATTERN_COUNT
} tsr_pattern;

typedef struct tsr_buffer {
  tsr_dtype dtype;
  int64_t dim[4];
  int64_t stride[4];
  int64_t elements;    /* addressed range: last offset + 1; in bits for BIT */
  bool sparse;
  tsr_layout layout;   /* what the problem is told */
  tsr_block block;
  unsigned char *mark; /* per element, when not sparse: 0 gap, 1 row */
} tsr_buffer;

/* Makes a buffer of dims in a pattern, all poison. packed: axis 0 is absent, its stride 0.
 * alignment 0: only the element's size is promised, and the end touches the guard page. False: no
 * room. dims may be 0. */
bool tsr_buffer_create(tsr_buffer *buffer, tsr_dtype dtype, const int64_t dim[4],
                       tsr_pattern pattern, bool packed, int64_t alignment);
bool tsr_buffer_create_on(tsr_buffer *buffer, tsr_device device, tsr_dtype dtype,
                          const int64_t dim[4], tsr_pattern pattern, bool packed,
                          int64_t alignment);

/* As above with strides given; order STRIDED; host memory. */
bool tsr_buffer_create_strided(tsr_buffer *buffer, tsr_dtype dtype, const int64_t dim[4],
                               const int64_t stride[4], int64_t alignment);
void tsr_buffer_destroy(tsr_buffer *buffer);

/* Pointer for tsr_args: never NULL when the dtype is set. */
void *tsr_buffer_data(const tsr_buffer *buffer);

int64_t tsr_buffer_offset(const tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, int64_t d);

/* Writes or reads dim[3] elements of row (b, h, s); both mark the elements as a row's. For BIT only
 * write is offered, with values 0 and 1. */
void tsr_buffer_write_row(tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, const double *row);
void tsr_buffer_read_row(tsr_buffer *buffer, int64_t b, int64_t h, int64_t s, double *row);

/* Whether every element outside marked rows is still poison; else the first offset that is not.
 * Sparse buffers have poison after the rows written and are not looked at again. */
bool tsr_buffer_gaps_intact(const tsr_buffer *buffer, int64_t *where);

#endif  // TESSERA_TESTS_SUPPORT_TENSOR_H_
