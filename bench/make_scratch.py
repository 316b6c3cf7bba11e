#!/usr/bin/env python3
"""Writes the small llama that is trained from nothing as a GGUF: random f32 weights, no tokenizer.

usage: make_scratch.py OUT.gguf

Needs gguf and numpy. The shape is that of `peers/torch_train.py scratch`.
"""

import sys

import gguf
import numpy as np

VOCAB, WIDTH, FF, LAYERS, HEADS = 4096, 288, 768, 6, 6

MATRICES = {
    "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (FF, WIDTH), "ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF),
}


def metadata(writer):
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)


def main():
    (out,) = sys.argv[1:]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, "llama")
    metadata(writer)

    def matrix(name, shape):
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.02, shape).astype(np.float32))

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    # The head is the embedding again, so there is no output.weight.
    matrix("token_embd", (VOCAB, WIDTH))
    norm("output_norm")
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm")
        norm(f"blk.{i}.ffn_norm")
        for name, shape in MATRICES.items():
            matrix(f"blk.{i}.{name}", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
