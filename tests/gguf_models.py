"""Small GGUF files of decoders with random weights, and the logits that NumPy computes for them in f32."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array

Pair = tuple[int, Any]
"""The type of a value in the file, and the value."""

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "bf16": 30,
}
VOCABULARY, HIDDEN, WIDE, DEPTH = 40, 64, 96, 16


LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of the weights of a layer in the library transformers."""

POST_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""The same of layers that normalise results, too."""

END_NAMES = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(type: int, value: Any) -> bytes:
    if type == STRING:
        return _text(value)
    if type == ARRAY:
        kind, items = value
        return struct.pack("<IQ", kind, len(items)) + b"".join(_value(kind, item) for item in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[type], value)


def gguf(pairs: Mapping[str, Pair], tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> bytes:
    """A file: values by key, and for each tensor its type, extents (the outermost first) and bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(_text(key) + struct.pack("<I", type) + _value(type, value) for key, (type, value) in pairs.items())
    data = b""
    for name, (kind, dims, content) in tensors.items():
        head += _text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims[::-1])
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


@dataclass(frozen=True)
class DecoderFile:
    """A decoder of an architecture; ``pairs`` are further keys of it, ``parts`` the names of further weights."""

    architecture: str
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    tied: bool = False
    biases: bool = False
    norms: Sequence[str] = ("attn_norm", "ffn_norm")
    joined: bool = False
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    vocabulary: int = VOCABULARY
    together: bool = False  # queries and keys of all heads are normalised together

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all weights by their names in the file, without ".weight"."""
        q, k = self.heads * DEPTH, self.key_heads * DEPTH
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (self.vocabulary, HIDDEN), "output_norm": (HIDDEN,)}
        if not self.tied:
            shapes["output"] = (self.vocabulary, HIDDEN)
        for i in range(self.layers):
            own: dict[str, tuple[int, ...]] = dict.fromkeys(self.norms, (HIDDEN,))
            for name, size in (("attn_q_norm", q), ("attn_k_norm", k)):
                if name in self.norms:
                    own[name] = (size if self.together else DEPTH,)
            own |= {"attn_output": (HIDDEN, q), "ffn_down": (HIDDEN, WIDE)}
            if self.joined:
                own |= {"attn_qkv": (q + 2 * k, HIDDEN), "ffn_up": (2 * WIDE, HIDDEN)}
            else:
                own |= {"attn_q": (q, HIDDEN), "attn_k": (k, HIDDEN), "attn_v": (k, HIDDEN)}
                own |= {"ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN)}
            shapes |= {f"blk.{i}.{name}": shape for name, shape in own.items()}
        return shapes

    def weights(self, seed: int = 0) -> dict[str, Array]:
        """Random weights by their names in the file."""
        rng = np.random.default_rng(seed)
        weights = dict[str, Array]()
        for name, shape in self.shapes().items():
            mean, scale = (1.0, 0.2) if len(shape) == 1 else (0.0, 1.5 / shape[-1] ** 0.5)
            weights[f"{name}.weight"] = rng.normal(mean, scale, shape).astype(np.float32)
            if self.biases and name.endswith(("attn_q", "attn_k", "attn_v")):
                weights[f"{name}.bias"] = rng.normal(0, 0.3, shape[:1]).astype(np.float32)
        return weights

    def keys(self) -> dict[str, Pair]:
        """The pairs of the file."""
        own: dict[str, Pair] = {
            "context_length": (U32, 256),
            "embedding_length": (U32, HIDDEN),
            "block_count": (U32, self.layers),
            "attention.head_count": (U32, self.heads),
            "attention.head_count_kv": (U32, self.key_heads),
            "attention.key_length": (U32, DEPTH),
            "attention.value_length": (U32, DEPTH),
            "attention.layer_norm_rms_epsilon": (F32, 1e-5),
            **self.pairs,
        }
        named = [key if key.startswith(("tokenizer.", "general.")) else f"{self.architecture}.{key}" for key in own]
        return {"general.architecture": (STRING, self.architecture), **dict(zip(named, own.values(), strict=True))}

    def file(self, seed: int = 0) -> bytes:
        """The file with weights in f32."""
        weights = self.weights(seed)
        return gguf(self.keys(), {name: ("f32", data.shape, data.tobytes()) for name, data in weights.items()})


# ------------------------------------------------------------------------------------------- reference
def _norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * weight)


def _turned(x: Array, base: float, *, neighbours: bool) -> Array:
    """[length, heads, depth] turned by the angles of positions 0, 1, ..."""
    half = DEPTH // 2
    angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
    one, two = first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)
    if neighbours:
        return np.stack([one, two], -1).reshape(x.shape)
    return np.concatenate([one, two], -1)


@dataclass(frozen=True)
class Variant:
    """The differences of an architecture from Llama; ``windows`` are those of its layers."""

    neighbours: bool = False
    bases: Sequence[float] = ()
    windows: Sequence[int] = ()
    gelu: bool = False
    embedding: float = 1.0
    softcaps: tuple[float, float] = (0.0, 0.0)
    scores: float = DEPTH**-0.5
    residual: float = 1.0
    logits: float = 1.0


def states(model: DecoderFile, v: Variant, tokens: Sequence[int], seed: int = 0) -> Array:
    """The normalised states of all tokens [tokens, hidden]."""
    w = {name.removesuffix(".weight"): data.astype(np.float64) for name, data in model.weights(seed).items()}
    x = w["token_embd"][list(tokens)] * v.embedding
    for i in range(model.layers):
        own = {name.removeprefix(f"blk.{i}."): data for name, data in w.items() if name.startswith(f"blk.{i}.")}
        y = _attention(model, v, own, i, _optional_norm(x, own, "attn_norm"))
        x = x + v.residual * _optional_norm(y, own, "post_attention_norm")
        y = _feed_forward(model, v, own, _optional_norm(x, own, "ffn_norm"))
        x = x + v.residual * _optional_norm(y, own, "post_ffw_norm")
    return _norm(x, w["output_norm"])


def logits(model: DecoderFile, v: Variant, tokens: Sequence[int], seed: int = 0) -> Array:
    """The logits of the last token."""
    rows = model.weights(seed)["token_embd.weight" if model.tied else "output.weight"].astype(np.float64)
    y = states(model, v, tokens, seed)[-1] @ rows.T
    return _capped(y * v.logits, v.softcaps[1])


def _optional_norm(x: Array, weights: Mapping[str, Array], name: str) -> Array:
    return _norm(x, weights[name]) if name in weights else x


def _capped(x: Array, c: float) -> Array:
    return np.tanh(x / c) * c if c else x


def _attention(model: DecoderFile, v: Variant, w: Mapping[str, Array], layer: int, x: Array) -> Array:
    counts = (model.heads, model.key_heads, model.key_heads)
    if model.joined:
        parts = np.split(x @ w["attn_qkv"].T, np.cumsum(counts)[:2] * DEPTH, axis=-1)
    else:
        parts = [x @ w[f"attn_{name}"].T + w.get(f"attn_{name}.bias", 0) for name in "qkv"]
    if model.together:
        parts[:2] = _norm(parts[0], w["attn_q_norm"]), _norm(parts[1], w["attn_k_norm"])
    q, k, values = (part.reshape(len(x), n, DEPTH) for part, n in zip(parts, counts, strict=True))
    if "attn_q_norm" in w and not model.together:
        q, k = _norm(q, w["attn_q_norm"]), _norm(k, w["attn_k_norm"])
    base = v.bases[layer] if v.bases else 10000.0
    q, k = (_turned(part, base, neighbours=v.neighbours) if base else part for part in (q, k))
    k, values = (np.repeat(part, model.heads // model.key_heads, axis=1) for part in (k, values))
    scores = _capped(np.einsum("ihd,jhd->hij", q, k) * v.scores, v.softcaps[0])
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    window = v.windows[layer] if v.windows else 0
    scores = np.where((distance >= 0) & ((distance < window) | (window == 0)), scores, -np.inf)
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("hij,jhd->ihd", terms / terms.sum(-1, keepdims=True), values)
    return np.asarray(y.reshape(len(x), -1) @ w["attn_output"].T)


def _feed_forward(model: DecoderFile, v: Variant, w: Mapping[str, Array], x: Array) -> Array:
    if model.joined:
        gate, up = np.split(x @ w["ffn_up"].T, 2, axis=-1)
    else:
        gate, up = x @ w["ffn_gate"].T, x @ w["ffn_up"].T
    if v.gelu:
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    else:
        gate = gate / (1 + np.exp(-gate))
    return np.asarray((gate * up) @ w["ffn_down"].T)
