// SPDX-License-Identifier: Apache-2.0
//
// Backward (backward.hpp) of units whose tiles keep a power of two for each row (float32 as two planes of float16,
// three products): S and dP take those of both their rows. P and dS are contracted with rows of dO, Q and K that have
// units, so they take these before they are split in turn. Where that is over queries, for dV and dK, what a key adds
// of a tile has a unit of its own, found from its largest number by the four lanes that hold it. For dQ it is over
// keys, which are spread over waves: what the keys of a wave add to a query has a unit, which stands in shared memory
// beside dS, and sums of one wave's keys are added in it. So dS is split twice; its bounds are those of its largest
// number a row, whatever the other rows hold.
#ifndef TESSERA_COMMON_GPU_BACKWARD_SCALED_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_SCALED_HPP_

#include "common/gpu/backward.hpp"

namespace tessera {
namespace gpu {

template <class Base>
struct BackwardScaled : Base {
  using U = typename Base::U;
  using Args = BackwardArgs;
  using Acc = typename U::Acc;
  using Operand = typename U::Planes;
  using typename Base::Scores;
  using typename Base::Shared;
  using TileK = typename Base::TileK;
  using TileV = typename Base::TileV;
  using TileQ = typename Base::TileQ;
  using TileO = typename Base::TileO;
  using TileP = typename Base::TileP;
  static constexpr int kGroup = Base::kGroup, kElements = U::kElements, kSum = U::kSum;
  static constexpr int kSteps = Base::kTileK / U::kApplyStep; // of dQ: a wave's keys each
  static constexpr int kPair = 2;     // column tiles of dV and dK at once
  static constexpr int kUnrolled = 4; // steps of dQ

  // Of what the keys of a wave add to a query: [wave][query].
  static constexpr uint32_t kUnits = ceil_div(Base::kEnd, 16) * 16;
  static constexpr uint32_t kFrom = kUnits + Base::kWaves * Base::kTileQ * 4;
  static constexpr uint32_t kHead = kFrom + Base::kThreads * 16;
  static constexpr uint32_t kEnd = kHead + 16;
  static constexpr uint32_t kSharedBytes = max_of(kEnd, Base::kSharedBytes);
  static_assert(Base::kDirect && Base::kFree == 1 && kGroup == 2 && kGroup == kSum && !Base::kWide &&
                    Base::kWaves == kSteps && kSteps % kUnrolled == 0 && Base::kOutK % kPair == 0 &&
                    Base::kOutV % kPair == 0 && Weighs<typename U::Element, false>::value &&
                    TileQ::kColumns * 4 == Base::OutK::kRowBytes,
                "a wave has 16 keys, all of their columns, and 32 queries at a time, whose sum is one");

  // As in Backward; what the end needs is read again there, no register is left for it across the walk.
  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    Shared &shared = shared_at<Shared>(0);
    {
      typename Base::BlockWork work;
      if (!Base::find_work(args, shared, work)) return;
      if (thread_index() == 0) head_after() = work.g * static_cast<uint32_t>(args.call.group) + 1;
    }
    Acc dk[1][Base::kOutK], dv[1][Base::kOutV];
    clear<U>(dk);
    clear<U>(dv);
    walk(args, shared, dk, dv);
    copy_wait<0>();
    sync_block(); // the tiles' memory becomes the outputs'
    const uint32_t g = (head_after() - 1) / static_cast<uint32_t>(args.call.group);
    const tsri_span &k = shared.sequence.k;
    const int32_t row0 = shared.place.tile * Base::kTileK, key0 = first_key(shared);
    const int32_t rows = static_cast<int32_t>(k.slot_len) - row0, sk = static_cast<int32_t>(k.len);
    const int64_t row = k.slot_begin + row0, b = shared.place.b;
    store_gradient<U, typename Base::OutK, Base::kThreads, 1, Base::kOutK, false>(
        dk, p.scale, -key0, sk - key0, Base::kK, Base::key_row(), 0, p.dk, a.dk, args.call.vector & kVectorDk, false, b,
        g, row, rows, 0, static_cast<int>(p.dim_qk));
    sync_block();
    store_gradient<U, typename Base::OutV, Base::kThreads, 1, Base::kOutV, false>(
        dv, 1.0f, -key0, sk - key0, Base::kK, Base::key_row(), 0, p.dv, a.dv, args.call.vector & kVectorDv, false, b,
        g, row, rows, 0, static_cast<int>(p.dim_v));
  }
  // Used row of the block's first key: negative before the left padding ends.
  TSRI_DEVICE_MEMBER int32_t first_key(const Shared &shared) {
    const tsri_span &k = shared.sequence.k;
    return shared.place.tile * Base::kTileK - static_cast<int32_t>(k.begin - k.slot_begin);
  }

