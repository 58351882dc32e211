// SPDX-License-Identifier: Apache-2.0
//
// Tessera: exact attention, forward and backward, on CPUs and GPUs behind one C API.
//
// This header is the manual. Read it from the top and stop when you know enough:
//   1. the mathematics         4. context and devices      7. running
//   2. version and status      5. tensors                  8. merging, dropout masks
//   3. the one-call form       6. problem and plan
// It is one file, longer than others in this tree, so that it can be read top to bottom.
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"
#include "tessera/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ===============================================================================================
 * 1. The mathematics
 *
 * For batch b, query head h, query i, key j; KV head g = h / (heads_q / heads_kv); Sq and Sk are the
 * lengths of sequence b (they differ per sequence when lengths are variable):
 *
 *   1.  s  = scale * dot(Q[b,h,i,:], K[b,g,j,:])
 *   2.  s  = softcap * tanh(s / softcap)                        when softcap > 0
 *   3.  s += bias[b,h,i,j];   s -= slope[b,h] * |i + Sk - Sq - j|
 *   4.  keep j only if it is allowed (causal, window, prefix, mask tensors, lengths)
 *   5.  m = max s,  l = sum exp(s - m) [+ exp(sink[h] - m)],  p = exp(s - m) / l,  LSE = m + ln l
 *   6.  p = keep(b,h,i,j) ? p / (1 - p_drop) : 0                when p_drop > 0
 *   7.  O[b,h,i,:] = sum_j p[j] * V[b,g,j,:]
 *
 * The result is exact: tiles are joined by the online softmax (Milakov and Gimelshein 2018; Dao et
 * al. 2022, "FlashAttention", algorithm 1), and the Sq x Sk matrices never exist in slow memory.
 *
 * Gradients (Dao et al. 2022, appendix B). With D = rowsum(dO * O) - dLSE:
 *   dV += p^T dO;  dP = keep ? (dO V^T) / (1 - p_drop) : 0;  dS = p * (dP - D)
 *   dBias = dS summed over broadcast dimensions;  dsink[h] = -sum p_sink * D;
 *   dQ = scale * (dS through the softcap) K;  dK = scale * (dS through the softcap)^T Q
 * where p_sink = exp(sink - LSE), and query heads of a group add into their shared KV head.
 *
 * Rules that hold on every backend:
 *  - A row with no allowed key (also Sk = 0, or only -inf scores and no sink): O = 0, LSE = -inf,
 *    row maximum = -inf, gradients 0. With a sink: O = 0, LSE = sink. Never NaN.
 *  - B = 0, Sq = 0 are valid and do nothing beyond writing what gradients of zero require.
 *  - LSE uses the natural logarithm, is float32, includes the sink, and is taken before dropout.
 *  - Memory beyond a sequence's end, before its left padding, in a page that no sequence refers to,
 *    or in a gap between strides may hold anything (NaN too): it is never read into a result. Keys
 *    inside a sequence that a mask hides must be finite; likewise, a row of Q or dO that is not
 *    finite may reach the gradients of keys that a mask hides from it. NaN and infinities in
 *    allowed elements propagate as IEEE arithmetic says.
 *  - Rows of O, LSE and the gradients that lie in a sequence's slot but outside its used part are
 *    written as zero (LSE and row maximum: -inf). Rows that belong to no slot are not touched.
 *  - Softmax state and sums are float32 or wider, whatever the dtype of the tensors.
 *
 * Thread rules: a context and a plan are immutable once created and may be shared by any number of
 * threads; two runs may overlap if their outputs and workspaces do not. Nothing here prints, exits,
 * aborts or throws on bad input.
 * =============================================================================================*/

