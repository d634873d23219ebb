#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the JSON files of scripts/measure-two-sites to a page of tables and plots.

usage: two_sites_report.py FOLDER PAGE.md      the plots go into a folder beside the page, named like it
"""
import json, os, pathlib, statistics, sys

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
plots = page.with_suffix("")
plots.mkdir(parents=True, exist_ok=True)
COLOURS = ["#9aa3ab", "#c44e52", "#1f6fb4", "#3a8f4d"]
text = []
add = text.append


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
add("# Two sites, measured\n")
add(f"`make two-sites` on {data['date']}: {data['cpu']}, {data['cores']} cores. Two processes of `specagg` and a TCP "
    "proxy between them that delays every byte (and lets only so many through), all on this machine. Bundled models; "
    "`examples/text` as documents.\n")

# ---- DRAGON ---------------------------------------------------------------------------------------------------------
add("## DRAGON: time per token against the added round trip\n")
add("Device: `draft.gguf`, passages of Shakespeare; cloud: `target.gguf`, passages of the Bible; temperature 1; the "
    "device aggregates; rows of 64 tokens as halves. *Synchronous*: every draft waits for the token before it "
    "(look-ahead 1). Otherwise look-ahead 16. *Predicted*: the recursion of `plan/dragon.hpp` with this run's decode "
    "times, round trip and joint acceptance. All runs of one noise and session gave the same tokens, whatever the link "
    "and the look-ahead: the script checks it. The first token is not counted.\n")
ways = [w for w in dict.fromkeys(r["way"] for r in runs) if w != "device alone"]
trips = sorted({r["trip"] for r in runs if r["way"] != "device alone"})


def per_token(way, trip, what="seconds_per_token"):
    return mean([r["device"][what] for r in runs if r["way"] == way and r["trip"] == trip])


alone = mean([r["device"]["seconds_per_token"] for r in runs if r["way"] == "device alone"])
add("| added round trip, ms | " + " | ".join(f"{w}, ms (predicted)" for w in ways) +
    " | reduction by shared noise | by independent drafts |")
add("| --- |" + " --- |" * (len(ways) + 2))
for trip in trips:
    cells = [f"{1e3 * per_token(w, trip):.1f} ({1e3 * per_token(w, trip, 'seconds_per_token_predicted'):.1f})" for w in ways]
    less = [f"{100 * (1 - per_token(new, trip) / per_token(old, trip)):.0f} %" for new, old in
            (("shared noise", "synchronous, shared noise"), ("independent", "synchronous"))]
    add(f"| {1e3 * trip:.0f} | " + " | ".join(cells + less) + " |")
add(f"\nThe device alone, with its own documents only (another law): {1e3 * alone:.2f} ms a token.\n")
worst = max((abs(r["device"]["seconds_per_token"] / r["device"]["seconds_per_token_predicted"] - 1), r["trip"]) for r in runs
            if r["way"] == "independent" and r["trip"] > 0)
together = max((abs(per_token("independent", t) / per_token("independent", t, "seconds_per_token_predicted") - 1), t)
               for t in trips if t > 0)
add(f"Independent drafts against the prediction: where the link adds a delay, means are off by {100 * together[0]:.1f} % at "
    f"most ({1e3 * together[1]:.0f} ms), single runs by {100 * worst[0]:.1f} %." +
    (f" Without an added delay a token takes {100 * (per_token('independent', 0) / per_token('independent', 0, 'seconds_per_token_predicted') - 1):.0f} % "
     f"more than predicted, and {100 * (per_token('independent', 0) / per_token('synchronous', 0) - 1):.0f} % more than a synchronous one: gRPC, threads "
     "and the proxy take a part of a millisecond for each message, which no prediction counts." if 0 in trips else "") + "\n")


def outcomes(way):
    n = [mean([r["device"]["accepted"][k] for r in runs if r["way"] == way and r["trip"] == trips[0]])
         for k in ("both", "only_device", "only_cloud", "neither")]
    return [x / sum(n) for x in n]


def expected(way):
    return [mean([r["device"]["accepted_expected"][k] for r in runs if r["way"] == way and r["trip"] == trips[0]])
            for k in ("both", "only_device", "only_cloud", "neither")]


add("| joint acceptance | both | device alone | cloud alone | neither |")
add("| --- | --- | --- | --- | --- |")
add("| independent, counted | " + " | ".join(f"{x:.2f}" for x in outcomes("independent")) + " |")
add("| independent, from the rows | " + " | ".join(f"{x:.2f}" for x in expected("independent")) + " |")
add("| shared noise, counted | " + " | ".join(f"{x:.2f}" for x in outcomes("shared noise")) + " |\n")
size = {w: mean([(r["device"]["bytes"]["sent"] + r["device"]["bytes"]["received"]) / len(r["device"]["tokens"])
                 for r in runs if r["way"] == w and r["trip"] == trips[-1]]) for w in ways}
add("Bytes a token, both ways: " + ", ".join(f"{w} {size[w]:.0f}" for w in ways) + ".\n")
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
add(f"![Time per token against the added round trip]({plots.name}/latency.svg)\n")
if (plots / "pipelines.svg").exists():
    add("What the two sites did, from their `--trace` files (`scripts/plot-pipelines`; the target's size on both sides, 12 "
        f"passages each, 20 ms round trip added):\n\n![Two pipelines]({plots.name}/pipelines.svg)\n")

# ---- schedulers -----------------------------------------------------------------------------------------------------
data, runs = load("schedulers")
add("## Who aggregates, decided live\n")
add("A slow device (`bard.gguf`, the target's size, 12 passages) and a fast cloud (`draft.gguf`, 4 passages), 40 ms added, "
    "independent drafts; the cloud aggregates first. Each end knows decode times, round trip and acceptance from the stream "
    "alone. All schedulers gave the same tokens. ± is twice the standard error of the difference from Eq 8 over "
    "sessions.\n")
add("| scheduler | ms a token | over Eq 8 | aggregated at the device | at the cloud |\n| --- | --- | --- | --- | --- |")
by = {}
for r in runs:
    by.setdefault(r["scheduler"], {})[r["session"]] = r["device"]
for name, mine in by.items():
    more = [1e3 * (d["seconds_per_token"] - by["eq8"][s]["seconds_per_token"]) for s, d in mine.items()]
    noise = 2 * statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else float("nan")
    add(f"| {name} | {1e3 * mean([d['seconds_per_token'] for d in mine.values()]):.1f} | {mean(more):+.1f} ± {noise:.1f} | "
        f"{sum(d['aggregated']['device'] for d in mine.values())} | {sum(d['aggregated']['cloud'] for d in mine.values())} |")
one = by["device"]
rate = lambda which, key: mean([d[which]["both"] + d[which][key] for d in one.values()])
n = mean([sum(d["accepted"].values()) for d in one.values()])
add(f"\nDrafts kept, of the device and of the cloud: {rate('accepted_expected', 'only_device'):.2f} and "
    f"{rate('accepted_expected', 'only_cloud'):.2f} by the rows, {rate('accepted', 'only_device') / n:.2f} and "
    f"{rate('accepted', 'only_cloud') / n:.2f} counted. Decoding: {1e3 * mean([d['plan']['c_device'] for d in one.values()]):.1f} "
    f"and {1e3 * mean([d['plan']['c_cloud'] for d in one.values()]):.1f} ms.\n")

# ---- split verification ---------------------------------------------------------------------------------------------
data, runs = load("dssd")
add("## Split verification: bandwidth, delay, draft length\n")
add("Device `draft.gguf`, edge `target.gguf`, V = 4096, temperature 1, 40 tokens. DSD and DSSD send whole rows of 16 bits; "
    "quantised drafts 8 tokens and 64 counts, with block verification. *Delay* is the network's of one round, both ways "
    "together. *Closed form*: `plan/link.hpp`'s T = gamma T_slm + T_llm + T_comm with the times measured (T_llm: the median over all links), this setting's rounds and "
    "rejections and the paper's bits; bytes are messages of this protocol, all of them (handshake, echoes), *wire* is what "
    "the proxy saw (HTTP/2, its own handshake). DSSD's authors state a patent filing, CN2025108856278.\n")
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
add("| Mbit/s | delay, ms | gamma | " + " | ".join(f"{s}: tokens/s (closed form)" for s in splits) + " | " +
    " | ".join(f"{s}: bytes an accepted token (closed form; wire)" for s in splits) + " |")
add("| --- |" + " --- |" * (2 + 2 * len(splits)))
off = {s: [] for s in splits}
for megabit in sorted({r["megabit"] for r in runs}):
    for delay in sorted({r["delay"] for r in runs}):
        for gamma in sorted({r["gamma"] for r in runs}):
            row, sizes = [], []
            for s in splits:
                r = cell(s, megabit, delay, gamma)
                seconds, bytes_ = closed_form(r)
                row.append(f"{1 / r['seconds']:.1f} ({1 / seconds:.1f})")
                accepted = max(1, r["accepted"])
                sizes.append(f"{r['bytes'] / accepted:.0f} ({bytes_:.0f}; {r['wire'] / accepted:.0f})")
                off[s].append(r["seconds"] / seconds)
            add(f"| {megabit} | {1e3 * delay:.0f} | {gamma} | " + " | ".join(row + sizes) + " |")
add("\nWithout delay, what gRPC, threads and proxy take, up to a millisecond a round, shows; no closed form counts it. DSD and DSSD "
    "have one acceptance law; that they differ in tokens a round (" +
    ", ".join(f"{s} {sum(len(r['device']['tokens']) for r in runs if r['split'] == s and r['gamma'] == 4) / sum(r['device']['rounds'] for r in runs if r['split'] == s and r['gamma'] == 4):.2f}" for s in splits) +
    " at gamma 4) is the luck of the few texts behind every setting: sessions 1 to 3, 40 tokens each, the same on every link.\n")
slower = [(m, d, g) for m in sorted({r["megabit"] for r in runs}) for d in sorted({r["delay"] for r in runs})
          for g in sorted({r["gamma"] for r in runs}) if cell("DSSD", m, d, g)["seconds"] > cell("DSD", m, d, g)["seconds"]]
add(f"DSSD was slower than DSD at {len(slower)} settings (Mbit/s, delay, gamma): " +
    "; ".join(f"{m}, {1e3 * d:.0f} ms, {g}" for m, d, g in slower) +
    ". Rounds of the same text are compared in docs/experiments.md (`dssd-paired`).\n")
add("Measured time over the closed form's, median and largest: " +
    "; ".join(f"{s} {statistics.median(o):.2f}, {max(o):.2f}" for s, o in off.items()) + ".\n")
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
add(f"![Tokens a second against bandwidth]({plots.name}/splits.svg)\n")
page.write_text("\n".join(text))
print(f"{page}")
