# SPDX-License-Identifier: Apache-2.0
"""Adapters of specagg.conformance for samplers of vLLM and SGLang on a CPU, where neither can be installed. The samplers' own
files are run; what they import of the rest of the engine, and do not need to sample, is an empty stand-in.

usage: pip download --no-deps vllm==0.33.0 sglang==0.5.23, unzip each; pip install torch numpy triton, and specagg; then here
       VLLM=FOLDER python -m specagg.conformance samplers_of_wheels:vllm
       SGLANG=FOLDER python -m specagg.conformance samplers_of_wheels:sglang
       SGLANG=FOLDER python -m specagg.conformance samplers_of_wheels:sglang_seeds --vocabulary 515
Kernels, in Triton's interpreter, which is slow (minutes with --tv 0.2 --vocabulary 515):
       VLLM=FOLDER python -m specagg.conformance samplers_of_wheels:vllm_v2          or vllm_v2_block, model runner V2
       SGLANG=FOLDER python -m specagg.conformance samplers_of_wheels:sglang_drafts   or sglang_drafts_block
"""
import ast
import importlib
import os
import sys
import types
from unittest.mock import MagicMock

import numpy as np
import torch

from specagg.conformance import Adapter

os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(1)


def stands_in(name, **what):
    """A module in which every other name is an object that can be called and does nothing."""
    module = MagicMock(name=name, **what)
    module.__spec__, module.__path__ = None, []
    sys.modules[name] = module


def package(root, *names):
    for name in names:
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split("."))]


def function_of(path, name):
    """One function of a file that cannot be imported; it needs torch alone."""
    tree = ast.parse(open(path).read())
    found = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
    space = {"torch": torch}
    exec(compile(ast.Module([found], []), path, "exec"), space)
    return space[name]


def version(root, distribution):
    return next(one for one in os.listdir(root) if one.startswith(distribution + "-")).split("-")[1].removesuffix(".dist")


def _vllm():
    """Sampler of model runner V1 as on a GPU without FlashInfer and Triton: TopKTopPSampler.forward_native()."""
    root = os.environ["VLLM"]
    package(root, *"vllm vllm.v1 vllm.v1.sample vllm.v1.sample.ops vllm.v1.sample.logits_processor".split())
    none = types.SimpleNamespace(is_enabled=lambda: False)
    stands_in("vllm._aiter_ops", rocm_aiter_ops=none)
    stands_in("vllm.platforms", current_platform=types.SimpleNamespace(
        is_cuda=lambda: False, is_cpu=lambda: False, is_xpu=lambda: False, is_rocm=lambda: False, simple_compile_backend="eager"))
    for name in "platforms.interface logger envs utils.gpu_sync_debug config config.model sampling_params v1.outputs v1.sample.metadata".split():
        stands_in(f"vllm.{name}")
    stands_in("vllm.config.model", PROCESSED_LOGPROBS_MODES=("processed_logits", "processed_logprobs"), LogprobsMode=str)
    stands_in("vllm.v1.outputs", SamplerOutput=types.SimpleNamespace, LogprobsTensors=types.SimpleNamespace)
    sys.modules["vllm"].SamplingParams, sys.modules["vllm"].envs = object, sys.modules["vllm.envs"]
    stands_in("vllm.triton_utils", HAS_TRITON=False)

    def padded(rows, pad, device, dtype, pin_memory):
        return torch.tensor([row + [pad] * (max(map(len, rows)) - len(row)) for row in rows], dtype=dtype)

    stands_in("vllm.utils.torch_utils", PIN_MEMORY=False, make_tensor_with_pad=padded)
    stands_in("vllm._custom_ops", apply_repetition_penalties=function_of(f"{root}/vllm/_custom_ops.py",
                                                                        "apply_repetition_penalties_torch"))
    layers = f"{root}/vllm/model_executor/layers/utils.py"
    penalize = function_of(layers, "apply_penalties")
    penalize.__globals__["get_token_bin_counts_and_mask"] = function_of(layers, "get_token_bin_counts_and_mask")
    stands_in("vllm.model_executor.layers.utils", apply_penalties=penalize)
    sampler = importlib.import_module("vllm.v1.sample.sampler").Sampler("processed_logprobs")
    min_p_of = importlib.import_module("vllm.v1.sample.logits_processor.builtin").MinPLogitsProcessor
    # of the sampled token alone: the others need a function that vLLM compiles
    sampler.gather_logprobs = lambda logprobs, count, token_ids: logprobs.gather(-1, token_ids[:, None])[:, 0]

    def sample(logits, s):
        n, size = logits.shape
        processors = []
        if s.min_p:
            one = min_p_of.__new__(min_p_of)
            one.min_p_count, one.min_p = n, torch.full((n, 1), s.min_p)
            processors.append(one)
        generators = {i: torch.Generator().manual_seed(int(seed) * 1000 + int(at)) for i, (seed, at) in
                      enumerate(zip(s.seeds, s.positions))}
        full = lambda x: torch.full((n,), float(x))
        how = types.SimpleNamespace(
            all_greedy=s.temperature == 0, all_random=s.temperature > 0, temperature=full(s.temperature), max_num_logprobs=1,
            logprob_token_ids=None, bad_words_token_ids={}, no_penalties=not s.history, output_token_ids=[list(s.history)] * n,
            spec_token_ids=None, prompt_token_ids=torch.full((n, 1), size), presence_penalties=full(s.presence),
            frequency_penalties=full(s.frequency), repetition_penalties=full(s.repetition), thinking_budget_state_holder=None,
            allowed_token_ids_mask=None if s.mask is None else torch.from_numpy(~s.mask).expand(n, -1),
            logitsprocs=types.SimpleNamespace(argmax_invariant=processors, non_argmax_invariant=[]), generators=generators,
            top_k=torch.full((n,), min(s.top_k, size), dtype=torch.int32) if s.top_k else None,
            top_p=full(s.top_p) if s.top_p < 1 else None)
        out = sampler(torch.from_numpy(logits.copy()).to(getattr(torch, s.dtype)), how)
        return out.sampled_token_ids[:, 0].long().numpy(), out.logprobs_tensors.numpy()

    has = ("temperature greedy top_k top_p min_p repetition presence frequency mask seeds log_probabilities float16 bfloat16 invalid")
    return Adapter(sample, frozenset(has.split()), "vLLM, runner V1, torch", version(root, "vllm"), order="vllm")


