# SPDX-License-Identifier: Apache-2.0
"""Cascades of models that read, on texts and questions."""
import math, statistics

from findings.figures import RULES, draw_with, figure, finish, name_lines, GREY
from findings.held_out import DEFERRAL, DRAFT, LOSSY, OVER, SHARES, TARGET, TOKEN, answers, reads, value
from findings.parts import load, one, pick, real_folder
from findings.verdicts import measure, measure_real, now

if reads:
    better = lambda h: max((TARGET, DRAFT), key=lambda s: h.setting(*s, "sampled_accuracy", h.first))
    best_of = lambda h, rule: h.chosen([rule], "sampled_accuracy", max, h.below_tv)
    as_good_of = lambda h: h.chosen(["token-v3"], "rejection", min,
                                    lambda r, p: h.setting(r, p, "sampled_accuracy", h.first) >= h.setting(*TARGET, "sampled_accuracy", h.first))
    larger = {name: h for name, h in {**reads, **answers}.items() if "down" not in name}  # the target is the larger model
    everywhere = {**reads, **answers}
    measure_real("cascade-over-target", lambda: [(name, *h.apart(best_of(h, "token-v3"), better(h), "sampled_accuracy", h.second))
                                                 for name, h in everywhere.items()], "{:+.4f}",
                 lambda: ", ".join(f"{name}: `{h.policies[best_of(h, 'token-v3')]}` {h.setting(*best_of(h, 'token-v3'), 'sampled_accuracy', h.second):.3f}, draft "
                                   f"{h.setting(*DRAFT, 'sampled_accuracy', h.second):.3f}, target {h.setting(*TARGET, 'sampled_accuracy', h.second):.3f}"
                                   for name, h in everywhere.items()))
    measure_real("cascade-saves-calls", lambda: [v for name, h in larger.items() for v in (
        (f"{name}: accuracy", *h.apart(as_good_of(h), TARGET, "sampled_accuracy", h.second)),
        (f"{name}: rejections", *h.apart(TARGET, as_good_of(h), "rejection", h.second)))], "{:+.4f}")
    measure_real("token-over-opt", lambda: [v for name, h in larger.items() for v in (
        (f"{name}: accuracy", *h.apart(best_of(h, "token-v3"), best_of(h, "opt"), "sampled_accuracy", h.second)),
        (f"{name}: rejections", *h.jackknife(lambda u: h.least_rejection("opt", u) - h.least_rejection("token-v3", u))))], "{:+.4f}")
    for id, a, b in OVER:
        measure_real(id, lambda: [(name, *h.gap(a, b)) for name, h in everywhere.items()], "{:+.4f}")
    measure_real("over-lossy", lambda: [(f"{r}, {name}", *h.gap(r, "lenient")) for r in ("token-v3", "opt") for name, h in everywhere.items()], "{:+.4f}")
    measure_real("v3-over-others", lambda: [(f"{r} at {100 * s:.0f} %, {name}", *h.gap("token-v3", r, shares=(s,)))
                                            for r in ("token-v1", "token-v2") for s in SHARES for name, h in everywhere.items()], "{:+.4f}")

    def narrower(h):
        at = lambda t, u: statistics.mean(value(h.curve(r, "sampled_accuracy", u, temperature=t), s * h.tv(u, temperature=t)) * sign
                                          for s in SHARES for r, sign in (("token-v3", 2), ("opt", -2)))
        return h.jackknife(lambda u: abs(at(1, u)) - abs(at(0.5, u)))

    measure_real("gap-shrinks", lambda: [(name, *narrower(h)) for name, h in reads.items()], "{:+.4f}")
    measure_real("kl-exact-beta", lambda: [(f"{r}, {name}", *h.gap(r, "lossy", "kl_target")) for r in ("lenient", "ensemble") for name, h in reads.items()], "{:+.4f}")
    best_rule = lambda h: h.chosen(DEFERRAL + ["token-v3"], "sampled_accuracy", max, h.below_tv)
    measure_real("here-colder", lambda: [(name, *h.apart(TARGET, best_rule(h), "sampled_accuracy", h.second, temperatures=(0.5, 1))) for name, h in reads.items()], "{:+.4f}",
                 lambda: ", ".join(f"{name}: `{h.policies[best_rule(h)]}`" for name, h in reads.items()))
    of_likeliest = lambda h: h.chosen(DEFERRAL + TOKEN + LOSSY, "argmax_accuracy", max)
    measure_real("here-likeliest", lambda: [(name, *h.apart(of_likeliest(h), better(h), "argmax_accuracy", h.second)) for name, h in everywhere.items()], "{:+.4f}")
