# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins of engines share (specagg.vllm, specagg.sglang): the text that names a policy, and a round."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

from ._core import Policy
from ._policy import as_policy
from ._verify import Drafts, Rows, Sampling, Status, Streams, _named, _uncoupled, verify

lossless = as_policy("lossless")
greedy = 1e-5  # vLLM's bound: a temperature below it is 0


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
    _named(dict.fromkeys(_uncoupled), verifier, "verifier")
    return Setting(as_policy(",".join(part for part in parts if part not in verifiers)), verifier)


def setting(text: Any, name: str) -> Setting:
    """Of "POLICY:KEY=VALUE,...,verifier=NAME", where all but the policy may be left out. name: whose text it is, for errors."""
    if not isinstance(text, str):
        raise TypeError(f'{name}: expected a text as "token_v3:alpha=0.3,verifier=block", not {type(text).__name__}')
    try:
        return _read(text)
    except ValueError as e:
        raise ValueError(f'{name}: "{text}": {e}') from None


def of_request(given: Any, usual: Setting | None, name: str) -> Setting | None:
    """What a request's own parameters, a dict or None, say under "specagg"; else the usual. name: theirs, for errors."""
    own = (given or {}).get("specagg")
    return usual if own is None else setting(own, f'{name}["specagg"]')


def new_seeds(B: int, device: Any = None) -> Tensor:
    """Of torch's generator, which all ranks have in the same state."""
    return torch.randint(-(2**63), 2**63 - 1, (B,), dtype=torch.int64, device=device)


# ---- a round ---------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """What engines give: N drafted tokens of B requests. Tensors on one device."""

    rows: Tensor  # [N + B, V] float32: target logits, edited, before temperature; of each request gamma rows and one more
    drafts: Tensor  # [N] int32 or int64
    cu_num_draft_tokens: Tensor  # [B] int32 or int64
    most: int  # no request has more drafted tokens
    q: Tensor | None  # [N, V] float32: the rows that drafts were drawn from
    q_logits: bool  # they are logits before temperature; or probabilities at it
    seeds: Tensor  # [B] int64
    positions: Tensor  # [B] int64: how many tokens stand before the drafts
    temperature: Tensor  # [B] float32, 0: the most likely token
    top_k: Tensor | None  # [B] int, V: none
    top_p: Tensor | None  # [B] float32


class Decided(NamedTuple):
    tokens: Tensor  # [B, most + 1] int32, then -1
    emitted: Tensor  # [B] int32, at least 1
    log_pi: Tensor  # [B, most + 1]: log-probabilities of the tokens under the policy's law, then NaN
    log_p: Tensor  # the same under the target's


def requests_of_rows(cu: Tensor, N: int) -> Tensor:
    """[N + B]: which request a row of the target is of. Waits for no device."""
    B = cu.shape[0]
    ends = cu + torch.arange(1, B + 1, device=cu.device)
    return torch.searchsorted(ends, torch.arange(N + B, device=cu.device, dtype=ends.dtype), right=True)


def requests_of_drafts(cu: Tensor, N: int) -> Tensor:
    """[N]: which request a drafted token is of."""
    return torch.searchsorted(cu, torch.arange(N, device=cu.device, dtype=cu.dtype), right=True)


def draft_logits(r: Round) -> Tensor | None:
    """[N, V]: logits whose softmax at the request's temperature is q, for policies that look at q before temperature."""
    if r.q is None or r.q_logits:
        return r.q
    of = requests_of_drafts(r.cu_num_draft_tokens, len(r.q))
    return r.q.log().mul_(divisors(r.temperature[of])[:, None])


def divisors(temperature: Tensor) -> Tensor:
    """What rows are divided by: 1 for a temperature of 0."""
    return torch.where(temperature < greedy, torch.ones_like(temperature), temperature)


