# SPDX-License-Identifier: Apache-2.0
"""claims.json says what is claimed and when it holds; here a measure becomes a verdict."""
import json, math, pathlib

from findings.judge import judge, printed
from findings.parts import have, quick, timed_parts, timing_errors

with open(pathlib.Path(__file__).resolve().parent.parent / "claims.json") as file:
    CLAIMS = json.load(file)["claims"]
judged = {}  # id -> verdict, values as the page shows them, how many hold and fail, what else was measured
real = {}    # the same with models that read
now = {}     # what else the page shows


def found(part, test, f, form, note):
    """What a claim's measure f() gives in a part, judged; None if the part was not run. f() -> (label, value[, standard
    error]), of a speed without the error. In a quick run values may lack."""
    if not have(part):
        return None
    try:
        values = [(v[0], v[1], v[2] if len(v) > 2 else 0.0) for v in f()]
        if not values or any(math.isnan(v) for _, v, _ in values):
            raise ValueError(f"{part}: a claim has no value")
        if part in timed_parts and not all(e for _, _, e in values):
            values = [(l, v, e or of_time) for (l, v, e), of_time in zip(values, timing_errors(f))]
    except (LookupError, ValueError, ZeroDivisionError, TypeError):
        if not quick():
            raise
        return {"verdict": "not in a quick run", "values": [], "of": 0, "hold": 0, "fail": 0, "note": ""}
    verdict, outcomes = judge(test, values)
    return {"verdict": verdict, "values": printed(test, values, form), "of": len(values), "hold": outcomes.count("holds"),
            "fail": outcomes.count("fails"), "note": note() if callable(note) else note}


def measure(id, f, form="{:.2f}", note=""):
    claim = next(c for c in CLAIMS if c["id"] == id)
    if m := found(claim["part"], claim["test"], f, form, note):
        (real if claim["part"].startswith("real-") else judged)[id] = m


def measure_real(id, f, form="{:.2f}", note=""):
    """The same claim with models that read: claims.json says under `real` in which part, and by which test if another; it
    has no `real` where they measure nothing that the bundled models do not."""
    claim = next(c for c in CLAIMS if c["id"] == id)
    if "real" not in claim:
        return
    if m := found(claim["real"]["part"], claim["real"].get("test", claim["test"]), f, form, note):
        real[id] = m
