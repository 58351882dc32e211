// SPDX-License-Identifier: Apache-2.0
//
// Making and describing contexts. The environment is read here, once per context; afterwards
// nothing depends on it. The process-wide default context is made on first use and lives as long as
// the process, because nobody can know when its last plan has gone.
#define _GNU_SOURCE /* secure_getenv */
#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "validate.h"

static void *host_alloc(void *context, size_t size, size_t alignment) {
  return tsri_alloc(&((tsr_context *)context)->allocator, size, alignment);
}

static void host_free(void *context, void *block) {
  tsri_free(&((tsr_context *)context)->allocator, block);
}

static void host_log(void *context, tsr_log_level level, const char *text) {
  if (level < TSR_LOG_ERROR || level > TSR_LOG_PLAN || !text) return;
  tsri_log_write(&((tsr_context *)context)->log, level, "%s", text);
}

static tsr_status copy_text(tsr_context *context, char **to, const char *from) {
  *to = tsri_copy_text(&context->allocator, from, strlen(from));
  TSRI_RETURN_IF(!*to, TSR_STATUS_OUT_OF_MEMORY, "context: the allocator gave no memory");
  return TSR_STATUS_SUCCESS;
}

/* An option wins over the environment; an empty variable names nothing. */
static tsr_status take_name(tsr_context *context, tsri_named *to, const char *field,
                            const char *option, const char *variable) {
  const char *value = option ? option : secure_getenv(variable);
  if (!value || (!option && !*value)) return TSR_STATUS_SUCCESS;
  TSRI_INVALID_IF(!*value, "%s: found an empty string, accepted NULL or a name", field);
  to->source = option ? TSRI_SOURCE_CONTEXT : TSRI_SOURCE_ENVIRONMENT;
  return copy_text(context, &to->name, value);
}

static tsr_status take_options(tsr_context *context, const tsr_context_options *o) {
  context->runner = o->runner;
  context->log.fn = o->log;
  context->log.user = o->log_user;
  TSRI_FORWARD(tsri_log_parse(&context->log, secure_getenv("TSR_LOG")));
  TSRI_FORWARD(take_name(context, &context->backend, "backend", o->backend, "TSR_BACKEND"));
  TSRI_FORWARD(take_name(context, &context->kernel, "kernel", o->kernel, "TSR_KERNEL"));
  TSRI_FORWARD(
      take_name(context, &context->cpu_target, "cpu_target", o->cpu_target, "TSR_CPU_TARGET"));
  /* An empty path is a list of no folders: no plug-ins. */
  const char *path = o->plugin_path ? o->plugin_path : secure_getenv("TSR_PLUGIN_PATH");
  if (path) TSRI_FORWARD(copy_text(context, &context->plugin_path, path));

  context->host.struct_size = sizeof context->host;
  context->host.abi = TSR_BACKEND_ABI;
  context->host.threads = o->threads;
  context->host.runner = context->runner.run ? &context->runner : NULL;
  context->host.cpu_target = context->cpu_target.name;
  context->host.context = context;
  context->host.alloc = host_alloc;
  context->host.free = host_free;
  context->host.log = host_log;
  return TSR_STATUS_SUCCESS;
}

/* Names that nothing here answers to are mistakes, and better told now than with the first plan. */
static tsr_status check_names(const tsr_context *context) {
  const tsri_registry *r = &context->registry;
  char list[512];
  tsri_text text = tsri_text_over(list, sizeof list);
  for (int32_t i = 0; i < r->count; ++i) {
    tsri_text_add(&text, "%s%s", i ? ", " : "", r->items[i].name);
  }
  TSRI_RETURN_IF(context->backend.name && tsri_registry_find(r, context->backend.name) < 0,
                 TSR_STATUS_NOT_FOUND, "%s: found '%s', accepted %s",
                 context->backend.source == TSRI_SOURCE_CONTEXT ? "backend" : "TSR_BACKEND",
                 context->backend.name, r->count ? list : "none: this build has no backend");
  if (!context->cpu_target.name) return TSR_STATUS_SUCCESS;
  text = tsri_text_over(list, sizeof list);
  for (int32_t i = 0; i < r->count; ++i) {
    const tsri_backend *b = &r->items[i];
    if (!b->vtable.probe || b->vtable.device_kind != TSR_DEVICE_HOST || b->vtable.named_only) {
      continue;
    }
    if (b->available) return TSR_STATUS_SUCCESS;
    tsri_text_add(&text, "%s%s: %s", text.length ? "; " : "", b->name, b->reason.text);
  }
  TSRI_RETURN(TSR_STATUS_NOT_FOUND, "%s: found '%s', which no CPU backend here takes%s%s",
              context->cpu_target.source == TSRI_SOURCE_CONTEXT ? "cpu_target" : "TSR_CPU_TARGET",
              context->cpu_target.name, text.length ? ": " : "", list);
}

static tsr_status fill(tsr_context *context, const tsr_context_options *options) {
  TSRI_FORWARD(take_options(context, options));
  TSRI_FORWARD(tsri_registry_open(context));
  return check_names(context);
}

