// SPDX-License-Identifier: Apache-2.0
//
// Selection of the CUDA backend without a device: which row takes a problem on devices of given facts,
// what the others say, and how work is cut. Problems go through the library's own validation, so they are
// what backends see. Nothing is launched.
#include "cuda_problems.h"

namespace {

using namespace cuda_problems;

Test(cuda_select, refusals_say_what_was_found) {
  tsr_problem p = problem_of(1, 2, 2, 64, 64, 64, 64);
  const DeviceFacts old = facts_of("T4", 75, 40, 65, 1.6e9, 3e11, 4);
  expect_refused(old, p, "T4 has compute capability 7.5, this kernel needs 8.0");
  DeviceFacts small = h200;
  small.shared_per_block = 1024;
  expect_refused(small, p, "H200 has 1024");
  p.q = p.k = p.v = p.o = layout_of(TSR_DTYPE_F64, 16);
  expect_refused(h200, p, "q, k, v are float64, float64, float64; this kernel takes bfloat16");
  p = problem_of(1, 2, 2, 64, 64, 64, 64);
  p.k.dtype = p.v.dtype = TSR_DTYPE_F8_E4M3;
  p.k_scale = p.v_scale = layout_of(TSR_DTYPE_F32, 0);
  expect_refused(h200, p, "float8");
  p = problem_of(1, 2, 2, 64, 64, 64, 64);
  p.seq_k = INT32_MAX;
  expect_refused(h200, p, "2147483647 rows");
}

Test(cuda_select, features_and_layouts_of_the_mask_classes) {
  tsr_problem p = problem_of(2, 4, 2, 128, 128, 64, 64);
  expect_row(h200, p, "_edge_");
  p = problem_of(2, 4, 2, 2048, 2048, 64, 64);
  p.softcap = 20;
  expect_row(h200, p, "_score__sm90_");
  expect_row(kDevices[1], p, "_any_");
  cr_expect(select(h200, p).refusals.find("the problem uses a softcap\n") != std::string::npos);
  p.bias = layout_of(TSR_DTYPE_F32, 0);
  p.dropout = 0.5f;
  cr_expect(select(h200, p).refusals.find("the problem uses a bias, a softcap, dropout\n") !=
            std::string::npos);
  p = problem_of(2, 4, 2, 2048, 2048, 64, 64);
  p.scale = -1;
  expect_row(h200, p, "_score__sm90_");
  cr_expect(select(h200, p).refusals.find("scale is -1; this kernel needs log2 e times it") !=
            std::string::npos);
  p.scale = 3e38f;
  expect_row(h200, p, "_score__sm90_");
  p.softcap = 1e-3f;
  expect_row(h200, p, "_any_");
  cr_expect(select(h200, p).refusals.find("this kernel needs their ratio to be a normal float32") != std::string::npos);
  // Masks of pairs are left to rows that take one pair after the other.
  p = problem_of(2, 4, 2, 128, 128, 64, 64);
  p.mask = layout_of(TSR_DTYPE_U8, 0);
  expect_row(h200, p, "_any_");
  // Alignment that is not promised, a row that is no multiple of 16 bytes, a stride that is none.
  expect_row(h200, problem_of(2, 4, 2, 128, 128, 64, 64, TSR_DTYPE_BF16, 0), "_any_");
  expect_row(h200, problem_of(2, 4, 2, 128, 128, 68, 64), "_any_");
  expect_row(h200, problem_of(2, 4, 2, 128, 128, 72, 64), "_edge_");
  p = problem_of(2, 4, 2, 128, 128, 64, 64);
  p.k.order = TSR_ORDER_STRIDED;
  const int64_t stride[4] = {4 * 128 * 68, 128 * 68, 68, 1};
  std::memcpy(p.k.stride, stride, sizeof stride);
  expect_row(h200, p, "_any_");
  cr_expect(select(h200, p).refusals.find("k has rows that do not begin and end") !=
            std::string::npos);
  // O alone: rows that write it 16 bytes at a time leave it to those with a second way.
  p = problem_of(2, 4, 2, 128, 128, 64, 64);
  p.o.order = TSR_ORDER_STRIDED;
  const int64_t gaps[4] = {4 * 128 * 67, 128 * 67, 67, 1};
  std::memcpy(p.o.stride, gaps, sizeof gaps);
  const Winner o = select(h200, p);
  cr_expect(o.row && (std::strstr(o.row->name, "_any_") || std::strstr(o.row->name, "_split_")));
  cr_expect(o.refusals.find("o has rows that do not begin and end") != std::string::npos);
}

// Pages that the copy engine's boxes divide; others are looked up row by row.
Test(cuda_select, pages) {
  tsr_problem p = problem_of(4, 16, 16, 2048, 0, 128, 128);
  p.arrays = TSR_ARRAY_USED_K;
  p.page_size = 16, p.max_pages = 128, p.num_pages = 600;
  expect_row(h200, p, "_paged__sm90_");
  expect_row(kDevices[1], p, "_paged__sm80_");
  p.softcap = 20;
  expect_row(h200, p, "_any_");
  p.softcap = 0;
  p.page_size = 8, p.max_pages = 256;
  expect_row(h200, p, "_paged__sm90_");
  p.arrays |= TSR_ARRAY_LEFT_PAD_K;
  expect_row(h200, p, "_paged__sm80_");
  cr_expect(select(h200, p).refusals.find("keys have left padding") != std::string::npos);
  p.arrays = TSR_ARRAY_USED_K;
  p.num_pages = int64_t{1} << 33;
  expect_row(h200, p, "_paged__sm80_");
  cr_expect(select(h200, p).refusals.find("8589934592 pages; this kernel takes 1 to") != std::string::npos);
  p.num_pages = 600;
  p.page_size = 12, p.max_pages = 170;
  expect_row(h200, p, "_paged__sm80_");
  cr_expect(select(h200, p).refusals.find("pages have 12 rows; this kernel takes multiples of 8") !=
            std::string::npos);
  // Without pages others are there.
  cr_expect(select(h200, problem_of(4, 16, 16, 2048, 2048, 128, 128)).refusals.find("keys do not lie in pages") !=
            std::string::npos);
}

// Heads of one tile have a row of their own, short ones one whose warpgroups share tiles; long ones neither.
Test(cuda_select, short_heads) {
  for (tsr_dtype dtype : {TSR_DTYPE_F16, TSR_DTYPE_BF16}) {
    expect_row(h200, problem_of(128, 16, 16, 128, 128, 64, 64, dtype), "_edge__sm90_heads_128x128");
    expect_row(h200, problem_of(128, 16, 4, 100, 77, 64, 64, dtype), "_edge__sm90_heads_128x128");
    for (int64_t n : {256, 512, 1024})
      expect_row(h200, problem_of(16384 / n, 16, 16, n, n, 64, 64, dtype), "_d64_edge__sm90_256x128");
    for (int64_t n : {2048, 4096})
      expect_row(h200, problem_of(16384 / n, 16, 16, n, n, 64, 64, dtype), "_d64_edge__sm90_192x128");
    for (int64_t n : {128, 256, 512, 1024, 2048}) {
      tsr_problem p = problem_of(16384 / n, 16, 16, n, n, 64, 64, dtype);
      p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
      expect_row(h200, p, n == 128 ? "_edge__sm90_heads_128x128" : "_d64_edge__sm90_256x128");
    }
  }
  tsr_problem p = problem_of(128, 16, 16, 128, 129, 64, 64);
  expect_row(h200, p, "_edge__sm90_");
  cr_expect(select(h200, p).refusals.find("128 queries and 129 keys; this kernel takes up to 128, and 1 to 128") !=
            std::string::npos);
  p = problem_of(128, 16, 16, 128, 128, 64, 64);
  p.arrays = TSR_ARRAY_USED_K;
  cr_expect(select(h200, p).refusals.find("arrays tell sequences apart; this kernel takes heads that are alike") !=
            std::string::npos);
  p = problem_of(128, 16, 16, 128, 128, 64, 64);
  p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  p.total_q = p.total_k = 128 * 100;
  expect_row(h200, p, "_edge__sm90_");
  cr_expect(select(h200, p).refusals.find("sequences are packed; this kernel takes heads of one size") !=
            std::string::npos);
}

// Rows with score steps take what has none as well, and slower.
Test(cuda_select, steps_cost) {
  for (int64_t dim : {64, 80, 128, 256})
    for (int64_t n : {512, 4096}) expect_row(h200, problem_of(4, 16, 16, n, n, dim, dim), "_edge__sm90_");
  tsr_problem p = problem_of(4, 16, 16, 4096, 4096, 128, 128);
  for (int feature = 0; feature < 4; ++feature) {
    p = problem_of(4, 16, 16, 4096, 4096, 128, 128);
    if (feature == 0) p.bias = layout_of(TSR_DTYPE_BF16, 16);
    if (feature == 1) p.alibi = TSR_ALIBI_PER_HEAD;
    if (feature == 2) p.dropout = 0.1f;
    if (feature == 3) p.max_logit = layout_of(TSR_DTYPE_F32, 0);
    expect_row(h200, p, "_score__sm90_");
  }
}

Test(cuda_select, tiers_follow_the_head_dimension) {
  for (const DeviceFacts &device : kDevices) {
    if (device.shared_per_block < 160 << 10) continue;
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 64, 64), "_d64_");
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 40, 40), "_d64_");
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 80, 80), device.arch == 90 ? "_d96_" : "_d128_");
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 128, 128), "_d128_");
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 256, 256), "_d256_");
    expect_row(device, problem_of(4, 16, 16, 2048, 2048, 192, 128), "_d192x128_");
    expect_row(device, problem_of(4, 16, 1, 512, 512, 576, 512), "_d576x");
  }
}

