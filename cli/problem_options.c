// SPDX-License-Identifier: Apache-2.0
// Parsing of the shared problem and shape options (see problem_options.h).
#define _GNU_SOURCE
#include "problem_options.h"

#include <errno.h>
#include <string.h>

#include "field_names.h"

enum {
  KEY_CAUSAL = PARSE_KEY_PROBLEM,
  KEY_WINDOW,
  KEY_SCALE,
  KEY_SOFTCAP,
  KEY_DROPOUT,
  KEY_SEED,
  KEY_OFFSET,
  KEY_PREFIX,
  KEY_LAYOUT,
  KEY_OUT_DTYPE,
  KEY_DETERMINISM,
  KEY_BACKEND,
  KEY_DEVICE,
  KEY_KERNEL,
  KEY_THREADS,
};

static const struct argp_option kProblemOptions[] = {
    {0, 0, 0, 0, "Scores and masks:", 2},
    {"causal", KEY_CAUSAL, "CORNER", 0,
     "top-left, bottom-right, or the diagonal's offset N: key j <= i + N is allowed", 2},
    {"window", KEY_WINDOW, "L,R[,CORNER]", 0,
     "Keys from L before the diagonal to R after it, both included; inf: no bound. CORNER as for "
     "--causal, needed when --causal is not given",
     2},
    {"prefix", KEY_PREFIX, "N", 0, "Keys 0 .. N-1 are allowed whatever causal and window say", 2},
    {"scale", KEY_SCALE, "X", 0, "Factor on q.k (default 0: 1/sqrt(D))", 2},
    {"softcap", KEY_SOFTCAP, "C", 0, "s = C tanh(s / C)", 2},
    {"dropout", KEY_DROPOUT, "P", 0, "Probability of dropping, 0 to 1", 2},
    {"seed", KEY_SEED, "N", 0, "Seed of dropout, or of random tensors (default 0)", 2},
    {"offset", KEY_OFFSET, "N", 0, "Counter offset of dropout (default 0)", 2},
    {0, 0, 0, 0, "Execution:", 3},
    {"layout", KEY_LAYOUT, "ORDER", 0, "Axis order of tensors: bhsd (default) or bshd", 3},
    {"out-dtype", KEY_OUT_DTYPE, "TYPE", 0,
     "Element type of O: same (as Q, default), f32, f16, "
     "bf16, f64",
     3},
    {"determinism", KEY_DETERMINISM, "LEVEL", 0, "default, deterministic or batch-invariant", 3},
    {"backend", KEY_BACKEND, "NAME[:N]", 0,
     "The only backend that may be used, on its device N (default 0)", 3},
    {"device", KEY_DEVICE, "DEVICE", 0,
     "Where tensors live: host, cuda[:N], hip[:N], or N alone (default: as --backend says, else "
     "host)",
     3},
    {"kernel", KEY_KERNEL, "NAME", 0, "The only kernel that may be used", 3},
    {"threads", KEY_THREADS, "N", 0, "Worker threads (default: all)", 3},
    {0}};

static const parse_word kCorners[] = {{"none", TSR_CAUSAL_NONE},
                                      {"top-left", TSR_CAUSAL_TOP_LEFT},
                                      {"bottom-right", TSR_CAUSAL_BOTTOM_RIGHT},
                                      {NULL, 0}};
static const parse_word kOrders[] = {{"bhsd", TSR_ORDER_BHSD}, {"bshd", TSR_ORDER_BSHD}, {NULL, 0}};
static const parse_word kDtypes[] = {{"f32", TSR_DTYPE_F32},
                                     {"f16", TSR_DTYPE_F16},
                                     {"bf16", TSR_DTYPE_BF16},
                                     {"f64", TSR_DTYPE_F64},
                                     {NULL, 0}};
static const parse_word kOutDtypes[] = {{"same", TSR_DTYPE_NONE}, {"f32", TSR_DTYPE_F32},
                                        {"f16", TSR_DTYPE_F16},   {"bf16", TSR_DTYPE_BF16},
                                        {"f64", TSR_DTYPE_F64},   {NULL, 0}};
