// SPDX-License-Identifier: Apache-2.0
//
// The way of dQ through its float sums, beside the products of other units, by two warps that would have nothing to do.
// One adds what the multiplying warps leave in shared memory, in any order or in a known one, and reports which sums are
// all there; one turns those of whole sets (see SumOrder) into dQ and back into zeros. So sums
// need memory for the sets under way alone, which L2 holds unless heads are short, and neither the kernel that clears them nor one that
// reads them later moves them through slow memory. Only blocks that run have units or pieces, all are handed out in
// order, and whoever waits does so for what was handed out before: of the last set but `ring` or of its own.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_SUMS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_SUMS_HPP_

#include "backends/cuda/sm90/backward_keys.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv>
struct EngineSums : EngineKeys<E, kTileQ_, kTileK_, kDqk, kDv> {
  using Keys = EngineKeys<E, kTileQ_, kTileK_, kDqk, kDv>;
  using Keys::handed_out, Keys::slot_of, Keys::parity_of, Keys::number, Keys::arrive_warp;
  // A warpgroup's half of dQ of a turn is in shared memory; it has been read.
  static constexpr uint32_t kFullD = Keys::kMore, kEmptyD = kFullD + 8 * 2, kSumsMore = kEmptyD + 8 * 2;
  // 16 columns of a piece, as a warp has them: 64 queries.
  static constexpr uint32_t kPart = 16 * 64 * 4;
  static constexpr int kParts = 4;

  // What a warp that takes pieces remembers, in shared memory: the warps that load have 24 registers.
  struct alignas(16) Taken {
    int32_t n;     // first of the pieces
    int32_t next;  // of those it takes next
    int32_t there; // a set whose sums are known to be
    int32_t unused;
  };

