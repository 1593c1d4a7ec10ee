"""Writes a small language model with random weights as a GGUF file: ``python random_model.py model.gguf``.

It has the shape of Llama, 256 tokens of room, a tokenizer of bytes and some words, and the chat template ChatML.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, CONTEXT = 64, 128, 2, 4, 2, 256
WORDS = ("the", "a", "cat", "dog", "mouse", "house", "tree", "sun", "moon", "ran", "sat", "slept", "saw", "and", "but")
WORDS += ("then", "very", "small", "happy", "old", "garden", "found")
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = [*SPECIAL, *BYTES, *(f"\u2581{word}" for word in WORDS)]
KINDS = [2, 3, 3, 3, 3, *[6] * 256, *[1] * len(WORDS)]  # unknown, control, byte, normal
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(kind: int, value: Any) -> bytes:
    """A value behind its type."""
    if kind == ARRAY:
        inner, items = value
        body = b"".join(metadata(inner, item)[4:] for item in items)
        return struct.pack("<IIQ", ARRAY, inner, len(items)) + body
    form = {U32: "<I", I32: "<i", F32: "<f"}
    return struct.pack("<I", kind) + (text(value) if kind == STRING else struct.pack(form[kind], value))


def weights() -> dict[str, Any]:
    """Random weights by name; the logits of bytes and special tokens are 0, so that the model writes words."""
    rng = np.random.default_rng(0)
    keys = WIDTH // HEADS * KEY_HEADS
    made = {"token_embd": rng.normal(0, 0.5, (len(TOKENS), WIDTH)), "output_norm": np.ones(WIDTH)}
    made["output"] = rng.normal(0, 1, (len(TOKENS), WIDTH))
    made["output"][: len(SPECIAL) + 256] = 0
    for i in range(LAYERS):
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH)}
        shapes |= {"attn_output": (WIDTH, WIDTH)}
        shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        made |= {f"blk.{i}.{name}": rng.normal(0, shape[1] ** -0.5, shape) for name, shape in shapes.items()}
        made |= {f"blk.{i}.{name}_norm": np.ones(WIDTH) for name in ("attn", "ffn")}
    return {f"{name}.weight": data.astype("<f4") for name, data in made.items()}


def gguf() -> bytes:
    """The content of the file."""
    numbers = {"context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": INNER}
    numbers |= {"block_count": LAYERS, "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS}
    pairs = {"general.architecture": (STRING, "llama"), "general.name": (STRING, "random")}
    pairs |= {f"llama.{name}": (U32, value) for name, value in numbers.items()}
    pairs["llama.attention.layer_norm_rms_epsilon"] = (F32, 1e-5)
    own = {"model": (STRING, "llama"), "tokens": (ARRAY, (STRING, TOKENS)), "token_type": (ARRAY, (I32, KINDS))}
    own |= {"scores": (ARRAY, (F32, [-float(i) for i in range(len(TOKENS))]))}
    own |= {"bos_token_id": (U32, 1), "eos_token_id": (U32, 4), "unknown_token_id": (U32, 0)}
    pairs |= {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    pairs["tokenizer.chat_template"] = (STRING, TEMPLATE)
    header, body, tensors = b"", b"", weights()
    for name, (kind, value) in pairs.items():
        header += text(name) + metadata(kind, value)
    for name, data in tensors.items():
        shape = data.shape[::-1]  # the last axis first
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        body += data.tobytes() + bytes(-data.nbytes % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + header
    return start + bytes(-len(start) % 32) + body


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(gguf())
