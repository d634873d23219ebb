#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The claims of the experiments: claims.json is complete, every claim is measured and has its part and its plot;
judge() says what claims.json promises; the recorded verdicts are judge()'s; and numbers are recorded with the digits that
show why (measured_pages.py and scripts/check-docs look at the page).

usage: claims.py
"""
import ast, decimal, json, pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "research" / "experiments"
sys.path.insert(0, str(HERE))
from findings.judge import distance, judge, number, outcome, printed
report = "\n".join(path.read_text() for path in [HERE / "report.py", *sorted((HERE / "findings").glob("*.py"))])
claims = json.loads((HERE / "claims.json").read_text())["claims"]
parts = {name for file in HERE.glob("**/*.cpp") for name in re.findall(r'^    \{"([a-z-]+)", (?:true|false)', file.read_text(), re.M)}
parts |= set(re.findall(r'^PART = "([a-z-]+)"', (ROOT / "scripts" / "measure-two-sites").read_text(), re.M))  # two processes, run from there
plots = set(re.findall(r'finish\(f, "([a-z-]+)"', report)) | set(re.findall(r'quality\("([a-z-]+)"', report))

tree = ast.parse(report)
# what measures the same claims with the bundled models and with others
for_both = re.search(r"^OVER = .*", report, re.M)[0] + "".join(ast.get_source_segment(report, f) for f in tree.body
                   if isinstance(f, ast.FunctionDef) and "measure" in [a.arg for a in f.args.args])
assert len(claims) > 80 and len({c["id"] for c in claims}) == len(claims), "claims are missing or have one id"
for c in claims:
    assert c["by"] in ("paper", "other paper", "library", "here"), c["id"]
    assert c["claim"] and c["measure"] and c["number"], c["id"]
    if c["by"] in ("library", "here"):
        assert not c["source"], f"{c['id']} stands under {c['by']} and names {c['source']}"
    if c["by"] == "paper":
        assert c["section"] and c["source"] in ("Cascades", "CoS", "DRAGON", "DSSD"), c["id"]
    for column in [c] + ([c["real"]] if "real" in c else []):  # with the bundled models, with models that read
        test = column.get("test", c["test"])
        assert ("at_least" in test) != ("at_most" in test), c["id"]
        assert set(test) <= {"at_least", "at_most", "within", "of", "errors"}, c["id"]
        assert test.get("of", "each") in ("each", "most", "any") and test.get("errors", 2) == 2, c["id"]
        assert column["part"] in parts, f"{c['id']}: there is no part {column['part']}"
        assert column["measure"] and column.get("plot", c["plot"]) in plots, f"{c['id']}: there is no plot {column.get('plot')}"
    assert set(c.get("real", {})) <= {"part", "measure", "test", "number", "plot", "perhaps", "fault", "note"}, c["id"]
    assert f'"{c["id"]}"' in report, f"{c['id']} is not measured"
    assert "real" not in c or report.count(f'"{c["id"]}"') > 1 or f'"{c["id"]}"' in for_both, \
        f"{c['id']} is not measured with models that read"

for due, test, values in (
        ("yes", {"at_least": 0}, [(1, 0.4)]), ("undecided", {"at_least": 0}, [(1, 0.6)]), ("no", {"at_least": 0}, [(-1, 0.4)]),
        ("undecided", {"at_least": 0}, [(-1, 0.6)]), ("yes", {"at_most": 2}, [(1, 0.4)]), ("no", {"at_most": 0.1}, [(1, 0.4)]),
        ("yes", {"at_least": 1}, [(1, 0)]), ("yes", {"at_most": 1}, [(1, 0)]),  # exact: equality holds
        ("in part", {"at_least": 0}, [(1, 0), (-1, 0)]), ("undecided", {"at_least": 0}, [(1, 0), (0, 1)]),
        ("in part", {"at_least": 0}, [(-1, 0), (0, 1)]), ("no", {"at_least": 0}, [(-1, 0), (-2, 0)]),
        ("undecided", {"at_least": 1, "within": 0.03}, [(1.02, 0)]), ("undecided", {"at_least": 1, "within": 0.03}, [(1.04, 9)]),
        ("yes", {"at_least": 1, "within": 0.03}, [(1.04, 0.01)]),
        ("yes", {"at_least": 0, "of": "most"}, [(1, 0), (1, 0), (-1, 0)]),
        ("no", {"at_least": 0, "of": "most"}, [(1, 0), (-1, 0)]),
        ("undecided", {"at_least": 0, "of": "most"}, [(1, 0), (0, 1), (0, 1)]),
        ("yes", {"at_least": 0, "of": "any"}, [(-1, 0), (1, 0)]), ("no", {"at_least": 0, "of": "any"}, [(-1, 0), (-1, 0)])):
    found = judge(test, [("", v, e) for v, e in values])[0]
    assert found == due, f"{test} of {values}: {found}, due {due}"

# --- the recorded verdicts -----------------------------------------------------------------------------------------
results = json.loads((ROOT / "docs" / "experiments" / "results.json").read_text())
recorded, real = results["claims"], results["real"] or {}
for of in (recorded, real):
    assert list(of) == [c["id"] for c in claims if c["id"] in of], "the results have another order than claims.json"
for c, test, r in [(c, c["test"], recorded[c["id"]]) for c in claims if c["id"] in recorded] + [
        (c, c.get("real", c).get("test", c["test"]), real[c["id"]]) for c in claims if c["id"] in real]:
    of, holds, fails = r["of"], r["hold"], r["fail"]
    counted = [("", sign, 0) for sign in [1] * holds + [-1] * fails] + [("", 0, 1)] * (of - holds - fails)
    due = judge({"at_least": 0, "of": test.get("of", "each")}, counted)[0]
    assert r["verdict"] == due, f"{c['id']}: {holds} of {of} hold and {fails} fail: {due}, recorded {r['verdict']}"
    if len(r["values"]) == of:  # all of them; they are rounded
        half = lambda x: 0.5 * 10.0 ** decimal.Decimal(x.replace(",", "")).as_tuple().exponent
        rounded = lambda v, e, dv, de: (number(v) + dv * half(v), max(0, number(e) + de * half(e)) if e else 0)
        possible = {judge(test, [("", *rounded(v, e, dv, de)) for _, v, e in r["values"]])[0]
                    for dv in (-1, 0, 1) for de in (-1, 0, 1)}
        assert r["verdict"] in possible, f"{c['id']}: recorded {r['verdict']}, its values say {possible}"

# --- the headline counts what could fail, and no check of the code -------------------------------------------------
page = (ROOT / "docs" / "experiments.md").read_text()
COUNTS = r"\*\*(\d+) hold\*\*, (\d+) hold in part, (\d+) do not hold, and (\d+) are undecided"
for begin, of in ((r"of (\d+) claims of four papers that could fail ", recorded), (r"With models that read, of (\d+) claims \([^)]*\) ", real)):
    own = [c for c in claims if c["by"] == "paper" and c["id"] in of and not c.get("theorem")]
    if own or of is recorded:
        head = [int(x) for x in re.search(begin + COUNTS, page).groups()]
        assert head == [len(own)] + [sum(of[c["id"]]["verdict"] == v for c in own) for v in ("yes", "in part", "no", "undecided")], head
CHECKS = {"greedy-opt-is-diff", "rejection-is-delta-tv", "gamma-widens", "regret-01", "regret-log", "cos-gamma-1-calls", "acceptance-lambda",
          "dragon-closer", "dragon-stabilises", "dragon-6.4", "dragon-eq5", "dragon-4.2", "dssd-algebra"}
assert CHECKS == {c["id"] for c in claims if c.get("theorem")}, "a check of the code is no evidence, and evidence no check of the code"
for c in claims:
    if c.get("theorem"):
        assert f"| {c['claim']} (" not in (ROOT / "docs/experiments/claims.md").read_text(), f"{c['id']} is a theorem and stands in a table of findings"

# --- a verdict's numbers show why (scripts/check-docs looks at the page) --------------------------------------------
for test, values, form, due in (({"at_least": 1, "within": 0.03}, [("", 1.031, 0.01), ("", 1.0296, 0.004)], "{:.2f}", ["1.031", "1.030"]),
                                ({"at_most": 1.15}, [("", 1.153, 0)], "{:.2f}", ["1.153"]),
                                ({"at_least": 0}, [("", 3e-5, 4e-5)], "{:+.3f}", ["+0.0000"])):
    shown = printed(test, values, form)
    assert all(outcome(test, v, e) == outcome(test, number(a), number(b)) for (_, v, e), (_, a, b) in zip(values, shown)), shown

assert min([(0.3, 0.01), (0.05, 0.03), (-0.04, 0.01), (0.02, 0)], key=lambda v: distance({"at_least": 0}, *v)) == (0.05, 0.03)
assert min([(1.4, 0.01), (1.05, 0.02), (1.02, 0.01)], key=lambda v: distance({"at_least": 1, "within": 0.03}, *v)) == (1.02, 0.01)
assert min([(0.3, 0), (-0.1, 0)], key=lambda v: distance({"at_most": 0}, *v)) == (-0.1, 0)

# --- numbers that stand in two places ------------------------------------------------------------------------------
value = lambda id: float(recorded[id]["values"][0][1])
added = [(52.6 + max(88, 22 + 1 + d / 2)) / (52.6 + 88) - 1 for d in range(0, 301, 50)]  # plan::first_token_latency
assert abs(value("dragon-ttft") - sum(added) / len(added)) < 6e-4, "dragon-ttft is not from plan::first_token_latency"
assert value("bild-comparable") >= 0, "comparable is a distance: neither may be better"
bits = {name: int(n) for name, n in re.findall(r"double (\w+_bits) = (\d+);", (ROOT / "include/specagg/plan/link.hpp").read_text())}
assert value("dssd-50-bytes") == 8 * (bits["id_bits"] + bits["q_bits"]) / 8, "the plan and the page count other bytes up"
print(f"{len(claims)} claims, {len(parts)} parts, {len(plots)} plots")
