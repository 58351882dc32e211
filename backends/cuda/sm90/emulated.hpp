// SPDX-License-Identifier: Apache-2.0
//
// instructions.hpp for the emulator. Stricter than a device: bytes of the copy engine land only when
// somebody waits for them, and products read their operands only when they are waited for, so that what
// is used too early, or overwritten too early, gives wrong results here every time.
#ifndef TESSERA_BACKENDS_CUDA_SM90_EMULATED_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_EMULATED_HPP_

#include <string.h>

#include <vector>

#include "backends/cuda/sm90/instructions.hpp"

namespace tessera {
namespace gpu {

// What a TensorMap is here. Dimensions: column, row, head, batch.
struct EmulatedMap {
  const unsigned char *base;
  int64_t extent[4];
  int64_t stride_bytes[4];
  int32_t rows; // of the box, whose columns are 128 bytes
  int32_t element_bytes;
};
static_assert(sizeof(EmulatedMap) <= sizeof(TensorMap), "fits the place of the device's own");

struct EmulatedPhase {
  uint16_t arrivals;
  uint8_t parity; // of the phase under way
  uint8_t ready;  // initialised: shared memory starts as ones
  int16_t missing;
  int16_t kilobytes_unused;
};

struct EmulatedLoad {
  EmulatedMap map;
  int64_t block;
  uint32_t to, barrier;
  int32_t at[4];
  const void *from; // so many bytes of global memory; 0: a box
  uint32_t bytes;
};
inline std::vector<EmulatedLoad> &emulated_loads() {
  static thread_local std::vector<EmulatedLoad> loads;
  return loads;
}
struct EmulatedBytes { // expected and not yet there, by barrier
  int64_t block;
  uint32_t barrier;
  int64_t bytes;
};
inline std::vector<EmulatedBytes> &emulated_bytes() {
  static thread_local std::vector<EmulatedBytes> bytes;
  return bytes;
}
inline int64_t &emulated_missing_bytes(uint32_t barrier) {
  std::vector<EmulatedBytes> &all = emulated_bytes();
  const int64_t block = emulated_thread().block;
  if (!all.empty() && all[0].block != block) all.clear();
  for (EmulatedBytes &b : all)
    if (b.barrier == barrier) return b.bytes;
  all.push_back(EmulatedBytes{block, barrier, 0});
  return all.back().bytes;
}

inline EmulatedPhase &emulated_phase(uint32_t offset) {
  EmulatedPhase &phase = shared_at<EmulatedPhase>(offset);
  if (phase.ready != 1) emulated_fail("a barrier in shared memory is used before it is made");
  return phase;
}
inline void emulated_phase_end(uint32_t offset) {
  EmulatedPhase &phase = shared_at<EmulatedPhase>(offset);
  if (phase.missing != 0 || emulated_missing_bytes(offset) != 0) return;
  phase.missing = static_cast<int16_t>(phase.arrivals);
  phase.parity ^= 1;
}

inline void phase_init(uint32_t offset, uint32_t arrivals) {
  shared_at<EmulatedPhase>(offset) =
      EmulatedPhase{static_cast<uint16_t>(arrivals), 0, 1, static_cast<int16_t>(arrivals), 0};
  emulated_missing_bytes(offset) = 0;
  std::vector<EmulatedLoad> &loads = emulated_loads();
  if (!loads.empty() && loads[0].block != emulated_thread().block) loads.clear();
}
inline void phase_init_done() {}
inline void phase_arrive(uint32_t offset) {
  EmulatedPhase &phase = emulated_phase(offset);
  if (--phase.missing < 0) emulated_fail("more threads arrive at a barrier than its phase is for");
  emulated_phase_end(offset);
}
inline void phase_expect(uint32_t offset, uint32_t bytes) {
  emulated_phase(offset);
  emulated_missing_bytes(offset) += bytes;
  phase_arrive(offset);
}

inline void emulated_land(const EmulatedLoad &load) {
  if (load.bytes) {
    memcpy(&shared_at<unsigned char>(load.to), load.from, load.bytes);
    emulated_missing_bytes(load.barrier) -= load.bytes;
    return;
  }
  const EmulatedMap &map = load.map;
  const int32_t size = map.element_bytes;
  for (int r = 0; r < map.rows; ++r)
    for (int c = 0; c < 128 / size; ++c) {
      const int64_t at[4] = {load.at[0] + c, load.at[1] + r, load.at[2], load.at[3]};
      const unsigned char *from = map.base;
      bool inside = true;
      for (int d = 0; d < 4; ++d) {
        inside = inside && at[d] >= 0 && at[d] < map.extent[d];
        from += at[d] * map.stride_bytes[d];
      }
      const uint32_t chunk = static_cast<uint32_t>((c * size / 16) ^ (r & 7));
      unsigned char *to = &shared_at<unsigned char>(load.to + static_cast<uint32_t>(r) * 128 + chunk * 16 +
                                                    static_cast<uint32_t>(c * size % 16));
      if (inside)
        memcpy(to, from, static_cast<size_t>(size));
      else
        memset(to, 0, static_cast<size_t>(size));
    }
  emulated_missing_bytes(load.barrier) -= static_cast<int64_t>(map.rows) * 128;
}

struct EmulatedWait {
  uint32_t offset, parity;
};
inline bool emulated_phase_over(const void *what) {
  const EmulatedWait &wait = *static_cast<const EmulatedWait *>(what);
  std::vector<EmulatedLoad> &loads = emulated_loads();
  size_t kept = 0;
  bool landed = false;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].barrier == wait.offset) {
      emulated_land(loads[i]);
      landed = true;
    } else {
      loads[kept++] = loads[i];
    }
  }
  loads.resize(kept);
  if (landed) emulated_phase_end(wait.offset);
  return shared_at<EmulatedPhase>(wait.offset).parity != wait.parity;
}
inline void phase_wait(uint32_t offset, uint32_t parity) {
  const EmulatedWait wait = {offset, parity};
  emulated_phase(offset);
  emulated_wait_until(emulated_phase_over, &wait);
}

