#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Smaller drafts from a model file itself: with weights rounded to fewer bits, or with layers left out.

usage: pairs.py MODEL.gguf FOLDER                 writes FOLDER/NAME.gguf for each line of ROUNDED that is not there
       pairs.py MODEL.gguf FOLDER --layers        the same, but tensors that belong to no layer stay as they are (Gemma's table
                                                  of 262,144 embeddings)
       pairs.py MODEL.gguf FOLDER --without A,B   writes FOLDER/layers-N.gguf, the model without its layers A and B (from 0 on)

Rounding. A row is cut into blocks of 32 weights, each with a scale d and a minimum m in F16, as GGUF's Q4_1 has them; a
weight is d k + m, k of n bits. d and m are those of least squares after a search over ranges. A block of n bits would take
4 + 4 n bytes. (GGUF's K types have 2 and 3 bits, too, in blocks of 256, which do not divide SmolLM2's rows of 576.) The
files here keep k in the four bits of Q4_1, which specagg and llama.cpp read, so the file's length is not the type's size.

Prints a line for each file that stands in FOLDER: name, bytes that the real types would take, bytes of MODEL's tensors.
Needs numpy. Exit status 2, with one line on standard error: a file is not what this reads.
"""
import pathlib, struct, sys

import numpy as np

F32, F16, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K = 0, 1, 3, 6, 8, 12, 14  # GGUF's numbers of types
# weights of a block, its bytes
BYTES = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q5_0: (32, 22), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY, U32 = 8, 9, 4


def of_layers(bits_of):
    return lambda name: bits_of(name) if name.startswith("blk.") else None


def ffn(name):
    return ".ffn_" in name


# name of a file: the bits of a tensor by its name (None: as it is)
ROUNDED = {
    "bits-4": lambda name: 4,
    "bits-4-3": lambda name: 3 if ffn(name) else 4,
    "bits-3": lambda name: 3,
    "bits-2": lambda name: 2,
}


class Reader:
    """The metadata stay bytes, but for the count of layers; a tensor is its name, shape, type and bytes."""
    def __init__(self, path):
        self.bytes, self.at = pathlib.Path(path).read_bytes(), 4
        if self.bytes[:4] != b"GGUF" or self.number("I") != 3:
            raise ValueError("is not a GGUF file of version 3")
        tensors, values = self.number("Q"), self.number("Q")
        self.values, self.tensors, self.alignment = [], [], 32
        for _ in range(values):
            begin, key = self.at, self.string()
            self.skip(self.number("I"))
            self.values.append((key, self.bytes[begin:self.at]))
            if key == b"general.alignment":
                self.alignment = int.from_bytes(self.bytes[self.at - 4:self.at], "little")
        for _ in range(tensors):
            name = self.string().decode()
            shape = [self.number("Q") for _ in range(self.number("I"))]
            self.tensors.append([name, shape, self.number("I"), self.number("Q")])
        start = -(-self.at // self.alignment) * self.alignment
        for one in self.tensors:
            name, shape, kind, offset = one
            if kind not in BYTES or shape[0] % BYTES[kind][0]:
                raise ValueError(f"has {name} of type {kind}, which this does not read")
            size = int(np.prod(shape)) // BYTES[kind][0] * BYTES[kind][1]
            one[3] = self.bytes[start + offset:start + offset + size]

    def number(self, form):
        value, = struct.unpack_from("<" + form, self.bytes, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        size = self.number("Q")
        self.at += size
        return self.bytes[self.at - size:self.at]

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip(of)
        else:
            self.number(FORMATS[kind])


def string(text):
    return struct.pack("<Q", len(text)) + text


def write(path, model, values, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    offset, body = 0, []
    for name, shape, kind, data in tensors:
        head += string(name.encode()) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        body.append(data + bytes(-len(data) % model.alignment))
        offset += len(body[-1])
    partial = path.with_suffix(".partial")
    partial.write_bytes(head + bytes(-len(head) % model.alignment) + b"".join(body))
    partial.replace(path)


def halves(data):
    return data.view(np.float16).astype(np.float32)


def weights(kind, data):
    """A tensor as rows of 32 floats."""
    if kind == F16:
        return halves(np.frombuffer(data, np.uint8)).reshape(-1, 32)
    of = np.frombuffer(data, np.uint8).reshape(-1, BYTES[kind][1])
    if kind == Q8_0:
        return halves(of[:, :2].copy()) * of[:, 2:].view(np.int8)
    if kind == Q5_0:
        fifth = np.unpackbits(of[:, 2:6], axis=1, bitorder="little")
        return halves(of[:, :2].copy()) * ((np.concatenate([of[:, 6:] & 15, of[:, 6:] >> 4], axis=1) | fifth << 4).astype(np.float32) - 16)
    if kind == Q4_K:
        d, m = halves(of[:, :2].copy()), halves(of[:, 2:4].copy())
        scale, k = of[:, 4:16], of[:, 16:].reshape(-1, 4, 32)
        of_d = np.concatenate([scale[:, :4] & 63, scale[:, 8:] & 15 | scale[:, :4] >> 6 << 4], axis=1)
        of_m = np.concatenate([scale[:, 4:8] & 63, scale[:, 8:] >> 4 | scale[:, 4:8] >> 6 << 4], axis=1)
        k = np.stack([k & 15, k >> 4], axis=2).reshape(-1, 8, 32)
        return ((d * of_d)[:, :, None] * k - (m * of_m)[:, :, None]).reshape(-1, 32)
    if kind == Q6_K:
        low, high = of[:, :128].reshape(-1, 2, 1, 2, 32), of[:, 128:192].reshape(-1, 2, 1, 32)
        low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
        high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
        k = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
        scale = halves(of[:, 208:].copy()) * of[:, 192:208].view(np.int8)
        return (scale[:, :, None] * k).reshape(-1, 32)
    k = np.concatenate([of[:, 4:] & 15, of[:, 4:] >> 4], axis=1)
    return halves(of[:, :2].copy()) * k + halves(of[:, 2:4].copy())


def rounded(x, bits):
    """The blocks of Q4_1 that are nearest to x, of k below 2^bits; some at a time, which stay in a core's cache."""
    return b"".join(rounded_blocks(x[i:i + 2048], bits) for i in range(0, len(x), 2048))