// Every legal head dimension, dtype and alignment has a row on every device that rows exist for.
Test(cuda_select, every_dimension_is_taken) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  for (const DeviceFacts &device : kDevices) {
    const bool large = device.shared_per_block >= 160 << 10;
    for (tsr_dtype dtype : dtypes)
      for (int64_t d = 1; d <= (large ? 576 : 128); d += d < 32 ? 1 : 17)
        for (int64_t alignment : {0, 16}) {
          const Winner w =
              select(device, problem_of(1, 4, 2, 70, 90, d, d > 512 ? 512 : d, dtype, alignment));
          cr_expect_not_null(w.row, "%s, dim %d, dtype %d:\n%s", device.name,
                             static_cast<int>(d), static_cast<int>(dtype), w.refusals.c_str());
        }
  }
}

// Q, K and V of 8 bits: on 9.0 alone, O of any type, and scales that tiles of keys can follow.
Test(cuda_select, tensors_of_8_bits) {
  tsr_problem p = problem_of(2, 8, 2, 1024, 1024, 128, 128);
  p.q.dtype = p.k.dtype = p.v.dtype = TSR_DTYPE_F8_E4M3;
  p.q_scale = p.k_scale = p.v_scale = layout_of(TSR_DTYPE_F32, 0);
  for (tsr_dtype o : {TSR_DTYPE_F16, TSR_DTYPE_BF16, TSR_DTYPE_F32}) {
    p.o.dtype = o;
    expect_row(h200, p, "fwd_e4m3_d128_edge__sm90_");
  }
  for (const DeviceFacts &device : kDevices)
    if (device.arch != 90) expect_refused(device, p, "this kernel needs 9.0");
  p.scale_rows_q = 1;
  p.scale_rows_k = 256;
  expect_row(h200, p, "fwd_e4m3_d128_edge__sm90_");
  p.scale_rows_k = 64;
  expect_refused(h200, p, "scale_rows_k is 64; this kernel takes multiples of 128, or 0");
  p.scale_rows_k = 4096; // one for all
  expect_row(h200, p, "fwd_e4m3_d128_edge__sm90_");
  p.scale_rows_k = 128;
  p.arrays = TSR_ARRAY_CU_K;
  p.total_k = 2000;
  expect_refused(h200, p, "scale_rows_k is 128 and keys are packed; this kernel takes 0 there");
  p.arrays = TSR_ARRAY_LEFT_PAD_K;
  p.total_k = 0;
  expect_refused(h200, p, "scale_rows_k is 128 and keys are padded on the left");
  p.scale_rows_k = 0;
  expect_row(h200, p, "fwd_e4m3_d128_edge__sm90_");
  p.softcap = 20;
  expect_refused(h200, p, "the problem uses a softcap");
  p.softcap = 0;
  p.dim_qk = 120; // bytes of a row
  expect_refused(h200, p, "q has rows that do not begin and end at multiples of 16 bytes");
  p.dim_qk = 128;
  p.q.dtype = p.k.dtype = p.v.dtype = TSR_DTYPE_F8_E5M2;
  expect_refused(h200, p, "float8_e5m2, float8_e5m2, float8_e5m2; this kernel takes float8_e4m3");
}

