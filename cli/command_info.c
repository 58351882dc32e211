// SPDX-License-Identifier: Apache-2.0
// tessera info: version, backends with the reason when one is absent, kernels, devices with their
// facts, and what the operating system says about caches and the processor.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

#include "bench/machine.h"
#include "commands.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "text.h"

enum { KEY_JSON = PARSE_KEY_COMMAND, KEY_KERNELS };

typedef struct info_options {
  parse_state state;
  bool json, kernels;
} info_options;

static const struct argp_option kOptions[] = {
    {"kernels", KEY_KERNELS, 0, 0, "Also list the kernels of every backend", 1},
    {"json", KEY_JSON, 0, 0, "Print JSON (with kernels)", 1},
    PARSE_HELP_OPTION,
    {0}};

static error_t parse_info(int key, char *arg, struct argp_state *argp_state) {
  (void)arg;
  info_options *options = argp_state->input;
  switch (key) {
    case KEY_JSON:
      options->json = true;
      return 0;
    case KEY_KERNELS:
      options->kernels = true;
      return 0;
    default:
      return parse_common(key, argp_state, &options->state);
  }
}

static const char *kind_name(tsr_device_kind kind) {
  return kind == TSR_DEVICE_CUDA ? "cuda" : kind == TSR_DEVICE_HIP ? "hip" : "host";
}

static void print_machine(const bench_machine *m) {
  char a[32], b[32], c[32], d[32];
  printf("tessera    %s\n", tsr_version_string());
  printf("machine    %s, %d hardware threads, %s, Linux %s\n", m->cpu, m->threads, m->architecture,
         m->kernel_version);
  printf("caches     L1d %s, L2 %s, L3 %s; memory %s\n", text_bytes(m->l1d_bytes, a, sizeof a),
         text_bytes(m->l2_bytes, b, sizeof b), text_bytes(m->l3_bytes, c, sizeof c),
         text_bytes(m->memory_bytes, d, sizeof d));
  printf("compiler   %s\n\n", m->compiler);
}

static void print_backend(const tsr_context *context, int index, bool kernels) {
  tsr_backend_info info = {.struct_size = sizeof info};
  if (tsr_context_backend_info(context, index, &info) != TSR_STATUS_SUCCESS) return;
  printf("backend %-10s %s%s, %s\n", info.name, info.available ? "available" : "absent",
         info.named_only ? " (only when named)" : "", info.origin);
  if (!info.available) printf("  reason   %s\n", info.reason);
  if (info.detail[0] != 0) printf("  detail   %s\n", info.detail);
  int count = 0;
  while (tsr_context_kernel_name(context, index, count) != NULL) ++count;
  printf("  kernels  %d\n", count);
  for (int i = 0; kernels && i < count; ++i) {
    printf("           %s\n", tsr_context_kernel_name(context, index, i));
  }
}

// Backends of the library that this build has no code for, neither inside nor as a plug-in.
static const char *const kKnown[] = {"cpu", "cuda", "hip"};
static const char kNotBuilt[] = "neither in this build nor found as a plug-in";

static bool is_registered(const tsr_context *context, const char *name) {
  for (int i = 0; i < tsr_context_backend_count(context); ++i) {
    tsr_backend_info info = {.struct_size = sizeof info};
    if (tsr_context_backend_info(context, i, &info) == TSR_STATUS_SUCCESS &&
        strcmp(info.name, name) == 0) {
      return true;
    }
  }
  return false;
}

static void print_device(const tsr_device_info *d) {
  char a[32], b[32], c[32];
  printf("device %s:%d  %s\n", kind_name(d->device.kind), d->device.index, d->name);
  printf("  units %d, fast memory %s per unit, L2 %s, memory %s\n", d->compute_units,
         text_bytes((double)d->fast_bytes, a, sizeof a),
         text_bytes((double)d->mid_bytes, b, sizeof b),
         text_bytes((double)d->memory_bytes, c, sizeof c));
  printf("  estimates: float32 %.1f GFLOP/s, 16-bit %.1f GFLOP/s, memory %.1f GB/s\n",
         d->peak_flops_f32 * 1e-9, d->peak_flops_16 * 1e-9, d->bandwidth * 1e-9);
}

