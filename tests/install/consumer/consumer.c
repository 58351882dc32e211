// SPDX-License-Identifier: Apache-2.0
//
// A user's program: one query, two equal keys, so that attention is the mean of the two values and LSE is
// q.k / sqrt(d) + ln 2. Compares the header's version with the library's, and the result with that value.
#include <math.h>
#include <stdio.h>
#include <tessera/tessera.h>

enum { D = 4 };

static tsr_tensor view(float *data, int64_t s, int64_t d) {
  const tsr_tensor t = {data, TSR_DTYPE_F32, 0, {1, 1, s, d}, {s * d, s * d, d, 1}};
  return t;
}

int main(void) {
  float q[D] = {1, 2, 3, 4}, k[2 * D] = {1, 0, 1, 0, 1, 0, 1, 0};
  float v[2 * D] = {0, 1, 2, 3, 4, 5, 6, 7}, o[D] = {0}, lse[1] = {0};
  const tsr_tensor tq = view(q, 1, D), tk = view(k, 2, D), tv = view(v, 2, D);
  const tsr_tensor to = view(o, 1, D), tl = view(lse, 1, 1);
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  if (tsr_version() != TSR_VERSION_NUMBER) {
    printf("header %d, library %u\n", TSR_VERSION_NUMBER, (unsigned)tsr_version());
    return 1;
  }
  const tsr_status status =
      tsr_attention(NULL, host, &tq, &tk, &tv, &to, &tl, TSR_CAUSAL_NONE, 0, NULL);
  if (status != TSR_STATUS_SUCCESS) {
    printf("%s: %s\n", tsr_status_string(status), tsr_last_message());
    return 1;
  }
  int wrong = fabs(lse[0] - (2.0 + log(2.0))) > 1e-5;
  for (int d = 0; d < D; ++d) wrong |= fabs(o[d] - (d + 2.0)) > 1e-5;
  printf("tessera %s: o = %g %g %g %g, lse = %g: %s\n", tsr_version_string(), o[0], o[1], o[2], o[3],
         lse[0], wrong ? "wrong" : "right");
  return wrong;
}
