// SPDX-License-Identifier: Apache-2.0
// tessera run: attention on tensors from files, every feature an option, O and LSE written whole or
// not at all. Order of work: options, output folders, files, problem, plan, run, comparison,
// output; nothing is written before everything else has succeeded.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tessera/tessera.h>

#include "atomic_output.h"
#include "attention_job.h"
#include "commands.h"
#include "device_job.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "progress.h"
#include "text.h"

enum {
  KEY_INPUT = PARSE_KEY_COMMAND,  // + job_input
  KEY_O = KEY_INPUT + IN_COUNT,
  KEY_LSE,
  KEY_MAX_LOGIT,
  KEY_DTYPE,
  KEY_PAGE_SIZE,
  KEY_BLOCK_Q,
  KEY_BLOCK_K,
  KEY_SCALE_ROWS_Q,
  KEY_SCALE_ROWS_K,
  KEY_ALLOW_NAN,
  KEY_COMPARE,
  KEY_JSON,
  KEY_QUIET,
};

typedef struct run_options {
  parse_state state;
  problem_options problem;
  attention_job job;
  const char *o, *lse, *max_logit;
  const char *compare;
  bool json, quiet;
} run_options;

// Inputs come first, generated from the table in attention_job.c; kFixed follows.
static const struct argp_option kFixed[] = {
    {"page-size", KEY_PAGE_SIZE, "N", 0, "Rows per page; must agree with the shape of K", 1},
    {"block-q", KEY_BLOCK_Q, "N", 0, "Queries per element of --block-mask", 1},
    {"block-k", KEY_BLOCK_K, "N", 0, "Keys per element of --block-mask", 1},
    {"scale-rows-q", KEY_SCALE_ROWS_Q, "N", 0, "Rows that share a scale in --q-scale (default all)",
     1},
    {"scale-rows-k", KEY_SCALE_ROWS_K, "N", 0, "The same for --k-scale and --v-scale", 1},
    {"dtype", KEY_DTYPE, "bf16", 0, "Read two-byte void elements of .npy files as bfloat16", 1},
    {"allow-nan", KEY_ALLOW_NAN, 0, 0, "Accept NaN in inputs (padding may hold anything)", 1},
    {0, 0, 0, 0, "Results:", 4},
    {"o", KEY_O, "FILE", 0, "Write O, in the axis order of --layout", 4},
    {"lse", KEY_LSE, "FILE", 0, "Write the log-sum-exp [B, Hq, Sq], or packed [Hq, rows]", 4},
    {"max-logit", KEY_MAX_LOGIT, "FILE", 0, "Write the largest score of every row, shaped as LSE",
     4},
    {"compare", KEY_COMPARE, "BACKEND", 0,
     "Also run another backend and print the difference; "
     "reference: in float64",
     4},
    {"json", KEY_JSON, 0, 0, "Print the summary as JSON", 4},
    {"quiet", KEY_QUIET, 0, 0, "No progress on stderr", 4},
    PARSE_HELP_OPTION,
    {0}};
enum { kFixedCount = sizeof kFixed / sizeof kFixed[0] };

static bool parse_positive(const char *arg, int64_t *out, cli_message *message) {
  return parse_int64(arg, 1, INT64_MAX, out, message);
}

static error_t parse_number(run_options *run, const char *option, const char *arg, int64_t *out) {
  return parse_positive(arg, out, run->state.message) ? 0 : parse_refuse(&run->state, option);
}

static error_t parse_run(int key, char *arg, struct argp_state *argp_state) {
  run_options *run = argp_state->input;
  attention_job *job = &run->job;
  if (key == ARGP_KEY_INIT) {
    argp_state->child_inputs[0] = &run->problem;
    return 0;
  }
  if (key >= KEY_INPUT && key < KEY_INPUT + IN_COUNT) {
    if (key == KEY_INPUT + IN_ALIBI && strcmp(arg, "auto") == 0) {
      job->alibi_auto = true;
    } else {
      job->spec[key - KEY_INPUT] = arg;
    }
    return 0;
  }
  switch (key) {
    case KEY_O:
      run->o = arg;
      return 0;
    case KEY_LSE:
      run->lse = arg;
      return 0;
    case KEY_MAX_LOGIT:
      run->max_logit = arg;
      return 0;
    case KEY_COMPARE:
      run->compare = arg;
      return 0;
    case KEY_JSON:
      run->json = true;
      return 0;
    case KEY_QUIET:
      run->quiet = true;
      return 0;
    case KEY_ALLOW_NAN:
      job->allow_nan = true;
      return 0;
    case KEY_PAGE_SIZE:
      return parse_number(run, "--page-size", arg, &job->page_size);
    case KEY_BLOCK_Q:
      return parse_number(run, "--block-q", arg, &job->block_q);
    case KEY_BLOCK_K:
      return parse_number(run, "--block-k", arg, &job->block_k);
    case KEY_SCALE_ROWS_Q:
      return parse_number(run, "--scale-rows-q", arg, &job->scale_rows_q);
    case KEY_SCALE_ROWS_K:
      return parse_number(run, "--scale-rows-k", arg, &job->scale_rows_k);
    case KEY_DTYPE:
      if (strcmp(arg, "bf16") == 0) {
        job->void2_is_bf16 = true;
        return 0;
      }
      cli_fail(run->state.message, "'%s'; accepted: bf16 (other types are stated by the files)",
               arg);
      return parse_refuse(&run->state, "--dtype");
    default:
      return parse_common(key, argp_state, &run->state);
  }
}