inline void tensor_load(uint32_t to, const TensorMap &map, uint32_t barrier, int32_t column, int32_t row,
                        int32_t head, int32_t batch) {
  EmulatedLoad load;
  memcpy(&load.map, map.bytes, sizeof load.map);
  load.block = emulated_thread().block;
  load.to = to;
  load.barrier = barrier;
  const int32_t at[4] = {column, row, head, batch};
  memcpy(load.at, at, sizeof at);
  load.bytes = 0;
  if (to % 1024 != 0) emulated_fail("a tile of the copy engine does not begin at a multiple of 1024");
  emulated_loads().push_back(load);
}
struct EmulatedWord {
  const uint64_t *word;
  uint64_t x;
};
inline bool emulated_word_there(const void *what) {
  const EmulatedWord &wait = *static_cast<const EmulatedWord *>(what);
  return *wait.word >= wait.x;
}
inline void wait_word(const uint64_t *word, uint64_t x) {
  const EmulatedWord wait = {word, x};
  emulated_wait_until(emulated_word_there, &wait);
}

inline void release_word(uint64_t *to, uint64_t x) { store_word(to, x); }
inline uint64_t acquire_word(const uint64_t *word) { return load_word(word); }
inline void await_word(const uint64_t *word, uint64_t x) { wait_word(word, x); }

inline void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  EmulatedLoad load = {};
  load.block = emulated_thread().block;
  load.to = to;
  load.barrier = barrier;
  load.from = from;
  load.bytes = bytes;
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    emulated_fail("a copy of the copy engine is not of whole 16 bytes");
  emulated_loads().push_back(load);
}
inline void tensor_prefetch(const TensorMap &) {}
inline void fence_async() {}
inline void fence_async_all() {}

