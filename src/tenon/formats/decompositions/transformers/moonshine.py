"""Moonshine: sound of any length to keys and values, and a decoder of tokens that attends to these.

Source: N. Jeffries et al., Moonshine: Speech Recognition for Live Transcription and Voice Commands (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.transformers.caches import CacheSizes, cross, past, present
from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights, layer_names
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import F32, TensorType

SAMPLES, SOUND, POSITIONS, LOGITS = "samples", "sound_length", "positions", "logits"

STEM = ((127, 64), (7, 3), (3, 2))
"""Kernel and stride of the three convolutions."""


@dataclass(frozen=True)
class MoonshineConfig:
    """Sizes of a Moonshine model, under the names of its ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    encoder_num_hidden_layers: int
    encoder_num_attention_heads: int
    decoder_num_hidden_layers: int
    decoder_num_attention_heads: int
    max_position_embeddings: int = 194
    partial_rotary_factor: float = 0.9
    rope_theta: float = 10000.0

    @property
    def caches(self) -> CacheSizes:
        heads = self.decoder_num_attention_heads
        return CacheSizes(self.decoder_num_hidden_layers, heads, self.head, self.max_position_embeddings)

    @property
    def head(self) -> int:
        """Values of a head."""
        return self.hidden_size // self.decoder_num_attention_heads

    @property
    def turned(self) -> int:
        """Values of a head that are turned by the position."""
        return int(self.head * self.partial_rotary_factor) // 2 * 2


def positions(samples: int) -> int:
    """The positions of the encoder for this many samples."""
    for kernel, stride in STEM:
        samples = (samples - kernel) // stride + 1
    return samples


def build(builder: GraphBuilder, config: MoonshineConfig, weights: Weights) -> Graph:
    """The graph of encoder and decoder, with ports as ``whisper.build`` has them.

    ``samples`` is f32 [1, sound_length], of 1024 to 480000 unless shapes say otherwise; the decoder's ``cross`` inputs
    have the size ``positions``.  Raises as ``GraphBuilder.finish`` does.
    """
    caches = config.caches
    caches.expand_cuts(builder)
    wanted = builder.cut_outputs
    layer_names(weights, "model.decoder.layers", config.decoder_num_hidden_layers)
    if not builder.cut_inputs.issuperset(caches.cross_names):
        _MoonshineEncoder(builder, config, weights).build()
    else:
        _cross_inputs(builder, config)
    if not wanted or not set(caches.cross_names).issuperset(wanted):
        _MoonshineDecoder(builder, config, weights).build()
    return builder.finish([LOGITS, *caches.present_names])


def _cross_inputs(builder: GraphBuilder, config: MoonshineConfig) -> None:
    caches = config.caches
    type = TensorType(F32, (1, caches.heads, POSITIONS, caches.size))
    builder.shapes.setdefault(POSITIONS, Size(POSITIONS, 1, positions(480000)))
    builder.inputs(dict.fromkeys(caches.cross_names, type))


