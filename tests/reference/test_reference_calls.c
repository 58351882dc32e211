// SPDX-License-Identifier: Apache-2.0
//
// The calls beside forward and backward: merging of partial results, the dropout mask and its
// random words, and what the vtable promises (kernels, refusals, estimates, the caller's threads).
#include <criterion/criterion.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "common/dropout.h"
#include "rig.h"

/* ------------------------------------------------------------------------------------- merging */

enum { DIM = 70 }; /* more than the chunk that merging works in */

typedef struct part {
  double o[DIM];
  float lse;
} part;

static tsr_merge_problem merge_problem(int64_t parts) {
  tsr_merge_problem p;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p;
  p.parts = parts;
  p.batch = p.heads = p.seq = 1;
  p.dim_v = DIM;
  p.o_part.dtype = p.o.dtype = TSR_DTYPE_F64;
  p.lse_part.dtype = p.lse.dtype = TSR_DTYPE_F32;
  p.o_part.stride[3] = p.o.stride[3] = 1;
  return p;
}

static part merge(const part *parts, int n) {
  const tsr_merge_problem p = merge_problem(n);
  const void *o[8];
  const float *lse[8];
  tsr_reason reason;
  part out;
  for (int i = 0; i < n; i++) o[i] = parts[i].o, lse[i] = &parts[i].lse;
  cr_assert_eq(rig_backend()->merge(NULL, 0, &p, o, lse, out.o, &out.lse, NULL, &reason),
               TSR_STATUS_SUCCESS);
  return out;
}

static part make_part(double o, float lse) {
  part p;
  for (int d = 0; d < DIM; d++) p.o[d] = o + d;
  p.lse = lse;
  return p;
}

Test(merge, of_empty_parts_is_empty) {
  const part out = merge((part[]){make_part(NAN, -INFINITY), make_part(7, -INFINITY)}, 2);
  cr_expect_eq(out.lse, -INFINITY);
  for (int d = 0; d < DIM; d++) cr_expect_eq(out.o[d], 0);
}

Test(merge, an_empty_part_changes_no_bit) {
  const part x = make_part(0.1, 3.7f);
  for (int first = 0; first < 2; first++) {
    part parts[2] = {x, x};
    part out;
    parts[first] = make_part(NAN, -INFINITY);
    out = merge(parts, 2);
    cr_expect_eq(out.lse, x.lse);
    for (int d = 0; d < DIM; d++) cr_expect_eq(out.o[d], x.o[d]);
  }
}

Test(merge, by_hand) {
  const part out = merge((part[]){make_part(1, logf(3)), make_part(5, logf(1))}, 2);
  cr_expect(fabs(out.lse - log(4)) < 1e-6);
  for (int d = 0; d < DIM; d++) cr_expect(fabs(out.o[d] - (2 + d)) < 1e-6);
}

Test(merge, is_associative) {
  const part a = make_part(1, 0.5f), b = make_part(-2, 2), c = make_part(9, -1);
  const part all = merge((part[]){a, b, c}, 3);
  const part ab = merge((part[]){a, b}, 2), bc = merge((part[]){b, c}, 2);
  const part left = merge((part[]){ab, c}, 2), right = merge((part[]){a, bc}, 2);
  for (int d = 0; d < DIM; d++) {
    cr_expect(fabs(left.o[d] - all.o[d]) < 1e-5);
    cr_expect(fabs(right.o[d] - all.o[d]) < 1e-5);
  }
  cr_expect(fabsf(left.lse - all.lse) < 1e-6f && fabsf(right.lse - all.lse) < 1e-6f);
}

Test(merge, huge_and_nan_lse) {
  part out = merge((part[]){make_part(1, 1e30f), make_part(5, -1e30f)}, 2);
  cr_expect(out.o[0] == 1 && out.lse == 1e30f);
  /* ln 2 is lost beside 1e30, the weights are not. */
  out = merge((part[]){make_part(1, -1e30f), make_part(5, -1e30f)}, 2);
  cr_expect(out.o[0] == 3 && out.lse == -1e30f);
  out = merge((part[]){make_part(1, 0), make_part(5, NAN)}, 2);
  cr_expect(isnan(out.o[0]) && isnan(out.lse));
}

