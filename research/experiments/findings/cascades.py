# SPDX-License-Identifier: Apache-2.0
"""Cascades of the bundled models: rejection against quality."""
import math, statistics

from findings.figures import BLUE, COLOUR, GREEN, GREY, ORANGE, RED, draw_with, figure, finish, label_ends, name_lines
from findings.held_out import (DEFERRAL, DRAFT, FIRST, LOSSY, MEASURES, OVER, SECOND, SHARES, TARGET, TOKEN, WINDOWS, apart, bundled, cells,
                               chosen, curve, gap, jackknife, policies, setting, texts, tv, value)
from findings.parts import CASCADES, EXPERTS, PAIRS, have, quick
from findings.verdicts import judged, measure, now

if have(CASCADES):
    target = {m: setting(*TARGET, m) for m in MEASURES}
    draft = {m: setting(*DRAFT, m) for m in MEASURES}
    below_tv, least_rejection = bundled.below_tv, bundled.least_rejection
    best_v3 = chosen(["token-v3"], "sampled_accuracy", max, below_tv)
    measure("cascade-over-target", lambda: [("", *apart(best_v3, TARGET, "sampled_accuracy", SECOND))], "{:+.4f}",
            f"`{policies[best_v3]}` {setting(*best_v3, 'sampled_accuracy', SECOND):.3f}, the target {setting(*TARGET, 'sampled_accuracy', SECOND):.3f}")
    as_good = chosen(["token-v3"], "rejection", min,
                     lambda r, p: setting(r, p, "sampled_accuracy", FIRST) >= setting(*TARGET, "sampled_accuracy", FIRST))
    measure("cascade-saves-calls", lambda: [("accuracy", *apart(as_good, TARGET, "sampled_accuracy", SECOND)),
                                            ("rejection saved", *apart(TARGET, as_good, "rejection", SECOND))], "{:+.4f}",
            f"`{policies[as_good]}`")
    best_opt = chosen(["opt"], "sampled_accuracy", max, below_tv)

    measure("token-over-opt", lambda: [("accuracy at the target's cost", *apart(best_v3, best_opt, "sampled_accuracy", SECOND)),
                                       ("rejections at its accuracy", *jackknife(lambda u: least_rejection("opt", u) - least_rejection("token-v3", u)))],
            "{:+.4f}", f"`{policies[best_v3]}`, `{policies[best_opt]}`; least rejections {least_rejection('token-v3', WINDOWS['mix']):.3f} and "
            f"{least_rejection('opt', WINDOWS['mix']):.3f} of {tv():.3f}")
    for id, a, b in OVER:
        measure(id, lambda: [("", *gap(a, b))], "{:+.4f}")
    measure("over-lossy", lambda: [(r, *gap(r, "lenient")) for r in ("token-v3", "opt")], "{:+.4f}")

    def shrinks(use):
        def of(temperature):
            return statistics.mean(value(curve("token-v3", "sampled_accuracy", use, temperature=temperature), s * tv(use, temperature=temperature)) -
                                   value(curve("opt", "sampled_accuracy", use, temperature=temperature), s * tv(use, temperature=temperature))
                                   for s in SHARES)
        return abs(of(1)) - abs(of(0.5))

    measure("gap-shrinks", lambda: [("", *jackknife(shrinks))], "{:+.4f}",
            ", ".join(f"temperature {t:g}: {gap('token-v3', 'opt', temperature=t)[0]:+.4f}" for t in (1, 0.5)))
    greedy_alphas = sorted(set(cells["draft-target", 0, "opt"]) & set(cells["draft-target", 0, "diff"]))
    measure("greedy-opt-is-diff", lambda: [("", max(abs(setting("opt", a, y, temperature=0) - setting("diff", a, y, temperature=0))
                                                    for a in greedy_alphas for y in ("rejection", "sampled_accuracy", "tv_target")))],
            "{:.1e}", f"{len(greedy_alphas)} values of alpha")
    measure("v3-over-others", lambda: [(f"{r} at {100 * s:.0f} %", *gap("token-v3", r, shares=(s,))) for r in ("token-v1", "token-v2") for s in SHARES],
            "{:+.4f}")
    ON_LINE = DEFERRAL + ["ensemble", "lossy", "lenient"]
    distances = {(r, p): setting(r, p, "rejection") + setting(r, p, "tv_target") - tv() for r in ON_LINE + TOKEN + ["lossy-beta"] for p in cells["draft-target", 1, r]}
    measure("rejection-is-delta-tv", lambda: [("", max(abs(x) for (r, _), x in distances.items() if r in DEFERRAL))], "{:.1e}",
            f"lossy laws and the ensemble are on the line, too: {max(abs(x) for (r, _), x in distances.items() if r in ON_LINE):.1e}; "
            f"token rules and beta = 1 - alpha up to {max(x for (r, _), x in distances.items() if r not in ON_LINE):.2f} above")
    colder = lambda u: setting(*TARGET, "sampled_accuracy", u, temperature=0.5)
    best = chosen(DEFERRAL + ["token-v3"], "sampled_accuracy", max, below_tv)
    measure("here-colder", lambda: [("", *apart(TARGET, best, "sampled_accuracy", SECOND, temperatures=(0.5, 1)))], "{:+.4f}",
            f"target at 0.5: {colder(SECOND):.3f}, `{policies[best]}` {setting(*best, 'sampled_accuracy', SECOND):.3f}")
    by_ce = chosen(DEFERRAL + TOKEN, "cross_entropy", min, lambda r, p: setting(r, p, "rejection", FIRST) < 0.95 * tv(FIRST))
    measure("here-ce-target", lambda: [("", *apart(TARGET, by_ce, "cross_entropy", SECOND))], "{:+.4f}", f"`{policies[by_ce]}`")
    measure("here-diff-lossy-ce", lambda: [("", *gap("lenient", "diff", "cross_entropy"))], "{:+.4f}")
    measure("here-log-rules", lambda: [("", *gap("diff", "diff-log", "cross_entropy"))], "{:+.4f}")
    measure("here-ensemble-ce", lambda: [(r, *gap(r, "ensemble", "cross_entropy", (0.5,))) for r in DEFERRAL], "{:+.3f}")
    measure("here-ensemble-accuracy", lambda: [(r, *gap(r, "ensemble", shares=(0.5,))) for r in DEFERRAL + TOKEN], "{:+.4f}")
    likeliest = chosen(DEFERRAL + TOKEN + LOSSY, "argmax_accuracy", max)
    measure("here-likeliest", lambda: [("", *apart(likeliest, TARGET, "argmax_accuracy", SECOND))], "{:+.4f}", f"`{policies[likeliest]}`")
    measure("trade-quality", lambda: [("", *apart(("ensemble", 0.1), ("ensemble", 0.3), "sampled_accuracy", WINDOWS["mix"]))], "{:+.4f}",
            lambda: ", ".join(f"lambda {x:g}: {setting('ensemble', x, 'sampled_accuracy'):.3f}" for x in (0.1, 0.3, 0.5, 0.7, 0.9)))
    measure("kl-exact-beta", lambda: [(r, *gap(r, "lossy", "kl_target")) for r in ("lenient", "ensemble")], "{:+.4f}")