  struct alignas(8) Two {
    float x[2];
  };
  // Of a lane's con indices c and half of a group, e: con_element.
  TSRI_DEVICE_MEMBER constexpr int query_of(int c, int half) { return c * U::kCon + U::con_element(4 * half); }

  // acc[key][query] = X Y^T in units of their rows, X of keys, Y of queries from `row` of the tile on.
  template <int kDepth, class TX, class TY>
  TSRI_DEVICE_MEMBER void multiply(Scores &acc, uint32_t x, uint32_t y, int row) {
    const uint32_t x_offset =
        U::template free_offset<TX::kRowBytes>(x) + static_cast<uint32_t>(Base::key_row() * TX::kRowBytes);
    const uint32_t y_offset = U::template con_offset<TY::kRowBytes>(y) + static_cast<uint32_t>(row * TY::kRowBytes);
    // A swizzle's period at a time, within which addresses differ by constants.
    constexpr int kPeriod = 128 / (U::kStep * 2);
    static_assert(kDepth % kPeriod == 0 && kPeriod % kSum == 0, "whole sums");
    clear<U>(acc);
    TSRI_NO_UNROLL
    for (int first = 0; first < kDepth; first += kPeriod) {
      const uint32_t x_at = x_offset + static_cast<uint32_t>(first * 32);
      const uint32_t y_at = y_offset + static_cast<uint32_t>(first * 32);
      TSRI_UNROLL
      for (int t = 0; t < kPeriod; t += kSum) {
        typename U::Free a[1][kSum];
        typename U::Con b[kGroup][kSum];
        TSRI_UNROLL
        for (int s = 0; s < kSum; ++s) {
          U::template load_free<TX::kRowBytes>(a[0][s], x_at, 0, t + s);
          TSRI_UNROLL
          for (int c = 0; c < kGroup; ++c) U::template load_con<TY::kRowBytes>(b[c][s], y_at, c * U::kCon, t + s);
        }
        Scores sum;
        U::template multiply_all<true>(sum, a, b);
        add_part<U>(acc, sum);
      }
    }
    settle<U>(acc);
    recheck_scores<U, TY, TX, kDepth * U::kStep>(acc, y + static_cast<uint32_t>(row * TY::kRowBytes),
                                                 x + static_cast<uint32_t>(Base::key_row() * TX::kRowBytes));
  }

  // Scores and dP, in units of their rows, become P and dS.
  template <bool kEdge>
  TSRI_DEVICE_MEMBER void differentiate(Scores &s, Scores &dp, uint32_t stats, float unit, int32_t key0, int row) {
    float k[U::kRows], v[U::kRows];
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      k[slot] = TileK::scale(Base::kK, Base::key_row() + U::free_of(slot));
      v[slot] = TileV::scale(Base::kV, Base::key_row() + U::free_of(slot));
    }
    TSRI_UNROLL
    for (int c = 0; c < kGroup; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int q = row + query_of(c, half) + U::con_lane();
        const Two q_unit = shared_at<Two>(Base::kQ + TileQ::kScales + static_cast<uint32_t>(q) * 4);
        const Two o_unit = shared_at<Two>(Base::kO + TileO::kScales + static_cast<uint32_t>(q) * 4);
        const Two weight = shared_at<Two>(Base::kWeights + static_cast<uint32_t>(q) * 4);
        TSRI_UNROLL
        for (int i = 0; i < 2; ++i) {
          const RowStat stat = shared_at<RowStat>(stats + static_cast<uint32_t>(q + i) * 16);
          TSRI_UNROLL
          for (int slot = 0; slot < U::kRows; ++slot) {
            float &x = s[0][c].x[4 * half + 2 * slot + i], &y = dp[0][c].x[4 * half + 2 * slot + i];
            // As in the program that finds statistics again: the same bits.
            const float score = U::out_of_units(x, k[slot], q_unit.x[i]) * unit;
            const float p = weight.x[i] * exp2_of((score - stat.lse) * static_cast<float>(TSRI_LOG2E));
            const float ds = p * (U::out_of_units(y, v[slot], o_unit.x[i]) - stat.delta);
            const bool allowed =
                !kEdge || stat_allows(stat, 0, key0 + Base::key_row() + U::free_of(slot));
            x = allowed ? p : 0.0f;
            y = allowed ? ds : 0.0f;
          }
        }
      }
  }

