# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/bits/steps.cpp from Python: the same bits as C++, on every instruction set."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import flat
import specagg

batch, gamma = 200, 3
expected = (pathlib.Path(__file__).resolve().parents[2] / "tests/bits/steps.expected.txt").read_text().splitlines()
steps = {
    "lossless, token": (500, "lossless", "token"),
    "token-v3, block": (50, "token_v3:alpha=0.3", "block"),
    "opt, match": (50, "opt:alpha=0.1", "match"),
    "ensemble, coupled": (50, "ensemble:lambda=0.4", "coupled"),
}


def philox(first, second, key):
    """Four words for each number of `first`: Philox4x32-10 (Salmon et al. 2011) of (first, second, 0, 0)."""
    low = np.uint64(0xFFFFFFFF)
    x = [first.astype(np.uint64), np.full(first.shape, second, np.uint64), *np.zeros((2, *first.shape), np.uint64)]
    k = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [b >> np.uint64(32) ^ x[1] ^ k[0], b & low, a >> np.uint64(32) ^ x[3] ^ k[1], a & low]
        k = [k[0] + np.uint64(0x9E3779B9) & low, k[1] + np.uint64(0xBB67AE85) & low]
    return np.stack(x, axis=-1)


def logits(round, which, shape):
    n = int(np.prod(shape))
    r = philox(np.arange(0, n, 4), round, which).reshape(-1)[:n]
    return ((r % 2048 + (r >> np.uint64(21))).astype(np.float64) / 256).astype(np.float32).reshape(shape)


def line(name):
    rounds, policy, verifier = steps[name]
    i = np.arange(batch)
    sampling = specagg.Sampling(0.25 * (1 + i % 8), i % 3 * 10)
    words, accepted = [], 0
    for round in range(rounds):
        shape = (batch, gamma + 1, 1 + round * 37 % 90)
        q, p = logits(round, 1, shape), logits(round, 2, shape)
        ids = {"seed": 7, "requests": round * batch + i, "positions": 0}
        drafts = np.stack([flat.draw(q[:, j], step=j, coupled=verifier == "coupled", sampling=sampling, **ids)
                           for j in range(gamma)], axis=1)
        r = flat.verify(drafts, q, p, policy, verifier, lengths=i % (gamma + 1), sampling=sampling, **ids)
        accepted += int(r.accepted.sum())
        log_pi, tokens, origins = r.log_pi.view(np.uint64), r.tokens, r.origins
        for k in range(batch):
            words += [r.accepted[k], r.emitted[k], r.statuses[k]]
            for j in range(r.emitted[k]):
                words += [tokens[k, j], origins[k, j], log_pi[k, j]]
    h = 0xCBF29CE484222325
    for byte in np.array(words, np.uint64).astype("<u8").tobytes():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{name}: {batch * rounds} steps, {accepted} accepted, {h:016x}"


@pytest.mark.parametrize("isa", ["", "avx512", "avx2", "sse2"])  # "": the one that is chosen at import
def test_the_same_bits_as_in_cpp(isa):
    names = list(steps)[1:] if isa else list(steps)  # 100,000 steps once
    run = subprocess.run([sys.executable, __file__, *names], env={**os.environ, "SPECAGG_ISA": isa}, text=True,
                         capture_output=True)
    if run.returncode == 2 and any(why in run.stderr for why in ("cannot run", "no such version")):
        pytest.skip(run.stderr)
    assert run.stdout.splitlines() == [isa or specagg.isa(), *(one for one in expected if one.split(":")[0] in names)], run.stderr


if __name__ == "__main__":
    print(specagg.isa())
    for name in sys.argv[1:]:
        print(line(name))
