# SPDX-License-Identifier: Apache-2.0
"""vLLM with specagg's verifiers: a plug-in that vLLM finds by itself (entry point vllm.general_plugins).

It does nothing unless the environment variable SPECAGG_VLLM names a policy, as in "token_v3:alpha=0.3" or
"lossless,verifier=block". Then drafted tokens are verified by specagg, and the tokens of rounds without drafts are drawn
by it: CPU tensors by specagg.verify(), CUDA tensors by specagg.cuda.verify(). A request may have another policy:
SamplingParams(extra_args={"specagg": "lossless"}). What is replaced is private to vLLM, so the versions are named that it
was tested with; any other keeps its own sampler.

Words of vLLM: a recovered token is drawn in place of a rejected one; the bonus token follows a draft of which all was
accepted. Under policies that read the draft's row it has the target's law, as vLLM has no row of the draft there.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor

from ._engine import Decided, Round, Setting, divisors, decide, greedy, new_seeds, of_request, requests_of_rows, setting
from ._verify import _on_a_device

VERSIONS = ("0.32.0", "0.33.0")  # of vLLM

_log = logging.getLogger("vllm.specagg")  # shown as vLLM's own lines are


def _of_request(extra_args: Any, usual: Setting | None) -> Setting | None:
    return of_request(extra_args, usual, "extra_args")


def processed(r: Round, of: Tensor) -> Tensor:
    """The target's rows [N + B, V] after temperature and vLLM's filters."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    rows = r.rows / divisors(r.temperature[of])[:, None]
    return apply_top_k_top_p(rows, None if r.top_k is None else r.top_k[of], None if r.top_p is None else r.top_p[of])


def _with_log_pi(tensors: Any, log_pi: Tensor) -> Any:
    """vLLM's log-probabilities, those of the sampled tokens replaced, in their column and among the most likely.
    log_pi: [rows], NaN where no token was sampled."""
    same = tensors.logprob_token_ids == tensors.logprob_token_ids[:, :1]
    log_pi = log_pi.to(tensors.logprobs.dtype)[:, None]
    return tensors._replace(logprobs=torch.where(same & ~log_pi.isnan(), log_pi, tensors.logprobs))


def _keeps_own(sampler: Any) -> bool:
    """Whether vLLM's own method, that no policy stands for, was asked for: synthetic acceptance, and from 0.33.0 on fly."""
    return sampler.synthetic_mode or getattr(sampler, "use_fly", False)


# ---- metrics ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _counters() -> list[Any]:
    """Shown as specagg:tokens_total and specagg:distance_total; by a server, which is another process, if
    PROMETHEUS_MULTIPROC_DIR is set. None if that is wrong."""
    from prometheus_client import Counter

    try:
        return [Counter("specagg:tokens", "Tokens that specagg has decided for requests with drafts."),
                Counter("specagg:distance", "Over them, the sum of estimated total variations of pi and the target's law p.")]
    except (OSError, ValueError) as e:
        _log.warning("specagg: no metrics: %s", e)
        return []


def _count(sampler: Any, r: Round, out: Decided) -> None:
    """max(0, 1 - p(y) / pi(y)) of a token y drawn from pi has the mean TV(pi, p). Requests without drafts do not count: vLLM
    asks for a token, and drops it, where a part of a prompt ends. On a device 64 rounds are summed up at once, and what was
    summed up is read 64 rounds later, so that nothing waits."""
    if r.most == 0:
        return
    drafted = torch.diff(r.cu_num_draft_tokens, prepend=r.cu_num_draft_tokens.new_zeros(1)) > 0
    held = vars(sampler).setdefault("specagg_ratios", [])
    held.append(torch.where(drafted[:, None], out.log_p - out.log_pi, torch.nan).flatten())
    waits = _on_a_device(r.rows)
    if waits and len(held) < 64:
        return
    distance = (1 - torch.cat(held).double().exp()).clamp(min=0)
    held.clear()
    sums = torch.stack([(~distance.isnan()).sum(dtype=torch.float64), distance.nansum()]).to("cpu", non_blocking=True)
    if waits:
        sums, sampler.specagg_sums = getattr(sampler, "specagg_sums", torch.zeros(2)), sums
    for counter, sum in zip(_counters(), sums.tolist()):
        counter.inc(sum)


