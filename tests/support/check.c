// SPDX-License-Identifier: Apache-2.0
//
// See check.h. Per case and dtype: numbers once, ref64 and naive once, then every backend and kernel
// on the layout that the case asks for; each output becomes one record.
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends.h"
#include "compare.h"
#include "neighbours.h"
#include "numeric.h"

enum { BACKENDS_MAX = 32, TEXT = 768, KERNELS_MAX = 256, ALIGNED = 16 };

typedef struct check {
  const tsr_check_options *options;
  const tsr_case *row;
  tsr_case form; /* the row, with the options' determinism */
  const tsr_inputs *in;
  tsr_results ref, naive;
  uint32_t passes;
  const char *backend, *kernel;
  char name[128];         /* of the case, with "@16" when the alignment was raised */
  bool ran[KERNELS_MAX];  /* kernels of the pass that ran already, by index */
  bool near_known, near_failed; /* near holds the baseline's errors on neighbours of the inputs; there are none */
  tsr_neighbours near;
} check;

const char *tsr_verdict_string(tsr_verdict verdict) {
  static const char *const names[] = {"pass", "FAIL", "refused", "skipped"};
  return (unsigned)verdict < 4 ? names[verdict] : "";
}

const char *tsr_check_dtype_name(tsr_dtype dtype) { return tsr_test_dtype_name(dtype); }

int32_t tsr_check_group_count(void) { return tsr_case_group_count(); }

const char *tsr_check_group_name(int32_t group) { return tsr_case_group(group); }

int32_t tsr_check_backends(const tsr_check_options *options, const char **names,
                           int32_t capacity) {
  return tsr_backends_list(options->context, options->backend, names, capacity);
}

void tsr_check_format(const tsr_check_record *r, char *text, size_t capacity) {
  if (r->verdict == TSR_VERDICT_PASS || (r->verdict == TSR_VERDICT_FAIL && *r->output))
    snprintf(text, capacity, "%s %s %s %s/%s %s %s: max %.3g of %.3g, rms %.3g of %.3g%s%s%s%s",
             tsr_verdict_string(r->verdict), r->backend, r->kernel, r->group, r->case_name,
             tsr_check_dtype_name(r->dtype), r->output, r->max_error, r->max_bound, r->rms_error,
             r->rms_bound, *r->reason ? "; " : "", r->reason, *r->note ? " # " : "", r->note);
  else
    snprintf(text, capacity, "%s %s %s %s/%s %s%s%s: %s", tsr_verdict_string(r->verdict),
             r->backend, r->kernel, r->group, r->case_name, tsr_check_dtype_name(r->dtype),
             *r->output ? " " : "", r->output, r->reason);
}

void tsr_check_tally_add(tsr_check_tally *tally, const tsr_check_record *r) {
  switch (r->verdict) {
    case TSR_VERDICT_PASS:
      tally->passed++;
      break;
    case TSR_VERDICT_FAIL:
      if (tally->failed++ == 0)
        tsr_check_format(r, tally->first_failure, sizeof tally->first_failure);
      break;
    case TSR_VERDICT_REFUSED:
      if (tally->refused++ == 0)
        tsr_check_format(r, tally->first_refusal, sizeof tally->first_refusal);
      return;
    default:
      tally->skipped++;
      return;
  }
  if (!*r->output || (r->ratio <= tally->worst_ratio && *tally->worst_case)) return;
  tally->worst_ratio = r->ratio;
  snprintf(tally->worst_case, sizeof tally->worst_case, "%s %s %s", r->case_name,
           tsr_check_dtype_name(r->dtype), r->output);
}

static tsr_check_record record_of(const check *c, tsr_pass pass) {
  tsr_check_record r = {0};
  r.case_name = c->name;
  r.group = c->row->group;
  r.note = c->row->note ? c->row->note : "";
  r.backend = c->backend;
  r.kernel = c->kernel ? c->kernel : "";
  r.output = "";
  r.reason = "";
  r.dtype = c->in->dtype;
  r.pass = pass;
  return r;
}

static void emit(const check *c, const tsr_check_record *r) {
  if (c->options->report) c->options->report(c->options->user, r);
}

