"""Makes tokenizer_json.json: small tokenizer.json files in the styles of GPT-2, SmolLM2, Llama 3 and Qwen2, and the ids
that the tokenizers library gives with them.

    python tokenizer_json.py

Needs: tokenizers.
"""

import json
import os
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """The quick brown fox jumps over the lazy dog. A small model learns small things; it's what they've seen.
def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i, "x" * i)\n
Größe, naïve, œuvre, façade, 北京 东京 こんにちは мир привет الله 12 123 1234 12345 3.14159 2024-01-31
'The' hasn't we'll I'm you're she'd they've HELLO World HTTPServer camelCase snake_case \t\t  tabs   and    spaces
<tags> && || != == <= >= -> => ... !!! ??? $100 50% #1 @home /path/to/file C:\\dir {json: [1, 2, 3]} ~`^+=|
""" * 4

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "</tool>"]
CASES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
REST = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

PARTS = ["Hello", " world", "a", " b", "   ", "\n", "\n\n", "\r\n", "\t", "I'll", "I'LL", "don'T", " 'tis", "12", "1234567",
         "½", "٣٤٥", "北京的天气", "привет", "naïve", "Größe", "👩‍👩‍👧‍👦", "😀", "\u200b", "\u00a0", "\u3000", "!!!", " ???", "$100",
         "def f(x):\n    return x+1", "HTTPServer", "snake_case", "__init__", "<|im_end|>", "<|endoftext|>", "<|im_", "<tool>",
         "</tool>", " zqxj", "x" * 20, "...", "=>", "{\"a\": [1, 2]}", "안녕하세요", "مرحبا", "\x00", "\x7f"]


def strings():
    rng = random.Random(0)
    mixed = ["".join(rng.choices(PARTS, k=rng.randint(1, 8))) for _ in range(160)]
    # Text in NFC: llama.cpp does not normalise, so what is not would differ by design.
    return ["", *PARTS, *[unicodedata.normalize("NFC", s) for s in mixed]]


def split(digits):
    pattern = Regex(CASES + "|" + digits + REST)
    return [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def byte_level():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


STYLES = {
    "gpt-2": [byte_level()],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "llama-bpe": split("\\p{N}{1,3}"),
    "qwen2": split("\\p{N}"),
}


def make(style):
    t = Tokenizer(models.BPE(ignore_merges=style == "llama-bpe"))
    steps = STYLES[style]
    t.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(vocab_size=380, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([CORPUS], trainer)
    t.add_special_tokens(SPECIALS if style != "gpt-2" else SPECIALS[:1])
    t.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if style == "qwen2":
        t.normalizer = normalizers.NFC()
    if style == "llama-bpe":
        bos = ("<|im_start|>", t.token_to_id("<|im_start|>"))
        template = processors.TemplateProcessing(single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[bos])
        t.post_processor = processors.Sequence([t.post_processor, template])
    file = json.loads(t.to_str())
    if style == "gpt-2":
        # Files of the first years: merges as one text, no type.
        file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        del file["model"]["type"]
    if style == "llama-bpe":
        # No merge leads to this one: only looking whole words up finds it.
        n = len(file["model"]["vocab"])
        file["model"]["vocab"]["\u0120zqxj"] = n
        for added in file["added_tokens"]:
            added["id"] += 1
        for token in file["post_processor"]["processors"][1]["special_tokens"].values():
            token["ids"] = [i + 1 for i in token["ids"]]
    return file


def main():
    texts = strings()
    out = {"strings": texts, "styles": {}}
    for style in STYLES:
        file = make(style)
        # The library gives a file without a type no kind; the files of the first years are read as this one.
        model = {"type": "BPE", **file["model"]}
        t = Tokenizer.from_str(json.dumps({**file, "model": model}))
        ids = [[t.encode(s, add_special_tokens=special).ids for special in (False, True)] for s in texts]
        out["styles"][style] = {"file": file, "ids": ids}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer_json.json"), "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


main()
