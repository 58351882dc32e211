// SPDX-License-Identifier: Apache-2.0
//
// A whole backward run, task by task through backends/cpu/backward_job.h, on one instruction set at
// a time, against a plain double loop; and to the bit against itself with other panels and with
// tasks in reverse order. Sequences that are one tile and longer ones take different ways to P and
// dS; both are here, with trusted and untrusted LSE.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/amx.h"
#include "backends/cpu/backward_job.h"
#include "common/dtype.h"
#include "tests/kernels/kernel_test.h"

namespace {

struct Shape {
  int64_t heads_q, heads_kv, sq, sk, dim_qk, dim_v;
  tsr_window_kind window;
  float offset;  // added to the first component of Q: moves every score
  bool wide;     // O in float32 whatever the others are, its rows apart from each other
};

struct Tensor {
  int64_t heads, rows, dim, pitch;
  tsr_dtype dtype;
  std::vector<unsigned char> bytes;
  // NaN, also in the gaps between rows.
  Tensor(int64_t h, int64_t r, int64_t d, tsr_dtype type, int64_t gap = 0)
      : heads(h), rows(r), dim(d), pitch(d + gap), dtype(type),
        bytes(h * r * (d + gap) * tsri_dtype_bytes(type), 0xff) {}
  float get(int64_t h, int64_t r, int64_t x) const {
    return tsri_load_f32(dtype, bytes.data(), (h * rows + r) * pitch + x);
  }
  void put(int64_t h, int64_t r, int64_t x, double value) {
    tsri_store_f64(dtype, bytes.data(), (h * rows + r) * pitch + x, value);
  }
  void random(uint64_t stream) {
    for (int64_t i = 0; i < heads * rows * dim; ++i)
      tsri_store_f32(dtype, bytes.data(), i, kernel_uniform(stream, i, -1.5f, 1.5f));
  }
  tsr_layout layout() const {
    tsr_layout l;
    memset(&l, 0, sizeof l);
    l.dtype = dtype, l.order = TSR_ORDER_STRIDED;
    l.stride[0] = heads * rows * pitch, l.stride[1] = rows * pitch, l.stride[2] = pitch, l.stride[3] = 1;
    return l;
  }
};

struct Case {
  Shape shape;
  Tensor q, k, v, o, lse, dout;
  Tensor dq, dk, dv;  // float32, what is right
  Case(const Shape &s, tsr_dtype t)
      : shape(s),
        q(s.heads_q, s.sq, s.dim_qk, t),
        k(s.heads_kv, s.sk, s.dim_qk, t),
        v(s.heads_kv, s.sk, s.dim_v, t),
        o(s.heads_q, s.sq, s.dim_v, s.wide ? TSR_DTYPE_F32 : t, s.wide ? 16 : 0),
        lse(s.heads_q, s.sq, 1, TSR_DTYPE_F32),
        dout(s.heads_q, s.sq, s.dim_v, t),
        dq(s.heads_q, s.sq, s.dim_qk, TSR_DTYPE_F32),
        dk(s.heads_kv, s.sk, s.dim_qk, TSR_DTYPE_F32),
        dv(s.heads_kv, s.sk, s.dim_v, TSR_DTYPE_F32) {}
};

constexpr float kScale = 0.3f;

tsri_mask_rule rule_of(const Shape &s) {
  return tsri_mask_rule_make(s.window, TSR_UNBOUNDED, 0, 0, 0, s.sq, s.sk);
}

// Inputs, O, LSE and the gradients in double.
void solve(Case *c) {
  const Shape &s = c->shape;
  const tsri_mask_rule rule = rule_of(s);
  c->q.random(30), c->k.random(31), c->v.random(32), c->dout.random(33);
  for (int64_t h = 0; h < s.heads_q; ++h)
    for (int64_t i = 0; i < s.sq; ++i) c->q.put(h, i, 0, c->q.get(h, i, 0) + s.offset);
  for (int64_t g = 0; g < s.heads_kv; ++g)
    for (int64_t j = 0; j < s.sk; ++j) c->k.put(g, j, 0, 1 + c->k.get(g, j, 0) / 64);
  std::vector<double> dk(s.heads_kv * s.sk * s.dim_qk), dv(s.heads_kv * s.sk * s.dim_v);
  std::vector<double> p(s.sk), dp(s.sk), o(s.dim_v), dq(s.dim_qk);
  for (int64_t h = 0; h < s.heads_q; ++h)
    for (int64_t i = 0; i < s.sq; ++i) {
      const int64_t g = h / (s.heads_q / s.heads_kv);
      const tsri_mask_row row = tsri_mask_row_of(&rule, i);
      double top = -HUGE_VAL, sum = 0, delta = 0;
      for (int64_t j = 0; j < s.sk; ++j) {
        double dot = 0;
        for (int64_t x = 0; x < s.dim_qk; ++x) dot += (double)c->q.get(h, i, x) * c->k.get(g, j, x);
        p[j] = tsri_mask_allows(&row, j) ? dot * (double)kScale : -HUGE_VAL;
        top = fmax(top, p[j]);
      }
      for (int64_t j = 0; j < s.sk; ++j) sum += p[j] = p[j] == -HUGE_VAL ? 0 : exp(p[j] - top);
      std::fill(o.begin(), o.end(), 0), std::fill(dq.begin(), dq.end(), 0);
      for (int64_t j = 0; j < s.sk; ++j) {
        p[j] = sum > 0 ? p[j] / sum : 0;
        dp[j] = 0;
        for (int64_t x = 0; x < s.dim_v; ++x) {
          dp[j] += (double)c->dout.get(h, i, x) * c->v.get(g, j, x);
          o[x] += p[j] * c->v.get(g, j, x);
        }
        delta += p[j] * dp[j];
      }
      for (int64_t j = 0; j < s.sk; ++j) {
        const double ds = kScale * p[j] * (dp[j] - delta);
        for (int64_t x = 0; x < s.dim_qk; ++x) {
          dq[x] += ds * c->k.get(g, j, x);
          dk[(g * s.sk + j) * s.dim_qk + x] += ds * c->q.get(h, i, x);
        }
        for (int64_t x = 0; x < s.dim_v; ++x)
          dv[(g * s.sk + j) * s.dim_v + x] += p[j] * c->dout.get(h, i, x);
      }
      c->lse.put(h, i, 0, sum > 0 ? top + log(sum) : -HUGE_VAL);
      for (int64_t x = 0; x < s.dim_v; ++x) c->o.put(h, i, x, o[x]);
      for (int64_t x = 0; x < s.dim_qk; ++x) c->dq.put(h, i, x, dq[x]);
    }
  for (size_t i = 0; i < dk.size(); ++i)
    tsri_store_f64(TSR_DTYPE_F32, c->dk.bytes.data(), i, dk[i]);
  for (size_t i = 0; i < dv.size(); ++i)
    tsri_store_f64(TSR_DTYPE_F32, c->dv.bytes.data(), i, dv[i]);
}

struct Result {
  Tensor dq, dk, dv;
};

// All tasks on one thread, in rising or falling order, with panels of so many tiles of 32 keys.
Result run(const tsri_cpu_kernels &kernels, const Case &c, int64_t tiles_of_panel, bool reverse,
           int amx) {
  const int64_t lanes = amx ? 32 : kernels.lanes;
  const Shape &s = c.shape;
  Result r = {Tensor(s.heads_q, s.sq, s.dim_qk, TSR_DTYPE_F32),
              Tensor(s.heads_kv, s.sk, s.dim_qk, TSR_DTYPE_F32),
              Tensor(s.heads_kv, s.sk, s.dim_v, TSR_DTYPE_F32)};
  tsr_resolved resolved;
  memset(&resolved, 0, sizeof resolved);
  tsr_problem &p = resolved.p;
  p.struct_size = sizeof p;
  p.batch = 1, p.heads_q = s.heads_q, p.heads_kv = s.heads_kv;
  p.seq_q = s.sq, p.seq_k = s.sk, p.dim_qk = s.dim_qk, p.dim_v = s.dim_v;
  p.scale = kScale;
  p.index_dtype = TSR_DTYPE_I32;
  p.window.kind = s.window, p.window.left = TSR_UNBOUNDED;
  p.q = c.q.layout(), p.k = c.k.layout(), p.v = c.v.layout(), p.o = c.o.layout();
  p.lse = c.lse.layout(), p.dout = c.dout.layout();
  p.dq = r.dq.layout(), p.dk = r.dk.layout(), p.dv = r.dv.layout();
  resolved.group = static_cast<int32_t>(s.heads_q / s.heads_kv);
  tsr_args args = TSR_ARGS_INIT;
  args.q = c.q.bytes.data(), args.k = c.k.bytes.data(), args.v = c.v.bytes.data();
  args.o = const_cast<unsigned char *>(c.o.bytes.data());
  args.lse = reinterpret_cast<float *>(const_cast<unsigned char *>(c.lse.bytes.data()));
  args.dout = c.dout.bytes.data();
  args.dq = r.dq.bytes.data(), args.dk = r.dk.bytes.data(), args.dv = r.dv.bytes.data();

  tsri_cpu_backward job;
  memset(&job, 0, sizeof job);
  job.problem = &resolved, job.args = &args;
  job.tiles.keys = 32, job.tiles.most_chunks = 3, job.tiles.least_keys = 64, job.tiles.whole = 64;
  job.tiles.amx = amx;
  job.tiles.panel = std::max(tiles_of_panel * 32, tsri_cpu_tile_bound(&job.tiles, s.sk));
  job.tiles.lanes = lanes;
  job.pages = tsri_pages_of(&p, &args);
  job.rows_each = tsri_cpu_padded_rows(s.sq, resolved.group, lanes);
  job.rows_all = job.rows_each * s.heads_kv;
  job.owners_b = 1, job.owners_g = s.heads_kv, job.owners_c = 3;
  job.row_step = 3 * lanes;
  job.tasks_each =
      s.heads_kv * ((s.sq * resolved.group + job.row_step - 1) / job.row_step);
  tsri_workspace count = {nullptr, 0};
  tsri_cpu_backward_scratch_take(&count, &p, &job.tiles);
  job.scratch_bytes = count.used;
  const int64_t rows = job.rows_all, dims = tsri_cpu_dq_dims(&job.tiles, s.dim_qk);
  const int64_t all = 3 * (rows + 16) + 3 * rows * dims;
  void *memory = nullptr;
  if (posix_memalign(&memory, 64, static_cast<size_t>(all * 4 + 64 * 4 + count.used))) abort();
  memset(memory, 0xff, static_cast<size_t>(all * 4 + 64 * 4 + count.used));  // NaN
  tsri_workspace ws = {static_cast<unsigned char *>(memory), 0};
  job.ref = static_cast<float *>(tsri_workspace_take(&ws, rows, 4));
  job.inverse = static_cast<float *>(tsri_workspace_take(&ws, rows, 4));
  job.d = static_cast<float *>(tsri_workspace_take(&ws, rows, 4));
  job.dq = static_cast<float *>(tsri_workspace_take(&ws, 3 * rows * dims, 4));
  job.scratch = static_cast<unsigned char *>(tsri_workspace_take(&ws, count.used, 1));
  const int64_t row_tasks = job.tasks_each, key_tasks = 3 * s.heads_kv;
  for (int64_t t = 0; t < row_tasks; ++t)
    (amx ? kernels.amx_backward_rows : kernels.backward_rows)(&job, reverse ? row_tasks - 1 - t : t, 0);
  for (int64_t t = 0; t < key_tasks; ++t)
    (amx ? kernels.amx_backward_keys : kernels.backward_keys)(&job, reverse ? key_tasks - 1 - t : t, 0);
  for (int64_t t = 0; t < row_tasks; ++t)
    (amx ? kernels.amx_backward_queries : kernels.backward_queries)(&job, reverse ? row_tasks - 1 - t : t, 0);
  free(memory);
  return r;
}

// offset: of the shape; float32 scores round at its size.
void compare(const Tensor &got, const Tensor &want, float offset, int amx, const char *what,
             const char *name) {
  double most = 0;
  for (int64_t i = 0; i < want.heads * want.rows * want.dim; ++i)
    most = fmax(most, fabs((double)tsri_load_f32(TSR_DTYPE_F32, want.bytes.data(), i)));
  for (int64_t i = 0; i < want.heads * want.rows * want.dim; ++i) {
    const double a = tsri_load_f32(TSR_DTYPE_F32, got.bytes.data(), i);
    const double b = tsri_load_f32(TSR_DTYPE_F32, want.bytes.data(), i);
    kernel_check(fabs(a - b) <= ((amx ? 1e-2 : 1e-5) + 1e-7 * fabs((double)offset)) * (most + 1),
                 "%s: %s[%d] is %g, not %g", what, name, (int)i, a, b);
  }
}

}  // namespace