int64_t multiply(int64_t a, int64_t b, int64_t c, int64_t d) { return a * b * c * d; }

// A block for each piece of work; where blocks stay, no more than there are pieces, and none only for none.
void expect_blocks(const Row &row, const tessera::cuda::Cut &cut, int64_t pieces) {
  if (row.family != Family::kEngineForward) {
    cr_expect_eq(cut.blocks, pieces, "%s", row.name);
    return;
  }
  cr_expect(cut.blocks <= 2 * pieces && (cut.blocks > 0) == (pieces > 0), "%s: %lld blocks for %lld",
            row.name, static_cast<long long>(cut.blocks), static_cast<long long>(pieces));
}

// Blocks cover all queries, keys and columns, whatever the numbers are.
Test(cuda_select, cuts_cover_the_work) {
  uint64_t state = 12345;
  const auto below = [&state](int64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  };
  for (int n = 0; n < 4000; ++n) {
    const int64_t group = 1 + below(8), heads = 1 + below(4), batch = below(6);
    tsr_problem p = problem_of(batch, group * heads, heads, below(3) ? below(500) : 1,
                               below(5) ? below(20000) : below(3), 1 + below(300), 1 + below(300),
                               TSR_DTYPE_F16, below(2) ? 16 : 0);
    if (below(3) == 0) {
      p.arrays = TSR_ARRAY_CU_Q;
      p.total_q = below(2000);
      if (p.seq_q == 0) p.seq_q = 1;
    }
    if (below(3) == 0) p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
    p.determinism = static_cast<tsr_determinism>(below(3));
    const tsr_resolved r = resolve(p);
    const DeviceFacts &device = kDevices[below(4)];
    const Row *row;
    for (int32_t i = 0; (row = tessera::cuda::row_at(i)) != nullptr; ++i) {
      Choice c;
      tsr_reason why = {};
      if (row->pass != TSR_PASS_FORWARD || row->dtype != TSR_DTYPE_F16) continue;
      if (!tessera::cuda::select_row(device, *row, r, &c, &why)) continue;
      cr_expect_geq(multiply(c.cut.chunks, row->dim_v, 1, 1), r.p.dim_v);
      if (row->family == Family::kSplit) {
        cr_expect_geq(c.cut.row_tiles * static_cast<int64_t>(row->tile_q), r.p.seq_q * r.group);
        cr_expect_geq(c.cut.splits, 1);
        // Shares of whatever is seen, or parts of a fixed size up to the last key.
        cr_expect_eq(c.cut.part_keys > 0, p.determinism == TSR_DETERMINISM_BATCH_INVARIANT);
        cr_expect(c.cut.part_keys == 0 || c.cut.splits * c.cut.part_keys >= r.p.seq_k);
        cr_expect_eq(c.cut.part_keys % row->tile_k, 0);
        cr_expect_eq(c.cut.blocks, multiply(c.cut.units, c.cut.chunks, c.cut.splits, 1));
        cr_expect_eq(c.cut.units, multiply(batch, heads, c.cut.row_tiles, 1));
      } else if (p.arrays) {
        // The worst case: every sequence but one is a single row past a tile's end.
        const int64_t tail = batch < r.p.total_q ? batch : r.p.total_q;
        int64_t tiles = tail, rest = r.p.total_q - tail;
        const int64_t full = r.p.seq_q > 0 ? (r.p.seq_q - 1) / row->tile_q : 0;
        for (int64_t b = 0; b < tail; ++b) {
          const int64_t more = rest / row->tile_q < full ? rest / row->tile_q : full;
          tiles += more;
          rest -= more * row->tile_q;
        }
        cr_expect_geq(c.cut.tiles, tiles, "%d tiles, %d needed: %s", static_cast<int>(c.cut.tiles),
                      static_cast<int>(tiles), row->name);
        expect_blocks(*row, c.cut, multiply(c.cut.tiles, c.cut.chunks, p.heads_q, 1));
      } else {
        cr_expect_geq(c.cut.tiles * static_cast<int64_t>(row->tile_q), r.p.seq_q);
        expect_blocks(*row, c.cut, multiply(c.cut.tiles, c.cut.chunks, p.heads_q, batch));
      }
      cr_expect(row->family == Family::kSplit || c.cut.deal.cut_keys > 0 || c.estimate.workspace == 0);
    }
  }
}

