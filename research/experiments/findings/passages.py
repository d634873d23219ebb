# SPDX-License-Identifier: Apache-2.0
"""DRAGON: what passages at two sites are worth."""
import math, statistics

from findings.figures import BLUE, GREEN, GREY, ORANGE, RED, draw_with, figure, finish, label_ends
from findings.held_out import texts
from findings.parts import load, one, pick
from findings.verdicts import measure, measure_real


passages, dealt = load("dragon-passages"), load("dragon-dealt")  # these need Xapian
real_dealt, real_answers, real_rows = (load(f"real-dragon-{p}") for p in ("dealt", "answers", "rows"))


def read(text, law, n=16):
    return one(passages, text=text, law=law, passages=n)


if passages:
    both = [read(t, "both") for t in texts]
    measure("dragon-passages", lambda: [(f"{r.text}, {what}:", -getattr(r, m), getattr(r, m + "_se")) for r in both
                                        for what, m in (("over none", "minus_none"), ("over one a side", "minus_one"))], "{:+.4f}")
    measure("dragon-both", lambda: [(f"{t}, {s} alone:", read(t, s).minus_both, read(t, s).minus_both_se) for t in texts for s in ("device", "cloud")], "{:+.4f}")
    a, b = both
    measure("here-weights", lambda: [("apart", a.device_weight - b.device_weight, math.hypot(a.device_weight_se, b.device_weight_se)),
                                     ("Shakespeare", a.device_weight - 0.5, a.device_weight_se), ("Bible", 0.5 - b.device_weight, b.device_weight_se)],
            "{:+.3f}")


def spread(x):
    return statistics.mean(x), statistics.stdev(x) / math.sqrt(len(x)) if len(x) > 1 else math.nan


class Dealt:
    """One corpus dealt to both sites: a row for each window (or question), law and number of passages.
    The scale of relevance is chosen on one of `of` windows of a text (or questions), and what is measured is on the others.
    score: the column whose mean is to be small; of questions more exact answers are better."""
    def __init__(self, rows, score="nats", sign=1, of=2):
        self.at, self.of, order = {}, of, {}
        for r in rows:
            text = r["text"] if "text" in r else "all"
            unit = order.setdefault((text, r["window"] if "window" in r else r["answer"]), len(order))
            cell = self.at.setdefault((r["corpora"] if "corpora" in r else "dealt", r["law"], r["scale"], int(r.passages)), {})
            cell.setdefault(text, {})[unit] = (sign * getattr(r, score), r.device_weight if "device_weight" in r else math.nan)
        self.texts = list(dict.fromkeys(t for t, _ in order))
        scales = list(dict.fromkeys(k[2] for k in self.at if k[1] == "both"))
        self.most = max(n for *_, n in self.at)
        self.counts = sorted({n for *_, n in self.at if n})
        judged_at = self.counts if sign < 0 else [self.most]
        self.scale = min(scales, key=lambda s: sum(statistics.mean(self.units(("dealt", "both", s, n), t, choice=True)) for t in self.texts for n in judged_at))

    def key(self, law, n, corpora="dealt"):
        if law == "none":
            return next(k for k in self.at if k[1] == "none")
        return corpora, law, self.scale if (corpora, law, self.scale, n) in self.at else "", n

    def units(self, key, text, column=0, choice=False):
        of = self.at[key][text]
        some = [u for i, u in enumerate(sorted(of)) if (i % self.of == 0) == choice] or sorted(of)  # a quick run has one window
        return [of[u][column] for u in some]

    def less(self, law, other, n, text, corpora="dealt"):
        """(mean, standard error) of law's score less that of the other at the same windows."""
        a, b = (self.units(self.key(x, n, corpora), text) for x in (law, other))
        return spread([x - y for x, y in zip(a, b)])

    def of_both(self, law, other, n):
        of = [self.less(law, other, n, t) for t in self.texts]
        return statistics.mean(m for m, _ in of), math.hypot(*(e for _, e in of)) / len(of)


BASELINES_5 = ("none", "crcg-device-256", "crcg-cloud-256", "drcg-256")
figure_5 = lambda d: [(f"{b}, {n}:", *d.of_both(b, "both", n)) for b in BASELINES_5 for n in d.counts]
mixed_once = lambda d: [(f"{t}:", *d.less("sequence", "both", d.most, t)) for t in d.texts]
at_most = lambda d: (f"{d.most} a side, less DRAGON: " + ", ".join(f"{b} {d.of_both(b, 'both', d.most)[0]:+.3f}" for b in (*BASELINES_5, "crcg-cloud", "drcg"))
                     + f"; scale {d.scale}")
for r in passages if dealt else []:  # the program's own sites read the same passages at the same windows
    rows = pick(dealt, corpora="own", law=r.law, scale=0.1, passages=r.passages, text=r.text)
    assert not rows or abs(statistics.mean(x.nats for x in rows) - r.cross_entropy) < 1e-6, f"{r.text}, {r.law}, {r.passages} passages"
if dealt:
    d = Dealt(dealt)
    measure("dragon-dealt", lambda: figure_5(d), "{:+.3f}", lambda: at_most(d))
    measure("here-sequence-law", lambda: mixed_once(d), "{:+.3f}")
