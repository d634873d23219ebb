# SPDX-License-Identifier: Apache-2.0
"""Runs a WebAssembly program of the system WASI with PyPI's wasmtime; tests/tree/platform.sh installs it.

usage: wasi.py PROGRAM
"""
import sys

import wasmtime

engine, wasi = wasmtime.Engine(), wasmtime.WasiConfig()
wasi.inherit_stdout()
store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
store.set_wasi(wasi)
linker.define_wasi()
program = linker.instantiate(store, wasmtime.Module.from_file(engine, sys.argv[1]))
program.exports(store)["_start"](store)
