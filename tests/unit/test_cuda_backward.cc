// SPDX-License-Identifier: Apache-2.0
//
// Selection of the CUDA backend's backward rows without a device: which row takes a problem, which
// launches it needs and how they are cut, what workspace they share. Nothing is launched.
#include <algorithm>

#include "cuda_problems.h"

namespace {

using namespace cuda_problems;
using tessera::cuda::BackwardCut;

tsr_problem backward_of(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t sq, int64_t sk,
                        int64_t dim_qk, int64_t dim_v, tsr_dtype dtype = TSR_DTYPE_BF16,
                        int64_t alignment = 16) {
  tsr_problem p = problem_of(batch, heads_q, heads_kv, sq, sk, dim_qk, dim_v, dtype, alignment);
  p.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  p.lse = layout_of(TSR_DTYPE_F32, 0);
  p.dout = p.dq = p.dk = p.dv = layout_of(dtype, alignment);
  return p;
}

Winner choose(const DeviceFacts &facts, const tsr_problem &p) {
  return select(facts, p, TSR_PASS_BACKWARD);
}

void expect_backward(const DeviceFacts &facts, const tsr_problem &p, const char *part) {
  expect_row(facts, p, part, TSR_PASS_BACKWARD);
}

const BackwardCut &cut_of(const Winner &w) {
  cr_assert_not_null(w.row, "%s", w.refusals.c_str());
  return w.choice.cut.backward;
}

Test(cuda_backward, mask_classes) {
  tsr_problem p = backward_of(8, 16, 8, 2048, 2048, 64, 64);
  expect_backward(h200, p, "bwd_bf16_d64_edge_");
  p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  p.sink = 1, p.dsink = 1;
  p.dlse = layout_of(TSR_DTYPE_F32, 0);
  expect_backward(h200, p, "_edge_");
  const struct {
    const char *text;
    void (*change)(tsr_problem *);
  } changes[] = {
      {"a prefix", [](tsr_problem *q) { q->prefix = 3; }},
      {"a softcap", [](tsr_problem *q) { q->softcap = 20; }},
      {"dropout", [](tsr_problem *q) { q->dropout = 0.5f; }},
      {"accumulation into gradients", [](tsr_problem *q) { q->accumulate = TSR_ACCUMULATE_DK; }},
      {"a bias", [](tsr_problem *q) { q->bias = layout_of(TSR_DTYPE_F32, 0); }},
      {"dout has rows", [](tsr_problem *q) { q->dout.alignment = 4; }},
      {"dk has rows", [](tsr_problem *q) { q->dk.alignment = 8; }},
      {"dv has rows", [](tsr_problem *q) { q->dv.alignment = 2; }},
      {"dq has rows", [](tsr_problem *q) { q->dq.alignment = 2; }},
  };
  for (const auto &change : changes) {
    tsr_problem changed = p;
    change.change(&changed);
    const Winner w = choose(h200, changed);
    cr_assert_not_null(w.row, "%s: %s", change.text, w.refusals.c_str());
    cr_expect(std::strstr(w.row->name, "_any_") != nullptr, "%s: %s", change.text, w.row->name);
    cr_expect(w.refusals.find(change.text) != std::string::npos, "no '%s' in\n%s", change.text,
              w.refusals.c_str());
  }
}

// Rows of the copy engine are for exactly their capability.
Test(cuda_backward, copy_engine) {
  DeviceFacts next = h200;
  next.arch = 100;
  for (int64_t dim : {64, 128, 256}) {
    tsr_problem p = backward_of(2, 8, 8, 8192, 8192, dim, dim);
    expect_backward(h200, p, "__sm90_");
    expect_backward(next, p, "__sm80_");
    p.o.dtype = p.dout.dtype = TSR_DTYPE_F32; // converted before the engine looks for it
    const Winner w = choose(h200, p);
    const BackwardCut &cut = cut_of(w);
    cr_expect(std::strstr(w.row->name, "__sm90_") && cut.converts, "%s", w.row->name);
    // Sums of whole chunks, also beyond the last column; wide rows make dQ apart.
    cr_expect_eq(cut.sums, dim < 256);
    cr_expect_eq(cut.dq_chunks * int64_t{cut.dq_columns}, dim);
    // Of whole tiles of queries.
    const int64_t tiles = (p.seq_q + w.row->tile_q - 1) / w.row->tile_q;
    const int64_t heads = cut.ring ? cut.ring : p.batch * p.heads_q;
    cr_expect_eq(cut.dq_floats, heads * tiles * w.row->tile_q * dim);
    cr_expect(cut.sums ? w.row->entry[tessera::cuda::kEntryMain].function != nullptr
                       : cut.queries.blocks > 0);
    cr_expect_not_null(w.row->entry[tessera::cuda::kEntryKeys].function);
  }
}

// Sums are of the heads under way alone where the main kernel turns them into dQ; fewer than those side by side and two
// more could make blocks wait for each other.
Test(cuda_backward, sums_of_some_heads) {
  for (int64_t dim : {64, 128})
    for (int64_t length : {257, 1024, 4096}) {
      const tsr_problem p = backward_of(16, 64, 16, length, length, dim, dim);
      const Winner w = choose(h200, p);
      const BackwardCut &cut = cut_of(w);
      cr_expect(std::strstr(w.row->name, "__sm90_") && cut.sums, "%s", w.row->name);
      cr_expect_eq(cut.sets, 16 * 16);
      cr_expect_eq(cut.set_tiles, 4 * ((length + w.row->tile_q - 1) / w.row->tile_q));
      cr_expect(cut.ring >= std::max(cut.together, cut.last) + 2 || cut.ring == cut.sets, "%d of %d", cut.ring,
                cut.sets);
      cr_expect_leq(cut.ring, cut.sets);
      cr_expect_eq(cut.dq_floats, int64_t{cut.ring} * cut.set_tiles * w.row->tile_q * dim);
      for (int i = 0; i < 4; ++i) { // what the kernel cannot write
        tsr_problem q = p;
        if (i == 0) q.dq.dtype = TSR_DTYPE_F32;
        if (i == 1) q.accumulate = TSR_ACCUMULATE_DQ;
        if (i == 2) q.arrays = TSR_ARRAY_USED_Q;
        if (i == 3) q.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
        cr_expect_eq(cut_of(choose(h200, q)).ring, 0, "%d", i);
      }
    }
  // Deterministic: there is a word for every tile of queries of a head, and heads side by side keep apart tiles of keys that
  // follow each other. Batch-invariant results may not depend on where tiles of keys begin: dQ is made apart.
  for (int64_t dim : {64, 128})
    for (int64_t length : {256, 1024, 4096}) {
      tsr_problem p = backward_of(4, 16, 16, length, length, dim, dim);
      const BackwardCut any = cut_of(choose(h200, p));
      p.determinism = TSR_DETERMINISM_DETERMINISTIC;
      const Winner w = choose(h200, p);
      const BackwardCut &cut = cut_of(w);
      cr_expect(std::strstr(w.row->name, "__sm90_") && cut.sums && !any.ordered, "%s", w.row->name);
      cr_expect_eq(cut.passed, 4 * 16 * ((length + w.row->tile_q - 1) / w.row->tile_q));
      cr_expect_eq(cut.queries.blocks, 0);
      cr_expect_geq(cut.together, any.together);
      cr_expect(cut.ring == 0 || cut.ring >= std::max(cut.together, cut.last) + 2 || cut.ring == cut.sets, "%d of %d",
                cut.ring, cut.sets);
      p.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
      const BackwardCut apart = cut_of(choose(h200, p));
      cr_expect(!apart.ordered && !apart.sums && apart.queries.blocks > 0);
    }
  // Under a mask sections overlap, and tiles of long heads that are told of late take more heads between them.
  for (int64_t length : {2048, 4096}) {
    tsr_problem p = backward_of(16384 / length, 16, 16, length, length, 128, 128);
    p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
    p.determinism = TSR_DETERMINISM_DETERMINISTIC;
    const BackwardCut cut = cut_of(choose(h200, p));
    cr_expect(cut.lag < cut.keys.tiles, "%d", cut.lag);
    cr_expect_eq(cut.together, length == 4096 ? 8 : 9, "%d", cut.together);
  }
  // Two tiles of keys are too few to hide the work behind.
  cr_expect_eq(cut_of(choose(h200, backward_of(16, 64, 16, 256, 256, 64, 64))).ring, 0);
}

// Where one tile of keys is all that a head has, dQ is written without sums; blocks are no more than processors.
Test(cuda_backward, one_tile_of_keys) {
  for (int64_t dim : {64, 128}) {
    tsr_problem p = backward_of(8, 64, 64, 300, 128, dim, dim);
    Winner w = choose(h200, p);
    BackwardCut cut = cut_of(w);
    cr_expect(std::strstr(w.row->name, "__sm90_") && cut.direct && !cut.sums, "%s", w.row->name);
    cr_expect_eq(cut.queries.blocks, 0);
    cr_expect_eq(cut.dq_floats, 8 * 64 * ((300 + w.row->tile_q - 1) / w.row->tile_q) * w.row->tile_q * dim);
    cr_expect_eq(cut.keys.blocks, 8 * 64);
    cr_expect_eq(cut.key_blocks, h200.processors);
    cr_expect_lt(w.choice.estimate.workspace, size_t{8 * 64 * 300 * 32});
    p.determinism = TSR_DETERMINISM_DETERMINISTIC; // nothing depends on an order
    cr_expect(cut_of(choose(h200, p)).direct);
    p.determinism = TSR_DETERMINISM_BATCH_INVARIANT; // nor may anything depend on sizes
    cr_expect(!cut_of(choose(h200, p)).direct);
    p = backward_of(8, 64, 64, 300, 129, dim, dim);
    cr_expect(!cut_of(choose(h200, p)).direct);
    p = backward_of(8, 64, 64, 300, 128, dim, dim); // rows that are no query's
    p.arrays = TSR_ARRAY_USED_Q;
    cr_expect(!cut_of(choose(h200, p)).direct);
  }
  // Wide heads have no such kernel.
  cr_expect(!cut_of(choose(h200, backward_of(8, 64, 64, 300, 128, 256, 256))).direct);
}

Test(cuda_backward, refusals_say_what_was_found) {
  tsr_problem p = backward_of(1, 1, 1, 64, 64, 64, 300);
  cr_expect(choose(h200, p).refusals.find("dim_v is 300; this kernel takes up to 256") !=
            std::string::npos);
  DeviceFacts small = h200;
  small.shared_per_block = 1024;
  p = backward_of(1, 1, 1, 64, 64, 64, 64);
  expect_refused(small, p, "H200 has 1024", TSR_PASS_BACKWARD);
  p = backward_of(65535, 32767, 32767, 64, 4096, 64, 64);
  expect_refused(h200, p, "a launch has 2147483647 at most", TSR_PASS_BACKWARD);
}

// Every legal head dimension, dtype and alignment has a row on every device that rows exist for.
Test(cuda_backward, every_dimension_is_taken) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  for (const DeviceFacts &device : kDevices) {
    const bool large = device.shared_per_block >= 160 << 10;
    for (tsr_dtype dtype : dtypes)
      for (int64_t d = 1; d <= (large ? 576 : 128); d += d < 32 ? 1 : 17)
        for (int64_t alignment : {0, 16}) {
          // float32 tiles of wide rows do not fit every device.
          if (dtype == TSR_DTYPE_F32 && d > 256 && device.shared_per_block < 220 << 10) continue;
          const Winner w = choose(
              device, backward_of(1, 4, 2, 70, 90, d, d > 512 ? 512 : d, dtype, alignment));
          cr_expect_not_null(w.row, "%s, dim %d, dtype %d:\n%s", device.name,
                             static_cast<int>(d), static_cast<int>(dtype), w.refusals.c_str());
        }
  }
}