/* Initialisers: `tsr_problem p = TSR_PROBLEM_INIT;` is all zero with struct_size set. */
#ifdef __cplusplus
}
template <class T>
inline T tsr_initialised() {
  T value = T();
  value.struct_size = sizeof(T);
  return value;
}
extern "C" {
#define TSR_INIT(type) tsr_initialised<type>()
#else
#define TSR_INIT(type) {.struct_size = sizeof(type)}
#endif
#define TSR_CONTEXT_OPTIONS_INIT TSR_INIT(tsr_context_options)
#define TSR_BACKEND_INFO_INIT TSR_INIT(tsr_backend_info)
#define TSR_DEVICE_INFO_INIT TSR_INIT(tsr_device_info)
#define TSR_PROBLEM_INIT TSR_INIT(tsr_problem)
#define TSR_PLAN_INFO_INIT TSR_INIT(tsr_plan_info)
#define TSR_ARGS_INIT TSR_INIT(tsr_args)
#define TSR_MERGE_PROBLEM_INIT TSR_INIT(tsr_merge_problem)
#define TSR_DROPOUT_PROBLEM_INIT TSR_INIT(tsr_dropout_problem)

/* ===============================================================================================
 * 2. Version and status
 * =============================================================================================*/

/* Version of the library that is linked, as TSR_VERSION_NUMBER encodes it (major * 10000 + minor *
 * 100 + patch). Compare with the macro to detect a header and library that differ.
 * Threads: any. Since: 0.1. */
TSR_API uint32_t tsr_version(void);

/* "major.minor.patch". Ownership: static. Threads: any. Since: 0.1. */
TSR_API const char *tsr_version_string(void);

/* Result of every call that can fail. Values are pinned for ever; new ones may be added. */
typedef enum tsr_status {
  TSR_STATUS_SUCCESS = 0,
  TSR_STATUS_INVALID_ARGUMENT = 1, /* wrong for every backend; the message names the field */
  TSR_STATUS_NOT_SUPPORTED = 2,    /* valid, but no legal kernel takes it; the message lists why */
  TSR_STATUS_OUT_OF_MEMORY = 3,    /* host or device allocation failed; nothing was kept */
  TSR_STATUS_DEVICE_ERROR = 4,     /* the driver reported an error; the message quotes it */
  TSR_STATUS_NOT_FOUND = 5,        /* a backend, kernel, target or device named does not exist here */
  TSR_STATUS_ABI_MISMATCH = 6,     /* a plug-in was built for another backend ABI */
  TSR_STATUS_INTERNAL = 7          /* a broken promise inside the library: please report it */
} tsr_status;

/* Short fixed text of a status ("invalid argument"); "unknown status" for other values.
 * Ownership: static. Threads: any. Since: 0.1. */
TSR_API const char *tsr_status_string(tsr_status status);

/* One line about the last failure on the calling thread: the field, the value found and the values
 * accepted. Empty when nothing failed yet. A successful call does not clear it.
 * Ownership: the library's; valid until the next failing call on the same thread. Since: 0.1. */
TSR_API const char *tsr_last_message(void);

/* ===============================================================================================
 * 3. Element types, and the one-call form
 * =============================================================================================*/

typedef enum tsr_dtype {
  TSR_DTYPE_NONE = 0, /* the tensor is absent */
  TSR_DTYPE_F32 = 1,
  TSR_DTYPE_F16 = 2,
  TSR_DTYPE_BF16 = 3,
  TSR_DTYPE_F64 = 4,     /* reference backend only */
  TSR_DTYPE_F8_E4M3 = 5, /* OCP FP8: no infinities, maximum 448; needs scales */
  TSR_DTYPE_F8_E5M2 = 6, /* OCP FP8: IEEE-like, maximum 57344; needs scales */
  TSR_DTYPE_I8 = 7,      /* symmetric int8, value = scale * q; needs scales */
  TSR_DTYPE_U8 = 16,     /* boolean byte of a mask: non-zero = allowed */
  TSR_DTYPE_BIT = 17,    /* packed boolean: element e is bit e % 8 of byte e / 8, 1 = allowed */
  TSR_DTYPE_I32 = 32,
  TSR_DTYPE_I64 = 33
} tsr_dtype;

/* Which corner of the score matrix the causal diagonal runs into. With d the diagonal's offset, key
 * j is allowed for query i when j <= i + d:   TOP_LEFT d = 0;   BOTTOM_RIGHT d = Sk - Sq of that
 * sequence;   EXPLICIT d = tsr_problem.diagonal, or tsr_args.diagonal[b] per sequence. */
typedef enum tsr_causal {
  TSR_CAUSAL_NONE = 0,
  TSR_CAUSAL_TOP_LEFT = 1,
  TSR_CAUSAL_BOTTOM_RIGHT = 2,
  TSR_CAUSAL_EXPLICIT = 3
} tsr_causal;

typedef struct tsr_context tsr_context; /* options, backends and devices found; section 4 */
typedef struct tsr_plan tsr_plan;       /* a problem with its kernels chosen; section 6 */

/* Where memory lives. A zero-initialised value is host memory. */
typedef enum tsr_device_kind {
  TSR_DEVICE_HOST = 0,
  TSR_DEVICE_CUDA = 1,
  TSR_DEVICE_HIP = 2
} tsr_device_kind;

typedef struct tsr_device {
  tsr_device_kind kind;
  int32_t index; /* ordinal among devices of that kind, from 0; host: 0 */
} tsr_device;

/* A tensor as one value: pointer, dtype, shape [B, H, S, D], strides in elements. */
typedef struct tsr_tensor {
  void *data;
  tsr_dtype dtype;
  int32_t reserved; /* must be 0 */
  int64_t shape[4];
  int64_t stride[4];
} tsr_tensor;

/* Exact attention in one call: O = softmax(scale * Q K^T + causal mask) V.
 *
 * context  NULL: a process-wide context with default options, made on first use.
 * device   where all tensors live; zero-initialised: host memory.
 * q        [B, Hq, Sq, Dqk]  float32, float16 or bfloat16 (float64 on the reference backend)
 * k        [B, Hkv, Sk, Dqk] same dtype as q, Hq a multiple of Hkv
 * v        [B, Hkv, Sk, Dv]  same dtype as q
 * o        [B, Hq, Sq, Dv]   q's dtype or float32; written
 * lse      NULL, or [B, Hq, Sq, 1] float32; written (natural log)
 * scale    0 selects 1 / sqrt(Dqk)
 * stream   device stream as an opaque pointer; NULL: the default stream. Ignored by no backend: host
 *          devices require NULL.
 * Returns: SUCCESS, or as tsr_plan_create and tsr_forward. Ownership: tensors stay the caller's.
 * Threads: any. Async: on GPUs the call returns after enqueueing. Since: 0.1. */
TSR_API tsr_status tsr_attention(tsr_context *context, tsr_device device, const tsr_tensor *q,
                                 const tsr_tensor *k, const tsr_tensor *v, const tsr_tensor *o,
                                 const tsr_tensor *lse, tsr_causal causal, float scale,
                                 void *stream);

/* ===============================================================================================
 * 4. Context and devices
 * =============================================================================================*/

/* Host memory of the library's own. alloc returns a block of at least size bytes aligned to
 * alignment (a power of two, at most 4096) or NULL; free gets exactly what alloc returned, never
 * NULL. Both may be called from any thread, also concurrently. Set both or neither. */
typedef struct tsr_allocator {
  void *user;
  void *(*alloc)(void *user, size_t size, size_t alignment);
  void (*free)(void *user, void *block);
} tsr_allocator;

/* Threads of the caller's own. run must call task(arg, index, worker) once for every index in
 * [0, count), with worker in [0, threads) and never the same worker twice at once, and return after
 * all have returned; it returns 0, or non-zero if it could not run them (the call then fails with
 * TSR_STATUS_INTERNAL). It may be called from several threads at once if plans are run so. */
typedef struct tsr_runner {
  void *user;
  int32_t threads; /* at least 1 */
  int (*run)(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
             int64_t count);
} tsr_runner;

typedef enum tsr_log_level { TSR_LOG_ERROR = 1, TSR_LOG_INFO = 2, TSR_LOG_PLAN = 3 } tsr_log_level;

/* Receives one line without a newline. May be called from any thread. Text is valid during the call. */
typedef void (*tsr_log_fn)(void *user, tsr_log_level level, const char *text);

typedef struct tsr_context_options {
  size_t struct_size;      /* sizeof(tsr_context_options) */
  tsr_allocator allocator; /* zero: aligned malloc */
  tsr_runner runner;       /* zero: OpenMP, or the calling thread alone inside a parallel region */
  int32_t threads;         /* 0: the runtime's default; must be 0 when a runner is given */
  int32_t reserved;        /* must be 0 */
  tsr_log_fn log;          /* NULL: lines go to stderr only if the environment's TSR_LOG asks */
  void *log_user;
  const char *backend;     /* NULL, or the only backend that plans may use ("cpu", "reference") */
  const char *kernel;      /* NULL, or the only kernel that plans may use, as tsr_plan_info names it */
  const char *plugin_path; /* NULL: <library's folder>/tessera; else folders separated by ':', none
                              of them in an empty string. Every *.so in them is opened, by name */
  const char *cpu_target;  /* NULL: best; else a Highway target name ("AVX2", "AVX3", "NEON") */
} tsr_context_options;

/* Makes a context: reads the environment, opens plug-ins, probes every backend.
 *
 * out      receives the context; NULL on failure.
 * options  NULL: all defaults. Copied; strings may be freed after the call.
 * The environment is read here and nowhere else: TSR_BACKEND, TSR_KERNEL, TSR_CPU_TARGET,
 * TSR_PLUGIN_PATH and TSR_LOG (comma-separated: error, info, plan). An option given in the problem
 * wins over the context's, which wins over the environment's; of a backend and a kernel that do not
 * belong together, the one named by the weaker source gives way. Empty TSR_BACKEND, TSR_KERNEL and
 * TSR_CPU_TARGET name nothing. A log function gets every line; TSR_LOG is for stderr.
 * Returns: SUCCESS; INVALID_ARGUMENT (struct_size, half an allocator, negative threads); NOT_FOUND
 * (a backend or target named does not exist); OUT_OF_MEMORY. A backend that cannot work here is no
 * failure: tsr_context_backend_info tells the reason.
 * Ownership: tsr_context_destroy frees it. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_context_create(tsr_context **out, const tsr_context_options *options);

/* Frees a context; NULL is allowed. Plans made from it must be gone. Threads: no other use of it. */
TSR_API void tsr_context_destroy(tsr_context *context);

typedef struct tsr_backend_info {
  size_t struct_size;
  const char *name;    /* "cpu", "cuda", "hip", "reference", or a plug-in's own */
  const char *origin;  /* "built in", or the plug-in's path */
  int32_t available;   /* 1: usable; 0: see reason */
  int32_t named_only;  /* 1: never chosen unless named (reference) */
  tsr_device_kind device_kind;
  int32_t devices;
  const char *reason;  /* why it is absent; "" when available */
  const char *detail;  /* "AVX3 (also AVX2, SSE4); 16 threads"; "" when absent */
} tsr_backend_info;

/* Number of backends known, absent ones included. */
TSR_API int32_t tsr_context_backend_count(const tsr_context *context);

/* Describes backend index in [0, count). info->struct_size must be set. Strings belong to the
 * context. Returns SUCCESS or INVALID_ARGUMENT. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_context_backend_info(const tsr_context *context, int32_t index,
                                            tsr_backend_info *info);

/* Name of the i-th kernel of a backend, or NULL past the last one. Strings belong to the context. */
TSR_API const char *tsr_context_kernel_name(const tsr_context *context, int32_t backend_index,
                                            int32_t i);

/* What is known of a device; unknown figures are 0. */
typedef struct tsr_device_info {
  size_t struct_size;
  tsr_device device;
  char name[128];
  int32_t compute_units;     /* hardware threads, SMs or CUs that runs may use */
  int32_t reserved;
  int64_t fast_bytes;        /* per unit: L1 data cache; shared memory */
  int64_t mid_bytes;         /* L2 per core; L2 of the device */
  int64_t memory_bytes;
  double peak_flops_f32;     /* estimate from clock, width and units, FLOP/s */
  double peak_flops_16;      /* float16 and bfloat16 */
  double bandwidth;          /* slow memory, bytes/s */
} tsr_device_info;

/* Facts of one device as the backend of that device kind sees it. info->struct_size must be set.
 * Returns SUCCESS; NOT_FOUND (no such device); INVALID_ARGUMENT. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_device_query(const tsr_context *context, tsr_device device,
                                    tsr_device_info *info);

/* ===============================================================================================
 * 5. Tensors: dtype and layout in the problem, pointers at run time
 * =============================================================================================*/

/* Order of the axes in memory. Axes are named [B, H, S, D] whatever the order; for bias and mask
 * tensors they are [B, Hq, Sq, Sk], for LSE and the like [B, Hq, Sq] (the last axis is unused), and
 * for a paged cache [pages, Hkv, row in page, D]. Packed sequences (TSR_ARRAY_CU_*) have no B axis:
 * BHSD then means dense [H, total, D], BSHD dense [total, H, D], and stride[0] must be 0. */
typedef enum tsr_order {
  TSR_ORDER_BHSD = 0,   /* dense [B, H, S, D]; stride[] must be all 0 */
  TSR_ORDER_BSHD = 1,   /* dense [B, S, H, D]; stride[] must be all 0 */
  TSR_ORDER_STRIDED = 2 /* as stride[] says */
} tsr_order;

typedef struct tsr_layout {
  tsr_dtype dtype; /* NONE: the tensor is absent */
  tsr_order order;
  int64_t stride[4]; /* in elements, non-negative. Inputs may use 0 to broadcast an axis; outputs
                        may not address an element twice: sorted, each stride must pass the reach of
                        the smaller ones. Strides of TSR_DTYPE_BIT count bits: the last is 0 or 1,
                        the others are multiples of 8; dense rows start at whole bytes. Axes of
                        length 1 may have any stride. */
  int64_t alignment; /* bytes that the pointer is a multiple of; 0: the element's size. A promise
                        that is checked at run time; 16 and a unit last stride unlock fast kernels. */
} tsr_layout;

/* Optional arrays of one integer per sequence, named in tsr_problem.arrays and given in tsr_args.
 * Their element type is tsr_problem.index_dtype. */
typedef enum tsr_array {
  TSR_ARRAY_CU_Q = 1 << 0,       /* [B+1] packed queries: sequence b is rows cu[b] .. cu[b+1]-1 */
  TSR_ARRAY_CU_K = 1 << 1,       /* [B+1] packed keys and values */
  TSR_ARRAY_USED_Q = 1 << 2,     /* [B] number of valid queries, counted after the left padding */
  TSR_ARRAY_USED_K = 1 << 3,     /* [B] number of valid keys, counted after the left padding */
  TSR_ARRAY_LEFT_PAD_Q = 1 << 4, /* [B] rows of the slot before the first valid query */
  TSR_ARRAY_LEFT_PAD_K = 1 << 5, /* [B] rows of the slot before the first valid key */
  TSR_ARRAY_PREFIX = 1 << 6,     /* [B] prefix length per sequence, instead of tsr_problem.prefix */
  TSR_ARRAY_DIAGONAL = 1 << 7    /* [B] diagonal offset, instead of tsr_problem.diagonal */
} tsr_array;
/* A sequence's slot is its rows in the tensor: cu[b] .. cu[b+1]-1, or 0 .. seq-1, or its pages. Its
 * used part is used[b] rows from left_pad[b] on (without USED: all the rest of the slot). Sq, Sk, i
 * and j of section 1 count in the used part. */

/* ===============================================================================================
 * 6. Problem and plan
 * =============================================================================================*/

/* The value of a window side that has no bound. */
#define TSR_UNBOUNDED INT64_MAX

/* A band around a diagonal: key j is allowed when  i + d - left <= j <= i + d + right,  both ends
 * included, so left + right + 1 keys at most. d as for tsr_causal; with causal and window both set
 * their diagonals must be the same, and both rules apply. */
typedef enum tsr_window_kind {
  TSR_WINDOW_NONE = 0,
  TSR_WINDOW_TOP_LEFT = 1,
  TSR_WINDOW_BOTTOM_RIGHT = 2,
  TSR_WINDOW_EXPLICIT = 3
} tsr_window_kind;

typedef struct tsr_window {
  tsr_window_kind kind;
  int32_t reserved; /* must be 0 */
  int64_t left;     /* 0 .. , or TSR_UNBOUNDED */
  int64_t right;
} tsr_window;

typedef enum tsr_alibi {
  TSR_ALIBI_NONE = 0,
  TSR_ALIBI_PER_HEAD = 1,      /* slopes [Hq] */
  TSR_ALIBI_PER_BATCH_HEAD = 2 /* slopes [B, Hq] */
} tsr_alibi;

typedef enum tsr_determinism {
  TSR_DETERMINISM_DEFAULT = 0,
  TSR_DETERMINISM_DETERMINISTIC = 1,  /* bitwise equal from run to run on one device and build */
  TSR_DETERMINISM_BATCH_INVARIANT = 2 /* also: a row's bits do not depend on what else is in the
                                         batch, on padding, or on how the keys were split */
} tsr_determinism;

typedef enum tsr_pass { TSR_PASS_FORWARD = 1, TSR_PASS_BACKWARD = 2 } tsr_pass;

/* Gradients that are added to what the output holds instead of overwriting it. */
typedef enum tsr_accumulate {
  TSR_ACCUMULATE_DQ = 1 << 0,
  TSR_ACCUMULATE_DK = 1 << 1,
  TSR_ACCUMULATE_DV = 1 << 2,
  TSR_ACCUMULATE_DBIAS = 1 << 3,
  TSR_ACCUMULATE_DSINK = 1 << 4
} tsr_accumulate;

/* Everything about a computation but the pointers. Zero means default or absent in every field but
 * the sizes and q, k, v, o. Fields are only ever appended. */
typedef struct tsr_problem {
  size_t struct_size; /* sizeof(tsr_problem) */
  uint32_t passes;    /* tsr_pass bits; 0: forward */
  uint32_t arrays;    /* tsr_array bits */
  tsr_dtype index_dtype; /* of every array and of the page table; I32 or I64; 0: I32 */
  tsr_determinism determinism;

  /* Sizes. */
  int64_t batch;    /* B, 0 .. 2^31-1 */
  int64_t heads_q;  /* Hq, 0 .. ; a multiple of heads_kv */
  int64_t heads_kv; /* Hkv; batch * heads_q < 2^31 */
  int64_t seq_q;    /* Sq: rows of every slot; with CU_Q: an upper bound, or 0 if none is known */
  int64_t seq_k;    /* Sk: likewise; with pages: max_pages * page_size, or 0 for just that */
  int64_t total_q;  /* with CU_Q: rows of the packed tensor; else 0 */
  int64_t total_k;
  int64_t dim_qk; /* Dqk, 1 .. 576 */
  int64_t dim_v;  /* Dv, 1 .. 512; 0: Dqk */

  /* Tensors. */
  tsr_layout q; /* [B, Hq, Sq, Dqk]   F32, F16, BF16; F64, F8_*, where a kernel claims them */
  tsr_layout k; /* [B, Hkv, Sk, Dqk]  q's dtype, or F8_*, I8 with scales */
  tsr_layout v; /* [B, Hkv, Sk, Dv]   k's dtype */
  tsr_layout o; /* [B, Hq, Sq, Dv]    q's dtype (F16 or BF16 for 8-bit q) or F32 */
  tsr_layout lse;       /* [B, Hq, Sq] F32. Optional output of forward, required by backward */
  tsr_layout max_logit; /* [B, Hq, Sq] F32. Optional: max_j s over allowed keys, without the sink */

  /* Scores. */
  float scale;   /* finite; 0: 1 / sqrt(Dqk) */
  float softcap; /* 0: none; else finite and > 0 */
  tsr_layout bias; /* [B, Hq, Sq, Sk] F32, F16 or BF16; strides of 0 broadcast */
  tsr_alibi alibi;
  uint32_t sink; /* 1: tsr_args.sink holds a logit per query head; 0: none */

  /* Masks. Allowed = inside the sequence, and in (causal and window) or before the prefix, and in
   * the mask, and in the block mask. */
  tsr_causal causal;
  int32_t reserved0;     /* must be 0 */
  int64_t diagonal;      /* offset d of the EXPLICIT kinds, -2^61 .. 2^61; else 0 */
  tsr_window window;
  int64_t prefix;        /* keys 0 .. prefix-1 are allowed whatever causal and window say */
  tsr_layout mask;       /* [B, Hq, Sq, Sk] U8 or BIT; strides of 0 broadcast */
  tsr_layout block_mask; /* [B, Hq, ceil(Sq/block_q), ceil(Sk/block_k)] U8 */
  int64_t block_q, block_k; /* rows and keys per element of block_mask; 0 without one */

  /* Dropout. */
  float dropout;      /* p_drop, 0 .. 1; 1 drops everything */
  uint32_t reserved1; /* must be 0 */

  /* Paged keys and values: K and V are [num_pages, Hkv, page_size, D], and row j of sequence b is
   * row j % page_size of page page_table[b * page_table_stride + j / page_size]. Needs USED_K. */
  int64_t page_size; /* 0: not paged; else any size from 1 */
  int64_t num_pages;
  int64_t max_pages;         /* columns of the table */
  int64_t page_table_stride; /* elements between its rows; 0: max_pages */

  /* Scales of 8-bit tensors: value = element * scale[b, h, row / rows]. [B, H, ceil(S/rows)] F32,
   * strides of 0 broadcast; S is the row axis of the tensor (row in page when paged). */
  tsr_layout q_scale, k_scale, v_scale;
  int64_t scale_rows_q, scale_rows_k; /* rows that share a scale; 0: all rows */

  /* Backward. dq, dk, dv, dbias are computed when their dtype is set. */
  tsr_layout dout;  /* [B, Hq, Sq, Dv]; o's dtype or F32; required for backward */
  tsr_layout dlse;  /* [B, Hq, Sq] F32: gradient flowing into LSE */
  tsr_layout dq;    /* q's dtype or F32 */
  tsr_layout dk;    /* k's dtype or F32; refused with pages, which sequences may share */
  tsr_layout dv;
  tsr_layout dbias; /* bias's dtype or F32. Shape and broadcast axes of bias: stride 0 exactly where
                       bias's is, summed over those axes */
  uint32_t dsink;      /* 1: tsr_args.dsink [Hq] F32 is computed */
  uint32_t accumulate; /* tsr_accumulate bits */

  /* Choice. NULL: as the context says, else the dispatcher's. */
  const char *backend;
  const char *kernel; /* a forward or backward kernel's name; the other pass is chosen freely */
} tsr_problem;

/* Checks a problem, asks every legal backend, and keeps the kernel with the smallest estimated time.
 *
 * out      receives the plan; NULL on failure.
 * context  NULL: the process-wide default.
 * device   where all tensors live.
 * problem  copied.
 * Returns: SUCCESS; INVALID_ARGUMENT (wrong for every backend, the message names the field, what
 * was found and what is accepted); NOT_SUPPORTED (the message lists each candidate's refusal);
 * NOT_FOUND (device, backend or kernel named does not exist); OUT_OF_MEMORY (of the host or the device); DEVICE_ERROR.
 * Ownership: tsr_plan_destroy frees it; the context must outlive it. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_plan_create(tsr_plan **out, tsr_context *context, tsr_device device,
                                   const tsr_problem *problem);

/* Frees a plan; NULL is allowed. Runs of it must have ended. */
TSR_API void tsr_plan_destroy(tsr_plan *plan);

/* Bytes that one run of the pass needs, to be given as tsr_args.workspace aligned to 64. Depends on
 * the problem alone, never on run-time lengths. Returns SUCCESS, or INVALID_ARGUMENT if the plan
 * does not hold the pass. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_plan_workspace_size(const tsr_plan *plan, tsr_pass pass, size_t *bytes);

typedef struct tsr_plan_info {
  size_t struct_size;
  const char *backend;
  const char *kernel;    /* "fwd_f32_any_edge__cpu_192x96" */
  int64_t tile_q, tile_k; /* 0: whole rows */
  double flops;          /* floating-point operations predicted (4 Sq Sk D per head, masks counted) */
  double bytes;          /* slow-memory traffic predicted, from tile sizes and fast-memory size */
  double seconds;        /* estimated time */
  size_t workspace;      /* as tsr_plan_workspace_size */
} tsr_plan_info;

