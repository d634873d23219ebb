# SPDX-License-Identifier: Apache-2.0
"""What was expected of lossy policies before the first full run of the frontier: it was committed before that run."""

# (what, rule, minus rule or None for 0, measure, at least): 0.1 above lossless acceptance, by two standard errors of the
# difference of texts, or of questions, in each of four settings: two drafts, temperatures 0.7 and 1.
EXPECTED = [
    ("`lossy` is nearer to the target in KL than `chow`", "chow", "lossy", "kl", 0.0),
    ("`lossy` is nearer to the target in KL than `opt`", "opt", "lossy", "kl", 0.0),
    ("`lossy` is nearer to the target in KL than `ensemble`", "ensemble", "lossy", "kl", 0.0),
    ("`token-v3` is further from the target in TV than `lossy`, by 0.02 or more", "token-v3", "lossy", "tv", 0.02),
    ("`token-v2` emits the target's most likely token more often than the target", "token-v2", "lossless", "likeliest", 0.0),
    ("`lossy` answers less often rightly than the target, by 0.02 or more", "lossless", "lossy", "answers", 0.02),
    ("`lossy` has 0.3 or more accepted tokens of four more than `lossless`", "lossy", "lossless", "accepted", 0.3),
    ("`token-v3` has more accepted tokens of four than `lossy`", "token-v3", "lossy", "accepted", 0.0),
    ("`ensemble` gives 0.02 or more to tokens that the target's top-p leaves out", "ensemble", None, "outside", 0.02),
]
