// SPDX-License-Identifier: Apache-2.0
// JSON records and SVG plots (see report.h).
#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tensors.h"

extern char **environ;

static json_t *real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static const char *corner_name(int kind, int64_t diagonal, char *buffer, size_t capacity) {
  if (kind == TSR_CAUSAL_TOP_LEFT) return "top-left";
  if (kind == TSR_CAUSAL_BOTTOM_RIGHT) return "bottom-right";
  snprintf(buffer, capacity, "offset %" PRId64, diagonal);
  return buffer;
}

static const char *side(int64_t value, char *buffer, size_t capacity) {
  if (value == TSR_UNBOUNDED) return "inf";
  snprintf(buffer, capacity, "%" PRId64, value);
  return buffer;
}

const char *report_mask(const tsr_problem *p, char *buffer, size_t capacity) {
  char corner[48], left[32], right[32], window[128] = "", causal[80] = "";
  if (p->causal != TSR_CAUSAL_NONE) {
    snprintf(causal, sizeof causal, "causal %s",
             corner_name((int)p->causal, p->diagonal, corner, sizeof corner));
  }
  if (p->window.kind != TSR_WINDOW_NONE) {
    snprintf(window, sizeof window, "%swindow %s,%s,%s", causal[0] != 0 ? ", " : "",
             side(p->window.left, left, sizeof left), side(p->window.right, right, sizeof right),
             corner_name((int)p->window.kind, p->diagonal, corner, sizeof corner));
  }
  snprintf(buffer, capacity, "%s%s", causal, window);
  if (buffer[0] == 0) snprintf(buffer, capacity, "full");
  return buffer;
}

static json_t *times_json(const bench_times *t) {
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:i, s:I}", "median", real(t->median), "min",
                   real(t->least), "max", real(t->most), "lower_quartile", real(t->lower_quartile),
                   "upper_quartile", real(t->upper_quartile), "samples", t->samples,
                   "calls_per_sample", (json_int_t)t->calls_per_sample);
}

static json_t *rate_json(const bench_rate *rate) {
  return json_pack("{s:o, s:o, s:o, s:i}", "best", real(rate->best), "median", real(rate->median),
                   "least", real(rate->least), "windows", rate->samples);
}

json_t *report_probe_json(const bench_probe *probe) {
  json_t *root = json_pack("{s:o, s:o, s:o, s:i, s:s, s:I, s:o, s:o}", "fma_flops_f32",
                           real(probe->flops_f32), "read_bytes_per_second", real(probe->read_bytes),
                           "clock_hz", real(probe->clock_hz), "threads", probe->threads, "isa",
                           probe->isa, "read_array_bytes", (json_int_t)probe->read_array, "fma",
                           rate_json(&probe->fma), "read", rate_json(&probe->read));
  json_t *scaling = json_array();
  for (int i = 0; i < probe->scalings; ++i) {
    json_array_append_new(
        scaling, json_pack("[i, o]", probe->scaling[i].threads, real(probe->scaling[i].flops)));
  }
  json_object_set_new(root, "fma_by_threads", scaling);
  return root;
}

static json_t *problem_json(const bench_record *r) {
  const tsr_problem *p = &r->problem;
  char mask[256];
  return json_pack(
      "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:I}", "batch",
      (json_int_t)p->batch, "heads_q", (json_int_t)p->heads_q, "heads_kv", (json_int_t)p->heads_kv,
      "seq_q", (json_int_t)p->seq_q, "seq_k", (json_int_t)p->seq_k, "dim_qk", (json_int_t)p->dim_qk,
      "dim_v", (json_int_t)p->dim_v, "dtype", bench_dtype_name(p->q.dtype), "out_dtype",
      bench_dtype_name(p->o.dtype), "layout", p->q.order == TSR_ORDER_BSHD ? "bshd" : "bhsd",
      "mask", report_mask(p, mask, sizeof mask), "scale", (double)p->scale, "softcap",
      (double)p->softcap, "dropout", (double)p->dropout, "seed", (json_int_t)r->seed);
}

static json_t *clocks_json(const bench_clocks *c) {
  return json_pack("{s:o, s:o, s:o, s:o}", "core_hz", real(c->core_hz), "memory_hz",
                   real(c->memory_hz), "watts", real(c->watts), "celsius", real(c->celsius));
}

static void add_device(json_t *root, const bench_record *r) {
  json_object_set_new(root, "device", bench_device_json(r->device));
  json_object_set_new(root, "input_sets", json_integer(r->sets));
  json_object_set_new(
      root, "clocks",
      json_pack("[o, o]", clocks_json(&r->clocks_before), clocks_json(&r->clocks_after)));
  json_object_set_new(root, "fraction_of_peak_estimated",
                      real(r->flops / r->times.median / bench_fma_rate(r, NULL)));
  json_object_set_new(root, "fraction_of_copy_rate",
                      real(r->bytes / r->times.median / r->device->copy_bytes));
}

