#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/estimators.py: its logistic is vLLM 0.33's, whose slope and intercepts on these rows were read in Triton's
interpreter; losses are right; and docs/acceptance.md has what it writes.

usage: estimators.py [VLLM]     VLLM: reads them again, from a folder with vLLM's Python files (needs torch and triton)
"""
import math, pathlib, random, runpy, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
module = runpy.run_path(str(ROOT / "research/estimators.py"))
SLOPE, BIASES = 0.7220909, (0.2731282, 0.0821726, -0.2387546)  # after three fits


def rows():
    chance = random.Random(1)
    for step in range(320):
        for depth in range(3):
            log_odds = chance.gauss(0.5, 2)
            accepted = int(chance.random() < 1 / (1 + math.exp(-(0.8 * log_odds + 0.3 - 0.4 * depth))))
            yield {"step": step, "depth": depth, "log_odds": log_odds, "accepted": accepted}
            if not accepted: break


def learn(one):
    all = list(rows())
    for i, r in enumerate(all):
        one.observe(r["depth"], r["log_odds"], one.predict(r["depth"], r["log_odds"]), r["accepted"])
        if i + 1 == len(all) or all[i + 1]["step"] != r["step"]: one.end_of_step()
    return [one.predict(0, 1), one.predict(0, 0), one.predict(1, 0), one.predict(2, 0)]


odds = lambda p: math.log(p / (1 - p))
parameters = lambda p: [odds(p[0]) - odds(p[1]), *map(odds, p[1:])]
if len(sys.argv) == 2:
    print(parameters(learn(module["of_vllm"](sys.argv[1], 3))))
    sys.exit()
for found, due in zip(parameters(learn(module["logistic"](3))), (SLOPE, *BIASES), strict=True):
    assert abs(found - due) < 1e-5, f"{found}, and vLLM has {due}"

line = lambda step, depth, accepted: {"step": step, "depth": depth, "log_odds": 0, "accepted": accepted, "forecast": 0.5, "acceptance": 0.8}
found, less, _ = module["compare"]([line(i, 0, 1) for i in range(50)] + [line(i, 0, 0) for i in range(50, 100)])
assert abs(found["forecast"][0] - math.log(2)) < 1e-12 and found["forecast"][1] < 1e-12
assert abs(found["least"][0] + (math.log(0.8) + math.log(0.2)) / 2) < 1e-12
assert abs(less[0] - (found["forecast"][0] - found["logistic"][0])) < 1e-12

with tempfile.TemporaryDirectory() as folder:
    again = pathlib.Path(folder) / "acceptance.md"
    for script, results, options in (("benchmarks/plan_record.py", "results", []), ("research/estimators.py", "estimators", ["--page"])):
        again.write_text((ROOT / "docs/acceptance.md").read_text())
        subprocess.run([sys.executable, ROOT / script, *options, ROOT / f"docs/acceptance/{results}.json", again], check=True)
        assert again.read_text() == (ROOT / "docs/acceptance.md").read_text(), f"docs/acceptance.md is not what {script} writes"
print("the logistic is vLLM's, and the page what its scripts write")
