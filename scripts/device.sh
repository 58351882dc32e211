#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that a machine with a GPU should say about a build, with binaries alone: no compiler, no CMake.
#   scripts/device.sh --pack BUILD FOLDER     collects the programs and libraries of a build, stripped
#   scripts/device.sh FOLDER [STEP...]        runs them; FOLDER is a packed folder or a build folder
# Steps, in this order when none is named: info check kernels capture conformance fuzz sanitizer bench peers.
# Each prints its verdict; the status is the number of steps that failed, 77 when the backend is absent
# here. Environment:
#   BACKEND      the backend to judge (cuda)           OUT      where records go (bench/results)
#   FUZZ_SEEDS   seeds to start from ("1 100000")      FUZZ_COUNT   problems per seed (300)
#   SUITES       of the bench ("prefill short decode float32 grouped")
#   STEP_SECONDS limit of a step (540)                 PYTHON   with PyTorch, for the step peers (python3)
set -u

here=$(cd "$(dirname "$0")/.." && pwd)
programs="cli/tessera tests/gpu/gpu_capture tests/conformance/fuzz_problems
  tests/conformance/conformance_threads tests/conformance/conformance_varlen
  tests/conformance/conformance_decode tests/conformance/conformance_determinism
  tests/conformance/conformance_merge tests/conformance/conformance_dropout
  tests/conformance/conformance_oom tests/conformance/conformance_real"

# Copies what programs load, but for the parts of the C library and the driver, which belong to a machine.
pack() {
  local build=$1 folder=$2 program library
  mkdir -p "$folder/lib/tessera" || exit 1
  for program in $programs; do
    [ -x "$build/$program" ] || { echo "device.sh: $build/$program: not built, left out"; continue; }
    mkdir -p "$folder/$(dirname "$program")"
    cp "$build/$program" "$folder/$program"
    ldd "$build/$program" | awk '$3 ~ /^\// {print $3}' |
      grep -Ev '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*|libcuda|libnvidia[^/]*)\.so' |
      while read -r library; do cp -nL "$library" "$folder/lib/"; done
  done
  for library in "$build"/lib/tessera/*.so; do
    if [ -e "$library" ]; then cp "$library" "$folder/lib/tessera/"; fi
  done
  find "$folder" -type f \( -perm -u+x -o -name '*.so*' \) -exec strip --strip-unneeded {} + 2>/dev/null
  du -sh "$folder"
}

if [ "${1:-}" = --pack ]; then
  [ $# -eq 3 ] || { echo "usage: device.sh --pack BUILD FOLDER" >&2; exit 2; }
  pack "$2" "$3"
  exit
fi
if [ $# -lt 1 ] || [ ! -x "$1/cli/tessera" ]; then
  echo "usage: device.sh FOLDER [STEP...]; FOLDER holds cli/tessera" >&2
  exit 2
fi

build=$(cd "$1" && pwd)
shift
backend=${BACKEND:-cuda}
out=${OUT:-$here/bench/results}
limit=${STEP_SECONDS:-540}
steps=${*:-info check kernels capture conformance fuzz sanitizer bench peers}
export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
if [ -z "${TSR_PLUGIN_PATH:-}" ]; then export TSR_PLUGIN_PATH="$build/lib/tessera"; fi
export TSR_REAL_QKV="$here/tests/data/real_qkv.safetensors"
tessera="$build/cli/tessera"
tests="$build/tests/conformance"
failed=0

if "$tessera" check --backend "$backend" --quick --case one_of_each 2>&1 |
    grep -q "no backend to check"; then
  echo "device.sh: backend $backend is absent on this machine:"
  "$tessera" info | grep -A 1 "^backend $backend "
  exit 77
fi
mkdir -p "$out"

# run NAME COMMAND...: its output, then one line with the verdict.
run() {
  local name=$1 begin status
  shift
  begin=$(date +%s)
  timeout "$limit" "$@"
  status=$?
  if [ $status -eq 77 ]; then
    echo "== $name: skipped"
  elif [ $status -eq 0 ]; then
    echo "== $name: ok, $(($(date +%s) - begin)) s"
  else
    echo "== $name: FAILED with status $status, $(($(date +%s) - begin)) s"
    failed=$((failed + 1))
  fi
}

# Small cases under the tools of the sanitizer: memory errors and races by the check; reads of what nobody wrote
# by the bench, whose memory is the device's own and written by the driver alone.
sanitizer() {
  local tool path pass
  path=$(command -v compute-sanitizer ||
    find /usr/local/ -maxdepth 3 -path "*cuda*/bin/compute-sanitizer" 2>/dev/null | head -1)
  [ -n "$path" ] || { echo "== sanitizer: no compute-sanitizer here, skipped"; return; }
  for tool in memcheck racecheck; do
    run "sanitizer $tool" "$path" --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "$tessera" check --backend "$backend" --kernel '*' --pass both --dtype f16 --case square_64
    run "sanitizer $tool packed" "$path" --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "$tessera" check --backend "$backend" --kernel '*' --pass both --dtype bf16 --case packed_features
  done
  for pass in forward backward; do
    run "sanitizer initcheck $pass" "$path" --tool initcheck --error-exitcode 9 --print-limit 20 \
      "$tessera" bench --backend "$backend" --pass "$pass" --dtype f16 --sq 77,200 --hq 2 --forced \
      --repeats 1 --warmup 1 --sample-seconds 0.000001
  done
}

