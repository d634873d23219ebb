# SPDX-License-Identifier: Apache-2.0
"""Random wrong calls: each returns what is right of it, or raises an error that begins with an argument's name."""

import re
import subprocess
import sys

import numpy as np
import pytest

import flat
import specagg
from specagg import Penalties, Sampling, Status

CALLS = 10_000
NAMED = re.compile(
    r"(drafts|q|p|rows|policy|verifier|seed|requests|positions|sampling|draft_sampling|penalties|mask|lengths|offsets"
    r"|end_of_text|bonus|acceptances|step|coupled|tokens|parents|proposed|temperature|top_k|top_p|min_p|repetition|presence"
    r"|frequency|history|law|false_alarm|values|parameter|next_child|next_sibling)\b.*[:,]")


class WithDlpack:
    """What a tensor of another library offers."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class BrokenDlpack(WithDlpack):
    def __dlpack__(self, **_):
        raise RuntimeError("no")


class OddDlpack(WithDlpack):
    def __dlpack__(self, **_):
        return "no capsule"


class Subclass(np.ndarray):
    pass


class BrokenArray:
    def __array__(self, *_, **__):
        raise RuntimeError("no")

    def __len__(self):
        return -1

    def __index__(self):
        raise RuntimeError("no")


def misaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return np.frombuffer(memory, np.uint8, x.nbytes, 1).view(x.dtype).reshape(x.shape)


def field(x):
    """The same numbers, in records: strides are no multiple of the size."""
    records = np.zeros(x.shape, np.dtype([("a", np.uint8), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


def put(rng, x, value):
    x = x.copy()
    if x.size:
        x.reshape(-1)[rng.integers(x.size)] = np.array([value]).astype(x.dtype)[0] if x.dtype.kind not in "OS" else None
    return x


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def change_array(rng, x):
    """Another array, or something that is none."""
    axis = int(rng.integers(max(x.ndim, 1)))
    with np.errstate(all="ignore"):
        return [
            lambda: x.astype(rng.choice(["i1", "i8", "i4", "u4", "u8", "f2", "f4", "f8", "c8", "?", "O", "S3"])),
            lambda: x.astype(x.dtype.newbyteorder()),
            lambda: np.asfortranarray(x),
            lambda: x.T,
            lambda: np.flip(x, axis),
            lambda: np.repeat(x, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)],
            lambda: np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape) if x.size else x,
            lambda: np.broadcast_to(np.take(x, [0], axis), x.shape) if x.size else x,
            lambda: np.take(x, [], axis),
            lambda: np.take(x, range(x.shape[axis] - 1), axis) if x.shape[axis] else x,
            lambda: np.concatenate([x, x], axis),
            lambda: x[None],
            lambda: x[..., None],
            lambda: x[0] if len(x) else x,
            lambda: x.reshape(-1),
            lambda: misaligned(x),
            lambda: field(x),
            lambda: frozen(x),
            lambda: x.view(Subclass),
            lambda: np.ma.masked_array(x),
            lambda: memoryview(np.ascontiguousarray(x)),
            lambda: WithDlpack(x),
            lambda: BrokenDlpack(x),
            lambda: OddDlpack(x),
            BrokenArray,
            lambda: x.tolist(),
            lambda: iter(x.tolist()),
            lambda: (y for y in x),
            lambda: put(rng, x, rng.choice([np.nan, np.inf, -np.inf, 3e38, -1e300, -0.0])),
            lambda: put(rng, x, rng.choice([-1, -2, 2**31 - 1, -(2**31), 2**62, -(2**62)])),
            lambda: np.full_like(x, -np.inf) if x.dtype.kind == "f" else np.zeros_like(x),
            lambda: None,
            lambda: "α",
            lambda: 3,
            lambda: {},
            lambda: object(),
        ][rng.integers(36)]()


ODD_NUMBERS = [0, 1, -1, 0.5, 1.0, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, 10**400, -(10**400), float("nan"),
               float("inf"), True, None, "1", "α", b"1", 1j, [], (), {}, object(), BrokenArray(), [None], ["a"], [[1]],
               [2**70], np.float32(0.5), np.int8(3), np.uint64(2**64 - 1), np.array(2), np.array("x"), np.zeros((2, 2)),
               np.bool_(True), np.zeros(0)]


def number(rng, B, usual):
    """A number, an array of B, or something that is neither."""
    kind = rng.integers(8) if rng.random() < 0.3 else 0
    if kind < 2 or kind > 5:
        return usual
    if kind == 2:
        return np.full(B, usual)
    if kind == 3:
        array = np.full(2 * B, usual).astype(rng.choice(["f4", "f8", "f2", "i4", "i8", "u8", ">i4", ">f8", "u1", "?"]))[::2]
        return array if rng.random() < 0.7 else change_array(rng, array)
    if kind == 4 and B:
        return put(rng, np.full(B, float(usual)), rng.choice([np.nan, np.inf, -1.0, 0.0, 1e300, 0.5]))
    return ODD_NUMBERS[rng.integers(len(ODD_NUMBERS))]


def of(rng, *choices):
    return choices[rng.integers(len(choices))]


def sampling(rng, B):
    return of(rng, None, None, lambda: Sampling(), lambda: Sampling(rng.random() + 0.1), lambda: Sampling(0.7, 2, 0.9, 0.1),
              lambda: Sampling(number(rng, B, 1)), lambda: Sampling(0.7, number(rng, B, 3)), 3,
              lambda: Sampling(top_p=number(rng, B, 0.9)), lambda: Sampling(min_p=number(rng, B, 0.1)))


def made(x):
    return x() if callable(x) else x


def penalties(rng, B, V):
    if rng.random() < 0.8:
        return None
    history = [rng.integers(-3, V + 3, rng.integers(5)) for _ in range(B)]
    if B and rng.random() < 0.2:
        history[0] = of(rng, [2**40], [-(2**40)], [0.5], "12", None, [[1, 2]], np.array([2**64 - 1], np.uint64), [None])
    if rng.random() < 0.1:
        history = of(rng, None, "1" * B, [], history + [[1]], 3)
    return Penalties(history, number(rng, B, 1.2), number(rng, B, 0.1), number(rng, B, 0.1))


def mask(rng, B, rows, V):
    if rng.random() < 0.8:
        return None
    allowed = rng.random(of(rng, (V,), (B, V), (B, rows, V), (B, max(rows - 1, 0), V))) < of(rng, 0.8, 0.0)
    return allowed if rng.random() < 0.7 else change_array(rng, allowed)


POLICIES = [policy.name for policy in specagg.policies()]
ENDS = [(), 1, [0, 2], np.int64(1), np.array([1, 2]), {3}, -1, 2**40, None, "a", [0.5], lambda: iter([1]), [[1]], object()]
KINDS = ["f4", "f4", "f4", "f2", "f8"]


def policy(rng, B):
    def one():
        return of(rng, "lossless", "lossless", rng.choice(POLICIES), "token_v3:alpha=0.3", specagg.policy("opt"),
                  "chow:alpha=0.2", "lossy:alpha=0.2", "typical", *["lossless"] * 5, of(rng, "", ":", "lossy:alpha=2", None, 3, "α", [], b"opt", np.str_("opt")))
    return one() if rng.random() < 0.7 else [one() for _ in range(B)]


def check(r, drafts, V, ends, bonus, size):
    """What holds of every result. drafts [B][...]: the tokens that may be accepted, or None."""
    B, columns = r.tokens.shape
    place = np.arange(columns)
    there = place < r.emitted[:, None]
    assert ((r.tokens >= 0) == there).all() and (r.tokens < V).all()
    assert ((0 <= r.accepted) & (r.accepted <= r.emitted) & (r.emitted <= r.accepted + 1)).all()
    assert (r.statuses < len(Status)).all() and (r.reasons < len(Status)).all()
    assert ((r.origins == -1) == ~there).all() and ((r.origins == 0) == (place < r.accepted[:, None])).all()
    choice = np.broadcast_to(specagg._verify._bonus(bonus), B)  # a given token has no log-probabilities
    known = there & ~((r.origins == 2) & (choice >= 0)[:, None] & np.isnan(r.log_p))
    assert np.isfinite(r.log_pi[known]).all() and (r.log_pi[known] < 1e-5).all() and np.isnan(r.log_pi[~known]).all()
    assert not np.isnan(r.log_p[known]).any()
    for rate in (r.acceptance_of_row, r.acceptance_of_token):
        assert rate.shape == (B, columns - 1) and (np.isnan(rate) | ((rate >= 0) & (rate < 1.0001))).all()
    for i in range(B):
        emitted, accepted, ended = r.emitted[i], r.accepted[i], r.ended[i]
        last = r.tokens[i, emitted - 1] if emitted else -1
        assert ended == (last if emitted and last in ends else -1)
        assert not any(t in ends for t in r.tokens[i, : emitted - 1])
        if r.statuses[i] != 0:
            assert emitted == accepted
        elif choice[i] != -1 and ended == -1:
            assert emitted == accepted + 1
        if drafts is not None:
            assert accepted <= size[i]
            assert r.tokens[i, :accepted].tolist() == drafts[i][:accepted]


def base(rng):
    B, gamma, V = int(rng.integers(5)), int(rng.integers(4)), int(of(rng, 1, 2, 3, 8, 17, 40))
    kind = rng.choice(KINDS)
    bonus = bool(rng.random() < 0.8)
    extra = of(rng, 0, 1)
    rows = gamma + (bonus or extra)
    q, p = (rng.normal(0, 3, (B, n, V)).astype(kind) for n in (of(rng, gamma, rows, rows, rows), rows))
    drafts = rng.integers(0, V, (B, gamma)).astype(of(rng, np.int32, np.int64))
    if bonus and rng.random() < 0.2:
        bonus = of(rng, "target", rng.integers(-2, V + 1, B), rng.integers(0, V, B).tolist(), ["target"] * B)
    arguments = {"drafts": drafts, "q": q, "p": p, "bonus": bonus, "policy": policy(rng, B),
                 "verifier": of(rng, "token", "block", "match", "coupled"), "seed": int(rng.integers(100)),
                 "positions": of(rng, *[0] * 19, None)}
    if kind != "f2" and rng.random() < 0.1:
        arguments |= {"rows": "probabilities", "q": softmax(q), "p": softmax(p)}
    return B, gamma, V, rows, arguments


def softmax(x):
    if x.size == 0:
        return x
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def one_verify(rng):
    B, gamma, V, rows, a = base(rng)
    form = rng.integers(4)
    if form == 0 and B:
        a["drafts"], a["q"], a["p"], B = a["drafts"][0], a["q"][0], a["p"][0], 1
    elif form == 1 and a["bonus"] is not False:
        sizes = rng.integers(0, gamma + 1, B)
        a["offsets"] = np.concatenate([[0], np.cumsum(sizes)])
        a["drafts"] = np.concatenate([[0], *(d[:n] for d, n in zip(a["drafts"], sizes))]).astype(np.int32)[1:]
        a["p"] = np.zeros((sizes.sum() + B, V), a["p"].dtype) + (a["p"][0, :1] if B else 0)
        a["q"] = a["p"][: sizes.sum() + of(rng, 0, B)]
        if rng.random() < 0.2:
            a["offsets"] = of(rng, lambda: change_array(rng, a["offsets"]), lambda: a["offsets"][::-1],
                              lambda: [2**40], lambda: [], lambda: a["offsets"] + 1)()
    if rng.random() < 0.2:
        a["q"] = None
    if rng.random() < 0.3:
        a["lengths"] = of(rng, lambda: rng.integers(0, gamma + 1, B), lambda: number(rng, B, gamma))()
    for name, usual in (("seed", 5), ("requests", 1), ("positions", 2**32 - 2)):
        if rng.random() < 0.2:
            a[name] = number(rng, B, usual)
    for name in ("sampling", "draft_sampling"):
        if rng.random() < 0.2:
            a[name] = made(sampling(rng, B))
    a["penalties"], a["mask"] = penalties(rng, B, V), mask(rng, B, rows, V)
    ends: object = ()
    if rng.random() < 0.15:
        ends = of(rng, *ENDS)
        a["end_of_text"] = made(ends)
    a["acceptances"] = bool(rng.random() < 0.5)
    if rng.random() < 0.1:
        a[of(rng, "rows", "verifier", "bonus", "acceptances")] = of(rng, None, 3, "α", [], ("logits",), ("logits", "probabilities"), [1, 2],
                                                     np.zeros(2), object())
    for _ in range(of(rng, 0, 0, 1, 2)):
        name = of(rng, "drafts", "q", "p")
        if isinstance(a[name], np.ndarray) and a[name].ndim:
            a[name] = change_array(rng, a[name])
    before = {name: x.tobytes() for name, x in a.items() if isinstance(x, np.ndarray) and not x.dtype.hasobject}
    r = flat.verify(**a)
    assert all(a[name].tobytes() == x for name, x in before.items())
    drafts = np.asarray(a["drafts"].array if isinstance(a["drafts"], WithDlpack) else a["drafts"])
    size = None
    if drafts.ndim == 2:
        size, drafts = [drafts.shape[1]] * len(drafts), drafts.tolist()
    else:
        drafts = None
    p = a["p"].array if isinstance(a["p"], WithDlpack) else a["p"]
    ends = specagg._verify._ends(made(ends))
    assert a["acceptances"] or np.isnan(r.acceptance_of_row).all()
    check(r, drafts, np.asarray(p).shape[-1], ends, a["bonus"], size)


def one_tree(rng):
    B, _, V, _, a = base(rng)
    n = int(rng.integers(6))
    tokens = rng.integers(-1, V, (B, n)).astype(np.int32)
    parents = np.stack([rng.integers(0, k + 1, B) for k in range(n)], 1) if n else np.zeros((B, 0), np.int64)
    q, p = (softmax(rng.normal(0, 3, (B, n + 1, V)).astype(rng.choice(KINDS[:3]))) for _ in range(2))
    a |= {"tokens": tokens, "parents": parents, "q": q, "p": p, "verifier": of(rng, "traversal", "recursive"),
          "proposed": of(rng, "greedy", "sampled", "top", "independent"), "rows": of(rng, "logits", "probabilities")}
    del a["drafts"]
    if rng.random() < 0.2:
        a["q"] = None
    if rng.random() < 0.2:
        a["sampling"] = made(sampling(rng, B))
    ends: object = ()
    if rng.random() < 0.15:
        ends = of(rng, *ENDS)
        a["end_of_text"] = made(ends)
    if rng.random() < 0.1:
        a[of(rng, "verifier", "proposed", "rows", "bonus")] = of(rng, None, 3, [], "α", (1, 2))
    for _ in range(rng.integers(3)):
        name = of(rng, "tokens", "parents", "q", "p")
        if isinstance(a[name], np.ndarray) and a[name].ndim:
            a[name] = change_array(rng, a[name])
    r = flat.verify_tree(**a)
    p = a["p"].array if isinstance(a["p"], WithDlpack) else a["p"]
    ends = specagg._verify._ends(made(ends))
    V = np.asarray(p).shape[-1]
    there = np.arange(r.tokens.shape[1]) < r.emitted[:, None]
    assert ((r.tokens >= 0) == there).all() and (r.tokens < V).all()
    assert np.isfinite(r.log_pi[there]).all()
    assert ((r.accepted <= r.emitted) & (r.emitted <= r.accepted + 1)).all()
    assert ((r.paths >= 1) == (np.arange(r.paths.shape[1]) < r.accepted[:, None])).all()
    tokens = np.asarray(a["tokens"].array if isinstance(a["tokens"], WithDlpack) else a["tokens"])
    tokens = tokens.reshape(len(r), tokens.shape[-1])
    for i in range(len(r)):
        path = r.paths[i, : r.accepted[i]]
        assert (np.diff(path) > 0).all() and tokens[i, path - 1].tolist() == r.tokens[i, : r.accepted[i]].tolist()
        if r.statuses[i] == 0 and np.broadcast_to(specagg._verify._bonus(a["bonus"]), len(r))[i] != -1 and r.ended[i] == -1:
            assert r.emitted[i] == r.accepted[i] + 1
        assert r.ended[i] == -1 or r.ended[i] in ends


def one_draw(rng):
    B, V = int(rng.integers(5)), int(of(rng, 1, 2, 8, 17))
    x = rng.normal(0, 3, (B, V)).astype(rng.choice(KINDS))
    kind = of(rng, *["logits"] * 20, "probabilities", None, [])
    rows = x[0] if B and rng.random() < 0.2 else x
    B = B if rows.ndim == 2 else 1
    if rng.random() < 0.4:
        rows = change_array(rng, rows)
    found = flat.draw(rows, rows=kind, step=of(rng, 0, 0, 1, 2**32 - 1, number(rng, 1, 2)), coupled=of(rng, *[True, False] * 8, "x"),
                         seed=number(rng, B, 1), requests=number(rng, B, 2), positions=number(rng, B, 3),
                         sampling=made(sampling(rng, B)), penalties=penalties(rng, B, V), mask=mask(rng, B, 2, V))
    given = np.asarray(rows.array if isinstance(rows, WithDlpack) else rows)
    assert found.dtype == np.int32 and found.shape == (given.shape[0] if given.ndim == 2 else 1,)
    assert ((-1 <= found) & (found < given.shape[-1])).all()


def one_law(rng):
    V = int(of(rng, 1, 2, 5))
    q, p = softmax(rng.normal(0, 2, (2, V)))
    q, p = (change_array(rng, x) if rng.random() < 0.3 else x for x in (q, p))
    rows = of(rng, *["probabilities", "logits"] * 6, None, 3)
    if rng.random() < 0.3:
        values = of(rng, [0, 0.5], 0.3, [], "x", [None], [np.nan], np.zeros((2, 2)))
        c = specagg.curve(of(rng, "lossy", "chow", None, specagg.policy("opt")), of(rng, "alpha", "beta", "α", 3), values, q, p,
                          rows=rows, sampling=made(sampling(rng, 1)))
        assert ((c.acceptance >= 0) & (c.acceptance < 1.0001)).all()
        return
    found = specagg.law(policy(rng, 1), q, p, rows=rows, sampling=made(sampling(rng, 1)))
    assert abs(found.pi.sum() - 1) < 1e-9 and (found.pi >= 0).all() and 0 <= found.acceptance < 1 + 1e-9
    assert 0 <= found.distance < 1 + 1e-9 and 0 <= found.distance_to_target < 1 + 1e-9


def one_fit(rng):
    V, k = int(of(rng, 1, 2, 5)), int(of(rng, 1, 1, 2))
    pi = rng.dirichlet(np.ones(V**k)).reshape((V,) * k)
    tokens = rng.integers(0, V, (30, k) if k > 1 else 30)
    if rng.random() < 0.3:
        tokens = change_array(rng, tokens)
    if rng.random() < 0.3:
        pi = change_array(rng, pi)
    found = specagg.goodness_of_fit(tokens, pi, of(rng, *[1e-6, 0.5] * 8, 0, 1, None, "x", np.nan, np.zeros(2)))
    assert 0 <= found.p_value <= 1 and 0 <= found.distance <= 1


def one_parents(rng):
    n = int(rng.integers(1, 6))
    child, sibling = np.full(n, -1), np.full(n, -1)
    for x in (child, sibling):
        if n > 1 and rng.random() < 0.7:
            x[rng.integers(n - 1)] = rng.integers(n)
    child, sibling = (change_array(rng, x) if rng.random() < 0.2 else x for x in (child, sibling))
    parents = specagg.parents_of(child, sibling)
    assert (parents >= 0).all() and (parents <= np.arange(parents.shape[-1])).all()


def one_policy(rng):
    key = of(rng, "alpha", "lambda", "beta", "α", "greedy")
    made = specagg.policy(of(rng, *POLICIES, "lossy:alpha=0.1", "α", "", ":", None, 3, b"opt", [], "lossy:alpha", "lossy:,"),
                          **({key: of(rng, *ODD_NUMBERS)} if rng.random() < 0.5 else {}))
    assert made.valid() and (np.isfinite(made.values) | ("=none" in str(made))).all()


ALL = [one_verify] * 9 + [one_tree] * 4 + [one_draw] * 3 + [one_law, one_fit, one_parents, one_policy]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(10))
def test_wrong_calls(part):
    right = 0
    for i in range(part * CALLS // 10, (part + 1) * CALLS // 10):
        rng = np.random.default_rng(i)
        call = ALL[i % len(ALL)]
        try:
            call(rng)
            right += 1
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            assert NAMED.match(str(error)), f"call {i}: {type(error).__name__}: {error}"
            assert "\n" not in str(error) and len(str(error)) < 1000, f"call {i}: {error}"
        except Exception as error:
            raise AssertionError(f"call {i}, {call.__name__}: {type(error).__name__}: {error}") from error
    assert right > 100  # not all are refused


def test_a_mask_needs_no_row_for_a_bonus_that_is_not_drawn():
    # the mask ends where memory that cannot be read begins
    program = """
