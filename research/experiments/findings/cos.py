# SPDX-License-Identifier: Apache-2.0
"""Collaborative decoding (CoS): models that take turns."""
import math, statistics

from findings.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, draw_with, figure, finish, label_ends, name_lines
from findings.held_out import setting
from findings.parts import CASCADES, cos_speed, have, load, pick
from findings.verdicts import measure, measure_real, now


def cos_claims(cos_calls, cos_speed, names, measure):
    """The claims of the parts `cos-calls` and `cos-speed`. names: of two experts, of the same two where the other one drafts
    first, of a small and a large model, of three experts."""
    WE, SWAPPED, small = (pick(cos_speed, models=m) for m in names[:3])
    CD, TRADE = ([r for r in small if r.policy.startswith(rule)] for rule in ("contrastive", "ensemble"))
    THREE = pick(cos_speed, models=names[3])

    def best_speed(rows, method, gammas=(1, 5), **where):
        return max(r.speedup for r in pick(rows, method=method, **where) if r.gamma in gammas or method in ("standard", "parallel"))

    lambdas, mus = sorted({r.value for r in WE}), sorted({r.value for r in CD})
    PAPERS = [("lambda 0.5", WE, dict(value=0.5)), ("mu 0.1, T 0", CD, dict(value=0.1, temperature=0)),
              ("mu 0.1, T 1", CD, dict(value=0.1, temperature=1))]
    SETTINGS = PAPERS + [("three models", THREE, {})]
    cos = lambda rows, where: best_speed(rows, "alternating", (1,) if rows is THREE else (1, 5), **where)
    measure("we-speed", lambda: [("", cos(WE, dict(value=0.5)))])
    measure("cd-speed", lambda: [(n, cos(rows, w)) for n, rows, w in PAPERS[1:]])
    measure("three-speed", lambda: [("", cos(THREE, {}))])
    measure("cos-fastest", lambda: [(n, cos(rows, w) / max(best_speed(rows, m, **w) for m in ("standard", "parallel", "sd")))
                                    for n, rows, w in SETTINGS])
    measure("cos-gains", lambda: [(n, cos(rows, w)) for n, rows, w in SETTINGS])
    measure("parallel-slower", lambda: [(n, best_speed(rows, "parallel", **w)) for n, rows, w in SETTINGS])
    measure("turns-faster", lambda: [(n, best_speed(rows, "alternating", **w) / best_speed(rows, "speculative", **w)) for n, rows, w in PAPERS])
    weights = sorted({r.value for r in TRADE})
    measure("trade-speed", lambda: [(f"lambda {a:g} to {b:g}", best_speed(TRADE, "alternating", value=b) - best_speed(TRADE, "alternating", value=a))
                                    for a, b in zip(weights, weights[1:])], "{:+.2f}",
            lambda: ", ".join(f"lambda {x:g}: {best_speed(TRADE, 'alternating', value=x):.2f}" for x in weights))
    two = WE + SWAPPED + CD
    measure("cos-gamma-1", lambda: [(f"{r.models} {r.value:g}, T {r.temperature:g}:", r.speedup) for r in pick(two, method="alternating", gamma=1)])
    calls = [r for r in pick(cos_calls, method="alternating", gamma=1) if not math.isnan(r.a_q) and (r.models, r.policy[:8]) != (names[2], "ensemble")]
    measure("cos-gamma-1-calls", lambda: [(f"{r.models} {r.value:g}, T {r.temperature:g}:", r.calls) for r in calls])
    measure("sd-slower", lambda: [(n, best_speed(rows, "sd", **w)) for n, rows, w in PAPERS])
    measure("sd-slower-three", lambda: [("", best_speed(THREE, "sd"))])
    measure("acceptance-lambda", lambda: [(f"{r.models} {r.value:g}:", r.a_q - r.value) for r in cos_calls
                                          if r.method == "standard" and r.models in names[:2]])
    flat = {r.gamma: r.calls for r in pick(cos_calls, models=names[0], value=0.5, method="alternating")}
    measure("gamma-stable", lambda: [("", max(flat.values()) / min(flat.values()))], "{:.2f}",
            "calls a token: " + ", ".join(f"gamma {g:g}: {x:.2f}" for g, x in sorted(flat.items())))

    def peak(t):
        best = max(pick(CD, method="alternating", value=0.1, temperature=t), key=lambda r: r.speedup)
        return f"T {t}: best gamma {best.gamma:g},", best.speedup / best_speed(CD, "alternating", (1,), value=0.1, temperature=t)

    measure("gamma-peak", lambda: [peak(t) for t in (0, 1)])
    either = lambda x: max(best_speed(rows, "alternating", value=v) for rows, v in ((WE, x), (SWAPPED, round(1 - x, 9))) if rows)
    measure("lambda-1.5", lambda: [(f"lambda {x:g}:", either(x)) for x in lambdas])
    by_mu = lambda t, m: best_speed(CD, "alternating", value=m, temperature=t)
    measure("mu-reduces", lambda: [(f"T {t}, mu {a:g} to {b:g}:", by_mu(t, a) - by_mu(t, b)) for t in (0, 1) for a, b in zip(mus, mus[1:])],
            "{:+.2f}")
    measure("mu-always", lambda: [(f"T {t}, mu {m:g}:", by_mu(t, m)) for t in (0, 1) for m in mus])
    measure("greedy-more", lambda: [("", by_mu(0, 0.1) - by_mu(1, 0.1))], "{:+.2f}")
    renewal = [abs(r.calls / r.predicted - 1) for r in cos_calls if r.method == "alternating" and not math.isnan(r.predicted)]
    measure("renewal-calls", lambda: [("", statistics.median(renewal))], "{:.4f}", f"{len(renewal)} settings, worst {max(renewal):.3f}")
    errors = lambda: [abs(r.error) for r in cos_speed if r.method == "alternating" and not math.isnan(r.error)]
    measure("renewal-speed", lambda: [("", statistics.median(errors()))], "{:.3f}", f"{len(errors())} settings, worst {max(errors()):.2f}")
    return WE, CD, TRADE, best_speed, renewal, mus


