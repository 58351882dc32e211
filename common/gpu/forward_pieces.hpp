// SPDX-License-Identifier: Apache-2.0
//
// Forward of a block whose lanes copy to shared memory by cp.async, for interval masks on aligned tensors: the walk
// over key tiles, in pieces of keys, which take fewer registers than a tile.
//
// Nobody looks for maxima of rows as long as sums tell that m has not fallen behind: a lane adds up its probabilities
// of a piece anyway, and a sum of at most kMuch has no score far above m. Otherwise (or of a NaN) lanes meet, rows with
// such a sum in one of their lanes move m to their maximum, and the piece is folded again. So a row decides by its own
// scores alone. Before a row has seen a key it is measured from -inf, where every sum is much.
#ifndef TESSERA_COMMON_GPU_FORWARD_PIECES_HPP_
#define TESSERA_COMMON_GPU_FORWARD_PIECES_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/product.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// The interval rule of a sequence in 32 bits.
struct BandRule {
  tsri_mask_band band;
  int32_t sq, sk, prefix;

  TSRI_DEVICE_MEMBER BandRule of(const tsri_mask_rule &rule) {
    return BandRule{tsri_mask_band_of(&rule), static_cast<int32_t>(rule.sq), static_cast<int32_t>(rule.sk),
                    static_cast<int32_t>(rule.prefix)};
  }
  // i + offset, cut to keys [least, sk]. i >= 0, so that the sum fits without a sign where offset is not negative.
  TSRI_DEVICE_MEMBER int32_t key(const BandRule &r, int32_t i, int32_t offset, int32_t least) {
    const uint32_t sum = static_cast<uint32_t>(i) + static_cast<uint32_t>(offset);
    const int32_t x = offset >= 0 && sum > static_cast<uint32_t>(r.sk) ? r.sk : static_cast<int32_t>(sum);
    return smaller(larger(x, least), r.sk);
  }
  // Band of row i; of rows that are not of the sequence one that lets nothing through.
  TSRI_DEVICE_MEMBER RowBand row(const BandRule &r, int32_t i) {
    RowBand band;
    band.lo = r.band.lo == -INT32_MAX ? r.prefix : key(r, i, r.band.lo, r.prefix);
    band.hi = r.band.hi == INT32_MAX ? r.sk : key(r, i, r.band.hi, band.lo);
    return static_cast<uint32_t>(i) < static_cast<uint32_t>(r.sq) ? band : RowBand{INT32_MAX, INT32_MIN};
  }
  // Allowed keys of row i relative to key0.
  TSRI_DEVICE_MEMBER Limits limits(const BandRule &r, int32_t i, int32_t key0) {
    const RowBand band = row(r, i);
    const bool unused = band.lo > band.hi;
    return Limits{unused ? INT32_MIN : r.prefix - key0, unused ? 0 : band.lo - key0, unused ? 0 : band.hi - key0};
  }
  // Rows [i0, i1).
  TSRI_DEVICE_MEMBER RowsClass rows(const BandRule &r, int32_t i0, int32_t i1) {
    if (i0 >= i1) return RowsClass{0, 0, 0, 0, 0};
    return rows_class(row(r, i0), row(r, i1 - 1), r.prefix);
  }
  // As key_tiles(). i0, i1: inside the sequence.
  TSRI_DEVICE_MEMBER KeyTiles tiles(const BandRule &r, int32_t i0, int32_t i1, int32_t keys) {
    KeyTiles t = {0, 0, 0};
    if (i0 >= i1) return t;
    const int32_t lo = row(r, i0).lo, hi = row(r, i1 - 1).hi;
    t.head = t.band = t.count = up(r.prefix, keys);
    if (hi > lo) {
      t.band = larger(lo / keys, t.head);
      t.count += larger(up(hi, keys) - t.band, 0);
    }
    t.head = uniform(t.head);
    t.band = uniform(t.band);
    t.count = uniform(t.count);
    return t;
  }
  // ceil(x / by) of x >= 0.
  TSRI_DEVICE_MEMBER int32_t up(int32_t x, int32_t by) {
    return static_cast<int32_t>((static_cast<uint32_t>(x) + static_cast<uint32_t>(by - 1)) / static_cast<uint32_t>(by));
  }
};

// What a walk needs now and then, of shared memory.
struct PieceWalk {
  KeyTiles tiles;
  BandRule band;
  int32_t i0; // used row of the tile's first row
  int32_t row0, column, h; // of the outputs
  int64_t b;
};

// The walk of waves that share rows, in forward_pairs.hpp.
template <class F, class U>
struct Pairs;

