# SPDX-License-Identifier: Apache-2.0
"""What the audits of engines share: tiny rows, and one line of JSON for each property that was tried. A law is judged by
specagg.conformance, as the law of a sampler's tokens is."""

import json
import os
import time

import numpy as np

from specagg.conformance import FITS, of_texts

QUICK = bool(os.environ.get("QUICK"))
TV = 0.2 if QUICK else 0.1  # a fault of this size is found with probability 0.999


def rows(seed, vocabulary=4, zero=()):
    """A row of probabilities for each prefix; 0 for the tokens `zero`."""
    known = {}

    def row(prefix):
        if prefix not in known:
            p = np.random.default_rng([seed, *(token + 1 for token in prefix)]).dirichlet(np.ones(vocabulary))
            p[list(zero)] = 0
            known[prefix] = p / p.sum()
        return known[prefix]

    return row


class Record:
    """Prints one line for each property of a sampler: whether it holds (null: not known), and what was seen."""

    def __init__(self, sampler, version):
        self.sampler, self.version, self.last = sampler, version, time.time()

    def says(self, what, holds, seen):
        seconds, self.last = round(time.time() - self.last, 1), time.time()
        print(json.dumps({"sampler": self.sampler, "version": self.version, "property": what,
                          "holds": None if holds is None else bool(holds),
                          "seen": seen, "seconds": seconds}), flush=True)

    def law(self, what, engine, target, draft=None, policy="lossless", tv=TV, **how):
        """Whether the engine's texts have the law of the policy."""
        found = of_texts(what, engine, target, draft, policy, **{"tv": tv, **how})
        self.says(what, found.verdict == FITS, found.seen or
                  f"{found.n:,} texts, p-value at most {found.p_value:.2g}, total variation {found.distance:.3f}, "
                  f"found from {found.finds:.3f} on")
