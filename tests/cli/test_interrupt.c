// SPDX-License-Identifier: Apache-2.0
//
// Signals that meet a program while it writes its results. This program has a second thread, as one that ran tasks
// has, and sends itself the signal at the moment that hurts: mkostemp, which it replaces, has made the file and not yet
// returned.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atomic_output.h"

static int sent; /* the signal */
static int failures;

int mkostemp(char *path, int flags) {
  const int file = (memcpy(path + strlen(path) - 6, "000000", 6), open(path, O_CREAT | O_EXCL | O_RDWR | flags, 0600));
  if (file < 0) return file;
  kill(getpid(), sent);
  usleep(100000); /* the other thread has it by now */
  return file;
}

static void *wait_for_ever(void *unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

/* In a process of its own; does not return. ignored: the signal is, from the start. */
static void write_results(const char *target, bool ignored) {
  pthread_t other;
  cli_message message;
  memset(&message, 0, sizeof message);
  sigset_t all;
  sigemptyset(&all);
  sigaddset(&all, sent);
  pthread_sigmask(SIG_UNBLOCK, &all, NULL); /* whatever this test was started with */
  signal(sent, ignored ? SIG_IGN : SIG_DFL);
  if (pthread_create(&other, NULL, wait_for_ever, NULL) != 0) _exit(3);
  _exit(output_write_text(target, "text\n", 5, &message) ? 0 : 2);
}

static void expect(bool right, const char *what) {
  if (right) return;
  printf("FAIL signal %d: %s\n", sent, what);
  failures++;
}

static void check(const char *target, const char *temporary, bool ignored) {
  struct stat info;
  int status = 0;
  const pid_t child = fork();
  if (child == 0) write_results(target, ignored);
  if (child < 0 || waitpid(child, &status, 0) != child) {
    expect(false, "no child process");
    return;
  }
  expect(stat(temporary, &info) != 0, "a temporary file is left");
  if (ignored) {
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "an ignored signal ended the program");
    expect(stat(target, &info) == 0 && info.st_size == 5, "no whole file after an ignored signal");
    unlink(target);
  } else {
    expect(WIFSIGNALED(status) && WTERMSIG(status) == sent, "the program did not end by the signal");
    expect(stat(target, &info) != 0, "a file that was not complete is in place");
  }
}

int main(void) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  char folder[] = "/tmp/tessera_interrupt_XXXXXX", target[64], temporary[80];
  size_t i;
  if (!mkdtemp(folder)) return 3;
  snprintf(target, sizeof target, "%s/o.svg", folder);
  snprintf(temporary, sizeof temporary, "%s.000000", target);
  for (i = 0; i < sizeof signals / sizeof signals[0]; ++i) {
    sent = signals[i];
    check(target, temporary, false);
    check(target, temporary, true);
  }
  rmdir(folder);
  if (!failures) printf("no file is left by three signals, and none is heard that is ignored\n");
  return failures ? 1 : 0;
}
