# SPDX-License-Identifier: Apache-2.0
"""Which drafted tokens to emit: verify(), and draw() for drafting with the same random numbers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Callable, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import Policy, Verified, VerifiedTrees
from ._policy import PolicyLike, any_policy, as_policy

Ids = npt.NDArray[np.int32]
Numbers = Union[float, npt.ArrayLike]
Seeds = Union[int, npt.ArrayLike, Sequence[Union[int, None]], None]
Bonus = Union[bool, str, npt.ArrayLike, Sequence[Union[bool, str, int]]]

# The name of each number in Verified.statuses and Verified.reasons.
Status = IntEnum("Status", {_core.status_name(i): i for i in range(_core.status_count)})  # type: ignore[misc]

Status.__doc__ = """What a number in Verified.statuses or Verified.reasons says: ok, or why no further token could be emitted."""

# The name of each number in Verified.origins: where a token is from.
Origin = IntEnum("Origin", {"no_token": -1, **{name: i for i, name in enumerate(_core.origins)}})  # type: ignore[misc]
Origin.__doc__ = """What a number in Verified.origins says: the token was drafted and accepted, is drawn from the residual in place of a
rejected one, or is a bonus, drawn where the draft has ended; no_token: there is none."""

# The numbers of verifiers and proposals, in the module's order.
_verifiers = {name: i for i, (name, _) in enumerate(_core.verifiers)}
_filter_orders = {name: number for number, name in enumerate(_core.filter_orders)}
_uncoupled = [name for name, is_coupled in _core.verifiers if not is_coupled]
_tree_verifiers = {name: i for i, name in enumerate(_core.tree_verifiers)}
_proposals = {name: i for i, name in enumerate(_core.proposals)}


def _refuse_lazy(x: Any, name: str) -> None:
    """ValueError: an array, or a list with one, that is masked, or negated when it is read."""
    if isinstance(x, (list, tuple)):
        for one in x:
            if type(one) is not int and type(one) is not float:  # as most are
                _refuse_lazy(one, name)
    elif type(x) is not np.ndarray and hasattr(x, "dtype"):
        _core.refuse_lazy(x, name)


def _array(x: Any, name: str) -> npt.NDArray[Any]:
    """x as an array; of what is none, an array of objects. ValueError: a tensor on another device than the CPU; a lazy
    one."""
    _refuse_lazy(x, name)
    try:
        return np.asarray(x)
    except Exception:
        device = str(getattr(x, "device", "cpu"))
        if not device.startswith("cpu"):
            raise ValueError(f"{name}: is on the device {device}; specagg reads memory of the CPU: copy it there, in torch "
                             f"by {name}.cpu()") from None
        return np.empty((), object)


def _number(x: Any, name: str, dtype: Any) -> Any:
    """A number, or an array [B] of dtype, a copy."""
    whole = np.issubdtype(dtype, np.integer)
    if type(x) is int or (type(x) is float and not whole):
        try:
            return x if whole else float(x)
        except OverflowError:
            raise ValueError(f"{name}: {x} is out of range") from None
    given = _array(x, name)
    if given.size and given.dtype.kind not in ("biu" if whole else "biuf"):
        raise TypeError(f"{name}: expected {'whole numbers' if whole else 'numbers'}, not {type(x).__name__} of {given.dtype}")
    if given.ndim == 0:
        return int(given) if whole else float(given)
    if given.ndim != 1:
        raise ValueError(f"{name}: expected one number, or one for each request, not {given.ndim} dimensions")
    if whole and given.size and (int(given.min()) < np.iinfo(dtype).min or int(given.max()) > np.iinfo(dtype).max):
        raise ValueError(f"{name}: a value is out of range")
    return np.array(given, dtype, order="C")


def _ids(x: Any, name: str) -> npt.NDArray[np.int64]:
    """Token ids, from any sequence of whole numbers or one. What an int64 does not hold becomes negative."""
    try:
        values = list(x) if isinstance(x, Iterable) and not hasattr(x, "__array__") else x
    except Exception:
        values = None
    given = _array(values, name)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected token ids, not {type(x).__name__} of {given.dtype}")
    return given.reshape(-1).astype(np.int64)


def _ends(x: Any) -> list[int]:
    """The ids of end_of_text that a vocabulary can have."""
    return [int(one) for one in _ids(x, "end_of_text") if 0 <= one <= np.iinfo(np.int32).max]


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{what}: there is no {name!r}; there are {', '.join(known)}")
    return known[name]


class Sampling:
    """How rows of logits are sampled: temperature (0: the most likely token), top-k (0: off), top-p
    and min-p. Each is a number, or an array [B] with one for each request. A value out of range is the
    status invalid_parameter of that request.

    order  in which they act, each on the renormalised result of the step before:
           "hugging-face"  temperature, top-k, top-p, min-p
           "vllm"          temperature, min-p, top-k, top-p
           "llama-cpp"     top-k, top-p, min-p, temperature
           "joint"         temperature, top-k and top-p both of the whole row, min-p"""

    __slots__ = ("_core",)

    def __init__(self, temperature: Numbers = 1.0, top_k: Union[int, npt.ArrayLike] = 0,
                 top_p: Numbers = 1.0, min_p: Numbers = 0.0, order: str = "hugging-face") -> None:
        number = _named(_filter_orders, order, "order")
        self._core = _core.Sampling(_number(temperature, "temperature", np.float64), _number(top_k, "top_k", np.int64),
                                    _number(top_p, "top_p", np.float64), _number(min_p, "min_p", np.float64),
                                    number)

    def __reduce__(self) -> tuple[Any, ...]:
        s = self._core
        return Sampling, (s.temperature, s.top_k, s.top_p, s.min_p, _core.filter_orders[s.order])

    def __repr__(self) -> str:
        s = self._core
        return (f"Sampling(temperature={s.temperature}, top_k={s.top_k}, top_p={s.top_p}, min_p={s.min_p}, "
                f"order={_core.filter_orders[s.order]!r})")


class Penalties:
    """What is taken off the logits of tokens that the text has: repetition divides or multiplies
    (CTRL) and is above 0, presence is taken off once, frequency once for each occurrence. Numbers, or
    arrays [B]. history: for each request the ids that count, before its draft; ids outside the vocabulary
    count nothing.

    TypeError or ValueError, with the argument's name."""

    __slots__ = ("repetition", "presence", "frequency", "history")

    def __init__(self, history: Sequence[npt.ArrayLike], repetition: Numbers = 1.0, presence: Numbers = 0.0,
                 frequency: Numbers = 0.0) -> None:
        self.repetition = _number(repetition, "repetition", np.float64)
        self.presence = _number(presence, "presence", np.float64)
        self.frequency = _number(frequency, "frequency", np.float64)
        if not np.all(np.asarray(self.repetition) > 0):
            raise ValueError("repetition: must be above 0")
        if not isinstance(history, Iterable):
            raise TypeError(f"history: expected the ids of each request's text, not {type(history).__name__}")
        self.history = [_ids(text, "history") for text in history]


