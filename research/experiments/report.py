#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the CSV files of specagg-experiments to plots and results.json, from which page.py writes the page. claims.json says
what is claimed and when it holds; here it is measured. Every verdict is judge()'s.

usage: report.py FOLDER PAGE.md      plots and results.json go into a folder beside the page, named like it

Parts with models that read are in FOLDER-real. What follows from a part whose CSV file is in neither stays as the
results.json there has it.
"""
import bisect, csv, json, math, os, pathlib, random, statistics, subprocess, sys, types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import recorded

try:
    import matplotlib
except ImportError:  # Debian's matplotlib belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    matplotlib = None
    print("report.py: there is no matplotlib (Debian: python3-matplotlib): tables, but no plots", file=sys.stderr)

folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
real_folder = folder.with_name(f"{folder.name}-real")
plots = page.with_suffix("")
settings = ""


class Row(dict):
    """A line of a CSV file: numbers where they are numbers; a missing one is NaN."""
    def __getattr__(self, name):
        x = self[name]
        try:
            return float(x) if x != "" else math.nan
        except ValueError:
            return x


loaded, timed_parts, timed = set(), set(), []


def load(part):
    """The rows of a part, none if it was not run. Where its ways were timed in turn with what they are compared with,
    several times, a row has all the speed-ups (`speedups`): its speed-up is their median."""
    global settings
    path = next((p for f in (folder, real_folder) for p in (f / "exact" / f"{part}.csv", f / "timed" / f"{part}.csv") if p.exists()), None)
    if path is None:
        return []
    loaded.add(part)
    with open(path, newline="") as file:
        settings = file.readline()
        rows = [Row(r) for r in csv.DictReader(file)]
    for r in rows:
        if "speedups" in r:
            r.repeats = [float(x) for x in r["speedups"].split(";")]
            shared = [k for k in ("models", "pair", "policy", "temperature") if k in r]  # what rows of the same repeats have in common
            r.timed_with = (part, *(r[k] for k in shared))
            timed.append(r)
            timed_parts.add(part)
    return rows


def have(*parts):
    return loaded.issuperset(parts)


PAIRS = ["draft-target", "bard-bible", "bible-bard"]
CASCADES, EXPERTS = "cascades-draft-target", "bard-bible"
passages, dealt = load("dragon-passages"), load("dragon-dealt")  # these need Xapian
real_dssd = load("real-dssd")
real_dealt, real_answers, real_rows, real_sites = (load(f"real-dragon-{p}") for p in ("dealt", "answers", "rows", "latency"))
acceptance, verifiers, cos_calls, lengths = load("acceptance"), load("verifiers"), load("cos-calls"), load("draft-length")
times, latency, cos_speed, length_speed = load("times"), load("latency"), load("cos-speed"), load("draft-length-speed")
dssd, paired, dragon, eq5 = load("dssd"), load("dssd-paired"), load("dragon-latency"), load("dragon-acceptance")
bilds, regrets, devices = load("bild"), load("regret"), load("dragon-devices")


def use_repeats(drawn=None):
    """Speed-ups from the repeats drawn for each group of rows that were timed together (None: from all), and what follows
    from them."""
    for r in timed:
        chosen = drawn[r.timed_with] if drawn else range(len(r.repeats))
        r["speedup"] = statistics.median(r.repeats[i] for i in chosen)
        r["relative_latency"] = 1 / r["speedup"]
        if "predicted" in r:
            r["error"] = r["speedup"] / r.predicted - 1


def timing_errors(f, draws=200):
    """The standard error of each of f()'s values: they are computed again from repeats drawn with replacement (a
    bootstrap), for all that was timed in the same repeats together."""
    chance, values = random.Random(1), []
    sizes = {r.timed_with: len(r.repeats) for r in timed}
    try:
        for _ in range(draws):
            use_repeats({group: [chance.randrange(n) for _ in range(n)] for group, n in sizes.items()})
            values.append([v[1] for v in f()])
    finally:
        use_repeats()
    return [statistics.pstdev(of_one) for of_one in zip(*values)]


use_repeats()


def pick(rows, **where):
    return [r for r in rows if all(getattr(r, k) == v for k, v in where.items())]


def one(rows, **where):
    return pick(rows, **where)[0]


# ---- cascades: means and errors over windows ------------------------------------------------------------------------

DEFERRAL = ["chow", "chow-log", "diff", "diff-log", "opt", "opt-log", "bild"]
TOKEN = ["token-v1", "token-v2", "token-v3"]
LOSSY = ["lossy", "lenient", "lossy-beta", "mentored"]
SHARES = (0.25, 0.5, 0.75)
MEASURES = ("rejection", "cross_entropy", "argmax_accuracy", "sampled_accuracy", "tv_target", "kl_target")
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


TARGET, DRAFT = ("ensemble", 0.0), ("ensemble", 1.0)
texts = ["shakespeare", "kjv"]
bundled = HeldOut({p: f"cascades-{p}" for p in PAIRS}, texts)
cells, policies, WINDOWS, FIRST, SECOND = bundled.cells, bundled.policies, bundled.windows, bundled.first, bundled.second
setting, curve, tv, jackknife, gap, apart, chosen = (bundled.setting, bundled.curve, bundled.tv, bundled.jackknife, bundled.gap,
                                                     bundled.apart, bundled.chosen)
quick = "quick" in settings
# Models that read: (a) SmolLM2's head for SmolLM2, (b) SmolLM2 for Gemma, (d) Gemma for SmolLM2; texts, and questions.
DOMAINS, TASKS = ["manual", "handbook", "jargon"], ["capital", "code"]
reads = {"head": HeldOut({"head-smollm2": "real-cascades-head"}, DOMAINS), "up": HeldOut({"smollm2-gemma": "real-cascades-up"}, DOMAINS),
         "down": HeldOut({"gemma-smollm2": "real-cascades-down"}, DOMAINS)}
answers = {"answers up": HeldOut({"smollm2-gemma": "real-answers-up"}, TASKS, 16),
           "answers down": HeldOut({"gemma-smollm2": "real-answers-down"}, TASKS, 16)}
reads, answers = ({name: h for name, h in all.items() if h.cells} for all in (reads, answers))

# ---- claims ---------------------------------------------------------------------------------------------------------

with open(pathlib.Path(__file__).with_name("claims.json")) as file:
    CLAIMS = json.load(file)["claims"]
judged = {}  # id -> verdict, values as the page shows them, how many hold and fail, what else was measured
real = {}    # the same with models that read


def judge(test, values):
    """The verdict of a claim: see claims.json. values: (label, value, standard error)."""
    def outcome(v, e):
        e = max(test.get("within", 0), 2 * e)
        over = (lambda: v - e >= test["at_least"], lambda: v + e < test["at_least"]) if "at_least" in test else \
               (lambda: v + e <= test["at_most"], lambda: v - e > test["at_most"])
        return "holds" if over[0]() else "fails" if over[1]() else "open"
    all = [outcome(v, e) for _, v, e in values]
    holds, fails, n = all.count("holds"), all.count("fails"), len(all)
    of = test.get("of", "each")
    if of == "most":
        verdict = "yes" if 2 * holds > n else "no" if 2 * fails >= n else "undecided"
    elif of == "any":
        verdict = "yes" if holds else "no" if fails == n else "undecided"
    else:
        verdict = "yes" if holds == n else "no" if fails == n else "in part" if fails else "undecided"
    return verdict, all


def found(part, test, f, form, note):
    """What a claim's measure f() gives in a part, judged; None if the part was not run. f() -> (label, value[, standard
    error]), of a speed without the error. In a quick run values may lack."""
    if not have(part):
        return None
    try:
        values = [(v[0], v[1], v[2] if len(v) > 2 else 0.0) for v in f()]
        if not values or any(math.isnan(v) for _, v, _ in values):
            raise ValueError(f"{part}: a claim has no value")
        if part in timed_parts and not all(e for _, _, e in values):
            values = [(l, v, e or of_time) for (l, v, e), of_time in zip(values, timing_errors(f))]
    except (LookupError, ValueError, ZeroDivisionError, TypeError):
        if not quick:
            raise
        return {"verdict": "not in a quick run", "values": [], "of": 0, "hold": 0, "fail": 0, "note": ""}
    verdict, outcomes = judge(test, values)
    shown = values if len(values) <= 6 else [min(values, key=lambda v: v[1]), max(values, key=lambda v: v[1])]
    return {"verdict": verdict, "values": [[label, form.format(v), form.replace("+", "").format(e) if e else ""] for label, v, e in shown],
            "of": len(values), "hold": outcomes.count("holds"), "fail": outcomes.count("fails"), "note": note() if callable(note) else note}


def measure_bundled(id, f, form="{:.2f}", note=""):
    claim = next(c for c in CLAIMS if c["id"] == id)
    if m := found(claim["part"], claim["test"], f, form, note):
        (real if claim["part"].startswith("real-") else judged)[id] = m


measure = measure_bundled


def measure_real(id, f, form="{:.2f}", note=""):
    """The same claim with models that read: claims.json says under `real` in which part, and by which test if another; it
    has no `real` where they measure nothing that the bundled models do not."""
    claim = next(c for c in CLAIMS if c["id"] == id)
    if "real" not in claim:
        return
    if m := found(claim["real"]["part"], claim["real"].get("test", claim["test"]), f, form, note):
        real[id] = m


# with models that read
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
    for id, a, b in (("opt-over-diff", "opt", "diff"), ("diff-over-chow", "diff", "chow"),
                     ("diff-over-bild", "diff", "bild"), ("beta-1-as-good", "lenient", "lossy")):
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
if (written := load("real-texts")) and real_times:
    HEAD_COST = one(real_times, model="head", tokens=1).seconds / one(real_times, model="smollm2", tokens=1).seconds
    way = lambda r: f"{r.execution} {r.policy}"
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

if have(CASCADES):
    dt = dict(pair="draft-target")
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
    for id, a, b in (("opt-over-diff", "opt", "diff"), ("diff-over-chow", "diff", "chow"),
                     ("diff-over-bild", "diff", "bild"), ("beta-1-as-good", "lenient", "lossy")):
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
    steps = list(zip((0.1, 0.3, 0.5, 0.7), (0.3, 0.5, 0.7, 0.9)))
    measure("trade-quality", lambda: [(f"lambda {a:g} to {b:g}", *apart(("ensemble", a), ("ensemble", b), "sampled_accuracy", WINDOWS["mix"]))
                                      for a, b in steps], "{:+.4f}",
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

# executions
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

    if measure is measure_bundled:
        measure("gamma-widens", lambda: [("", width(7) / width(3))])
    measure("speedup-formula", lambda: [("", statistics.median(abs(r.error) for r in speculative if not math.isnan(r.error)))], "{:.3f}",
            f"{len(speculative)} settings, worst {max(abs(r.error) for r in speculative):.2f}; measured is mostly less")
    return speculative


if have("latency", CASCADES):
    speculative = execution_claims(latency, bundled, measure_bundled)
real_latency, up_latency = load("real-latency"), load("real-up-latency")
use_repeats()
if real_latency and "head" in reads:
    execution_claims(real_latency, reads["head"], measure_real)

# original BiLD
if have("bild"):
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
if have("regret"):
    for id, loss in (("regret-01", "0-1"), ("regret-log", "log")):
        rows = pick(regrets, loss=loss)
        measure(id, lambda: [("", max(r.largest_share for r in rows))], "{:.3f}",
                f"mean regret {statistics.mean(r.regret for r in rows):.4f}, mean bound {statistics.mean(r.bound for r in rows):.3f}; "
                f"{sum(r.positions for r in rows):.0f} decisions, {100 * statistics.mean(r.wrong for r in rows):.0f} % of them not the best")

# CoS
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
    return types.SimpleNamespace(WE=WE, SWAPPED=SWAPPED, CD=CD, TRADE=TRADE, THREE=THREE, best_speed=best_speed, renewal=renewal, mus=mus)


if have("cos-speed", "cos-calls"):
    of_cos = cos_claims(cos_calls, cos_speed, ("bard-bible", "bible-bard", "draft-target", "bard-bible-target"), measure_bundled)
    WE, SWAPPED, CD, TRADE, THREE, best_speed, renewal, mus = vars(of_cos).values()
EXPERTS_THAT_READ = "smollm2/plain-smollm2/vivid"
real_calls, real_speed, real_tasks = load("real-cos-calls"), load("real-cos-speed"), load("real-cos-tasks")
use_repeats()
if real_calls and real_speed:
    cos_claims(real_calls, real_speed, (EXPERTS_THAT_READ, "", "amateur-smollm2", EXPERTS_THAT_READ + "-smollm2/teacher"), measure_real)
if real_tasks:
    fewest = lambda task: min(r.calls for r in pick(real_tasks, task=task, method="alternating"))
    measure("cos-tasks", lambda: [(f"{free} less {fixed}:", fewest(free) - fewest(fixed)) for free in ("story", "chat") for fixed in ("code", "rewrite")],
            "{:+.2f}", lambda: ", ".join(f"{task} {2 / fewest(task):.2f}" for task in ("code", "rewrite", "story", "chat")) + " times fewer calls")

# verifiers
if have("verifiers", "acceptance"):
    def verified(pair, temperature, gamma, name):
        return one(verifiers, pair=pair, temperature=temperature, gamma=gamma, verifier=name)

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

# DRAGON
if have("dragon-latency"):
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
        own, rivals = at_two("independent", "Eq 8", d, t, v), [at_two("independent", s, d, t, v) for s in ("device", "cloud", "random")]
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
if have("dragon-devices"):
    share = pick(devices, what="share saved")
    measure("dragon-tokenwise", lambda: [(f"device {r.device_ms:g} ms", r.mean, r.se) for r in share], "{:.3f}",
            "device of " + ", ".join(f"{r.device_ms:g} ms: {r.mean:.3f}" for r in share))
    saved = lambda side, d: one(devices, what="ms saved", side=side, delay_ms=d)
    BASELINES = ("device", "cloud", "random")
    measure("dragon-gains-grow", lambda: [(b, saved(b, 300).mean - saved(b, 100).mean, math.hypot(saved(b, 300).se, saved(b, 100).se))
                                          for b in BASELINES], "{:+.1f}",
            "; ".join(f"{b}: {saved(b, 100).mean:.1f} ms at 100 ms, {saved(b, 300).mean:.1f} ms at 300 ms" for b in BASELINES))
    measure("dragon-ttft", lambda: [("", statistics.mean((52.6 + r.mean) / (52.6 + 88) - 1 for r in pick(devices, what="first")))], "{:.3f}")
if have("dragon-acceptance"):
    measure("dragon-eq5", lambda: [("", max(r.largest_distance for r in eq5))], "{:.1e}",
            ", ".join(f"gamma_l {r.gamma_l:g}: alpha^l {r.acceptance_l:.3f}, alpha^r {r.acceptance_r:.3f}" for r in pick(eq5, eta_l=0.5)))
    measure("dragon-4.2", lambda: [("", min(r.least_gain for r in eq5))], "{:+.1e}")


def read(text, law, n=16):
    return one(passages, text=text, law=law, passages=n)


if passages:
    both = [read(t, "both") for t in texts]
    measure("dragon-passages", lambda: [(f"{r.text}, {what}:", -getattr(r, m), getattr(r, m + "_se")) for r in both
                                        for what, m in (("over none", "minus_none"), ("over one a side", "minus_one"))], "{:+.4f}")
    measure("dragon-both", lambda: [(f"{t}, {s} alone:", read(t, s).minus_both, read(t, s).minus_both_se) for t in texts for s in ("device", "cloud")], "{:+.4f}")
    weight = {t: read(t, "both") for t in texts}
    a, b = weight["shakespeare"], weight["kjv"]
    measure("here-weights", lambda: [("apart", a.device_weight - b.device_weight, math.hypot(a.device_weight_se, b.device_weight_se)),
                                     ("Shakespeare", a.device_weight - 0.5, a.device_weight_se), ("Bible", 0.5 - b.device_weight, b.device_weight_se)],
            "{:+.3f}")

# One corpus dealt to both sites: a row for each window (or question), law and number of passages

def spread(x):
    return statistics.mean(x), statistics.stdev(x) / math.sqrt(len(x)) if len(x) > 1 else math.nan


class Dealt:
    """The scale of relevance is chosen on one of `of` windows of a text (or questions), and what is measured is on the others.
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
if real_sites:
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

