// SPDX-License-Identifier: Apache-2.0
//
// The split tile program on the emulator against whole rows in double precision: random problems of every
// shape that decoding meets (groups, a few queries, pages, packed and padded sequences, windows, prefix,
// sinks, score steps, dropout), any number of parts. Rows that nobody may read are NaN, outputs and partial
// results begin as NaN, and what is cut differently must give the same bits where the contract says so.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "backends/cuda/sm80/unit_f32.hpp"
#include "backends/hip/gfx11/unit.hpp"
#include "backends/hip/gfx9/unit.hpp"
#include "common/gpu/split.hpp"

using namespace tessera::gpu;

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

int64_t checks, failures;

__attribute__((format(printf, 2, 3))) void check(bool ok, const char *format, ...) {
  ++checks;
  if (ok || ++failures > 20) return;
  va_list list;
  va_start(list, format);
  vprintf(format, list);
  printf("\n");
  va_end(list);
}

uint32_t state;
uint32_t bits() {
  state = state * 1664525u + 1013904223u;
  uint32_t x = state;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  return x ^ x >> 12;
}
int64_t integer(int64_t lo, int64_t hi) { return lo + static_cast<int64_t>(bits() % (hi - lo + 1)); }
bool chance(int percent) { return integer(0, 99) < percent; }
float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f; }

struct Kernel {
  const char *name;
  void (*function)(const void *);
  tsr_dtype dtype;
  int dim_qk, dim_v, tile_q, tile_k, threads, wave;
  uint32_t shared_bytes;
  bool any;
  double tolerance; // of O, for values of about 1
};

template <class C>
Kernel kernel_of(const char *name, void (*function)(const void *), int dim_qk, int dim_v, bool any,
                 double tolerance) {
  return Kernel{name, function, DtypeOf<typename C::E>::value, dim_qk, dim_v, C::kTileQ, C::kTileK,
                C::kThreads, C::Wave::kThreads, C::kSharedBytes, any, tolerance};
}

// A tensor of a problem: memory with the layout's strides, 16-byte aligned.
struct Tensor {
  std::vector<unsigned char> memory;
  unsigned char *data = nullptr;
  void make(size_t bytes, int fill) {
    memory.assign(bytes + 32, static_cast<unsigned char>(fill));
    data = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16;
  }
};

struct Case {
  tsr_problem p;
  tsr_args a;
  int32_t group;
  bool packed_q, packed_k;
  Tensor q, k, v, o, bias, mask, blocks;
  std::vector<float> lse, max, alibi, sink;
  std::vector<int32_t> cu_q, cu_k, used_q, used_k, pad_q, pad_k, table;
  // Rows of the tensors with a query axis.
  int64_t rows() const { return packed_q ? p.total_q : p.batch * p.seq_q; }
  size_t o_bytes() const { return static_cast<size_t>(rows() * p.heads_q * p.dim_v * 4); }
};

// heads may lie inside rows or outside; in rows is how [B, S, H, D] tensors look as [B, H, S, D].
void lay_out(tsr_layout &l, tsr_dtype dtype, int64_t h, int64_t s, int64_t d, bool inside, bool packed) {
  l.dtype = dtype;
  l.order = TSR_ORDER_STRIDED;
  l.alignment = 16;
  l.stride[3] = 1;
  l.stride[2] = inside ? h * d : d;
  l.stride[1] = inside ? d : s * d;
  l.stride[0] = packed ? 0 : h * s * d;
}

void fill(Tensor &t, tsr_dtype dtype, int64_t count) {
  t.make(static_cast<size_t>(count * (dtype == TSR_DTYPE_F32 ? 4 : 2)), 0);
  for (int64_t i = 0; i < count; ++i) tsri_store_f32(dtype, t.data, i, uniform());
}

