// SPDX-License-Identifier: Apache-2.0
//
// Choice of kernels; see dispatch.h. Asking is cheap and allocates nothing, so the refusal list is
// not stored: whoever wants to read it asks every kernel again.
#include "dispatch.h"

#include <math.h>
#include <string.h>

static const char *source_text(tsri_source source) {
  switch (source) {
    case TSRI_SOURCE_NONE:
      break;
    case TSRI_SOURCE_ENVIRONMENT:
      return "the environment";
    case TSRI_SOURCE_CONTEXT:
      return "the context";
    case TSRI_SOURCE_PROBLEM:
      return "the problem";
  }
  return "nobody";
}

/* Passes of the kernels of a backend (index -1: of all backends) that bear the name. */
static uint32_t passes_of_kernel(const tsri_registry *r, int32_t index, const char *name) {
  uint32_t passes = 0;
  for (int32_t b = 0; b < r->count; ++b) {
    tsr_kernel_info info;
    if (index >= 0 && b != index) continue;
    for (int32_t k = 0; tsri_backend_kernel(&r->items[b], k, &info); ++k) {
      if (strcmp(info.name, name) == 0) passes |= (uint32_t)info.pass;
    }
  }
  return passes;
}

static tsr_status select_backend(const tsr_context *context, const char *name, tsri_source source,
                                 tsri_selection *out) {
  const tsri_registry *r = &context->registry;
  char list[512];
  tsri_text text = tsri_text_over(list, sizeof list);
  out->backend = -1;
  if (!name) return TSR_STATUS_SUCCESS;
  out->backend = tsri_registry_find(r, name);
  for (int32_t i = 0; i < r->count; ++i) {
    tsri_text_add(&text, "%s%s", i ? ", " : "", r->items[i].name);
  }
  TSRI_RETURN_IF(out->backend < 0, TSR_STATUS_NOT_FOUND,
                 "backend: found '%.100s', named by %s, accepted %s", name, source_text(source),
                 list);
  const tsri_backend *b = &r->items[out->backend];
  TSRI_RETURN_IF(!b->available, TSR_STATUS_NOT_FOUND,
                 "backend: found '%s', named by %s, which is absent here: %s", b->name,
                 source_text(source), b->reason.text);
  return TSR_STATUS_SUCCESS;
}