# DSSD
if have("dssd", "verifiers", "acceptance"):
    grid = pick(dssd, pair="draft-target", temperature=1, vocabulary=50000)
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
if have("dssd-paired"):
    links = lambda same: [r for r in paired if (r.down_mbit_per_s == r.up_mbit_per_s) == same]
    slower = [r for r in links(False) if r.gain_ms < 0]
    label = lambda r: f"{r.pair}, gamma {r.gamma:g}, {r.up_mbit_per_s:g} up, {r.down_mbit_per_s:g} down:"
    measure("dssd-algebra", lambda: [(label(r), r.gain_ms, r.gain_se) for r in links(True)], "{:.1f}")
    measure("dssd-asymmetric", lambda: [(label(r), r.gain_ms, r.gain_se) for r in links(False)], "{:+.1f}",
            f"DSSD is the slower one at {len(slower)} of {len(links(False))}: " + ", ".join(
                f"gamma {g:g} where the link down is slower than 1/{max([r.up_mbit_per_s / r.down_mbit_per_s for r in links(False) if r.gamma == g and r.gain_ms >= 0], default=1):g} of up"
                for g in sorted({r.gamma for r in slower})))
# draft length
if have("draft-length"):
    rates = {}
    for r in lengths:
        rates.setdefault((r.pair, r.temperature, r.prices), []).append(r)
    share = lambda v, how: next(r for r in v if r.how == how).tokens_per_cost / max(r.tokens_per_cost for r in v if r.how != "marginal")
    marginal = {k: share(v, "marginal") for k, v in rates.items()}
    measure("marginal-value", lambda: [(f"{p}, T {t:g}, {w}:", x) for (p, t, w), x in marginal.items()])
    measure("one-acceptance", lambda: [(f"{p}, T {t:g}, {w}:", share(v, "planned")) for (p, t, w), v in rates.items() if any(r.how == "planned" for r in v)])

