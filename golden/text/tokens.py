"""Makes tokens.json: token ids as the real llama.cpp gives them (through the xllamacpp package).

A byte-level BPE vocabulary of a few hundred tokens is trained on the text below, put into a GGUF file with a random
one-layer model, once for each pre-tokenizer, and read by llama.cpp. For the vocabularies of real models only the ids
are stored:

    python tokens.py [SMOLLM2.gguf] [STORIES260K.gguf]

Needs: gguf, numpy, tokenizers, xllamacpp.
"""

import json
import os
import sys
import tempfile
import urllib.request

CORPUS = """The quick brown fox jumps over the lazy dog. A small model learns small things; it's what they've seen.
def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i, "x" * i)\n
Größe, naïve, œuvre, façade, 北京 东京 こんにちは мир привет الله 12 123 1234 12345 3.14159 2024-01-31
'The' hasn't we'll I'm you're she'd they've HELLO World HTTPServer camelCase snake_case \t\t  tabs   and    spaces
<tags> && || != == <= >= -> => ... !!! ??? $100 50% #1 @home /path/to/file C:\\dir {json: [1, 2, 3]} ~`^+=|
""" * 4

STRINGS = [
    "",
    " ",
    "   ",
    "Hello",
    " Hello",
    "Hello, world!",
    "Hello wörld 😀",
    "a   b\n\n\n  c \t d\r\n\r\n e  ",
    "\n",
    "\n\n",
    "\nx",
    "x\n",
    " \n x",
    "I'll I'LL it's IT'S don't 'tis '",
    "12 123 1234 12345 1 2 3.14159 ½ Ⅷ ٣٤٥",
    "def f(x):\n    return x+1  # add\n",
    "北京的天气很好。今日はいい天気ですね。안녕하세요",
    "привет, мир! naïve café Größe",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b zero",
    "HTTPServer camelCase snake_case __init__ a.b.c",
    "!!! ??? ... --- === <= >= $100 50% ~^|+",
    "tabs\t\tand\u00a0nbsp\u3000wide",
    "The quick brown fox jumps over the lazy dog.",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Once upon a time, there was a little girl named Lily.",
    "\u2581under\u2581 \u2581",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] hi [/INST] yes</s>",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<|im_end|", "x<|im_end|><|im_end|> y", "<tool>1</tool>\n\n\n",
    "<0x0A> <unk>",
    " zqxj zqxj,zqxj",
]

PRES = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "</tool>"]


def llama_cpp(path, strings):
    """Runs in a process of its own: a second server in one process does not start."""
    import subprocess

    done = subprocess.run([os.environ.get("XLLAMACPP_PYTHON", sys.executable), __file__, "--serve", path],
                          input=json.dumps(strings), capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("IDS "):
            return json.loads(line[4:])
    raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])


def serve(path):
    import xllamacpp

    strings = json.load(sys.stdin)
    p = xllamacpp.CommonParams()
    p.model.path = path
    p.n_ctx = 256
    p.port = 18000 + os.getpid() % 2000
    server = xllamacpp.Server(p)

    def ask(text, special):
        body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body,
                                         {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["tokens"]

    print("IDS " + json.dumps([[ask(s, True), ask(s, False)] for s in strings]), flush=True)
    os._exit(0)


def tiny_vocab():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=448, special_tokens=SPECIALS + USER_DEFINED, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([CORPUS], trainer)
    model = json.loads(t.to_str())["model"]
    tokens = [k for k, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    # No merge leads to this one: only a pre-tokenizer that looks whole words up finds it.
    return tokens + ["\u0120zqxj"], merges


def write_gguf(path, pre, tokens, merges):
    import gguf
    import numpy as np

    n, d = len(tokens), 32
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(d)
    w.add_block_count(1)
    w.add_feed_forward_length(d)
    w.add_head_count(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([3] * len(SPECIALS) + [4] * len(USER_DEFINED) + [1] * (n - len(SPECIALS) - len(USER_DEFINED)))
    w.add_token_merges(merges)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    rng = np.random.default_rng(0)

    def tensor(name, *shape):
        w.add_tensor(name, rng.standard_normal(shape).astype(np.float32))

    tensor("token_embd.weight", n, d)
    tensor("output_norm.weight", d)
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        tensor(f"blk.0.{name}.weight", d, d)
    tensor("blk.0.attn_norm.weight", d)
    tensor("blk.0.ffn_norm.weight", d)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = {"strings": STRINGS, "tiny": {}, "models": {}}
    tokens, merges = tiny_vocab()
    out["tiny"] = {"tokens": tokens, "merges": merges, "control": SPECIALS, "user_defined": USER_DEFINED, "ids": {}}
    with tempfile.TemporaryDirectory() as tmp:
        for pre in PRES:
            path = os.path.join(tmp, pre + ".gguf")
            write_gguf(path, pre, tokens, merges)
            out["tiny"]["ids"][pre] = llama_cpp(path, STRINGS)
    for path in sys.argv[1:]:
        out["models"][os.path.basename(path)] = llama_cpp(path, STRINGS)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokens.json"), "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if sys.argv[1:2] == ["--serve"]:
    serve(sys.argv[2])
else:
    main()
