#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What filters cost in torch: the nine rows of a step, from logits to probabilities, as Hugging Face transformers does it.

usage: torch_filters.py FOLDER KIND...     FOLDER: written by bench-filters --export FOLDER

Temperature, then top-k (the k-th largest logit is the least that is kept), then top-p (by a sort), then min-p (of the
largest probability), then the softmax. One thread. A line for each: filter, kind, the median in microseconds.
"""
import csv, pathlib, statistics, sys, time

try:
    import numpy, torch
except ImportError as e:
    sys.exit(f"torch_filters.py: {e} (scripts/bench runs this with a Python that has torch and numpy)")


def probabilities(logits, temperature, top_k, top_p, min_p):
    if temperature != 1:
        logits = logits / temperature
    if top_k > 0:
        logits = logits.masked_fill(logits < torch.topk(logits, top_k)[0][..., -1, None], -torch.inf)
    if top_p < 1:
        ascending, places = torch.sort(logits, descending=False)
        dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
        dropped[..., -1] = False
        logits = logits.masked_fill(dropped.scatter(1, places, dropped), -torch.inf)
    if min_p > 0:
        p = logits.softmax(-1)
        logits = logits.masked_fill(p < min_p * p.amax(-1, keepdim=True), -torch.inf)
    return logits.softmax(-1)


torch.set_num_threads(1)
folder = pathlib.Path(sys.argv[1])
with open(folder / "filters.tsv") as file:
    filters = [(name, *map(float, how)) for name, *how in csv.reader(file, delimiter="\t")]
for kind in sys.argv[2:]:
    rows = torch.from_numpy(numpy.fromfile(folder / f"{kind}.f32", numpy.float32).reshape(9, -1))
    for name, temperature, top_k, top_p, min_p in filters:
        if temperature == 0:
            step = lambda: rows.argmax(-1)
        else:
            step = lambda: probabilities(rows, temperature, int(top_k), top_p, min_p)
        times = []
        while len(times) < 7:
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e6)
        print(name, kind, f"{statistics.median(times[2:]):.1f}", sep="\t", flush=True)
