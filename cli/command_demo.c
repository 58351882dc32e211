// SPDX-License-Identifier: Apache-2.0
// tessera demo: attention on Q, K, V captured from real models, by every backend present and by
// standard attention. Each layer's result is compared with the double-precision oracle and with the
// O and LSE that the file may hold; the table shows kernel, time, predicted bytes, errors, and the
// speed-up over standard attention. Tensors are named <model>.lNN.q, .k, .v [, .o, .lse], axes
// [B, H, S, D]; the file's metadata holds <model>.scale and <model>.causal.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "attention_job.h"
#include "bench/accuracy.h"
#include "bench/bench_attention.h"
#include "bench/report.h"
#include "commands.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "safetensors.h"
#include "source.h"
#include "tests/support/backends.h"
#include "text.h"

enum { KEY_BACKEND = PARSE_KEY_COMMAND, KEY_THREADS, KEY_REPEATS, KEY_JSON };

typedef struct demo_options {
  parse_state state;
  const char *file, *backend;
  int64_t threads, repeats;
  bool json;
} demo_options;

static const struct argp_option kOptions[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "Only this backend (default: every one present)", 1},
    {"threads", KEY_THREADS, "N", 0, "Worker threads (default: all)", 1},
    {"repeats", KEY_REPEATS, "N", 0, "Samples per timing (default 9)", 1},
    {"json", KEY_JSON, 0, 0, "One JSON object per line", 1},
    PARSE_HELP_OPTION,
    {0}};

static error_t parse_demo(int key, char *arg, struct argp_state *argp_state) {
  demo_options *options = argp_state->input;
  cli_message *message = options->state.message;
  switch (key) {
    case KEY_BACKEND:
      options->backend = arg;
      return 0;
    case KEY_JSON:
      options->json = true;
      return 0;
    case KEY_THREADS:
      if (parse_int64(arg, 1, 4096, &options->threads, message)) return 0;
      return parse_refuse(&options->state, "--threads");
    case KEY_REPEATS:
      if (parse_int64(arg, 1, BENCH_SAMPLES_MAX, &options->repeats, message)) return 0;
      return parse_refuse(&options->state, "--repeats");
    case ARGP_KEY_ARG:
      if (options->file == NULL) {
        options->file = arg;
        return 0;
      }
      return parse_common(key, argp_state, &options->state);
    default:
      return parse_common(key, argp_state, &options->state);
  }
}

typedef struct layer {
  char name[64];  // "smollm2.l07"
  file_tensor q, k, v, o, lse;
  tsr_problem problem;
  double stored_error;  // of O against the file's, over what two roundings allow; NaN: none stored
  double standard_error;  // max of standard attention's O against the file's O; NaN: none stored
} layer;

static const char *metadata_for(const safetensors_file *file, const char *name, const char *key) {
  char full[96];
  const char *dot = strchr(name, '.');
  snprintf(full, sizeof full, "%.*s.%s", (int)(dot != NULL ? dot - name : 0), name, key);
  return safetensors_metadata(file, full);
}

static bool load_part(const safetensors_file *file, const byte_source *source, const char *name,
                      const char *part, bool required, file_tensor *out, cli_message *message) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", name, part);
  const safetensors_entry *entry = safetensors_find(file, full);
  *out = (file_tensor){.dtype = FILE_F32};
  if (entry == NULL)
    return !required || cli_fail(message, "has %s.q but no tensor \"%s\"", name, full);
  return safetensors_load(out, file, entry, source, message);
}

static bool set_problem(layer *at, const safetensors_file *file, cli_message *message) {
  static const parse_word kCausal[] = {{"none", TSR_CAUSAL_NONE},
                                       {"top-left", TSR_CAUSAL_TOP_LEFT},
                                       {"bottom-right", TSR_CAUSAL_BOTTOM_RIGHT},
                                       {NULL, 0}};
  const file_tensor *q = &at->q, *k = &at->k, *v = &at->v;
  tsr_problem *p = &at->problem;
  *p = (tsr_problem)TSR_PROBLEM_INIT;
  if (q->rank != 4 || k->rank != 4 || v->rank != 4 || q->dtype != k->dtype ||
      k->dtype != v->dtype || q->dtype > FILE_F64 || q->shape[0] != k->shape[0] ||
      q->shape[3] != k->shape[3] || memcmp(k->shape, v->shape, 3 * sizeof k->shape[0]) != 0) {
    return cli_fail(message,
                    "%s: q, k, v do not belong together; accepted: [B, H, S, D] of one "
                    "floating-point type",
                    at->name);
  }
  const char *scale = metadata_for(file, at->name, "scale");
  const char *causal = metadata_for(file, at->name, "causal");
  if (scale == NULL || causal == NULL) {
    return cli_fail(message, "metadata has no scale and causal for the model of %s", at->name);
  }
  double number;
  int corner;
  if (!parse_real(scale, &number, message) || !parse_choice(causal, kCausal, &corner, message)) {
    return cli_fail_in(message, at->name);
  }
  p->batch = q->shape[0];
  p->heads_q = q->shape[1];
  p->heads_kv = k->shape[1];
  p->seq_q = q->shape[2];
  p->seq_k = k->shape[2];
  p->dim_qk = q->shape[3];
  p->dim_v = v->shape[3];
  p->scale = (float)number;
  p->causal = (tsr_causal)corner;
  p->q = p->k = p->v = p->o = (tsr_layout){.dtype = job_dtype(q->dtype), .alignment = 64};
  return true;
}