static tsr_status select_kernel(const tsr_context *context, const char *name, tsri_source source,
                                tsri_source backend_source, uint32_t passes, tsri_selection *out) {
  const tsri_registry *r = &context->registry;
  const uint32_t anywhere = passes_of_kernel(r, -1, name);
  const uint32_t in_backend = passes_of_kernel(r, out->backend, name);
  TSRI_RETURN_IF(!anywhere || strlen(name) >= sizeof out->kernel, TSR_STATUS_NOT_FOUND,
                 "kernel: found '%.150s', named by %s, accepted a kernel of an available backend",
                 name, source_text(source));
  if (!in_backend) {
    TSRI_RETURN_IF(source == backend_source, TSR_STATUS_NOT_FOUND,
                   "kernel: found '%s' with backend '%s', both named by %s, accepted a kernel of "
                   "that backend",
                   name, r->items[out->backend].name, source_text(source));
    /* The weaker wish gives way as a whole. */
    if (source < backend_source) return TSR_STATUS_SUCCESS;
    out->kernel_wins = 1;
  }
  out->kernel_passes = in_backend ? in_backend : anywhere;
  /* A context's kernel need not be of use to every problem; a problem's must be. */
  TSRI_RETURN_IF(source == TSRI_SOURCE_PROBLEM && !(out->kernel_passes & passes),
                 TSR_STATUS_NOT_FOUND,
                 "kernel: found '%s', a %s kernel, accepted one of a pass in "
                 "passes (0x%x)",
                 name, tsri_pass_text((tsr_pass)out->kernel_passes), passes);
  strcpy(out->kernel, name);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_select(const tsr_context *context, const char *backend, const char *kernel,
                       uint32_t passes, tsri_selection *out) {
  const tsri_source backend_source = backend ? TSRI_SOURCE_PROBLEM : context->backend.source;
  const tsri_source kernel_source = kernel ? TSRI_SOURCE_PROBLEM : context->kernel.source;
  memset(out, 0, sizeof *out);
  TSRI_FORWARD(
      select_backend(context, backend ? backend : context->backend.name, backend_source, out));
  if (!kernel_source || !passes) return TSR_STATUS_SUCCESS;
  return select_kernel(context, kernel ? kernel : context->kernel.name, kernel_source,
                       backend_source, passes, out);
}

tsr_status tsri_check_device(const tsr_context *context, tsr_device device) {
  char list[1024];
  tsri_text text = tsri_text_over(list, sizeof list);
  if (device.kind == TSR_DEVICE_HOST) return TSR_STATUS_SUCCESS;
  for (int32_t i = 0; i < context->registry.count; ++i) {
    const tsri_backend *b = &context->registry.items[i];
    if (b->vtable.device_kind != device.kind) continue;
    if (b->available && device.index < b->devices) return TSR_STATUS_SUCCESS;
    if (b->available) {
      tsri_text_add(&text, "; %s: has %d", b->name, b->devices);
    } else {
      tsri_text_add(&text, "; %s: absent: %s", b->name, b->reason.text);
    }
  }
  TSRI_RETURN(TSR_STATUS_NOT_FOUND, "device: found %s %d, which no available backend has%s",
              tsri_device_text(device.kind), device.index, list);
}

const char *tsri_backend_refusal(const tsr_context *context, const tsri_selection *selection,
                                 int32_t index, tsr_device device, int naming,
                                 tsr_reason *scratch) {
  const tsri_backend *b = &context->registry.items[index];
  scratch->text[0] = '\0';
  if (!b->available) {
    tsri_reason_set(scratch, "absent: %s", b->reason.text);
  } else if (b->vtable.device_kind != device.kind) {
    tsri_reason_set(scratch, "works on %s memory", tsri_device_text(b->vtable.device_kind));
  } else if (device.index >= b->devices) {
    tsri_reason_set(scratch, "has %d device(s), not number %d", b->devices, device.index);
  } else if (naming && selection->kernel_wins) {
    return NULL; /* the kernel's name picks its backend, whatever weaker sources name */
  } else if (selection->backend >= 0 && selection->backend != index) {
    tsri_reason_set(scratch, "not the backend named (%s)",
                    context->registry.items[selection->backend].name);
  } else if (b->vtable.named_only && selection->backend != index && !naming) {
    tsri_reason_set(scratch, "used only when named");
  }
  return scratch->text[0] ? scratch->text : NULL;
}

/* Asks one kernel. On refusal the reason says why. */
static int takes(const tsri_backend *b, int32_t kernel, const tsr_resolved *problem,
                 tsr_estimate *estimate, tsr_reason *reason) {
  memset(estimate, 0, sizeof *estimate);
  memset(reason, 0, sizeof *reason);
  const tsr_status status = b->vtable.supports(b->state, kernel, problem, estimate, reason);
  if (status != TSR_STATUS_SUCCESS) {
    tsri_reason_text(reason, tsr_status_string(status));
    return 0;
  }
  if (!(estimate->seconds >= 0) || isinf(estimate->seconds)) {
    tsri_reason_set(reason, "its estimate of %g s is no time", estimate->seconds);
    return 0;
  }
  return 1;
}

/* Whether the selection leaves a kernel of this pass in the race. */
static int is_named_out(const tsri_selection *selection, tsr_pass pass, const char *name) {
  return (selection->kernel_passes & (uint32_t)pass) && strcmp(selection->kernel, name) != 0;
}

static int pass_is_named(const tsri_selection *selection, tsr_pass pass) {
  return selection->kernel[0] && (selection->kernel_passes & (uint32_t)pass);
}

void tsri_dispatch_log(const tsr_context *context, const tsri_selection *selection,
                       const tsr_resolved *problem, const tsri_choice *choice) {
  char list[TSRI_MESSAGE_BYTES / 2];
  if (!tsri_log_wants(&context->log, TSR_LOG_PLAN)) return;
  tsri_text text = tsri_text_over(list, sizeof list);
  tsri_dispatch_list(context, selection, problem, choice->backend ? choice : NULL, "; ", &text);
  const char *pass = tsri_pass_text((tsr_pass)problem->p.passes);
  if (choice->backend) {
    tsri_log_write(&context->log, TSR_LOG_PLAN, "%s: %s/%s, %.3g s estimated; others: %s", pass,
                   choice->backend->name, choice->info.name, choice->estimate.seconds,
                   text.length ? list : "none");
  } else {
    tsri_log_write(&context->log, TSR_LOG_PLAN, "%s: no kernel; %s", pass, list);
  }
}

tsr_status tsri_dispatch(const tsr_context *context, const tsri_selection *selection,
                         const tsr_resolved *problem, tsri_choice *out) {
  const tsr_pass pass = (tsr_pass)problem->p.passes;
  const int naming = pass_is_named(selection, pass);
  tsr_reason reason;
  memset(out, 0, sizeof *out);
  for (int32_t i = 0; i < context->registry.count; ++i) {
    const tsri_backend *b = &context->registry.items[i];
    tsr_kernel_info info;
    if (tsri_backend_refusal(context, selection, i, problem->device, naming, &reason)) continue;
    for (int32_t k = 0; k < b->kernels && tsri_backend_kernel(b, k, &info); ++k) {
      tsr_estimate estimate;
      if (info.pass != pass || is_named_out(selection, pass, info.name)) continue;
      if (!takes(b, k, problem, &estimate, &reason)) continue;
      if (out->backend && estimate.seconds >= out->estimate.seconds) continue;
      out->backend = b;
      out->kernel = k;
      out->info = info;
      out->estimate = estimate;
    }
  }
  if (out->backend) return TSR_STATUS_SUCCESS;
  char list[TSRI_MESSAGE_BYTES - 256];
  tsri_text text = tsri_text_over(list, sizeof list);
  tsri_dispatch_list(context, selection, problem, NULL, "; ", &text);
  TSRI_RETURN(TSR_STATUS_NOT_SUPPORTED, "no %s kernel takes the problem: %s", tsri_pass_text(pass),
              text.length ? list : "this build has no backend");
}

static void add_line(tsri_text *text, const char *separator, const char *backend,
                     const char *kernel, const char *what) {
  tsri_text_add(text, "%s%s%s%s: %s", text->length ? separator : "", backend, kernel ? "/" : "",
                kernel ? kernel : "", what);
}

void tsri_dispatch_list(const tsr_context *context, const tsri_selection *selection,
                        const tsr_resolved *problem, const tsri_choice *chosen,
                        const char *separator, tsri_text *text) {
  const tsr_pass pass = (tsr_pass)problem->p.passes;
  const int naming = pass_is_named(selection, pass);
  tsri_text lines = *text;
  lines.length = 0; /* so that the first line gets no separator */
  if (lines.data && text->length < text->capacity) {
    lines.data += text->length;
    lines.capacity -= text->length;
  } else {
    lines.data = NULL;
    lines.capacity = 0;
  }
  for (int32_t i = 0; i < context->registry.count; ++i) {
    const tsri_backend *b = &context->registry.items[i];
    tsr_reason reason;
    tsr_kernel_info info;
    int of_pass = 0;
    const char *refusal =
        tsri_backend_refusal(context, selection, i, problem->device, naming, &reason);
    if (refusal) {
      add_line(&lines, separator, b->name, NULL, refusal);
      continue;
    }
    for (int32_t k = 0; k < b->kernels && tsri_backend_kernel(b, k, &info); ++k) {
      tsr_estimate estimate;
      if (info.pass != pass) continue;
      ++of_pass;
      if (chosen && chosen->backend == b && chosen->kernel == k) continue;
      if (is_named_out(selection, pass, info.name)) {
        tsri_reason_set(&reason, "not the kernel named (%s)", selection->kernel);
      } else if (takes(b, k, problem, &estimate, &reason)) {
        tsri_reason_set(&reason, "ranked lower, %.3g s estimated", estimate.seconds);
      }
      add_line(&lines, separator, b->name, info.name, reason.text);
    }
    if (!of_pass) add_line(&lines, separator, b->name, NULL, "has no kernel for this pass");
  }
  text->length += lines.length;
}
