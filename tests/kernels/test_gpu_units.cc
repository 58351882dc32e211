// SPDX-License-Identifier: Apache-2.0
//
// The forward tile program over every matrix unit, NVIDIA's and AMD's, executed by the SIMT emulator with
// the instructions' documented register layouts and compared with the double-precision oracle. What is
// under test: that the units' ideas of who holds what agree with the instructions', that nothing in the
// tile program assumes one vendor's orientation or wave width, and that it reads only what it was given.
#include <math.h>
#include <stdio.h>

#include "backends/cuda/sm80/unit_f32.hpp"
#include "backends/cuda/sm80/unit_halves.hpp"
#include "backends/hip/gfx11/unit.hpp"
#include "backends/hip/gfx9/unit.hpp"
#include "common/gpu/forward.hpp"
#include "common/gpu/tanh.hpp"
#include "tests/kernels/forward_case.h"

namespace tessera {
namespace gpu {
namespace {

int64_t checks, failures;

void check(bool ok, const char *unit, const char *what, double found, double bound) {
  ++checks;
  if (ok) return;
  ++failures;
  printf("%s: %s: %g, allowed %g\n", unit, what, found, bound);
}

template <class Config>
void kernel(const void *args) {
  Config::block(*static_cast<const ForwardArgs *>(args));
}

template <class Config>
void try_case(const char *unit, const Case &c) {
  constexpr tsr_dtype dtype = DtypeOf<typename Config::E>::value;
  Run run(c, dtype);
  ForwardArgs &args = run.args;
  run.ask_oracle();
  args.tiles = ceil_div(static_cast<int>(c.sq), Config::kTileQ);
  args.chunks = ceil_div(static_cast<int>(c.dv), Config::kColumns);
  args.call.a.o = run.o.data();
  args.call.a.lse = static_cast<float *>(run.lse.data());
  args.call.a.max_logit = static_cast<float *>(run.top.data());
  char why[256] = "";
  const bool ran = emulate(kernel<Config>, &args, args.tiles * args.chunks * c.heads * c.batch,
                           Config::kThreads, Config::kWave, Config::kSharedBytes, why, sizeof why);
  char what[256];
  snprintf(what, sizeof what, "%s: %s", c.name, why);
  check(ran, unit, what, 1, 0);
  if (!ran) return;
  // Values are below 1, weights sum to 1 (dropout: 4/3): P and O are rounded once each.
  const double u = dtype == TSR_DTYPE_F32 ? 1e-5 : dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  const double o = Run::distance(run.o, run.o_wanted, args.call.p.o.dtype);
  snprintf(what, sizeof what, "%s: O differs by", c.name);
  check(o <= 2 * u, unit, what, o, 2 * u);
  const double lse = Run::distance(run.lse, run.lse_wanted, TSR_DTYPE_F32);
  snprintf(what, sizeof what, "%s: LSE differs by", c.name);
  check(lse <= 1e-5, unit, what, lse, 1e-5);
  if (!c.scores) return;
  const double top = Run::distance(run.top, run.top_wanted, TSR_DTYPE_F32);
  snprintf(what, sizeof what, "%s: row maxima differ by", c.name);
  check(top <= 1e-5, unit, what, top, 1e-5);
}

template <class U, int kTileQ, int kTileK, int kWaves, int kStages, bool kAny>
struct Config : Forward<U, kTileQ, kTileK, 64, 64, kWaves, kStages, kAny, kAny> {
  static constexpr int kWave = U::kWave, kColumns = 64;
};

template <class U, int kTileQ, int kTileK, int kWaves, int kStages>
void try_unit(const char *unit) {
  for (const Case &c : kEdgeCases) try_case<Config<U, kTileQ, kTileK, kWaves, kStages, false>>(unit, c);
  for (const Case &c : kAnyCases) try_case<Config<U, kTileQ, kTileK, kWaves, kStages, true>>(unit, c);
}

// tanh from 2^x, on every 61st float of both signs.
void try_tanh() {
  double worst = 0;
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += 61) {
    const float x = tsri_bits_float(static_cast<uint32_t>(bits));
    const float y = tanh_by_exp2(x);
    const double exact = tanh(static_cast<double>(x));
    if (isnan(x)) {
      if (!isnan(y)) worst = HUGE_VAL;
      continue;
    }
    // Half a unit of the last place of exact, subnormal results included.
    int exponent;
    frexp(exact, &exponent);
    const double ulp = ldexp(1.0, exponent < -125 ? -149 : exponent - 24);
    const double d = fabs(y - exact) / ulp;
    if (!(d <= worst)) worst = d;
  }
  check(worst <= 2, "tanh_by_exp2", "units of the last place", worst, 2);
}

} // namespace
} // namespace gpu
} // namespace tessera

int main() {
  using namespace tessera::gpu;
  try_tanh();
  try_unit<MmaSync<Half>, 64, 64, 4, 2>("mma.sync f16");
  try_unit<MmaSync<BFloat16>, 128, 32, 4, 1>("mma.sync bf16");
  try_unit<MmaSyncBf16x6, 64, 32, 4, 2>("mma.sync bf16x6");
  try_unit<MmaSyncHalves, 128, 32, 4, 2>("mma.sync f16x3");
  try_unit<Mfma<Half, 16>, 64, 64, 4, 2>("MFMA 16 f16");
  try_unit<Mfma<BFloat16, 16>, 128, 32, 4, 1>("MFMA 16 bf16");
  try_unit<Mfma<Half, 32>, 128, 32, 2, 1>("MFMA 32 f16");
  try_unit<Mfma<BFloat16, 32>, 64, 128, 2, 2>("MFMA 32 bf16");
  try_unit<WmmaGfx11<Half>, 64, 32, 4, 1>("WMMA gfx11 f16");
  try_unit<WmmaGfx11<BFloat16>, 64, 64, 2, 2>("WMMA gfx11 bf16");
  try_unit<WmmaGfx12<Half>, 64, 32, 4, 2>("WMMA gfx12 f16");
  try_unit<WmmaGfx12<BFloat16>, 64, 64, 2, 1>("WMMA gfx12 bf16");
  printf("test_gpu_units: %lld checks, %lld failures\n", static_cast<long long>(checks),
         static_cast<long long>(failures));
  return failures != 0 || checks == 0;
}