static bool load_layer(layer *at, const safetensors_file *file, const byte_source *source,
                       cli_message *message) {
  return load_part(file, source, at->name, "q", true, &at->q, message) &&
         load_part(file, source, at->name, "k", true, &at->k, message) &&
         load_part(file, source, at->name, "v", true, &at->v, message) &&
         load_part(file, source, at->name, "o", false, &at->o, message) &&
         load_part(file, source, at->name, "lse", false, &at->lse, message) &&
         set_problem(at, file, message);
}

static void free_layer(layer *at) {
  file_tensor_free(&at->q);
  file_tensor_free(&at->k);
  file_tensor_free(&at->v);
  file_tensor_free(&at->o);
  file_tensor_free(&at->lse);
}

static bench_tensor view(const file_tensor *t) {
  bench_tensor out = {.dtype = job_dtype(t->dtype), .count = t->count, .data = t->data};
  memcpy(out.shape, t->shape, sizeof out.shape);
  memcpy(out.stride, t->stride, sizeof out.stride);
  return out;
}

// Largest difference from the stored tensor, and the largest stored value.
static double difference(const bench_tensor *x, const file_tensor *stored, double *size) {
  double most = 0;
  *size = 0;
  for (int64_t i = 0; i < stored->count; ++i) {
    double a = accuracy_load(x->dtype, x->data, i), b = file_tensor_get(stored, i);
    double error = fabs(a - b);
    if (!(error <= most)) most = isnan(error) && !(isnan(a) && isnan(b)) ? (double)INFINITY : error;
    if (isfinite(b) && fabs(b) > *size) *size = fabs(b);
  }
  return most;
}

// The stored O and LSE were rounded once from double: a correct 16-bit O is within two roundings of
// them, a float32 one within the few that its sums need.
static void inspect(void *user, bool standard, const bench_tensor *o, const bench_tensor *lse) {
  layer *at = user;
  double size;
  if (at->o.data == NULL || at->o.count != o->count) return;
  double error = difference(o, &at->o, &size);
  if (standard) {
    at->standard_error = error;
    return;
  }
  bool wide = o->dtype == TSR_DTYPE_F32 || o->dtype == TSR_DTYPE_F64;
  double u = wide ? 0x1p-24 : o->dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  at->stored_error = error / ((wide ? 32.0 : 2.0) * u * size);
  if (at->lse.data == NULL || at->lse.count != lse->count) return;
  error = difference(lse, &at->lse, &size);
  at->stored_error = fmax(at->stored_error, error / (32.0 * 0x1p-24 * fmax(size, 1.0)));
}

typedef struct demo_run {
  const demo_options *options;
  tsr_context *context;
  bench_machine machine;
  bench_probe probe;
  bench_device gpu;  // of the backends on devices; opened when one runs
  text_table table;
  int code;
} demo_run;

static void report(demo_run *run, const layer *at, const bench_record *r) {
  bool wrong = r->ratio > 1.0 || at->stored_error > 1.0;
  if (run->options->json) {
    json_t *root = report_json(r, &run->probe, &run->machine);
    json_object_set_new(root, "layer", json_string(at->name));
    json_object_set_new(root, "stored_error_over_bound", json_real_or_null(at->stored_error));
    json_object_set_new(root, "correct", json_boolean(!wrong));
    if (!json_print_line(root)) run->code = CLI_EXIT_FAILED;
    return;
  }
  const tsr_problem *p = &r->problem;
  text_table *table = &run->table;
  char text[64];
  table_cell(table, "%s", at->name);
  table_cell(table, "%lldx%lld/%lldx%lldx%lld %s", (long long)p->batch, (long long)p->heads_q,
             (long long)p->heads_kv, (long long)p->seq_q, (long long)p->dim_qk,
             bench_dtype_name(p->q.dtype));
  table_cell(table, "%s", r->backend);
  table_cell(table, "%.90s", r->kernel);
  table_cell(table, "%s", text_seconds(r->times.median, text, sizeof text));
  table_cell(table, "%.1f", r->flops / r->times.median * 1e-9);
  table_cell(table, "%s", text_bytes(r->bytes, text, sizeof text));
  table_cell(table, "%.2e", r->max_error);
  table_cell(table, "%.2e", r->rms_error);
  table_cell(table, "%.2f", r->ratio);
  if (isnan(at->stored_error)) {
    table_cell(table, "-");
  } else {
    table_cell(table, "%.2f", at->stored_error);
  }
  if (r->standard) {
    table_cell(table, "%.2fx%s", r->standard_times.median / r->times.median,
               wrong ? "  WRONG" : "");
  } else {
    table_cell(table, "-%s", wrong ? "  WRONG" : "");
  }
}

