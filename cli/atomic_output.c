// SPDX-License-Identifier: Apache-2.0
// Temporary files, flush, rename and roll back for output files (see atomic_output.h).
#define _GNU_SOURCE
#include "atomic_output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "npy.h"
#include "safetensors.h"

enum { kPathMax = 4096 };

typedef struct pending {
  char target[kPathMax];
  char temporary[kPathMax + 16];
  int fd;
  bool swapped;  // target existed: temporary now holds its old contents
  bool placed;   // target did not exist: it is ours
} pending;

// Read by the signal handler, in the writing thread and with signals blocked where they change.
static pending g_pending[OUTPUT_MAX];
static volatile sig_atomic_t g_live = 0;
static pthread_t g_writer;

// A process's signal may come to any thread, also while the writing one blocks it: to a worker of OpenMP, which has
// no part in this. It is passed on, so that what it removes is never between two states, and nothing is added after.
static void remove_temporaries(int signal_number) {
  if (!pthread_equal(pthread_self(), g_writer)) {
    pthread_kill(g_writer, signal_number);
    return;
  }
  for (int i = 0; i < g_live; ++i) unlink(g_pending[i].temporary);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static const int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
enum { kSignalCount = 3 };
static struct sigaction g_previous[kSignalCount];

static void catch_signals(void) {
  struct sigaction action = {.sa_handler = remove_temporaries, .sa_flags = SA_RESTART};
  g_writer = pthread_self();
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < kSignalCount; ++i) sigaddset(&action.sa_mask, kSignals[i]);
  for (int i = 0; i < kSignalCount; ++i) {
    sigaction(kSignals[i], NULL, &g_previous[i]);
    // Who started the program with a signal ignored (nohup) means it.
    if (g_previous[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, NULL);
  }
}

static void release_signals(void) {
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &g_previous[i], NULL);
}

// Of the writing thread. Returns what was blocked before, for restore_signals.
static sigset_t block_signals(void) {
  sigset_t set, before;
  sigemptyset(&set);
  for (int i = 0; i < kSignalCount; ++i) sigaddset(&set, kSignals[i]);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  return before;
}

