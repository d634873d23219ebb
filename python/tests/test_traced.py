# SPDX-License-Identifier: Apache-2.0
"""Policies written in Python: their values against the library's own, and what specagg.traced says of wrong ones."""

import importlib
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

try:
    import specagg  # noqa: F401
except ImportError:  # not built: specagg.traced needs numpy alone
    package = types.ModuleType("specagg")
    package.__path__ = [str(pathlib.Path(__file__).parents[1] / "specagg")]
    sys.modules["specagg"] = package

traced = importlib.import_module("specagg.traced")
policies = importlib.import_module("policies")
INCLUDE = pathlib.Path(__file__).parents[2] / "include"

# The library's policy in C++, the Python policy, and values of the parameters: those of policy/catalogue.hpp.
CATALOGUE = [
    ("lossless", policies.lossless, [()]),
    ("lossy", policies.lossy, [(), (0.25,), (0.3, 0.8), (0.3, 5)]),
    ("typical", policies.typical, [(), (0.3, 1)]),
    ("mentored", policies.mentored, [(), (0.05,)]),
    ("chow", policies.chow, [(), (0.4,)]),
    ("chow_log", policies.chow_log, [(), (0.9,)]),
    ("diff", policies.diff, [(), (0.1,)]),
    ("diff_log", policies.diff_log, [(), (0.1,)]),
    ("opt", policies.opt, [(), (0.4,)]),
    ("opt_log", policies.opt_log, [(), (0.3,)]),
    ("bild", policies.bild, [(), (1.2,), (1.2, True)]),
    ("fuzzy", policies.fuzzy, [(), (0.1,)]),
    ("margin", policies.margin, [(0,), (0.4,)]),
    ("token_v1", policies.token_v1, [(), (0.3,)]),
    ("token_v2", policies.token_v2, [(), (0.3,)]),
    ("token_v3", policies.token_v3, [(), (0.3,)]),
    ("logit_comparison", policies.logit_comparison, [()]),
    ("rate_bound", policies.rate_bound, [(), (0.8,)]),
    ("ensemble", policies.ensemble, [(), (0.3,)]),
    ("contrastive", policies.contrastive, [(), (0.3,), (0.3, 0.2), (0.3, 0, True)]),
    ("geometric", policies.geometric, [(), (0.3,)]),
    ("power", policies.power, [(), (0.3, 2), (0.3, -1), (0.3, 0)]),
    ("minimum<>", policies.minimum_, [()]),
    ("maximum<>", policies.maximum_, [()]),
    ("lenient", policies.lenient, [(0,), (0.4,)]),
    ("realign", policies.realign, [(0.5,), (1.5,)]),
]


@traced.traced
def everything(q, p, a=0.3, flag=True):
    """Each kind of expression, of a token and of all."""
    top = (p + q)[traced.argmax(2 * p - q)]
    count = traced.sum(q > p)
    level = (
        abs(a - top) ** (1 + a)
        + traced.sqrt(a)
        + traced.weighted_log(a, top + 1)
        + 2**a
        - traced.exp(-a / 3) * traced.log(top)
    )
    of_all = (level > a) & ~(count != 2) | flag
    mixed = (q < p) & of_all | ~(q == p) & (of_all == 1) & ~((q > 0.9) | (p < 0.1))
    x = (
        2**q
        + abs(q - p) ** a
        + traced.minimum(0.1, q)
        + traced.maximum(p, 0.05)
        + traced.sqrt(q)
        + traced.exp(traced.log(p) - 1)
    )
    x = (
        x
        + traced.where(of_all, q, 0.5)
        + traced.where(mixed, 1, 2) * count
        - traced.min(p)
        + traced.positive(q - p)
        + (q > 0.2)
    )
    x = (
        x
        + traced.weighted_log(0.5, 1 + p)
        + traced.maximum(a, level)
        + traced.where(a > 0.2, level, 1) / 3
    )
    x = x + (1 - (q - (p - a))) * (1 / (2 / (1 + p))) + (level - (a - count)) - (-2) * -(-q * -0.5)
    return traced.normalised(traced.where(x > -np.inf, x, 0))


