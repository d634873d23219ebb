# SPDX-License-Identifier: Apache-2.0
"""What cascades do at held-out positions: means over windows, and their errors."""
import bisect, math, statistics

from findings.parts import PAIRS, load

DEFERRAL = ["chow", "chow-log", "diff", "diff-log", "opt", "opt-log", "bild"]
TOKEN = ["token-v1", "token-v2", "token-v3"]
LOSSY = ["lossy", "lenient", "lossy-beta", "mentored"]
SHARES = (0.25, 0.5, 0.75)
# Claims of one rule over another at equal rejection.
OVER = (("opt-over-diff", "opt", "diff"), ("diff-over-chow", "diff", "chow"), ("diff-over-bild", "diff", "bild"), ("beta-1-as-good", "lenient", "lossy"))
MEASURES = ("rejection", "cross_entropy", "argmax_accuracy", "sampled_accuracy", "tv_target", "kl_target")

TARGET, DRAFT = ("ensemble", 0.0), ("ensemble", 1.0)
texts = ["shakespeare", "kjv"]


class HeldOut:
    """Parts with what each rule does at held-out positions, window by window; windows of the first text first."""
    def __init__(self, parts, texts, together=0):
        """parts: by pair. together: windows whose numbers are equal modulo it count as one (0: each is its own)."""
        self.cells = {}  # (pair, temperature, rule) -> {parameter: {measure: a number for each window}}
        self.policies, self.texts, self.pair, self.curves = {}, texts, next(iter(parts)), {}
        for pair, part in parts.items():
            shares = {}
            for r in load(part):
                at = self.cells.setdefault((pair, r.temperature, r.rule), {}).setdefault(r.parameter, {m: [] for m in MEASURES})
                self.policies[r.rule, r.parameter] = r["policy"]
                if not together:
                    for m in MEASURES:
                        at[m].append(getattr(r, m))
                else:
                    group = shares.setdefault((r.temperature, r.rule, r.parameter, r.text), [[] for _ in range(together)])
                    group[int(r.window) % together].append(r)
            for (temperature, rule, parameter, _), group in sorted(shares.items(), key=lambda g: texts.index(g[0][3])):
                for m in MEASURES:
                    self.cells[pair, temperature, rule][parameter][m] += [statistics.mean(getattr(r, m) for r in g) for g in group if g]
        first = next(iter(next(iter(self.cells.values())).values())) if self.cells else {"rejection": ()}
        per_text = len(first["rejection"]) // len(texts)
        self.windows = {t: tuple(range(i * per_text, (i + 1) * per_text)) for i, t in enumerate(texts)}
        self.windows["mix"] = tuple(range(len(texts) * per_text))
        self.first = tuple(w for w in self.windows["mix"] if w % 2 == 0)  # rules and parameters are chosen on these windows
        self.second = tuple(w for w in self.windows["mix"] if w % 2)      # and reported on those

    def setting(self, rule, parameter, y, use=None, pair=None, temperature=1):
        return mean(self.cells[pair or self.pair, temperature, rule][parameter][y], use or self.windows["mix"])

    def curve(self, rule, y="cross_entropy", use=None, pair=None, temperature=1):
        """(rejection, y), by rejection; of equal rejections the first."""
        asked = rule, y, use, pair, temperature
        if asked not in self.curves:
            points, use = {}, use or self.windows["mix"]
            for numbers in self.cells[pair or self.pair, temperature, rule].values():
                points.setdefault(round(mean(numbers["rejection"], use), 6), mean(numbers[y], use))
            self.curves[asked] = sorted(points.items())
        return self.curves[asked]

    def tv(self, use=None, pair=None, temperature=1):
        return mean(self.cells[pair or self.pair, temperature, "ensemble"][0.0]["rejection"], use or self.windows["mix"])

    def jackknife(self, f, use=None):
        """f over windows, and its standard error: f without each window in turn, text by text. What is compared in f is
        compared at the same windows, so errors of differences are paired."""
        use = use or self.windows["mix"]
        whole, square = f(use), 0
        for t in self.texts:
            own = [w for w in use if w in self.windows[t]]
            if len(own) < 2:
                continue
            without = [f(tuple(x for x in use if x != w)) for w in own]
            middle, n = statistics.mean(without), len(own)
            square += (n - 1) / n * sum((x - middle) ** 2 for x in without)
        return whole, math.sqrt(square)

    def gap(self, a, b, y="sampled_accuracy", shares=SHARES, use=None, **where):
        """Rule a less rule b at equal rejection: the mean at some shares of TV(q, p), and its paired error."""
        use = use or self.windows["mix"]

        def at(share, use):
            x = share * self.tv(use, **where)
            return value(self.curve(a, y, use, **where), x) - value(self.curve(b, y, use, **where), x)
        known = [s for s in shares if not math.isnan(at(s, use))]
        return self.jackknife(lambda u: statistics.mean(at(s, u) for s in known), use) if known else (math.nan, math.nan)

    def apart(self, a, b, y, use, sign=1, temperatures=(1, 1), pair=None):
        """Setting a less setting b, each (rule, parameter)."""
        return self.jackknife(lambda u: sign * (self.setting(*a, y, u, pair, temperatures[0]) - self.setting(*b, y, u, pair, temperatures[1])), use)

    def chosen(self, rules, y, best, allowed=lambda rule, parameter: True, pair=None):
        """The setting that is best on the first split."""
        return best(((r, p) for r in rules for p in self.cells[pair or self.pair, 1, r] if allowed(r, p)),
                    key=lambda s: self.setting(*s, y, self.first, pair))

    def below_tv(self, rule, parameter):
        return self.setting(rule, parameter, "rejection", self.first) <= self.tv(self.first)

    def least_rejection(self, rule, use):
        """The least rejection rate at which a rule has the target's accuracy, linear between its parameters."""
        due, points = self.setting(*TARGET, "sampled_accuracy", use), self.curve(rule, "sampled_accuracy", use)
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            if y1 >= due:
                return x1 if y0 >= due else x0 + (x1 - x0) * (due - y0) / (y1 - y0)
        return math.nan


