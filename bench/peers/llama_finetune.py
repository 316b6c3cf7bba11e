#!/usr/bin/env python3
"""Training steps of every weight by a build of llama.cpp, by its llama-finetune. Prints one line of JSON.

usage: llama_finetune.py --program LLAMA-FINETUNE --model F32.gguf [--length 512] [--steps 3] --threads N

A step is one sequence, on text made here; one step before those that are timed. llama-finetune prints its progress after
each step, and the time between two of these is that of a step. It is stopped after the last one, so that it writes no
model. Memory is that of llama-finetune.
"""

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = "a the dog bird house river runs sees finds old small green under over and then while who never often".split()

# `train: [...] data=0000002/0000012 loss=...`, where only a carriage return ends a line.
PROGRESS = re.compile(r"train: [^\r]*? data=0*(\d+)/")


def command(a, text):
    sizes = [word for option in ("-c", "-b", "-ub") for word in (option, str(a.length))]
    threads = ["-t", str(a.threads), "-tb", str(a.threads)]
    return [a.program, "-m", a.model, "--file", text, *sizes, *threads, "-epochs", "1", "-lr", "1e-5", "-o", os.devnull]


def stamps(program, n):
    """When each of the first n steps ended, and what was printed last."""
    found, text = {}, ""
    while len(found) < n:
        chunk = os.read(program.stderr.fileno(), 65536)
        if not chunk:
            break
        text = (text + chunk.decode("utf-8", "replace"))[-20000:]
        for step in PROGRESS.findall(text):
            found.setdefault(int(step), time.perf_counter())
    return [found[step] for step in sorted(found)], text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, required=True)
    a = p.parse_args()
    random.seed(1)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        # A word is a token or more; sequences begin half a length apart, and a few are held out.
        text.write(" ".join(random.choice(WORDS) for _ in range(a.length * (a.steps + 4))))
        text.flush()
        program = subprocess.Popen(command(a, text.name), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        ends, printed = stamps(program, a.steps + 1)
        program.kill()
        program.wait()
    if len(ends) < a.steps + 1:
        sys.exit(f"llama-finetune made {len(ends)} steps: {printed.strip()[-300:]}")
    seconds = statistics.median(after - before for before, after in zip(ends, ends[1:]))
    print(json.dumps({
        "tokens_per_s": a.length / seconds,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
    }))


main()
