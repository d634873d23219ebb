# SPDX-License-Identifier: Apache-2.0
"""The same cascades by the clock: speculative, sequential and oracle execution."""
import math, statistics

from findings import verdicts
from findings.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, RULES, draw_with, figure, finish, name_lines
from findings.held_out import TARGET, bundled, mean, reads
from findings.parts import CASCADES, cos_speed, folder, have, latency, length_speed, load, one, pick
from findings.verdicts import now


def execution_claims(latency, h, measure):
    """The claims of a part `latency`. h: what its rules are worth."""
    speculative, gamma = pick(latency, execution="speculative"), 5 if pick(latency, gamma=5) else 3
    for r in latency:
        known = h.cells[h.pair, 1, "ensemble" if r.rule == "lossless" else r.rule].get(0.0 if r.rule == "lossless" else r.parameter)
        r["accuracy"] = mean(known["sampled_accuracy"], h.windows["mix"]) if known else ""
    alphas = sorted({r.parameter for r in pick(latency, execution="sequential")})
    quickest = lambda rows: min(rows, key=lambda r: r.relative_latency)
    over = lambda a: (one(latency, rule="chow", parameter=a, execution="sequential").relative_latency /
                      quickest(pick(latency, rule="chow", parameter=a, execution="speculative")).relative_latency)
    measure("speculative-over-sequential", lambda: [(f"alpha {a:g}:", over(a)) for a in alphas[:-1]])
    measure("sequential-low-latency", lambda: [(f"alpha {a:g}:", over(a)) for a in alphas[-1:]])
    good = [r for r in speculative if r.accuracy >= h.setting(*TARGET, "sampled_accuracy")]
    lossy_way = lambda: quickest([r for r in good if r.rule in ("lenient", "lossless")])
    cascade_way = lambda: quickest([r for r in good if r.rule in ("chow", "diff", "opt", "token-v3")])
    measure("match-quality-faster", lambda: [(f"`{cascade_way().policy}` at {cascade_way().relative_latency:.2f}, `{lossy_way().policy}` at "
                                              f"{lossy_way().relative_latency:.2f} of the target's latency:",
                                              lossy_way().relative_latency / cascade_way().relative_latency)])

    def within(rule):
        """The setting of a rule that is best on the first split among those that take no longer than the target, or the target."""
        fast = [(r.rule, r.parameter) for r in pick(speculative, rule=rule, gamma=gamma) if r.relative_latency <= 1] + [TARGET]
        return max(fast, key=lambda s: h.setting(*s, "sampled_accuracy", h.first))

    def as_accurate(rule):
        return quickest([r for r in good if r.gamma == gamma and r.rule in (rule, "lossless")])

    def by_the_clock():
        """V3's gains over OPT. Where both fall back to the target or to lossless decoding nothing is decided."""
        v3, other, undecided = within("token-v3"), within("opt"), (0.0, 1e-4)
        sooner, later = as_accurate("token-v3"), as_accurate("opt")
        return [("accuracy within the target's time", *(undecided if v3 == other else h.apart(v3, other, "sampled_accuracy", h.second))),
                ("time at its accuracy", *(undecided if sooner is later else (later.relative_latency - sooner.relative_latency,)))]

    measure("token-over-opt-time", by_the_clock, "{:+.4f}",
            lambda: f"`{h.policies[within('token-v3')]}`, `{h.policies[within('opt')]}`; `{as_accurate('token-v3').policy}`, `{as_accurate('opt').policy}`")

    def width(gamma):
        own = [r.relative_latency for r in pick(speculative, rule="lenient", gamma=gamma)]
        return max(own) - min(own)

    if measure is verdicts.measure:
        measure("gamma-widens", lambda: [("", width(7) / width(3))])
    measure("speedup-formula", lambda: [("", statistics.median(abs(r.error) for r in speculative if not math.isnan(r.error)))], "{:.3f}",
            f"{len(speculative)} settings, worst {max(abs(r.error) for r in speculative):.2f}; measured is mostly less")
    return speculative


if have("latency", CASCADES):
    speculative = execution_claims(latency, bundled, verdicts.measure)