def mean(values, use):
    return sum(values[w] for w in use) / len(use)


def value(points, x):
    """Linear between points, NaN outside: a rule between two parameters takes one of them by a coin."""
    i = bisect.bisect_left([p[0] for p in points], x)
    if i < len(points) and points[i][0] == x:
        return points[i][1]
    if i == 0 or i == len(points):
        return math.nan
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


bundled = HeldOut({p: f"cascades-{p}" for p in PAIRS}, texts)
cells, policies, WINDOWS, FIRST, SECOND = bundled.cells, bundled.policies, bundled.windows, bundled.first, bundled.second
setting, curve, tv, jackknife, gap, apart, chosen = (bundled.setting, bundled.curve, bundled.tv, bundled.jackknife, bundled.gap,
                                                     bundled.apart, bundled.chosen)

# Models that read: (a) SmolLM2's head for SmolLM2, (b) SmolLM2 for Gemma, (d) Gemma for SmolLM2; texts, and questions.
DOMAINS, TASKS = ["manual", "handbook", "jargon"], ["capital", "code"]
reads = {"head": HeldOut({"head-smollm2": "real-cascades-head"}, DOMAINS), "up": HeldOut({"smollm2-gemma": "real-cascades-up"}, DOMAINS),
         "down": HeldOut({"gemma-smollm2": "real-cascades-down"}, DOMAINS)}
answers = {"answers up": HeldOut({"smollm2-gemma": "real-answers-up"}, TASKS, 16),
           "answers down": HeldOut({"gemma-smollm2": "real-answers-down"}, TASKS, 16)}
reads, answers = ({name: h for name, h in all.items() if h.cells} for all in (reads, answers))
