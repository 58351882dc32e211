// SPDX-License-Identifier: Apache-2.0
//
// The split tile program on the emulator against whole rows in double precision: random problems of every
// shape that decoding meets (groups, a few queries, pages, packed and padded sequences, windows, prefix,
// sinks, score steps, dropout), any number of parts. Rows that nobody may read are NaN, outputs and partial
// results begin as NaN, and what is cut differently must give the same bits where the contract says so.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "backends/cuda/sm80/unit_f32.hpp"
#include "backends/hip/gfx11/unit.hpp"
#include "backends/hip/gfx9/unit.hpp"
#include "tests/kernels/split_cases.h"

namespace {

using EdgeBf16 = Split<MmaSync<BFloat16>, 64, 64, 64, 4, 3, false>;
using AnyBf16 = Split<MmaSync<BFloat16>, 64, 64, 64, 4, 3, true>;
using EdgeF32 = Split<MmaSyncBf16x6, 32, 64, 64, 2, 4, false>;
using AnyF32 = Split<MmaSyncBf16x6, 32, 64, 64, 2, 2, true>;
using WideF16 = Split<MmaSync<Half>, 64, 128, 32, 2, 2, false>; // 32 keys of a wave, chunks of Dv
using MfmaF16 = Split<Mfma<Half, 16>, 64, 64, 64, 2, 2, false>;
using MfmaBf16 = Split<Mfma<BFloat16, 32>, 64, 64, 64, 2, 2, true>;
using WmmaF16 = Split<WmmaGfx11<Half>, 64, 64, 64, 2, 2, true>;
using WmmaBf16 = Split<WmmaGfx12<BFloat16>, 128, 64, 64, 4, 2, false>;

} // namespace

TSRI_GPU_KERNEL(test_split_edge_bf16, EdgeBf16, SplitArgs)
TSRI_GPU_KERNEL(test_split_any_bf16, AnyBf16, SplitArgs)
TSRI_GPU_KERNEL(test_split_edge_f32, EdgeF32, SplitArgs)
TSRI_GPU_KERNEL(test_split_any_f32, AnyF32, SplitArgs)
TSRI_GPU_KERNEL(test_split_wide_f16, WideF16, SplitArgs)
TSRI_GPU_KERNEL(test_split_mfma_f16, MfmaF16, SplitArgs)
TSRI_GPU_KERNEL(test_split_mfma_bf16, MfmaBf16, SplitArgs)
TSRI_GPU_KERNEL(test_split_wmma_f16, WmmaF16, SplitArgs)
TSRI_GPU_KERNEL(test_split_wmma_bf16, WmmaBf16, SplitArgs)