cos_calls = load("cos-calls")
if have("cos-speed", "cos-calls"):
    WE, CD, TRADE, best_speed, renewal, mus = cos_claims(
        cos_calls, cos_speed, ("bard-bible", "bible-bard", "draft-target", "bard-bible-target"), measure)
EXPERTS_THAT_READ = "smollm2/plain-smollm2/vivid"
real_calls, real_speed, real_tasks = load("real-cos-calls"), load("real-cos-speed"), load("real-cos-tasks")
if real_calls and real_speed:
    cos_claims(real_calls, real_speed, (EXPERTS_THAT_READ, "", "amateur-smollm2", EXPERTS_THAT_READ + "-smollm2/teacher"), measure_real)
if real_tasks:
    fewest = lambda task: min(r.calls for r in pick(real_tasks, task=task, method="alternating"))
    measure("cos-tasks", lambda: [(f"{free} less {fixed}:", fewest(free) - fewest(fixed)) for free in ("story", "chat") for fixed in ("code", "rewrite")],
            "{:+.2f}", lambda: ", ".join(f"{task} {2 / fewest(task):.2f}" for task in ("code", "rewrite", "story", "chat")) + " times fewer calls")


@draw_with("cos-speed", "cos-calls")
def calls_plot():
    f, (axis,) = figure(7, 4)
    ends = []
    middle = mus[len(mus) // 2]
    for models, where, colour, name in (("bard-bible", dict(value=0.5), BLUE, "ensemble, lambda 0.5"),
                                        ("draft-target", dict(temperature=1, policy=f"contrastive:mu={middle:g}"), RED, f"contrastive, mu {middle:g}")):
        for method, style in (("alternating", "-"), ("speculative", "--")):
            rows = sorted(pick(cos_calls, models=models, method=method, **where), key=lambda r: r.gamma)
            axis.plot([r.gamma for r in rows], [r.predicted for r in rows], style, color=colour, lw=1.4)
            axis.plot([r.gamma for r in rows], [r.calls for r in rows], "o", color=colour, ms=5)
            ends.append((rows[-1].gamma + 0.05, rows[-1].predicted,
                         f"{name}\n {'taking turns' if method == 'alternating' else 'without turns'}", colour))
    axis.plot([1, 5], [2, 2], color=GREY, lw=3, zorder=0)
    ends.append((5.05, 2, "standard: both at every token", GREY))
    label_ends(axis, ends, 0.16)
    axis.set_xlim(0.8, 6.9)
    axis.set_xticks(range(1, 6))
    axis.set_ylim(0)
    axis.set_xlabel("gamma: tokens the first model drafts")
    axis.set_ylabel("model calls a token (dots: counted, lines: formula)")
    finish(f, "cos-calls", f"Calls of collaboration, and the renewal formula (median error {100 * statistics.median(renewal):.1f} %)")


@draw_with("cos-speed", "cos-calls")
def gamma_plot():
    f, (axis,) = figure(7, 3.6)
    ends = []
    shown = [(t, mus[0]) for t in (0, 1)]
    for (t, m), colour in zip(shown, (BLUE, GREEN)):
        rows = sorted(pick(CD, method="alternating", temperature=t, value=m), key=lambda r: r.gamma)
        axis.plot([r.gamma for r in rows], [r.speedup for r in rows], "o-", color=colour, ms=4)
        top = max(rows, key=lambda r: r.speedup)
        axis.plot([top.gamma], [top.speedup], "o", color=colour, ms=9, mfc="none")
        ends.append((5.05, rows[-1].speedup, f"mu {m:g}, temperature {t:g}", colour))
    axis.axhline(1, color=GREY, lw=2, zorder=0)
    axis.set_xlim(0.8, 6.6)
    axis.set_ylim(0, 1.06 * axis.get_ylim()[1])
    label_ends(axis, ends, 0.07)
    axis.set_xticks(range(1, 6))
    axis.set_xlabel("gamma: tokens the draft proposes (circle: the best)")
    axis.set_ylabel("speed-up over both at every token")
    best = [max(pick(CD, method="alternating", temperature=t, value=m), key=lambda r: r.speedup).gamma for t, m in shown]
    finish(f, "cos-gamma", "Contrastive decoding: the best draft length is " + (
        f"{best[0]:g}" if len(set(best)) == 1 else f"{min(best):g} to {max(best):g}"))


@draw_with("cos-speed", "cos-calls")
def speed_plot():
    f, (left, right) = figure(9.2, 3.8, 2)
    for axis, rows, xlabel in ((left, WE, "lambda (bard + bible)"), (right, pick(CD, temperature=1), "mu (target - mu draft), temperature 1")):
        ends, xs = [], sorted({r.value for r in rows})
        axis.set_xlim(xs[0] - 0.03, xs[-1] + 0.5 * (xs[-1] - xs[0]) + 0.1)
        for method, colour, name in (("standard", GREY, "standard"), ("parallel", BLUE, "side by side"), ("sd", RED, "SD"),
                                     ("speculative", ORANGE, "without turns"), ("alternating", GREEN, "taking turns")):
            best = {x: max(own, key=lambda r: r.speedup) for x in xs if (own := pick(rows, value=x, method=method))}
            line = [1 if method == "standard" else r.speedup for r in best.values()]
            axis.plot(list(best), line, "o-", color=colour, lw=3 if method == "standard" else 1.6, ms=4)
            if method == "alternating":
                predicted = [max(r.predicted for r in pick(rows, value=x, method=method)) for x in xs]
                axis.plot(xs, predicted, ":", color=colour, lw=1.4)
            ends.append((list(best)[-1] + 0.02 * (xs[-1] - xs[0] + 0.1), line[-1], name, colour))
        axis.set_xticks(xs)
        axis.set_xlabel(xlabel)
        axis.set_ylim(0)
        label_ends(axis, ends, 0.07)
    left.set_ylabel("speed-up over standard, best gamma\n(dotted: predicted)")
    finish(f, "cos-speed", "Collaboration of two models: speed over calling one after the other at every token")


@draw_with("cos-speed", CASCADES)
def trade_plot():
    f, (axis,) = figure(6.4, 3.8)
    weights = sorted({r.value for r in TRADE})
    best = {x: best_speed(TRADE, "alternating", value=x) for x in weights}
    accuracy = [setting("ensemble", x, "sampled_accuracy") for x in weights]
    axis.plot(list(best.values()), accuracy, "o-", color=BLUE, ms=4)
    for (x, v), y in zip(best.items(), accuracy):
        axis.annotate(f"lambda {x:g}", (v, y), xytext=(0, 7), textcoords="offset points", color=BLUE, ha="center", va="bottom", size=8.5, weight="bold")
    axis.margins(0.15)
    axis.set_xlabel("speed-up of CoS over both models at every token, best gamma")
    axis.set_ylabel("chance that a sampled token is right")
    finish(f, "cos-trade", "An ensemble of draft (weight lambda) and target: quality against speed")


@draw_with("real-cos-speed", "real-cos-tasks")
def real_plot():
    f, (left, right) = figure(11, 4.2, 2)
    ways = [("standard", 0, GREY), ("parallel", 0, "#222"), ("speculative", 1, ORANGE), ("sd", 1, RED), ("sd", 5, PURPLE), ("alternating", 1, GREEN), ("alternating", 5, BLUE)]
    groups = [("two, 0.5", EXPERTS_THAT_READ, 0.5, 1), ("three", EXPERTS_THAT_READ + "-smollm2/teacher", None, 1),
              ("contrast, T 1", "amateur-smollm2", 0.1, 1), ("contrast, T 0", "amateur-smollm2", 0.1, 0)]
    for i, (method, gamma, colour) in enumerate(ways):
        xs, ys = [], []
        for k, (_, models, number, temperature) in enumerate(groups):
            of = [r for r in pick(real_speed, models=models, method=method, temperature=temperature)
                  if r.gamma in (gamma, 0) and (number is None or r.value == number) and (models != "amateur-smollm2" or r.policy.startswith("contrastive"))]
            if of:
                xs.append(k + 0.11 * (i - 3))
                ys.append(of[0].speedup)
        left.bar(xs, ys, 0.1, color=colour)
    name_lines(left, [(method + (f", gamma {gamma}" if gamma else ""), colour) for method, gamma, colour in ways], 1.02)
    left.set_xticks(range(len(groups)), [g[0] for g in groups], size=8.5)
    left.axhline(1, color="#bbb", lw=1)
    left.set_ylabel("speed-up over the standard way")
    kinds = ["code", "rewrite", "story", "chat"]
    for method, colour in (("sd", RED), ("speculative", ORANGE), ("alternating", GREEN)):
        for k, kind in enumerate(kinds):
            of = sorted(pick(real_tasks, task=kind, method=method), key=lambda r: r.gamma)
            right.plot([k + 0.14 * (r.gamma - 3) for r in of], [2 / r.calls for r in of], "o-", color=colour, ms=3.5, lw=1.2)
    right.set_xticks(range(len(kinds)), kinds)
    right.set_ylabel("times fewer calls than the standard way (gamma 1 to 5)")
    finish(f, "real-cos", "SmolLM2 under several system prompts, and its head as an amateur")


if have("cos-speed"):
    same = [r.speedup for r in pick(cos_speed, method="standard")]
    known = lambda x, form: "" if math.isnan(x) else form.format(x)
    now["standard_over_itself"] = [f"{min(same):.2f}", f"{max(same):.2f}"]
    now["cos"] = [[r.models, r.policy, f"{r.temperature:g}", r.method, f"{r.gamma:g}", f"{r.speedup:.2f}", known(r.predicted, "{:.2f}"),
                   known(100 * r.error, "{:+.0f} %")]
                  for r in cos_speed if r.method in ("sd", "speculative", "alternating") and r.gamma in (1, 5) and r.temperature == 1]
