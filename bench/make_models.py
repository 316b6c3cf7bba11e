#!/usr/bin/env python3
"""Writes a GGUF of another weight type from one whose weights are F32, F16 or BF16.

usage: make_models.py SOURCE.gguf TYPE OUT.gguf
       TYPE: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 (every matrix), Q4_K_M or Q5_K_M (llama.cpp's mixture)

Needs gguf 0.19, numpy and, for Q4_K_M and Q5_K_M, the xllamacpp package, whose library exports ggml's quantiser. The mixtures
follow `llama_tensor_get_type` of llama.cpp without an importance matrix: attn_v and ffn_down of the first and last
eighth of the layers, and of every third one between, in Q6_K, likewise the head; a row that is not whole blocks of
256 falls back from Q4_K to Q5_0, from Q5_K to Q5_1, from Q6_K to Q8_0.
"""

import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

MIXTURES = {"Q4_K_M": T.Q4_K, "Q5_K_M": T.Q5_K}
FALLBACK = {T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0}


def of_mixture(name, base, layers, tied):
    more = False
    if name.startswith("blk."):
        i = int(name.split(".")[1])
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return T.Q6_K
    if more and (".attn_v." in name or ".ffn_down." in name):
        return T.Q6_K
    return base


def target(tensor, kind, layers, tied):
    if len(tensor.shape) < 2:
        return T.F32
    chosen = of_mixture(tensor.name, MIXTURES[kind], layers, tied) if kind in MIXTURES else T[kind]
    return FALLBACK.get(chosen, chosen) if int(tensor.shape[0]) % gguf.GGML_QUANT_SIZES[chosen][0] else chosen


def ggml():
    import xllamacpp

    lib = ctypes.CDLL(next(pathlib.Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return lib


def quantize(values, kind):
    try:
        return quants.quantize(values, kind)
    except NotImplementedError:
        rows, cols = values.shape
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros((rows, cols // block * size), np.uint8)
        written = ggml().ggml_quantize_chunk(int(kind), values.ctypes.data, out.ctypes.data, 0, rows, cols, None)
        assert written == out.nbytes, kind
        return out


def copy_metadata(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)


def main():
    source, kind, out = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    layers = reader.fields[f"{arch}.block_count"].contents()
    tied = all(t.name != "output.weight" for t in reader.tensors)
    writer = gguf.GGUFWriter(out, arch)
    copy_metadata(reader, writer)
    for t in reader.tensors:
        values = np.ascontiguousarray(quants.dequantize(t.data, t.tensor_type), np.float32)
        to = target(t, kind, layers, tied)
        data = values if to == T.F32 else quantize(values, to)
        writer.add_tensor(t.name, data, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