void choose_lengths(Case &c) {
  tsr_problem &p = c.p;
  const int64_t batch = p.batch;
  if (c.packed_q) {
    c.cu_q.assign(1, 0);
    for (int64_t b = 0; b < batch; ++b)
      c.cu_q.push_back(c.cu_q.back() + static_cast<int32_t>(integer(0, p.seq_q)));
    p.total_q = c.cu_q.back();
    c.a.cu_q = c.cu_q.data();
  }
  if (c.packed_k) {
    c.cu_k.assign(1, 0);
    for (int64_t b = 0; b < batch; ++b)
      c.cu_k.push_back(c.cu_k.back() + static_cast<int32_t>(integer(0, p.seq_k)));
    p.total_k = c.cu_k.back();
    c.a.cu_k = c.cu_k.data();
  }
  const bool pages = p.page_size > 0;
  const auto lengths = [&](std::vector<int32_t> &to, int64_t most) {
    for (int64_t b = 0; b < batch; ++b) to.push_back(static_cast<int32_t>(integer(0, most)));
    return to.data();
  };
  if (pages || chance(40)) c.a.used_k = lengths(c.used_k, p.seq_k);
  if (chance(20)) c.a.used_q = lengths(c.used_q, p.seq_q);
  if (chance(25)) c.a.left_pad_k = lengths(c.pad_k, p.seq_k / 3);
  if (chance(25)) c.a.left_pad_q = lengths(c.pad_q, p.seq_q);
  if (!pages) return;
  p.max_pages = (p.seq_k + p.page_size - 1) / p.page_size;
  p.page_table_stride = p.max_pages + integer(0, 2);
  p.num_pages = batch * p.max_pages + 1;
  c.table.assign(static_cast<size_t>(batch * p.page_table_stride), -7);
  // Each page of the cache at most once, in some order; page 0 is nobody's.
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t n = 0; n < p.max_pages; ++n)
      c.table[static_cast<size_t>(b * p.page_table_stride + n)] =
          static_cast<int32_t>(1 + (b * p.max_pages + n) * 7 % (p.num_pages - 1 ? p.num_pages - 1 : 1));
  if ((p.num_pages - 1) % 7 == 0)
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t n = 0; n < p.max_pages; ++n)
        c.table[static_cast<size_t>(b * p.page_table_stride + n)] =
            static_cast<int32_t>(1 + b * p.max_pages + n);
  c.a.page_table = c.table.data();
}

// NaN in every row of K and V that no sequence uses.
void poison_keys(Case &c) {
  tsr_problem &p = c.p;
  const tsri_pages pages = tsri_pages_of(&p, &c.a);
  const int64_t rows = pages.table ? p.page_size : c.packed_k ? p.total_k : p.seq_k;
  const int64_t slots = pages.table ? p.num_pages : c.packed_k ? 1 : p.batch;
  std::vector<char> used(static_cast<size_t>(slots * rows + 1), 0);
  for (int64_t b = 0; b < p.batch; ++b) {
    const tsri_sequence s = tsri_sequence_of(&p, &c.a, b);
    for (int64_t j = s.k.begin; j < s.k.begin + s.k.len; ++j) {
      int64_t slot = c.packed_k ? 0 : b, row = j;
      if (pages.table) {
        slot = tsri_index(pages.table, pages.dtype, b * pages.stride + j / pages.size);
        row = j % pages.size;
      }
      used[static_cast<size_t>(slot * rows + row)] = 1;
    }
  }
  for (int64_t slot = 0; slot < slots; ++slot)
    for (int64_t g = 0; g < p.heads_kv; ++g)
      for (int64_t row = 0; row < rows; ++row) {
        if (used[static_cast<size_t>(slot * rows + row)]) continue;
        for (int64_t d = 0; d < p.dim_qk; ++d)
          tsri_store_f32(p.k.dtype, c.k.data,
                         tsri_row_offset(p.k.stride, slot, g, row) + d * p.k.stride[3], NAN);
        for (int64_t d = 0; d < p.dim_v; ++d)
          tsri_store_f32(p.v.dtype, c.v.data,
                         tsri_row_offset(p.v.stride, slot, g, row) + d * p.v.stride[3], NAN);
      }
}

