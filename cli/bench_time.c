// SPDX-License-Identifier: Apache-2.0
// Timing half of `tessera bench`: the place that is timed on, rows of the table, kernels by name,
// plot.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "atomic_output.h"
#include "bench/bench_device.h"
#include "bench/report.h"
#include "bench_command.h"
#include "device_job.h"
#include "field_names.h"
#include "tests/support/backends.h"
#include "text.h"

// What is timed on: the host with its probe, or a GPU.
typedef struct bench_place {
  tsr_device device;
  bench_machine machine;
  bench_probe probe;
  bench_device gpu;
  bench_session *session;
} bench_place;

static void print_gpu(const bench_place *place) {
  const tsr_gpu_facts *f = tsr_gpu_describe(place->gpu.gpu);
  const bench_clocks clocks = bench_device_clocks(&place->gpu);
  char text[32];
  printf("# %s (%s, compute capability %d.%d, %d units, L2 %s), driver %s, CUDA %d.%d\n", f->name,
         cli_device_text(place->device, text, sizeof text), f->arch / 10, f->arch % 10, f->units,
         text_bytes((double)f->l2_bytes, (char[32]){0}, 32),
         place->gpu.driver[0] != 0 ? place->gpu.driver : "unknown", f->driver / 1000,
         f->driver % 1000 / 10);
  printf(
      "# device copy %.1f GB/s read and written; core %.0f MHz, memory %.0f MHz, %.0f W, %.0f C\n",
      place->gpu.copy_bytes * 1e-9, clocks.core_hz * 1e-6, clocks.memory_hz * 1e-6, clocks.watts,
      clocks.celsius);
}

static void print_head(const bench_place *place, const bench_options *options) {
  const bench_probe *probe = &place->probe;
  printf("# tessera %s; %s; %s\n", tsr_version_string(), place->machine.cpu,
         place->machine.compiler);
  if (place->device.kind != TSR_DEVICE_HOST) {
    print_gpu(place);
  } else {
    printf("# %d threads, clock %.2f GHz\n", probe->threads, probe->clock_hz * 1e-9);
    printf("# probes: float32 %s %.1f GFLOP/s (median %.1f), memory read %.1f GB/s (median %.1f)\n",
           probe->isa, probe->flops_f32 * 1e-9, probe->fma.median * 1e-9, probe->read_bytes * 1e-9,
           probe->read.median * 1e-9);
    printf("# float32 FMA by threads:");
    for (int i = 0; i < probe->scalings; ++i) {
      printf(" %d: %.1f", probe->scaling[i].threads, probe->scaling[i].flops * 1e-9);
    }
    printf(" GFLOP/s\n");
  }
  printf("# %" PRId64 " warm-up calls, %" PRId64
         " samples of %g s; time: median (quartile spread)\n",
         options->warmup, options->repeats, options->sample_seconds);
}

static void table_row(text_table *table, const bench_options *options, const bench_record *r,
                      const bench_probe *probe) {
  const bench_times *t = &r->times;
  char text[64], mask[256];
  const tsr_problem *p = &r->problem;
  table_cell(table,
             "%" PRId64 " %" PRId64 "/%" PRId64 " %" PRId64 "x%" PRId64 " %" PRId64 "/%" PRId64,
             p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_k, p->dim_qk, p->dim_v);
  table_cell(table, "%s", bench_dtype_name(p->q.dtype));
  table_cell(table, "%.90s", report_mask(p, mask, sizeof mask));
  table_cell(table, "%.90s", r->kernel);
  table_cell(table, "%s (%.1f %%)", text_seconds(t->median, text, sizeof text),
             100.0 * (t->upper_quartile - t->lower_quartile) / t->median);
  table_cell(table, "%.3f", r->flops / t->median * 1e-12);
  table_cell(table, "%.1f", r->bytes / t->median * 1e-9);
  table_cell(table, "%s", text_bytes(r->bytes, text, sizeof text));
  if (r->bytes_measured >= 0) {
    table_cell(table, "%s", text_bytes(r->bytes_measured, text, sizeof text));
  } else {
    table_cell(table, "-");
  }
  table_cell(table, "%.1f %%", 100.0 * bench_roofline_seconds(r, probe) / t->median);
  if (r->standard) {
    table_cell(table, "%.2f", r->standard_times.median / t->median);
  } else {
    table_cell(table, "-");
  }
  if (options->no_check) {
    table_cell(table, "%s", r->check);
  } else {
    table_cell(table, "%.3g, %s", r->ratio, r->check);
  }
  if (!options->forced) return;
  if (r->best_forced_seconds > 0) {
    table_cell(table, "%.2f %.80s", t->median / r->best_forced_seconds, r->best_forced);
  } else {
    table_cell(table, "-");
  }
}