static void emit_text(const check *c, tsr_verdict verdict, const char *reason) {
  tsr_check_record r = record_of(
      c, c->passes & TSR_PASS_BACKWARD ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD);
  r.verdict = verdict;
  r.reason = reason;
  if (verdict == TSR_VERDICT_FAIL) r.ratio = (double)INFINITY;
  emit(c, &r);
}

/* Exact zeros: rows without an allowed key, keys that nobody sees. A gradient of Q is zero for
 * certain only where LSE is -inf, that of K only where that of V is. */
static int64_t wrong_zero(const check *c, tsr_output which, const tsr_dense *x) {
  const tsr_dense *ref = &c->ref.out[which];
  const tsr_dense *lse = &c->ref.out[TSR_OUTPUT_LSE];
  int64_t r, rows;
  if (c->form.accumulate || c->row->expect_nan) return -1;
  if (which == TSR_OUTPUT_O || which == TSR_OUTPUT_DV) return tsr_zero_rows(x, ref, NULL);
  if (which == TSR_OUTPUT_DK && c->ref.out[TSR_OUTPUT_DV].x)
    return tsr_zero_rows(x, ref, &c->ref.out[TSR_OUTPUT_DV]);
  if (which != TSR_OUTPUT_DQ || !lse->x) return -1;
  rows = lse->dim[0] * lse->dim[1] * lse->dim[2];
  for (r = 0; r < rows; ++r) {
    int64_t d;
    if (lse->x[r] != -(double)INFINITY) continue;
    for (d = 0; d < x->dim[3]; ++d)
      if (x->x[r * x->dim[3] + d] != 0) return r;
  }
  return -1;
}

/* Error over bound of a result that is outside of its bound: where few elements carry the baseline's error, neighbours
 * tell what it is off by (neighbours.h). They cost many runs, and only what is outside asks for them. LSE is float32
 * in every dtype, and its bound is not of this kind. */
static double near_ratio(check *c, const tsr_setup *setup, tsr_output which, const tsr_dense *x, const tsr_error *error,
                         const tsr_bound *bound) {
  const tsr_error naive = tsr_error_measure(&c->naive.out[which], &c->ref.out[which], setup->out[which].dtype, true);
  const double ratio = tsr_error_ratio(error, bound), scores = tsr_dense_largest(&c->ref.out[TSR_OUTPUT_LSE]);
  tsr_dtype dtype[TSR_OUTPUT_COUNT];
  char why[TEXT];
  int i;
  if (ratio <= 1 || error->broken >= 0 || naive.effective > TSR_NEIGHBOURS_FEW || which == TSR_OUTPUT_LSE ||
      which == TSR_OUTPUT_MAX_LOGIT || c->near_failed)
    return ratio;
  for (i = 0; i < TSR_OUTPUT_COUNT; ++i) dtype[i] = setup->out[i].dtype;
  if (!c->near_known) {
    c->near_known = true;
    c->near_failed = !tsr_neighbours_measure(c->options->context, c->in, c->passes, dtype, &c->near, why, sizeof why);
  }
  if (c->near_failed || !c->near.most[which].x) return ratio;
  return tsr_neighbours_ratio(&c->near, which, x, &c->ref.out[which], &c->naive.out[which], error, &naive, bound,
                              setup->out[which].dtype, scores);
}

/* Of rows of V, those alone that somebody sees: whose row of dV is not 0. */
static bool is_zero(const tsr_dense *dense, int64_t row) {
  int64_t i;
  for (i = 0; i < dense->dim[3]; ++i)
    if (dense->x[row * dense->dim[3] + i] != 0) return false;
  return true;
}
static double longest_row(const tsr_dense *dense, const tsr_dense *gradient) {
  const int64_t dim = dense->dim[3], rows = dense->x && dim > 0 ? tsr_dense_count(dense) / dim : 0;
  const bool same = gradient && gradient->x && gradient->dim[3] == dim && tsr_dense_count(gradient) == rows * dim;
  double most = 0;
  int64_t r, i;
  for (r = 0; r < rows; ++r) {
    double sum = 0;
    if (same && is_zero(gradient, r)) continue;
    for (i = 0; i < dim; ++i) sum += dense->x[r * dim + i] * dense->x[r * dim + i];
    if (isfinite(sum)) most = fmax(most, sum);
  }
  return sqrt(most);
}