bench() {
  local suite pass stamp
  stamp=$(date +%Y%m%d-%H%M%S)
  for suite in ${SUITES:-prefill short decode float32 grouped}; do
    for pass in forward backward; do
      [ "$suite/$pass" = decode/backward ] && continue
      run "bench $suite $pass" "$tessera" bench --backend "$backend" --suite "$suite" \
        --pass "$pass" --forced --records "$out/$backend-$stamp.jsonl"
    done
  done
  echo "records: $out/$backend-$stamp.jsonl"
}

peers() {
  local library
  library=$(find "$build/lib" -maxdepth 1 -name "libtessera.so*" | sort | head -1)
  run peers "${PYTHON:-python3}" "$here/bench/peers/torch_sdpa.py" "$tessera" --library "$library" \
    --device cuda --backend "$backend" --suite prefill,short,float32,decode --passes both \
    --json "$out/$backend-torch.jsonl"
}

for step in $steps; do
  case $step in
    info) run info "$tessera" info --kernels ;;
    check) run check "$tessera" check --backend "$backend" --pass both ;;
    kernels) run "every kernel" "$tessera" check --backend "$backend" --pass both --kernel '*' ;;
    capture) run capture env TSR_TEST_BACKENDS="$backend" "$build/tests/gpu/gpu_capture" ;;
    conformance)
      for name in threads varlen decode merge dropout determinism oom real; do
        words="-j1 --color=never"
        [ $name = threads ] && words=
        # shellcheck disable=SC2086
        if [ -x "$tests/conformance_$name" ]; then
          run "conformance $name" env TSR_TEST_BACKENDS="$backend" "$tests/conformance_$name" $words
        fi
      done ;;
    fuzz)
      for seed in ${FUZZ_SEEDS:-1 100000}; do
        run "fuzz from $seed" env TSR_TEST_BACKENDS="$backend" TSR_FUZZ_SEED="$seed" \
          TSR_FUZZ_COUNT="${FUZZ_COUNT:-300}" "$tests/fuzz_problems"
      done ;;
    sanitizer) sanitizer ;;
    bench) bench ;;
    peers) peers ;;
    *) echo "device.sh: no step '$step'" >&2; exit 2 ;;
  esac
done
echo "== $failed failed"
exit $((failed > 100 ? 100 : failed))
