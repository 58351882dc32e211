// SPDX-License-Identifier: Apache-2.0
//
// Accumulators to global memory without a detour: four lanes hold a row's eight neighbouring columns, two
// each; by two exchanges between lanes each gets all eight of one block of four, which is one 16-byte store, and
// the four of them write 64 bytes of a row that follow each other. Takes no shared memory and no barrier, so
// that loads for the next tile may be under way.
#ifndef TESSERA_BACKENDS_CUDA_SM90_STORE_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_STORE_HPP_

#include "backends/cuda/sm80/unit.hpp"
#include "common/gpu/epilogue.hpp"

namespace tessera {
namespace gpu {

// Word w of lane q becomes word q of lane w, among four lanes.
TSRI_DEVICE void transpose_quad(uint32_t (&w)[4]) {
  const int q = thread_index() & 3;
  TSRI_UNROLL
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = q & step;
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      // The lower lane keeps word i and gives word i + step; the upper one the other way round.
      const uint32_t other = shuffle_xor(upper ? w[i] : w[i | step], step);
      if (upper)
        w[i] = other;
      else
        w[i | step] = other;
    }
  }
}

// Writes out[kOut] of the calling warp, whose first row is wave_row, to the first `rows` rows from element `begin`
// of a tensor on, columns 0 .. columns - 1; 16-bit elements, or float32.
template <class U, int kOut>
TSRI_DEVICE void store_registers(const typename U::Acc (&out)[kOut], const tsr_layout &layout, void *data,
                                 int64_t begin, int32_t rows, int wave_row, int columns) {
  using E = typename U::Element;
  const int q = thread_index() & 3;
  TSRI_UNROLL
  for (int slot = 0; slot < 2; ++slot) {
    sync_wave(); // one row after the other, for the registers' sake
    const int r = wave_row + U::free_of(slot);
    const int64_t at = begin + r * layout.stride[2];
    if (layout.dtype != DtypeOf<E>::value) {
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int c = 16 * o + 8 * half + 2 * q;
          if (r < rows && c < columns)
            *reinterpret_cast<Pair *>(static_cast<float *>(data) + at + c) =
                Pair{out[o].x[4 * half + 2 * slot], out[o].x[4 * half + 2 * slot + 1]};
        }
      continue;
    }
    TSRI_UNROLL
    for (int o = 0; o < kOut; o += 2) { // blocks 2 o .. 2 o + 3 of eight columns
      uint32_t w[4] = {0, 0, 0, 0};
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i)
        if (o + i / 2 < kOut)
          w[i] = E::pack(out[o + i / 2 < kOut ? o + i / 2 : 0].x[4 * (i % 2) + 2 * slot],
                         out[o + i / 2 < kOut ? o + i / 2 : 0].x[4 * (i % 2) + 2 * slot + 1]);
      transpose_quad(w);
      const int c = 16 * o + 8 * q;
      if (r < rows && c < columns && c < 16 * kOut)
        store_chunk(static_cast<E *>(data) + at + c, w);
    }
  }
}

// The same by the copy engine, 16-bit elements: by way of 16 rows of 128 bytes at `buffer` of every piece of 64
// columns, pieces kPiece bytes apart, to row `row` of the tensor, whose map has boxes of 16 rows. Rows beyond the
// tensor's last are left out. Before the block ends bulk_wait_read() must follow, by the first lane.
template <class U, int kOut, uint32_t kPiece>
TSRI_DEVICE void store_by_engine(const typename U::Acc (&out)[kOut], uint32_t buffer, const TensorMap &map,
                                 int32_t row, int32_t head, int32_t batch) {
  using E = typename U::Element;
  const int lane = thread_index() % 32;
  const uint32_t at = buffer + static_cast<uint32_t>(lane / 8 % 2 * 8 + lane % 8) * 128;
  if (lane == 0) bulk_wait_read();
  sync_wave();
  TSRI_UNROLL
  for (int o = 0; o < kOut; ++o) {
    uint32_t w[4];
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = E::pack(out[o].x[2 * i], out[o].x[2 * i + 1]);
    const int chunk = o % 4 * 2 + lane / 16;
    store_matrices(at + static_cast<uint32_t>(o / 4) * kPiece + static_cast<uint32_t>((chunk ^ lane % 8) << 4), w);
  }
  fence_async();
  sync_wave();
  if (lane != 0) return;
  TSRI_UNROLL
  for (int piece = 0; piece < ceil_div(kOut, 4); ++piece)
    tensor_store(map, buffer + static_cast<uint32_t>(piece) * kPiece, 64 * piece, row, head, batch);
  bulk_commit();
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_STORE_HPP_
