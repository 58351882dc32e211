#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs real models end to end: scripts/real_model.sh BUILD_DIR CACHE_DIR
# 1. tests/data/real_qkv.safetensors is what the pinned model packages and texts give;
# 2. minilm_embed (encoder, packed batch) and smollm2_generate (decoder, paged cache), all their
#    attention layers through Tessera, agree with two other implementations of each model;
# 3. each program rejects a wrong model: heads cut wrongly, one layer's keys taken from another.
# Needs python3 with venv, and PyPI on the first run; later runs live from CACHE_DIR.
# TSR_BACKEND chooses the backend as for any program; the encoder also runs on the reference.
set -eu

if [ $# -ne 2 ]; then
  echo "usage: $0 BUILD_DIR CACHE_DIR" >&2
  exit 2
fi
build=$1
mkdir -p "$2"
cache=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONDONTWRITEBYTECODE=1

# program NAME: path of an example in the build folder
program() {
  found=$(find "$build" -name "$1" -type f -perm -u+x | head -n 1)
  if [ -z "$found" ]; then
    echo "$0: no $1 in $build: build with -DTESSERA_BUILD_EXAMPLES=ON" >&2
    exit 2
  fi
  echo "$found"
}

# export_model NAME: fills $cache/NAME; made again whenever a file that decides it has changed
export_model() {
  key=$(cat "$root/examples/$1/export_model.py" "$root"/scripts/realmodel/*.py | sha256sum)
  if [ ! -f "$cache/$1/key" ] || [ "$(cat "$cache/$1/key")" != "$key" ]; then
    echo "== export of $1"
    python3 "$root/examples/$1/export_model.py" --cache "$cache" --out "$cache/$1"
    echo "$key" >"$cache/$1/key"
  fi
}

# must_reject PROGRAM NAME SED_SCRIPT: the program exits 1 on the model with its index edited
must_reject() {
  wrong=$cache/$2-wrong
  mkdir -p "$wrong"
  for file in "$cache/$2"/*; do ln -sf "$file" "$wrong/"; done
  rm -f "$wrong/model.idx"
  sed "$3" "$cache/$2/model.idx" >"$wrong/model.idx"
  if cmp -s "$cache/$2/model.idx" "$wrong/model.idx"; then
    echo "$0: the edit '$3' changed nothing" >&2
    exit 1
  fi
  status=0
  "$1" "$wrong" >"$wrong/output" || status=$?
  grep -E '^(tokens|expected|logits)' "$wrong/output" || true
  if [ "$status" -ne 1 ]; then
    echo "$0: $2: exit status $status for a wrong model, expected 1" >&2
    exit 1
  fi
}

embed=$(program minilm_embed)
generate=$(program smollm2_generate)

echo "== captured tensors"
python3 "$root/scripts/capture_real_input.py" --cache "$cache" --check
export_model minilm
export_model smollm2

echo "== encoder: all-MiniLM-L6-v2"
"$embed" "$cache/minilm"
echo "== encoder on the reference backend"
TSR_BACKEND=reference "$embed" "$cache/minilm" >"$cache/minilm/output"
grep -E '^(attention|expected)' "$cache/minilm/output"
echo "== decoder: SmolLM2-135M-Instruct"
"$generate" "$cache/smollm2"

echo "== wrong models must be noticed"
must_reject "$embed" minilm 's/^value heads 12$/value heads 6/'
keys=$(sed -n 's/^blk.3.attn_k \(.*\)/\1/p' "$cache/smollm2/model.idx")
must_reject "$generate" smollm2 "s/^blk.4.attn_k .*/blk.4.attn_k $keys/"
echo "real models: ok"