tsr_status tsr_context_create(tsr_context **out, const tsr_context_options *options) {
  tsr_context_options checked;
  TSRI_INVALID_IF(!out, "out: found NULL, accepted a pointer to a tsr_context *");
  *out = NULL;
  TSRI_FORWARD(tsri_validate_options(options, &checked));
  const tsr_allocator allocator =
      checked.allocator.alloc ? checked.allocator : tsri_allocator_default();
  tsr_context *context = tsri_alloc_zeroed(&allocator, sizeof *context, 64);
  TSRI_RETURN_IF(!context, TSR_STATUS_OUT_OF_MEMORY, "context: the allocator gave no memory");
  context->allocator = allocator;
  const tsr_status status = fill(context, &checked);
  if (status == TSR_STATUS_SUCCESS) {
    *out = context;
    return status;
  }
  tsri_log_write(&context->log, TSR_LOG_ERROR, "context: %s", tsr_last_message());
  tsr_context_destroy(context);
  return status;
}

void tsr_context_destroy(tsr_context *context) {
  if (!context) return;
  const tsr_allocator allocator = context->allocator;
  tsri_registry_close(context);
  tsri_free(&allocator, context->backend.name);
  tsri_free(&allocator, context->kernel.name);
  tsri_free(&allocator, context->cpu_target.name);
  tsri_free(&allocator, context->plugin_path);
  tsri_free(&allocator, context);
}

static _Atomic(tsr_context *) default_context;
static pthread_mutex_t default_mutex = PTHREAD_MUTEX_INITIALIZER;

tsr_status tsri_context_or_default(const tsr_context *given, const tsr_context **out) {
  tsr_status status = TSR_STATUS_SUCCESS;
  *out = given ? given : atomic_load_explicit(&default_context, memory_order_acquire);
  if (*out) return status;
  pthread_mutex_lock(&default_mutex);
  tsr_context *made = atomic_load_explicit(&default_context, memory_order_relaxed);
  if (!made) {
    /* A failure is not remembered: the next call may find memory, or a corrected environment. */
    status = tsr_context_create(&made, NULL);
    atomic_store_explicit(&default_context, made, memory_order_release);
  }
  pthread_mutex_unlock(&default_mutex);
  *out = made;
  return status;
}

int32_t tsr_context_backend_count(const tsr_context *context) {
  if (tsri_context_or_default(context, &context) != TSR_STATUS_SUCCESS) return 0;
  return context->registry.count;
}

tsr_status tsr_context_backend_info(const tsr_context *context, int32_t index,
                                    tsr_backend_info *info) {
  tsr_backend_info ours = TSR_BACKEND_INFO_INIT;
  TSRI_FORWARD(tsri_check_out_struct(info, sizeof ours, "tsr_backend_info"));
  TSRI_FORWARD(tsri_context_or_default(context, &context));
  TSRI_INVALID_IF(index < 0 || index >= context->registry.count,
                  "index: found %d, accepted 0 .. %d", index, context->registry.count - 1);
  const tsri_backend *b = &context->registry.items[index];
  ours.name = b->name;
  ours.origin = tsri_backend_origin(b);
  ours.available = b->available;
  ours.named_only = b->vtable.named_only != 0;
  ours.device_kind = b->vtable.device_kind;
  ours.devices = b->devices;
  ours.reason = b->reason.text;
  ours.detail = b->detail.text;
  tsri_write_struct(info, &ours, sizeof ours);
  return TSR_STATUS_SUCCESS;
}

const char *tsr_context_kernel_name(const tsr_context *context, int32_t backend_index, int32_t i) {
  tsr_kernel_info info;
  if (tsri_context_or_default(context, &context) != TSR_STATUS_SUCCESS) return NULL;
  if (backend_index < 0 || backend_index >= context->registry.count) return NULL;
  const tsri_backend *b = &context->registry.items[backend_index];
  return i < b->kernels && tsri_backend_kernel(b, i, &info) ? info.name : NULL;
}

tsr_status tsr_device_query(const tsr_context *context, tsr_device device, tsr_device_info *info) {
  tsr_device_info ours = TSR_DEVICE_INFO_INIT;
  tsr_reason reason;
  TSRI_FORWARD(tsri_check_out_struct(info, sizeof ours, "tsr_device_info"));
  TSRI_FORWARD(tsri_validate_device(device));
  TSRI_FORWARD(tsri_context_or_default(context, &context));
  const tsri_backend *best = NULL;
  for (int32_t i = 0; i < context->registry.count; ++i) {
    const tsri_backend *b = &context->registry.items[i];
    if (!b->available || b->vtable.device_kind != device.kind || device.index >= b->devices) {
      continue;
    }
    /* The backend that runs by default knows best what runs may use. */
    if (!best || (best->vtable.named_only && !b->vtable.named_only)) best = b;
  }
  TSRI_RETURN_IF(!best, TSR_STATUS_NOT_FOUND, "device: found %s %d, which no available backend has",
                 tsri_device_text(device.kind), device.index);
  memset(&reason, 0, sizeof reason);
  ours.device = device;
  const tsr_status status = best->vtable.device_info(best->state, device.index, &ours, &reason);
  TSRI_RETURN_IF(status != TSR_STATUS_SUCCESS, status, "%s: %s", best->name,
                 tsri_reason_text(&reason, "it tells no facts of the device"));
  ours.device = device;
  ours.name[sizeof ours.name - 1] = '\0';
  tsri_write_struct(info, &ours, sizeof ours);
  return TSR_STATUS_SUCCESS;
}
