# SPDX-License-Identifier: Apache-2.0
"""Verification of torch tensors where they are, on a CUDA device: verify(), with the tokens of specagg.verify().

The kernels are the C++ library's (backend/cuda), compiled by nvcc for a policy, a verifier and types of rows when they
are first used: some 10 seconds, once; the result is kept in a cache. Rows that cannot be read four logits at a time (masks, a
vocabulary, strides or addresses that are no multiples of four elements) have kernels of their own, compiled when they are
first used. verify() waits for nothing, so it may be captured in a CUDA graph after its first call, and torch.compile
takes it as the operator specagg::verify.
"""

from __future__ import annotations

import contextlib
import ctypes
import secrets
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from . import _core, _nvcc
from ._policy import PolicyLike, as_policy, policies
from ._verify import Drafts, Edits, Rows, Sampling, Streams, _ends, _filter_orders, _kinds, _named, _streams, _verifiers
from .traced import TracedPolicy

_how = _nvcc.Nvcc()
_rows = {torch.float32: "float", torch.float16: "specagg::f16", torch.bfloat16: "specagg::bf16"}
_probability, _one_hot = "specagg::cuda::probability", "specagg::cuda::one_hot"
_whole, _floats = (torch.int32, torch.int64), (torch.float32, torch.float64)
_most_vocabulary, _most_drafted = 1 << 18, 16  # of backend/cuda/collective.hpp

_BONUS: dict[Any, int] = {False: 0, True: 1, "target": 2}  # of backend/cuda/call.hpp

Numbers = Union[int, float, Tensor, None]


class Verified(NamedTuple):
    """Tensors on the device. B requests, gamma = max_spec_len."""

    tokens: Tensor  # [B, gamma + 1], as draft_token_ids: the emitted ids, then -1
    accepted: Tensor  # [B] int32: how many drafted tokens were accepted
    emitted: Tensor  # [B] int32: how many tokens there are
    statuses: Tensor  # [B] int32: specagg.Status, why there is no further token
    log_pi: Optional[Tensor]  # [B, gamma + 1] float32: log-probabilities under the policy's law, then NaN
    log_p: Optional[Tensor]  # the same under the target model
    acceptances: Optional[Tensor]  # [B, gamma, 2] float64: acceptance_of_row, acceptance_of_token


# The tensors that the operator takes, in this order: members of _nvcc.Call.
_INPUTS = ("target draft tokens start seed cu_num_draft_tokens request temperature draft_temperature target_mask "
           "draft_mask end_of_text top_k top_p min_p draft_top_k draft_top_p draft_min_p bonus "
           "draft_row_numbers").split()
_FILTERS = ("top_k", "top_p", "min_p", "draft_top_k", "draft_top_p", "draft_min_p")


def _refuse(name: str, x: Tensor, expected: str) -> ValueError:
    return ValueError(f"{name}: expected {expected}, not {str(x.dtype)[6:]} {list(x.shape)} on {x.device}")


