"""CLIP: embeddings of images and of texts whose cosines say how well one describes the other.

Source: A. Radford et al., Learning Transferable Visual Models From Natural Language Supervision (2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights, layer_names
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import F32, I64, TensorType

TOKENS, LENGTH, IMAGE = "tokens", "length", "image"
TEXT_EMBEDDING, IMAGE_EMBEDDING = "text_embedding", "image_embedding"

MEAN, SPREAD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""The mean and the spread of the colours that CLIP was trained on, from 0 to 1."""


@dataclass(frozen=True)
class TowerConfig:
    """Sizes that the two towers have in common, under the names of ``config.json``."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class TextTowerConfig(TowerConfig):
    """Sizes of the tower of texts."""

    vocab_size: int = 49408
    max_position_embeddings: int = 77


@dataclass(frozen=True)
class ImageTowerConfig(TowerConfig):
    """Sizes of the tower of images."""

    image_size: int = 224
    patch_size: int = 32
    num_channels: int = 3


@dataclass(frozen=True)
class ClipConfig:
    """Sizes of both towers and of their embeddings."""

    text: TextTowerConfig
    image: ImageTowerConfig
    projection_dim: int = 512


def build(builder: GraphBuilder, config: ClipConfig, weights: Weights) -> Graph:
    """``tokens`` i64 [1, length] to ``text_embedding``, and ``image`` f32 [1, 3, size, size] to ``image_embedding``.

    Both are f32 [1, projection] of length 1; cut the network at one of them to run one tower alone.  The last token
    must be that of the end.  Raises as ``GraphBuilder.finish`` does.
    """
    wanted = builder.cut_outputs or [IMAGE_EMBEDDING, TEXT_EMBEDDING]
    if IMAGE_EMBEDDING in wanted:
        _ImageTower(builder, config.image, weights).build(config.projection_dim)
    if TEXT_EMBEDDING in wanted:
        _TextTower(builder, config.text, weights).build(config.projection_dim)
    return builder.finish([IMAGE_EMBEDDING, TEXT_EMBEDDING])


class ClipTower:
    """The layers of a tower, whose tensors begin with ``prefix``."""

    prefix = ""

    def __init__(self, builder: GraphBuilder, config: TowerConfig, weights: Weights) -> None:
        self.builder, self.sizes = builder, config
        self.node = TransformerNode(builder, weights)

    def norm(self, x: Value, name: str) -> Value:
        return self.node.norm(x, f"{self.prefix}.{name}", self.sizes.hidden_size, epsilon=self.sizes.layer_norm_eps)

    def layers(self, first: str, seen: Value | None = None) -> Value:
        """All layers over the value called ``first``."""
        names = layer_names(self.node.weights, f"{self.prefix}.encoder.layers", self.sizes.num_hidden_layers)
        for name in names:
            with self.builder.layer(name, "ClipLayer", f"{name}.y"):
                self.builder[f"{name}.y"] = self._layer(self.builder[first], name, seen)
            first = f"{name}.y"
        return self.builder[first]

    def _layer(self, x: Value, name: str, seen: Value | None) -> Value:
        node, sizes = self.node, self.sizes
        width, heads = sizes.hidden_size, sizes.num_attention_heads
        y = node.norm(x, f"{name}.layer_norm1", width, epsilon=sizes.layer_norm_eps)
        flat = [node.linear(y, f"{name}.self_attn.{part}_proj", width, width) for part in "qkv"]
        queries, keys, values = (node.heads(part, heads, width // heads) for part in flat)
        y = node.merged(node.attend(queries, keys, values, (width // heads) ** -0.5, seen), width)
        x = node.add("Add", x, node.linear(y, f"{name}.self_attn.out_proj", width, width))
        y = node.norm(x, f"{name}.layer_norm2", width, epsilon=sizes.layer_norm_eps)
        y = node.activation(node.linear(y, f"{name}.mlp.fc1", width, sizes.intermediate_size), sizes.hidden_act)
        return node.add("Add", x, node.linear(y, f"{name}.mlp.fc2", sizes.intermediate_size, width))

    def patches(self, image: Value, config: ImageTowerConfig, *, kind: bool, bias: bool) -> Value:
        """The vectors of all patches with their positions, [1, patches, hidden], behind that of the class if there is
        one (``kind``)."""
        node, name = self.node, f"{self.prefix}.embeddings"
        width, patch, side = config.hidden_size, config.patch_size, config.image_size // config.patch_size
        parts = [node.weight(f"{name}.patch_embedding.weight", width, config.num_channels, patch, patch)]
        if bias:
            parts.append(node.weight(f"{name}.patch_embedding.bias", width))
        x = node.add("Conv", image, *parts, strides=(patch, patch))
        x = node.add("Transpose", node.reshape(x, 1, width, side * side), perm=(0, 2, 1))
        places = node.weight(f"{name}.position_embedding.weight", side * side + kind, width)
        if kind:
            x = node.add("Concat", node.weight(f"{name}.class_embedding", width).reshape(1, 1, width), x, axis=1)
        return node.add("Add", x, places)

    def project(self, x: Value, name: str, outputs: int) -> Value:
        """States [1, 1, hidden] as an embedding of length 1."""
        node, width = self.node, self.sizes.hidden_size
        return node.unit(node.reshape(node.linear(x, name, width, outputs, bias=False), 1, outputs))


class _TextTower(ClipTower):
    prefix = "text_model"

    def __init__(self, builder: GraphBuilder, config: TextTowerConfig, weights: Weights) -> None:
        super().__init__(builder, config, weights)
        self.config = config

    def build(self, outputs: int) -> None:
        config, node, builder = self.config, self.node, self.builder
        if TOKENS not in builder.shapes:
            builder.shapes.setdefault(LENGTH, Size(LENGTH, 1, config.max_position_embeddings))
        builder.inputs({TOKENS: TensorType(I64, (1, LENGTH))})
        with builder.layer("text_model.embeddings", "Embedding", "text.0", "text.seen"):
            name, width = f"{self.prefix}.embeddings", config.hidden_size
            words = node.weight(f"{name}.token_embedding.weight", config.vocab_size, width)
            places = node.weight(f"{name}.position_embedding.weight", config.max_position_embeddings, width)
            own, builder["text.seen"] = node.causal(builder[TOKENS])
            embedded = node.add("Gather", words, builder[TOKENS], axis=0)
            builder["text.0"] = node.add("Add", embedded, node.add("Gather", places, own, axis=0))
        x = self.layers("text.0", builder["text.seen"])
        with builder.layer("text_projection", "Linear", TEXT_EMBEDDING):
            last = node.add("Gather", x, np.array([-1], np.int64), axis=1)
            builder[TEXT_EMBEDDING] = self.project(self.norm(last, "final_layer_norm"), "text_projection", outputs)


class _ImageTower(ClipTower):
    prefix = "vision_model"

    def __init__(self, builder: GraphBuilder, config: ImageTowerConfig, weights: Weights) -> None:
        super().__init__(builder, config, weights)
        self.config = config

    def build(self, outputs: int) -> None:
        config, node, builder = self.config, self.node, self.builder
        size = config.image_size
        builder.input(IMAGE, TensorType(F32, (1, config.num_channels, size, size)))
        mean, scale = (tuple(255 * v for v in MEAN), tuple(1 / (255 * v) for v in SPREAD))
        builder.graph.preprocessing[IMAGE] = Preprocessing(mean=mean, scale=scale, fit="crop")
        with builder.layer("vision_model.embeddings", "Patches", "image.0"):
            patches = self.patches(builder[IMAGE], config, kind=True, bias=False)
            builder["image.0"] = self.norm(patches, "pre_layrnorm")
        x = self.layers("image.0")
        with builder.layer("visual_projection", "Linear", IMAGE_EMBEDDING):
            first = node.slice(x, [0], [1], [1])
            builder[IMAGE_EMBEDDING] = self.project(self.norm(first, "post_layernorm"), "visual_projection", outputs)