struct EmulatedAdd {
  int64_t block;
  int thread;
  float *to; // nullptr: a box of `map` at `at` is stored
  uint32_t from, bytes;
  EmulatedMap map;
  int32_t at[4];
};
inline std::vector<EmulatedAdd> &emulated_adds() {
  static thread_local std::vector<EmulatedAdd> adds;
  return adds;
}
inline void emulated_add(const EmulatedAdd &add) {
  std::vector<EmulatedAdd> &adds = emulated_adds();
  if (!adds.empty() && adds[0].block != emulated_thread().block) adds.clear();
  adds.push_back(add);
}
inline void bulk_add(float *to, uint32_t from, uint32_t bytes) {
  if (from % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0)
    emulated_fail("an addition of the copy engine is not of whole 16 bytes");
  emulated_add(EmulatedAdd{emulated_thread().block, thread_index(), to, from, bytes, {}, {}});
}
inline void tensor_store(const TensorMap &map, uint32_t from, int32_t column, int32_t row, int32_t head,
                         int32_t batch) {
  EmulatedAdd store = {emulated_thread().block, thread_index(), nullptr, from, 0, {}, {column, row, head, batch}};
  memcpy(&store.map, map.bytes, sizeof store.map);
  if (from % 1024 != 0) emulated_fail("a box that is stored does not begin at a multiple of 1024");
  emulated_add(store);
}
inline void emulated_store_box(const EmulatedAdd &store) {
  const EmulatedMap &map = store.map;
  for (int32_t r = 0; r < map.rows; ++r)
    for (int32_t c = 0; c < 64; ++c) {
      const int64_t at[4] = {store.at[0] + c, store.at[1] + r, store.at[2], store.at[3]};
      bool inside = true;
      int64_t offset = 0;
      for (int d = 0; d < 4; ++d) {
        inside = inside && at[d] >= 0 && at[d] < map.extent[d];
        offset += at[d] * map.stride_bytes[d];
      }
      if (!inside) continue;
      const uint32_t from = store.from + static_cast<uint32_t>(r) * 128 +
                            (static_cast<uint32_t>(c * 2) ^ (static_cast<uint32_t>(r) & 7) << 4);
      memcpy(const_cast<unsigned char *>(map.base) + offset, &shared_at<uint16_t>(from), 2);
    }
}
inline void bulk_commit() {}
template <int kPending = 0> // none is as good as some
inline void bulk_wait() {
  std::vector<EmulatedAdd> &adds = emulated_adds();
  size_t kept = 0;
  for (const EmulatedAdd &add : std::vector<EmulatedAdd>(adds)) {
    if (add.thread != thread_index() || add.block != emulated_thread().block) {
      adds[kept++] = add;
      continue;
    }
    if (!add.to) emulated_store_box(add);
    for (uint32_t i = 0; i < add.bytes / 4; ++i) add.to[i] += shared_at<float>(add.from + 4 * i);
  }
  adds.resize(kept);
}
inline void bulk_wait_read() { bulk_wait(); }

struct EmulatedStore {
  uint32_t offset, r[4];
};
inline void store_matrices(uint32_t offset, const uint32_t (&r)[4]) {
  EmulatedStore mine = {offset, {r[0], r[1], r[2], r[3]}};
  const unsigned char *all = emulated_meet("stmatrix", &mine, sizeof mine);
  const int lane = lane_index();
  for (int m = 0; m < 4; ++m) // this lane's word of every matrix, into the row of the lane that names it
    shared_at<uint32_t>(met_word(all, 8 * m + lane / 4, 0) + static_cast<uint32_t>(lane % 4 * 4)) = r[m];
}

inline void store_matrices_transposed(uint32_t offset, const uint32_t (&r)[4]) {
  EmulatedStore mine = {offset, {r[0], r[1], r[2], r[3]}};
  const unsigned char *all = emulated_meet("stmatrix.trans", &mine, sizeof mine);
  const int lane = lane_index();
  for (int m = 0; m < 4; ++m) // this lane's two elements of every matrix, each into the row of its column
    for (int i = 0; i < 2; ++i)
      shared_at<uint16_t>(met_word(all, 8 * m + lane % 4 * 2 + i, 0) + static_cast<uint32_t>(lane / 4 * 2)) =
          static_cast<uint16_t>(r[m] >> (16 * i));
}

template <int kRegisters>
inline void more_registers() {}
template <int kRegisters>
inline void fewer_registers() {}

// --------------------------------------------------------------------------------- products

constexpr int kProductBarrier = 16; // numbers that sync_group does not have

inline void matrix_begin() {}
inline void matrix_commit() { emulated_defer_commit(); }
template <int kLeft>
inline void matrix_wait() {
  emulated_defer_wait(kLeft);
  // A product is one of the four warps: when one of them has it, no other still reads its operands.
  emulated_sync_group(kProductBarrier + thread_index() / kWarpgroup, kWarpgroup);
}
template <class Acc, int kCount>
inline void matrix_pin(Acc (&)[kCount]) {}
inline void matrix_pin(float &) {}
inline void matrix_after(float) {}
inline MatrixTile matrix_fresh(MatrixTile tile) { return tile; }

