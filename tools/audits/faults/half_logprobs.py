# SPDX-License-Identifier: Apache-2.0
"""mlx-lm: log-probabilities are computed in the type of the logits, so a model in bfloat16 samples another law than its logits'.

usage: half_logprobs.py
"""
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_sampler

V, prompt = 32_000, mx.array([1, 3, 2, 4])
mx.set_default_device(mx.cpu), mx.random.seed(1)
model = Model(ModelArgs(model_type="llama", hidden_size=64, num_hidden_layers=1, intermediate_size=64, num_attention_heads=2,
                        num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=V, tie_word_embeddings=False))
model.lm_head.weight = mx.random.normal((V, 64)) * 2.5 / 8  # logits are about N(0, 2.5^2)
single = model.parameters()
softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()
for t in mx.float32, mx.float16, mx.bfloat16:
    model.update(tree_map(lambda x: x.astype(t), single))
    given = np.array(model(prompt[None])[0, -1].astype(mx.float32)).astype(np.float64)
    due = np.log(softmax(given))
    logs = next(generate_step(prompt, model, max_tokens=1))[1]  # what every sampler of mlx-lm gets
    logs = np.array(logs.astype(mx.float32)).astype(np.float64)
    laws = [np.abs(softmax(logs / T) - softmax(given / T)).sum() / 2 for T in (1.0, 0.5, 0.25)]
    print(f"{t}: log-probabilities off by {np.abs(logs - due).max():.4f}, their sum {np.exp(logs).sum():.4f}; "
          f"total variation at T 1, 0.5, 0.25: {', '.join(f'{x:.4f}' for x in laws)}")
    for top_p in 0.5, 0.9:
        p, ordered = np.exp(due), np.sort(np.exp(due))[::-1]
        last = ordered[np.searchsorted(np.cumsum(ordered), top_p)]
        sampler, row = make_sampler(1.0, top_p=top_p), mx.broadcast_to(mx.array(logs.astype(np.float32)).astype(t), (64, V))
        tokens = np.concatenate([np.array(sampler(row)) for _ in range(32)])
        print(f"    top-p {top_p}: {np.count_nonzero(p >= last)} tokens are due, ties included; {np.mean(p[tokens] < last):.4f} of "
              f"{tokens.size} tokens are others")
