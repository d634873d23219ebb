#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/experiments/frontier/pairs.py: a draft is the model but for what was rounded or left out. A rounded weight is
nearer than half a step of even steps, blocks have no more values than their bits allow, layers keep their order, and
blocks of other types are read as they lie."""
import os, pathlib, sys, tempfile

try:
    import numpy as np
except ImportError:  # Debian's numpy belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    sys.exit(print("skipped: there is no numpy"))

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[1:1] = [str(ROOT / "research/experiments/frontier")]
sys.dont_write_bytecode = True
import pairs

source = ROOT / "models/target.gguf"
model = pairs.Reader(source)
named = lambda of: {name: (shape, kind, bytes(data)) for name, shape, kind, data in of.tensors}
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "draft.gguf"
    size = pairs.leave_out(model, path, set())
    assert named(pairs.Reader(path)) == named(model) and pairs.Reader(path).values == model.values, "a copy is another model"
    layers = len({name.split(".")[1] for name in named(model) if name.startswith("blk.")})
    assert layers >= 3 and size == sum(len(data) for *_, data in model.tensors)

    assert pairs.leave_out(model, path, {1}) < size
    fewer, whole = named(pairs.Reader(path)), named(model)
    for name in whole:
        _, i, of = name.split(".", 2) if name.startswith("blk.") else ("", "", "")
        if i == "1":
            continue
        due = f"blk.{int(i) - (int(i) > 1)}.{of}" if i else name
        assert fewer.pop(due) == whole[name], f"{name} is not {due}"
    assert not fewer, f"{list(fewer)} should have been left out"
    count = [value for key, value in pairs.Reader(path).values if key.endswith(b".block_count")]
    assert len(count) == 1 and int.from_bytes(count[0][-4:], "little") == layers - 1, "block_count is not one less"

    last = np.inf
    for bits in (2, 3, 4):
        pairs.round_all(model, path, lambda name: bits if ".ffn_" in name else None)
        after, missed, x_all = pairs.Reader(path), 0.0, 0.0
        for (name, shape, kind, data), (*_, new_kind, new) in zip(model.tensors, after.tensors):
            if kind == pairs.F32 or ".ffn_" not in name:
                assert (kind, data) == (new_kind, new), f"{name} has changed"
                continue
            x, y = pairs.weights(kind, data), pairs.weights(new_kind, new)
            assert max(len(set(block)) for block in y.tolist()) == 2**bits, f"{name}: not {bits} bits"
            step = (x.max(1) - x.min(1)) / (2**bits - 1)
            even = np.clip(np.rint((x - x.min(1, keepdims=True)) / step[:, None]), 0, 2**bits - 1) * step[:, None] + x.min(1, keepdims=True)
            missed += ((y - x) ** 2).sum()
            x_all += ((even - x) ** 2).sum()
        assert missed < x_all and missed < last / 2, f"{bits} bits: {missed}, even steps {x_all}, one bit less {last}"
        last = missed
    one = sum(len(data) for name, _, _, data in model.tensors if ".ffn_" not in name)
    of_ffn = sum(int(np.prod(shape)) for name, shape, *_ in model.tensors if ".ffn_" in name and "norm" not in name)
    norms = sum(len(data) for name, _, _, data in model.tensors if ".ffn_norm" in name)
    assert pairs.real_size(model, lambda name: 3 if ".ffn_" in name else None) == one + norms + of_ffn // 2, "3 bits and two F16 of 32: 4 bits"


# Types that SmolLM2's file does not have: each weight by itself, as ggml-quants.c says where it lies.
def q5_0(b):
    d, high = half(b, 0), int.from_bytes(b[2:6], "little")
    return [d * ((b[6 + i % 16] >> 4 * (i // 16) & 15 | (high >> i & 1) << 4) - 16) for i in range(32)]


def q4_k(b):
    d, m, s, out = half(b, 0), half(b, 2), b[4:16], []
    for i in range(256):
        j, k = i // 32, b[16 + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15
        scale, least = (s[j] & 63, s[j + 4] & 63) if j < 4 else (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
        out.append(d * scale * k - m * least)
    return out


def q6_k(b):
    out = []
    for i in range(256):
        half_of, part, l = i // 128, i % 128 // 32, i % 32
        low = b[half_of * 64 + part % 2 * 32 + l] >> 4 * (part // 2) & 15
        k = (low | (b[128 + half_of * 32 + l] >> 2 * part & 3) << 4) - 32
        scale = b[192 + i // 16]
        out.append(half(b, 208) * (scale - 256 * (scale > 127)) * k)
    return out


half = lambda b, at: float(np.frombuffer(bytes(b[at:at + 2]), np.float16)[0])
chance = np.random.default_rng(1)
for kind, scalar, halves in ((pairs.Q5_0, q5_0, (0,)), (pairs.Q4_K, q4_k, (0, 2)), (pairs.Q6_K, q6_k, (208,))):
    blocks = chance.integers(0, 256, (40, pairs.BYTES[kind][1]), np.uint8)
    for at in halves:
        blocks[:, at:at + 2] = chance.uniform(1e-3, 1e-2, (40, 1)).astype(np.float16).view(np.uint8)
    due = np.array([scalar(block.tolist()) for block in blocks])
    found = pairs.weights(kind, blocks.tobytes()).reshape(due.shape)
    assert np.abs(found - due).max() <= 1e-6 * np.abs(due).max(), f"type {kind} is read otherwise"
kept = pairs.of_layers(pairs.ROUNDED["bits-3"])
assert kept("token_embd.weight") is None and kept("blk.0.attn_q.weight") == 3, "--layers rounds what is in layers"
print("a copy, a layer less, 2, 3 and 4 bits")
