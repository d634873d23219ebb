#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step on a tree of drafts as engines with EAGLE's verification do it, in torch: the rival of bench-trees.

usage: torch_trees.py

The children of a node are the draft's most likely tokens. From the root downwards: softmax of the node's row, each child
in turn accepted with its probability, a rejected child's probability set to 0 and the row normalised again; where no
child is accepted the next token is drawn from what is left (Li et al. 2024, EAGLE, Algorithm 1, with q = 1). Rows are
those of bench-trees: 128,256 logits, 6 u for the target and 2 u more for the draft. Before it is timed, the frequency
of accepted tokens of the first level is compared with the sum of their probabilities. Microseconds, medians.
"""
import math, statistics, sys, time

try:
    import torch
except ImportError as e:
    sys.exit(f"torch_trees.py: {e} (scripts/bench --trees runs this with a Python that has torch)")


def tree(shape, draft):
    """Tokens and children of each node; node 0 is the text, which has no token."""
    tokens, children, level = [None], [[]], [0]
    for width in shape:
        below = []
        for node in level:
            for token in torch.topk(draft[node], width).indices.tolist():
                children[node].append(len(tokens)), below.append(len(tokens))
                tokens.append(token), children.append([])
        level = below
    return tokens, children


def step(logits, tokens, children):
    """The accepted nodes and the token drawn after them."""
    node, path = 0, []
    while True:
        row = torch.softmax(logits[node], -1)
        for child in children[node]:
            if float(torch.rand(())) <= float(row[tokens[child]]):
                node = child
                break
            row[tokens[child]] = 0
            row /= row.sum()
        else:
            return path, int(torch.multinomial(row, 1))
        path.append(node)


if len(sys.argv) > 1:
    sys.exit(__doc__)
torch.manual_seed(1)
p = torch.rand(4, 50) * 6
tokens, children = tree([3], p)
runs = 20000
accepted = sum(len(step(p, tokens, children)[0]) for _ in range(runs)) / runs
due = float(torch.softmax(p[0], -1)[tokens[1:]].sum())
if abs(accepted - due) > (math.log(2 / 1e-6) / (2 * runs)) ** 0.5:  # Hoeffding: false with probability 1e-6 at most
    sys.exit(f"torch_trees.py: accepts {accepted:.4f} instead of {due:.4f}: not timed")

vocabulary = 128256
print("| shape | nodes | threads | EAGLE's step in torch |\n| --- | ---: | ---: | ---: |")
for shape in ([4, 2, 1], [2, 2, 2, 1, 1], [1, 1, 1, 1]):
    nodes, level = 0, 1
    for width in shape:
        level *= width
        nodes += level
    target = torch.rand(nodes + 1, vocabulary) * 6
    tokens, children = tree(shape, target + torch.rand(nodes + 1, vocabulary) * 2)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = []
        for _ in range(60):
            start = time.perf_counter()
            step(target, tokens, children)
            times.append((time.perf_counter() - start) * 1e6)
        print(f"| {','.join(map(str, shape))} | {nodes} | {threads} | {statistics.median(times[10:]):.0f} |", flush=True)
