# SPDX-License-Identifier: Apache-2.0
"""vLLM, model runner V2: q = 0, rows of NaN, and a draft vocabulary that is smaller than the target's.

usage: edges.py FOLDER   (the wheel of vllm, unzipped)
"""
from load_vllm import torch, verify

B, gamma = 50, 2
seeds, start, drafts = torch.arange(B), torch.zeros(B, dtype=torch.long), torch.zeros(B, gamma, dtype=torch.long)
q, p = torch.tensor([0.0, 0.5, 0.5]).expand(B, gamma, 3), torch.tensor([0.2, 0.3, 0.5]).expand(B, gamma + 1, 3)
print("q = 0, p = 0.2: accepted in", int((verify(drafts, q, p, seeds, start)[1] > 1).sum()), "of", B)
for block in False, True:
    tokens, count = verify(drafts + 1, q, p * torch.nan, seeds, start, block)
    print("NaN in every row of the target, block" if block else "NaN in every row of the target, token",
          tokens[0, :count[0]].tolist())
q, p = torch.full((B, gamma, 4), 0.25), torch.tensor([0.1, 0.1, 0.1, 0.1, 0.3, 0.3]).expand(B, gamma + 1, 6)
tokens, count = verify(drafts, q, p, seeds, start)
seen = torch.cat([row[:n] for row, n in zip(tokens, count)])
print("draft of 4 tokens, target of 6: tokens 4 and 5, of mass 0.6:", int((seen > 3).sum()), "of", len(seen))
