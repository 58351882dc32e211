// SPDX-License-Identifier: Apache-2.0
// tessera bench: checked timings with their protocol, one record per length; as a table, JSON
// lines, or an SVG plot. What is measured and how is in bench/README.md; this file reads options
// and prints.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "atomic_output.h"
#include "bench/bench_attention.h"
#include "bench/peak_memory.h"
#include "bench/report.h"
#include "commands.h"
#include "field_names.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "text.h"

enum {
  KEY_PASS = PARSE_KEY_COMMAND,
  KEY_REPEATS,
  KEY_WARMUP,
  KEY_SAMPLE,
  KEY_NO_CHECK,
  KEY_STANDARD,
  KEY_MEMORY,
  KEY_PLOT,
  KEY_JSON,
};

typedef struct bench_options {
  parse_state state;
  problem_options problem;
  shape_options shape;
  int pass;
  int64_t repeats, warmup;
  double sample_seconds;
  bool no_check, standard, memory, json;
  const char *plot;
} bench_options;

static const struct argp_option kOptions[] = {
    {"pass", KEY_PASS, "PASS", 0, "forward (default) or backward", 1},
    {0, 0, 0, 0, "Protocol:", 4},
    {"repeats", KEY_REPEATS, "N", 0, "Samples (default 15)", 4},
    {"warmup", KEY_WARMUP, "N", 0, "Calls before the first sample (default 3)", 4},
    {"sample-seconds", KEY_SAMPLE, "X", 0, "Seconds a sample lasts at least (default 0.02)", 4},
    {"no-check", KEY_NO_CHECK, 0, 0, "Time without comparing with the oracle first; records say so",
     4},
    {"standard", KEY_STANDARD, 0, 0, "Also time standard (materialised) attention", 4},
    {"memory", KEY_MEMORY, 0, 0,
     "Instead of time: peak memory of one call besides its tensors, each in a process of its own",
     4},
    {"plot", KEY_PLOT, "FILE.svg", 0, "Plot speed over --sq with gnuplot", 4},
    {"json", KEY_JSON, 0, 0, "One JSON object per line", 4},
    PARSE_HELP_OPTION,
    {0}};

static const parse_word kPasses[] = {
    {"forward", TSR_PASS_FORWARD}, {"backward", TSR_PASS_BACKWARD}, {NULL, 0}};

static error_t parse_bench(int key, char *arg, struct argp_state *argp_state) {
  bench_options *options = argp_state->input;
  cli_message *message = options->state.message;
  switch (key) {
    case ARGP_KEY_INIT:
      argp_state->child_inputs[0] = &options->shape;
      argp_state->child_inputs[1] = &options->problem;
      return 0;
    case KEY_PASS:
      if (parse_choice(arg, kPasses, &options->pass, message)) return 0;
      return parse_refuse(&options->state, "--pass");
    case KEY_REPEATS:
      if (parse_int64(arg, 1, BENCH_SAMPLES_MAX, &options->repeats, message)) return 0;
      return parse_refuse(&options->state, "--repeats");
    case KEY_WARMUP:
      if (parse_int64(arg, 1, 1000000, &options->warmup, message)) return 0;
      return parse_refuse(&options->state, "--warmup");
    case KEY_SAMPLE:
      if (parse_real(arg, &options->sample_seconds, message) && options->sample_seconds > 0) {
        return 0;
      }
      if (options->sample_seconds <= 0) cli_fail(message, "'%s'; accepted: above 0", arg);
      return parse_refuse(&options->state, "--sample-seconds");
    case KEY_NO_CHECK:
      options->no_check = true;
      return 0;
    case KEY_STANDARD:
      options->standard = true;
      return 0;
    case KEY_MEMORY:
      options->memory = true;
      return 0;
    case KEY_PLOT:
      options->plot = arg;
      return 0;
    case KEY_JSON:
      options->json = true;
      return 0;
    default:
      return parse_common(key, argp_state, &options->state);
  }
}

