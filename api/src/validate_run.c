// SPDX-License-Identifier: Apache-2.0
//
// Validation of a run: every pointer is given exactly when the problem declares it and is aligned
// as promised, no output shares a byte with another tensor, and, where host memory can be read,
// lengths, offsets and page numbers stay inside their tensors. Nothing here writes or allocates.
#include <string.h>

#include "common/dtype.h"
#include "common/geometry.h"
#include "text.h"
#include "validate.h"

#define LL long long

/* Memory of one run: tensors, then vectors, then the workspace. */
typedef struct run_memory {
  int count;
  struct {
    const char *name;
    tsri_region region;
    tsri_role role;
  } item[TSRI_TENSORS + 16];
} run_memory;

static void add_memory(run_memory *m, const char *name, tsri_role role, tsri_region region) {
  m->item[m->count].name = name;
  m->item[m->count].role = role;
  m->item[m->count++].region = region;
}

/* Object pointers of all types share one representation on the platforms we build for. */
static const void *pointer_at(const tsr_args *args, size_t offset) {
  const void *pointer;
  memcpy(&pointer, (const char *)args + offset, sizeof pointer);
  return pointer;
}

tsr_status tsri_validate_pointer(const char *name, const void *pointer, int wanted, int64_t bytes,
                                 int64_t alignment) {
  TSRI_INVALID_IF(pointer && !wanted,
                  "%s: found a pointer, accepted NULL: the problem or the pass does not use it",
                  name);
  TSRI_INVALID_IF(!pointer && wanted && bytes > 0,
                  "%s: found NULL, accepted a pointer to %lld bytes: the problem declares it", name,
                  (LL)bytes);
  TSRI_INVALID_IF((uintptr_t)pointer % (uintptr_t)alignment,
                  "%s: found %p, accepted multiples of %lld bytes", name, pointer, (LL)alignment);
  return TSR_STATUS_SUCCESS;
}

/* Memory that is not there has no address: what a caller gives for it may lie behind the end of a block, in nobody's
 * memory, and backends that look pointers up would refuse it. */
static void forget_pointer(tsr_args *args, size_t offset) {
  const void *none = NULL;
  memcpy((char *)args + offset, &none, sizeof none);
}

static tsr_status check_tensors(const tsr_problem *p, tsr_args *args, run_memory *memory) {
  for (int i = 0; i < TSRI_TENSORS; ++i) {
    const tsri_tensor *t = &tsri_tensors[i];
    const tsr_layout *layout = tsri_tensor_layout_const(p, t);
    const void *pointer = pointer_at(args, t->pointer);
    const tsri_role role = tsri_tensor_role(t, p->passes);
    int64_t dim[4], bytes = 0;
    if (role == TSRI_UNUSED || layout->dtype == TSR_DTYPE_NONE) {
      TSRI_FORWARD(tsri_validate_pointer(t->name, pointer, 0, 0, 1));
      continue;
    }
    tsri_tensor_dims(p, t, dim);
    /* A broadcast dbias has one element along that axis, even of no batches, heads, queries or keys: zeros go there. */
    for (int a = 0; layout == &p->dbias && a < 4; ++a)
      if (!layout->stride[a]) dim[a] = 1;
    TSRI_INVALID_IF(tsri_layout_extent(dim, layout->stride, layout->dtype, &bytes),
                    "%s: found an extent past 2^63-1 bytes", t->name);
    TSRI_FORWARD(tsri_validate_pointer(t->name, pointer, 1, bytes, layout->alignment));
    TSRI_INVALID_IF((uint64_t)bytes > UINTPTR_MAX - (uintptr_t)pointer,
                    "%s: found %lld bytes from %p, accepted what ends inside the address space",
                    t->name, (LL)bytes, pointer);
    if (bytes) {
      add_memory(memory, t->name, role,
                 tsri_region_of(pointer, dim, layout->stride, layout->dtype));
    } else {
      forget_pointer(args, t->pointer);
    }
  }
  return TSR_STATUS_SUCCESS;
}

