// SPDX-License-Identifier: Apache-2.0
//
// The second half of setup.h: the dense form, outputs before a run, the run, what it left, and the end. Rows of a slot outside
// the used part must be zero (-inf for LSE and the row maximum); bytes between rows, before the first
// slot and after the last must be what they were.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numeric.h"
#include "setup.h"

tsr_case tsr_setup_dense_form(const tsr_inputs *in, int64_t *lens_q, int64_t *lens_k) {
  tsr_case form = *in->row;
  int64_t b;
  for (b = 0; b < form.batch; ++b) {
    lens_q[b] = in->q_len[b].len;
    lens_k[b] = in->k_len[b].len;
  }
  form.len_q = lens_q;
  form.len_k = lens_k;
  form.layout = TSR_PATTERN_BHSD;
  form.layout_q = form.layout_k = form.layout_v = form.layout_o = form.layout_lse = 0;
  form.layout_dout = 0;
  form.alignment = 0;
  form.left_q = form.left_k = form.slot_q = form.slot_k = NULL;
  form.packed_q = form.packed_k = form.no_bound = form.index_i64 = form.mask_bits = false;
  form.lead = form.page_size = form.page_gap = form.share = 0;
  form.rng_array = false;
  form.scale_over = 0;
  form.cache = TSR_DTYPE_NONE; /* values are exact in every dtype */
  form.q8 = false;
  form.scale_rows = 0;
  form.determinism = TSR_DETERMINISM_DEFAULT;
  form.no_lse = false; /* bounds want the size of the scores */
  return form;
}

static bool is_rows(tsr_output which) {
  return which == TSR_OUTPUT_LSE || which == TSR_OUTPUT_MAX_LOGIT;
}

static bool is_keys(tsr_output which) { return which == TSR_OUTPUT_DK || which == TSR_OUTPUT_DV; }

/* Calls visit for every row of every slot: i is the row in the used part, or -1 outside it. */
typedef bool (*visit_fn)(void *state, tsr_buffer *buffer, int64_t b, int64_t h, int64_t i,
                         int64_t at_b, int64_t at_s);

static bool visit_rows(tsr_setup *s, tsr_output which, visit_fn visit, void *state) {
  const tsr_case *form = &s->form;
  tsr_buffer *buffer = &s->out[which];
  bool keys = is_keys(which);
  bool packed = keys ? form->packed_k : form->packed_q;
  const int64_t *begin = keys ? s->begin_k : s->begin_q;
  int64_t b, h, r;
  for (b = 0; b < form->batch; ++b) {
    tsr_lengths l = tsr_setup_lengths(s, !keys, b);
    for (h = 0; h < buffer->dim[1]; ++h)
      for (r = 0; r < l.slot; ++r) {
        int64_t i = r >= l.left && r < l.left + l.len ? r - l.left : -1;
        if (!visit(state, buffer, b, h, i, packed ? 0 : b, begin[b] + r)) return false;
      }
  }
  return true;
}

/* ---------------------------------------------------------------------------------------- reset */

static bool reset_row(void *state, tsr_buffer *buffer, int64_t b, int64_t h, int64_t i,
                      int64_t at_b, int64_t at_s) {
  static const double zeros[1024];
  double row[1024];
  const tsr_dense *initial = (const tsr_dense *)state;
  int64_t d;
  if (initial->x) {
    tsr_buffer_write_row(buffer, at_b, h, at_s,
                         i >= 0 ? tsr_dense_row(initial, b, h, i) : zeros);
    return true;
  }
  for (d = 0; d < buffer->dim[3]; ++d) row[d] = (double)NAN;
  tsr_buffer_write_row(buffer, at_b, h, at_s, row);
  return true;
}

static void reset_whole(tsr_setup *s, tsr_output which) {
  tsr_buffer *buffer = &s->out[which];
  const tsr_dense *initial = &s->in->initial[which];
  int64_t b, h, i, j;
  if (!initial->x) return;
  for (b = 0; b < buffer->dim[0]; ++b)
    for (h = 0; h < buffer->dim[1]; ++h)
      for (i = 0; i < buffer->dim[2]; ++i)
        for (j = 0; j < buffer->dim[3]; ++j) {
          bool used = which == TSR_OUTPUT_DSINK ||
                      (j < initial->dim[3] && !isnan(tsr_dense_row(&s->in->bias, b, h, i)[j]));
          tsr_test_store(buffer->dtype, buffer->block.data, tsr_buffer_offset(buffer, b, h, i, j),
                         used ? tsr_dense_row(initial, b, h, i)[j] : 0);
        }
}

