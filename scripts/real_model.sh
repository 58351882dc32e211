#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs real models end to end: scripts/real_model.sh BUILD_DIR CACHE_DIR
# 1. tests/data/real_qkv.safetensors is what the pinned model packages and texts give;
# 2. minilm_embed, all its attention layers through Tessera, agrees with two other implementations,
#    on the backend the dispatcher picks and on the reference;
# 3. the same program rejects a wrong model (its width cut into 6 heads instead of 12).
# Needs python3 with venv, and PyPI on the first run; later runs live from CACHE_DIR.
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

program=$(find "$build" -name minilm_embed -type f -perm -u+x | head -n 1)
if [ -z "$program" ]; then
  echo "$0: no minilm_embed in $build: build with -DTESSERA_BUILD_EXAMPLES=ON" >&2
  exit 2
fi

echo "== captured tensors"
python3 "$root/scripts/capture_real_input.py" --cache "$cache" --check

# The export is made again whenever a file that decides it has changed.
model=$cache/minilm
key=$(cat "$root/examples/minilm/export_model.py" "$root"/scripts/realmodel/*.py | sha256sum)
if [ ! -f "$model/key" ] || [ "$(cat "$model/key")" != "$key" ]; then
  echo "== export of all-MiniLM-L6-v2"
  python3 "$root/examples/minilm/export_model.py" --cache "$cache" --out "$model"
  echo "$key" >"$model/key"
fi

echo "== sentence embeddings, backend chosen by the dispatcher"
"$program" "$model"
echo "== sentence embeddings, backend reference"
TSR_BACKEND=reference "$program" "$model" | grep -E '^attention:|^expected'
# grep hides the program's status: ask again for it alone.
TSR_BACKEND=reference "$program" "$model" >/dev/null

echo "== a wrong model must be noticed"
wrong=$cache/minilm-6-heads
mkdir -p "$wrong"
ln -sf "$model/model.bin" "$wrong/model.bin"
sed 's/^value heads 12$/value heads 6/' "$model/model.idx" >"$wrong/model.idx"
status=0
"$program" "$wrong" >"$wrong/output" || status=$?
grep -E '^expected' "$wrong/output" || true
if [ "$status" -ne 1 ]; then
  echo "$0: exit status $status for a wrong model, expected 1" >&2
  exit 1
fi
echo "real model: ok"