/* One-dimensional arrays, and the page table as one. */
static tsr_status check_vectors(const tsr_problem *p, tsr_args *a, run_memory *memory) {
  const int backward = p->passes == TSR_PASS_BACKWARD;
  const int64_t index = tsri_dtype_bytes(p->index_dtype);
  const int64_t slopes = p->alibi == TSR_ALIBI_PER_BATCH_HEAD ? p->batch * p->heads_q : p->heads_q;
  const int64_t table =
      p->batch && p->max_pages ? (p->batch - 1) * p->page_table_stride + p->max_pages : 0;
  const struct {
    const char *name;
    size_t pointer; /* offset in tsr_args */
    int wanted;
    int64_t count, size;
  } rows[] = {
      {"alibi", offsetof(tsr_args, alibi), p->alibi != TSR_ALIBI_NONE, slopes, 4},
      {"sink", offsetof(tsr_args, sink), p->sink != 0, p->heads_q, 4},
      {"cu_q", offsetof(tsr_args, cu_q), p->arrays & TSR_ARRAY_CU_Q, p->batch + 1, index},
      {"cu_k", offsetof(tsr_args, cu_k), p->arrays & TSR_ARRAY_CU_K, p->batch + 1, index},
      {"used_q", offsetof(tsr_args, used_q), p->arrays & TSR_ARRAY_USED_Q, p->batch, index},
      {"used_k", offsetof(tsr_args, used_k), p->arrays & TSR_ARRAY_USED_K, p->batch, index},
      {"left_pad_q", offsetof(tsr_args, left_pad_q), p->arrays & TSR_ARRAY_LEFT_PAD_Q, p->batch, index},
      {"left_pad_k", offsetof(tsr_args, left_pad_k), p->arrays & TSR_ARRAY_LEFT_PAD_K, p->batch, index},
      {"prefix", offsetof(tsr_args, prefix), p->arrays & TSR_ARRAY_PREFIX, p->batch, index},
      {"diagonal", offsetof(tsr_args, diagonal), p->arrays & TSR_ARRAY_DIAGONAL, p->batch, index},
      {"page_table", offsetof(tsr_args, page_table), p->page_size != 0, table, index},
      {"rng_state", offsetof(tsr_args, rng_state), a->rng_state && p->dropout > 0, 2, 8},
      {"dsink", offsetof(tsr_args, dsink), backward && p->dsink, p->heads_q, 4},
  };
  const int last = (int)(sizeof rows / sizeof rows[0]) - 1; /* dsink, the only output */
  for (int i = 0; i <= last; ++i) {
    const int64_t bytes = rows[i].wanted ? rows[i].count * rows[i].size : 0;
    const void *pointer = pointer_at(a, rows[i].pointer);
    TSRI_FORWARD(
        tsri_validate_pointer(rows[i].name, pointer, rows[i].wanted, bytes, rows[i].size));
    if (!bytes) {
      forget_pointer(a, rows[i].pointer);
      continue;
    }
    tsri_region region = tsri_region_flat(pointer, bytes);
    if (rows[i].pointer == offsetof(tsr_args, page_table)) {
      const int64_t dim[4] = {p->batch, 1, 1, p->max_pages}; /* without the gaps between its rows */
      const int64_t stride[4] = {p->page_table_stride, 0, 0, 1};
      region = tsri_region_of(a->page_table, dim, stride, p->index_dtype);
    }
    add_memory(memory, rows[i].name, i == last ? TSRI_OUT : TSRI_IN, region);
  }
  TSRI_INVALID_IF(a->rng_state && (a->seed || a->offset),
                  "seed, offset: found %llu, %llu with rng_state, accepted 0, 0",
                  (unsigned long long)a->seed, (unsigned long long)a->offset);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_workspace(size_t needed, tsr_args *a, run_memory *memory) {
  TSRI_INVALID_IF(!a->workspace && a->workspace_size,
                  "workspace: found NULL with workspace_size %zu, accepted a pointer, or both zero",
                  a->workspace_size);
  if (!a->workspace) return TSR_STATUS_SUCCESS;
  TSRI_INVALID_IF(a->workspace_size < needed, "workspace_size: found %zu, accepted %zu or more",
                  a->workspace_size, needed);
  TSRI_INVALID_IF((uintptr_t)a->workspace % 64,
                  "workspace: found %p, accepted multiples of 64 bytes", a->workspace);
  if (needed)
    add_memory(memory, "workspace", TSRI_OUT, tsri_region_flat(a->workspace, (int64_t)needed));
  else
    a->workspace = NULL;
  return TSR_STATUS_SUCCESS;
}

/* Refuses what certainly overlaps (see tsri_regions_collide); inputs may overlap each other. */
static tsr_status check_overlaps(const run_memory *m) {
  for (int i = 0; i < m->count; ++i) {
    for (int j = 0; j < i; ++j) {
      if (m->item[i].role != TSRI_OUT && m->item[j].role != TSRI_OUT) continue;
      const int out = m->item[i].role == TSRI_OUT ? i : j;
      TSRI_INVALID_IF(tsri_regions_collide(&m->item[i].region, &m->item[j].region),
                      "%s: found memory at %p that overlaps %s, accepted outputs apart from every "
                      "other tensor",
                      m->item[out].name, m->item[out].region.base, m->item[i + j - out].name);
    }
  }
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_stream(tsr_device device, const void *stream) {
  TSRI_INVALID_IF(device.kind == TSR_DEVICE_HOST && stream,
                  "stream: found %p, accepted NULL on host devices", stream);
  return TSR_STATUS_SUCCESS;
}

/* Names and values of one side's arrays. */
typedef struct side {
  const char *cu_name, *used_name, *pad_name, *seq_name;
  const void *cu, *used, *pad;
  int64_t seq, total;
} side;

static tsr_status check_offsets(const tsr_problem *p, const side *s) {
  int64_t before = 0;
  if (!s->cu) return TSR_STATUS_SUCCESS;
  for (int64_t b = 0; b <= p->batch; ++b) {
    const int64_t at = tsri_index(s->cu, p->index_dtype, b);
    TSRI_INVALID_IF(at < before, "%s[%lld]: found %lld, accepted %lld or more: %s", s->cu_name,
                    (LL)b, (LL)at, (LL)before, b ? "offsets may not fall" : "offsets are rows");
    TSRI_INVALID_IF(at > s->total, "%s[%lld]: found %lld, accepted at most %lld rows", s->cu_name,
                    (LL)b, (LL)at, (LL)s->total);
    TSRI_INVALID_IF(b && at - before > s->seq,
                    "%s[%lld]: found a sequence of %lld rows, accepted at most %s = %lld",
                    s->cu_name, (LL)b, (LL)(at - before), s->seq_name, (LL)s->seq);
    before = at;
  }
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_lengths(const tsr_problem *p, const side *s) {
  TSRI_FORWARD(check_offsets(p, s));
  if (!s->used && !s->pad) return TSR_STATUS_SUCCESS;
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t slot =
        s->cu ? tsri_index(s->cu, p->index_dtype, b + 1) - tsri_index(s->cu, p->index_dtype, b)
              : s->seq;
    const int64_t pad = tsri_index(s->pad, p->index_dtype, b);
    TSRI_INVALID_IF(pad < 0 || pad > slot, "%s[%lld]: found %lld, accepted 0 .. %lld, its slot",
                    s->pad_name, (LL)b, (LL)pad, (LL)slot);
    if (!s->used) continue;
    const int64_t used = tsri_index(s->used, p->index_dtype, b);
    TSRI_INVALID_IF(used < 0 || used > slot - pad,
                    "%s[%lld]: found %lld, accepted 0 .. %lld, its slot without left padding",
                    s->used_name, (LL)b, (LL)used, (LL)(slot - pad));
  }
  return TSR_STATUS_SUCCESS;
}

/* Entries that no used row needs may hold anything. */
static tsr_status check_page_table(const tsr_problem *p, const tsr_args *a) {
  if (!p->page_size) return TSR_STATUS_SUCCESS;
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t pad = tsri_index(a->left_pad_k, p->index_dtype, b);
    const int64_t used = tsri_index(a->used_k, p->index_dtype, b);
    if (used == 0) continue;
    for (int64_t c = pad / p->page_size; c <= (pad + used - 1) / p->page_size; ++c) {
      const int64_t page = tsri_index(a->page_table, p->index_dtype, b * p->page_table_stride + c);
      TSRI_INVALID_IF(page < 0 || page >= p->num_pages,
                      "page_table[%lld][%lld]: found %lld, accepted 0 .. num_pages - 1 = %lld",
                      (LL)b, (LL)c, (LL)page, (LL)(p->num_pages - 1));
    }
  }
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_arrays(const tsr_problem *p, const tsr_args *a) {
  const side q = {"cu_q",    "used_q",      "left_pad_q", "seq_q",   a->cu_q,
                  a->used_q, a->left_pad_q, p->seq_q,     p->total_q};
  const side k = {"cu_k",    "used_k",      "left_pad_k", "seq_k",   a->cu_k,
                  a->used_k, a->left_pad_k, p->seq_k,     p->total_k};
  TSRI_FORWARD(check_lengths(p, &q));
  TSRI_FORWARD(check_lengths(p, &k));
  TSRI_FORWARD(check_page_table(p, a));
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t prefix = tsri_index(a->prefix, p->index_dtype, b);
    const int64_t diagonal = tsri_index(a->diagonal, p->index_dtype, b);
    TSRI_INVALID_IF(prefix < 0, "prefix[%lld]: found %lld, accepted 0 or more", (LL)b, (LL)prefix);
    TSRI_INVALID_IF(diagonal < -TSRI_DIAGONAL_MAX || diagonal > TSRI_DIAGONAL_MAX,
                    "diagonal[%lld]: found %lld, accepted -2^61 .. 2^61", (LL)b, (LL)diagonal);
  }
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_run(const tsr_resolved *resolved, size_t workspace, const tsr_args *in,
                             tsr_args *out) {
  const tsr_problem *p = &resolved->p;
  run_memory memory;
  memory.count = 0;
  TSRI_FORWARD(tsri_read_struct(out, sizeof *out, in, "tsr_args"));
  TSRI_FORWARD(tsri_validate_stream(resolved->device, out->stream));
  TSRI_FORWARD(check_tensors(p, out, &memory));
  TSRI_FORWARD(check_vectors(p, out, &memory));
  TSRI_FORWARD(check_workspace(workspace, out, &memory));
  TSRI_FORWARD(check_overlaps(&memory));
  if (resolved->device.kind != TSR_DEVICE_HOST) return TSR_STATUS_SUCCESS;
  return tsri_validate_arrays(p, out);
}