class _MoonshineLayers:
    """Layers that encoder and decoder have."""

    def __init__(self, builder: GraphBuilder, config: MoonshineConfig, weights: Weights) -> None:
        self.builder, self.config, self.caches = builder, config, config.caches
        self.node = TransformerNode(builder, weights)

    def norm(self, x: Value, name: str) -> Value:
        return self.node.norm(x, name, self.config.hidden_size, bias=False)

    def linear(self, x: Value, name: str) -> Value:
        width = self.config.hidden_size
        return self.node.linear(x, name, width, width, bias=False)

    def heads(self, x: Value, heads: int) -> Value:
        return self.node.heads(x, heads, self.config.hidden_size // heads)

    def turned(self, x: Value, name: str, heads: int, tables: tuple[Value, Value]) -> Value:
        """Queries or keys [1, heads, L, size], whose pairs are turned by their positions.

        The pairs of the file are neighbours; here their first values stand before all second ones.
        """
        node, width = self.node, self.config.hidden_size
        size = width // heads
        order = _split_pairs(size, self.config.turned)
        weight = node.weight(f"{name}.weight", width, width).reshape(heads, size, width)[:, order].reshape(width, width)
        flat = self.heads(node.add("MatMul", x, np.ascontiguousarray(weight.T)), heads)
        half = self.config.turned // 2
        parts = node.split(flat, 3, [half, half, *([size - 2 * half] if size > 2 * half else [])])
        (first, second), (cosines, sines) = parts[:2], tables
        turned = (
            node.add("Sub", node.add("Mul", first, cosines), node.add("Mul", second, sines)),
            node.add("Add", node.add("Mul", second, cosines), node.add("Mul", first, sines)),
        )
        return node.add("Concat", *turned, *parts[2:], axis=3)

    def tables(self, places: Value) -> tuple[Value, Value]:
        """Cosines and sines [L, turned / 2] of positions i64 [L]."""
        count = self.config.turned // 2
        frequencies = self.config.rope_theta ** (-np.arange(count) / count)
        angles = self.node.add(
            "Mul",
            self.node.add("Unsqueeze", self.node.add("Cast", places, to="f32"), self.node.ints(1)),
            frequencies.astype(np.float32),
        )
        return self.node.add("Cos", angles), self.node.add("Sin", angles)


def _split_pairs(size: int, turned: int) -> Array:
    """The order of a head's values with the first values of all pairs before the second ones."""
    return np.concatenate([np.arange(0, turned, 2), np.arange(1, turned, 2), np.arange(turned, size)])


class _MoonshineEncoder(_MoonshineLayers):
    """The layers up to the keys and values of all decoder layers."""

    def build(self) -> None:
        config, builder = self.config, self.builder
        if SAMPLES not in builder.shapes:
            builder.shapes.setdefault(SOUND, Size(SOUND, 1024, 480000))
        builder.inputs({SAMPLES: TensorType(F32, (1, SOUND))})
        with builder.layer("model.encoder", "Convolutions", "encoder.0", "cosines", "sines"):
            builder["encoder.0"] = x = self._stem(builder[SAMPLES])
            places = self.node.add("Range", *self._range(x))
            builder["cosines"], builder["sines"] = self.tables(places)
        for i, name in enumerate(
            layer_names(self.node.weights, "model.encoder.layers", config.encoder_num_hidden_layers)
        ):
            with builder.layer(name, "EncoderLayer", f"encoder.{i + 1}"):
                builder[f"encoder.{i + 1}"] = self._layer(builder[f"encoder.{i}"], name)
        with builder.layer("model.encoder.layer_norm", "LayerNorm", "encoded"):
            builder["encoded"] = self.norm(
                builder[f"encoder.{config.encoder_num_hidden_layers}"], "model.encoder.layer_norm"
            )
        for i in range(config.decoder_num_hidden_layers):
            self._cross(i)

    def _range(self, x: Value) -> tuple[Array, Value, Array]:
        return np.array(0, np.int64), self.node.length(x, 1), np.array(1, np.int64)

    def _stem(self, samples: Value) -> Value:
        node, width = self.node, self.config.hidden_size
        x = node.add("Unsqueeze", samples, node.ints(1))
        x = node.conv(x, "model.encoder.conv1", (width, 1, STEM[0][0]), bias=False, strides=STEM[0][1:])
        x = self._group_norm(node.add("Tanh", x), "model.encoder.groupnorm")
        x = node.conv(x, "model.encoder.conv2", (2 * width, width, STEM[1][0]), strides=STEM[1][1:])
        x = node.conv(node.add("Gelu", x), "model.encoder.conv3", (width, 2 * width, STEM[2][0]), strides=STEM[2][1:])
        return node.add("Transpose", node.add("Gelu", x), perm=(0, 2, 1))

    def _group_norm(self, x: Value, name: str) -> Value:
        """Normalisation over all values, then a scale and an offset for each channel of [1, channels, length]."""
        node, width = self.node, self.config.hidden_size
        axes = node.ints(1, 2)
        centred = node.add("Sub", x, node.add("ReduceMean", x, axes, keepdims=1))
        variance = node.add("ReduceMean", node.square(centred), axes, keepdims=1)
        y = node.add("Div", centred, node.add("Sqrt", node.add("Add", variance, 1e-5)))
        scale, offset = (node.weight(f"{name}.{part}", width)[:, None] for part in ("weight", "bias"))
        return node.add("Add", node.add("Mul", y, scale), offset)

    def _layer(self, x: Value, name: str) -> Value:
        config, node, heads = self.config, self.node, self.config.encoder_num_attention_heads
        y, tables = self.norm(x, f"{name}.input_layernorm"), (self.builder["cosines"], self.builder["sines"])
        queries, keys = (self.turned(y, f"{name}.self_attn.{part}_proj", heads, tables) for part in "qk")
        values = self.heads(self.linear(y, f"{name}.self_attn.v_proj"), heads)
        y = node.attend(queries, keys, values, (config.hidden_size // heads) ** -0.5)
        x = node.add("Add", x, self.linear(node.merged(y, config.hidden_size), f"{name}.self_attn.o_proj"))
        y = self.norm(x, f"{name}.post_attention_layernorm")
        y = node.add("Gelu", node.linear(y, f"{name}.mlp.fc1", config.hidden_size, config.intermediate_size))
        return node.add("Add", x, node.linear(y, f"{name}.mlp.fc2", config.intermediate_size, config.hidden_size))

    def _cross(self, layer: int) -> None:
        name = f"model.decoder.layers.{layer}.encoder_attn"
        with self.builder.layer(name, "CrossAttention", cross(layer, "key"), cross(layer, "value")):
            for part in ("key", "value"):
                y = self.linear(self.builder["encoded"], f"{name}.{part[0]}_proj")
                self.builder[cross(layer, part)] = self.heads(y, self.caches.heads)


class _MoonshineDecoder(_MoonshineLayers):
    """The layers from tokens and caches to logits."""

    def build(self) -> None:
        config, node, builder = self.config, self.node, self.builder
        tokens, width = self.caches.add_inputs(builder), config.hidden_size
        with builder.layer("model.decoder.embed", "Embedding", "decoder.0", "seen", "turn.cosines", "turn.sines"):
            words = node.weight("model.decoder.embed_tokens.weight", config.vocab_size, width)
            own, builder["seen"] = node.positions(tokens, builder[past(0, "key")])
            builder["turn.cosines"], builder["turn.sines"] = self.tables(own)
            builder["decoder.0"] = node.add("Gather", words, tokens, axis=0)
        for i in range(config.decoder_num_hidden_layers):
            tops = (f"decoder.{i + 1}", present(i, "key"), present(i, "value"))
            with builder.layer(f"model.decoder.layers.{i}", "DecoderLayer", *tops):
                builder[f"decoder.{i + 1}"] = self._layer(builder[f"decoder.{i}"], i)
        with builder.layer("proj_out", "Linear", LOGITS):
            last = builder[f"decoder.{config.decoder_num_hidden_layers}"]
            y = self.norm(node.add("Gather", last, np.array([-1], np.int64), axis=1), "model.decoder.norm")
            words = node.weight("model.decoder.embed_tokens.weight", config.vocab_size, width)
            builder[LOGITS] = node.add("MatMul", y, np.ascontiguousarray(words.T))

    def _layer(self, x: Value, layer: int) -> Value:
        node, name = self.node, f"model.decoder.layers.{layer}"
        x = node.add("Add", x, self._self_attention(self.norm(x, f"{name}.input_layernorm"), layer, name))
        x = node.add("Add", x, self._cross_attention(self.norm(x, f"{name}.post_attention_layernorm"), layer, name))
        return node.add("Add", x, self._feed_forward(self.norm(x, f"{name}.final_layernorm"), f"{name}.mlp"))

    def _self_attention(self, y: Value, layer: int, name: str) -> Value:
        node, heads, builder = self.node, self.caches.heads, self.builder
        tables = builder["turn.cosines"], builder["turn.sines"]
        queries, keys = (self.turned(y, f"{name}.self_attn.{part}_proj", heads, tables) for part in "qk")
        values = self.heads(self.linear(y, f"{name}.self_attn.v_proj"), heads)
        for part, value in (("key", keys), ("value", values)):
            builder[present(layer, part)] = node.add("Concat", builder[past(layer, part)], value, axis=2)
        keys, values = (builder[present(layer, part)] for part in ("key", "value"))
        y = node.attend(queries, keys, values, self.caches.size**-0.5, builder["seen"])
        return self.linear(node.merged(y, self.config.hidden_size), f"{name}.self_attn.o_proj")

    def _cross_attention(self, y: Value, layer: int, name: str) -> Value:
        node = self.node
        queries = self.heads(self.linear(y, f"{name}.encoder_attn.q_proj"), self.caches.heads)
        keys, values = (self.builder[cross(layer, part)] for part in ("key", "value"))
        y = node.attend(queries, keys, values, self.caches.size**-0.5)
        return self.linear(node.merged(y, self.config.hidden_size), f"{name}.encoder_attn.o_proj")

    def _feed_forward(self, y: Value, name: str) -> Value:
        node, width, inner = self.node, self.config.hidden_size, self.config.intermediate_size
        plain, gate = node.split(node.linear(y, f"{name}.fc1", width, 2 * inner), 2, [inner, inner])
        gated = node.add("Mul", node.add("Mul", gate, node.add("Sigmoid", gate)), plain)
        return node.linear(gated, f"{name}.fc2", inner, width)
