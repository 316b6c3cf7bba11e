#!/usr/bin/env python3
"""Writes what peft computes with an adapter directory that planish wrote. See ../README.md for the layout.

usage: make.py        (needs torch 2.15, transformers 5.24, peft 0.21; writes beside itself)
"""

import hashlib
import json
import os
import pathlib
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import peft  # noqa: E402
import safetensors  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parent / "llama" / "tied_gqa"
ADAPTER = HERE / "adapter"


def logprobs(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits, -1)


def check_loaded(model):
    """peft only warns of tensors that it misses, and leaves B zero there: each has to be in the model as it is in the file."""
    inside = {n.replace(".default", ""): p.detach() for n, p in model.named_parameters() if "lora_" in n}
    file = load_file(ADAPTER / "adapter_model.safetensors")
    assert inside.keys() == file.keys(), inside.keys() ^ file.keys()
    assert all(torch.equal(inside[n], t) and t.count_nonzero() == t.numel() for n, t in file.items())
    return len(file)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")  # deprecations inside transformers and peft
    os.umask(0o022)
    ids = torch.tensor(json.loads((BASE / "expected.json").read_text())["ids"])
    base = transformers.LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager").eval()
    plain = logprobs(base, ids)
    model = peft.PeftModel.from_pretrained(base, ADAPTER).eval()
    tensors = check_loaded(model)
    values = logprobs(model, ids)
    assert values.dtype == torch.float32
    save_file({"logprobs": values.contiguous()}, HERE / "expected.safetensors")

    read = [ADAPTER / "adapter_config.json", ADAPTER / "adapter_model.safetensors",
            BASE / "config.json", BASE / "model.safetensors"]
    index = {
        "sha256": {os.path.relpath(f, HERE.parent): hashlib.sha256(f.read_bytes()).hexdigest() for f in read},
        "versions": {m.__name__: m.__version__.split("+")[0] for m in (peft, safetensors, torch, transformers)},
    }
    (HERE / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    print(tensors, "tensors; the adapter moves log-probabilities by up to", float((values - plain).abs().max()))


main()