static bool check_options(const bench_options *options, cli_message *message) {
  if (options->memory && (options->plot != NULL || options->no_check)) {
    return cli_fail(message,
                    "%s: found with --memory, which times and checks nothing; accepted: one "
                    "of the two",
                    options->plot != NULL ? "--plot" : "--no-check");
  }
  if (options->plot == NULL) return true;
  size_t n = strlen(options->plot);
  if (n < 5 || strcmp(options->plot + n - 4, ".svg") != 0) {
    return cli_fail(message, "--plot: '%s'; accepted: a file name that ends in .svg",
                    options->plot);
  }
  if (!report_can_plot()) {
    return cli_fail(message,
                    "--plot: gnuplot is not installed here; accepted: with gnuplot on "
                    "PATH (package gnuplot-nox), or without --plot");
  }
  return true;
}

static void print_head(const bench_machine *machine, const bench_probe *probe,
                       const bench_options *options) {
  printf("# tessera %s; %s, %d threads, clock %.2f GHz; %s\n", tsr_version_string(), machine->cpu,
         probe->threads, probe->clock_hz * 1e-9, machine->compiler);
  printf("# probes: float32 %s %.1f GFLOP/s (median %.1f), memory read %.1f GB/s (median %.1f)\n",
         probe->isa, probe->flops_f32 * 1e-9, probe->fma.median * 1e-9, probe->read_bytes * 1e-9,
         probe->read.median * 1e-9);
  printf("# float32 FMA by threads:");
  for (int i = 0; i < probe->scalings; ++i) {
    printf(" %d: %.1f", probe->scaling[i].threads, probe->scaling[i].flops * 1e-9);
  }
  printf(" GFLOP/s\n");
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
}

