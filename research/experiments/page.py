#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes two pages of the experiments from what report.py measured: PAGE.md has the verdicts, and PAGE/claims.md the numbers;
and the column of verdicts in papers.md, if that stands next to PAGE.md. Every number is in RESULTS.json or in claims.json
beside this script.

usage: page.py RESULTS.json PAGE.md
"""
import json, pathlib, re, sys

from findings.judge import distance, judge, number

results = json.loads(pathlib.Path(sys.argv[1]).read_text())
page = pathlib.Path(sys.argv[2])
CLAIMS = json.loads(pathlib.Path(__file__).with_name("claims.json").read_text())["claims"]
judged, real = results["claims"], results["real"] or {}  # with the bundled models, with models that read
details = page.with_suffix("") / "claims.md"
text = []
add = text.append


def show(label, value, error):
    label = label.rstrip(":,")
    return value + (f"±{error}" if error else "") + (f" ({label})" if label else "")


def limit(claim, test):
    """The threshold, where neither the claim nor the meaning of the number (a difference, a ratio) says it."""
    sign, threshold = ("<=", test["at_most"]) if "at_most" in test else (">=", test["at_least"])
    said = {0, 1} | {float(x) * scale for x in re.findall(r"\d+(?:\.\d+)?", claim["claim"].replace(",", "")) for scale in (1, 0.01)}
    return "" if any(abs(threshold - x) < 1e-9 for x in said) else f" ({sign} {threshold:g})"


def measured(claim, m, test, note):
    """The numbers of a claim: each with its label, or, if they are more than three, the one that is nearest to the
    threshold; and how many hold before rounding, if that does not follow. Earlier runs recorded of more than six values
    the least and the largest."""
    values = m["values"]
    if not values:
        return ""
    numbers = [(label, number(v), number(e)) for label, v, e in values]
    if m["of"] <= 3:
        shown = ", ".join(show(*v) for v in values)
    elif len(values) == m["of"]:
        at = min(range(len(values)), key=lambda i: distance(test, *numbers[i][1:]))
        shown = f"nearest {show(*values[at])}; {m['hold']}/{m['of']}"
    else:
        low, high = min(values, key=lambda v: number(v[1])), max(values, key=lambda v: number(v[1]))
        shown = f"{show('', *low[1:])} to {show('', *high[1:])}; {m['hold']}/{m['of']}"
    if len(values) == m["of"]:
        outcomes = judge(test, numbers)[1]
        if (outcomes.count("holds"), outcomes.count("fails")) != (m["hold"], m["fail"]):
            shown += f", {m['hold']} of {m['of']} before rounding" if m["of"] <= 3 else " before rounding"
    margin, threshold = test.get("within", 0), test.get("at_least", test.get("at_most"))
    if any(2 * e < margin and abs(v - threshold) < margin + 0.005 for _, v, e in numbers):
        shown += f"; margin {margin:g}"
    return shown + limit(claim, test) + (f"; {m['note']}" if note and m["note"] else "")


def verdict(claim, m, said=""):
    reasons = [claim["perhaps"]] if m["verdict"] == "no" and "perhaps" in claim else []
    if claim.get("fault", said) not in said:
        reasons.append(f"*fault*: {claim['fault']}")
    word = f"[**{m['verdict']}**]({claim['plot']}.svg)" if "plot" in claim else f"**{m['verdict']}**"
    return word + (f": {'; '.join(reasons)}" if reasons else "")


def both(claim):
    """A claim's number and verdict with the bundled models, and in one cell those with models that read."""
    own, other = judged.get(claim["id"]), real.get(claim["id"])
    cells = [f"{claim['number']}: {measured(claim, own, claim['test'], claim.get('note'))}", verdict(claim, own)] if own else ["", ""]
    if other:
        column = claim.get("real", claim)  # a claim may be of models that read alone
        what = column.get("number", claim["number"] if not own else "")
        numbers = measured(claim, other, column.get("test", claim["test"]), column.get("note"))
        cells.append(f"{what + ': ' if what else ''}{numbers}: {verdict(column, other, cells[-1])}")
    return cells


