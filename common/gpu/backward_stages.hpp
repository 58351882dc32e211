// SPDX-License-Identifier: Apache-2.0
//
// Query tiles of backward on their way through registers: Q and dO as rows and turned, and the numbers of a row.
#ifndef TESSERA_COMMON_GPU_BACKWARD_STAGES_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_STAGES_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/stage.hpp"

namespace tessera {
namespace gpu {

// Shared: has the row sources q and dout of the current head, its row `stats` of query 0, and the sequence. TurnedQ
// and TurnedO: tiles of a chunk of columns, not transposed where the unit reads columns of plain tiles.
template <class E, class TileQ, class TileO, class TurnedQ, class TurnedO, int kThreads, bool kAny>
struct QueryStages {
  static constexpr int kTileQ = TileQ::kRows;
  static constexpr bool kTurned = TurnedQ::kTransposed;
  using StageQ = Stage<E, TileQ, kThreads>;
  using StageO = Stage<E, TileO, kThreads>;
  using StageTurnedQ = Stage<E, TurnedQ, kThreads>;
  using StageTurnedO = Stage<E, TurnedO, kThreads>;
  static constexpr bool kRegular =
      StageQ::kRegular && StageO::kRegular && StageTurnedQ::kRegular && StageTurnedO::kRegular;

  StageQ q;
  StageO o;
  StageTurnedQ turned_q;
  StageTurnedO turned_o;
  CopyWords numbers; // of thread i: RowStat of row i
  // Of tiles inside the sequence: a thread's parts, where the next tile is, bytes of a row.
  StageLane lane_q, lane_o, lane_turned_q, lane_turned_o;
  const unsigned char *next_q, *next_o, *next_numbers;
  int64_t q_bytes, o_bytes;

  // For a run of tiles inside the sequence, of which the first to load is tile n; columns of the turned tiles.
  // False: rows are too far from each other.
  template <class Shared>
  TSRI_DEVICE_MEMBER bool start(QueryStages &x, const Shared &shared, const RowStat *stats, int32_t n, int column_q,
                                int column_o) {
    const RowSource &q = shared.q, &o = shared.dout;
    x.lane_q = StageQ::lane_part(q, 0, thread_index());
    x.lane_o = StageO::lane_part(o, 0, thread_index());
    x.lane_turned_q = StageTurnedQ::lane_part(q, column_q, thread_index());
    x.lane_turned_o = StageTurnedO::lane_part(o, column_o, thread_index());
    const int64_t row = int64_t{n} * kTileQ;
    x.q_bytes = uniform(q.row_bytes);
    x.o_bytes = uniform(o.row_bytes);
    x.next_q = uniform(q.base + (q.first + row) * q.row_bytes);
    x.next_o = uniform(o.base + (o.first + row) * o.row_bytes);
    x.next_numbers = uniform(reinterpret_cast<const unsigned char *>(stats + shared.stats + row));
    return uniform(rows_are_near(q, kTileQ) && rows_are_near(o, kTileQ)) != 0;
  }

  template <class Shared>
  TSRI_DEVICE_MEMBER void fetch(QueryStages &x, const Shared &shared, const RowStat *stats, int32_t i0, int column_q,
                                int column_o) {
    StageQ::template fetch<kAny>(x.q, shared.q, i0, 0, thread_index());
    StageO::template fetch<kAny>(x.o, shared.dout, i0, 0, thread_index());
    if constexpr (kTurned) {
      StageTurnedQ::template fetch<kAny>(x.turned_q, shared.q, i0, column_q, thread_index());
      StageTurnedO::template fetch<kAny>(x.turned_o, shared.dout, i0, column_o, thread_index());
    }
    x.numbers = CopyWords{0, 0, 0, 0}; // rows beyond the last: an empty band
    if (thread_index() < kTileQ && i0 + thread_index() < static_cast<int32_t>(shared.sequence.q.len))
      x.numbers = load_global<CopyWords>(stats + shared.stats + i0 + thread_index());
  }
  TSRI_DEVICE_MEMBER void fetch_inside(QueryStages &x) {
    StageQ::fetch_inside(x.q, x.next_q, x.q_bytes, x.lane_q);
    StageO::fetch_inside(x.o, x.next_o, x.o_bytes, x.lane_o);
    if constexpr (kTurned) {
      StageTurnedQ::fetch_inside(x.turned_q, x.next_q, x.q_bytes, x.lane_turned_q);
      StageTurnedO::fetch_inside(x.turned_o, x.next_o, x.o_bytes, x.lane_turned_o);
    }
    if (thread_index() < kTileQ)
      x.numbers = load_lane<CopyWords>(x.next_numbers, static_cast<uint32_t>(thread_index()) * 16);
    x.next_q += kTileQ * x.q_bytes;
    x.next_o += kTileQ * x.o_bytes;
    x.next_numbers += kTileQ * sizeof(RowStat);
  }

  // Into the tiles at these offsets of shared memory. A barrier must follow.
  TSRI_DEVICE_MEMBER void store(const QueryStages &x, uint32_t q, uint32_t o, uint32_t turned_q, uint32_t turned_o,
                                uint32_t numbers) {
    StageQ::store(x.q, q, thread_index());
    StageO::store(x.o, o, thread_index());
    if constexpr (kTurned) {
      StageTurnedQ::store(x.turned_q, turned_q, thread_index());
      StageTurnedO::store(x.turned_o, turned_o, thread_index());
    }
    store_numbers(x, numbers);
  }
  TSRI_DEVICE_MEMBER void store_inside(const QueryStages &x, uint32_t q, uint32_t o, uint32_t turned_q,
                                       uint32_t turned_o, uint32_t numbers) {
    if (x.lane_q.any) StageQ::store(x.q, q, thread_index());
    if (x.lane_o.any) StageO::store(x.o, o, thread_index());
    if constexpr (kTurned) {
      if (x.lane_turned_q.any) StageTurnedQ::store(x.turned_q, turned_q, thread_index());
      if (x.lane_turned_o.any) StageTurnedO::store(x.turned_o, turned_o, thread_index());
    }
    store_numbers(x, numbers);
  }
  TSRI_DEVICE_MEMBER void store_numbers(const QueryStages &x, uint32_t numbers) {
    if (thread_index() < kTileQ)
      shared_at<CopyWords>(numbers + static_cast<uint32_t>(thread_index()) * 16) = x.numbers;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_STAGES_HPP_
