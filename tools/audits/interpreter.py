# SPDX-License-Identifier: Apache-2.0
"""Loads the sampler files of an engine with Triton's interpreter on the CPU, without the rest of the engine."""

import functools
import importlib.util
import inspect
import logging
import os
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton.runtime.interpreter as runtime  # noqa: E402

# A function of a kernel that calls another makes the interpreter list all of Triton's members again, to replace those
# that it has replaced already: half of the time. One of them tells whether it has.
replace_members = runtime._patch_builtin
first = functools.lru_cache(None)(lambda module: next(
    (name for name, member in inspect.getmembers(module) if tl.core.is_builtin(member)), None))


def replace_once(module, builder, scope):
    if first(module) is None or tl.core.is_builtin(getattr(module, first(module))):
        replace_members(module, builder, scope)


runtime._patch_builtin = replace_once

masked_load = runtime.InterpreterBuilder.create_masked_load


def load_where(self, pointers, mask, *rest):
    """A bool that a kernel has loaded is a byte in the interpreter, which takes no mask of bytes."""
    return masked_load(self, pointers, runtime.TensorHandle(mask.data.astype(bool), tl.int1), *rest)


runtime.InterpreterBuilder.create_masked_load = load_where


@triton.jit
def log1p(x):  # the interpreter has no libdevice
    return tl.log(1.0 + x)


def package(root, name):
    """An empty package whose files are in root."""
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split("."))]
    sys.modules[name] = module


def vllm(root):
    """rejection_sampler_utils of vLLM's model runner V2 below root. The blocks of 8192 and 1024 tokens become 16: in
    the interpreter a block costs its size."""
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.sample",
                 "vllm.v1.worker.gpu.spec_decode", "vllm.v1.spec_decode", "vllm.v1.watermarking",
                 "vllm.v1.watermarking.prfs"):
        package(root, name)
    utils = types.ModuleType("vllm.triton_utils")
    utils.triton, utils.tl, utils.HAS_TRITON = triton, tl, True
    utils.tldevice = types.SimpleNamespace(log1p=log1p)
    logger = types.ModuleType("vllm.logger")
    logger.init_logger = logging.getLogger
    sys.modules.update({"vllm.triton_utils": utils, "vllm.logger": logger})
    name = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
    spec = importlib.util.find_spec(name)
    text = open(spec.origin).read()
    for size in ("VOCAB_BLOCK_SIZE = 8192", "RESAMPLE_BLOCK_SIZE = 1024"):
        if size not in text:
            raise RuntimeError(f"{spec.origin}: no line {size}")
        text = text.replace(size, size.split(" = ")[0] + " = 16")
    small = os.path.join(root, "small_blocks.py")  # a file, as Triton reads the source
    with open(small, "w") as out:
        out.write(text)
    spec = importlib.util.spec_from_file_location("small_blocks", small)
    module = importlib.util.module_from_spec(spec)
    sys.modules["small_blocks"] = module
    spec.loader.exec_module(module)
    return module


def sglang(root):
    """SGLang's chain_speculative_sampling_triton below root."""
    path = os.path.join(root, "sglang/kernels/ops/speculative/reject_sampling.py")
    spec = importlib.util.spec_from_file_location("reject_sampling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
