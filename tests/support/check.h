// SPDX-License-Identifier: Apache-2.0
//
// Conformance as a library: runs rows of cases.def on backends and reports, per output tensor, the
// measured error against the bound of the accuracy contract:
//   max|x - ref64| <= 2 max|naive - ref64| + tiny,  RMS <= RMS of naive (16 bit) or 2 x (float32).
// ref64 and naive come from the reference backend on a dense copy of the same inputs. A case runs with
// the alignment it promises, and once more with 16 bytes promised for kernels that only that unlocks
// (records then say "case@16"). Callers: the conformance tests, `tessera check` (one line per backend
// and group, see tsr_check_tally).
#ifndef TESSERA_TESTS_SUPPORT_CHECK_H_
#define TESSERA_TESTS_SUPPORT_CHECK_H_

#include <stdbool.h>
#include <stdint.h>

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_verdict {
  TSR_VERDICT_PASS = 0,
  TSR_VERDICT_FAIL = 1,
  TSR_VERDICT_REFUSED = 2, /* the backend declined with NOT_SUPPORTED; reason holds its words */
  TSR_VERDICT_SKIPPED = 3  /* this machine cannot hold the case (address space, memory) */
} tsr_verdict;

/* Result for one output of one run. Strings are valid during the callback only. */
typedef struct tsr_check_record {
  const char *case_name;
  const char *group;
  const char *note;    /* source of the case: a URL, or "" */
  const char *backend;
  const char *kernel;  /* what the plan chose; "" when refused */
  const char *output;  /* "o", "lse", "max_logit", "dq", "dk", "dv", "dbias", "dsink"; "" no run */
  tsr_dtype dtype;
  tsr_pass pass;
  double max_error, max_bound;
  double rms_error, rms_bound;
  double ratio;        /* larger of error / bound over both; infinite after a NaN disagreement */
  tsr_verdict verdict;
  const char *reason;  /* "" for a pass */
} tsr_check_record;

typedef void (*tsr_check_fn)(void *user, const tsr_check_record *record);

typedef struct tsr_check_options {
  tsr_context *context;  /* NULL: the default one */
  const char *backend;   /* NULL: every available backend */
  int32_t device;        /* ordinal of the device that a backend on devices runs on */
  const char *kernel;    /* NULL: the dispatcher's choice; "*": that, then every other; else one name */
  const char *name;      /* NULL: all; else only cases whose name contains this text */
  uint32_t dtypes;       /* bits 1 << tsr_dtype; 0: F32, F16 and BF16 */
  uint32_t passes;       /* tsr_pass bits; 0: forward. BACKWARD runs a forward pass first */
  bool forward_too;      /* BACKWARD: cases without a backward pass run forward, else they do not run */
  double bound_scale;    /* factor on every bound; 0: 1. Below 1 breaks bounds on purpose */
  tsr_determinism determinism; /* raised over the case's own level */
  int64_t alignment;     /* likewise: promised for every tensor; 0: the case's own */
  tsr_check_fn report;   /* called once per record; may be NULL */
  void *user;
} tsr_check_options;

/* Running counts, filled by tsr_check_tally_add; zero-initialise. Reported units are records
 * (outputs of runs) except refused and skipped, which count runs. */
typedef struct tsr_check_tally {
  int64_t passed, failed, refused, skipped;
  double worst_ratio;     /* over passed and failed records */
  char worst_case[96];    /* "case dtype output" of worst_ratio; "" if none */
  char first_failure[512]; /* one line; "" if none */
  char first_refusal[512];
} tsr_check_tally;

void tsr_check_tally_add(tsr_check_tally *tally, const tsr_check_record *record);

/* Groups of cases.def in file order ("basic", "lengths", ...). */
int32_t tsr_check_group_count(void);
const char *tsr_check_group_name(int32_t group);

/* Backends that a run with these options visits, in registry order: a callback record's backend is
 * always one of them. Returns how many; fills names (owned by the context) up to capacity. */
int32_t tsr_check_backends(const tsr_check_options *options, const char **names, int32_t capacity);

/* Runs every case of a group. Returns false only if the check itself could not work (no reference
 * backend, out of memory): then message says why. Failing cases are records, not errors. */
bool tsr_check_group(const tsr_check_options *options, int32_t group, char *message,
                     size_t capacity);

/* Runs one row, of cases.def or of the caller's own (struct tsr_case of cases.h). As above. */
struct tsr_case;
bool tsr_check_case(const tsr_check_options *options, const struct tsr_case *row, char *message,
                    size_t capacity);

/* The same for inputs that exist already: real data, in one dtype. */
struct tsr_inputs;
bool tsr_check_inputs(const tsr_check_options *options, const struct tsr_inputs *inputs,
                      char *message, size_t capacity);

/* One line of text for a record: "FAIL cpu fwd_... case bf16 o max 1.2e-3/1.0e-3 ...". */
void tsr_check_format(const tsr_check_record *record, char *text, size_t capacity);

const char *tsr_verdict_string(tsr_verdict verdict);
const char *tsr_check_dtype_name(tsr_dtype dtype); /* "f32", "bf16", ... */

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_CHECK_H_
