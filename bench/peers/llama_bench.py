#!/usr/bin/env python3
"""Prefill and decode of a build of llama.cpp, by its llama-bench. Prints one line of JSON.

usage: llama_bench.py prefill|decode --program LLAMA-BENCH --model FILE.gguf [--prompt 512] [--tokens 128] [--repeats 3]
                      --threads N

decode follows a prompt of the same length, which is not timed. The median over the repeats, after one that is not timed;
the times are llama.cpp's own. Memory is that of llama-bench.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["prefill", "decode"])
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--threads", type=int, required=True)
    a = p.parse_args()
    tested = {"prefill": [a.prompt, 0, 0], "decode": [0, a.tokens, a.prompt]}[a.what]
    counts = [word for option, n in zip(["-p", "-n", "-d"], tested) for word in (option, str(n))]
    settings = ["-t", str(a.threads), "-r", str(a.repeats), "-o", "json"]
    done = subprocess.run([a.program, "-m", a.model, *counts, *settings], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"llama-bench ended with {done.returncode}")
    (test,) = json.loads(done.stdout)
    if [test["n_prompt"], test["n_gen"], test["n_depth"]] != tested:
        sys.exit(f"llama-bench: another test than {counts}")
    print(json.dumps({
        "tokens_per_s": statistics.median(test["samples_ts"]),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
        "versions": {"llama.cpp": f"build {test['build_number']} ({test['build_commit']})"},
    }))


main()
