// SPDX-License-Identifier: Apache-2.0
//
// Whole tasks of the forward and split kernels through backends/cpu/kernels.h, on one instruction
// set at a time: each row of kernels.def against a plain double loop, and to the bit against itself
// with other tiles of rows, in a larger batch, with packed rows, and with a window that equals the
// causal mask. Buffers end at an unreadable page, and what must not be read is NaN.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "backends/cpu/amx.h"
#include "backends/cpu/decode.h"
#include "backends/cpu/kernels.h"
#include "common/dtype.h"
#include "tests/kernels/kernel_test.h"

namespace {

// Memory whose last byte lies before an unreadable page.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + 2 * page - 1) / page * page;
    base_ = static_cast<unsigned char *>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) abort();
    data_ = base_ + mapped_ - page - bytes;
  }
  Guarded(const Guarded &) = delete;
  Guarded &operator=(const Guarded &) = delete;
  ~Guarded() { munmap(base_, mapped_); }
  void *data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_, mapped_;
  unsigned char *base_, *data_;
};

struct Shape {
  int64_t batch, heads_q, heads_kv, sq, sk, dim_qk, dim_v;
  tsr_dtype dtype;
  tsr_window_kind window;
  int64_t left, right, prefix;
  int64_t first_q;  // queries and keys are numbered from here in the random stream: a part of a
                    // larger problem has the numbers of the larger one
  int64_t amx = 0;  // on AMX tiles
  tsr_dtype cache = TSR_DTYPE_NONE;  // of K and V, with a scale per row; NONE: dtype
  bool no_lse = false;               // then AMX tiles keep the reference of their scores
};

struct Result {
  std::vector<float> o, lse;  // [B, Hq, Sq, Dv], [B, Hq, Sq]
};

// Scale of a row of K or V: a power of two, so that products with it are exact.
float scale_of(int64_t row) {
  return ldexpf(1.0f, static_cast<int>(-5 - row % 3));
}

float element(const Shape &s, uint64_t stream, int64_t b, int64_t h, int64_t row, int64_t x) {
  const uint64_t index = ((static_cast<uint64_t>(b) * 64 + h) * 4096 + row) * 1024 + x;
  const float value = kernel_uniform(stream, index, -2.0f, 2.0f);
  if (s.cache != TSR_DTYPE_NONE && stream > 20) {
    const float unit = scale_of(row);
    return unit * rintf(fminf(fmaxf(value / unit, -127.0f), 127.0f));
  }
  if (s.dtype == TSR_DTYPE_F16) return tsri_f16_to_float(tsri_float_to_f16(value));
  if (s.dtype == TSR_DTYPE_BF16) return tsri_bf16_to_float(tsri_float_to_bf16(value));
  return value;
}

// [B, H, S, D] with `gap` NaN elements after every row but the last.
void fill(const Shape &s, uint64_t stream, int64_t heads, int64_t rows, int64_t first, int64_t dim,
          int64_t gap, const int64_t *stride, void *data) {
  const int64_t all = s.batch * heads * rows * (dim + gap) - gap;
  for (int64_t i = 0; i < all; ++i) tsri_store_f32(s.dtype, data, i, NAN);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t x = 0; x < dim; ++x)
          tsri_store_f32(s.dtype, data, tsri_row_offset(stride, b, h, r) + x,
                         element(s, stream, b, h, first + r, x));
}

void set_layout(tsr_layout *layout, tsr_dtype dtype, int64_t heads, int64_t rows, int64_t pitch) {
  layout->dtype = dtype;
  layout->order = TSR_ORDER_STRIDED;
  layout->stride[3] = 1;
  layout->stride[2] = pitch;
  layout->stride[1] = rows * pitch;
  layout->stride[0] = heads * rows * pitch;
}

// K or V as bytes with scales: no gaps, the last byte before an unreadable page.
void fill_bytes(const Shape &s, uint64_t stream, int64_t rows, int64_t dim, int8_t *data,
                float *scale) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads_kv; ++h)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (b * s.heads_kv + h) * rows + r;
        scale[at] = scale_of(r);
        for (int64_t x = 0; x < dim; ++x)
          data[at * dim + x] = static_cast<int8_t>(element(s, stream, b, h, r, x) / scale_of(r));
      }
}

