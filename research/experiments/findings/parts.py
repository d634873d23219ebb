# SPDX-License-Identifier: Apache-2.0
"""The CSV files of specagg-experiments, a part each, and the errors of what was timed."""
import csv, math, pathlib, random, statistics, sys

folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
real_folder = folder.with_name(f"{folder.name}-real")
plots = page.with_suffix("")
loaded, timed_parts, timed, settings = set(), set(), [], [""]


class Row(dict):
    """A line of a CSV file: numbers where they are numbers; a missing one is NaN."""
    def __getattr__(self, name):
        x = self[name]
        try:
            return float(x) if x != "" else math.nan
        except ValueError:
            return x


def load(part):
    """The rows of a part, none if it was not run. Where its ways were timed in turn with what they are compared with,
    several times, a row has all the speed-ups (`speedups`): its speed-up is their median."""
    path = next((p for f in (folder, real_folder) for p in (f / "exact" / f"{part}.csv", f / "timed" / f"{part}.csv") if p.exists()), None)
    if path is None:
        return []
    loaded.add(part)
    with open(path, newline="") as file:
        settings[:] = [file.readline()]
        rows = [Row(r) for r in csv.DictReader(file)]
    for r in rows:
        if "speedups" in r:
            r.repeats = [float(x) for x in r["speedups"].split(";")]
            shared = [k for k in ("models", "pair", "policy", "temperature") if k in r]  # what rows of the same repeats have in common
            r.timed_with = (part, *(r[k] for k in shared))
            timed.append(r)
            timed_parts.add(part)
    use_repeats()
    return rows


def have(*parts):
    return loaded.issuperset(parts)


def quick():
    return "quick" in settings[0]


def seed():
    return int(settings[0].split("seed ")[1].split(";")[0])


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


def pick(rows, **where):
    return [r for r in rows if all(getattr(r, k) == v for k, v in where.items())]


def one(rows, **where):
    return pick(rows, **where)[0]


PAIRS = ["draft-target", "bard-bible", "bible-bard"]
CASCADES, EXPERTS = "cascades-draft-target", "bard-bible"
# Errors of times are of all that was loaded before, so what is timed is loaded here, in this order, or in executions.py and
# cos.py.
real_dssd, latency, cos_speed, length_speed = (load(p) for p in ("real-dssd", "latency", "cos-speed", "draft-length-speed"))
