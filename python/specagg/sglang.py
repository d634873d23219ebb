# SPDX-License-Identifier: Apache-2.0
"""SGLang with specagg's verifiers: a plug-in that SGLang finds by itself (entry point sglang.srt.plugins).

It does nothing unless the environment variable SPECAGG_SGLANG names a policy, as SPECAGG_VLLM does for specagg.vllm. Then
what --speculative-use-rejection-sampling drafted is verified by specagg: with CUDA tensors by specagg.cuda.verify(). A
request may have another policy: sampling_params={"custom_params": {"specagg": "lossless,verifier=block"}}. What is
replaced is private to SGLang, so the versions are named that it was written for; any other keeps its own sampler.

Under policies that read the draft's row the token after a draft that was all accepted has the target's law. With
return_logprob the tokens' log-probabilities (output_token_logprobs) are those under the policy's law, unless
SGLANG_RETURN_ORIGINAL_LOGPROB is set.
"""

from __future__ import annotations

import contextvars
import logging
import os
from typing import Any, Callable

import torch
from torch import Tensor

from ._engine import Round, Setting, decide, divisors, new_seeds, of_request, setting

VERSIONS = ("0.5.23",)  # of SGLang
_PLACES = {  # what is replaced: around() of a function takes it and its arguments
    "sample": "sglang.srt.speculative.eagle_utils.eagle_sample",
    "verify": "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
    "log_probs": "sglang.srt.layers.logprob_processor.compute_spec_logprobs",
    "check": "sglang.srt.sampling.sampling_params.SamplingParams.verify",
}

_log = logging.getLogger("sglang.specagg")
_batch: contextvars.ContextVar[Any] = contextvars.ContextVar("_batch", default=None)  # whose drafts are verified
_usual: list[Setting] = []  # of the environment: one, once it is read


def _of_request(sampling_params: Any, usual: Setting | None) -> Setting | None:
    return of_request(sampling_params.custom_params, usual, "custom_params")


def sample(own: Callable[..., Any], verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around eagle_sample(), which edits the target's rows, gives them temperature and filters, and calls verify()."""
    token = _batch.set(batch)
    batch.specagg_log_pi = None
    try:
        return own(verify_input, batch, *args, **kwargs)
    finally:
        _batch.reset(token)


def verify(own: Callable[..., Any], predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor,
           retrive_index: Tensor, retrive_next_token: Any, retrive_next_sibling: Any, uniform_samples: Tensor,
           uniform_samples_for_final_sampling: Tensor, target_probs: Tensor, draft_probs: Tensor, threshold_single: float,
           threshold_acc: float, deterministic: bool, *, block_verification: bool = False) -> None:
    """Around chain_speculative_sampling_triton(), which writes predicts (what is emitted, by slots), accept_index (the
    slots) and accept_token_num. candidates [B, gamma + 1]: the last token of the text, then its draft."""
    batch = _batch.get()
    if batch is None:  # not eagle_sample's: DSpark, UNO
        own(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
            uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, threshold_single, threshold_acc,
            deterministic, block_verification=block_verification)
        return
    how, (B, rows), V, device = batch.sampling_info, candidates.shape, target_probs.shape[-1], candidates.device
    gamma = rows - 1
    # a greedy request has temperature 1 and top-k 1 there
    temperature = how.temperatures.reshape(-1).masked_fill(how.top_ks.reshape(-1) <= 1, 0.0)
    # logits before temperature, as policies read confidences at temperature 1
    logits = target_probs.reshape(B * rows, V).log() * divisors(temperature).repeat_interleave(rows)[:, None]
    r = Round(logits, candidates[:, 1:].reshape(-1),
              gamma * torch.arange(1, B + 1, device=device), gamma, draft_probs[:, :gamma].reshape(B * gamma, V), False,
              new_seeds(B, device) if how.sampling_seed is None else how.sampling_seed, batch.seq_lens.long() + 1, temperature,
              None, None)
    out = decide(r, [_of_request(one.sampling_params, _usual[0]) for one in batch.reqs], _log)
    there = torch.arange(rows, device=device) < out.emitted[:, None]
    accept_index[:, :rows] = torch.where(there, retrive_index, -1).to(accept_index.dtype)
    accept_token_num.copy_(out.emitted - 1)
    # slots of tokens that are not emitted keep what they hold
    slots = retrive_index.long()
    predicts[slots] = torch.where(there, out.tokens, predicts[slots]).to(predicts.dtype)
    batch.specagg_log_pi = out.log_pi  # for log_probs()


def log_probs(own: Callable[..., Any], batch: Any, logits_output: Any, predict: Tensor, **kwargs: Any) -> None:
    """Around compute_spec_logprobs(), which writes next_token_logprobs [B, gamma + 1] where a request has return_logprob:
    verify()'s tokens get theirs under pi. Those of other tokens stay the model's."""
    own(batch, logits_output, predict, **kwargs)
    log_pi = getattr(batch, "specagg_log_pi", None)
    if log_pi is None:
        return
    from sglang.srt.environ import envs

    if not envs.SGLANG_RETURN_ORIGINAL_LOGPROB.get():
        theirs = logits_output.next_token_logprobs[:, : log_pi.shape[1]]
        theirs.copy_(torch.where(log_pi.isnan(), theirs, log_pi.to(theirs.dtype)))


def check(own: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    """Around SamplingParams.verify(): what is wrong is said to who makes the request."""
    own(self, *args, **kwargs)
    _of_request(self, None)


def register() -> None:
    """What SGLang calls at start, in each of its processes.

    SystemExit: SPECAGG_SGLANG names no policy or verifier. (SGLang would log another error, and go on without the plug-in.)
    """
    text = os.environ.get("SPECAGG_SGLANG")
    if not text:
        return
    try:
        usual = setting(text, "SPECAGG_SGLANG")
    except ValueError as e:
        raise SystemExit(str(e)) from None
    import sglang

    if sglang.__version__ not in VERSIONS:
        _log.warning("specagg: SPECAGG_SGLANG=%s is not followed, SGLang's own sampler is used: this is SGLang %s, and "
                     "specagg.sglang is for %s", text, sglang.__version__, ", ".join(VERSIONS))
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _usual[:] = [usual]
    for function in (sample, verify, log_probs, check):
        HookRegistry.register(_PLACES[function.__name__], function, HookType.AROUND)
    _log.info("specagg: drafts are verified with SPECAGG_SGLANG=%s", text)
