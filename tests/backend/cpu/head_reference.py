#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes target_head.reference.json: rows of the trained head, computed with numpy in double from the two GGUF files.

It shares no code with the library or with tools/train-head. Needs numpy. Quantised matrices are multiplied with
activations rounded to 8 bits in blocks of 32, as the CPU backend documents it (16 bits where one number of a block is
more than 12 times the block's mean). Keys and values are rounded to f16.
"""
import json, pathlib, struct
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TARGET, HEAD = HERE.parents[2] / "models/target.gguf", HERE / "target_head.gguf"


def read(path):
    raw, at = path.read_bytes(), 4

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def string():
        nonlocal at
        size = take("Q")
        at += size
        return raw[at - size:at].decode(errors="replace")

    def value(kind):
        if kind == 8: return string()
        if kind == 9:
            kind, count = take("IQ")
            return [value(kind) for _ in range(count)]
        return take({0: "B", 1: "b", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    _, tensor_count, value_count = take("IQQ")
    values = {string(): value(take("I")) for _ in range(value_count)}
    infos = []
    for _ in range(tensor_count):
        name, rank = string(), take("I")
        shape = [take("Q") for _ in range(rank)]
        infos.append((name, shape, *take("IQ")))
    start, tensors = -(-at // 32) * 32, {}
    for name, shape, kind, offset in infos:
        count, here = int(np.prod(shape)), start + offset
        if kind == 8:
            blocks = np.frombuffer(raw, np.uint8, count // 32 * 34, here).reshape(-1, 34)
            x = blocks[:, :2].copy().view(np.float16).astype(float) * blocks[:, 2:].view(np.int8)
        else:
            x = np.frombuffer(raw, {0: np.float32, 1: np.float16}[kind], count, here).astype(float)
        tensors[name] = (x.reshape(shape[::-1]), kind == 8)
    return values, tensors


def rounded(x):
    x = x.reshape(-1, 32)
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1)
    first = np.rint(x / scale) * scale
    rest = x - first
    step = np.where(np.abs(rest).max(1, keepdims=True) > 0, np.abs(rest).max(1, keepdims=True) / 127, 1)
    second = np.rint(rest / step) * step
    return np.where(largest > 12 / 32 * np.abs(x).sum(1, keepdims=True), first + second, first).reshape(-1)


class Model:
    def __init__(self, path, name):
        self.values, self.tensors = read(path)
        get = lambda key, otherwise=None: self.values.get(f"{name}.{key}", otherwise)
        self.layers, self.heads, dim = get("block_count"), get("attention.head_count"), get("embedding_length")
        self.kv, self.epsilon = get("attention.head_count_kv"), get("attention.layer_norm_rms_epsilon")
        self.width = get("attention.key_length", dim // self.heads)
        self.rotated, self.base = get("rope.dimension_count"), get("rope.freq_base")
        self.keys = [[] for _ in range(self.layers)]

    def times(self, name, x):
        m, quantised = self.tensors[name]
        return m @ (rounded(x) if quantised else x)

    def norm(self, name, x):
        return x / np.sqrt(np.mean(x * x) + self.epsilon) * self.tensors[name][0]

    def rotate(self, x, position):
        x = x.reshape(-1, self.width).copy()
        angle = position * self.base ** (-np.arange(0, self.rotated, 2) / self.rotated)
        a, b = x[:, 0:self.rotated:2].copy(), x[:, 1:self.rotated:2].copy()
        x[:, 0:self.rotated:2] = a * np.cos(angle) - b * np.sin(angle)
        x[:, 1:self.rotated:2] = a * np.sin(angle) + b * np.cos(angle)
        return x

    def hidden(self, x):
        """The hidden state of the next position, whose input of the first layer is x."""
        for i in range(self.layers):
            at, cache = f"blk.{i}.", self.keys[i]
            h, position = self.norm(at + "attn_norm.weight", x), len(cache)
            q = self.rotate(self.times(at + "attn_q.weight", h), position)
            key = self.rotate(self.times(at + "attn_k.weight", h), position)
            value = self.times(at + "attn_v.weight", h).reshape(-1, self.width)
            cache.append([x.astype(np.float16).astype(float) for x in (key, value)])
            y = []
            for head in range(self.heads):
                of = head * self.kv // self.heads
                score = np.array([k[of] @ q[head] for k, _ in cache]) / np.sqrt(self.width)
                weight = np.exp(score - score.max())
                y.append(sum(w * v[of] for w, (_, v) in zip(weight / weight.sum(), cache)))
            x = x + self.times(at + "attn_output.weight", np.concatenate(y))
            h = self.norm(at + "ffn_norm.weight", x)
            gate = self.times(at + "ffn_gate.weight", h)
            x = x + self.times(at + "ffn_down.weight", gate / (1 + np.exp(-gate)) * self.times(at + "ffn_up.weight", h))
        return self.norm("output_norm.weight", x)


def row(ids, known):
    """The head's row after ids, where the target has read the first `known` of them."""
    target, head = Model(TARGET, "llama"), Model(HEAD, "specagg-head")
    embedding = target.tensors["token_embd.weight"][0]
    states = [target.hidden(embedding[t]) for t in ids[:known]]
    for i, token in enumerate(ids[1:]):
        state = states[i] if i < known else own
        own = head.hidden(head.times("fc.weight", np.concatenate([state, embedding[token]])))
    return head.times("output.weight", own)


out = []
models = json.loads((TARGET.parent / "target.reference.json").read_text())
for text, after in ((0, 1), (0, 3), (1, 1), (1, 5)):
    ids = models[text % len(models)]["ids"][:24]
    logits = row(ids, len(ids) - after)
    tokens = np.argsort(-logits, kind="stable")[:8].tolist() + [0, 1, 2, 100, 200, 400]
    out.append({"ids": ids, "known": len(ids) - after, "best": tokens[0], "margin": 0.04, "tokens": tokens,
                "logits": [round(float(logits[t]), 6) for t in tokens]})
(HERE / "target_head.reference.json").write_text(json.dumps(out, indent=1) + "\n")
