#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the JSON files of scripts/measure-two-sites to plots and results.json, from which two_sites_page.py writes the page.

usage: two_sites_report.py FOLDER PAGE.md      plots and results.json go into the folder two-sites-measured/ beside the page
"""
import json, os, pathlib, statistics, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import recorded

try:
    import matplotlib
except ImportError:  # Debian's matplotlib belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    sys.exit("two_sites_report.py: there is no matplotlib (Debian: python3-matplotlib)")
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "specagg", "font.size": 10, "axes.spines.top": False,
                            "axes.spines.right": False})
import matplotlib.pyplot as plt

folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
plots = page.parent / "two-sites-measured"
plots.mkdir(parents=True, exist_ok=True)
COLOURS = ["#9aa3ab", "#c44e52", "#1f6fb4", "#3a8f4d"]
results = {}  # what two_sites_page.py shows, as it shows it


def load(name):
    data = json.loads((folder / f"{name}.json").read_text())
    return data, data["runs"]


def mean(values):
    return statistics.fmean(values) if values else float("nan")


def save(figure, name):
    figure.tight_layout()
    figure.savefig(plots / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def label(axis, x, y, words, colour, dy=0):
    axis.annotate(words, (x, y), xytext=(6, dy), textcoords="offset points", color=colour, va="center",
                  annotation_clip=False)


data, runs = load("dragon")
results |= {"date": data["date"], "cpu": data["cpu"], "cores": data["cores"]}

# ---- DRAGON ---------------------------------------------------------------------------------------------------------
ways = [w for w in dict.fromkeys(r["way"] for r in runs) if w != "device alone"]
trips = sorted({r["trip"] for r in runs if r["way"] != "device alone"})


def per_token(way, trip, what="seconds_per_token"):
    return mean([r["device"][what] for r in runs if r["way"] == way and r["trip"] == trip])


alone = mean([r["device"]["seconds_per_token"] for r in runs if r["way"] == "device alone"])
results["dragon"] = [[f"{1e3 * trip:.0f}", [[f"{1e3 * per_token(w, trip):.1f}", f"{1e3 * per_token(w, trip, 'seconds_per_token_predicted'):.1f}"]
                                            for w in ways],
                      *(f"{100 * (1 - per_token(new, trip) / per_token(old, trip)):.0f} %" for new, old in
                        (("shared noise", "synchronous, shared noise"), ("independent", "synchronous")))] for trip in trips]
results["alone"] = f"{1e3 * alone:.2f}"
worst = max((abs(r["device"]["seconds_per_token"] / r["device"]["seconds_per_token_predicted"] - 1), r["trip"]) for r in runs
            if r["way"] == "independent" and r["trip"] > 0)
together = max((abs(per_token("independent", t) / per_token("independent", t, "seconds_per_token_predicted") - 1), t)
               for t in trips if t > 0)
at_0 = 0 in trips
results["off"] = {"means": f"{100 * together[0]:.1f}", "at": f"{1e3 * together[1]:.0f}", "single": f"{100 * worst[0]:.1f}",
                  "no_delay": f"{100 * (per_token('independent', 0) / per_token('independent', 0, 'seconds_per_token_predicted') - 1):.0f}" if at_0 else "",
                  "over_synchronous": f"{100 * (per_token('independent', 0) / per_token('synchronous', 0) - 1):.0f}" if at_0 else ""}


def outcomes(way):
    n = [mean([r["device"]["accepted"][k] for r in runs if r["way"] == way and r["trip"] == trips[0]])
         for k in ("both", "only_device", "only_cloud", "neither")]
    return [x / sum(n) for x in n]


def expected(way):
    return [mean([r["device"]["accepted_expected"][k] for r in runs if r["way"] == way and r["trip"] == trips[0]])
            for k in ("both", "only_device", "only_cloud", "neither")]


results["joint"] = [[name, *(f"{x:.2f}" for x in of)] for name, of in (
    ("independent, counted", outcomes("independent")), ("independent, from the rows", expected("independent")),
    ("shared noise, counted", outcomes("shared noise")))]
results["bytes"] = [[w, f"{mean([(r['device']['bytes']['sent'] + r['device']['bytes']['received']) / len(r['device']['tokens']) for r in runs if r['way'] == w and r['trip'] == trips[-1]]):.0f}"]
                    for w in ways]
figure, axis = plt.subplots(figsize=(7.5, 4))
for way, colour in zip([w for w in ways if w != "synchronous, shared noise"], COLOURS[1:]):
    x, y = [1e3 * t for t in trips], [1e3 * per_token(way, t) for t in trips]
    axis.plot(x, y, "o-", color=colour)
    axis.plot(x, [1e3 * per_token(way, t, "seconds_per_token_predicted") for t in trips], "x", color="black", ms=8)
    label(axis, x[-1], y[-1], way, colour)
at = 0.3 if 0.3 in trips else trips[-1]
axis.set(xlabel="round trip added, ms   (× : the recursion's prediction)", ylabel="ms a token", ylim=(0, None))
axis.set_title(f"At {1e3 * at:.0f} ms, shared noise saves "
               f"{100 * (1 - per_token('shared noise', at) / per_token('synchronous, shared noise', at)):.0f} % of the time, "
               f"independent drafts {100 * (1 - per_token('independent', at) / per_token('synchronous', at)):.0f} %", loc="left")
figure.subplots_adjust(right=0.8)
save(figure, "latency")

# ---- schedulers -----------------------------------------------------------------------------------------------------
data, runs = load("schedulers")
results["schedulers"] = []
by = {}
for r in runs:
    by.setdefault(r["scheduler"], {})[r["session"]] = r["device"]
for name, mine in by.items():
    more = [1e3 * (d["seconds_per_token"] - by["eq8"][s]["seconds_per_token"]) for s, d in mine.items()]
    noise = statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else float("nan")
    results["schedulers"].append([name, f"{1e3 * mean([d['seconds_per_token'] for d in mine.values()]):.1f}", f"{mean(more):+.1f} ± {noise:.1f}",
                                  *(f"{sum(d['aggregated'][side] for d in mine.values())}" for side in ("device", "cloud"))])
one = by["device"]
rate = lambda which, key: mean([d[which]["both"] + d[which][key] for d in one.values()])
n = mean([sum(d["accepted"].values()) for d in one.values()])
SIDES = ("only_device", "only_cloud")
results["accepted"] = {"expected": [f"{rate('accepted_expected', side):.2f}" for side in SIDES],
                       "counted": [f"{rate('accepted', side) / n:.2f}" for side in SIDES],
                       "decode_ms": [f"{1e3 * mean([d['plan'][c] for d in one.values()]):.1f}" for c in ("c_device", "c_cloud")]}

# ---- split verification ---------------------------------------------------------------------------------------------
data, runs = load("dssd")
V, BITS, ID = 4096, 16, 32


def closed_form(r):
    """Seconds a token, and bytes an accepted token."""
    g, rate, rounds = r["gamma"], r["megabit"] * 1e6, r["rounds"]
    whole = max(0.0, min(1.0, r["accepted"] / rounds / g)) ** g  # no rejection: a^gamma of the mean acceptance
    up, down = {"DSD": (g * (ID + V * BITS), 2 * ID),
                "DSSD": (g * (ID + BITS), ID + (1 - whole) * V * BITS + whole * ID),
                "shared noise": (g * ID, 2 * ID),
                "quantised, block": (g * (ID + 17 * 8), 2 * ID)}[r["split"]]
    seconds = g * r["t_slm"] + r["t_llm"] + (up + down) / rate + r["delay"]
    return seconds * rounds / r["tokens"], (up + down) / 8 * rounds / max(1, r["accepted"])


def cell(split, megabit, delay, gamma):
    """All sessions of a setting together."""
    mine = [r for r in runs if (r["split"], r["megabit"], r["delay"], r["gamma"]) == (split, megabit, delay, gamma)]
    total = lambda f: sum(map(f, mine))
    return {"split": split, "megabit": megabit, "delay": delay, "gamma": gamma,
            "rounds": total(lambda r: r["device"]["rounds"]), "accepted": total(lambda r: r["device"]["accepted"]),
            "tokens": total(lambda r: len(r["device"]["tokens"])),
            "seconds": total(lambda r: r["device"]["seconds_per_token"] * (len(r["device"]["tokens"]) - 1)) /
                       total(lambda r: len(r["device"]["tokens"]) - 1),
            "bytes": total(lambda r: r["device"]["bytes"]["sent"] + r["device"]["bytes"]["received"]),
            "wire": total(lambda r: sum(r["wire"])),
            "t_slm": mean([r["device"]["decode_seconds"] for r in mine]),
            "t_llm": statistics.median(r["edge"]["decode_seconds"] for r in runs if r["gamma"] == gamma and r["edge"]["decodes"] > 0)}


splits = list(dict.fromkeys(r["split"] for r in runs))
results |= {"splits": splits, "links": []}
off = {s: [] for s in splits}
for megabit in sorted({r["megabit"] for r in runs}):
    for delay in sorted({r["delay"] for r in runs}):
        for gamma in sorted({r["gamma"] for r in runs}):
            row, sizes = [], []
            for s in splits:
                r = cell(s, megabit, delay, gamma)
                seconds, bytes_ = closed_form(r)
                row.append([f"{1 / r['seconds']:.1f}", f"{1 / seconds:.1f}"])
                accepted = max(1, r["accepted"])
                sizes.append([f"{r['bytes'] / accepted:.0f}", f"{bytes_:.0f}", f"{r['wire'] / accepted:.0f}"])
                off[s].append(r["seconds"] / seconds)
            results["links"].append([f"{megabit}", f"{1e3 * delay:.0f}", f"{gamma}", row, sizes])
of_4 = lambda s: [r["device"] for r in runs if r["split"] == s and r["gamma"] == 4]
results["tokens_a_round"] = [[s, f"{sum(len(d['tokens']) for d in of_4(s)) / sum(d['rounds'] for d in of_4(s)):.2f}"] for s in splits]
results["slower"] = [[f"{m}", f"{1e3 * d:.0f} ms", f"{g}"] for m in sorted({r["megabit"] for r in runs}) for d in sorted({r["delay"] for r in runs})
                     for g in sorted({r["gamma"] for r in runs}) if cell("DSSD", m, d, g)["seconds"] > cell("DSD", m, d, g)["seconds"]]
results["over_closed_form"] = [[s, f"{statistics.median(o):.2f}", f"{max(o):.2f}"] for s, o in off.items()]
delay = 0.02 if any(r["delay"] == 0.02 for r in runs) else max(r["delay"] for r in runs)
figure, axis = plt.subplots(figsize=(7.5, 4))
best = {}
for s, colour in zip(splits, ["#c44e52", "#d98c3f", "#3a8f4d", "#1f6fb4"]):
    x = sorted({r["megabit"] for r in runs})
    mine = [cell(s, m, delay, 4) for m in x]
    y = [1 / r["seconds"] for r in mine]
    axis.plot(x, y, "o-", color=colour)
    axis.plot(x, [1 / closed_form(r)[0] for r in mine], "x", color="black", ms=8)
    best[s] = y, colour
at = -1e9  # labels from below, each a line above the one before it
for s, (y, colour) in sorted(best.items(), key=lambda b: b[1][0][-1]):
    at = max(y[-1], at + 0.055 * max(max(b[0]) for b in best.values()))
    label(axis, x[-1], at, s, colour)
axis.set(xscale="log", xlabel=f"Mbit/s each way, {1e3 * delay:.0f} ms, gamma 4   (× : closed form)", ylabel="tokens a second", ylim=(0, None))
axis.set_xticks(x, [f"{m}" for m in x])
axis.minorticks_off()
ratio = [best["shared noise"][0][i] / best["DSSD"][0][i] for i in (0, -1)]
axis.set_title(f"No rows on the wire: {ratio[0]:.1f} times DSSD at {x[0]} Mbit/s, {ratio[1]:.1f} at {x[-1]}", loc="left")
save(figure, "splits")

recorded.write(plots / "results.json", results)
subprocess.run([pathlib.Path(__file__).with_name("two_sites_page.py"), plots / "results.json", page], check=True)
print(f"{page}")