def verdict_rows(claims):
    """The table of a group: the paper's words, what was measured, and the verdicts."""
    quoted = any("words" in c for c in claims)
    yield "| the paper's words | here |" * quoted + "| claim |" * (not quoted) + " bundled | models that read |"
    yield "| --- " * (4 if quoted else 3) + "|"
    word = lambda of, c: f"**{of[c['id']]['verdict']}**" if c["id"] in of else ""
    before = ""
    for c in claims:
        said = "the same" if c.get("words", "") == before != "" else f'"{c["words"]}"' if "words" in c else ""
        before, words = c.get("words", ""), f"| {said} " if quoted else ""
        yield f"{words}| {c['claim']} | {word(judged, c)} | {word(real, c)} |".replace("|  |", "| |").replace("|  |", "| |")


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    outside = r"\]\((?=(?:performance/tables|cost-models|papers)\.md)"  # a claim names the pages of docs/
    path.write_text(re.sub(outside, "](../" if path == details else "](", "\n".join(lines).rstrip("\n")) + "\n")


def count(claims, *verdicts, of=judged):
    return sum(of[c["id"]]["verdict"] in verdicts for c in claims if c["id"] in of)


def counts(claims, of=judged):
    return (f"**{count(claims, 'yes', of=of)} hold**, {count(claims, 'in part', of=of)} hold in part, {count(claims, 'no', of=of)} do not hold, and "
            f"{count(claims, 'undecided', of=of)} are undecided")


passages = "dragon-passages" in judged
slower = " or ".join(f"1/{share} (gamma {', '.join(g for g, s in results['slower'] if s == share)})" for share in dict(map(reversed, results["slower"])))
GROUPS = [  # as claims.json names it, the heading, what one must know
    ("Cascades", "Speculative cascades (*Cascades*)", "A *cascade* (Chow, Diff, OPT, BiLD) takes pi = q or pi = p at each position. "
     "V1 to V3 are the token-specific policies (V3: the paper's [Token]). *Lossy decoding* is `lenient` (beta 1)." + (
         " Models that read: *head*, SmolLM2's draft head for SmolLM2 (135 M); *up*, SmolLM2 for Gemma 3 (270 M) through the map of their "
         "vocabularies; *down*, Gemma for SmolLM2. Texts: Debian's packages (`research/experiments/real/texts.py`); *answers*: capitals of "
         "countries, codes of currencies." if "cascade-over-target" in real else "")),
    ("CoS", "Collaborative decoding (*CoS*)",
     "*Standard*: all models score each token, one after another. *Alternating* is CoS: the models take turns to propose and to verify. "
     "*Without turns* neither is a bonus token used. *SD* is speculative decoding with the first model as draft and the combined distribution as target; "
     "its bonus token costs one more call of the first model. T: temperature." + (
         " Models that read: SmolLM2 under two and three system prompts are experts of one size; its head is the small model, and the amateur of "
         "contrastive decoding (a token that it lacks gets the probability of its least likely one)." if "we-speed" in real else "")),
    ("DRAGON", "DRAGON", "Simulated (`specagg plan schedulers`): 100 tokens, a cloud of 22 ms a token, a device of 88 (or 22) ms, a round trip "
     "that varies by a fifth, the exact acceptance rates of `bard` and `bible`. *Eq 8* is the paper's scheduler."
     + (" *CRCG* and *DRCG*: passages of one site and of both, in one context; *DRDG/SW*: the sites' texts, mixed once." if "dragon-dealt" in {**judged, **real} else "")
     + (" Model that reads: SmolLM2 on both sites, with books (the device) and the manual of C (the cloud) from Debian." if "dragon-dealt" in real else "")),
    ("DSSD", "DSSD", f"Closed forms: V = 50,000, 16 bits a probability, {results['target_step_ms']} ms a target step, a tenth of it a draft step, the "
     "acceptance rates of the bundled models. The protocols are compared on rounds of one text." + (f" DSSD is slower than DSD if the link down has less than {slower} of the rate up." if slower else "") + (
         " *Models that read*: SmolLM2 at the server, the bundled target on the device, and a link whose delay and rate are the paper's in proportion to "
         "the target's step." if "dssd-1.5" in real else "")),
    ("other paper", "Other papers", ""), ("library", "This library's own statements", ""), ("here", "Suggested by these experiments", "")]