Test(cuda_select, launches_have_a_largest_size) {
  tsr_problem p = problem_of(65535, 32767, 32767, 4096, 64, 64, 64);
  expect_refused(h200, p, "a launch has 2147483647 at most");
}

// Few queries against many keys: only parts of the keys make enough blocks, and query heads of a group
// share what is read. With many queries, or enough sequences of one head each, forward is as good.
Test(cuda_select, short_queries_take_split_rows) {
  for (const DeviceFacts &device : kDevices)
    for (int64_t dim : {64, 128}) {
      expect_row(device, problem_of(1, 8, 1, 1, 8192, dim, dim), "_split_");
      expect_row(device, problem_of(1, 32, 8, 1, 131072, dim, dim), "_split_");
      expect_row(device, problem_of(64, 32, 8, 1, 8192, dim, dim), "_split_");
      expect_row(device, problem_of(4, 32, 8, 2, 16384, dim, dim, TSR_DTYPE_F16), "_split_");
      for (int64_t sq : {1024, 8192}) {
        const Winner w = select(device, problem_of(4, 32, 8, sq, sq, dim, dim));
        cr_assert_not_null(w.row);
        cr_expect_neq(w.row->family, Family::kSplit, "%s for %d queries", w.row->name, static_cast<int>(sq));
      }
      // Parts fill the device, and no more than there are tiles.
      const Winner one = select(device, problem_of(1, 8, 1, 1, 65536, dim, dim));
      cr_expect_geq(one.choice.cut.blocks, device.processors / 2);
      cr_expect_leq(one.choice.cut.splits, 65536 / one.row->tile_k);
      // What is full already is not cut further.
      cr_expect_leq(select(device, problem_of(512, 32, 8, 1, 2048, dim, dim)).choice.cut.splits, 2);
    }
}

