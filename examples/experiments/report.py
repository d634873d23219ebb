#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the CSV files of specagg-experiments to a page of claims, tables and plots.

usage: report.py FOLDER PAGE.md      the plots go into a folder beside the page, named like it
"""
import bisect, csv, math, os, pathlib, statistics, sys

try:
    import matplotlib
except ImportError:  # Debian's matplotlib belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    matplotlib = None
    print("report.py: there is no matplotlib (Debian: python3-matplotlib): tables, but no plots", file=sys.stderr)

folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
plots = page.with_suffix("")
settings = ""


class Row(dict):
    """A line of a CSV file: numbers where they are numbers; a missing one is NaN."""
    def __getattr__(self, name):
        x = self[name]
        try:
            return float(x) if x != "" else math.nan
        except ValueError:
            return x


def load(part):
    global settings
    path = next(p for p in (folder / "exact" / f"{part}.csv", folder / "timed" / f"{part}.csv") if p.exists())
    with open(path, newline="") as file:
        settings = file.readline()
        return [Row(r) for r in csv.DictReader(file)]


PAIRS = ["draft-target", "bard-bible", "bible-bard"]
passages = load("dragon-passages") if (folder / "exact" / "dragon-passages.csv").exists() else []  # needs Xapian
cascades = [r for p in PAIRS for r in load(f"cascades-{p}")]
acceptance, verifiers, cos_calls, lengths = load("acceptance"), load("verifiers"), load("cos-calls"), load("draft-length")
times, latency, cos_speed, length_speed = load("times"), load("latency"), load("cos-speed"), load("draft-length-speed")
dssd, dragon = load("dssd"), load("dragon-latency")
quick = "quick" in settings


def pick(rows, **where):
    return [r for r in rows if all(getattr(r, k) == v for k, v in where.items())]


def one(rows, **where):
    return pick(rows, **where)[0]


# ---- what the numbers say -------------------------------------------------------------------------------------------

DEFERRAL = ["chow", "chow-log", "diff", "diff-log", "opt", "opt-log", "bild"]
TOKEN = ["token-v1", "token-v2", "token-v3"]
LOSSY = ["lossy", "lenient", "lossy-beta", "mentored"]
MEASURE = {"cross-entropy": ("ce_minus_ensemble", "ce_minus_ensemble_se"),
           "sampled": ("sampled_minus_ensemble", "sampled_minus_ensemble_se")}


def curve(rule, pair="draft-target", text="mix", temperature=1, y="cross_entropy"):
    """(rejection, y), by rejection; of equal rejections the first."""
    points = {}
    for r in pick(cascades, rule=rule, pair=pair, text=text, temperature=temperature):
        points.setdefault(round(r.rejection, 6), getattr(r, y))
    return sorted(points.items())


def value(points, x):
    """Linear between points, NaN outside."""
    i = bisect.bisect_left([p[0] for p in points], x)
    if i < len(points) and points[i][0] == x:
        return points[i][1]
    if i == 0 or i == len(points):
        return math.nan
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def tv(pair="draft-target", text="mix", temperature=1):
    return max(r.rejection for r in pick(cascades, rule="ensemble", pair=pair, text=text, temperature=temperature))


def against_ensemble(rule, measure, share=0.5, **where):
    """What a rule has over the static ensemble where it rejects `share` of TV(q, p), and the standard error."""
    x = share * tv(**where)
    y, se = MEASURE[measure]
    return value(curve(rule, y=y, **where), x), value(curve(rule, y=se, **where), x)


def argmax_gain(rule, **where):
    x = 0.5 * tv(**where)
    return value(curve(rule, y="argmax_accuracy", **where), x) - value(curve("ensemble", y="argmax_accuracy", **where), x)


def better(a, b, measure, sign, **where):
    """By how much rule a beats rule b on average at rejections of 25, 50 and 75 % of TV. The error is the mean of the three
    standard errors, unpaired: above that of the mean, since both rules see the same positions."""
    shares = (0.25, 0.5, 0.75)
    gap = [sign * (against_ensemble(a, measure, s, **where)[0] - against_ensemble(b, measure, s, **where)[0])
           for s in shares]
    gap = [g for g in gap if not math.isnan(g)]
    error = [math.hypot(against_ensemble(a, measure, s, **where)[1], against_ensemble(b, measure, s, **where)[1])
             for s in shares]
    error = [e for e in error if not math.isnan(e)]
    return statistics.mean(gap), statistics.mean(error), sum(g > 0 for g in gap), len(gap)


def verdict(gap, error):
    return "yes" if gap > error else "no" if gap < -error else "undecided"


claims = []


def claim(paper, what, measured, holds, plot, part, otherwise=""):
    """`otherwise`: the likely reason, if it does not hold."""
    if isinstance(holds, bool):
        holds = "yes" if holds else "no"
    claims.append((paper, what, measured, holds, plot, part, otherwise if holds != "yes" else ""))


CASCADES, COS, DRAGON, DSSD = "Cascades", "CoS", "DRAGON", "DSSD"
dt = dict(pair="draft-target")
target = one(cascades, pair="draft-target", text="mix", temperature=1, rule="ensemble", parameter=0)
draft = one(cascades, pair="draft-target", text="mix", temperature=1, rule="ensemble", parameter=1)
here = pick(cascades, pair="draft-target", text="mix", temperature=1)
part = "cascades-draft-target"

best = max((r for r in here if r.rejection <= target.rejection), key=lambda r: r.sampled_minus_target)
claim(CASCADES, "Cascades are sometimes better than the large model alone",
      f"accuracy of a sampled token: `{best.policy}` {best.sampled_accuracy:.3f}, the target {target.sampled_accuracy:.3f} "
      f"(+{best.sampled_minus_target:.3f} ± {best.sampled_minus_target_se:.3f}), with {best.rejection:.2f} instead of "
      f"{target.rejection:.2f} rejected", best.sampled_minus_target > 2 * best.sampled_minus_target_se,
      "cascades-accuracy", part,
      "the gain is within two standard errors")
colder = one(cascades, pair="draft-target", text="mix", temperature=0.5, rule="ensemble", parameter=0)
claim("here", "... but not better than a colder large model: what the rules gain is sharpness",
      f"the target at temperature 0.5: {colder.sampled_accuracy:.3f}", colder.sampled_accuracy > best.sampled_accuracy,
      "cascades-temperature", part)
best = min((r for r in here if r.rule in DEFERRAL + TOKEN and r.rejection < 0.95 * tv()), key=lambda r: r.ce_minus_target)
claim(CASCADES, "They are better than the large model by cross-entropy, too",
      f"lowest: `{best.policy}`, {best.ce_minus_target:+.3f} ± {best.ce_minus_target_se:.3f} nats to the target",
      best.ce_minus_target < -2 * best.ce_minus_target_se, "cascades-cross-entropy", part,
      "the draft was trained on the same text as the target and knows little that the target does not")
experts = pick(cascades, pair="bard-bible", text="mix", temperature=1)
alone = min((r for r in experts if r.rule == "ensemble" and r.parameter in (0, 1)), key=lambda r: r.cross_entropy)
chosen = min((r for r in experts if r.rule in DEFERRAL and r.rejection < 0.95 * tv(pair="bard-bible")),
             key=lambda r: r.cross_entropy)
together = min((r for r in experts if r.rule == "ensemble"), key=lambda r: r.cross_entropy)
claim(CASCADES, "Cascades help where the draft is better on some inputs",
      f"two experts, mixed text: `{chosen.policy}` {chosen.cross_entropy:.3f} nats, the better expert alone "
      f"{alone.cross_entropy:.3f} ({chosen.ce_minus_target:+.3f} ± {chosen.ce_minus_target_se:.3f} to bible); "
      f"`{together.policy}` {together.cross_entropy:.3f}",
      chosen.cross_entropy < alone.cross_entropy - chosen.ce_minus_target_se, "ensemble", "cascades-bard-bible",
      "confidence tells which expert knows the text, but hard choices lose what a mixture keeps")

token_best = max(TOKEN, key=lambda r: against_ensemble(r, "sampled", **dt)[0])
gap, error, wins, n = better(token_best, "opt", "sampled", 1, **dt)
claim(CASCADES, "At temperature 1 token-specific rules beat OPT",
      f"`{token_best}` over `opt` at equal rejection: {gap:+.4f} ± {error:.4f} accuracy of a sampled token, ahead at {wins} of {n}",
      verdict(gap, error), "cascades-accuracy", part)
gap, error, wins, n = better("opt", "diff", "sampled", 1, **dt)
claim(CASCADES, "OPT beats Diff: it pays for TV only where it must",
      f"{gap:+.4f} ± {error:.4f} accuracy at equal rejection, ahead at {wins} of {n}", verdict(gap, error),
      "cascades-accuracy", part,
      "the paper's gap, too, is below one point of BLEU; here both defer at nearly the same positions")
gap, error, wins, n = better("diff", "chow", "sampled", 1, **dt)
claim(CASCADES, "Diff, which sees both models, beats Chow, which sees the draft",
      f"{gap:+.4f} ± {error:.4f} accuracy at equal rejection, ahead at {wins} of {n}", verdict(gap, error),
      "cascades-accuracy", part)
gap, error, wins, n = better("diff", "bild", "sampled", 1, **dt)
claim(CASCADES, "Diff beats BiLD's cross-entropy rule",
      f"{gap:+.4f} ± {error:.4f} accuracy at equal rejection, ahead at {wins} of {n}", verdict(gap, error),
      "cascades-accuracy", part)
gap, error, wins, n = better(token_best, "lenient", "sampled", 1, **dt)
claim(CASCADES, "Speculative cascades beat lossy speculative decoding",
      f"`{token_best}` over `lenient`: {gap:+.4f} ± {error:.4f} accuracy at equal rejection, ahead at {wins} of {n}",
      verdict(gap, error), "cascades-accuracy", part)
gap, error, wins, n = better("diff", "lenient", "cross-entropy", -1, **dt)
claim(CASCADES, "... also by cross-entropy",
      f"`diff` over `lenient`: {-gap:+.3f} ± {error:.3f} nats (less is better), ahead at {wins} of {n}", verdict(gap, error),
      "cascades-cross-entropy", part,
      "a deferral rule gives tokens that only p knows the draft's small probability; mixing rules never do. The paper "
      "measures BLEU and ROUGE, which do not see that")
gaps = {t: better(token_best, "opt", "sampled", 1, temperature=t, **dt) for t in (1, 0.5)}
claim(CASCADES, "The gap between token-specific rules and OPT shrinks with the temperature",
      f"`{token_best}` over `opt`: {gaps[1][0]:+.4f} ± {gaps[1][1]:.4f} at temperature 1, {gaps[0.5][0]:+.4f} ± {gaps[0.5][1]:.4f} at 0.5",
      verdict(gaps[1][0] - gaps[0.5][0], math.hypot(gaps[1][1], gaps[0.5][1])), "cascades-temperature", part)
spread = max(abs(value(curve("opt", temperature=0, y="sampled_accuracy"), x) -
                 value(curve("diff", temperature=0, y="sampled_accuracy"), x))
             for x in [s * tv(temperature=0) for s in (0.25, 0.5, 0.75)])
same = one(cascades, pair="draft-target", text="mix", temperature=0, rule="opt", parameter=0.1)
diff0 = one(cascades, pair="draft-target", text="mix", temperature=0, rule="diff", parameter=0.1)
claim(CASCADES, "Greedy, OPT and Diff are one rule (TV is then 0 or 1)",
      f"alpha 0.1: rejection {same.rejection:.4f} and {diff0.rejection:.4f}, accuracy {same.argmax_accuracy:.4f} and "
      f"{diff0.argmax_accuracy:.4f}", same.rejection == diff0.rejection and same.argmax_accuracy == diff0.argmax_accuracy,
      "cascades-temperature", part)
gap, error, wins, n = better("diff-log", "diff", "cross-entropy", -1, **dt)
claim(CASCADES, "For cross-entropy the rules that compare entropies are due",
      f"`diff-log` over `diff`: {-gap:+.4f} ± {error:.4f} nats, ahead at {wins} of {n}", verdict(gap, error),
      "cascades-cross-entropy", part,
      "an entropy is a plug-in for the loss only if the model is calibrated; both rules lose to the ensemble by more")
gap, error, wins, n = better("token-v3", "token-v1", "sampled", 1, **dt)
claim(CASCADES, "Thresholds on p (V2, V3) beat one on q (V1)",
      f"`token-v3` over `token-v1`: {gap:+.4f} ± {error:.4f} accuracy; "
      f"`token-v2` over `token-v1`: {better('token-v2', 'token-v1', 'sampled', 1, **dt)[0]:+.4f}", verdict(gap, error),
      "cascades-accuracy", part,
      "rows of small models are flat: a distance below max p (V1, V2) keeps many tokens where the target is unsure and few where "
      "it is sure; a share of max p (V3) does not tell the two apart")
off = max(abs(r.rejection + r.tv_target - tv()) for r in here if r.rule in DEFERRAL + ["ensemble", "lossy", "lenient"])
worst_token = max(r.rejection + r.tv_target - tv() for r in here if r.rule in TOKEN + ["lossy-beta"])
claim(CASCADES, "Deferral rules reject delta TV: with lossy ones and the ensemble they lie on P(reject) + TV(pi, p) = TV(q, p)",
      f"largest distance {off:.1e} over {sum(r.rule in DEFERRAL + ['ensemble', 'lossy', 'lenient'] for r in here)} laws; "
      f"token rules and beta = 1 - alpha lie up to {worst_token:.2f} above", off < 1e-6, "frontier", part)


def kl_at(rule, share):
    return value(curve(rule, y="kl_target"), share * tv())


kl = {rule: statistics.mean(kl_at(rule, s) for s in (0.25, 0.5, 0.75)) for rule in ("lossy", "lenient", "ensemble")}
claim(CASCADES, "Of all laws with its acceptance, lossy with the exact beta is nearest to p in KL (Tran-Thien)",
      f"KL(p, pi) at equal rejection: exact {kl['lossy']:.4f}, beta 1 {kl['lenient']:.4f}, ensemble {kl['ensemble']:.4f}",
      kl["lossy"] <= min(kl.values()) + 1e-9, "frontier", part)
gap, error, wins, n = better("lossy", "lenient", "cross-entropy", -1, **dt)
claim(CASCADES, "Tuning beta is worth it (the paper searches a grid)",
      f"exact beta over beta 1: {kl['lenient'] - kl['lossy']:.4f} nats of KL, {gap:.4f} ± {error:.4f} of cross-entropy",
      verdict(gap, error), "frontier", part, "beta 1 costs no search and is nearly as good")
losers = [r for r in DEFERRAL if against_ensemble(r, "cross-entropy", **dt)[0] > 0]
claim("here", "By cross-entropy the static ensemble beats every deferral rule at equal rejection",
      f"{len(losers)} of {len(DEFERRAL)} lose to it; `diff` by {against_ensemble('diff', 'cross-entropy', **dt)[0]:.3f} ± "
      f"{against_ensemble('diff', 'cross-entropy', **dt)[1]:.3f} nats", len(losers) == len(DEFERRAL),
      "cascades-cross-entropy", part)
winners = [r for r in DEFERRAL + TOKEN if against_ensemble(r, "sampled", **dt)[0] > against_ensemble(r, "sampled", **dt)[1]]
claim("here", "By the accuracy of a sampled token most rules of the paper beat the static ensemble",
      f"{len(winners)} of {len(DEFERRAL + TOKEN)} by more than a standard error; `{token_best}` by "
      f"{against_ensemble(token_best, 'sampled', **dt)[0]:.3f} ± {against_ensemble(token_best, 'sampled', **dt)[1]:.3f}",
      len(winners) > len(DEFERRAL + TOKEN) / 2, "cascades-accuracy", part)

best_argmax = max(here, key=lambda r: r.argmax_accuracy)
claim("here", "By the accuracy of the likeliest token there is little between rules",
      f"best: `{best_argmax.policy}` {best_argmax.argmax_accuracy:.3f}, the target {target.argmax_accuracy:.3f} ± "
      f"{target.argmax_accuracy_se:.3f}; at half of TV over the ensemble: " +
      ", ".join(f"`{r}` {argmax_gain(r):+.3f}" for r in ("diff", "chow", "token-v2", "lenient")),
      abs(best_argmax.argmax_accuracy - target.argmax_accuracy) < 2 * target.argmax_accuracy_se, "cascades-accuracy", part)

# executions
speculative = pick(latency, execution="speculative")
for r in latency:
    rule, parameter = ("ensemble", 0.0) if r.rule == "lossless" else (r.rule, r.parameter)
    exact = pick(here, rule=rule, parameter=parameter)
    r["accuracy"] = exact[0].sampled_accuracy if exact else ""
    r["cross_entropy"] = exact[0].cross_entropy if exact else ""
chow = {x: {e: min((r for r in latency if r.rule == "chow" and r.parameter == x and r.execution == e),
                   key=lambda r: r.relative_latency) for e in ("speculative", "sequential", "oracle")}
        for x in sorted({r.parameter for r in pick(latency, execution="sequential")})}
ahead = sum(c["speculative"].relative_latency < c["sequential"].relative_latency for c in chow.values())
claim(CASCADES, "Executed speculatively, a cascade is faster than token by token",
      "Chow's rule, best gamma, latency over the target's: " + ", ".join(
          f"alpha {x:g}: {c['speculative'].relative_latency:.2f} against {c['sequential'].relative_latency:.2f}"
          for x, c in chow.items()), "yes" if ahead == len(chow) else "no" if ahead == 0 else "in part",
      "latency", "latency",
      "where the rule keeps nearly every draft, a sequential cascade hardly calls the target, and a speculative one "
      "scores everything; and here scoring 4 tokens costs "
      f"{one(times, model='target', tokens=4).v:.1f} steps, not one")
fastest = min(speculative, key=lambda r: r.relative_latency)
as_good = [r for r in speculative if r.accuracy >= target.sampled_accuracy]
quickest = min(as_good, key=lambda r: r.relative_latency) if as_good else None
lossless_best = min(pick(speculative, rule="lossless"), key=lambda r: r.relative_latency)
claim(CASCADES, "A speculative cascade matches the large model's quality faster than speculative decoding does",
      (f"accuracy at least the target's: `{quickest.policy}`, gamma {quickest.gamma:g}, at {quickest.relative_latency:.2f} "
       "of its latency; " if quickest else "no measured cascade is as accurate as the target; ") +
      f"lossless speculative decoding {lossless_best.relative_latency:.2f}",
      bool(quickest) and quickest.relative_latency < lossless_best.relative_latency, "latency", "latency",
      "differences between settings are near the noise of the clock")
errors = [abs(r.error) for r in speculative if not math.isnan(r.error)]
claim("Leviathan", "Speed-up of speculative decoding: E / (c gamma + v)",
      f"measured against predicted, {len(errors)} settings: median error {100 * statistics.median(errors):.0f} %, worst "
      f"{100 * max(errors):.0f} %, mean {100 * statistics.mean(r.error for r in speculative if not math.isnan(r.error)):+.1f} % (measured is "
      "mostly less)",
      "yes" if statistics.median(errors) < 0.1 else "no", "prediction", "latency",
      "the formula counts model calls alone; verification, about a tenth of these small models' steps, comes on top, and "
      "so does what else the machine did")

# CoS
standard = "bard-bible"
WE, CD = pick(cos_speed, models="bard-bible"), pick(cos_speed, models="draft-target")
three = pick(cos_speed, models="bard-bible-target")


def best_speed(rows, method, **where):
    return max((r for r in pick(rows, **where) if r.method == method), key=lambda r: r.speedup)


lambdas = sorted({r.value for r in WE})
mus = sorted({r.value for r in CD})
we = [best_speed(WE, "alternating", value=x).speedup for x in lambdas]
cd = [best_speed(CD, "alternating", value=x, temperature=t).speedup for x in mus for t in (0, 1)]
claim(COS, "Ensembles of two models decode 1.34 to 1.62 times as fast as with both at every token",
      f"{min(we):.2f} to {max(we):.2f} times over lambda {lambdas[0]:g} to {lambdas[-1]:g}", min(we) >= 1.34, "cos-speed",
      "cos-speed", "the machine was busy, or scoring two tokens costs more than one step here")
claim(COS, "Contrastive decoding 1.11 to 2.23 times", f"{min(cd):.2f} to {max(cd):.2f} times, mu {mus[0]:g} to {mus[-1]:g}",
      "yes" if min(cd) >= 1.11 else "in part" if statistics.median(cd) >= 1.11 else "no", "cos-speed", "cos-speed",
      "for large mu the contrast is far from its small model: low acceptance")
ones = [r for r in WE + CD if r.method == "alternating" and r.gamma == 1]
slower = [r for r in ones if r.speedup < 1]
claim(COS, "Alternating with gamma 1 is never slower than the standard way",
      f"{len(ones) - len(slower)} of {len(ones)} settings are faster, slowest {min(r.speedup for r in ones):.2f} times",
      "yes" if not slower else "in part" if min(r.speedup for r in ones) > 0.95 else "no", "cos-speed", "cos-speed",
      "scoring two tokens is not free on this machine, and its clock is not exact")
calls = [r for r in cos_calls if r.method == "alternating" and r.gamma == 1 and not math.isnan(r.a_q)]
claim(COS, "... in calls, where the theorem holds whatever a call costs",
      f"at most {max(r.calls for r in calls):.2f} calls a token instead of 2", max(r.calls for r in calls) <= 2, "cos-calls",
      "cos-calls")
sd = [r for r in cos_speed if r.method == "speculative"]
claim(COS, "Speculation alone can be slower than the standard way",
      f"{sum(r.speedup < 1 for r in sd)} of {len(sd)} settings are, down to {min(r.speedup for r in sd):.2f} times",
      any(r.speedup < 0.98 for r in sd), "cos-speed", "cos-speed")
bound = min(r.a_q - r.value for r in pick(cos_calls, models="bard-bible"))
claim(COS, "A draft of q is accepted with probability at least lambda",
      f"acceptance minus lambda: at least {bound:.2f}", bound >= 0, "cos-calls", "cos-calls")
flat = {g: one(pick(cos_calls, models="bard-bible", value=0.5, method="alternating"), gamma=g).calls
        for g in sorted({r.gamma for r in cos_calls if r.method == "alternating"})}
claim(COS, "With models of one size the speed-up hardly depends on gamma",
      "alternating, lambda 0.5, calls a token by gamma: " + ", ".join(f"{g:g}: {x:.2f}" for g, x in flat.items()),
      max(flat.values()) / min(flat.values()) < 1.15, "cos-calls", "cos-calls",
      "every step of a gamma beyond 1 costs as much as the step it saves, and with these acceptances more; the paper's "
      "experts agree more often")
by_mu = [best_speed(CD, "alternating", value=m, temperature=1).speedup for m in mus]
calls_mu = [one(cos_calls, models="draft-target", value=m, temperature=1, method="alternating", gamma=1).a_q for m in mus]
claim(COS, "The larger mu, the smaller the gain",
      f"acceptance of a draft {calls_mu[0]:.2f} at mu {mus[0]:g}, {calls_mu[-1]:.2f} at mu {mus[-1]:g}; speed-up "
      f"{by_mu[0]:.2f} and {by_mu[-1]:.2f}", calls_mu[-1] < calls_mu[0] or len(mus) == 1, "cos-speed", "cos-speed")
by_t = {t: statistics.median(best_speed(CD, "alternating", value=m, temperature=t).speedup for m in mus) for t in (0, 1)}
a_t = {t: statistics.mean(r.a_q for r in pick(cos_calls, models="draft-target", temperature=t, method="standard")) for t in (0, 1)}
claim(COS, "Greedy contrastive decoding gains more than sampled",
      f"median over mu {by_t[0]:.2f} times greedy, {by_t[1]:.2f} at temperature 1; acceptance of a draft {a_t[0]:.2f} and {a_t[1]:.2f}",
      "yes" if by_t[0] > by_t[1] + 0.03 else "no" if by_t[0] < by_t[1] - 0.03 else "undecided", "cos-speed", "cos-speed",
      "greedy, a small model as weak as this agrees with the target no more often than the laws overlap; the paper's small models "
      "write code and sums, where the likeliest token is mostly the same")
claim(COS, "At least 1.5 times at every lambda from 0.1 to 0.9",
      f"{min(we):.2f} to {max(we):.2f} times, at {sum(x >= 1.5 for x in we)} of {len(we)} lambdas",
      "yes" if min(we) >= 1.5 else "in part" if max(we) >= 1.5 else "no", "cos-speed", "cos-speed",
      "scoring two tokens costs more than one step, and with small lambda the other expert should begin")
t3 = max(pick(three, method="alternating"), key=lambda r: r.speedup)
s3 = max(pick(three, method="speculative"), key=lambda r: r.speedup)
claim(COS, "Three models: 1.27 to 1.85 times; speculation alone is slower than the standard way",
      f"taking turns {t3.speedup:.2f} times, speculation alone {s3.speedup:.2f} times (best gammas)",
      "yes" if t3.speedup >= 1.27 and s3.speedup < 1 else "in part" if t3.speedup >= 1.27 else "no", "cos-speed", "cos-speed",
      "the part about speculation alone does not: at gamma 1 it is slower, at larger gammas our acceptance pays for it")
both = [r for r in cos_calls if r.method == "alternating" and not math.isnan(r.predicted)]
errors = [abs(r.calls / r.predicted - 1) for r in both]
claim("here", "The renewal formula, in the place of the paper's Theorem 3.6, predicts calls a token",
      f"{len(errors)} settings: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.0f} %",
      statistics.median(errors) < 0.05, "cos-calls", "cos-calls")
errors = [abs(r.error) for r in cos_speed if r.method == "alternating" and not math.isnan(r.error)]
claim("here", "... and, with measured call times, the speed-up",
      f"{len(errors)} settings: median error {100 * statistics.median(errors):.0f} %", statistics.median(errors) < 0.1,
      "prediction", "cos-speed", "the machine was not idle")
mix = pick(cascades, pair="bard-bible", text="mix", temperature=1, rule="ensemble")
half = one(mix, parameter=0.5)
ends = [one(mix, parameter=0), one(mix, parameter=1)]
claim(COS, "Ensembling improves quality",
      f"cross-entropy on the mixed text: both experts {half.cross_entropy:.3f}, the better one alone "
      f"{min(e.cross_entropy for e in ends):.3f}; the model trained on both {target.cross_entropy:.3f}",
      half.cross_entropy < min(e.cross_entropy for e in ends), "ensemble", "cascades-bard-bible")

# verifiers
def verified(pair, temperature, gamma, name):
    return one(verifiers, pair=pair, temperature=temperature, gamma=gamma, verifier=name)


cells = [(p, t, g) for p in PAIRS for t in (1, 0.5) for g in (4, 8)]
z = [(verified(*c, "block").accepted - verified(*c, "token").accepted,
      math.hypot(verified(*c, "block").accepted_se, verified(*c, "token").accepted_se)) for c in cells]
claim("Sun et al.", "Block verification keeps at least as many drafts as token verification",
      f"mean gain {statistics.mean(g for g, _ in z):+.3f} tokens a round over {len(z)} settings, worst "
      f"{min(g / e for g, e in z):+.1f} standard errors",
      "yes" if min(g / e for g, e in z) > -3 and statistics.mean(g for g, _ in z) > 0 else
      "no" if min(g / e for g, e in z) < -3 else "undecided", "verifiers", "verifiers",
      "the verifiers write different texts, and these are few tokens")
ratio = [verified(*c, "match").accepted / verified(*c, "token").accepted for c in cells]
claim("library", "Exact match (sample and compare) keeps far fewer",
      f"{100 * min(ratio):.0f} to {100 * max(ratio):.0f} % of token verification's", max(ratio) < 0.9, "verifiers", "verifiers")
slack = min(r.coupled - r.coupled_bound for r in acceptance)
claim("Daliri et al.", "Shared noise keeps a draft with probability at least (1 - TV) / (1 + TV)",
      ", ".join(f"{r.pair}, temperature {r.temperature:g}: {r.coupled:.3f} (bound {r.coupled_bound:.3f}, ratio test {r.ratio:.3f})"
                for r in acceptance), slack >= 0, "verifiers", "acceptance")
small = {r.temperature: r for r in acceptance if r.pair == "draft-target"}
claim("library", "A draft row of 64 counts on 8 tokens is nearly as good as the whole row",
      ", ".join(f"temperature {t:g}: acceptance {r.quantised:.3f} against {r.ratio:.3f}" for t, r in small.items()) +
      f", in {small[1].quantised_bytes:g} bytes", all(r.quantised > r.ratio - 0.05 for r in small.values()), "dssd", "acceptance",
      "at temperature 1 these small models spread their mass over hundreds of tokens, of which 8 hold about half")
tele = pick(verifiers, verifier="token")
tele = [r for r in tele if r.temperature > 0]
z = [abs(r.telemetry - r.tokens_per_round) / r.tokens_per_round_se for r in tele]
claim("library", "Rows tell the tokens a round without bias, with less noise than counting",
      f"largest difference {max(z):.1f} standard errors of counting; standard error "
      f"{statistics.mean(r.telemetry_se / r.tokens_per_round_se for r in tele):.2f} of counting's", max(z) < 3.5, "telemetry",
      "verifiers")

# DRAGON
def ms(aggregation, strategy="device", delay=300, temperature=1, device=None):
    rows = [r for r in dragon if r.temperature == temperature and r.delay_ms == delay]
    fast, slow = min(r.device_ms for r in rows), max(r.device_ms for r in rows)
    rows = [r for r in rows if r.device_ms == (slow if device == "slow" else fast)]
    return one(rows, aggregation=aggregation, strategy=strategy)


sync, indep, shared = ms("synchronous"), ms("independent", "moving"), ms("shared noise", "moving")
paper_rule = ms("independent", "Eq 8")
claim(DRAGON, "42.4 % less time a token than token-wise synchronous aggregation (OPT-1.3B, delays up to 300 ms)",
      f"simulated at 300 ms: {100 * (1 - paper_rule.ms_per_token / sync.ms_per_token):.0f} % with the paper's scheduler "
      f"({paper_rule.ms_per_token:.0f} against {sync.ms_per_token:.0f} ms), {100 * (1 - indep.ms_per_token / sync.ms_per_token):.0f} % "
      "with one that looks ahead", paper_rule.ms_per_token < 0.58 * sync.ms_per_token, "dragon-latency", "dragon-latency",
      "two experts on different books agree less often than two halves of one corpus")
claim("here", "Shared noise saves again as much, at the same law",
      f"{shared.ms_per_token:.0f} ms a token, {100 * (1 - shared.ms_per_token / indep.ms_per_token):.0f} % less than independent "
      f"drafts (drafts kept {shared.acceptance_l:.2f} against {indep.acceptance_l:.2f})",
      shared.ms_per_token < indep.ms_per_token, "dragon-latency", "dragon-latency")
d0 = [ms("independent", "device", d, device="slow").ms_per_token / ms("synchronous", "device", d, device="slow").ms_per_token
      for d in (0, 50)]
claim(DRAGON, "Where the device is slower than the cloud and the link together, nothing is left to gain",
      f"time over synchronous: {d0[0]:.3f} at 0 ms, {d0[1]:.3f} at 50 ms added", min(d0) > 0.98, "dragon-latency",
      "dragon-latency")
names = ["device", "cloud", "random"]
lost = []
for t in (1, 0.5):
    for dev in ("fast", "slow"):
        for d in sorted({r.delay_ms for r in dragon}):
            rest = min(ms("independent", s, d, t, dev).ms_per_token for s in names)
            lost.append(ms("independent", "Eq 8", d, t, dev).ms_per_token / rest - 1)
loses, beats = sum(x > 0.001 for x in lost), sum(x < -0.001 for x in lost)
claim(DRAGON, "The scheduler matches or beats device, cloud and random at every delay",
      f"Eq 8 against the best of them: equal at {len(lost) - loses - beats} of {len(lost)} settings, worse at {loses} (at most "
      f"{100 * max(lost):+.1f} %), better at {beats}; all under the same draws",
      "yes" if not loses else "in part" if max(lost) < 0.05 else "no", "dragon-scheduling", "dragon-latency",
      "it finds the better side, but only after it has measured; no fixed side can be beaten by choosing a fixed side. Going where "
      "the drafts are, token by token, is what pays")
closed = [abs(r.ms_per_token / r.predicted - 1) for r in dragon if not math.isnan(r.predicted) and r.delay_ms > 0]
claim("here", "The closed form of the recursion predicts the time a token",
      f"simulated against predicted, {len(closed)} settings: median error {100 * statistics.median(closed):.1f} %, worst "
      f"{100 * max(closed):.0f} %", statistics.median(closed) < 0.05, "dragon-latency", "dragon-latency",
      "a run of 100 tokens begins with two drafts that nobody rejected, and the link swings")
gain = [1 - ms("independent", "moving", d, t, dev).ms_per_token / ms("independent", "Eq 8", d, t, dev).ms_per_token
        for t in (1, 0.5) for dev in ("fast", "slow") for d in sorted({r.delay_ms for r in dragon})]
claim("here", "Looking ahead 16 tokens beats the paper's Eq 8",
      f"{100 * statistics.mean(gain):.0f} % less time on average, {100 * max(gain):.0f} % at most", min(gain) > -0.02,
      "dragon-scheduling", "dragon-latency")


def read(text, law, n=16):
    return one(passages, text=text, law=law, passages=n)


def helps(r):
    return r.minus_none < -2 * r.minus_none_se


if passages:
    mix, plot, part = read("mix", "both"), "dragon-passages", "dragon-passages"
    own = read("kjv", "cloud"), read("shakespeare", "device")
    claim(DRAGON, "The more passages, the lower the perplexity (0 to 16 a side)",
          f"mix, both sites, 16 a side: {mix.minus_none:+.4f} ± {mix.minus_none_se:.4f} nats a token to none, {mix.minus_one:+.4f} ± "
          f"{mix.minus_one_se:.4f} to one a side; passages of the text's own book alone: Bible {own[0].minus_none:+.4f} ± "
          f"{own[0].minus_none_se:.4f} to none, Shakespeare {own[1].minus_none:+.4f} ± {own[1].minus_none_se:.4f}",
          "yes" if helps(mix) else "in part" if any(helps(r) for r in own) else "no",
          plot, part,
          "trained on 256 tokens of running text, the models take little from a passage of the same book, and one of the other misleads them")
    over = [read("mix", s) for s in ("device", "cloud")]
    beaten = [r.minus_both > 2 * r.minus_both_se for r in over]
    claim(DRAGON, "Both sites together beat each alone",
          f"mix, 16 a side: {-over[0].minus_both:+.4f} ± {over[0].minus_both_se:.4f} nats a token to the device alone, "
          f"{-over[1].minus_both:+.4f} ± {over[1].minus_both_se:.4f} to the cloud alone",
          "yes" if all(beaten) else "in part" if any(beaten) else "no", plot, part,
          "the paper deals out one corpus to both sides; here each side has a book of its own, and on the Bible Shakespeare's passages "
          "cost more than weights near one half can leave out")
    weight = [read(t, "both") for t in ("shakespeare", "kjv")]
    apart = weight[0].device_weight - weight[1].device_weight
    claim(DRAGON, "The weights of the sites follow the relevance of their documents",
          f"weight of the device (Shakespeare), 16 a side: {weight[0].device_weight:.3f} ± {weight[0].device_weight_se:.3f} on Shakespeare, "
          f"{weight[1].device_weight:.3f} ± {weight[1].device_weight_se:.3f} on the Bible",
          "no" if apart < 2 * math.hypot(*(r.device_weight_se for r in weight)) else
          "yes" if weight[0].device_weight > 0.5 > weight[1].device_weight else "in part", plot, part,
          "BM25 of two indexes is hardly comparable: the larger one, the Bible's, scores higher even for Shakespeare")

# DSSD
grid = pick(dssd, pair="draft-target", temperature=1, vocabulary=50000, slowdown=400)
setting = dict(mbit_per_s=100, delay_ms=20)


def split(protocol, free=True, **where):
    rows = pick(grid, protocol=protocol, **where)
    return max(rows, key=lambda r: r.speedup_free_scoring if free else r.speedup)


at8 = {p: one(grid, protocol=p, gamma=8, **setting) for p in ("dsd", "dssd", "shared", "quantised")}
claim(DSSD, "DSSD sends far less up than DSD: tokens and one probability each",
      f"gamma 8, V = 50,000: {at8['dsd'].up_bytes:,.0f} bytes up a round against {at8['dssd'].up_bytes:,.0f}; but "
      f"{at8['dssd'].down_bytes:,.0f} bytes down", at8["dssd"].up_bytes < at8["dsd"].up_bytes / 1000, "dssd", "dssd")
wins = [one(grid, protocol="dssd", gamma=r.gamma, mbit_per_s=r.mbit_per_s, delay_ms=r.delay_ms).speedup >= r.speedup
        for r in pick(grid, protocol="dsd")]
claim(DSSD, "DSSD is faster than DSD on every link", f"by the closed form at {sum(wins)} of {len(wins)} settings", all(wins), "dssd", "dssd",
      "up and down are equally fast here")
links = [dict(mbit_per_s=w, delay_ms=d) for w in (10, 50, 100) for d in (0, 20, 50)]
varies = {p: [one(grid, protocol=p, gamma=8, **k).speedup_free_scoring for k in links] for p in ("dsd", "dssd", "shared")}
claim(DSSD, "DSD depends strongly on the link, DSSD hardly",
      "largest over smallest speed-up, 10 to 100 Mbit/s and 0 to 50 ms, gamma 8: " +
      ", ".join(f"{n} {max(x) / min(x):.1f}" for n, x in (("DSD", varies["dsd"]), ("DSSD", varies["dssd"]), ("shared noise", varies["shared"]))),
      max(varies["dssd"]) / min(varies["dssd"]) < 1.3, "dssd", "dssd",
      "the times in the paper's table are the delay alone; the row that comes down after a rejection is left out of them")
low = [one(grid, protocol=p, gamma=4, mbit_per_s=10, delay_ms=20).speedup_free_scoring for p in ("dsd", "dssd")]
claim(DSSD, "DSD gains nothing on slow links, DSSD 1.5 to 2.4 times",
      f"10 Mbit/s, 20 ms, gamma 4, {grid[0].llm_ms:.0f} ms a target step, scoring free: DSD {low[0]:.2f}, DSSD {low[1]:.2f}; at 100 Mbit/s "
      f"DSSD at best {split('dssd', **setting).speedup_free_scoring:.2f}; with measured scoring costs {split('dssd', False, **setting).speedup:.2f}",
      low[0] < 1 and split("dssd", **setting).speedup_free_scoring >= 1.5, "dssd", "dssd",
      f"the paper's own formula with its acceptance 0.61, c = 0.1 and gamma 8 gives {(1 - 0.61 ** 9) / (1 - 0.61) / 1.8:.2f} on a "
      "link that costs nothing, less than its table")
series = {g: one(grid, protocol="dssd", gamma=g, **setting).speedup for g in range(1, 9)}
peak = max(series, key=series.get)
claim(DSSD, "There is a best draft length: 6 of 4, 6 and 8", f"measured scoring, 100 Mbit/s, 20 ms: gamma {peak} of 1 to 8; at 4, 6 and 8 "
      f"{series[4]:.2f}, {series[6]:.2f} and {series[8]:.2f} times",
      "yes" if max((4, 6, 8), key=series.get) == 6 else "in part" if 1 < peak < 8 else "no", "dssd", "dssd",
      "scoring costs grow with every token here, and the draft is accepted less often than the paper's, so short drafts win")
pays = [r for r in pick(grid, protocol="shared")
        if r.speedup > one(grid, protocol="dssd", gamma=r.gamma, mbit_per_s=r.mbit_per_s, delay_ms=r.delay_ms).speedup]
slow = [r for r in pick(grid, protocol="shared") if r.mbit_per_s <= 10]
claim("here", "On slow links no row should travel: shared noise beats DSSD",
      f"at {sum(r in pays for r in slow)} of {len(slow)} settings up to 10 Mbit/s, {len(pays) - sum(r in pays for r in slow)} of "
      f"{len(pick(grid, protocol='shared')) - len(slow)} above", sum(r in pays for r in slow) == len(slow), "dssd", "dssd",
      "shared noise keeps fewer drafts")

# draft length
rates = {}
for r in lengths:
    rates.setdefault((r.pair, r.temperature, r.prices), []).append(r)
marginal = {k: next(r for r in v if r.how == "marginal").tokens_per_cost / max(r.tokens_per_cost for r in v if r.how != "marginal")
            for k, v in rates.items()}
claim("library", "Drafting while a token pays (marginal value) beats the best fixed gamma",
      f"{100 * min(marginal.values()):.0f} to {100 * max(marginal.values()):.0f} % of the best fixed gamma's tokens a cost, over "
      f"{len(marginal)} settings", "yes" if min(marginal.values()) >= 1 else "in part" if statistics.median(marginal.values()) >= 1 else "no",
      "draft-length", "draft-length",
      "the best fixed gamma is known only afterwards; where drafting hardly pays there is nothing to choose, and the rule still "
      "explores")
planned = {k: next(r for r in v if r.how == "planned").tokens_per_cost / max(r.tokens_per_cost for r in v if r.how != "marginal")
           for k, v in rates.items() if any(r.how == "planned" for r in v)}
claim("library", "One acceptance number is enough to choose a good fixed gamma",
      f"{100 * min(planned.values()):.0f} to {100 * max(planned.values()):.0f} % of the best fixed gamma's tokens a cost",
      min(planned.values()) > 0.93, "draft-length", "draft-length")

# ---- plots ----------------------------------------------------------------------------------------------------------

BLUE, GREY, RED, GREEN, ORANGE, PURPLE = "#1f6fb4", "#8a939b", "#c44e52", "#2f8f4e", "#d9822b", "#7b5ea7"
COLOUR = {"ensemble": GREY, "diff": BLUE, "opt": PURPLE, "chow": ORANGE, "token-v2": GREEN, "token-v3": "#14532d",
          "lenient": RED, "lossy": RED, "bild": "#8c6d31", "diff-log": "#5aa9e6"}
if matplotlib is not None:
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "specagg",
                         "svg.fonttype": "none", "axes.titleweight": "bold", "axes.titlelocation": "left",
                         "axes.titlesize": 10})
    plots.mkdir(parents=True, exist_ok=True)


def figure(width=7.2, height=4.2, columns=1):
    f, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    return f, list(axes[0])


def finish(f, name, title):
    f.suptitle(title, x=0.01, ha="left", weight="bold", size=10.5)
    f.tight_layout()
    f.savefig(plots / f"{name}.svg", metadata={"Date": None})
    plt.close(f)


def label_ends(axis, ends, gap=0.045):
    """Text at the right ends of lines, (x, y, text, colour), moved apart where they would overlap."""
    low, high = axis.get_ylim()
    step = gap * (high - low)
    ends = sorted(ends, key=lambda e: e[1])
    at = [e[1] for e in ends]
    for _ in range(200):
        for i in range(len(at) - 1):
            if at[i + 1] - at[i] < step:
                middle = (at[i] + at[i + 1]) / 2
                at[i], at[i + 1] = middle - step / 2, middle + step / 2
    for (x, _, text, colour), y in zip(ends, at):
        axis.text(x, y, " " + text, color=colour, va="center", ha="left", size=8.5)



def point_labels(axis, labels):
    """Text beside a point of its line, moved up or down where two would overlap: (x, y, text, colour, above)."""
    for x, y, text, colour, above in labels:
        axis.annotate(text, (x, y), xytext=(0, 7 if above else -7), textcoords="offset points", color=colour, ha="center",
                      va="bottom" if above else "top", size=8.5, weight="bold")


def quality(name, y, gain, ylabel, gain_label, title):
    """Left: the papers' plot. Right: the same lines, less the static ensemble that rejects as much."""
    shown = ["ensemble", "chow", "diff", "opt", "token-v2", "lenient"]
    f, (left, right) = figure(9.2, 4.2, 2)
    most = tv()
    ends = []
    for rule in shown:
        thick = dict(color=COLOUR[rule], lw=3 if rule == "ensemble" else 1.6, zorder=1 if rule == "ensemble" else 2)
        left.plot(*zip(*[p for p in curve(rule, y=y) if p[0] <= 1.03 * most]), **thick)
        points = [p for p in curve(rule, y=gain) if p[0] <= 1.03 * most]
        right.plot(*zip(*points), **thick)
        ends.append((most * 1.1, value(points, 0.8 * most), rule, COLOUR[rule]))
        right.plot([0.8 * most, most * 1.1], [value(points, 0.8 * most)] * 2, color=COLOUR[rule], lw=0.6, ls=":")
    for axis in (left, right):
        axis.set_xlabel("rejection rate (drafted tokens replaced)")
    left.set_ylabel(ylabel)
    right.set_ylabel(gain_label)
    left.plot([0, most], [getattr(draft, y), getattr(target, y)], "o", color="#222", ms=4, zorder=3)
    left.annotate("draft", (0, getattr(draft, y)), xytext=(7, 0), textcoords="offset points", size=8.5, va="center")
    left.annotate("target", (most, getattr(target, y)), xytext=(7, 0), textcoords="offset points", size=8.5, va="center")
    left.set_xlim(-0.01, most * 1.2)
    label_ends(right, ends, 0.06)
    right.set_xlim(0, most * 1.38)
    finish(f, name, title)