# ---- model runner V1 -------------------------------------------------------------------------------------------------


def _seeds(generators: dict[int, Any], B: int) -> Tensor:
    """The seeds of SamplingParams; else new ones."""
    seeds = new_seeds(B)
    for i, generator in generators.items():
        seed = generator.initial_seed()
        seeds[i] = seed - 2**64 if seed >= 2**63 else seed
    return seeds


def forward(self: Any, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any, *, usual: Setting,
            own: Callable[..., Any]) -> Any:
    """In place of RejectionSampler.forward(). own: that."""
    from vllm.v1.outputs import SamplerOutput

    how, B = sampling_metadata, len(metadata.num_draft_tokens)
    if _keeps_own(self):
        return own(self, metadata, draft_probs, logits, sampling_metadata)
    at_target, at_bonus = metadata.target_logits_indices.long(), metadata.bonus_logits_indices.long()
    rows = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    # indexing copies; what edits logits before temperature is vLLM's, the bonus rows first, as there
    rows[at_bonus] = self.sampler.apply_logits_processors(logits[at_bonus].float(), how, True)
    if len(at_target):
        rows[at_target] = self.apply_logits_processors(logits[at_target].float(), how, metadata)
    positions, settings = vars(self).pop("specagg_round", (None, [usual] * B))  # none: vLLM warms up
    device = logits.device
    r = Round(rows, metadata.draft_token_ids, metadata.cu_num_draft_tokens, metadata.max_spec_len, draft_probs, False,
              _seeds(how.generators, B).to(device, non_blocking=True),
              torch.zeros(B, dtype=torch.int64, device=device) if positions is None else positions,
              torch.zeros(B, device=device) if how.temperature is None else how.temperature[:B], how.top_k, how.top_p)
    out = decide(r, settings, _log)
    if positions is not None:
        _count(self, r, out)
    logprobs = None
    if how.max_num_logprobs is not None:
        in_place = self.is_processed_logprobs_mode
        shown = processed(r, requests_of_rows(r.cu_num_draft_tokens, len(at_target))) if in_place else logits
        logprobs = self._get_logprobs_tensors(how.max_num_logprobs, metadata, logits, shown[at_target], shown[at_bonus],
                                              out.tokens)
        if in_place and not self.is_logits_logprobs_mode:
            logprobs = _with_log_pi(logprobs, out.log_pi.flatten())
    return SamplerOutput(sampled_token_ids=out.tokens, logprobs_tensors=logprobs)


def sample(self: Any, logits: Tensor | None, spec_decode_metadata: Any, *, usual: Setting, own: Callable[..., Any]) -> Any:
    """In place of GPUModelRunner._sample(), which calls the rejection sampler: tells it positions and policies, and has it
    sample in rounds without drafts, too, so that no token depends on whether another request has drafts."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    sampler, how = getattr(self, "rejection_sampler", None), self.input_batch.sampling_metadata
    if sampler is None or _keeps_own(sampler) or logits is None or (spec_decode_metadata is None and how.logprob_token_ids):
        return own(self, logits, spec_decode_metadata)
    metadata = spec_decode_metadata
    if metadata is None:
        metadata = SpecDecodeMetadata.make_dummy([[] for _ in range(len(logits))], logits.device)
        metadata.bonus_logits_indices = torch.arange(len(logits), device=logits.device)
        metadata.logits_indices = self.query_start_loc.gpu[1 : len(logits) + 1] - 1
    B = len(metadata.num_draft_tokens)
    first = torch.cat([metadata.cu_num_sampled_tokens.new_zeros(1), metadata.cu_num_sampled_tokens[:-1]]).long()
    positions = self.positions[metadata.logits_indices[first].long()].long() + 1
    settings = [_of_request(self.requests[one].sampling_params.extra_args, usual) for one in self.input_batch.req_ids[:B]]
    sampler.specagg_round = (positions, settings)
    return own(self, logits, metadata)


def draw_draft(logits: Tensor, sampling_metadata: Any, use_fp64_gumbel: bool = False, *, own: Callable[..., Any]) -> Any:
    """In place of compute_probs_and_sample_next_token(), which has one generator for all requests: a drafted token of a
    request with a seed is drawn by the request's own."""
    ids, probs = own(logits, sampling_metadata, use_fp64_gumbel)
    how = sampling_metadata
    if not how.all_greedy and len(ids) == len(how.temperature):
        for i, generator in how.generators.items():
            noise = torch.empty_like(probs[i]).exponential_(generator=generator)
            ids[i] = torch.where(how.temperature[i] < greedy, ids[i], (probs[i] / noise).argmax())
    return ids, probs


