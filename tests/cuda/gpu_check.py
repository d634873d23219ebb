#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check with a compiler, a GPU and a sanitizer that are stubs: it builds, goes dry, runs every stage, and
fails where a program is missing, lacks a test, fails, or does not compile."""
import os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NVCC = r"""#!/bin/bash
[ "$1" = --version ] && { echo "stub of nvcc"; exit 0; }
case "$*" in *"$BROKEN"*) [ -n "$BROKEN" ] && { echo "error: broken"; exit 1; };; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
cp "$(dirname "$0")/program" "$out"
"""
PROGRAM = r"""#!/bin/bash
case "$0 $*" in *"$FAILING"*) [ -n "$FAILING" ] && exit 3;; esac
[ "$1" = --help ] && { echo "usage: bench-cuda [--json FILE] [--small] [--profile] [--soak SECONDS]" >&2; exit 2; }
case "$*" in *--list-tests) case "$*" in *"$ABSENT"*) [ -n "$ABSENT" ] && { echo "0 matching test cases"; exit 0; };; esac
  echo "2 matching test cases";; *) echo "All tests passed";; esac
"""
TOOLS = {"nvcc": NVCC, "program": PROGRAM,
         "nvidia-smi": "#!/bin/bash\necho 'stub, 1, 9.0, 80000 MiB, 1, 1, 1, 1, 700 W'\n",
         "compute-sanitizer": '#!/bin/bash\n[ "$1" = --version ] && { echo stub; exit 0; }\nshift 4; exec "$@"\n',
         "ncu": '#!/bin/bash\nwhile [ "${1#--}" != "$1" ]; do shift 2; done; exec "$@"\n'}
wrong = 0

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    tools, programs = folder / "tools", folder / "programs"
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    # Of the headers that it looks for only that they are there.
    for header in ("catch2/include/catch2/catch.hpp", "eigen/Eigen/Core"):
        (folder / header).parent.mkdir(parents=True)
        (folder / header).write_text("")

    def expect(what, status, text, *arguments, **environment):
        global wrong
        out = folder / "out"
        done = subprocess.run([ROOT / "scripts/gpu-check", *arguments, out], capture_output=True, text=True, env={
            **os.environ, "PATH": f"{tools}:/usr/bin:/bin", "NVCC": str(tools / "nvcc"), "EIGEN_DIR": str(folder / "eigen"),
            "CATCH2_DIR": str(folder / "catch2"), **environment})
        report = (out / "report.txt").read_text() if (out / "report.txt").exists() else ""
        if done.returncode != status or text not in report or "gpu-check itself failed" in report:
            wrong += 1
            print(f"{what}: status {done.returncode}, expected {status} and {text!r}\n{report}\n{done.stderr}")

    built = ("--programs", programs)
    expect("a program does not compile", 1, "test-tree-1 (failed (1))", "--build-only", "--build", folder / "broken",
           BROKEN="test-tree-1.o")
    expect("build only", 0, "compiled without a warning", "--build-only", "--build", programs)
    expect("dry", 0, "would run", "--dry", *built)
    expect("all stages", 0, "soak: bench passed", *built)
    expect("a test fails", 1, "test-token-3 failed (3)", *built, FAILING="test-token-3")
    expect("a test is not there", 1, "has no test 'cuda: a tree whose walk", "--dry", *built, ABSENT="walk is split")
    expect("the soak fails", 1, "soak: bench failed (3)", *built, FAILING="--soak")
    expect("building on the machine", 0, "soak: bench passed")
    (programs / "test-llama").unlink()
    expect("a program is missing", 1, "there is no test-llama", "--dry", *built)
    expect("a program is missing", 1, "Llama backend: test-llama not built", *built)
sys.exit(wrong > 0)