of_group = {name: [c for c in CLAIMS if (c["id"] in judged or c["id"] in real) and (c["source"] if c["by"] == "paper" else c["by"]) == name]
            for name, *_ in GROUPS}
papers = [c for c in CLAIMS if c["by"] == "paper" and (c["id"] in judged or c["id"] in real)]
theorems = [c for c in papers if c.get("theorem")]
findings = [c for c in papers if not c.get("theorem")]

add("# The claims of the papers, measured\n")
add(f"Written by `research/experiments/page.py`. [The verdicts](../{page.name}) are on one page.\n")
add("## How to read it\n")
add("* **±** is one standard error. A value holds if it meets the threshold by two of them, and fails if it misses it by two; for a speed by at "
    "least the margin of 0.03. The threshold is the claim's number, or the one in brackets, or 0 for a difference and 1 for a ratio.")
add(f"* **[Verdicts](../{page.name}#verdicts).** *16/20*: 16 of 20 values hold; *nearest*: the one whose distance from the threshold is the least in "
    "units of its error. After *no* stands a likely reason; *fault*: the measure is not quite the paper's. A verdict links to its plot.")
add(f"* **Accuracy** (the probability that a sampled token is right), **cross-entropy, acceptance** are exact averages over {results['positions']:,} "
    "held-out positions. Calls, accepted tokens and draft lengths are counted in some thousand decoded tokens. "
    "Policies are compared at equal rejection rates (the mean at 25, 50 and 75 % of TV(q, p)). A best parameter is chosen on one half of the text "
    "and reported on the other.")
low, high = results["standard_over_itself"]
machines = results["machine"]
if results["real_machine"] not in (None, machines):
    machines = f"with the bundled models {machines} With models that read {results['real_machine']}"
add(f"* **Speeds** are medians on one thread: {machines} Errors are those of timing. The standard way of CoS timed against itself "
    f"gives {low} to {high}.\n")

for name, heading, words in GROUPS:
    add(f"## {heading}\n")
    shown = [c for c in of_group[name] if not c.get("theorem")]
    found = ((count(shown, v), v) for v in ("yes", "in part", "undecided", "no"))
    add(f"**{', '.join(f'{n} {v}' for n, v in found if n) or 'None decided'}.** {words}".strip() + "\n")
    second = any(c["id"] in real for c in shown)
    add("| claim | measured | verdict |" + " models that read |" * second + "\n| --- | --- | --- |" + " --- |" * second)
    for c in shown:
        where = c["source"] if c["by"] == "other paper" else c["section"] if c["by"] == "paper" else ""
        cells = both(c)
        mark = f' <a id="{c["id"]}"></a>' if where else ""  # papers.md links to it
        add(f"| {c['claim']}{f' ({where})' if where else ''}{mark} | " + " | ".join(cells + [""] * (2 + second - len(cells))) + " |")
    add("")
add("## Theorems\n")
unmet = [c for c in theorems if judged[c["id"]]["verdict"] not in ("yes", "not in a quick run")]
wrong = [c["id"] for c in unmet if "perhaps" not in c]
add(f"{count(theorems, 'yes')} of {len(theorems)} hold in the runs; [papers.md](../papers.md) names the code." + (f" **The code is wrong: {', '.join(wrong)}.**" if wrong else "") + "\n")
for c in theorems:
    numbers = measured(c, judged[c["id"]], c["test"], c.get("note"))
    why = f"; {c['perhaps']}" if c in unmet and "perhaps" in c else ""
    word = {"yes": "the run agrees"}.get(judged[c["id"]]["verdict"], judged[c["id"]]["verdict"])
    word = f"[**{word}**]({c['plot']}.svg)" if "plot" in c else f"**{word}**"
    add(f"* <a id=\"{c['id']}\"></a>{c['source']}, {c['section']}: {c['claim']}: {word}; {c['number']}: {numbers}{why}")
add("")
if not passages:
    add("The claims about passages were left out: there was no Xapian.\n")