/* What was chosen for a pass. info->struct_size must be set. Strings belong to the plan. */
TSR_API tsr_status tsr_plan_describe(const tsr_plan *plan, tsr_pass pass, tsr_plan_info *info);

/* Writes several lines of text about the choice: backend, kernel, tile, predicted bytes and FLOPs,
 * and for every other candidate why it was refused or ranked lower.
 *
 * context, device, problem  as for tsr_plan_create; also works when no plan can be made.
 * text      NULL, or a buffer of capacity bytes that receives a terminated, possibly cut string.
 * needed    NULL, or receives the bytes that the whole text needs, terminator included.
 * Returns: as tsr_plan_create would. Threads: any. Since: 0.1. */
TSR_API tsr_status tsr_explain(tsr_context *context, tsr_device device, const tsr_problem *problem,
                               char *text, size_t capacity, size_t *needed);

/* The same text for a plan that exists. */
TSR_API tsr_status tsr_plan_explain(const tsr_plan *plan, char *text, size_t capacity,
                                    size_t *needed);

/* ===============================================================================================
 * 7. Running
 * =============================================================================================*/

/* All pointers of a run; one struct serves both passes. A pointer is required exactly when the
 * problem declares its tensor or array and the pass uses it, and must be NULL otherwise: nothing given
 * is ignored. Empty tensors may be NULL, or lie anywhere. All memory lives on the plan's device, except
 * where "host" is said. An output may not share memory with any other tensor or the workspace; slices that
 * interleave in one allocation without sharing an element are apart. What certainly overlaps is refused;
 * layouts too irregular to be decided quickly are the caller's word. */