import ctypes, mmap
import numpy as np, specagg
memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
mask = np.frombuffer(memory, np.uint8, 64, mmap.PAGESIZE - 64).reshape(1, 2, 32)
mask[:] = 1
rows = np.zeros((1, 3, 32), np.float32)
edits = specagg.Edits(specagg.Penalties([[1]], 1.1), mask)
r = specagg.verify(np.array([[1, 2]]), rows, rows, edits=edits, bonus=False)
assert r.tokens.tolist() == [[1, 2, -1]]
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_mask_of_each_row_is_of_the_step_that_is_drawn():
    rows, allowed = np.zeros((50, 4), np.float32), np.zeros((50, 3, 4), bool)
    for step in range(3):
        allowed[:, step, step] = True
        assert (flat.draw(rows, step=step, mask=allowed) == step).all()
    with pytest.raises(ValueError, match="mask: .* where 4 rows are needed"):
        flat.draw(rows, step=3, mask=allowed)


def test_sampling_is_as_it_was_made():
    temperature = np.ones(2)
    how = Sampling(temperature)
    temperature[:] = -1
    assert (flat.verify(np.zeros((2, 0), int), None, np.zeros((2, 1, 3), np.float32), sampling=how).statuses == 0).all()
    for k in (2**32, 2**32 + 1, 2**63 - 1):  # more than there are tokens: off
        assert specagg.law("lossless", [0.0] * 3, [0.0] * 3, rows="logits", sampling=Sampling(top_k=k)).pi.tolist() == [1 / 3] * 3