static void standard_row(demo_run *run, const layer *at, const bench_record *r) {
  if (run->options->json) return;  // the records hold it
  text_table *table = &run->table;
  char text[64];
  table_cell(table, "%s", at->name);
  table_cell(table, " ");
  table_cell(table, "-");
  table_cell(table, "standard attention, float32 inside");
  table_cell(table, "%s", text_seconds(r->standard_times.median, text, sizeof text));
  table_cell(table, "%.1f", r->flops / r->standard_times.median * 1e-9);
  table_cell(table, "%s", text_bytes(r->standard_bytes, text, sizeof text));
  if (isnan(at->standard_error)) {
    table_cell(table, "-");
  } else {
    table_cell(table, "%.2e", at->standard_error);
  }
  for (int i = 0; i < 3; ++i) table_cell(table, "-");
  table_cell(table, "1.00x");
}

// One layer on one backend. False stops the demo, message says why.
static bool run_layer(demo_run *run, layer *at, const char *backend, bool *standard_shown,
                      cli_message *message) {
  bench_tensor q = view(&at->q), k = view(&at->k), v = view(&at->v);
  at->stored_error = at->standard_error = (double)NAN;
  bench_request request = {.context = run->context,
                           .problem = at->problem,
                           .pass = TSR_PASS_FORWARD,
                           .warmup = 3,
                           .repeats = (int)run->options->repeats,
                           .sample_seconds = 0.01,
                           .check = true,
                           .device = tsr_backends_device(run->context, backend, 0),
                           .threads = (int)run->options->threads,
                           .q = &q,
                           .k = &k,
                           .v = &v,
                           .inspect = inspect,
                           .user = at};
  request.problem.backend = backend;
  request.standard = request.device.kind == TSR_DEVICE_HOST;  // the opponent is the host's
  bench_record record;
  char why[1024];
  bench_status status = bench_attention(&request, &record, why, sizeof why);
  if (status != BENCH_OK) {
    cli_fail(message, "%s on %s: %s", at->name, backend, why);
    run->code = status == BENCH_REFUSED ? CLI_EXIT_BAD_INPUT : CLI_EXIT_FAILED;
    return false;
  }
  if (request.device.kind != TSR_DEVICE_HOST) {
    char reason[512];
    if (run->gpu.gpu == NULL &&
        !bench_device_open(&run->gpu, run->context, request.device, reason, sizeof reason)) {
      cli_fail(message, "%s", reason);
      run->code = CLI_EXIT_FAILED;
      return false;
    }
    record.device = &run->gpu;
  }
  if (record.standard && !*standard_shown) {
    standard_row(run, at, &record);
    *standard_shown = true;
  }
  report(run, at, &record);
  if (at->stored_error > 1.0) {
    cli_fail(message,
             "%s on %s: differs from the file's O or LSE by %.3g times what rounding "
             "allows",
             at->name, backend, at->stored_error);
    run->code = CLI_EXIT_FAILED;
  }
  return run->code == CLI_EXIT_OK;
}

// Every backend that is present, in registry order.
static bool run_backends(demo_run *run, layer *at, cli_message *message) {
  bool any = false, standard_shown = false;
  for (int i = 0; i < tsr_context_backend_count(run->context); ++i) {
    tsr_backend_info info = {.struct_size = sizeof info};
    if (tsr_context_backend_info(run->context, i, &info) != TSR_STATUS_SUCCESS || !info.available ||
        info.devices < 1 ||
        (run->options->backend != NULL && strcmp(run->options->backend, info.name) != 0)) {
      continue;
    }
    any = true;
    if (!run_layer(run, at, info.name, &standard_shown, message)) return false;
  }
  if (any) return true;
  run->code = CLI_EXIT_BAD_INPUT;
  return cli_fail(message, "--backend: '%s' is not present; see tessera info",
                  run->options->backend != NULL ? run->options->backend : "(any)");
}

