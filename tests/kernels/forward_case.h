// SPDX-License-Identifier: Apache-2.0
//
// Small forward problems for tile programs that are run without a backend: the arguments of the kernel, the
// tensors behind them, exactly as large as they have to be, and what the double-precision oracle makes of
// them.
#ifndef TESSERA_TESTS_KERNELS_FORWARD_CASE_H_
#define TESSERA_TESTS_KERNELS_FORWARD_CASE_H_

#include <math.h>
#include <string.h>

#include <memory>

#include "common/dropout.h"
#include "common/gpu/arguments.hpp"

extern "C" {
#include "common/reference/attention_ref.h"
}

namespace tessera {
namespace gpu {
namespace {

// Uniform in [-1, 1), a function of (stream, index) alone.
float uniform_at(uint64_t stream, uint64_t index) {
  uint64_t x = (stream << 40) + index + 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

// A tensor of exactly the bytes that its layout reaches, on a boundary of 16 bytes.
struct Tensor {
  std::unique_ptr<unsigned char[]> memory;
  int64_t elements = 0;
  void *data() const { return memory.get(); }

  // seq rows of columns elements, `pad` elements more than a row between rows.
  void make(tsr_layout *layout, tsr_dtype dtype, int64_t batch, int64_t heads, int64_t seq,
            int64_t columns, int64_t pad) {
    layout->dtype = dtype;
    layout->order = TSR_ORDER_STRIDED;
    layout->stride[3] = 1;
    layout->stride[1] = columns + pad; // [B, S, H, D]
    layout->stride[2] = heads * layout->stride[1];
    layout->stride[0] = seq * layout->stride[2];
    layout->alignment = pad % 8 ? tsri_dtype_bytes(dtype) : 16;
    elements = batch * layout->stride[0] - pad;
    memory.reset(new unsigned char[static_cast<size_t>(elements * tsri_dtype_bytes(dtype))]);
    memset(memory.get(), 0xff, static_cast<size_t>(elements * tsri_dtype_bytes(dtype)));
  }
  void fill(tsr_dtype dtype, uint64_t stream) {
    for (int64_t i = 0; i < elements; ++i)
      tsri_store_f32(dtype, data(), i, uniform_at(stream, static_cast<uint64_t>(i)));
  }
};

struct Case {
  const char *name;
  int64_t batch, heads, heads_kv, sq, sk, dqk, dv, pad;
  bool causal, sink, lengths, out_f32, scores; // scores: softcap, bias, ALiBi, mask, dropout, row maxima
};

const Case kEdgeCases[] = {
    {"full", 1, 2, 2, 70, 97, 64, 64, 0, false, false, false, false, false},
    {"one query", 1, 1, 1, 1, 33, 64, 64, 0, false, false, false, false, false},
    {"causal, short rows", 1, 2, 1, 90, 130, 40, 48, 0, true, false, false, false, false},
    {"causal, rows without keys", 1, 1, 1, 100, 41, 64, 64, 0, true, false, false, false, false},
    {"lengths, sinks, two chunks of columns", 2, 2, 1, 67, 70, 64, 96, 0, true, true, true, false, false},
    {"float32 out", 1, 1, 1, 70, 64, 64, 56, 0, false, true, false, true, false},
};
const Case kAnyCases[] = {
    {"all score steps", 2, 2, 1, 70, 75, 64, 64, 8, true, true, true, false, true},
    {"all score steps, odd strides", 1, 2, 1, 37, 50, 33, 61, 3, true, false, false, false, true},
    {"odd strides", 1, 1, 1, 66, 40, 63, 64, 1, false, true, false, true, false},
};

// Everything of one run; `wanted` of the oracle, the others of the tile program.
struct Run {
  ForwardArgs args = {};
  Tensor q, k, v, o, o_wanted, lse, lse_wanted, top, top_wanted, bias, mask;
  int32_t used[4] = {};
  float sink[8], slopes[8];

  Run(const Case &c, tsr_dtype dtype) {
    tsr_problem &p = args.call.p;
    tsr_args &a = args.call.a;
    p.struct_size = sizeof p;
    p.passes = TSR_PASS_FORWARD;
    p.index_dtype = TSR_DTYPE_I32;
    p.batch = c.batch, p.heads_q = c.heads, p.heads_kv = c.heads_kv;
    p.seq_q = c.sq, p.seq_k = c.sk, p.dim_qk = c.dqk, p.dim_v = c.dv;
    p.scale = 2.0f / sqrtf(static_cast<float>(c.dqk));
    const tsr_dtype out = c.out_f32 ? TSR_DTYPE_F32 : dtype;
    q.make(&p.q, dtype, c.batch, c.heads, c.sq, c.dqk, c.pad);
    k.make(&p.k, dtype, c.batch, c.heads_kv, c.sk, c.dqk, c.pad);
    v.make(&p.v, dtype, c.batch, c.heads_kv, c.sk, c.dv, c.pad);
    o_wanted.make(&p.o, out, c.batch, c.heads, c.sq, c.dv, c.pad);
    o.make(&p.o, out, c.batch, c.heads, c.sq, c.dv, c.pad);
    lse_wanted.make(&p.lse, TSR_DTYPE_F32, c.batch, c.heads, c.sq, 1, 0);
    lse.make(&p.lse, TSR_DTYPE_F32, c.batch, c.heads, c.sq, 1, 0);
    q.fill(dtype, 1), k.fill(dtype, 2), v.fill(dtype, 3);
    a.q = q.data(), a.k = k.data(), a.v = v.data();
    if (c.causal) {
      p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
      p.window.left = c.scores ? 20 : TSR_UNBOUNDED;
      p.prefix = c.scores ? 5 : 0;
    }
    if (c.lengths) {
      p.arrays = TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_Q;
      used[0] = static_cast<int32_t>(c.sk - 9), used[1] = 0; // the second sequence has no keys
      used[2] = 3, used[3] = static_cast<int32_t>(c.sq - 1);
      a.used_k = used, a.left_pad_q = used + 2;
    }
    if (c.sink) {
      p.sink = 1;
      for (uint64_t i = 0; i < 8; ++i) sink[i] = 2 * uniform_at(4, i);
      a.sink = sink;
    }
    if (c.scores) add_score_steps(c);
    args.call.group = static_cast<int32_t>(c.heads / c.heads_kv);
    args.call.keep_scale = 1.0f / (1.0f - p.dropout);
    args.call.drop_threshold = tsri_dropout_threshold(p.dropout);
    args.call.vector = vector_bits(p);
  }

  void add_score_steps(const Case &c) {
    tsr_problem &p = args.call.p;
    tsr_args &a = args.call.a;
    p.softcap = 3.0f;
    p.dropout = 0.25f;
    a.seed = 77, a.offset = 5;
    // Axes [B, H, Sq, Sk] as a tensor of rows: every head its own bias, all share one mask.
    bias.make(&p.bias, TSR_DTYPE_F32, c.batch, c.heads, c.sq, c.sk, 0);
    bias.fill(TSR_DTYPE_F32, 5);
    a.bias = bias.data();
    mask.make(&p.mask, TSR_DTYPE_U8, 1, 1, c.sq, c.sk, 0);
    p.mask.stride[0] = p.mask.stride[1] = 0;
    for (int64_t i = 0; i < mask.elements; ++i)
      mask.memory[static_cast<size_t>(i)] = uniform_at(6, static_cast<uint64_t>(i)) < 0.6f;
    a.mask = mask.data();
    p.alibi = TSR_ALIBI_PER_HEAD;
    for (uint64_t i = 0; i < 8; ++i) slopes[i] = 0.05f + 0.05f * uniform_at(7, i);
    a.alibi = slopes;
    top_wanted.make(&p.max_logit, TSR_DTYPE_F32, c.batch, c.heads, c.sq, 1, 0);
    top.make(&p.max_logit, TSR_DTYPE_F32, c.batch, c.heads, c.sq, 1, 0);
  }

  void ask_oracle() {
    tsr_resolved r = {};
    r.p = args.call.p;
    r.group = args.call.group;
    r.drop_threshold = args.call.drop_threshold;
    r.keep_scale = args.call.keep_scale;
    tsr_args a = args.call.a;
    a.o = o_wanted.data(), a.lse = static_cast<float *>(lse_wanted.data());
    a.max_logit = static_cast<float *>(top_wanted.data());
    const tsri_ref_memory memory = tsri_ref_forward_memory(&r);
    const size_t bytes = static_cast<size_t>(memory.shared + memory.worker) + 64;
    std::unique_ptr<double[]> workspace(new double[bytes / 8 + 9]);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace.get()) + 63) / 64 * 64;
    tsri_ref_call call;
    tsri_ref_call_init(&call, &r, &a, reinterpret_cast<void *>(at), memory);
    const tsri_ref_phase &phase = tsri_ref_forward_phases[0];
    for (int64_t i = 0; i < phase.count(&call); ++i) phase.task(&call, i, 0);
  }

  // Largest difference of two tensors with the same layout; huge where one is a NaN or infinity and
  // the other is not the same. Elements between the rows must not have been written.
  static double distance(const Tensor &found, const Tensor &wanted, tsr_dtype dtype) {
    double worst = 0;
    for (int64_t i = 0; i < found.elements; ++i) {
      const double x = tsri_load_f32(dtype, found.data(), i), y = tsri_load_f32(dtype, wanted.data(), i);
      const double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y);
      worst = d <= worst ? worst : isnan(d) ? HUGE_VAL : d;
    }
    return worst;
  }
};

} // namespace
} // namespace gpu
} // namespace tessera

#endif // TESSERA_TESTS_KERNELS_FORWARD_CASE_H_
