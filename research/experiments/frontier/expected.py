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

# Of greedy rules, before their first run: (what, measure, rule, drafted, minus rule or None for 0, at least), by two standard
# errors of the difference of texts, for two drafts.
EXPECTED_GREEDY = [
    ("TensorRT-LLM's delta 0.1 keeps 0.05 or more of the drafted tokens more than lossless", "kept", "TensorRT-LLM, top 10, delta 0.1", 4, "lossless", 0.05),
    ("with TensorRT-LLM's delta 0.6, 0.1 or more of the tokens are not the target's", "others", "TensorRT-LLM, top 10, delta 0.6", 4, None, 0.1),
    ("MARS keeps 0.02 or more of the drafted tokens more than lossless", "kept", "MARS, 0.9", 7, "lossless", 0.02),
    ("ASD gives 0.5 tokens a call or more more than lossless", "tokens", "ASD, stable", 7, "lossless", 0.5),
    ("FLy gives 0.5 tokens a call or more more than lossless", "tokens", "FLy", 15, "lossless", 0.5),
]
# The same of other verifiers and of several drafts, lossless, temperatures 0.7 and 1, before their first run: (what, shape,
# proposed, verifier, minus shape, proposed, verifier, at least).
EXPECTED_MORE = [
    ("block verification accepts 0.03 of four or more more than token verification", "1,1,1,1", "sampled", "traversal", "1,1,1,1", "sampled", "recursive", 0.03),
    ("two drafts of the first token, greedy, give 0.2 more", "2,1,1,1", "greedy", "recursive", "1,1,1,1", "sampled", "recursive", 0.2),
    ("traversal accepts 0.02 or more more than recursive rejection there", "2,1,1,1", "greedy", "traversal", "2,1,1,1", "greedy", "recursive", 0.02),
    ("greedy proposals give more than sampled ones, by traversal", "2,1,1,1", "greedy", "traversal", "2,1,1,1", "sampled", "traversal", 0.0),
    ("two more drafts of the second token give 0.1 more, by traversal", "2,2,1,1", "greedy", "traversal", "2,1,1,1", "greedy", "traversal", 0.1),
]
# Of tokens a second, first draft, temperature 0.7, before they were first measured: (what, measure, least), by two standard
# errors of the texts. The measures are those of speed_of() in scripts/frontier.
EXPECTED_SPEED = [
    ("`lossy` writes 2 % or more more tokens a second than `lossless`, with this draft", "lossy", 0.02),
    ("15 % or more more with a draft step of 0.05", "lossy, c = 0.05", 0.15),
    ("all six are slower than the target alone, with this draft", "alone", 0.0),
    ("all six are within 10 % of the cost model, with this draft", "model", -0.1),
    ("all six are within 10 % of the cost model, with a draft step of 0.05", "model, c = 0.05", -0.1),
    ("`mentored`, which searches in each row, writes 1 % or more fewer than `lossy`, with a draft step of 0.05", "mentored, c = 0.05", 0.01),
]
