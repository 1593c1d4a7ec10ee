"""Models of the library transformers in NumPy, without caches: what graphs of them are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tenon.formats.decompositions.transformers.clip import ClipConfig, TowerConfig
from tenon.formats.decompositions.transformers.moonshine import MoonshineConfig
from tenon.network.graph.graph import Array

Tensors = Mapping[str, Array]


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def linear(w: Tensors, name: str, x: Array) -> Array:
    return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(())))


def norm(w: Tensors, name: str, x: Array) -> Array:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return np.asarray(y * w[f"{name}.weight"] + w.get(f"{name}.bias", np.zeros(())))


def attention(q: Array, k: Array, v: Array, count: int, causal: bool = False) -> Array:
    """Attention of rows [L, heads * size], without the projections."""
    split: Callable[[Array], Array] = lambda x: x.reshape(len(x), count, -1).swapaxes(0, 1)  # noqa: E731
    scores = split(q) @ split(k).swapaxes(1, 2) / math.sqrt(q.shape[1] // count)
    if causal:
        scores = np.where(np.tri(len(q), len(k), dtype=bool), scores, -np.inf)
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((terms / terms.sum(-1, keepdims=True) @ split(v)).swapaxes(0, 1).reshape(q.shape))


def conv(w: Tensors, name: str, x: Array, stride: int, pad: int = 0) -> Array:
    """The convolution of a signal [channels, length]."""
    kernel = w[f"{name}.weight"]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (pad, pad))), kernel.shape[2], axis=1)
    y = np.einsum("clk,ock->ol", windows[:, ::stride], kernel)
    return np.asarray(y + w.get(f"{name}.bias", np.zeros(len(kernel)))[:, None])


def log_mel(samples: Array, weights: Array) -> Array:
    """Whisper's features [bands, frames] of samples [n], for mel bands [201, bands]."""
    padded = np.pad(samples.astype(np.float64), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:-1]
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:-1])) ** 2
    decades = np.log10(np.maximum(power @ weights, 1e-10)).T
    return np.asarray((np.maximum(decades, decades.max() - 8) + 4) / 4)


def whisper_encoder(w: Tensors, features: Array, layers: int, heads: int) -> Array:
    """Rows [positions, width] of features [bands, frames]."""
    x = gelu(conv(w, "model.encoder.conv1", features, 1, 1))
    x = gelu(conv(w, "model.encoder.conv2", x, 2, 1)).T + w["model.encoder.embed_positions.weight"]
    for i in range(layers):
        name = f"model.encoder.layers.{i}"
        y = norm(w, f"{name}.self_attn_layer_norm", x)
        q, k, v = (linear(w, f"{name}.self_attn.{part}_proj", y) for part in "qkv")
        x = x + linear(w, f"{name}.self_attn.out_proj", attention(q, k, v, heads))
        x = x + _feed_forward(w, name, x)
    return norm(w, "model.encoder.layer_norm", x)


def whisper_decoder(w: Tensors, tokens: list[int], encoded: Array, layers: int, heads: int) -> Array:
    """Logits [tokens, vocabulary]."""
    words = w["model.decoder.embed_tokens.weight"]
    x = words[tokens] + w["model.decoder.embed_positions.weight"][: len(tokens)]
    for i in range(layers):
        name = f"model.decoder.layers.{i}"
        y = norm(w, f"{name}.self_attn_layer_norm", x)
        q, k, v = (linear(w, f"{name}.self_attn.{part}_proj", y) for part in "qkv")
        x = x + linear(w, f"{name}.self_attn.out_proj", attention(q, k, v, heads, causal=True))
        q = linear(w, f"{name}.encoder_attn.q_proj", norm(w, f"{name}.encoder_attn_layer_norm", x))
        k, v = (linear(w, f"{name}.encoder_attn.{part}_proj", encoded) for part in "kv")
        x = x + linear(w, f"{name}.encoder_attn.out_proj", attention(q, k, v, heads))
        x = x + _feed_forward(w, name, x)
    return np.asarray(norm(w, "model.decoder.layer_norm", x) @ words.T)


def _feed_forward(w: Tensors, name: str, x: Array) -> Array:
    return linear(w, f"{name}.fc2", gelu(linear(w, f"{name}.fc1", norm(w, f"{name}.final_layer_norm", x))))