static int write_plot(const bench_options *options, const bench_record *records, size_t count,
                      const bench_probe *probe, const bench_machine *machine,
                      cli_message *message) {
  char why[256];
  size_t length = 0;
  char *svg = report_plot(records, count, probe, machine, &length, why, sizeof why);
  if (svg == NULL) {
    cli_fail(message, "--plot: %s", why);
    return CLI_EXIT_FAILED;
  }
  bool ok = output_write_text(options->plot, svg, length, message);
  free(svg);
  return ok ? CLI_EXIT_OK : CLI_EXIT_FAILED;
}

static bool open_place(bench_place *place, const bench_options *options, tsr_context *context,
                       cli_message *message) {
  char why[512];
  place->device = cli_device(context, &options->problem);
  bench_machine_read(&place->machine);
  if (place->device.kind == TSR_DEVICE_HOST) {
    bench_probe_run(&place->probe, (int)options->problem.threads);
    return true;
  }
  place->session = bench_session_create();
  if (place->session == NULL) return cli_fail(message, "out of memory");
  return bench_device_open(&place->gpu, context, place->device, why, sizeof why) ||
         cli_fail(message, "%s", why);
}

// One request on the place; its record is printed as JSON if asked.
static int run_one(const bench_options *options, const bench_place *place, bench_request *request,
                   bench_record *record, cli_message *message) {
  char why[1024];
  if (place->session != NULL) {
    request->bench_device = &place->gpu;
    request->session = place->session;
  }
  int code = bench_exit(bench_attention(request, record, why, sizeof why));
  if (code != CLI_EXIT_OK) {
    cli_fail(message, "%s", why);
    if (code == CLI_EXIT_BAD_INPUT) cli_name_option(message, true);
  }
  record->forced = request->problem.kernel != NULL && options->forced;
  return code;
}

// The record as JSON on stdout and in --records, as asked.
static bool emit_record(const bench_options *options, const bench_place *place,
                        const bench_record *record, cli_message *message) {
  if (!options->json && options->records == NULL) return true;
  json_t *root = report_json(record, &place->probe, &place->machine);
  if (options->records != NULL) {
    FILE *file = fopen(options->records, "a");
    bool ok = file != NULL && json_dumpf(root, file, JSON_COMPACT) == 0 && fputc('\n', file) != EOF;
    if (file != NULL && fclose(file) != 0) ok = false;
    if (!ok) {
      json_decref(root);
      return cli_fail(message, "--records: %s: %s", options->records, strerror(errno));
    }
  }
  if (options->json) return json_print_line(root);
  json_decref(root);
  return true;
}

// A row or kernel that is wrong is said at once and fails the command at its end; the others are
// timed.
static void say_failure(const cli_message *message) {
  fflush(stdout);
  cli_print_error(message);
}