// Elements (line, 0 .. 15) of an operand, over which a product sums. Lines of an operand that is not transposed are
// rows of shared memory, of a transposed one columns.
template <class E>
inline void matrix_line(MatrixTile tile, bool transposed, int line, float (&out)[16]) {
  const unsigned char *shared = emulated_thread().shared;
  const uint32_t base = (tile.low & 0x3fff) << 4, piece = (tile.low >> 16) << 4;
  const uint32_t l = static_cast<uint32_t>(line), step = transposed ? 128 : 2;
  const uint32_t begin = base + (transposed ? l / 64 * piece + l % 64 * 2 : l * 128);
  for (uint32_t k = 0; k < 16; ++k) {
    uint32_t at = begin + k * step;
    at ^= (at >> 7 & 7) << 4; // the swizzle is of addresses
    uint16_t bits;
    memcpy(&bits, shared + at, 2);
    out[k] = E::low(bits);
  }
}

struct EmulatedProduct {
  float *d; // of this lane
  MatrixTile a, b;
  bool a_transposed, b_transposed, in_registers, add;
  int32_t columns, lane, warp;
  uint32_t row[2][8]; // of a in registers: the lane's two rows
};

template <class E>
inline void emulated_product(const void *data) {
  const EmulatedProduct &p = *static_cast<const EmulatedProduct *>(data);
  typedef double Two __attribute__((vector_size(16)));
  float a[2][16], b[16];
  for (int r = 0; r < 2; ++r)
    if (p.in_registers)
      for (int k = 0; k < 16; ++k) a[r][k] = k & 1 ? E::high(p.row[r][k / 2]) : E::low(p.row[r][k / 2]);
    else
      matrix_line<E>(p.a, p.a_transposed, 16 * p.warp + p.lane / 4 + 8 * r, a[r]);
  Two both[16]; // rows
  for (int k = 0; k < 16; ++k) both[k] = Two{a[0][k], a[1][k]};
  for (int j = 0; j < p.columns / 8; ++j)
    for (int e = 0; e < 2; ++e) {
      matrix_line<E>(p.b, p.b_transposed, 8 * j + 2 * (p.lane % 4) + e, b);
      float &d0 = p.d[4 * j + e], &d1 = p.d[4 * j + 2 + e];
      Two sum = p.add ? Two{d0, d1} : Two{}; // rounded once, as by mma.sync
      for (int k = 0; k < 16; ++k) sum += both[k] * static_cast<double>(b[k]);
      d0 = static_cast<float>(sum[0]);
      d1 = static_cast<float>(sum[1]);
    }
}

inline EmulatedProduct emulated_product_of(float *d, int columns, MatrixTile b, bool b_transposed, bool add) {
  EmulatedProduct p = {};
  p.d = d;
  p.b = b;
  p.b_transposed = b_transposed;
  p.add = add;
  p.columns = columns;
  p.lane = thread_index() % 32;
  p.warp = thread_index() / 32 % 4;
  return p;
}

template <bool kATransposed, bool kBTransposed, class E, class Acc, int kCount>
inline void matrix_product(E, Acc (&d)[kCount], MatrixTile a, MatrixTile b, bool add) {
  EmulatedProduct p = emulated_product_of(d[0].x, 16 * kCount, b, kBTransposed, add);
  p.a = a;
  p.a_transposed = kATransposed;
  emulated_defer(emulated_product<E>, &p, sizeof p);
}
template <bool kBTransposed, class E, class Acc, int kCount>
inline void matrix_product_registers(E, Acc (&d)[kCount], const uint32_t (&a)[4], MatrixTile b, bool add) {
  EmulatedProduct p = emulated_product_of(d[0].x, 16 * kCount, b, kBTransposed, add);
  p.in_registers = true;
  const unsigned char *all = emulated_meet("wgmma, A in registers", a, sizeof a);
  for (int r = 0; r < 2; ++r)
    for (int w = 0; w < 8; ++w)
      p.row[r][w] = met_word(all, p.lane / 4 * 4 + w % 4, r + 2 * (w / 4));
  emulated_defer(emulated_product<E>, &p, sizeof p);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_EMULATED_HPP_