void tsr_setup_reset(tsr_setup *s) {
  int which;
  int64_t i;
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) {
    tsr_buffer *buffer = &s->out[which];
    if (buffer->dtype == TSR_DTYPE_NONE) continue;
    if (!buffer->sparse) {
      for (i = 0; i < buffer->elements; ++i) tsr_test_poison(buffer->dtype, buffer->block.data, i);
      memset(buffer->mark, 0, (size_t)buffer->elements);
    }
    if (which == TSR_OUTPUT_DBIAS || which == TSR_OUTPUT_DSINK)
      reset_whole(s, (tsr_output)which);
    else if (buffer->sparse || s->in->initial[which].x)
      visit_rows(s, (tsr_output)which, reset_row, (void *)(uintptr_t)&s->in->initial[which]);
  }
}

/* ------------------------------------------------------------------------------------------ run */

static tsr_status give_workspace(tsr_setup *s, const tsr_plan *plan, tsr_pass pass) {
  const bool sparse_possible = s->device.kind == TSR_DEVICE_HOST;
  size_t bytes = 0;
  tsr_status status = tsr_plan_workspace_size(plan, pass, &bytes);
  const bool sparse = sparse_possible && bytes > ((size_t)1 << 28);
  tsr_block_destroy(&s->workspace);
  if (status != TSR_STATUS_SUCCESS) return status;
  if (!tsr_block_create_on(&s->workspace, s->device, bytes, 64, sparse)) {
    snprintf(s->fault, sizeof s->fault, "workspace of %zu bytes: %s", bytes, tsr_block_reason());
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  if (!sparse) memset(s->workspace.data, 0xff, bytes);
  s->args.workspace = s->workspace.data;
  s->args.workspace_size = bytes;
  return TSR_STATUS_SUCCESS;
}

static tsr_status damaged(tsr_setup *s, const char *what, const tsr_block *block) {
  int64_t where = 0;
  if (tsr_block_intact(block, &where)) return TSR_STATUS_SUCCESS;
  s->broken = true;
  snprintf(s->fault, sizeof s->fault, "%s: byte %lld was written, of %zu bytes", what,
           (long long)where, block->size);
  return TSR_STATUS_DEVICE_ERROR;
}

tsr_status tsr_setup_settle(tsr_setup *s) {
  const struct {
    const char *name;
    const tsr_buffer *buffer;
  } inputs[] = {{"q", &s->q},          {"k", &s->k},           {"v", &s->v},
                {"q_scale", &s->q_scale}, {"k_scale", &s->k_scale}, {"v_scale", &s->v_scale}, {"bias", &s->bias},
                {"mask", &s->mask},    {"block_mask", &s->block_mask}, {"dout", &s->dout},
                {"dlse", &s->dlse}};
  const tsr_gpu *gpu;
  tsr_status status = TSR_STATUS_SUCCESS;
  int i;
  if (s->device.kind == TSR_DEVICE_HOST) return TSR_STATUS_SUCCESS;
  gpu = tsr_gpu_open(s->device);
  if (!gpu || !tsr_gpu_synchronize(gpu)) {
    s->broken = true;
    snprintf(s->fault, sizeof s->fault, "%s", tsr_gpu_error());
    return TSR_STATUS_DEVICE_ERROR;
  }
  for (i = 0; status == 0 && i < (int)(sizeof inputs / sizeof inputs[0]); ++i)
    status = damaged(s, inputs[i].name, &inputs[i].buffer->block);
  for (i = 0; status == 0 && i < TSR_OUTPUT_COUNT; ++i)
    status = damaged(s, tsr_output_name((tsr_output)i), &s->out[i].block);
  for (i = 0; status == 0 && i < TSR_VECTOR_COUNT; ++i)
    status = damaged(s, "an array of lengths or slopes", &s->vector[i]);
  return status == 0 ? damaged(s, "workspace", &s->workspace) : status;
}

const char *tsr_setup_message(const tsr_setup *s) {
  return *s->fault ? s->fault : tsr_last_message();
}

tsr_status tsr_setup_run(tsr_setup *s, const tsr_plan *plan, const tsr_plan *plan_backward) {
  tsr_args args;
  tsr_status status;
  s->fault[0] = 0;
  status = give_workspace(s, plan, TSR_PASS_FORWARD);
  if (status != TSR_STATUS_SUCCESS) return status;
  args = s->args;
  args.dout = NULL, args.dlse = NULL, args.dsink = NULL;
  args.dq = args.dk = args.dv = args.dbias = NULL;
  status = tsr_forward(plan, &args);
  if (status == TSR_STATUS_SUCCESS) status = tsr_setup_settle(s);
  if (status != TSR_STATUS_SUCCESS || !(s->passes & TSR_PASS_BACKWARD)) return status;
  if (!plan_backward) plan_backward = plan;
  status = give_workspace(s, plan_backward, TSR_PASS_BACKWARD);
  if (status != TSR_STATUS_SUCCESS) return status;
  args = s->args;
  args.max_logit = NULL;
  status = tsr_backward(plan_backward, &args);
  return status == TSR_STATUS_SUCCESS ? tsr_setup_settle(s) : status;
}

/* --------------------------------------------------------------------------------------- gather */

typedef struct gather {
  tsr_output which;
  tsr_dense *into;
  char *why;
  size_t capacity;
} gather;

static bool gather_row(void *state, tsr_buffer *buffer, int64_t b, int64_t h, int64_t i,
                       int64_t at_b, int64_t at_s) {
  gather *g = (gather *)state;
  double row[1024], expected = is_rows(g->which) ? -(double)INFINITY : 0;
  int64_t d;
  if (i >= 0) {
    tsr_buffer_read_row(buffer, at_b, h, at_s, tsr_dense_row(g->into, b, h, i));
    return true;
  }
  tsr_buffer_read_row(buffer, at_b, h, at_s, row);
  for (d = 0; d < buffer->dim[3]; ++d) {
    if (row[d] == expected) continue;
    snprintf(g->why, g->capacity,
             "%s: row %lld of the slot of sequence %lld, head %lld, is outside the used part: found "
             "%g at %lld, expected %g",
             tsr_output_name(g->which), (long long)at_s, (long long)b, (long long)h, row[d],
             (long long)d, expected);
    return false;
  }
  return true;
}

/* dbias, dsink: memory may have more keys than the case (the last page's rest), which must be zero. */
static bool gather_whole(tsr_buffer *buffer, tsr_dense *into, char *why, size_t capacity) {
  tsr_dense all;
  int64_t b, h, i, j, wrong = -1;
  if (!tsr_dense_create(&all, buffer->dim[0], buffer->dim[1], buffer->dim[2], buffer->dim[3])) {
    snprintf(why, capacity, "out of memory");
    return false;
  }
  for (b = 0; b < all.dim[0]; ++b)
    for (h = 0; h < all.dim[1]; ++h)
      for (i = 0; i < all.dim[2]; ++i) {
        double *row = tsr_dense_row(&all, b, h, i);
        tsr_buffer_read_row(buffer, b, h, i, row);
        for (j = 0; j < all.dim[3]; ++j)
          if (j < into->dim[3])
            tsr_dense_row(into, b, h, i)[j] = row[j];
          else if (row[j] != 0)
            wrong = j;
      }
  tsr_dense_destroy(&all);
  if (wrong >= 0) snprintf(why, capacity, "dbias: key %lld is past the end, not 0", (long long)wrong);
  return wrong < 0;
}

static bool gather_one(tsr_setup *s, tsr_output which, tsr_dense *into, char *why,
                       size_t capacity) {
  tsr_buffer *buffer = &s->out[which];
  const tsr_case *form = &s->form;
  gather g = {which, into, why, capacity};
  int64_t where = 0;
  bool whole = which == TSR_OUTPUT_DBIAS || which == TSR_OUTPUT_DSINK, ok;
  if (whole)
    ok = tsr_dense_create(into, buffer->dim[0], buffer->dim[1], buffer->dim[2],
                          which == TSR_OUTPUT_DBIAS ? s->in->bias.dim[3] : 1);
  else
    ok = tsr_dense_create(into, form->batch, buffer->dim[1],
                          is_keys(which) ? form->seq_k : form->seq_q, buffer->dim[3]);
  if (!ok) {
    snprintf(why, capacity, "out of memory");
    return false;
  }
  if (whole ? !gather_whole(buffer, into, why, capacity)
            : !visit_rows(s, which, gather_row, &g)) {
    tsr_dense_destroy(into);
    return false;
  }
  if (tsr_buffer_gaps_intact(buffer, &where)) return true;
  snprintf(why, capacity, "%s: element %lld belongs to no row but was written",
           tsr_output_name(which), (long long)where);
  return false;
}

bool tsr_setup_gather(tsr_setup *s, tsr_results *results, char *why, size_t capacity) {
  int which;
  memset(results, 0, sizeof *results);
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) {
    if (s->out[which].dtype == TSR_DTYPE_NONE) continue;
    if (gather_one(s, (tsr_output)which, &results->out[which], why, capacity)) continue;
    tsr_results_destroy(results);
    return false;
  }
  return true;
}

void tsr_results_destroy(tsr_results *results) {
  int which;
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) tsr_dense_destroy(&results->out[which]);
}

void tsr_setup_destroy(tsr_setup *s) {
  tsr_buffer *inputs[] = {&s->q,    &s->k,    &s->v,          &s->q_scale, &s->k_scale, &s->v_scale,
                          &s->bias, &s->mask, &s->block_mask, &s->dout,    &s->dlse};
  size_t i;
  for (i = 0; i < sizeof inputs / sizeof inputs[0]; ++i) tsr_buffer_destroy(inputs[i]);
  for (i = 0; i < TSR_OUTPUT_COUNT; ++i) tsr_buffer_destroy(&s->out[i]);
  for (i = 0; i < TSR_VECTOR_COUNT; ++i) tsr_block_destroy(&s->vector[i]);
  tsr_block_destroy(&s->workspace);
  free(s->begin_q);
  free(s->begin_k);
  free(s->page);
  memset(s, 0, sizeof *s);
}