void choose_steps(Case &c) {
  tsr_problem &p = c.p;
  const int64_t pairs = p.batch * p.heads_q * p.seq_q * p.seq_k;
  const auto full = [&](tsr_layout &l, tsr_dtype dtype) {
    l.dtype = dtype;
    l.stride[3] = 1;
    l.stride[2] = p.seq_k;
    l.stride[1] = p.seq_q * p.seq_k;
    l.stride[0] = p.heads_q * p.seq_q * p.seq_k;
  };
  if (chance(40)) p.softcap = 2.0f;
  if (chance(40)) {
    full(p.bias, p.q.dtype);
    fill(c.bias, p.bias.dtype, pairs + 1);
    c.a.bias = c.bias.data;
  }
  if (chance(40)) {
    p.alibi = chance(50) ? TSR_ALIBI_PER_HEAD : TSR_ALIBI_PER_BATCH_HEAD;
    for (int64_t n = 0; n < p.batch * p.heads_q; ++n) c.alibi.push_back(uniform() * 0.02f);
    c.a.alibi = c.alibi.data();
  }
  if (chance(30)) {
    full(p.mask, TSR_DTYPE_U8);
    c.mask.make(static_cast<size_t>(pairs + 1), 0);
    for (int64_t n = 0; n < pairs; ++n) c.mask.data[n] = chance(70);
    c.a.mask = c.mask.data;
  }
  if (chance(30)) {
    p.block_q = integer(1, 3);
    p.block_k = integer(5, 90);
    const int64_t rows = (p.seq_q + p.block_q - 1) / p.block_q, keys = (p.seq_k + p.block_k - 1) / p.block_k;
    p.block_mask.dtype = TSR_DTYPE_U8;
    p.block_mask.stride[3] = 1;
    p.block_mask.stride[2] = keys;
    p.block_mask.stride[1] = rows * keys;
    p.block_mask.stride[0] = chance(50) ? p.heads_q * rows * keys : 0;
    c.blocks.make(static_cast<size_t>(p.batch * p.heads_q * rows * keys + 1), 0);
    for (int64_t n = 0; n < p.batch * p.heads_q * rows * keys; ++n) c.blocks.data[n] = chance(70);
    c.a.block_mask = c.blocks.data;
  }
  if (chance(40)) {
    p.dropout = chance(10) ? 1.0f : 0.3f;
    c.a.seed = bits();
    c.a.offset = bits();
  }
  if (chance(30)) p.scale = -p.scale;
}

void choose_masks(Case &c) {
  tsr_problem &p = c.p;
  p.window.left = p.window.right = TSR_UNBOUNDED;
  switch (integer(0, 5)) {
    case 0:
      p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
      p.window.right = 0;
      break;
    case 1:
      p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
      p.window.left = integer(0, 200);
      p.window.right = integer(0, 3);
      break;
    case 2:
      p.window.kind = TSR_WINDOW_EXPLICIT;
      p.diagonal = integer(-2, p.seq_k);
      p.window.left = integer(0, 20);
      p.window.right = integer(0, 20);
      break;
    default:
      break;
  }
  if (chance(25)) p.prefix = integer(0, 150);
}

void choose(Case &c, const Kernel &kernel) {
  tsr_problem &p = c.p;
  memset(&p, 0, sizeof p);
  memset(&c.a, 0, sizeof c.a);
  const bool any = kernel.any;
  const int64_t step = any ? 1 : kernel.dtype == TSR_DTYPE_F32 ? 4 : 8;
  const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 20};
  const int sizes[] = {0, 0, 0, 1, 3, 16};
  c.group = groups[integer(0, 8)];
  p.batch = integer(1, 3);
  p.heads_kv = integer(1, 2);
  p.heads_q = p.heads_kv * c.group;
  p.seq_q = chance(50) ? 1 : integer(1, 5);
  p.seq_k = chance(15) ? integer(0, 3) : chance(30) ? integer(1, 1000) : integer(1, 300);
  p.dim_qk = integer(1, kernel.dim_qk / step) * step;
  p.dim_v = integer(1, (any ? 80 : 2 * kernel.dim_v) / step) * step;
  p.scale = 1.0f / sqrtf(static_cast<float>(p.dim_qk)) * 2.0f;
  p.index_dtype = TSR_DTYPE_I32;
  p.page_size = sizes[integer(0, 5)];
  if (p.page_size) p.seq_k = (p.seq_k + p.page_size - 1) / p.page_size * p.page_size;
  c.packed_q = chance(25);
  c.packed_k = !p.page_size && chance(25);
  choose_lengths(c);
  choose_masks(c);
  const int64_t rows_q = c.packed_q ? p.total_q : p.seq_q, slots_q = c.packed_q ? 1 : p.batch;
  const int64_t rows_k = p.page_size ? p.page_size : c.packed_k ? p.total_k : p.seq_k;
  const int64_t slots_k = p.page_size ? p.num_pages : c.packed_k ? 1 : p.batch;
  lay_out(p.q, kernel.dtype, p.heads_q, rows_q, p.dim_qk, chance(50), c.packed_q);
  lay_out(p.k, kernel.dtype, p.heads_kv, rows_k, p.dim_qk, chance(50), c.packed_k);
  lay_out(p.v, kernel.dtype, p.heads_kv, rows_k, p.dim_v, chance(50), c.packed_k);
  lay_out(p.o, chance(30) ? TSR_DTYPE_F32 : kernel.dtype, p.heads_q, rows_q, p.dim_v, chance(50),
          c.packed_q);
  lay_out(p.lse, TSR_DTYPE_F32, p.heads_q, rows_q, 1, false, c.packed_q);
  fill(c.q, kernel.dtype, slots_q * p.heads_q * rows_q * p.dim_qk + 1);
  fill(c.k, kernel.dtype, slots_k * p.heads_kv * rows_k * p.dim_qk + 1);
  fill(c.v, kernel.dtype, slots_k * p.heads_kv * rows_k * p.dim_v + 1);
  poison_keys(c);
  if (any) p.max_logit = p.lse;
  if (any) choose_steps(c);
  if (chance(30)) {
    p.sink = 1;
    for (int64_t h = 0; h < p.heads_q; ++h) c.sink.push_back(uniform() * 3.0f);
    c.a.sink = c.sink.data();
  }
  c.a.q = c.q.data;
  c.a.k = c.k.data;
  c.a.v = c.v.data;
}

