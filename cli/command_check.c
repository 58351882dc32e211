// SPDX-License-Identifier: Apache-2.0
// tessera check: conformance of every backend on this machine. One line per backend and group of
// cases with the worst measured error over its bound; status 1 as soon as one bound is broken or a
// backend that was named passes nothing; with --strict also where a case is refused. The cases and the
// comparer are those of the test suite.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

#include "commands.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "refusals.h"
#include "tests/support/backends.h"
#include "tests/support/check.h"
#include "text.h"

enum {
  KEY_BACKEND = PARSE_KEY_COMMAND,
  KEY_DEVICE,
  KEY_KERNEL,
  KEY_GROUP,
  KEY_CASE,
  KEY_DTYPE,
  KEY_PASS,
  KEY_QUICK,
  KEY_SCALE_BOUND,
  KEY_DETERMINISM,
  KEY_ALIGNMENT,
  KEY_STRICT,
  KEY_REFUSALS,
  KEY_VERBOSE,
  KEY_THREADS,
  KEY_JSON,
};

typedef struct check_options {
  parse_state state;
  const char *backend, *kernel, *group, *name, *refusals_path;
  refusal_list refusals;
  char backend_name[64];
  int dtype, passes, determinism;
  int32_t device;
  int64_t threads, alignment;
  double scale_bound;
  bool quick, strict, verbose, json;
} check_options;

static const struct argp_option kOptions[] = {
    {"backend", KEY_BACKEND, "NAME[:N]", 0, "Only this backend, on its device N", 1},
    {"device", KEY_DEVICE, "N", 0, "Ordinal of the device that GPU backends use (default 0)", 1},
    {"kernel", KEY_KERNEL, "NAME", 0, "Only this kernel, or '*': every kernel in turn", 1},
    {"group", KEY_GROUP, "NAME", 0, "Only this group of cases", 1},
    {"case", KEY_CASE, "TEXT", 0, "Only cases whose name contains TEXT", 1},
    {"dtype", KEY_DTYPE, "TYPE", 0, "Only f32, f16 or bf16 (default all three)", 1},
    {"pass", KEY_PASS, "PASS", 0, "forward (default), or both", 1},
    {"quick", KEY_QUICK, 0, 0, "float32 only", 1},
    {"scale-bound", KEY_SCALE_BOUND, "X", 0,
     "Multiply every bound; 0 must fail, which shows that the bounds are looked at", 1},
    {"determinism", KEY_DETERMINISM, "LEVEL", 0, "default, deterministic or batch-invariant", 1},
    {"alignment", KEY_ALIGNMENT, "BYTES", 0,
     "Promised for every tensor, a power of two up to 4096 (default: each case's own)", 1},
    {"strict", KEY_STRICT, 0, 0, "A case that is refused, or skipped, is a failure", 1},
    {"refusals", KEY_REFUSALS, "FILE", 0,
     "With --strict: cases that have to be refused (or inexact), PASS DTYPE GROUP/CASE a line, as patterns", 1},
    {"threads", KEY_THREADS, "N", 0, "Worker threads (default: all)", 1},
    {"verbose", KEY_VERBOSE, 0, 0, "One line per result as well", 1},
    {"json", KEY_JSON, 0, 0, "One JSON object per line", 1},
    PARSE_HELP_OPTION,
    {0}};

static const parse_word kDtypes[] = {
    {"f32", TSR_DTYPE_F32}, {"f16", TSR_DTYPE_F16}, {"bf16", TSR_DTYPE_BF16}, {NULL, 0}};
static const parse_word kPasses[] = {
    {"forward", TSR_PASS_FORWARD}, {"both", TSR_PASS_FORWARD | TSR_PASS_BACKWARD}, {NULL, 0}};
static const parse_word kLevels[] = {{"default", TSR_DETERMINISM_DEFAULT},
                                     {"deterministic", TSR_DETERMINISM_DETERMINISTIC},
                                     {"batch-invariant", TSR_DETERMINISM_BATCH_INVARIANT},
                                     {NULL, 0}};

