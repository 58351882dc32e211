// SPDX-License-Identifier: Apache-2.0
// From files to a problem and its arguments: which tensors a run takes, how their axes map to sizes
// and strides, and the output tensors it needs. Used by `run` and `demo`.
//
// Messages name the option and both values found; what the library's validation says is passed on.
#ifndef TESSERA_CLI_ATTENTION_JOB_H_
#define TESSERA_CLI_ATTENTION_JOB_H_

#include <stdbool.h>

#include <tessera/tessera.h>

#include "problem_options.h"
#include "tensor_file.h"

typedef enum job_input {
  IN_Q = 0,
  IN_K,
  IN_V,
  IN_BIAS,
  IN_MASK,
  IN_BLOCK_MASK,
  IN_ALIBI,
  IN_SINK,
  IN_CU_Q,
  IN_CU_K,
  IN_USED_Q,
  IN_USED_K,
  IN_LEFT_PAD_Q,
  IN_LEFT_PAD_K,
  IN_PREFIX,
  IN_DIAGONAL,
  IN_PAGE_TABLE,
  IN_Q_SCALE,
  IN_K_SCALE,
  IN_V_SCALE,
  IN_COUNT
} job_input;

// What an input may be, for messages and checks.
typedef struct job_input_row {
  const char *option;  // without dashes
  const char *name;    // tensor looked for when a .safetensors file is given without a name
  const char *help;
  int least_rank, most_rank;
  uint32_t types;  // bits 1 << file_dtype
} job_input_row;
extern const job_input_row job_inputs[IN_COUNT];

// Bits of job_input_row.types.
#define JOB_TYPE(t) (1u << (unsigned)(t))

typedef struct attention_job {
  const char *spec[IN_COUNT];  // as given; NULL: absent
  file_tensor in[IN_COUNT];    // data NULL: absent
  uint32_t borrowed;           // bits 1 << job_input: memory that another job frees
  bool alibi_auto;             // slopes made here instead of read
  bool void2_is_bf16;
  bool allow_nan;
  int64_t page_size, block_q, block_k, scale_rows_q, scale_rows_k;
  bool want_lse, want_max_logit;

  tsr_problem problem;
  tsr_args args;
  file_tensor o, lse, max_logit;
} attention_job;

// Reads every input named by a spec, checks types and ranks, and NaN unless allowed.
bool attention_job_read(attention_job *job, cli_message *message);

// Derives sizes, strides and pointers; allocates outputs. Inputs may also have been filled in by
// the caller (demo).
bool attention_job_build(attention_job *job, const problem_options *options, cli_message *message);
void attention_job_free(attention_job *job);

// The same job for another backend, with O in float32. For "reference", Q, K, V and O are float64,
// unless the inputs are 8-bit. Other inputs are shared with `job`, which must outlive the peer.
bool attention_job_peer(attention_job *peer, const attention_job *job,
                        const problem_options *options, const char *backend, cli_message *message);

typedef struct error_figures {
  double max_error, rms_error;  // infinite when exactly one side is NaN somewhere
  double max_reference, rms_reference;
} error_figures;

// Compares element by element in C order; shapes must agree. -inf equals -inf, NaN equals NaN.
error_figures file_tensor_compare(const file_tensor *x, const file_tensor *reference);

tsr_dtype job_dtype(file_dtype dtype);  // NONE when the library has no such type

#endif  // TESSERA_CLI_ATTENTION_JOB_H_
