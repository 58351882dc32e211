// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins: shared objects <folder>/<name>.so that export tsr_backend_entry. The only file that
// opens libraries; it opens them from configured folders alone, never by a search path.
#ifndef TESSERA_SRC_PLUGIN_H_
#define TESSERA_SRC_PLUGIN_H_

#include "status.h"
#include "tessera/backend.h"

#define TSRI_PATH_BYTES 4096
#define TSRI_FILE_NAME_BYTES 256

/* <folder of this library>/tessera; empty if that cannot be told. */
void tsri_plugin_default_folder(char path[TSRI_PATH_BYTES]);

/* The name of the first "*.so" in the folder that sorts after `name`, written to `name`. Returns 1;
 * 0 past the last; -1 if the folder cannot be read, with errno set. */
int tsri_plugin_next(const char *folder, char name[TSRI_FILE_NAME_BYTES]);

/* Opens a plug-in and asks its entry for a vtable. On failure the reason is set and nothing stays
 * open. ABI_MISMATCH: the entry does not serve this library's number. */
tsr_status tsri_plugin_open(const char *path, void **library, const tsr_backend **vtable,
                            tsr_reason *reason);

/* Closes a library. keep: its code stays mapped, because threads it made may still be in it. */
void tsri_plugin_close(const char *path, void *library, int keep);

#endif  // TESSERA_SRC_PLUGIN_H_
