// SPDX-License-Identifier: Apache-2.0
//
// The thread runner of the CPU backend: every index once, no worker twice at once, the caller's
// runner when there is one and its failure passed on, and the calling thread alone inside a
// parallel region of the caller's. A plain program, so that it runs under the thread sanitizer too.
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backends/cpu/runner.h"

enum { INDEXES = 1000, WORKERS = 8 };

typedef struct tally {
  atomic_int seen[INDEXES];
  atomic_int busy[WORKERS];
  atomic_int wrong; /* worker out of range, or entered twice */
  int32_t workers;
} tally;

static int failures;

static void check(int ok, const char *what) {
  if (ok) return;
  failures++;
  fprintf(stderr, "FAIL %s\n", what);
}

static void visit(void *arg, int64_t index, int32_t worker) {
  tally *t = (tally *)arg;
  if (worker < 0 || worker >= t->workers || atomic_fetch_add(&t->busy[worker], 1) != 0) {
    atomic_fetch_add(&t->wrong, 1);
    return;
  }
  atomic_fetch_add(&t->seen[index], 1);
  atomic_fetch_sub(&t->busy[worker], 1);
}

static void check_all_seen(tally *t, int times, const char *what) {
  int i;
  for (i = 0; i < INDEXES; ++i)
    if (atomic_load(&t->seen[i]) != times) break;
  check(i == INDEXES, what);
  check(atomic_load(&t->wrong) == 0, "workers");
}

typedef struct caller {
  int calls, fail;
} caller;

/* Backwards, always as worker 2. */
static int caller_run(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
                      int64_t count) {
  caller *c = (caller *)user;
  c->calls++;
  if (c->fail) return 7;
  while (count > 0) task(arg, --count, 2);
  return 0;
}

int main(void) {
  static tally t;
  tsr_host host;
  tsr_runner mine;
  caller c = {0, 0};
  tsri_cpu_runner runner;
  int region = 0;

  memset(&host, 0, sizeof host);
  host.threads = 3;
  runner = tsri_cpu_runner_of(&host);
  check(runner.threads == 3 && runner.caller == NULL, "threads of the host");
  t.workers = 3;
  check(tsri_cpu_run(&runner, visit, &t, INDEXES) == 0, "OpenMP run");
  check_all_seen(&t, 1, "every index once");
  check(tsri_cpu_run(&runner, visit, &t, 0) == 0, "no indexes");
  check_all_seen(&t, 1, "no index of none");

  /* Of 64 threads all, or a quarter and fewer, whatever the work and the tasks. */
  {
    const tsri_cpu_runner all = {NULL, 64};
    tsri_cpu_runner few = {NULL, 10};
    double work;
    int64_t tasks;
    int32_t most = 0;
    tsri_cpu_runner_round(&few, &all, 15);
    check(few.threads == 15, "threads for a task each");
    few.threads = 10;
    tsri_cpu_runner_round(&few, &all, 16);
    check(few.threads == 10, "more than half as many again");
    for (work = 1e6; work < 1e9; work *= 1.01)
      for (tasks = 1; tasks <= 64; ++tasks) {
        tsri_cpu_runner team = tsri_cpu_runner_for(&all, work, 0);
        tsri_cpu_runner_round(&team, &all, tasks);
        if (team.threads != 64 && team.threads > most) most = team.threads;
      }
    check(most == 16, "no team between a quarter and all");
  }

  check(tsri_cpu_runner_for(&runner, 1e12, 0).threads == 3, "threads for much work");
  check(tsri_cpu_runner_for(&runner, 4e6, 0).threads == 1, "threads for a little work");
  check(tsri_cpu_runner_for(&runner, 6e6, 0).threads == 3, "all threads from a quarter of their work on");
  check(tsri_cpu_runner_for(&runner, 0, 1e9).threads == 3, "threads for much memory");
  check(tsri_cpu_runner_for(&runner, 0, 0).threads == 1, "threads for nothing");

  /* Inside a parallel region: as often as threads reach it, all as worker 0 of their own call. */
#pragma omp parallel num_threads(2)
  {
    static tally each[2];
    int mine_is;
#pragma omp atomic capture
    mine_is = region++;
    each[mine_is].workers = 1;
    if (tsri_cpu_run(&runner, visit, &each[mine_is], INDEXES) != 0) atomic_fetch_add(&t.wrong, 1);
#pragma omp critical
    check_all_seen(&each[mine_is], 1, "every index once inside a parallel region");
  }
  check(region >= 1, "parallel region ran");

  host.threads = 64;
  runner = tsri_cpu_runner_of(&host);
  check(tsri_cpu_runner_for(&runner, 39e6, 0).threads == 15, "few threads below a quarter");
  check(tsri_cpu_runner_for(&runner, 41e6, 0).threads == 64, "never between a quarter and all");

  host.threads = 0;
  runner = tsri_cpu_runner_of(&host);
  check(runner.threads >= 1, "default threads");

  mine.user = &c;
  mine.threads = 5;
  mine.run = caller_run;
  host.runner = &mine;
  runner = tsri_cpu_runner_of(&host);
  check(runner.threads == 5, "threads of the caller's runner");
  check(tsri_cpu_runner_for(&runner, 0, 0).threads == 5, "a caller's runner keeps its threads");
  t.workers = 5;
  check(tsri_cpu_run(&runner, visit, &t, INDEXES) == 0 && c.calls == 1, "caller's runner");
  check_all_seen(&t, 2, "every index once by the caller's runner");
  c.fail = 1;
  check(tsri_cpu_run(&runner, visit, &t, INDEXES) == 7, "failure of the caller's runner");
  printf("%d failures\n", failures);
  return failures != 0;
}
