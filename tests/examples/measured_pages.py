#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What was measured: each section of docs/measured.md, and the page of the experiments, is what its script writes from the
recorded results beside its plots, and has the date of one run.

usage: measured_pages.py
"""
import json, pathlib, re, runpy, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTIONS = {"two-sites-measured": "two_sites_page.py", "performance": "performance_page.py", "whole-texts": "whole_texts_page.py"}
MEASURED = ROOT / "docs/measured.md"
recorded = {name: json.loads((ROOT / f"docs/{name}/results.json").read_text()) for name in ("experiments", *SECTIONS)}


def check_dates(name, text):
    labelled = set(re.findall(r"20\d\d-\d\d-\d\d", str(recorded[name].get("tokens"))))  # a table of another run says so
    dates = set(re.findall(r"\b20\d\d-\d\d-\d\d\b", text)) - labelled
    assert len(dates) == 1, f"{name} is of several runs: {sorted(dates)}"


with tempfile.TemporaryDirectory() as folder:
    again = pathlib.Path(folder) / "measured.md"
    for name, writer in SECTIONS.items():
        results = ROOT / f"docs/{name}/results.json"
        again.write_text(MEASURED.read_text())
        subprocess.run([sys.executable, ROOT / "benchmarks" / writer, results, again], check=True)
        assert again.read_text() == MEASURED.read_text(), f"docs/measured.md is not what its script writes: {writer} {results}"
        again.unlink()  # alone
        subprocess.run([sys.executable, ROOT / "benchmarks" / writer, results, again], check=True)
        assert again.read_text() in MEASURED.read_text(), f"{writer} writes another section alone"
        tables, page = (place / name / "tables.md" for place in (pathlib.Path(folder), ROOT / "docs"))
        assert tables.read_text() == page.read_text(), f"docs/{name}/tables.md is not what its script writes: {writer} {results}"
        check_dates(name, again.read_text() + tables.read_text())
    again, results = pathlib.Path(folder) / "experiments.md", ROOT / "docs/experiments/results.json"
    papers = again.with_name("papers.md")
    papers.write_text(re.sub(r"\[(bundled|read): .*(?= \|$)", "", (ROOT / "docs/papers.md").read_text(), flags=re.M))
    subprocess.run([sys.executable, ROOT / "research/experiments/page.py", results, again], check=True)
    claims = again.with_suffix("") / "claims.md"
    for written in again, claims, papers:
        page = ROOT / "docs" / written.relative_to(folder)
        assert written.read_text() == page.read_text(), f"{page} is not what research/experiments/page.py writes"
    check_dates("experiments", claims.read_text())
    again = pathlib.Path(folder) / "frontier.md"
    subprocess.run([sys.executable, ROOT / "research/experiments/frontier/frontier_page.py", ROOT / "docs/frontier/results.json", again], check=True)
    for written in again, again.with_suffix("") / "all.md":
        page = ROOT / "docs" / written.relative_to(folder)
        assert written.read_text() == page.read_text(), f"{page} is not what frontier_page.py writes"
    sys.path.append(str(ROOT / "research/experiments/frontier"))
    sys.dont_write_bytecode = True
    import frontier_page
    frontier = json.loads((ROOT / "docs/frontier/results.json").read_text())
    both = frontier_page.agreement(frontier["settings"], frontier["again"]["settings"])
    assert frontier_page.agrees(both), f"docs/frontier/results.json: the run with another seed says something else: {both}"
    again = pathlib.Path(folder) / "training.md"
    subprocess.run([sys.executable, ROOT / "research/experiments/training/training_page.py", ROOT / "docs/training/results.json", again], check=True)
    assert again.read_text() == (ROOT / "docs/training.md").read_text(), "docs/training.md is not what training_page.py writes"

# README's numbers of the step are those of docs/measured.md, each of the program that it names.
times = {who: warm for who, warm, _, _ in recorded["performance"]["step"]}
said = re.search(r"step takes (\d+) us, or (\d+) if you keep [^;]*; Hugging Face's steps in torch\s+take (\d+) and (\d+)",
                 (ROOT / "README.md").read_text()).groups()
torch = [f"Hugging Face steps in torch, {more}1 thread" for more in ("written out, ", "known, ")]
due = tuple(times[who] for who in ("specagg", "specagg, known", *torch))
assert said == due, f"README.md has {said}, measured were {due}"

# The prompts that were timed are those of research/prompts.
counted = {kind: len(list((ROOT / "research/prompts").glob(f"{kind}-*.txt"))) for kind in ("chat", "story", "code", "rewrite")}
for kind, number in ((row[0].split()[1], int(row[0].split()[0])) for row in recorded["whole-texts"]["prompts"]):
    assert counted[kind] == number, f"research/prompts has {counted[kind]} of {kind}, and {number} were timed"

# The reason that docs/experiments.md gives for predictions that are too high has the shares of docs/measured.md.
claims = json.loads((ROOT / "research/experiments/claims.json").read_text())["claims"]
reason = next(c for c in claims if c["id"] == "speedup-formula")["perhaps"]
shares = [float(cells[-1].rstrip(" %")) for cells in recorded["performance"]["decode"]]
said = re.search(r"(\d+) to (\d+) %", reason)
assert [round(min(shares)), round(max(shares))] == [int(x) for x in said.groups()], f"{said[0]}, and docs/measured.md has {shares}"

# docs/two-sites.md says which protocol is fast on a slow link, with times of docs/measured.md.
two_sites = (ROOT / "docs/two-sites.md").read_text()
said = re.search(r"At 1 Mbit/s and 20 ms: DSD ([\d.]+), DSSD ([\d.]+), quantised ([\d.]+), coupled ([\d.]+)", two_sites).groups()
named = dict(zip(recorded["two-sites-measured"]["splits"], zip(*(
    [speed for speed, _ in link[3]] for link in recorded["two-sites-measured"]["links"] if link[:3] in (["1", "20", "4"], ["100", "20", "4"])))))
slow, fast = zip(*(named[split] for split in ("DSD", "DSSD", "quantised, block", "shared noise")))
assert said == slow, f"docs/two-sites.md has {said}, measured were {slow}"
said = re.search(r"At 100 Mbit/s and 20 ms all\s+four write (\d+) to (\d+)", two_sites).groups()
assert [int(x) for x in said] == [round(f(float(x) for x in fast)) for f in (min, max)], f"docs/two-sites.md has {said}, measured were {fast}"

# What a page says of a default, the command line has.
default = re.search(r'\bscheduler = "(\w+)"', (ROOT / "tools/cli/site_ends.hpp").read_text())[1]
assert f"`{default}`, the default," in (ROOT / "docs/two-sites-measured/tables.md").read_text(), f"the default scheduler is {default}"

# The tables of engines' samplers are those of the recorded audits, and each program that shows a fault is one, of 35 lines.
audits, page = runpy.run_path(str(ROOT / "tools/audits/run")), (ROOT / "docs/audits.md").read_text()
found = json.loads((ROOT / "docs/audits/results.json").read_text())
assert audits["BEGIN"] + audits["summary"](found) + audits["END"] in page, "docs/audits.md is not what tools/audits/run --docs writes"
assert audits["table"](found) == audits["SEEN"].read_text(), "docs/audits/seen.md is not what tools/audits/run --docs writes"
line = lambda holds, seen, what="law; T 0": {"sampler": "s", "version": "1", "property": what, "holds": holds, "seen": seen}
other = line(False, "", "seeds")
for lines, due in (([line(False, "the texts do not have their law (p-value"), other], "| 1 | | all but T 0 |"),  # T 0 was compared first
                   ([line(False, "at temperature 0, after [1]: 2, where 3 is due"), other], "| 0 | | all |"),
                   ([line(True, "9 texts, found from 0.1 on"), line(True, "8 texts, found from 0.249 on", "min-p"), other], "| 3 | 0.25 | seeds |")):
    assert f"| s | 1 {due}\n" in audits["summary"](lines), f"{audits['summary'](lines)} has not {due}"
for where in re.findall(r"`([\w-]+\.(?:py|cpp):\d+)`", page):
    assert where in (ROOT / "tools/audits/faults/README.md").read_text(), f"{where} of docs/audits.md is not in tools/audits/faults/README.md"
programs = sorted((ROOT / "tools/audits/faults").glob("*.py"))
assert len(programs) >= 8, "tools/audits/faults has lost programs"
for program in programs:
    compile(program.read_text(), program.name, "exec")
    assert program.read_text().count("\n") <= 35, f"{program.name} has more than 35 lines"
    assert f"faults/{program.name})" in page or program.name in ("load_vllm.py", "llama_model.py", "genai_model.py"), f"docs/audits.md does not link to {program.name}"
print(f"{len(SECTIONS)} sections, 7 pages")

# The tables of docs/cuda.md are what was recorded on a GPU. vLLM's call made a copy of the target's rows to f32, which vLLM
# does not make at temperature 1. The prediction is without it: (gamma + 1) of the 2 gamma + 1 rows that run-1.txt copied.
folder = ROOT / "benchmarks/cuda/h100"
report, tuning = (folder / "run-1.txt").read_text(), (folder / "tuning.txt").read_text()
ours = tuning.split("third lease: also facts and sums")[1]
cuda = (ROOT / "docs/cuda.md").read_text()
line = lambda text, pattern: re.search(pattern, text, re.M).group(1)
for B in (1, 8, 64, 256):
    types = ("f32", "bf16")
    column = lambda n, t: float(line(report, rf"^{t} +{B} +4(?: +[\d.]+){{{n}}} +([\d.]+) "))
    floor = [column(6, t) for t in types]
    here = [line(ours, rf"^{t} +{B} +4 +1\.0 +([\d.]+) ") for t in types]
    vllm = [line(tuning, rf"^vllm +{t} +{B} +4 +[\d.]+ +([\d.]+) ") for t in types]
    copy = column(7, "f32") * 5 / 9  # of f32 to f32; of bf16 to f32 three quarters of its bytes
    predicted = [round(float(vllm[0]) - copy), round(float(vllm[1]) - copy * 3 / 4)]
    flashinfer = line(report, rf"^ +{B} +4 +128256 +([\d.]+) ")
    row = (f"| {B} | {floor[0]:.1f}/{floor[1]:.1f} | {'/'.join(here)} | {'/'.join(vllm)} | {predicted[0]}/{predicted[1]} | "
           f"{flashinfer} |")
    assert row in cuda, f"docs/cuda.md does not have what was measured: {row}"
shapes = tuning.split("before, B = 64, gamma = 4, bf16")[1].split("one (255 registers")[0]
settings = [("filters, all off", "logits of the draft"), *((name, name) for name in ("top-k 50", "top-p 0.9", "min-p 0.05"))]
for name, recorded_as in settings:
    said = f"| {name} | " + line(shapes, rf"^{recorded_as} +([\d.]+) ") + " |"
    assert said in cuda, f"docs/cuda.md does not have what was measured: {said}"
assert "lossy took " + line(shapes, r"^lossy, alpha 0.2 +([\d.]+) ") in cuda.replace("\n", " "), "docs/cuda.md lacks lossy's time"
# README has the times of f32 rows, rounded, and the prediction in the words of docs/cuda.md.
readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
took, rivals, predicted = re.search(r"a step of 1, 8, 64, 256 requests took ([\d, ]+) us, and vLLM 0.33's kernels took ([\d, ]+) \(.*?"
                                    r"Without the copy we predict ([\d, to]+) for it", readme).groups()
rounded = lambda of: ", ".join(f"{float(value):.0f}" for value in of)
due = (rounded(line(ours, rf"^f32 +{B} +4 +1\.0 +([\d.]+) ") for B in (1, 8, 64, 256)),
       rounded(line(tuning, rf"^vllm +f32 +{B} +4 +[\d.]+ +([\d.]+) ") for B in (1, 8, 64, 256)))
assert (took, rivals) == due, f"README.md has {took} and {rivals} us on a GPU, and measured were {due}"
assert f"{predicted} us" in re.sub(r"\s+", " ", cuda), f"README.md predicts {predicted} us, docs/cuda.md does not"

# What README, docs/engine.md and CHANGELOG.md say of filters is in the tables of docs/measured.md.
measured = (ROOT / "docs/measured.md").read_text()
cells = lambda start: [[cell.strip() for cell in row.strip("|").split("|")]
                       for row in measured.split(start)[1].split("\n\n")[0].splitlines()[2:]]
steps = {row[0]: [float(cell.split()[0]) for cell in row[1:]] for row in cells("| filter | normal | ")}
step = {row[0]: row[1] for row in cells("| who | warm, us ")}
flat = float(step["specagg, top-p 0.9"]) / float(step["specagg"])
filtered = [x for name, xs in steps.items() if name not in ("none", "temperature 0") and "floor" not in name for x in xs]
top_p = [*steps["top-p 0.9"], flat]
over = {"llama.cpp": [], "torch": []}
for name, *times in cells("| filter | normal, specagg "):
    for ours, llama_cpp, torch, _ in (times[i : i + 4] for i in range(0, len(times), 4)):
        if llama_cpp:
            over["llama.cpp"].append(float(llama_cpp) / float(ours))
            over["torch"].append(float(torch) / float(ours))
between = lambda xs: f"{min(xs):.0f} to {max(xs):.0f} times"
any_filter = f"{min(filtered):.1f} to {max(*filtered, flat):.1f} times as long"
for page, said in (("README.md", any_filter), ("CHANGELOG.md", any_filter), ("README.md", between(over["llama.cpp"])),
                   ("docs/engine.md", between(over["llama.cpp"])), ("docs/engine.md", f"torch {between(over['torch'])}"),
                   ("docs/engine.md", f"{min(top_p):.1f} to {max(top_p):.1f} times as long"), ("docs/faq.md", f"{min(top_p):.1f} to {max(top_p):.1f} times as long")):
    assert said in re.sub(r"\s+", " ", (ROOT / page).read_text()), f"{page} does not say {said!r} of filters"
