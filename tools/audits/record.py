# SPDX-License-Identifier: Apache-2.0
"""What the audits of engines share: tiny rows, and one line of JSON for each property that was tried."""

import json
import os
import time

import numpy as np

from specagg.testing import assert_law

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
        """Whether the engine's texts have the law of the policy, as specagg.testing decides it."""
        try:
            found = assert_law(engine, target, draft, policy, **{"tv": tv, **how})
        except AssertionError as failure:
            return self.says(what, False, str(failure))
        except Exception as failure:  # the engine's own
            return self.says(what, False, f"{type(failure).__name__}: {failure}"[:300])
        self.says(what, True, f"{found.texts:,} texts, p-value at most {found.p_value_bound:.2g}, total variation "
                              f"{found.distance:.3f}, found from {found.detectable:.3f} on")