// Runs all tasks on one thread with tiles of `blocks` blocks of rows and `keys` keys.
Result run(const tsri_cpu_kernels &kernels, const Shape &s, int64_t blocks, int64_t keys) {
  const int64_t gap = 3, bytes = tsri_dtype_bytes(s.dtype);
  tsr_resolved resolved;
  tsr_args args = TSR_ARGS_INIT;
  memset(&resolved, 0, sizeof resolved);
  tsr_problem &p = resolved.p;
  p.struct_size = sizeof p;
  p.batch = s.batch, p.heads_q = s.heads_q, p.heads_kv = s.heads_kv;
  p.seq_q = s.sq, p.seq_k = s.sk, p.dim_qk = s.dim_qk, p.dim_v = s.dim_v;
  p.scale = 0.3f;
  p.index_dtype = TSR_DTYPE_I32;
  p.window.kind = s.window, p.window.left = s.left, p.window.right = s.right, p.prefix = s.prefix;
  resolved.group = static_cast<int32_t>(s.heads_q / s.heads_kv);
  set_layout(&p.q, s.dtype, s.heads_q, s.sq, s.dim_qk + gap);
  set_layout(&p.k, s.dtype, s.heads_kv, s.sk, s.dim_qk + gap);
  set_layout(&p.v, s.dtype, s.heads_kv, s.sk, s.dim_v + gap);
  set_layout(&p.o, TSR_DTYPE_F32, s.heads_q, s.sq, s.dim_v);
  set_layout(&p.lse, TSR_DTYPE_F32, s.heads_q, s.sq, 1);
  Guarded q((s.batch * s.heads_q * s.sq * (s.dim_qk + gap) - gap) * bytes);
  Guarded k((s.batch * s.heads_kv * s.sk * (s.dim_qk + gap) - gap) * bytes);
  Guarded v((s.batch * s.heads_kv * s.sk * (s.dim_v + gap) - gap) * bytes);
  fill(s, 20, s.heads_q, s.sq, s.first_q, s.dim_qk, gap, p.q.stride, q.data());
  fill(s, 21, s.heads_kv, s.sk, 0, s.dim_qk, gap, p.k.stride, k.data());
  fill(s, 22, s.heads_kv, s.sk, 0, s.dim_v, gap, p.v.stride, v.data());
  Result result;
  result.o.assign(static_cast<size_t>(s.batch * s.heads_q * s.sq * s.dim_v), NAN);
  result.lse.assign(static_cast<size_t>(s.batch * s.heads_q * s.sq), NAN);
  args.q = q.data(), args.k = k.data(), args.v = v.data();
  args.o = result.o.data(), args.lse = s.no_lse ? nullptr : result.lse.data();

  tsri_cpu_forward job;
  memset(&job, 0, sizeof job);
  job.problem = &resolved;
  job.args = &args;
  job.tiles.lanes = kernels.lanes;
  job.tiles.amx = s.amx;
  job.tiles.rows = (s.amx ? 2 : 3) * kernels.lanes * blocks;
  job.tiles.keys = keys;
  job.pages = tsri_pages_of(&p, &args);
  const int64_t rows = s.sq * resolved.group;
  job.tasks_each = s.heads_kv * ((rows + job.tiles.rows - 1) / job.tiles.rows);
  tsri_workspace count = {nullptr, 0};
  tsri_cpu_scratch_take(&count, &p, &job.tiles);
  job.scratch_bytes = count.used;
  void *scratch = nullptr;
  if (posix_memalign(&scratch, 64, static_cast<size_t>(count.used))) abort();
  memset(scratch, 0xff, static_cast<size_t>(count.used));  // NaN
  job.scratch = static_cast<unsigned char *>(scratch);
  for (int64_t task = 0; task < s.batch * job.tasks_each; ++task)
    (s.amx ? kernels.amx_forward : kernels.forward)(&job, task, 0);
  free(scratch);
  return result;
}

