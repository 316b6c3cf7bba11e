#!/usr/bin/env python3
"""Writes tiny random llamas and models shaped like them with logits, gradients and training curves. See ../README.md for the layout.

usage: make.py        (needs torch 2.15, transformers 5.24, peft 0.21; writes beside itself)

The expected numbers come from a llama in plain torch operations, so that F64 really is F64 throughout: transformers
computes norms, softmax and RoPE angles in F32 whatever the weights are. transformers and peft then have to agree
with it within F32, or nothing is written.
"""

import json
import math
import os
import pathlib
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import peft  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.nn.functional import cross_entropy, gelu, linear, log_softmax, silu  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 96,
          "hidden_size": 32, "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
          "attention_bias": False, "mlp_bias": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
# Old files write `rope_theta` and `torch_dtype`, transformers 5 writes `rope_parameters` and `dtype`: one case has the new form.
CASES = {
    "tied_gqa": COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 80,
                          "max_position_embeddings": 64, "tie_word_embeddings": True, "rope_theta": 10000.0,
                          "torch_dtype": "float32"},
    "untied_mha": COMMON | {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 80,
                            "max_position_embeddings": 64, "tie_word_embeddings": False,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32"},
    "llama3_rope": COMMON | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48,
                             "max_position_embeddings": 256, "tie_word_embeddings": True, "rope_theta": 10000.0,
                             "rope_scaling": LLAMA3, "torch_dtype": "float32"},
    "qwen3": COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_attention_heads": 4,
                       "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 80, "max_position_embeddings": 64,
                       "tie_word_embeddings": True, "rope_theta": 10000.0, "dtype": "float32"},
    "gelu_bias": COMMON | {"hidden_act": "gelu_pytorch_tanh", "num_attention_heads": 4, "num_key_value_heads": 4,
                           "head_dim": 8, "intermediate_size": 80, "max_position_embeddings": 64,
                           "tie_word_embeddings": False, "rope_theta": 10000.0, "attention_bias": True, "dtype": "float32"},
}
SHAPES = {"llama3_rope": (1, 48)}
SHAPE = (2, 24)
STEPS = 10


def inverse_frequencies(c):
    """The formula of transformers, in F64. llama3: long waves are stretched by `factor`, short ones kept, between them a blend."""
    d = c["head_dim"]
    theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    freq = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    s = c.get("rope_scaling")
    if s is None:
        return freq
    old, low, high = s["original_max_position_embeddings"], s["low_freq_factor"], s["high_freq_factor"]
    wave = 2 * math.pi / freq
    smooth = (old / wave - low) / (high - low)
    blend = (1 - smooth) * freq / s["factor"] + smooth * freq
    scaled = torch.where(wave > old / low, freq / s["factor"], blend)
    return torch.where(wave < old / high, freq, scaled)