# ---- model runner V2 -------------------------------------------------------------------------------------------------


def _before_temperature(rows: Tensor, sampler: Any, of: Tensor, slots: np.ndarray) -> Tensor:
    """vLLM's edited rows, which are at the temperature, as float32 without it. of: the slot of each row."""
    states = sampler.sampling_states
    if np.all(np.isin(states.temperature.np[slots], (0.0, 1.0))):
        return rows.float()
    return rows * divisors(states.temperature.gpu[of])[:, None]


def _fitted(q: Tensor, V: int) -> Tensor:
    """The draft's rows with the target's vocabulary: a token that it does not have has probability 0."""
    q = q[:, :V].float()
    return torch.nn.functional.pad(q, (0, V - q.shape[1]), value=-torch.inf)


def verify_v2(self: Any, logits: Tensor, draft_logits: Tensor | None, draft_sampled: Tensor, pos: Tensor,
              cu_num_logits: Tensor, idx_mapping: Tensor, idx_mapping_np: np.ndarray, expanded_idx_mapping: Tensor,
              expanded_local_pos: Tensor, seq_lens_upper_bound_np: np.ndarray, verify_draft_sampled: Tensor) -> Any:
    """In place of RejectionSampler._verify()."""
    rows = self.sampler.apply_sampling_params(logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, draft_sampled,
                                              expanded_local_pos, seq_lens_upper_bound_np)
    B, N = len(idx_mapping), len(rows) - len(idx_mapping)
    # row i of the target verifies the token that is the input of row i + 1
    after = torch.argsort((expanded_local_pos == 0).to(torch.int32), stable=True)[:N]
    q = None
    if draft_logits is not None:
        q = _fitted(draft_logits[expanded_idx_mapping[after].long(), expanded_local_pos[after].long() - 1], rows.shape[1])
    states = self.sampler.sampling_states
    cu = cu_num_logits[1:] - torch.arange(1, B + 1, device=cu_num_logits.device, dtype=cu_num_logits.dtype)
    slots = idx_mapping.long()
    r = Round(_before_temperature(rows, self.sampler, expanded_idx_mapping.long(), idx_mapping_np),
              verify_draft_sampled[after], cu, self.num_speculative_steps, q, True, states.seeds.gpu[slots],
              pos[cu_num_logits[:-1].long()].long() + 1, states.temperature.gpu[slots], None, None)
    out = decide(r, [self.sampler.specagg_settings[i] for i in idx_mapping_np.tolist()], _log)
    _count(self, r, out)
    self.specagg_log_pi = out.log_pi
    return rows, out.tokens.long(), out.emitted


def logprobs_v2(self: Any, sampled: Tensor, num_sampled: Tensor, logits: Tensor, cu_num_logits: Tensor,
                cu_num_logits_np: np.ndarray, max_num_logprobs: int, *, own: Callable[..., Any]) -> Any:
    """In place of RejectionSampler._get_logprobs_tensors()."""
    out = own(self, sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np, max_num_logprobs)
    if out is None or self.sampler.logprobs_mode != "processed_logprobs":
        return out
    B = len(cu_num_logits) - 1
    begin = cu_num_logits[:-1].long()
    of = requests_of_rows(cu_num_logits[1:] - torch.arange(1, B + 1, device=begin.device), len(logits) - B)
    return _with_log_pi(out, self.specagg_log_pi[of, torch.arange(len(logits), device=begin.device) - begin[of]])


