#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles for another system with PyPI's ziglang (clang and libc++ of each system).
#
# usage: platform.sh FOLDER --install          ziglang and wasmtime into FOLDER, if they are not there
#        platform.sh FOLDER TARGET compile     the core, the decoders, sites and bits/bits.cpp
#        platform.sh FOLDER TARGET EMULATOR... bits/bits.cpp; what it prints under the emulator must be what is recorded
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1 target=$2
shift 2
python=$folder/venv/bin/python
if [ "$target" = --install ]; then
  [ -e "$folder/installed" ] && exit
  python3 -m venv "$folder/venv" && "$python" -m pip install -q --disable-pip-version-check ziglang==0.15.2 wasmtime==50.0.1
  touch "$folder/installed"
  exit
fi
if [ ! -e "$folder/installed" ]; then
  echo "skipped: there is no ziglang (scripts/bootstrap test-all installs it)"
  exit
fi
zig=("$python" -m ziglang c++ -target "$target" -std=c++20 -O1 -g0 -fno-sanitize=undefined -DSPECAGG_ALLOW_SLOW -I"$root/include")
if [[ $target = wasm* ]]; then zig+=(-fno-exceptions); fi
if [ "$1" = compile ]; then
  printf '#include <specagg/%s.hpp>\n' specagg decoders sites >"$folder/$target.cpp"
  "${zig[@]}" -c "$folder/$target.cpp" -o "$folder/$target.o"
  "${zig[@]}" -c "$root/tests/bits/bits.cpp" -o "$folder/$target.bits.o"
else
  "${zig[@]}" "$root/tests/bits/bits.cpp" -o "$folder/$target.exe"
  WINEDEBUG=-all "$@" "$folder/$target.exe" | tr -d '\r' | diff -u "$root/tests/bits/expected.txt" -
fi
