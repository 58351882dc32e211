// SPDX-License-Identifier: Apache-2.0
// tessera bench: checked timings with their protocol, one record per length; as a table, JSON
// lines, or an SVG plot. What is measured and how is in bench/README.md; this file reads options,
// makes problems of them and measures memory; bench_time.c times and prints.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "bench/peak_memory.h"
#include "bench/report.h"
#include "bench_command.h"
#include "commands.h"
#include "device_job.h"
#include "field_names.h"
#include "message.h"
#include "text.h"

enum {
  KEY_PASS = PARSE_KEY_COMMAND,
  KEY_SUITE,
  KEY_FORCED,
  KEY_REPEATS,
  KEY_WARMUP,
  KEY_SAMPLE,
  KEY_NO_CHECK,
  KEY_STANDARD,
  KEY_MEMORY,
  KEY_PLOT,
  KEY_JSON,
  KEY_RECORDS,
};

static const struct argp_option kOptions[] = {
    {"pass", KEY_PASS, "PASS", 0, "forward (default) or backward", 1},
    {"suite", KEY_SUITE, "NAME", 0,
     "Instead of a shape: the shapes of published tables, prefill, short, decode, float32 or "
     "grouped; "
     "--dtype replaces theirs",
     1},
    {0, 0, 0, 0, "Protocol:", 4},
    {"repeats", KEY_REPEATS, "N", 0, "Samples (default 15)", 4},
    {"warmup", KEY_WARMUP, "N", 0, "Calls before the first sample (default 3)", 4},
    {"sample-seconds", KEY_SAMPLE, "X", 0, "Seconds a sample lasts at least (default 0.02)", 4},
    {"no-check", KEY_NO_CHECK, 0, 0, "Time without comparing with the oracle first; records say so",
     4},
    {"standard", KEY_STANDARD, 0, 0, "Also time standard (materialised) attention", 4},
    {"forced", KEY_FORCED, 0, 0,
     "Also time every other kernel of the chosen backend by name; the fastest is shown", 4},
    {"memory", KEY_MEMORY, 0, 0,
     "Instead of time: peak memory of one call besides its tensors, each in a process of its own",
     4},
    {"plot", KEY_PLOT, "FILE.svg", 0, "Plot speed over --sq with gnuplot", 4},
    {"json", KEY_JSON, 0, 0, "One JSON object per line", 4},
    {"records", KEY_RECORDS, "FILE", 0, "Also append the JSON objects to FILE", 4},
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
    case KEY_SUITE:
      options->suite_rows = bench_suite(arg, options->suite);
      if (options->suite_rows > 0) return 0;
      cli_fail(message, "'%s'; accepted: %s", arg, bench_suite_names());
      return parse_refuse(&options->state, "--suite");
    case KEY_FORCED:
      options->forced = true;
      return 0;
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
    case KEY_RECORDS:
      options->records = arg;
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
  if (options->suite_rows > 0 &&
      (options->shape.given || options->problem.causal != TSR_CAUSAL_NONE)) {
    return cli_fail(message,
                    "--suite: found with sizes or --causal, which its rows state; accepted: one of "
                    "the two");
  }
  if (options->forced && options->problem.kernel != NULL) {
    return cli_fail(message, "--forced: found with --kernel; accepted: one of the two");
  }
  if (options->memory && options->records != NULL) {
    return cli_fail(message, "--records: found with --memory; accepted: one of the two");
  }
  if (options->memory && options->suite_rows > 0) {
    return cli_fail(message, "--memory: found with --suite; accepted: one of the two");
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

int bench_exit(bench_status status) {
  return status == BENCH_OK        ? CLI_EXIT_OK
         : status == BENCH_REFUSED ? CLI_EXIT_BAD_INPUT
                                   : CLI_EXIT_FAILED;
}

static void suite_shape(const bench_suite_row *row, shape_options *shape,
                        problem_options *problem) {
  shape->batch = row->batch;
  shape->heads_q = row->heads_q;
  shape->heads_kv = row->heads_kv;
  shape->seq_q[0] = row->seq_q;
  shape->seq_k[0] = row->seq_k;
  shape->seq_q_count = shape->seq_k_count = 1;
  shape->dim_qk = shape->dim_v = row->dim;
  if (!shape->dtype_given) shape->dtype = (int)row->dtype;
  if (row->causal) problem->causal = TSR_CAUSAL_BOTTOM_RIGHT;
}

size_t bench_count(const bench_options *options) {
  return options->suite_rows > 0 ? options->suite_rows : shape_options_count(&options->shape);
}

// Problem of the i-th length or row. False: refused.
bool bench_make_request(const bench_options *options, tsr_context *context, size_t i,
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
                             .threads = (int)options->problem.threads,
                             .device = cli_device(context, &options->problem)};
  tsr_problem *p = &request->problem;
  if (options->suite_rows > 0) {
    shape_options shape = options->shape;
    problem_options problem = options->problem;
    suite_shape(&options->suite[i], &shape, &problem);
    if (!shape_options_apply(&shape, &problem, 0, p, message)) return false;
  } else if (!shape_options_apply(&options->shape, &options->problem, i, p, message)) {
    return false;
  }
  if (p->batch > 0 && p->heads_q > 0 && p->heads_kv > 0 && p->seq_q > 0) return true;
  return cli_fail(message,
                  "--b, --hq, --hkv, --sq: the problem has no rows, nothing to time; accepted: all "
                  "above 0");
}

// Plans every length before anything is measured or printed, so that a refusal is all there is. Of
// a suite one row must be taken.
static int plan_all(const bench_options *options, tsr_context *context, cli_message *message) {
  for (size_t i = 0; i < bench_count(options); ++i) {
    bench_request request;
    char why[1024];
    if (!bench_make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    int code = bench_exit(bench_plan(&request, why, sizeof why));
    if (code == CLI_EXIT_OK && options->suite_rows > 0) return code;
    if (code == CLI_EXIT_OK || i + 1 < options->suite_rows) continue;
    cli_fail(message, "%s", why);
    cli_name_option(message, true);
    return code;
  }
  return CLI_EXIT_OK;
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
  size_t count = bench_count(options);
  bench_machine machine;
  if (cli_device(context, &options->problem).kind != TSR_DEVICE_HOST) {
    cli_fail(message, "--memory: measures host memory; accepted: backends on the host");
    return CLI_EXIT_BAD_INPUT;
  }
  bench_machine_read(&machine);
  text_table table = {.columns = 0};
  if (!options->json) table_begin(&table, "llllrrrr", kHeader);
  int code = CLI_EXIT_OK;
  for (size_t i = 0; code == CLI_EXIT_OK && i < count; ++i) {
    bench_request request;
    bench_peak peak, standard;
    char why[1024];
    if (!bench_make_request(options, context, i, &request, message)) return CLI_EXIT_BAD_INPUT;
    bench_status status = bench_peak_memory(&request, false, &peak, why, sizeof why);
    if (status == BENCH_OK && options->standard) {
      status = bench_peak_memory(&request, true, &standard, why, sizeof why);
    }
    code = bench_exit(status);
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
                            : bench_time(&options, context, &message);
    }
  }
  if (code != CLI_EXIT_OK) cli_print_error(&message);
  tsr_context_destroy(context);
  return code;
}
