// SPDX-License-Identifier: Apache-2.0
//
// The shortest useful program: causal attention with grouped heads in one call. 8 query heads share
// 2 KV heads; 3 new queries stand at the end of 10 keys, so the causal diagonal ends in the
// bottom-right corner.
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { B = 1, HQ = 8, HKV = 2, SQ = 3, SK = 10, D = 64 };

/* A dense float32 [B, H, S, D] tensor of small pseudo-random numbers. */
static tsr_tensor make(int64_t h, int64_t s, int64_t d) {
  tsr_tensor t = {NULL, TSR_DTYPE_F32, 0, {B, h, s, d}, {h * s * d, s * d, d, 1}};
  const int64_t n = B * h * s * d;
  float *x = malloc((size_t)n * sizeof(float));
  for (int64_t i = 0; x && i < n; ++i) x[i] = (float)((i * 7919 + h * 31) % 257) / 128.0f - 1.0f;
  t.data = x;
  return t;
}

int main(void) {
  tsr_tensor q = make(HQ, SQ, D), k = make(HKV, SK, D), v = make(HKV, SK, D);
  tsr_tensor o = make(HQ, SQ, D), lse = make(HQ, SQ, 1);
  int failed = 1;
  if (q.data && k.data && v.data && o.data && lse.data) {
    const tsr_device host = {TSR_DEVICE_HOST, 0};
    const tsr_status status = tsr_attention(NULL, host, &q, &k, &v, &o, &lse,
                                            TSR_CAUSAL_BOTTOM_RIGHT, 0, NULL);
    if (status != TSR_STATUS_SUCCESS) {
      fprintf(stderr, "%s: %s\n", tsr_status_string(status), tsr_last_message());
    } else {
      const float *out = o.data, *l = lse.data;
      for (int i = 0; i < SQ; ++i)
        printf("head 0 query %d: O = %+.5f %+.5f ..., LSE = %.5f\n", i, out[i * D], out[i * D + 1],
               l[i]);
      failed = 0;
    }
  }
  free(q.data), free(k.data), free(v.data), free(o.data), free(lse.data);
  return failed;
}