// What was fastest where it was measured: a block on nearly every multiprocessor, and never a few blocks more
// than one round of them.
Test(cuda_select, decode_parts_are_those_measured) {
  const struct {
    int64_t batch, keys, splits, tile_k;
  } shapes[] = {{1, 16384, 16, 128}, {1, 131072, 16, 128}, {16, 8192, 1, 128}, {64, 4096, 1, 64},
                {128, 8192, 1, 64},  {8, 16384, 2, 128},   {4, 8192, 4, 128}};
  for (const auto &shape : shapes) {
    const Winner w = select(h200, problem_of(shape.batch, 32, 8, 1, shape.keys, 128, 128));
    cr_assert_not_null(w.row);
    cr_expect(w.row->family == Family::kSplit && w.row->tile_k == shape.tile_k, "%lld x %lld: %s",
              static_cast<long long>(shape.batch), static_cast<long long>(shape.keys), w.row->name);
    cr_expect_eq(w.choice.cut.splits, shape.splits, "%lld x %lld: %d parts",
                 static_cast<long long>(shape.batch), static_cast<long long>(shape.keys),
                 static_cast<int>(w.choice.cut.splits));
  }
}

// With batch_invariant neither the batch nor padding may change the row, nor where keys are cut.
void expect_one_row(const DeviceFacts &device, tsr_dtype dtype, int64_t dim, tsr_causal causal) {
  tsr_problem p = problem_of(1, 8, 2, 1, 300, dim, dim, dtype);
  p.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
  p.causal = causal;
  const Winner first = select(device, p);
  cr_assert_not_null(first.row);
  tsr_problem paged = p;
  paged.arrays = TSR_ARRAY_USED_K;
  paged.page_size = 16, paged.max_pages = 19, paged.num_pages = 40, paged.seq_k = 0;
  cr_expect_eq(select(device, paged).row, first.row, "keys in pages");
  for (int64_t batch : {1, 3, 64, 500})
    for (int64_t sq : {1, 7, 65, 100, 4000})
      for (int64_t sk : {1, 70, 300, 70000}) {
        p.batch = batch, p.seq_q = sq, p.seq_k = sk;
        const Winner w = select(device, p);
        cr_assert_eq(w.row, first.row, "%s for %lld x %lld x %lld, %s before", w.row->name,
                     static_cast<long long>(batch), static_cast<long long>(sq),
                     static_cast<long long>(sk), first.row->name);
        cr_expect_eq(w.choice.cut.part_keys, first.choice.cut.part_keys);
      }
}