static void restore_signals(sigset_t before) {
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void folder_of(const char *path, char *folder, size_t capacity) {
  const char *slash = strrchr(path, '/');
  if (slash == NULL) {
    snprintf(folder, capacity, ".");
  } else {
    size_t n = slash == path ? 1 : (size_t)(slash - path);
    snprintf(folder, capacity, "%.*s", (int)(n < capacity ? n : capacity - 1), path);
  }
}

static bool check_target(const char *path, cli_message *message) {
  char folder[kPathMax];
  folder_of(path, folder, sizeof folder);
  struct stat info;
  if (stat(folder, &info) != 0) {
    return cli_fail(message, "folder %.200s: %s", folder, strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return cli_fail(message, "%.200s is no folder", folder);
  if (access(folder, W_OK | X_OK) != 0) {
    return cli_fail(message, "folder %.200s cannot be written: %s", folder, strerror(errno));
  }
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    return cli_fail(message, "exists and is no regular file");
  }
  return true;
}

bool output_check(const output_tensor *outputs, size_t count, cli_message *message) {
  char paths[OUTPUT_MAX][kPathMax];
  const char *names[OUTPUT_MAX];
  if (count > OUTPUT_MAX) return cli_fail(message, "%zu outputs; accepted: up to 16", count);
  for (size_t i = 0; i < count; ++i) {
    file_format format;
    if (!file_spec_split(outputs[i].spec, paths[i], sizeof paths[i], &names[i], &format, message) ||
        !check_target(paths[i], message)) {
      cli_fail_in(message, outputs[i].spec);
      return cli_fail_in(message, outputs[i].option);
    }
    if (names[i][0] == 0) names[i] = outputs[i].name;
    if (format == FILE_FORMAT_NPY) names[i] = "";  // one array per file: any second one collides
    for (size_t j = 0; j < i; ++j) {
      if (strcmp(paths[i], paths[j]) == 0 && strcmp(names[i], names[j]) == 0) {
        return cli_fail(message, "%s and %s both write %s", outputs[j].option, outputs[i].option,
                        outputs[i].spec);
      }
    }
  }
  return true;
}

static bool write_all(int fd, const void *data, size_t count, cli_message *message) {
  const char *at = data;
  while (count != 0) {
    size_t chunk = count < ((size_t)1 << 30) ? count : (size_t)1 << 30;
    ssize_t done = write(fd, at, chunk);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return cli_fail(message, "cannot be written: %s", strerror(errno));
    at += done;
    count -= (size_t)done;
  }
  return true;
}

// Opens the next pending file beside its target.
static pending *begin_file(const char *target, cli_message *message) {
  pending *file = &g_pending[g_live];
  *file = (pending){.fd = -1};
  snprintf(file->target, sizeof file->target, "%s", target);
  snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", target);
  sigset_t before = block_signals();
  file->fd = mkostemp(file->temporary, O_CLOEXEC);
  if (file->fd >= 0) g_live = g_live + 1;
  restore_signals(before);
  if (file->fd < 0) {
    cli_fail(message, "no temporary file beside it: %s", strerror(errno));
    return NULL;
  }
  return file;
}

static bool finish_file(pending *file, cli_message *message) {
  // mkostemp makes private files; results get the permissions any new file would have.
  mode_t mask = umask(0);
  umask(mask);
  bool ok = fchmod(file->fd, 0666 & ~mask) == 0 && fsync(file->fd) == 0;
  ok = close(file->fd) == 0 && ok;
  file->fd = -1;
  return ok || cli_fail(message, "cannot be completed: %s", strerror(errno));
}

static void drop_all(void) {
  sigset_t before = block_signals();
  for (int i = 0; i < g_live; ++i) {
    if (g_pending[i].fd >= 0) close(g_pending[i].fd);
    unlink(g_pending[i].temporary);
  }
  g_live = 0;
  restore_signals(before);
}

// The rename itself must survive a power failure too; a file system that cannot promise it is no
// reason to fail, the data is complete either way.
static void sync_folder(const char *path) {
  char folder[kPathMax];
  folder_of(path, folder, sizeof folder);
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

// Puts one file in place. An existing target is exchanged, so that it can be exchanged back.
static bool place(pending *file, cli_message *message) {
  if (renameat2(AT_FDCWD, file->temporary, AT_FDCWD, file->target, RENAME_EXCHANGE) == 0) {
    file->swapped = true;
    return true;
  }
  // ENOENT: no old file. EINVAL, ENOSYS: a file system that cannot exchange; plain replacement.
  if (rename(file->temporary, file->target) != 0) {
    cli_fail(message, "cannot be put in place: %s", strerror(errno));
    return cli_fail_in(message, file->target);
  }
  file->placed = true;
  return true;
}

static bool commit_all(cli_message *message) {
  sigset_t before = block_signals();
  bool ok = true;
  int done = 0;
  for (; ok && done < g_live; ++done) ok = place(&g_pending[done], message);
  for (int i = 0; !ok && i < done; ++i) {
    pending *file = &g_pending[i];
    if (file->swapped) {
      renameat2(AT_FDCWD, file->temporary, AT_FDCWD, file->target, RENAME_EXCHANGE);
    } else if (file->placed) {
      unlink(file->target);
    }
  }
  for (int i = 0; i < g_live; ++i) {
    if (!ok || g_pending[i].swapped) unlink(g_pending[i].temporary);
    sync_folder(g_pending[i].target);
  }
  g_live = 0;
  restore_signals(before);
  return ok;
}

static bool write_npy(int fd, const file_tensor *tensor, cli_message *message) {
  char header[1024];
  size_t length = npy_format_header(tensor, header, sizeof header);
  if (length == 0) {
    return cli_fail(message, ".npy cannot hold %s; accepted: .safetensors",
                    file_dtype_info(tensor->dtype)->name);
  }
  return write_all(fd, header, length, message) &&
         write_all(fd, tensor->data, tensor->bytes, message);
}

static bool write_safetensors(int fd, const file_tensor *const *tensors, const char *const *names,
                              size_t count, cli_message *message) {
  size_t length = 0;
  char *header = safetensors_format_header(tensors, names, count, NULL, 0, &length);
  if (header == NULL) {
    return cli_fail(message, "a tensor name is no valid UTF-8, or memory ran out");
  }
  bool ok = write_all(fd, header, length, message);
  free(header);
  for (size_t i = 0; ok && i < count; ++i) {
    ok = write_all(fd, tensors[i]->data, tensors[i]->bytes, message);
  }
  return ok;
}

// Writes outputs[first] and every later output that shares its .safetensors path.
static bool write_group(const output_tensor *outputs, size_t count, size_t first, bool *done,
                        cli_message *message) {
  const file_tensor *tensors[OUTPUT_MAX];
  const char *names[OUTPUT_MAX];
  char path[kPathMax], other[kPathMax];
  file_format format, other_format;
  const char *name;
  if (!file_spec_split(outputs[first].spec, path, sizeof path, &name, &format, message)) {
    return false;
  }
  size_t members = 0;
  for (size_t i = first; i < count; ++i) {
    if (done[i] ||
        !file_spec_split(outputs[i].spec, other, sizeof other, &name, &other_format, message) ||
        strcmp(path, other) != 0) {
      continue;
    }
    done[i] = true;
    tensors[members] = outputs[i].tensor;
    names[members++] = name[0] != 0 ? name : outputs[i].name;
  }
  pending *file = begin_file(path, message);
  bool ok =
      file != NULL &&
      (format == FILE_FORMAT_NPY ? write_npy(file->fd, tensors[0], message)
                                 : write_safetensors(file->fd, tensors, names, members, message)) &&
      finish_file(file, message);
  return ok || cli_fail_in(message, path);
}

bool output_write_all(const output_tensor *outputs, size_t count, cli_message *message) {
  if (!output_check(outputs, count, message)) return false;
  bool done[OUTPUT_MAX] = {false};
  bool ok = true;
  catch_signals();
  for (size_t i = 0; ok && i < count; ++i) {
    if (!done[i]) ok = write_group(outputs, count, i, done, message);
  }
  if (ok) {
    ok = commit_all(message);
  } else {
    drop_all();
  }
  release_signals();
  return ok;
}

bool output_write_text(const char *path, const char *text, size_t length, cli_message *message) {
  if (strlen(path) >= kPathMax || !check_target(path, message)) return cli_fail_in(message, path);
  catch_signals();
  pending *file = begin_file(path, message);
  bool ok =
      file != NULL && write_all(file->fd, text, length, message) && finish_file(file, message);
  if (ok) {
    ok = commit_all(message);
  } else {
    drop_all();
    cli_fail_in(message, path);
  }
  release_signals();
  return ok;
}
