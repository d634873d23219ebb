# SPDX-License-Identifier: Apache-2.0
"""Verifiers, acceptance, draft length."""
import math, statistics

from findings.figures import BLUE, GREEN, GREY, ORANGE, draw_with, figure, finish
from findings.parts import PAIRS, load, one, pick
from findings.verdicts import measure


acceptance, verifiers, lengths = load("acceptance"), load("verifiers"), load("draft-length")


def verified(pair, temperature, gamma, name):
    return one(verifiers, pair=pair, temperature=temperature, gamma=gamma, verifier=name)


if acceptance and verifiers:
    GRID = [(p, t, g) for p in PAIRS for t in (1, 0.5) for g in (4, 8)]
    name = lambda p, t, g: f"{p}, T {t:g}, gamma {g}:"
    measure("block-keeps-more", lambda: [(name(*c), verified(*c, "block").accepted - verified(*c, "token").accepted,
                                          math.hypot(verified(*c, "block").accepted_se, verified(*c, "token").accepted_se)) for c in GRID],
            "{:+.2f}", "mean {:+.3f}".format(statistics.mean(verified(*c, "block").accepted - verified(*c, "token").accepted for c in GRID)))
    measure("match-keeps-fewer", lambda: [(name(*c), verified(*c, "match").accepted / verified(*c, "token").accepted) for c in GRID])
    measure("coupled-bound", lambda: [(f"{r.pair}, T {r.temperature:g}:", r.coupled - r.coupled_bound) for r in acceptance], "{:+.3f}",
            ", ".join(f"{r.coupled:.3f} (ratio test {r.ratio:.3f})" for r in acceptance))
    measure("counts-enough", lambda: [(f"T {r.temperature:g}:", r.ratio - r.quantised) for r in pick(acceptance, pair="draft-target")], "{:.3f}",
            f"{acceptance[0].quantised_bytes:g} bytes a row")
    tele = [r for r in pick(verifiers, verifier="token") if r.temperature > 0]
    measure("telemetry-unbiased", lambda: [("", max(abs(r.telemetry - r.tokens_per_round) / r.tokens_per_round_se for r in tele))], "{:.1f}")
    measure("telemetry-noise", lambda: [(name(r.pair, r.temperature, int(r.gamma)), r.telemetry_se / r.tokens_per_round_se) for r in tele])


GAMMA = 4
GROUPS = [(p, t) for p in ("draft-target", "bard-bible") for t in (1, 0.5)]


@draw_with("verifiers")
def verifier_plot():
    f, (axis,) = figure(7.4, 3.8)
    for i, (name, colour) in enumerate((("match", GREY), ("coupled", ORANGE), ("token", BLUE), ("block", GREEN))):
        rows = [verified(*g, GAMMA, name) for g in GROUPS]
        x = [k + (i - 1.5) * 0.2 for k in range(len(GROUPS))]
        axis.bar(x, [r.accepted for r in rows], 0.19, color=colour, yerr=[r.accepted_se for r in rows],
                 error_kw=dict(lw=1, ecolor="#333"))
        axis.text(x[0], rows[0].accepted + rows[0].accepted_se + 0.03, name, rotation=90, color=colour, ha="center", va="bottom",
                  size=8.5, weight="bold")
    axis.set_xticks(range(len(GROUPS)), [f"{p}\ntemperature {t:g}" for p, t in GROUPS])
    axis.set_ylabel(f"drafted tokens kept a round, of {GAMMA}")
    order = sorted(("match", "coupled", "token", "block"), key=lambda n: -statistics.mean(verified(*g, GAMMA, n).accepted for g in GROUPS))
    finish(f, "verifiers", "Drafts kept, most first: " + ", ".join(order))


@draw_with("verifiers")
def telemetry_plot():
    f, (axis,) = figure(7, 3.2)
    rows = [verified(p, t, GAMMA, "token") for p, t in GROUPS]
    for k, r in enumerate(rows):
        axis.errorbar([r.tokens_per_round], [k + 0.12], xerr=[2 * r.tokens_per_round_se], fmt="o", color=ORANGE, ms=4)
        axis.errorbar([r.telemetry], [k - 0.12], xerr=[2 * r.telemetry_se], fmt="o", color=BLUE, ms=4)
    axis.text(rows[0].tokens_per_round, 0.28, "counted", color=ORANGE, size=8.5, ha="center", weight="bold")
    axis.text(rows[0].telemetry, -0.42, "from the rows", color=BLUE, size=8.5, ha="center", weight="bold")
    axis.set_yticks(range(len(GROUPS)), [f"{p}, temperature {t:g}" for p, t in GROUPS])
    axis.set_ylim(-0.7, len(GROUPS) - 0.4)
    axis.set_xlabel(f"tokens a round, gamma {GAMMA} (bars: two standard errors)")
    finish(f, "telemetry", "Tokens a round, counted and from the rows")


if lengths:
    rates = {}
    for r in lengths:
        rates.setdefault((r.pair, r.temperature, r.prices), []).append(r)
    share = lambda v, how: next(r for r in v if r.how == how).tokens_per_cost / max(r.tokens_per_cost for r in v if r.how != "marginal")
    marginal = {k: share(v, "marginal") for k, v in rates.items()}
    measure("marginal-value", lambda: [(f"{p}, T {t:g}, {w}:", x) for (p, t, w), x in marginal.items()])
    measure("one-acceptance", lambda: [(f"{p}, T {t:g}, {w}:", share(v, "planned")) for (p, t, w), v in rates.items() if any(r.how == "planned" for r in v)])


@draw_with("draft-length")
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
        axis.text(8, own.tokens_per_cost, "while a token pays", color=GREEN, ha="right", va="bottom", size=8.5, weight="bold")
        axis.text(5.5, 0.85 * fixed[8].tokens_per_cost, "fixed gamma", color=BLUE, ha="center", va="top", size=8.5,
                  weight="bold")
        chosen = [r for r in rows if r.how == "planned"]
        if chosen:
            axis.annotate("planned", (chosen[0].gamma, chosen[0].tokens_per_cost), xytext=(0, -22), textcoords="offset points",
                          ha="center", size=8.5, arrowprops=dict(arrowstyle="-", lw=0.8))
        axis.set_ylim(0, 1.12 * max(best.tokens_per_cost, own.tokens_per_cost))
        axis.set_title(f"costs on {'an' if prices[0] == 'a' else 'a'} {prices}", weight="normal", size=9)
        axis.set_xlabel("gamma")
    axes[0].set_ylabel("tokens for the cost of a target step")
    finish(f, "draft-length", f"Drafting while a token pays: {100 * min(marginal.values()):.0f} to {100 * max(marginal.values()):.0f} % of the best fixed gamma's tokens")