// Keys of a part where seq_k keys are cut into at most `splits` parts.
int64_t part_keys_of(const Case &c, const Kernel &kernel, int64_t splits) {
  const int64_t tiles = (c.p.seq_k + kernel.tile_k - 1) / kernel.tile_k;
  return larger<int64_t>((tiles + splits - 1) / splits, 1) * kernel.tile_k;
}

// One run, into fresh outputs.
bool run(Case &c, const Kernel &kernel, int64_t part_keys, char *why, size_t capacity) {
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
  args.splits = static_cast<int32_t>(larger<int64_t>((p.seq_k + args.part_keys - 1) / args.part_keys, 1));
  args.row_tiles = static_cast<int32_t>((p.seq_q * c.group + kernel.tile_q - 1) / kernel.tile_q);
  args.chunks = static_cast<int32_t>((p.dim_v + kernel.dim_v - 1) / kernel.dim_v);
  const int64_t units = p.batch * p.heads_kv * args.row_tiles;
  const size_t parts = static_cast<size_t>(units * args.splits * kernel.tile_q);
  Tensor part_o;
  part_o.make(parts * static_cast<size_t>(p.dim_v) * 4, 0xff);
  std::vector<float> part_lse(parts, NAN), part_max(parts, NAN);
  std::vector<uint32_t> counters(static_cast<size_t>(units * args.chunks), 0);
  args.part_o = reinterpret_cast<float *>(part_o.data);
  args.part_lse = part_lse.data();
  args.part_max = kernel.any ? part_max.data() : nullptr;
  args.counters = counters.data();
  return emulate(kernel.function, &args, units * args.chunks * args.splits, kernel.threads, kernel.wave,
                 kernel.shared_bytes, why, capacity);
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
  const int64_t part_keys = part_keys_of(c, kernel, splits);
  const bool ran = run(c, kernel, part_keys, why, sizeof why);
  check(ran, "%s seed %d: %s", kernel.name, seed, why);
  if (!ran) return;
  compare(c, kernel, seed, splits);
  if (!c.packed_q && !c.packed_k) return;
  // Parts of the same size; larger bounds of the lengths, which only make room.
  const std::vector<unsigned char> o(c.o.data, c.o.data + c.o_bytes());
  const std::vector<float> lse = c.lse;
  if (c.packed_q) c.p.seq_q += integer(0, 12);
  if (c.packed_k) c.p.seq_k = c.p.seq_k * 2 + integer(0, 300);
  check(run(c, kernel, part_keys, why, sizeof why), "%s seed %d again: %s", kernel.name, seed, why);
  // Without elements there is nothing to compare, and no pointer either.
  check(o.empty() || memcmp(o.data(), c.o.data, o.size()) == 0, "%s seed %d: O depends on the bounds", kernel.name, seed);
  check(lse.empty() || memcmp(lse.data(), c.lse.data(), lse.size() * 4) == 0,
        "%s seed %d: LSE depends on the bounds", kernel.name, seed);
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
  printf("%lld checks, %lld failed\n", (long long)checks, (long long)failures);
  return failures > 0 || checks == 0;
}
