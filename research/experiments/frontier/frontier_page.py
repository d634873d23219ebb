# SPDX-License-Identifier: Apache-2.0
"""What was expected before the run, and the pages of what was found.

usage: frontier_page.py RESULTS.json PAGE.md   writes PAGE.md, and all.md into the folder of its name
"""
import json, pathlib, sys

# Written before the first full run. (what, setting, minus setting, measure, at least): in SmolLM2's rows, at acceptance 0.7,
# by two standard errors of the difference of windows, or questions.
EXPECTED = [
    ("`lossy` is nearer to p in KL than `chow`", "chow", "lossy", "kl", 0.0),
    ("`lossy` is nearer to p in KL than `opt`", "opt", "lossy", "kl", 0.0),
    ("`lossy` is nearer to p in KL than the ensemble", "ensemble", "lossy", "kl", 0.0),
    ("`token-v3` is further from p in TV than `lossy`, by 0.02 or more", "token-v3", "lossy", "tv", 0.02),
    ("`relative` is further from p in TV than `lossy`, by 0.02 or more", "relative", "lossy", "tv", 0.02),
    ("`token-v2` emits the target's most likely token more often than the target", "token-v2", "lossless", "likeliest", 0.0),
    ("`lossy` answers less often rightly than the target, by 0.02 or more", "lossless", "lossy", "answers", 0.02),
    ("`token-v3` has more accepted tokens of four than `lossy`", "token-v3", "lossy", "accepted", 0.0),
]


def verdict(value, error, least):
    return "yes" if value - 2 * error >= least else "no" if value + 2 * error < least else "undecided"


def digits(pair, n=3):
    return "" if pair is None else f"{round(pair[0], n) + 0.0:.{n}f}±{pair[1]:.{n}f}"  # no -0.000


def lines(settings, without):
    """Rows of the table: at each goal the policies from the nearest to p in KL on. without: numbers of columns."""
    for one in settings:
        cells = [f"`{one['policy']}`", digits(one["acceptance"], 2), digits(one["tv"]), digits(one["kl"]), digits(one["likeliest"]),
                 digits(one["right"]), *([digits(one["answers"])] if one["answers"] else []), digits(one["accepted"], 2)]
        yield "| " + " | ".join(cell for i, cell in enumerate(cells) if i not in without) + " |"


def table(settings, with_answers, without=()):
    head = ["policy", "acceptance", "TV", "KL", "most likely", "right token", *(["right answer"] if with_answers else []), "accepted of 4"]
    head = [name for i, name in enumerate(head) if i not in without]
    return "\n".join(["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *lines(settings, without)])


def by_kl(settings, goal):
    return sorted((s for s in settings if s["goal"] == goal), key=lambda s: (s["kl"][0], s["rule"]))


def expected(results):
    rows = ["| expected | difference | |", "| --- | ---: | --- |"]
    for text, value, error, least in results["expected"]:
        rows.append(f"| {text} | {value:+.3f}±{error:.3f} | {verdict(value, error, least)} |")
    measured = [text for text, *_ in results["expected"]]
    rows += [f"| {text} | | not measured: one of them does not reach 0.7 |" for text, *_ in EXPECTED if text not in measured]
    return "\n".join(rows)


def page(results):
    rows = results["smollm2"]
    lossless = next(s for s in rows if s["rule"] == "lossless")
    positions, windows, questions = results["sizes"]["smollm2"]
    missed = sorted({s["rule"] for s in rows if s["goal"]} - {s["rule"] for s in by_kl(rows, 0.7)})
    lawless = sorted({s["rule"] for s in results["bundled"]} - {s["rule"] for s in rows})
    never = [rule for rule in ("relative", "margin") if rule not in {s["rule"] for s in rows}]
    tv = [s["tv"][0] for s in by_kl(rows, 0.7)]
    verdicts = [verdict(*numbers) for _, *numbers in results["expected"]]
    newer = [rule for rule in ("cactus", "relaxed") if rule not in {s["rule"] for s in rows}]
    notes = [("Missed 0.7", missed), ("Missing, because no parameter reaches 0.7", never), ("Missing, because it is undefined where the head lacks tokens", lawless), ("Missing, because it is too slow", ["mentored"]), ("Missing, because it is newer than this run", newer)]
    return f"""# What a lossy policy costs

`make frontier` writes this page. Each policy's parameter was solved for an acceptance rate of 0.7 on {positions:,} positions of
held-out text ({windows} windows of Debian's texts; target SmolLM2-135M, its draft head as draft model, temperature 1); `lossless` has {lossless["acceptance"][0]:.2f}.
[All settings](frontier/all.md): rates of 0.5 and 0.9, TV, the probability of the text's own token, and the bundled pair.

* *KL*: KL(pi || p) in nats. TV(pi, p) is {min(tv):.2f} to {max(tv):.2f}.
* *Most likely*: the probability of the target's most likely token.
* *Right answer*: the probability of all tokens of an answer ({questions} questions).
* *Accepted of 4*: expected accepted tokens of a round of token verification.
* ± is one standard error, over windows.

![KL and most likely tokens against accepted tokens](frontier/frontier.svg)

The nearest to p first:

{table([lossless, *by_kl(rows, 0.7)], True, without=(1, 2, 5))}

{" ".join(name + ": " + ", ".join(f"`{m}`" for m in rules) + "." for name, rules in notes if rules)}
Gemma 3's cascades are in [experiments.md](experiments.md).

KL is also the mean of log pi - log p in [rollouts](engine.md#rollouts). Statements that were
[expected before the run](frontier/all.md#expected-before-the-run): {", ".join(f"{verdicts.count(v)} {v}" for v in ("yes", "no", "undecided"))}.
"""


def everything(results):
    out = ["# All settings of the frontier\n", "± is one standard error. [What the columns are](../frontier.md); *TV*: of pi from p; *right token*: the probability of the text's own.\n"]
    for part, name in (("smollm2", "SmolLM2 and its head"), ("bundled", "The bundled pair, draft and target")):
        rows = results[part]
        with_answers = any(s["answers"] for s in rows)
        out.append(f"## {name}\n")
        out.append(table([*(s for s in rows if s["goal"] is None), *(s for g in (0.5, 0.7, 0.9) for s in by_kl(rows, g))],
                         with_answers) + "\n")
    out.append("## Expected before the run\n")
    out.append(f"Differences at acceptance 0.7 (SmolLM2 and its head), with the errors of paired windows or questions:\n\n{expected(results)}\n")
    return "\n".join(out)


if __name__ == "__main__":
    found, to = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    to.with_suffix("").mkdir(parents=True, exist_ok=True)
    to.write_text(page(found))
    (to.with_suffix("") / "all.md").write_text(everything(found))