// An output must not replace a file that is read: a .safetensors input would lose its tensors.
static bool is_input_file(const run_options *run, const char *spec, cli_message *message) {
  char path[4096], other[4096];
  const char *name;
  file_format format;
  struct stat a, b;
  cli_message ignored;
  if (!file_spec_split(spec, path, sizeof path, &name, &format, &ignored) || stat(path, &a) != 0) {
    return false;
  }
  for (int i = 0; i < IN_COUNT; ++i) {
    const char *input = run->job.spec[i];
    if (input == NULL || !file_spec_split(input, other, sizeof other, &name, &format, &ignored) ||
        stat(other, &b) != 0 || a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
      continue;
    }
    cli_fail(message, "%s is also read by --%s; accepted: another file", path,
             job_inputs[i].option);
    return true;
  }
  return false;
}

static size_t list_outputs(const run_options *run, output_tensor *outputs) {
  size_t count = 0;
  if (run->o != NULL) outputs[count++] = (output_tensor){"--o", run->o, "o", &run->job.o};
  if (run->lse != NULL) outputs[count++] = (output_tensor){"--lse", run->lse, "lse", &run->job.lse};
  if (run->max_logit != NULL) {
    outputs[count++] =
        (output_tensor){"--max-logit", run->max_logit, "max_logit", &run->job.max_logit};
  }
  return count;
}

static bool check_options(run_options *run, cli_message *message) {
  for (int i = IN_Q; i <= IN_V; ++i) {
    if (run->job.spec[i] == NULL) {
      return cli_fail(message, "--%s: not given; accepted: a .npy or .safetensors file",
                      job_inputs[i].option);
    }
  }
  if (run->job.alibi_auto && run->job.spec[IN_ALIBI] != NULL) {
    return cli_fail(message, "--alibi: given as auto and as a file; accepted: one of them");
  }
  if (run->problem.seed_given && !(run->problem.dropout > 0)) {
    return cli_fail(message, "--seed, --offset: nothing to seed; accepted: with --dropout above 0");
  }
  output_tensor outputs[OUTPUT_MAX];
  size_t count = list_outputs(run, outputs);
  if (!output_check(outputs, count, message)) return false;
  for (size_t i = 0; i < count; ++i) {
    if (is_input_file(run, outputs[i].spec, message))
      return cli_fail_in(message, outputs[i].option);
  }
  run->job.want_lse = run->lse != NULL;
  run->job.want_max_logit = run->max_logit != NULL;
  return true;
}

typedef struct run_result {
  tsr_plan_info info;
  char backend[64], kernel[128];
  double seconds;
} run_result;

// Plans and runs one job. Returns an exit status.
static int execute(tsr_context *context, tsr_device device, attention_job *job, const char *what,
                   bool quiet, run_result *result, cli_message *message) {
  tsr_plan *plan = NULL;
  device_job on;
  tsr_status status = tsr_plan_create(&plan, context, device, &job->problem);
  if (status != TSR_STATUS_SUCCESS) return cli_library_error(status, false, message);
  if (!device_job_open(&on, device, job, message)) {
    tsr_plan_destroy(plan);
    return CLI_EXIT_FAILED;
  }
  bool copied = true;
  result->info = (tsr_plan_info){.struct_size = sizeof result->info};
  status = tsr_plan_describe(plan, TSR_PASS_FORWARD, &result->info);
  if (status == TSR_STATUS_SUCCESS) {
    // The plan's strings go with it.
    snprintf(result->backend, sizeof result->backend, "%s", result->info.backend);
    snprintf(result->kernel, sizeof result->kernel, "%s", result->info.kernel);
    progress_begin(what, result->info.flops, result->info.seconds, quiet);
    status = tsr_forward(plan, &on.args);
    copied = status != TSR_STATUS_SUCCESS || device_job_wait(&on, message);
    result->seconds = progress_end();
    copied = copied && (status != TSR_STATUS_SUCCESS || device_job_fetch(&on, message));
  }
  int code = status == TSR_STATUS_SUCCESS ? CLI_EXIT_OK : cli_library_error(status, false, message);
  tsr_plan_destroy(plan);
  device_job_close(&on);
  return copied ? code : CLI_EXIT_FAILED;
}

