#!/usr/bin/env python3
"""Training steps of PyTorch, with PEFT for adapters, on random token ids. Prints one line of JSON.

usage: torch_train.py lora|full|scratch [--model HF_DIR] [--targets all|qv] [--rank 16] [--dtype f32|bf16]
                      [--batch 1] [--length 512] [--steps 3] [--compile] --threads N

A step is the forward pass with the loss of every next token, the backward pass, clipping, and AdamW; one step before those
that are timed. tokens_per_s is the median over the steps, of batch * length tokens each. scratch is a llama of 6 layers
of width 288, a vocabulary of 4096 and random weights. In bf16 weights and AdamW's moments are bf16, but PEFT keeps
adapters in f32. --compile is torch.compile; its first step compiles, for a minute or two.
"""

import argparse
import json
import resource
import statistics
import time

import torch
import transformers

TARGETS = {
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qv": ["q_proj", "v_proj"],
}


def small_llama(dtype):
    shape = dict(vocab_size=4096, hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6)
    config = transformers.LlamaConfig(**shape, tie_word_embeddings=True)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def build(a, dtype, versions):
    """The model, ready to be trained."""
    if a.what == "scratch":
        return small_llama(dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype)
    if a.what == "lora":
        import peft

        versions["peft"] = peft.__version__
        config = peft.LoraConfig(r=a.rank, lora_alpha=2 * a.rank, lora_dropout=0.0, target_modules=TARGETS[a.targets])
        model = peft.get_peft_model(model, config)
    return model


def step(model, parameters, optimizer, ids):
    start = time.perf_counter()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["lora", "full", "scratch"])
    p.add_argument("--model")
    p.add_argument("--targets", choices=list(TARGETS), default="all")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--threads", type=int, required=True)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    model = build(a, torch.bfloat16 if a.dtype == "bf16" else torch.float32, versions).train()
    parameters = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)
    # Compiling wraps the model; the parameters stay those of the model.
    forward = torch.compile(model, dynamic=False) if a.compile else model
    ids = torch.randint(model.config.vocab_size, (a.batch, a.length))
    seconds = [step(forward, parameters, optimizer, ids) for _ in range(a.steps + 1)][1:]
    print(json.dumps({
        "tokens_per_s": a.batch * a.length / statistics.median(seconds),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "trained": sum(w.numel() for w in parameters),
        "versions": versions,
    }))


main()