def on_cpu(r: Round, how: Setting, log: logging.Logger) -> Decided:
    offsets = np.concatenate([[0], r.cu_num_draft_tokens.numpy().astype(np.int64)])
    B, reads = len(offsets) - 1, how.policy.reads_draft
    logits, q = r.q is None or r.q_logits or reads, draft_logits(r) if reads else r.q
    seeds, positions = r.seeds.numpy().view(np.uint64), r.positions.numpy()
    temperature = r.temperature.double().numpy()
    top_k = np.zeros(B, np.int64) if r.top_k is None else r.top_k.long().numpy()
    top_p = np.ones(B) if r.top_p is None else r.top_p.double().numpy()
    tokens = np.empty((B, r.most + 1), np.int32)
    log_pi, log_p = np.full((2, B, r.most + 1), np.nan)
    # no engine has the draft's row at a bonus token, so policies that read it have the target's law there
    rows = Rows(("logits" if logits else "probabilities", "logits"), Sampling(temperature, top_k, top_p, order="vllm"),
                draft_sampling=Sampling(temperature) if logits else None)
    out = verify(Drafts(r.drafts, offsets=offsets), q, r.rows, how.policy, how.verifier, rows=rows,
                 streams=Streams(seeds, positions, requests=0), bonus="target" if reads else True, out=tokens)
    log_pi[:, : out.tokens.shape[1]], log_p[:, : out.tokens.shape[1]] = out.log_pi, out.log_p
    emitted, bad = out.emitted.copy(), out.statuses.copy()
    which = np.flatnonzero(bad)
    for i in which:
        log.warning("specagg: drafts of request %d of this batch are not followed: %s", i, Status(bad[i]).name)
    if len(which):  # a token of p after those that were accepted
        none = Drafts(np.zeros(0, np.int32), offsets=np.zeros(len(which) + 1, np.int64))
        more = verify(none, None, r.rows[torch.from_numpy(offsets[which] + which + emitted[which])], lossless, how.verifier,
                      rows=Rows(sampling=Sampling(temperature[which], top_k[which], top_p[which], order="vllm")),
                      streams=Streams(seeds[which], positions[which] + emitted[which], requests=0))
        at = which, emitted[which]
        tokens[at], log_pi[at], log_p[at] = more.tokens[:, 0], more.log_pi[:, 0], more.log_p[:, 0]
        emitted[which] += more.emitted
        bad[which] = more.statuses
    for i in np.flatnonzero(emitted == 0):
        log.error("specagg: the target's row of request %d of this batch is %s: token 0 is emitted", i, Status(bad[i]).name)
        tokens[i, 0], emitted[i] = 0, 1
    return Decided(*map(torch.from_numpy, (tokens, emitted, log_pi, log_p)))


def on_device(r: Round, how: Setting, log: logging.Logger) -> Decided:
    """As on_cpu(), in kernels, without waiting for them; so nothing is logged, and where no token is emitted it is 0."""
    from . import cuda

    q, reads = draft_logits(r) if how.policy.reads_draft else r.q, how.policy.reads_draft
    logits = r.q_logits or reads
    filters: dict[str, Any] = {}
    if r.top_k is not None or r.top_p is not None:
        filters = dict(top_k=r.top_k, top_p=r.top_p, filter_order="vllm")
        if q is not None and logits:  # drafts are drawn with the temperature only
            filters |= dict(draft_top_k=0, draft_top_p=1.0)
    out = cuda.verify(r.drafts.contiguous(), r.rows, q if logits else None, draft_probs=None if logits else q,
                      cu_num_draft_tokens=r.cu_num_draft_tokens.contiguous(), max_spec_len=r.most, policy=how.policy,
                      verifier=how.verifier, seeds=r.seeds, requests=0, positions=r.positions, temperature=r.temperature,
                      bonus="target" if reads else True, log_probs=True, **filters)
    tokens, emitted, log_pi, log_p = out.tokens.to(torch.int32), out.emitted, out.log_pi, out.log_p
    assert log_pi is not None and log_p is not None
    tokens[:, 0] = torch.where(emitted == 0, torch.zeros_like(tokens[:, 0]), tokens[:, 0])
    return Decided(tokens, emitted.clamp(min=1), log_pi, log_p)


def on_host(r: Round, how: Setting, log: logging.Logger) -> Decided:
    """As on_cpu(), for tensors of a device that has no kernels here (XPU, NPU, Metal, where Triton is missing): the rows are
    copied to the host, which waits for them, and what was decided back."""
    host = r._replace(**{name: x.cpu() for name, x in r._asdict().items() if isinstance(x, Tensor)})
    return Decided(*(x.to(r.rows.device) for x in on_cpu(host, how, log)))


def verifier_for(device: str) -> Callable[[Round, Setting, logging.Logger], Decided]:
    """What decides a round of tensors on such a device, by its type."""
    return {"cuda": on_device, "cpu": on_cpu}.get(device, on_host)


def uniforms(seeds: Tensor, positions: Tensor, steps: Tensor | int, stream: int) -> Tensor:
    """[n] doubles in (0, 1), a function of (seed, position, step, stream): of SplitMix64, as no state or device may decide."""
    def mixed(x: Tensor) -> Tensor:  # whole numbers mod 2^64; >> keeps the sign, which the mask takes off
        for shift, factor in (30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15):
            x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
        return x ^ ((x >> 31) & ((1 << 33) - 1))

    x = mixed(mixed(seeds.long() - 0x61C8864680B583EB) ^ (positions.long() * 4 + stream))
    x = mixed(x - 0x61C8864680B583EB * (torch.as_tensor(steps, device=x.device).long() + 1))
    return ((x >> 11) & ((1 << 53) - 1)).double() * 2.0**-53 + 2.0**-54


