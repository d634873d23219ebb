#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/frontier --quick: what it says of a run of few texts beside the recorded one. A right program is seldom said to
disagree, whatever its texts are; one number that is another of the same texts is found, and so is one that is far from all texts'."""
import json, math, pathlib, random, statistics, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[1:1] = [str(ROOT / "research/experiments/frontier")]
import frontier_page as page

# quantiles of Student's t that tables have
for level, df, due in ((0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 10, 2.2281), (0.01, 5, 4.0321), (0.001, 7, 5.4079), (0.05, 60, 2.0003)):
    assert abs(page.quantile(level, df) - due) < 1e-4, f"t of {df} degrees at {level} is {page.quantile(level, df)}, not {due}"

MEASURES = ("acceptance", "tv", "kl", "outside", "likeliest", "accepted", "answers")


def results(chance, n, shift=0.0):
    """Of n texts, all measures drawn from one skewed law with the mean 1."""
    def one():
        values = [chance.expovariate(1) for _ in range(n)]
        return [statistics.fmean(values) + shift, statistics.stdev(values) / math.sqrt(n)]
    row = lambda rule, goal: {"rule": rule, "policy": rule, "goal": goal} | {what: one() for what in MEASURES}
    return {"named": {"first": "a", "second": "b"}, "sizes": {"texts": n, "questions": n},
            "settings": {setting: [row("lossless", None), *(row(rule, 0.1) for rule in ("lossy", "chow"))] for setting in ("first-1", "second-1")}}


chance, runs = random.Random(1), 400
wrong = sum(bool(page.comparison(results(chance, 61), results(chance, 11))["beyond"]) for _ in range(runs))
most = runs * page.LEVEL + 3 * math.sqrt(runs * page.LEVEL * (1 - page.LEVEL))
assert wrong <= most, f"{wrong} of {runs} right runs of 11 texts disagree, and {page.LEVEL} of them may"
found = page.comparison(results(chance, 61), results(chance, 11, shift=5))
assert len(found["beyond"]) == found["count"] == 2 * 3 * 7 - 4, f"all numbers are far from what is recorded: {found}"

# the same texts
whole, few = results(chance, 61), results(chance, 11) | {"texts": ["1", "2"]}
whole["quick"] = {"texts": ["1", "2"], "means": page.means(few)}
same = page.comparison(whole, few)
assert same["same_texts"] and same["again"] == 2 * 3 * 7 - 4 and not same["others"] and not same["gone"], same
few["settings"]["first-1"][1]["kl"][0] += 0.5 * whole["settings"]["first-1"][1]["kl"][1]  # half a standard error
assert [name for name, _ in page.comparison(whole, few)["others"]] == ["`a`, temperature 1, `lossy` +0.1, kl"]
assert not page.comparison(whole, few | {"texts": ["1", "3"]})["others"], "numbers of other texts are compared"
del few["settings"]["first-1"][1]
assert len(page.comparison(whole, few)["gone"]) == 6, "a policy that is gone is not missed"
# a policy that went further, and now does not come so far
whole["settings"]["first-1"].append(whole["settings"]["first-1"][1] | {"goal": 0.2})
assert page.comparison(whole, few)["missing"] == ["`a`, temperature 1, `lossy` +0.1"]

recorded = json.loads((ROOT / "docs/frontier/results.json").read_text())
names = page.means(recorded)
known = sum(what in names.get(row, {}) for row, of in recorded["quick"]["means"].items() for what in of)
assert len(recorded["quick"]["texts"]) == 33 and known > 800, f"{known} numbers of the quick run are of what all texts gave"
print(f"{wrong} of {runs} right runs disagree; {known} recorded numbers")