Test(cuda_select, batch_invariant_choice_is_of_the_shape_alone) {
  for (const DeviceFacts &device : kDevices)
    for (tsr_dtype dtype : {TSR_DTYPE_F32, TSR_DTYPE_F16})
      for (int64_t dim : {40, 64, 128})
        for (tsr_causal causal : {TSR_CAUSAL_NONE, TSR_CAUSAL_BOTTOM_RIGHT})
          expect_one_row(device, dtype, dim, causal);
}

// Blocks that stay: their lists of work have an end, and what does not fit makes whole rounds of blocks.
Test(cuda_select, blocks_that_stay_come_in_whole_rounds) {
  for (int64_t sq : {512, 4096, 8192, 16384, 32768, 131072})
    for (int64_t dim : {64, 128, 256}) {
      const tsr_resolved r = resolve(problem_of(1, 64, 8, sq, sq, dim, dim));
      const Row *row;
      for (int32_t i = 0; (row = tessera::cuda::row_at(i)) != nullptr; ++i) {
        Choice c;
        tsr_reason why = {};
        if (row->family != Family::kEngineForward || !tessera::cuda::select_row(h200, *row, r, &c, &why)) continue;
        const int64_t held = static_cast<int64_t>(h200.processors) * row->engine.blocks;
        const int64_t pairs = 64 * ((c.cut.tiles + 1) / 2);
        cr_expect(c.cut.blocks % held == 0 || c.cut.blocks == 2 * pairs, "%s: %lld blocks", row->name,
                  static_cast<long long>(c.cut.blocks));
        cr_expect_leq(2 * ((pairs + c.cut.blocks - 1) / c.cut.blocks), row->engine.items, "%s", row->name);
      }
    }
}

// What does not fill a last round of blocks that stay: cut along the keys where all rows see all of them, otherwise dealt
// out in order of length, if that shares it out better and the keys of the heads concerned stay in L2.
Test(cuda_select, last_tiles_are_cut_or_in_order) {
  const auto of = [](const tsr_problem &p, const char *kernel) {
    const tsr_resolved r = resolve(p);
    const Row *row;
    Choice c = {};
    tsr_reason why = {};
    for (int32_t i = 0; (row = tessera::cuda::row_at(i)) != nullptr; ++i)
      if (std::strcmp(row->name, kernel) == 0) break;
    cr_assert_not_null(row, "%s", kernel);
    cr_assert(tessera::cuda::select_row(h200, *row, r, &c, &why), "%s", why.text);
    return c;
  };
  const char *kernel = "fwd_bf16_d128_edge__sm90_128x176";
  tsr_problem p = problem_of(4, 16, 16, 4096, 4096, 128, 128);
  Choice c = of(p, kernel); // 2048 tiles, 15 rounds and 68 more
  cr_expect_eq(c.cut.deal.cut_tiles, 68);
  cr_expect_eq(c.cut.deal.cut_keys, 24);
  cr_expect_eq(c.cut.deal.cut_each, 13);
  cr_expect_gt(c.estimate.workspace, 200u * 128 * 128 * 4);
  c = of(problem_of(4, 33, 33, 4096, 4096, 128, 128), kernel); // 32 rounds
  cr_expect_eq(c.cut.deal.cut_keys, 0);
  c = of(problem_of(16, 16, 16, 1024, 1024, 128, 128), kernel); // nothing to gain
  cr_expect_eq(c.cut.deal.cut_keys, 0);
  // An odd number of tiles leaves no gaps among those of the last round.
  c = of(problem_of(4, 15, 15, 4096 + 1, 4096, 128, 128), kernel);
  cr_expect_eq(c.cut.deal.cut_tiles, 54); // of 96 pairs behind 7 rounds, 6 of them single tiles
  cr_expect_eq(c.cut.deal.back, 0);
  p = problem_of(1, 16, 16, 16384, 16384, 128, 128);
  p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  c = of(p, kernel);
  cr_expect_eq(c.cut.deal.cut_keys, 0);
  cr_expect_geq(c.cut.deal.back, 0);
  cr_expect_gt(c.cut.deal.gain, 1.01);
  p = problem_of(1, 16, 16, 131072, 131072, 128, 128); // 64 MB of keys and values a head
  p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  cr_expect_eq(of(p, kernel).cut.deal.back, -1);
  // A row for short problems does neither.
  c = of(problem_of(4, 16, 16, 4096, 4096, 128, 128), "fwd_bf16_d128_edge__sm90_128x128");
  cr_expect_eq(c.cut.deal.cut_keys, 0);
}

