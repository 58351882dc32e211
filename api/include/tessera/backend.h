// SPDX-License-Identifier: Apache-2.0
//
// Backend ABI: what a backend, linked in or loaded as a plug-in, offers to the dispatcher. For
// authors of backends; users of the library need only tessera.h. A backend sees problems that are
// already validated and resolved, so it never reports "invalid argument" about shapes, only "not
// supported" with a reason. docs/adding.md walks through a whole backend.
#ifndef TESSERA_BACKEND_H_
#define TESSERA_BACKEND_H_

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of everything in this header. A plug-in built for another number is refused. */
#define TSR_BACKEND_ABI 1u

/* One line of text for the caller: why something was refused or failed. The callee fills it on any
 * status but SUCCESS; always terminated. */
typedef struct tsr_reason {
  char text[256];
} tsr_reason;

/* Features of a problem that a kernel has to honour; a bit is set in tsr_resolved.features when the
 * problem uses it. A kernel that lists what it knows can refuse the rest mechanically. */
typedef enum tsr_feature {
  TSR_FEATURE_CAUSAL = 1 << 0,
  TSR_FEATURE_WINDOW = 1 << 1,
  TSR_FEATURE_PREFIX = 1 << 2,
  TSR_FEATURE_MASK = 1 << 3,
  TSR_FEATURE_BLOCK_MASK = 1 << 4,
  TSR_FEATURE_BIAS = 1 << 5,
  TSR_FEATURE_ALIBI = 1 << 6,
  TSR_FEATURE_SOFTCAP = 1 << 7,
  TSR_FEATURE_SINK = 1 << 8,
  TSR_FEATURE_DROPOUT = 1 << 9,
  TSR_FEATURE_GROUPED_HEADS = 1 << 10,
  TSR_FEATURE_PACKED = 1 << 11,       /* CU_Q or CU_K */
  TSR_FEATURE_USED_LENGTHS = 1 << 12, /* USED_* or LEFT_PAD_* */
  TSR_FEATURE_PAGED = 1 << 13,
  TSR_FEATURE_MAX_LOGIT = 1 << 14,
  TSR_FEATURE_SCALES = 1 << 15, /* q_scale, k_scale or v_scale */
  TSR_FEATURE_DLSE = 1 << 16,
  TSR_FEATURE_DBIAS = 1 << 17,
  TSR_FEATURE_DSINK = 1 << 18,
  TSR_FEATURE_ACCUMULATE = 1 << 19,
  TSR_FEATURE_DETERMINISTIC = 1 << 20,
  TSR_FEATURE_BATCH_INVARIANT = 1 << 21,
  TSR_FEATURE_STRIDED_LAST = 1 << 22 /* the last stride of q, k, v, o or a gradient is not 1 */
} tsr_feature;

/* A valid problem with every default resolved, as one pass sees it: struct_size is this library's,
 * passes is that one pass, tensors and flags that only the other pass uses are absent, dim_v and scale are set,
 * every present tensor has order STRIDED with its strides filled in (where no address needs one, on axes of length 1
 * and in empty tensors, 2^39 at most) and its alignment set, index_dtype is I32 or I64, causal and window are merged
 * into the window (causal: right = min(right, 0); kind NONE only when no diagonal rule is left), seq_q and seq_k are
 * upper bounds of slot sizes, page_table_stride is set. stride[0] of a packed tensor is 0. backend and kernel are
 * NULL. */
typedef struct tsr_resolved {
  tsr_problem p;
  uint32_t features;       /* tsr_feature bits */
  int32_t group;           /* heads_q / heads_kv, 1 when there are no heads */
  uint64_t drop_threshold; /* keep when word >= threshold; 0 .. 2^32 */
  float keep_scale;        /* 1 / (1 - p_drop); 0 when p_drop is 1 */
  uint32_t reserved;
  tsr_device device;
} tsr_resolved;

/* Services of the library for a backend; valid as long as the backend's state lives. */
typedef struct tsr_host {
  size_t struct_size;
  uint32_t abi;
  int32_t threads;         /* worker threads asked for; 0: the backend's default */
  const tsr_runner *runner; /* NULL: the backend's default */
  const char *cpu_target;  /* NULL, or a target that a CPU backend must use */
  void *context;           /* first argument of the calls below */
  void *(*alloc)(void *context, size_t size, size_t alignment); /* NULL when out of memory */
  void (*free)(void *context, void *block);                     /* NULL is allowed */
  void (*log)(void *context, tsr_log_level level, const char *text);
} tsr_host;