def rotated(x: Array, heads: int, turned: int) -> Array:
    """Rows [L, heads * size] whose neighbouring values are turned as pairs by angles of their position."""
    y = x.reshape(len(x), heads, -1).copy()
    for pair in range(turned // 2):
        angle = np.arange(len(x)) * 10000.0 ** (-2 * pair / turned)
        whole = (y[..., 2 * pair] + 1j * y[..., 2 * pair + 1]) * np.exp(1j * angle)[:, None]
        y[..., 2 * pair], y[..., 2 * pair + 1] = whole.real, whole.imag
    return y.reshape(x.shape)


def moonshine_encoder(w: Tensors, samples: Array, config: MoonshineConfig) -> Array:
    """Rows [positions, width] of samples [n]."""
    heads = config.encoder_num_attention_heads
    x = np.tanh(conv(w, "model.encoder.conv1", samples[None], 64))
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    x = x * w["model.encoder.groupnorm.weight"][:, None] + w["model.encoder.groupnorm.bias"][:, None]
    x = gelu(conv(w, "model.encoder.conv3", gelu(conv(w, "model.encoder.conv2", x, 3)), 2)).T
    for i in range(config.encoder_num_hidden_layers):
        name = f"model.encoder.layers.{i}"
        y = norm(w, f"{name}.input_layernorm", x)
        q, k = (rotated(linear(w, f"{name}.self_attn.{part}_proj", y), heads, config.turned) for part in "qk")
        y = attention(q, k, linear(w, f"{name}.self_attn.v_proj", y), heads)
        x = x + linear(w, f"{name}.self_attn.o_proj", y)
        y = gelu(linear(w, f"{name}.mlp.fc1", norm(w, f"{name}.post_attention_layernorm", x)))
        x = x + linear(w, f"{name}.mlp.fc2", y)
    return norm(w, "model.encoder.layer_norm", x)


def moonshine_decoder(w: Tensors, tokens: list[int], encoded: Array, config: MoonshineConfig) -> Array:
    """Logits [tokens, vocabulary]."""
    heads, words = config.decoder_num_attention_heads, w["model.decoder.embed_tokens.weight"]
    x = words[tokens]
    for i in range(config.decoder_num_hidden_layers):
        name = f"model.decoder.layers.{i}"
        y = norm(w, f"{name}.input_layernorm", x)
        q, k = (rotated(linear(w, f"{name}.self_attn.{part}_proj", y), heads, config.turned) for part in "qk")
        y = attention(q, k, linear(w, f"{name}.self_attn.v_proj", y), heads, causal=True)
        x = x + linear(w, f"{name}.self_attn.o_proj", y)
        q = linear(w, f"{name}.encoder_attn.q_proj", norm(w, f"{name}.post_attention_layernorm", x))
        k, v = (linear(w, f"{name}.encoder_attn.{part}_proj", encoded) for part in "kv")
        x = x + linear(w, f"{name}.encoder_attn.o_proj", attention(q, k, v, heads))
        plain, gate = np.split(linear(w, f"{name}.mlp.fc1", norm(w, f"{name}.final_layernorm", x)), 2, axis=1)
        x = x + linear(w, f"{name}.mlp.fc2", gate / (1 + np.exp(-gate)) * plain)
    return np.asarray(norm(w, "model.decoder.norm", x) @ words.T)


def bert_embedding(w: Tensors, tokens: list[int], layers: int, heads: int, prefix: str = "") -> Array:
    """The embedding [hidden] of a text."""
    parts = {name: w[f"{prefix}embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = parts["word"][tokens] + parts["position"][: len(tokens)] + parts["token_type"][0]
    x = norm(w, f"{prefix}embeddings.LayerNorm", x)
    for i in range(layers):
        name = f"{prefix}encoder.layer.{i}"
        q, k, v = (linear(w, f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
        y = linear(w, f"{name}.attention.output.dense", attention(q, k, v, heads))
        x = norm(w, f"{name}.attention.output.LayerNorm", x + y)
        y = linear(w, f"{name}.output.dense", gelu(linear(w, f"{name}.intermediate.dense", x)))
        x = norm(w, f"{name}.output.LayerNorm", x + y)
    mean = x.mean(0)
    return np.asarray(mean / np.linalg.norm(mean))


def clip_layers(w: Tensors, prefix: str, x: Array, sizes: TowerConfig, *, causal: bool) -> Array:
    """Rows behind all layers of a tower."""
    for i in range(sizes.num_hidden_layers):
        name = f"{prefix}.encoder.layers.{i}"
        y = norm(w, f"{name}.layer_norm1", x)
        q, k, v = (linear(w, f"{name}.self_attn.{part}_proj", y) for part in "qkv")
        y = attention(q, k, v, sizes.num_attention_heads, causal)
        x = x + linear(w, f"{name}.self_attn.out_proj", y)
        y = linear(w, f"{name}.mlp.fc1", norm(w, f"{name}.layer_norm2", x))
        y = gelu(y) if sizes.hidden_act == "gelu" else y / (1 + np.exp(-1.702 * y))
        x = x + linear(w, f"{name}.mlp.fc2", y)
    return x


def clip_text(w: Tensors, tokens: list[int], config: ClipConfig) -> Array:
    """The embedding of a text that ends with the token of the end."""
    places = w["text_model.embeddings.position_embedding.weight"][: len(tokens)]
    x = w["text_model.embeddings.token_embedding.weight"][tokens] + places
    x = clip_layers(w, "text_model", x, config.text, causal=True)
    y = linear(w, "text_projection", norm(w, "text_model.final_layer_norm", x)[-1])
    return np.asarray(y / np.linalg.norm(y))


def clip_image(w: Tensors, image: Array, config: ClipConfig) -> Array:
    """The embedding of an image [channels, size, size]."""
    name, sizes = "vision_model.embeddings", config.image
    patch, side = sizes.patch_size, sizes.image_size // sizes.patch_size
    cut = image.reshape(sizes.num_channels, side, patch, side, patch).transpose(1, 3, 0, 2, 4).reshape(side * side, -1)
    x = cut @ w[f"{name}.patch_embedding.weight"].reshape(sizes.hidden_size, -1).T
    x = np.concatenate([w[f"{name}.class_embedding"][None], x]) + w[f"{name}.position_embedding.weight"]
    x = clip_layers(w, "vision_model", norm(w, "vision_model.pre_layrnorm", x), sizes, causal=False)
    y = linear(w, "visual_projection", norm(w, "vision_model.post_layernorm", x)[0])
    return np.asarray(y / np.linalg.norm(y))