if have(CASCADES, f"cascades-{EXPERTS}"):
    alone = chosen(["ensemble"], "cross_entropy", min, lambda r, p: p in (0, 1), EXPERTS)
    rule = chosen(DEFERRAL, "cross_entropy", min, lambda r, p: setting(r, p, "rejection", FIRST, EXPERTS) < 0.95 * tv(FIRST, EXPERTS), EXPERTS)
    half = ("ensemble", 0.5)
    measure("here-two-experts", lambda: [("", *apart(alone, rule, "cross_entropy", SECOND, pair=EXPERTS))], "{:+.4f}",
            f"`{policies[rule]}` {setting(*rule, 'cross_entropy', SECOND, EXPERTS):.3f} nats, the expert {setting(*alone, 'cross_entropy', SECOND, EXPERTS):.3f}")
    measure("ensemble-quality", lambda: [("", *apart(alone, half, "cross_entropy", WINDOWS["mix"], pair=EXPERTS))], "{:+.4f}",
            f"both {setting(*half, 'cross_entropy', pair=EXPERTS):.3f} nats, the better one alone {setting(*alone, 'cross_entropy', pair=EXPERTS):.3f}, "
            f"the model trained on both texts {target['cross_entropy']:.3f}")


def over_ensemble(rule, y):
    """(rejection, y less the ensemble's at equal rejection)"""
    points = [(x, at - value(curve("ensemble", y), x)) for x, at in curve(rule, y)]
    return [p for p in points if not math.isnan(p[1])]


