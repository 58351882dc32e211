// SPDX-License-Identifier: Apache-2.0
//
// What the backward programs of compute capability 9.0 share: tiles by boxes of 64 rows, which all of them
// are made of, and rows that become zeros.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_TILES_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_TILES_HPP_

#include "backends/cuda/sm80/unit.hpp"
#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/store.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/gpu/gradient.hpp"

namespace tessera {
namespace gpu {

constexpr uint32_t kBoxRows = 64; // of the tensor maps of backward

// kBytes as pieces of 64 columns, kPiece bytes each. By one thread.
template <uint32_t kBytes, uint32_t kPiece>
TSRI_DEVICE void load_boxes(uint32_t to, const TensorMap &map, uint32_t full, int32_t row, int32_t head,
                            int32_t batch) {
  constexpr uint32_t box = kBoxRows * 128;
  static_assert(kPiece % box == 0, "whole boxes");
  phase_expect(full, kBytes);
  TSRI_UNROLL
  for (uint32_t at = 0; at < kBytes; at += box)
    tensor_load(to + at, map, full, static_cast<int32_t>(64 * (at / kPiece)),
                row + static_cast<int32_t>(at % kPiece / 128), head, batch);
}

// Rows [0, from) and [to, rows of the tile) of a tile become zeros: they are whatever memory holds, and 0
// times it need not be 0. By a warpgroup, each for itself; barrier: a named one of it.
template <uint32_t kBytes, uint32_t kPiece>
TSRI_DEVICE void clear_rows(uint32_t tile, int32_t from, int32_t to, int barrier) {
  const int first = fresh_thread_index() % kWarpgroup; // nothing of this is kept in registers across a loop
  TSRI_NO_UNROLL
  for (uint32_t piece = 0; piece < kBytes; piece += kPiece)
    TSRI_NO_UNROLL
    for (int i = first; i < static_cast<int>(kPiece / 16); i += kWarpgroup)
      if (i / 8 < from || i / 8 >= to)
        shared_at<Chunk>(tile + piece + static_cast<uint32_t>(i) * 16) = Chunk{{0, 0, 0, 0}};
  fence_async();
  sync_group(barrier, kWarpgroup);
}

// acc[row of x][row of y] = X Y^T over kDepth steps; pieces kPieceX and kPieceY bytes.
template <class E, int kDepth, uint32_t kPieceX, uint32_t kPieceY, class Acc, int kCount>
TSRI_DEVICE void start_scores(Acc (&acc)[kCount], MatrixTile x, MatrixTile y) {
  x = matrix_fresh(x);
  y = matrix_fresh(y);
  TSRI_UNROLL
  for (int t = 0; t < kDepth; ++t)
    matrix_product<false, false>(E{}, acc, matrix_at(x, t / 4 * kPieceX + t % 4 * 32),
                                 matrix_at(y, t / 4 * kPieceY + t % 4 * 32), t > 0);
  matrix_commit();
}

// out[row of p][column of z] += P Z, P in registers.
template <class E, class Acc, int kOut, int kCon>
TSRI_DEVICE void start_sums(Acc (&out)[kOut], const uint32_t (&p)[kCon][4], MatrixTile z) {
  z = matrix_fresh(z);
  TSRI_UNROLL
  for (int c = 0; c < kCon; ++c)
    matrix_product_registers<true>(E{}, out, p[c], matrix_at(z, static_cast<uint32_t>(c) * 2048), true);
  matrix_commit();
}

template <class E, class Acc, int kCon>
TSRI_DEVICE void pack_operand(uint32_t (&p)[kCon][4], const Acc (&s)[kCon]) {
  TSRI_UNROLL
  for (int c = 0; c < kCon; ++c)
    TSRI_UNROLL
    for (int r = 0; r < 4; ++r) p[c][r] = E::pack(s[c].x[2 * r], s[c].x[2 * r + 1]);
}

// factor * out of the calling warp into a gradient tensor; nothing when it was not asked for. Rows of the tile
// outside [first, last) are padding and become zeros: a p of 0 times what is not finite is none.
template <class U, int kOut>
TSRI_DEVICE void store_warp_gradient(typename U::Acc (&out)[kOut], float factor, int32_t first, int32_t last,
                                     const tsr_layout &layout, void *data, int64_t b, int64_t h, int64_t row,
                                     int32_t rows, int warp_row, int64_t columns) {
  if (layout.dtype == TSR_DTYPE_NONE) return;
  TSRI_UNROLL
  for (int slot = 0; slot < 2; ++slot) {
    const int32_t r = warp_row + U::free_of(slot);
    const bool used = r >= first && r < last;
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e)
        if (U::slot(e) == slot) out[o].x[e] = used ? out[o].x[e] * factor : 0.0f;
  }
  store_registers<U, kOut>(out, layout, data, tsri_row_offset(layout.stride, b, h, row), rows, warp_row,
                           static_cast<int>(columns));
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_TILES_HPP_