  // P or dS, times the units of their queries' rows in tile `z`, as operands, and the units of their keys.
  template <class TZ>
  TSRI_DEVICE_MEMBER void weigh(Operand (&p)[1][kSum], float (&unit)[U::kRows], const Scores &s, uint32_t z, int row) {
    float x[kGroup][kElements], most[U::kRows] = {}, up[U::kRows];
    TSRI_UNROLL
    for (int c = 0; c < kGroup; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Two scale = shared_at<Two>(
            z + TZ::kScales + static_cast<uint32_t>(row + query_of(c, half) + U::con_lane()) * 4);
        TSRI_UNROLL
        for (int e = 4 * half; e < 4 * half + 4; ++e) {
          x[c][e] = s[0][c].x[e] * scale.x[e % 2];
          most[U::slot(e)] = larger_of(most[U::slot(e)], magnitude(x[c][e]));
        }
      }
    TSRI_UNROLL
    for (int r = 0; r < U::kRows; ++r) U::unit_of(float_bits(U::max_con(most[r])), up[r], unit[r]);
    TSRI_UNROLL
    for (int c = 0; c < kGroup; ++c)
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i)
        U::split(p[0][c], i, x[c][2 * i] * up[U::slot(2 * i)], x[c][2 * i + 1] * up[U::slot(2 * i)]);
  }
  TSRI_DEVICE_MEMBER float magnitude(float x) { return __builtin_fabsf(x); }

  // out[key][column] += P^T Z, Z of queries from `row` of the tile on, of which `columns` are not all zeros.
  template <int kOut, class TZ>
  TSRI_DEVICE_MEMBER void accumulate(Acc (&out)[1][kOut], const Scores &s, uint32_t z, int row, int columns) {
    Operand p[1][kSum];
    float unit[U::kRows];
    weigh<TZ>(p, unit, s, z, row);
    const typename U::ZOffset offset =
        U::template z_offset<TZ::kRowBytes>(z + static_cast<uint32_t>(row * TZ::kRowBytes));
    TSRI_UNROLL
    for (int o = 0; o < kOut; o += kPair) {
      // The branch also keeps sums from waiting for those of later columns, for which registers end.
      if (o * 16 >= columns) continue;
      typename U::Z b[kPair][kSum];
      TSRI_UNROLL
      for (int k = 0; k < kPair; ++k)
        TSRI_UNROLL
        for (int n = 0; n < kSum; ++n) U::template load_z<TZ::kRowBytes>(b[k][n], offset, n * U::kApplyStep, o + k);
      Acc sum[1][kPair];
      U::template multiply_all<false>(sum, p, b);
      TSRI_UNROLL
      for (int k = 0; k < kPair; ++k)
        TSRI_UNROLL
        for (int e = 0; e < kElements; ++e)
          out[0][o + k].x[e] = multiply_add(sum[0][k].x[e], unit[U::slot(e)], out[0][o + k].x[e]);
    }
    settle<U>(out);
  }

  // The largest magnitudes of queries over the wave's keys, from those of a lane's: values x[i] of con index i / 4
  // of the group, half i / 2 % 2, neighbour i % 2. A lane gets that of value lane / 4 alone.
  TSRI_DEVICE_MEMBER float most_of_queries(const float (&x)[8]) {
    const int lane = U::lane();
    float four[4], two[2];
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool high = (lane & 16) != 0;
      four[i] = larger_of(high ? x[4 + i] : x[i], shuffle_xor(high ? x[i] : x[4 + i], 16));
    }
    TSRI_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool high = (lane & 8) != 0;
      two[i] = larger_of(high ? four[2 + i] : four[i], shuffle_xor(high ? four[i] : four[2 + i], 8));
    }
    const bool high = (lane & 4) != 0;
    return larger_of(high ? two[1] : two[0], shuffle_xor(high ? two[0] : two[1], 4));
  }

  // dS of the wave's keys, times the units of their rows of K, as operands of dQ in units of the queries.
  TSRI_DEVICE_MEMBER void store_scaled(const Scores &ds, int row) {
    float k[U::kRows], x[kGroup][kElements], most[8];
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) k[slot] = TileK::scale(Base::kK, Base::key_row() + U::free_of(slot));
    TSRI_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int c = i / 4, e = i / 2 % 2 * 4 + i % 2;
      x[c][e] = ds[0][c].x[e] * k[0];
      x[c][e + 2] = ds[0][c].x[e + 2] * k[1];
      most[i] = larger_of(magnitude(x[c][e]), magnitude(x[c][e + 2]));
    }
    float up, unit;
    U::unit_of(float_bits(most_of_queries(most)), up, unit);
    const uint32_t units = kUnits + static_cast<uint32_t>((Base::wave() * Base::kTileQ + row) * 4);
    const int mine = U::lane() / 4;
    shared_at<float>(units + static_cast<uint32_t>((mine / 2 * 8 + U::con_lane() + mine % 2) * 4)) = unit;
    sync_wave();
    // Of the lane's first key and query; the others are constants away, within a period of the swizzle.
    const uint32_t first =
        Base::kS + TileP::element(0, Base::key_row() + U::free_of(0), row) + static_cast<uint32_t>(U::con_lane() * 2);
    TSRI_UNROLL
    for (int c = 0; c < kGroup; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int q = query_of(c, half);
        const Two down = shared_at<Two>(units + static_cast<uint32_t>(q + U::con_lane()) * 4);
        const float up0 = U::inverse_unit(down.x[0]), up1 = U::inverse_unit(down.x[1]);
        TSRI_UNROLL
        for (int slot = 0; slot < U::kRows; ++slot) {
          Operand pair;
          U::split(pair, 0, x[c][4 * half + 2 * slot] * up0, x[c][4 * half + 2 * slot + 1] * up1);
          TSRI_UNROLL
          for (int n = 0; n < TileP::kPlanes; ++n)
            shared_at<uint32_t>(along(first, q * 2 + n * (TileP::kRowBytes / 2)) +
                                static_cast<uint32_t>((U::free_of(slot) - U::free_of(0)) * TileP::kRowBytes)) =
                pair.r[n][0];
        }
      }
  }

  // dK and dV from one query tile; its dS is left in shared memory.
  TSRI_DEVICE_MEMBER void make_keys(const Args &args, const Shared &shared, int stage, int32_t i0,
                                    Acc (&dk)[1][Base::kOutK], Acc (&dv)[1][Base::kOutV]) {
    const uint32_t stats = Base::kStats + static_cast<uint32_t>(stage * Base::kTileQ) * 16;
    const int32_t sq = static_cast<int32_t>(shared.rule.sq);
    const int32_t sk = static_cast<int32_t>(shared.rule.sk), key0 = first_key(shared);
    const int32_t j0 = key0 + Base::key_row(), j1 = j0 + U::kFree;
    TSRI_NO_UNROLL
    for (int group = 0; group < Base::kCon / kGroup; ++group) {
      Scores s, dp;
      const int row = group * kGroup * U::kCon;
      const int last = smaller(sq - i0, row + kGroup * U::kCon);
      int tile_class = TSRI_TILE_SKIP;
      if (row < last && j1 > 0 && j0 < sk) tile_class = uniform(stats_class(stats, row, last, 0, larger(j0, 0), j1));
      if (tile_class == TSRI_TILE_SKIP) {
        clear<U>(dp);
        if (args.dq_sum) store_scaled(dp, row);
        continue;
      }
      multiply<TileQ::kColumns / U::kStep, TileK, TileQ>(s, Base::kK, Base::kQ, row);
      multiply<TileO::kColumns / U::kStep, TileV, TileO>(dp, Base::kV, Base::kO, row);
      // Zeros beyond the last query have p = 1, which makes NaN of what is not finite.
      if (tile_class == TSRI_TILE_EDGE || j0 < 0 || last < row + kGroup * U::kCon)
        differentiate<true>(s, dp, stats, args.call.p.scale, key0, row);
      else
        differentiate<false>(s, dp, stats, args.call.p.scale, key0, row);
      if (args.dq_sum) store_scaled(dp, row);
      accumulate<Base::kOutV, TileO>(dv, s, Base::kO, row, static_cast<int>(args.call.p.dim_v));
      sync_wave(); // keeps the loads of one product out of the other, where registers end
      accumulate<Base::kOutK, TileQ>(dk, dp, Base::kQ, row, static_cast<int>(args.call.p.dim_qk));
    }
  }

  // ---- The walk, as in Backward, with addresses of copies kept in shared memory ----

  // Of a thread: where its first chunks of the next tile come from.
  struct alignas(16) From {
    const unsigned char *q, *dout;
  };
  using CopiesQ = LaneCopies<typename Base::CopyQ, Base::kThreads>;
  using CopiesO = LaneCopies<typename Base::CopyO, Base::kThreads>;
  static_assert(CopiesQ::kRegular && CopiesO::kRegular, "a thread keeps its column");
  TSRI_DEVICE_MEMBER From &from_of(int thread) { return shared_at<From>(kFrom + static_cast<uint32_t>(thread) * 16); }

  // The head after the current one; it is of the next group where it is a multiple of heads in a group.
  TSRI_DEVICE_MEMBER uint32_t &head_after() { return shared_at<uint32_t>(kHead); }

  TSRI_DEVICE_MEMBER int32_t &tile_after() { return shared_at<int32_t>(kHead + 4); } // of the current head

  // The current head's tile of queries `tile` starts to arrive, and what is copied next follows it.
  TSRI_DEVICE_MEMBER void copy_queries(const Args &args, const Shared &shared, int stage, int32_t tile) {
    const int thread = fresh_thread_index();
    const int32_t i0 = tile * Base::kTileQ, rows = shared.q.length - i0;
    const From from = from_of(thread);
    CopiesQ q = CopiesQ::start(Base::kCopyQ, from.q, shared.q.row_bytes, rows, shared.q.columns, thread);
    CopiesQ::issue(q, 0, 1);
    CopiesO dout = CopiesO::start(Base::kCopyO, from.dout, shared.dout.row_bytes, rows, shared.dout.columns, thread);
    CopiesO::issue(dout, 0, 1);
    from_of(thread) = From{q.from, dout.from};
    load_stats<Base::kTileQ, Base::kThreads>(Base::kStats + static_cast<uint32_t>(stage * Base::kTileQ) * 16,
                                             args.stats + shared.stats, i0, shared.q.length);
    copy_commit();
  }
  TSRI_DEVICE_MEMBER void start_head(const Args &args, const Shared &shared, int stage, int32_t tile) {
    const int thread = fresh_thread_index();
    from_of(thread) = From{CopiesQ::source(shared.q, tile * Base::kTileQ, 0, thread),
                           CopiesO::source(shared.dout, tile * Base::kTileQ, 0, thread)};
    copy_queries(args, shared, stage, tile);
  }

  // All query tiles of all heads of the group.
  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, Acc (&dk)[1][Base::kOutK],
                               Acc (&dv)[1][Base::kOutV]) {
    int32_t begin, end;
    if (!Base::find_queries(shared, first_key(shared), begin, end)) return;
    sync_block(); // of head_after()
    Base::load_both(args, shared, (head_after() - 1) / static_cast<uint32_t>(args.call.group), first_key(shared));
    start_head(args, shared, 0, begin);
    if (thread_index() == 0) {
      shared.begin = begin;
      shared.count = end - begin;
      shared.sum_rows[1] = 0; // no tile is before the first one
    }
    int32_t tile = begin, slot = 0;
    TSRI_NO_UNROLL
    for (;; slot ^= 1) {
      copy_wait<0>();
      sync_block(); // this tile has arrived; everybody is done with the one before
      make_operands(args, shared, slot ^ 1, tile);
      const int32_t i0 = tile * Base::kTileQ;
      if (thread_index() == 0) {
        shared.sum_row[slot] = shared.stats + i0;
        shared.sum_rows[slot] = static_cast<int32_t>(shared.rule.sq) - i0;
        tile_after() = tile + 1;
      }
      // The next head's row of stats would replace this one's, which weights still need.
      const bool last = ++tile == shared.begin + shared.count;
      if (!last) copy_queries(args, shared, slot ^ 1, tile);
      sync_block(); // operands are made, dS of the tile before has been used
      make_keys(args, shared, slot, i0, dk, dv);
      tile = tile_after();
      if (tile < shared.begin + shared.count) continue;
      sync_block(); // the scores are made
      const uint32_t head = head_after();
      if (head % static_cast<uint32_t>(args.call.group) == 0) break;
      tile = shared.begin;
      sync_block();
      if (thread_index() == 0) {
        head_after() = head + 1;
        Base::take_head(args, shared, head);
      }
      sync_block();
      start_head(args, shared, slot ^ 1, tile);
    }
    make_queries(args, shared, slot);
  }

  // Query tile `tile` from its copies, and dQ of the tile before, if any, whose sums `slot` tells. One half of the
  // waves turns while the other multiplies.
  TSRI_DEVICE_MEMBER void make_operands(const Args &args, const Shared &shared, int slot, int32_t tile) {
    const int lane = fresh_thread_index();
    float weight = 1.0f;
    if (lane < Base::kTileQ)
      weight = weight_of<true>(args, shared.stats, tile * Base::kTileQ + lane, shared.rule.sq);
    TSRI_NO_UNROLL
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == Base::wave() / (Base::kWaves / 2)) {
        if (shared.sum_rows[slot] > 0) make_queries(args, shared, slot);
      } else {
        turn_tile<U, TileQ, Base::kThreads>(Base::kCopyQ, Base::kQ, fresh_thread_index());
        turn_tile<U, TileO, Base::kThreads>(Base::kCopyO, Base::kO, fresh_thread_index());
      }
    }
    if (lane < Base::kTileQ) shared_at<float>(Base::kWeights + static_cast<uint32_t>(lane) * 4) = weight;
  }

  // out += dS K of the keys of wave s.
  using OutQ = Acc[Base::kFreeQ][Base::kOutQ];
  TSRI_DEVICE_MEMBER void add_step(OutQ &out, typename U::ApplyTOffset s_offset, typename U::ZOffset k_offset,
                                   uint32_t units, int s) {
    Operand p[Base::kFreeQ][1];
    typename U::Z z[Base::kOutQ][1];
    float unit[Base::kFreeQ][U::kRows];
    TSRI_UNROLL
    for (int f = 0; f < Base::kFreeQ; ++f) {
      U::template load_apply_transposed<TileP::kRowBytes>(p[f][0], s_offset, f * U::kFree, s);
      TSRI_UNROLL
      for (int r = 0; r < U::kRows; ++r)
        unit[f][r] = shared_at<float>(
            units + static_cast<uint32_t>((s * Base::kTileQ + f * U::kFree + U::free_of(r)) * 4));
    }
    TSRI_UNROLL
    for (int o = 0; o < Base::kOutQ; ++o)
      U::template load_z<TileK::kRowBytes>(z[o][0], k_offset, s * U::kApplyStep, o);
    OutQ sum;
    U::template multiply_all<false>(sum, p, z);
    TSRI_UNROLL
    for (int f = 0; f < Base::kFreeQ; ++f)
      TSRI_UNROLL
      for (int o = 0; o < Base::kOutQ; ++o)
        TSRI_UNROLL
        for (int e = 0; e < kElements; ++e)
          out[f][o].x[e] = multiply_add(sum[f][o].x[e], unit[f][U::slot(e)], out[f][o].x[e]);
  }

  // dQ of a tile whose dS is complete.
  TSRI_DEVICE_MEMBER void make_queries(const Args &args, const Shared &shared, int slot) {
    if (!args.dq_sum) return;
    OutQ out;
    clear<U>(out);
    const int row = Base::wave() / Base::kColumnWaves * Base::kFreeQ * U::kFree;
    const int tile = Base::wave() % Base::kColumnWaves * Base::kOutQ;
    const typename U::ApplyTOffset s_offset = U::template apply_transposed_offset<TileP::kRowBytes>(Base::kS, row);
    const typename U::ZOffset k_offset = U::template z_offset<TileK::kRowBytes>(Base::kK, tile);
    const uint32_t units = kUnits + static_cast<uint32_t>(row * 4);
    TSRI_NO_UNROLL
    for (int first = 0; first < kSteps; first += kUnrolled) {
      TSRI_UNROLL
      for (int s = first; s < first + kUnrolled; ++s) add_step(out, s_offset, k_offset, units, s);
    }
    settle<U>(out);
    // One address for all additions of a lane, as in add_queries.
    const int rows = shared.sum_rows[slot] - row - U::free_of(0);
    float *const to = args.dq_sum + (shared.sum_row[slot] + row + U::free_of(0)) * TileQ::kColumns + tile * 16 +
                      U::con_lane();
    TSRI_UNROLL
    for (int f = 0; f < Base::kFreeQ; ++f)
      TSRI_UNROLL
      for (int r = 0; r < U::kRows; ++r) {
        const int down = f * U::kFree + U::free_of(r) - U::free_of(0);
        if (down >= rows) continue;
        TSRI_UNROLL
        for (int o = 0; o < Base::kOutQ; ++o)
          TSRI_UNROLL
          for (int e = 0; e < kElements; e += 2)
            if (U::slot(e) == r)
              atomic_add_pair(to + down * TileQ::kColumns + o * U::kCon + U::con_element(e), out[f][o].x[e],
                              out[f][o].x[e + 1]);
      }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_SCALED_HPP_
