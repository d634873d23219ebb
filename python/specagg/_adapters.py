# SPDX-License-Identifier: Apache-2.0
"""Adapters of specagg.conformance for samplers that pip installs. Each is made where its package is there."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from ._verify import Drafts, Edits, Penalties, Rows, Sampling, Streams, draw, verify
from .conformance import Adapter, Logits, Settings, Tokens


def _specagg() -> Adapter:
    """This package: draw() and verify()."""
    from . import __version__

    def how(s: Settings) -> tuple[Rows, Streams]:
        sampling = Sampling(s.temperature, s.top_k, s.top_p, s.min_p)
        return Rows("logits", sampling), Streams(s.seeds, s.positions.astype(np.uint32), requests=0)

    def sample(logits: Logits, s: Settings) -> Any:
        rows, streams = how(s)
        penalties = Penalties([s.history] * len(logits), s.repetition, s.presence, s.frequency) if s.history else None
        given: Any = logits.astype(np.float16) if s.dtype == "float16" else logits
        return draw(given, rows=rows, streams=streams, edits=Edits(penalties, s.mask))

    def verified(drafts: Tokens, q: Optional[Logits], p: Logits, s: Settings) -> Any:
        rows, streams = how(s)
        return verify(Drafts(drafts), q, p, rows=rows, streams=streams).tokens

    has = ("temperature greedy top_k top_p min_p repetition presence frequency mask seeds float16 invalid drafts one_hot bonus "
           "draft_filters padding wrong_ids")
    return Adapter(sample, frozenset(has.split()), "specagg", __version__, verify=verified)


KNOWN: dict[str, Callable[[], Adapter]] = {"specagg": _specagg}