def _sglang(seeds):
    """Sampler with the backend "pytorch". seeds: with deterministic inference, whose hash runs in Triton's interpreter."""
    root = os.environ["SGLANG"]
    package(root, *"sglang sglang.srt sglang.srt.layers sglang.kernels sglang.kernels.ops".split())
    no = lambda *args, **how: False
    stands_in("sglang.kernels.ops.sampling", softmax=lambda rows: torch.softmax(rows, -1))
    sys.modules["sglang.kernels.ops.sampling"].__path__ = [f"{root}/sglang/kernels/ops/sampling"]
    hashes = importlib.import_module("sglang.kernels.ops.sampling.murmur_hash")

    def hashed(of, positions, columns):  # the engine's CPU has a kernel of its own, which the wheel has not
        out = torch.empty((len(of), len(columns)), dtype=torch.uint32)
        grid = (len(of), -(-len(columns) // 1024))
        hashes.murmur_hash32_kernel[grid](of, positions, columns, out, len(of), len(columns), BLOCK_SIZE=1024)
        return out

    hashes.murmur_hash32 = hashed
    kernel = types.SimpleNamespace(kernel=types.SimpleNamespace(sampling_backend="pytorch"))
    for name in "arg_groups.choices layers.dp_attention layers.logits_processor sampling.sampling_batch_info".split():
        stands_in(f"sglang.srt.{name}")
    stands_in("sglang.srt.environ", envs=MagicMock(
        SGLANG_TRACE_SAMPLER_E2E=types.SimpleNamespace(get=no), SGLANG_OPT_USE_GUMBEL_SAMPLE=types.SimpleNamespace(get=no)))

    class Logs:
        def compute_logprobs(self, logprobs, top, ids, tokens):
            self.logs = logprobs.gather(-1, tokens.long()[:, None])[:, 0]
            return MagicMock()

    stands_in("sglang.srt.layers.logprob_processor", OutputLogprobProcessor=Logs)
    stands_in("sglang.srt.runtime_context", get_exec=lambda: kernel)
    stands_in("sglang.srt.sampling.sampling_params", TOP_K_ALL=1 << 30)
    stands_in("sglang.srt.utils.async_probe")  # off by default
    stands_in("sglang.srt.utils.common", get_bool_env_var=no, is_cuda=no, is_hip=no, is_musa=no, is_xpu=no, is_gfx1250_supported=no,
              is_npu=lambda: True)  # so that nothing is compiled
    stands_in("torch_npu")
    stands_in("sglang.utils")
    module = importlib.import_module("sglang.srt.layers.sampler")
    sampler = module.Sampler.__new__(module.Sampler)
    torch.nn.Module.__init__(sampler)
    sampler.rl_on_policy_target, sampler.use_log_softmax_logprob, sampler.use_ascend_backend = None, False, False
    sampler.enable_deterministic, sampler.output_logprob_processor = seeds, Logs()

    def sample(logits, s):
        n, size = logits.shape
        if not seeds:
            torch.manual_seed(int(s.seeds[0]))
        info = types.SimpleNamespace(
            is_all_greedy=s.temperature == 0, temperatures=torch.full((n, 1), s.temperature or 1.0),
            top_ks=torch.full((n,), s.top_k or 1 << 30, dtype=torch.int32), top_ps=torch.full((n,), s.top_p),
            min_ps=torch.full((n,), s.min_p), need_top_k_sampling=s.top_k > 0, need_top_p_sampling=s.top_p < 1,
            need_min_p_sampling=s.min_p > 0, has_custom_logit_processor=False, sampling_mask_batch_indices=None,
            sampling_support_logprobs_capture_indices=None, grammars=None, max_top_k=None,
            sampling_seed=torch.from_numpy(s.seeds.astype(np.int64)) if seeds else None)
        out = types.SimpleNamespace(next_token_logits=torch.from_numpy(logits.copy()).to(getattr(torch, s.dtype)))
        tokens = sampler(out, info, True, [], [], torch.from_numpy(s.positions))
        return tokens.long().numpy(), sampler.output_logprob_processor.logs.float().numpy()

    has = "temperature greedy top_k top_p log_probabilities invalid " + ("seeds" if seeds else "min_p float16 bfloat16")
    return Adapter(sample, frozenset(has.split()), "SGLang, torch" + (", deterministic" if seeds else ""), version(root, "sglang"),
                   order="joint", most=1024 if seeds else 4096)


def logits_of(rows):
    return torch.from_numpy(rows.copy())


def _vllm_v2(block):
    """Model runner V2: gumbel_sample() and rejection_sample(), all requests of a call in slots of their own. Where the engine
    has them, filters act before, in torch."""
    import interpreter

    root = os.environ["VLLM"]
    utils = interpreter.vllm(root)
    gumbel = importlib.import_module("vllm.v1.worker.gpu.sample.gumbel")

    def sample(logits, s):
        n = len(logits)
        at = torch.arange(n, dtype=torch.int32)
        return gumbel.gumbel_sample(
            logits_of(logits).to(getattr(torch, s.dtype)), at, torch.full((n,), s.temperature), torch.from_numpy(s.seeds.astype(np.int64)),
            torch.from_numpy(s.positions), apply_temperature=True, is_drafting=False).numpy()

    def verify(drafts, q, p, s):
        n, gamma = drafts.shape
        at = torch.arange(n, dtype=torch.int32)
        tokens, count = utils.rejection_sample(
            logits_of(p).reshape(n * (gamma + 1), -1), None if q is None else logits_of(q),
            torch.from_numpy(np.concatenate([np.zeros((n, 1), np.int64), drafts], 1).reshape(-1)),
            torch.arange(n + 1, dtype=torch.int32) * (gamma + 1),
            torch.from_numpy((s.positions[:, None] + np.arange(gamma + 1)).reshape(-1)), at, at.repeat_interleave(gamma + 1),
            torch.arange(gamma + 1, dtype=torch.int32).repeat(n), torch.ones(n), torch.from_numpy(s.seeds.astype(np.int64)), gamma,
            use_block_verification=block)
        return [row[:length] for row, length in zip(tokens.tolist(), count.tolist())]

    has = "temperature greedy seeds float16 bfloat16 invalid drafts one_hot bonus padding no_support wider_target invalid_drafts"
    return Adapter(sample, frozenset(has.split()), "vLLM, runner V2, kernels" + (", block" if block else ""), version(root, "vllm"),
                   verify=verify)


def _sglang_drafts(block):
    """The kernel of chain sampling. Its coins are the caller's: numpy's, of the seed and the position."""
    import interpreter

    root = os.environ["SGLANG"]
    kernel = interpreter.sglang(root).chain_speculative_sampling_triton

    def verify(drafts, q, p, s):
        n, gamma = drafts.shape
        coins = np.array([np.random.default_rng([int(seed), int(at)]).random(gamma + 1) for seed, at in zip(s.seeds, s.positions)],
                         np.float32)
        softmax = lambda rows: torch.softmax(logits_of(rows), -1)
        of_q = torch.from_numpy(np.eye(p.shape[2], dtype=np.float32)[np.maximum(drafts, 0)]) if q is None else softmax(q)
        predicts, where = torch.full((n * (gamma + 1),), -1, dtype=torch.int32), torch.full((n, gamma + 1), -1)
        count = torch.zeros(n, dtype=torch.int32)
        kernel(predicts, where, count, torch.from_numpy(np.concatenate([np.zeros((n, 1), np.int64), drafts], 1)),
               torch.arange(n * (gamma + 1)).reshape(n, gamma + 1), None, None, torch.from_numpy(coins[:, :gamma].copy()),
               torch.from_numpy(coins[:, gamma].copy()), softmax(p), of_q, 1.0, 1.0, True, block_verification=block)
        return [predicts[one[:length + 1]].tolist() for one, length in zip(where, count.tolist())]

    def sample(logits, s):
        """A draft of no token."""
        n, size = logits.shape
        return np.array([text[0] for text in verify(np.zeros((n, 0), np.int64), np.zeros((n, 0, size), np.float32), logits[:, None], s)])

    return Adapter(sample, frozenset("seeds drafts one_hot bonus padding no_support invalid_drafts".split()),
                   "SGLang, chain sampling kernel" + (", block" if block else ""), version(root, "sglang"), verify=verify)


def __getattr__(name):
    made = {"vllm": _vllm, "sglang": lambda: _sglang(False), "sglang_seeds": lambda: _sglang(True),
            "vllm_v2": lambda: _vllm_v2(False), "vllm_v2_block": lambda: _vllm_v2(True),
            "sglang_drafts": lambda: _sglang_drafts(False), "sglang_drafts_block": lambda: _sglang_drafts(True)}
    if name not in made:
        raise AttributeError(name)
    return made[name]()
