#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the section "Two sites" of docs/measured.md and docs/two-sites-measured/tables.md from what two_sites_report.py computed. Every measured number is in
RESULTS.json.

usage: two_sites_page.py RESULTS.json PAGE.md
"""
import json, pathlib, sys

from measured import tables, write

r = json.loads(pathlib.Path(sys.argv[1]).read_text())
page = pathlib.Path(sys.argv[2])
plots = "two-sites-measured"
text, more = [], ["# Two sites: more tables\n", "Of the run that [measured.md](../measured.md#two-sites) names.\n"]
add, rest = text.append, more.append

add("## Two sites\n")
add(f"`make two-sites DOCS=1` on {r['date']}: {r['cpu']}, {r['cores']} cores, all processes on this machine. A TCP proxy between device and "
    "server delays every byte and limits the rate. Bundled models, temperature 1.\n")
add("### DRAGON: ms a token against the added round trip\n")
add("Device: `draft.gguf` with passages of Shakespeare; cloud: `target.gguf` with passages of the Bible. Rows have 64 tokens. The device aggregates. "
    "*Synchronous*: look-ahead 1; the others 16.\n")
trips = ["| added, ms | synchronous | independent drafts | saves | coupled | saves |\n| ---: | ---: | ---: | ---: | ---: | ---: |"]
for trip, ways, by_coupling, by_independent in r["dragon"]:
    synchronous, _, independent, coupled = (w[0] for w in ways)
    trips.append(f"| {trip} | {synchronous} | {independent} | {by_independent} | {coupled} | {by_coupling} |")
add("\n".join(row for i, row in enumerate(trips) if i == 0 or row.startswith(("| 0 ", "| 100 ", "| 600 "))))
rest("## DRAGON: ms a token\n")
rest("\n".join(trips) + "\n")
off = r["off"]
rest(f"The recursion of `plan/dragon.hpp` predicts independent drafts within {off['means']} % if a delay is added (single runs: {off['single']} %)." +
    (f" Without one a token takes {off['no_delay']} % more: gRPC, threads and the proxy need a fraction of a millisecond for each message." if off["no_delay"] else "") +
    f" The device alone, with its own documents only, takes {r['alone']} ms a token.\n")
size = dict(r["bytes"])
joint = {name: cells for name, *cells in r["joint"]}
rest(f"Bytes a token, both ways: synchronous {size['synchronous']}, independent {size['independent']}, coupled {size['shared noise']}. "
    f"Both drafts are accepted with probability {joint['independent, from the rows'][0]} if they are independent ({joint['independent, counted'][0]} counted), "
    f"{joint['shared noise, counted'][0]} if they are coupled. All runs with the same noise and session gave the same tokens.\n")
rest(f"![ms a token against the added round trip](latency.svg)\n")
rest("What the sites do in time, 20 ms added (`--trace`, `scripts/plot-pipelines`):\n")
rest(f"![Two pipelines](pipelines.svg)\n")

rest("## Who aggregates\n")
accepted = r["accepted"]
rest(f"A slow device ({accepted['decode_ms'][0]} ms a token) and a fast cloud ({accepted['decode_ms'][1]} ms), 40 ms added, independent drafts; the cloud "
    "aggregates first. Each site knows only what it measured. `moving`, the default, aggregates each token where its drafts are. "
    "± is one standard error, over sessions.\n")
rest("| scheduler | ms a token | difference from Eq 8 | tokens aggregated by the device | by the cloud |\n| --- | ---: | ---: | ---: | ---: |")
for row in r["schedulers"]:
    rest("| `" + row[0] + "` | " + " | ".join(row[1:]) + " |")

rest("")
add("\n### DSD, DSSD and smaller messages: tokens a second\n")
add("[DSD and DSSD](two-sites.md#which-protocol-when) send whole rows of 16 bits. *Coupled* sends no rows; *quantised* sends 64 counts on 8 tokens, "
    "and uses block verification. "
    "Device `draft.gguf`, server `target.gguf`, V = 4096, gamma 4. *Delay*: of one round, both ways.\n")
names = {"shared noise": "coupled", "quantised, block": "quantised"}
head = "| Mbit/s | delay, ms | " + " | ".join(names.get(s, s) for s in r["splits"]) + " |\n| ---: | ---: |" + " ---: |" * len(r["splits"])
rate = lambda x: f"{float(x):.0f}" if float(x) >= 100 else x
of_4 = [link for link in r["links"] if link[2] == "4"]
rows = [(delay, f"| {megabit} | {delay} | " + " | ".join(rate(speed) for speed, _ in speeds) + " |") for megabit, delay, _, speeds, _ in of_4]
add("\n".join([head, *(row for delay, row in rows if delay == "20")]))
rest("## DSD, DSSD and smaller messages\n")
rest("Tokens a second with gamma 4 ([results.json](results.json) has gamma 2 and 8):\n")
rest("\n".join([head, *(row for _, row in rows)]) + "\n")
bytes_of = {s: [float(link[4][i][0]) for link in of_4] for i, s in enumerate(r["splits"])}
rest("Bytes an accepted token: " + ", ".join(f"{names.get(s, s)} {min(b):,.0f}" + (f" to {max(b):,.0f}" if f"{max(b):.0f}" != f"{min(b):.0f}" else "")
                                            for s, b in bytes_of.items()) +
    ".\n")
per_round = dict((name, float(x)) for name, x in r["tokens_a_round"])
fast = next((link for link in of_4 if link[:2] == ["100", "20"]), of_4[-1])
ms = {s: 1e3 * per_round[s] / float(fast[3][i][0]) for i, s in enumerate(r["splits"])}
rest("**A setting decodes only 3 x 40 tokens, so tokens a round differ by chance** (" + ", ".join(f"{names.get(s, s)} {x:.2f}" for s, x in per_round.items()) +
    f"), although DSD and DSSD accept with the same probability: with {fast[0]} Mbit/s and {fast[1]} ms a round of DSD takes {ms['DSD']:.1f} ms, one of "
    f"DSSD {ms['DSSD']:.1f} ms. [Experiments](../experiments.md#dssd) compare rounds of one text.\n")
late = lambda link, i: float(link[3][i][1]) / float(link[3][i][0])
worst_without_delay = all(max(r["links"], key=lambda link: late(link, i))[1] == "0" for i in range(len(r["splits"])))
rest("Measured time over the closed form of `plan/link.hpp`, median and largest: " + "; ".join(f"{names.get(s, s)} {m}, {most}" for s, m, most in r["over_closed_form"]) +
    (". The largest are without delay.\n" if worst_without_delay else ".\n"))
rest(f"![Tokens a second against bandwidth](splits.svg)\n")
add(f"[More tables]({plots}/tables.md): other delays, bytes, predictions, who aggregates, pictures.\n")
write(page, "two-sites", text)
tables(page, "two-sites-measured", more)
