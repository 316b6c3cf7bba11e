#!/usr/bin/env python3
"""Asks llama.cpp, through xllamacpp, what it makes of a GGUF: log-probabilities, greedy tokens, a chat answer, token ids.

usage: probe.py MODEL [--lora FILE[:SCALE]]... --prompts IDS.json [--positions 16] [--top 50] [--out FILE]
       probe.py MODEL [--lora FILE[:SCALE]]... --prompts IDS.json --generate N [--out FILE]
       probe.py MODEL [--lora FILE[:SCALE]]... --chat TEXT [--max-tokens 256]
       probe.py MODEL --tokenize TEXT
       all: [--ctx 2048] [--threads 2]

IDS.json is a list of lists of token ids. The KV cache is F32, attention is the plain one, sampling is greedy.
Needs xllamacpp, which listens on a free port of the loopback address while it runs.
"""

import argparse
import json
import os
import sys
import urllib.request

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin are five times slower when the processors are busy
import xllamacpp  # noqa: E402


def adapter(text):
    """FILE or FILE:SCALE."""
    path, _, scale = text.rpartition(":")
    try:
        return xllamacpp.CommonAdapterLoraInfo(path, float(scale))
    except ValueError:
        return xllamacpp.CommonAdapterLoraInfo(text, 1.0)


def start(a):
    p = xllamacpp.CommonParams()
    p.model.path = a.model
    p.lora_adapters = [adapter(text) for text in a.lora]
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.n_ctx = a.ctx
    p.n_parallel = 1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = a.threads
    p.warmup = False
    p.verbosity = 1
    return xllamacpp.Server(p)


def checked(answer):
    if "error" in answer:
        sys.exit(f"llama.cpp: {answer['error']['message']}")
    return answer["choices"][0]


def complete(server, ids, n_predict, n_probs):
    """The greedy tokens after `ids`, each with its `top_logprobs`: log-softmax of the logits, before any sampler."""
    answer = server.handle_completions({
        "prompt": ids, "n_predict": n_predict, "n_probs": n_probs, "temperature": 0.0, "cache_prompt": False,
        "post_sampling_probs": False})
    return checked(answer)["logprobs"]["content"]


def logprobs(server, ids, n_positions, top):
    """At each of the last positions that predict a token of the prompt. Position p is predicted from ids[:p]."""
    out = []
    for p in range(max(1, len(ids) - n_positions), len(ids)):
        token = complete(server, ids[:p], 1, top)[0]
        out.append({"position": p, "top": [[t["id"], t["logprob"]] for t in token["top_logprobs"]]})
    return out


def chat(server, text, max_tokens):
    answer = server.handle_chat_completions({
        "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0.0})
    return checked(answer)["message"]["content"]


def tokenize(server, text):
    """With the tokens that the model adds by itself, and special tokens read as such."""
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as f:
        return json.load(f)["tokens"]


def probe(server, a):
    if a.tokenize is not None:
        return json.dumps(tokenize(server, a.tokenize))
    if a.chat is not None:
        return chat(server, a.chat, a.max_tokens)
    with open(a.prompts, encoding="utf-8") as f:
        prompts = json.load(f)
    if a.generate:
        return json.dumps([[t["id"] for t in complete(server, ids, a.generate, 1)] for ids in prompts])
    return json.dumps([logprobs(server, ids, a.positions, a.top) for ids in prompts])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--lora", action="append", default=[])
    p.add_argument("--prompts")
    p.add_argument("--positions", type=int, default=16)
    p.add_argument("--top", type=int, default=50)
    p.add_argument("--generate", type=int)
    p.add_argument("--chat")
    p.add_argument("--max-tokens", type=int, default=256)
    p.add_argument("--tokenize")
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--out")
    a = p.parse_args()
    if [a.prompts, a.chat, a.tokenize].count(None) != 2:
        p.error("expected one of --prompts, --chat, --tokenize")
    text = probe(start(a), a)
    with open(a.out, "w", encoding="utf-8", newline="\n") if a.out else sys.stdout as f:
        f.write(text + "\n")


if __name__ == "__main__":
    main()