# What was not run stays as it is recorded, if that is of the same seed and size.
try:
    earlier = json.loads((plots / "results.json").read_text())
except FileNotFoundError:
    earlier = {}
seed = int(settings.split("seed ")[1].split(";")[0])
if (earlier.get("seed"), earlier.get("quick")) != (seed, quick):
    earlier = {}
judged, real = {**earlier.get("claims", {}), **judged}, {**earlier.get("real", {}), **real}
missing = [c["id"] for c in CLAIMS if c["id"] not in {**judged, **real} and have(c["part"])] + [
    f"{c['id']} (real)" for c in CLAIMS if "real" in c and c["id"] not in real and have(c["real"]["part"])]
assert not missing, f"claims without a measure: {missing}"

# ---- plots ----------------------------------------------------------------------------------------------------------

BLUE, GREY, RED, GREEN, ORANGE, PURPLE = "#1f6fb4", "#8a939b", "#c44e52", "#2f8f4e", "#d9822b", "#7b5ea7"
COLOUR = {"ensemble": GREY, "diff": BLUE, "opt": PURPLE, "chow": ORANGE, "token-v1": "#8c6d31", "token-v2": "#5aa9e6", "token-v3": GREEN,
          "lenient": RED, "lossy": RED, "bild": "#8c6d31", "diff-log": "#5aa9e6"}