json_t *report_json(const bench_record *r, const bench_probe *probe, const bench_machine *machine) {
  double roofline = bench_roofline_seconds(r, probe), t = r->times.median;
  json_t *root = json_object();
  json_object_set_new(root, "version", json_string(tsr_version_string()));
  json_object_set_new(root, "problem", problem_json(r));
  json_object_set_new(root, "pass",
                      json_string(r->pass == TSR_PASS_BACKWARD ? "backward" : "forward"));
  json_object_set_new(root, "backend", json_string(r->backend));
  json_object_set_new(root, "kernel", json_string(r->kernel));
  json_object_set_new(root, "tile",
                      json_pack("[I, I]", (json_int_t)r->tile_q, (json_int_t)r->tile_k));
  json_object_set_new(root, "flops", real(r->flops));
  json_object_set_new(root, "bytes_predicted", real(r->bytes));
  json_object_set_new(root, "bytes_measured",
                      r->bytes_measured >= 0 ? real(r->bytes_measured) : json_null());
  json_object_set_new(
      root, "bytes_measured_by",
      json_string(r->bytes_measured >= 0 ? "last-level cache misses of one call, 64 bytes each"
                                         : r->bytes_reason));
  json_object_set_new(root, "workspace_bytes", json_integer((json_int_t)r->workspace));
  json_object_set_new(root, "seconds_estimated", real(r->estimate));
  json_object_set_new(
      root, "check",
      json_pack("{s:s, s:o, s:o, s:o}", "extent", r->check, "max_error", real(r->max_error),
                "rms_error", real(r->rms_error), "error_over_bound", real(r->ratio)));
  json_object_set_new(root, "seconds", times_json(&r->times));
  json_object_set_new(root, "tflops", real(r->flops / t * 1e-12));
  json_object_set_new(root, "gigabytes_per_second", real(r->bytes / t * 1e-9));
  if (r->device == NULL) {
    json_object_set_new(root, "fma_beside", rate_json(&r->fma_beside));
    json_object_set_new(root, "fraction_of_fma_rate",
                        real(r->flops / t / bench_fma_rate(r, probe)));
  } else {
    add_device(root, r);
  }
  if (r->read_beside > 0) {
    json_object_set_new(root, "read_beside",
                        json_pack("{s:o, s:I, s:o}", "bytes_per_second", real(r->read_beside),
                                  "array_bytes", (json_int_t)r->read_array, "fraction",
                                  real((double)r->read_array / t / r->read_beside)));
  }
  json_object_set_new(root, "fraction_of_roofline", real(roofline / t));
  if (r->device == NULL) {
    json_object_set_new(root, "clock_hz",
                        json_pack("[o, o]", real(r->clock_before), real(r->clock_after)));
  }
  json_object_set_new(root, "kernel_named", json_boolean(r->forced));
  if (r->best_forced_seconds > 0) {
    json_object_set_new(root, "best_forced",
                        json_pack("{s:s, s:o, s:o}", "kernel", r->best_forced, "seconds",
                                  real(r->best_forced_seconds), "picked_over_best",
                                  real(t / r->best_forced_seconds)));
  }
  if (r->standard) {
    json_object_set_new(
        root, "standard_attention",
        json_pack("{s:o, s:o, s:o}", "seconds", times_json(&r->standard_times), "bytes_at_least",
                  real(r->standard_bytes), "speed_up", real(r->standard_times.median / t)));
  }
  if (r->device == NULL) json_object_set_new(root, "probe", report_probe_json(probe));
  json_object_set_new(root, "machine", bench_machine_json(machine));
  return root;
}

json_t *report_peak_json(const tsr_problem *problem, tsr_pass pass, const bench_peak *peak,
                         const bench_peak *standard, const bench_machine *machine) {
  const bench_record record = {.problem = *problem};
  return json_pack("{s:s, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "version",
                   tsr_version_string(), "problem", problem_json(&record), "pass",
                   pass == TSR_PASS_BACKWARD ? "backward" : "forward", "kernel", peak->kernel,
                   "tensor_bytes", (json_int_t)peak->tensors, "workspace_bytes",
                   (json_int_t)peak->workspace, "lse_bytes", (json_int_t)peak->lse,
                   "extra_peak_bytes", (json_int_t)peak->extra, "standard_extra_peak_bytes",
                   standard != NULL ? json_integer((json_int_t)standard->extra) : json_null(),
                   "machine", bench_machine_json(machine));
}

