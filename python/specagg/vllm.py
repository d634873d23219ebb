# SPDX-License-Identifier: Apache-2.0
"""vLLM with specagg's verifiers: a plug-in that vLLM finds by itself (entry point vllm.general_plugins).

It does nothing unless the environment variable SPECAGG_VLLM names a policy, as in "token_v3:alpha=0.3" or
"lossless,verifier=block". Then drafted tokens are verified by specagg, and the tokens of rounds without drafts are drawn
by it: CPU tensors by specagg.verify(), CUDA tensors by specagg.cuda.verify(). A request may have another policy:
SamplingParams(extra_args={"specagg": "lossless"}). What is replaced is private to vLLM, so the versions are named that it
was tested with; any other keeps its own sampler.

Words of vLLM: a recovered token is drawn in place of a rejected one; the bonus token follows a draft of which all was
accepted. No engine has the draft's row there, so under policies that read it a bonus token has the target's law.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

from ._core import Policy
from ._policy import as_policy
from ._verify import Sampling, Status, _named, _on_a_device, verify

VERSIONS = ("0.32.0",)  # of vLLM

_log = logging.getLogger("vllm.specagg")  # shown as vLLM's own lines are
_lossless = as_policy("lossless")
_greedy = 1e-5  # vLLM's own bound: a temperature below it is 0


class Setting(NamedTuple):
    policy: Policy
    verifier: str


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> Setting:
    parts = text.split(",")
    verifiers = [part for part in parts if part.startswith("verifier=")]
    if len(verifiers) > 1:
        raise ValueError("verifier: given twice")
    verifier = verifiers[0].partition("=")[2] if verifiers else "token"
    _named({"token": 0, "block": 1, "match": 2}, verifier, "verifier")
    return Setting(as_policy(",".join(part for part in parts if part not in verifiers)), verifier)


def setting(text: Any, name: str) -> Setting:
    """Of "POLICY:KEY=VALUE,...,verifier=NAME", where all but the policy may be left out. name: whose text it is, for errors."""
    if not isinstance(text, str):
        raise TypeError(f'{name}: expected a text as "token_v3:alpha=0.3,verifier=block", not {type(text).__name__}')
    try:
        return _read(text)
    except ValueError as e:
        raise ValueError(f'{name}: "{text}": {e}') from None


def _of_request(extra_args: Any, usual: Setting | None) -> Setting | None:
    """What SamplingParams.extra_args say; else the usual."""
    given = (extra_args or {}).get("specagg")
    return usual if given is None else setting(given, 'extra_args["specagg"]')


# ---- a round ---------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """What both model runners give: N drafted tokens of B requests. Tensors on one device."""

    rows: Tensor  # [N + B, V] float32: target logits, edited, before temperature; of each request gamma rows and one more
    drafts: Tensor  # [N] int32 or int64
    cu_num_draft_tokens: Tensor  # [B] int32 or int64
    most: int  # no request has more drafted tokens
    q: Tensor | None  # [N, V] float32: the rows that drafts were drawn from
    q_logits: bool  # they are logits before temperature; or probabilities at it
    seeds: Tensor  # [B] int64
    positions: Tensor  # [B] int64: how many tokens stand before the drafts
    temperature: Tensor  # [B] float32, 0: the likeliest token
    top_k: Tensor | None  # [B] int, V: none
    top_p: Tensor | None  # [B] float32


class Decided(NamedTuple):
    tokens: Tensor  # [B, most + 1] int32, then -1
    emitted: Tensor  # [B] int32, at least 1
    log_pi: Tensor  # [B, most + 1]: log-probabilities of the tokens under the policy's law, then NaN


def _requests_of_rows(cu: Tensor, N: int) -> Tensor:
    """[N + B]: which request a row of the target is of. Waits for no device."""
    B = cu.shape[0]
    ends = cu + torch.arange(1, B + 1, device=cu.device)
    return torch.searchsorted(ends, torch.arange(N + B, device=cu.device, dtype=ends.dtype), right=True)


def _drafted_rows(of: Tensor, N: int) -> Tensor:
    """[N]: the rows of the target that drafted tokens are verified with: all but the last of each request."""
    last = torch.ones_like(of)
    last[:-1] = (of[1:] != of[:-1]).to(of.dtype)
    return torch.argsort(last, stable=True)[:N]


def _draft_logits(r: Round, of: Tensor) -> Tensor | None:
    """[N, V]: logits whose softmax at the request's temperature is q, for policies that look at q before temperature."""
    if r.q is None or r.q_logits:
        return r.q
    temperature = r.temperature[of[_drafted_rows(of, len(r.q))]]
    return r.q.log() * torch.where(temperature < _greedy, torch.ones_like(temperature), temperature)[:, None]