// The whole problem through the split kernel on one thread, with tiles of `blocks` blocks of rows.
Result run_split(const tsri_cpu_kernels &kernels, const Shape &s, int64_t blocks) {
  const bool bytes = s.cache != TSR_DTYPE_NONE;
  const int64_t size = tsri_dtype_bytes(s.dtype), size_kv = bytes ? 1 : size;
  const int64_t gap_kv = bytes ? 0 : 3;
  const int64_t rows_kv = s.batch * s.heads_kv * s.sk;
  tsr_resolved resolved;
  tsr_args args = TSR_ARGS_INIT;
  tsr_reason reason;
  memset(&resolved, 0, sizeof resolved);
  tsr_problem &p = resolved.p;
  p.struct_size = sizeof p;
  p.batch = s.batch, p.heads_q = s.heads_q, p.heads_kv = s.heads_kv;
  p.seq_q = s.sq, p.seq_k = s.sk, p.dim_qk = s.dim_qk, p.dim_v = s.dim_v;
  p.scale = 0.3f;
  p.index_dtype = TSR_DTYPE_I32;
  p.window.kind = s.window, p.window.left = s.left, p.window.right = s.right, p.prefix = s.prefix;
  resolved.group = static_cast<int32_t>(s.heads_q / s.heads_kv);
  set_layout(&p.q, s.dtype, s.heads_q, s.sq, s.dim_qk + 3);
  set_layout(&p.k, bytes ? s.cache : s.dtype, s.heads_kv, s.sk, s.dim_qk + gap_kv);
  set_layout(&p.v, bytes ? s.cache : s.dtype, s.heads_kv, s.sk, s.dim_v + gap_kv);
  set_layout(&p.o, TSR_DTYPE_F32, s.heads_q, s.sq, s.dim_v);
  set_layout(&p.lse, TSR_DTYPE_F32, s.heads_q, s.sq, 1);
  Guarded q((s.batch * s.heads_q * s.sq * (s.dim_qk + 3) - 3) * size);
  Guarded k((rows_kv * (s.dim_qk + gap_kv) - gap_kv) * size_kv);
  Guarded v((rows_kv * (s.dim_v + gap_kv) - gap_kv) * size_kv);
  Guarded k_scale(rows_kv * sizeof(float)), v_scale(rows_kv * sizeof(float));
  fill(s, 20, s.heads_q, s.sq, s.first_q, s.dim_qk, 3, p.q.stride, q.data());
  if (bytes) {
    set_layout(&p.k_scale, TSR_DTYPE_F32, s.heads_kv, s.sk, 1);
    set_layout(&p.v_scale, TSR_DTYPE_F32, s.heads_kv, s.sk, 1);
    p.scale_rows_k = 1;
    args.k_scale = static_cast<float *>(k_scale.data());
    args.v_scale = static_cast<float *>(v_scale.data());
    fill_bytes(s, 21, s.sk, s.dim_qk, static_cast<int8_t *>(k.data()),
               static_cast<float *>(k_scale.data()));
    fill_bytes(s, 22, s.sk, s.dim_v, static_cast<int8_t *>(v.data()),
               static_cast<float *>(v_scale.data()));
  } else {
    fill(s, 21, s.heads_kv, s.sk, 0, s.dim_qk, 3, p.k.stride, k.data());
    fill(s, 22, s.heads_kv, s.sk, 0, s.dim_v, 3, p.v.stride, v.data());
  }
  Result result;
  result.o.assign(static_cast<size_t>(s.batch * s.heads_q * s.sq * s.dim_v), NAN);
  result.lse.assign(static_cast<size_t>(s.batch * s.heads_q * s.sq), NAN);
  args.q = q.data(), args.k = k.data(), args.v = v.data();
  args.o = result.o.data(), args.lse = result.lse.data();

  tsri_cpu_device device;
  memset(&device, 0, sizeof device);
  device.l1_bytes = 32768, device.l2_bytes = 1 << 20;
  const tsri_cpu_runner runner = {nullptr, 1};
  tsri_cpu_split_plan plan = tsri_cpu_split_plan_of(&resolved, &kernels, &runner, &device, 192, 64);
  plan.tiles.rows = 3 * kernels.lanes * blocks;
  const size_t room = static_cast<size_t>(tsri_cpu_split_workspace(&plan));
  void *workspace = nullptr;
  if (posix_memalign(&workspace, 64, room)) abort();
  memset(workspace, 0xff, room);  // NaN
  args.workspace = workspace;
  kernel_check(tsri_cpu_split_run(&plan, &args, &reason) == TSR_STATUS_SUCCESS, "split run");
  free(workspace);
  return result;
}