void kernel_test_backward(const tsri_cpu_kernels &kernels, tsr_dtype dtype, int amx) {
  if (amx && (!kernels.amx_backward_keys || tsri_cpu_amx_missing())) return;
  const tsr_window_kind none = TSR_WINDOW_NONE, corner = TSR_WINDOW_BOTTOM_RIGHT;
  const Shape shapes[] = {
      {1, 1, 1, 1, 1, 1, none, 0, false},        {2, 1, 5, 33, 3, 7, none, 0, false},
      {3, 3, 40, 17, 16, 24, corner, 0, false},  // rows without keys
      {4, 2, 50, 64, 20, 9, corner, 0, false},   {2, 1, 70, 65, 8, 8, corner, 0, false},
      {4, 2, 90, 200, 33, 12, corner, 0, false}, {1, 1, 70, 300, 130, 5, none, 0, false},
      {1, 1, 90, 100, 8, 8, corner, 120, false}, {1, 1, 9, 150, 8, 8, none, -3000, false},
      {2, 1, 70, 130, 16, 48, none, 0, true},
  };
  for (const Shape &s : shapes) {
    Case c(s, dtype);
    char what[128];
    snprintf(what, sizeof what, "backward%s %s H%d/%d S%d/%d D%d/%d", amx ? " tiles" : "",
             tsri_dtype_describe(dtype).name, (int)s.heads_q, (int)s.heads_kv, (int)s.sq, (int)s.sk, (int)s.dim_qk, (int)s.dim_v);
    solve(&c);
    const Result one = run(kernels, c, 1, false, amx), other = run(kernels, c, 4, true, amx);
    // The rounding of a 16-bit O reaches dS through D.
    if (dtype == TSR_DTYPE_F32 || s.sk <= 128 || s.wide) {
      compare(one.dq, c.dq, s.offset, amx, what, "dQ");
      compare(one.dk, c.dk, s.offset, amx, what, "dK");
    }
    compare(one.dv, c.dv, s.offset, amx, what, "dV");
    kernel_check(one.dq.bytes == other.dq.bytes && one.dk.bytes == other.dk.bytes &&
                     one.dv.bytes == other.dv.bytes,
                 "%s: bits depend on panels or on the order of tasks", what);
  }
}