typedef struct tsr_args {
  size_t struct_size; /* sizeof(tsr_args) */

  /* Inputs of both passes. */
  const void *q, *k, *v;
  const void *bias, *mask, *block_mask;
  const float *alibi; /* slopes */
  const float *sink;
  const float *q_scale, *k_scale, *v_scale;

  /* Integer arrays of tsr_problem.index_dtype. */
  const void *cu_q, *cu_k;
  const void *used_q, *used_k;
  const void *left_pad_q, *left_pad_k;
  const void *prefix, *diagonal;
  const void *page_table; /* [B, max_pages] */

  /* Dropout state: seed and offset by value (host), or two uint64 {seed, offset} in device memory
   * when rng_state is not NULL (seed and offset must then be 0). Without dropout rng_state must be
   * NULL, and seed and offset may hold anything: no result depends on them. */
  uint64_t seed, offset;
  const uint64_t *rng_state;

  /* Results of forward, inputs of backward. */
  void *o;
  float *lse;
  float *max_logit; /* forward only */

  /* Backward only. */
  const void *dout;
  const float *dlse;
  void *dq, *dk, *dv, *dbias;
  float *dsink;

  /* Execution. */
  void *workspace;       /* NULL: the library allocates for this run (not inside a stream capture) */
  size_t workspace_size; /* bytes given; at least tsr_plan_workspace_size */
  void *stream;          /* device stream; NULL for host devices */
} tsr_args;

