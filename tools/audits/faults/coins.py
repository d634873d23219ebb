# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32.0, model runner V2: block verification uses a coin twice.

usage: coins.py FOLDER   (the wheel of vllm, unzipped)
"""
from load_vllm import torch, verify

def round_of(seeds, start):
    drafts = torch.zeros(len(seeds), 2, dtype=torch.long)
    return verify(drafts, None, torch.tensor([0.6, 0.4]).expand(len(seeds), 3, 2), seeds, start, block=True)[0]

seeds = torch.arange(300)
rejected = seeds[round_of(seeds, torch.zeros(300, dtype=torch.long))[:, 0] == 1]  # the next round begins at position 1
zeros = int((round_of(rejected, torch.ones(len(rejected), dtype=torch.long))[:, 0] == 0).sum())
print(f"token 0 after a rejected token 0: {zeros} of {len(rejected)}; 0.6 of them are due, 0.375 if coins are used again")