static error_t parse_check(int key, char *arg, struct argp_state *argp_state) {
  check_options *options = argp_state->input;
  cli_message *message = options->state.message;
  switch (key) {
    case KEY_BACKEND:
      if (!parse_backend(arg, options->backend_name, sizeof options->backend_name, &options->device,
                         message)) {
        return parse_refuse(&options->state, "--backend");
      }
      options->backend = options->backend_name;
      return 0;
    case KEY_DEVICE: {
      int64_t ordinal;
      if (!parse_int64(arg, 0, INT32_MAX, &ordinal, message)) {
        return parse_refuse(&options->state, "--device");
      }
      options->device = (int32_t)ordinal;
      return 0;
    }
    case KEY_KERNEL:
      options->kernel = arg;
      return 0;
    case KEY_GROUP:
      options->group = arg;
      return 0;
    case KEY_CASE:
      options->name = arg;
      return 0;
    case KEY_QUICK:
      options->quick = true;
      return 0;
    case KEY_STRICT:
      options->strict = true;
      return 0;
    case KEY_REFUSALS:
      options->refusals_path = arg;
      return 0;
    case KEY_VERBOSE:
      options->verbose = true;
      return 0;
    case KEY_JSON:
      options->json = true;
      return 0;
    case KEY_DTYPE:
      if (parse_choice(arg, kDtypes, &options->dtype, message)) return 0;
      return parse_refuse(&options->state, "--dtype");
    case KEY_PASS:
      if (parse_choice(arg, kPasses, &options->passes, message)) return 0;
      return parse_refuse(&options->state, "--pass");
    case KEY_DETERMINISM:
      if (parse_choice(arg, kLevels, &options->determinism, message)) return 0;
      return parse_refuse(&options->state, "--determinism");
    case KEY_ALIGNMENT:
      if (parse_int64(arg, 1, 4096, &options->alignment, message) &&
          (options->alignment & (options->alignment - 1)) == 0)
        return 0;
      if (options->alignment & (options->alignment - 1))
        cli_fail(message, "'%s'; accepted: a power of two up to 4096", arg);
      return parse_refuse(&options->state, "--alignment");
    case KEY_THREADS:
      if (parse_int64(arg, 1, 4096, &options->threads, message)) return 0;
      return parse_refuse(&options->state, "--threads");
    case KEY_SCALE_BOUND:
      if (parse_real(arg, &options->scale_bound, message) && options->scale_bound >= 0) return 0;
      if (options->scale_bound < 0) cli_fail(message, "'%s'; accepted: 0 and more", arg);
      return parse_refuse(&options->state, "--scale-bound");
    default:
      return parse_common(key, argp_state, &options->state);
  }
}

typedef struct line_state {
  tsr_check_tally tally;
  refusal_list *refusals;  // NULL: whatever is refused may be
  bool verbose;
} line_state;

static void on_record(void *user, const tsr_check_record *given) {
  line_state *line = user;
  tsr_check_record judged = *given;
  const tsr_check_record *record = &judged;
  if (line->refusals != NULL) judged.verdict = refusals_judge(line->refusals, given);
  tsr_check_tally_add(&line->tally, record);
  if (!line->verbose) return;
  char text[1024];
  tsr_check_format(record, text, sizeof text);
  fprintf(stderr, "%s\n", text);
}

static const char *verdict_of(const tsr_check_tally *tally) {
  if (tally->failed > 0) return "FAIL";
  return tally->passed > 0 ? "ok" : tally->refused > 0 ? "refused" : "skipped";
}

static bool print_line(const check_options *options, const char *backend, const char *group,
                       const tsr_check_tally *tally) {
  if (options->json) {
    return json_print_line(
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:s}", "backend", backend,
                  "group", group, "verdict", verdict_of(tally), "passed", (json_int_t)tally->passed,
                  "failed", (json_int_t)tally->failed, "refused", (json_int_t)tally->refused,
                  "skipped", (json_int_t)tally->skipped, "worst_error_over_bound",
                  json_real_or_null(tally->worst_ratio), "worst_case", tally->worst_case,
                  "first_failure", tally->first_failure, "first_refusal", tally->first_refusal));
  }
  printf("%-10s %-14s %-8s %5lld passed %4lld failed %4lld refused %4lld skipped", backend, group,
         verdict_of(tally), (long long)tally->passed, (long long)tally->failed,
         (long long)tally->refused, (long long)tally->skipped);
  if (tally->passed + tally->failed > 0) {
    printf(tally->worst_ratio < 1000 ? "  worst error/bound %.3f (%s)"
                                     : "  worst error/bound %.3g (%s)",
           tally->worst_ratio, tally->worst_case);
  }
  putchar('\n');
  if (tally->failed > 0) printf("           %s\n", tally->first_failure);
  if (tally->refused > 0 && tally->passed == 0) printf("           %s\n", tally->first_refusal);
  fflush(stdout);
  return true;
}

enum { kMaxBackends = 32 };

// Whether a backend has the kernel of --kernel, which may be any (NULL or '*'), for a pass.
static bool has_kernel(const tsr_check_options *check, const char *backend, tsr_pass pass) {
  if (check->kernel == NULL || strcmp(check->kernel, "*") == 0) return true;
  const char *name;
  for (int32_t i = 0; (name = tsr_backends_kernel(check->context, backend, pass, i)) != NULL; ++i)
    if (strcmp(name, check->kernel) == 0) return true;
  return false;
}

