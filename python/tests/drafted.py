# SPDX-License-Identifier: Apache-2.0
"""Drafts of two small random models, as engines hold them, and the laws of what is emitted: for the tests of plug-ins."""

import numpy as np
import specagg
import torch

V = 5


def rows(seed=0):
    """Logits: of the target after each text of fewer than three tokens, and of the draft."""
    random = np.random.default_rng(seed)
    return random.normal(0, 1.2, (2, 3, V, V)).astype(np.float32)


P, Q = rows()


def softmax(x, temperature=1.0, top_p=1.0):
    p = np.exp(np.float64(x) / temperature)
    p /= p.sum(-1, keepdims=True)
    order = np.argsort(-p)
    p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
    return p / p.sum()


class Many:
    """B requests with drafts of `gamma` tokens after token 0; row j of a draft is after its token j - 1."""

    def __init__(self, B, gamma=2, temperature=1.0):
        random = np.random.default_rng(5)
        self.drafts, self.q, self.p, at = [], [], [], np.zeros(B, int)
        for j in range(gamma + 1):
            self.p.append(P[j, at])
            if j < gamma:
                q = np.exp(np.float64(Q[j]) / temperature)
                q /= q.sum(-1, keepdims=True)
                self.q.append(q[at].astype(np.float32))
                at = (random.random((B, 1)) > np.cumsum(q[at], 1)[:, :-1]).sum(1)
                self.drafts.append(at)
        self.p = torch.from_numpy(np.stack(self.p, 1).reshape(-1, V))
        self.q = torch.from_numpy(np.stack(self.q, 1).reshape(-1, V))
        self.drafts = np.stack(self.drafts, 1).tolist()


def two_tokens(name, temperature=1.0, top_p=1.0, gamma=2):
    """The law of the first two tokens; the second of gamma 1 is a bonus token where the first was accepted."""
    sampling = specagg.Sampling(temperature)

    def pi(j, a):
        p = softmax(P[j, a], temperature, top_p)
        if name == "lossless":
            return p
        return specagg.law(name, Q[j, a], P[j, a], rows="logits", sampling=sampling).pi

    first = pi(0, 0)
    return first, np.array([first[a] * (softmax(P[1, a], temperature, top_p) if gamma == 1 else pi(1, a)) for a in range(V)])


def check_first(tokens, first):
    assert specagg.goodness_of_fit(tokens[:, 0].numpy(), first).passed