static const parse_word kLevels[] = {{"default", TSR_DETERMINISM_DEFAULT},
                                     {"deterministic", TSR_DETERMINISM_DETERMINISTIC},
                                     {"batch-invariant", TSR_DETERMINISM_BATCH_INVARIANT},
                                     {NULL, 0}};

void problem_options_init(problem_options *options, parse_state *state) {
  *options = (problem_options){.state = state, .order = TSR_ORDER_BHSD};
}

bool parse_backend(const char *text, char *name, size_t capacity, int32_t *index,
                   cli_message *message) {
  const char *colon = strchr(text, ':');
  size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
  int64_t number = 0;
  if (length == 0 || length >= capacity) {
    return cli_fail(message, "'%s'; accepted: a backend that `tessera info` lists", text);
  }
  memcpy(name, text, length);
  name[length] = 0;
  if (colon == NULL) return true;
  if (!parse_int64(colon + 1, 0, INT32_MAX, &number, message)) return false;
  *index = (int32_t)number;
  return true;
}

static bool parse_device(const char *text, problem_options *options, cli_message *message) {
  static const parse_word kKinds[] = {
      {"host", TSR_DEVICE_HOST}, {"cuda", TSR_DEVICE_CUDA}, {"hip", TSR_DEVICE_HIP}, {NULL, 0}};
  char word[16];
  cli_message ignored;
  int64_t number;
  int kind;
  if (parse_int64(text, 0, INT32_MAX, &number, &ignored)) {
    options->device.index = (int32_t)number;
    return true;
  }
  if (!parse_backend(text, word, sizeof word, &options->device.index, &ignored) ||
      !parse_choice(word, kKinds, &kind, &ignored)) {
    return cli_fail(message, "'%s'; accepted: host, cuda, cuda:N, hip, hip:N, or N", text);
  }
  options->device.kind = (tsr_device_kind)kind;
  options->device_given = true;
  return true;
}

// A corner's name, or an explicit offset.
static bool parse_corner(const char *text, int *kind, int64_t *diagonal, cli_message *message) {
  cli_message ignored;
  if (parse_choice(text, kCorners, kind, &ignored)) return true;
  if (parse_int64(text, -INT64_MAX, INT64_MAX, diagonal, &ignored)) {
    *kind = TSR_CAUSAL_EXPLICIT;
    return true;
  }
  return cli_fail(message, "'%s'; accepted: none, top-left, bottom-right, or an integer offset",
                  text);
}

static bool parse_side(const char *text, int64_t *out, cli_message *message) {
  if (strcmp(text, "inf") == 0) {
    *out = TSR_UNBOUNDED;
    return true;
  }
  cli_message ignored;
  if (parse_int64(text, 0, INT64_MAX - 1, out, &ignored)) return true;
  return cli_fail(message, "side '%s'; accepted: an integer from 0 up, or inf", text);
}

static bool parse_window(const char *text, problem_options *options, cli_message *message) {
  char copy[128];
  if (strlen(text) >= sizeof copy) return cli_fail(message, "value is too long");
  memcpy(copy, text, strlen(text) + 1);
  char *right = strchr(copy, ',');
  if (right == NULL) {
    return cli_fail(message, "'%s'; accepted: L,R or L,R,CORNER", text);
  }
  *right++ = 0;
  char *corner = strchr(right, ',');
  if (corner != NULL) *corner++ = 0;
  if (!parse_side(copy, &options->window.left, message) ||
      !parse_side(right, &options->window.right, message)) {
    return false;
  }
  options->window_given = true;
  if (corner == NULL) return true;
  int kind;
  if (!parse_corner(corner, &kind, &options->window_diagonal, message)) return false;
  if (kind == TSR_CAUSAL_NONE) {
    return cli_fail(message, "corner 'none'; accepted: top-left, bottom-right, or an offset");
  }
  options->window_kind_given = true;
  options->window.kind = (tsr_window_kind)kind;  // the two enums have the same values
  return true;
}