/* Gradients that are 0 as a whole, though their terms are not: of queries that see one key each, of a bias over all
 * keys. The baseline is exact there when its rounded P add up to 1; dP and D in float32 are sums of their own order
 * and differ by roundings. No term of dS is larger than dO V. */
static void add_terms(const check *c, tsr_output which, const tsr_error *error, tsr_bound *bound) {
  const tsr_case *row = c->row;
  const double scale = row->scale != 0 ? fabs((double)row->scale) : 1 / sqrt((double)row->dim_qk);
  double term = longest_row(&c->in->dout, NULL) * longest_row(&c->in->v, &c->ref.out[TSR_OUTPUT_DV]);
  double rows = 1; /* that an element sums */
  if (which == TSR_OUTPUT_DQ) {
    term *= scale * longest_row(&c->in->k, NULL);
  } else if (which == TSR_OUTPUT_DK) {
    term *= scale * longest_row(&c->in->q, NULL);
    rows = (double)row->heads_q / fmax((double)row->heads_kv, 1) * (double)row->seq_q;
  } else if (which == TSR_OUTPUT_DBIAS) {
    if (row->bias_over & TSR_OVER_B) rows *= (double)row->batch;
    if (row->bias_over & TSR_OVER_H) rows *= (double)row->heads_q;
    if (row->bias_over & TSR_OVER_Q) rows *= (double)row->seq_q;
  } else {
    return;
  }
  term *= sqrt(rows);
  if (error->ref_max > 0x1p-40 * term) return;
  bound->max += 0x1p-24 * term;
  bound->rms += 0x1p-24 * term;
}

static tsr_bound bound_of(const check *c, const tsr_setup *setup, tsr_output which, const tsr_error *error) {
  const tsr_dtype dtype = setup->out[which].dtype;
  const double scores = tsr_dense_largest(&c->ref.out[TSR_OUTPUT_LSE]);
  tsr_error naive = tsr_error_measure(&c->naive.out[which], &c->ref.out[which], dtype, true);
  tsr_bound bound = tsr_bound_make(&naive, error, which, dtype, scores);
  if (c->row->q8 && c->row->cache) tsr_bound_add_operand(&bound, error, which, c->row->cache);
  add_terms(c, which, error, &bound);
  return bound;
}

static void judge(check *c, const tsr_setup *setup, tsr_output which, const tsr_dense *x) {
  double scale = c->options->bound_scale > 0 ? c->options->bound_scale : 1;
  bool allow_nan = c->row->expect_nan;
  tsr_dtype dtype = setup->out[which].dtype;
  const tsr_dense *ref = &c->ref.out[which];
  tsr_error error = tsr_error_measure(x, ref, dtype, allow_nan);
  tsr_bound bound = bound_of(c, setup, which, &error);
  tsr_check_record r =
      record_of(c, which >= TSR_OUTPUT_DQ ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD);
  char reason[TEXT] = "";
  int64_t row;
  bound.max *= scale;
  bound.rms *= scale;
  r.output = tsr_output_name(which);
  r.max_error = error.max, r.rms_error = error.rms;
  r.max_bound = bound.max, r.rms_bound = bound.rms;
  r.ratio = scale < 1 ? tsr_error_ratio(&error, &bound) : near_ratio(c, setup, which, x, &error, &bound);
  if (error.broken >= 0) {
    snprintf(reason, sizeof reason, "element %lld: found %g, expected %g", (long long)error.broken,
             x->x[error.broken], ref->x[error.broken]);
  } else if (!(r.ratio <= 1)) {
    snprintf(reason, sizeof reason, "element %lld of [%lld, %lld, %lld, %lld]: found %.9g, expected "
             "%.9g", (long long)error.worst, (long long)ref->dim[0], (long long)ref->dim[1],
             (long long)ref->dim[2], (long long)ref->dim[3], x->x[error.worst],
             ref->x[error.worst]);
  } else if ((row = wrong_zero(c, which, x)) >= 0) {
    r.ratio = (double)INFINITY;
    snprintf(reason, sizeof reason, "row %lld must be exactly 0", (long long)row);
  }
  r.reason = reason;
  r.verdict = *reason ? TSR_VERDICT_FAIL : TSR_VERDICT_PASS;
  emit(c, &r);
}