if matplotlib is not None:
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "specagg",
                         "svg.fonttype": "none", "axes.titleweight": "bold", "axes.titlelocation": "left",
                         "axes.titlesize": 10})
    plots.mkdir(parents=True, exist_ok=True)


def figure(width=7.2, height=4.2, columns=1):
    f, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    return f, list(axes[0])


def finish(f, name, title):
    f.suptitle(title, x=0.01, ha="left", weight="bold", size=10.5)
    f.tight_layout()
    f.savefig(plots / f"{name}.svg", metadata={"Date": None})
    plt.close(f)


def label_ends(axis, ends, gap=0.045):
    """Text at the right ends of lines, (x, y, text, colour), moved apart where they would overlap."""
    low, high = axis.get_ylim()
    step = gap * (high - low)
    ends = sorted(ends, key=lambda e: e[1])
    at = [e[1] for e in ends]
    for _ in range(200):
        for i in range(len(at) - 1):
            if at[i + 1] - at[i] < step:
                middle = (at[i] + at[i + 1]) / 2
                at[i], at[i + 1] = middle - step / 2, middle + step / 2
    for (x, _, text, colour), y in zip(ends, at):
        axis.text(x, y, " " + text, color=colour, va="center", ha="left", size=8.5)



def point_labels(axis, labels):
    """Text beside a point of its line, moved up or down where two would overlap: (x, y, text, colour, above)."""
    for x, y, text, colour, above in labels:
        axis.annotate(text, (x, y), xytext=(0, 7 if above else -7), textcoords="offset points", color=colour, ha="center",
                      va="bottom" if above else "top", size=8.5, weight="bold")


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


