// SPDX-License-Identifier: Apache-2.0
//
// Random problems for the split tile program (test_gpu_split.cc): everything that decoding meets, with the
// rows that nobody may read set to NaN, and the counting of checks. Included once.
#ifndef TESSERA_TESTS_KERNELS_SPLIT_CASES_H_
#define TESSERA_TESTS_KERNELS_SPLIT_CASES_H_

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

#include "common/gpu/split.hpp"

using namespace tessera::gpu;

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
    p.arrays |= TSR_ARRAY_CU_Q;
    c.a.cu_q = c.cu_q.data();
  }
  if (c.packed_k) {
    c.cu_k.assign(1, 0);
    for (int64_t b = 0; b < batch; ++b)
      c.cu_k.push_back(c.cu_k.back() + static_cast<int32_t>(integer(0, p.seq_k)));
    p.total_k = c.cu_k.back();
    p.arrays |= TSR_ARRAY_CU_K;
    c.a.cu_k = c.cu_k.data();
  }
  const bool pages = p.page_size > 0;
  const auto lengths = [&](uint32_t array, std::vector<int32_t> &to, int64_t most) {
    p.arrays |= array;
    for (int64_t b = 0; b < batch; ++b) to.push_back(static_cast<int32_t>(integer(0, most)));
    return to.data();
  };
  if (pages || chance(40)) c.a.used_k = lengths(TSR_ARRAY_USED_K, c.used_k, p.seq_k);
  if (chance(20)) c.a.used_q = lengths(TSR_ARRAY_USED_Q, c.used_q, p.seq_q);
  if (chance(25)) c.a.left_pad_k = lengths(TSR_ARRAY_LEFT_PAD_K, c.pad_k, p.seq_k / 3);
  if (chance(25)) c.a.left_pad_q = lengths(TSR_ARRAY_LEFT_PAD_Q, c.pad_q, p.seq_q);
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

} // namespace

#endif // TESSERA_TESTS_KERNELS_SPLIT_CASES_H_
