# SPDX-License-Identifier: Apache-2.0
"""Time of one verification step from Python, beside its rivals in the same process; as a table, or JSON.

usage: python benchmarks/verify.py [--vocabulary 128256] [--gamma 4] [--batches 1,8,32] [--seconds 2] [--json]

Rivals, where torch is installed: transformers' `_speculative_sampling` (imported; one request at a time, as it takes
no more), and the steps of vLLM's rejection sampler in torch (softmax, accept, residual, multinomial), written out
below. Each is given logits of float32; medians of repeated calls, one after the other in turn. `overhead` is the same call with a
vocabulary of 16: what Python costs."""

import argparse
import json
import statistics
import time

import numpy as np

import specagg


def steps_of_vllm(torch, drafts, q, p):
    """Rejection sampling as vLLM's torch path does it, batched: [B, gamma], [B, gamma, V], [B, gamma + 1, V]."""
    q, p = torch.softmax(q, -1), torch.softmax(p, -1)
    index = drafts.long().unsqueeze(-1)
    q_of, p_of = q.gather(-1, index).squeeze(-1), p[:, :-1].gather(-1, index).squeeze(-1)
    kept = (torch.rand_like(q_of) * q_of < p_of).long().cumprod(-1)
    accepted = kept.sum(-1)
    residual = torch.clamp(p[:, :-1] - q, min=torch.finfo(p.dtype).tiny)
    residual = residual / residual.sum(-1, keepdim=True)
    replaced = torch.multinomial(residual.flatten(0, 1), 1).view(drafts.shape)
    bonus = torch.multinomial(p[:, -1], 1)
    tokens = torch.where(kept.bool(), drafts.long(), replaced)
    return torch.cat([tokens, bonus], -1), accepted


def medians(calls, seconds):
    """The median time of each call in microseconds; the calls take turns."""
    times = {name: [] for name in calls}
    for name, call in calls.items():
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: statistics.median(all) for name, all in times.items()}


def main():
    o = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    o.add_argument("--vocabulary", type=int, default=128256)
    o.add_argument("--gamma", type=int, default=4)
    o.add_argument("--batches", default="1,8,32")
    o.add_argument("--seconds", type=float, default=2, help="for each call")
    o.add_argument("--json", action="store_true")
    o = o.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    try:
        from transformers.generation.utils import _speculative_sampling
    except ImportError:
        _speculative_sampling = None
    rng = np.random.default_rng(0)
    rows = []
    for B in map(int, o.batches.split(",")):
        p = rng.normal(0, 3, (B, o.gamma + 1, o.vocabulary)).astype(np.float32)
        q = (p[:, :-1] + rng.normal(0, 0.5, (B, o.gamma, o.vocabulary))).astype(np.float32)
        drafts = np.stack([specagg.draw(q[:, j], step=j) for j in range(o.gamma)], axis=1)
        small = [np.ascontiguousarray(x[..., :16]) for x in (q, p)]
        few = np.minimum(drafts, 15)
        calls = {"specagg": lambda: specagg.verify(drafts, q, p, streams=specagg.Streams(1, positions=0)),
                 "with acceptances": lambda: specagg.verify(drafts, q, p, streams=specagg.Streams(1, positions=0), acceptances=True),
                 "overhead": lambda: specagg.verify(few, *small, streams=specagg.Streams(1, positions=0)),
                 "numpy reads the rows": lambda: (q.max(-1), p.max(-1))}
        if torch:
            tq, tp, td = torch.from_numpy(q), torch.from_numpy(p), torch.from_numpy(drafts)
            calls["vLLM's steps in torch"] = lambda: steps_of_vllm(torch, td, tq, tp)
        if _speculative_sampling:
            ids = [torch.cat([torch.zeros(1, 1, dtype=torch.long), td[i : i + 1].long()], 1) for i in range(B)]
            calls["transformers"] = lambda: [
                _speculative_sampling(ids[i], tq[i : i + 1], o.gamma, tp[i : i + 1], False) for i in range(B)]
        found = medians(calls, o.seconds)
        rows.append({"batch": B, "isa": specagg.isa(), **{name: round(t, 1) for name, t in found.items()}})
    if o.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"microseconds a call, medians; {o.vocabulary} tokens, gamma {o.gamma}, {specagg.isa()}; in brackets: times specagg's")
    for row in rows:
        print(f"batch {row['batch']}: " + ", ".join(
            f"{name} {row[name]:.0f} ({row[name] / row['specagg']:.1f})" for name in row if name not in ("batch", "isa")))


if __name__ == "__main__":
    main()
