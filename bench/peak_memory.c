// SPDX-License-Identifier: Apache-2.0
// The child process around a measurement of memory (see peak_memory.h).
#define _GNU_SOURCE
#include "peak_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct peak_answer {
  bench_status status;
  bench_peak peak;
  char message[1024];
} peak_answer;

int64_t bench_peak_resident(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (int64_t)usage.ru_maxrss * 1024;
}

static bench_status fail(char *message, size_t capacity, const char *what) {
  snprintf(message, capacity, "memory measurement: %s: %s", what, strerror(errno));
  return BENCH_FAILED;
}

static bool read_all(int from, void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = read(from, (char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

// _exit: the parent's buffers and handlers are not the child's to run.
static void child(int to, const bench_request *request, bool standard) {
  peak_answer answer;
  memset(&answer, 0, sizeof answer);
  answer.status =
      bench_peak_run(request, standard, &answer.peak, answer.message, sizeof answer.message);
  ssize_t sent = write(to, &answer, sizeof answer);
  _exit(sent == (ssize_t)sizeof answer ? 0 : 1);
}

bench_status bench_peak_memory(const bench_request *request, bool standard, bench_peak *peak,
                               char *message, size_t capacity) {
  int ends[2];
  if (pipe(ends) != 0) return fail(message, capacity, "pipe");
  pid_t pid = fork();
  if (pid < 0) {
    bench_status status = fail(message, capacity, "fork");
    close(ends[0]);
    close(ends[1]);
    return status;
  }
  if (pid == 0) {
    close(ends[0]);
    child(ends[1], request, standard);
  }
  close(ends[1]);
  peak_answer answer;
  bool complete = read_all(ends[0], &answer, sizeof answer);
  close(ends[0]);
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) continue;
  if (!complete) {
    snprintf(message, capacity, "memory measurement: its process ended early (%s %d)",
             WIFSIGNALED(ended) ? "signal" : "status",
             WIFSIGNALED(ended) ? WTERMSIG(ended) : WEXITSTATUS(ended));
    return BENCH_FAILED;
  }
  *peak = answer.peak;
  if (answer.status != BENCH_OK) snprintf(message, capacity, "%s", answer.message);
  return answer.status;
}