def sample_v2(self: Any, processed_logits: Tensor, expanded_idx_mapping: Tensor, idx_mapping_np: np.ndarray, pos: Tensor,
              top_k: Tensor | None, top_p: Tensor | None, *how: bool) -> tuple[Tensor, Tensor]:
    """In place of Sampler._sample_random(): rounds in which no request has a draft. how: what makes vLLM's own faster."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    rows, states = apply_top_k_top_p(processed_logits, top_k, top_p), self.sampling_states
    slots = expanded_idx_mapping.long()
    none = torch.zeros(len(slots), dtype=torch.int32, device=rows.device)
    r = Round(_before_temperature(rows, self, slots, idx_mapping_np), none[:0], none, 0, None, True,
              states.seeds.gpu[slots], pos.long() + 1, states.temperature.gpu[slots], None, None)
    out = decide(r, [self.specagg_settings[i] for i in idx_mapping_np.tolist()], _log)
    return out.tokens[:, 0].long(), rows


def custom_sampler(self: Any, sampler: Any, *, usual: Setting, own: Callable[..., Any]) -> Any:
    """In place of ModelState.custom_sampler(), which says what samples. Models that replace it keep their own."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    given, config = own(self, sampler), self.vllm_config
    spec = config.speculative_config
    if (given is not None or spec is None or spec.rejection_sample_method in ("synthetic", "fly")
            or config.watermark_config is not None):
        return given
    add_request, sampler.specagg_settings = sampler.add_request, {}

    def add(req_idx: int, sampling_params: Any) -> None:
        add_request(req_idx, sampling_params)
        sampler.specagg_settings[req_idx] = _of_request(sampling_params.extra_args, usual)

    sampler.add_request = add
    sampler._sample_random = functools.partial(sample_v2, sampler)
    made = RejectionSampler(sampler, spec, self.device)
    made._verify = functools.partial(verify_v2, made)
    made._get_logprobs_tensors = functools.partial(logprobs_v2, made, own=RejectionSampler._get_logprobs_tensors)
    return sampler, made


# ---- the entry point -------------------------------------------------------------------------------------------------


def _replace(owner: Any, name: str, function: Callable[..., Any], **more: Any) -> None:
    """Has owner's function called with its own as `own`; once, as vLLM may load plug-ins again."""
    own = getattr(owner, name)
    if not hasattr(own, "specagg"):
        made = functools.wraps(own)(lambda *args, **kwargs: function(*args, own=own, **more, **kwargs))
        made.specagg = True  # type: ignore[attr-defined]
        setattr(owner, name, made)


def _verify_extra_args(self: Any, *, own: Callable[..., Any]) -> None:
    """In place of SamplingParams._verify_extra_args(): what is wrong is said to who makes the request."""
    own(self)
    _of_request(self.extra_args, None)


def register() -> None:
    """What vLLM calls at start, in each of its processes.

    ValueError: SPECAGG_VLLM names no policy or verifier.
    """
    text = os.environ.get("SPECAGG_VLLM")
    if not text:
        return
    usual = setting(text, "SPECAGG_VLLM")
    import vllm

    if vllm.__version__.partition("+")[0] not in VERSIONS:
        _log.warning("specagg: SPECAGG_VLLM=%s is not followed, vLLM's own sampler is used: this is vLLM %s, and specagg.vllm "
                     "is for %s", text, vllm.__version__, ", ".join(VERSIONS))
        return
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.spec_decode import llm_base_proposer
    from vllm.v1.worker.gpu.model_states.interface import ModelState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _replace(SamplingParams, "_verify_extra_args", _verify_extra_args)
    _replace(RejectionSampler, "forward", forward, usual=usual)
    _replace(GPUModelRunner, "_sample", sample, usual=usual)
    _replace(llm_base_proposer, "compute_probs_and_sample_next_token", draw_draft)
    _replace(ModelState, "custom_sampler", custom_sampler, usual=usual)
    _log.info("specagg: drafts are verified with SPECAGG_VLLM=%s", text)