def temperature_plot():
    f, axes = figure(9.2, 3.5, 3)
    for axis, t in zip(axes, (1, 0.5, 0)):
        most = tv(temperature=t)
        ends = []
        for rule in ("ensemble", "diff", "opt", "token-v3"):
            y = "sampled_accuracy"
            points = [p for p in curve(rule, temperature=t, y=y) if p[0] <= 1.001 * most]
            axis.plot(*zip(*points), color=COLOUR.get(rule, GREEN), lw=3 if rule == "ensemble" else 1.6,
                      ls="--" if rule == "opt" else "-", zorder=1 if rule == "ensemble" else 2)
            if t == 0.5:
                ends.append((0.5 * most, value(points, 0.5 * most), rule, COLOUR.get(rule, GREEN)))
        axis.set_xlabel("rejection rate")
        axis.set_title(f"temperature {t:g}" + " (the most likely token)" * (t == 0), weight="normal", size=9)
    axes[0].set_ylabel("chance that a sampled token is right")
    for i, (rule, note) in enumerate((("token-v3", ""), ("opt", " (dashed)"), ("diff", ""), ("ensemble", ""))):
        axes[0].text(0.97, 0.27 - 0.08 * i, rule + note, color=COLOUR.get(rule, GREEN), transform=axes[0].transAxes,
                     ha="right", size=8.5, weight="bold")
    gaps = [abs(gap("token-v3", "diff", temperature=t)[0]) for t in (1, 0.5)]
    finish(f, "cascades-temperature", "Three temperatures: the distance of token-v3 and diff " +
           ("shrinks" if gaps[1] < gaps[0] else "does not shrink") + " from 1 to 0.5")