def temperature_plot():
    f, axes = figure(9.2, 3.5, 3)
    for axis, t in zip(axes, (1, 0.5, 0)):
        most = tv(temperature=t)
        ends = []
        for rule in ("ensemble", "diff", "opt", token_best):
            y = "sampled_accuracy"
            points = [p for p in curve(rule, temperature=t, y=y) if p[0] <= 1.001 * most]
            axis.plot(*zip(*points), color=COLOUR.get(rule, GREEN), lw=3 if rule == "ensemble" else 1.6,
                      ls="--" if rule == "opt" else "-", zorder=1 if rule == "ensemble" else 2)
            if t == 0.5:
                ends.append((0.5 * most, value(points, 0.5 * most), rule, COLOUR.get(rule, GREEN)))
        axis.set_xlabel("rejection rate")
        axis.set_title(f"temperature {t:g}" + " (the likeliest token)" * (t == 0), weight="normal", size=9)
    axes[0].set_ylabel("chance that a sampled token is right")
    for i, (rule, note) in enumerate(((token_best, ""), ("opt", " (dashed)"), ("diff", ""), ("ensemble", ""))):
        axes[0].text(0.97, 0.27 - 0.08 * i, rule + note, color=COLOUR.get(rule, GREEN), transform=axes[0].transAxes,
                     ha="right", size=8.5, weight="bold")
    finish(f, "cascades-temperature", "The colder, the less it matters which rule decides")


