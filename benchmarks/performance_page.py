#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the section "The verification step" of docs/measured.md and docs/performance/tables.md from what report.py computed. Every measured number is in
RESULTS.json, whose `notes` a person may add: what else is known of the run.

usage: performance_page.py RESULTS.json PAGE.md
"""
import json, pathlib, re, sys

from measured import tables, write

r = json.loads(pathlib.Path(sys.argv[1]).read_text())
page = pathlib.Path(sys.argv[2])
plots = "performance"
machine = r["machine"]
step = {who: (warm, cold) for who, warm, _, cold in r["step"]}
kernels = {name: (us, over) for name, us, _, over in r["kernels"]}
torch = f"torch {machine['torch']}; " if "torch" in machine else ""
text = []
add = text.append

add("## The verification step\n")
add(f"`{machine['command']}` on {machine['date']}, commit {machine['commit']}: {machine['cpu']}, {machine['cores']} cores, {machine['isa']}, {machine['compiler']}; "
    f"{torch}one thread, rows in host memory. Medians, with a standard deviation of {r['spread'][0]} % (the worst {r['spread'][1]} %).")
add("")
add("* **The step** is lossless token verification from f32 logits: V = 128,256, 4 drafted tokens, acceptance rate 0.8.")
add("* ***Known***: you keep the draft model's rows, with their normalisers.")
add("* **Warm**: the rows are in a cache. **Cold**: in none.")
add("* **We wrote the compared programs** from those systems' published steps (`benchmarks/torch_steps.py`, `benchmarks/rivals.hpp`). "
    "llama.cpp's are exact match: fewer accepted tokens, less work.\n")

add("### The step\n")
add(f"![microseconds of one step (gamma 4, V = 128,256), by program]({plots}/step.svg)\n")
add("| who | warm, us | cold, us |\n| --- | ---: | ---: |")
SHOWN = ("specagg, known", "specagg", "specagg, bf16", "specagg, block", "specagg, top-p 0.9", "Eigen, written out", "Hugging Face steps in torch, known, 1 thread",
         "Hugging Face steps in torch, written out, 1 thread", "vLLM V1 steps, known", "scalar expf, written out",
         "llama.cpp steps")
for who in SHOWN:
    if who in step:
        name = who.replace(", written out", "").replace("scalar expf", "plain C++ with expf")
        name = re.sub("^(vLLM V1|llama.cpp) steps", r"\g<0> in C++", name)
        add(f"| {name} | {' | '.join(step[who])} |")
add(f"\n[More tables]({plots}/tables.md).\n")
write(page, "performance", text)
text.clear()
add("# Performance: more tables\n")
add("Of the run that [measured.md](../measured.md#the-verification-step) names.")
for note in r["notes"]:
    add(f"{note}")
add("")
add("## Draft lengths and acceptance rates\n")
add("specagg, V = 128,256, nothing known, us:\n")
add("| gamma | acceptance rate 0 | 0.5 | 0.8 | 1 |\n| ---: | ---: | ---: | ---: | ---: |")
for v, gamma, b, *times in r["grid"]:
    if v == "128,256" and b == "1":
        add(f"| {gamma} | {' | '.join(times)} |")
add("\n![microseconds of a step against acceptance, by gamma](grid.svg)\n")
add("[results.json](results.json) has V = 32,000 and 151,936, and batches of 8.\n")

add("## Kernels\n")
add(f"*Cache*: 131,072 elements in all. *Memory*: {r['memory']}. The others: V = 151,936. The floor is a read of the same memory, or "
    "one exponential for each element of both rows.\n")
add("| kernel | us | over the floor | compared with, us |\n| --- | ---: | ---: | --- |")
RIVALS = {"scalar expf": "a loop over `expf`", "sorted": "a sort of all (logit, id)", "plain argmax": "a plain argmax"}
COMPARED = (("log-sum-exp: specagg/cache", "log-sum-exp: scalar expf/cache"), ("log-sum-exp: specagg/memory", None),
         ("TV of probabilities: specagg/cache", None), ("TV of probabilities: specagg/memory", None), ("TV of logits: specagg", None),
         ("residual mass and draw: specagg", "residual mass and draw: scalar expf"), ("exponential race: specagg", None),
         ("greedy row: specagg", "greedy row: plain argmax"), ("top-k 40 row: specagg", "top-k 40 row: sorted"),
         ("top-p 0.9 row: specagg", "top-p 0.9 row: sorted"))
for name, other in COMPARED:
    if name in kernels:
        us, over = kernels[name]
        beside = f"{kernels[other][0]}: {RIVALS[other.split(': ')[1].split('/')[0]]}" if other in kernels else ""
        add(f"| {name.replace(': specagg/', ', ').replace(': specagg', '').replace('exponential race', 'Gumbel-max draw')} | {us} | {over} | {beside} |")
add(f"\n![kernels: time over what reading or exponentiating alone costs](kernels.svg)\n")

add("## Goals\n")
missed = [goal for goal in r["goals"] if goal[3] == "missed"]
unknown = sum(goal[3] == "not measured" for goal in r["goals"])
add(f"{len(r['goals']) - len(missed) - unknown} of {len(r['goals'])} goals are met in this run" + (f", {unknown} were not measured" if unknown else "") +
    (". These are not:\n" if missed else ".\n"))
if missed:
    add("| ratio | measured | goal |\n| --- | ---: | ---: |")
    for what, measured, goal, _ in missed:
        add(f"| {what} | {measured} | {goal} |")
    add("")
if any("bf16" in goal[0] for goal in missed):
    add("* bf16 halves what is read and adds two operations to the dozen of an exponential: it gains only if a core waits for memory.")
if any("time in neither" in goal[0] for goal in missed):
    add("* The time outside of the models depends only on V and gamma, so its share is smaller with larger models. "
        "The command-line program is compiled with `SPECAGG_COMPILE_FAST`, with which loops over the vocabulary take several times as long.")
add("")

decode = {name: cells for name, *cells in r["decode"]}
if decode:
    add("## Where the time of a text goes\n")
    calls = {name: float(cells[1]) * float(cells[3].rstrip(" %")) / float(cells[0]) for name, cells in decode.items()}
    alone, with_4 = decode["target alone"], decode["lossless, gamma 4"]
    add("`specagg generate` with the bundled models, 400 tokens, temperature 0.8. *Other* is everything that is no model.\n")
    add("| | tokens/s | tokens per target call (block efficiency) | draft model | target model | other |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, cells in decode.items():
        add(f"| {name} | {' | '.join(cells)} |")
    change = 100 * (float(with_4[0]) / float(alone[0]) - 1)
    outside = lambda name: float(decode[name][1]) * float(decode[name][4].rstrip(" %")) / float(decode[name][0])
    add(f"\nWith block verification all that is no model takes {outside('lossless, gamma 4, block') / outside('lossless, gamma 4'):.1f} times as long in "
        "these texts as with token verification; drafting and text are a part of it.")
    add(f"\nThese models fit into the cache, so a call with 5 tokens costs {calls['lossless, gamma 4'] / calls['target alone']:.1f} steps, and drafting 4 tokens "
        f"{'loses' if change < 0 else 'gains'} {abs(change):.0f} %. In 400 tokens block verification may accept fewer tokens than token verification by chance.\n")
tables(page, "performance", text)