def frontier():
    f, (left, right) = figure(9.2, 4, 2)
    most = tv()
    names = {"lossy": "lossy, exact beta", "lenient": "lossy, beta 1", "lossy-beta": "lossy, beta 1 - alpha", "ensemble": "ensemble",
             "diff": "diff"}
    colours = {"lossy": GREEN, "lenient": BLUE, "lossy-beta": RED, "ensemble": GREY, "diff": ORANGE}
    styles = {"lossy": "-", "lenient": "--"}
    ends = []
    for rule in names:
        points = [p for p in curve(rule, y="tv_target") if p[0] <= 1.001 * most]
        left.plot(*zip(*points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
        kl_points = [p for p in curve(rule, y="kl_target") if p[0] <= 1.001 * most]
        right.plot(*zip(*kl_points), color=colours[rule], lw=4 if rule == "ensemble" else 1.6, ls=styles.get(rule, "-"))
        ends.append((0.42 * most, value(kl_points, 0.3 * most), names[rule], colours[rule]))
    left.set_ylabel("TV(pi, p): distance to the target")
    right.set_ylabel("KL(p || pi), nats")
    for axis in (left, right):
        axis.set_xlabel("rejection rate")
    for i, rule in enumerate(("diff", "lossy-beta", "ensemble", "lenient", "lossy")):
        right.text(0.98, 0.95 - 0.07 * i, names[rule] + (" (dashed)" if rule == "lenient" else ""), color=colours[rule],
                   transform=right.transAxes, ha="right", size=8.5, weight="bold")
    left.text(0.98, 0.95, "all but beta 1 - alpha on one line:\nP(reject) + TV(pi, p) = TV(q, p)", transform=left.transAxes,
              ha="right", va="top", size=8.5)
    order = sorted(("lossy", "lenient", "ensemble", "diff"), key=lambda r: value(curve(r, "kl_target"), 0.5 * most))
    finish(f, "frontier", "At equal rejection all are equally far from p in TV; nearest in KL: " + ", then ".join(names[r] for r in order[:2]))


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
    axis.axhline(target["sampled_accuracy"], color="#bbb", lw=1, zorder=0)
    axis.text(axis.get_xlim()[1], target["sampled_accuracy"], "target's accuracy ", size=8, color="#666", ha="right", va="bottom")
    axis.text(1, axis.get_ylim()[0], " target's latency", size=8, color="#666", ha="left", va="bottom")
    for i, (rule, colour) in enumerate(rules):
        axis.text(1.01, 0.95 - 0.065 * i, rule, color=colour, transform=axis.transAxes, size=8.5, weight="bold")
    axis.text(1.01, 0.55, f"o speculative,\n   gamma {gamma}\ns sequential\nx oracle", transform=axis.transAxes, size=8.5, va="top")
    axis.set_xlabel("measured time a token, over the target alone")
    axis.set_ylabel("chance that a sampled token is right")
    finish(f, "latency", f"Speculative execution: {sum(r.relative_latency < 1 for r in pick(speculative, gamma=gamma))} of "
           f"{len(pick(speculative, gamma=gamma))} settings are faster than the target alone")


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
        axis.text(0.98, 0.2 - 0.055 * i, f"{name}: median error {100 * error:.0f} %", color=colour, transform=axis.transAxes,
                  ha="right", size=8.5, weight="bold")
    low, high = 0, max(max(axis.get_xlim()), max(axis.get_ylim()))
    axis.plot([low, high], [low, high], color="#bbb", lw=1, zorder=0)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel("predicted speed-up (formulas, measured call times)")
    axis.set_ylabel("measured speed-up")
    finish(f, "prediction", "Measured speed-ups beside those of the formulas")


def cos_plots():
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


def trade_plot():
    f, (axis,) = figure(6.4, 3.8)
    weights = sorted({r.value for r in TRADE})
    best = {x: best_speed(TRADE, "alternating", value=x) for x in weights}
    accuracy = [setting("ensemble", x, "sampled_accuracy") for x in weights]
    axis.plot(list(best.values()), accuracy, "o-", color=BLUE, ms=4)
    point_labels(axis, [(v, y, f"lambda {x:g}", BLUE, True) for (x, v), y in zip(best.items(), accuracy)])
    axis.margins(0.15)
    axis.set_xlabel("speed-up of CoS over both models at every token, best gamma")
    axis.set_ylabel("chance that a sampled token is right")
    finish(f, "cos-trade", "An ensemble of draft (weight lambda) and target: quality against speed")


def verifier_plots():
    gamma = 4
    f, (axis,) = figure(7.4, 3.8)
    groups = [(p, t) for p in ("draft-target", "bard-bible") for t in (1, 0.5)]
    for i, (name, colour) in enumerate((("match", GREY), ("coupled", ORANGE), ("token", BLUE), ("block", GREEN))):
        rows = [verified(*g, gamma, name) for g in groups]
        x = [k + (i - 1.5) * 0.2 for k in range(len(groups))]
        axis.bar(x, [r.accepted for r in rows], 0.19, color=colour, yerr=[r.accepted_se for r in rows],
                 error_kw=dict(lw=1, ecolor="#333"))
        axis.text(x[0], rows[0].accepted + rows[0].accepted_se + 0.03, name, rotation=90, color=colour, ha="center", va="bottom",
                  size=8.5, weight="bold")
    axis.set_xticks(range(len(groups)), [f"{p}\ntemperature {t:g}" for p, t in groups])
    axis.set_ylabel(f"drafted tokens kept a round, of {gamma}")
    order = sorted(("match", "coupled", "token", "block"), key=lambda n: -statistics.mean(verified(*g, gamma, n).accepted for g in groups))
    finish(f, "verifiers", "Drafts kept, most first: " + ", ".join(order))

    f, (axis,) = figure(7, 3.2)
    rows = [verified(p, t, gamma, "token") for p, t in groups]
    for k, r in enumerate(rows):
        axis.errorbar([r.tokens_per_round], [k + 0.12], xerr=[2 * r.tokens_per_round_se], fmt="o", color=ORANGE, ms=4)
        axis.errorbar([r.telemetry], [k - 0.12], xerr=[2 * r.telemetry_se], fmt="o", color=BLUE, ms=4)
    axis.text(rows[0].tokens_per_round, 0.28, "counted", color=ORANGE, size=8.5, ha="center", weight="bold")
    axis.text(rows[0].telemetry, -0.42, "from the rows", color=BLUE, size=8.5, ha="center", weight="bold")
    axis.set_yticks(range(len(groups)), [f"{p}, temperature {t:g}" for p, t in groups])
    axis.set_ylim(-0.7, len(groups) - 0.4)
    axis.set_xlabel(f"tokens a round, gamma {gamma} (bars: two standard errors)")
    finish(f, "telemetry", "Tokens a round, counted and from the rows")


def dragon_plots():
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


def bild_plot():
    f, (axis,) = figure(7.4, 4.2)
    shown = [k for k in BILD if k[1] == 10 or k[2] == 0.1]  # shorter runs differ from these where runs are long
    colours = dict(zip(shown, (BLUE, RED, ORANGE, GREEN)))
    for key in shown:
        axis.plot(*zip(*bild_curve(BILD[key])), "o-", color=colours[key], ms=4, lw=1.4)
    axis.plot(*zip(*bild_law), "o-", color="#222", ms=4, lw=2.2)
    axis.set_xlim(0, 1)
    for i, (label, colour) in enumerate([*((f"original, runs of {k[1]:g}, alpha_f {1 - k[2]:.1f}", colours[k]) for k in shown),
                                         ("rule, executed speculatively", "#222")]):
        axis.text(1.01, 0.95 - 0.07 * i, label, color=colour, transform=axis.transAxes, size=8.5, weight="bold")
    axis.set_xlabel("calls of the target a token")
    axis.set_ylabel("tokens that are the target's own choice")
    finish(f, "bild", "BiLD, greedy: the best original setting minus its rule at equal calls: " + f"{bild_gap():+.3f} of the tokens")


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
    for i, (label, colour) in enumerate((("p = bard", BLUE), ("p = bible", RED))):
        axes[1].text(0.98, 0.4 - 0.08 * i, label, color=colour, transform=axes[1].transAxes, ha="right", size=8.5, weight="bold")
    most = {loss: max(r.largest_share for r in pick(regrets, loss=loss)) for loss in ("0-1", "log")}
    finish(f, "regret", f"Regret of the plug-in rules: at no position above {math.ceil(100 * most['0-1']):.0f} % (0-1) and "
           f"{math.ceil(100 * most['log']):.0f} % (log) of its bound")


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


def dealt_plot():
    f, (axis,) = figure(7.2, 4, 1)
    dealt_lines(axis, Dealt(dealt), DEALT_LAWS[:-1], "none")  # trained on 256 tokens, it is lost in a longer context
    axis.set_ylabel("nats more than without passages")
    finish(f, "dragon-dealt", "One corpus dealt to both sites (bands: one standard error)")


def real_cascades_plot():
    f, axes = figure(12.4, 4, len(reads) + len(answers))
    rules = [("chow", ORANGE), ("diff", BLUE), ("opt", PURPLE), ("token-v3", GREEN), ("lenient", RED), ("ensemble", GREY)]
    for axis, (name, h) in zip(axes, {**reads, **answers}.items()):
        for rule, colour in rules:
            points = [(x, y) for x, y in h.curve(rule, "sampled_accuracy") if x <= 1.02 * h.tv()]
            axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, ms=3, lw=1.4)
        axis.axhline(h.setting(*TARGET, "sampled_accuracy"), color="#bbb", lw=1, zorder=0)
        axis.axhline(h.setting(*DRAFT, "sampled_accuracy"), color="#bbb", lw=1, ls=":", zorder=0)
        axis.set_title(name, weight="normal", size=9)
        axis.set_xlabel("rejection rate")
    axes[0].set_ylabel("chance that a sampled token (answer) is right")
    for i, (rule, colour) in enumerate(rules):
        axes[-1].text(1.03, 0.95 - 0.07 * i, rule, color=colour, transform=axes[-1].transAxes, size=8.5, weight="bold")
    finish(f, "real-cascades", "Cascades of models that read (lines: the target; dotted: the draft model)")


def real_latency_plot():
    shown = [(real_latency, reads["head"], "SmolLM2's head for SmolLM2, gamma 1 and 3")]
    if up_latency and "up" in reads:
        shown.append((up_latency, reads["up"], "SmolLM2 for Gemma, gamma 3"))
    f, axes = figure(5.4 * len(shown), 4, len(shown))
    rules = [("chow", ORANGE), ("diff", BLUE), ("opt", PURPLE), ("token-v3", GREEN), ("lenient", RED), ("lossless", "#222")]
    for axis, (rows, h, title) in zip(axes, shown):
        for rule, colour in rules:
            for execution, mark in (("speculative", "o"), ("sequential", "s"), ("oracle", "x")):
                of = pick(rows, rule=rule, execution=execution)
                known = [(r.relative_latency, h.setting(*(TARGET if rule == "lossless" else (rule, r.parameter)), "sampled_accuracy")) for r in of]
                axis.plot([x for x, _ in known], [y for _, y in known], mark, color=colour, ms=5)
        axis.axvline(1, color="#bbb", lw=1, zorder=0)
        axis.axhline(h.setting(*TARGET, "sampled_accuracy"), color="#bbb", lw=1, zorder=0)
        axis.set_title(title, weight="normal", size=9)
        axis.set_xlabel("measured time a token, over the target alone")
    axes[0].set_ylabel("chance that a sampled token is right")
    for i, (rule, colour) in enumerate(rules):
        axes[-1].text(1.03, 0.95 - 0.07 * i, rule, color=colour, transform=axes[-1].transAxes, size=8.5, weight="bold")
    axes[-1].text(1.03, 0.45, "o speculative\ns sequential\nx oracle", transform=axes[-1].transAxes, size=8.5, va="top")
    finish(f, "real-latency", "Quality against measured time")


def real_texts_plot():
    f, axes = figure(9.6, 4, 2)
    for axis, temperature, y in ((axes[0], 0, "agreement"), (axes[1], 1, "rouge_l")):
        ends = []
        for execution, mark in (("speculative", "o"), ("sequential", "s"), ("oracle", "x"), ("sequence", "^")):
            for rule, colour in (("chow", ORANGE), ("diff", BLUE), ("opt", PURPLE), ("token-v3", GREEN), ("lenient", RED), ("lossless", "#222")):
                of = sorted(pick(written, execution=execution, rule=rule, temperature=temperature), key=lambda r: r.target_calls)
                axis.plot([r.target_calls for r in of], [getattr(r, y) for r in of], mark + ("-" if len(of) > 1 else ""), color=colour, ms=5, lw=1)
        axis.set_xlabel("calls of the target a token")
        axis.set_title(f"temperature {temperature}", weight="normal", size=9)
    axes[0].set_ylabel("share of tokens that are the target's most likely")
    axes[1].set_ylabel("ROUGE-L with the true text")
    axes[1].text(1.03, 0.95, "o speculative, gamma 3\ns token by token\nx oracle\n^ whole texts", transform=axes[1].transAxes, size=8.5, va="top")
    for i, (rule, colour) in enumerate((("chow", ORANGE), ("diff", BLUE), ("opt", PURPLE), ("token-v3", GREEN), ("lenient", RED), ("lossless", "#222"))):
        axes[1].text(1.03, 0.6 - 0.07 * i, rule, color=colour, transform=axes[1].transAxes, size=8.5, weight="bold")
    finish(f, "real-texts", "What cascades of SmolLM2's head and SmolLM2 write")


def real_cos_plot():
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
        left.text(1.02, 0.95 - 0.07 * i, method + (f", gamma {gamma}" if gamma else ""), color=colour, transform=left.transAxes, size=8.5, weight="bold")
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


def real_dealt_plot():
    f, (left, *right) = figure(10.4 if real_answers else 5.6, 4, 2 if real_answers else 1)
    dealt_lines(left, Dealt(real_dealt), DEALT_LAWS, "none")
    left.set_ylabel("nats more than without passages")
    if real_answers:
        dealt_lines(right[0], Dealt(real_answers, "exact", -1, 5), DEALT_LAWS, None, -1)
        right[0].set_ylabel("share of exact answers")
    finish(f, "real-dragon-passages", "SmolLM2 on both sites, one corpus dealt to them (bands: one standard error)")


def real_sites_plot():
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


def real_dssd_plot():
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


if matplotlib is not None:
    if have(CASCADES):
        losers = sum(gap(r, "ensemble", "cross_entropy", (0.5,))[0] > 0 for r in DEFERRAL)
        winners = sum(gap(r, "ensemble", shares=(0.5,))[0] > 0 for r in DEFERRAL + TOKEN)
        quality("cascades-cross-entropy", "cross_entropy", "cross-entropy of the next token, nats",
                "nats more than the ensemble (less is better)",
                f"By cross-entropy the static ensemble beats {losers} of {len(DEFERRAL)} deferral rules at half of TV")
        quality("cascades-accuracy", "sampled_accuracy", "chance that a sampled token is right",
                "gain over the ensemble (more is better)",
                f"By the accuracy of a sampled token {winners} of {len(DEFERRAL + TOKEN)} rules beat the ensemble at half of TV")
    for plot, needs in ((token_plot, [CASCADES]), (temperature_plot, [CASCADES]), (frontier, [CASCADES]), (ensemble_plot, [f"cascades-{EXPERTS}"]),
                        (latency_plot, ["latency", CASCADES]), (prediction, ["latency", "cos-speed", "draft-length-speed"]),
                        (cos_plots, ["cos-speed", "cos-calls"]), (trade_plot, ["cos-speed", CASCADES]), (verifier_plots, ["verifiers"]), (dragon_plots, ["dragon-latency", "dragon-acceptance"]),
                        (bild_plot, ["bild"]), (regret_plot, ["regret"]), (paired_plot, ["dssd-paired"]), (passages_plot, ["dragon-passages"]), (dealt_plot, ["dragon-dealt"]),
                        (real_cascades_plot, ["real-cascades-head"]), (real_latency_plot, ["real-latency", "real-cascades-head"]), (real_texts_plot, ["real-texts"]),
                        (real_cos_plot, ["real-cos-speed", "real-cos-tasks"]), (real_dealt_plot, ["real-dragon-dealt"]), (real_sites_plot, ["real-dragon-latency"]),
                        (dssd_plot, ["dssd", "verifiers", "acceptance"]), (real_dssd_plot, ["real-dssd"]), (length_plot, ["draft-length"])):
        if have(*needs):
            plot()

# ---- what page.py writes ---------------------------------------------------------------------------------------------

now = {"seed": seed, "quick": quick, "claims": {c["id"]: judged[c["id"]] for c in CLAIMS if c["id"] in judged},
       "real": {c["id"]: real[c["id"]] for c in CLAIMS if c["id"] in real}}
if have(CASCADES):
    half_gain = {r: (gap(r, "ensemble", "cross_entropy", (0.5,)), gap(r, "ensemble", shares=(0.5,)), gap(r, "ensemble", "argmax_accuracy", (0.5,)))
                 for r in DEFERRAL + TOKEN + LOSSY}
    half_gain = {r: g for r, g in half_gain.items() if not math.isnan(g[0][0])}
    greedy = {r: value(curve(r, "sampled_accuracy", temperature=0), 0.5 * tv(temperature=0)) for r in ("diff", "opt", *TOKEN, "lenient")}
    greedy = sorted((x, r) for r, x in greedy.items() if not math.isnan(x))
    now["positions"] = sum(len(WINDOWS[t]) for t in texts) * (16 if quick else 128)
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
if have("times"):
    now["machine"] = (folder / "machine.txt").read_text().strip()
    now["scoring"] = [[f"{n}", f"{one(times, model='target', tokens=n).v:.2f}"] for n in range(2, 10)]
    now["draft_step"] = f"{one(times, model='draft', tokens=1).seconds / one(times, model='target', tokens=1).seconds:.2f}"
if real_times:
    now["real_machine"] = (real_folder / "machine.txt").read_text().strip()
if have("latency", CASCADES):
    now["speculative"] = [[r.policy, f"{r.gamma:g}", f"{r.speedup:.2f}", f"{r.predicted:.2f}", f"{100 * r.error:+.0f} %",
                           f"{r.predicted_free_scoring:.2f}"] for r in speculative if r.gamma == 3]
if have("cos-speed"):
    same = [r.speedup for r in pick(cos_speed, method="standard")]
    known = lambda x, form: "" if math.isnan(x) else form.format(x)
    now["standard_over_itself"] = [f"{min(same):.2f}", f"{max(same):.2f}"]
    now["cos"] = [[r.models, r.policy, f"{r.temperature:g}", r.method, f"{r.gamma:g}", f"{r.speedup:.2f}", known(r.predicted, "{:.2f}"),
                   known(100 * r.error, "{:+.0f} %")]
                  for r in cos_speed if r.method in ("sd", "speculative", "alternating") and r.gamma in (1, 5) and r.temperature == 1]
if have("dragon-latency"):
    now["eq8"] = {"worse": sum(scheduled(*e)[0] > 2 * scheduled(*e)[1] for e in EVERY), "of": len(EVERY)}
if have("dssd", "verifiers", "acceptance"):
    now["target_step_ms"] = f"{grid[0].llm_ms:.0f}"
if have("dssd-paired"):
    below = lambda g: max([r.up_mbit_per_s / r.down_mbit_per_s for r in links(False) if r.gamma == g and r.gain_ms >= 0], default=1)
    now["slower"] = [[f"{g:g}", f"{below(g):g}"] for g in sorted({r.gamma for r in slower})]

ORDER = ("seed", "quick", "positions", "machine", "real_machine", "standard_over_itself", "claims", "real", "rules", "pairs", "best", "greedy", "scoring", "draft_step",
         "speculative", "cos", "eq8", "target_step_ms", "slower")
results = {key: now.get(key, earlier.get(key)) for key in ORDER}
recorded.write(plots / "results.json", results)
if results["rules"] is None or results["slower"] is None:
    sys.exit(print(f"report.py: {plots / 'results.json'} is written; for the page the parts with the bundled models must have run, too"))
subprocess.run([pathlib.Path(__file__).with_name("page.py"), plots / "results.json", page], check=True)
print(f"report.py: {page}: {sum(judged[c['id']]['verdict'] == 'yes' for c in CLAIMS if c['by'] == 'paper' and c['id'] in judged)} of the "
      f"papers' claims hold")
