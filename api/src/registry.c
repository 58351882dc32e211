// SPDX-License-Identifier: Apache-2.0
//
// Building the registry: take a vtable from an entry, check it, probe it, keep it with its reason.
#include "registry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "plugin.h"
#include "text.h"

/* A backend that never says NOT_FOUND must not make counting endless. */
#define KERNELS_MAX 65536

const char *tsri_backend_origin(const tsri_backend *backend) {
  return backend->path ? backend->path : "built in";
}

int32_t tsri_registry_find(const tsri_registry *registry, const char *name) {
  for (int32_t i = 0; i < registry->count; ++i) {
    if (strcmp(registry->items[i].name, name) == 0) return i;
  }
  return -1;
}

int tsri_backend_kernel(const tsri_backend *backend, int32_t i, tsr_kernel_info *info) {
  if (!backend->available || i < 0 || i >= KERNELS_MAX) return 0;
  return backend->vtable.kernel_info(backend->state, i, info) == TSR_STATUS_SUCCESS && info->name;
}

static tsri_backend *add_item(tsr_context *context) {
  tsri_registry *r = &context->registry;
  if (r->count == r->capacity) {
    const int32_t capacity = r->capacity ? 2 * r->capacity : 8;
    tsri_backend *items = tsri_alloc(&context->allocator, (size_t)capacity * sizeof *items, 64);
    if (!items) return NULL;
    if (r->count) memcpy(items, r->items, (size_t)r->count * sizeof *items);
    tsri_free(&context->allocator, r->items);
    r->items = items;
    r->capacity = capacity;
  }
  tsri_backend *item = &r->items[r->count++];
  memset(item, 0, sizeof *item);
  return item;
}

static tsr_status out_of_memory(void) {
  TSRI_RETURN(TSR_STATUS_OUT_OF_MEMORY, "context: the allocator gave no memory for the registry");
}

static int is_backend_name(const char *name) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
  if (!name || name[0] < 'a' || name[0] > 'z') return 0;
  const size_t length = strspn(name, letters);
  return name[length] == '\0' && length < TSRI_BACKEND_NAME_BYTES;
}

/* Copies a vtable that keeps the ABI's promises into the item; else sets the item's reason. */
static int accept_vtable(const tsri_registry *registry, const tsr_backend *vtable,
                         tsri_backend *item) {
  const size_t least = offsetof(tsr_backend, merge); /* the optional slots come last */
  tsr_backend *v = &item->vtable;
  if (vtable->abi != TSR_BACKEND_ABI) {
    tsri_reason_set(&item->reason, "built for backend ABI %u, this library has %u", vtable->abi,
                    TSR_BACKEND_ABI);
    return 0;
  }
  if (vtable->struct_size < least || vtable->struct_size > 65536) {
    tsri_reason_set(&item->reason, "vtable of %zu bytes, accepted %zu or more", vtable->struct_size,
                    least);
    return 0;
  }
  memcpy(v, vtable, vtable->struct_size < sizeof *v ? vtable->struct_size : sizeof *v);
  if (!is_backend_name(v->name)) {
    tsri_reason_set(&item->reason, "its name is not [a-z][a-z0-9_-]*, 1 .. 63 characters");
    return 0;
  }
  const int32_t other = tsri_registry_find(registry, v->name);
  if (other >= 0 && &registry->items[other] != item) {
    tsri_reason_set(&item->reason, "its name '%s' is taken (%.150s)", v->name,
                    tsri_backend_origin(&registry->items[other]));
    return 0;
  }
  if ((unsigned)v->device_kind > TSR_DEVICE_HIP || !v->probe || !v->close || !v->device_count ||
      !v->device_info || !v->kernel_info || !v->supports || !v->plan_create || !v->plan_destroy ||
      !v->run) {
    tsri_reason_set(&item->reason, "a required slot of its vtable is empty");
    return 0;
  }
  strcpy(item->name, v->name);
  return 1;
}

/* Asks the backend whether it can work here. Fails only where the context must not be made. */
static tsr_status probe(tsr_context *context, tsri_backend *item) {
  tsr_reason detail;
  tsr_kernel_info kernel;
  memset(&detail, 0, sizeof detail);
  const tsr_status status = item->vtable.probe(&context->host, &item->state, &detail);
  if (status == TSR_STATUS_OUT_OF_MEMORY) return out_of_memory();
  if (status != TSR_STATUS_SUCCESS) {
    item->state = NULL;
    tsri_reason_set(&item->reason, "%s", tsri_reason_text(&detail, tsr_status_string(status)));
    /* A name that is no target is the caller's mistake, not an absent backend. */
    TSRI_RETURN_IF(status == TSR_STATUS_INVALID_ARGUMENT && context->cpu_target.name,
                   TSR_STATUS_NOT_FOUND, "cpu_target: found '%s': %s: %s", context->cpu_target.name,
                   item->name, item->reason.text);
    return TSR_STATUS_SUCCESS;
  }
  item->devices = item->vtable.device_count(item->state);
  if (item->devices < 1) {
    item->devices = 0;
    item->vtable.close(item->state);
    item->state = NULL;
    tsri_reason_set(&item->reason, "it finds no device");
    return TSR_STATUS_SUCCESS;
  }
  item->available = 1;
  item->detail = detail;
  item->detail.text[sizeof item->detail.text - 1] = '\0';
  while (tsri_backend_kernel(item, item->kernels, &kernel)) ++item->kernels;
  return TSR_STATUS_SUCCESS;
}