def quality(name, y, ylabel, gain_label, title):
    """Left: the papers' plot. Right: the same lines, less the static ensemble that rejects as much."""
    shown = ["ensemble", "chow", "diff", "opt", "token-v3", "lenient"]
    f, (left, right) = figure(9.2, 4.2, 2)
    most = tv()
    ends = []
    for rule in shown:
        thick = dict(color=COLOUR[rule], lw=3 if rule == "ensemble" else 1.6, zorder=1 if rule == "ensemble" else 2)
        left.plot(*zip(*[p for p in curve(rule, y) if p[0] <= 1.03 * most]), **thick)
        points = over_ensemble(rule, y)
        right.plot(*zip(*points), **thick)
        ends.append((most * 1.1, value(points, 0.8 * most), rule, COLOUR[rule]))
        right.plot([0.8 * most, most * 1.1], [value(points, 0.8 * most)] * 2, color=COLOUR[rule], lw=0.6, ls=":")
    for axis in (left, right):
        axis.set_xlabel("rejection rate (drafted tokens replaced)")
    left.set_ylabel(ylabel)
    right.set_ylabel(gain_label)
    left.plot([0, most], [draft[y], target[y]], "o", color="#222", ms=4, zorder=3)
    left.annotate("draft", (0, draft[y]), xytext=(7, 0), textcoords="offset points", size=8.5, va="center")
    left.annotate("target", (most, target[y]), xytext=(7, 0), textcoords="offset points", size=8.5, va="center")
    left.set_xlim(-0.01, most * 1.2)
    label_ends(right, ends, 0.06)
    right.set_xlim(0, most * 1.38)
    finish(f, name, title)


@draw_with(CASCADES)
def quality_plots():
    losers = sum(gap(r, "ensemble", "cross_entropy", (0.5,))[0] > 0 for r in DEFERRAL)
    winners = sum(gap(r, "ensemble", shares=(0.5,))[0] > 0 for r in DEFERRAL + TOKEN)
    quality("cascades-cross-entropy", "cross_entropy", "cross-entropy of the next token, nats",
            "nats more than the ensemble (less is better)",
            f"By cross-entropy the static ensemble beats {losers} of {len(DEFERRAL)} deferral rules at half of TV")
    quality("cascades-accuracy", "sampled_accuracy", "chance that a sampled token is right",
            "gain over the ensemble (more is better)",
            f"By the accuracy of a sampled token {winners} of {len(DEFERRAL + TOKEN)} rules beat the ensemble at half of TV")


@draw_with(CASCADES)
def token_plot():
    f, (axis,) = figure(7, 4)
    ends = []
    for rule in ("ensemble", "opt", *TOKEN):
        points = over_ensemble(rule, "sampled_accuracy")
        axis.plot(*zip(*points), color=COLOUR[rule], lw=3 if rule == "ensemble" else 1.6)
        at = 0.8 * tv()
        axis.plot([at, 1.1 * tv()], [value(points, at)] * 2, color=COLOUR[rule], lw=0.6, ls=":")
        ends.append((1.1 * tv(), value(points, at), rule, COLOUR[rule]))
    label_ends(axis, ends, 0.06)
    axis.set_xlim(0, 1.4 * tv())
    axis.set_xlabel("rejection rate (drafted tokens replaced)")
    axis.set_ylabel("chance that a sampled token is right,\nover the ensemble's")
    order = sorted(TOKEN, key=lambda r: -gap(r, "ensemble")[0])
    finish(f, "token-rules", f"Of the token rules {order[0]} gains most here, {order[-1]} least")


@draw_with(CASCADES)
def temperature_plot():
    f, axes = figure(9.2, 3.5, 3)
    for axis, t in zip(axes, (1, 0.5, 0)):
        most = tv(temperature=t)
        for rule in ("ensemble", "diff", "opt", "token-v3"):
            y = "sampled_accuracy"
            points = [p for p in curve(rule, temperature=t, y=y) if p[0] <= 1.001 * most]
            axis.plot(*zip(*points), color=COLOUR.get(rule, GREEN), lw=3 if rule == "ensemble" else 1.6,
                      ls="--" if rule == "opt" else "-", zorder=1 if rule == "ensemble" else 2)
        axis.set_xlabel("rejection rate")
        axis.set_title(f"temperature {t:g}" + " (the most likely token)" * (t == 0), weight="normal", size=9)
    axes[0].set_ylabel("chance that a sampled token is right")
    name_lines(axes[0], [(rule + " (dashed)" * (rule == "opt"), COLOUR[rule]) for rule in ("token-v3", "opt", "diff", "ensemble")], 0.97, 0.27, 0.08, ha="right")
    gaps = [abs(gap("token-v3", "diff", temperature=t)[0]) for t in (1, 0.5)]
    finish(f, "cascades-temperature", "Three temperatures: the distance of token-v3 and diff " +
           ("shrinks" if gaps[1] < gaps[0] else "does not shrink") + " from 1 to 0.5")