/* Runs a plan and judges its outputs. */
static void run_plan(check *c, tsr_setup *setup, tsr_plan *plan) {
  char why[TEXT];
  tsr_results results;
  tsr_status status = tsr_setup_run(setup, plan, NULL);
  int which;
  if (status != TSR_STATUS_SUCCESS) {
    snprintf(why, sizeof why, "run: %s: %s", tsr_status_string(status), tsr_setup_message(setup));
    emit_text(c, TSR_VERDICT_FAIL, why);
    return;
  }
  if (!tsr_setup_gather(setup, &results, why, sizeof why)) {
    emit_text(c, TSR_VERDICT_FAIL, why);
    return;
  }
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which)
    if (results.out[which].x) judge(c, setup, (tsr_output)which, &results.out[which]);
  tsr_results_destroy(&results);
}

static tsr_pass last_pass(const check *c) {
  return c->passes & TSR_PASS_BACKWARD ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD;
}

/* Index among the kernels of the pass; KERNELS_MAX - 1 for what lies past the table. */
static int32_t kernel_index(const check *c, const char *kernel) {
  const char *name;
  int32_t k;
  for (k = 0; k < KERNELS_MAX - 1; ++k) {
    name = tsr_backends_kernel(c->options->context, c->backend, last_pass(c), k);
    if (!name || strcmp(name, kernel) == 0) break;
  }
  return k;
}

/* The setup of the case in hand, made anew after damage: false with a record. */
static bool open_setup(check *c, tsr_setup *setup) {
  char why[TEXT];
  const tsr_device device =
      tsr_backends_device(c->options->context, c->backend, c->options->device);
  if (tsr_setup_create_on(setup, device, c->in, &c->form, c->in->dtype, c->passes, why,
                          sizeof why))
    return true;
  emit_text(c, setup->broken ? TSR_VERDICT_FAIL : TSR_VERDICT_SKIPPED, why);
  return false;
}

/* One kernel; NULL: the dispatcher's choice, which must be a kernel that has not run. quiet: a refusal
 * is no record (a kernel of another dtype among all kernels). Returns whether the setup can serve
 * another run. */
static bool run_kernel(check *c, tsr_setup *setup, const char *kernel, bool quiet) {
  char why[TEXT];
  tsr_plan *plan = NULL;
  tsr_status status;
  tsr_plan_info info = {0};
  c->kernel = kernel;
  status = tsr_backends_plan(&plan, c->options->context, setup, c->backend, kernel);
  if (status == TSR_STATUS_NOT_SUPPORTED) {
    if (!quiet) emit_text(c, TSR_VERDICT_REFUSED, tsr_last_message());
  } else if (status != TSR_STATUS_SUCCESS) {
    snprintf(why, sizeof why, "plan: %s: %s", tsr_status_string(status), tsr_last_message());
    emit_text(c, TSR_VERDICT_FAIL, why);
  } else {
    info.struct_size = sizeof info;
    if (tsr_plan_describe(plan, last_pass(c), &info) == TSR_STATUS_SUCCESS) c->kernel = info.kernel;
    const int32_t index = kernel_index(c, c->kernel ? c->kernel : "");
    if (!c->ran[index]) {
      c->ran[index] = true;
      run_plan(c, setup, plan);
      if (!setup->broken) tsr_setup_reset(setup);
    }
  }
  tsr_plan_destroy(plan);
  return !setup->broken;
}

/* Runs the case in hand with the kernels that the options name and that have not run on it. False when
 * the machine cannot hold the case. */
static bool run_form(check *c, bool quiet) {
  const char *wanted = c->options->kernel, *kernel;
  const bool all = wanted && strcmp(wanted, "*") == 0;
  tsr_setup setup;
  int32_t k;
  if (!open_setup(c, &setup)) return false;
  bool open = run_kernel(c, &setup, all ? NULL : wanted, quiet);
  /* Kernels that dispatch did not choose, by name, except the baseline: it is the yardstick. */
  for (k = 0; all; ++k) {
    kernel = tsr_backends_kernel(c->options->context, c->backend, last_pass(c), k);
    if (!kernel) break;
    if ((k < KERNELS_MAX - 1 && c->ran[k]) || strstr(kernel, "naive")) continue;
    if (!open) {
      tsr_setup_destroy(&setup);
      if (!open_setup(c, &setup)) return false;
    }
    open = run_kernel(c, &setup, kernel, true);
  }
  tsr_setup_destroy(&setup);
  return true;
}