typedef struct comparison {
  run_result run;
  error_figures o, lse;
  bool has_lse;
} comparison;

static int compare(tsr_context *context, const run_options *run, comparison *out,
                   cli_message *message) {
  attention_job peer;
  int code = CLI_EXIT_OK;
  if (!attention_job_peer(&peer, &run->job, &run->problem, run->compare, message)) {
    code = cli_message_is_memory(message) ? CLI_EXIT_FAILED : CLI_EXIT_BAD_INPUT;
  } else {
    problem_options other = {.backend = run->compare};
    code = execute(context, cli_device(context, &other), &peer, run->compare, run->quiet, &out->run,
                   message);
  }
  if (code == CLI_EXIT_OK) {
    out->o = file_tensor_compare(&run->job.o, &peer.o);
    out->has_lse = run->job.want_lse;
    if (out->has_lse) out->lse = file_tensor_compare(&run->job.lse, &peer.lse);
  } else {
    cli_fail_in(message, "--compare");
  }
  attention_job_free(&peer);
  return code;
}

static const char *batch_text(const tsr_problem *p, char *buffer, size_t capacity) {
  const bool packed = (p->arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K)) != 0;
  if (p->page_size > 0) {
    snprintf(buffer, capacity,
             "B %" PRId64 "  Hq %" PRId64 "  Hkv %" PRId64 "  Sq %" PRId64 "  %" PRId64
             " pages of %" PRId64 "  D %" PRId64 "/%" PRId64,
             p->batch, p->heads_q, p->heads_kv, p->seq_q, p->num_pages, p->page_size, p->dim_qk,
             p->dim_v);
  } else {
    snprintf(buffer, capacity,
             "B %" PRId64 "  Hq %" PRId64 "  Hkv %" PRId64 "  Sq %s%" PRId64 "  Sk %s%" PRId64
             "  D %" PRId64 "/%" PRId64,
             p->batch, p->heads_q, p->heads_kv, packed ? "up to " : "", p->seq_q,
             packed ? "up to " : "", p->seq_k, p->dim_qk, p->dim_v);
  }
  return buffer;
}

static void print_difference(const char *what, const error_figures *e) {
  printf("%-10s max %.3g  RMS %.3g  (largest value %.3g, RMS %.3g)\n", what, e->max_error,
         e->rms_error, e->max_reference, e->rms_reference);
}

static void print_text(const run_options *run, const run_result *result, const comparison *diff) {
  const tsr_problem *p = &run->job.problem;
  char a[128], b[64], shape[160];
  printf("problem    %s, %s\n", batch_text(p, a, sizeof a), cli_dtype_name(p->q.dtype));
  printf("kernel     %s (backend %s, tile %" PRId64 "x%" PRId64 ")\n", result->kernel,
         result->backend, result->info.tile_q, result->info.tile_k);
  printf("time       %s", text_seconds(result->seconds, a, sizeof a));
  printf("  %.1f GFLOP/s", result->seconds > 0 ? result->info.flops / result->seconds * 1e-9 : 0.0);
  printf("  (%s and %s predicted, workspace %s)\n", text_flops(result->info.flops, a, sizeof a),
         text_bytes(result->info.bytes, b, sizeof b),
         text_bytes((double)result->info.workspace, shape, sizeof shape));
  if (diff != NULL) {
    printf("compared   with %s, which took %s\n", diff->run.backend,
           text_seconds(diff->run.seconds, a, sizeof a));
    print_difference("  O", &diff->o);
    if (diff->has_lse) print_difference("  LSE", &diff->lse);
  }
  output_tensor outputs[OUTPUT_MAX];
  size_t count = list_outputs(run, outputs);
  for (size_t i = 0; i < count; ++i) {
    printf("written    %s  %s %s\n", outputs[i].spec,
           file_dtype_info(outputs[i].tensor->dtype)->name,
           file_shape_text(outputs[i].tensor, shape, sizeof shape));
  }
}

static json_t *difference_json(const error_figures *e) {
  return json_pack("{s:o, s:o, s:o, s:o}", "max_error", json_real_or_null(e->max_error),
                   "rms_error", json_real_or_null(e->rms_error), "max_reference",
                   json_real_or_null(e->max_reference), "rms_reference",
                   json_real_or_null(e->rms_reference));
}