namespace {

// Keys of a part where seq_k keys are cut into at most `splits` parts.
int64_t part_keys_of(const Case &c, const Kernel &kernel, int64_t splits) {
  const int64_t tiles = (c.p.seq_k + kernel.tile_k - 1) / kernel.tile_k;
  return larger<int64_t>((tiles + splits - 1) / splits, 1) * kernel.tile_k;
}

// One run, into fresh outputs. part_keys 0: tiles shared out to `splits` parts.
bool run(Case &c, const Kernel &kernel, int64_t part_keys, int64_t splits, char *why, size_t capacity) {
  tsr_problem &p = c.p;
  const int64_t rows = c.rows();
  c.o.make(c.o_bytes(), 0xff);
  c.lse.assign(static_cast<size_t>(rows * p.heads_q + 1), NAN);
  c.max.assign(static_cast<size_t>(rows * p.heads_q + 1), NAN);
  c.a.o = c.o.data;
  c.a.lse = c.lse.data();
  c.a.max_logit = kernel.any ? c.max.data() : nullptr;
  SplitArgs args;
  memset(&args, 0, sizeof args);
  args.call.p = p;
  args.call.a = c.a;
  args.call.group = c.group;
  args.call.vector = vector_bits(p);
  args.call.drop_threshold = tsri_dropout_threshold(p.dropout);
  args.call.keep_scale = p.dropout < 1 ? 1.0f / (1.0f - p.dropout) : 0.0f;
  args.part_keys = part_keys;
  if (part_keys > 0) splits = larger<int64_t>((p.seq_k + part_keys - 1) / part_keys, 1);
  args.splits = static_cast<int32_t>(splits);
  args.row_tiles = static_cast<int32_t>((p.seq_q * c.group + kernel.tile_q - 1) / kernel.tile_q);
  args.chunks = static_cast<int32_t>((p.dim_v + kernel.dim_v - 1) / kernel.dim_v);
  const int64_t units = p.batch * p.heads_kv * args.row_tiles;
  const size_t parts = static_cast<size_t>(units * args.splits * kernel.tile_q);
  Tensor part_o;
  part_o.make(parts * static_cast<size_t>(p.dim_v) * 4, 0xff);
  std::vector<float> part_lse(parts, NAN), part_max(parts, NAN);
  // Memory may hold anything before but the tag of the run, which is gone after: the same launch runs twice.
  std::vector<uint64_t> counters(static_cast<size_t>(units * args.chunks));
  for (uint64_t &counter : counters)
    counter = chance(50) ? ~uint64_t{0} : bits() * uint64_t{0x9e3779b97f4a7c15};
  args.tag = 1 + (uint64_t{bits()} << 7);
  args.part_o = reinterpret_cast<float *>(part_o.data);
  args.part_lse = part_lse.data();
  args.part_max = kernel.any ? part_max.data() : nullptr;
  args.counters = counters.data();
  for (int n = chance(10) ? 2 : 1; n > 0; --n) {
    if (!emulate(kernel.function, &args, units * args.chunks * args.splits, kernel.threads, kernel.wave,
                 kernel.shared_bytes, why, capacity))
      return false;
    for (uint64_t counter : counters) check(counter >> 24 != args.tag, "%s: a tag is left", kernel.name);
  }
  return true;
}

struct Reference {
  std::vector<double> o;
  double lse, max;
};

// Row i of the used part, head h, in double precision.
Reference reference(const Case &c, int64_t b, int64_t h, int64_t i) {
  const tsr_problem &p = c.p;
  const tsri_sequence s = tsri_sequence_of(&p, &c.a, b);
  const tsri_mask_rule rule = tsri_sequence_rule(&p, &s);
  const tsri_mask_row row = tsri_mask_row_of(&rule, i);
  const tsri_pages pages = tsri_pages_of(&p, &c.a);
  const int64_t g = h / c.group, q_at = tsri_row_offset(p.q.stride, b, h, s.q.begin + i);
  const tsri_dropout_key key = tsri_dropout_key_make(c.a.seed, c.a.offset);
  Reference r = {std::vector<double>(static_cast<size_t>(p.dim_v), 0.0), -INFINITY, -INFINITY};
  std::vector<double> score(static_cast<size_t>(s.k.len + 1), -INFINITY);
  for (int64_t j = 0; j < s.k.len; ++j) {
    if (!tsri_mask_allows(&row, j)) continue;
    if (c.a.mask &&
        !c.mask.data[tsri_pair_offset(p.mask.stride, b, h, i, j)])
      continue;
    if (c.a.block_mask &&
        !c.blocks.data[tsri_pair_offset(p.block_mask.stride, b, h, i / p.block_q, j / p.block_k)])
      continue;
    const int64_t k_at = tsri_kv_offset(&pages, p.k.stride, b, g, s.k.begin + j);
    double dot = 0;
    for (int64_t d = 0; d < p.dim_qk; ++d)
      dot += static_cast<double>(tsri_load_f32(p.q.dtype, c.q.data, q_at + d)) *
             tsri_load_f32(p.k.dtype, c.k.data, k_at + d);
    const double bias =
        c.a.bias ? tsri_load_f32(p.bias.dtype, c.bias.data, tsri_pair_offset(p.bias.stride, b, h, i, j)) : 0;
    const double slope = p.alibi == TSR_ALIBI_NONE       ? 0
                         : p.alibi == TSR_ALIBI_PER_HEAD ? c.alibi[static_cast<size_t>(h)]
                                                         : c.alibi[static_cast<size_t>(b * p.heads_q + h)];
    score[static_cast<size_t>(j)] =
        tsri_score_f64(dot, p.scale, p.softcap, bias, slope, tsri_alibi_distance(i, j, s.q.len, s.k.len));
    r.max = fmax(r.max, score[static_cast<size_t>(j)]);
  }
  const double sink = p.sink ? c.sink[static_cast<size_t>(h)] : -INFINITY, top = fmax(r.max, sink);
  if (top == -INFINITY) return r;
  double sum = exp(sink - top);
  for (int64_t j = 0; j < s.k.len; ++j) sum += exp(score[static_cast<size_t>(j)] - top);
  r.lse = top + log(sum);
  for (int64_t j = 0; j < s.k.len; ++j) {
    const double weight = exp(score[static_cast<size_t>(j)] - r.lse);
    if (weight == 0 ||
        !tsri_dropout_keep(key, tsri_dropout_threshold(p.dropout), b * p.heads_q + h, i, j))
      continue;
    const int64_t v_at = tsri_kv_offset(&pages, p.v.stride, b, g, s.k.begin + j);
    for (int64_t d = 0; d < p.dim_v; ++d)
      r.o[static_cast<size_t>(d)] += weight / (1 - static_cast<double>(p.dropout)) *
                                     tsri_load_f32(p.v.dtype, c.v.data, v_at + d);
  }
  return r;
}

bool near(double got, double want, double tolerance) {
  return got == want || (isfinite(want) && fabs(got - want) <= tolerance * (1 + fabs(want)));
}

// Every row of every slot against the reference.
void compare(const Case &c, const Kernel &kernel, int seed, int64_t splits) {
  const tsr_problem &p = c.p;
  for (int64_t b = 0; b < p.batch; ++b) {
    const tsri_sequence s = tsri_sequence_of(&p, &c.a, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t row = s.q.slot_begin; row < s.q.slot_begin + s.q.slot_len; ++row) {
        const int64_t i = row - s.q.begin;
        Reference want = {std::vector<double>(static_cast<size_t>(p.dim_v), 0.0), -INFINITY, -INFINITY};
        if (i >= 0 && i < s.q.len) want = reference(c, b, h, i);
        const size_t at = static_cast<size_t>(tsri_row_offset(p.lse.stride, b, h, row));
        check(near(c.lse[at], want.lse, 1e-4), "%s seed %d splits %d b %d h %d row %d: LSE %g, not %g",
              kernel.name, seed, (int)splits, (int)b, (int)h, (int)row, c.lse[at], want.lse);
        if (kernel.any)
          check(near(c.max[at], want.max, 1e-4), "%s seed %d splits %d b %d h %d row %d: max %g, not %g",
                kernel.name, seed, (int)splits, (int)b, (int)h, (int)row, c.max[at], want.max);
        for (int64_t d = 0; d < p.dim_v; ++d) {
          const float got =
              tsri_load_f32(p.o.dtype, c.o.data, tsri_row_offset(p.o.stride, b, h, row) + d);
          check(near(got, want.o[static_cast<size_t>(d)], kernel.tolerance),
                "%s seed %d splits %d b %d h %d row %d column %d: %g, not %g", kernel.name, seed,
                (int)splits, (int)b, (int)h, (int)row, (int)d, got, want.o[static_cast<size_t>(d)]);
        }
      }
  }
}

void test_random(const Kernel &kernel, int seed) {
  char why[256] = "";
  state = static_cast<uint32_t>(seed) * 2654435761u + 12345u;
  for (int n = 0; n < 4; ++n) bits();
  Case c;
  choose(c, kernel);
  const int64_t splits = integer(1, 7);
  const int64_t part_keys = chance(50) ? 0 : part_keys_of(c, kernel, splits);
  const bool ran = run(c, kernel, part_keys, splits, why, sizeof why);
  check(ran, "%s seed %d: %s", kernel.name, seed, why);
  if (!ran) return;
  compare(c, kernel, seed, splits);
  if (!c.packed_q && !c.packed_k) return;
  // Parts of the same size or number; larger bounds of the lengths, which only make room.
  const std::vector<unsigned char> o(c.o.data, c.o.data + c.o_bytes());
  const std::vector<float> lse = c.lse;
  if (c.packed_q) c.p.seq_q += integer(0, 12);
  if (c.packed_k) c.p.seq_k = c.p.seq_k * 2 + integer(0, 300);
  check(run(c, kernel, part_keys, splits, why, sizeof why), "%s seed %d again: %s", kernel.name, seed, why);
  // Without elements there is nothing to compare, and no pointer either.
  check(o.empty() || memcmp(o.data(), c.o.data, o.size()) == 0, "%s seed %d: O depends on the bounds", kernel.name, seed);
  check(lse.empty() || memcmp(lse.data(), c.lse.data(), lse.size() * 4) == 0,
        "%s seed %d: LSE depends on the bounds", kernel.name, seed);
}

// More parts than there is room for weights of, fixed and shared out: their sums come out the same.
void test_many_parts() {
  char why[256] = "";
  const Kernel kernel = kernel_of<WideF16>("f16 wide", test_split_wide_f16, 128, 32, false, 1e-3);
  for (int64_t part_keys : {0, 64}) {
    Case c;
    state = 99;
    choose(c, kernel);
    tsr_problem &p = c.p;
    const int64_t keys = 64 * 131 - 5;
    memset(&p, 0, sizeof p);
    c.a = {};
    c.packed_q = c.packed_k = false;
    c.group = 2;
    p.batch = p.heads_kv = p.seq_q = 1;
    p.heads_q = 2;
    p.seq_k = keys;
    p.dim_qk = 16;
    p.dim_v = 8;
    p.scale = 0.5f;
    p.index_dtype = TSR_DTYPE_I32;
    p.window.left = p.window.right = TSR_UNBOUNDED;
    lay_out(p.q, kernel.dtype, 2, 1, 16, false, false);
    lay_out(p.k, kernel.dtype, 1, keys, 16, false, false);
    lay_out(p.v, kernel.dtype, 1, keys, 8, false, false);
    lay_out(p.o, TSR_DTYPE_F32, 2, 1, 8, false, false);
    lay_out(p.lse, TSR_DTYPE_F32, 2, 1, 1, false, false);
    fill(c.q, kernel.dtype, 32);
    fill(c.k, kernel.dtype, keys * 16);
    fill(c.v, kernel.dtype, keys * 8);
    c.a.q = c.q.data;
    c.a.k = c.k.data;
    c.a.v = c.v.data;
    check(run(c, kernel, part_keys, 131, why, sizeof why), "many parts: %s", why);
    compare(c, kernel, 0, 131);
  }
}

} // namespace