def logits_of(c, w, ids, lora=None, scale=0.0):
    """`w` and `lora` by their names in the files; dtype of `w` throughout."""
    n_h, n_kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    x = w["model.embed_tokens.weight"][ids]
    b, t, _ = x.shape
    angle = torch.arange(t, dtype=x.dtype)[:, None] * inverse_frequencies(c).to(x.dtype)[None]
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

    def act(v):
        return silu(v) if c["hidden_act"] == "silu" else gelu(v, approximate="tanh")

    def rope(v):
        return v * cos + torch.cat([-v[..., d // 2 :], v[..., : d // 2]], -1) * sin

    def norm(v, name):
        return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * w[name]

    def project(v, name):
        y = linear(v, w[name + ".weight"], w.get(name + ".bias"))
        if lora is not None:
            p = "base_model.model." + name
            y = y + scale * linear(linear(v, lora[p + ".lora_A.weight"]), lora[p + ".lora_B.weight"])
        return y

    mask = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(1)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (project(h, p + f"self_attn.{s}_proj").view(b, t, -1, d).transpose(1, 2) for s in "qkv")
        if c["model_type"] == "qwen3":
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        q, k = rope(q), rope(k)
        k, v = (s.repeat_interleave(n_h // n_kv, 1) for s in (k, v))
        a = torch.softmax(q @ k.transpose(2, 3) / d**0.5 + mask, -1) @ v
        x = x + project(a.transpose(1, 2).reshape(b, t, -1), p + "self_attn.o_proj")
        h = norm(x, p + "post_attention_layernorm.weight")
        x = x + project(act(project(h, p + "mlp.gate_proj")) * project(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


def mean_loss(logits, ids):
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def as_f64(tensors, trained):
    return {n: t.detach().double().clone().requires_grad_(trained) for n, t in tensors.items()}


def curve(forward, trained, batches, lr, weight_decay):
    """AdamW, constant rate, no clipping, decay on every trained tensor. losses[i] is before update i, the last after all."""
    opt = torch.optim.AdamW(trained.values(), lr=lr, weight_decay=weight_decay, foreach=False, fused=False)
    losses, norms = [], []
    for step in range(STEPS + 1):
        ids = batches[step % len(batches)]
        loss = mean_loss(forward(ids), ids)
        losses.append(float(loss.detach()))
        if step < STEPS:
            opt.zero_grad(set_to_none=True)
            loss.backward()
            norms.append(float(torch.sqrt(sum((p.grad**2).sum() for p in trained.values()))))
            opt.step()
    final = {n: float(p.detach().norm()) for n, p in trained.items()}
    return {"lr": lr, "weight_decay": weight_decay, "betas": [0.9, 0.999], "eps": 1e-8,
            "losses": losses, "grad_norms": norms, "final_norms": final}


def random_weights(c, seed):
    """Every tensor random, also the norm weights, so that a forgotten one shows."""
    g = torch.Generator().manual_seed(seed)
    d, f, e = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, k = c["num_attention_heads"] * e, c["num_key_value_heads"] * e
    shapes = {"model.embed_tokens": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm": (d,), p + "self_attn.q_proj": (q, d), p + "self_attn.k_proj": (k, d),
                   p + "self_attn.v_proj": (k, d), p + "self_attn.o_proj": (d, q), p + "post_attention_layernorm": (d,),
                   p + "mlp.gate_proj": (f, d), p + "mlp.up_proj": (f, d), p + "mlp.down_proj": (d, f)}
        if c["model_type"] == "qwen3":
            shapes |= {p + "self_attn.q_norm": (e,), p + "self_attn.k_norm": (e,)}
    shapes["model.norm"] = (d,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head"] = (c["vocab_size"], d)

    def draw(s):
        matrix = len(s) > 1
        return torch.randn(s, generator=g) * (0.25 if matrix else 0.1) + (0.0 if matrix else 1.0)

    weights = {n + ".weight": draw(s) for n, s in shapes.items()}
    if c["attention_bias"]:
        linears = [n for n in shapes if ".self_attn." in n]
        weights |= {n + ".bias": torch.randn(shapes[n][0], generator=g) * 0.1 for n in linears}
    return weights


def agree(name, got, want, bound):
    worst = float((got.double() - want).abs().max() / want.abs().max())
    assert worst < bound, (name, worst)
    return worst


def base_case(name, c, seed):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    weights = random_weights(c, seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    g = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(3, c["vocab_size"], SHAPES.get(name, SHAPE), generator=g)
    batches = [torch.randint(3, c["vocab_size"], SHAPES.get(name, SHAPE), generator=g) for _ in range(3)]

    w = as_f64(weights, True)
    logits = logits_of(c, w, ids)
    loss = mean_loss(logits, ids)
    loss.backward()
    grads = {"grad." + n: p.grad.clone() for n, p in w.items()}
    save_file({"logits": logits.detach().contiguous(), **grads}, folder / "expected.safetensors")

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.config.use_cache = False
    hf = model(input_ids=ids).logits
    mean_loss(hf, ids).backward()
    worst = max([agree("logits", hf.detach(), logits.detach(), 1e-5)] +
                [agree(n, p.grad, grads["grad." + n], 1e-5) for n, p in model.named_parameters()])
    out = {"ids": ids.tolist(), "mean_loss": float(loss.detach())}
    if name != "llama3_rope":
        w = as_f64(weights, True)
        out["train_batches"] = [b.tolist() for b in batches]
        out["adamw"] = curve(lambda x: logits_of(c, w, x), w, batches, 1e-2, 0.1)
    else:
        out["inverse_frequencies"] = inverse_frequencies(c).tolist()
    print(name, "loss", out["mean_loss"], "F32 of transformers differs by", worst)
    return folder, model, ids, batches, weights, out


def adapter(c, folder, model, ids, batches, weights):
    """A LoRA on all seven linears, saved by peft itself; both factors random, since B = 0 would hide a wrong scale."""
    linears = [s + "_proj" for s in ("q", "k", "v", "o", "gate", "up", "down")]
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=linears, task_type="CAUSAL_LM")
    lora = peft.get_peft_model(model, config).eval()
    g = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for n, p in lora.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn(p.shape, generator=g) * 0.2)
    lora.peft_config["default"].base_model_name_or_path = folder.name
    lora.save_pretrained(folder / "peft")
    (folder / "peft" / "README.md").unlink(missing_ok=True)
    # peft writes a set: sorted, the file is the same in every run.
    path = folder / "peft" / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["target_modules"].sort()
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")

    tensors = load_file(folder / "peft" / "adapter_model.safetensors")
    w, ab, scale = as_f64(weights, False), as_f64(tensors, True), config.lora_alpha / config.r
    logits = logits_of(c, w, ids, ab, scale)
    loss = mean_loss(logits, ids)
    loss.backward()
    with torch.no_grad():
        f32 = log_softmax(lora(input_ids=ids).logits, -1)
    f64 = log_softmax(logits.detach(), -1)
    worst = agree("adapter", f32, f64, 1e-5)
    grads = {"grad." + n: p.grad.clone() for n, p in ab.items()}
    save_file({"logprobs": f32.contiguous(), "logprobs_f64": f64.contiguous(), **grads}, folder / "expected_peft.safetensors")
    ab = as_f64(tensors, True)
    out = {"mean_loss": float(loss.detach()), "adamw": curve(lambda x: logits_of(c, w, x, ab, scale), ab, batches, 1e-2, 0.01)}
    print("peft loss", out["mean_loss"], "F32 of peft differs by", worst)
    return out


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")  # deprecations inside transformers and peft
    os.umask(0o022)
    for seed, (name, c) in enumerate(CASES.items(), start=100):
        folder, model, ids, batches, weights, out = base_case(name, c, seed)
        if name == "tied_gqa":
            out["peft"] = adapter(c, folder, model, ids, batches, weights)
        (folder / "expected.json").write_text(json.dumps(out, indent=1) + "\n")
    print(sum(f.stat().st_size for f in HERE.rglob("*") if f.is_file()), "bytes")


if __name__ == "__main__":
    main()
