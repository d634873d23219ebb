# SPDX-License-Identifier: Apache-2.0
"""The C functions that specagg.cuda calls: their C++ text, compiled once into a cache, and loaded. A wheel may bring some
(scripts/wheels): python -m specagg._nvcc FOLDER compiles them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Sequence

from ._policy import policies
from ._verify import _uncoupled, _verifiers

INSTALL = "pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"

_OTHERS = "specagg: these headers have other policies or verifiers than specagg._core"
# Of the catalogue: its line, with the parameters in their order.
_OF_CATALOGUE = """#include <string_view>

#include <specagg/policy/catalogue.hpp>

SPECAGG_FUNCTION auto policy_of(const double* parameters) {{
  constexpr auto line = std::get<{line}>(std::tuple_cat(specagg::catalogue, specagg::presets));
  static_assert(std::string_view(line.name) == "{name}" && line.parameters.size() == {count}, "{others}");
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
static_assert(std::string_view(std::tuple_element_t<{number}, specagg::all_verifiers>::name) == "{verifier}", "{others}");
extern "C" int specagg_verify(const specagg::cuda::ragged_call* call, const double* parameters, void* stream) {{
  constexpr specagg::cuda::numbered_verifier<{number}> verifier;
  constexpr auto kernels = specagg::cuda::kernels::SPECAGG_KERNELS;
  return specagg::cuda::verify_call<{target}, {draft}, {filtered}, kernels>(*call, {policies}, verifier, stream);
}}
extern "C" long long specagg_storage(const specagg::cuda::ragged_call* call) {{
  return specagg::cuda::storage_of_call<{target}, {draft}, {filtered}>(*call);
}}
extern "C" int specagg_reads_draft() {{
  return specagg::reads_draft<decltype(policy_of(nullptr))>;
}}
extern "C" const char* specagg_error(int e) {{ return cudaGetErrorString(cudaError_t(e)); }}
"""


def catalogued_text(name: str) -> str:
    """policy_of() of a name of specagg.policies()."""
    lines = policies()
    names = [one.name for one in lines]
    line = names.index(name)
    return _OF_CATALOGUE.format(line=line, name=name, others=_OTHERS, count=len(lines[line].parameters))


def traced_text(name: str, header: str, parameters: list[str], flags: list[bool]) -> str:
    """policy_of() of a traced policy, from its C++ header."""
    sets = "".join(f"  policy.{one} = parameters[{i}]{' != 0' if flag else ''};\n"
                   for i, (one, flag) in enumerate(zip(parameters, flags)))
    return (header.replace("#pragma once\n", "") +
            f"\nSPECAGG_FUNCTION auto policy_of([[maybe_unused]] const double* parameters) {{\n  {name} policy;\n{sets}"
            "  return policy;\n}\n")


# The policies of requests that each have parameters of their own, in device memory.
_OF_REQUESTS = """
struct policy_of_request {{
  const double* parameters;  // [B][{count}]
  SPECAGG_FUNCTION auto operator[](std::size_t r) const {{ return policy_of(parameters + {count} * r); }}
}};
"""


def text_of(policy: str, verifier: str, target: str, draft: str, filtered: bool = False, per_request: int = 0) -> str:
    """The file that is compiled. policy: what defines policy_of(); target, draft: C++ types of a row's elements;
    per_request: how many parameters each request has of its own, or 0."""
    return _TEXT.format(policy=policy + (_OF_REQUESTS.format(count=per_request) if per_request else ""),
                        policies="policy_of_request{parameters}" if per_request else "policy_of(parameters)",
                        verifier=verifier, number=_verifiers[verifier], others=_OTHERS, target=target, draft=draft,
                        filtered=str(filtered).lower())


BROUGHT = pathlib.Path(__file__).resolve().parent / "_cuda"  # libraries of this version's headers
_ARCHS = ("sm_80", "sm_90")


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

    small = ["--compress-mode=size", "-Xlinker=-s"]  # what makes a library small

    def __init__(self) -> None:
        self.devices = "cuda"

    def compiler(self) -> str:
        return find_nvcc()

    def flags(self, arch: Sequence[str]) -> list[str]:
        return ["-x", "cu", "-shared", "-Xcompiler", "-fPIC", "-std=c++20", "--expt-relaxed-constexpr", "-O2", *arch]

    def libraries(self) -> list[str]:
        return [f"-L{pathlib.Path(self.compiler()).resolve().parents[1] / 'lib'}"]  # where PyPI's packages have them

    def finish(self, library: Any) -> None:
        """After each call. A device's work goes on in its stream."""


def cache() -> pathlib.Path:
    """Where compiled functions are: $SPECAGG_CACHE, else specagg/cuda in the user's cache."""
    if given := os.environ.get("SPECAGG_CACHE"):
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "specagg" / "cuda"


def _compile(text: str, flags: Sequence[str], how: Nvcc, path: pathlib.Path) -> None:
    """RuntimeError: what the compiler said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:  # renamed when it is whole: others may look
        source, made = pathlib.Path(work) / "verify.cu", pathlib.Path(work) / "verify.so"
        source.write_text(text)
        command = [how.compiler(), *flags, f"-I{include()}", str(source), *how.libraries(), "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode and _OTHERS in ran.stderr + ran.stdout:
            raise RuntimeError(f"specagg.cuda: {include()}: the C++ headers are not those that specagg._core was built from: "
                               "install the package anew")
        if ran.returncode:
            raise RuntimeError(f"specagg.cuda: {' '.join(command)}\n{ran.stderr or ran.stdout}")
        os.replace(made, path)


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"


def _kernels(which: str) -> list[str]:
    """Flags. which: of enum kernels (backend/cuda/call.hpp)."""
    return [f"-DSPECAGG_KERNELS={which}"]


def compiled(text: str, arch: str, how: Nvcc, kernels: str = "both") -> pathlib.Path:
    """The library of this text: the wheel's, which has both kernels; or, compiled unless the cache has it, of these
    kernels alone."""
    brought, old = BROUGHT / _name(text), arch.startswith("sm_") and int(arch[3:]) < int(_ARCHS[0][3:])
    if brought.is_file() and not old:
        return brought
    flags = how.flags([f"-arch={arch}"]) + _kernels(kernels)
    key = "\n".join([text, *flags, *how.libraries(), _version(how.compiler()), _headers_hash(include())])
    path = cache() / _name(key)
    if not path.is_file():
        _compile(text, flags, how, path)
    return path


def usual_texts() -> list[str]:
    """What a wheel may bring: the policies and verifiers of most requests, logits of each type, drafts with rows or not."""
    types = "float", "specagg::f16", "specagg::bf16"
    rows = [text_of(catalogued_text(policy), verifier, one, one)
            for policy in ("lossless", "token-v3", "ensemble", "lossy") for verifier in _uncoupled for one in types]
    return rows + [text_of(catalogued_text("lossless"), verifier, one, "specagg::cuda::one_hot")
                   for verifier in _uncoupled for one in types]


def build(folder: pathlib.Path, texts: Sequence[str], how: Nvcc) -> None:
    """Compiles what a wheel brings, for devices from the first of _ARCHS on."""
    code = dict.fromkeys(_ARCHS, "") | {_ARCHS[-1]: f",compute_{_ARCHS[-1][3:]}"}  # newer devices compile the last
    flags = how.flags([f"-gencode=arch=compute_{arch[3:]},code=[{arch}{more}]" for arch, more in code.items()]) + how.small + _kernels("both")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda text: _compile(text, flags, how, folder / _name(text)), texts))


_loaded: dict[pathlib.Path, Any] = {}
_lock = threading.Lock()


def load(text: str, arch: str, how: Nvcc, kernels: str = "both") -> Any:
    """The functions of this text, for rows of these kernels."""
    with _lock:
        path = compiled(text, arch, how, kernels)
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


def _members() -> list[tuple[str, Any]]:
    """The members of cuda_call::ragged, as backend/cuda/call.hpp declares them: numbers, arrays and pointers."""
    header = (include() / "specagg/backend/cuda/call.hpp").read_text()
    body = header.split("struct ragged {")[1].split("\n};")[0]
    types = {"std::int64_t": ctypes.c_int64, "array": Array}
    return [(name.strip(" *"), ctypes.c_void_p if "*" in name else types[kind])
            for kind, names in re.findall(r"^  (?:const )?([\w:]+)(\*? [^;]+);", body, re.M) for name in names.split(",")]


_MEMBERS = _members()
ARRAYS = [name for name, kind in _MEMBERS if kind is Array]


class Call(ctypes.Structure):
    """cuda_call::ragged of backend/cuda/call.hpp."""

    _fields_ = _MEMBERS


if __name__ == "__main__":
    build(pathlib.Path(sys.argv[1]), usual_texts(), Nvcc())
