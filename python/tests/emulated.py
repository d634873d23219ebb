# SPDX-License-Identifier: Apache-2.0
"""A compiler for specagg.cuda that makes code for the CPU: of the tests' CUDA emulator (tests/cuda/emulator)."""

import ctypes
import os
import pathlib
import shutil
import subprocess

from specagg import _nvcc

ROOT = pathlib.Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests/cuda/emulator"
COMPILER = shutil.which("g++")


class Emulator(_nvcc.Nvcc):
    """Kernels run when finish() waits for them, in memory of the host. folder: for the emulator's library."""

    small = []

    def __init__(self, folder):
        self.devices, self.library = "cpu", folder / "libemulator.so"
        os.environ["SPECAGG_CUDA_ANY_MEMORY"] = "1"  # read at the first load of a kernel
        subprocess.run([COMPILER, *self.common(), "-O2", f"-I{ROOT}/include", EMULATOR / "engine.cpp", EMULATOR / "runtime.cpp",
                        "-lboost_context", "-lpthread", "-o", self.library], check=True)
        self.emulator = ctypes.CDLL(str(self.library))

    def common(self):
        return ["-std=gnu++20", "-shared", "-fPIC", "-DSPECAGG_SCALAR", "-DSPECAGG_ALLOW_SLOW", f"-I{EMULATOR}"]

    def compiler(self):
        return COMPILER

    def flags(self, arch):
        return [*self.common(), "-x", "c++", "-O1", "-DSPECAGG_COMPILE_FAST", "-include", str(EMULATOR / "cuda_runtime.h"),
                "-Wno-unknown-pragmas"]

    def libraries(self):
        return ["-x", "none", str(self.library), f"-Wl,-rpath,{self.library.parent}"]

    def finish(self, library):
        assert self.emulator._Z21cudaDeviceSynchronizev() == 0