static bool print_json(const run_options *run, const run_result *result, const comparison *diff) {
  const tsr_problem *p = &run->job.problem;
  json_t *root = json_pack("{s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}}", "problem", "batch",
                           (json_int_t)p->batch, "heads_q", (json_int_t)p->heads_q, "heads_kv",
                           (json_int_t)p->heads_kv, "seq_q", (json_int_t)p->seq_q, "seq_k",
                           (json_int_t)(p->page_size > 0 ? p->page_size * p->max_pages : p->seq_k),
                           "dim_qk", (json_int_t)p->dim_qk, "dim_v", (json_int_t)p->dim_v, "dtype",
                           cli_dtype_name(p->q.dtype));
  json_object_set_new(
      root, "plan",
      json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:I}", "backend", result->backend, "kernel",
                result->kernel, "tile_q", (json_int_t)result->info.tile_q, "tile_k",
                (json_int_t)result->info.tile_k, "flops", json_real_or_null(result->info.flops),
                "bytes", json_real_or_null(result->info.bytes), "seconds",
                json_real_or_null(result->info.seconds), "workspace",
                (json_int_t)result->info.workspace));
  json_object_set_new(root, "seconds", json_real_or_null(result->seconds));
  if (diff != NULL) {
    json_t *object =
        json_pack("{s:s, s:o, s:o}", "backend", diff->run.backend, "seconds",
                  json_real_or_null(diff->run.seconds), "o", difference_json(&diff->o));
    if (diff->has_lse) json_object_set_new(object, "lse", difference_json(&diff->lse));
    json_object_set_new(root, "compare", object);
  }
  output_tensor outputs[OUTPUT_MAX];
  size_t count = list_outputs(run, outputs);
  json_t *written = json_array();
  for (size_t i = 0; i < count; ++i) json_array_append_new(written, json_string(outputs[i].spec));
  json_object_set_new(root, "written", written);
  return json_print(root);
}

static int finish(run_options *run, tsr_context *context, cli_message *message) {
  run_result result = {.seconds = 0};
  comparison diff = {.has_lse = false};
  int code = execute(context, cli_device(context, &run->problem), &run->job, "run", run->quiet,
                     &result, message);
  if (code == CLI_EXIT_OK && run->compare != NULL) code = compare(context, run, &diff, message);
  if (code != CLI_EXIT_OK) return code;
  output_tensor outputs[OUTPUT_MAX];
  size_t count = list_outputs(run, outputs);
  if (!output_write_all(outputs, count, message)) return CLI_EXIT_FAILED;
  const comparison *shown = run->compare != NULL ? &diff : NULL;
  if (!run->json) {
    print_text(run, &result, shown);
  } else if (!print_json(run, &result, shown)) {
    return CLI_EXIT_FAILED;
  }
  return CLI_EXIT_OK;
}

int command_run(int argc, char **argv) {
  struct argp_option options[1 + IN_COUNT + kFixedCount];
  options[0] =
      (struct argp_option){.doc = "Inputs (.npy, .safetensors, .safetensors:NAME):", .group = 1};
  for (int i = 0; i < IN_COUNT; ++i) {
    options[1 + i] = (struct argp_option){.name = job_inputs[i].option,
                                          .key = KEY_INPUT + i,
                                          .arg = "FILE",
                                          .doc = job_inputs[i].help,
                                          .group = 1};
  }
  memcpy(options + 1 + IN_COUNT, kFixed, sizeof kFixed);
  const struct argp_child children[] = {{&problem_options_argp, 0, 0, 0}, {0}};
  const struct argp argp = {
      options,  parse_run, 0, "Attention on Q, K, V from files; O and LSE are written back.",
      children, 0,         0};
  cli_message message = {.text = ""};
  run_options run = {.state = {.message = &message}};
  problem_options_init(&run.problem, &run.state);
  parse_result parsed = parse_command(&argp, "tessera run", argc, argv, &run.state, &run);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;

  int code = CLI_EXIT_BAD_INPUT;
  tsr_context *context = NULL;
  if (parsed == PARSE_OK && check_options(&run, &message) &&
      attention_job_read(&run.job, &message) &&
      attention_job_build(&run.job, &run.problem, &message)) {
    const tsr_runner runner = progress_runner(run.problem.threads);
    if (cli_context_create(&context, 0, &runner, &message)) code = finish(&run, context, &message);
  }
  if (code != CLI_EXIT_OK) {
    if (cli_message_is_memory(&message)) code = CLI_EXIT_FAILED;
    cli_print_error(&message);
  }
  tsr_context_destroy(context);
  attention_job_free(&run.job);
  return code;
}
