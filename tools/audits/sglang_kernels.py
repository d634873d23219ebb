# SPDX-License-Identifier: Apache-2.0
"""SGLang's chain_speculative_sampling_triton in Triton's interpreter.

usage: sglang_kernels.py VERSION   a wheel of PyPI
"""

import pathlib
import sys

import numpy as np
import torch

import interpreter
from record import TV, Record, rows
from specagg.testing import in_rounds

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from install import files  # noqa: E402

version = sys.argv[1]
sample = interpreter.sglang(files("sglang", version, r"sglang/.*\.py$")).chain_speculative_sampling_triton
GAMMA, V = 2, 3
torch.set_num_threads(1)
record = Record("SGLang, chain sampling kernel", version)


def verify(drafts, q, p, coins, block):
    """One call, as eagle_utils makes it: the slot before the drafts holds the last token."""
    B, gamma = drafts.shape
    slots = torch.arange(B * (gamma + 1)).reshape(B, gamma + 1)
    predicts, where = torch.full((B * (gamma + 1),), -1, dtype=torch.int32), torch.full((B, gamma + 1), -1)
    count = torch.zeros(B, dtype=torch.int32)
    q = np.eye(p.shape[-1])[np.maximum(drafts, 0)] if q is None else q
    candidates = torch.from_numpy(np.concatenate([np.zeros((B, 1), np.int64), drafts], 1))
    sample(predicts, where, count, candidates, slots, None, None, coins[0], coins[1],
           torch.from_numpy(np.array(p, np.float32)), torch.from_numpy(np.array(q, np.float32)), 1.0, 1.0, True,
           block_verification=block)
    return [predicts[one[:n + 1]].tolist() for one, n in zip(where, count.tolist())]


def coins(seeds, positions):
    """A generator for each request and round. (SGLang hashes seed, sequence length and column: not audited here.)"""
    u = [np.random.default_rng([int(s), int(at)]).random(GAMMA + 1) for s, at in zip(seeds, positions)]
    u = np.array(u, np.float32)
    return torch.from_numpy(u[:, :GAMMA].copy()), torch.from_numpy(u[:, GAMMA].copy())


def step(block):
    return lambda drafts, q, p, seeds, positions: verify(drafts, q, p, coins(seeds, positions), block)


def laws(name, block):
    q, p = rows(1, V), rows(2, V)
    how = dict(length=2, tv=2 * TV, seeded=False)
    record.law(f"law, sampled drafts, {name}", in_rounds(step(block), q, p, length=2), p, **how)
    record.law(f"law, drafts without rows, {name}", in_rounds(step(block), q, p, length=2, sampled=False), p, **how)
    record.law(f"drafted -1 (dynamic lengths), {name}",
               in_rounds(step(block), lambda prefix: None if sum(prefix) % 2 else q(prefix), p, length=2), p, **how)


def edges(name, block):
    B = 50
    u = coins(np.arange(B), np.zeros(B))
    p = np.tile([0.2, 0.3, 0.5], (B, GAMMA + 1, 1))
    drafts = np.zeros((B, GAMMA), np.int64)
    texts = verify(drafts, np.tile([0.0, 0.5, 0.5], (B, GAMMA, 1)), p, u, block)
    kept = sum(len(text) > 1 for text in texts)
    record.says(f"q = 0 can be rejected, {name}", kept < 0.5 * B,
                f"p = 0.2; accepted {kept} of {B} times")
    texts = verify(drafts + 1, np.tile([0.0, 0.5, 0.5], (B, GAMMA, 1)), p * np.nan, u, block)
    record.says(f"NaN is reported, {name}", not any(texts),
                f"{sum(map(bool, texts))} of {B} emit, the first: {texts[0]}; no status")


np.seterr(divide="ignore", invalid="ignore")
for name, block in ("token", False), ("block", True):
    edges(name, block)
    laws(name, block)
