// SPDX-License-Identifier: Apache-2.0
//
// What compute capability 9.0 adds, as PTX on a device: barriers in shared memory that count bytes
// (mbarrier), tiles moved by the copy engine (cp.async.bulk.tensor), products of a warpgroup out of shared
// memory (wgmma), registers handed from warps that load to warps that multiply (setmaxnreg). The
// emulated build has its own file. Sources: PTX ISA 8.x, sections of the same names; the layouts of
// shared memory are "Asynchronous warpgroup level matrix shared memory layout", 128-byte swizzle.
//
// A tile of the copy engine is pieces of 64 columns (128 bytes) of all its rows, one after the other, each
// piece with the swizzle of common/gpu/tile.hpp.
#ifndef TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

constexpr int kWarpgroup = 128;
constexpr int kMostShared = 227 << 10; // bytes of shared memory that a block can have

// A matrix in shared memory as wgmma sees it: low word address and stride between pieces, both in units of
// 16 bytes; high word stride between groups of eight rows (1024 bytes) and the swizzle of 128 bytes.
constexpr uint32_t kMatrixHigh = 1u << 30 | 1024u >> 4;
struct MatrixTile {
  uint32_t low;
};
// piece_bytes: from one piece of 64 columns to the next, for operands that are contracted along rows;
// others do not use it.
TSRI_DEVICE MatrixTile matrix_tile(uint32_t offset, uint32_t piece_bytes) {
  return MatrixTile{(shared_address(offset) & 0x3ffff) >> 4 | (piece_bytes >> 4) << 16};
}
TSRI_DEVICE MatrixTile matrix_at(MatrixTile tile, uint32_t bytes) {
  return MatrixTile{tile.low + (bytes >> 4)};
}

} // namespace gpu
} // namespace tessera

#if defined(TSRI_GPU_EMULATED)
#include "backends/cuda/sm90/emulated.hpp"
#else

namespace tessera {
namespace gpu {

// ------------------------------------------------------------------------------- barriers
// 8 bytes at `offset`. A phase ends when `arrivals` threads have arrived and all expected bytes are there.

TSRI_DEVICE void phase_init(uint32_t offset, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(offset)), "r"(arrivals)
               : "memory");
}
// After the last init, before the barrier that lets others use them.
TSRI_DEVICE void phase_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TSRI_DEVICE void phase_arrive(uint32_t offset) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(offset)) : "memory");
}
// Arrives, and `bytes` more have to come before the phase ends.
TSRI_DEVICE void phase_expect(uint32_t offset, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(offset)),
               "r"(bytes)
               : "memory");
}
// Until the phase of the given parity has ended; the phase before the first one has parity 1.
TSRI_DEVICE void phase_wait(uint32_t offset, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "L_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra L_%=;\n"
      "}" ::"r"(shared_address(offset)),
      "r"(parity)
      : "memory");
}

// ------------------------------------------------------------------------------ copy engine

// Until a word that blocks share is at least x.
TSRI_DEVICE void wait_word(const uint64_t *word, uint64_t x) {
  while (load_word(word) < x) asm volatile("nanosleep.u32 2000;");
}

// Who finds x, or what comes after it, sees what the thread has done before. acquire_word: what is there now; await_word: until x
// is; both by one thread.
TSRI_DEVICE void release_word(uint64_t *to, uint64_t x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}
TSRI_DEVICE uint64_t acquire_word(const uint64_t *word) {
  uint64_t found;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(word) : "memory");
  return found;
}
TSRI_DEVICE void await_word(const uint64_t *word, uint64_t x) {
  while (acquire_word(word) < x) {
  }
}