// Every other kernel of the backend that takes the problem, by name; the fastest goes into the
// record of the picked one.
static int run_forced(const bench_options *options, const bench_place *place,
                      const bench_request *picked, bench_record *record, cli_message *message) {
  const char *kernel;
  int code = CLI_EXIT_OK;
  for (int32_t k = 0;; ++k) {
    bench_request request = *picked;
    bench_record other;
    char ignored[1024];
    kernel = tsr_backends_kernel(request.context, record->backend, request.pass, k);
    if (kernel == NULL) return code;
    if (strcmp(kernel, record->kernel) == 0 || strstr(kernel, "naive") != NULL) continue;
    request.problem.backend = record->backend;
    request.problem.kernel = kernel;
    request.against_last = true;
    if (bench_plan(&request, ignored, sizeof ignored) != BENCH_OK) continue;
    if (run_one(options, place, &request, &other, message) != CLI_EXIT_OK) {
      say_failure(message);
      code = CLI_EXIT_FAILED;
      continue;
    }
    if (!emit_record(options, place, &other, message)) {
      say_failure(message);
      return CLI_EXIT_FAILED;
    }
    if (record->best_forced_seconds > 0 && other.times.median >= record->best_forced_seconds) {
      continue;
    }
    snprintf(record->best_forced, sizeof record->best_forced, "%s", other.kernel);
    record->best_forced_seconds = other.times.median;
  }
}

// Times every row; *timed counts those that worked. After a failure the message holds a summary.
static int run_rows(const bench_options *options, tsr_context *context, const bench_place *place,
                    bench_record *records, size_t *timed, text_table *table, cli_message *message) {
  const size_t count = bench_count(options);
  size_t failed = 0;
  for (size_t i = 0; i < count; ++i) {
    bench_request request;
    char why[1024];
    if (!bench_make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    if (options->suite_rows > 0 && bench_plan(&request, why, sizeof why) != BENCH_OK) {
      fprintf(stderr, "tessera: row %zu of the suite: %s\n", i + 1,
              why);  // the backend's to refuse
      continue;
    }
    bench_record *record = &records[*timed];
    int code = run_one(options, place, &request, record, message);
    if (code != CLI_EXIT_OK && count == 1) return code;
    if (code != CLI_EXIT_OK) {
      say_failure(message);
      failed++;
      continue;
    }
    if (options->forced) {
      failed += run_forced(options, place, &request, record, message) != CLI_EXIT_OK;
    }
    if (!options->json) table_row(table, options, record, &place->probe);
    if (!emit_record(options, place, record, message)) return CLI_EXIT_FAILED;
    ++*timed;
  }
  if (failed == 0) return CLI_EXIT_OK;
  cli_fail(message, "%zu of %zu problems failed", failed, count);
  return CLI_EXIT_FAILED;
}

int bench_time(const bench_options *options, tsr_context *context, cli_message *message) {
  static const char *const kHeader[] = {"B Hq/Hkv SqxSk D/Dv",
                                        "type",
                                        "mask",
                                        "kernel",
                                        "time",
                                        "TFLOP/s",
                                        "GB/s",
                                        "bytes",
                                        "measured",
                                        "roofline",
                                        "vs standard",
                                        "error/bound",
                                        "best forced"};
  size_t timed = 0;
  bench_record records[BENCH_SUITE_ROWS_MAX];
  bench_place place = {.session = NULL};
  text_table table = {.columns = 0};
  if (!open_place(&place, options, context, message)) {
    bench_session_destroy(place.session);
    return CLI_EXIT_FAILED;
  }
  if (!options->json) {
    print_head(&place, options);
    table_begin(&table, options->forced ? "lllllrrrrrrll" : "lllllrrrrrrl", kHeader);
  }
  int code = run_rows(options, context, &place, records, &timed, &table, message);
  if (!options->json) {
    table_print(&table, stdout);
    if (timed > 0 && records[0].bytes_measured < 0) {
      printf("# bytes are predicted; not measured: %s\n", records[0].bytes_reason);
    }
    if (options->forced) {
      printf("# best forced: time of the picked kernel over that of the fastest other by name\n");
    }
  }
  table_free(&table);
  if (code == CLI_EXIT_OK && timed > 0 && options->plot != NULL) {
    code = write_plot(options, records, timed, &place.probe, &place.machine, message);
  }
  bench_session_destroy(place.session);
  return code;
}