def _on_cpu(r: Round, how: Setting) -> Decided:
    offsets = np.concatenate([[0], r.cu_num_draft_tokens.numpy().astype(np.int64)])
    B, V = len(offsets) - 1, r.rows.shape[1]
    temperature = r.temperature.double().numpy()
    top_k = np.zeros(B, np.int64) if r.top_k is None else np.where(r.top_k.numpy() >= V, 0, r.top_k.numpy()).astype(np.int64)
    top_p = np.ones(B) if r.top_p is None else r.top_p.double().numpy()
    reads, q = how.policy.reads_draft, r.q
    logits = q is None or r.q_logits or reads
    if reads:
        q = _draft_logits(r, _requests_of_rows(r.cu_num_draft_tokens, r.drafts.numel()))
    out = verify(r.drafts, q, r.rows, how.policy, how.verifier, seed=r.seeds.numpy().view(np.uint64), requests=0,
                 positions=r.positions.numpy(), rows=("logits" if logits else "probabilities", "logits"), offsets=offsets,
                 sampling=Sampling(temperature, top_k, top_p), draft_sampling=Sampling(temperature) if logits else None,
                 bonus=not reads)
    tokens, log_pi = np.full((B, r.most + 1), -1, np.int32), np.full((B, r.most + 1), np.nan)
    tokens[:, : out.tokens.shape[1]], log_pi[:, : out.tokens.shape[1]] = out.tokens, out.log_pi
    emitted, bad = out.emitted.copy(), out.statuses.copy()
    # a bonus token is due: policies that read q have drawn none; or a draft cannot be followed
    which = np.flatnonzero(emitted == out.accepted)
    for i in np.flatnonzero(bad):
        _log.warning("specagg: drafts of request %d of this batch are not followed: %s", i, Status(bad[i]).name)
    if len(which):
        rows = offsets[which] + which + emitted[which]
        more = verify(np.zeros(0, np.int32), None, r.rows[torch.from_numpy(rows)], _lossless, how.verifier,
                      seed=r.seeds.numpy().view(np.uint64)[which], requests=0, positions=r.positions.numpy()[which] + emitted[which],
                      offsets=np.zeros(len(which) + 1, np.int64),
                      sampling=Sampling(temperature[which], top_k[which], top_p[which]))
        tokens[which, emitted[which]], log_pi[which, emitted[which]] = more.tokens[:, 0], more.log_pi[:, 0]
        emitted[which] += more.emitted
        bad[which] = more.statuses
    for i in np.flatnonzero(emitted == 0):
        _log.error("specagg: the target's row of request %d of this batch is %s: token 0 is emitted", i, Status(bad[i]).name)
        tokens[i, 0], emitted[i] = 0, 1
    return Decided(torch.from_numpy(tokens), torch.from_numpy(emitted), torch.from_numpy(log_pi))


def _on_device(r: Round, how: Setting) -> Decided:
    """As _on_cpu(), in kernels, without waiting for them. Filters are vLLM's, as specagg.cuda has none."""
    from . import cuda

    B, N, cu = r.seeds.shape[0], r.drafts.numel(), r.cu_num_draft_tokens.contiguous()
    of = _requests_of_rows(cu, N)
    rows, q = r.rows, r.q
    if r.top_k is not None or r.top_p is not None:
        rows = rows.masked_fill(processed(r, of).isneginf(), -torch.inf)
    if how.policy.reads_draft and q is not None:
        at_bonus = rows.clone()  # the kernels want a row of q at each bonus token, too; that token is drawn again below
        at_bonus[_drafted_rows(of, N)] = _draft_logits(r, of)
        q = at_bonus
    probabilities = q is not None and q is r.q and not r.q_logits
    usual = dict(seeds=r.seeds, requests=0, temperature=r.temperature, verifier=how.verifier, log_probs=True)
    out = cuda.verify(r.drafts.contiguous(), rows, None if probabilities else q, draft_probs=q if probabilities else None,
                      cu_num_draft_tokens=cu, max_spec_len=r.most, policy=how.policy, positions=r.positions, **usual)
    tokens, emitted, log_pi = out.tokens.to(torch.int32), out.emitted, out.log_pi
    assert log_pi is not None
    if how.policy.reads_draft:
        counts = torch.diff(cu, prepend=cu.new_zeros(1))
        begin, accepted = cu - counts, out.accepted.long()
        drafts = torch.cat([r.drafts, r.drafts.new_full((1,), -1)])
        due = (emitted == accepted) | (accepted == counts) | (drafts[(begin + accepted).long()] == -1)
        last = rows[(begin + torch.arange(B, device=cu.device) + accepted).long()]
        more = cuda.verify(r.drafts[:0].contiguous(), last, cu_num_draft_tokens=torch.zeros_like(cu), max_spec_len=0,
                           policy=_lossless, positions=r.positions + accepted, **usual)
        assert more.log_pi is not None
        at = accepted[:, None]
        tokens = tokens.scatter(1, at, torch.where(due[:, None], more.tokens.to(torch.int32), tokens.gather(1, at)))
        log_pi = log_pi.scatter(1, at, torch.where(due[:, None], more.log_pi, log_pi.gather(1, at)))
        emitted = torch.where(due, out.accepted + more.emitted, emitted)
    tokens[:, 0] = torch.where(emitted == 0, torch.zeros_like(tokens[:, 0]), tokens[:, 0])
    return Decided(tokens, emitted.clamp(min=1), log_pi)


