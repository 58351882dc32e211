// SPDX-License-Identifier: Apache-2.0
//
// See emulator.hpp. Fibers are Boost.Context's; a scheduler resumes every lane that may go on, wave by
// wave, until all have ended. A thread gives control back only at a meeting, so a block's result does
// not depend on the host, and a wait that can never end is seen at once: nobody may go on.
#include "common/gpu/emulator.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <boost/context/detail/fcontext.hpp>

namespace tessera {
namespace gpu {

__thread const EmulatedThread *emulated_view __attribute__((tls_model("initial-exec")));

namespace {

namespace context = boost::context::detail;

constexpr size_t kStack = 256 * 1024;
constexpr int kCopies = 320; // per lane and wait: 273 where a wave loads all of a float32 row of 576 and 512 columns
constexpr int kWork = 96;    // deferred work, likewise
constexpr int kBarriers = 20; // 16 of programs, and of warpgroups

enum class State { kReady, kMeeting, kBarrier, kPolling, kDone };

struct Copy {
  void *target;
  const void *source;
  size_t bytes;
  int group;
};

struct Work {
  void (*run)(const void *data);
  int group;
  alignas(16) unsigned char data[kEmulatedWork];
};

struct Lane {
  context::fcontext_t fiber;
  State state;
  const char *what;
  bool (*ready)(const void *what); // of kPolling
  const void *ready_what;
  int barrier, expected; // of kBarrier
  uint32_t meetings; // so far: the parity picks the slots
  int group;         // copy groups committed so far
  int copies;
  Copy copy[kCopies];
  int work_group, works;
  Work work[kWork];
};

struct Launch {
  void (*kernel)(const void *);
  const void *args;
  int threads, wave;
  Lane *lane;
  unsigned char *slots; // [2][threads][kEmulatedSlot]
  char *stacks;
  context::fcontext_t scheduler;
  int current;
  int arrived[kBarriers]; // threads that did not wait
  EmulatedThread view;
  char *why;
  size_t capacity;
  bool failed;
};

__thread Launch *running __attribute__((tls_model("initial-exec")));

void complain(const char *format, ...) {
  va_list list;
  if (running->failed) return;
  running->failed = true;
  va_start(list, format);
  vsnprintf(running->why, running->capacity, format, list);
  va_end(list);
}

// Back to the scheduler; returns when resumed. A failed launch never resumes anyone.
void give_way(State state) {
  Launch *launch = running;
  Lane *me = &launch->lane[launch->current];
  me->state = state;
  const context::transfer_t t = context::jump_fcontext(launch->scheduler, nullptr);
  running->scheduler = t.fctx;
}

void body(context::transfer_t t) {
  running->scheduler = t.fctx;
  running->kernel(running->args);
  running->lane[running->current].state = State::kDone;
  context::jump_fcontext(running->scheduler, nullptr);
}

void resume(Launch *launch, int thread) {
  Lane *lane = &launch->lane[thread];
  launch->current = thread;
  launch->view.thread = thread;
  const context::transfer_t t = context::jump_fcontext(lane->fiber, nullptr);
  lane->fiber = t.fctx;
}

// Lets a wave go on when all its lanes are in the same meeting.
bool release_wave(Launch *launch, int first) {
  for (int i = first; i < first + launch->wave; ++i)
    if (launch->lane[i].state != State::kMeeting) return false;
  for (int i = first; i < first + launch->wave; ++i) {
    if (launch->lane[i].what != launch->lane[first].what &&
        strcmp(launch->lane[i].what, launch->lane[first].what) != 0)
      complain("block %lld: lanes %d and %d of one wave meet in '%s' and '%s'",
               (long long)launch->view.block, first, i, launch->lane[first].what,
               launch->lane[i].what);
    launch->lane[i].state = State::kReady;
  }
  return true;
}

// Lets a barrier go on when as many threads wait at it as it is for: the whole block's (barrier 0), or
// one of a part of it.
bool release_barrier(Launch *launch) {
  for (int first = 0; first < launch->threads; ++first) {
    const Lane &one = launch->lane[first];
    if (one.state != State::kBarrier) continue;
    int waiting = 0;
    for (int i = 0; i < launch->threads; ++i) {
      const Lane &other = launch->lane[i];
      if (other.state != State::kBarrier || other.barrier != one.barrier) continue;
      if (other.expected != one.expected)
        complain("block %lld: threads %d and %d wait at barrier %d for %d and %d threads",
                 (long long)launch->view.block, first, i, one.barrier, one.expected, other.expected);
      ++waiting;
    }
    const int barrier = one.barrier, missing = one.expected - waiting;
    if (launch->arrived[barrier] < missing) continue;
    launch->arrived[barrier] -= missing;
    for (int i = 0; i < launch->threads; ++i)
      if (launch->lane[i].state == State::kBarrier && launch->lane[i].barrier == barrier)
        launch->lane[i].state = State::kReady;
    return true;
  }
  return false;
}

bool may_go_on(const Lane &lane) {
  return lane.state == State::kReady ||
         (lane.state == State::kPolling && lane.ready(lane.ready_what));
}

int count(const Launch *launch, State state) {
  int n = 0;
  for (int i = 0; i < launch->threads; ++i) n += launch->lane[i].state == state;
  return n;
}

void run_block(Launch *launch) {
  const int waves = launch->threads / launch->wave;
  const bool reverse = launch->view.block & 1;
  for (int i = 0; i < launch->threads; ++i) {
    Lane *lane = &launch->lane[i];
    lane->fiber = context::make_fcontext(launch->stacks + (i + 1) * kStack, kStack, body);
    lane->state = State::kReady;
    lane->meetings = 0;
    lane->group = lane->copies = 0;
    lane->work_group = lane->works = 0;
  }
  memset(launch->arrived, 0, sizeof launch->arrived);
  for (;;) {
    bool moved = false;
    for (int n = 0; n < waves; ++n) {
      const int first = (reverse ? waves - 1 - n : n) * launch->wave;
      do {
        for (int i = first; i < first + launch->wave; ++i)
          if (may_go_on(launch->lane[i])) {
            resume(launch, i);
            moved = true;
            if (launch->failed) return;
          }
      } while (release_wave(launch, first) && !launch->failed);
      if (launch->failed) return;
    }
    if (count(launch, State::kDone) == launch->threads) return;
    if (release_barrier(launch)) continue;
    if (!moved) {
      complain("block %lld: %d threads ended, %d wait at a barrier, %d in a meeting, %d for something: "
               "nobody can go on",
               (long long)launch->view.block, count(launch, State::kDone), count(launch, State::kBarrier),
               count(launch, State::kMeeting), count(launch, State::kPolling));
      return;
    }
  }
}

} // namespace

bool emulate(void (*kernel)(const void *), const void *args, int64_t blocks, int threads, int wave,
             uint32_t shared_bytes, char *why, size_t capacity) {
  Launch launch = {};
  Launch *const outer = running;
  launch.kernel = kernel;
  launch.args = args;
  launch.threads = threads;
  launch.wave = wave;
  launch.why = why;
  launch.capacity = capacity;
  launch.lane = static_cast<Lane *>(calloc(static_cast<size_t>(threads), sizeof(Lane)));
  launch.slots = static_cast<unsigned char *>(calloc(2, static_cast<size_t>(threads) * kEmulatedSlot));
  launch.stacks = static_cast<char *>(malloc(static_cast<size_t>(threads) * kStack));
  const size_t shared = (shared_bytes + 127) / 128 * 128 + 128;
  launch.view.shared = static_cast<unsigned char *>(aligned_alloc(128, shared));
  launch.view.blocks = blocks;
  launch.view.wave = wave;
  if (!launch.lane || !launch.slots || !launch.stacks || !launch.view.shared) {
    snprintf(why, capacity, "no host memory for %d emulated threads", threads);
    launch.failed = true;
  }
  running = &launch;
  const EmulatedThread *const outer_view = emulated_view;
  emulated_view = &launch.view;
  for (int64_t b = 0; b < blocks && !launch.failed; ++b) {
    launch.view.block = b;
    memset(launch.view.shared, 0xff, shared);
    run_block(&launch);
    for (size_t i = shared_bytes; i < shared && !launch.failed; ++i)
      if (launch.view.shared[i] != 0xff)
        complain("block %lld wrote shared byte %zu of %u", (long long)b, i, (unsigned)shared_bytes);
  }
  running = outer;
  emulated_view = outer_view;
  free(launch.lane);
  free(launch.slots);
  free(launch.stacks);
  free(launch.view.shared);
  return !launch.failed;
}

void emulated_fail(const char *what) {
  complain("block %lld thread %d: %s", (long long)running->view.block, running->current, what);
}

void emulated_sync_group(int id, int threads) {
  Lane *me = &running->lane[running->current];
  me->barrier = id;
  me->expected = threads;
  give_way(State::kBarrier);
}

void emulated_arrive_group(int id, int threads) {
  (void)threads; // those who wait say how many the barrier is for
  ++running->arrived[id];
}

void emulated_wait_until(bool (*ready)(const void *), const void *what) {
  Lane *me = &running->lane[running->current];
  if (ready(what)) return;
  me->ready = ready;
  me->ready_what = what;
  give_way(State::kPolling);
}

void emulated_sync_block() { emulated_sync_group(0, running->threads); }

const unsigned char *emulated_meet(const char *what, const void *mine, size_t bytes) {
  Launch *launch = running;
  const int thread = launch->current;
  Lane *me = &launch->lane[thread];
  const size_t half = static_cast<size_t>(launch->threads) * kEmulatedSlot;
  unsigned char *slots = launch->slots + (me->meetings++ & 1) * half;
  if (bytes > kEmulatedSlot) complain("'%s' exchanges %zu bytes", what, bytes);
  if (bytes > 0) memcpy(slots + static_cast<size_t>(thread) * kEmulatedSlot, mine, bytes);
  me->what = what;
  give_way(State::kMeeting);
  return slots + static_cast<size_t>(thread / launch->wave * launch->wave) * kEmulatedSlot;
}

void emulated_copy(void *target, const void *source, size_t bytes) {
  Lane *me = &running->lane[running->current];
  if (me->copies == kCopies) {
    complain("a thread has more than %d copies in flight", kCopies);
    give_way(State::kBarrier);
  }
  me->copy[me->copies++] = Copy{target, source, bytes, me->group};
}

void emulated_commit() { ++running->lane[running->current].group; }

void emulated_wait(int groups_left) {
  Lane *me = &running->lane[running->current];
  int kept = 0;
  for (int i = 0; i < me->copies; ++i) {
    const Copy copy = me->copy[i];
    if (copy.group >= me->group - groups_left)
      me->copy[kept++] = copy;
    else if (copy.source)
      memcpy(copy.target, copy.source, copy.bytes);
    else
      memset(copy.target, 0, copy.bytes);
  }
  me->copies = kept;
}

void emulated_defer(void (*run)(const void *), const void *data, size_t bytes) {
  Lane *me = &running->lane[running->current];
  if (me->works == kWork || bytes > kEmulatedWork) {
    complain("a thread defers more than %d pieces of work, or one of %zu bytes", kWork, bytes);
    give_way(State::kBarrier);
  }
  Work *work = &me->work[me->works++];
  work->run = run;
  work->group = me->work_group;
  memcpy(work->data, data, bytes);
}

void emulated_defer_commit() { ++running->lane[running->current].work_group; }

void emulated_defer_wait(int groups_left) {
  Lane *me = &running->lane[running->current];
  int done = 0;
  while (done < me->works && me->work[done].group < me->work_group - groups_left) {
    me->work[done].run(me->work[done].data);
    ++done;
  }
  memmove(me->work, me->work + done, static_cast<size_t>(me->works - done) * sizeof me->work[0]);
  me->works -= done;
}

} // namespace gpu
} // namespace tessera
