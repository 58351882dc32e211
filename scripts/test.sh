#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds every configuration that Tessera claims, and runs the tests of each.
# Parts run in the order below; the first that fails ends the script with its status and CTest's output.
# The release build is compiled first and tested last, so that its summary is the end of the output.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--jobs N] [--no-install] [PART...]
parts (default: all of them)
  arm      cross build for AArch64; NEON and SVE of several lengths under qemu-user
  tsan     thread sanitizer (clang), tests with several threads
  asan     address and undefined-behaviour sanitizers, whole suite
  plugins  backends as plug-ins, AMX tiles emulated: whole suite but the slow tests
  static   static library: install, ABI and examples
  cuda     the CUDA backend's kernels in an emulator on the host: unit tests, conformance; where there
           is nvcc also its plug-in: no kernel spills, and it loads where there is no driver
  hip      the HIP backend: code objects for AMD's GPUs, executed instruction by instruction on the host
  model    release build; two real models end to end against other implementations (weights are
           fetched once into $XDG_CACHE_HOME/tessera or ~/.cache/tessera)
  release  optimised build, warnings are errors, whole suite
  --jobs N       compilations and tests at once (default: number of processors)
  --no-install   trust that every package is there
TEXT
}
fail() { printf 'test.sh: %s\n' "$*" >&2; exit 2; }

all_parts=(arm tsan asan plugins static cuda hip model release)
jobs=$(nproc)
install=1
parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    --jobs)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || fail "--jobs: found '${2:-}', accepted: a number from 1"
      jobs=$2; shift ;;
    --no-install) install=0 ;;
    -h|--help) usage; exit 0 ;;
    *)
      [[ " ${all_parts[*]} " == *" $1 "* ]] || fail "unknown part '$1'; accepted: ${all_parts[*]}"
      parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

if [ "$install" = 1 ]; then
  packages=()
  wanted arm && packages+=(--arm)
  if [ "${parts[*]}" != arm ]; then packages+=(--test); fi
  scripts/install_deps.sh "${packages[@]}"
fi

# Idle OpenMP threads would otherwise spin on processors that the next test needs.
export OMP_WAIT_POLICY=passive
export CTEST_OUTPUT_ON_FAILURE=1
# The builds share most of their objects. Objects are found again whatever folder the tree is in.
launchers=()
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  launchers=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
started=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

# configure_and_build <preset> <folder> <cmake argument>...
configure_and_build() {
  local preset=$1 folder=$2
  shift 2
  say "$folder: build"
  cmake --preset "$preset" -B "$folder" -DTESSERA_WERROR=ON -DTESSERA_BUILD_TESTS=ON \
    "${launchers[@]}" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
  grep -A 9 -e '^-- Tessera ' "$folder.log" || true
  mkdir -p "$folder" && mv "$folder.log" "$folder/configure.log"
  cmake --build "$folder" --parallel "$jobs" >"$folder/build.log" 2>&1 ||
    { grep -v '^\[' "$folder/build.log" | head -n 60; fail "$folder: the build failed"; }
}
run_ctest() {
  local folder=$1
  shift
  say "$folder: test"
  ctest --test-dir "$folder" --no-tests=error --parallel "$jobs" "$@"
}

if wanted release || wanted model; then
  configure_and_build release build
fi
if wanted arm; then
  configure_and_build aarch64 build-aarch64
  run_ctest build-aarch64 -LE 'lint|slow'
fi
if wanted tsan; then
  configure_and_build tsan build-tsan -DTESSERA_BUILD_BENCH=OFF
  run_ctest build-tsan -L threads
fi
if wanted asan; then
  configure_and_build asan build-asan
  run_ctest build-asan -LE lint
fi
if wanted plugins; then
  configure_and_build release build-plugins -DTESSERA_PLUGINS=ON -DTESSERA_EMULATE_AMX=ON \
    -DTESSERA_BUILD_BENCH=OFF
  run_ctest build-plugins -LE 'slow|lint'
fi
if wanted static; then
  configure_and_build release build-static -DBUILD_SHARED_LIBS=OFF -DTESSERA_BUILD_BENCH=OFF
  run_ctest build-static -L 'install|abi|example'
fi
if wanted cuda; then
  configure_and_build release build-cuda-emulated -DTESSERA_ENABLE_CUDA=ON -DTESSERA_EMULATE_CUDA=ON \
    -DTESSERA_ENABLE_CPU=OFF -DTESSERA_BUILD_BENCH=OFF
  run_ctest build-cuda-emulated -L 'unit|conformance'
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    configure_and_build release build-cuda -DTESSERA_ENABLE_CUDA=ON -DTESSERA_PLUGINS=ON \
      -DTESSERA_ENABLE_CPU=OFF -DTESSERA_BUILD_BENCH=OFF
    say "build-cuda: kernel rows"
    cmake --build build-cuda --target cuda_rows
    run_ctest build-cuda -R cuda
  else
    say "build-cuda: left out, there is no nvcc"
  fi
fi
if wanted hip; then
  if command -v clang++-19 >/dev/null && command -v ld.lld-19 >/dev/null; then
    configure_and_build release build-hip -DTESSERA_ENABLE_HIP=ON -DTESSERA_PLUGINS=ON \
      -DTESSERA_ENABLE_CPU=OFF -DTESSERA_BUILD_BENCH=OFF
    say "build-hip: bounds of a model, and lines that the backends share"
    scripts/amd_model.py --table --rows build-hip/tests/unit/unit_hip_rows build-hip/backends/hip/objects
    scripts/shared_lines.py --least 80 --least-used 70
    # Every kernel of every device; all cases, and every kernel on many keys, on one device of each kind of wave, some
    # groups on the others.
    run_ctest build-hip -R 'hip|amdgpu' -E \
      'hip_(cases|cut)_(gfx90a|gfx1100)|hip_cut_(nan|minus_inf)_(gfx942|gfx1201)|hip_basic|hip_(reports|varlen|paged|dropout)_(gfx942|gfx1201)|hip_model|hip_shared_lines'
    # Folded into the library, with the same code objects.
    configure_and_build release build-hip-static -DTESSERA_ENABLE_HIP=ON -DBUILD_SHARED_LIBS=OFF \
      -DTESSERA_ENABLE_CPU=OFF -DTESSERA_BUILD_BENCH=OFF "-DTESSERA_HIP_OBJECTS=$PWD/build-hip/backends/hip/objects"
    run_ctest build-hip-static -R 'unit_hip_rows|hip_without_driver|hip_backwards_(gfx942|gfx1201)|install'
  else
    say "build-hip: left out, there is no clang++-19 with ld.lld-19"
  fi
fi
if wanted model; then
  say "build: real models"
  scripts/real_model.sh build "${XDG_CACHE_HOME:-$HOME/.cache}/tessera"
fi
if wanted release; then
  run_ctest build
fi