def decide(r: Round, settings: Sequence[Any]) -> Decided:
    """The tokens of a round. settings: of each request. Where they differ, the whole batch is verified with each of them,
    so that no request's tokens depend on the others."""
    run = _on_device if _on_a_device(r.rows) else _on_cpu
    first, *others = dict.fromkeys(settings)
    out = run(r, first)
    for other in others:
        mine = torch.tensor([one == other for one in settings], device=r.rows.device)
        new = run(r, other)
        out = Decided(torch.where(mine[:, None], new.tokens, out.tokens), torch.where(mine, new.emitted, out.emitted),
                      torch.where(mine[:, None], new.log_pi, out.log_pi))
    return out


def processed(r: Round, of: Tensor) -> Tensor:
    """The target's rows [N + B, V] after temperature and vLLM's filters."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    temperature = r.temperature[of]
    rows = r.rows / torch.where(temperature < _greedy, torch.ones_like(temperature), temperature)[:, None]
    return apply_top_k_top_p(rows, None if r.top_k is None else r.top_k[of], None if r.top_p is None else r.top_p[of])


def _with_log_pi(tensors: Any, log_pi: Tensor) -> Any:
    """vLLM's log-probabilities, those of the sampled tokens replaced, in their column and among the likeliest.
    log_pi: [rows], NaN where no token was sampled."""
    same = tensors.logprob_token_ids == tensors.logprob_token_ids[:, :1]
    log_pi = log_pi.to(tensors.logprobs.dtype)[:, None]
    return tensors._replace(logprobs=torch.where(same & ~log_pi.isnan(), log_pi, tensors.logprobs))


# ---- model runner V1 -------------------------------------------------------------------------------------------------


def _seeds(generators: dict[int, Any], B: int) -> Tensor:
    """The seeds of SamplingParams; else new ones of torch's generator, which all ranks have in the same state."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (B,), dtype=torch.int64)
    for i, generator in generators.items():
        seed = generator.initial_seed()
        seeds[i] = seed - 2**64 if seed >= 2**63 else seed
    return seeds


def forward(self: Any, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any, *, usual: Setting,
            own: Callable[..., Any]) -> Any:
    """In place of RejectionSampler.forward(). own: that."""
    from vllm.v1.outputs import SamplerOutput

    how, B = sampling_metadata, len(metadata.num_draft_tokens)
    if self.synthetic_mode:
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
    out = decide(r, settings)
    logprobs = None
    if how.max_num_logprobs is not None:
        in_place = self.is_processed_logprobs_mode
        shown = processed(r, _requests_of_rows(r.cu_num_draft_tokens, len(at_target))) if in_place else logits
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
    if sampler is None or logits is None or (spec_decode_metadata is None and how.logprob_token_ids):
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
            ids[i] = torch.where(how.temperature[i] < _greedy, ids[i], (probs[i] / noise).argmax())
    return ids, probs


# ---- model runner V2 -------------------------------------------------------------------------------------------------


def _before_temperature(rows: Tensor, sampler: Any, of: Tensor, slots: np.ndarray) -> Tensor:
    """vLLM's edited rows, which are at the temperature, as float32 without it. of: the slot of each row."""
    states = sampler.sampling_states
    if np.all(np.isin(states.temperature.np[slots], (0.0, 1.0))):
        return rows.float()
    temperature = states.temperature.gpu[of]
    return rows * torch.where(temperature == 0, torch.ones_like(temperature), temperature)[:, None]


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
    out = decide(r, [self.sampler.specagg_settings[i] for i in idx_mapping_np.tolist()])
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
    of = _requests_of_rows(cu_num_logits[1:] - torch.arange(1, B + 1, device=begin.device), len(logits) - B)
    return _with_log_pi(out, self.specagg_log_pi[of, torch.arange(len(logits), device=begin.device) - begin[of]])


def sample_v2(self: Any, processed_logits: Tensor, expanded_idx_mapping: Tensor, idx_mapping_np: np.ndarray, pos: Tensor,
              top_k: Tensor | None, top_p: Tensor | None, use_fused_sampler: bool) -> tuple[Tensor, Tensor]:
    """In place of Sampler._sample_random(): rounds in which no request has a draft."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    rows, states = apply_top_k_top_p(processed_logits, top_k, top_p), self.sampling_states
    slots = expanded_idx_mapping.long()
    none = torch.zeros(len(slots), dtype=torch.int32, device=rows.device)
    r = Round(_before_temperature(rows, self, slots, idx_mapping_np), none[:0], none, 0, None, True,
              states.seeds.gpu[slots], pos.long() + 1, states.temperature.gpu[slots], None, None)
    out = decide(r, [self.specagg_settings[i] for i in idx_mapping_np.tolist()])
    return out.tokens[:, 0].long(), rows


def custom_sampler(self: Any, sampler: Any, *, usual: Setting, own: Callable[..., Any]) -> Any:
    """In place of ModelState.custom_sampler(), which says what samples. Models that replace it keep their own."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    given, config = own(self, sampler), self.vllm_config
    spec = config.speculative_config
    if given is not None or spec is None or spec.rejection_sample_method == "synthetic" or config.watermark_config is not None:
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