CATALOGUE.append(("", everything, [(), (0.9, False), (0, False)]))  # the library has no such policy
CASES = [
    (library, mine, values) for library, mine, all_values in CATALOGUE for values in all_values
]


def eighths():
    return np.array([(a, b, 8 - a - b) for a in range(9) for b in range(9 - a)]) / 8


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def row_sets():
    """Arrays [4, N, V] of q, p and the same before temperature and filters."""
    grid = eighths()
    q, p = np.repeat(grid, len(grid), 0), np.tile(grid, (len(grid), 1))
    yield np.stack([q, p, q, p])[:, ::3]
    subnormal = np.where(np.stack([q, p, q, p]) == 0, 1e-310, [q, p, q, p])
    yield subnormal[:, 1::7]
    random = np.random.default_rng(1)
    for vocabulary in (5, 50):  # 50: more than one vector of the C++ loops, and a part of one
        logits = 2 * random.standard_normal((2, 100, vocabulary))
        logits[:, ::2][random.random((2, 50, vocabulary)) < 0.1] = -np.inf
        plain = softmax(logits)
        yield np.concatenate([softmax(logits / 0.7), plain])


MAIN = """
#include <cstdio>
#include <vector>
#include <specagg/audit/exact_law.hpp>
#include <specagg/policy/catalogue.hpp>

struct given_row {  // probabilities, and the same before temperature and filters
  using value_type = double;
  const double *x, *c;
  std::size_t n;
  std::size_t size() const { return n; }
  specagg::status why() const { return specagg::status::ok; }
  struct block {
    const double *x, *c;
    template <class V>
    V operator()(std::size_t k, int lanes) const { return V::load_partial(x + k, lanes, 0); }
    template <class V>
    V confidence(std::size_t k, int lanes) const { return V::load_partial(c + k, lanes, 0); }
  };
  block open(std::size_t begin, std::size_t) const { return {x + begin, c + begin}; }
};

std::vector<std::vector<double>> rows;  // q, p, confidence_q, confidence_p, and again
void print(const auto& policy) {
  constexpr bool confidence = specagg::reads_confidence<std::remove_cvref_t<decltype(policy)>>;
  for (std::size_t i = 0; i < rows.size(); i += 4) {
    const std::size_t n = rows[i].size();
    const given_row q{rows[i].data(), rows[i + 2].data(), n}, p{rows[i + 1].data(), rows[i + 3].data(), n};
    std::vector<double> law(n);
    const auto fill = [&](const auto& both) {
      const auto pi = policy.bind(both);
      for (std::size_t v = 0; v < n; ++v) law[v] = specagg::as_double(pi(specagg::at(both, v)));
    };
    if constexpr (specagg::reads_draft<std::remove_cvref_t<decltype(policy)>>)
      fill(specagg::row_pair<confidence, given_row, given_row>(q, p));
    else fill(specagg::target_rows<confidence, given_row>(p));
    std::fwrite(law.data(), sizeof(double), n, stdout);
  }
}

int main() {
  for (double n; std::fread(&n, sizeof n, 1, stdin) == 1;)
    for (int k = 0; k < 4; ++k) {
      rows.emplace_back(std::size_t(n));
      if (std::fread(rows.back().data(), sizeof(double), rows.back().size(), stdin) != rows.back().size()) return 1;
    }
"""


