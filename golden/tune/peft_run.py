#!/usr/bin/env python3
"""Runs a LoRA fine-tune with PyTorch and PEFT, in F32 on the dequantised weights of a llama GGUF.

usage: peft_run.py --model GGUF --plan PLAN.json --a-init A.safetensors --out RESULT.json [--threads 2]

The plan says everything: token ids, labels, the order of the examples and the learning rate of each step. See
../README.md for its keys. Every lora_A comes from A.safetensors (names as PEFT saves them), every lora_B is zero.
Needs torch, transformers, peft, gguf, safetensors.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import sys
import time
from importlib.metadata import version

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin are several times slower when the processors are busy
import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from gguf.quants import dequantize  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

TARGETS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj",
           "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PACKAGES = ["torch", "transformers", "peft", "gguf", "safetensors", "numpy"]


def hf_name(name):
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[2] not in LAYER or parts[3] != "weight":
        sys.exit(f"the model has a tensor that a plain llama has not: {name}")
    return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"


def unpermute(w, n_head):
    """GGUF keeps the rows of q and k as interleaved RoPE pairs, transformers as two halves."""
    half = w.shape[0] // n_head // 2
    return w.reshape(n_head, half, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def read_config(reader, tensors):
    def get(key, default=None):
        field = reader.fields.get("llama." + key)
        if field is None and default is None:
            sys.exit(f"the model has no llama.{key}")
        return default if field is None else field.contents()

    width, n_head = get("embedding_length"), get("attention.head_count")
    return LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[1].item(), hidden_size=width,
        intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=n_head, num_key_value_heads=get("attention.head_count_kv", n_head),
        head_dim=get("attention.key_length", width // n_head), max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), attention_bias=False, mlp_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in tensors, use_cache=False, attn_implementation="eager")


def load_gguf(path):
    """The model of a llama GGUF, F32. A tensor that is not known here (scaled RoPE, biases) is an error."""
    reader = GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}
    config = read_config(reader, tensors)
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    weights = {}
    for name, t in tensors.items():
        w = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        n_head = heads.get(name.split(".", 2)[-1])
        weights[hf_name(name)] = torch.from_numpy(np.array(unpermute(w, n_head) if n_head else w))
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    model = LlamaForCausalLM(config)
    model.load_state_dict(weights)
    return model.float().eval()


def add_lora(model, plan, a_init):
    """Wraps the model: every lora_A from the file, every lora_B zero. The names of both have to be the same."""
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=plan["rank"], lora_alpha=plan["alpha"], lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules=[TARGETS[t] for t in plan["targets"]]))
    given = load_file(a_init)
    ours = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
    odd = given.keys() ^ {n for n in ours if "lora_A" in n}
    if odd:
        sys.exit(f"{a_init}: names that only the file or only the model has: {sorted(odd)[:4]}")
    with torch.no_grad():
        for name, p in ours.items():
            if "lora_A" in name and given[name].shape != p.shape:
                sys.exit(f"{a_init}: {name}: expected {tuple(p.shape)}, got {tuple(given[name].shape)}")
            p.copy_(given[name]) if "lora_A" in name else p.zero_()
    return model


def n_trained(example):
    return sum(label != -100 for label in example["labels"][1:])


def loss_sum(model, example):
    """The cross entropy of all trained tokens of one sequence, added up."""
    logits = model(input_ids=torch.tensor([example["input_ids"]])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(example["labels"][1:]), reduction="sum")


def evaluate(model, examples):
    with torch.no_grad():
        total = math.fsum(float(loss_sum(model, e)) for e in examples)
    return total / sum(map(n_trained, examples))


def step(model, optimizer, examples, lr, clip):
    """One optimizer step, a sequence at a time. Returns the loss before it and the norm before clipping."""
    tokens = sum(map(n_trained, examples))
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for e in examples:
        loss = loss_sum(model, e) / tokens
        loss.backward()
        total += float(loss.detach())
    params = optimizer.param_groups[0]["params"]
    norm = torch.nn.utils.clip_grad_norm_(params, clip or math.inf, foreach=False, error_if_nonfinite=True)
    optimizer.param_groups[0]["lr"] = lr
    optimizer.step()
    return {"loss": total, "grad_norm": float(norm), "lr": lr, "tokens": tokens}


def train(model, plan):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=0.0, betas=tuple(plan["betas"]), eps=plan["eps"],
                                  weight_decay=plan["weight_decay"], foreach=False, fused=False)
    out = []
    for lr, indices in zip(plan["lr"], plan["steps"], strict=True):
        start = time.perf_counter()
        done = step(model, optimizer, [plan["train"][i] for i in indices], lr, plan["clip"])
        out.append(done | {"seconds": round(time.perf_counter() - start, 3)})
        print(f"step {len(out)} of {len(plan['steps'])}: loss {done['loss']:.5f} "
              f"norm {done['grad_norm']:.5f} lr {lr:.3e}", file=sys.stderr, flush=True)
    return out


def canonical_sha256(value):
    """Of the JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def run(a, plan):
    start = time.perf_counter()
    model = add_lora(load_gguf(a.model), plan, a.a_init)
    before = evaluate(model, plan["eval"])
    started = time.perf_counter()
    steps = train(model, plan)
    stopped = time.perf_counter()
    after = evaluate(model, plan["eval"])
    return {
        "eval_loss_before": before, "eval_loss_after": after, "eval_tokens": sum(map(n_trained, plan["eval"])),
        "steps": steps, "sha256": {key: canonical_sha256(plan[key]) for key in ("train", "eval", "steps")},
        "seconds": {"train": round(stopped - started, 3), "total": round(time.perf_counter() - start, 3)},
        "threads": a.threads, "versions": {"python": platform.python_version()} | {n: version(n) for n in PACKAGES}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--plan", required=True)
    p.add_argument("--a-init", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.use_deterministic_algorithms(True)
    with open(a.plan, encoding="utf-8") as f:
        plan = json.load(f)
    result = run(a, plan)
    with open(a.out, "w", encoding="utf-8", newline="\n") as f:
        f.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
