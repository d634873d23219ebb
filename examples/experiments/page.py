#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the page of the experiments from what report.py measured. Every number of the page is in RESULTS.json or in
claims.json beside this script.

usage: page.py RESULTS.json PAGE.md
"""
import json, pathlib, sys

results = json.loads(pathlib.Path(sys.argv[1]).read_text())
page = pathlib.Path(sys.argv[2])
CLAIMS = json.loads(pathlib.Path(__file__).with_name("claims.json").read_text())["claims"]
judged = results["claims"]
link = page.stem
text = []
add = text.append


def show(label, value, error):
    return (f"{label} " if label else "") + value + (f"±{error}" if error else "")


def measured(claim):
    """The numbers of a claim: each with its label, or the least and the largest if they are more than three."""
    m = judged[claim["id"]]
    if not m["values"]:
        return ""
    if len(m["values"]) == 1:
        shown = show("", *m["values"][0][1:])
    elif m["of"] <= 3:
        shown = "; ".join(show(label.rstrip(":"), value, error) for label, value, error in m["values"])
    else:
        number = lambda v: float(v[1].replace(",", ""))
        low, high = min(m["values"], key=number), max(m["values"], key=number)
        shown = f"{show('', *low[1:])} to {show('', *high[1:])} ({m['hold']} of {m['of']})"
    return shown + (f" ({m['note']})" if claim.get("note") and m["note"] else "")


def verdict(claim):
    m = judged[claim["id"]]["verdict"]
    star = "\\*" if "fault" in claim else ""
    if m == "no" and "perhaps" in claim:
        return f"**no**{star}: {claim['perhaps']}"
    return f"**{m}**{star}"


def count(claims, *verdicts):
    return sum(judged[c["id"]]["verdict"] in verdicts for c in claims)


def shows(name, words):
    add(f"![{words}]({link}/{name}.svg)\n")


def plot(name, words):
    return f"[{words}]({link}/{name}.svg)"


GROUPS = [  # as claims.json names it, the heading, what one must know
    ("Cascades", "Speculative cascades (*Cascades*)", "A *cascade* (Chow, Diff, OPT, BiLD) takes pi = q or pi = p at each position, by the paper's \"deferral rule\". Its [Token] is V3, and lossy decoding with beta 1 is `lenient`."),
    ("CoS", "Collaborative decoding (*CoS*)",
     "*Standard*: all models score each token, one after another. *Alternating* is CoS: the models take turns to propose and to verify. T: temperature."),
    ("DRAGON", "DRAGON", "Times are simulated. *Eq 8* is the paper's scheduler."),
    ("DSSD", "DSSD", "Speed-ups are closed forms with the acceptance rates of the bundled models."),
    ("other paper", "Other papers", ""), ("library", "This library's own statements", ""), ("here", "Suggested by these experiments", "")]
of_group = {name: [c for c in CLAIMS if c["id"] in judged and (c["source"] if c["by"] == "paper" else c["by"]) == name]
            for name, *_ in GROUPS}
papers = [c for c in CLAIMS if c["id"] in judged and c["by"] == "paper"]
theorems = [c for c in papers if c.get("theorem")]
findings = [c for c in papers if not c.get("theorem")]

add("# Experiments: what the papers claim, and what these models do\n")
if results["quick"]:
    add("**A quick run: the numbers show that everything works, and no more.**\n")
add(f"Of {len(findings)} claims of four papers that could fail, **{count(findings, 'yes')} hold**, {count(findings, 'in part')} hold in "
    f"part, {count(findings, 'no')} do not hold, and {count(findings, 'undecided')} are undecided. {len(theorems)} more are theorems or "
    "arithmetic; for them the run only checks the code.\n")
add("| claims of | yes | a theorem | in part | undecided | no |\n| --- | ---: | ---: | ---: | ---: | ---: |")
for name, *_ in GROUPS:
    own, proved = of_group[name], [c for c in of_group[name] if c.get("theorem")]
    cells = (count(own, "yes") - count(proved, "yes"), count(proved, "yes"), count(own, "in part"), count(own, "undecided"), count(own, "no"))
    add(f"| {name} | {' | '.join(str(x) for x in cells)} |")
add("\nThe models are tiny: `draft` (0.36 M parameters) and `target` (2.4 M) were trained on Shakespeare and the Bible; `bard` and "
    "`bible` are `target`, trained further on one of the two. They show how a policy behaves, not how much it gains on a large "
    "model.\n")
add("## How to run\n")
out = "build/experiments-quick" if results["quick"] else "build/experiments"
add(f"`make experiments` takes 40 minutes (`QUICK=1`: 3), resumes after an interruption, and writes this page (seed {results['seed']}). "
    f"`build/bin/specagg-experiments --part PART` writes one CSV file into `{out}`. `examples/experiments/claims.json` has each claim's part, "
    "threshold, exact measure and quote. Thresholds are older than the runs (`git log -p`), but earlier "
    "runs of most parts were known.\n")
add(f"**Exact numbers** are averages over {results['positions']:,} held-out positions; nothing is sampled. Numbers of calls, of accepted tokens and of draft "
    "lengths are counted in some thousand decoded tokens. Both are the same on every machine. "
    "*Accuracy*: the probability that a sampled token is right. Policies are compared at equal rejection "
    "rates (mean at 25, 50 and 75 % of TV(q, p)). "
    "A parameter that is chosen because it is best is chosen on one half of the text and reported on the other.\n")
low, high = results["standard_over_itself"]
add(f"**Speeds** are medians on one thread: {results['machine']} Errors count the "
    f"noise of timing only. The standard way of CoS timed against itself gives {low} to {high}.\n")
add("**Verdicts.** ± is one standard error, paired where two policies see one text. A value holds if it meets the "
    "threshold by two standard errors, and fails if it misses it by as much (for a speed: by at least 0.03). The threshold is 0 for a difference, 1 for a ratio, "
    "or the claim's own number. *(16 of 20)*: 16 of 20 values hold. "
    "*In part*: some fail, some do not. *Undecided*: none fails, but some are within the error. After *no* stands a likely reason. \\*: the measure has a "
    "[fault](#faults-of-these-measures).\n")

add("## Claims\n")
for name, heading, words in GROUPS:
    add(f"### {heading}\n")
    if words:
        add(f"{words}\n")
    where = name not in ("library", "here")
    add("| where | claim | measured | verdict |\n| --- | --- | --- | --- |" if where else "| claim | measured | verdict |\n| --- | --- | --- |")
    for c in of_group[name]:
        if not c.get("theorem"):
            source = f"| {c['source'] if c['by'] == 'other paper' else c['section']} " if where else ""
            add(f"{source}| {c['claim']} | {c['number']}: {measured(c)} | {verdict(c)} |")
    add("")
add("### Theorems\n")
add("These claims are proved, or are arithmetic. All were met.\n" if count(theorems, "yes") == len(theorems)
    else "These claims are proved, or are arithmetic. **Some were not met: the code is wrong.**\n")
for name, *_ in GROUPS:
    if own := [c for c in of_group[name] if c.get("theorem")]:
        add(f"* **{name}.** " + ". ".join(f"{c['claim']} ({c['section']})" for c in own) + ".")
add("")
if "dragon-passages" not in judged:
    add("The claims about passages were left out: there was no Xapian.\n")

add("### Faults of these measures\n")
faults = {}
for c in CLAIMS:
    if "fault" in c and c["id"] in judged:
        faults.setdefault(c["fault"], []).append(c["claim"])
for fault, claims in faults.items():
    add(f"* *{'*; *'.join(claims)}*: {fault}")
add("")

add("## Which policy for which purpose\n")
add("At half of the rejections of lossless decoding, each policy minus the static ensemble with as many rejections (draft-target, "
    f"temperature 1). Errors are at most {max(float(r[2]) for r in results['rules']):.3f} nats and "
    f"{max(float(r[4]) for r in results['rules']):.4f}.\n")
add("| policy | cross-entropy, nats (less is better) | accuracy (more is better) |\n| --- | ---: | ---: |")
SHOWN = ("token-v1", "token-v2", "token-v3", "opt", "diff", "lenient", "mentored", "bild", "chow")
for rule, ce, _, accuracy, *_ in results["rules"]:
    if rule in SHOWN:
        add(f"| `{rule}` | {ce} | {accuracy} |")
best = results["best"]
add(f"\n* **Text scored token by token** (BLEU, ROUGE, exact answers): token-specific policies, here `{best['token']}`. They remove unlikely tokens, "
    "so they are sharper than both models.")
add(f"* **Likelihood, diversity, calibration**: the static `ensemble`, or `{best['cross_entropy']}`. A cascade pays for every token that "
    "only the target model knew.")
add("* **A bound on the distance from p**: `lenient` (beta 1). It accepts as often as any policy with P(reject) + TV(pi, p) = TV(q, p), and nearly "
    "has the least KL.")
add("* **Few target calls** (sequential execution): `chow` and `chow-log`, which decide without p.")
low, high = results["greedy"]
add(f"* **Temperature 0**: little to choose: accuracies at half of the rejections are {low[0]} (`{low[1]}`) to {high[0]} (`{high[1]}`).")
add("* **Two experts of one size**: `ensemble`, with decoders that take turns, gamma 1.\n")
pairs = results["pairs"]
span = lambda column: "{} to {}".format(*(f(p[column] for p in pairs) for f in (lambda x: min(x, key=float), lambda x: max(x, key=float))))
pairs = [list(p) for p in pairs]
add(f"For all three pairs of models and both texts, `diff` has {span(6)} nats and {span(7)} accuracy over the ensemble, `token-v3` {span(8)} "
    "accuracy.\n")
shows("cascades-accuracy", "accuracy against rejection")
add("Plots: " + ", ".join(plot(*p) for p in (
    ("token-rules", "token-specific policies"), ("cascades-cross-entropy", "cross-entropy"), ("cascades-temperature", "three temperatures"),
    ("frontier", "distance from the target"), ("regret", "regret"), ("ensemble", "cross-entropy over lambda"))) + ".\n")

add("## Speed-ups beside their predictions\n")
add("Scoring n tokens in one call costs, in steps of the target: " + ", ".join(f"{n}: {v}" for n, v in results["scoring"]) +
    f". A step of the draft model costs {results['draft_step']}. *Predicted*: E / (c gamma + v) with these costs. It counts model calls "
    "alone, and is too high for most settings. *Free scoring*: the prediction for an accelerator, where scoring costs one step.\n")
add("| policy, gamma 3 | measured | predicted | free scoring |\n| --- | ---: | ---: | ---: |")
SHOWN = ("lossless", "ensemble:lambda=0.4", "lenient:alpha=0.5", "opt:alpha=0.2", "token-v3:alpha=0.98")
for policy, _, speedup, predicted, _, free in results["speculative"]:
    if policy in SHOWN:
        add(f"| `{policy}` | {speedup} | {predicted} | {free} |")
off = sorted(int(r[4].replace("%", "")) for r in results["speculative"])
add(f"\nOf all {len(off)} settings with gamma 3, measured speed-ups are {off[0]:+d} to {off[-1]:+d} % off the prediction.\n")
add("| CoS, temperature 1 | alternating, gamma 1: measured | predicted | gamma 5 | speculation alone, gamma 1 | gamma 5 |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |")
cos = {}
for models, policy, _, method, gamma, speedup, predicted, _ in results["cos"]:
    cos.setdefault((models, policy), {})[method, gamma] = speedup, predicted
for models, policy in (("bard-bible", "ensemble:lambda=0.5"), ("draft-target", "contrastive:mu=0.1"), ("bard-bible-target", "ensemble")):
    r = cos.get((models, policy))
    if r:
        add(f"| `{policy}`, {models} | {r['alternating', '1'][0]} | {r['alternating', '1'][1]} | {r['alternating', '5'][0]} | "
            f"{r['speculative', '1'][0]} | {r['speculative', '5'][0]} |")
add("")
shows("latency", "accuracy against latency")
add("Plots: " + ", ".join(plot(*p) for p in (
    ("prediction", "measured against predicted"), ("bild", "original BiLD (alpha_f: 1 minus the CSV's `fallback`)"), ("cos-speed", "speed-ups of CoS"),
    ("cos-calls", "calls a token"), ("cos-gamma", "draft lengths of contrastive decoding"), ("verifiers", "tokens accepted by each verifier"),
    ("telemetry", "counted and estimated tokens a round"), ("draft-length", "draft lengths"))) + ".\n")

add("## Two sites\n")
eq8 = results["eq8"]
add("**DRAGON** is simulated (`specagg plan schedulers`): 100 tokens, a cloud of 22 ms a token, a device of 22 or "
    "88 ms, a round trip that varies by a fifth, and the exact joint acceptance rates of `bard` and `bible`. Eq 8 "
    f"loses to the best of device, cloud and random at {eq8['worse']} of {eq8['of']} settings.\n")
add(f"**DSSD** has a closed form: V = 50,000, 16 bits a probability, {results['target_step_ms']} ms a target step, the bundled models' "
    "acceptance rates. With equally fast links up and down DSSD cannot be slower than DSD: at most one row comes down where "
    "gamma rows go up. (This compares rounds of one text. In [two sites, measured](two-sites-measured.md) the protocols decode different "
    "texts, so DSSD can be slower by chance.) With a slower link down DSSD loses with short drafts: "
    f"{results['slower']}.\n")
shows("dragon-latency", "time a token against delay")
add("Plots: " + ", ".join(plot(*p) for p in (
    ("dragon-scheduling", "schedulers"), ("dragon-acceptance", "acceptance and gamma"), *([("dragon-passages", "passages")] if "dragon-passages" in judged else []),
    ("dssd", "DSSD over bandwidth"), ("dssd-paired", "DSSD against DSD in the same rounds"))) + ".\n")
page.parent.mkdir(parents=True, exist_ok=True)
page.write_text("\n".join(text))