static int exit_of(bench_status status) {
  return status == BENCH_OK        ? CLI_EXIT_OK
         : status == BENCH_REFUSED ? CLI_EXIT_BAD_INPUT
                                   : CLI_EXIT_FAILED;
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

// Problem of the i-th length. False: refused.
static bool make_request(const bench_options *options, tsr_context *context, size_t i,
                         bench_request *request, cli_message *message) {
  *request = (bench_request){.context = context,
                             .problem = TSR_PROBLEM_INIT,
                             .pass = (tsr_pass)options->pass,
                             .seed = options->problem.seed,
                             .warmup = (int)options->warmup,
                             .repeats = (int)options->repeats,
                             .sample_seconds = options->sample_seconds,
                             .check = !options->no_check,
                             .standard = options->standard,
                             .threads = (int)options->problem.threads};
  tsr_problem *p = &request->problem;
  if (!shape_options_apply(&options->shape, &options->problem, i, p, message)) return false;
  if (p->batch > 0 && p->heads_q > 0 && p->heads_kv > 0 && p->seq_q > 0) return true;
  return cli_fail(message,
                  "--b, --hq, --hkv, --sq: the problem has no rows, nothing to time; accepted: all "
                  "above 0");
}

// Plans every length before anything is measured or printed, so that a refusal is all there is.
static int plan_all(const bench_options *options, tsr_context *context, cli_message *message) {
  for (size_t i = 0; i < shape_options_count(&options->shape); ++i) {
    bench_request request;
    char why[1024];
    if (!make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    int code = exit_of(bench_plan(&request, why, sizeof why));
    if (code == CLI_EXIT_OK) continue;
    cli_fail(message, "%s", why);
    cli_name_option(message, true);
    return code;
  }
  return CLI_EXIT_OK;
}

static int run_all(const bench_options *options, tsr_context *context, cli_message *message) {
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
                                        "error/bound"};
  size_t count = shape_options_count(&options->shape);
  bench_record records[16];
  bench_machine machine;
  bench_probe probe;
  bench_machine_read(&machine);
  bench_probe_run(&probe, (int)options->problem.threads);
  text_table table = {.columns = 0};
  if (!options->json) {
    print_head(&machine, &probe, options);
    table_begin(&table, "lllllrrrrrrl", kHeader);
  }
  int code = CLI_EXIT_OK;
  for (size_t i = 0; code == CLI_EXIT_OK && i < count; ++i) {
    bench_request request;
    char why[1024];
    if (!make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    code = exit_of(bench_attention(&request, &records[i], why, sizeof why));
    if (code != CLI_EXIT_OK) {
      cli_fail(message, "%s", why);
      cli_name_option(message, true);
    } else if (!options->json) {
      table_row(&table, options, &records[i], &probe);
    } else if (!json_print_line(report_json(&records[i], &probe, &machine))) {
      code = CLI_EXIT_FAILED;
    }
  }
  if (!options->json) {
    table_print(&table, stdout);
    if (code == CLI_EXIT_OK && records[0].bytes_measured < 0) {
      printf("# bytes are predicted; not measured: %s\n", records[0].bytes_reason);
    }
  }
  table_free(&table);
  if (code == CLI_EXIT_OK && options->plot != NULL) {
    code = write_plot(options, records, count, &probe, &machine, message);
  }
  return code;
}

static void memory_row(text_table *table, const bench_request *request, const bench_peak *peak,
                       const bench_peak *standard) {
  char text[64], mask[256];
  const tsr_problem *p = &request->problem;
  table_cell(table,
             "%" PRId64 " %" PRId64 "/%" PRId64 " %" PRId64 "x%" PRId64 " %" PRId64 "/%" PRId64,
             p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_k, p->dim_qk,
             p->dim_v > 0 ? p->dim_v : p->dim_qk);
  table_cell(table, "%s", bench_dtype_name(p->q.dtype));
  table_cell(table, "%.90s", report_mask(p, mask, sizeof mask));
  table_cell(table, "%.90s", peak->kernel);
  table_cell(table, "%s", text_bytes((double)peak->tensors, text, sizeof text));
  table_cell(table, "%s", text_bytes((double)peak->workspace, text, sizeof text));
  table_cell(table, "%s", text_bytes((double)peak->extra, text, sizeof text));
  if (standard != NULL) {
    table_cell(table, "%s", text_bytes((double)standard->extra, text, sizeof text));
  } else {
    table_cell(table, "-");
  }
}

// Nothing here may start threads: the measuring processes are copies of this one.
static int run_memory(const bench_options *options, tsr_context *context, cli_message *message) {
  static const char *const kHeader[] = {
      "B Hq/Hkv SqxSk D/Dv", "type",       "mask",       "kernel", "tensors",
      "workspace",           "extra peak", "of standard"};
  size_t count = shape_options_count(&options->shape);
  bench_machine machine;
  bench_machine_read(&machine);
  text_table table = {.columns = 0};
  if (!options->json) table_begin(&table, "llllrrrr", kHeader);
  int code = CLI_EXIT_OK;
  for (size_t i = 0; code == CLI_EXIT_OK && i < count; ++i) {
    bench_request request;
    bench_peak peak, standard;
    char why[1024];
    if (!make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    bench_status status = bench_peak_memory(&request, false, &peak, why, sizeof why);
    if (status == BENCH_OK && options->standard) {
      status = bench_peak_memory(&request, true, &standard, why, sizeof why);
    }
    code = exit_of(status);
    const bench_peak *other = options->standard ? &standard : NULL;
    if (code != CLI_EXIT_OK) {
      cli_fail(message, "%s", why);
    } else if (!options->json) {
      memory_row(&table, &request, &peak, other);
    } else if (!json_print_line(
                   report_peak_json(&request.problem, request.pass, &peak, other, &machine))) {
      code = CLI_EXIT_FAILED;
    }
  }
  if (!options->json) table_print(&table, stdout);
  table_free(&table);
  return code;
}

int command_bench(int argc, char **argv) {
  const struct argp_child children[] = {
      {&shape_options_argp, 0, 0, 0}, {&problem_options_argp, 0, 0, 0}, {0}};
  const struct argp argp = {
      kOptions, parse_bench, 0, "Times attention on random inputs, after checking the result.",
      children, 0,           0};
  cli_message message = {.text = ""};
  bench_options options = {.state = {.message = &message},
                           .pass = TSR_PASS_FORWARD,
                           .repeats = 15,
                           .warmup = 3,
                           .sample_seconds = 0.02};
  problem_options_init(&options.problem, &options.state);
  shape_options_init(&options.shape, &options.state);
  parse_result parsed = parse_command(&argp, "tessera bench", argc, argv, &options.state, &options);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;
  tsr_context *context = NULL;
  int code = CLI_EXIT_BAD_INPUT;
  if (parsed == PARSE_OK && check_options(&options, &message) &&
      cli_context_create(&context, options.problem.threads, NULL, &message)) {
    code = plan_all(&options, context, &message);
    if (code == CLI_EXIT_OK) {
      code = options.memory ? run_memory(&options, context, &message)
                            : run_all(&options, context, &message);
    }
  }
  if (code != CLI_EXIT_OK) cli_print_error(&message);
  tsr_context_destroy(context);
  return code;
}
