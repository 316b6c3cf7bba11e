"""Makes learn.json: merges that the trainer of the tokenizers library learns from the texts below, with GPT-2's words,
pairs that occur twice or more, and 1,000 tokens of which one is <|endoftext|>.

    python learn.py

Needs: tokenizers.
"""

import json
import os
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = """The quick brown fox jumps over the lazy dog. A small model learns small things; it's what they've seen.
def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i, "x" * i)\n
Größe, naïve, œuvre, façade, 北京 东京 こんにちは мир привет الله 12 123 1234 12345 3.14159 2024-01-31
'The' hasn't we'll I'm you're she'd they've HELLO World HTTPServer camelCase snake_case \t\t  tabs   and    spaces
<tags> && || != == <= >= -> => ... !!! ??? $100 50% #1 @home /path/to/file C:\\dir {json: [1, 2, 3]} ~`^+=|
😀😀😀 👩‍👩‍👧‍👦 e\u0301 \u200b zero aaaaaaaaaaaaaaaa bbbbbbb \r\n\r\n end""".split("\n\n")

SYLLABLES = "ba be bi bo da de di do ka ke ki ko la le li lo ma na ra sa ta ing est er tion ä ß ж".split()


def texts():
    """The texts above, and lines of random words, in which many pairs are equally frequent."""
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(400)]
    return TEXTS + [" ".join(rng.choices(words, k=30)) for _ in range(60)]


def main():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=999, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    lines = texts()
    t.train_from_iterator(lines, trainer)
    model = json.loads(t.to_str())["model"]
    tokens = [k for k, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    out = {"texts": lines, "tokens": tokens, "merges": [" ".join(m) for m in model["merges"]]}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "learn.json"), "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


main()
