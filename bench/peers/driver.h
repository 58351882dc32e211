// SPDX-License-Identifier: Apache-2.0
// What a peer driven from C offers to peer_c.py, which compiles one driver_*.c with the local
// compiler into a shared object and calls these functions. One problem is open at a time in a
// process.
//
// Tensors are float32, dense, batch 1: q and O [heads, seq_q, dim], k and v [heads_kv, seq_k, dim].
// A driver converts to the type it is asked for when it opens the problem, outside what is timed.
#ifndef TESSERA_BENCH_PEERS_DRIVER_H_
#define TESSERA_BENCH_PEERS_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

enum { PEER_F32 = 0, PEER_F16 = 1, PEER_BF16 = 2 };

typedef struct peer_shape {
  int64_t heads, heads_kv, seq_q, seq_k, dim;
  int64_t causal;  // key j <= query i
  int64_t window;  // with causal: the latest keys a row sees; 0: all
  int64_t dtype;
  int64_t backward;
  int64_t threads;
  float scale;
} peer_shape;

// Keys [first, last) that query row i sees.
static inline int64_t peer_first(const peer_shape *s, int64_t i) {
  return s->window > 0 && i + 1 > s->window ? i + 1 - s->window : 0;
}

static inline int64_t peer_last(const peer_shape *s, int64_t i) {
  return s->causal && i + 1 < s->seq_k ? i + 1 : s->seq_k;
}

const char *peer_version(void);
const char *peer_form(int form);  // its name; NULL: no more forms

// 0, or -1 with a one-line reason: the form does not take the problem, or memory does not suffice.
int peer_open(const peer_shape *shape, int form, const float *q, const float *k, const float *v,
              const float *dout, char *reason, size_t capacity);
void peer_run(void);
void peer_output(int which, float *out);  // 0: O; 1, 2, 3: dQ, dK, dV
void peer_close(void);

#endif  // TESSERA_BENCH_PEERS_DRIVER_H_
