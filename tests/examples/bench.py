#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/bench with programs and a build that are stubs: a part that fails, or a rival that gives another result, ends no
other part; the page has what was measured, and no page of docs/ is written.

usage: bench.py
"""
import json, os, pathlib, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEP = "V=128256/gamma=4/B=1/acceptance=80%/"
KERNELS = ["floor: read/cache/9", "floor: read/memory/268435456", "log-sum-exp: specagg/cache/9",
           "log-sum-exp: specagg/memory/268435456"]
STEPS = [f"step/{who}/{STEP}{rows}" for who in ("specagg", "specagg, known") for rows in ("warm", "cold")]
GOOGLE = """#!/usr/bin/env python3
import json, os, sys
name = os.path.basename(sys.argv[0])
if "--export" in sys.argv:
    sys.exit(open(sys.argv[2], "w").close())
if name in os.environ.get("FAILING", ""):
    sys.exit(1)
out = next(a.partition("=")[2] for a in sys.argv if a.startswith("--benchmark_out="))
entries = [{"name": f"{n}_{a}", "run_name": n, "aggregate_name": a, "cpu_time": t, "real_time": t, "time_unit": "us"}
           for n in NAMES for a, t in (("median", 7.0), ("cv", 0.01))]
if name in os.environ.get("DIFFERENT", ""):
    entries.append({"name": "Eigen", "run_name": "Eigen", "error_occurred": True, "error_message": "another result"})
json.dump({"benchmarks": entries}, open(out, "w"))
"""
TEXT = json.dumps({"seconds": {"draft": 1, "target": 8, "other": 1, "total": 10}, "tokens_per_second": 5,
                   "tokens_per_target_call": 2, "instruction_set": "stub-isa"})
# What stands in the page or is printed of each part.
SHOWN = {"bench-llama": "the tokens of a call", "builds.cpp": "| isa | 2.00 | 3.00 |", "bench-kernels": "| log-sum-exp, cache | 7.0 |",
         "bench-verify": "| specagg, known | 7 | 7 |", "torch_steps.py": "torch 9.8, AVX9",
         "specagg generate": "| lossless, gamma 4 | 5 | 2.00 |"}


def runs(folder, *words, **environment):
    place = folder / "build/bench"
    shutil.rmtree(place, ignore_errors=True)
    done = subprocess.run([sys.executable, folder / "scripts/bench", "--quick", *words], capture_output=True, text=True, env={
        **os.environ, "PATH": f"{folder}/stubs:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", **environment})
    pages = [page.read_text() for page in (place / "performance.md", place / "performance/tables.md") if page.exists()]
    return done.returncode, "\n".join([done.stdout, done.stderr, *pages])


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for name in ("scripts/bench", "scripts/recorded.py", "scripts/instruction_sets.py", "cmake/specaggInstructionSets.cmake"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shell = lambda text: f"#!/bin/sh\n{text}\n"
    fails = lambda name: f'case "$FAILING" in *"{name}"*) exit 1;; esac\n'
    python = shell('case "$*" in -c*) exit 0;; esac\n' + fails("torch_steps.py") + 'echo \'{"context": {"torch": "9.8", '
                   '"instruction set": "AVX9"}, "benchmarks": []}\' > "$3"')
    compiler = shell('[ "$1" = --version ] && { echo "g++ stub"; exit 0; }\n' + fails("builds.cpp") +
                     'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n'
                     'printf "#!/bin/sh\\necho isa 2 3\\n" > "$out"; chmod +x "$out"')
    programs = {
        "stubs/cmake": shell("exit 0"), "stubs/g++": compiler, "scripts/get-model": shell("echo none"),
        "build/bin/bench-kernels": GOOGLE.replace("NAMES", repr(KERNELS)), "build/bin/bench-verify": GOOGLE.replace("NAMES", repr(STEPS)),
        "build/bin/bench-llama": shell(fails("bench-llama") + "echo the tokens of a call"),
        "build/bin/specagg": shell(fails("specagg generate") + f"echo '{TEXT}'"), "build/engines/venv/bin/python": python}
    for name, text in programs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    page = folder / "docs/measured.md"
    page.parent.mkdir()
    page.write_text("untouched")

    def expect(what, status, missing, said, *words, **environment):
        found, text = runs(folder, *words, **environment)
        due = {part: part not in missing for part in SHOWN}
        seen = {part: shown in text for part, shown in SHOWN.items()}
        assert "Traceback" not in text and (found, seen) == (status, due) and said in text, f"{what}: status {found}, {seen}\n{text}"

    expect("nothing fails", 0, (), "report.py")
    for some in list(SHOWN)[::2], list(SHOWN)[1::2]:
        expect(f"{some} fail", 1, some, f"bench: 3 failed: {'; '.join(some)}", "--docs", FAILING=" ".join(some))
    expect("a rival differs", 1, (), "bench: 1 failed: bench-kernels, Eigen", "--docs", DIFFERENT="bench-kernels")
    assert page.read_text() == "untouched", "--docs wrote a page of a run that failed"
print(f"{len(SHOWN)} parts")