// F: Forward<U, ...>.
template <class F, class U>
struct Pieces {
  using E = typename U::Element;
  using State = typename F::State;
  using Shared = typename F::Shared;
  using TileQ = typename F::TileQ;
  using TileK = typename F::TileK;
  using TileV = typename F::TileV;
  static constexpr int kTileQ = F::kTileQ, kTileK = F::kTileK, kThreads = F::kThreads;
  static constexpr int kFree = F::kFree, kDepth = F::kDepth, kSlots = F::kSlots, kStages = F::kKeyStages;
  static constexpr int kPiece = F::kPieceKeys, kCon = kPiece / U::kCon, kPieces = kTileK / kPiece;
  static constexpr int kSteps = kCon * F::kApply;
  // Sums of a row under way in a lane: one where a third block needs the registers.
  static constexpr int kChains = F::kMinBlocks > 2 ? 1 : 2;
  static constexpr float kMuch = 64.0f; // of a lane's sum over a piece
  static_assert(kStages > 1 || F::kShare > 1, "a piece reads K of its own");
  using Copies = LaneCopies<TileK, kThreads>;
  using CopiesV = LaneCopies<TileV, kThreads>;
  using CopiesQ = LaneCopies<TileQ, kThreads>;
  static_assert(Copies::kRegular && CopiesV::kRegular && CopiesQ::kRegular, "lanes go down by rows");
  using Scores = typename U::Acc[kFree][kCon];
  using Probs = typename U::P[kFree][kSteps];

  // What a thread keeps of K or V: its first chunk of key 0, and keys that it has to copy.
  struct alignas(16) Side {
    const unsigned char *from;
    int32_t length;
  };
  struct Walk {
    int32_t full_begin, full_end; // tiles that all rows of the wave see whole
    uint32_t q_offset;
    float unit;
    float minus_ready[kSlots]; // what scores times unit are measured from
  };

  // m of a row of this lane, which is seldom asked for.
  TSRI_DEVICE_MEMBER float &maximum(int r) {
    return shared_at<float>(F::kMaxima + static_cast<uint32_t>(r * kThreads + thread_index()) * 4);
  }
  template <class C>
  TSRI_DEVICE_MEMBER Side side_of(const RowSource &s, int32_t column) {
    const int c = thread_index() % C::Target::kChunks;
    return Side{C::source(s, 0, column, thread_index()), c * C::Target::kPerChunk < s.columns - column ? s.length : 0};
  }
  template <class C>
  TSRI_DEVICE_MEMBER void load(const Side &side, const tsr_layout &layout, uint32_t tile, int32_t key0) {
    C copies = C::start(tile, side.from + key0 * layout.stride[2] * static_cast<int64_t>(sizeof(E)),
                        layout.stride[2] * static_cast<int64_t>(sizeof(E)), side.length - key0, C::Target::kColumns,
                        thread_index());
    C::issue(copies, 0, 1);
  }
  // Kept in shared memory: registers have no room, and a tile asks once.
  TSRI_DEVICE_MEMBER Side &side(int which) {
    return shared_at<Side>(F::kSides + static_cast<uint32_t>(which * kThreads + thread_index()) * 16);
  }
  TSRI_DEVICE_MEMBER void load_keys(const Call &call, int32_t key0, uint32_t stage) {
    load<Copies>(side(0), call.p.k, F::kK + stage * TileK::kBytes, key0);
  }
  TSRI_DEVICE_MEMBER void load_values(const Call &call, int32_t key0, uint32_t stage) {
    load<CopiesV>(side(1), call.p.v, F::kV + stage * TileV::kBytes, key0);
  }

  // beside: see score_product.
  template <class Beside>
  TSRI_DEVICE_MEMBER void score(Scores &s, const Walk &w, uint32_t k_piece, const Beside &beside) {
    const typename U::Free none[kFree][1] = {}; // queries are read as they are needed
    score_product<U, TileK, TileQ, kDepth, false>(s, U::template con_offset<TileK::kRowBytes>(k_piece), w.q_offset,
                                                  none, beside);
  }

