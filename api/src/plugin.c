// SPDX-License-Identifier: Apache-2.0
//
// Finding and opening plug-ins; see plugin.h.
#define _GNU_SOURCE /* dladdr1, RTLD_NODELETE */
#include "plugin.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

void tsri_plugin_default_folder(char path[TSRI_PATH_BYTES]) {
  static const char folder[] = "/tessera";
  static const char anchor = 0; /* an object of this library, whose file is asked for */
  char real[TSRI_PATH_BYTES];
  Dl_info info;
  void *extra = NULL;
  path[0] = '\0';
  if (!dladdr1(&anchor, &info, &extra, RTLD_DL_LINKMAP) || !extra) return;
  /* A library has the name it was loaded by. The program itself (the library is linked into it) has
   * none, and what it was called by says nothing of where it is. */
  const char *name = ((const struct link_map *)extra)->l_name;
  if (!realpath(name && name[0] ? name : "/proc/self/exe", real)) return;
  const size_t length = (size_t)(strrchr(real, '/') - real);
  if (length + sizeof folder > TSRI_PATH_BYTES) return;
  memcpy(path, real, length);
  memcpy(path + length, folder, sizeof folder);
}

static int is_plugin_name(const char *name) {
  const size_t length = strlen(name);
  return length > 3 && length < TSRI_FILE_NAME_BYTES && name[0] != '.' &&
         strcmp(name + length - 3, ".so") == 0;
}

int tsri_plugin_next(const char *folder, char name[TSRI_FILE_NAME_BYTES]) {
  char best[TSRI_FILE_NAME_BYTES] = "";
  DIR *dir = opendir(folder);
  if (!dir) return -1;
  for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
    if (!is_plugin_name(e->d_name) || strcmp(e->d_name, name) <= 0) continue;
    if (!best[0] || strcmp(e->d_name, best) < 0) strcpy(best, e->d_name);
  }
  closedir(dir);
  if (!best[0]) return 0;
  strcpy(name, best);
  return 1;
}

tsr_status tsri_plugin_open(const char *path, void **library, const tsr_backend **vtable,
                            tsr_reason *reason) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *error = dlerror();
    tsri_reason_set(reason, "cannot be opened: %s", error ? error : "unknown reason");
    return TSR_STATUS_NOT_FOUND;
  }
  void *symbol = dlsym(handle, "tsr_backend_entry");
  if (!symbol) {
    tsri_reason_set(reason, "not a Tessera plug-in: no symbol tsr_backend_entry");
    dlclose(handle);
    return TSR_STATUS_NOT_FOUND;
  }
  /* POSIX gives functions and objects one pointer representation; C has no cast for it. */
  tsr_backend_entry_fn entry;
  memcpy(&entry, &symbol, sizeof entry);
  *vtable = entry(TSR_BACKEND_ABI);
  if (!*vtable) {
    tsri_reason_set(reason, "built for another backend ABI: it does not serve number %u",
                    TSR_BACKEND_ABI);
    dlclose(handle);
    return TSR_STATUS_ABI_MISMATCH;
  }
  *library = handle;
  return TSR_STATUS_SUCCESS;
}

void tsri_plugin_close(const char *path, void *library, int keep) {
  if (!library) return;
  /* Thread pools and device runtimes of a backend that was probed outlive it. Marking the object
   * keeps its pages; the handle's count still goes back. */
  if (keep) {
    void *again = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (again) dlclose(again);
  }
  dlclose(library);
}