def laws_program():
    """It prints the laws of each case, of the library's policy and of the generated one, for the rows that it reads."""
    text = (
        "".join(
            mine.cpp(f"generated_{mine.name}").replace("#pragma once\n", "")
            for _, mine, _ in CATALOGUE
        )
        + MAIN
    )
    for library, mine, values in CASES:
        numbers = ", ".join(str(x).lower() for x in values)
        generated = f"generated_{mine.name}{{{numbers}}}"
        own = (
            f"specagg::{library}({numbers})"
            if library in ("lenient", "realign", "margin")
            else f"specagg::{library}{{{numbers}}}"
        )
        text += f"  print({own if library else generated});\n  print({generated});\n"
    text += "".join(
        f"  static_assert(specagg::TargetPolicy<generated_{mine.name}, float>);\n"
        for _, mine, _ in CATALOGUE
    )
    return text + "}\n"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """For each case the laws [N, V] of each set of rows: of the library's policy, and of the C++ that is generated."""
    compiler = shutil.which("g++")
    if not compiler or not INCLUDE.is_dir():
        pytest.skip("needs g++ and the headers")
    folder = tmp_path_factory.mktemp("policies")
    (folder / "laws.cpp").write_text(laws_program())
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-O1",
            "-march=native",
            "-DSPECAGG_COMPILE_FAST",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            INCLUDE,
            "-I",
            "/usr/include/eigen3",
            "-o",
            folder / "laws",
            folder / "laws.cpp",
        ],
        check=True,
    )
    sets = list(row_sets())
    rows = b"".join(
        np.append(float(rows.shape[2]), rows[:, i]).tobytes()
        for rows in sets
        for i in range(rows.shape[1])
    )
    printed = np.frombuffer(
        subprocess.run([folder / "laws"], input=rows, stdout=subprocess.PIPE, check=True).stdout
    )
    one = [rows[0].size for rows in sets]
    laws, at = [], 0
    for _ in CASES:
        pair = []
        for _ in ("library", "generated"):
            pair.append(
                [
                    printed[at + sum(one[:k]) :][:size].reshape(rows[0].shape)
                    for k, (size, rows) in enumerate(zip(one, sets))
                ]
            )
            at += sum(one)
        laws.append(pair)
    assert at == len(printed)
    return laws


def decided_by_rounding(library, values, rows):
    """Where both sides of a deferral rule's comparison are equal in exact arithmetic, and need not be in doubles."""
    q, p, q_confidence, p_confidence = rows
    if library in ("diff_log", "opt_log") and not values:
        return (np.sort(q_confidence) == np.sort(p_confidence)).all(-1)
    return np.zeros(len(q), bool)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: f"{CASES[k][0]}{CASES[k][2]}")
def test_numpy_generated_cpp_and_library_agree(case, compiled):
    library, mine, values = CASES[case]
    parameters = dict(zip(mine.defaults, values))
    # The KL of mentored with kl 0 is quadratic at its root: pi has half the digits.
    tolerance = 1e-7 if library == "mentored" and not values else 1e-12
    for k, rows in enumerate(row_sets()):
        if library == "mentored" and rows.shape[2] > 5:
            continue
        own, generated = (laws[k] for laws in compiled[case])
        with np.errstate(invalid="ignore"):
            pi = mine._values(mine._rows(*rows), parameters)
        exact = ~decided_by_rounding(library, values, rows)
        assert exact.mean() > 0.8
        np.testing.assert_allclose(generated, own, rtol=0, atol=tolerance)
        np.testing.assert_allclose(pi[exact], own[exact], rtol=0, atol=tolerance)
        assert np.isfinite(own).any(-1).mean() > 0.3  # some rows have no law, not all


@traced.traced
def distant(q, p, alpha=0.0):
    """pi = p if the two models differ by more than alpha in total variation, else q."""
    tv = traced.total_variation(q, p)
    return traced.where(tv > alpha, p, q)


@traced.traced
def slip(q, p):
    return 0.5 * q + 0.4 * p


def test_the_cpp_of_a_policy_is_readable():
    assert (
        distant.cpp()
        == """\
#pragma once
#include <specagg/policy/policy.hpp>

// pi = p if the two models differ by more than alpha in total variation, else q.
struct distant {
  double alpha = 0;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return specagg::is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double tv = rows.sum([](auto at) { return positive(at.p - at.q); });
    const bool condition = tv > alpha;
    return [=](auto at) { return select(condition, at.p, at.q); };
  }
};
"""
    )