Test(merge, in_place) {
  part x[2] = {make_part(1, 0.25f), make_part(-3, 1.5f)};
  const part apart = merge(x, 2);
  const tsr_merge_problem p = merge_problem(2);
  tsr_reason reason;
  const void *const o[2] = {x[0].o, x[1].o};
  const float *const lse[2] = {&x[0].lse, &x[1].lse};
  rig_backend()->merge(NULL, 0, &p, o, lse, x[1].o, &x[1].lse, NULL, &reason);
  cr_expect(!memcmp(x[1].o, apart.o, sizeof apart.o) && x[1].lse == apart.lse);
}

/* Attention over keys 0..3 and 4..8 merged is attention over 0..8. */
Test(merge, of_two_key_ranges) {
  ref_rig whole, part_rig;
  double o[2][DIM];
  float lse[2];
  rig_init(&whole, 1, 1, 1, 1, 9, 4, DIM);
  rig_alloc(&whole);
  rig_forward(&whole);
  for (int n = 0; n < 2; n++) {
    rig_init(&part_rig, 1, 1, 1, 1, n ? 5 : 4, 4, DIM);
    rig_alloc(&part_rig);
    memcpy(part_rig.q, whole.q, 4 * sizeof(double));
    memcpy(part_rig.k, whole.k + (n ? 16 : 0), (size_t)(n ? 20 : 16) * sizeof(double));
    memcpy(part_rig.v, whole.v + (n ? 4 * DIM : 0), (size_t)(n ? 5 : 4) * DIM * sizeof(double));
    rig_forward(&part_rig);
    memcpy(o[n], part_rig.o, sizeof o[n]);
    lse[n] = (float)part_rig.lse[0];
    rig_free(&part_rig);
  }
  {
    part parts[2], out;
    for (int n = 0; n < 2; n++) memcpy(parts[n].o, o[n], sizeof o[n]), parts[n].lse = lse[n];
    out = merge(parts, 2);
    cr_expect(fabs(out.lse - whole.lse[0]) < 1e-6);
    for (int d = 0; d < DIM; d++) cr_expect(fabs(out.o[d] - whole.o[d]) < 1e-6);
  }
  rig_free(&whole);
}

/* ------------------------------------------------------------------------------------- dropout */

