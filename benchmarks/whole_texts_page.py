#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the section "Whole texts" of docs/measured.md and docs/whole-texts/tables.md from what scripts/bench --prompts HEAD.gguf measured. Every measured
number is in RESULTS.json, whose `notes` a person may add: what else is known of the run.

usage: whole_texts_page.py RESULTS.json PAGE.md
"""
import json, pathlib, sys

from measured import tables, write

r = json.loads(pathlib.Path(sys.argv[1]).read_text())
page = pathlib.Path(sys.argv[2])
text = []
add = text.append

KINDS = ("chat", "story", "code", "rewrite")
COLUMNS = ("same", "loops", "tokens", "drafted", "speed", "least", "most", "off", "off_least", "off_most")
rows, prompts = {}, {}
for kind, temperature, drafts, *cells in r["prompts"]:
    count, kind = kind.split(" ")
    prompts[kind] = int(count)
    rows[kind, temperature, drafts] = dict(zip(COLUMNS, cells))
LOOKUP, ALL, HEAD = "lookup,counts --gamma auto", "lookup,counts,head --gamma auto", "head --gamma auto"
total = sum(prompts.values())
greedy = [row for (_, temperature, _), row in rows.items() if temperature == "0"]
texts = sum(prompts[kind] for kind, _, _ in rows)
texts_greedy = sum(prompts[kind] for kind, temperature, _ in rows if temperature == "0")
same, loops = sum(int(row["same"]) for row in greedy), sum(int(row["loops"]) for row in rows.values())

add("## Whole texts\n")
add(f"`scripts/bench --prompts models/smollm2-head.gguf --docs` on {r['date']}: {r['machine']}. SmolLM2-135M-Instruct (Q4_1) on the CPU "
    f"backend, {r['threads']} threads, the {total} prompts of `research/prompts` ({', '.join(f'{n} {kind}' for kind, n in prompts.items())}), 128 "
    "tokens each. *Speed-up*: the median over the prompts, against the same model without drafts.\n")
def gain(temperature):
    speeds = [rows[kind, temperature, ALL]["speed"] for kind in KINDS if (kind, temperature, ALL) in rows]
    return f"{min(speeds, key=float)} to {max(speeds, key=float)}" if speeds else "not measured"


add(f"* [Prompt lookup, counts and the draft head](drafters.md) together: {gain('0')} at temperature 0, {gain('1')} at temperature 1.")
add(f"* At temperature 0, {same} of {texts_greedy} texts are exactly the target model's own.")
doubts = [note for note in r["notes"] if "uncertain" in note]  # the others stand beside the other tables
for note in doubts:
    add(f"* {note}")
add("")
more = ["# Whole texts: more tables\n", "Of the runs that [measured.md](../measured.md#whole-texts) names.\n", *(f"* {note}" for note in r["notes"] if note not in doubts), f"* {loops or 'None'} of the {texts} texts ends in a loop.\n"]
section, rest = add, more.append
add("| prompts | temperature | lookup, counts | with the head | head alone | tokens a call, with the head |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |")
rest("| prompts, with the head | temperature | least speed-up | most | drafted a call |\n| --- | ---: | ---: | ---: | ---: |")
for kind in KINDS:
    for temperature in ("0", "1"):
        if (kind, temperature, ALL) in rows:
            cell = lambda drafts, what: rows.get((kind, temperature, drafts), {}).get(what, "")
            add(f"| {kind} | {temperature} | {cell(LOOKUP, 'speed')} | {cell(ALL, 'speed')} | {cell(HEAD, 'speed')} | {cell(ALL, 'tokens')} |")
            rest(f"| {kind} | {temperature} | {cell(ALL, 'least')} | {cell(ALL, 'most')} | {cell(ALL, 'drafted')} |")
add("\n`--gamma auto`. [More tables](whole-texts/tables.md): single prompts, other drafts, calls of more tokens.\n")
rest("")
add = rest
alone = [drafts for kind, _, drafts in rows if kind == "chat" and drafts not in (LOOKUP, ALL, HEAD)]
if alone:
    add("| chats, other drafts | speed-up, temperature 0 | temperature 1 |\n| --- | ---: | ---: |")
    for drafts in dict.fromkeys(alone):
        add(f"| `{drafts}` | {' | '.join(rows.get(('chat', temperature, drafts), {}).get('speed', '') for temperature in ('0', '1'))} |")
    add("")
off = [(float(row["off"]), float(row["off_least"]), float(row["off_most"])) for row in rows.values()]
add(f"Predicted speed-up (expected tokens over expected time, with the run's costs) over measured: medians of {min(o[0] for o in off):.2f} to "
    f"{max(o[0] for o in off):.2f}, single texts {min(o[1] for o in off):.2f} to {max(o[2] for o in off):.2f}. "
    "[results.json](results.json) has all settings.\n")

t = r["tokens"]
add("## What n tokens cost in one call\n")
add((f"{t['machine']}. " if t["machine"] else "The same machine. ") + f"{t['model']}. v = t(n) / t(1): drafts gain if a call gives more tokens than its v.\n")
threads = t["rows"][-1][0]
add(f"| n, {threads} threads | t(n), ms | v | llama.cpp, ms | its v | llama.cpp / specagg |\n| --- | ---: | ---: | ---: | ---: | ---: |")
for on, n, ms, *others in t["rows"]:
    if on == threads and n not in ("reading", "3"):
        _, v, *other = others
        add(f"| {n} | {ms} | {v} | {' | '.join((other + ['', '', ''])[:3])} |")
if on := t.get("contexts"):
    section("### What n tokens cost in one call\n")
    section(f"{on['machine']}, ms:\n")
    section("| context | 1 token | 5 tokens | llama.cpp: 1 | 5 |\n| ---: | ---: | ---: | ---: | ---: |")
    for row in on["rows"]:
        section(f"| {' | '.join(row)} |")
write(page, "whole-texts", text)
tables(page, "whole-texts", more)