def test_the_cpp_has_names_and_lengths_for_readers():
    text = policies.token_v3.cpp()
    assert text.endswith("""
    const double top_confidence_p = rows.max([](auto at) { return at.confidence_p; });
    const double floor = (1 - alpha) * top_confidence_p;
    const double eta = rows.sum([=](auto at) { return select(at.confidence_p >= floor, 0, at.q); });
    return [=](auto at) { return fma(eta, at.p, select(at.confidence_p >= floor, at.q, 0)); };
  }
};
""")
    for _, mine, _ in CATALOGUE:
        assert max(map(len, mine.cpp().splitlines())) <= 100


def test_law_by_hand():
    q, p = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    assert (policies.token_v3.law(q, p, alpha=0.5) == q).all()  # 0.25 = 0.5 * 0.5 is not below
    assert (policies.token_v3.law(q, p) == [0.1875, 0.1875, 0.625]).all()
    assert (policies.token_v3.law(q, p, alpha=-0.01) == p).all()
    assert policies.token_v3.acceptance(q, p) == 0.1875 + 0.1875 + 0.25
    assert policies.token_v3.total_variation(q, p) == 0.125


def test_rows_are_broadcast_over_leading_axes():
    q, p = eighths()[:, None], eighths()[None, :]
    laws = policies.token_v1.law(q, p, alpha=0.3)
    assert laws.shape == (45, 45, 3)
    assert (laws[7, 20] == policies.token_v1.law(q[7, 0], p[0, 20], alpha=0.3)).all()
    assert policies.token_v1.acceptance(q, p).shape == (45, 45)


def test_decisions_read_confidence_and_laws_the_rows():
    q, p, plain = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.3, 0.3, 0.4]
    assert (policies.chow.law(q, p, alpha=0.55) == q).all()
    assert (policies.chow.law(q, p, plain, alpha=0.55) == p).all()
    assert (policies.diff.law(q, p, p_confidence=[0, 0, 1]) == p).all()


def test_rows_of_floats_are_divided_by_their_sum():
    p = softmax(np.random.default_rng(2).standard_normal((20, 1000))).astype(np.float32)
    assert np.abs(policies.lossless.law(p, p).sum(-1) - 1).max() < 1e-12


@pytest.mark.parametrize(
    "q, p, says",
    [
        ([0.5, 0.4], [0.5, 0.5], "q sums to 0.9"),
        ([0.5, 0.5], [[0.5, 0.5], [-0.5, 1.5]], "p is negative in row 1"),
        ([0.5, 0.5], [float("nan"), 1], "p is NaN"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "different vocabularies: 2, 3, 2, 3 tokens"),
        (0.5, [0.5, 0.5], "q is a number"),
    ],
)
def test_rows_that_are_none(q, p, says):
    with pytest.raises(ValueError, match=says):
        policies.lossless.law(q, p)


def test_the_confidence_that_is_none():
    with pytest.raises(ValueError, match="p_confidence sums to 0.9, and must be probabilities"):
        policies.chow.law([0.5, 0.5], [0.5, 0.5], p_confidence=[0.5, 0.4])


def test_laws_that_are_none_say_why():
    q, p = [[0.5, 0.5], [1, 0]], [[0.5, 0.5], [0, 1]]
    with pytest.raises(ValueError, match="pi of slip sums to 0.9 in row 0"):
        slip.law(q, p)
    with pytest.raises(ValueError, match="pi of minimum_ is NaN in row 1"):
        policies.minimum_.law(q, p)
    away = traced.traced(lambda q, p: 2 * p - q)
    with pytest.raises(ValueError, match="is negative in row 1"):
        away.law(q, p)