/* Computes O, and LSE and the row maxima when asked.
 *
 * Returns: SUCCESS; INVALID_ARGUMENT (a pointer missing, given needlessly, misaligned or
 * overlapping an output; on host devices also lengths out of range); OUT_OF_MEMORY; DEVICE_ERROR.
 * On an error found by checking, no output was touched.
 * Ownership: all memory stays the caller's. Threads: any number of runs of one plan at once.
 * Async: host devices return when done; GPUs after enqueueing, without synchronising, allocating
 * (given a workspace) or reading device memory from the host. Since: 0.1. */
TSR_API tsr_status tsr_forward(const tsr_plan *plan, const tsr_args *args);

/* Computes the gradients the problem declares, from O and LSE of a forward run with equal inputs,
 * seed and offset. Keys that no query sees get gradient 0. max_logit must be NULL.
 * Returns, Ownership, Threads, Async: as tsr_forward. Since: 0.1. */
TSR_API tsr_status tsr_backward(const tsr_plan *plan, const tsr_args *args);

/* ===============================================================================================
 * 8. Merging partial results; dropout masks
 * =============================================================================================*/

/* Attention over a union of disjoint key sets from the results over each set:
 *   LSE = ln sum_i exp(LSE_i),   O = sum_i exp(LSE_i - LSE) O_i
 * A part with LSE_i = -inf contributes nothing, whatever its O_i holds; all parts empty: (0, -inf).
 * A sink must have joined at most one of the parts. */