def frontier():
    f, (left, right) = figure(9.2, 4, 2)
    most = tv()
    names = {"lossy": "lossy, exact beta", "lenient": "lossy, beta 1", "lossy-beta": "lossy, beta 1 - alpha", "ensemble": "ensemble",
             "diff": "diff"}
    colours = {"lossy": GREEN, "lenient": BLUE, "lossy-beta": RED, "ensemble": GREY, "diff": ORANGE}
    styles = {"lossy": "-", "lenient": "--"}
    ends = []
    for rule in names:
        points = [p for p in curve(rule, y="tv_target") if p[0] <= 1.001 * most]
        left.plot(*zip(*points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
        kl_points = [p for p in curve(rule, y="kl_target") if p[0] <= 1.001 * most]
        right.plot(*zip(*kl_points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
        ends.append((0.42 * most, value(kl_points, 0.3 * most), names[rule], colours[rule]))
    left.set_ylabel("TV(pi, p): distance to the target")
    right.set_ylabel("KL(p || pi), nats")
    for axis in (left, right):
        axis.set_xlabel("rejection rate")
    for i, rule in enumerate(("diff", "lossy-beta", "ensemble", "lenient", "lossy")):
        right.text(0.98, 0.95 - 0.07 * i, names[rule] + (" (dashed)" if rule == "lenient" else ""), color=colours[rule],
                   transform=right.transAxes, ha="right", size=8.5, weight="bold")
    left.text(0.98, 0.95, "all but beta 1 - alpha on one line:\nP(reject) + TV(pi, p) = TV(q, p)", transform=left.transAxes,
              ha="right", va="top", size=8.5)
    finish(f, "frontier", "At equal rejection all are equally far from p in TV; in KL the exact beta is nearest, then beta 1")


def ensemble_plot():
    f, (axis,) = figure(6.8, 4)
    ends = []
    for text, colour in (("shakespeare", BLUE), ("kjv", RED), ("mix", "#222")):
        rows = sorted(pick(cascades, pair="bard-bible", text=text, temperature=1, rule="ensemble"), key=lambda r: r.parameter)
        axis.plot([r.parameter for r in rows], [r.cross_entropy for r in rows], color=colour, lw=3 if text == "mix" else 1.6,
                  marker="o", ms=3)
        best = min(rows, key=lambda r: r.cross_entropy)
        axis.plot([best.parameter], [best.cross_entropy], "o", color=colour, ms=7)
        ends.append((1.01, rows[-1].cross_entropy, {"mix": "both texts"}.get(text, text), colour))
    label_ends(axis, ends)
    axis.set_xlim(0, 1.2)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0\nbible alone", "0.25", "0.5", "0.75", "1\nbard alone"])
    axis.set_xlabel("lambda: weight of bard in the ensemble (large dot: the best)")
    axis.set_ylabel("cross-entropy of the next token, nats")
    finish(f, "ensemble", "On mixed text two experts together beat either alone")


def latency_plot():
    f, (axis,) = figure(7.4, 4.4)
    gamma = 3
    rules = [("ensemble", GREY), ("chow", ORANGE), ("diff", BLUE), ("token-v2", GREEN), ("lenient", RED)]
    for rule, colour in rules:
        for execution, mark, style in (("speculative", "o", "-"), ("sequential", "s", "--"), ("oracle", "x", "")):
            rows = sorted((r for r in pick(latency, rule=rule, execution=execution) if execution != "speculative" or r.gamma == gamma),
                          key=lambda r: r.relative_latency)
            if execution == "oracle":
                axis.plot([r.relative_latency for r in rows], [r.accuracy for r in rows], mark, color=colour, ms=5, alpha=0.7)
            elif rows:
                axis.plot([r.relative_latency for r in rows], [r.accuracy for r in rows], mark + style, color=colour, ms=4.5, lw=1.4)
    base = one(pick(latency, rule="lossless", execution="speculative"), gamma=gamma)
    axis.plot([base.relative_latency], [base.accuracy], "*", color="#222", ms=11)
    axis.annotate("lossless", (base.relative_latency, base.accuracy), xytext=(7, -11), textcoords="offset points", size=8.5)
    axis.axvline(1, color="#bbb", lw=1, zorder=0)
    axis.axhline(target.sampled_accuracy, color="#bbb", lw=1, zorder=0)
    axis.text(axis.get_xlim()[1], target.sampled_accuracy, "target's accuracy ", size=8, color="#666", ha="right", va="bottom")
    axis.text(1, axis.get_ylim()[0], " target's latency", size=8, color="#666", ha="left", va="bottom")
    for i, (rule, colour) in enumerate(rules):
        axis.text(1.01, 0.95 - 0.065 * i, rule, color=colour, transform=axis.transAxes, size=8.5, weight="bold")
    axis.text(1.01, 0.55, f"o speculative,\n   gamma {gamma}\ns sequential\nx oracle", transform=axis.transAxes, size=8.5, va="top")
    axis.set_xlabel("measured time a token, over the target alone")
    axis.set_ylabel("chance that a sampled token is right")
    finish(f, "latency", "Speculative execution makes a cascade faster than the target alone")


def prediction():
    f, (axis,) = figure(5.6, 5)
    groups = [("speculative, cascades", BLUE, pick(latency, execution="speculative")),
              ("oracle, sequential", ORANGE, [r for r in latency if r.execution != "speculative"]),
              ("CoS, all ways", GREEN, [r for r in cos_speed if r.method != "standard"]),
              ("draft lengths", PURPLE, length_speed)]
    for i, (name, colour, rows) in enumerate(groups):
        rows = [r for r in rows if not math.isnan(r.predicted)]
        error = statistics.median(abs(r.error) for r in rows)
        axis.plot([r.predicted for r in rows], [r.speedup for r in rows], "o", color=colour, ms=3.5, alpha=0.7)
        axis.text(0.98, 0.2 - 0.055 * i, f"{name}: median error {100 * error:.0f} %", color=colour, transform=axis.transAxes,
                  ha="right", size=8.5, weight="bold")
    low, high = 0, max(max(axis.get_xlim()), max(axis.get_ylim()))
    axis.plot([low, high], [low, high], color="#bbb", lw=1, zorder=0)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel("predicted speed-up (formulas, measured call times)")
    axis.set_ylabel("measured speed-up")
    finish(f, "prediction", "The formulas say how fast it will be")


def cos_plots():
    f, (axis,) = figure(7, 4)
    ends = []
    for models, where, colour, name in (("bard-bible", dict(value=0.5), BLUE, "ensemble, lambda 0.5"),
                                        ("draft-target", dict(temperature=1, value=mus[len(mus) // 2]), RED,
                                         f"contrastive, mu {mus[len(mus) // 2]:g}")):
        for method, style in (("alternating", "-"), ("speculative", "--")):
            rows = sorted(pick(cos_calls, models=models, method=method, **where), key=lambda r: r.gamma)
            axis.plot([r.gamma for r in rows], [r.predicted for r in rows], style, color=colour, lw=1.4)
            axis.plot([r.gamma for r in rows], [r.calls for r in rows], "o", color=colour, ms=5)
            ends.append((rows[-1].gamma + 0.05, rows[-1].predicted,
                         f"{name}\n {'taking turns' if method == 'alternating' else 'speculation alone'}", colour))
    axis.plot([1, 5], [2, 2], color=GREY, lw=3, zorder=0)
    ends.append((5.05, 2, "standard: both at every token", GREY))
    label_ends(axis, ends, 0.12)
    axis.set_xlim(0.8, 6.9)
    axis.set_xticks(range(1, 6))
    axis.set_ylim(0)
    axis.set_xlabel("gamma: tokens the first model drafts")
    axis.set_ylabel("model calls a token (dots: counted, lines: formula)")
    finish(f, "cos-calls", "Taking turns needs fewer calls than speculation alone, as the formula says")

    f, (left, right) = figure(9.2, 3.8, 2)
    for axis, rows, key, xlabel in ((left, WE, "value", "lambda (bard + bible)"),
                                    (right, pick(CD, temperature=1), "value", "mu (target - mu draft), temperature 1")):
        ends = []
        for method, colour, name in (("standard", GREY, "standard"), ("speculative", ORANGE, "speculation alone"),
                                     ("alternating", GREEN, "taking turns")):
            xs = sorted({getattr(r, key) for r in rows})
            ys = [max(r.speedup for r in rows if getattr(r, key) == x and r.method == method) for x in xs]
            axis.plot(xs, ys, "o-", color=colour, lw=3 if method == "standard" else 1.6, ms=4)
            if method == "alternating":
                predicted = [max(r.predicted for r in rows if getattr(r, key) == x and r.method == method) for x in xs]
                axis.plot(xs, predicted, ":", color=colour, lw=1.4)
            ends.append((xs[-1] + 0.02 * (xs[-1] - xs[0] + 0.1), ys[-1], name, colour))
        label_ends(axis, ends, 0.07)
        axis.set_xlim(xs[0] - 0.03, xs[-1] + 0.5 * (xs[-1] - xs[0]) + 0.1)
        axis.set_xticks(xs)
        axis.set_xlabel(xlabel)
        axis.set_ylim(0)
    left.set_ylabel("speed-up over standard, best gamma\n(dotted: predicted)")
    finish(f, "cos-speed", "Two models that take turns are faster than two that always both speak")


def verifier_plots():
    gamma = 4
    f, (axis,) = figure(7.4, 3.8)
    groups = [(p, t) for p in ("draft-target", "bard-bible") for t in (1, 0.5)]
    for i, (name, colour) in enumerate((("match", GREY), ("coupled", ORANGE), ("token", BLUE), ("block", GREEN))):
        rows = [verified(*g, gamma, name) for g in groups]
        x = [k + (i - 1.5) * 0.2 for k in range(len(groups))]
        axis.bar(x, [r.accepted for r in rows], 0.19, color=colour, yerr=[r.accepted_se for r in rows],
                 error_kw=dict(lw=1, ecolor="#333"))
        axis.text(x[0], rows[0].accepted + rows[0].accepted_se + 0.03, name, rotation=90, color=colour, ha="center", va="bottom",
                  size=8.5, weight="bold")
    axis.set_xticks(range(len(groups)), [f"{p}\ntemperature {t:g}" for p, t in groups])
    axis.set_ylabel(f"drafted tokens kept a round, of {gamma}")
    finish(f, "verifiers", "Block keeps at least what token does; shared noise a little less; exact match least")

    f, (axis,) = figure(7, 3.2)
    rows = [verified(p, t, gamma, "token") for p, t in groups]
    for k, r in enumerate(rows):
        axis.errorbar([r.tokens_per_round], [k + 0.12], xerr=[2 * r.tokens_per_round_se], fmt="o", color=ORANGE, ms=4)
        axis.errorbar([r.telemetry], [k - 0.12], xerr=[2 * r.telemetry_se], fmt="o", color=BLUE, ms=4)
    axis.text(rows[0].tokens_per_round, 0.28, "counted", color=ORANGE, size=8.5, ha="center", weight="bold")
    axis.text(rows[0].telemetry, -0.42, "from the rows", color=BLUE, size=8.5, ha="center", weight="bold")
    axis.set_yticks(range(len(groups)), [f"{p}, temperature {t:g}" for p, t in groups])
    axis.set_ylim(-0.7, len(groups) - 0.4)
    axis.set_xlabel(f"tokens a round, gamma {gamma} (bars: two standard errors)")
    finish(f, "telemetry", "Rows tell the tokens a round with less noise than counting")


def dragon_plots():
    f, (left, right) = figure(9.2, 4, 2)
    delays = sorted({r.delay_ms for r in dragon})
    for axis, device in ((left, "fast"), (right, "slow")):
        ends = []
        for aggregation, strategy, name, colour in (("synchronous", "device", "synchronous", GREY),
                                                    ("independent", "Eq 8", "DRAGON", BLUE),
                                                    ("shared noise", "moving", "shared noise,\n looking ahead", GREEN)):
            ys = [ms(aggregation, strategy, d, 1, device).ms_per_token for d in delays]
            axis.plot(delays, ys, "o-", color=colour, lw=3 if name == "synchronous" else 1.6, ms=4)
            ends.append((delays[-1] + 8, ys[-1], name, colour))
        label_ends(axis, ends, 0.09)
        c = ms("synchronous", "device", 0, 1, device)
        axis.set_title(f"device {c.device_ms:.0f} ms a token, cloud {c.cloud_ms:.0f} ms", weight="normal", size=9)
        axis.set_xlabel("added round trip, ms")
        axis.set_xlim(0, delays[-1] * 1.45)
        axis.set_xticks([0, 100, 200, 300, 400, 500])
        axis.set_ylim(0)
    left.set_ylabel("time a token, ms")
    finish(f, "dragon-latency", "Drafting ahead hides half of the link; shared noise most of it")

    f, (axis,) = figure(7, 4)
    ends = []
    for strategy, colour in (("device", ORANGE), ("cloud", RED), ("random", GREY), ("Eq 8", BLUE), ("moving", GREEN)):
        ys = [ms("independent", strategy, d, 1, "slow").ms_per_token for d in delays]
        axis.plot(delays, ys, "o-", color=colour, lw=1.6, ms=4)
        ends.append((delays[-1] + 6, ys[-1], {"moving": "looking ahead", "Eq 8": "Eq 8 (the paper)"}.get(strategy, strategy), colour))
    label_ends(axis, ends, 0.05)
    axis.set_xlim(0, delays[-1] * 1.3)
    axis.set_xticks([0, 100, 200, 300, 400, 500])
    axis.set_ylim(0)
    axis.set_xlabel("added round trip, ms")
    axis.set_ylabel("time a token, ms (independent drafts)")
    finish(f, "dragon-scheduling", "Where to aggregate: following the drafts beats every fixed side")


def passages_plot():
    f, axes = figure(9.2, 4, 2)
    counts = sorted({int(r.passages) for r in passages})
    for axis, text, name in zip(axes, ("shakespeare", "kjv"), ("Shakespeare", "the Bible")):
        ends = []
        for law, label, colour in (("device", "device (Shakespeare)", ORANGE), ("cloud", "cloud (Bible)", GREEN),
                                   ("both", "both sites", BLUE)):
            rows = [read(text, law, n) for n in counts]
            at, ys, es = range(len(rows)), [r.minus_none for r in rows], [r.minus_none_se for r in rows]
            axis.fill_between(at, [y - e for y, e in zip(ys, es)], [y + e for y, e in zip(ys, es)], color=colour, alpha=0.15, lw=0)
            axis.plot(at, ys, "o-", color=colour, lw=1.6, ms=4)
            ends.append((len(counts) - 0.85, ys[-1], label, colour))
        axis.plot([0, len(counts) - 1], [0, 0], color=GREY, lw=0.8, zorder=0)
        every = [r.minus_none + s * r.minus_none_se for r in passages if r.text != "mix" for s in (-1, 1)]
        axis.set_ylim(min(every) - 0.005, max(every) + 0.005)
        label_ends(axis, ends, 0.06)
        axis.set_xlim(-0.2, len(counts) * 1.3)
        axis.set_xticks(range(len(counts)), counts)
        axis.set_xlabel("passages of each site")
        axis.set_title(f"text of {name}, {read(text, 'both', 0).cross_entropy:.2f} nats without passages", weight="normal",
                       size=9)
    axes[0].set_ylabel("cross-entropy less that without, nats a token")
    finish(f, "dragon-passages", "Passages of a text's own book help a little at most; those of the other book cost more")


def dssd_plot():
    f, (left, right) = figure(9.2, 4, 2)
    widths = sorted({r.mbit_per_s for r in grid})
    for axis, free in ((left, True), (right, False)):
        ends = []
        for protocol, name, colour in (("dsd", "DSD: rows up", RED), ("dssd", "DSSD: a row down", BLUE),
                                       ("shared", "shared noise: no row", GREEN), ("quantised", "rows of 8 tokens up", ORANGE)):
            ys = [getattr(split(protocol, free, mbit_per_s=w, delay_ms=20), "speedup_free_scoring" if free else "speedup")
                  for w in widths]
            axis.plot(widths, ys, "o-", color=colour, lw=1.6, ms=4)
            ends.append((widths[-1] * 1.15, ys[-1], name, colour))
        axis.plot([widths[0], widths[-1]], [1, 1], color=GREY, lw=3, zorder=0)
        ends.append((widths[-1] * 1.15, 1, "target alone", GREY))
        axis.set_xscale("log")
        axis.set_xticks(widths, [f"{w:g}" for w in widths])
        axis.minorticks_off()
        axis.set_ylim(0)
        label_ends(axis, ends, 0.06)
        axis.set_xlim(widths[0], widths[-1] * 60)
        axis.set_xlabel("bandwidth, Mbit/s (20 ms delay)")
        axis.set_title("scoring a draft costs one step" if free else "scoring costs as measured here", weight="normal", size=9)
    left.set_ylabel("speed-up over the target alone, best gamma")
    finish(f, "dssd", "On slow links a protocol that sends no row wins")


def length_plot():
    f, axes = figure(9.2, 3.8, 2)
    for axis, prices in zip(axes, ("accelerator", "processor")):
        rows = rates[("draft-target", 1, prices)]
        fixed = sorted((r for r in rows if r.how != "marginal"), key=lambda r: r.gamma)
        own = next(r for r in rows if r.how == "marginal")
        axis.plot([r.gamma for r in fixed], [r.tokens_per_cost for r in fixed], "o-", color=BLUE, ms=4)
        axis.axhline(own.tokens_per_cost, color=GREEN, lw=1.6)
        best = max(fixed, key=lambda r: r.tokens_per_cost)
        axis.plot([best.gamma], [best.tokens_per_cost], "o", color=BLUE, ms=9, mfc="none")
        axis.text(8, own.tokens_per_cost, "marginal value", color=GREEN, ha="right", va="bottom", size=8.5, weight="bold")
        axis.text(5.5, 0.85 * fixed[8].tokens_per_cost, "fixed gamma", color=BLUE, ha="center", va="top", size=8.5,
                  weight="bold")
        chosen = [r for r in rows if r.how == "planned"]
        if chosen:
            axis.annotate("planned", (chosen[0].gamma, chosen[0].tokens_per_cost), xytext=(0, -22), textcoords="offset points",
                          ha="center", size=8.5, arrowprops=dict(arrowstyle="-", lw=0.8))
        axis.set_ylim(0, 1.12 * max(best.tokens_per_cost, own.tokens_per_cost))
        axis.set_title(f"prices of {'an' if prices[0] == 'a' else 'a'} {prices}", weight="normal", size=9)
        axis.set_xlabel("gamma")
    axes[0].set_ylabel("tokens for the cost of a target step")
    finish(f, "draft-length", "Stopping where a token more does not pay is about as good as the best fixed gamma, unasked")


if matplotlib is not None:
    quality("cascades-cross-entropy", "cross_entropy", "ce_minus_ensemble", "cross-entropy of the next token, nats",
            "nats more than the ensemble (less is better)",
            "By cross-entropy the static ensemble " +
            ("beats every deferral rule" if len(losers) == len(DEFERRAL) else "is hard to beat"))
    quality("cascades-accuracy", "sampled_accuracy", "sampled_minus_ensemble", "chance that a sampled token is right",
            "gain over the ensemble (more is better)",
            "By the accuracy of a sampled token the paper's rules beat the ensemble, token rules most")
    temperature_plot()
    frontier()
    ensemble_plot()
    latency_plot()
    prediction()
    cos_plots()
    verifier_plots()
    dragon_plots()
    if passages:
        passages_plot()
    dssd_plot()
    length_plot()

# ---- the page -------------------------------------------------------------------------------------------------------

text = []
add = text.append
link = page.stem
seed = settings.split("seed ")[1].split(";")[0]


def shows(name, words):
    add(f"![{words}]({link}/{name}.svg)\n")


def count(verdict):
    return sum(c[3] == verdict for c in claims)


add("# Experiments: what the papers claim, and what these models do\n")
if quick:
    add("**A quick run: the numbers show that everything works, and no more.**\n")
add(f"Written by `make experiments` (seed {seed}). The models are the bundled ones: `draft` (0.36 M parameters) and `target` (2.4 M), "
    "trained on Shakespeare and the Bible, and `bard` and `bible`, the target trained further on one of them. They are tiny; what "
    "they show is the shape of a rule, not the size of its effect on a large model. `q` drafts, `p` is the target.\n")
add(f"Exact numbers ({int(target.positions):,} held-out positions of both texts, 'the mix'; contexts of 128 to 255 tokens) are averages "
    "of what the law is worth at each position; nothing is sampled (the parts `verifiers`, `cos-calls` and `draft-length` decode "
    "2,048 to 3,072 tokens; `acceptance` is exact on 256 positions). They are the same in every run with one seed, on any number of "
    "threads, and are those of `specagg law` for the same rows (tests/examples). Standard errors (±) take each window of the text as one "
    "observation; those of rule against rule are unpaired and so rather too large. Seconds are those of the machine below, one thread, medians; each speed-up stands beside its prediction. "
    "A part that is finished is not run again (a changed program, model or seed runs it again): exact parts then give the same "
    "files, and timed parts keep the seconds that they measured.\n")
add(f"Of {len(claims)} claims {count('yes')} hold, {count('no')} do not, {len(claims) - count('yes') - count('no')} hold in part or are "
    "within noise.\n")
add("## Claims\n")
add("Each line is made by `build/bin/specagg-experiments --part PART`" +
    (" (`dragon-passages` by `build/bin/specagg-experiments-passages`)" if passages else "") + ". *library* is a statement of this library's own documentation, *here* "
    "one that these experiments suggested.\n")
add("| source | claim | what we measured | holds? | plot, part |\n| --- | --- | --- | --- | --- |")
for source, what, measured, holds, plot, part_name, reason in claims:
    add(f"| {source} | {what} | {measured} | **{holds}**{'; likely reason: ' + reason if reason else ''} | "
        f"[plot]({link}/{plot}.svg), `{part_name}` |")
add("")

add("## Where each rule earns its place\n")
add("At half of the rejections of lossless decoding, what each rule has over the static ensemble that rejects as much "
    "(draft-target, mix, temperature 1; + is better in accuracy, - in cross-entropy):\n")
add("| rule | cross-entropy, nats | accuracy of a sampled token | accuracy of the likeliest token |\n| --- | ---: | ---: | ---: |")
ranked = sorted([r for r in DEFERRAL + TOKEN + LOSSY], key=lambda r: -against_ensemble(r, "sampled", **dt)[0]
                if not math.isnan(against_ensemble(r, "sampled", **dt)[0]) else 9)
for rule in ranked:
    (ce, ce_se), (acc, acc_se) = against_ensemble(rule, "cross-entropy", **dt), against_ensemble(rule, "sampled", **dt)
    if not math.isnan(ce):
        add(f"| `{rule}` | {ce:+.3f} ± {ce_se:.3f} | {acc:+.4f} ± {acc_se:.4f} | {argmax_gain(rule):+.4f} |")
add("")
best_ce = min((r for r in DEFERRAL + TOKEN + LOSSY if not math.isnan(against_ensemble(r, "cross-entropy", **dt)[0])),
              key=lambda r: against_ensemble(r, "cross-entropy", **dt)[0])
ce_gain, ce_gain_se = against_ensemble(best_ce, "cross-entropy", **dt)
add(f"* **Sampled text judged token by token** (what BLEU, ROUGE and exact answers see): token rules, `{token_best}` first. They take "
    "unlikely tokens of the draft away, and so are sharper than either model: they also beat the target where it samples from its tail.")
add(f"* **Likelihood, diversity, calibration**: the static `ensemble`; {len(losers)} of {len(DEFERRAL)} deferral rules lose to it at equal "
    f"rejection. Nearest of all rules: `{best_ce}` ({ce_gain:+.3f} ± {ce_gain_se:.3f} nats). A rule that hands some positions wholly to "
    "the draft pays for every token that only the target knew.")
add("* **A promise about the distance to p**: `lenient` (beta 1): the acceptance of any other rule on the frontier, nearly the least KL, "
    "and no search.")
add("* **The target is to be called rarely** (sequential execution): `chow` and `chow-log`, which decide without p.")
greedy = {r: value(curve(r, temperature=0, y="sampled_accuracy"), 0.5 * tv(temperature=0)) for r in ("diff", "opt", *TOKEN, "lenient")}
greedy = {r: x for r, x in greedy.items() if not math.isnan(x)}
add(f"* **Greedy**: between {min(greedy.values()):.3f} (`{min(greedy, key=greedy.get)}`) and {max(greedy.values()):.3f} "
    f"(`{max(greedy, key=greedy.get)}`) at half of the rejections; `opt` is `diff`, and lossy rules have nothing to share out.")
add("* **Two experts**: `ensemble` with decoders that take turns, gamma 1.\n")
pair_rows = []
for p in PAIRS:
    for t in ("shakespeare", "kjv", "mix"):
        w = dict(pair=p, text=t)
        rows = pick(cascades, rule="ensemble", temperature=1, **w)
        q_alone, p_alone = one(rows, parameter=1), one(rows, parameter=0)
        e = min(rows, key=lambda r: r.cross_entropy)
        pair_rows.append(f"| {p} | {t} | {tv(**w):.3f} | {q_alone.cross_entropy:.3f} | {p_alone.cross_entropy:.3f} | {e.cross_entropy:.3f} "
                         f"(lambda {e.parameter:g}) | {against_ensemble('diff', 'cross-entropy', **w)[0]:+.3f} | "
                         f"{against_ensemble('diff', 'sampled', **w)[0]:+.4f} | {against_ensemble('token-v2', 'sampled', **w)[0]:+.4f} |")
add("The same for every pair and text (temperature 1; the last three columns are over the ensemble at half of TV):\n")
add("| pair | text | TV | q alone, nats | p alone | best ensemble | `diff`, nats | `diff`, accuracy | `token-v2`, accuracy |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
text += pair_rows + [""]
shows("cascades-accuracy", "accuracy against rejection")
shows("cascades-cross-entropy", "cross-entropy against rejection")
shows("cascades-temperature", "three temperatures")
shows("frontier", "distance to the target")
add("## Executions\n")
add("Draft-target, temperature 1, one thread; gamma 3 (5 and 7 in the CSV file). Scoring n tokens in one call costs, in steps of the target: " +
    ", ".join(f"{n}: {one(times, model='target', tokens=n).v:.2f}" for n in range(2, 10)) +
    f"; a draft step costs {one(times, model='draft', tokens=1).seconds / one(times, model='target', tokens=1).seconds:.2f}. On an accelerator, "
    "whose steps wait for memory, scoring costs about one step; the CSV files have the prediction for that, too.\n")
shows("latency", "accuracy against latency")
add("| policy | gamma | measured speed-up | predicted | error | predicted, scoring free |\n| --- | ---: | ---: | ---: | ---: | ---: |")
for r in speculative:
    if r.gamma == 3:
        add(f"| `{r.policy}` | {r.gamma:g} | {r.speedup:.2f} | {r.predicted:.2f} | {100 * r.error:+.0f} % | {r.predicted_free_scoring:.2f} |")
add("")
shows("prediction", "measured against predicted speed-ups")
add("The predictions count model calls alone. What the verification and the drawing of tokens take comes on top, which is why cascades "
    "lie below the line: with a target of a quarter of a millisecond a step, it shows; with a large model it would not.\n")
add("## Collaboration\n")
shows("cos-calls", "calls a token")
shows("cos-speed", "speed-ups of collaboration")
add("Predicted: the renewal formula (speculation alone: the formula of the paper), c and v measured; of three models, the calls counted "
    "times what such calls take.\n")
add("| models | policy | temperature | method | gamma | measured speed-up | predicted | error |\n| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |")
for r in cos_speed:
    if r.method != "standard" and r.gamma in (1, 5) and (r.temperature == 1):
        known = not math.isnan(r.predicted)
        add(f"| {r.models} | `{r.policy}` | {r.temperature:g} | {r.method} | {r.gamma:g} | {r.speedup:.2f} | "
            f"{f'{r.predicted:.2f}' if known else ''} | {f'{100 * r.error:+.0f} %' if known else ''} |")
add("")
shows("ensemble", "cross-entropy over lambda")
add("## Verifiers\n")
shows("verifiers", "drafted tokens kept")
shows("telemetry", "counted and estimated tokens a round")
add("## Two sites\n")
c = ms("synchronous", "device", 0, 1, "fast")
add(f"Times of both sites are the measured step of `target` ({1e6 * one(times, model='target', tokens=1).seconds:.0f} us) times a hundred, as if on models of "
    f"that size; the slow device takes four times as long as the cloud. Accepted drafts follow the exact joint law of `bard` on one side and `bible` on the other "
    "(eta 1/2), over held-out positions; the recursion of the protocol is run for 100 tokens, 50 times, the round trip swinging by a fifth.\n")
shows("dragon-latency", "time a token against delay")
shows("dragon-scheduling", "scheduling strategies")
if passages:
    some = read("kjv", "both")
    add(f"Passages: `target` on both sites, the device's of Shakespeare, the cloud's of the Bible (the part of each text in front of the "
        f"held-out one), found by BM25 for a prompt of 64 tokens; the next 64 tokens of {int(some.prompts)} prompts of each text. Errors of "
        "differences are paired: the same tokens with and without passages. Bands: one standard error.\n")
    shows("dragon-passages", "cross-entropy against passages")
else:
    add("Cross-entropy against retrieved passages was left out: there was no Xapian.\n")
add(f"DSSD: V = 50,000, 16 bits a probability, the measured times of draft and target times 400 ({grid[0].llm_ms:.0f} ms a target step), acceptances counted with the bundled models; "
    "other sizes, delays and draft lengths are in the CSV file.\n")
shows("dssd", "speed-up over bandwidth")
add("## Draft length\n")
shows("draft-length", "tokens for a cost over gamma")
add("| pair | temperature | prices | best fixed gamma | planned gamma | marginal value, of the best fixed |\n| --- | ---: | --- | ---: | ---: | ---: |")
for (p, t, name), rows in rates.items():
    fixed = [r for r in rows if r.how != "marginal"]
    best_fixed = max(fixed, key=lambda r: r.tokens_per_cost)
    chosen = [r for r in rows if r.how == "planned"]
    add(f"| {p} | {t:g} | {name} | {best_fixed.gamma:g} | {f'{chosen[0].gamma:g}' if chosen else ''} | {100 * marginal[(p, t, name)]:.1f} % |")
add("")
machine = folder / "machine.txt"
if machine.exists():
    add(f"## Machine\n\n{machine.read_text().strip()}\n")
page.parent.mkdir(parents=True, exist_ok=True)
page.write_text("\n".join(text))
print(f"report.py: {page}: {len(claims)} claims, {count('yes')} hold, {count('no')} do not")
