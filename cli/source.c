// SPDX-License-Identifier: Apache-2.0
// Byte sources: opening with the checks every input file gets, and complete positional reads.
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a file";
}

bool source_open(byte_source *source, const char *path, cli_message *message) {
  *source = (byte_source){.fd = -1};
  // Non-blocking, so that a pipe without a writer is refused below instead of hanging here.
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return cli_fail(message, "cannot be opened: %s", strerror(errno));
  struct stat info;
  if (fstat(fd, &info) != 0) {
    int code = errno;
    close(fd);
    return cli_fail(message, "cannot be examined: %s", strerror(code));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return cli_fail(message, "is %s; accepted: a regular file", kind_of(info.st_mode));
  }
  if (info.st_size <= 0) {
    close(fd);
    return cli_fail(message, "is empty (0 bytes); accepted: a .npy or .safetensors file");
  }
  source->fd = fd;
  source->size = (uint64_t)info.st_size;
  return true;
}

void source_from_memory(byte_source *source, const void *memory, size_t size) {
  *source = (byte_source){.fd = -1, .memory = memory, .size = size};
}

bool source_read(const byte_source *source, uint64_t offset, void *out, size_t count,
                 cli_message *message) {
  if (offset > source->size || count > source->size - offset) {
    return cli_fail(message,
                    "is truncated: bytes %" PRIu64 " to %" PRIu64 " wanted, it has %" PRIu64,
                    offset, offset + count, source->size);
  }
  if (source->memory != NULL) {
    if (count != 0) memcpy(out, source->memory + offset, count);
    return true;
  }
  uint8_t *to = out;
  while (count != 0) {
    ssize_t got = pread(source->fd, to, count, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cli_fail(message, "cannot be read: %s", strerror(errno));
    if (got == 0) return cli_fail(message, "became shorter while it was read");
    to += got;
    offset += (uint64_t)got;
    count -= (size_t)got;
  }
  return true;
}

void source_close(byte_source *source) {
  if (source->fd >= 0) close(source->fd);
  *source = (byte_source){.fd = -1};
}