real_times = load("real-times")
if real_times:
    now["real_machine"] = (real_folder / "machine.txt").read_text().strip()
if (written := load("real-texts")) and real_times:
    HEAD_COST = one(real_times, model="head", tokens=1).seconds / one(real_times, model="smollm2", tokens=1).seconds
    of_cascades = lambda execution: [r for r in pick(written, temperature=1, execution=execution)]
    same = [(s, q) for s in of_cascades("sequential") for q in of_cascades("speculative") if (s.rule, s.parameter) == (q.rule, q.parameter)]
    measure("cascade-work", lambda: [(f"alpha {s.parameter:g}:", q.target_tokens + HEAD_COST * q.draft_tokens - s.target_tokens - HEAD_COST * s.draft_tokens)
                                     for s, q in same], "{:+.2f}", "tokens that the target reads, and the head's at its share of a step")
    measure("cascade-calls", lambda: [(f"alpha {s.parameter:g}:", s.target_calls - q.target_calls) for s, q in same], "{:+.2f}")

    def above_sequence(temperature):
        """At no more target calls a token, the best speculative cascade's agreement with the target less SeqCascade's."""
        for s in pick(written, execution="sequence", temperature=temperature):
            no_dearer = [r for r in pick(written, execution="speculative", temperature=temperature) if r.rule in ("chow", "diff", "opt", "token-v3")
                         and r.target_calls <= s.target_calls]
            if no_dearer:
                top = max(no_dearer, key=lambda r: r.agreement)
                yield f"T {temperature:g}, alpha {s.parameter:g} at {s.target_calls:.2f} calls:", top.agreement - s.agreement, math.hypot(top.agreement_se, s.agreement_se)

    measure("over-sequence", lambda: list(above_sequence(0)), "{:+.3f}")


@draw_with("real-cascades-head")
def cascades_plot():
    f, axes = figure(12.4, 4, len(reads) + len(answers))
    rules = [*RULES[:-1], ("ensemble", GREY)]
    for axis, (name, h) in zip(axes, {**reads, **answers}.items()):
        for rule, colour in rules:
            points = [(x, y) for x, y in h.curve(rule, "sampled_accuracy") if x <= 1.02 * h.tv()]
            axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, ms=3, lw=1.4)
        axis.axhline(h.setting(*TARGET, "sampled_accuracy"), color="#bbb", lw=1, zorder=0)
        axis.axhline(h.setting(*DRAFT, "sampled_accuracy"), color="#bbb", lw=1, ls=":", zorder=0)
        axis.set_title(name, weight="normal", size=9)
        axis.set_xlabel("rejection rate")
    axes[0].set_ylabel("chance that a sampled token (answer) is right")
    name_lines(axes[-1], rules, 1.03)
    finish(f, "real-cascades", "Cascades of models that read (lines: the target; dotted: the draft model)")


@draw_with("real-texts")
def texts_plot():
    f, axes = figure(9.6, 4, 2)
    for axis, temperature, y in ((axes[0], 0, "agreement"), (axes[1], 1, "rouge_l")):
        for execution, mark in (("speculative", "o"), ("sequential", "s"), ("oracle", "x"), ("sequence", "^")):
            for rule, colour in RULES:
                of = sorted(pick(written, execution=execution, rule=rule, temperature=temperature), key=lambda r: r.target_calls)
                axis.plot([r.target_calls for r in of], [getattr(r, y) for r in of], mark + ("-" if len(of) > 1 else ""), color=colour, ms=5, lw=1)
        axis.set_xlabel("calls of the target a token")
        axis.set_title(f"temperature {temperature}", weight="normal", size=9)
    axes[0].set_ylabel("share of tokens that are the target's most likely")
    axes[1].set_ylabel("ROUGE-L with the true text")
    axes[1].text(1.03, 0.95, "o speculative, gamma 3\ns token by token\nx oracle\n^ whole texts", transform=axes[1].transAxes, size=8.5, va="top")
    name_lines(axes[1], RULES, 1.03, 0.6)
    finish(f, "real-texts", "What cascades of SmolLM2's head and SmolLM2 write")
