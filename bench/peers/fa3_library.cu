// SPDX-License-Identifier: Apache-2.0
//
// FlashAttention-3 behind a C interface without PyTorch, for torch_sdpa.py --device cuda --fa3. It
// includes FlashAttention's launch templates from a checkout of its repository (folder `hopper`)
// and the CUTLASS that this pins; neither is part of Tessera. bfloat16 on compute capability 9.0,
// dense tensors [batch, heads, length, dim], as many heads of keys as of queries, gradients in any
// order of addition. An object has one head dimension of one pass, because each takes minutes to
// compile: FA3_BACKWARD or FA3_FORWARD says which, FA3_COMMIT names the checkout. The commands are
// in bench/README.md. Tiles and options are FlashAttention's own, as its setup.py has them; what
// the macros below switch off would not run in any case.
#include <stdint.h>

// Products of 80 columns, which its tiles are made of; without it they become smaller ones.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#define CUTLASS_ENABLE_GDC_FOR_SM90
#define CUTLASS_DEBUG_TRACE_LEVEL 0
#define FLASHATTENTION_DISABLE_PAGEDKV
#define FLASHATTENTION_DISABLE_APPENDKV
#define FLASHATTENTION_DISABLE_SOFTCAP
#define FLASHATTENTION_DISABLE_LOCAL
#define FLASHATTENTION_DISABLE_SPLIT
#define FLASHATTENTION_DISABLE_VARLEN
#define FLASHATTENTION_DISABLE_PACKGQA
#define FLASHATTENTION_DISABLE_SM8x
#include "static_switch.h"
// What remains to be switched by a condition: grouped heads, determinism and a second query tensor.
#undef BOOL_SWITCH
#define BOOL_SWITCH(CONDITION, NAME, ...) \
  [&] {                                   \
    constexpr static bool NAME = false;   \
    return __VA_ARGS__();                 \
  }()

#ifdef FA3_BACKWARD
  #include "flash_bwd_launch_template.h"
#else
  #include "flash_fwd_launch_template.h"
#endif

extern "C" {
// Device addresses, dense; lse: float [batch, heads, length], natural logarithms. Forward writes o
// and lse and reads q, k, v; backward reads all of these and dout and writes dq, dk, dv.
struct fa3_call {
  const void *q, *k, *v, *dout;
  void *o, *lse, *dq, *dk, *dv;
  // Of fa3_workspace_* bytes, aligned to 256; what it holds need not survive a call.
  void *workspace;
  // causal: 0, or aligned to the last row and key.
  int32_t batch, heads, length, length_k, dim, causal;
  float scale;
};
}

namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}
[[maybe_unused]] int round_to(int x, int tile) {
  return (x + tile - 1) / tile * tile;
}

// The strides of a dense tensor.
void set_strides(int64_t &row, int64_t &head, int64_t &batch, const fa3_call &call,
                 int32_t length) {
  row = call.dim;
  head = row * length;
  batch = head * call.heads;
}

template <class Params>
bool set_common(Params &p, const fa3_call &call, int dim) {
  int device = 0, major = 0, units = 0;
  if (call.dim != dim || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major != 9 ||
      cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return false;
  p.q_ptr = const_cast<void *>(call.q);
  p.k_ptr = const_cast<void *>(call.k);
  p.v_ptr = const_cast<void *>(call.v);
  p.o_ptr = call.o;
  p.softmax_lse_ptr = call.lse;
  set_strides(p.q_row_stride, p.q_head_stride, p.q_batch_stride, call, call.length);
  set_strides(p.o_row_stride, p.o_head_stride, p.o_batch_stride, call, call.length);
  set_strides(p.k_row_stride, p.k_head_stride, p.k_batch_stride, call, call.length_k);
  set_strides(p.v_row_stride, p.v_head_stride, p.v_batch_stride, call, call.length_k);
  p.v_dim_stride = 1;
  p.b = p.b_k = call.batch;
  p.h = p.h_k = call.heads;
  p.seqlen_q = call.length;
  p.seqlen_k = call.length_k;
  p.total_q = call.batch * call.length;
  p.total_k = call.batch * call.length_k;
  p.d = p.dv = p.d_rounded = p.dv_rounded = dim;
  p.scale_softmax = call.scale;
  p.is_bf16 = true;
  p.is_causal = call.causal != 0;
  p.window_size_left = call.length_k - 1;
  p.window_size_right = call.causal ? 0 : call.length - 1;
  p.p_dropout = p.rp_dropout = 1.0f;
  p.num_splits = 1;
  p.arch = 90;
  p.num_sm = units;
  return true;
}

}  // namespace

