# SPDX-License-Identifier: Apache-2.0
"""The C functions that specagg.cuda calls: their C++ text, compiled once into a cache, and loaded."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from typing import Any

_verifiers = {"token": "specagg::token_verifier", "block": "specagg::block_verifier", "match": "specagg::match_verifier",
              "coupled": "specagg::cuda::coupled"}
INSTALL = "pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"

# Of the catalogue: its line, with the parameters in their order.
_OF_CATALOGUE = """#include <specagg/policy/catalogue.hpp>

auto policy_of(const double* parameters) {{
  constexpr auto& line = {line};
  auto policy = line.values[0];
  for (const auto& one : line.parameters) {{
    const double x = *parameters++;
    if (one.flag) policy.*one.flag = x != 0;
    else policy.*one.number = x;
  }}
  return policy;
}}
"""
_TEXT = """#include <specagg/backend/cuda/call.hpp>
{policy}
extern "C" int specagg_verify(const specagg::cuda::ragged_call* call, const double* parameters, void* stream) {{
  return specagg::cuda::verify_call<{target}, {draft}>(*call, policy_of(parameters), {verifier}{{}}, stream);
}}
extern "C" long long specagg_storage(const specagg::cuda::ragged_call* call) {{
  return specagg::cuda::storage_of_call<{target}, {draft}>(*call);
}}
extern "C" int specagg_reads_draft() {{
  return specagg::reads_draft<decltype(policy_of(nullptr))>;
}}
extern "C" const char* specagg_error(int e) {{ return cudaGetErrorString(cudaError_t(e)); }}
"""


def catalogued_text(line: int, in_catalogue: int) -> str:
    """policy_of() of a line of specagg.policies(); the presets follow the in_catalogue others."""
    known = line < in_catalogue
    tuple_of, i = ("catalogue", line) if known else ("presets", line - in_catalogue)
    return _OF_CATALOGUE.format(line=f"std::get<{i}>(specagg::{tuple_of})")


def traced_text(name: str, header: str, parameters: list[str], flags: list[bool]) -> str:
    """policy_of() of a traced policy, from its C++ header."""
    sets = "".join(f"  policy.{one} = parameters[{i}]{' != 0' if flag else ''};\n"
                   for i, (one, flag) in enumerate(zip(parameters, flags)))
    return (header.replace("#pragma once\n", "") +
            f"\nauto policy_of([[maybe_unused]] const double* parameters) {{\n  {name} policy;\n{sets}  return policy;\n}}\n")


def text_of(policy: str, verifier: str, target: str, draft: str) -> str:
    """The file that is compiled. policy: what defines policy_of(); target, draft: C++ types of a row's elements."""
    return _TEXT.format(policy=policy, verifier=_verifiers[verifier], target=target, draft=draft)


def include() -> pathlib.Path:
    """The folder of the C++ headers: the wheel's, or a checkout's."""
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here / "include", here.parents[1] / "include"):
        if (folder / "specagg/backend/cuda/call.hpp").is_file():
            return folder
    raise FileNotFoundError(f"specagg.cuda: the C++ headers are neither in {here / 'include'} nor in a checkout around it")


@lru_cache(maxsize=None)
def _headers_hash(folder: pathlib.Path) -> str:
    content = hashlib.sha256()
    for path in sorted(folder.glob("specagg/**/*.hpp")):
        content.update(path.read_bytes())
    return content.hexdigest()


def find_nvcc() -> str:
    """$SPECAGG_NVCC, the nvcc on the path, of $CUDA_HOME or /usr/local/cuda, or of PyPI's packages. RuntimeError, which
    says what to install."""
    if given := os.environ.get("SPECAGG_NVCC"):
        return given
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    homes += [str(path) for folder in sys.path for path in sorted(pathlib.Path(folder or ".").glob("nvidia/cu*"))]
    for found in (shutil.which("nvcc"), *(shutil.which("nvcc", path=f"{home}/bin") for home in homes if home)):
        if found:
            return found
    raise RuntimeError(f"specagg.cuda: there is no nvcc, which compiles a policy for the device when it is first used: "
                       f"{INSTALL}, or name one in SPECAGG_NVCC")


@lru_cache(maxsize=None)
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


class Nvcc:
    """How the text is compiled, and for which devices. Tests put a CPU in its place."""

    def __init__(self) -> None:
        self.devices = "cuda"

    def compiler(self) -> str:
        return find_nvcc()

    def flags(self, arch: str) -> list[str]:
        return ["-x", "cu", "-shared", "-Xcompiler", "-fPIC", "-std=c++20", "--expt-relaxed-constexpr", "-O2", f"-arch={arch}"]

    def libraries(self) -> list[str]:
        return [f"-L{pathlib.Path(self.compiler()).resolve().parents[1] / 'lib'}"]  # where PyPI's packages have them

    def finish(self, library: Any) -> None:
        """After each call. A device's work goes on in its stream."""


def cache() -> pathlib.Path:
    """Where compiled functions are: $SPECAGG_CACHE, else specagg/cuda in the user's cache."""
    if given := os.environ.get("SPECAGG_CACHE"):
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "specagg" / "cuda"


def compiled(text: str, arch: str, how: Nvcc) -> pathlib.Path:
    """The library of this text, compiled unless the cache has it. RuntimeError: what the compiler said."""
    compiler, flags, folder = how.compiler(), how.flags(arch), include()
    key = "\n".join([text, *flags, *how.libraries(), _version(compiler), _headers_hash(folder)])
    path = cache() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:  # renamed when it is whole: others may look
        source, made = pathlib.Path(work) / "verify.cu", pathlib.Path(work) / "verify.so"
        source.write_text(text)
        command = [compiler, *flags, f"-I{folder}", str(source), *how.libraries(), "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"specagg.cuda: {' '.join(command)}\n{ran.stderr or ran.stdout}")
        os.replace(made, path)
    return path


_loaded: dict[pathlib.Path, Any] = {}
_lock = threading.Lock()


def load(text: str, arch: str, how: Nvcc) -> Any:
    """The functions of this text."""
    with _lock:
        path = compiled(text, arch, how)
        if path not in _loaded:
            library = ctypes.CDLL(str(path))
            library.specagg_verify.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            library.specagg_storage.argtypes = [ctypes.c_void_p]
            library.specagg_storage.restype = ctypes.c_longlong
            library.specagg_error.restype = ctypes.c_char_p
            _loaded[path] = library
        return _loaded[path]


class Array(ctypes.Structure):
    """cuda_call::array of backend/cuda/call.hpp."""

    _fields_ = [("at", ctypes.c_void_p), ("element_bytes", ctypes.c_int64)]


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


ARRAYS = "tokens cu_num_draft_tokens start seed request temperature draft_temperature".split()


class Call(ctypes.Structure):
    """cuda_call::ragged of backend/cuda/call.hpp, whose members these are."""

    _fields_ = [
        *_fields(ctypes.c_int64, "requests vocabulary most drafted target_stride draft_stride draft_bonus"),
        *_fields(ctypes.c_void_p, "target draft"),
        *_fields(Array, " ".join(ARRAYS)),
        *_fields(ctypes.c_void_p, "target_mask draft_mask end_of_text"),
        *_fields(ctypes.c_int64, "end_count"),
        *_fields(Array, "out_tokens"),
        *_fields(ctypes.c_void_p, "accepted emitted statuses log_pi log_p acceptances storage"),
        *_fields(ctypes.c_int64, "storage_bytes device"),
    ]