static void print_skipped(const demo_run *run) {
  for (int i = 0; i < tsr_context_backend_count(run->context); ++i) {
    tsr_backend_info info = {.struct_size = sizeof info};
    if (tsr_context_backend_info(run->context, i, &info) != TSR_STATUS_SUCCESS) continue;
    if (!info.available) printf("%s: absent: %s\n", info.name, info.reason);
  }
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Runs every layer of an opened file, by name.
static bool run_file(demo_run *run, const safetensors_file *file, const byte_source *source,
                     cli_message *message) {
  const char **names = calloc(file->count + 1, sizeof *names);
  if (names == NULL) return cli_fail_memory(message, file->count * sizeof *names);
  size_t count = 0;
  for (size_t i = 0; i < file->count; ++i) {
    const char *name = file->entries[i].name;
    size_t n = strlen(name);
    if (n > 2 && n < 60 && strcmp(name + n - 2, ".q") == 0) names[count++] = name;
  }
  qsort(names, count, sizeof *names, by_name);
  bool ok = count > 0;
  if (!ok) {
    cli_fail(message, "has no tensor named <model>.l<layer>.q; accepted: a capture of Q, K, V");
  }
  for (size_t i = 0; ok && i < count; ++i) {
    layer at = {.stored_error = (double)NAN};
    snprintf(at.name, sizeof at.name, "%.*s", (int)strlen(names[i]) - 2, names[i]);
    ok = load_layer(&at, file, source, message);
    if (ok) {
      ok = run_backends(run, &at, message);
    } else if (!cli_message_is_memory(message)) {
      run->code = CLI_EXIT_BAD_INPUT;
    }
    free_layer(&at);
  }
  free(names);
  return ok;
}

static int run_demo(const demo_options *options, tsr_context *context, cli_message *message) {
  static const char *const kHeader[] = {
      "layer", "B x Hq/Hkv x S x D", "backend",   "kernel",      "time",    "GFLOP/s",
      "bytes", "max error",          "RMS error", "error/bound", "vs file", "vs standard"};
  demo_run run = {.options = options, .context = context, .code = CLI_EXIT_BAD_INPUT};
  byte_source source;
  safetensors_file file;
  if (!source_open(&source, options->file, message)) {
    cli_fail_in(message, options->file);
    return CLI_EXIT_BAD_INPUT;
  }
  if (!safetensors_parse(&file, &source, message)) {
    cli_fail_in(message, options->file);
    source_close(&source);
    return cli_message_is_memory(message) ? CLI_EXIT_FAILED : CLI_EXIT_BAD_INPUT;
  }
  bench_machine_read(&run.machine);
  bench_probe_run(&run.probe, (int)options->threads);
  if (!options->json) {
    printf(
        "%s: attention on captured tensors\n%s, %d threads; float32 %s %.1f GFLOP/s, memory read "
        "%.1f GB/s\n\n",
        options->file, run.machine.cpu, run.probe.threads, run.probe.isa,
        run.probe.flops_f32 * 1e-9, run.probe.read_bytes * 1e-9);
    table_begin(&run.table, "llllrrrrrrrr", kHeader);
  }
  run.code = CLI_EXIT_OK;
  if (!run_file(&run, &file, &source, message)) {
    if (run.code == CLI_EXIT_OK) run.code = CLI_EXIT_BAD_INPUT;
    cli_fail_in(message, options->file);
  }
  if (!options->json) {
    table_print(&run.table, stdout);
    printf(
        "\nerror/bound: worst of O and LSE against double precision, over the accuracy contract's "
        "bound; vs file: against\nthe O and LSE stored with the capture, over what rounding "
        "allows. Both must be at most 1.\n");
    print_skipped(&run);
  }
  table_free(&run.table);
  safetensors_free(&file);
  source_close(&source);
  return run.code;
}

int command_demo(int argc, char **argv) {
  const struct argp argp = {kOptions,
                            parse_demo,
                            "FILE.safetensors",
                            "Runs every captured layer of a file on every backend present.",
                            0,
                            0,
                            0};
  cli_message message = {.text = ""};
  demo_options options = {.state = {.message = &message}, .repeats = 9};
  parse_result parsed = parse_command(&argp, "tessera demo", argc, argv, &options.state, &options);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;
  if (parsed == PARSE_OK && options.file == NULL) {
    cli_fail(&message, "no file given; accepted: tessera demo FILE.safetensors");
    parsed = PARSE_BAD;
  }
  tsr_context *context = NULL;
  int code = CLI_EXIT_BAD_INPUT;
  if (parsed == PARSE_OK && cli_context_create(&context, options.threads, NULL, &message)) {
    code = run_demo(&options, context, &message);
  }
  if (code != CLI_EXIT_OK) cli_print_error(&message);
  tsr_context_destroy(context);
  return code;
}
