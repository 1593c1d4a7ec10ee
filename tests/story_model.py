"""A decoder of the shape of the 260 k parameter story model (llama2.c), with weights of a seed in blocks of 8 bits."""

from __future__ import annotations

import numpy as np

from gguf_models import F32, STRING, U32, Pair, gguf
from tenon.network.graph.graph import Array

WIDTH, LAYERS, HEADS, KEY_HEADS, DEPTH, VOCABULARY, INNER = 64, 5, 8, 4, 8, 512, 192
"""Sizes of the model; the 172 values between its feed-forward layers are filled up to whole blocks of 32."""


def _q8_0(matrix: Array) -> bytes:
    """Rows of blocks: a scale in f16 and 32 bytes."""
    blocks = matrix.reshape(len(matrix), -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / 127
    quantised = np.rint(blocks / scales).astype(np.int8)
    return np.concatenate([scales.astype("<f2").view(np.int8), quantised], -1).tobytes()


def story_model(seed: int = 0) -> bytes:
    """A GGUF file."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        own = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (KEY_HEADS * DEPTH, WIDTH),
            "attn_v": (KEY_HEADS * DEPTH, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in own.items()}
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {
        f"{name}.weight": ("q8_0", shape, _q8_0(rng.normal(0, 1.2 / shape[1] ** 0.5, shape)))
        for name, shape in shapes.items()
    }
    norms = ["output_norm", *(f"blk.{i}.{name}_norm" for i in range(LAYERS) for name in ("attn", "ffn"))]
    for name in norms:
        tensors[f"{name}.weight"] = ("f32", (WIDTH,), rng.normal(1, 0.2, WIDTH).astype("<f4").tobytes())
    sizes: dict[str, Pair] = {
        "context_length": (U32, 512),
        "embedding_length": (U32, WIDTH),
        "block_count": (U32, LAYERS),
        "feed_forward_length": (U32, INNER),
        "attention.head_count": (U32, HEADS),
        "attention.head_count_kv": (U32, KEY_HEADS),
        "attention.layer_norm_rms_epsilon": (F32, 1e-5),
    }
    return gguf({"general.architecture": (STRING, "llama"), **{f"llama.{key}": v for key, v in sizes.items()}}, tensors)
