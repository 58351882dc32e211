#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The main job on real input, from nothing: installs what is missing, builds the release in build/, and
# runs every captured attention layer of tests/data/real_qkv.safetensors on every backend of this machine.
# Fails if any result is outside its error bound. Further arguments go to `tessera demo`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

scripts/install_deps.sh --minimal

started=$SECONDS
# The demo needs no test framework; a build folder that has the tests already keeps them.
fresh=()
[ -f build/CMakeCache.txt ] || fresh=(-DTESSERA_BUILD_TESTS=OFF)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ cmake --preset release "${fresh[@]}" && cmake --build build --parallel "$(nproc)"; } >"$log" 2>&1 ||
  { tail -n 40 "$log"; echo "demo.sh: the build failed" >&2; exit 1; }
echo "built in $((SECONDS - started)) s: build/lib/libtessera.so, build/cli/tessera"
echo

# Threads that spin at the end of a parallel region use up their time slice if other work runs on the
# machine, and a call of microseconds then takes a scheduler's tick. Spin briefly, then sleep.
if [ -z "${OMP_WAIT_POLICY:-}" ]; then export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-100}"; fi

build/cli/tessera info
echo
build/cli/tessera demo tests/data/real_qkv.safetensors "$@"
cat <<'TEXT'

More: build/cli/tessera check          every backend here against the reference
      build/examples/forward           the shortest program on the C API
      scripts/real_model.sh build DIR  an encoder and a decoder end to end (fetches their weights)
TEXT
