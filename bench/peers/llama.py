#!/usr/bin/env python3
"""Prefill and decode of llama.cpp, or the time to its first token, through xllamacpp. Prints one line of JSON.

usage: llama.py prefill|decode|load --model FILE.gguf [--prompt 512] [--tokens 128] [--repeats 3] --threads N

The prompt is random ids; tokens are chosen greedily after it; the times are llama.cpp's own. load counts from before the
model is loaded, without the import, to the first token of "The capital of France is".
"""

import argparse
import importlib.metadata
import json
import random
import resource
import statistics
import sys
import time

import xllamacpp


def start(a):
    p = xllamacpp.CommonParams()
    p.model.path = a.model
    p.n_ctx = a.prompt + a.tokens + 8
    p.n_parallel = 1
    p.n_batch = p.n_ubatch = 512
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = a.threads
    p.warmup = False
    p.verbosity = 0
    return xllamacpp.Server(p)


def complete(server, prompt, tokens):
    request = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
    answer = server.handle_completions(request)
    if "timings" not in answer:
        sys.exit(f"llama.cpp: {answer}")
    return answer["timings"]


def load(a):
    begin = time.perf_counter()
    complete(start(a), "The capital of France is", 1)
    return {"seconds": time.perf_counter() - begin}


def speed(a):
    server = start(a)
    random.seed(1)
    tokens = a.tokens if a.what == "decode" else 1
    rates = []
    for _ in range(a.repeats + 1):
        # Ids below 256 are control tokens and single bytes.
        timings = complete(server, [random.randrange(256, 30000) for _ in range(a.prompt)], tokens)
        counted = timings["prompt_n"] if a.what == "prefill" else timings["predicted_n"]
        wanted = a.prompt if a.what == "prefill" else tokens
        if counted != wanted:
            sys.exit(f"llama.cpp: {counted} tokens instead of {wanted}")
        rates.append(timings["prompt_per_second" if a.what == "prefill" else "predicted_per_second"])
    return {"tokens_per_s": statistics.median(rates[1:])}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["prefill", "decode", "load"])
    p.add_argument("--model", required=True)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--threads", type=int, required=True)
    a = p.parse_args()
    result = load(a) if a.what == "load" else speed(a)
    result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    result["versions"] = {"xllamacpp": importlib.metadata.version("xllamacpp")}
    print(json.dumps(result))


main()