real_latency, up_latency = load("real-latency"), load("real-up-latency")
if real_latency and "head" in reads:
    execution_claims(real_latency, reads["head"], verdicts.measure_real)


@draw_with("latency", CASCADES)
def latency_plot():
    f, (axis,) = figure(7.4, 4.4)
    gamma = 3
    rules = [("ensemble", GREY), ("chow", ORANGE), ("diff", BLUE), ("token-v3", GREEN), ("lenient", RED)]
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
    due = bundled.setting(*TARGET, "sampled_accuracy")
    axis.axhline(due, color="#bbb", lw=1, zorder=0)
    axis.text(axis.get_xlim()[1], due, "target's accuracy ", size=8, color="#666", ha="right", va="bottom")
    axis.text(1, axis.get_ylim()[0], " target's latency", size=8, color="#666", ha="left", va="bottom")
    name_lines(axis, rules, step=0.065)
    axis.text(1.01, 0.55, f"o speculative,\n   gamma {gamma}\ns sequential\nx oracle", transform=axis.transAxes, size=8.5, va="top")
    axis.set_xlabel("measured time a token, over the target alone")
    axis.set_ylabel("chance that a sampled token is right")
    finish(f, "latency", f"Speculative execution: {sum(r.relative_latency < 1 for r in pick(speculative, gamma=gamma))} of "
           f"{len(pick(speculative, gamma=gamma))} settings are faster than the target alone")


@draw_with("latency", "cos-speed", "draft-length-speed")
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
        name_lines(axis, [(f"{name}: median error {100 * error:.0f} %", colour)], 0.98, 0.2 - 0.055 * i, ha="right")
    low, high = 0, max(max(axis.get_xlim()), max(axis.get_ylim()))
    axis.plot([low, high], [low, high], color="#bbb", lw=1, zorder=0)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel("predicted speed-up (formulas, measured call times)")
    axis.set_ylabel("measured speed-up")
    finish(f, "prediction", "Measured speed-ups beside those of the formulas")


@draw_with("real-latency", "real-cascades-head")
def real_latency_plot():
    shown = [(real_latency, reads["head"], "SmolLM2's head for SmolLM2, gamma 1 and 3")]
    if up_latency and "up" in reads:
        shown.append((up_latency, reads["up"], "SmolLM2 for Gemma, gamma 3"))
    f, axes = figure(5.4 * len(shown), 4, len(shown))
    for axis, (rows, h, title) in zip(axes, shown):
        for rule, colour in RULES:
            for execution, mark in (("speculative", "o"), ("sequential", "s"), ("oracle", "x")):
                of = pick(rows, rule=rule, execution=execution)
                known = [(r.relative_latency, h.setting(*(TARGET if rule == "lossless" else (rule, r.parameter)), "sampled_accuracy")) for r in of]
                axis.plot([x for x, _ in known], [y for _, y in known], mark, color=colour, ms=5)
        axis.axvline(1, color="#bbb", lw=1, zorder=0)
        axis.axhline(h.setting(*TARGET, "sampled_accuracy"), color="#bbb", lw=1, zorder=0)
        axis.set_title(title, weight="normal", size=9)
        axis.set_xlabel("measured time a token, over the target alone")
    axes[0].set_ylabel("chance that a sampled token is right")
    name_lines(axes[-1], RULES, 1.03)
    axes[-1].text(1.03, 0.45, "o speculative\ns sequential\nx oracle", transform=axes[-1].transAxes, size=8.5, va="top")
    finish(f, "real-latency", "Quality against measured time")


if times := load("times"):
    now["machine"] = (folder / "machine.txt").read_text().strip()
    now["scoring"] = [[f"{n}", f"{one(times, model='target', tokens=n).v:.2f}"] for n in range(2, 10)]
    now["draft_step"] = f"{one(times, model='draft', tokens=1).seconds / one(times, model='target', tokens=1).seconds:.2f}"
if have("latency", CASCADES):
    now["speculative"] = [[r.policy, f"{r.gamma:g}", f"{r.speedup:.2f}", f"{r.predicted:.2f}", f"{100 * r.error:+.0f} %",
                           f"{r.predicted_free_scoring:.2f}"] for r in speculative if r.gamma == 3]
