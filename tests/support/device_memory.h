// SPDX-License-Identifier: Apache-2.0
//
// What tests and benchmarks need of a GPU besides the library: memory, copies, streams, events, graphs,
// facts. The driver is opened at run time (libcuda.so.1, libamdhip64.so), so nothing links it and its
// absence is a reason in words. Everything runs in the device's primary context, which the vendors'
// runtimes use too.
// Calls that return bool leave one line of text in tsr_gpu_error() of the calling thread when false.
#ifndef TESSERA_TESTS_SUPPORT_DEVICE_MEMORY_H_
#define TESSERA_TESTS_SUPPORT_DEVICE_MEMORY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_gpu tsr_gpu;

/* The device, opened on first use and kept for the process; NULL with a reason. Threads: any. */
const tsr_gpu *tsr_gpu_open(tsr_device device);

/* Text of the last failure on this thread. */
const char *tsr_gpu_error(void);

typedef struct tsr_gpu_facts {
  char name[128];
  char bus[32];     /* PCI address, as other tools of the vendor name the card */
  int32_t driver;   /* CUDA version of the driver: 13000; of HIP as its runtime has it: 60342134 */
  int32_t arch;     /* 90 for compute capability 9.0; HIP: 94 for gfx942 */
  int32_t units;
  int64_t memory_bytes, l2_bytes;
  int32_t clock_khz, memory_clock_khz; /* highest; 0: the driver does not say */
  bool managed; /* shared blocks are managed memory; else page-locked host memory */
} tsr_gpu_facts;

const tsr_gpu_facts *tsr_gpu_describe(const tsr_gpu *gpu);

/* Where a block lies. SHARED: one address that host and device both use, the host only while the
 * device is idle; DEVICE: device memory proper, reached by copies alone. */
typedef enum tsr_gpu_place { TSR_GPU_SHARED = 0, TSR_GPU_DEVICE = 1 } tsr_gpu_place;

bool tsr_gpu_alloc(const tsr_gpu *gpu, tsr_gpu_place place, size_t bytes, void **block);
void tsr_gpu_free(const tsr_gpu *gpu, tsr_gpu_place place, void *block); /* NULL is allowed */

/* Makes the context current on the calling thread; the calls below do so themselves. */
bool tsr_gpu_enter(const tsr_gpu *gpu);
/* Leaves the calling thread without a current context. */
void tsr_gpu_leave(const tsr_gpu *gpu);

/* Waits for everything enqueued; false with the driver's text after a device fault, from then on for
 * ever: the context is lost. */
bool tsr_gpu_synchronize(const tsr_gpu *gpu);

/* Synchronous copies and fill; device pointers may be of either place. */
bool tsr_gpu_to_device(const tsr_gpu *gpu, void *to, const void *from, size_t bytes);
bool tsr_gpu_to_host(const tsr_gpu *gpu, void *to, const void *from, size_t bytes);
bool tsr_gpu_fill(const tsr_gpu *gpu, void *to, unsigned char byte, size_t bytes);
/* Enqueues a copy inside the device. */
bool tsr_gpu_copy(const tsr_gpu *gpu, void *to, const void *from, size_t bytes, void *stream);

/* Streams do not wait for the default stream. */
bool tsr_gpu_stream_create(const tsr_gpu *gpu, void **stream);
bool tsr_gpu_stream_synchronize(const tsr_gpu *gpu, void *stream);
void tsr_gpu_stream_destroy(const tsr_gpu *gpu, void *stream);

bool tsr_gpu_event_create(const tsr_gpu *gpu, void **event);
bool tsr_gpu_event_record(const tsr_gpu *gpu, void *event, void *stream);
/* Waits for end; seconds from begin to it. */
bool tsr_gpu_event_seconds(const tsr_gpu *gpu, void *begin, void *end, double *seconds);
void tsr_gpu_event_destroy(const tsr_gpu *gpu, void *event);

/* Work enqueued on the stream between begin and end becomes a graph that can be launched again. */
bool tsr_gpu_capture_begin(const tsr_gpu *gpu, void *stream);
bool tsr_gpu_capture_end(const tsr_gpu *gpu, void *stream, void **graph);
bool tsr_gpu_graph_launch(const tsr_gpu *gpu, void *graph, void *stream);
void tsr_gpu_graph_destroy(const tsr_gpu *gpu, void *graph);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_DEVICE_MEMORY_H_
