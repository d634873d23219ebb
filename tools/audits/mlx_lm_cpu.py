# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding of mlx-lm on a CPU, with two tiny Llamas of random weights. It samples and matches."""

import functools

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from record import QUICK, Record
from specagg import Sampling

V, PROMPT = 5, [1, 3, 2, 4]
record = Record("mlx-lm, CPU", mlx_lm.__version__)


def tiny(seed, near=None):
    mx.random.seed(seed)
    model = Model(ModelArgs(model_type="llama", hidden_size=16, num_hidden_layers=1, intermediate_size=24,
                            num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=V,
                            tie_word_embeddings=False))
    weights = tree_map(lambda x: 2.5 * x if x.ndim == 2 else x, model.parameters())
    if near is not None:
        weights = tree_map(lambda x: x + 0.2 * mx.random.normal(x.shape), near.parameters())
    model.update(weights)
    mx.eval(model.parameters())
    return model


target = tiny(1)
draft = tiny(2, target)


@functools.cache
def row(prefix):
    return np.array(target(mx.array([prefix]))[0, -1], np.float64)


def penalized(prefix, last=0):
    """Repetition 1.5, of the tokens from `last` on."""
    there, logits = np.isin(np.arange(V), prefix[last:]), row(prefix)
    return np.where(there, np.where(logits < 0, logits * 1.5, logits / 1.5), logits)


def engine(processors=None, **how):
    """Texts of 6 tokens, so that the end shortens no draft of the first three."""
    def texts(prompts, seeds):
        out = []
        for prompt, seed in zip(prompts, seeds):
            mx.random.seed(seed)
            steps = speculative_generate_step(
                mx.array(prompt), target, draft, num_draft_tokens=2, max_tokens=6, sampler=make_sampler(**how),
                logits_processors=processors)
            out.append([int(token) for token, _, _ in steps])
        return out

    return texts


def law(what, texts, p=row, **how):
    record.law(what, texts, p, rows="logits", prompt=PROMPT, **{"seeded": False, "tv": 0.4 if QUICK else 0.2, **how})


law("law, sampled drafts; T 0; seeds alone and in company", engine(temp=1.0), greedy=engine(temp=0.0), seeded=True)
law("T 0.7", engine(temp=0.7), sampling=Sampling(0.7))
law("top-k 3", engine(temp=1.0, top_k=3), sampling=Sampling(top_k=3))
law("top-p 0.8", engine(temp=1.0, top_p=0.8), sampling=Sampling(top_p=0.8))
law("min-p 0.3", engine(temp=1.0, min_p=0.3), sampling=Sampling(min_p=0.3))
repeat = engine(make_logits_processors(repetition_penalty=1.5), temp=1.0)
law("penalties (repetition 1.5)", repeat, penalized)
law("penalties (repetition 1.5), of the prompt's last token alone", repeat, lambda prefix: penalized(prefix, len(PROMPT) - 1))