def rounded_blocks(x, bits):
    top, low, high = 2**bits - 1, x.min(1, keepdims=True), x.max(1, keepdims=True)
    middle, best, error = (low + high) / 2, None, None
    for part in (1.0, 0.85, 0.7):  # of the range: what is beyond gets its ends
        d = np.maximum((high - low) * part / top, 1e-12)
        k = np.clip(np.rint((x - (middle - d * top / 2)) / d), 0, top)
        mean_k, mean_x = k.mean(1, keepdims=True), x.mean(1, keepdims=True)
        spread = ((k - mean_k) ** 2).sum(1, keepdims=True)
        d = ((k - mean_k) * (x - mean_x)).sum(1, keepdims=True) / np.maximum(spread, 1e-12)
        d = d.astype(np.float16).astype(np.float32)
        m = (mean_x - d * mean_k).astype(np.float16).astype(np.float32)
        missed = ((d * k + m - x) ** 2).sum(1, keepdims=True)
        if best is None:
            best, error = [d, m, k], missed
        else:
            best = [np.where(missed < error, new, old) for new, old in zip((d, m, k), best)]
            error = np.minimum(missed, error)
    d, m, k = best
    k = k.astype(np.uint8)
    ends = np.concatenate([d, m], axis=1).astype(np.float16).view(np.uint8)
    return np.concatenate([ends, k[:, :16] | k[:, 16:] << 4], axis=1).tobytes()


def round_all(model, path, bits_of, known=None):
    """Writes the file; the norms are floats and stay. known: tensors that other files have, too, by name and bits."""
    out, known = [], {} if known is None else known
    for name, shape, kind, data in model.tensors:
        bits = None if kind == F32 else bits_of(name)
        if bits is not None and (name, bits) not in known:
            known[name, bits] = rounded(weights(kind, data), bits)
        out.append([name, shape, kind, data] if bits is None else [name, shape, Q4_1, known[name, bits]])
    write(path, model, [value for _, value in model.values], out)


def real_size(model, bits_of):
    """Bytes of the tensors in types of so many bits."""
    size = 0
    for name, shape, kind, data in model.tensors:
        bits = None if kind == F32 else bits_of(name)
        size += len(data) if bits is None else int(np.prod(shape)) // 32 * (4 + 4 * bits)
    return size


def leave_out(model, path, gone):
    """Writes the file, if there is a path; its size."""
    layers = len({name.split(".")[1] for name, *_ in model.tensors if name.startswith("blk.")})
    kept = [i for i in range(layers) if i not in gone]
    out = []
    for name, *rest in model.tensors:
        if name.startswith("blk."):
            _, i, of = name.split(".", 2)
            if int(i) in gone:
                continue
            name = f"blk.{kept.index(int(i))}.{of}"
        out.append([name, *rest])
    values = [string(key) + struct.pack("<II", U32, len(kept)) if key.endswith(b".block_count") else value
              for key, value in model.values]
    if path:
        write(path, model, values, out)
    return sum(len(data) for *_, data in out)


def main(arguments):
    if len(arguments) not in (2, 3, 4) or arguments[2:3] != [[], ["--layers"], ["--without"]][len(arguments) - 2]:
        sys.exit(print(__doc__.strip()) or (0 if arguments == ["--help"] else 2))
    try:
        model = Reader(arguments[0])
    except (OSError, ValueError, struct.error) as why:
        sys.exit(print(f"pairs.py: {arguments[0]} {why}", file=sys.stderr) or 2)
    folder, whole = pathlib.Path(arguments[1]), sum(len(data) for *_, data in model.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    if len(arguments) == 4:
        gone = {int(i) for i in arguments[3].split(",")}
        layers = len({name.split(".")[1] for name, *_ in model.tensors if name.startswith("blk.")})
        path = folder / f"layers-{layers - len(gone)}.gguf"
        print(path.stem, leave_out(model, path, gone), whole)
        return
    known = {}
    for name, bits_of in ROUNDED.items():
        bits_of = of_layers(bits_of) if len(arguments) == 3 else bits_of
        path = folder / f"{name}.gguf"
        if not path.exists() or path.stat().st_mtime < pathlib.Path(__file__).stat().st_mtime:
            round_all(model, path, bits_of, known)
        print(path.stem, real_size(model, bits_of), whole)


if __name__ == "__main__":
    main(sys.argv[1:])
