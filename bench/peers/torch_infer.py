#!/usr/bin/env python3
"""Prefill and decode of transformers, or the time to its first token. Prints one line of JSON.

usage: torch_infer.py prefill|decode|load --model HF_DIR [--dtype f32|bf16] [--prompt 512] [--tokens 128] [--repeats 3]
                      --threads N

The prompt is random ids; tokens are chosen greedily after it. load counts from before the model is loaded, without the
imports, to the first token of "The capital of France is".
"""

import argparse
import json
import resource
import statistics
import time

import torch
import transformers


def load(a):
    start = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=DTYPES[a.dtype]).eval()
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    int(model(input_ids=ids, logits_to_keep=1).logits[0, -1].argmax())
    return {"seconds": time.perf_counter() - start}


def generation(model, ids, tokens):
    """Seconds of the prompt, and of the tokens after it."""
    start = time.perf_counter()
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    middle = time.perf_counter()
    for _ in range(tokens):
        best = out.logits[:, -1].argmax(-1, keepdim=True)
        out = model(input_ids=best, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
    return middle - start, time.perf_counter() - middle


def speed(a):
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=DTYPES[a.dtype]).eval()
    ids = torch.randint(model.config.vocab_size, (1, a.prompt))
    tokens = a.tokens if a.what == "decode" else 0
    times = [generation(model, ids, tokens) for _ in range(a.repeats + 1)][1:]
    prefill, decode = (statistics.median(t) for t in zip(*times))
    return {"tokens_per_s": tokens / decode if a.what == "decode" else a.prompt / prefill}


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["prefill", "decode", "load"])
    p.add_argument("--model", required=True)
    p.add_argument("--dtype", choices=list(DTYPES), default="f32")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--threads", type=int, required=True)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        result = load(a) if a.what == "load" else speed(a)
    result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    result["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps(result))


main()
