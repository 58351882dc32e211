// SPDX-License-Identifier: Apache-2.0
//
// Validation: a caller's struct -> a checked copy with every default filled in. The only place that
// says "invalid argument" about what a caller describes; each message names the field, the value
// found and the values accepted.
//   validate.c         sizes, enumerators, pages, masks, scores, backward rules; resolution
//   validate_layout.c  the tensors of a problem: table, dtypes, strides, uniqueness
//   validate_run.c     the pointers of a run and the integer arrays behind them
//   validate_calls.c   context options, merge, dropout mask, one-call form
// Called by context.c, plan.c and attention.c before anything else is done.
#ifndef TESSERA_SRC_VALIDATE_H_
#define TESSERA_SRC_VALIDATE_H_

#include "layout.h"
#include "status.h"
#include "tessera/backend.h"

/* Longest sequence, and largest batch, head count and batch * heads_q. */
#define TSRI_LENGTH_MAX INT64_C(0x7fffffff)
/* Largest distance of an explicit diagonal: i + d - left then never overflows. */
#define TSRI_DIAGONAL_MAX (INT64_C(1) << 61)
#define TSRI_ALIGNMENT_MAX 4096
#define TSRI_DIM_QK_MAX 576
#define TSRI_DIM_V_MAX 512

/* Copies a struct whose first member is struct_size: shorter ones (older callers) are filled up
 * with zeros, longer ones (newer callers) are accepted if what this library does not know is zero.
 */
tsr_status tsri_read_struct(void *to, size_t size, const void *from, const char *name);
/* Checks the struct_size of a struct that the library fills. */
tsr_status tsri_check_out_struct(const void *out, size_t size, const char *name);
/* Fills such a struct from ours: as much as the caller's struct_size has room for; a longer rest is
 * zeroed. struct_size stays the caller's. */
void tsri_write_struct(void *to, const void *from, size_t size);

/* How a pass uses a tensor. */
typedef enum tsri_role { TSRI_UNUSED = 0, TSRI_IN = 1, TSRI_OUT = 2 } tsri_role;

/* Shapes of the problem's tensors. */
typedef enum tsri_shape {
  TSRI_SHAPE_Q,      /* [B, Hq, Sq, Dqk] */
  TSRI_SHAPE_K,      /* [B, Hkv, Sk, Dqk], or pages */
  TSRI_SHAPE_V,      /* [B, Hkv, Sk, Dv], or pages */
  TSRI_SHAPE_O,      /* [B, Hq, Sq, Dv] */
  TSRI_SHAPE_ROWS,   /* [B, Hq, Sq] */
  TSRI_SHAPE_SCORES, /* [B, Hq, Sq, Sk] */
  TSRI_SHAPE_BLOCKS, /* [B, Hq, blocks of Sq, blocks of Sk] */
  TSRI_SHAPE_Q_SCALE,
  TSRI_SHAPE_KV_SCALE
} tsri_shape;

/* One tensor of a problem: where its layout is in tsr_problem and its pointer in tsr_args. */
typedef struct tsri_tensor {
  const char *name;
  size_t layout, pointer;
  tsri_shape shape;
  tsri_role role[2]; /* in forward, in backward */
} tsri_tensor;

#define TSRI_TENSORS 18
extern const tsri_tensor tsri_tensors[TSRI_TENSORS];

tsr_layout *tsri_tensor_layout(tsr_problem *p, const tsri_tensor *tensor);
const tsr_layout *tsri_tensor_layout_const(const tsr_problem *p, const tsri_tensor *tensor);
/* Axes of a tensor and TSRI_LAYOUT_* flags. Sizes must be resolved. */
int tsri_tensor_dims(const tsr_problem *p, const tsri_tensor *tensor, int64_t dim[4]);
tsri_role tsri_tensor_role(const tsri_tensor *tensor, uint32_t passes);

/* Checks one layout against a shape and resolves it: STRIDED, strides and alignment filled in.
 * name: of the field. accepted: dtypes, as bits 1 << dtype. written: elements must have own
 * addresses. */
tsr_status tsri_validate_layout(const char *name, const int64_t dim[4], int flags,
                                uint64_t accepted, int written, tsr_layout *layout);
/* All tensors of a problem whose sizes are resolved. */
tsr_status tsri_validate_layouts(tsr_problem *p);

tsr_status tsri_validate_device(tsr_device device);
/* Checks a problem and fills in every default. backend and kernel are NULL in the result; passes
 * keeps both bits. */
tsr_status tsri_validate_problem(const tsr_problem *in, tsr_problem *out);
/* One pass of a validated problem as backends see it: what only the other pass uses is absent. */
void tsri_resolve_pass(const tsr_problem *valid, tsr_device device, tsr_pass pass,
                       tsr_resolved *out);

/* Checks the pointers of a run; out receives the checked copy. workspace: bytes that the run needs.
 */
tsr_status tsri_validate_run(const tsr_resolved *resolved, size_t workspace, const tsr_args *in,
                             tsr_args *out);
/* Lengths, offsets and page numbers in host memory. */
tsr_status tsri_validate_arrays(const tsr_problem *p, const tsr_args *args);
/* Refuses stream on host devices. */
tsr_status tsri_validate_stream(tsr_device device, const void *stream);
/* Pointer given exactly when wanted (an empty one may be NULL), and aligned. */
tsr_status tsri_validate_pointer(const char *name, const void *pointer, int wanted, int64_t bytes,
                                 int64_t alignment);

tsr_status tsri_validate_options(const tsr_context_options *in, tsr_context_options *out);
tsr_status tsri_validate_merge(const tsr_merge_problem *in, tsr_device device,
                               const void *const *o_parts, const float *const *lse_parts,
                               const void *o, const float *lse, const void *stream,
                               tsr_merge_problem *out);
tsr_status tsri_validate_dropout(const tsr_dropout_problem *in, tsr_device device,
                                 const uint8_t *mask, const void *stream, tsr_dropout_problem *out);
/* The problem and the arguments of the one-call form. */
tsr_status tsri_validate_attention(const tsr_tensor *q, const tsr_tensor *k, const tsr_tensor *v,
                                   const tsr_tensor *o, const tsr_tensor *lse, tsr_causal causal,
                                   float scale, tsr_problem *problem, tsr_args *args);

#endif  // TESSERA_SRC_VALIDATE_H_