def test_parameters_are_checked():
    with pytest.raises(TypeError, match="token_v3 has no parameter beta; it has alpha"):
        policies.token_v3.law([1], [1], beta=1)
    with pytest.raises(ValueError, match="alpha is nan, and must be finite"):
        policies.token_v3.law([1], [1], alpha=float("nan"))
    integer = traced.traced(lambda q, p, alpha=0: alpha * q + (1 - alpha) * p)
    assert (integer.law([1, 0], [0, 1], alpha=0.25) == [0.25, 0.75]).all()


def test_an_if_is_one_sentence():
    with pytest.raises(TypeError, match=r"write where\(condition, a, b\) for `if`"):
        traced.traced(lambda q, p: p if traced.max(q) < 0.5 else q)
    with pytest.raises(TypeError, match="where"):
        traced.traced(lambda q, p: traced.where(0 < q < 0.5, q, p))


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda q, p: max(q) * p, "take sum, max and min from specagg.traced"),
        (lambda q, p: float(traced.max(q)) * p, "take exp, log and others from specagg.traced"),
        (lambda q, p: traced.max(p), "must return a row"),
        (lambda q, p: p > q, "must return a row"),
        (lambda q, p: 1.0, "must return a row"),
        (lambda q, p: traced.where(q, q, p), "a condition is a comparison"),
        (lambda q, p: traced.sum(traced.max(q)) * p, "take a row"),
        (lambda q, p: q * [0.5, 0.5], "not of a list"),
        (lambda q, p: np.array([0.5, 0.5]) * q, "not of a ndarray"),
        (lambda q, p: q[0] * p, r"row\[argmax\(other\)\]"),
        (lambda q, p: traced.argmax(q) * p, r"row\[argmax\(other\)\]"),
        (lambda q, p, alpha: p, "defaults are numbers"),
        (lambda q: q, "takes q and p"),
    ],
)
def test_what_is_no_policy(function, says):
    with pytest.raises(TypeError, match=says):
        traced.traced(function)


def test_names_that_cpp_lacks():
    with pytest.raises(ValueError, match="double cannot be a name"):
        policies.lossless.cpp("double")
    with pytest.raises(ValueError, match="alpha cannot be a name"):
        policies.chow.cpp("alpha")
    assert "struct other {" in policies.lossless.cpp("other")


def test_passes_over_the_vocabulary_are_shared_where_they_can():
    lines = [line.strip() for line in policies.opt_log.cpp().splitlines()]
    assert sum("rows.sum(" in line for line in lines) == 2
    assert "return specagg::both(entropy_term(at.confidence_p), positive(at.p - at.q));" in lines
    needs_the_first = traced.traced(
        lambda q, p: traced.where(traced.sum(traced.where(q < traced.max(p), q, 0)) > traced.max(q), q, p)
    )
    assert needs_the_first.cpp("other").count("rows.max(") == 1


@pytest.mark.parametrize(
    "function, declares",
    [
        (lambda q, p: p, ["reads_draft = false", "reads_confidence = false"]),
        (lambda q, p: q, ["reads_confidence = false"]),
        (lambda q, p: traced.where(p.confidence > 0.1, p, 0), ["reads_draft = false"]),
        (lambda q, p: traced.where(q.confidence > 0.1, p, 0), []),
        (lambda q, p: traced.where(traced.max(p.confidence) > 0.1, p, q), []),
    ],
)
def test_the_cpp_declares_what_a_policy_does_not_read(function, declares):
    lines = traced.traced(function).cpp("other").splitlines()
    declared = [line.strip() for line in lines if "static constexpr bool" in line]
    assert declared == ([f"static constexpr bool {', '.join(declares)};"] if declares else [])


def test_a_comment_and_names_may_be_any_text():
    def odd(q, p):
        r"""pi = \alpha q \
        and so on"""
        α = traced.max(q) + 1
        double = traced.max(p) * 2
        return traced.where(q < α, p, q * double)

    text = traced.traced(odd).cpp()
    assert "// pi = \\alpha q\n// and so on\nstruct odd {" in text
    assert "const double value = top_q + 1;" in text
    assert "const double double_2 = top_p * 2;" in text