@dataclass(frozen=True, eq=False)
class Drafts:
    """The drafts of B requests: token ids, int32 or int64, [B, gamma], padded with -1; [gamma]: one request; or, with
    offsets, all drafts one after the other.

    lengths  [B]: how many tokens of each draft are used
    offsets  [B + 1]: draft i is tokens[offsets[i]:offsets[i + 1]]
    """

    tokens: Any
    lengths: npt.ArrayLike | None = None
    offsets: npt.ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows of q and p are.

    kind            "logits" or "probabilities", or a pair: of q and of p
    sampling        temperature and filters of the logits of p, and of q unless draft_sampling is given. An error with
                    probabilities
    draft_sampling  those of q
    kept            bool [V], [B, V] or [B, gamma, V]: where the engine keeps a token that it drew from q; q itself is
                    given whole. Give drafted tokens that were not kept, too: they are rejected, and what is owed for
                    them is drawn (C++: rows/cut_row.hpp). It may not depend on the drawn token. For the verifiers
                    "token" and "block", and policies that do not read the draft. draw() does not look at it
    """

    kind: str | tuple[str, str] = "logits"
    sampling: Sampling | None = None
    draft_sampling: Sampling | None = None
    kept: Any = None


@dataclass(frozen=True, eq=False)
class Streams:
    """Which random numbers decide. They are a function of (seed, request, position) alone, each a number or [B];
    requests for which all three are equal share them.

    seed       a fresh one for each call unless given; None in a list: a fresh one for that request
    positions  of the first drafted token in its text, so how many tokens stand before it; needed with a seed
    requests   0 to B - 1 unless given
    """

    seed: Seeds = None
    positions: Union[int, npt.ArrayLike, None] = None
    requests: Union[int, npt.ArrayLike, None] = None


@dataclass(frozen=True, eq=False)
class Edits:
    """How logits of q and p are edited before they are sampled: penalties, then a mask, bool [V], [B, V] or
    [B, gamma + 1, V]: False where a token may not be emitted."""

    penalties: Penalties | None = None
    mask: Any = None


@dataclass(frozen=True, eq=False)
class SyntheticAcceptance:
    """For benchmarks: how many drafted tokens are accepted is drawn, whatever the models say, and the token after them is
    drawn from the target's row. The text has no law. One of:

    length  the mean number of tokens of a step, with the one that the target adds, at least 1: of x = length - 1 drafted
            tokens floor(x) are accepted, and one more with probability x - floor(x). A shorter draft lowers the mean
    rates   number j: how often at least j drafted tokens are accepted (j from 1), in [0, 1] and none above the one before it

    ValueError or TypeError, with the argument's name.
    """

    length: float | None = None
    rates: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.length is None) == (self.rates is None):
            raise ValueError("length, rates: one of the two must be given")
        if self.length is not None:
            length = _number(self.length, "length", np.float64)
            if not isinstance(length, (int, float)) or not 1 <= length <= 1 << 20:
                raise ValueError(f"length: {self.length} is not in [1, {1 << 20}]")
            return
        rates = np.atleast_1d(_number(self.rates, "rates", np.float64))
        if not len(rates) or not np.all((rates >= 0) & (rates <= np.concatenate([[1.0], rates[:-1]]))):
            raise ValueError(f"rates: {self.rates} are not in [0, 1], or one is above the one before it")

    def _of_core(self) -> tuple[float, list[float]]:
        rates = [] if self.rates is None else [float(one) for one in np.atleast_1d(np.asarray(self.rates))]
        return (1 + sum(rates) if self.length is None else float(self.length)), rates


def _synthetic(given: Any, policies: Any, bonus: Any) -> tuple[float, list[float]]:
    """Length and rates for the module; length 0: none."""
    if given is None:
        return 0.0, []
    how: SyntheticAcceptance = _group(given, SyntheticAcceptance, "synthetic")
    for one in policies if isinstance(policies, list) else [policies]:
        if one.of_text:
            raise ValueError(f"synthetic: the policy {one.name} goes along a text, and this text has no law")
    if not (bonus is True or bonus is False or bonus == "target"):
        raise ValueError('synthetic: the bonus is True, False or "target"')
    return how._of_core()


def _group(given: Any, kind: Any, name: str) -> Any:
    if not isinstance(given, kind):
        raise TypeError(f"{name}: expected specagg.{kind.__name__}, not {type(given).__name__}")
    return given


def _rows_of(given: Any) -> Rows:
    """Rows, or their kind alone."""
    return given if isinstance(given, Rows) else Rows(given)


_as_it_is = Sampling()
_unedited = _core.Edits(1.0, 0.0, 0.0, None, None)


def _edits(edits: Edits, logits: bool) -> _core.Edits:
    """logits: whether all rows are."""
    penalties, mask = _group(edits, Edits, "edits").penalties, edits.mask
    if not logits and (mask is not None or penalties is not None):
        raise ValueError("mask, penalties: edit logits; rows must not be probabilities")
    if penalties is None and mask is None:
        return _unedited
    if penalties is None:
        return _core.Edits(1.0, 0.0, 0.0, None, mask)
    if not isinstance(penalties, Penalties):
        raise TypeError(f"penalties: expected specagg.Penalties, not {type(penalties).__name__}")
    return _core.Edits(penalties.repetition, penalties.presence, penalties.frequency, penalties.history, mask)


def _on_a_device(x: Any) -> bool:
    """Whether x is a tensor of torch on a CUDA device."""
    return bool(getattr(x, "is_cuda", False))


def _flag(x: Any, name: str) -> bool:
    if not isinstance(x, (bool, int, np.bool_)):
        raise TypeError(f"{name}: expected True or False, not {type(x).__name__}")
    return bool(x)


def _bonus(x: Any) -> Any:
    """What the module takes (bonuses_of, arguments.hpp): -1 none, -2 drawn from pi, -3 from the target's row, else a
    token; a number, or an array [B]."""
    expected = 'bonus: expected True, False, "target", or ids [B]'

    def one(choice: Any) -> int:
        if isinstance(choice, (bool, np.bool_)):
            return -2 if choice else -1
        if isinstance(choice, str):
            if choice != "target":
                raise ValueError(f"{expected}, not {choice!r}")
            return -3
        if not isinstance(choice, (int, np.integer)):
            raise TypeError(f"{expected}, not {type(choice).__name__}")
        return int(choice) if -1 <= choice < 2**31 else -4

    if isinstance(x, (bool, np.bool_, str)):
        return one(x)
    given = x if isinstance(x, (list, tuple)) else _array(x, "bonus")
    if not isinstance(given, (list, tuple)) and (given.ndim != 1 or (given.size and given.dtype.kind not in "biu")):
        raise TypeError(f"{expected}, not {type(x).__name__}")
    return np.array([one(choice) for choice in given], np.int64)


def _are_logits(rows: Any) -> bool:
    if not isinstance(rows, str) or rows not in ("logits", "probabilities"):
        raise ValueError(f'rows: expected "logits" or "probabilities", not {rows!r}')
    return rows == "logits"


def _without_seed(seed: Any) -> list[bool]:
    """Which requests have no seed; one element if there is one seed for all."""
    return [one is None for one in seed] if isinstance(seed, (list, tuple)) else [seed is None]


def _streams(streams: Streams) -> tuple[Any, Any, Any]:
    """Which random numbers decide: no numbers that decided before. So without a seed a fresh one; and with a seed the
    caller must say where in its text a draft begins."""
    seed, requests, positions = _group(streams, Streams, "streams").seed, streams.requests, streams.positions
    fresh = _without_seed(seed)
    if positions is None:
        if not all(fresh):
            raise ValueError("positions: a seed needs them: how many tokens each text has before its draft (0 for one "
                             "round alone); without them all rounds of a text would have the same random numbers")
        positions = 0
    if isinstance(seed, (list, tuple)) and any(fresh):
        seed = [secrets.randbits(63) if none else one for none, one in zip(fresh, seed)]
    return (secrets.randbits(64) if seed is None else _number(seed, "seed", np.uint64),
            None if requests is None else _number(requests, "requests", np.uint64),
            _number(positions, "positions", np.uint32))


def _skipped(x: Any) -> Any:
    if x is None:
        return None
    given = _array(x, "skip")
    if (given.size and given.dtype.kind != "b") or given.ndim != 1:
        raise TypeError(f"skip: expected bool [B], not {type(x).__name__} of {given.dtype} {list(given.shape)}")
    return np.ascontiguousarray(given, bool)


def _out_array(out: Any) -> npt.NDArray[Any]:
    """out as a numpy array that views its memory."""
    if not isinstance(out, np.ndarray) and not hasattr(out, "data_ptr"):
        raise TypeError(f"out: expected a numpy array or a tensor on the CPU, not {type(out).__name__}")
    view = _array(out, "out")
    if view.dtype not in (np.int32, np.int64) or view.ndim != 2:
        raise TypeError(f"out: expected int32 or int64 [B, W], not {view.dtype} {list(view.shape)}")
    if not view.flags.writeable:
        raise ValueError("out: cannot be written")
    return view


def _finish(result: Verified, out: Any, on_invalid: str) -> Verified:
    """The result, its tokens in `out` too; or an error that names the first request with a status."""
    if out is not None:
        view, tokens = _out_array(out), result.tokens
        if view.shape[0] != tokens.shape[0] or view.shape[1] < tokens.shape[1]:
            raise ValueError(f"out: {list(view.shape)}, where {list(tokens.shape)} is needed, or wider")
        view[:, : tokens.shape[1]] = tokens
        view[:, tokens.shape[1]:] = -1
    invalid = np.flatnonzero(result.statuses)
    if on_invalid == "raise" and invalid.size:
        first = int(invalid[0])
        raise ValueError(f"p, q, drafts, sampling: request {first}: {Status(int(result.statuses[first])).name}"
                         + (f" (and {invalid.size - 1} more requests)" if invalid.size > 1 else ""))
    return result


def _kinds(rows: str | tuple[str, str]) -> tuple[bool, bool]:
    """Whether the rows of q, and of p, are logits."""
    if isinstance(rows, (tuple, list)) and len(rows) == 2:
        return _are_logits(rows[0]), _are_logits(rows[1])
    return (_are_logits(rows),) * 2


def _policies(given: PolicyLike | Sequence[PolicyLike], one: Callable[[PolicyLike], Policy]) -> Any:
    return [one(x) for x in given] if isinstance(given, (list, tuple)) else one(given)  # type: ignore[arg-type]


def _samplings(rows: Rows, q_logits: bool, p_logits: bool) -> tuple[_core.Sampling, _core.Sampling]:
    """Those of q and of p."""
    p_sampling = _sampling(rows.sampling, "sampling", p_logits)
    q_sampling = p_sampling if rows.draft_sampling is None else _sampling(rows.draft_sampling, "draft_sampling", q_logits)
    return q_sampling, p_sampling


def _sampling(given: Sampling | None, name: str, logits: bool) -> _core.Sampling:
    """logits: whether it is of logits; probabilities are as they were sampled from."""
    if given is None:
        return _as_it_is._core
    if not isinstance(given, Sampling):
        raise TypeError(f"{name}: expected specagg.Sampling, not {type(given).__name__}")
    if not logits:
        raise ValueError(f"{name}: is of logits; the rows are probabilities")
    return given._core


def verify(
    drafts: Any,
    q: Any,
    p: Any,
    policy: PolicyLike | Sequence[PolicyLike] = "lossless",
    verifier: str = "token",
    *,
    rows: str | tuple[str, str] | Rows = "logits",
    streams: Streams = Streams(),
    edits: Edits = Edits(),
    end_of_text: Union[int, Sequence[int]] = (),
    bonus: Bonus = True,
    acceptances: bool = False,
    skip: Any = None,
    state: Numbers = 0.0,
    synthetic: SyntheticAcceptance | None = None,
    out: Any = None,
    on_invalid: str = "status",
) -> Verified:
    """Decides which drafted tokens of B requests are emitted, and draws one token more for each.

    drafts     token ids [B, gamma], padded with -1, or Drafts(...)
    q, p       the rows of draft and target at each position, numpy arrays or CPU tensors (DLPack):
               float32, float64, and for logits float16 and bfloat16. q [B, gamma, V], p [B, gamma + 1,
               V]; without B for one request; with offsets q [N, V] and p [N + B, V]. The last
               dimension is contiguous; nothing is copied, unless there are masks or penalties.
               q is the row that the token was drawn from, draft_sampling included. Policies that read the
               draft need its row at the bonus position, too: q [B, gamma + 1, V], or [N + B, V].
               q = None: drafts without rows (n-grams, greedy), as if drawn with probability 1
    policy     a name ("token_v3:alpha=0.3"), policy(...), or a list of B of them. Policies of a text (by_position(),
               phase(), "regret-budget", "entropy-window") count as reading the draft, and allow no ids as bonus
    verifier   "token", "block", "match" (exact match), "coupled" (drafts of draw(coupled=True))
    rows       "logits", "probabilities", or Rows(...): temperature and filters
    streams    Streams(seed, positions): random numbers that can be repeated
    edits      Edits(penalties, mask)
    end_of_text  ids after which a text ends
    bonus      what follows a draft whose tokens were all accepted: True: a token drawn from pi; "target": one drawn
               from p, for which no row of q is needed; False: none; ids [B]: these, drawn by the caller (-1: none), for
               which no row of p is needed; or a list with one of them for each request. A given token has no log_pi and
               log_p (NaN)
    acceptances  whether acceptance_of_row and acceptance_of_token are computed, which takes a pass more over
               the rows of each drafted token, those after the first rejected one included
    skip       bool [B]: True: the request is left alone: no token, and the status ok
    state      of a policy with state: one number, or [B], after the text before the draft: 0 where a
               text begins, then the result's `states`. An error where it is none: NaN, or below 0
    synthetic  SyntheticAcceptance(length=2.6): drafts are verified, and then so many tokens are emitted; log_pi is NaN
    out        int32 or int64 [B, W], W at least gamma + 1, a numpy array or a CPU tensor: gets the tokens, then -1
    on_invalid "status", or "raise": a ValueError names the first request whose status is not ok

    Returns Verified: arrays tokens [B, gamma + 1] (padded with -1), emitted, accepted, ended,
    statuses and states [B], origins, log_pi and log_p [B, gamma + 1], acceptance_of_row and acceptance_of_token
    [B, gamma] (NaN unless acceptances). A request whose rows are invalid (NaN, all masked) or whose parameters are out of
    range has a status that says so; the others go on. Results do not depend on the batch, threads
    or the instruction set.

    If p is a torch tensor on a CUDA device, all others must be there, and the result is that of
    specagg.cuda.verify(): tensors there, with the same tokens.

    TypeError or ValueError, with the argument's name: wrong dtype, shape, strides or device,
    missing rows, unknown names.
    """
    how = _named(_verifiers, verifier, "verifier")
    _named({"status": 0, "raise": 1}, on_invalid, "on_invalid")
    given, what = drafts if isinstance(drafts, Drafts) else Drafts(drafts), _rows_of(rows)
    _group(streams, Streams, "streams"), _group(edits, Edits, "edits")
    if verifier not in _uncoupled and any(_without_seed(streams.seed)):
        raise ValueError("seed: coupled verification needs the seed that the drafts were drawn with")
    if _on_a_device(p):
        from . import cuda

        absent = {"skip": skip, "kept": what.kept, "synthetic": synthetic, "out": out,
                  "on_invalid": None if on_invalid == "status" else on_invalid}
        for name, x in absent.items():
            if x is not None:
                raise ValueError(f"{name}: is not there on {p.device}")
        return cuda._verify_padded(given, q, p, policy, verifier, what, streams, edits, end_of_text, bonus,
                                   acceptances)  # type: ignore[return-value]
    q_logits, p_logits = _kinds(what.kind)
    edited = _edits(edits, q_logits and p_logits)
    q_sampling, p_sampling = _samplings(what, q_logits, p_logits)
    if out is not None:
        _out_array(out)
    policies = _policies(policy, any_policy)
    result = _core.verify(
        given.tokens, q, p, policies, how, *_streams(streams), q_logits, p_logits, q_sampling,
        p_sampling, edited, None if given.lengths is None else _number(given.lengths, "lengths", np.int64),
        None if given.offsets is None else np.ascontiguousarray(_number(given.offsets, "offsets", np.int64)),
        _ends(end_of_text), _bonus(bonus), _flag(acceptances, "acceptances"), _skipped(skip),
        _number(state, "state", np.float64), what.kept, *_synthetic(synthetic, policies, bonus))
    return _finish(result, out, on_invalid)


def draw(
    q: Any,
    *,
    step: int = 0,
    coupled: bool = False,
    rows: str | tuple[str, str] | Rows = "logits",
    streams: Streams = Streams(),
    edits: Edits = Edits(),
) -> Ids:
    """Draws drafted token number `step` of a round from rows [B, V] (or [V]), with the random
    numbers that verify() expects of the same rows, streams and edits (positions: of token 0 of the round).
    coupled: with the noise that verifier="coupled" shares. Of a mask [B, rows, V] row `step` counts; the history of
    penalties has the tokens drafted before.

    Returns ids [B]; -1 where a row is invalid.
    """
    coupled, what = _flag(coupled, "coupled"), _rows_of(rows)
    q_logits, p_logits = _kinds(what.kind)
    if coupled and any(_without_seed(_group(streams, Streams, "streams").seed)):
        raise ValueError("seed: coupled drafts need a seed, the one that verify() is given")
    edited = _edits(edits, q_logits)
    step = _number(step, "step", np.uint32)
    if not isinstance(step, int) or not 0 <= step < 2**32:
        raise ValueError(f"step: {step} is not a number from 0 to 2^32 - 1")
    return _core.draw(q, q_logits, _samplings(what, q_logits, p_logits)[0], edited, *_streams(streams), step, coupled)


def parents_of(next_child: npt.ArrayLike, next_sibling: npt.ArrayLike) -> Ids:
    """The parents that verify_tree() takes, from the arrays that engines hold: for each node (0: the
    text) its first child and the sibling after it, -1 where there is none. [nodes + 1] or
    [B, nodes + 1]; returns [nodes] or [B, nodes]. A node that nothing leads to gets the parent 0: its
    token must be -1.

    ValueError: arrays of different shapes, links that do not go to later nodes, or two to one node, or a
    sibling of the text.
    """
    _refuse_lazy([next_child, next_sibling], "next_child, next_sibling")
    try:
        child, sibling = np.asarray(next_child), np.asarray(next_sibling)
    except Exception:
        raise TypeError("next_child, next_sibling: expected arrays of whole numbers") from None
    if child.shape != sibling.shape or child.ndim not in (1, 2) or child.shape[-1] < 1:
        raise ValueError(f"next_child, next_sibling: shapes {list(child.shape)} and {list(sibling.shape)} do not fit")
    if child.dtype.kind not in "iu" or sibling.dtype.kind not in "iu":
        raise TypeError("next_child, next_sibling: expected whole numbers")
    n = child.shape[-1]
    for name, links in (("next_child", child), ("next_sibling", sibling)):
        if ((links != -1) & ((links <= np.arange(n)) | (links >= n))).any():
            raise ValueError(f"{name}: a link must be -1 or lead to a later node")
    if (sibling[..., 0] != -1).any():
        raise ValueError("next_sibling: node 0 is the text, and has none")
    parents = np.zeros(child.shape, np.int32)
    for row, (c, s) in zip(parents.reshape(-1, n), zip(child.reshape(-1, n), sibling.reshape(-1, n))):
        links = np.concatenate([c[c != -1], s[s != -1]])
        if len(np.unique(links)) < len(links):
            raise ValueError("next_child, next_sibling: two links lead to one node")
        for node in range(n):
            if c[node] != -1:
                row[c[node]] = node
            if s[node] != -1:
                row[s[node]] = row[node]
    return parents[..., 1:]


def verify_tree(
    tokens: Any,
    parents: Any,
    q: Any,
    p: Any,
    policy: PolicyLike | Sequence[PolicyLike] = "lossless",
    verifier: str = "traversal",
    *,
    proposed: str = "greedy",
    rows: str | tuple[str, str] | Rows = "logits",
    streams: Streams = Streams(),
    end_of_text: Union[int, Sequence[int]] = (),
    bonus: Bonus = True,
) -> VerifiedTrees:
    """Verifies a tree of drafts for each of B requests.

    tokens, parents  [B, nodes] (or [nodes]): node 0 is the text; node i has token tokens[i - 1] and
                     follows node parents[i - 1] < i. Token -1: padding. The children of a node stand in the order in
                     which they were proposed. parents_of() makes parents from next-child and next-sibling
                     arrays
    q, p             [B, nodes + 1, V]: the rows after each node. q = None: every token was chosen without chance
    verifier         "traversal", or "recursive" (recursive rejection, SpecInfer's and EAGLE's)
    proposed         how the children of a node were chosen from its row q: "independent" (drawn with
                     replacement), "sampled" (drawn without), "top" (the most likely), "greedy" (the first is drawn
                     from q without the others, which are the most likely). The law is pi only if it is
                     true
    The other arguments as for verify(); bonus is no ids.

    Returns VerifiedTrees: as Verified, and paths [B, depth], the accepted nodes.
    """
    what = _rows_of(rows)
    if what.kept is not None:
        raise ValueError("kept: is not there for trees")
    q_logits, p_logits = _kinds(what.kind)
    q_sampling, p_sampling = _samplings(what, q_logits, p_logits)
    return _core.verify_tree(
        tokens, parents, q, p, _policies(policy, as_policy), _named(_tree_verifiers, verifier, "verifier"),
        _named(_proposals, proposed, "proposed"), *_streams(streams), q_logits, p_logits, q_sampling, p_sampling,
        _ends(end_of_text), _bonus(bonus))
