# SPDX-License-Identifier: Apache-2.0
"""DRAGON: two sites, who aggregates, and when."""
import math, statistics

from findings.figures import BLUE, GREEN, GREY, ORANGE, RED, draw_with, figure, finish, label_ends
from findings.parts import load, one, pick
from findings.verdicts import measure, measure_real, now


if dragon := load("dragon-latency"):
    def at_two(aggregation, strategy="device", delay=300, temperature=1, device=88):
        return one(dragon, temperature=temperature, device_ms=device, delay_ms=delay, aggregation=aggregation, strategy=strategy)

    DELAYS = sorted({r.delay_ms for r in dragon})
    TO_300 = [d for d in DELAYS if d <= 300]
    EVERY = [(d, t, v) for v in (22, 88) for t in (1, 0.5) for d in DELAYS]
    place = lambda d, t, v: f"device {v} ms, T {t:g}, {d:g} ms:"

    def reduction(base, device=88, delay=300):
        return 1 - at_two("independent", "Eq 8", delay, device=device).ms_per_token / at_two(base, delay=delay, device=device).ms_per_token

    def reduction_error(base, device=88, delay=300):
        own, other = at_two("independent", "Eq 8", delay, device=device), at_two(base, delay=delay, device=device)
        return own.ms_per_token / other.ms_per_token * math.hypot(own.ms_se / own.ms_per_token, other.ms_se / other.ms_per_token)

    measure("dragon-sequencewise", lambda: [("", reduction("sequence-wise"), reduction_error("sequence-wise"))], "{:.3f}",
            f"{at_two('sequence-wise').ms_per_token:.0f} ms; device of 22 ms: {reduction('sequence-wise', 22):.3f}")
    measure("dragon-overhead", lambda: [("", statistics.mean(at_two("independent", "Eq 8", d).ms_per_token / 88 - 1 for d in TO_300),
                                         math.hypot(*(at_two("independent", "Eq 8", d).ms_se / 88 / len(TO_300) for d in TO_300)))], "{:.3f}")

    def scheduled(d, t, v):
        rivals = [at_two("independent", s, d, t, v) for s in ("device", "cloud", "random")]
        rival = min(rivals, key=lambda r: r.ms_per_token)
        return round(-rival.over_eq8 / rival.ms_per_token, 9), rival.over_eq8_se / rival.ms_per_token

    measure("dragon-scheduler", lambda: [(place(*e), *scheduled(*e)) for e in EVERY], "{:+.3f}")
    measure("dragon-closer", lambda: [(f"{d:g} ms:", reduction("synchronous", 22, d) - reduction("synchronous", 88, d)) for d in DELAYS if d > 0], "{:+.3f}")
    gained = lambda d, t=1, v=88: at_two("synchronous", "device", d, t, v).ms_per_token / at_two("independent", "device", d, t, v).ms_per_token
    measure("dragon-stabilises", lambda: [(f"{d} ms:", abs(gained(d) - 1)) for d in (0, 50)], "{:.3f}")
    measure("dragon-eq9", lambda: [(place(*e), abs(gained(*e) / at_two("independent", "device", *e).eq9 - 1)) for e in EVERY], "{:.3f}")
    exact_time = lambda a, d, v: at_two("exact", f"device {a:g}", d, 1, v).ms_per_token
    eager = lambda a, d, v: at_two("synchronous", "device", d, 1, v).ms_per_token / at_two("exact", f"cloud {a:g}", d, 1, v).ms_per_token
    measure("dragon-6.4", lambda: [(f"device {v} ms, {d:g} ms:", eager(0.9, d, v) / eager(0.1, d, v)) for v in (22, 88) for d in TO_300 if d >= 100], "{:.2f}")
    measure("dragon-6.5", lambda: [(f"device {v} ms, {d:g} ms:", abs(exact_time(0.5, d, v) / exact_time(0.9, d, v) - 1)) for v in (22, 88) for d in DELAYS if d > 0],
            "{:.3f}")
    measure("here-shared-noise", lambda: [("", at_two("independent", "moving", device=22).ms_per_token / at_two("shared noise", "moving", device=22).ms_per_token)])
    closed = [abs(r.ms_per_token / r.predicted - 1) for r in dragon if r.aggregation in ("independent", "shared noise", "synchronous")
              and not math.isnan(r.predicted) and r.delay_ms > 0]
    measure("closed-recursion", lambda: [("", statistics.median(closed))], "{:.3f}", f"{len(closed)} settings, worst {max(closed):.2f}")

    def ahead(d, t, v):
        r = at_two("independent", "moving", d, t, v)
        return round(-r.over_eq8 / r.ms_per_token, 9), r.over_eq8_se / r.ms_per_token

    measure("looking-ahead", lambda: [(place(*e), *ahead(*e)) for e in EVERY], "{:+.3f}")
    now["eq8"] = {"worse": sum(scheduled(*e)[0] > 2 * scheduled(*e)[1] for e in EVERY), "of": len(EVERY)}
