"""Whisper: sound of 30 seconds to keys and values, and a decoder of tokens that attends to these.

Source: A. Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.transformers.caches import CacheSizes, cross, past, present
from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights, layer_names
from tenon.formats.decompositions.transformers.log_mel import LogMel, log_mel
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, TensorType

SAMPLES, LOGITS = "samples", "logits"


@dataclass(frozen=True)
class WhisperConfig:
    """Sizes of a Whisper model, under the names of its ``config.json``."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_target_positions: int = 448

    @property
    def samples(self) -> int:
        """Samples of the sound: a position for two frames."""
        return 2 * self.max_source_positions * LogMel.step

    @property
    def caches(self) -> CacheSizes:
        heads = self.decoder_attention_heads
        return CacheSizes(self.decoder_layers, heads, self.d_model // heads, self.max_target_positions)


def build(builder: GraphBuilder, config: WhisperConfig, weights: Weights, filters: Array | None = None) -> Graph:
    """The graph of encoder and decoder.

    ``samples`` f32 [1, samples] to ``cross.N.key`` and ``.value`` f32 [1, heads, positions, size]; with these and
    ``tokens`` i64 [1, length] to ``logits`` f32 [1, 1, vocabulary] of the last token, and caches.  Cut it at the
    ``cross`` tensors to run the encoder once for a sound.  ``filters`` f32 [bands, bins] are the mel bands of the file,
    where it has its own.  Raises as ``GraphBuilder.finish`` does.
    """
    caches = config.caches
    caches.expand_cuts(builder)
    wanted = builder.cut_outputs
    layer_names(weights, "model.decoder.layers", config.decoder_layers)
    if not builder.cut_inputs.issuperset(caches.cross_names):
        _WhisperEncoder(builder, config, weights).build(filters)
    else:
        _cross_inputs(builder, config)
    if not wanted or not set(caches.cross_names).issuperset(wanted):
        _WhisperDecoder(builder, config, weights).build()
    return builder.finish([LOGITS, *caches.present_names])


def _cross_inputs(builder: GraphBuilder, config: WhisperConfig) -> None:
    caches = config.caches
    for name in caches.cross_names:
        builder.input(name, TensorType(F32, (1, caches.heads, config.max_source_positions, caches.size)))


class _WhisperEncoder:
    """The layers up to the keys and values of all decoder layers."""

    def __init__(self, builder: GraphBuilder, config: WhisperConfig, weights: Weights) -> None:
        self.builder, self.config = builder, config
        self.node = TransformerNode(builder, weights)

    def build(self, filters: Array | None) -> None:
        config, node, builder = self.config, self.node, self.builder
        samples = builder.input(SAMPLES, TensorType(F32, (1, config.samples)))
        with builder.layer("features", "LogMel", "features"):
            builder["features"] = log_mel(node, samples, LogMel(bands=config.num_mel_bins), filters)
        with builder.layer("model.encoder", "Convolutions", "encoder.0"):
            builder["encoder.0"] = self._stem(builder["features"])
        for i, name in enumerate(layer_names(self.node.weights, "model.encoder.layers", config.encoder_layers)):
            with builder.layer(name, "EncoderLayer", f"encoder.{i + 1}"):
                builder[f"encoder.{i + 1}"] = self._layer(builder[f"encoder.{i}"], name)
        with builder.layer("model.encoder.layer_norm", "LayerNorm", "encoded"):
            last = builder[f"encoder.{config.encoder_layers}"]
            builder["encoded"] = node.norm(last, "model.encoder.layer_norm", config.d_model)
        for i in range(config.decoder_layers):
            self._cross(i)

    def _stem(self, features: Value) -> Value:
        config, node = self.config, self.node
        width = config.d_model
        x = node.conv(features, "model.encoder.conv1", (width, config.num_mel_bins, 3), pads=(1, 1))
        x = node.conv(node.add("Gelu", x), "model.encoder.conv2", (width, width, 3), strides=(2,), pads=(1, 1))
        x = node.add("Transpose", node.add("Gelu", x), perm=(0, 2, 1))
        places = node.weight("model.encoder.embed_positions.weight", config.max_source_positions, width)
        return node.add("Add", x, places)

    def _layer(self, x: Value, name: str) -> Value:
        config, node = self.config, self.node
        width, count = config.d_model, config.encoder_attention_heads
        y = node.norm(x, f"{name}.self_attn_layer_norm", width)
        flat = [node.linear(y, f"{name}.self_attn.{part}_proj", width, width, bias=part != "k") for part in "qkv"]
        queries, keys, values = (node.heads(part, count, width // count) for part in flat)
        y = node.merged(node.attend(queries, keys, values, (width // count) ** -0.5), width)
        x = node.add("Add", x, node.linear(y, f"{name}.self_attn.out_proj", width, width))
        return node.add("Add", x, feed_forward(node, x, name, width, config.encoder_ffn_dim))

    def _cross(self, layer: int) -> None:
        caches, width, name = self.config.caches, self.config.d_model, f"model.decoder.layers.{layer}.encoder_attn"
        with self.builder.layer(name, "CrossAttention", cross(layer, "key"), cross(layer, "value")):
            for part in ("key", "value"):
                y = self.node.linear(
                    self.builder["encoded"], f"{name}.{part[0]}_proj", width, width, bias=part == "value"
                )
                self.builder[cross(layer, part)] = self.node.heads(y, caches.heads, caches.size)


class _WhisperDecoder:
    """The layers from tokens and caches to logits."""

    def __init__(self, builder: GraphBuilder, config: WhisperConfig, weights: Weights) -> None:
        self.builder, self.config, self.caches = builder, config, config.caches
        self.node = TransformerNode(builder, weights)

    def build(self) -> None:
        config, node, builder = self.config, self.node, self.builder
        tokens, width = self.caches.add_inputs(builder), config.d_model
        with builder.layer("model.decoder.embed", "Embedding", "decoder.0", "seen"):
            places = node.weight("model.decoder.embed_positions.weight", config.max_target_positions, width)
            own, builder["seen"] = node.positions(tokens, builder[past(0, "key")])
            embedded = node.rows(tokens, "model.decoder.embed_tokens.weight", config.vocab_size, width)
            builder["decoder.0"] = node.add("Add", embedded, node.add("Gather", places, own, axis=0))
        for i in range(config.decoder_layers):
            tops = (f"decoder.{i + 1}", present(i, "key"), present(i, "value"))
            with builder.layer(f"model.decoder.layers.{i}", "DecoderLayer", *tops):
                builder[f"decoder.{i + 1}"] = self._layer(builder[f"decoder.{i}"], i)
        with builder.layer("proj_out", "Linear", LOGITS):
            last = node.add("Gather", builder[f"decoder.{config.decoder_layers}"], np.array([-1], np.int64), axis=1)
            y = node.norm(last, "model.decoder.layer_norm", width)
            builder[LOGITS] = node.product(y, "model.decoder.embed_tokens.weight", width, config.vocab_size)

    def _layer(self, x: Value, layer: int) -> Value:
        node, width, name = self.node, self.config.d_model, f"model.decoder.layers.{layer}"
        y = self._self_attention(node.norm(x, f"{name}.self_attn_layer_norm", width), layer, name)
        x = node.add("Add", x, y)
        y = self._cross_attention(node.norm(x, f"{name}.encoder_attn_layer_norm", width), layer, name)
        x = node.add("Add", x, y)
        return node.add("Add", x, feed_forward(node, x, name, width, self.config.decoder_ffn_dim))

    def _self_attention(self, y: Value, layer: int, name: str) -> Value:
        node, width = self.node, self.config.d_model
        queries, *new = (
            self._heads(node.linear(y, f"{name}.self_attn.{part}_proj", width, width, bias=part != "k"))
            for part in "qkv"
        )
        for part, value in zip(("key", "value"), new, strict=True):
            joined = node.add("Concat", self.builder[past(layer, part)], value, axis=2)
            self.builder[present(layer, part)] = joined
        keys, values = (self.builder[present(layer, part)] for part in ("key", "value"))
        y = node.attend(queries, keys, values, self.caches.size**-0.5, self.builder["seen"])
        return node.linear(node.merged(y, width), f"{name}.self_attn.out_proj", width, width)

    def _cross_attention(self, y: Value, layer: int, name: str) -> Value:
        node, width = self.node, self.config.d_model
        queries = self._heads(node.linear(y, f"{name}.encoder_attn.q_proj", width, width))
        keys, values = (self.builder[cross(layer, part)] for part in ("key", "value"))
        y = node.attend(queries, keys, values, self.caches.size**-0.5)
        return node.linear(node.merged(y, width), f"{name}.encoder_attn.out_proj", width, width)

    def _heads(self, x: Value) -> Value:
        return self.node.heads(x, self.caches.heads, self.caches.size)


def feed_forward(node: TransformerNode, x: Value, name: str, width: int, inner: int) -> Value:
    """The two linear layers with GELU between them, over normalised values."""
    y = node.norm(x, f"{name}.final_layer_norm", width)
    return node.linear(node.add("Gelu", node.linear(y, f"{name}.fc1", width, inner)), f"{name}.fc2", inner, width)
