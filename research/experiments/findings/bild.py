# SPDX-License-Identifier: Apache-2.0
"""BiLD as its authors run it, and the regret of plug-in rules."""
import math, statistics

from findings.figures import BLUE, GREEN, ORANGE, RED, draw_with, figure, finish, name_lines
from findings.held_out import value
from findings.parts import load, pick
from findings.verdicts import measure

if bilds := load("bild"):
    def bild_curve(rows):
        """(target calls a token, agreement), one for each rollback threshold; of equal calls the better."""
        points = {}
        for r in rows:
            points[r.target_calls] = max(points.get(r.target_calls, 0), r.agreement)
        return sorted(points.items())

    BILD = {k: [r for r in bilds if (r.algorithm, r.longest_run, r.fallback) == k] for k in
            sorted({(r.algorithm, r.longest_run, r.fallback) for r in bilds if r.algorithm == "original"})}
    bild_law = bild_curve(pick(bilds, algorithm="law"))

    def bild_gap():
        gaps = []
        for x, y in bild_law:
            others = [value(bild_curve(rows), x) for rows in BILD.values()]
            others = [o for o in others if not math.isnan(o)]
            if others:
                gaps.append(max(others) - y)
        return statistics.mean(gaps) if gaps else math.nan

    average = lambda rows, y: statistics.mean(getattr(r, y) for r in rows)
    of_bild = lambda rows: average(rows, "agreement_se")  # their texts are those of one set of prompts: errors do not average out
    measure("bild-comparable", lambda: [("", abs(bild_gap()), math.sqrt(2) * average(bilds, "agreement_se"))], "{:.3f}",
            f"the original's less the policy's: {bild_gap():+.3f}")
    longest = ("original", 10.0, 0.1)
    measure("bild-lowest-latency", lambda: [(f"run {k[1]:g}, alpha_f {1 - k[2]:.1f}: {y}", average(rows, y) - average(BILD[longest], y),
                                             math.hypot(of_bild(rows), of_bild(BILD[longest])) if y == "agreement" else 0)
                                            for k, rows in BILD.items() if k != longest for y in ("target_calls", "agreement")], "{:+.3f}")
if regrets := load("regret"):
    for id, loss in (("regret-01", "0-1"), ("regret-log", "log")):
        rows = pick(regrets, loss=loss)
        measure(id, lambda: [("", max(r.largest_share for r in rows))], "{:.3f}",
                f"mean regret {statistics.mean(r.regret for r in rows):.4f}, mean bound {statistics.mean(r.bound for r in rows):.3f}; "
                f"{sum(r.positions for r in rows):.0f} decisions, {100 * statistics.mean(r.wrong for r in rows):.0f} % of them not the best")


@draw_with("bild")
def bild_plot():
    f, (axis,) = figure(7.4, 4.2)
    shown = [k for k in BILD if k[1] == 10 or k[2] == 0.1]  # shorter runs differ from these where runs are long
    colours = dict(zip(shown, (BLUE, RED, ORANGE, GREEN)))
    for key in shown:
        axis.plot(*zip(*bild_curve(BILD[key])), "o-", color=colours[key], ms=4, lw=1.4)
    axis.plot(*zip(*bild_law), "o-", color="#222", ms=4, lw=2.2)
    axis.set_xlim(0, 1)
    name_lines(axis, [*((f"original, runs of {k[1]:g}, alpha_f {1 - k[2]:.1f}", colours[k]) for k in shown), ("rule, executed speculatively", "#222")])
    axis.set_xlabel("calls of the target a token")
    axis.set_ylabel("tokens that are the target's own choice")
    finish(f, "bild", "BiLD, greedy: the best original setting minus its rule at equal calls: " + f"{bild_gap():+.3f} of the tokens")


@draw_with("regret")
def regret_plot():
    f, axes = figure(9.2, 3.6, 2)
    for axis, loss in zip(axes, ("0-1", "log")):
        for models, colour in (("draft-bard", BLUE), ("draft-bible", RED)):
            rows = sorted(pick(regrets, loss=loss, models=models), key=lambda r: r.alpha)
            axis.plot(range(len(rows)), [r.regret for r in rows], "o-", color=colour, ms=4)
            axis.plot(range(len(rows)), [r.bound for r in rows], "o--", color=colour, ms=3)
            axis.set_xticks(range(len(rows)), [f"{r.alpha:g}" for r in rows])
        axis.set_yscale("symlog", linthresh=1e-4)
        axis.set_ylim(0)
        axis.set_xlabel("alpha")
        axis.set_title({"0-1": "OPT, 0-1 loss (Lemma 5)", "log": "OPTLog, log loss, nats (Lemma 7)"}[loss], weight="normal", size=9)
    axes[0].set_ylabel("mean regret (lines), bound (dashed)")
    name_lines(axes[1], [("p = bard", BLUE), ("p = bible", RED)], 0.98, 0.4, 0.08, ha="right")
    most = {loss: max(r.largest_share for r in pick(regrets, loss=loss)) for loss in ("0-1", "log")}
    finish(f, "regret", f"Regret of the plug-in rules: at no position above {math.ceil(100 * most['0-1']):.0f} % (0-1) and "
           f"{math.ceil(100 * most['log']):.0f} % (log) of its bound")