// Only what was asked for is launched, and dQ by sums only where their order may vary.
Test(cuda_backward, launches_that_are_needed) {
  tsr_problem p = backward_of(2, 4, 2, 2048, 2048, 64, 64);
  Winner w = choose(h200, p);
  BackwardCut cut = cut_of(w);
  cr_expect(cut.sums && !cut.converts && !cut.stats_always);
  cr_expect_eq(cut.keys.blocks, cut.keys.tiles * cut.keys.chunks * int64_t{2 * 2});
  cr_expect_eq(cut.queries.blocks, 0);
  cr_expect_eq(cut.bias_blocks, 0);
  cr_expect_geq(w.choice.estimate.workspace, size_t{2 * 4 * 2048 * (16 + 64 * 4)});

  p.dq = layout_of(TSR_DTYPE_NONE, 0); // dK and dV alone
  cut = cut_of(choose(h200, p));
  cr_expect(!cut.sums && cut.keys.blocks > 0 && cut.queries.blocks == 0);

  p.dq = p.dk;
  p.dk = p.dv = layout_of(TSR_DTYPE_NONE, 0); // dQ alone
  cut = cut_of(choose(h200, p));
  cr_expect(!cut.sums && cut.keys.blocks == 0 && cut.queries.blocks > 0);

  for (tsr_determinism level : {TSR_DETERMINISM_DETERMINISTIC, TSR_DETERMINISM_BATCH_INVARIANT}) {
    p = backward_of(2, 4, 2, 2048, 2048, 64, 64);
    p.determinism = level;
    w = choose(h200, p);
    cut = cut_of(w);
    cr_expect(!cut.sums && cut.keys.blocks > 0 && cut.queries.blocks > 0);
    cr_expect_eq(cut.stats_always, level == TSR_DETERMINISM_BATCH_INVARIANT);
    cr_expect_lt(w.choice.estimate.workspace, size_t{2 * 4 * 2048 * 32});
  }

  p = backward_of(2, 4, 2, 2048, 2048, 64, 64);
  p.o.dtype = p.dout.dtype = TSR_DTYPE_F32; // beside 16-bit q
  cut = cut_of(choose(h200, p));
  cr_expect(cut.converts);
}

