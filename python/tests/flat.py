# SPDX-License-Identifier: Apache-2.0
"""verify(), draw() and verify_tree() whose arguments are the members of Drafts, Rows, Streams and Edits, one by one: for
tests that combine them."""

import dataclasses

import specagg

GROUPS = {"rows": specagg.Rows, "streams": specagg.Streams, "edits": specagg.Edits}


def grouped(how, names):
    """how, its members of these groups in one object each. Groups without any stay away, as callers would leave them."""
    how = dict(how)
    if "rows" in how and not isinstance(how["rows"], specagg.Rows):
        how["kind"] = how.pop("rows")
    for name in names:
        own = {one.name for one in dataclasses.fields(GROUPS[name])} & how.keys()
        if own:
            how[name] = GROUPS[name](**{one: how.pop(one) for one in own})
    return how


def verify(drafts, *rest, lengths=None, offsets=None, **how):
    if lengths is not None or offsets is not None:
        drafts = specagg.Drafts(drafts, lengths, offsets)
    return specagg.verify(drafts, *rest, **grouped(how, GROUPS))


def draw(*rest, **how):
    return specagg.draw(*rest, **grouped(how, GROUPS))


def verify_tree(*rest, **how):
    return specagg.verify_tree(*rest, **grouped(how, ("rows", "streams")))
