# SPDX-License-Identifier: Apache-2.0
"""Exact verification of speculative decoding: which drafted tokens to emit, given rows of logits.

verify() decides a batch of drafts, draw() draws drafts, law() gives the exact law of a policy, and
goodness_of_fit() audits tokens against a law. The policies are those of the C++ library: policies().
`specagg.plan` has closed forms, `specagg.traced` makes a policy of a Python function, `specagg.hf` decoding with
two models of transformers.
"""

from . import plan
from ._core import Policy, Verified, VerifiedTrees, isa, set_threads
from ._law import Audit, Curve, Fit, Law, acceptance, curve, goodness_of_fit, law, total_variation, worst_error
from ._policy import by_position, phase, policies, policy
from ._verify import (Drafts, Edits, Origin, Penalties, Rows, Sampling, Status, Streams, SyntheticAcceptance, draw,
                      parents_of, verify, verify_tree)
from .traced import traced

__version__ = "0.5.0"
__all__ = [
    "Audit",
    "Curve",
    "Drafts",
    "Edits",
    "Fit",
    "Law",
    "Origin",
    "Penalties",
    "Policy",
    "Rows",
    "Sampling",
    "Status",
    "Streams",
    "SyntheticAcceptance",
    "Verified",
    "VerifiedTrees",
    "acceptance",
    "by_position",
    "curve",
    "draw",
    "goodness_of_fit",
    "isa",
    "law",
    "parents_of",
    "phase",
    "plan",
    "policies",
    "policy",
    "set_threads",
    "total_variation",
    "traced",
    "verify",
    "verify_tree",
    "worst_error",
]
