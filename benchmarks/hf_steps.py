# SPDX-License-Identifier: Apache-2.0
"""The verification step of Hugging Face transformers (assisted decoding with sampling), in torch.

Our own statement of the published steps: softmax of the draft's and the target's rows, the ratios of all positions,
uniforms, the number of matches, clamp(p - q, 0) of that position, normalised, multinomial.
"""
import torch


def matches(q_logits, p_logits, drafted, q=None):
    """Probabilities of draft and target, and the number of accepted tokens of each request.

    q_logits [B, gamma, V], p_logits [B, gamma + 1, V], drafted [B, gamma]; q: the draft's probabilities, if at hand.
    """
    q = torch.softmax(q_logits, -1, dtype=torch.float32) if q is None else q
    p = torch.softmax(p_logits, -1, dtype=torch.float32)
    index = drafted.unsqueeze(-1)
    ratio = p[:, :drafted.shape[-1]].gather(-1, index) / q.gather(-1, index)
    accepted = torch.rand_like(ratio) <= ratio
    return q, p, ((~accepted.squeeze(-1)).cumsum(-1) < 1).sum(-1)


def step(q_logits, p_logits, drafted, q=None):
    """One request, as published: the number of accepted tokens, and the token after them."""
    q, p, n = matches(q_logits, p_logits, drafted, q)
    n = int(n)
    last = p[:, n]
    if n < drafted.shape[-1]:
        last = torch.clamp(last - q[:, n], min=0)
        last = last / last.sum()
    return n, torch.multinomial(last, 1)


def batched(q_logits, p_logits, drafted, q=None):
    """The same for a batch, without a word between device and host: n [B], tokens [B]."""
    q, p, n = matches(q_logits, p_logits, drafted, q)
    gamma = drafted.shape[-1]
    request = torch.arange(len(n), device=n.device)
    last = p[request, n]
    left = torch.clamp(last - q[request, n.clamp(max=gamma - 1)], min=0)
    last = torch.where((n < gamma).unsqueeze(-1), left / left.sum(-1, keepdim=True), last)
    return n, torch.multinomial(last, 1).squeeze(-1)