def drawn(probs: Tensor, u: Tensor, temperature: Tensor) -> Tensor:
    """A token of each row [n, V] by its number u; of a greedy request the most likely. V where a row has no mass."""
    ends = probs.double().cumsum(-1)
    ids = torch.searchsorted(ends, u[:, None] * ends[:, -1:])[:, 0]
    ids = torch.where(ends[:, -1] > 0, ids, torch.full_like(ids, probs.shape[1]))
    return torch.where(temperature < greedy, probs.argmax(-1), ids)


def without_masked(r: Round, which: Sequence[bool], ids: Tensor | None = None) -> tuple[Round, Tensor]:
    """For requests that forbid tokens: rows of the target have -inf there, drafts were drawn with them. A draft ends with
    its first forbidden token, which is drawn again from what its row has left; all rows of q are what is left of them. So
    drafted tokens are of their rows again, and a policy sees q and p with the same tokens. Drafts without rows end before
    their first forbidden token.

    which: [B]; ids: [N], the tokens that were drawn, if r.drafts has -1 in place of some. Returns the round, and how many
    tokens each request may emit [B]: after a token that was drawn again there is no row of the target.
    """
    B, N, device = len(which), len(r.drafts), r.rows.device
    limits = torch.full((B,), r.most + 1, dtype=torch.int64, device=device)
    if N == 0 or not any(which):
        return r, limits
    ids = (r.drafts if ids is None else ids).long()
    of = requests_of_drafts(r.cu_num_draft_tokens, N)
    first = torch.cat([of.new_zeros(1), r.cu_num_draft_tokens[:-1].long()])
    at = torch.arange(N, device=device)
    steps, rows = at - first[of], at + of
    masks = torch.tensor(which, device=device)[of] & (r.rows.amin(-1)[rows] == -torch.inf)
    forbidden = masks & (ids >= 0) & (r.rows[rows, ids.clamp(0, r.rows.shape[1] - 1)] == -torch.inf)
    ends = limits.scatter_reduce(0, of, torch.where(forbidden, steps + 1, limits[of]), "amin")
    if r.q is None:
        return r._replace(drafts=r.drafts.masked_fill(steps + 1 >= ends[of], -1)), limits
    q, mine = r.q.clone(), masks.nonzero()[:, 0] if device.type == "cpu" else at  # nothing waits for a device
    left, closed = q[mine], masks[mine, None] & (r.rows[rows[mine]] == -torch.inf)
    if r.q_logits:
        left.masked_fill_(closed, -torch.inf)
    else:
        left.masked_fill_(closed, 0.0)
        largest = left.amax(-1, keepdim=True)
        left.div_(largest.clamp(min=torch.finfo(left.dtype).tiny))
        left.div_(torch.where(largest > 0, left.sum(-1, keepdim=True), torch.ones_like(largest)))
    q[mine] = left if device.type == "cpu" else torch.where(masks[mine, None], left, q[mine])
    again = first + ends - 1  # of each request, if it is one of its drafts
    there = ends <= r.most
    again = torch.where(there, again, torch.zeros_like(again))
    if device.type == "cpu":
        again, there = again[there], there[there]
    whose = of[again]
    probs, temperature = q[again], r.temperature[whose]
    if r.q_logits:
        probs = torch.softmax(probs / divisors(temperature)[:, None], -1).nan_to_num(0.0)
    new = drawn(probs, uniforms(r.seeds[whose], r.positions[whose], steps[again], stream=1), temperature)
    new = torch.where(new < probs.shape[1], new, torch.full_like(new, -1)).to(r.drafts.dtype)
    drafts = r.drafts.masked_fill(steps + 1 > ends[of], -1)
    # rows that are no drafts to draw again write what stands there, to a place behind all
    longer = torch.cat([drafts, drafts.new_zeros(1)])
    longer[torch.where(there, again, torch.full_like(again, N))] = new
    return r._replace(drafts=longer[:N], q=q), ends


def cut(out: Decided, limits: Tensor) -> Decided:
    """What was decided, without tokens after so many [B]."""
    there = torch.arange(out.tokens.shape[1], device=limits.device) < limits[:, None]
    log_pi, log_p = (x.masked_fill(~there, torch.nan) for x in (out.log_pi, out.log_p))
    return Decided(out.tokens.masked_fill(~there, -1), torch.minimum(out.emitted, limits.to(out.emitted.dtype)), log_pi, log_p)


def decide(r: Round, settings: Sequence[Any], log: logging.Logger) -> Decided:
    """The tokens of a round. settings: of each request. Where they differ, the whole batch is verified with each of them,
    so that no request's tokens depend on the others."""
    run = verifier_for(r.rows.device.type)
    first, *others = dict.fromkeys(settings)
    out = run(r, first, log)
    for other in others:
        mine = torch.tensor([one == other for one in settings], device=r.rows.device)
        new = run(r, other, log)
        out = Decided(*(torch.where(mine if a.ndim == 1 else mine[:, None], a, b) for a, b in zip(new, out)))
    return out
