#!/usr/bin/env python3
"""Trains the first values of a planish run again, in PyTorch in double precision, and writes expected.json.

usage: make.py INIT.gguf        (needs torch 2.15, gguf 0.19; INIT.gguf is that of a run of run.toml on data.jsonl:
                                 planish train data.jsonl --config run.toml --out RUN)

The model is the plain formula of ../llama/make.py; AdamW and clipping are PyTorch's, the schedule is a line below.
"""

import importlib.util
import json
import math
import pathlib
import sys

import gguf
import torch

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("llama", HERE.parent / "llama" / "make.py")
llama = importlib.util.module_from_spec(spec)
spec.loader.exec_module(llama)

STEPS, WARMUP, LR, DECAY = 50, 5, 0.01, 0.1
SHAPE = llama.COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 10000.0}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hugging_face(name, tensor):
    """The name there, and rows of q and k as halves instead of interleaved pairs."""
    parts = name.split(".")
    if parts[0] != "blk":
        return TOP[parts[0]] + "." + parts[1], tensor
    if parts[2] in ("attn_q", "attn_k"):
        heads = SHAPE["num_attention_heads" if parts[2] == "attn_q" else "num_key_value_heads"]
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        tensor = pairs.transpose(1, 2).reshape(tensor.shape)
    return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}", tensor


def rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - 1 - WARMUP)))


def main():
    torch.set_num_threads(1)
    read = {t.name: torch.from_numpy(t.data.copy()).double() for t in gguf.GGUFReader(sys.argv[1]).tensors}
    first = {n: [float(t.sum()), float((t * t).sum())] for n, t in read.items()}
    weights = dict(hugging_face(n, t) for n, t in read.items())
    weights = {n: t.clone().requires_grad_(True) for n, t in weights.items()}
    ids = torch.tensor([json.loads(line)["input_ids"] for line in (HERE / "data.jsonl").read_text().splitlines()])
    matrices, vectors = ([p for p in weights.values() if (p.dim() > 1) == two] for two in (True, False))
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss = llama.mean_loss(llama.logits_of(SHAPE, weights, ids), ids)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)))
        losses.append(float(loss.detach()))
        optimizer.step()
    final = {n: float(t.detach().norm()) for n, t in weights.items()}
    out = {"first": first, "losses": losses, "grad_norms": norms, "final_norms": final}
    (HERE / "expected.json").write_text(json.dumps(out, indent=1) + "\n")
    print("losses", losses[0], losses[-1], "norms", norms[0], norms[-1])


main()
