// SPDX-License-Identifier: Apache-2.0
//
// A GPU in plain C++, for tests: every thread of a block is a fiber, a warp operation is a meeting of
// its lanes, a barrier a meeting of the block. The tile programs of this folder compile against it
// unchanged, so that their logic is executed, on guarded host memory, where there is no GPU.
//
// It is stricter than a device where it can be: lanes that meet in different operations, a barrier
// that some threads never reach, and a copy that is read before it was waited for (it lands only
// then) are found; shared memory starts as NaN; warps take turns in an order that changes by block.
#ifndef TESSERA_COMMON_GPU_EMULATOR_HPP_
#define TESSERA_COMMON_GPU_EMULATOR_HPP_

#include <stddef.h>
#include <stdint.h>

namespace tessera {
namespace gpu {

// Runs blocks 0 .. blocks - 1 of `threads` threads each, one block after the other on the calling
// thread. threads is a multiple of wave. False with one line of text when a block misbehaves or
// memory ran out. Safe from several threads at once.
bool emulate(void (*kernel)(const void *args), const void *args, int64_t blocks, int threads,
             int wave, uint32_t shared_bytes, char *why, size_t capacity);

// The services below are for platform.hpp and call back into the running emulation.
struct EmulatedThread {
  int thread;
  int wave; // lanes of one
  int64_t block;
  int64_t blocks;
  unsigned char *shared;
};
// Of the block that the calling thread of the host emulates. Asked for by every access of shared memory: no call.
extern __thread const EmulatedThread *emulated_view __attribute__((tls_model("initial-exec")));
inline const EmulatedThread &emulated_thread() { return *emulated_view; }
void emulated_sync_block();
// Barrier of `threads` threads that name the same id, not 0.
void emulated_sync_group(int id, int threads);
// Arrives at such a barrier and goes on at once.
void emulated_arrive_group(int id, int threads);
// The thread goes on when ready(what) holds; a launch in which nobody can go on ends.
void emulated_wait_until(bool (*ready)(const void *what), const void *what);
void emulated_fail(const char *what); // the launch ends with this reason

// Meeting of a wave: contributes bytes (at most kEmulatedSlot) and returns the contributions of all
// lanes, kEmulatedSlot bytes apart, valid until the lane's next but one meeting. what names the
// operation: all lanes must name the same.
constexpr size_t kEmulatedSlot = 64;
const unsigned char *emulated_meet(const char *what, const void *mine, size_t bytes);

// Asynchronous copies to shared memory: they happen when waited for, not before. source NULL: zeros.
void emulated_copy(void *target, const void *source, size_t bytes);
void emulated_commit();
void emulated_wait(int groups_left);

// Asynchronous work of another kind: run(data) happens when it is waited for, in order. At most
// kEmulatedWork bytes of data, which are copied.
constexpr size_t kEmulatedWork = 256;
void emulated_defer(void (*run)(const void *data), const void *data, size_t bytes);
void emulated_defer_commit();
void emulated_defer_wait(int groups_left);

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_EMULATOR_HPP_