/* The known answers of Philox4x32-10 that come with its authors' library. */
Test(dropout, philox_known_answers) {
  static const uint32_t known[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
       0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
       0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (int n = 0; n < 3; n++) {
    const uint32_t *k = known[n];
    const tsri_philox r = tsri_philox4x32(k[0], k[1], k[2], k[3], k[4], k[5]);
    for (int w = 0; w < 4; w++) cr_expect_eq(r.w[w], k[6 + w], "vector %d word %d", n, w);
  }
}

static tsr_dropout_problem drop_problem(float p, int64_t b, int64_t h, int64_t sq, int64_t sk) {
  tsr_dropout_problem d;
  memset(&d, 0, sizeof d);
  d.struct_size = sizeof d;
  d.batch = b, d.heads = h, d.seq_q = sq, d.seq_k = sk;
  d.dropout = p;
  d.seed = 0x123456789abcdefull, d.offset = 3;
  d.mask.dtype = TSR_DTYPE_U8;
  d.mask.stride[3] = 1, d.mask.stride[2] = sk, d.mask.stride[1] = sq * sk;
  d.mask.stride[0] = h * sq * sk;
  return d;
}

/* Rates within five standard deviations, over all and over each axis; neighbours are independent.
 */
Test(dropout, statistics) {
  enum { B = 2, H = 4, SQ = 64, SK = 256, N = B * H * SQ * SK };
  static uint8_t keep[N];
  static const float rates[] = {0.0f, 0.1f, 0.5f, 0.9f, 1.0f};
  tsr_reason reason;
  for (int r = 0; r < 5; r++) {
    const tsr_dropout_problem d = drop_problem(rates[r], B, H, SQ, SK);
    const double p = 1 - (double)rates[r], sd = sqrt(p * (1 - p));
    int64_t total = 0, both[3] = {0}, e;
    memset(keep, 7, sizeof keep);
    rig_backend()->dropout_mask(NULL, 0, &d, keep, NULL, &reason);
    for (e = 0; e < N; e++) {
      cr_assert(keep[e] <= 1);
      total += keep[e];
      both[0] += e + 1 < N && keep[e] && keep[e + 1];             /* next key */
      both[1] += e + SK < N && keep[e] && keep[e + SK];           /* next query */
      both[2] += e + SQ * SK < N && keep[e] && keep[e + SQ * SK]; /* next head */
    }
    cr_expect(fabs((double)total / N - p) <= 5 * sd / sqrt(N), "rate %g: kept %g", (double)rates[r],
              (double)total / N);
    for (int n = 0; n < 3; n++) { /* pairs overlap, which at most doubles the variance */
      static const int step[] = {1, SK, SQ * SK};
      const double pairs = N - step[n], rate = (double)both[n] / pairs;
      cr_expect(fabs(rate - p * p) <= 5 * sqrt(2 * p * p * (1 - p * p) / pairs),
                "rate %g: neighbours %d kept together %g", (double)rates[r], n, rate);
    }
  }
}

Test(dropout, other_seed_or_offset_is_another_mask) {
  enum { N = 4096 };
  uint8_t a[N], b[N], c[N], again[N];
  tsr_dropout_problem d = drop_problem(0.5f, 1, 1, 64, 64);
  tsr_reason reason;
  int differ_b = 0, differ_c = 0;
  rig_backend()->dropout_mask(NULL, 0, &d, a, NULL, &reason);
  rig_backend()->dropout_mask(NULL, 0, &d, again, NULL, &reason);
  d.seed ^= 1ull << 63;
  rig_backend()->dropout_mask(NULL, 0, &d, b, NULL, &reason);
  d.seed ^= 1ull << 63;
  d.offset += 1ull << 32;
  rig_backend()->dropout_mask(NULL, 0, &d, c, NULL, &reason);
  for (int e = 0; e < N; e++) differ_b += a[e] != b[e], differ_c += a[e] != c[e];
  cr_expect(!memcmp(a, again, N));
  cr_expect(abs(differ_b - N / 2) < 5 * 32 && abs(differ_c - N / 2) < 5 * 32);
}

/* -------------------------------------------------------------------------------------- vtable */

static tsr_status ask(const char *kernel, const ref_rig *rig, tsr_estimate *estimate,
                      tsr_reason *reason) {
  void *state = rig_state(1);
  const tsr_status status =
      rig_backend()->supports(state, rig_kernel(kernel), &rig->r, estimate, reason);
  rig_backend()->close(state);
  return status;
}

Test(vtable, refusals_say_why) {
  ref_rig rig;
  tsr_estimate estimate;
  tsr_reason reason;
  rig_init(&rig, 1, 1, 1, 4, 4, 2, 2);
  rig_alloc(&rig);
  cr_expect_eq(ask("fwd_f32_full__naive", &rig, &estimate, &reason), TSR_STATUS_NOT_SUPPORTED);
  cr_expect(strstr(reason.text, "float64") && strstr(reason.text, "float32"), "%s", reason.text);
  cr_expect_eq(ask("bwd_any_rows__ref64", &rig, &estimate, &reason), TSR_STATUS_NOT_SUPPORTED);
  rig.p.q.dtype = TSR_DTYPE_F32;
  rig.p.seq_q = rig.p.seq_k = 1 << 16;
  rig_resolve(&rig);
  cr_expect_eq(ask("fwd_f32_full__naive", &rig, &estimate, &reason), TSR_STATUS_NOT_SUPPORTED);
  cr_expect(strstr(reason.text, "17179869184"), "%s", reason.text);
  rig.p.seq_q = rig.p.seq_k = 0x7fffffff;
  rig.p.batch = 0x7fffffff;
  rig_resolve(&rig);
  cr_expect_eq(ask("fwd_f32_full__naive", &rig, &estimate, &reason), TSR_STATUS_NOT_SUPPORTED);
  rig_free(&rig);
}

/* The oracle ranks before every baseline, and the baseline's traffic grows with Sq * Sk. */
Test(vtable, estimates) {
  ref_rig rig;
  tsr_estimate ref, naive, larger;
  tsr_reason reason;
  rig_init(&rig, 1, 8, 8, 1024, 1024, 64, 64);
  rig.p.q.dtype = rig.p.k.dtype = rig.p.v.dtype = rig.p.o.dtype = TSR_DTYPE_BF16;
  rig_resolve(&rig);
  cr_assert_eq(ask("fwd_any_rows__ref64", &rig, &ref, &reason), TSR_STATUS_SUCCESS);
  cr_assert_eq(ask("fwd_bf16_full__naive", &rig, &naive, &reason), TSR_STATUS_SUCCESS);
  cr_expect(ref.seconds < naive.seconds);
  cr_expect(naive.flops == 4.0 * 8 * 1024 * 1024 * 64 && ref.flops == naive.flops);
  cr_expect(naive.workspace >= 8 * 1024 * 1024 * 2);
  rig.p.seq_q = rig.p.seq_k = 2048;
  rig_resolve(&rig);
  cr_assert_eq(ask("fwd_bf16_full__naive", &rig, &larger, &reason), TSR_STATUS_SUCCESS);
  cr_expect(larger.bytes > 3.5 * naive.bytes);
  rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig_resolve(&rig);
  cr_assert_eq(ask("fwd_any_rows__ref64", &rig, &ref, &reason), TSR_STATUS_SUCCESS);
  cr_expect(fabs(ref.flops / larger.flops - 0.5) < 0.01);
}

typedef struct counting_runner {
  int64_t calls, tasks;
} counting_runner;

static int run_backwards(void *user, void (*task)(void *, int64_t, int32_t), void *arg,
                         int64_t count) {
  counting_runner *counter = (counting_runner *)user;
  counter->calls++;
  counter->tasks += count;
  while (count-- > 0) task(arg, count, (int32_t)(count % 3));
  return 0;
}

static int refuse(void *user, void (*task)(void *, int64_t, int32_t), void *arg, int64_t count) {
  (void)user, (void)task, (void)arg, (void)count;
  return -5;
}

static void *heap_alloc(void *context, size_t size, size_t alignment) {
  (void)context, (void)alignment;
  return malloc(size);
}

static void heap_free(void *context, void *block) {
  (void)context;
  free(block);
}

static tsr_status run_with(const tsr_runner *runner, ref_rig *rig, tsr_reason *reason) {
  const tsr_backend *backend = rig_backend();
  const int32_t kernel = rig_kernel("fwd_any_rows__ref64");
  tsr_host host;
  void *state, *plan;
  tsr_estimate estimate;
  tsr_status status;
  memset(&host, 0, sizeof host);
  host.alloc = heap_alloc, host.free = heap_free, host.runner = runner;
  cr_assert_eq(backend->probe(&host, &state, reason), TSR_STATUS_SUCCESS);
  cr_assert_eq(backend->supports(state, kernel, &rig->r, &estimate, reason), TSR_STATUS_SUCCESS);
  cr_assert_eq(backend->plan_create(state, kernel, &rig->r, &plan, reason), TSR_STATUS_SUCCESS);
  rig->a.workspace = rig_memory(rig, (int64_t)estimate.workspace);
  status = backend->run(state, plan, &rig->a, reason);
  backend->plan_destroy(state, plan);
  backend->close(state);
  return status;
}

Test(vtable, the_callers_runner_does_the_work) {
  counting_runner counter = {0, 0};
  const tsr_runner runner = {&counter, 3, run_backwards}, broken = {NULL, 1, refuse};
  ref_rig rig;
  tsr_reason reason;
  double o[60];
  rig_init(&rig, 1, 2, 1, 10, 7, 4, 3);
  rig_alloc(&rig);
  rig_forward(&rig);
  memcpy(o, rig.o, sizeof o);
  for (int e = 0; e < 60; e++) rig.o[e] = NAN;
  cr_expect_eq(run_with(&runner, &rig, &reason), TSR_STATUS_SUCCESS);
  cr_expect(counter.calls == 1 && counter.tasks == 4); /* two heads, two blocks of rows */
  cr_expect(!memcmp(o, rig.o, sizeof o));
  cr_expect_eq(run_with(&broken, &rig, &reason), TSR_STATUS_INTERNAL);
  cr_expect(strstr(reason.text, "-5"), "%s", reason.text);
  rig_free(&rig);
}

Test(vtable, inside_a_parallel_region) {
  double o[2][60];
#pragma omp parallel for num_threads(2)
  for (int n = 0; n < 2; n++) {
    ref_rig rig;
    rig_init(&rig, 1, 2, 1, 10, 7, 4, 3);
    rig_alloc(&rig);
    rig_run(&rig, "fwd_any_rows__ref64", 2 + n);
    memcpy(o[n], rig.o, sizeof o[n]);
    rig_free(&rig);
  }
  cr_expect(!memcmp(o[0], o[1], sizeof o[0]));
}

Test(vtable, another_abi_is_refused) {
  const tsr_backend *tsr_backend_entry_reference(uint32_t host_abi);
  cr_expect_null(tsr_backend_entry_reference(TSR_BACKEND_ABI + 1));
}