if real_dealt:
    d = Dealt(real_dealt)
    measure_real("dragon-dealt", lambda: figure_5(d), "{:+.3f}", lambda: at_most(d))
    measure_real("here-sequence-law", lambda: mixed_once(d), "{:+.3f}")

    def fewer(text, n):
        a, b = (d.units(d.key(*x), text) for x in (("none", 0) if n == 0 else ("both", n), ("both", d.most)))
        return spread([x - y for x, y in zip(a, b)])

    measure_real("dragon-passages", lambda: [(f"{t}, over {what}:", *fewer(t, n)) for t in d.texts for n, what in ((0, "none"), (1, "one a side"))], "{:+.3f}")
    own = max(n for c, *_, n in d.at if c == "own")
    (book, book_error), (page_, page_error) = (spread(d.units(d.key("both", own, "own"), t, 1)) for t in ("books", "manual"))
    measure_real("here-weights", lambda: [("apart", book - page_, math.hypot(book_error, page_error)), ("books", book - 0.5, book_error),
                                          ("manual", 0.5 - page_, page_error)], "{:+.3f}")
if real_answers:
    q = Dealt(real_answers, "exact", -1, 5)
    share = lambda law, n: 0.0 - statistics.mean(q.units(q.key(law, n), "all"))
    measure("here-answers", lambda: [(f"{b}, {n}:", *q.less(b, "both", n, "all")) for b in ("none", "crcg-cloud-256", "drcg-256", "sequence") for n in q.counts], "{:+.2f}",
            lambda: "exact with " + ", ".join(map(str, q.counts)) + " passages a side: " + "; ".join(
                f"{b} " + ", ".join(f"{share(b, n):.2f}" for n in q.counts) for b in ("both", "sequence", "cloud", "crcg-cloud", "drcg")) + f"; none {share('none', 0):.2f}")
if real_rows:
    sent = lambda codec: pick(real_rows, codec=codec)
    paper_row = sent("top-p 0.8 half")
    measure("dragon-compression", lambda: [("", statistics.mean(r.json_bytes for r in paper_row) / statistics.mean(r.bytes for r in paper_row))], "{:,.0f}",
            lambda: f"{statistics.mean(r.json_bytes for r in paper_row):,.0f} bytes of JSON, {statistics.mean(r.bytes for r in paper_row):,.0f} encoded")
    measure("dragon-preserving", lambda: [("", *spread([r.tv for r in paper_row]))], "{:.3f}", lambda: "; ".join(
        f"{c}: {statistics.mean(r.bytes for r in sent(c)):,.0f} bytes, TV {statistics.mean(r.tv for r in sent(c)):.3f}" for c in ("top-k 64 half", "counts 8 of 64")))


@draw_with("dragon-passages")
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
    finish(f, "dragon-passages", "Cross-entropy against passages: what each site gains over none (bands: one standard error)")


def dealt_lines(axis, d, laws, against, sign=1):
    """A line for each law against passages a side, less `against` (none: as it is)."""
    ends = []
    for law, label, colour in laws:
        points = [(n, *(d.of_both(law, against, n) if against else spread(d.units(d.key(law, n), "all")))) for n in d.counts]
        at, ys, es = range(len(points)), [sign * y for _, y, _ in points], [0 if math.isnan(e) else e for *_, e in points]
        axis.fill_between(at, [y - e for y, e in zip(ys, es)], [y + e for y, e in zip(ys, es)], color=colour, alpha=0.12, lw=0)
        axis.plot(at, ys, "o-", color=colour, lw=1.6, ms=4)
        ends.append((len(points) - 0.85, ys[-1], label, colour))
    label_ends(axis, ends, 0.06)
    axis.set_xlim(-0.2, len(d.counts) * 1.4)
    axis.set_xticks(range(len(d.counts)), d.counts)
    axis.set_xlabel("passages of each site")


DEALT_LAWS = (("both", "DRAGON", BLUE), ("sequence", "DRDG/SW", RED), ("crcg-cloud-256", "CRCG", GREEN), ("drcg-256", "DRCG", ORANGE),
              ("drcg", "DRCG, whole context", GREY))


@draw_with("dragon-dealt")
def dealt_plot():
    f, (axis,) = figure(7.2, 4, 1)
    dealt_lines(axis, Dealt(dealt), DEALT_LAWS[:-1], "none")  # trained on 256 tokens, it is lost in a longer context
    axis.set_ylabel("nats more than without passages")
    finish(f, "dragon-dealt", "One corpus dealt to both sites (bands: one standard error)")


@draw_with("real-dragon-dealt")
def real_plot():
    f, (left, *right) = figure(10.4 if real_answers else 5.6, 4, 2 if real_answers else 1)
    dealt_lines(left, Dealt(real_dealt), DEALT_LAWS, "none")
    left.set_ylabel("nats more than without passages")
    if real_answers:
        dealt_lines(right[0], Dealt(real_answers, "exact", -1, 5), DEALT_LAWS, None, -1)
        right[0].set_ylabel("share of exact answers")
    finish(f, "real-dragon-passages", "SmolLM2 on both sites, one corpus dealt to them (bands: one standard error)")