typedef struct tsr_merge_problem {
  size_t struct_size;
  int64_t parts; /* 1 .. 65536 */
  int64_t batch, heads, seq, dim_v;
  tsr_layout o_part;   /* of every part: [B, H, S, Dv] F32, F16 or BF16 */
  tsr_layout lse_part; /* [B, H, S] F32 */
  tsr_layout o;        /* result; F32, F16 or BF16; may be the memory and layout of one part */
  tsr_layout lse;      /* result; dtype NONE if not wanted; may likewise be that of one part */
} tsr_merge_problem;

/* Merges partial results. context NULL: the default. o_parts, lse_parts: host arrays of parts
 * pointers to device memory. stream: NULL on host devices.
 * Returns: SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, OUT_OF_MEMORY, DEVICE_ERROR. Threads: any.
 * Async: as tsr_forward; on a GPU a stream capture takes what fits a launch's arguments, 200 parts, and code that a
 * plan on the device has loaded. Since: 0.1. */
TSR_API tsr_status tsr_merge(tsr_context *context, tsr_device device,
                             const tsr_merge_problem *problem, const void *const *o_parts,
                             const float *const *lse_parts, void *o, float *lse, void *stream);

/* The keep decision of dropout as a tensor: 1 where p survives, 0 where it is dropped. The bit is a
 * pure function of (seed, offset, b, h, i, j) by Philox4x32-10 (Salmon et al. 2011), the same on
 * every backend, tile shape and pass; it is kept when a 32-bit word >= floor(p_drop * 2^32). */
typedef struct tsr_dropout_problem {
  size_t struct_size;
  int64_t batch, heads, seq_q, seq_k;
  float dropout; /* p_drop, 0 .. 1 */
  uint32_t reserved; /* must be 0 */
  uint64_t seed, offset;
  tsr_layout mask; /* [B, Hq, Sq, Sk] U8 */
} tsr_dropout_problem;

/* Writes the keep mask. Returns, Threads, Async: as tsr_merge. Since: 0.1. */
TSR_API tsr_status tsr_dropout_mask(tsr_context *context, tsr_device device,
                                    const tsr_dropout_problem *problem, uint8_t *mask,
                                    void *stream);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESSERA_H_