// Runs every wanted group on every wanted backend. Returns an exit status.
static int run_groups(check_options *options, tsr_check_options *check, cli_message *message) {
  const char *backends[kMaxBackends];
  int32_t count = tsr_check_backends(check, backends, kMaxBackends);
  if (count == 0) {
    cli_fail(message, "no backend to check%s%s", options->backend != NULL ? ": --backend " : "",
             options->backend != NULL ? options->backend : "");
    return CLI_EXIT_BAD_INPUT;
  }
  if (count > kMaxBackends) count = kMaxBackends;
  int64_t failed = 0, passed = 0;
  bool group_seen = false, kernel_seen = false;
  for (int32_t b = 0; b < count; ++b) {
    int64_t passed_here = 0;
    // Cases without a backward pass run forward, but not where the one kernel is of the other pass.
    check->forward_too = has_kernel(check, backends[b], TSR_PASS_FORWARD);
    if (!check->forward_too && !has_kernel(check, backends[b], TSR_PASS_BACKWARD)) continue;
    kernel_seen = true;
    check->backend = backends[b];
    for (int32_t g = 0; g < tsr_check_group_count(); ++g) {
      const char *group = tsr_check_group_name(g);
      if (options->group != NULL && strcmp(options->group, group) != 0) continue;
      group_seen = true;
      line_state line = {.refusals = options->strict ? &options->refusals : NULL,
                         .verbose = options->verbose};
      check->user = &line;
      char why[512] = "";
      if (!tsr_check_group(check, g, why, sizeof why)) {
        cli_fail(message, "%s, group %s: %s", backends[b], group, why);
        return CLI_EXIT_FAILED;
      }
      if (line.tally.passed + line.tally.failed + line.tally.refused + line.tally.skipped == 0) {
        continue;  // --case matches nothing here
      }
      if (!print_line(options, backends[b], group, &line.tally)) return CLI_EXIT_FAILED;
      failed += line.tally.failed;
      passed_here += line.tally.passed;
    }
    passed += passed_here;
    if (passed_here == 0 && failed == 0 && group_seen && options->name == NULL) {
      cli_fail(message, "backend %s passed no case", backends[b]);
      return CLI_EXIT_FAILED;
    }
  }
  if (!kernel_seen) {
    cli_fail(message, "--kernel: '%s'; accepted: '*' or a kernel that `tessera explain` lists",
             options->kernel);
    return CLI_EXIT_BAD_INPUT;
  }
  if (options->group != NULL && !group_seen) {
    char names[512] = "";
    size_t used = 0;
    for (int32_t g = 0; g < tsr_check_group_count() && used < sizeof names; ++g) {
      used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", g != 0 ? ", " : "",
                               tsr_check_group_name(g));
    }
    cli_fail(message, "--group: '%s'; accepted: %s", options->group, names);
    return CLI_EXIT_BAD_INPUT;
  }
  if (failed == 0 && passed == 0) {
    cli_fail(message, "nothing was checked: no case matches, or all were refused");
    return CLI_EXIT_BAD_INPUT;
  }
  if (failed > 0) {
    cli_fail(message, "%lld results broke their bounds%s", (long long)failed,
             options->strict ? ", were refused or did not run" : "");
    return CLI_EXIT_FAILED;
  }
  const refusal_rule *stale = refusals_stale(&options->refusals);
  if (stale == NULL) return CLI_EXIT_OK;
  cli_fail(message, "%s, line %d: no case of '%s %s %s' was %s; accepted: lines that are needed",
           options->refusals_path, stale->line, stale->pass, stale->dtype, stale->name,
           stale->inexact ? "inexact" : "refused");
  return CLI_EXIT_FAILED;
}

int command_check(int argc, char **argv) {
  const struct argp argp = {
      kOptions, parse_check, 0, "Compares every backend with the double-precision reference.",
      0,        0,           0};
  cli_message message = {.text = ""};
  check_options options = {
      .state = {.message = &message}, .passes = TSR_PASS_FORWARD, .scale_bound = 1.0};
  parse_result parsed = parse_command(&argp, "tessera check", argc, argv, &options.state, &options);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;
  if (parsed == PARSE_OK && options.quick && options.dtype != 0 && options.dtype != TSR_DTYPE_F32) {
    cli_fail(&message, "--quick: float32 only, --dtype says another; accepted: one of them");
    parsed = PARSE_BAD;
  }
  if (parsed == PARSE_OK && options.refusals_path != NULL) {
    if (!options.strict) {
      cli_fail(&message, "--refusals: without --strict; accepted: both, or neither");
      parsed = PARSE_BAD;
    } else if (!refusals_read(&options.refusals, options.refusals_path, &message)) {
      cli_fail_in(&message, "--refusals");
      parsed = PARSE_BAD;
    }
  }
  tsr_context *context = NULL;
  int code = CLI_EXIT_BAD_INPUT;
  if (parsed == PARSE_OK && cli_context_create(&context, options.threads, NULL, &message)) {
    int dtype = options.quick ? (int)TSR_DTYPE_F32 : options.dtype;
    tsr_check_options check = {
        .context = context,
        .backend = options.backend,
        .device = options.device,
        .kernel = options.kernel,
        .name = options.name,
        .dtypes = dtype != 0 ? 1u << dtype : 0,
        .passes = (uint32_t)options.passes,
        // A zero factor means "default" to the library of checks; the smallest factor breaks every
        // bound that a rounding error can break.
        .bound_scale = options.scale_bound > 0 ? options.scale_bound : 1e-300,
        .determinism = (tsr_determinism)options.determinism,
        .alignment = options.alignment,
        .report = on_record};
    code = run_groups(&options, &check, &message);
  }
  if (code != CLI_EXIT_OK) cli_print_error(&message);
  refusals_free(&options.refusals);
  tsr_context_destroy(context);
  return code;
}
