# SPDX-License-Identifier: Apache-2.0
"""DSSD: a client drafts, a server verifies."""
import math

from findings.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, draw_with, figure, finish, label_ends
from findings.parts import one, load, pick, real_dssd
from findings.verdicts import measure, measure_real, now
from findings.verifiers import acceptance, verified, verifiers


dssd, paired = load("dssd"), load("dssd-paired")
if dssd and verifiers and acceptance:
    grid = pick(dssd, pair="draft-target", temperature=1, vocabulary=50000)
    now["target_step_ms"] = f"{grid[0].llm_ms:.0f}"
    link100 = dict(mbit_per_s=100, delay_ms=20)

    def tokens_error(verifier, factors):
        """The standard error of sum_g factors[g] (tokens of a round of g drafts), counted in the same rounds of 8."""
        r = verified("draft-target", 1, 8, verifier)
        reached = [1.0, *map(float, r.reached.split()), 0.0]
        of = [sum(f * (1 + min(k, g)) for g, f in factors.items()) for k in range(9)]  # if k drafts are accepted
        chance = [reached[k] - reached[k + 1] for k in range(9)]
        middle = sum(c * x for c, x in zip(chance, of))
        return math.sqrt(sum(c * (x - middle) ** 2 for c, x in zip(chance, of)) / r.rounds)

    def of_gamma(p, *gammas, **link):
        """The speed-up with a gamma, less that with another one if there are two, and its standard error."""
        rows = [one(grid, protocol=p, gamma=g, **(link or link100)) for g in gammas]
        factors = {int(r.gamma): sign * r.speedup / r.tokens_per_round for r, sign in zip(rows, (1, -1))}
        return sum(sign * r.speedup for r, sign in zip(rows, (1, -1))), tokens_error("coupled" if p == "shared" else "token", factors)

    at8 = {p: one(grid, protocol=p, gamma=8, **link100) for p in ("dsd", "dssd", "shared", "quantised")}
    measure("dssd-50-bytes", lambda: [("", at8["dssd"].up_bytes)], "{:,.0f}",
            f"V = 50,000; DSD {at8['dsd'].up_bytes:,.0f}; but DSSD {at8['dssd'].down_bytes:,.0f} bytes down")
    LINKS = [dict(mbit_per_s=w, delay_ms=d) for w in (10, 50, 100) for d in (0, 20, 50)]
    varies = {p: [one(grid, protocol=p, gamma=8, **k).speedup for k in LINKS] for p in ("dsd", "dssd", "shared")}

    def variation():
        """DSSD's largest over smallest speed-up. The tokens of a round cancel out; how often a row comes down was counted."""
        rows = [one(grid, protocol="dssd", gamma=8, **k) for k in LINKS]
        r = verified("draft-target", 1, 8, "token")
        kept = float(r.reached.split()[-1])
        times = [(8 * r.slm_ms + r.llm_ms + r.communication_ms, (r.vocabulary * 16 - 32) / (1e3 * r.mbit_per_s)) for r in rows]
        (longest, row_longest), (shortest, row_shortest) = max(times), min(times)
        return longest / shortest, longest / shortest * abs(row_longest / longest - row_shortest / shortest) * math.sqrt(kept * (1 - kept) / r.rounds)

    measure("dssd-variation", lambda: [("", *variation())], "{:.3f}",
            f"DSD {max(varies['dsd']) / min(varies['dsd']):.1f}, coupled {max(varies['shared']) / min(varies['shared']):.1f}")
    for id, p in (("dssd-1.5", "dssd"), ("dsd-1", "dsd")):
        measure(id, lambda: [(f"gamma {g}:", *of_gamma(p, g)) for g in (4, 6, 8)], "{:.2f}")
    measure("dssd-gamma-6", lambda: [(f"gamma {g}:", *of_gamma("dssd", 6, g)) for g in (4, 8)], "{:+.2f}",
            f"best of 1 to 8: gamma {max(pick(grid, protocol='dssd', **link100), key=lambda r: r.speedup).gamma:g}")

    def over_dssd(g, w, d):
        link = dict(mbit_per_s=w, delay_ms=d)
        (own, own_error), (other, error) = of_gamma("shared", g, **link), of_gamma("dssd", g, **link)
        return own / other - 1, own / other * math.hypot(own_error / own, error / other)

    measure("here-no-row", lambda: [(f"gamma {r.gamma:g}, {r.mbit_per_s:g} Mbit/s, {r.delay_ms:g} ms:", *over_dssd(r.gamma, r.mbit_per_s, r.delay_ms))
                                    for r in pick(grid, protocol="shared") if r.mbit_per_s <= 10])