if devices := load("dragon-devices"):
    share = pick(devices, what="share saved")
    measure("dragon-tokenwise", lambda: [(f"device {r.device_ms:g} ms", r.mean, r.se) for r in share], "{:.3f}",
            "device of " + ", ".join(f"{r.device_ms:g} ms: {r.mean:.3f}" for r in share))
    saved = lambda side, d: one(devices, what="ms saved", side=side, delay_ms=d)
    BASELINES = ("device", "cloud", "random")
    measure("dragon-gains-grow", lambda: [(b, saved(b, 300).mean - saved(b, 100).mean, math.hypot(saved(b, 300).se, saved(b, 100).se))
                                          for b in BASELINES], "{:+.1f}",
            "; ".join(f"{b}: {saved(b, 100).mean:.1f} ms at 100 ms, {saved(b, 300).mean:.1f} ms at 300 ms" for b in BASELINES))
    measure("dragon-ttft", lambda: [("", statistics.mean((52.6 + r.mean) / (52.6 + 88) - 1 for r in pick(devices, what="first")))], "{:.3f}")
if eq5 := load("dragon-acceptance"):
    measure("dragon-eq5", lambda: [("", max(r.largest_distance for r in eq5))], "{:.1e}",
            ", ".join(f"gamma_l {r.gamma_l:g}: alpha^l {r.acceptance_l:.3f}, alpha^r {r.acceptance_r:.3f}" for r in pick(eq5, eta_l=0.5)))
    measure("dragon-4.2", lambda: [("", min(r.least_gain for r in eq5))], "{:+.1e}")
if real_sites := load("real-dragon-latency"):
    ms = lambda side, delay: one(real_sites, what="ms", side=side, delay_ms=delay)
    exact_ms = lambda what, delay=0: one(real_sites, what=what, delay_ms=delay).mean
    REAL_DELAYS = sorted({r.delay_ms for r in pick(real_sites, what="ms")})
    first = lambda side, delay: one(real_sites, what="first ms", side=side, delay_ms=delay).mean
    added = lambda side, to: [first(side, d) / first(to, d) for d in REAL_DELAYS]
    measure_real("dragon-tokenwise", lambda: [("", *(lambda r: (r.mean, r.se))(one(real_sites, what="saved", delay_ms=300)))], "{:.3f}")
    measure_real("dragon-sequencewise", lambda: [(f"{name},", 1 - ms("Eq 8", 300).mean / exact_ms(what, 300), ms("Eq 8", 300).se / exact_ms(what, 300))
                                                 for name, what in (("rows as DRAGON's", "sequence-wise"), ("whole rows", "sequence-wise of whole rows"))], "{:.3f}",
                 lambda: f"{exact_ms('sequence-wise', 300):.0f} and {exact_ms('sequence-wise of whole rows', 300):.0f} ms")
    measure_real("dragon-overhead", lambda: [("", statistics.mean(ms("Eq 8", d).mean for d in REAL_DELAYS) / exact_ms("device ms") - 1,
                                              math.hypot(*(ms("Eq 8", d).se for d in REAL_DELAYS)) / len(REAL_DELAYS) / exact_ms("device ms"))], "{:.3f}")

    def real_scheduled(d):
        best = min(("device", "cloud", "random"), key=lambda side: ms(side, d).mean)
        r = one(real_sites, what="Eq 8 adds", side=best, delay_ms=d)
        return r.mean, r.se

    measure_real("dragon-scheduler", lambda: [(f"{d:g} ms:", *real_scheduled(d)) for d in REAL_DELAYS], "{:+.3f}")
    more = lambda side: [one(real_sites, what="ms saved", side=side, delay_ms=d) for d in (300, 100)]
    measure_real("dragon-gains-grow", lambda: [(b, far.mean - near.mean, math.hypot(far.se, near.se)) for b in ("device", "cloud", "random") for far, near in [more(b)]], "{:+.1f}")
    measure_real("dragon-ttft", lambda: [("", statistics.mean(added("DRAGON", "device alone")) - 1)], "{:.3f}")
    measure("dragon-ttft-text", lambda: [("", statistics.mean(added("DRCG/Text", "DRAGON")))], "{:.1f}")
    measure("dragon-ttft-kv", lambda: [("", statistics.mean(added("DRCG/KV", "DRAGON")))], "{:.1f}")