@draw_with(CASCADES)
def frontier():
    f, (left, right) = figure(9.2, 4, 2)
    most = tv()
    names = {"lossy": "lossy, exact beta", "lenient": "lossy, beta 1", "lossy-beta": "lossy, beta 1 - alpha", "ensemble": "ensemble",
             "diff": "diff"}
    colours = {"lossy": GREEN, "lenient": BLUE, "lossy-beta": RED, "ensemble": GREY, "diff": ORANGE}
    styles = {"lossy": "-", "lenient": "--"}
    for rule in names:
        points = [p for p in curve(rule, y="tv_target") if p[0] <= 1.001 * most]
        left.plot(*zip(*points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
        kl_points = [p for p in curve(rule, y="kl_target") if p[0] <= 1.001 * most]
        right.plot(*zip(*kl_points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
    left.set_ylabel("TV(pi, p): distance to the target")
    right.set_ylabel("KL(p || pi), nats")
    for axis in (left, right):
        axis.set_xlabel("rejection rate")
    name_lines(right, [(names[rule] + " (dashed)" * (rule == "lenient"), colours[rule]) for rule in ("diff", "lossy-beta", "ensemble", "lenient", "lossy")],
               0.98, ha="right")
    left.text(0.98, 0.95, "all but beta 1 - alpha on one line:\nP(reject) + TV(pi, p) = TV(q, p)", transform=left.transAxes,
              ha="right", va="top", size=8.5)
    order = sorted(("lossy", "lenient", "ensemble", "diff"), key=lambda r: value(curve(r, "kl_target"), 0.5 * most))
    finish(f, "frontier", "At equal rejection all are equally far from p in TV; nearest in KL: " + ", then ".join(names[r] for r in order[:2]))


@draw_with(CASCADES, f"cascades-{EXPERTS}")
def ensemble_plot():
    f, (axis,) = figure(6.8, 4)
    ends = []
    for text, colour in (("shakespeare", BLUE), ("kjv", RED), ("mix", "#222")):
        own = sorted((p, setting("ensemble", p, "cross_entropy", WINDOWS[text], EXPERTS)) for p in cells[EXPERTS, 1, "ensemble"])
        axis.plot(*zip(*own), color=colour, lw=3 if text == "mix" else 1.6, marker="o", ms=3)
        best = min(own, key=lambda x: x[1])
        axis.plot(*best, "o", color=colour, ms=7)
        ends.append((1.01, own[-1][1], {"mix": "both texts"}.get(text, text), colour))
    label_ends(axis, ends)
    axis.set_xlim(0, 1.2)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0\nbible alone", "0.25", "0.5", "0.75", "1\nbard alone"])
    axis.set_xlabel("lambda: weight of bard in the ensemble (large dot: the best)")
    axis.set_ylabel("cross-entropy of the next token, nats")
    finish(f, "ensemble", "On mixed text two experts together " + ("beat either alone" if judged["ensemble-quality"]["verdict"] == "yes" else "do not beat the better one"))

if have(CASCADES):
    half_gain = {r: (gap(r, "ensemble", "cross_entropy", (0.5,)), gap(r, "ensemble", shares=(0.5,)), gap(r, "ensemble", "argmax_accuracy", (0.5,)))
                 for r in DEFERRAL + TOKEN + LOSSY}
    half_gain = {r: g for r, g in half_gain.items() if not math.isnan(g[0][0])}
    greedy = {r: value(curve(r, "sampled_accuracy", temperature=0), 0.5 * tv(temperature=0)) for r in ("diff", "opt", *TOKEN, "lenient")}
    greedy = sorted((x, r) for r, x in greedy.items() if not math.isnan(x))
    now["positions"] = sum(len(WINDOWS[t]) for t in texts) * (16 if quick() else 128)
    now["rules"] = [[r, *(f"{x:{form}}" for (value, error), places in zip(half_gain[r], (3, 4, 4)) for x, form in
                          ((value, f"+.{places}f"), (error, f".{places}f")))] for r in sorted(half_gain, key=lambda r: -half_gain[r][1][0])]
    now["best"] = {"token": chosen(TOKEN, "sampled_accuracy", max, below_tv)[0], "cross_entropy": min(half_gain, key=lambda r: half_gain[r][0][0])}
    now["greedy"] = [[f"{x:.3f}", r] for x, r in (greedy[0], greedy[-1])]
if have(*(f"cascades-{p}" for p in PAIRS)):
    pairs = []
    for p in PAIRS:
        for t in ("shakespeare", "kjv", "mix"):
            use = WINDOWS[t]
            nats = {x: setting("ensemble", x, "cross_entropy", use, p) for x in cells[p, 1, "ensemble"]}
            e = min(nats, key=nats.get)
            half_of = lambda rule, y: "{:+.{}f}".format(gap(rule, "ensemble", y, (0.5,), use, pair=p)[0], 3 if y == "cross_entropy" else 4)
            pairs.append([p, t, f"{tv(use, p):.3f}", f"{nats[1.0]:.3f}", f"{nats[0.0]:.3f}", f"{nats[e]:.3f} (lambda {e:g})",
                          half_of("diff", "cross_entropy"), half_of("diff", "sampled_accuracy"), half_of("token-v3", "sampled_accuracy")])
    now["pairs"] = pairs