static json_t *backend_json(const tsr_context *context, int index) {
  tsr_backend_info info = {.struct_size = sizeof info};
  if (tsr_context_backend_info(context, index, &info) != TSR_STATUS_SUCCESS) return json_null();
  json_t *kernels = json_array();
  for (int i = 0; tsr_context_kernel_name(context, index, i) != NULL; ++i) {
    json_array_append_new(kernels, json_string(tsr_context_kernel_name(context, index, i)));
  }
  return json_pack("{s:s, s:s, s:b, s:b, s:s, s:i, s:s, s:s, s:o}", "name", info.name, "origin",
                   info.origin, "available", info.available, "named_only", info.named_only,
                   "device_kind", kind_name(info.device_kind), "devices", info.devices, "reason",
                   info.reason, "detail", info.detail, "kernels", kernels);
}

static json_t *device_json(const tsr_device_info *d) {
  return json_pack(
      "{s:s, s:i, s:s, s:i, s:I, s:I, s:I, s:o, s:o, s:o}", "kind", kind_name(d->device.kind),
      "index", d->device.index, "name", d->name, "compute_units", d->compute_units, "fast_bytes",
      (json_int_t)d->fast_bytes, "mid_bytes", (json_int_t)d->mid_bytes, "memory_bytes",
      (json_int_t)d->memory_bytes, "peak_flops_f32", json_real_or_null(d->peak_flops_f32),
      "peak_flops_16", json_real_or_null(d->peak_flops_16), "bandwidth",
      json_real_or_null(d->bandwidth));
}

// Calls `each` for every device of every kind that answers.
static void for_devices(const tsr_context *context, void (*each)(const tsr_device_info *, void *),
                        void *user) {
  static const tsr_device_kind kKinds[] = {TSR_DEVICE_HOST, TSR_DEVICE_CUDA, TSR_DEVICE_HIP};
  for (size_t k = 0; k < 3; ++k) {
    for (int32_t i = 0;; ++i) {
      tsr_device_info info = {.struct_size = sizeof info};
      if (tsr_device_query(context, (tsr_device){kKinds[k], i}, &info) != TSR_STATUS_SUCCESS) break;
      each(&info, user);
      if (kKinds[k] == TSR_DEVICE_HOST) break;
    }
  }
}

static void each_print(const tsr_device_info *info, void *user) {
  (void)user;
  print_device(info);
}

static void each_json(const tsr_device_info *info, void *user) {
  json_array_append_new(user, device_json(info));
}

static bool print_json(const tsr_context *context, const bench_machine *machine) {
  json_t *backends = json_array();
  for (int i = 0; i < tsr_context_backend_count(context); ++i) {
    json_array_append_new(backends, backend_json(context, i));
  }
  for (size_t i = 0; i < sizeof kKnown / sizeof kKnown[0]; ++i) {
    if (is_registered(context, kKnown[i])) continue;
    json_array_append_new(
        backends, json_pack("{s:s, s:s, s:b, s:b, s:s, s:[]}", "name", kKnown[i], "origin", "",
                            "available", 0, "named_only", 0, "reason", kNotBuilt, "kernels"));
  }
  json_t *devices = json_array();
  for_devices(context, each_json, devices);
  return json_print(json_pack("{s:s, s:o, s:o, s:o}", "version", tsr_version_string(), "machine",
                              bench_machine_json(machine), "backends", backends, "devices",
                              devices));
}

int command_info(int argc, char **argv) {
  const struct argp argp = {
      kOptions, parse_info, 0, "What this machine offers and what the library makes of it.",
      0,        0,          0};
  cli_message message = {.text = ""};
  info_options options = {.state = {.message = &message}};
  parse_result parsed = parse_command(&argp, "tessera info", argc, argv, &options.state, &options);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;
  tsr_context *context = NULL;
  if (parsed == PARSE_BAD || !cli_context_create(&context, 0, NULL, &message)) {
    cli_print_error(&message);
    return CLI_EXIT_BAD_INPUT;
  }
  bench_machine machine;
  bench_machine_read(&machine);
  int code = CLI_EXIT_OK;
  if (options.json) {
    if (!print_json(context, &machine)) code = CLI_EXIT_FAILED;
  } else {
    print_machine(&machine);
    for (int i = 0; i < tsr_context_backend_count(context); ++i) {
      print_backend(context, i, options.kernels);
    }
    for (size_t i = 0; i < sizeof kKnown / sizeof kKnown[0]; ++i) {
      if (is_registered(context, kKnown[i])) continue;
      printf("backend %-10s absent\n  reason   %s\n", kKnown[i], kNotBuilt);
    }
    putchar('\n');
    for_devices(context, each_print, NULL);
  }
  tsr_context_destroy(context);
  return code;
}