// The plain double loop.
void check(const Shape &s, const Result &result, const char *what) {
  const tsri_mask_rule rule =
      tsri_mask_rule_make(s.window, s.left, s.right, 0, s.prefix, s.sq, s.sk);
  std::vector<double> p(static_cast<size_t>(s.sk)), o(static_cast<size_t>(s.dim_v));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads_q; ++h)
      for (int64_t i = 0; i < s.sq; ++i) {
        const int64_t g = h / (s.heads_q / s.heads_kv);
        const tsri_mask_row row = tsri_mask_row_of(&rule, i);
        double top = -HUGE_VAL, sum = 0;
        for (int64_t j = 0; j < s.sk; ++j) {
          double dot = 0;
          for (int64_t x = 0; x < s.dim_qk; ++x)
            dot += (double)element(s, 20, b, h, s.first_q + i, x) * element(s, 21, b, g, j, x);
          p[j] = tsri_mask_allows(&row, j) ? dot * (double)0.3f : -HUGE_VAL;
          if (p[j] > top) top = p[j];
        }
        for (double &x : o) x = 0;
        for (int64_t j = 0; j < s.sk; ++j) {
          if (p[j] == -HUGE_VAL) continue;
          const double w = exp(p[j] - top);
          sum += w;
          for (int64_t x = 0; x < s.dim_v; ++x) o[x] += w * element(s, 22, b, g, j, x);
        }
        const int64_t at = (b * s.heads_q + h) * s.sq + i;
        const double lse = sum > 0 ? top + log(sum) : -HUGE_VAL;
        const bool right = sum > 0 ? fabs(result.lse[at] - lse) < 1e-5 : result.lse[at] == -HUGE_VALF;
        kernel_check(s.no_lse || right, "%s: LSE of row %d is %g, not %g", what, (int)i,
                     result.lse[at], lse);
        for (int64_t x = 0; x < s.dim_v; ++x) {
          const double want = sum > 0 ? o[x] / sum : 0;
          // Tiles take P rounded to bfloat16.
          kernel_check(fabs(result.o[at * s.dim_v + x] - want) < (s.amx ? 4e-3 : 1e-5),
                       "%s: O[%d][%d] is %g, not %g", what, (int)i, (int)x,
                       result.o[at * s.dim_v + x], want);
        }
      }
}

void same(const Result &a, const Result &b, const char *what) {
  kernel_check(a.o.size() == b.o.size() && memcmp(a.o.data(), b.o.data(), a.o.size() * 4) == 0 &&
                   memcmp(a.lse.data(), b.lse.data(), a.lse.size() * 4) == 0,
               "%s: bits differ", what);
}

void test_fwd(const tsri_cpu_kernels &kernels, tsr_dtype dtype, int amx) {
  if (amx && (!kernels.amx_forward || tsri_cpu_amx_missing())) return;
  const tsr_window_kind none = TSR_WINDOW_NONE, corner = TSR_WINDOW_BOTTOM_RIGHT;
  const int64_t far = TSR_UNBOUNDED;
  const Shape shapes[] = {
      {1, 1, 1, 1, 1, 1, 1, dtype, none, 0, 0, 0, 0},
      {1, 2, 1, 5, 33, 3, 7, dtype, none, 0, 0, 0, 0},
      {2, 3, 3, 17, 40, 16, 24, dtype, corner, far, 0, 0, 0},
      {1, 4, 2, 50, 70, 20, 9, dtype, corner, 10, 3, 0, 0},
      {1, 1, 1, 30, 100, 8, 8, dtype, corner, 5, 0, 21, 0},
      {1, 1, 1, 9, 4, 130, 12, dtype, corner, far, 0, 0, 0},  // rows without keys
  };
  const char *name = tsri_dtype_describe(dtype).name;
  for (Shape s : shapes) {
    char what[128];
    s.amx = amx;
    snprintf(what, sizeof what, "%s%s B%d H%d/%d S%d/%d D%d/%d", name, amx ? " tiles" : "",
             (int)s.batch, (int)s.heads_q, (int)s.heads_kv, (int)s.sq, (int)s.sk, (int)s.dim_qk,
             (int)s.dim_v);
    for (int no_lse = 0; no_lse < 2; ++no_lse) {
      s.no_lse = no_lse != 0;
      const Result one = run(kernels, s, 1, 32);
      check(s, one, what);
      same(one, run(kernels, s, 2, 32), what);  // other rows share the tile
      same(one, run(kernels, s, 5, 32), what);
    }
  }
  // A sequence alone, and as the first of a batch.
  Shape batch = {3, 2, 1, 21, 50, 16, 16, dtype, corner, far, 0, 0, 0};
  batch.amx = amx;
  Shape alone = batch;
  alone.batch = 1;
  Result many = run(kernels, batch, 1, 32);
  const Result first = run(kernels, alone, 2, 32);
  many.o.resize(first.o.size());
  many.lse.resize(first.lse.size());
  same(many, first, "alone and in a batch");
  // The last queries alone: their rows move to other lanes and blocks.
  Shape tail = alone;
  tail.heads_q = 1, tail.sq = 4, tail.first_q = 17;
  const Result part = run(kernels, tail, 1, 32);
  for (int64_t i = 0; i < 4; ++i)
    kernel_check(memcmp(&part.o[i * 16], &first.o[(17 + i) * 16], 16 * 4) == 0,
                 "query %d alone: bits differ", (int)(17 + i));
  // Windows that hide nothing more than the causal mask does.
  for (int64_t left = 49; left <= 51; ++left) {
    Shape window = alone;
    window.left = left;
    same(first, run(kernels, window, 1, 32), "window as wide as the keys");
  }
}

