# SPDX-License-Identifier: Apache-2.0
"""The policies of include/specagg/policy/catalogue.hpp, written in Python: examples, and what test_traced.py compares."""

import math

from specagg.traced import (
    argmax,
    entropy,
    exp,
    log,
    max,
    maximum,
    minimum,
    normalised,
    positive,
    traced,
    softmax,
    sum,
    total_variation,
    weighted_log,
    where,
)

LEAST = 2.0**-1022  # subnormal sums count as 0


@traced
def lossless(q, p):
    return p


def lossy_in(steps, q, p, a, beta):
    """a = 1 / (1 - alpha). Newton's steps from 1 look for c = 1 / beta with S(c) = sum (c p - q)+ <= R (1 + 2^-10)."""
    r = sum(positive(q - a * p))
    c = 1
    for _ in range(steps):
        below = c * p > q
        s = sum(positive(c * p - q))
        root = c - (s - r) / maximum(sum(where(below, p, 0)), LEAST)
        c = where(s <= r * (1 + 2**-10), c, where(root < c, root, c))
    c = where(beta == 0, c, 1 / beta)
    s = sum(positive(c * p - q))
    share, rest = where(s < LEAST, 0, r / s), where(s < LEAST, r, 0)
    return share * positive(c * p - q) + (rest * p + minimum(q, a * p))


@traced
def lossy(q, p, alpha=0.0, beta=0.0):
    """Tran-Thien 2023. beta 0: the beta with S = R."""
    return lossy_in(8, q, p, 1 / (1 - alpha), beta)


@traced
def typical(q, p, eps=0.09, delta=0.3):
    """Cai et al. 2024, Medusa."""
    floor = minimum(minimum(delta * exp(-entropy(p)), eps), max(p))
    return normalised(where(p < floor, 0, p))


@traced
def mentored(q, p, kl=0.0):
    """Tran-Thien 2023: bisection finds -log(1 - alpha) of lossy with KL(p || pi) = kl, for small V."""

    def divergence(pi):
        return sum(weighted_log(p, p / pi))

    free = divergence(q) <= kl
    low, high = 0, 709.7
    for _ in range(58):
        middle = 0.5 * (low + high)
        near = divergence(lossy_in(4, q, p, exp(middle), 0 * kl)) <= kl
        low, high = where(near, middle, low), where(near, high, middle)
    return where(free, q, lossy_in(4, q, p, exp(low), 0 * kl))


@traced
def chow(q, p, alpha=0.0):
    defer = max(q.confidence) < 1 - alpha
    return where(defer, p, q)


@traced
def chow_log(q, p, alpha=0.0):
    defer = entropy(q.confidence) > alpha
    return where(defer, p, q)


@traced
def diff(q, p, alpha=0.0):
    defer = max(q.confidence) < max(p.confidence) - alpha
    return where(defer, p, q)


@traced
def diff_log(q, p, alpha=0.0):
    defer = entropy(p.confidence) < entropy(q.confidence) - alpha
    return where(defer, p, q)


@traced
def opt(q, p, alpha=0.0):
    defer = max(q.confidence) < max(p.confidence) - alpha * total_variation(q, p)
    return where(defer, p, q)


@traced
def opt_log(q, p, alpha=0.0):
    defer = entropy(p.confidence) < entropy(q.confidence) - alpha * total_variation(q, p)
    return where(defer, p, q)


@traced
def bild(q, p, alpha=0.0, greedy=False):
    """Kim et al. 2023."""
    all_tokens = sum(weighted_log(-q.confidence, p.confidence))
    best_token = -log(p.confidence[argmax(q.confidence)])
    return where(where(greedy, best_token, all_tokens) > alpha, p, q)


def token_cascade(keeps, q, p):
    eta = sum(where(keeps, 0, q))
    return where(keeps, q, 0) + eta * p


@traced
def token_v1(q, p, alpha=0.0):
    floor = max(p.confidence) - alpha
    return token_cascade(q.confidence >= floor, q, p)


@traced
def token_v2(q, p, alpha=0.0):
    floor = max(p.confidence) - alpha
    return token_cascade(p.confidence >= floor, q, p)


@traced
def token_v3(q, p, alpha=0.0):
    """Narasimhan et al. 2025, eq. 15."""
    floor = (1 - alpha) * max(p.confidence)
    return token_cascade(p.confidence >= floor, q, p)


@traced
def logit_comparison(q, p):
    return token_cascade(p.confidence >= q.confidence, q, p)


@traced
def rate_bound(q, p, rate=0.0):
    tv = sum(maximum(p - q, 0))
    far = tv - (1 - rate)
    w = where(far > 0, where(far < tv, far / tv, 1), 0)
    return w * q + (1 - w) * p


@traced
def fuzzy(q, p, alpha=0.0):
    """Holsman et al. 2025."""
    m = 0.5 * (q.confidence + p.confidence)
    twice = sum(weighted_log(q.confidence, q.confidence / m) + weighted_log(p.confidence, p.confidence / m))
    return where(0.5 * twice > alpha, p, q)


@traced
def margin(q, p, alpha=0.0):
    """The most likely token of p and, if it is near, the second one."""
    top = max(p.confidence)
    second = max(where(p.confidence < top, p.confidence, 0))
    alone = (sum(where(p.confidence < top, 0, 1)) < 2) & (top > (1 - alpha) * top)
    floor = maximum((1 - alpha) * top, where(alone, second, top))
    return token_cascade(p.confidence >= floor, q, p)


@traced
def ensemble(q, p, lambda_=0.5):
    return lambda_ * q + (1 - lambda_) * p


def log_linear(weights_and_rows):
    """The score sum w log x; 0 * (-inf) = 0, and a token without mass in a row of positive weight has none."""
    score = 0
    for w, x in reversed(weights_and_rows):
        with_x = where(x > 0, w * log(x) + score, where(w > 0, -math.inf, math.inf))
        score = where(w == 0, score, where(score == -math.inf, score, with_x))
    return score


@traced
def contrastive(q, p, mu=0.1, plausibility=0.0, plus=False):
    """Li et al. 2023."""
    score = log_linear([(-mu, q), (where(plus, 1 + mu, 1), p)])
    floor = plausibility * max(p)
    return softmax(where((p > 0) & (p >= floor), score, -math.inf))


@traced
def geometric(q, p, lambda_=0.5):
    return softmax(log_linear([(lambda_, q), (1 - lambda_, p)]))


@traced
def power(q, p, lambda_=0.5, rho=1.0):
    """Powers are of ratios to the row with the largest power, so that none overflows."""
    a, b = lambda_, 1 - lambda_
    main = where(a == 0, p, where(b == 0, q, where(rho > 0, maximum(q, p), minimum(q, p))))

    def mean(f):
        return where(a == 0, 0, a * f(q / main)) + where(b == 0, 0, b * f(p / main))

    # not log(x / main): the quotient is beyond the numbers where main is subnormal
    far = where(a == 0, 0, a * (log(q) - log(main))) + where(b == 0, 0, b * (log(p) - log(main)))
    root = where(rho == 0, exp(far), mean(lambda x: x**rho) ** (1 / rho))
    return normalised(where(main > 0, main * root, 0))


@traced
def minimum_(q, p):
    return normalised(minimum(q, p))


@traced
def maximum_(q, p):
    return normalised(maximum(q, p))


@traced
def lenient(q, p, alpha=0.0):
    return lossy(q, p, alpha=alpha, beta=1)


@traced
def realign(q, p, lambda_=0.5):
    return geometric(q, p, lambda_=lambda_)