def test_padding_among_siblings_and_greedy_children_without_chance():
    # greedy: the first child that is no padding was drawn from q, and is accepted where p = q
    q = np.log(np.array([0.1, 0.3, 0.6], np.float32))
    rows = np.broadcast_to(q, (200, 3, 3))
    drawn = flat.draw(rows[:, 0])
    for tokens in (np.stack([np.full(200, -1), drawn], 1), np.stack([drawn, np.full(200, -1)], 1)):
        assert (flat.verify_tree(tokens, np.zeros((200, 2), int), rows, rows).accepted == 1).all()
    # at temperature 0, and with top-k 1, the second most likely was chosen without chance, too
    p = np.log(np.array([[0.2, 0.6, 0.2]] * 3, np.float32))
    for how in (Sampling(0.0), Sampling(top_k=1)):
        r = flat.verify_tree(np.array([1, 2]), np.array([0, 0]), rows[0], p, sampling=how)
        assert r.accepted[0] == 1 and r.paths.tolist() == [[1]]
    # q itself is invalid: left out, and the reason stands. The other child was chosen without chance, and p has 0.2 there
    accepted = 0
    for seed in range(50):
        r = flat.verify_tree(np.array([1, 2]), np.array([0, 0]), np.full((3, 3), np.nan, np.float32), p, seed=seed, positions=0)
        assert r.paths.tolist() == [[2]] if r.accepted[0] else r.reasons[0, 0] == Status.invalid_row
        accepted += r.accepted[0]
    assert 2 < accepted < 25