void test_split(const tsri_cpu_kernels &kernels, tsr_dtype dtype, bool bytes) {
  const tsr_window_kind none = TSR_WINDOW_NONE, corner = TSR_WINDOW_BOTTOM_RIGHT;
  const int64_t far = TSR_UNBOUNDED;
  const tsr_dtype cache = bytes ? TSR_DTYPE_I8 : TSR_DTYPE_NONE;
  const Shape shapes[] = {
      {1, 1, 1, 1, 1, 1, 1, dtype, none, 0, 0, 0, 0, 0, cache},
      {1, 1, 1, 1, 1100, 64, 64, dtype, none, 0, 0, 0, 0, 0, cache},  // three chunks
      {2, 2, 1, 1, 530, 20, 9, dtype, none, 0, 0, 0, 0, 0, cache},
      {1, 3, 1, 1, 515, 96, 32, dtype, none, 0, 0, 0, 0, 0, cache},
      {1, 8, 1, 1, 600, 128, 48, dtype, corner, far, 0, 0, 0, 0, cache},
      {1, 6, 2, 2, 700, 33, 40, dtype, corner, 100, 3, 21, 0, 0, cache},
      {1, 4, 1, 15, 540, 16, 16, dtype, corner, far, 0, 0, 0, 0, cache},
      {1, 2, 2, 110, 700, 8, 8, dtype, corner, far, 0, 0, 0, 0, cache},
      {1, 1, 1, 9, 4, 130, 12, dtype, corner, far, 0, 0, 0, 0, cache},  // rows without keys
      {1, 1, 1, 1, 33, 300, 80, dtype, none, 0, 0, 0, 0, 0, cache},     // sums in parts
  };
  for (const Shape &s : shapes) {
    char what[128];
    snprintf(what, sizeof what, "split %s%s B%d H%d/%d S%d/%d D%d/%d",
             tsri_dtype_describe(dtype).name, bytes ? " int8" : "", (int)s.batch, (int)s.heads_q,
             (int)s.heads_kv, (int)s.sq, (int)s.sk, (int)s.dim_qk, (int)s.dim_v);
    const Result one = run_split(kernels, s, 1);
    check(s, one, what);
    same(one, run_split(kernels, s, 4), what);  // other tiles of rows
  }
  // A sequence alone, and as the first of a batch.
  Shape batch = {3, 4, 2, 1, 1030, 64, 32, dtype, corner, far, 0, 0, 0, 0, cache};
  Shape alone = batch;
  alone.batch = 1;
  Result many = run_split(kernels, batch, 1);
  const Result first = run_split(kernels, alone, 1);
  many.o.resize(first.o.size());
  many.lse.resize(first.lse.size());
  same(many, first, "split, alone and in a batch");
  // A window that hides nothing.
  Shape window = alone;
  window.left = 1029;
  same(first, run_split(kernels, window, 1), "split, window as wide as the keys");
}

void test_bwd(const tsri_cpu_kernels &kernels, tsr_dtype dtype, int amx) {
  kernel_test_backward(kernels, dtype, amx);
}

}  // namespace

void kernel_test_tasks(int32_t index) {
  tsri_cpu_kernels kernels;
  if (!tsri_cpu_kernels_at(index, &kernels)) {
    kernel_check(false, "no instruction set %d", (int)index);
    return;
  }
  kernel_check(strcmp(kernels.target, kernel_test_target) == 0, "%s is not %s", kernels.target,
               kernel_test_target);
  enum { unit_cpu = 0, unit_amx = 1 };
#define TSRI_CPU_KERNEL(op, type, TYPE, tier, mask, unit, q, k) \
  test_##op(kernels, TSR_DTYPE_##TYPE, unit_##unit);
#define TSRI_CPU_SPLIT(type, TYPE, cache, eight, q, k) \
  test_split(kernels, TSR_DTYPE_##TYPE, eight != 0);
#include "backends/cpu/kernels.def"
#undef TSRI_CPU_KERNEL
}
