// SPDX-License-Identifier: Apache-2.0
// Checking and timing one problem on a GPU: the device's side of bench_attention.h.
//
// Inputs are made on the host and copied once. As many copies of all tensors as together pass three
// times the device's L2 take turns, so that no call finds its inputs in the cache. Times are
// between events on a stream of the bench's own. A session keeps the tensors for the next kernel of
// the same problem.
#ifndef TESSERA_BENCH_BENCH_DEVICE_H_
#define TESSERA_BENCH_BENCH_DEVICE_H_

#include <stddef.h>

#include "bench_attention.h"

typedef struct bench_session bench_session;

// NULL when memory does not suffice.
bench_session *bench_session_create(void);
void bench_session_destroy(bench_session *session);

// As bench_attention, for requests whose device is a GPU. request->session NULL: one for this call.
bench_status bench_device_attention(const bench_request *request, bench_record *record,
                                    char *message, size_t capacity);

#endif  // TESSERA_BENCH_BENCH_DEVICE_H_