  // Hides what the interval rule hides.
  TSRI_DEVICE_MEMBER void mask(Scores &s, const PieceWalk &rest, int32_t key0) {
    Limits limits[kSlots];
    bool right = true; // nothing is hidden on the left
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const int32_t i = rest.i0 + F::wave_row() + r / U::kRows * U::kFree + U::free_of(r % U::kRows);
      limits[r] = BandRule::limits(rest.band, i, key0 + U::con_lane());
      right = right && limits[r].prefix <= 0 && limits[r].lo <= 0;
    }
    if (right)
      mask_rows<true>(s, limits);
    else
      mask_rows<false>(s, limits);
  }
  template <bool kRight>
  TSRI_DEVICE_MEMBER void mask_rows(Scores &s, const Limits (&limits)[kSlots]) {
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r)
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          const int32_t o = c * U::kCon + U::con_element(e);
          if (U::slot(e) == r % U::kRows && !(kRight ? o < limits[r].hi : Limits::allows(limits[r], o)))
            s[r / U::kRows][c].x[e] = -infinity();
        }
  }

  // Probabilities of all scores, as operands, and this lane's sums of them.
  TSRI_DEVICE_MEMBER void probabilities(Probs &p, float (&sum)[kSlots], const Scores &s, float unit,
                                        const float (&minus_ready)[kSlots]) {
    float chain[kSlots][kChains];
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) {
        typename U::Acc x;
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          const int r = f * U::kRows + U::slot(e);
          x.x[e] = Softmax::prob_negated(unit, s[f][c].x[e], minus_ready[r]);
          float &link = chain[r][e % kChains];
          const bool begins = c == 0 && e < 2 * U::kRows && e % 2 < kChains;
          link = begins ? x.x[e] : link + x.x[e];
        }
        TSRI_UNROLL
        for (int a = 0; a < F::kApply; ++a) U::to_operand(p[f][c * F::kApply + a], x, a);
      }
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) sum[r] = kChains == 1 ? chain[r][0] : chain[r][0] + chain[r][kChains - 1];
  }

  // Maximum of row r of the piece.
  TSRI_DEVICE_MEMBER float most_of(const Scores &s, int r) {
    float most[2] = {-infinity(), -infinity()};
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e)
        if (U::slot(e) == r % U::kRows) most[e & 1] = larger_of(most[e & 1], s[r / U::kRows][c].x[e]);
    return U::max_con(larger_of(most[0], most[1]));
  }
  // What row r is measured from, after its maximum became m. No score: anything is much, see fold().
  TSRI_DEVICE_MEMBER float minus_ready_of(float m, float unit) {
    return m == -infinity() ? infinity() : -Softmax::ready_reference(unit, m);
  }

  // The first piece that the wave sees. Rows that no sequence has keep their m.
  TSRI_DEVICE_MEMBER void fold_first(float (&minus_ready)[kSlots], Probs &p, float (&sum)[kSlots], const Scores &s,
                                     float unit) {
    float ready[kSlots];
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const float m = Softmax::new_max(maximum(r), most_of(s, r));
      maximum(r) = m;
      ready[r] = -Softmax::ready_reference(unit, m);
      minus_ready[r] = minus_ready_of(m, unit);
    }
    probabilities(p, sum, s, unit, ready);
  }

  // The piece once more, after rows of which a lane has seen much have moved m to their maximum.
  TSRI_DEVICE_MEMBER void fold_again(State &state, float (&minus_ready)[kSlots], Probs &p, float (&sum)[kSlots],
                                     const Scores &s, float unit, const bool (&much)[kSlots]) {
    float alpha[kSlots], ready[kSlots];
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const float before = maximum(r), most = most_of(s, r);
      const float m = U::max_con(much[r] ? 1.0f : 0.0f) > 0.0f ? Softmax::new_max(before, most) : before;
      ready[r] = Softmax::ready_reference(unit, m);
      alpha[r] = m == before ? 1.0f : Softmax::prob_ready(unit, before, ready[r]);
      maximum(r) = m;
      state.l[r] = Softmax::new_sum(state.l[r], alpha[r], 0.0f);
      minus_ready[r] = minus_ready_of(m, unit);
      ready[r] = -ready[r];
    }
    F::rescale(state, alpha);
    probabilities(p, sum, s, unit, ready);
  }

  // Folds the piece of keys at key0. kInside: all rows of the wave see all of it. fresh: no row has seen a key.
  template <bool kInside>
  TSRI_DEVICE_MEMBER void fold(State &state, Walk &w, uint32_t k_piece, uint32_t v_piece, int32_t key0,
                               int piece_class, bool fresh) {
    Scores s;
    score(s, w, k_piece, NothingBeside());
    if (!kInside && piece_class == TSRI_TILE_EDGE) mask(s, shared_at<PieceWalk>(F::kWalk), key0);
    Probs p;
    float sum[kSlots];
    if (!kInside && fresh) {
      fold_first(w.minus_ready, p, sum, s, w.unit);
    } else {
      probabilities(p, sum, s, w.unit, w.minus_ready);
      bool much[kSlots], any = false;
      TSRI_UNROLL
      for (int r = 0; r < kSlots; ++r) {
        much[r] = !(sum[r] <= kMuch);
        any = any || much[r];
      }
      if (seldom(any_lane(any))) fold_again(state, w.minus_ready, p, sum, s, w.unit, much);
    }
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) state.l[r] += sum[r];
    const typename U::ZOffset v_offset = U::template z_offset<TileV::kRowBytes>(v_piece);
    const auto load = [&p](typename U::P(&to)[kFree], int step) {
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) to[f] = p[f][step];
    };
    apply_product<U, TileV, kSteps, false>(state.out, v_offset, load);
  }

  // Numbers of tiles that all rows of the wave see whole, behind the prefix.
  TSRI_DEVICE_MEMBER void find_full(Walk &w, const RowsClass &c, const KeyTiles &tiles) {
    const int32_t shift = tiles.head - tiles.band;
    w.full_begin = uniform(larger(BandRule::up(larger(c.full_lo, 0), kTileK) + shift, larger(tiles.head, 1)));
    w.full_end = uniform(smaller(c.full_hi / kTileK + shift, tiles.count));
  }
  TSRI_DEVICE_MEMBER RowsClass wave_rows(const PieceWalk &rest) {
    const int32_t i = rest.i0 + F::wave_row();
    return BandRule::rows(rest.band, larger(i, 0), smaller(i + kFree * U::kFree, rest.band.sq));
  }

  TSRI_DEVICE_MEMBER void walk(Walk &w, const Call &call, State &state, const KeyTiles &first_tiles) {
    const PieceWalk &rest = shared_at<PieceWalk>(F::kWalk);
    const int32_t count = first_tiles.count;
    int32_t key0 = KeyTiles::at(first_tiles, 0) * kTileK, next = 0;
    bool fresh = true; // the wave has seen no key
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < count; ++n, key0 = next) {
      const uint32_t stage = static_cast<uint32_t>(n % kStages);
      const uint32_t k_tile = F::kK + stage * TileK::kBytes, v_tile = F::kV + stage * TileV::kBytes;
      const bool ends = n + 1 >= count;
      copy_wait<0>();
      sync_block(); // K and V are there, everybody is done with the tile before
      next = n + 1 == rest.tiles.head ? rest.tiles.band * kTileK : key0 + kTileK;
      if (!ends) {
        load_keys(call, next, static_cast<uint32_t>((n + 1) % kStages));
        load_values(call, next, static_cast<uint32_t>((n + 1) % kStages));
      }
      copy_commit();
      if (n >= w.full_begin && n < w.full_end) {
        TSRI_UNROLL
        for (int i = 0; i < kPieces; ++i)
          fold<true>(state, w, k_tile + static_cast<uint32_t>(i * kPiece * TileK::kRowBytes),
                     v_tile + static_cast<uint32_t>(i * kPiece * TileV::kRowBytes), key0 + i * kPiece, TSRI_TILE_FULL,
                     false);
      } else {
        const RowsClass rows = wave_rows(rest); // after the first barrier
        if (n == 0) find_full(w, rows, rest.tiles);
        TSRI_NO_UNROLL
        for (int i = 0; i < kPieces; ++i) {
          const int32_t piece0 = key0 + i * kPiece;
          const int piece_class = uniform(RowsClass::of(rows, piece0, piece0 + kPiece));
          if (piece_class == TSRI_TILE_SKIP) continue;
          fold<false>(state, w, k_tile + static_cast<uint32_t>(i * kPiece * TileK::kRowBytes),
                      v_tile + static_cast<uint32_t>(i * kPiece * TileV::kRowBytes), piece0, piece_class, fresh);
          fresh = false;
        }
      }
    }
  }

  TSRI_DEVICE_MEMBER void block(const ForwardArgs &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    // Which work: the tile is fastest, and the last rows, which see the most keys, come first.
    uint32_t n = block_index(), part = 0;
    const uint32_t tiles_q = static_cast<uint32_t>(args.tiles), heads = static_cast<uint32_t>(p.heads_q);
    uint32_t rest = n / tiles_q, tile = n - rest * tiles_q;
    if (args.turns > 1) {
      // Heads of a group one after the other, tile by tile: the last blocks are short ones of all of them.
      const uint32_t turns = static_cast<uint32_t>(args.turns), first = rest / turns * turns;
      const uint32_t all = static_cast<uint32_t>(p.batch) * heads * static_cast<uint32_t>(args.chunks);
      const uint32_t group = smaller(turns, all - first), within = n - first * tiles_q;
      tile = within / group;
      rest = first + within - tile * group;
    }
    n = rest;
    if (args.chunks > 1) {
      n = rest / static_cast<uint32_t>(args.chunks);
      part = rest - n * static_cast<uint32_t>(args.chunks);
    }
    const int column = static_cast<int>(part) * F::kOutColumns;
    const uint32_t batch = n / heads, h = n - batch * heads;
    Place place = {batch, args.tiles - 1 - static_cast<int32_t>(tile)};
    if (a.cu_q) place = find_packed(a.cu_q, p.index_dtype, p.total_q, p.batch, kTileQ, tile, U::kWave);
    if (uniform(place.b < 0)) return;
    // Every thread finds out by itself: a wave has one path, and copies start early.
    tsri_sequence sequence = {{0, p.seq_q, 0, p.seq_q}, {0, p.seq_k, 0, p.seq_k}, 0, 0};
    BandRule band = {args.rows.band, args.rows.sq, args.rows.sk, args.rows.prefix};
    if (!args.rows.known) {
      sequence = tsri_sequence_of(&p, &a, place.b);
      band = BandRule::of(tsri_sequence_rule(&p, &sequence));
    }
    const int32_t row0 = place.tile * kTileQ; // of the slot
    if (uniform(row0 >= static_cast<int32_t>(sequence.q.slot_len))) return;
    // Used row of the tile's first row; negative before the left padding ends.
    const int32_t i0 = row0 - static_cast<int32_t>(sequence.q.begin - sequence.q.slot_begin);
    const KeyTiles tiles = BandRule::tiles(band, larger(i0, 0), smaller(i0 + kTileQ, band.sq), kTileK);
    const uint32_t kv_head = args.call.group == 1 ? h : h / static_cast<uint32_t>(args.call.group);
    const RowSource q = row_source<E>(a.q, p.q, sequence.q, place.b, h, p.dim_qk, true);
    const RowSource k = row_source<E>(a.k, p.k, sequence.k, place.b, kv_head, p.dim_qk, true);
    const RowSource v = row_source<E>(a.v, p.v, sequence.k, place.b, kv_head, p.dim_v, true);
    Walk w;
    side(0) = side_of<Copies>(k, 0);
    side(1) = side_of<CopiesV>(v, column);
    w.unit = p.scale * static_cast<float>(TSRI_LOG2E);
    w.q_offset = U::template free_offset<TileQ::kRowBytes>(F::kQ) +
                 static_cast<uint32_t>(F::wave_row() * TileQ::kRowBytes);
    if (tiles.count > 0) {
      if (i0 >= 0) {
        CopiesQ copies = CopiesQ::start(F::kQ, CopiesQ::source(q, i0, 0, thread_index()), q.row_bytes, q.length - i0,
                                        q.columns, thread_index());
        CopiesQ::issue(copies, 0, 1);
      } else {
        load_tile<E, TileQ, kThreads, false, false>(F::kQ, q, i0, 0);
      }
      load_keys(args.call, KeyTiles::at(tiles, 0) * kTileK, 0);
      if (kStages == 1) copy_commit(); // waited for before V
      load_values(args.call, KeyTiles::at(tiles, 0) * kTileK, 0);
    }
    copy_commit();
    if (thread_index() == 0) {
      shared_at<Shared>(0).sequence.q = sequence.q;
      shared_at<PieceWalk>(F::kWalk) = PieceWalk{tiles, band, i0, row0, column, static_cast<int32_t>(h), place.b};
    }
    State state;
    clear<U>(state.out);
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      // Rows that no sequence has do not hold up the others.
      const int row = i0 + F::wave_row() + r / U::kRows * U::kFree + U::free_of(r % U::kRows);
      const bool used = static_cast<uint32_t>(row) < static_cast<uint32_t>(band.sq);
      maximum(r) = used ? Softmax::start_max() : 0.0f;
      w.minus_ready[r] = used ? infinity() : 0.0f;
      state.l[r] = Softmax::start_sum();
    }
    w.full_begin = w.full_end = 0; // the first tile finds them
    if constexpr (F::kShare > 1)
      Pairs<F, U>::walk(w, args.call, state, tiles);
    else
      walk(w, args.call, state, tiles);
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) state.m[r] = maximum(r);
    if (tiles.count == 0) sync_block(); // thread 0's part of shared memory
    const PieceWalk &at = shared_at<PieceWalk>(F::kWalk);
    F::finish(args.call, state, at.b, at.h, at.column, at.row0, at.i0, p.scale * static_cast<float>(TSRI_LOG2E));
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_FORWARD_PIECES_HPP_
