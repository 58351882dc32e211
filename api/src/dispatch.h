// SPDX-License-Identifier: Apache-2.0
//
// The dispatcher: which kernel runs a pass. Every kernel of every legal backend is asked; among
// those that take the problem the one with the smallest estimated time wins, the first registered
// on a tie. A backend or kernel named by the problem, the context or the environment restricts the
// candidates; if none of them can, the call fails with their reasons. There is no fallback.
#ifndef TESSERA_SRC_DISPATCH_H_
#define TESSERA_SRC_DISPATCH_H_

#include "context.h"
#include "text.h"

/* Names in force for one problem, found and checked once. */
typedef struct tsri_selection {
  int32_t backend;                     /* index in the registry, -1: any */
  char kernel[TSRI_KERNEL_NAME_BYTES]; /* "": any */
  uint32_t kernel_passes;              /* passes that the name belongs to */
  int kernel_wins; /* the kernel was named by a stronger source than the backend */
} tsri_selection;

/* The kernel chosen for a pass. */
typedef struct tsri_choice {
  const tsri_backend *backend;
  int32_t kernel;
  tsr_kernel_info info;
  tsr_estimate estimate;
} tsri_choice;

/* Settles precedence: problem over context over environment. NOT_FOUND for names that do not exist
 * here or belong to a pass that is not asked for. passes 0: only the backend matters (merge). */
tsr_status tsri_select(const tsr_context *context, const char *backend, const char *kernel,
                       uint32_t passes, tsri_selection *out);

/* NOT_FOUND unless some available backend has the device; the host always exists. */
tsr_status tsri_check_device(const tsr_context *context, tsr_device device);

/* Why a backend cannot serve a device under a selection, or NULL if it may be asked. scratch holds
 * the text. naming: the kernel is named, which also names its backend. */
const char *tsri_backend_refusal(const tsr_context *context, const tsri_selection *selection,
                                 int32_t index, tsr_device device, int naming, tsr_reason *scratch);

/* Chooses the kernel of a pass. NOT_SUPPORTED lists every refusal. */
tsr_status tsri_dispatch(const tsr_context *context, const tsri_selection *selection,
                         const tsr_resolved *problem, tsri_choice *out);

/* Writes the choice (backend NULL: none) and every refusal to the log as one line of level PLAN. */
void tsri_dispatch_log(const tsr_context *context, const tsri_selection *selection,
                       const tsr_resolved *problem, const tsri_choice *choice);

/* Appends one line per candidate that was not chosen: refused and why, or ranked lower. chosen
 * NULL: none was. separator: between lines. */
void tsri_dispatch_list(const tsr_context *context, const tsri_selection *selection,
                        const tsr_resolved *problem, const tsri_choice *chosen,
                        const char *separator, tsri_text *text);

#endif  // TESSERA_SRC_DISPATCH_H_
