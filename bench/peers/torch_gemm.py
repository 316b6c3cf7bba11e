#!/usr/bin/env python3
"""Matrix products of PyTorch, in GFLOP/s. Prints one line of JSON.

usage: torch_gemm.py [--dtype f32|bf16] [--repeats 5] --threads N SHAPE...      a shape is M,K,N

NT: a [m, k], b [n, k]; NN: b [k, n]; TN: a [k, m], b [k, n]. The median over the repeats, after one that is not timed.
"""

import argparse
import json
import resource
import statistics
import time

import torch


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def rate(m, k, n, order, dtype, repeats):
    a = torch.randn(k, m, dtype=dtype).t() if order[0] == "T" else torch.randn(m, k, dtype=dtype)
    b = torch.randn(n, k, dtype=dtype).t() if order[1] == "T" else torch.randn(k, n, dtype=dtype)
    out = torch.empty(m, n, dtype=dtype)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - start)
    return 2e-9 * m * k * n / statistics.median(seconds[1:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", choices=list(DTYPES), default="f32")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--threads", type=int, required=True)
    p.add_argument("shapes", nargs="+")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    rates = {}
    for shape in a.shapes:
        m, k, n = map(int, shape.split(","))
        for order in ("NT", "NN", "TN"):
            rates[f"{m} x {k} x {n} {order}"] = rate(m, k, n, order, DTYPES[a.dtype], a.repeats)
    print(json.dumps({
        "gflops": rates,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "versions": {"torch": torch.__version__},
    }))


main()
