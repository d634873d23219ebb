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

from ._engine import (Decided, Round, Setting, cut, decide, divisors, drawn, greedy, new_seeds, of_request, requests_of_rows,
                      setting, uniforms, without_masked)
from ._verify import _on_a_device

VERSIONS = ("0.32.0", "0.33.0")  # of vLLM

_log = logging.getLogger("vllm.specagg")  # shown as vLLM's own lines are


def _of_request(extra_args: Any, usual: Setting | None) -> Setting | None:
    return of_request(extra_args, usual, "extra_args")


def _forbids(params: Any) -> bool:
    """Whether a request forbids tokens, which then have -inf in the target's rows."""
    return bool(params.structured_outputs or params.bad_words or params.allowed_token_ids or params.min_tokens)


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


def _edits(how: Any) -> bool:
    """Whether vLLM edits logits before the temperature."""
    from vllm.v1.sample.logits_processor import builtin

    def idle(processor: Any) -> bool:  # those that are always there
        kinds = {builtin.MinTokensLogitsProcessor: "min_toks", builtin.LogitBiasLogitsProcessor: "biases"}
        return not getattr(processor, kinds.get(type(processor), "specagg_unknown"), True)

    holder = how.thinking_budget_state_holder
    return bool(not how.no_penalties or how.bad_words_token_ids or how.allowed_token_ids_mask is not None
                or not all(map(idle, how.logitsprocs.non_argmax_invariant)) or holder is not None and holder.has_tracked_requests())


def dropped(self: Any, counts: list[int], drafted: Any) -> dict[int, tuple[Tensor, Tensor]]:
    """{request: (id [1], row of q [1, V])}: the first token that vLLM's scheduler took off a draft. It does so where a
    grammar forbids the token, so because of what was drawn: without it the token's position had the law (1 - q(allowed)) p +
    ... instead of p. (Where it does so for want of room, the token is as good as another.) drafted: ids of the requests whose drafts follow their texts (not those of a part of a prompt)."""
    ids, q, of = self._draft_token_ids, self._draft_probs, self._draft_prob_req_ids
    if q is None or of is None or not torch.is_tensor(ids):
        return {}
    row = {one: i for i, one in enumerate(of) if one in drafted}
    out = {}
    for i, (one, n) in enumerate(zip(self.input_batch.req_ids, counts)):
        if one in row and n < ids.shape[1] and self.requests[one].sampling_params.structured_outputs:
            out[i] = ids[row[one], n : n + 1], q[row[one], n : n + 1]
    return out


def with_dropped(r: Round, counts: list[int], more: dict[int, tuple[Tensor, Tensor]]) -> Round:
    """The round with these tokens at the ends of drafts. The last row of the target stands twice there: no bonus token may
    be drawn from it."""
    if not more or (r.q is None and len(r.drafts)):  # rows of some request are missing
        return r
    ends, begin, rows, drafts, q = np.cumsum(counts), 0, [], [], []
    for i, n in enumerate(counts):
        rows += [*range(begin, begin + n + 1), *([begin + n] if i in more else [])]
        begin += n + 1
        drafts.append(r.drafts[ends[i] - n : ends[i]])
        if r.q is not None:
            q.append(r.q[ends[i] - n : ends[i]])
        if i in more:
            drafts.append(more[i][0].to(r.drafts.dtype))
            q.append(more[i][1])
    longer = [n + (i in more) for i, n in enumerate(counts)]
    return r._replace(rows=r.rows[torch.tensor(rows, device=r.rows.device)], drafts=torch.cat(drafts), q=torch.cat(q),
                      cu_num_draft_tokens=torch.from_numpy(np.cumsum(longer)).to(r.cu_num_draft_tokens), most=max(longer))


def forward(self: Any, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any, *, usual: Setting,
            own: Callable[..., Any]) -> Any:
    """In place of RejectionSampler.forward(). own: that."""
    from vllm.v1.outputs import SamplerOutput

    how, B = sampling_metadata, len(metadata.num_draft_tokens)
    if _keeps_own(self):
        return own(self, metadata, draft_probs, logits, sampling_metadata)
    at_target, at_bonus = metadata.target_logits_indices.long(), metadata.bonus_logits_indices.long()
    rows = logits.float()
    if _edits(how):  # which is vLLM's, the bonus rows first, as there
        rows = rows.clone() if rows is logits else rows
        rows[at_bonus] = self.sampler.apply_logits_processors(rows[at_bonus], how, True)
        if len(at_target):
            rows[at_target] = self.apply_logits_processors(rows[at_target], how, metadata)
    # none: vLLM warms up
    positions, settings, forbids, more = vars(self).pop("specagg_round", (None, [usual] * B, [False] * B, {}))
    device = logits.device
    r = Round(rows, metadata.draft_token_ids, metadata.cu_num_draft_tokens, metadata.max_spec_len, draft_probs, False,
              _seeds(how.generators, B).to(device, non_blocking=True),
              torch.zeros(B, dtype=torch.int64, device=device) if positions is None else positions,
              torch.zeros(B, device=device) if how.temperature is None else how.temperature[:B], how.top_k, how.top_p)
    whole, limits = without_masked(with_dropped(r, metadata.num_draft_tokens, more), forbids)
    for i in more:  # no token follows a draft that is longer than its rows of the target
        limits[i] = limits[i].clamp(max=metadata.num_draft_tokens[i] + 1)
    out = decide(whole, settings, _log)
    if any(forbids):
        out = cut(out, limits)
    if positions is not None:
        _count(self, whole, out)
    out = Decided(*(x if x.ndim == 1 else x[:, : r.most + 1] for x in out))
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
    ids = self.input_batch.req_ids
    drafted, self.specagg_drafted = getattr(self, "specagg_drafted", ()), {  # from here on each request writes tokens
        one for one, part in zip(ids, self.discard_request_mask.np.tolist()) if not part}
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
    params = [self.requests[one].sampling_params for one in ids[:B]]
    sampler.specagg_round = (positions, [_of_request(one.extra_args, usual) for one in params],
                             [_forbids(one) for one in params], dropped(self, metadata.num_draft_tokens, drafted))
    return own(self, logits, metadata)