static void run_backends(check *c) {
  const char *names[BACKENDS_MAX];
  int32_t i, count = tsr_check_backends(c->options, names, BACKENDS_MAX);
  const char *wanted = c->options->kernel;
  const int64_t alignment = c->form.alignment;
  /* One kernel by name may take the case either way: it is refused when both are. */
  const bool named = wanted && strcmp(wanted, "*") != 0 && alignment < ALIGNED;
  for (i = 0; i < count && i < BACKENDS_MAX; ++i) {
    c->backend = names[i];
    memset(c->ran, 0, sizeof c->ran);
    snprintf(c->name, sizeof c->name, "%s", c->row->name);
    if (!run_form(c, named) || alignment >= ALIGNED) continue;
    c->form.alignment = ALIGNED;
    snprintf(c->name, sizeof c->name, "%.100s@%d", c->row->name, ALIGNED);
    run_form(c, !(named && !c->ran[kernel_index(c, wanted)]));
    c->form.alignment = alignment;
  }
}

bool tsr_check_inputs(const tsr_check_options *options, const tsr_inputs *in, char *message,
                      size_t capacity) {
  char why[TEXT] = "out of memory";
  const tsr_case *row = in->row;
  bool ok;
  check c = {0};
  c.options = options;
  c.row = row;
  c.in = in;
  c.form = *row;
  c.passes = options->passes & TSR_PASS_BACKWARD ? TSR_PASS_FORWARD | TSR_PASS_BACKWARD
                                                 : TSR_PASS_FORWARD;
  if (options->forward_too && row->forward_only) c.passes = TSR_PASS_FORWARD;
  if (options->determinism > c.form.determinism) c.form.determinism = options->determinism;
  if (options->alignment > c.form.alignment) c.form.alignment = options->alignment;
  if (row->forward_only && c.passes != TSR_PASS_FORWARD) return true;
  ok = tsr_backends_truth(options->context, in, TSR_TRUTH_REF64, c.passes, &c.ref, why,
                          sizeof why) &&
       tsr_backends_truth(options->context, in, TSR_TRUTH_NAIVE, c.passes, &c.naive, why,
                          sizeof why);
  if (ok)
    run_backends(&c);
  else
    snprintf(message, capacity, "%s %s: %s", row->name, tsr_check_dtype_name(in->dtype), why);
  tsr_results_destroy(&c.ref);
  tsr_results_destroy(&c.naive);
  tsr_neighbours_destroy(&c.near);
  return ok;
}

/* One case in one dtype. */
static bool run_case(const tsr_check_options *options, const tsr_case *row, tsr_dtype dtype,
                     char *message, size_t capacity) {
  tsr_inputs in;
  bool ok;
  if (!tsr_inputs_create(&in, row, dtype)) {
    snprintf(message, capacity, "%s: out of memory", row->name);
    return false;
  }
  ok = tsr_check_inputs(options, &in, message, capacity);
  tsr_inputs_destroy(&in);
  return ok;
}

bool tsr_check_case(const tsr_check_options *options, const tsr_case *row, char *message,
                    size_t capacity) {
  uint32_t dtypes = tsr_case_dtypes(row);
  int dtype;
  if (options->dtypes) dtypes &= options->dtypes;
  for (dtype = 1; dtype < 32; ++dtype)
    if (dtypes >> dtype & 1 && !run_case(options, row, (tsr_dtype)dtype, message, capacity))
      return false;
  return true;
}

bool tsr_check_group(const tsr_check_options *options, int32_t group, char *message,
                     size_t capacity) {
  const char *wanted = tsr_case_group(group);
  int32_t i;
  if (!wanted) {
    snprintf(message, capacity, "group: found %d, accepted 0 .. %d", (int)group,
             (int)tsr_case_group_count() - 1);
    return false;
  }
  for (i = 0; i < tsr_case_count(); ++i) {
    const tsr_case *row = tsr_case_at(i);
    if (strcmp(row->group, wanted) != 0) continue;
    if (options->name && !strstr(row->name, options->name)) continue;
    if (!tsr_check_case(options, row, message, capacity)) return false;
  }
  return true;
}
