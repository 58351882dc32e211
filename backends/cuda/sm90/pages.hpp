// SPDX-License-Identifier: Apache-2.0
//
// Keys and values in pages, for the loop of forward.hpp. The copy engine's tensor is [pages, Hkv, row of a page,
// column]: a page's number is the outermost coordinate. A tile comes in pieces of as many rows as divide both a
// page and the tile, a multiple of 8, the period of the swizzle: pieces one after the other lie as a tile loaded
// at once does. A whole warp looks up the pages of a tile, a piece a lane, before it waits for the buffer, and one
// of its threads asks for the boxes, which takes so long that keys and values have a warp each. Pieces beyond the
// last key have no page to look up; their boxes lie beyond the last page, so that they are zeros and nothing is read.
#ifndef TESSERA_BACKENDS_CUDA_SM90_PAGES_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_PAGES_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/geometry.h"

namespace tessera {
namespace gpu {

// Where a piece is whose first row is `row` of sequence b, of `keys` rows.
struct PagePlace {
  int32_t page, row; // row: of the page
};
TSRI_DEVICE PagePlace page_place(const tsri_pages &pages, int64_t b, int32_t row, int32_t keys) {
  if (row >= keys) return PagePlace{static_cast<int32_t>(pages.count), 0};
  const uint32_t size = static_cast<uint32_t>(pages.size), page = static_cast<uint32_t>(row) / size;
  const int64_t number = tsri_index(pages.table, pages.dtype, b * pages.stride + page);
  return PagePlace{static_cast<int32_t>(tsri_clamp(number, 0, pages.count - 1)),
                   static_cast<int32_t>(static_cast<uint32_t>(row) - page * size)};
}

// The pieces of a tile into `to`, by one warp; `place` is that of piece number lane. Columns come in parts of 64,
// kPart bytes each.
template <uint32_t kBytes, uint32_t kPart>
TSRI_DEVICE void load_pieces(uint32_t to, const TensorMap &map, uint32_t full, const PagePlace &place,
                             int32_t piece_rows, int pieces, int32_t head) {
  const bool asks = thread_index() % 32 == 0;
  if (asks) phase_expect(full, kBytes);
  TSRI_NO_UNROLL
  for (int n = 0; n < pieces; ++n, to += static_cast<uint32_t>(piece_rows) * 128) {
    const int32_t page = static_cast<int32_t>(shuffle(static_cast<uint32_t>(place.page), n));
    const int32_t row = static_cast<int32_t>(shuffle(static_cast<uint32_t>(place.row), n));
    if (!asks) continue;
    TSRI_UNROLL
    for (uint32_t part = 0; part < kBytes / kPart; ++part)
      tensor_load(to + part * kPart, map, full, static_cast<int32_t>(64 * part), row, head, page);
  }
}

// Keys, or values, of all pieces of work, by one warp. Kernel: EngineForward.
template <class Kernel, bool kValues>
TSRI_DEVICE void load_pages(const EngineForwardArgs &args) {
  constexpr uint32_t kFull = kValues ? Kernel::kFullV : Kernel::kFullK;
  constexpr uint32_t kEmpty = kValues ? Kernel::kEmptyV : Kernel::kEmptyK;
  constexpr uint32_t kTo = kValues ? Kernel::kV : Kernel::kK;
  constexpr uint32_t kBytes = kValues ? Kernel::kBytesV : Kernel::kBytesK;
  constexpr int kTileK = Kernel::kTileK;
  static_assert(kTileK / 8 <= 32, "a lane for every piece");
  const TensorMap &map = kValues ? args.v : args.k;
  const tsri_pages pages = tsri_pages_of(&args.forward.call.p, &args.forward.call.a);
  const int32_t piece_rows = args.box_k;
  const int count = kTileK / piece_rows, lane = thread_index() % 32;
  uint32_t slot = 0, parity = 1; // empty buffers are there from the start
  for (int i = 0; i < Kernel::items(); ++i) {
    const WorkItem &item = Kernel::item_at(i);
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < item.tiles.count; ++n) {
      const int32_t row = KeyTiles::at(item.tiles, n) * kTileK + lane * piece_rows;
      const PagePlace place = page_place(pages, item.k_batch, row, lane < count ? item.keys : 0);
      phase_wait(kEmpty + 8 * slot, parity);
      load_pieces<kBytes, Kernel::kPieceK>(kTo + slot * kBytes, map, kFull + 8 * slot, place, piece_rows, count,
                                           item.k_head);
      if (++slot == Kernel::kRing) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_PAGES_HPP_