add("## Which policy for which purpose\n")
add("At half of the rejections of lossless decoding, each policy minus the static ensemble with as many rejections (draft-target, "
    f"temperature 1). Standard errors are at most {max(float(r[2]) for r in results['rules']):.3f} nats and "
    f"{max(float(r[4]) for r in results['rules']):.4f}.\n")
add("| policy | cross-entropy, nats (less is better) | accuracy (more is better) | use it for |\n| --- | ---: | ---: | --- |")
best = results["best"]
USE = {"token-v1": "", "token-v2": "", "token-v3": "", "opt": "", "diff": "", "bild": "",
       "lenient": "a bound on the distance from p: no policy with its TV(pi, p) accepts more often", "mentored": "",
       "chow": "few target calls without speculation: it decides without p"}
USE[best["token"]] = "text scored token by token (BLEU, ROUGE, exact answers): it removes unlikely tokens"
USE[best["cross_entropy"]] = "likelihood, diversity, calibration (or `ensemble`)"
for rule, ce, _, accuracy, *_ in results["rules"]:
    if rule in USE:
        add(f"| `{rule}` | {ce} | {accuracy} | {USE[rule]} |".replace("|  |", "| |"))
low, high = results["greedy"]
add(f"\nAt temperature 0 accuracies are {low[0]} (`{low[1]}`) to {high[0]} (`{high[1]}`). For two experts of one size take `ensemble` with CoS and gamma 1.\n")
add(f"![accuracy against rejection](cascades-accuracy.svg)\n")

add("## Speed-ups compared with their predictions\n")
add("Scoring n tokens in one call costs, in steps of the target model: " + ", ".join(f"{n}: {v}" for n, v in results["scoring"]) +
    f". A step of the draft model costs {results['draft_step']}. *Predicted*: E / (c gamma + v) with these costs. *Free scoring*: scoring costs "
    "one step, as on an accelerator. Below 1 drafting loses.\n")
SHOWN = ("lossless", "opt:alpha=0.2")
off = sorted(int(r[4].replace("%", "")) for r in results["speculative"])
add(f"With gamma 3 the speed over the target model's alone is {off[0]:+d} to {off[-1]:+d} % off the prediction in {len(off)} settings: " + "; ".join(
    f"`{policy}` {speedup} (predicted {predicted}, free scoring {free})"
    for policy, _, speedup, predicted, _, free in results["speculative"] if policy in SHOWN) + ".\n")

write(details, text)
text.clear()
add("# Experiments: what the papers claim, and what these models do\n")
if results["quick"]:
    add("**A quick run: the numbers show that everything works, and no more.**\n")
add("Two groups of models were measured.\n")
add("* **Bundled**: four tiny models. `draft` (0.36 M parameters) and `target` (2.4 M) were trained on Shakespeare and the Bible; `bard` and `bible` are "
    "`target`, trained further on one of the two. They show how a policy behaves, not what it gains on a large model.")
add("* **Models that read**: SmolLM2-135M, its draft head, and Gemma 3 270M, on Debian's texts and on questions with one right answer.\n")
add(f"With the bundled models, of {sum(c['id'] in judged for c in findings)} claims of four papers that could fail {counts(findings)}. {len(theorems)} more are "
    f"[theorems or arithmetic]({page.stem}/claims.md#theorems); no run can refute them, so a run that "
    "agrees is a test of our code.\n")
if of_real := [c for c in findings if c["id"] in real]:
    decided = lambda c: any(c["id"] in of and of[c["id"]]["verdict"] != "undecided" for of in (judged, real))
    add(f"With models that read, of {len(of_real)} claims ({sum(c['id'] not in judged for c in of_real)} with these models alone) {counts(of_real, real)}. "
        f"Of all {len(findings)} claims {sum(not decided(c) for c in findings)} are decided by neither.\n")
add("**Caution**: we had seen earlier runs of most parts when we set the thresholds.\n")
add("## Verdicts\n")
add("*Yes*: every value meets its threshold by two standard errors. *In part*: some fail, some do not. *Undecided*: none fails, some are within the "
    f"error. [The claims]({page.stem}/claims.md) have numbers, plots and likely reasons.\n")
