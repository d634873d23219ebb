# SPDX-License-Identifier: Apache-2.0
"""Loads the rejection sampler's files of vLLM's model runner V2 into Triton's interpreter: for coins.py and edges.py. On a
GPU import rejection_sample from vllm, and move the tensors there.
"""
import os, sys, types
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl

@triton.jit
def log1p(x):  # the interpreter has no libdevice
    return tl.log(1.0 + x)

root = sys.argv[1]  # a folder with the Python files of vllm: unzip the wheel, or site-packages
for name in """vllm vllm.v1 vllm.v1.worker vllm.v1.worker.gpu vllm.v1.worker.gpu.sample vllm.v1.worker.gpu.spec_decode
        vllm.v1.spec_decode vllm.v1.watermarking vllm.v1.watermarking.prfs""".split():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(root, *name.split("."))]
sys.modules["vllm.triton_utils"] = types.SimpleNamespace(
    triton=triton, tl=tl, HAS_TRITON=True, tldevice=types.SimpleNamespace(log1p=log1p))
sys.modules["vllm.logger"] = types.SimpleNamespace(init_logger=print)
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample


def verify(drafts, q, p, seeds, start, block=False):
    """Requests in the slots 0, 1, ..., at temperature 1; returns tokens [B, gamma + 1] and how many count."""
    B, gamma = drafts.shape
    slots, steps = torch.arange(B), torch.arange(gamma + 1)
    return rejection_sample(
        p.log().flatten(0, 1), q if q is None else q.log(), torch.cat([drafts[:, :1], drafts], 1).flatten(),
        torch.arange(B + 1) * (gamma + 1), (start[:, None] + steps).flatten(), slots,
        slots.repeat_interleave(gamma + 1), steps.repeat(B), torch.ones(B), seeds, gamma, use_block_verification=block)