Test(cuda_backward, statistics_are_found_where_rounding_shows) {
  cr_expect(cut_of(choose(h200, backward_of(2, 4, 4, 2048, 96, 64, 64))).stats_always);
  cr_expect(cut_of(choose(h200, backward_of(2, 4, 4, 63, 4096, 64, 64))).stats_always);
  cr_expect(!cut_of(choose(h200, backward_of(2, 8, 4, 32, 4096, 64, 64))).stats_always);
  cr_expect(cut_of(choose(h200, backward_of(2, 4, 4, 2048, 512, 64, 64, TSR_DTYPE_F32))).stats_always);
  cr_expect(!cut_of(choose(h200, backward_of(2, 4, 4, 2048, 4096, 64, 64, TSR_DTYPE_F32))).stats_always);
}

Test(cuda_backward, float32_by_two_planes_where_dq_has_sums) {
  const auto halves = [](const DeviceFacts &facts, const tsr_problem &p) {
    const Winner w = choose(facts, p);
    cr_assert_not_null(w.row, "%s", w.refusals.c_str());
    return std::strstr(w.row->name, "_halves_") != nullptr;
  };
  for (int64_t d : {64, 128})
    for (int64_t n : {1024, 4096}) {
      tsr_problem p = backward_of(4, 16, 16, n, n, d, d, TSR_DTYPE_F32);
      cr_expect(halves(h200, p), "D %d, N %d", static_cast<int>(d), static_cast<int>(n));
      if (d == 128) cr_expect_not(halves(kDevices[1], p)); // less shared memory
      tsr_problem q = p;
      q.causal = TSR_CAUSAL_TOP_LEFT;
      cr_expect(halves(h200, q));
      q = p;
      q.determinism = TSR_DETERMINISM_DETERMINISTIC; // without sums
      cr_expect_not(halves(h200, q));
      q = p;
      q.dk = q.dv = tsr_layout{};
      cr_expect_not(halves(h200, q));
    }
}