/* A kernel's claim on a problem. */
typedef struct tsr_estimate {
  double seconds; /* predicted time: what dispatch ranks by */
  double flops;
  double bytes;
  int64_t tile_q, tile_k; /* 0: whole rows */
  size_t workspace;       /* bytes of one run */
} tsr_estimate;

typedef struct tsr_kernel_info {
  const char *name; /* op_dtype_dTIER_mask__arch_QxK; static */
  tsr_pass pass;
} tsr_kernel_info;

/* The vtable. Slots marked (optional) may be NULL. Every slot may be called from any thread, also
 * concurrently, except probe and close (once each per context). state is what probe returned. */
typedef struct tsr_backend {
  size_t struct_size; /* sizeof(tsr_backend) the backend was built with */
  uint32_t abi;       /* TSR_BACKEND_ABI */
  const char *name;   /* lower case, unique */
  tsr_device_kind device_kind;
  int32_t named_only; /* 1: only used when named */

  /* Looks for drivers and devices. SUCCESS with *state set, or NOT_FOUND with the reason why the
   * backend is absent here, or another failure. INVALID_ARGUMENT with host->cpu_target set: no such
   * target, the context is refused; OUT_OF_MEMORY refuses it too. detail receives what `info`
   * prints. */
  tsr_status (*probe)(const tsr_host *host, void **state, tsr_reason *detail);
  /* Frees the state. */
  void (*close)(void *state);
  /* Number of devices. */
  int32_t (*device_count)(void *state);
  /* Facts of device index, in range. info is zeroed and its struct_size set. */
  tsr_status (*device_info)(void *state, int32_t index, tsr_device_info *info, tsr_reason *reason);
  /* The index-th kernel; NOT_FOUND past the last one. */
  tsr_status (*kernel_info)(void *state, int32_t index, tsr_kernel_info *info);
  /* Whether a kernel takes a problem: SUCCESS with an estimate, or NOT_SUPPORTED with a reason. Must
   * be quick and allocate nothing. */
  tsr_status (*supports)(void *state, int32_t kernel, const tsr_resolved *problem,
                         tsr_estimate *estimate, tsr_reason *reason);
  /* Prepares one pass of a problem that supports() took. The problem stays valid and unchanged
   * until plan_destroy. */
  tsr_status (*plan_create)(void *state, int32_t kernel, const tsr_resolved *problem, void **plan,
                            tsr_reason *reason);
  /* Frees what plan_create made. Work of a run may still be enqueued on a device: device memory it
   * uses is freed in stream order or kept by the state. */
  void (*plan_destroy)(void *state, void *plan);
  /* Runs the pass. Pointers are checked against the problem, and NULL where there is no element (empty tensors and
   * arrays, a workspace of which nothing is needed). workspace is present and large enough on host devices; on
   * others it may be NULL, then the backend allocates. */
  tsr_status (*run)(void *state, void *plan, const tsr_args *args, tsr_reason *reason);
  /* (optional) Merges partial results; layouts are resolved. */
  tsr_status (*merge)(void *state, int32_t device, const tsr_merge_problem *problem,
                      const void *const *o_parts, const float *const *lse_parts, void *o,
                      float *lse, void *stream, tsr_reason *reason);
  /* (optional) Writes the keep mask of dropout; layouts are resolved. */
  tsr_status (*dropout_mask)(void *state, int32_t device, const tsr_dropout_problem *problem,
                             uint8_t *mask, void *stream, tsr_reason *reason);
} tsr_backend;

/* Entry of a backend: returns its vtable, or NULL if it cannot serve a host of that ABI number. A
 * plug-in exports it as tsr_backend_entry; a backend linked in as tsr_backend_entry_<name>. Define it
 * with TSR_BACKEND_ENTRY(name) { return &vtable; } and use host_abi. */
typedef const tsr_backend *(*tsr_backend_entry_fn)(uint32_t host_abi);

#ifdef __cplusplus
#define TSR_BACKEND_LINKAGE extern "C"
#else
#define TSR_BACKEND_LINKAGE extern
#endif
#if defined(TSR_BUILDING_PLUGIN)
#define TSR_BACKEND_ENTRY(name)                                                           \
  TSR_BACKEND_LINKAGE __attribute__((visibility("default"))) const tsr_backend *          \
  tsr_backend_entry(uint32_t host_abi);                                                   \
  const tsr_backend *tsr_backend_entry(uint32_t host_abi)
#else
#define TSR_BACKEND_ENTRY(name)                                                           \
  TSR_BACKEND_LINKAGE const tsr_backend *tsr_backend_entry_##name(uint32_t host_abi);     \
  const tsr_backend *tsr_backend_entry_##name(uint32_t host_abi)
#endif

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_BACKEND_H_