  // Unit u is told of, by the warp that does so.
  TSRI_DEVICE_MEMBER void tell(const KeyOrder &order, int32_t u) {
    sync_wave(); // some lane has seen the sums
    if (order.sums.pieces && fresh_thread_index() % 32 == 0) {
      fence_device();
      increment_word(order.sums.added + handed_out(u).set);
    }
    arrive_warp(Keys::kEmptyW + 8 * slot_of(u));
  }
  // Every tile's dQ, two halves of `bytes` in shared memory from `at` on, one of each warpgroup, is added to its sums by
  // one thread. kOrdered: where it is after that of the tile of keys before; then the order of all additions is known
  // beforehand, and whoever comes next is told. Of unit u, from turn n on; returns the turn after its last.
  // A turn of 64 queries has little more time than adding takes, so waits overlap there (kHasty): the halves, which are there
  // together because both warpgroups are at the same turn, are read together; meanwhile a look at the next turn's word is on its way; and of long heads a tile is told of while the
  // next one is added, not when its own addition has arrived. Short ones do not gain by that: tiles of keys trail each other by more.
  template <bool kOrdered>
  TSRI_DEVICE_MEMBER int32_t add_tiles(const BackwardArgs &args, int32_t u, int32_t n, uint32_t at, uint32_t bytes) {
    constexpr bool kHasty = kOrdered && kTileQ_ < 128;
    const bool late = kHasty && handed_out(u).queries > (kTilesToldLate - 1) * kTileQ_;
    int32_t untold = -1; // the tile before
    uint32_t seen = 0;   // of the word that the turn waits for
    Keys::template each_turn<kOrdered>(handed_out(u), [&](int32_t head, int32_t tile) {
      const int32_t in_head = head * handed_out(u).head_sums + tile;
      float *sum = args.dq_sum + int64_t{handed_out(u).sums + in_head} * (bytes / 2);
      if (kOrdered && tile < handed_out(u).before) {
        const int32_t keys = handed_out(u).tile;
        if (seen < static_cast<uint32_t>(keys)) await_word(passed_at(args, u, in_head), static_cast<uint64_t>(keys));
        fence_async_all();
      }
      const uint32_t parity = static_cast<uint32_t>(n) & 1;
      TSRI_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        phase_wait(kFullD + 8 * half, parity);
        bulk_add(sum + half * (bytes / 4), at + half * bytes, bytes);
        bulk_commit();
        if (kHasty) continue;
        bulk_wait_read();
        phase_arrive(kEmptyD + 8 * half);
      }
      if constexpr (kHasty) {
        const bool same = head + 1 < handed_out(u).heads;
        if (same || tile > handed_out(u).begin)
          seen = static_cast<uint32_t>(
              acquire_word(passed_at(args, u, same ? in_head + handed_out(u).head_sums : tile - 1)));
        if (untold >= 0) {
          bulk_wait<2>();
          tell_passed(args, u, untold);
        }
        untold = late ? in_head : -1;
        bulk_wait_read();
        phase_arrive(kEmptyD);
        phase_arrive(kEmptyD + 8);
      }
      if (kOrdered && !late) {
        bulk_wait();
        tell_passed(args, u, in_head);
      }
      ++n;
    });
    bulk_wait();
    if (untold >= 0) tell_passed(args, u, untold);
    return n;
  }
  TSRI_DEVICE_MEMBER uint64_t *passed_at(const BackwardArgs &args, int32_t u, int32_t in_head) {
    return args.order.passed + handed_out(u).passed + in_head;
  }
  // Who sees it sees the sums too.
  TSRI_DEVICE_MEMBER void tell_passed(const BackwardArgs &args, int32_t u, int32_t in_head) {
    release_word(passed_at(args, u, in_head), static_cast<uint64_t>(handed_out(u).tile) + 1);
  }
  // Of all units of the block, by a warp.
  template <bool kOrdered>
  TSRI_DEVICE_MEMBER void add_all(const BackwardArgs &args, uint32_t at, uint32_t bytes) {
    int32_t n = 0;
    TSRI_NO_UNROLL
    for (int32_t u = 0;; ++u) {
      phase_wait(Keys::kFullW + 8 * slot_of(u), parity_of(u));
      if (handed_out(u).b < 0) break;
      if (fresh_thread_index() % 32 == 0) n = add_tiles<kOrdered>(args, u, n, at, bytes);
      tell(args.order, u);
    }
  }

  // Where part i of four of a piece lies.
  TSRI_DEVICE_MEMBER float *part_at(const BackwardArgs &args, int32_t from, int i) {
    return args.dq_sum + (int64_t{from} * kParts + i) * static_cast<int64_t>(kPart / 4);
  }
  TSRI_DEVICE_MEMBER void zero_part(float *sum) {
    const uint32_t zeros[4] = {0, 0, 0, 0};
    sum += fresh_thread_index() % 32 * 4;
    TSRI_UNROLL
    for (int i = 0; i < static_cast<int>(kPart) / 512; ++i) store_chunk(sum + i * 128, zeros);
  }

  // A part that has arrived becomes rows of 16 elements, by a warp. It lies as accumulators of dQ^T do and is turned
  // where it lies, each 16 queries where the floats of eight have been read.
  TSRI_DEVICE_MEMBER void pack_queries(uint32_t (&packed)[4], float scale, uint32_t at) {
    TSRI_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const Chunk x = shared_at<Chunk>(at + half * 512);
      TSRI_UNROLL
      for (uint32_t w = 0; w < 2; ++w)
        packed[2 * half + w] = E::pack(scale * bits_float(x.w[2 * w]), scale * bits_float(x.w[2 * w + 1]));
    }
  }
  TSRI_DEVICE_MEMBER void turn_part(float scale, uint32_t at) {
    const int lane = fresh_thread_index() % 32;
    const uint32_t row =
        at + static_cast<uint32_t>(lane / 16 * 8 + lane % 8) * 32 + static_cast<uint32_t>(lane / 8 % 2) * 16;
    at += static_cast<uint32_t>(lane) * 16;
    TSRI_NO_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      uint32_t packed[2][4];
      TSRI_UNROLL
      for (uint32_t k = 0; k < 2; ++k) pack_queries(packed[k], scale, at + i * 2048 + k * 1024);
      sync_wave(); // all have read
      TSRI_UNROLL
      for (uint32_t k = 0; k < 2; ++k) store_matrices_transposed(row + i * 1024 + k * 512, packed[k]);
    }
    sync_wave();
  }
  TSRI_DEVICE_MEMBER int32_t parts_of(const SumOrder &sums, int32_t n, int pieces) {
    return kParts * smaller(pieces, 2 * sums.set_tiles * sums.sets - n);
  }
  template <int kPieces>
  TSRI_DEVICE_MEMBER void take_next(const SumOrder &sums, uint32_t state) {
    if (fresh_thread_index() % 32 == 0)
      shared_at<Taken>(state).next = static_cast<int32_t>(add_word(sums.next, kPieces));
  }
  // Whether all units of a set have added, and the sums that were in its place have left: if no unit has anything to
  // add, none has waited for that. waits: until then.
  TSRI_DEVICE_MEMBER bool has_set(const KeyOrder &order, int32_t set, bool waits) {
    const SumOrder &sums = order.sums;
    const int32_t before = set - sums.ring;
    const uint64_t units = static_cast<uint64_t>(order.tiles), pieces = static_cast<uint64_t>(2 * sums.set_tiles);
    if (waits) {
      wait_word(sums.added + set, units);
      if (before >= 0) wait_word(sums.freed + before, pieces);
      return true;
    }
    return !any_lane(load_word(sums.added + set) < units || (before >= 0 && load_word(sums.freed + before) < pieces));
  }

  // The pieces taken, of which every lane has a word: to read one from memory again with each part takes longer than to
  // turn it.
  static constexpr int kPieceWords = sizeof(SumPiece) / 4;
  TSRI_DEVICE_MEMBER uint32_t load_pieces(const SumOrder &sums, int32_t n, int pieces) {
    const int lane = fresh_thread_index() % 32;
    if (lane / kPieceWords * kParts >= parts_of(sums, n, pieces)) return 0;
    return reinterpret_cast<const uint32_t *>(sums.pieces + n)[lane];
  }
  TSRI_DEVICE_MEMBER uint32_t piece_word(uint32_t own, int32_t i, int word) {
    return shuffle(own, i / kParts * kPieceWords + word);
  }
  TSRI_DEVICE_MEMBER int32_t piece_set(uint32_t own, int32_t i) { return static_cast<int32_t>(piece_word(own, i, 2)); }
  TSRI_DEVICE_MEMBER int32_t piece_from(uint32_t own, int32_t i) { return static_cast<int32_t>(piece_word(own, i, 3)); }
  TSRI_DEVICE_MEMBER bool piece_frees(uint32_t own, int32_t i) { return piece_word(own, i, 6) != 0; }

  // The rows of part i into the tensor, 16 bytes a lane.
  TSRI_DEVICE_MEMBER void write_part(const BackwardArgs &args, uint32_t at, uint32_t own, int i) {
    const int lane = fresh_thread_index() % 32, column = i % kParts * 16 + lane % 2 * 8;
    const int32_t left = static_cast<int32_t>(piece_word(own, i, 4)), columns = static_cast<int32_t>(piece_word(own, i, 5));
    const int64_t to = static_cast<int64_t>(uint64_t{piece_word(own, i, 1)} << 32 | piece_word(own, i, 0));
    const int rows = column < columns ? left - lane / 2 : 0;
    const int64_t stride = args.call.p.dq.stride[2];
    uint16_t *row = static_cast<uint16_t *>(args.call.a.dq) + to + column + lane / 2 * stride;
    at += static_cast<uint32_t>(lane) * 16;
    TSRI_UNROLL
    for (int r = 0; r < 64; r += 16)
      if (r < rows) store_chunk(row + r * stride, shared_at<Chunk>(at + static_cast<uint32_t>(r) * 32).w);
  }

  // Starts part i of pieces from n on, or, if others may wait for parts that are under way, false: not yet.
  template <int kCount>
  TSRI_DEVICE_MEMBER bool start_part(const BackwardArgs &args, uint32_t own, int32_t i, bool waits, uint32_t at, uint32_t full,
                                     uint32_t state) {
    const int32_t set = piece_set(own, i);
    if (set != shared_at<Taken>(state).there) {
      if (!has_set(args.order, set, waits)) return false;
      fence_device();
      fence_async_all();
      sync_wave();
      if (fresh_thread_index() % 32 == 0) shared_at<Taken>(state).there = set;
    }
    sync_wave();
    const int32_t from = piece_from(own, i);
    if (fresh_thread_index() % 32 == 0) {
      const uint32_t slot = static_cast<uint32_t>(i) % kCount;
      phase_expect(full + 8 * slot, kPart);
      bulk_load(at + slot * kPart, part_at(args, from, i % kParts), kPart, full + 8 * slot);
    }
    return true;
  }
  template <int kCount>
  TSRI_DEVICE_MEMBER uint32_t buffer_of(uint32_t at, int i) { return at + static_cast<uint32_t>(i) % kCount * kPart; }
  template <int kCount>
  TSRI_DEVICE_MEMBER void end_part(const BackwardArgs &args, uint32_t own, int i, uint32_t at, uint32_t full) {
    phase_wait(full + 8 * (static_cast<uint32_t>(i) % kCount), static_cast<uint32_t>(i / kCount) & 1);
    turn_part(args.call.p.scale, buffer_of<kCount>(at, i));
    keep_register(i); // what follows from it is found anew
    write_part(args, buffer_of<kCount>(at, i), own, i);
    if (piece_frees(own, i)) zero_part(part_at(args, piece_from(own, i), i % kParts));
    fence_async(); // the buffer
  }

  // Takes kPieces pieces at a time until there are none, by a warp, with up to kCount parts on their way in buffers
  // from `at` on, whose barriers begin at `full`. It does not wait for a set while parts of another are under way; what
  // it took is counted as freed together, so that a set may wait for the next one or two.
  template <int kPieces, int kCount>
  TSRI_DEVICE_MEMBER void finish_sums(const BackwardArgs &args, uint32_t at, uint32_t full, uint32_t state) {
    static_assert(kParts * kPieces % (2 * kCount) == 0, "phases of barriers begin anew with all that is taken");
    const SumOrder &sums = args.order.sums;
    if (fresh_thread_index() % 32 == 0) shared_at<Taken>(state).there = -1;
    take_next<kPieces>(sums, state);
    TSRI_NO_UNROLL
    for (;;) {
      sync_wave();
      const int32_t n = shared_at<Taken>(state).next;
      if (parts_of(sums, n, kPieces) <= 0) break;
      sync_wave();
      if (fresh_thread_index() % 32 == 0) shared_at<Taken>(state).n = n;
      take_next<kPieces>(sums, state); // early: it takes its time
      const uint32_t own = load_pieces(sums, n, kPieces);
      sync_wave();
      int32_t started = 0;
      TSRI_NO_UNROLL
      for (int32_t done = 0; done < parts_of(sums, shared_at<Taken>(state).n, kPieces); ++done) {
        TSRI_NO_UNROLL
        while (started - done < kCount && started < parts_of(sums, shared_at<Taken>(state).n, kPieces)) {
          if (!start_part<kCount>(args, own, started, started == done, at, full, state)) break;
          ++started;
        }
        end_part<kCount>(args, own, done, at, full);
      }
      fence_async_all(); // zeros
      sync_wave();
      const int i = smaller(fresh_thread_index() % 32, kPieces - 1) * kParts;
      const int32_t set = piece_set(own, i);
      if (piece_frees(own, i) && fresh_thread_index() % 32 < kPieces) { // of none that there is no longer
        fence_device();
        increment_word(sums.freed + set);
      }
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_SUMS_HPP_
