#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check with a compiler, a GPU and tools that are stubs: it makes a kit, goes dry, runs every stage, and fails
where a program does not compile, is missing, lacks a test, fails, takes too long, or sees no device."""
import functools, os, pathlib, subprocess, sys, tarfile, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NVCC = r"""#!/bin/bash
[ "$1" = --version ] && { echo "Build stub"; exit 0; }
case "$*" in *"$BROKEN"*) [ -n "$BROKEN" ] && { echo "error: broken"; exit 1; };; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
cp "$(dirname "$0")/program" "$out"
echo "ptxas info    : Compiling entry function '_Z4ringPi' for 'sm_90'"
echo "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads"
echo "ptxas info    : Used 40 registers, 16 bytes smem"
"""
PROGRAM = r"""#!/bin/bash
case "$0 $*" in *"$FAILING"*) [ -n "$FAILING" ] && exit 3;; esac
case "$0" in *"$BLIND"*) [ -n "$BLIND" ] && { echo "warning: skipped: this test needs a CUDA device"; exit 0; };; esac
[ "$1" = --help ] && { echo "usage: bench [--json FILE] [--small] [--profile] [--soak SECONDS] [--sweep]" >&2; exit 2; }
[ "$1" = --json ] && echo '{"results": []}' > "$2"
case "$*" in *--list-tests) case "$*" in *"$ABSENT"*) [ -n "$ABSENT" ] && { echo "0 matching test cases"; exit 0; };; esac
  echo "2 matching test cases";; *) echo "All tests passed";; esac
"""
TOOLS = {"nvcc": NVCC, "program": PROGRAM, "nvidia-smi": "#!/bin/bash\necho 'stub of an H100'\n",
         "compute-sanitizer": '#!/bin/bash\n[ "$1" = --version ] && { echo stub; exit 0; }\nshift 4; exec "$@"\n',
         "ncu": '#!/bin/bash\nwhile [ "${1#--}" != "$1" ]; do\n  case "$1" in --version) exit 0;; esac; shift 2\ndone\nexec "$@"\n',
         "ldd": "#!/bin/bash\n"}
wrong = 0

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    tools, kit, report = folder / "tools", folder / "kit.tar.xz", folder / "report.txt"
    packages = ("flashinfer/data/include/none", "vllm/v1/sampler.py", "vllm/v1/__init__.py",
                "vllm/model_executor/warmup/jit_warmup.py")
    for name, text in [(f"tools/{n}", text) for n, text in TOOLS.items()] + [(f"python/{n}", "") for n in packages]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def expect(what, status, text, *arguments, script="gpu-check", **environment):
        """The exit status and what the command prints, or writes into the report."""
        global wrong
        report.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, ROOT / "scripts" / script, *arguments], capture_output=True, text=True, env={
            **os.environ, "PATH": f"{tools}:/usr/bin:/bin", "NVCC": str(tools / "nvcc"),
            "PYTHONPATH": str(folder / "python"), **environment})
        printed = done.stdout + done.stderr + (report.read_text() if report.exists() else "")
        if done.returncode != status or text not in printed or "Traceback" in printed:
            wrong += 1
            print(f"{what}: status {done.returncode}, expected {status} and {text!r}\n{printed}")

    kernels = functools.partial(expect, script="cuda-kernels")
    kernels("the wrong words", 2, "usage: cuda-kernels [--check KERNEL | --record KERNEL]", "--check")
    kernels("there is no nvcc", 2, "none: No such file", "--check", "0", NVCC=str(folder / "none"))
    kernels("no such kernel", 1, "docs/cuda-kernels.txt not all of them, or no 99", "--check", "99")
    kernels("an nvcc that the table is not of", 2, "the compiler is Build stub", "--check", "0")
    run = ("--run", "1", kit, report)
    expect("there is no nvcc", 2, "none: No such file", "--kit", kit, NVCC=str(folder / "none"))
    expect("a program does not compile", 1, "test-tree does not compile:\nerror: broken", "--kit", kit, BROKEN="tree.test")
    expect("there is no kit", 2, "kit.tar.xz'", "--dry", kit)
    expect("a kit that cannot be written", 2, "no/kit: Not a directory", "--kit", tools / "nvcc/no/kit")
    expect("a kit of every kernel", 0, "16 programs", "--kit", kit, "--every-kernel")
    expect("every kernel", 0, "side by side: PTX of compute_80: would run", "--dry", kit)
    expect("every kernel", 0, "side by side: coupled: would run", "--dry", kit)
    expect("no kit to make", 2, "--every-kernel and --before are for --kit", "--dry", kit, "--every-kernel")
    expect("no such commit", 2, "--before none: fatal:", "--kit", kit, "--before", "none")
    expect("a kit with an earlier commit", 0, "14 programs", "--kit", kit, "--before", "HEAD")
    expect("before and after", 0, "benchmark: bench-before: would run", "--dry", kit)
    expect("before and after", 1, "shapes of engines: shapes-before: passed", "--run", "1", kit, report)
    expect("a kit", 0, "12 programs", "--kit", kit)
    with tarfile.open(kit) as tar:
        tar.extractall(folder / "programs")
    files = {str(path.relative_to(folder / "programs")) for path in (folder / "programs").rglob("*") if path.is_file()}
    if not {"bench-flashinfer", "test-verify", "vllm/v1/sampler.py", "vllm/triton_utils.py",
            "vllm/model_executor/warmup/jit_warmup.py"} < files or \
            files & {"main.o", "vllm/v1/__init__.py"} or len(files) != 20:
        wrong += print("the kit has", files) or 1
    if "    40       8       8      16  ring" not in (folder / "programs/kernels.txt").read_text():
        wrong += print((folder / "programs/kernels.txt").read_text()) or 1
    expect("without the rivals' packages", 0, "11 programs", "--kit", folder / "alone.tar.xz", PYTHONPATH="")
    expect("dry", 0, "run 2: 0 failures", "--dry", kit)
    expect("all stages, but for vLLM, which needs torch", 1, "run 1: 1 failures", *run)
    expect("the last stage", 1, "barriers: barriers: passed", *run)
    expect("all stages in the report", 1, '{"results": []}', *run)
    expect("the second run: without torch no rivals", 1, "Llama backend: llama: passed", "--run", "2", kit, report)
    expect("a report that cannot be written", 2, "no/report: Not a directory", *run[:3], tools / "nvcc/no/report")
    expect("no report", 2, "--run needs a REPORT", *run[:3])
    expect("a test fails", 1, "side by side: ragged: failed (3)", *run, FAILING="test-ragged")
    expect("the soak fails", 1, "soak: soak: failed (3)", *run, FAILING="--soak")
    expect("a test sees no device", 1, "side by side: tree: saw no device", *run, BLIND="test-tree")
    expect("no test sees a device: it ends there", 1, "run 1: 1 failures", *run, BLIND="test-verify")
    expect("a test is not there", 1, "racecheck, tree: has no test", "--dry", kit, ABSENT="walk is split")
    (folder / "programs/test-llama").unlink()
    with tarfile.open(kit, "w:xz") as tar:
        tar.add(folder / "programs", ".")
    expect("a program is missing", 1, "there is no test-llama", "--dry", kit)
    expect("a program is missing", 1, "Llama backend: llama: failed (127)", "--run", "2", kit, report)
sys.exit(wrong > 0)