// Units a block that begin while sums of one become dQ: more where units are short.
Test(cuda_backward, sums_of_short_units_have_more_room) {
  static const struct {
    int64_t n;
    bool causal;
    int units;
  } rows[] = {{4096, false, 5}, {1024, false, 5}, {1024, true, 7}, {512, false, 7}, {512, true, 12}};
  for (const auto &row : rows) {
    tsr_problem p = backward_of(16384 / row.n * 4, 16, 16, row.n, row.n, 128, 128);
    if (row.causal) p.causal = TSR_CAUSAL_TOP_LEFT;
    const BackwardCut cut = cut_of(choose(h200, p));
    const int64_t beside = std::max(cut.together, cut.last);
    const int64_t room = int64_t{row.units} * 132 / cut.keys.tiles + 1 + cut.together + beside;
    cr_expect_eq(cut.ring, std::min<int64_t>(room, cut.sets), "N %d: %d of %d", static_cast<int>(row.n), cut.ring, cut.sets);
  }
}

Test(cuda_backward, bias_gradient_has_a_tile_of_each_axis_that_bias_has) {
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    tsr_problem p = backward_of(3, 4, 2, 100, 150, 64, 64);
    p.bias = layout_of(TSR_DTYPE_F32, 0);
    p.bias.order = TSR_ORDER_STRIDED;
    const int64_t strides[4] = {4 * 100 * 150, 100 * 150, 150, 1};
    for (int axis = 0; axis < 4; ++axis)
      p.bias.stride[axis] = broadcast >> axis & 1 ? 0 : strides[axis];
    p.dbias = p.bias;
    const Winner w = choose(h200, p);
    const BackwardCut &cut = cut_of(w);
    const int64_t tile_q = w.row->backward.query_q, tile_k = w.row->backward.query_k;
    cr_expect_eq(cut.bias_tiles_q, broadcast & 4 ? 1 : (100 + tile_q - 1) / tile_q);
    cr_expect_eq(cut.bias_tiles_k, broadcast & 8 ? 1 : (150 + tile_k - 1) / tile_k);
    cr_expect_eq(cut.bias_blocks, (broadcast & 1 ? 1 : 3) * (broadcast & 2 ? 1 : 4) *
                                      int64_t{cut.bias_tiles_q} * cut.bias_tiles_k);
  }
}