int main(int argc, char **argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 60, first = argc > 2 ? atoi(argv[2]) : 0;
  const Kernel kernels[] = {
      kernel_of<EdgeBf16>("bf16 edge", test_split_edge_bf16, 64, 64, false, 8e-3),
      kernel_of<AnyBf16>("bf16 any", test_split_any_bf16, 64, 64, true, 1.2e-2),
      kernel_of<EdgeF32>("f32 edge", test_split_edge_f32, 64, 64, false, 5e-6),
      kernel_of<AnyF32>("f32 any", test_split_any_f32, 64, 64, true, 1e-5),
      kernel_of<WideF16>("f16 wide", test_split_wide_f16, 128, 32, false, 1e-3),
      kernel_of<MfmaF16>("MFMA 16 f16 edge", test_split_mfma_f16, 64, 64, false, 1e-3),
      kernel_of<MfmaBf16>("MFMA 32 bf16 any", test_split_mfma_bf16, 64, 64, true, 1.2e-2),
      kernel_of<WmmaF16>("WMMA gfx11 f16 any", test_split_wmma_f16, 64, 64, true, 1.5e-3),
      kernel_of<WmmaBf16>("WMMA gfx12 bf16 edge", test_split_wmma_bf16, 64, 64, false, 8e-3),
  };
  for (const Kernel &kernel : kernels)
    for (int seed = first; seed < first + count; ++seed) test_random(kernel, seed);
  test_many_parts();
  printf("%lld checks, %lld failed\n", (long long)checks, (long long)failures);
  return failures > 0 || checks == 0;
}
