#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the CSV files of specagg-experiments to plots and results.json, from which page.py writes the page. claims.json says
what is claimed and when it holds; the files of findings/ measure it and draw the plots. Every verdict is judge()'s.

usage: report.py FOLDER PAGE.md      plots and results.json go into a folder beside the page, named like it

Parts with models that read are in FOLDER-real. What follows from a part whose CSV file is in neither stays as the
results.json there has it.
"""
import json, pathlib, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import recorded
# in this order: see findings/parts.py
from findings import real_cascades, cascades, executions, bild, cos, verifiers, dragon, passages, dssd
from findings.parts import have, page, plots, quick, seed
from findings.verdicts import CLAIMS, judged, now, real

# What was not run stays as it is recorded, if that is of the same seed and size.
try:
    earlier = json.loads((plots / "results.json").read_text())
except FileNotFoundError:
    earlier = {}
if (earlier.get("seed"), earlier.get("quick")) != (seed(), quick()):
    earlier = {}
judged, real = {**earlier.get("claims", {}), **judged}, {**earlier.get("real", {}), **real}
missing = [c["id"] for c in CLAIMS if c["id"] not in {**judged, **real} and have(c["part"])] + [
    f"{c['id']} (real)" for c in CLAIMS if "real" in c and c["id"] not in real and have(c["real"]["part"])]
assert not missing, f"claims without a measure: {missing}"

now |= {"seed": seed(), "quick": quick(), "claims": {c["id"]: judged[c["id"]] for c in CLAIMS if c["id"] in judged},
        "real": {c["id"]: real[c["id"]] for c in CLAIMS if c["id"] in real}}
ORDER = ("seed", "quick", "positions", "machine", "real_machine", "standard_over_itself", "claims", "real", "rules", "pairs", "best", "greedy", "scoring", "draft_step",
         "speculative", "cos", "eq8", "target_step_ms", "slower")
results = {key: now.get(key, earlier.get(key)) for key in ORDER}
recorded.write(plots / "results.json", results)
if results["rules"] is None or results["slower"] is None:
    sys.exit(print(f"report.py: {plots / 'results.json'} is written; for the page the parts with the bundled models must have run, too"))
subprocess.run([pathlib.Path(__file__).with_name("page.py"), plots / "results.json", page], check=True)
print(f"report.py: {page}: {sum(judged[c['id']]['verdict'] == 'yes' for c in CLAIMS if c['by'] == 'paper' and c['id'] in judged)} of the "
      f"papers' claims hold")