def test_numbers_of_numpy_are_numbers():
    half = np.float64(0.5)
    mixed = traced.traced(lambda q, p: half * q + p * half)
    assert (mixed.law([1, 0], [0, 1]) == 0.5).all()
    symbols = importlib.import_module("specagg._symbols")
    q, x = symbols.node("member", value="q", row=True), np.array([0.25, 0.5, 0.75])
    for of in (lambda h: h + q, lambda h: h - q, lambda h: h * q, lambda h: h / q, lambda h: h**q, lambda h: h < q, lambda h: h <= q,
               lambda h: h > q, lambda h: h >= q, lambda h: h == q, lambda h: h != q):
        for number in (half, np.float32(0.5), np.array(0.5)):
            found, expected = (symbols.evaluate(of(h), {("member", "q"): x}) for h in (number, 0.5))
            assert found.tolist() == expected.tolist()
    with pytest.raises(TypeError, match="not of a ndarray"):
        x * q


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda q, p: np.where(q < p, q, p), "numpy.where .* use where from specagg.traced"),
        (lambda q, p: np.exp(q), "numpy.exp .* use exp from specagg.traced"),
        (lambda q, p: q / np.sum(q), "numpy.sum .* use sum from specagg.traced"),
        (lambda q, p: q / np.max(q), "numpy.(a)?max .* use max from specagg.traced"),
        (lambda q, p: np.minimum(q, p), "numpy.minimum .* use minimum from specagg.traced"),
        (lambda q, p: q[np.argmax(q)] * p, "numpy.argmax .* use argmax from specagg.traced"),
        (lambda q, p: q * np.logical_not(q < p), "numpy.logical_not .* use ~"),
        (lambda q, p: np.cumsum(q), "numpy.cumsum cannot be used"),
        (lambda q, p: np.tanh(q), "numpy.tanh cannot be used"),
    ],
)
def test_a_function_of_numpy_says_what_to_use(function, says):
    with pytest.raises(TypeError, match=says):
        traced.traced(function)


def test_functions_of_the_library_say_what_a_policy_has_instead():
    library = pytest.importorskip("specagg._core") and importlib.import_module("specagg")
    rows = np.array([0.5, 0.5])
    for call in (lambda: library.curve(policies.chow, "alpha", [0.1], rows, rows), lambda: library.law(policies.chow, rows, rows),
                 lambda: library.worst_error(policies.chow),
                 lambda: library.verify(np.array([0]), None, rows[None], policies.chow, rows="probabilities")):
        with pytest.raises(TypeError, match=r"policy: chow .* chow.curve .* p=chow.law\(q, p\) .* chow.cpp\(\)"):
            call()


@pytest.mark.parametrize(
    "function",
    [
        lambda q, p: q - (-p),
        lambda q, p: -q - (-p),
        lambda q, p: q + (-p),
        lambda q, p: -(-q),
        lambda q, p: -(q * p) - q,
        lambda q, p: q * p - q / p,
        lambda q, p: q / p - q * p,
        lambda q, p: q * p - p * 3,
        lambda q, p: q * p + 0,
        lambda q, p: 0 - q * p,
        lambda q, p: 0 + q,
        lambda q, p: q - 0,
        lambda q, p: 1 * q + q * 1 - 1,
        lambda q, p: 2 - q,
        lambda q, p: 2 / q - q / 2,
        lambda q, p: p + (q < p) * 1,
        lambda q, p: p + (~(q < p) & (q < 2 * p)),
        lambda q, p: p + (~(q < p) & ~(q < 2 * p)),
        lambda q, p: p + (~(q < p) | ~(q < 2 * p)),
        lambda q, p: p + ~(q >= p),
        lambda q, p: p + ~(~(q <= p)),
        lambda q, p: p + ((q != p) | (q > p)),
        lambda q, p: p + (~(q == p) | (q < 0.5 * p)),
        lambda q, p: q**2 + 2**q - q**p,
        lambda q, p: abs(q - p) - 3,
    ],
)
def test_symbols_have_the_values_of_arrays(function):
    q, p = softmax(np.random.default_rng(4).standard_normal((2, 50, 7)))
    q[:, 3] = p[:, 3]
    found = traced.traced(function)._values({"q": q, "p": p}, {})
    np.testing.assert_allclose(found, function(q, p), rtol=1e-14, atol=1e-14)