Test(cuda_backward, empty_problems_still_write_what_is_there) {
  // No query: dK and dV are zeros. No key: dQ is.
  BackwardCut cut = cut_of(choose(h200, backward_of(2, 4, 2, 0, 70, 64, 64)));
  cr_expect(cut.row_blocks == 0 && cut.keys.blocks > 0);
  cut = cut_of(choose(h200, backward_of(2, 4, 2, 70, 0, 64, 64)));
  cr_expect(cut.row_blocks > 0 && cut.keys.blocks == 0 && cut.sums);
  cut = cut_of(choose(h200, backward_of(0, 4, 2, 70, 70, 64, 64)));
  cr_expect(cut.row_blocks == 0 && cut.keys.blocks == 0);
  tsr_problem p = backward_of(0, 4, 2, 300, 300, 64, 64); // packed: of no sequence, whatever rows there are
  p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  p.total_q = p.total_k = 900;
  cut = cut_of(choose(h200, p));
  cr_expect(cut.rows == 0 && cut.row_blocks == 0 && cut.stats.blocks == 0 && cut.stats_blocks == 0);
}

// Blocks cover all rows of packed sequences, wherever they end.
Test(cuda_backward, packed_cuts_cover_the_work) {
  tsr_problem p = backward_of(5, 4, 2, 300, 400, 64, 64);
  p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  p.total_q = 700, p.total_k = 900;
  const Winner w = choose(h200, p);
  const BackwardCut &cut = cut_of(w);
  // Four sequences of one row, and one of the rest.
  const int64_t tiles = 4 + (900 - 4 + w.row->tile_k - 1) / w.row->tile_k;
  cr_expect_geq(cut.keys.tiles, tiles < 5 ? 5 : tiles);
  cr_expect_eq(cut.keys.blocks, int64_t{cut.keys.tiles} * cut.keys.chunks * 2);
  cr_expect_eq(cut.rows, 4 * 700);
}

Test(cuda_backward, batch_invariant_choice_is_of_the_shape_alone) {
  tsr_problem p = backward_of(1, 8, 2, 64, 300, 128, 128);
  p.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
  const Winner first = choose(h200, p);
  cr_assert_not_null(first.row);
  for (int64_t batch : {1, 3, 64})
    for (int64_t sq : {1, 100, 4000})
      for (int64_t sk : {1, 300, 70000}) {
        p.batch = batch, p.seq_q = sq, p.seq_k = sk;
        const Winner w = choose(h200, p);
        cr_assert_eq(w.row, first.row, "%s, %s before", w.row->name, first.row->name);
        cr_expect(cut_of(w).stats_always && !cut_of(w).sums);
      }
}

Test(cuda_backward, estimates_are_of_the_right_size) {
  const tsr_problem p = backward_of(4, 32, 32, 8192, 8192, 128, 128);
  for (const DeviceFacts &device : kDevices) {
    const Winner w = choose(device, p);
    if (!w.row) continue;
    const double peak = tessera::cuda::unit_flops(device.arch, TSR_DTYPE_BF16) * device.clock *
                        device.processors;
    const double reached = w.choice.estimate.flops / w.choice.estimate.seconds / peak;
    cr_expect(reached > 0.15 && reached < 1, "%s: %g of the peak", device.name, reached);
    tsr_problem causal = p;
    causal.causal = TSR_CAUSAL_TOP_LEFT;
    const double half = choose(device, causal).choice.estimate.seconds / w.choice.estimate.seconds;
    cr_expect(half > 0.4 && half < 0.75, "%s: causal takes %g", device.name, half);
    tsr_problem exact = p;
    exact.determinism = TSR_DETERMINISM_DETERMINISTIC;
    cr_expect_gt(choose(device, exact).choice.estimate.seconds, w.choice.estimate.seconds);
  }
}

} // namespace
