#!/usr/bin/env python3
"""Writes raw quantised blocks and what the `gguf` package decodes them to. See ../README.md for the layout.

usage: make.py        (needs gguf 0.19 and numpy 2; writes beside itself)
"""

import hashlib
import json
import pathlib

import gguf
import numpy as np
from gguf import quants

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]
BLOCKS = {"F16": 2048, "BF16": 2048, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q4_K": 16, "Q6_K": 16, "Q5_0": 32, "Q5_1": 32,
          "Q5_K": 16, "Q2_K": 16, "Q3_K": 16, "IQ4_NL": 32, "IQ4_XS": 16}
# Byte offsets of the half-precision numbers in a block: scales and minima.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208], "Q5_0": [0],
          "Q5_1": [0, 2], "Q5_K": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0]}
# Scales that go wrong easily: both zeros, both ends of the subnormals, smallest normal, negative, one, large.
SCALES = np.array([0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x8001, 0x83FF, 0xBC00, 0x3C00, 0x7BFF], np.uint16)


def blocks(name, n, size, rng):
    """Random valid blocks: any quants, finite scales. The first ones hold the scales of SCALES and extreme quants."""
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES[name]:
        scale = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        scale[: len(SCALES)] = np.roll(SCALES, at)
        raw[:, at : at + 2] = scale.astype("<u2").view(np.uint8).reshape(n, 2)
    quants_at = [i for i in range(size) if all(i not in (at, at + 1) for at in HALVES[name])]
    for row, fill in ((len(SCALES), 0x00), (len(SCALES) + 1, 0xFF), (len(SCALES) + 2, 0x80), (len(SCALES) + 3, 0x7F)):
        raw[row, quants_at] = fill
    return raw


def halves(n, rng):
    """16-bit patterns of every class, of F16 and of BF16: zeros, subnormals, ends, infinities, NaNs, random."""
    edges = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x83FF, 0x8400, 0x007F, 0x0080, 0x807F, 0x8080, 0x3C00, 0xBC00,
             0x3F80, 0xBF80, 0x7BFF, 0xFBFF, 0x7F7F, 0xFF7F, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x7E00, 0xFE01, 0x7FC0, 0xFFC1]
    v = rng.integers(0, 1 << 16, n).astype("<u2")
    v[: len(edges)] = edges
    return v.view(np.uint8).reshape(n, 2)


def float_inputs(n, rng):
    """F32 values of every magnitude, ties of both 16-bit types, overflow, subnormals, infinities, quiet NaN."""
    v = (rng.standard_normal(n) * 2.0 ** rng.integers(-30, 20, n)).astype("<f4")
    ties = rng.integers(0x3000, 0x4000, 256, dtype=np.uint32)
    v[:256] = ((ties << 16) | 0x8000).view(np.float32)  # halfway between two BF16
    v[256:512] = (((ties & 0xFFF) << 13) + 0x3F801000).astype(np.uint32).view(np.float32)  # and two F16
    edges = [0.0, -0.0, 1.0, -1.0, 65504.0, 65519.99, 65520.0, -65520.0, 1e-8, 5.9604645e-8, 2.9802322e-8, 2.9802326e-8,
             6.1035156e-5, 6.0975552e-5, 3.4028235e38, -3.4028235e38, 1e-45, -1e-45, np.inf, -np.inf, np.nan]
    v[512 : 512 + len(edges)] = edges
    return v


def block_inputs(n, rng):
    """F32 values, 32 to a block: all zero, one spike, equal magnitudes, ties of rounding, wide and random scales."""
    v = rng.standard_normal((n, 32)) * 2.0 ** rng.integers(-12, 8, (n, 1))
    v[0] = 0.0
    v[1] = 0.0
    v[1, 7] = -3.5
    v[2] = np.where(np.arange(32) % 2, 1.0, -1.0)
    v[3] = np.arange(32) - 15.5
    v[3, 0] = 127.0  # scale 1: the others are ties
    v[4] *= 2.0 ** np.arange(-16, 16)
    v[5] = 1e-6 * np.arange(32)  # the scale is subnormal in F16
    return v.astype("<f4").reshape(-1)


def save(name, part, array):
    path = HERE / f"{name.lower()}.{part}.bin"
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def main():
    index = {"gguf": "0.19.0", "numpy": np.__version__, "types": []}
    for name in TYPES:
        rng = np.random.default_rng([20, TYPES.index(name)])
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        n = BLOCKS[name]
        raw = halves(n, rng) if elements == 1 else blocks(name, n, size, rng)
        with np.errstate(over="ignore", invalid="ignore"):
            source = raw.view("<f2") if name == "F16" else raw
            values = quants.dequantize(source, kind).astype("<f4")
            entry = {"name": name, "id": int(kind), "block_elements": elements, "block_bytes": size, "blocks": n,
                     "raw": save(name, "raw", raw), "values": save(name, "values", values)}
            assert elements == 1 or np.isfinite(values).all(), name
            if name in ("F16", "BF16", "Q8_0"):
                inputs = block_inputs(n, rng) if name == "Q8_0" else float_inputs(n, rng)
                entry["inputs"] = save(name, "inputs", inputs)
                entry["encoded"] = save(name, "encoded", quants.quantize(inputs, kind))
        index["types"].append(entry)
    (HERE / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    total = sum(f.stat().st_size for f in HERE.glob("*.bin"))
    assert total < 200_000, total
    print(total, "bytes")


main()