#define FA3_JOIN_(a, b) a##b
#define FA3_JOIN(a, b) FA3_JOIN_(a, b)
#define FA3_TEXT_(a) #a
#define FA3_TEXT(a) FA3_TEXT_(a)

// Of the checkout; every object has it.
extern "C" __attribute__((weak)) const char *fa3_commit(void) {
#ifdef FA3_COMMIT
  return FA3_TEXT(FA3_COMMIT);
#else
  return "unknown";
#endif
}

#ifdef FA3_BACKWARD

namespace {

// Of the tiles that its run_mha_bwd_hdim* choose: it rounds lengths to them.
struct Tiles {
  int rows, keys;
};
Tiles tiles_of(int dim, bool causal) {
  if (dim <= 64) return {128, 128};
  if (dim <= 128) return {causal ? 64 : 80, 128};
  return {64, 80};
}

struct Places {
  int64_t dq, delta, lse2, semaphore, end;
};
Places places_of(const fa3_call &call) {
  const Tiles tiles = tiles_of(call.dim, call.causal != 0);
  const int64_t heads = int64_t{call.batch} * call.heads,
                rows = heads * round_to(call.length, tiles.rows);
  Places at{};
  at.delta = aligned(rows * call.dim * 4);
  at.lse2 = at.delta + aligned(rows * 4);
  at.semaphore = at.lse2 + aligned(rows * 4);
  at.end = at.semaphore + aligned(heads * (round_to(call.length, tiles.rows) / tiles.rows) * 4);
  return at;
}

}  // namespace

extern "C" int64_t FA3_JOIN(fa3_workspace_backward_, FA3_BACKWARD)(const fa3_call *call) {
  return places_of(*call).end;
}

// 0, or 1: not of this head dimension or device. A launch of its own that fails ends the process.
extern "C" int FA3_JOIN(fa3_backward_, FA3_BACKWARD)(const fa3_call *call, void *stream) {
  Flash_bwd_params p{};
  if (!set_common(p, *call, FA3_BACKWARD)) return 1;
  const Tiles tiles = tiles_of(call->dim, call->causal != 0);
  const Places at = places_of(*call);
  char *work = static_cast<char *>(call->workspace);
  p.seqlen_q_rounded = round_to(call->length, tiles.rows);
  p.seqlen_k_rounded = round_to(call->length_k, tiles.keys);
  p.do_ptr = const_cast<void *>(call->dout);
  p.dq_ptr = call->dq;
  p.dk_ptr = call->dk;
  p.dv_ptr = call->dv;
  set_strides(p.do_row_stride, p.do_head_stride, p.do_batch_stride, *call, call->length);
  set_strides(p.dq_row_stride, p.dq_head_stride, p.dq_batch_stride, *call, call->length);
  set_strides(p.dk_row_stride, p.dk_head_stride, p.dk_batch_stride, *call, call->length_k);
  set_strides(p.dv_row_stride, p.dv_head_stride, p.dv_batch_stride, *call, call->length_k);
  p.dq_accum_ptr = work + at.dq;
  p.dsoftmax_sum = work + at.delta;
  p.softmax_lse_log2_ptr = work + at.lse2;
  p.dq_semaphore = reinterpret_cast<int *>(work + at.semaphore);
  FA3_JOIN(run_mha_bwd_hdim, FA3_BACKWARD)<90, cutlass::bfloat16_t, false>(
      p, static_cast<cudaStream_t>(stream));
  return 0;
}

#else

// Only launches for sequences of different lengths would call it.
__attribute__((weak)) void prepare_varlen_num_blocks(Flash_fwd_params &, cudaStream_t, bool, int,
                                                     int, bool) {}

extern "C" int64_t FA3_JOIN(fa3_workspace_forward_, FA3_FORWARD)(const fa3_call *) {
  return aligned(sizeof(int));
}

extern "C" int FA3_JOIN(fa3_forward_, FA3_FORWARD)(const fa3_call *call, void *stream) {
  Flash_fwd_params p{};
  if (!set_common(p, *call, FA3_FORWARD)) return 1;
  const cudaStream_t queue = static_cast<cudaStream_t>(stream);
  p.seqlen_q_rounded = round_to(call->length, 128);
  p.seqlen_k_rounded = round_to(call->length_k, 128);
  p.tile_count_semaphore = static_cast<int *>(call->workspace);
  if (p.is_causal && cudaMemsetAsync(p.tile_count_semaphore, 0, sizeof(int), queue) != cudaSuccess)
    return 1;
  run_mha_fwd_<90, cutlass::bfloat16_t, FA3_FORWARD, FA3_FORWARD, false, false, false, false>(
      p, queue);
  return 0;
}

#endif
