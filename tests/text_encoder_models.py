"""Encoders of texts with rotary positions of a small size: weights of a seed, files, and what NumPy computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gguf_models import F32, STRING, U32, Pair, gguf
from tenon.formats.decompositions.transformers.rotary_encoder import gguf_names
from tenon.network.graph.graph import Array
from transformer_models import Seeded
from transformer_references import gelu

WORDS, WIDTH, HEADS, INNER, LAYERS, WINDOW = 30, 16, 2, 24, 4, 6
DEPTH = WIDTH // HEADS
FAR, NEAR = 160000.0, 10000.0

MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "local_attention": WINDOW,
    "max_position_embeddings": 64,
}
NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "vocab_size": WORDS,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_layer": LAYERS,
    "n_positions": 64,
    "rotary_emb_base": 1000.0,
    "layer_norm_epsilon": 1e-5,
}


def modern_tensors() -> dict[str, Array]:
    """The tensors of ModernBERT."""
    w = Seeded(1)
    w.draw("embeddings.tok_embeddings.weight", WORDS, WIDTH, scale=1)
    w.norm("embeddings.norm", WIDTH, bias=False)
    for i in range(LAYERS):
        if i:
            w.norm(f"layers.{i}.attn_norm", WIDTH, bias=False)
        w.linear(f"layers.{i}.attn.Wqkv", WIDTH, 3 * WIDTH, bias=False)
        w.linear(f"layers.{i}.attn.Wo", WIDTH, WIDTH, bias=False)
        w.norm(f"layers.{i}.mlp_norm", WIDTH, bias=False)
        w.linear(f"layers.{i}.mlp.Wi", WIDTH, 2 * INNER, bias=False)
        w.linear(f"layers.{i}.mlp.Wo", INNER, WIDTH, bias=False)
    w.norm("final_norm", WIDTH, bias=False)
    return w.tensors


def nomic_tensors() -> dict[str, Array]:
    """The tensors of Nomic BERT."""
    w = Seeded(2)
    w.draw("embeddings.word_embeddings.weight", WORDS, WIDTH, scale=1)
    w.draw("embeddings.token_type_embeddings.weight", 2, WIDTH, scale=1)
    w.norm("emb_ln", WIDTH)
    for i in range(LAYERS):
        name = f"encoder.layers.{i}"
        w.linear(f"{name}.attn.Wqkv", WIDTH, 3 * WIDTH, bias=False)
        w.linear(f"{name}.attn.out_proj", WIDTH, WIDTH, bias=False)
        w.linear(f"{name}.mlp.fc11", WIDTH, INNER, bias=False)
        w.linear(f"{name}.mlp.fc12", WIDTH, INNER, bias=False)
        w.linear(f"{name}.mlp.fc2", INNER, WIDTH, bias=False)
        w.norm(f"{name}.norm1", WIDTH)
        w.norm(f"{name}.norm2", WIDTH)
    return w.tensors


def in_gguf(architecture: str, pooling: int = 1, **changes: Pair) -> bytes:
    """The same models as GGUF files."""
    modern = architecture == "modern-bert"
    names = gguf_names(LAYERS, modern=modern)
    keys: dict[str, Pair] = {
        "block_count": (U32, LAYERS),
        "embedding_length": (U32, WIDTH),
        "feed_forward_length": (U32, INNER),
        "attention.head_count": (U32, HEADS),
        "context_length": (U32, 64),
        "attention.layer_norm_epsilon": (F32, 1e-5),
        "pooling_type": (U32, pooling),
        **({"attention.sliding_window": (U32, WINDOW), "rope.freq_base": (F32, FAR)} if modern else {}),
        **({} if modern else {"rope.freq_base": (F32, 1000.0)}),
        **{name.replace("__", "."): pair for name, pair in changes.items()},
    }
    tensors = modern_tensors() if modern else nomic_tensors()
    stored = {names[name]: ("f32", data.shape, data.tobytes()) for name, data in tensors.items()}
    pairs: dict[str, Pair] = {"general.architecture": (STRING, architecture)}
    return gguf(pairs | {f"{architecture}.{name}": pair for name, pair in keys.items()}, stored)


# ------------------------------------------------------------------------------------------- reference
def _norm(w: Mapping[str, Array], name: str, x: Array) -> Array:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return np.asarray(y * w[f"{name}.weight"] + w.get(f"{name}.bias", 0))


def _attention(joined: Array, base: float, window: int) -> Array:
    length = len(joined)
    q, k, v = (part.reshape(length, HEADS, DEPTH) for part in np.split(joined, 3, axis=-1))
    angles = np.arange(length)[:, None, None] * base ** (-np.arange(0, DEPTH, 2) / DEPTH)
    half = DEPTH // 2

    def turned(x: Array) -> Array:
        first, second = x[..., :half], x[..., half:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    scores = np.einsum("ihd,jhd->hij", turned(q), turned(k)) / DEPTH**0.5
    away = np.abs(np.arange(length)[:, None] - np.arange(length))
    scores = np.where((away <= window) | (window == 0), scores, -np.inf)
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hij,jhd->ihd", terms / terms.sum(-1, keepdims=True), v).reshape(length, -1))


def modern_states(tokens: Sequence[int]) -> Array:
    """The last states [length, width] of ModernBERT."""
    w = modern_tensors()
    x = _norm(w, "embeddings.norm", w["embeddings.tok_embeddings.weight"][list(tokens)])
    for i in range(LAYERS):
        y = _norm(w, f"layers.{i}.attn_norm", x) if i else x
        base, window = (FAR, 0) if i % 3 == 0 else (NEAR, WINDOW // 2)
        y = _attention(y @ w[f"layers.{i}.attn.Wqkv.weight"].T, base, window)
        x = x + y @ w[f"layers.{i}.attn.Wo.weight"].T
        first, gate = np.split(_norm(w, f"layers.{i}.mlp_norm", x) @ w[f"layers.{i}.mlp.Wi.weight"].T, 2, axis=-1)
        x = x + (gelu(first) * gate) @ w[f"layers.{i}.mlp.Wo.weight"].T
    return _norm(w, "final_norm", x)


def nomic_states(tokens: Sequence[int]) -> Array:
    """The last states [length, width] of Nomic BERT."""
    w = nomic_tensors()
    words = w["embeddings.word_embeddings.weight"][list(tokens)] + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(w, "emb_ln", words)
    for i in range(LAYERS):
        name = f"encoder.layers.{i}"
        y = _attention(x @ w[f"{name}.attn.Wqkv.weight"].T, 1000.0, 0)
        x = _norm(w, f"{name}.norm1", x + y @ w[f"{name}.attn.out_proj.weight"].T)
        up, gate = (x @ w[f"{name}.mlp.{part}.weight"].T for part in ("fc11", "fc12"))
        y = (up * gate / (1 + np.exp(-gate))) @ w[f"{name}.mlp.fc2.weight"].T
        x = _norm(w, f"{name}.norm2", x + y)
    return x