static error_t parse_problem(int key, char *arg, struct argp_state *argp_state) {
  problem_options *options = argp_state->input;
  cli_message *message = options->state->message;
  int choice = 0;
  switch (key) {
    case KEY_CAUSAL: {
      int kind;
      if (!parse_corner(arg, &kind, &options->diagonal, message)) {
        return parse_refuse(options->state, "--causal");
      }
      options->causal = (tsr_causal)kind;
      return 0;
    }
    case KEY_WINDOW:
      if (parse_window(arg, options, message)) return 0;
      return parse_refuse(options->state, "--window");
    case KEY_SCALE:
      if (parse_real(arg, &options->scale, message)) return 0;
      return parse_refuse(options->state, "--scale");
    case KEY_SOFTCAP:
      if (parse_real(arg, &options->softcap, message)) return 0;
      return parse_refuse(options->state, "--softcap");
    case KEY_DROPOUT:
      if (parse_real(arg, &options->dropout, message)) return 0;
      return parse_refuse(options->state, "--dropout");
    case KEY_SEED:
      options->seed_given = true;
      if (parse_uint64(arg, &options->seed, message)) return 0;
      return parse_refuse(options->state, "--seed");
    case KEY_OFFSET:
      options->seed_given = true;
      if (parse_uint64(arg, &options->offset, message)) return 0;
      return parse_refuse(options->state, "--offset");
    case KEY_PREFIX:
      if (parse_int64(arg, 0, INT64_MAX, &options->prefix, message)) return 0;
      return parse_refuse(options->state, "--prefix");
    case KEY_LAYOUT:
      if (!parse_choice(arg, kOrders, &choice, message)) {
        return parse_refuse(options->state, "--layout");
      }
      options->order = (tsr_order)choice;
      return 0;
    case KEY_OUT_DTYPE:
      if (!parse_choice(arg, kOutDtypes, &choice, message)) {
        return parse_refuse(options->state, "--out-dtype");
      }
      options->out_dtype = (tsr_dtype)choice;
      return 0;
    case KEY_DETERMINISM:
      if (!parse_choice(arg, kLevels, &choice, message)) {
        return parse_refuse(options->state, "--determinism");
      }
      options->determinism = (tsr_determinism)choice;
      return 0;
    case KEY_BACKEND:
      if (!parse_backend(arg, options->backend_name, sizeof options->backend_name,
                         &options->device.index, message)) {
        return parse_refuse(options->state, "--backend");
      }
      options->backend = options->backend_name;
      return 0;
    case KEY_DEVICE:
      if (parse_device(arg, options, message)) return 0;
      return parse_refuse(options->state, "--device");
    case KEY_KERNEL:
      options->kernel = arg;
      return 0;
    case KEY_THREADS:
      if (parse_int64(arg, 1, 4096, &options->threads, message)) return 0;
      return parse_refuse(options->state, "--threads");
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp problem_options_argp = {kProblemOptions, parse_problem, 0, 0, 0, 0, 0};

// A value that float32 rounds to zero would select the default behind the caller's back.
static bool to_float(const char *option, double value, float *out, cli_message *message) {
  *out = (float)value;
  if (*out != 0 || value == 0) return true;
  return cli_fail(message, "%s: %g is 0 in float32; accepted: 0, or at least 1e-45 in size", option,
                  value);
}

bool problem_options_apply(const problem_options *options, tsr_problem *problem,
                           cli_message *message) {
  problem->causal = options->causal;
  problem->diagonal = options->diagonal;
  if (options->window_given) {
    problem->window = options->window;
    if (!options->window_kind_given) {
      if (options->causal == TSR_CAUSAL_NONE) {
        return cli_fail(message,
                        "--window: no diagonal to count from; accepted: "
                        "L,R,top-left, L,R,bottom-right, L,R,OFFSET, or --causal as well");
      }
      problem->window.kind = (tsr_window_kind)options->causal;
    } else if (options->window.kind == TSR_WINDOW_EXPLICIT) {
      if (options->causal == TSR_CAUSAL_EXPLICIT && options->diagonal != options->window_diagonal) {
        return cli_fail(message,
                        "--window: offset %lld differs from --causal's %lld; accepted: "
                        "the same diagonal",
                        (long long)options->window_diagonal, (long long)options->diagonal);
      }
      problem->diagonal = options->window_diagonal;
    }
  }
  if (!to_float("--scale", options->scale, &problem->scale, message) ||
      !to_float("--softcap", options->softcap, &problem->softcap, message) ||
      !to_float("--dropout", options->dropout, &problem->dropout, message)) {
    return false;
  }
  problem->prefix = options->prefix;
  problem->determinism = options->determinism;
  problem->backend = options->backend;
  problem->kernel = options->kernel;
  return true;
}

enum {
  KEY_BATCH = PARSE_KEY_SHAPE,
  KEY_HEADS_Q,
  KEY_HEADS_KV,
  KEY_SEQ_Q,
  KEY_SEQ_K,
  KEY_DIM_QK,
  KEY_DIM_V,
  KEY_DTYPE,
};

static const struct argp_option kShapeOptions[] = {
    {0, 0, 0, 0, "Shape:", 1},
    {"b", KEY_BATCH, "N", 0, "Batch (default 1)", 1},
    {"hq", KEY_HEADS_Q, "N", 0, "Query heads (default 8)", 1},
    {"hkv", KEY_HEADS_KV, "N", 0, "Key and value heads (default: as --hq)", 1},
    {"sq", KEY_SEQ_Q, "N[,N...]", 0, "Queries (default 1024)", 1},
    {"sk", KEY_SEQ_K, "N[,N...]", 0, "Keys (default: as --sq)", 1},
    {"d", KEY_DIM_QK, "N", 0, "Head dimension of Q and K (default 64)", 1},
    {"dv", KEY_DIM_V, "N", 0, "Head dimension of V (default: as --d)", 1},
    {"dtype", KEY_DTYPE, "TYPE", 0, "f32 (default), f16, bf16, f64", 1},
    {0}};

void shape_options_init(shape_options *options, parse_state *state) {
  *options = (shape_options){.state = state,
                             .batch = 1,
                             .heads_q = 8,
                             .heads_kv = -1,
                             .dim_qk = 64,
                             .dim_v = -1,
                             .seq_q = {1024},
                             .seq_q_count = 1,
                             .dtype = TSR_DTYPE_F32};
}

static error_t parse_shape(int key, char *arg, struct argp_state *argp_state) {
  shape_options *options = argp_state->input;
  cli_message *message = options->state->message;
  static const int64_t most = INT32_MAX;
  const size_t capacity = sizeof options->seq_q / sizeof options->seq_q[0];
  if (key == KEY_DTYPE) options->dtype_given = true;
  if (key >= KEY_BATCH && key <= KEY_DIM_V) options->given = true;
  switch (key) {
    case KEY_BATCH:
      if (parse_int64(arg, 0, most, &options->batch, message)) return 0;
      return parse_refuse(options->state, "--b");
    case KEY_HEADS_Q:
      if (parse_int64(arg, 0, most, &options->heads_q, message)) return 0;
      return parse_refuse(options->state, "--hq");
    case KEY_HEADS_KV:
      if (parse_int64(arg, 0, most, &options->heads_kv, message)) return 0;
      return parse_refuse(options->state, "--hkv");
    case KEY_SEQ_Q:
      if (parse_int64_list(arg, 0, most, options->seq_q, capacity, &options->seq_q_count,
                           message)) {
        return 0;
      }
      return parse_refuse(options->state, "--sq");
    case KEY_SEQ_K:
      if (parse_int64_list(arg, 0, most, options->seq_k, capacity, &options->seq_k_count,
                           message)) {
        return 0;
      }
      return parse_refuse(options->state, "--sk");
    case KEY_DIM_QK:
      if (parse_int64(arg, 1, most, &options->dim_qk, message)) return 0;
      return parse_refuse(options->state, "--d");
    case KEY_DIM_V:
      if (parse_int64(arg, 1, most, &options->dim_v, message)) return 0;
      return parse_refuse(options->state, "--dv");
    case KEY_DTYPE:
      if (parse_choice(arg, kDtypes, &options->dtype, message)) return 0;
      return parse_refuse(options->state, "--dtype");
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp shape_options_argp = {kShapeOptions, parse_shape, 0, 0, 0, 0, 0};

size_t shape_options_count(const shape_options *shape) {
  return shape->seq_q_count > shape->seq_k_count ? shape->seq_q_count : shape->seq_k_count;
}

bool shape_options_apply(const shape_options *shape, const problem_options *options, size_t index,
                         tsr_problem *problem, cli_message *message) {
  if (shape->seq_q_count > 1 && shape->seq_k_count > 1 &&
      shape->seq_q_count != shape->seq_k_count) {
    return cli_fail(message, "--sq has %zu values and --sk %zu; accepted: as many, or one",
                    shape->seq_q_count, shape->seq_k_count);
  }
  problem->batch = shape->batch;
  problem->heads_q = shape->heads_q;
  problem->heads_kv = shape->heads_kv < 0 ? shape->heads_q : shape->heads_kv;
  problem->seq_q = shape->seq_q[shape->seq_q_count > 1 ? index : 0];
  problem->seq_k =
      shape->seq_k_count == 0 ? problem->seq_q : shape->seq_k[shape->seq_k_count > 1 ? index : 0];
  problem->dim_qk = shape->dim_qk;
  problem->dim_v = shape->dim_v < 0 ? shape->dim_qk : shape->dim_v;
  tsr_layout layout = {.dtype = (tsr_dtype)shape->dtype, .order = options->order, .alignment = 64};
  problem->q = problem->k = problem->v = problem->o = layout;
  if (options->out_dtype != TSR_DTYPE_NONE) problem->o.dtype = options->out_dtype;
  return problem_options_apply(options, problem, message);
}

bool cli_context_create(tsr_context **context, int64_t threads, const tsr_runner *runner,
                        cli_message *message) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  if (runner != NULL) {
    options.runner = *runner;
  } else {
    options.threads = (int32_t)threads;
  }
  tsr_status status = tsr_context_create(context, &options);
  if (status == TSR_STATUS_SUCCESS) return true;
  return cli_fail(message, "%s: %s", tsr_status_string(status), tsr_last_message());
}

int cli_library_error(tsr_status status, bool shapes, cli_message *message) {
  cli_fail(message, "%s: %s", tsr_status_string(status), tsr_last_message());
  cli_name_option(message, shapes);
  bool refused = status == TSR_STATUS_INVALID_ARGUMENT || status == TSR_STATUS_NOT_SUPPORTED ||
                 status == TSR_STATUS_NOT_FOUND;
  return refused ? CLI_EXIT_BAD_INPUT : CLI_EXIT_FAILED;
}

const char *cli_dtype_name(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return "float32";
    case TSR_DTYPE_F16:
      return "float16";
    case TSR_DTYPE_BF16:
      return "bfloat16";
    case TSR_DTYPE_F64:
      return "float64";
    case TSR_DTYPE_F8_E4M3:
      return "float8_e4m3";
    case TSR_DTYPE_F8_E5M2:
      return "float8_e5m2";
    case TSR_DTYPE_I8:
      return "int8";
    case TSR_DTYPE_U8:
      return "uint8";
    case TSR_DTYPE_BIT:
      return "bit";
    case TSR_DTYPE_I32:
      return "int32";
    case TSR_DTYPE_I64:
      return "int64";
    default:
      return "none";
  }
}

size_t cli_dtype_bytes(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F64:
    case TSR_DTYPE_I64:
      return 8;
    case TSR_DTYPE_F32:
    case TSR_DTYPE_I32:
      return 4;
    case TSR_DTYPE_F16:
    case TSR_DTYPE_BF16:
      return 2;
    default:
      return 1;
  }
}