bool report_can_plot(void) {
  const char *path = getenv("PATH");
  char list[4096];
  snprintf(list, sizeof list, "%s", path != NULL ? path : "/usr/bin:/bin");
  char *rest = list;
  for (char *folder = strsep(&rest, ":"); folder != NULL; folder = strsep(&rest, ":")) {
    char file[4200];
    snprintf(file, sizeof file, "%s/gnuplot", *folder != 0 ? folder : ".");
    if (access(file, X_OK) == 0) return true;
  }
  return false;
}

static void write_script(FILE *out, const bench_record *records, size_t count,
                         const bench_probe *probe, const bench_machine *machine) {
  char mask[256];
  const tsr_problem *p = &records[0].problem;
  bool standard = false;
  const bench_device *device = records[0].device;
  const double line = device != NULL ? bench_fma_rate(&records[0], probe) : probe->flops_f32;
  const char *name = device != NULL ? tsr_gpu_describe(device->gpu)->name : machine->cpu;
  for (size_t i = 0; i < count; ++i) standard |= records[i].standard;
  fprintf(out, "set terminal svg size 800,500 dynamic font 'sans-serif,13'\n");
  fprintf(out, "set title \"%s, %s, B %" PRId64 " H %" PRId64 "/%" PRId64 " D %" PRId64 ", %s\\n",
          records[0].backend, bench_dtype_name(p->q.dtype), p->batch, p->heads_q, p->heads_kv,
          p->dim_qk, report_mask(p, mask, sizeof mask));
  for (const char *c = name; *c != 0; ++c) {
    if (*c != '"' && *c != '\\') fputc(*c, out);
  }
  if (device == NULL) fprintf(out, ", %d threads", probe->threads);
  fprintf(out, "\" noenhanced\n");
  fprintf(out,
          "set xlabel 'queries'\nset ylabel 'GFLOP/s (median, bars: extremes)'\n"
          "set logscale x 2\nset yrange [0:*]\nset key outside bottom center horizontal\n"
          "set grid\nset label 1 '%s %.0f GFLOP/s' at graph 0.02, first %g offset 0,0.6\n",
          device != NULL ? "estimated peak" : "float32 FMA rate", line * 1e-9, line * 1e-9);
  fprintf(out, "$d << END\n");
  for (size_t i = 0; i < count; ++i) {
    const bench_record *r = &records[i];
    fprintf(out, "%" PRId64 " %g %g %g %g\n", r->problem.seq_q, r->flops / r->times.median * 1e-9,
            r->flops / r->times.most * 1e-9, r->flops / r->times.least * 1e-9,
            r->standard ? r->flops / r->standard_times.median * 1e-9 : 0.0);
  }
  fprintf(out,
          "END\nplot $d using 1:2:3:4 with yerrorlines lw 2 pt 7 title 'Tessera', "
          "%g with lines dt 2 lc 'gray' notitle",
          line * 1e-9);
  if (standard)
    fprintf(out, ", $d using 1:5 with linespoints lw 2 pt 5 title 'standard attention'");
  fprintf(out, "\n");
}

// Starts gnuplot on a script file with its output in a pipe. Returns the read end, or -1.
static int start_gnuplot(const char *script, pid_t *child) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  char name[] = "gnuplot", path[4096];
  snprintf(path, sizeof path, "%s", script);
  char *arguments[] = {name, path, NULL};
  int error = posix_spawnp(child, name, &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) return ends[0];
  close(ends[0]);
  errno = error;
  return -1;
}

static char *read_all(int fd, size_t *length) {
  size_t capacity = 1 << 16, used = 0;
  char *text = malloc(capacity);
  while (text != NULL) {
    ssize_t got = read(fd, text + used, capacity - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      free(text);
      return NULL;
    }
    if (got == 0) break;
    used += (size_t)got;
    if (used < capacity) continue;
    char *larger = realloc(text, capacity *= 2);
    if (larger == NULL) free(text);
    text = larger;
  }
  *length = used;
  return text;
}

char *report_plot(const bench_record *records, size_t count, const bench_probe *probe,
                  const bench_machine *machine, size_t *length, char *message, size_t capacity) {
  char script[] = "/tmp/tessera-plot-XXXXXX";
  int fd = mkstemp(script);
  FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (file == NULL) {
    snprintf(message, capacity, "no temporary file for gnuplot: %s", strerror(errno));
    return NULL;
  }
  write_script(file, records, count, probe, machine);
  bool written = fclose(file) == 0;
  pid_t child;
  int out = written ? start_gnuplot(script, &child) : -1;
  char *svg = NULL;
  int status = -1;
  if (out < 0) {
    snprintf(message, capacity, "gnuplot cannot be started: %s", strerror(errno));
  } else {
    svg = read_all(out, length);
    close(out);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (svg == NULL || status != 0 || *length == 0) {
      snprintf(message, capacity, "gnuplot failed (wait status %d, %zu bytes)", status, *length);
      free(svg);
      svg = NULL;
    }
  }
  unlink(script);
  return svg;
}
