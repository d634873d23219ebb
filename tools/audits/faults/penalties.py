# SPDX-License-Identifier: Apache-2.0
"""mlx-lm: with drafts, penalties do not count the prompt.

usage: penalties.py
"""
import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_logits_processors

mx.random.seed(1)
model = Model(ModelArgs(model_type="llama", hidden_size=16, num_hidden_layers=1, intermediate_size=24, num_attention_heads=2,
                        num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=5, tie_word_embeddings=False))
prompt, how = mx.array([1, 3, 2, 4]), dict(max_tokens=1, logits_processors=make_logits_processors(repetition_penalty=1000.0))
_, alone = next(generate_step(prompt, model, **how))
_, drafted, *_ = next(speculative_generate_step(prompt, model, model, **how))
print("log-probabilities of the first token, without drafts:", [round(x, 2) for x in alone.tolist()])
print("                          with the model as its draft:", [round(x, 2) for x in drafted.tolist()])
