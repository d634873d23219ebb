# SPDX-License-Identifier: Apache-2.0
"""transformers: after a token that equals the pad id the draft's rows are those of another text."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import utils

def tiny(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=4, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.5, bos_token_id=None, eos_token_id=None, pad_token_id=None)).eval()

target, draft, worst, original = tiny(1), tiny(2), {}, utils._speculative_sampling
draft.generation_config.update(num_assistant_tokens=2, num_assistant_tokens_schedule="constant",
                               assistant_confidence_threshold=0.0)

def watched(ids, q, n, *rest, **more):
    for k in range(n):
        prefix = ids[:, :ids.shape[1] - n + k]
        there = bool((prefix == pad).any())
        worst[there] = max(worst.get(there, 0), (q[:, k].softmax(-1) - draft(prefix).logits[:, -1].softmax(-1)).abs().max().item())
    return original(ids, q, n, *rest, **more)

utils._speculative_sampling = watched
for pad in 5, 0:
    worst.clear()
    for seed in range(20):
        target.generate(torch.tensor([[1, 3, 2]]), do_sample=True, max_new_tokens=8, top_k=0, assistant_model=draft,
                        attention_mask=torch.ones(1, 3, dtype=torch.long), pad_token_id=pad)
    print(f"pad_token_id={pad}: largest error of the draft's rows, by whether the text has this token:", worst)