// Tiles of several heads take turns where a mask makes rows differ and a head has few of them: as many as fill the
// device, while half of L2 holds their keys and values.
Test(cuda_select, heads_take_turns_where_rows_differ) {
  for (int64_t sq : {512, 4096, 16384, 131072})
    for (tsr_causal causal : {TSR_CAUSAL_NONE, TSR_CAUSAL_BOTTOM_RIGHT}) {
      tsr_problem p = problem_of(1, 256, 128, sq, sq, 256, 256);
      p.causal = causal;
      const tsr_resolved r = resolve(p);
      const Row *row;
      for (int32_t i = 0; (row = tessera::cuda::row_at(i)) != nullptr; ++i) {
        Choice c;
        tsr_reason why = {};
        if (row->family != Family::kForward || !tessera::cuda::select_row(h200, *row, r, &c, &why)) continue;
        if (causal == TSR_CAUSAL_NONE) {
          cr_expect_eq(c.cut.turns, 1, "%s", row->name);
          continue;
        }
        const int64_t turns = c.cut.turns, blocks = turns * c.cut.tiles, wanted = 2 * h200.processors;
        cr_expect(turns == 1 || turns / 2 * sq * 512 * 2 <= h200.l2_bytes / 2, "%s", row->name);
        cr_expect(turns == 1 || blocks - c.cut.tiles < wanted, "%s", row->name);
        if (sq == 512) cr_expect_geq(blocks, wanted, "%s", row->name);
        if (sq >= 4096) cr_expect_eq(turns, 1, "%s", row->name);
      }
    }
}

Test(cuda_select, empty_problems_need_no_block) {
  for (int which = 0; which < 3; ++which) {
    tsr_problem p = problem_of(which == 0 ? 0 : 2, which == 1 ? 0 : 4, which == 1 ? 0 : 2,
                               which == 2 ? 0 : 5, 7, 64, 64);
    const Winner w = select(h200, p);
    cr_assert_not_null(w.row, "%s", w.refusals.c_str());
    cr_expect_eq(w.choice.cut.blocks, 0);
    cr_expect_eq(w.choice.estimate.workspace, 0u);
  }
  // No keys: O = 0 still has to be written.
  cr_expect_gt(select(h200, problem_of(2, 4, 2, 5, 0, 64, 64)).choice.cut.blocks, 0);
}

// The model is no clock, but large problems must come out near what the hardware can do.
Test(cuda_select, estimates_are_of_the_right_size) {
  const tsr_problem p = problem_of(4, 32, 32, 8192, 8192, 128, 128);
  for (const DeviceFacts &device : kDevices) {
    const Winner w = select(device, p);
    if (!w.row) continue;
    const double peak = tessera::cuda::unit_flops(device.arch, TSR_DTYPE_BF16) * device.clock *
                        device.processors;
    const double reached = w.choice.estimate.flops / w.choice.estimate.seconds / peak;
    cr_expect(reached > 0.2 && reached < 1, "%s: %g of the peak", device.name, reached);
    tsr_problem causal = p;
    causal.causal = TSR_CAUSAL_TOP_LEFT;
    const double half = select(device, causal).choice.estimate.seconds / w.choice.estimate.seconds;
    cr_expect(half > 0.4 && half < 0.75, "%s: causal takes %g", device.name, half);
  }
}

} // namespace