def _check(name: str, x: Any, shape: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, not {type(x).__name__}")
    if x.dtype not in dtypes or list(x.shape) != list(shape) or x.device != device or not x.is_contiguous():
        kinds = " or ".join(str(one)[6:] for one in dtypes)
        raise _refuse(name, x, f"contiguous {kinds} {list(shape)} on {device}")


def _per_request(name: str, x: Numbers, B: int, dtypes: Sequence[torch.dtype], device: torch.device) -> Tensor | None:
    """A number for each request, from one for all or a tensor [B]."""
    if isinstance(x, (int, float)):
        whole = dtypes is _whole
        if whole and not isinstance(x, int):
            raise TypeError(f"{name}: expected a whole number, not {x}")
        if whole and x >= 2**63:
            x = int(x) - 2**64  # the same bits
        return torch.full((B,), x, dtype=dtypes[-1], device=device)
    if x is not None:
        _check(name, x, [B], dtypes, device)
    return x


def _filters(given: Sequence[Numbers], B: int, device: torch.device, target: str, draft: str) -> list[Tensor | None]:
    """Those of _FILTERS for each request. target, draft: the C++ types of the rows."""
    for name, x in zip(_FILTERS, given):
        rows = draft if name.startswith("draft_") else target
        if x is not None and rows in (_probability, _one_hot):
            raise ValueError(f"{name}: is of logits; {'there are no rows' if rows == _one_hot else 'the rows are probabilities'}")
    return [_per_request(name, x, B, _whole if name.endswith("top_k") else _floats, device)
            for name, x in zip(_FILTERS, given)]


def _end_ids(x: Union[int, Tensor, None], device: torch.device) -> Tensor | None:
    if isinstance(x, int):
        return torch.full((1,), x, dtype=torch.int32, device=device)
    if x is not None:
        _check("end_of_text", x, [x.numel()], [torch.int32], device)
    return x


def _matrix(name: str, x: Tensor, counts: Sequence[int], V: int, dtypes: Sequence[torch.dtype], device: torch.device) -> None:
    ok = x.dim() == 2 and x.shape[0] in counts and x.shape[1] == V and x.device == device and x.dtype in dtypes
    if not ok or (x.stride(1) != 1 and V > 1) or (x.stride(0) < V and x.shape[0] > 1):
        kinds = ", ".join(str(one)[6:] for one in dtypes)
        rows = " or ".join(map(str, counts))
        raise _refuse(name, x, f"[{rows}, {V}] of {kinds} on {device}, the last dimension contiguous")


def _constant(function: Any) -> Any:
    """The function, of which torch.compile takes the result as it is."""
    compiler = getattr(torch, "compiler", None)  # torch 2.1
    return compiler.assume_constant_result(function) if compiler else function


@_constant
def _policy_text(policy: Union[PolicyLike, TracedPolicy], parameters: Mapping[str, float], own: Sequence[str]
                 ) -> tuple[str, list[str], list[float]]:
    """What defines it in C++, its parameters' names, and their values. own: parameters that each request has its own of."""
    if isinstance(policy, TracedPolicy):
        given = dict(parameters)
        names, label = list(policy.defaults), policy.name
        values = [float(given.pop(name, usual)) for name, usual in policy.defaults.items()]
        flags = [isinstance(usual, bool) for usual in policy.defaults.values()]
        text = _nvcc.traced_text(policy.name, policy.cpp(), names, flags)
    else:
        if parameters:
            raise TypeError('parameters: numbers are of a traced policy; a name has them in its text ("lossy:alpha=0.2")')
        chosen, given = as_policy(policy), {}
        label, values = chosen.name, list(chosen.values)
        names = [one.name for line in policies() if line.name == label for one in line.parameters]
        text = _nvcc.catalogued_text(label)
    for name in [*given, *(name for name in own if name not in names)]:
        raise TypeError(f"parameters: {label} has no {name}; it has {', '.join(names) or 'none'}")
    return text, names, values


def _policy_of(policy: Union[PolicyLike, TracedPolicy], parameters: Mapping[str, Union[float, Tensor]], B: int,
               device: torch.device) -> tuple[str, Tensor | None, list[float]]:
    """What defines it in C++; [B, parameters] if requests have their own; and the parameters of all."""
    own = {name: x for name, x in parameters.items() if isinstance(x, Tensor)}
    shared = {name: x for name, x in parameters.items() if not isinstance(x, Tensor)}
    text, names, values = _policy_text(policy, shared, tuple(own))
    if not own:
        return text, None, values
    of_requests = torch.tensor(values, dtype=torch.float64, device=device).repeat(B, 1)
    for name, x in own.items():
        _check(f"parameters: {name}", x, [B], _floats, device)
        of_requests[:, names.index(name)] = x
    return text, of_requests, values


def _bonus_of(bonus: Any, B: int, device: torch.device) -> tuple[Tensor | None, int]:
    """The given tokens, and the choice of _BONUS."""
    if isinstance(bonus, Tensor):
        _check("bonus", bonus, [B], _whole, device)
        return bonus, _BONUS[True]
    if not isinstance(bonus, (bool, str)) or bonus not in _BONUS:
        raise ValueError(f'bonus: expected True, False, "target", or a tensor [B], not {bonus!r}')
    return None, _BONUS[bonus]


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _array(x: Tensor | None) -> _nvcc.Array:
    return _nvcc.Array(_pointer(x), 0 if x is None else x.element_size())


def _kernels(given: Mapping[str, Tensor | None]) -> str:
    """Which kernels these tensors need, as rows_in_fours() of backend/cuda/launch.hpp says."""
    rows = [x for x in (given["target"], given["draft"]) if x is not None]
    masked = given["target_mask"] is not None or given["draft_mask"] is not None
    whole = all(x.shape[1] % 4 == x.stride(0) % 4 == x.data_ptr() % (4 * x.element_size()) == 0 for x in rows)
    return "whole" if whole and not masked else "others"


def _arch(device: torch.device) -> str:
    if device.type != "cuda":
        return "none"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _outputs(tensors: Sequence[Tensor | None], most: int, log_probs: int, acceptances: int) -> list[Tensor]:
    tokens, start = tensors[2:4]
    assert tokens is not None and start is not None
    B = start.shape[0]
    numbers = [tokens.new_empty((B,), dtype=torch.int32) for _ in range(3)]
    out = [tokens.new_empty((B, most + 1)), *numbers]
    if log_probs:
        out += [out[0].new_empty((B, most + 1), dtype=torch.float32) for _ in range(2)]
    if acceptances:
        out.append(out[0].new_empty((B, most, 2), dtype=torch.float64))
    return out


def _run(text: str, tensors: List[Optional[Tensor]], most: int, flags: List[int], parameters: List[float]) -> List[Tensor]:
    """text: of the C++ file; tensors: _INPUTS, parameters of requests; flags: draft rows for the bonus, its choice,
    the order of filters, log_probs, acceptances."""
    given, of_requests = dict(zip(_INPUTS, tensors)), tensors[-1]
    target, draft, tokens, end_of_text = given["target"], given["draft"], given["tokens"], given["end_of_text"]
    assert target is not None and tokens is not None
    draft_bonus, bonus_from, order, log_probs, acceptances = flags
    out = _outputs(tensors, most, log_probs, acceptances)
    call = _nvcc.Call(
        requests=out[1].shape[0], vocabulary=target.shape[1], most=most, drafted=tokens.numel(),
        target_stride=target.stride(0), draft_stride=0 if draft is None else draft.stride(0), draft_bonus=draft_bonus,
        bonus_from=bonus_from, filter_order=order,
        end_count=0 if end_of_text is None else end_of_text.numel(), out_tokens=_array(out[0]),
        accepted=_pointer(out[1]), emitted=_pointer(out[2]), statuses=_pointer(out[3]), device=target.device.index or 0,
        acceptances=_pointer(out[-1]) if acceptances else None)
    for name, x in given.items():
        setattr(call, name, _array(x) if name in _nvcc.ARRAYS else _pointer(x))
    if log_probs:
        call.log_pi, call.log_p = out[4].data_ptr(), out[5].data_ptr()
    library = _nvcc.load(text, _arch(target.device), _how, _kernels(given))
    drawn = bonus_from == _BONUS[True] and given["bonus"] is None
    if drawn and not draft_bonus and library.specagg_reads_draft() and draft is not None:
        raise ValueError(f"draft rows: {list(draft.shape)}; this policy reads the draft's row at the bonus position, too: "
                         f"give a row after the last drafted token of each request, as of the target")
    storage = tokens.new_empty((library.specagg_storage(ctypes.byref(call)),), dtype=torch.uint8)
    call.storage, call.storage_bytes = storage.data_ptr(), storage.numel()
    numbers: Any = (ctypes.c_double * max(len(parameters), 1))(*parameters) if of_requests is None else of_requests.data_ptr()
    with torch.cuda.device(target.device) if target.is_cuda else contextlib.nullcontext():  # which the call sets
        stream = torch.cuda.current_stream().cuda_stream if target.is_cuda else 0
        failed = library.specagg_verify(ctypes.byref(call), numbers, stream)
    if failed:
        raise RuntimeError(f"specagg.cuda: {library.specagg_error(failed).decode()}")
    _how.finish(library)
    return out


def _described(text: str, tensors: List[Optional[Tensor]], most: int, flags: List[int], parameters: List[float]
               ) -> List[Tensor]:
    """Tensors of the shapes that _run() returns."""
    return _outputs(tensors, most, *flags[3:])


if hasattr(torch.library, "custom_op"):  # torch 2.4
    _operator: Any = torch.library.custom_op("specagg::verify", mutates_args=())(_run)
    _operator.register_fake(_described)
else:
    _operator = _run


def verify(
    draft_token_ids: Tensor,
    target_logits: Tensor,
    draft_logits: Tensor | None = None,
    *,
    draft_probs: Tensor | None = None,
    target_probs: bool = False,
    cu_num_draft_tokens: Tensor | None = None,
    max_spec_len: int | None = None,
    policy: Union[PolicyLike, TracedPolicy] = "lossless",
    parameters: Mapping[str, Union[float, Tensor]] | None = None,
    verifier: str = "token",
    seeds: Union[int, Tensor],
    positions: Union[int, Tensor],
    requests: Union[int, Tensor, None] = None,
    temperature: Numbers = None,
    draft_temperature: Numbers = None,
    top_k: Numbers = None, top_p: Numbers = None, min_p: Numbers = None,
    draft_top_k: Numbers = None, draft_top_p: Numbers = None, draft_min_p: Numbers = None,
    filter_order: str = "hugging-face",
    bonus: Union[bool, str, Tensor] = True, draft_row_numbers: Tensor | None = None,
    target_mask: Tensor | None = None, draft_mask: Tensor | None = None,
    end_of_text: Union[int, Tensor, None] = None,
    log_probs: bool = False, acceptances: bool = False,
) -> Verified:
    """Decides which drafted tokens of B requests are emitted, and draws one token more for each. All tensors are on
    one device; numbers stand for tensors [B] that repeat them. V <= 2^18, gamma <= 16.

    draft_token_ids  int32 or int64 [N], the drafts of all requests one after the other; or [B, gamma]. A draft ends
                     early at -1
    cu_num_draft_tokens  int32 or int64 [B]: how many tokens requests 0 to r have together; not with [B, gamma]
    max_spec_len     gamma: no request has more drafted tokens (its status would be invalid_parameter); needed with
                     cu_num_draft_tokens
    target_logits    float32, float16 or bfloat16 [N + B, V]: for each request a row for each of its tokens and one
                     after the last. target_probs: they are probabilities, float32
    draft_logits     [N, V], the type of target_logits; or [N + B, V], placed as the target's, which policies that read
                     the draft need. Or draft_probs, float32. Or neither: drafts without rows (n-grams, greedy)
    draft_row_numbers
                     int32 or int64 [N] or [N + B]: which rows of draft_logits or draft_probs [R, V] these are, where an
                     engine keeps them by slots of requests. That they are 0 to R - 1 is not checked
    policy           a name ("token_v3:alpha=0.3"), specagg.policy(...), or what @traced made, with its parameters
    parameters       numbers, of what @traced made; or, of any policy, float32 or float64 [B]: each request has its own
    seeds, positions, requests
                     int32 or int64: random numbers are a function of (seed, request, position) alone. positions: of
                     the first drafted token in its text. requests: 0 to B - 1 unless given
    temperature      float32 or float64 of logits; 0: the largest; 1 unless given. Of the draft: the same, unless
                     draft_temperature is given. Probabilities are as they were sampled from
    top_k, top_p, min_p
                     filters of logits, as specagg.Sampling has them: top_k int32 or int64, the others float32 (whose
                     values count as they are) or float64; off unless given. Of the draft: the same, unless draft_top_k,
                     draft_top_p, draft_min_p are given. Calls with filters have kernels of their own
    filter_order     in which order temperature and filters act, as the order of specagg.Sampling
    bonus            what follows a draft whose tokens are all accepted: True: a token drawn from pi; "target": from the
                     target's row; False: none; int32 or int64 [B]: this one, with log-probabilities NaN, below 0: none
    target_mask, draft_mask
                     int32 [rows, (V + 31) / 32], a row for each row of logits, or for each token of a draft without
                     rows: bit v of a row is 1 where token v may be emitted
    end_of_text      an id, or int32 ids, after which a text ends
    log_probs, acceptances  whether these are computed; acceptances take a pass more over the rows

    Returns Verified, whose tokens are the bits of specagg.verify(). An error of one request is in its status.

    TypeError or ValueError, with the argument's name, its type, shape and device. RuntimeError: no nvcc, or what CUDA
    says. Nothing here waits for the device.
    """
    _named(_verifiers, verifier, "verifier")
    order = _named(_filter_orders, filter_order, "filter_order")
    if not isinstance(target_logits, Tensor) or not isinstance(draft_token_ids, Tensor):
        raise TypeError("draft_token_ids, target_logits: expected tensors")
    device = target_logits.device
    if device.type != _how.devices:
        raise ValueError(f"target_logits: are on {device}; specagg.cuda is for devices of type {_how.devices}, and "
                         f"specagg.verify for the CPU")
    tokens, most, B = _drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len, device)
    N = tokens.numel()
    if not 0 <= most <= _most_drafted:
        raise ValueError(f"max_spec_len: {most} is not between 0 and {_most_drafted}")
    draft = _checked_rows(target_logits, target_probs, draft_logits, draft_probs, [N, N + B], draft_row_numbers is not None)
    draft_rows = N if draft is None else len(draft) if draft_row_numbers is None else _numbered(draft_row_numbers, N, B, device)
    masks = ("target_mask", target_mask, N + B), ("draft_mask", draft_mask, draft_rows)
    for name, mask, rows in masks:
        if mask is not None:
            _check(name, mask, [rows, (target_logits.shape[1] + 31) // 32], [torch.int32], device)
    numbers = [_per_request("positions", positions, B, _whole, device), _per_request("seeds", seeds, B, _whole, device),
               cu_num_draft_tokens, _per_request("requests", requests, B, _whole, device),
               _per_request("temperature", temperature, B, _floats, device),
               _per_request("draft_temperature", draft_temperature, B, _floats, device)]
    target_type = _probability if target_probs else _rows[target_logits.dtype]
    draft_type = _one_hot if draft is None else _rows[draft.dtype] if draft_probs is None else _probability
    filters = _filters((top_k, top_p, min_p, draft_top_k, draft_top_p, draft_min_p), B, device, target_type, draft_type)
    given_bonus, bonus_from = _bonus_of(bonus, B, device)
    policy_text, of_requests, values = _policy_of(policy, parameters or {}, B, device)
    text = _nvcc.text_of(policy_text, verifier, target_type, draft_type, any(x is not None for x in filters),
                         0 if of_requests is None else of_requests.shape[1])
    bonus_rows = draft is not None and B > 0 and draft_rows == N + B
    out = _operator(text, [target_logits, draft, tokens, *numbers, target_mask, draft_mask, _end_ids(end_of_text, device),
                           *filters, given_bonus, draft_row_numbers, of_requests], most,
                    [int(bonus_rows), bonus_from, order, int(log_probs), int(acceptances)], values)
    log_pi, log_p = out[4:6] if log_probs else (None, None)
    return Verified(out[0], out[1], out[2], out[3], log_pi, log_p, out[-1] if acceptances else None)


def _checked_rows(target: Tensor, target_probs: bool, draft_logits: Tensor | None, draft_probs: Tensor | None,
                  counts: Sequence[int], numbered: bool) -> Tensor | None:
    """The draft's rows. counts: how many of the draft there may be, unless they are numbered; the last is the target's."""
    device = target.device
    if target.dim() != 2 or not 0 < target.shape[1] <= _most_vocabulary:
        raise _refuse("target_logits", target, f"[{counts[-1]}, V], V at most {_most_vocabulary},")
    V = target.shape[1]
    _matrix("target_logits", target, counts[-1:], V, [torch.float32] if target_probs else list(_rows), device)
    if draft_logits is not None and draft_probs is not None:
        raise ValueError("draft_logits, draft_probs: give one of them")
    of_draft = draft_probs if draft_logits is None else draft_logits
    if numbered:
        if of_draft is None:
            raise ValueError("draft_row_numbers: there are no rows of the draft")
        counts = of_draft.shape[:1]
    if draft_logits is not None:
        if target_probs:
            raise ValueError("draft_logits: with target_probs give draft_probs")
        _matrix("draft_logits", draft_logits, counts, V, [target.dtype], device)
    if draft_probs is not None:
        _matrix("draft_probs", draft_probs, counts, V, [torch.float32], device)
    return of_draft


def _numbered(numbers: Tensor, N: int, B: int, device: torch.device) -> int:
    """How many rows of the draft they name."""
    count = N + B if isinstance(numbers, Tensor) and numbers.shape == (N + B,) else N
    _check("draft_row_numbers", numbers, [count], _whole, device)
    return count


def _drafts(ids: Tensor, cu: Tensor | None, max_spec_len: int | None, device: torch.device) -> tuple[Tensor, int, int]:
    """The tokens one after the other, gamma and B."""
    if ids.dtype not in _whole or ids.dim() not in (1, 2) or ids.device != device or not ids.is_contiguous():
        raise _refuse("draft_token_ids", ids, f"contiguous int32 or int64 [N] or [B, gamma] on {device}")
    if ids.dim() == 2:
        if cu is not None:
            raise ValueError("cu_num_draft_tokens: goes with draft_token_ids [N], one draft after the other")
        return ids.reshape(-1), ids.shape[1], ids.shape[0]
    if cu is None or max_spec_len is None:
        raise ValueError("cu_num_draft_tokens, max_spec_len: draft_token_ids [N] need both")
    if not isinstance(cu, Tensor) or cu.dim() != 1:
        raise TypeError("cu_num_draft_tokens: expected a tensor [B]")
    _check("cu_num_draft_tokens", cu, [cu.shape[0]], _whole, device)
    return ids, max_spec_len, cu.shape[0]


# ---- specagg.verify() of tensors on a device -------------------------------------------------------------------------


def _numbers(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A number, or a tensor [B] on the device."""
    if x is None or isinstance(x, (int, float)):
        return x
    values = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x).astype(str(dtype)[6:]))
    return values.to(device=device, dtype=dtype).contiguous()


def _sampled(sampling: Sampling | None, draft_sampling: Sampling | None, device: torch.device) -> dict[str, Any]:
    """The arguments of verify() that say it. Filters only where some are on: without them other kernels do."""
    def is_on(one: Sampling | None) -> bool:
        return one is not None and any(np.any(np.asarray(getattr(one._core, name)) != off)
                                       for name, off in (("top_k", 0), ("top_p", 1), ("min_p", 0)))

    found: dict[str, Any] = {}
    on = is_on(sampling), is_on(draft_sampling)
    orders = {_core.filter_orders[one._core.order] for one, filters in zip((sampling, draft_sampling), on) if one and filters}
    if len(orders) > 1:
        raise ValueError(f"draft_sampling: on {device} it has the order of sampling; not {' and '.join(sorted(orders))}")
    if orders:
        found["filter_order"] = orders.pop()
    for prefix, one, wanted in ("", sampling, on[0]), ("draft_", draft_sampling, on[0] or on[1]):
        if one is None:
            continue
        found[f"{prefix}temperature"] = _numbers(one._core.temperature, device, torch.float64)
        for name, dtype in (("top_k", torch.int64), ("top_p", torch.float64), ("min_p", torch.float64)) if wanted else ():
            found[prefix + name] = _numbers(getattr(one._core, name), device, dtype)
    return found


def _flat_rows(name: str, x: Tensor, rows: Sequence[int], flat: bool) -> Tensor:
    """[rows of all requests, V] of [B, rows, V], without rows that no request needs."""
    if flat:
        return x
    if x.dim() != 3 or x.shape[1] < rows[0]:
        raise _refuse(name, x, f"[B, {' or '.join(map(str, rows))}, V]")
    return x[:, : min(x.shape[1], rows[-1])].reshape(-1, x.shape[2])


def _given_bonus(x: Any, device: torch.device) -> Any:
    """Of specagg.verify(): a choice, or ids [B]. A list that mixes them is for the CPU alone."""
    if isinstance(x, (bool, str)):
        return x
    ids = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    if ids.dtype not in _whole:
        raise ValueError(f"bonus: on {device} it is one choice for all requests, or ids [B] of int32 or int64")
    return ids.to(device)


def _one_policy(given: Sequence[Any], device: torch.device) -> tuple[str, dict[str, Tensor]]:
    """The name of these policies, and the parameters of each request."""
    chosen = [as_policy(one) for one in given]
    names = sorted({one.name for one in chosen})
    if len(names) != 1:
        raise ValueError(f"policy: on {device} all requests have one, with parameters of their own; not {', '.join(names) or 'none'}")
    known = [one.name for line in policies() if line.name == names[0] for one in line.parameters]
    values = torch.tensor([one.values for one in chosen], dtype=torch.float64, device=device)
    return names[0], {name: values[:, i].contiguous() for i, name in enumerate(known)}


def _verify_padded(drafts: Drafts, q: Tensor | None, p: Tensor, policy: Any, verifier: str, what: Rows, streams: Streams,
                   edits: Edits, end_of_text: Any, bonus: Any, acceptances: bool) -> Verified:
    """specagg.verify() where p is on a device: the arguments of verify() above from its own."""
    device = p.device
    for name, x in ("penalties", edits.penalties), ("mask", edits.mask):
        if x is not None:
            raise ValueError(f"{name}: is not there on {device}; specagg.cuda.verify has target_mask and draft_mask")
    parameters = None
    if isinstance(policy, (list, tuple)):
        policy, parameters = _one_policy(policy, device)
    q_logits, p_logits = _kinds(what.kind)
    ids = drafts.tokens if isinstance(drafts.tokens, Tensor) else torch.as_tensor(np.asarray(drafts.tokens)).to(device)
    offsets = drafts.offsets
    if offsets is None and ids.dim() == 1:  # one request
        ids, q, p = ids[None], None if q is None else q[None], p[None]
    gamma, counts = ids.shape[-1], None
    if offsets is not None:
        starts = torch.as_tensor(offsets).to(device)  # waits for the device if they are there
        counts, gamma = starts[1:].contiguous(), int((starts[1:] - starts[:-1]).max()) if len(starts) > 1 else 0
    if drafts.lengths is not None:
        if counts is not None:
            raise ValueError(f"lengths: on {device} not together with offsets: end a draft with -1")
        lengths = _numbers(drafts.lengths, device, torch.int64)
        ids = ids.masked_fill(torch.arange(gamma, device=device) >= torch.as_tensor(lengths, device=device).reshape(-1, 1), -1)
    seed, requests, positions = streams.seed, streams.requests, streams.positions
    if positions is None:
        positions = _streams(Streams(seed))[2]
    seed = secrets.randbits(63) if seed is None else seed
    rows = None if q is None else _flat_rows("q", q, (gamma, gamma + 1), offsets is not None)
    return verify(
        ids.contiguous(), _flat_rows("p", p, (gamma + 1,), offsets is not None), rows if q_logits else None,
        draft_probs=None if q_logits else rows, target_probs=not p_logits, cu_num_draft_tokens=counts,
        max_spec_len=None if counts is None else gamma, policy=policy, parameters=parameters, verifier=verifier,
        seeds=_numbers(seed, device, torch.int64), positions=_numbers(positions, device, torch.int64),
        requests=_numbers(requests, device, torch.int64), **_sampled(what.sampling, what.draft_sampling, device),
        end_of_text=end_of_text if isinstance(end_of_text, int) else torch.tensor(_ends(end_of_text), dtype=torch.int32, device=device),
        bonus=_given_bonus(bonus, device), log_probs=True, acceptances=acceptances)