if real_dssd:
    over_link = lambda p, g, **link: one(real_dssd, policy="in proportion", protocol=p, gamma=g, **link)
    PRINTED = sorted({(r.ntt_ms, r.mbit_per_s) for r in pick(real_dssd, policy="in proportion")})
    on = lambda p, g: over_link(p, g, ntt_ms=20, mbit_per_s=100).speedup

    def over_links(p, g=8):
        of = [over_link(p, g, ntt_ms=ntt, mbit_per_s=rate).speedup for ntt, rate in PRINTED]
        return max(of) / min(of)

    measure_real("dssd-variation", lambda: [("", over_links("dssd"))], "{:.2f}",
                 lambda: f"DSD {over_links('dsd'):.1f}, coupled {over_links('shared'):.1f}")
    measure_real("dssd-1.5", lambda: [(f"gamma {g}:", on("dssd", g)) for g in (4, 6, 8)], "{:.2f}",
                 lambda: ", ".join(f"gamma {g}: {over_link('dssd', g, ntt_ms=20, mbit_per_s=100).predicted_free_scoring:.2f}" for g in (4, 6, 8)) +
                 " if scoring cost one step")
    measure_real("dsd-1", lambda: [(f"gamma {g}:", on("dsd", g)) for g in (4, 6, 8)], "{:.2f}")
    measure_real("dssd-gamma-6", lambda: [(f"gamma {g}:", on("dssd", 6) - on("dssd", g)) for g in (4, 8)], "{:+.2f}")
    measure_real("here-no-row", lambda: [(f"gamma {g}, {ntt:g} ms, {rate:g} Mbit/s:", over_link("shared", g, ntt_ms=ntt, mbit_per_s=rate).speedup /
                                          over_link("dssd", g, ntt_ms=ntt, mbit_per_s=rate).speedup - 1) for g in (4, 6, 8) for ntt, rate in PRINTED], "{:+.2f}")
    measure("dssd-hosted", lambda: [(f"gamma {g}, {ntt:g} ms, {rate:g} Mbit/s:", over_link("dssd", g, ntt_ms=ntt, mbit_per_s=rate).speedup /
                                          one(real_dssd, policy="none", protocol="dssd", gamma=g).speedup) for g in (4, 6, 8) for ntt, rate in PRINTED])
if paired:
    links = lambda same: [r for r in paired if (r.down_mbit_per_s == r.up_mbit_per_s) == same]
    below = lambda g: max([r.up_mbit_per_s / r.down_mbit_per_s for r in links(False) if r.gamma == g and r.gain_ms >= 0], default=1)
    slower = [r for r in links(False) if r.gain_ms < 0]
    label = lambda r: f"{r.pair}, gamma {r.gamma:g}, {r.up_mbit_per_s:g} up, {r.down_mbit_per_s:g} down:"
    measure("dssd-algebra", lambda: [(label(r), r.gain_ms, r.gain_se) for r in links(True)], "{:.1f}")
    measure("dssd-asymmetric", lambda: [(label(r), r.gain_ms, r.gain_se) for r in links(False)], "{:+.1f}",
            f"DSSD is the slower one at {len(slower)} of {len(links(False))}: " + ", ".join(
                f"gamma {g:g} where the link down is slower than 1/{below(g):g} of up"
                for g in sorted({r.gamma for r in slower})))
    now["slower"] = [[f"{g:g}", f"{below(g):g}"] for g in sorted({r.gamma for r in slower})]