own = []  # what this library says, and what its experiments suggested
for name, heading, _ in GROUPS:
    shown = [c for c in of_group[name] if not c.get("theorem")]
    if shown and shown[0]["by"] in ("library", "here"):
        own += shown
    elif shown:
        add(f"### {heading}\n")
        add("\n".join(verdict_rows(shown)) + "\n")
add(f"Of {sum(c['id'] in judged for c in own)} [statements of this library]({page.stem}/claims.md#this-librarys-own-statements), or suggested by these "
    f"experiments, {counts(own)} with the bundled models.\n")
out = "build/experiments-quick" if results["quick"] else "build/experiments"
add("## How to run\n")
add(f"`make experiments` (seed {results['seed']}) takes 40 minutes (`QUICK=1`: 3), and `MODELS=real`, for the models that read, 90. "
    f"It writes CSV files into `{out}`; `research/experiments/claims.json` has each claim's part, threshold and exact measure. [Which policy for which purpose]"
    f"({page.stem}/claims.md#which-policy-for-which-purpose), [speed-ups and predictions]({page.stem}/claims.md#speed-ups-compared-with-their-predictions).")
write(page, text)

# --- papers.md: what was measured about the equations, theorems, tables and figures of a row ----------------------------
SECTIONS = {"Leviathan": ("Leviathan et al.",), "Narasimhan": ("Cascades", "Tran-Thien"), "Fu": ("CoS",), "Liu": ("DRAGON",), "Ning": ("DSSD",)}


def numbers_of(cell):
    """Corollary 6.3, 6.4 are two corollaries, Figure 6-8 three figures."""
    kind = ""
    for part in cell.split(", "):
        kind, _, number = part.rpartition(" ") if " " in part else (kind if part[0].isdigit() else "", "", part)
        first, _, last = number.partition("-")
        for n in range(int(first), int(last) + 1) if last.isdigit() and first.isdigit() else (number,):
            yield f"{kind} {n}".strip()


def said_of(claims):
    """The verdicts of a row's claims, with the bundled models and with those that read: each a link, or how many if there are
    more than two."""
    def words(verdicts):
        return ", ".join(f"{n} {v}" for v in ("yes", "in part", "no", "undecided") if (n := verdicts.count(v))) if len(claims) > 2 else verdicts[0]
    groups = [[c] for c in claims] if len(claims) <= 2 else [claims] if claims else []
    for of_group in groups:
        each = [[of[c["id"]]["verdict"] for c in of_group if c["id"] in of] for of in (judged, real)]
        if all(c.get("theorem") and judged[c["id"]]["verdict"] == "yes" for c in of_group):  # nothing that could fail was measured
            said = "theorem or arithmetic; the run agrees"
        else:
            said = "; ".join(f"{who}: {words(verdicts)}" for who, verdicts in zip(("bundled", "read"), each) if verdicts)
        yield f"[{said}]({page.stem}/claims.md#{of_group[0]['id']})"


papers_page = page.with_name("papers.md")
if papers_page.exists():
    text, section, found = [], (), set()
    for line in papers_page.read_text().splitlines():
        if line.startswith("## "):
            section = next((sources for name, sources in SECTIONS.items() if line.startswith(f"## {name}")), ())
        elif section and line.startswith("| ") and not line.startswith("| ---"):
            cells = [cell.strip() for cell in line[1:].split("|")[:3]]
            numbers = set(numbers_of(cells[0]))
            about = [c for c in CLAIMS if c["source"] in section and c.get("at") in numbers and (c["id"] in judged or c["id"] in real)]
            found |= {c["id"] for c in about}
            proved = ["[proved](proofs.md#theorems)"] if "../proofs/" in cells[2] else []
            said = "verdict" if cells[0] == "number" else "<br>".join([*proved, *said_of(about)])
            line = f"| {' | '.join(cells)} | {said} |".replace("|  |", "| |")
        elif section and line.startswith("| ---"):
            line = "| --- | --- | --- | --- |"
        text.append(line)
    assert not (lost := [c["id"] for c in CLAIMS if "at" in c and (c["id"] in judged or c["id"] in real) and c["id"] not in found]), lost
    papers_page.write_text("\n".join(text) + "\n")
