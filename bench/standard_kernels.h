// SPDX-License-Identifier: Apache-2.0
// Inner loops of standard attention for one vector width, included once per instruction set by
// standard.c with STD_NAME(x), STD_BYTES, STD_ROWS and STD_TARGET defined.
//
// block: C[rows x 2 vectors] = A[rows x depth] B[depth x 2 vectors], accumulators in registers.
// exp_row, max_row, scale_row: the passes of a row's softmax, exponentials by polynomial.
typedef float STD_NAME(vec) __attribute__((vector_size(STD_BYTES), aligned(4)));
typedef int32_t STD_NAME(ints) __attribute__((vector_size(STD_BYTES), aligned(4)));

STD_TARGET static void STD_NAME(block)(const float *a, int64_t a_row, int64_t rows, const float *b,
                                       int64_t b_row, int64_t depth, float *c, int64_t c_row) {
  typedef STD_NAME(vec) vec;
  enum { kLanes = STD_BYTES / 4 };
  vec acc[STD_ROWS][2];
  const float *row[STD_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < STD_ROWS; ++r) {
    acc[r][0] = acc[r][1] = (vec){0};
    row[r] = a + (r < rows ? r : rows - 1) * a_row;  // missing rows repeat the last one
  }
  for (int64_t d = 0; d < depth; ++d) {
    const vec b0 = *(const vec *)(b + d * b_row);
    const vec b1 = *(const vec *)(b + d * b_row + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < STD_ROWS; ++r) {
      const float x = row[r][d];
      acc[r][0] += x * b0;
      acc[r][1] += x * b1;
    }
  }
  for (int r = 0; r < STD_ROWS && r < rows; ++r) {
    *(vec *)(c + r * c_row) = acc[r][0];
    *(vec *)(c + r * c_row + kLanes) = acc[r][1];
  }
}

// exp2 on (-inf, 0]: 2^n times a polynomial of the fraction in [-1/2, 1/2]; below -126 it is 0.
STD_TARGET static STD_NAME(vec) STD_NAME(exp2)(STD_NAME(vec) t) {
  typedef STD_NAME(vec) vec;
  typedef STD_NAME(ints) ints;
  const vec least = (vec){0} - 126.0f, magic = (vec){0} + 12582912.0f;  // 1.5 * 2^23 rounds
  ints keep = t > least;
  t = (vec)(((ints)t & keep) | ((ints)least & ~keep));
  vec n = (t + magic) - magic;
  vec f = t - n;
  vec p = f * 1.5403530e-4f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  vec two = (vec)((__builtin_convertvector(n, ints) + 127) << 23);
  return (vec)((ints)(p * two) & keep);
}

STD_TARGET static float STD_NAME(exp_row)(float *s, int64_t count, float bias, float log2_scale) {
  typedef STD_NAME(vec) vec;
  enum { kLanes = STD_BYTES / 4 };
  vec sum0 = {0}, sum1 = {0};
  int64_t j = 0;
  for (; j + 2 * kLanes <= count; j += 2 * kLanes) {
    vec a = STD_NAME(exp2)((*(const vec *)(s + j) - bias) * log2_scale);
    vec b = STD_NAME(exp2)((*(const vec *)(s + j + kLanes) - bias) * log2_scale);
    *(vec *)(s + j) = a;
    *(vec *)(s + j + kLanes) = b;
    sum0 += a;
    sum1 += b;
  }
  for (; j < count; j += kLanes) {
    vec a = (vec){0} - INFINITY;
    int64_t n = count - j < kLanes ? count - j : kLanes;
    memcpy(&a, s + j, (size_t)n * sizeof(float));
    a = STD_NAME(exp2)((a - bias) * log2_scale);
    memcpy(s + j, &a, (size_t)n * sizeof(float));
    sum0 += a;
  }
  sum0 += sum1;
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += sum0[i];
  return sum;
}

STD_TARGET static float STD_NAME(max_row)(const float *s, int64_t count) {
  typedef STD_NAME(vec) vec;
  typedef STD_NAME(ints) ints;
  enum { kLanes = STD_BYTES / 4 };
  vec most = (vec){0} - INFINITY;
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    vec x = *(const vec *)(s + j);
    ints greater = x > most;
    most = (vec)(((ints)x & greater) | ((ints)most & ~greater));
  }
  float m = -INFINITY;
  for (int i = 0; i < kLanes; ++i) m = most[i] > m ? most[i] : m;
  for (; j < count; ++j) m = s[j] > m ? s[j] : m;
  return m;
}

STD_TARGET static void STD_NAME(scale_row)(float *s, int64_t count, float factor) {
  for (int64_t j = 0; j < count; ++j) s[j] *= factor;
}

static const std_kernels STD_NAME(table) = {STD_ROWS,          2 * STD_BYTES / 4,
                                            STD_NAME(block),   STD_NAME(exp_row),
                                            STD_NAME(max_row), STD_NAME(scale_row)};
#undef STD_NAME
#undef STD_BYTES
#undef STD_ROWS
#undef STD_TARGET