static void log_item(const tsr_context *context, const tsri_backend *item) {
  if (item->available) {
    tsri_log_write(&context->log, TSR_LOG_INFO, "backend %s (%s): %d device(s), %d kernels; %s",
                   item->name, tsri_backend_origin(item), item->devices, item->kernels,
                   item->detail.text);
  } else {
    tsri_log_write(&context->log, TSR_LOG_INFO, "backend %s (%s) is absent: %s", item->name,
                   tsri_backend_origin(item), item->reason.text);
  }
}

static tsr_status open_builtin(tsr_context *context, tsr_backend_entry_fn entry) {
  tsri_backend *item = add_item(context);
  if (!item) return out_of_memory();
  const tsr_backend *vtable = entry(TSR_BACKEND_ABI);
  if (!vtable) {
    strcpy(item->name, "unknown");
    tsri_reason_set(&item->reason, "linked in, but built for another backend ABI");
  } else if (accept_vtable(&context->registry, vtable, item)) {
    TSRI_FORWARD(probe(context, item));
  } else if (is_backend_name(vtable->name)) {
    strcpy(item->name, vtable->name);
  }
  log_item(context, item);
  return TSR_STATUS_SUCCESS;
}

/* A plug-in, or what is to be told about a file that is none. */
static tsr_status open_plugin(tsr_context *context, const char *folder, size_t length,
                              const char *file) {
  const tsr_backend *vtable = NULL;
  tsri_backend *item = add_item(context);
  if (!item) return out_of_memory();
  /* Known by its file name until it tells its own; "cpu" and "cpu.so" must not be confused. */
  snprintf(item->name, sizeof item->name, "%s", file);
  const size_t size = length + strlen(file) + 2;
  item->path = tsri_alloc(&context->allocator, size, 1);
  if (!item->path) return out_of_memory();
  snprintf(item->path, size, "%.*s/%s", (int)length, folder, file);
  if (tsri_plugin_open(item->path, &item->library, &vtable, &item->reason) == TSR_STATUS_SUCCESS) {
    if (accept_vtable(&context->registry, vtable, item)) {
      TSRI_FORWARD(probe(context, item));
    } else {
      memset(&item->vtable, 0, sizeof item->vtable); /* its pointers end with the library */
      tsri_plugin_close(item->path, item->library, 0);
      item->library = NULL;
    }
  }
  log_item(context, item);
  return TSR_STATUS_SUCCESS;
}

/* configured: a folder that somebody asked for is listed when it cannot be read. */
static tsr_status open_folder(tsr_context *context, const char *folder, size_t length,
                              int configured) {
  char path[TSRI_PATH_BYTES];
  char file[TSRI_FILE_NAME_BYTES] = "";
  int found = -1;
  errno = ENAMETOOLONG;
  if (length < sizeof path) {
    memcpy(path, folder, length);
    path[length] = '\0';
    while ((found = tsri_plugin_next(path, file)) > 0) {
      TSRI_FORWARD(open_plugin(context, folder, length, file));
    }
  }
  if (found == 0 || !configured) return TSR_STATUS_SUCCESS;
  const char *why = strerror(errno);
  tsri_backend *item = add_item(context);
  if (!item) return out_of_memory();
  snprintf(item->name, sizeof item->name, "(folder)");
  tsri_reason_set(&item->reason, "plug-in folder cannot be read: %s", why);
  item->path = tsri_copy_text(&context->allocator, folder, length);
  if (!item->path) return out_of_memory();
  log_item(context, item);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_registry_open(tsr_context *context) {
  for (int i = 0; tsri_builtin_backends[i]; ++i) {
    TSRI_FORWARD(open_builtin(context, tsri_builtin_backends[i]));
  }
  if (!context->plugin_path) {
    char path[TSRI_PATH_BYTES];
    tsri_plugin_default_folder(path);
    return path[0] ? open_folder(context, path, strlen(path), 0) : TSR_STATUS_SUCCESS;
  }
  for (const char *at = context->plugin_path; *at;) {
    const size_t length = strcspn(at, ":");
    if (length) TSRI_FORWARD(open_folder(context, at, length, 1));
    at += length + (at[length] == ':');
  }
  return TSR_STATUS_SUCCESS;
}

void tsri_registry_close(tsr_context *context) {
  tsri_registry *r = &context->registry;
  while (r->count > 0) {
    tsri_backend *item = &r->items[--r->count];
    if (item->available) item->vtable.close(item->state);
    tsri_plugin_close(item->path, item->library, 1);
    tsri_free(&context->allocator, item->path);
  }
  tsri_free(&context->allocator, r->items);
  r->items = NULL;
  r->capacity = 0;
}