def test_fma_is_rounded_once():
    from fractions import Fraction

    random = np.random.default_rng(3)
    a, b = random.random((2, 2000))
    c = -a * b * (1 + np.ldexp(random.random(2000), -random.integers(0, 60, 2000)))
    got = importlib.import_module("specagg._symbols")._fma(a, b, c)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c)]
    assert (got == exact).all() and (a * b + c != exact).any()
    assert importlib.import_module("specagg._symbols")._fma(np.inf, 1.0, 0.0) == np.inf


@pytest.mark.parametrize(
    "mine, parameters",
    [
        (policies.lossy, {"alpha": 0.3}),
        (policies.typical, {}),
        (policies.opt, {"alpha": 0.4}),
        (policies.token_v3, {"alpha": 0.3}),
        (distant, {"alpha": 0.3}),
    ],
)
def test_an_audit_passes(mine, parameters):
    found = mine.audit(**parameters)
    assert found.passed and found.error < 1e-14
    assert (found.pairs, found.undefined, found.no_law) == (2025, 0, 0)


def test_an_audit_counts_what_is_no_law():
    found = slip.audit()
    assert not found.passed and (found.error, found.no_law, found.undefined) == (1, 2025, 0)
    found = policies.minimum_.audit()
    common = (np.minimum(eighths()[:, None], eighths()[None]).sum(-1) > 0).sum()
    assert found.passed and (found.no_law, found.undefined) == (0, 2025 - common)


@pytest.mark.parametrize("wrong", ["always accepts", "replaces by pi", "accepts with pi"])
def test_an_audit_sees_a_wrong_verifier(wrong, monkeypatch):
    audit = importlib.import_module("specagg._audit")
    right = audit._verify

    def verify(q, pi, token):
        accepted, residual = right(q, pi, token)
        return (
            np.where(pi[:, token] > 0, 1, accepted)
            if wrong == "always accepts"
            else pi[:, token]
            if wrong == "accepts with pi"
            else accepted,
            pi if wrong == "replaces by pi" else residual,
        )

    monkeypatch.setattr(audit, "_verify", verify)
    assert policies.ensemble.audit().error > 0.01


def test_the_curve_of_the_documentation():
    """examples/own_policy.cpp prints these numbers of `distant`."""
    q, p = eighths()[:, None], eighths()[None, :]
    curve = distant.curve("alpha", [0, 0.3, 0.5, 0.7, 1], q, p)
    assert (curve.values == [0, 0.3, 0.5, 0.7, 1]).all()
    assert np.abs(1 - curve.acceptance - [0.464, 0.410, 0.251, 0.158, 0]).max() < 0.0005
    assert np.abs(curve.distance_to_target - [0, 0.055, 0.214, 0.306, 0.464]).max() < 0.0005
    two = policies.lossy.curve("alpha", [0.3], q, p, beta=1)
    assert two.acceptance == policies.lossy.acceptance(q, p, alpha=0.3, beta=1).mean()


def test_a_policy_may_call_another():
    q, p = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    mixed = traced.traced(lambda q, p, alpha=0.0: 0.5 * policies.token_v3(q, p, alpha=alpha) + 0.5 * p)
    assert (mixed.law(q, p) == (policies.token_v3.law(q, p) + p) / 2).all()
