#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing to build (--minimal), to test (--test, the default), and to cross-build and
# run for AArch64 (--arm). Packages that are present are left alone; nothing is downloaded when none is
# missing. The package index is refreshed only if a package is unknown or its download fails.
# Called by scripts/demo.sh and scripts/test.sh.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/install_deps.sh [--minimal] [--test] [--arm] [--list]
  --minimal  compiler, CMake, Ninja, Highway, Jansson: library, command line, demo
  --test     minimal + Criterion, Python, ccache, the thread sanitizer's OpenMP runtime, what emulates GPUs and
             compiles for AMD's (default)
  --arm      minimal + cross compiler, AArch64 libraries, qemu-user
  --list     print the packages that are missing and stop
TEXT
}

fail() { printf 'install_deps.sh: %s\n' "$*" >&2; exit 1; }

minimal=(gcc g++ cmake ninja-build pkg-config libhwy-dev libjansson-dev)
testing=(ccache libcriterion-dev libdlpack-dev libboost-context-dev clang-14 libomp-14-dev clang-19
         lld-19 llvm-19 python3 python3-venv)
arm=(gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user libhwy-dev:arm64 libgomp1:arm64
     libjansson-dev:arm64)

want=()
list_only=0
want_arm=0
[ $# -gt 0 ] || set -- --test
for arg in "$@"; do
  case "$arg" in
    --minimal) want+=("${minimal[@]}") ;;
    --test) want+=("${minimal[@]}" "${testing[@]}") ;;
    --arm) want+=("${minimal[@]}" "${arm[@]}"); want_arm=1 ;;
    --list) list_only=1; [ $# -gt 1 ] || want+=("${minimal[@]}" "${testing[@]}") ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$arg'; accepted: --minimal, --test, --arm, --list" ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this system has no apt-get and dpkg (Debian 12 or a derivative is expected);" \
       "install by its own means: ${want[*]}"
fi

# One line per installed architecture of a package.
installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "${want[@]}"; do
  case " ${missing[*]-} " in *" $package "*) continue ;; esac
  installed "$package" || missing+=("$package")
done

if [ "$list_only" = 1 ]; then
  [ ${#missing[@]} -eq 0 ] || printf '%s\n' "${missing[@]}"
  exit 0
fi
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null ||
    fail "missing packages: ${missing[*]}; run as root (or install sudo) to let this script install them"
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 "$@"; }

echo "install_deps.sh: installing ${missing[*]}"
refreshed=0
refresh() { apt update >/dev/null || fail "apt-get update failed"; refreshed=1; }
if [ "$want_arm" = 1 ] && ! dpkg --print-foreign-architectures | grep -qx arm64 &&
   [ "$(dpkg --print-architecture)" != arm64 ]; then
  "${as_root[@]}" dpkg --add-architecture arm64
  refresh
fi
known() { apt-cache show "$1" >/dev/null 2>&1; }
for package in "${missing[@]}"; do
  if [ "$refreshed" = 0 ] && ! known "$package"; then refresh; fi
done
for package in "${missing[@]}"; do
  known "$package" || fail "no package '$package' in the package index of this system"
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
if ! install; then
  # A stale index names files that the mirror has replaced; refresh once and try again.
  if [ "$refreshed" = 1 ] || { refresh; ! install; }; then
    tail -n 20 "$log" >&2
    fail "apt-get could not install: ${missing[*]}"
  fi
fi
