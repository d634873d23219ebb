#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of measurements: each is what its script writes from the recorded results beside its plots, and each has the
date of one run.

usage: measured_pages.py
"""
import json, pathlib, re, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"experiments": "examples/experiments/page.py", "two-sites-measured": "benchmarks/two_sites_page.py"}

for name, writer in PAGES.items():
    page, results = ROOT / f"docs/{name}.md", ROOT / f"docs/{name}/results.json"
    with tempfile.TemporaryDirectory() as folder:
        again = pathlib.Path(folder) / page.name
        subprocess.run([sys.executable, ROOT / writer, results, again], check=True)
        assert again.read_text() == page.read_text(), f"docs/{name}.md is not what its script writes: {writer} {results} {page}"
    dates = set(re.findall(r"\b20\d\d-\d\d-\d\d\b", page.read_text()))
    assert len(dates) == 1, f"docs/{name}.md is of several runs: {sorted(dates)}"

# What a page says of a default, the command line has.
default = re.search(r'\bscheduler = "(\w+)"', (ROOT / "examples/cli/two_sites.cpp").read_text())[1]
assert f"`{default}`, the default," in (ROOT / "docs/two-sites-measured.md").read_text(), f"the default scheduler is {default}"
print(f"{len(PAGES)} pages")