ROWS = np.zeros((1, 2, 4), np.float32)
REFUSED = {
    "offsets: must begin": lambda: verify(np.zeros(5, int), None, np.zeros((5, 4), np.float32), offsets=[5]),
    "sampling: is of logits": lambda: specagg.law("lossless", [0.5, 0.5], [0.5, 0.5], sampling=Sampling(0.0)),
    "draft_sampling: is of logits": lambda: verify(rows=("probabilities", "logits"), draft_sampling=Sampling(0.5)),
    "mask, penalties: edit": lambda: flat.draw(ROWS[0], rows="probabilities", mask=np.ones(4, bool)),
    "history: expected token ids": lambda: Penalties([[1.5]]),
    "history: expected the ids": lambda: Penalties(None),
    "repetition: must be above 0": lambda: Penalties([[1]], 0),
    "threads: 0 is not": lambda: specagg.set_threads(0),
    "threads: 1025 is not": lambda: specagg.set_threads(1025),
    "next_sibling: node 0": lambda: specagg.parents_of([1, -1, -1], [2, -1, -1]),
    "next_child, next_sibling: two links": lambda: specagg.parents_of([1, 2, -1], [-1, 2, -1]),
    "temperature: expected one number": lambda: specagg.law("lossless", [0], [0], rows="logits", sampling=Sampling([1.0])),
    "seed: expected whole numbers": lambda: verify(seed=0.5, positions=0),
    "step: ": lambda: flat.draw(ROWS[0], step=-1),
    "end_of_text: expected token ids": lambda: verify(end_of_text="a"),
    "rows: expected": lambda: verify(rows=None),
    "verifier: there is no": lambda: verify(verifier=[]),
    "drafts: expected": lambda: verify(drafts=None),
    "policy: expected a name": lambda: specagg.policy(None),
    "tokens: there are none": lambda: specagg.goodness_of_fit([], [1.0]),
    "q: expected numbers": lambda: specagg.law("lossless", [1j], [1]),
    "gamma: .* out of range": lambda: specagg.plan.expected_tokens(0.5, 10**12),
}


def verify(drafts=np.array([[1]]), q=ROWS, p=ROWS, **others):
    return flat.verify(drafts, q, p, **others)


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_says_why(message):
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message]()


def test_end_of_text_is_any_collection_of_ids():
    for ends in (1, np.int64(1), [1], {1}, np.array([1, 2**40]), iter([1]), range(1, 2)):
        assert verify(end_of_text=ends).ended[0] == 1
