// SPDX-License-Identifier: Apache-2.0
// Records as a table, as JSON lines, and as an SVG plot made by gnuplot.
#ifndef TESSERA_BENCH_REPORT_H_
#define TESSERA_BENCH_REPORT_H_

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "bench_attention.h"
#include "machine.h"
#include "peak_memory.h"
#include "probe.h"

// One object with everything the protocol asks for.
json_t *report_json(const bench_record *record, const bench_probe *probe,
                    const bench_machine *machine);
// standard: NULL, or standard attention's peak on the same problem.
json_t *report_peak_json(const tsr_problem *problem, tsr_pass pass, const bench_peak *peak,
                         const bench_peak *standard, const bench_machine *machine);
json_t *report_probe_json(const bench_probe *probe);

// "causal bottom-right, window -64..0" or "full".
const char *report_mask(const tsr_problem *problem, char *buffer, size_t capacity);

// Whether gnuplot can be started.
bool report_can_plot(void);

// Speed over the number of queries, with standard attention where it was timed and the FMA rate as
// a line. Returns malloc'ed SVG text, or NULL with a one-line message.
char *report_plot(const bench_record *records, size_t count, const bench_probe *probe,
                  const bench_machine *machine, size_t *length, char *message, size_t capacity);

#endif  // TESSERA_BENCH_REPORT_H_
