# SPDX-License-Identifier: Apache-2.0
"""Assisted generation of transformers, with two tiny Llamas of random weights."""

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import utils
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

import specagg
from record import QUICK, Record

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
V, GAMMA, PROMPT = 4, 2, [1, 3, 2]
record = Record("transformers", transformers.__version__)


def tiny(seed, vocabulary=V):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)).eval()
    return model


def lengths(model, schedule, confidence, gamma=GAMMA):
    """How many tokens the draft model drafts. The heuristic changes the number from text to text."""
    model.generation_config.update(num_assistant_tokens=gamma, num_assistant_tokens_schedule=schedule,
                                   assistant_confidence_threshold=confidence)


target, draft, far = tiny(1), tiny(2), tiny(3)
lengths(draft, "constant", 0.0)
lengths(far, "constant", 0.0, 1)  # with one drafted token the two laws of an ensemble's bonus differ by 0.3


def rows(model, edit=lambda ids, row: row):
    known = {}

    def row(prefix):
        if prefix not in known:
            ids = torch.tensor([prefix])
            with torch.no_grad():
                known[prefix] = edit(ids, model(ids).logits[:, -1])[0].double().numpy()
        return known[prefix]

    return row


def engine(sample=True, **how):
    """Texts of 6 tokens, so that the end shortens no draft of the first three."""
    how = {"assistant_model": draft, "pad_token_id": V + 1, "top_k": 0, **how}

    def texts(prompts, seeds):
        found = []
        for prompt, seed in zip(prompts, seeds):
            torch.manual_seed(seed)
            ids = torch.tensor([prompt])
            found.append(target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=sample, max_new_tokens=6,
                                         **how)[0, len(prompt):].tolist())
        return found

    return texts


def law(what, texts, p=rows(target), sampling=specagg.Sampling(), **how):
    record.law(what, texts, p, how.pop("q", None), sampling=sampling, rows="logits", prompt=PROMPT,
               **{"seeded": False, "tv": 0.4 if QUICK else 0.25, **how})


def draft_rows(what, pad):
    """The largest difference between a row that drafts are verified with and the draft model's own row of the text."""
    original, worst, row = utils._speculative_sampling, 0.0, rows(draft)

    def watched(ids, q, n, *rest, **more):
        nonlocal worst
        text = ids[0].tolist()
        for k in range(n):
            own = torch.from_numpy(row(tuple(text[:len(text) - n + k]))).softmax(-1)
            worst = max(worst, float((q[0, k].double().softmax(-1) - own).abs().max()))
        return original(ids, q, n, *rest, **more)

    utils._speculative_sampling = watched
    engine(pad_token_id=pad)([PROMPT] * 50, range(50))
    utils._speculative_sampling = original
    record.says(what, worst < 1e-5, f"largest error of a probability {worst:.1e}, 50 texts")


law("law, sampled drafts; T 0; seeds alone and in company", engine(), greedy=engine(sample=False), seeded=True)
law("law, lookup drafts", engine(assistant_model=None, prompt_lookup_num_tokens=GAMMA))
law("T 0.7, top-k 3", engine(temperature=0.7, top_k=3), sampling=specagg.Sampling(0.7, top_k=3))
law("top-p 0.7", engine(top_p=0.7), sampling=specagg.Sampling(top_p=0.7))
law("min-p 0.3", engine(min_p=0.3), sampling=specagg.Sampling(min_p=0.3))
law("penalties (repetition 1.5)", engine(repetition_penalty=1.5), rows(target, RepetitionPenaltyLogitsProcessor(1.5)))
law("end of text", engine(eos_token_id=2), end_of_text=[2])
lengths(draft, "heuristic", 0.4)
law("dynamic lengths", engine())
lengths(draft, "constant", 0.0)
law("lossless, the pad id in the text", engine(pad_token_id=0))
mixed, ensemble = dict(assistant_ensemble_weight=0.5, assistant_model=far), dict(policy="ensemble:lambda=0.5")
law("ensemble, bonus as the rest", engine(**mixed), q=rows(far), **ensemble)
law("ensemble, bonus from p", engine(**mixed), q=rows(far), bonus_from_target=1, **ensemble)
draft_rows("rows of the draft", V + 1)
draft_rows("rows of the draft, the pad id in the text", 0)