def propose(self: Any, num_speculative_tokens: int, target_token_ids: Tensor, target_positions: Tensor,
            target_hidden_states: Tensor, next_token_ids: Tensor, token_indices_to_sample: Any, common_attn_metadata: Any,
            sampling_metadata: Any, mm_embed_inputs: Any = None, num_rejected_tokens_gpu: Tensor | None = None,
            slot_mappings: Any = None, *, own: Callable[..., Any]) -> Any:
    """Around SpecDecodeBaseProposer.propose(): draw_draft() is told where the drafts of this round begin, [B]."""
    computed = common_attn_metadata.seq_lens.long()  # a copy, or int64 is copied by the next line
    self.specagg_start = computed + 1 - (0 if num_rejected_tokens_gpu is None else num_rejected_tokens_gpu)
    self.specagg_step = 0
    return own(self, num_speculative_tokens, target_token_ids, target_positions, target_hidden_states, next_token_ids,
               token_indices_to_sample, common_attn_metadata, sampling_metadata, mm_embed_inputs, num_rejected_tokens_gpu,
               slot_mappings)


def draw_draft(self: Any, logits: Tensor, sampling_metadata: Any, *, own: Callable[..., Any]) -> Any:
    """In place of SpecDecodeBaseProposer._sample_from_logits(), which has one generator for all requests: a drafted token of
    a request with a seed is a function of (seed, position of the round, step) and its row. A generator of its own would not
    do: vLLM also drafts where a part of a prompt ends, and drops that."""
    ids, probs = own(self, logits, sampling_metadata)
    how, start = sampling_metadata, getattr(self, "specagg_start", None)
    seeded = sorted(how.generators)
    if probs is None or start is None or not seeded:
        return ids, probs
    steps = len(ids) // len(start)  # of a request, in parallel drafting; else 1
    rows = (torch.tensor(seeded)[:, None] * steps + torch.arange(steps)).flatten()
    of, rows = torch.tensor(seeded).repeat_interleave(steps).to(ids.device), rows.to(ids.device)
    u = uniforms(_seeds(how.generators, len(start)).to(ids.device)[of], start[of], self.specagg_step + rows % steps, stream=0)
    temperature = torch.zeros(len(rows), device=ids.device) if how.temperature is None else how.temperature[of]
    ids[rows] = drawn(probs[rows], u, temperature).to(ids.dtype)
    self.specagg_step += steps
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
    settings, forbids = zip(*(self.sampler.specagg_settings[i] for i in idx_mapping_np.tolist()))
    r, limits = without_masked(r, forbids, draft_sampled[after])
    out = decide(r, settings, _log)
    if any(forbids):
        out = cut(out, limits)
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
    out = decide(r, [self.specagg_settings[i][0] for i in idx_mapping_np.tolist()], _log)
    return out.tokens[:, 0].long(), rows


def custom_sampler(self: Any, sampler: Any, *, usual: Setting, own: Callable[..., Any]) -> Any:
    """In place of ModelState.custom_sampler(), which says what samples. Models that replace it keep their own. vLLM calls it
    once, when the model is loaded. With enable_batch_sharded_sampling each rank's samplers get its part of a batch: settings are kept
    by the slots of requests, which are the same on all ranks.

    ValueError: an option that the plug-in would not follow."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    given, config = own(self, sampler), self.vllm_config
    spec = config.speculative_config
    if given is not None or spec is None or spec.rejection_sample_method in ("synthetic", "fly"):
        return given
    if config.watermark_config is not None:
        raise ValueError("SPECAGG_VLLM: watermark_config is not supported with drafts: specagg's random numbers carry no watermark")
    if getattr(spec, "enable_adaptive_verification", False):  # from 0.33.0 on
        raise ValueError("SPECAGG_VLLM: enable_adaptive_verification is not supported: it shortens drafts on the device, and the "
                         "host's lengths are then wrong; set it to false in the speculative config")
    add_request, sampler.specagg_settings = sampler.add_request, {}

    def add(req_idx: int, sampling_params: Any) -> None:
        add_request(req_idx, sampling_params)
        sampler.specagg_settings[req_idx] = _of_request(sampling_params.extra_args, usual), _forbids(sampling_params)

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
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.spec_decode.step3p5 import Step3p5MTPProposer
    from vllm.v1.worker.gpu.model_states.interface import ModelState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _replace(SamplingParams, "_verify_extra_args", _verify_extra_args)
    _replace(RejectionSampler, "forward", forward, usual=usual)
    _replace(GPUModelRunner, "_sample", sample, usual=usual)
    for proposer in SpecDecodeBaseProposer, Step3p5MTPProposer:
        _replace(proposer, "propose", propose)
    _replace(SpecDecodeBaseProposer, "_sample_from_logits", draw_draft)
    _replace(ModelState, "custom_sampler", custom_sampler, usual=usual)
    _log.info("specagg: drafts are verified with SPECAGG_VLLM=%s", text)
