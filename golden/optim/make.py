"""Twenty steps of every optimizer on four small tensors with given gradients, in double precision.

References: torch.optim for SGD and AdamW, transformers for Adafactor; the papers' formulas where neither has the
optimizer as planish means it: Lion (Chen et al., 2023), Muon in double precision (Jordan, 2024; torch.optim.Muon rounds
to bfloat16, and is compared roughly), schedule-free AdamW (Defazio et al., 2024), and AdamW with moments of 8 bits
(Dettmers et al., 2022) in single precision, so that the same codes are chosen.

usage: python golden/optim/make.py
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from transformers.optimization import Adafactor

STEPS, DECAY = 20, 0.1
# Name, rows, columns, class.
TENSORS = [("matrix", 24, 40, "map"), ("tall", 12, 8, "map"), ("table", 6, 8, "table"), ("vector", 1, 40, "map")]


def noise(i, stream):
    """A number in [-1, 1) from 32 bits of a hash."""
    x = (i * 0x9E3779B1 + stream * 0x85EBCA77) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    x ^= x >> 16
    return x / 2**31 - 1.0


def start(k):
    _, rows, cols, _ = TENSORS[k]
    values = [0.5 * noise(i, k) for i in range(rows * cols)]
    return np.array(values, np.float32).reshape(rows, cols)


def gradient(k, t):
    """Of step t, counted from 1: noise around a direction that stays."""
    _, rows, cols, _ = TENSORS[k]
    values = [0.1 * (noise(i, 100 + 10 * t + k) + noise(i, 50 + k)) for i in range(rows * cols)]
    return np.array(values, np.float32).reshape(rows, cols)


def clip(t):
    return 0.5 if t % 2 else 1.0


def rate(lr, t):
    return lr * min(1.0, t / 5)


def follow(make):
    """A torch optimizer in double precision; one row becomes a vector."""

    def run(k, lr):
        p = torch.tensor(start(k).astype(np.float64))
        p = p.flatten() if p.shape[0] == 1 else p
        p = torch.nn.Parameter(p)
        optim, decay_here = make(p)
        for t in range(1, STEPS + 1):
            p.grad = torch.tensor(gradient(k, t).astype(np.float64)).reshape(p.shape) * clip(t)
            optim.param_groups[0]["lr"] = rate(lr, t)
            if decay_here:
                p.data.mul_(1 - rate(lr, t) * DECAY)
            optim.step()
        return p.detach().numpy()

    return run


def by_hand(state, step, dtype=np.float64):
    def run(k, lr):
        p = start(k).astype(dtype)
        s = state(p)
        for t in range(1, STEPS + 1):
            g = gradient(k, t).astype(dtype) * dtype(clip(t))
            p = step(p, g, s, rate(lr, t), t)
        return p

    return run


def lion(p, g, s, lr, t):
    b1, b2 = 0.9, 0.99
    p = p * (1 - lr * DECAY) - lr * np.sign(b1 * s["m"] + (1 - b1) * g)
    s["m"] = b2 * s["m"] + (1 - b2) * g
    return p


def newton_schulz(x):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x / max(np.linalg.norm(x), 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon_step(p, g, s, lr, t):
    mu = 0.95
    s["m"] = mu * s["m"] + g
    update = newton_schulz(g + mu * s["m"])
    return p * (1 - lr * DECAY) - lr * 0.2 * math.sqrt(max(p.shape)) * update


def muon(k, lr):
    _, rows, _, kind = TENSORS[k]
    if rows == 1 or kind == "table":
        return adamw(k, lr)
    ours = by_hand(lambda p: {"m": np.zeros_like(p)}, muon_step)(k, lr)
    theirs = follow(lambda p: (torch.optim.Muon([p], weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"), False))(k, lr)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - start(k))
    assert error < 0.02, f"torch.optim.Muon is {error} away"
    return ours


def schedule_free_step(x, g, s, lr, t):
    b1, b2, eps = 0.9, 0.999, 1e-8
    y = (1 - b1) * s["z"] + b1 * x
    s["v"] = b2 * s["v"] + (1 - b2) * g * g
    s["z"] = s["z"] - lr * (g / (np.sqrt(s["v"] / (1 - b2**t)) + eps) + DECAY * y)
    s["largest"] = max(s["largest"], lr)
    s["sum"] += s["largest"] ** 2
    c = s["largest"] ** 2 / s["sum"]
    return (1 - c) * x + c * s["z"]


def dynamic_map(first):
    values = [0.0, 1.0]
    for e in range(7):
        n = first << e
        for j in range(n):
            x = 10.0 ** (e - 6) * (0.1 + 0.9 * (j + 0.5) / n)
            values += [x, -x] if first == 1 else [x]
    return np.array(sorted(values), np.float64).astype(np.float32)


def rounded(values, table):
    """Values as codes of blocks of 256 and back."""
    borders = ((table[:-1].astype(np.float64) + table[1:]) / 2).astype(np.float32)
    flat = values.flatten()
    for i in range(0, len(flat), 256):
        scale = np.abs(flat[i : i + 256]).max()
        codes = np.searchsorted(borders, flat[i : i + 256] / scale, side="left")
        flat[i : i + 256] = table[codes] * scale
    return flat.reshape(values.shape)


def adamw8_step(p, g, s, lr, t):
    f = np.float32
    b1, b2 = 0.9, 0.999
    m = f(b1) * s["m"] + f(1 - b1) * g
    v = f(b2) * s["v"] + f(1 - b2) * g * g
    s["m"], s["v"] = rounded(m, dynamic_map(1)), rounded(v, dynamic_map(2))
    keep = f(1) - f(lr) * f(DECAY)
    return p * keep - f(lr) * (m / f(1 - b1**t)) / (np.sqrt(v / f(1 - b2**t)) + f(1e-8))


def adamw8(k, lr):
    if TENSORS[k][1] == 1:
        return adamw(k, lr)
    zeros = lambda p: {"m": np.zeros_like(p), "v": np.zeros_like(p)}
    return by_hand(zeros, adamw8_step, np.float32)(k, lr)


def adafactor_of(p):
    optim = Adafactor([p], lr=1.0, scale_parameter=False, relative_step=False, weight_decay=DECAY)
    return optim, False


adamw = follow(lambda p: (torch.optim.AdamW([p], weight_decay=DECAY), False))
moment = lambda p: {"m": np.zeros_like(p)}
free = lambda p: {"z": p.copy(), "v": np.zeros_like(p), "largest": 0.0, "sum": 0.0}

# Name, settings beside the usual ones, learning rate, reference.
CASES = [
    ("adamw", {}, 1e-2, adamw),
    ("adamw8", {}, 1e-2, adamw8),
    ("schedule-free", {}, 1e-2, by_hand(free, schedule_free_step)),
    ("sgd", {}, 0.1, follow(lambda p: (torch.optim.SGD([p], momentum=0.9), True))),
    ("sgd", {"nesterov": True}, 0.1, follow(lambda p: (torch.optim.SGD([p], momentum=0.9, nesterov=True), True))),
    ("lion", {}, 1e-2, by_hand(moment, lion)),
    ("adafactor", {}, 1e-2, follow(adafactor_of)),
    ("muon", {}, 1e-2, muon),
]


def main():
    cases = []
    for name, settings, lr, run in CASES:
        tensors = {t[0]: [float(f"{x:.9g}") for x in run(k, lr).flatten()] for k, t in enumerate(TENSORS)}
        cases.append({"optimizer": name, "settings": settings, "lr": lr, "tensors": tensors})
    out = Path(__file__).parent / "expected.json"
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    out.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