@draw_with("dragon-latency")
def latency_plot():
    f, (left, right) = figure(9.2, 4, 2)
    for axis, device in ((left, 22), (right, 88)):
        ends = []
        for aggregation, strategy, name, colour in (("synchronous", "device", "synchronous", GREY),
                                                    ("sequence-wise", "device", "sequence-wise", ORANGE),
                                                    ("independent", "Eq 8", "DRAGON", BLUE),
                                                    ("shared noise", "moving", "coupled,\n looking ahead", GREEN)):
            ys = [at_two(aggregation, strategy, d, 1, device).ms_per_token for d in DELAYS]
            axis.plot(DELAYS, ys, "o-", color=colour, lw=3 if name == "synchronous" else 1.6, ms=4)
            ends.append((DELAYS[-1] + 8, ys[-1], name, colour))
        axis.set_ylim(0)
        label_ends(axis, ends, 0.09)
        axis.set_title(f"device {device} ms a token, cloud 22 ms", weight="normal", size=9)
        axis.set_xlabel("added round trip, ms")
        axis.set_xlim(0, DELAYS[-1] * 1.5)
        axis.set_xticks([0, 100, 200, 300, 400, 500])
    left.set_ylabel("time a token, ms")
    finish(f, "dragon-latency", f"At 300 ms DRAGON saves {100 * reduction('synchronous', 22):.0f} % of a fast device's time a token, "
           f"{100 * reduction('synchronous'):.0f} % of a slow one's")


@draw_with("dragon-latency")
def scheduling_plot():
    f, (axis,) = figure(7, 4)
    ends = []
    for strategy, colour in (("device", ORANGE), ("cloud", RED), ("random", GREY), ("Eq 8", BLUE), ("moving", GREEN)):
        ys = [at_two("independent", strategy, d).ms_per_token for d in DELAYS]
        axis.plot(DELAYS, ys, "o-", color=colour, lw=1.6, ms=4)
        ends.append((DELAYS[-1] + 6, ys[-1], {"moving": "looking ahead", "Eq 8": "Eq 8 (the paper)"}.get(strategy, strategy), colour))
    axis.set_ylim(0)
    label_ends(axis, ends, 0.05)
    axis.set_xlim(0, DELAYS[-1] * 1.3)
    axis.set_xticks([0, 100, 200, 300, 400, 500])
    axis.set_xlabel("added round trip, ms")
    axis.set_ylabel("time a token, ms\n(independent drafts, device 88 ms, cloud 22 ms)")
    names = {"moving": "looking ahead"}
    order = [names.get(s, s) for s in sorted(("device", "cloud", "random", "Eq 8", "moving"), key=lambda s: at_two("independent", s).ms_per_token)]
    finish(f, "dragon-scheduling", f"Who aggregates, at 300 ms: {order[0]} is fastest, {order[-1]} slowest")


@draw_with("dragon-acceptance")
def acceptance_plot():
    f, (axis,) = figure(6.6, 3.6)
    rows = sorted(pick(eq5, eta_l=0.5), key=lambda r: r.gamma_l)
    for y, colour, label in (("acceptance_l", BLUE, "drafts of l"), ("acceptance_r", ORANGE, "drafts of r")):
        axis.plot([r.gamma_l for r in rows], [getattr(r, y) for r in rows], "o-", color=colour, ms=4)
        axis.text(0.81, getattr(rows[-1], y), " " + label, color=colour, va="center", size=8.5, weight="bold")
    axis.plot([r.gamma_l for r in rows], [r.eq5 for r in rows], "x", color="#222", ms=7)
    axis.text(0.81, rows[-1].eq5 - 0.05, " x: Eq 5 (of l)", size=8.5, va="center")
    axis.set_xlim(0.15, 1)
    axis.set_xticks([0.2, 0.5, 0.8])
    axis.set_ylim(0)
    axis.set_xlabel("gamma_l: how often l's sample is taken (eta 1/2)")
    axis.set_ylabel("drafts accepted")
    finish(f, "dragon-acceptance", "What one site's drafts gain from gamma, the other's lose")


@draw_with("real-dragon-latency")
def real_plot():
    f, (left, right) = figure(10.4, 4, 2)
    for axis, lines, label in (
            (left, [(s, l, c, [ms(s, d).mean for d in REAL_DELAYS]) for s, l, c in (("Eq 8", "DRAGON", BLUE), ("token-wise", "DRDG/TW", ORANGE))]
             + [("", "DRDG/SW", RED, [exact_ms("sequence-wise", d) for d in REAL_DELAYS]), ("", "device alone", GREY, [exact_ms("device ms")] * len(REAL_DELAYS))],
             "ms a token"),
            (right, [(s, s, c, [first(s, d) for d in REAL_DELAYS]) for s, c in (("DRAGON", BLUE), ("device alone", GREY), ("DRCG/Text", ORANGE), ("DRCG/KV", GREEN))],
             "ms to the first token")):
        for _, _, colour, ys in lines:
            axis.plot(REAL_DELAYS, ys, "o-", color=colour, lw=1.6, ms=4)
        axis.set_ylim(0)
        label_ends(axis, [(REAL_DELAYS[-1], ys[-1], name, colour) for _, name, colour, ys in lines], 0.06)
        axis.set_xlim(-5, REAL_DELAYS[-1] * 1.4)
        axis.set_xticks(REAL_DELAYS)
        axis.set_xlabel("added delay, ms")
        axis.set_ylabel(label)
    finish(f, "real-dragon-latency", "SmolLM2 on both sites: measured steps, simulated link")
