#!/usr/bin/env python3
"""Writes adapters of every kind that planish trains, as peft saves them, with what peft computes. See ../README.md.

usage: make.py        (needs torch 2.15, transformers 5.24, peft 0.21; reads ../llama, writes beside itself)

Every trained value is random, also the zeros and norms that training begins with: they would hide a wrong factor.
"""

import json
import os
import pathlib
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
import peft  # noqa: E402
import torch  # noqa: E402
from peft.optimizers import create_loraplus_optimizer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.nn.functional import cross_entropy, log_softmax  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LR = 1e-2
# Base, settings of peft, how many times the rate of A that of B is (0: plain AdamW).
CASES = {
    "layers": ("tied_gqa", {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]}, 0),
    "pattern": ("tied_gqa", {"target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"], "rank_pattern": {"q_proj": 2, "down_proj": 6},
                             "alpha_pattern": {"v_proj": 3}}, 4),
    "tables": ("untied_mha", {"target_modules": ["embed_tokens", "q_proj", "lm_head"]}, 0),
    "embedding": ("tied_gqa", {"target_modules": ["embed_tokens", "up_proj"], "use_rslora": True}, 0),
    "dora": ("tied_gqa", {"target_modules": ["q_proj", "o_proj", "down_proj"], "use_dora": True}, 0),
}


def file_name(name):
    """A parameter's name in the file that peft saves."""
    return name.replace(".default.weight", "" if "magnitude" in name else ".weight").replace(".default", "")


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "magnitude" in name:
                p.mul_(1 + 0.2 * torch.randn(p.shape, generator=g))
            elif "lora_" in name:
                p.copy_(0.2 * torch.randn(p.shape, generator=g))


def save(model, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # peft writes a set: sorted, the file is the same in every run.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def case(name, seed):
    base_name, settings, ratio = CASES[name]
    base = HERE.parent / "llama" / base_name
    ids = torch.tensor(json.loads((base / "expected.json").read_text())["ids"])
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM", **settings)).eval()
    model.peft_config["default"].base_model_name_or_path = base_name
    fill(model, seed)
    save(model, HERE / name)
    logits = model(input_ids=ids).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    trained = {file_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    out = {"logprobs": log_softmax(logits.detach(), -1).contiguous(), "loss": loss.detach().reshape(1)}
    out |= {"grad." + n: p.grad.clone() for n, p in trained.items()}
    if ratio:
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=LR, loraplus_lr_ratio=ratio)
    else:
        optimizer = torch.optim.AdamW(trained.values(), lr=LR, weight_decay=0.0, foreach=False, fused=False)
    optimizer.step()
    out |= {"step." + n: p.detach().clone() for n, p in trained.items()}
    save_file(out, HERE / name / "expected.safetensors")
    print(name, "loss", float(loss.detach()), len(trained), "tensors")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")  # deprecations inside transformers and peft
    os.umask(0o022)
    for seed, name in enumerate(CASES):
        case(name, seed)
    print(sum(f.stat().st_size for f in HERE.rglob("*") if f.is_file()), "bytes")


main()