// The box of `map` at the given coordinates (column, row, head, batch) into shared memory; counts its
// bytes, zeros beyond the tensor included, at the barrier. By one thread.
TSRI_DEVICE void tensor_load(uint32_t to, const TensorMap &map, uint32_t barrier, int32_t column,
                             int32_t row, int32_t head, int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// `bytes` of global memory; both begin at multiples of 16.
TSRI_DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// The box of shared memory at `from` into `map`, but for what lies outside the tensor; of the group of bulk_commit.
TSRI_DEVICE void tensor_store(const TensorMap &map, uint32_t from, int32_t column, int32_t row, int32_t head,
                              int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared_address(from)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
TSRI_DEVICE void tensor_prefetch(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Shared memory written by threads, before a barrier after which wgmma or the copy engine reads it.
TSRI_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same of all memory: what threads and what the copy engine wrote or is going to write.
TSRI_DEVICE void fence_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements, laid out over the warp as accumulators are; lane l gives the
// address of row l % 8 of matrix l / 8.
TSRI_DEVICE void store_matrices(uint32_t offset, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(offset)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same, every matrix transposed: its rows are what the accumulators have as columns.
TSRI_DEVICE void store_matrices_transposed(uint32_t offset, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(offset)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// `bytes` of shared memory, floats, added to global memory; both begin at multiples of 16. By the thread that
// waits for it: until the sums have been read from shared memory, or are all made.
TSRI_DEVICE void bulk_add(float *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
TSRI_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
TSRI_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// But for the kPending groups that came last.
template <int kPending = 0>
TSRI_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory"); }

// -------------------------------------------------------------------------------- registers

template <int kRegisters>
TSRI_DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TSRI_DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ------------------------------------------------------------------- products of a warpgroup
// matrix_begin, products, matrix_commit; registers of accumulators and operands belong to the products
// until matrix_wait. Groups end in order; matrix_wait<n> leaves the last n under way.

TSRI_DEVICE void matrix_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TSRI_DEVICE void matrix_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLeft>
TSRI_DEVICE void matrix_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// Ties registers to this point of the program: the compiler does not know that a wait changes them.
template <class Acc, int kCount>
TSRI_DEVICE void matrix_pin(Acc (&acc)[kCount]) {
  TSRI_UNROLL
  for (int c = 0; c < kCount; ++c)
    TSRI_UNROLL
    for (int e = 0; e < 8; ++e) asm volatile("" : "+f"(acc[c].x[e])::"memory");
}
TSRI_DEVICE void matrix_pin(float &x) { asm volatile("" : "+f"(x)); }
// What follows does so in time too: after x, not negative, is known. The assembler moves waits ahead of
// arithmetic, up to a branch; this is one.
TSRI_DEVICE void matrix_after(float x) {
  if (any_lane(!(x >= 0.0f))) asm volatile("nanosleep.u32 0;");
}
// The same value, which the compiler takes for a new one: what is computed from it stays where it is used.
TSRI_DEVICE MatrixTile matrix_fresh(MatrixTile tile) {
  asm volatile("" : "+r"(tile.low));
  tile.low = shuffle(tile.low, 0);
  return tile;
}

TSRI_DEVICE uint64_t matrix_word(MatrixTile tile) {
  return static_cast<uint64_t>(kMatrixHigh) << 32 | tile.low;
}

#define TSRI_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TSRI_R1 TSRI_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TSRI_R2 TSRI_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TSRI_R3 TSRI_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TSRI_R4 TSRI_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TSRI_R5 TSRI_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TSRI_R6 TSRI_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TSRI_R7 TSRI_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TSRI_R8 TSRI_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TSRI_R9 TSRI_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TSRI_R10 TSRI_R9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TSRI_R11 TSRI_R10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TSRI_R12 TSRI_R11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TSRI_R13 TSRI_R12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TSRI_R14 TSRI_R13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TSRI_R15 TSRI_R14 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define TSRI_ONE(c)                                                                              \
  "+f"(d[c].x[0]), "+f"(d[c].x[1]), "+f"(d[c].x[2]), "+f"(d[c].x[3]), "+f"(d[c].x[4]),          \
      "+f"(d[c].x[5]), "+f"(d[c].x[6]), "+f"(d[c].x[7])
#define TSRI_D0 TSRI_ONE(0)
#define TSRI_D1 TSRI_D0, TSRI_ONE(1)
#define TSRI_D2 TSRI_D1, TSRI_ONE(2)
#define TSRI_D3 TSRI_D2, TSRI_ONE(3)
#define TSRI_D4 TSRI_D3, TSRI_ONE(4)
#define TSRI_D5 TSRI_D4, TSRI_ONE(5)
#define TSRI_D6 TSRI_D5, TSRI_ONE(6)
#define TSRI_D7 TSRI_D6, TSRI_ONE(7)
#define TSRI_D8 TSRI_D7, TSRI_ONE(8)
#define TSRI_D9 TSRI_D8, TSRI_ONE(9)
#define TSRI_D10 TSRI_D9, TSRI_ONE(10)
#define TSRI_D11 TSRI_D10, TSRI_ONE(11)
#define TSRI_D12 TSRI_D11, TSRI_ONE(12)
#define TSRI_D13 TSRI_D12, TSRI_ONE(13)
#define TSRI_D14 TSRI_D13, TSRI_ONE(14)
#define TSRI_D15 TSRI_D14, TSRI_ONE(15)

// d[c] is columns 16 c .. 16 c + 15 of 64 rows, in the accumulator layout of sm80/unit.hpp, 16 rows a warp.
//   matrix_product<kATransposed, kBTransposed>(E, d, a, b, add)   d = a b (+ d), both in shared memory
//   matrix_product_registers<kBTransposed>(E, d, a, b, add)       a in registers, as the A operand of
//                                                                 mma.m16n8k16 of every warp
// An operand is not transposed when the contracted index runs along its rows of 128 bytes.
#define TSRI_WGMMA_TYPED(N, LAST, X, Y, Z, W, V, E, TYPE)                                               \
  template <bool kATransposed, bool kBTransposed, class Acc>                                     \
  TSRI_DEVICE void matrix_product(E, Acc(&d)[N / 16], MatrixTile a, MatrixTile b, bool add) {    \
    asm volatile(                                                                                \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #Z ", 0;\n"                                           \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TSRI_R##LAST          \
        "}, %" #X ", %" #Y ", p, 1, 1, %" #W ", %" #V ";\n}"                                           \
        : TSRI_D##LAST                                                                           \
        : "l"(matrix_word(a)), "l"(matrix_word(b)), "r"(static_cast<int>(add)),                  \
          "n"(kATransposed ? 1 : 0), "n"(kBTransposed ? 1 : 0));                                 \
  }
#define TSRI_WGMMA_REGISTERS(N, LAST, A0, A1, A2, A3, Y, Z, W, E, TYPE)                          \
  template <bool kBTransposed, class Acc>                                                        \
  TSRI_DEVICE void matrix_product_registers(E, Acc(&d)[N / 16], const uint32_t (&a)[4],          \
                                            MatrixTile b, bool add) {                            \
    asm volatile(                                                                                \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #Z ", 0;\n"                                           \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TSRI_R##LAST          \
        "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #Y ", p, 1, 1, %" #W ";\n}"                   \
        : TSRI_D##LAST                                                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix_word(b)),                       \
          "r"(static_cast<int>(add)), "n"(kBTransposed ? 1 : 0));                                \
  }
// Numbers of the operands after the accumulators.
#define TSRI_WGMMA(N, LAST, P0, P1, P2, P3, P4, P5, P6)                                          \
  TSRI_WGMMA_TYPED(N, LAST, P0, P1, P2, P3, P4, BFloat16, "bf16")                                \
  TSRI_WGMMA_TYPED(N, LAST, P0, P1, P2, P3, P4, Half, "f16")                                     \
  TSRI_WGMMA_REGISTERS(N, LAST, P0, P1, P2, P3, P4, P5, P6, BFloat16, "bf16")                    \
  TSRI_WGMMA_REGISTERS(N, LAST, P0, P1, P2, P3, P4, P5, P6, Half, "f16")
TSRI_WGMMA(64, 3, 32, 33, 34, 35, 36, 37, 38)
TSRI_WGMMA(80, 4, 40, 41, 42, 43, 44, 45, 46)
TSRI_WGMMA(96, 5, 48, 49, 50, 51, 52, 53, 54)
TSRI_WGMMA(112, 6, 56, 57, 58, 59, 60, 61, 62)
TSRI_WGMMA(128, 7, 64, 65, 66, 67, 68, 69, 70)
TSRI_WGMMA(144, 8, 72, 73, 74, 75, 76, 77, 78)
TSRI_WGMMA(160, 9, 80, 81, 82, 83, 84, 85, 86)
TSRI_WGMMA(176, 10, 88, 89, 90, 91, 92, 93, 94)
TSRI_WGMMA(192, 11, 96, 97, 98, 99, 100, 101, 102)
TSRI_WGMMA(256, 15, 128, 129, 130, 131, 132, 133, 134)

} // namespace gpu
} // namespace tessera

#endif
#endif // TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_HPP_
