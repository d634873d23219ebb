# SPDX-License-Identifier: Apache-2.0
"""SGLang: a padding -1 is emitted.

usage: sglang.py FOLDER   (the wheel of sglang, unzipped)
"""
import importlib.util, os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch

path = os.path.join(sys.argv[1], "sglang/kernels/ops/speculative/reject_sampling.py")  # sys.argv[1]: the wheel, unzipped
spec = importlib.util.spec_from_file_location("reject_sampling", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def verify(drafts, q, p, block, coins=0.3):
    B, gamma = drafts.shape
    slots, predicts = torch.arange(B * (gamma + 1)).view(B, -1), torch.full((B * (gamma + 1),), -1, dtype=torch.int32)
    where, count = torch.full((B, gamma + 1), -1), torch.zeros(B, dtype=torch.int32)
    module.chain_speculative_sampling_triton(
        predicts, where, count, torch.cat([drafts[:, :1], drafts], 1), slots, None, None, torch.full((B, gamma), coins),
        torch.full((B,), coins), p, q, 1.0, 1.0, True, block_verification=block)
    return [predicts[row[:n + 1]].tolist() for row, n in zip(where, count.tolist())]

q, p = torch.full((2, 2, 3), 1 / 3), torch.full((2, 3, 3), 1 / 3)
for block in False, True:
    print("block" if block else "token", "a request that drafted nothing, [-1, -1]:",
          verify(torch.tensor([[0, 1], [-1, -1]]), q, p, block)[1])
    print("block" if block else "token", "NaN in every row of the target:",
          verify(torch.tensor([[0, 1], [0, 1]]), q, p * torch.nan, block)[0])