@draw_with("dssd-paired")
def paired_plot():
    f, (axis,) = figure(7.2, 4)
    ends = []
    rows = [r for r in paired if r.pair == "draft-target" and r.up_mbit_per_s == 100]
    for g, colour in zip(sorted({r.gamma for r in rows}), ("#14532d", GREEN, BLUE, PURPLE, RED)):
        own = sorted(pick(rows, gamma=g), key=lambda r: -r.down_mbit_per_s)
        axis.errorbar(range(len(own)), [r.gain_ms for r in own], yerr=[2 * r.gain_se for r in own], fmt="o-", color=colour, ms=4)
        ends.append((len(own) - 0.95, own[-1].gain_ms, f"gamma {g:g}", colour))
    axis.axhline(0, color=GREY, lw=2, zorder=0)
    label_ends(axis, ends, 0.06)
    axis.set_xlim(-0.2, 3.9)
    axis.set_xticks(range(len(own)), [f"{r.down_mbit_per_s:g}" for r in own])
    axis.set_xlabel("link down, Mbit/s (link up: 100)")
    axis.set_ylabel("ms of a round that DSSD saves over DSD\n(bars: two standard errors)")
    finish(f, "dssd-paired", "The same text: below the line DSSD is the slower one")


@draw_with("dssd", "verifiers", "acceptance")
def dssd_plot():
    f, (left, right) = figure(9.2, 4, 2)
    widths = sorted({r.mbit_per_s for r in grid})
    for axis, delay in ((left, 0), (right, 50)):
        ends = []
        for protocol, name, colour in (("dsd", "DSD: rows up", RED), ("dssd", "DSSD: a row down", BLUE),
                                       ("shared", "coupled: no row", GREEN), ("quantised", "rows of 8 tokens up", ORANGE)):
            ys = [max(r.speedup for r in pick(grid, protocol=protocol, mbit_per_s=w, delay_ms=delay)) for w in widths]
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
        axis.set_xlabel("bandwidth, Mbit/s")
        axis.set_title(f"{delay} ms of other delay a round", weight="normal", size=9)
    left.set_ylabel("speed-up over the target alone, best gamma")
    finish(f, "dssd", "DSSD's four splits: speed-up over bandwidth")


@draw_with("real-dssd")
def real_plot():
    f, axes = figure(9.2, 4, 3)
    names, top = [f"{ntt:g} ms\n{rate:g}" for ntt, rate in PRINTED], max(r.speedup for r in real_dssd)
    for axis, gamma in zip(axes, (4, 6, 8)):
        ends = []
        for protocol, name, colour in (("dsd", "DSD", RED), ("dssd", "DSSD", BLUE), ("shared", "coupled", GREEN)):
            ys = [over_link(protocol, gamma, ntt_ms=ntt, mbit_per_s=rate).speedup for ntt, rate in PRINTED]
            axis.plot(range(len(ys)), ys, "o-", color=colour, lw=1.6, ms=4)
            axis.axhline(one(real_dssd, policy="none", protocol=protocol, gamma=gamma).speedup, color=colour, lw=0.8, ls=":")
            ends.append((len(ys) - 0.9, ys[-1], name, colour))
        axis.axhline(1, color=GREY, lw=3, zorder=0)
        axis.set_ylim(0, 1.05 * max(top, 1))
        axis.set_xlim(-0.2, len(names) + 0.6)
        label_ends(axis, ends, 0.06)
        axis.set_xticks(range(len(names)), names, size=7.5)
        axis.set_title(f"gamma {gamma}", weight="normal", size=9)
    axes[0].set_ylabel("speed-up over SmolLM2 alone\n(dotted: without a link)")
    axes[1].set_xlabel("the paper's links (delay, Mbit/s), in proportion to a step")
    finish(f, "real-dssd", "SmolLM2 at the server, a small draft model on the device")
