// SPDX-License-Identifier: Apache-2.0
//
// Rows of 16-bit tensors as pointers to contiguous elements, for the packing of amx_pack-inl.h: where
// they are, or copied if their elements are apart. Any target.
#include <stdint.h>

#include "common/geometry.h"
#include "hwy/highway.h"

#if defined(TESSERA_CPU_AMX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_AMX_ROWS_INL_H_
    #undef TESSERA_CPU_AMX_ROWS_INL_H_
  #else
    #define TESSERA_CPU_AMX_ROWS_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// The row at element `at`; line: room for dim elements.
HWY_INLINE const uint16_t *row16(const tsr_layout &layout, const void *base, int64_t at, size_t dim,
                                 uint16_t *line) {
  const uint16_t *from = static_cast<const uint16_t *>(base) + at;
  if (layout.stride[3] == 1) return from;
  for (size_t x = 0; x < dim; ++x) line[x] = from[static_cast<int64_t>(x) * layout.stride[3]];
  return line;
}

// Rows [row, row + n), n at most 32, of K or V of (b, g), and NULL up to 32. room: 32 lines of `line`
// elements.
static HWY_NOINLINE HWY_MAYBE_UNUSED void rows_of_keys(const tsri_pages &pages,
                                                       const tsr_layout &layout, const void *base,
                                                       size_t dim, int64_t b, int64_t g,
                                                       int64_t row, size_t n, uint16_t *room,
                                                       size_t line, const uint16_t **rows) {
  for (size_t t = n; t < 32; ++t) rows[t] = nullptr;
  for (size_t t = 0; t < n;) {
    const int64_t at = row + static_cast<int64_t>(t);
    const int64_t run = tsri_kv_run(&pages, at, static_cast<int64_t>(n - t));
    int64_t offset = tsri_kv_offset(&pages, layout.stride, b, g, at);
    for (int64_t u = 0; u < run; ++u, ++t, offset += layout.stride[2])
      rows[t] = row16(layout, base, offset, dim, room + t * line);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_AMX_ROWS_INL_H_
