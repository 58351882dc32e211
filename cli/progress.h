// SPDX-License-Identifier: Apache-2.0
// Progress and speed of long work on stderr.
//
// The library hands its work to a runner as numbered tasks; this runner counts the tasks that have
// returned, so a percentage is work really done. Nothing is shown during the first second; on a
// terminal one line is then rewritten twice a second, elsewhere a line is added every two seconds.
// A backend that does not use the runner shows elapsed time and the plan's estimate, named so.
#ifndef TESSERA_CLI_PROGRESS_H_
#define TESSERA_CLI_PROGRESS_H_

#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera.h>

// The runner to make the context with. threads 0: all.
tsr_runner progress_runner(int64_t threads);

// Starts reporting about work of `flops` operations, estimated to take `seconds`. `what` must
// outlive it.
void progress_begin(const char *what, double flops, double seconds, bool quiet);

// Stops reporting, removes the line, returns the seconds since progress_begin.
double progress_end(void);

double cli_now(void);  // monotonic seconds

#endif  // TESSERA_CLI_PROGRESS_H_
