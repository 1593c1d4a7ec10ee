"""SigLIP: embeddings of images and of texts, and the logit of one describing the other.

Source: X. Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.transformers.clip import (
    IMAGE,
    IMAGE_EMBEDDING,
    LENGTH,
    TEXT_EMBEDDING,
    TOKENS,
    ClipTower,
    TextTowerConfig,
)
from tenon.formats.decompositions.transformers.image_tower import SiglipConfig
from tenon.formats.decompositions.transformers.layers import Weights
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import F32, I64, TensorType

LOGITS = "logits"


@dataclass(frozen=True)
class SiglipTextConfig(TextTowerConfig):
    """The sizes of the tower of texts, which are padded to ``max_position_embeddings`` tokens."""

    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    vocab_size: int = 32000
    max_position_embeddings: int = 64
    pad_token_id: int = 1


@dataclass(frozen=True)
class SiglipPair:
    """Both towers, and the preprocessing of images."""

    text: SiglipTextConfig
    image: SiglipConfig
    preprocessing: Preprocessing


def build(builder: GraphBuilder, pair: SiglipPair, weights: Weights) -> Graph:
    """``tokens`` i64 [1, length] to ``text_embedding``, and ``image`` f32 [1, 3, size, size] to ``image_embedding``.

    Both are f32 [1, width] of length 1; ``logits`` f32 [1, 1] is that of the text describing the image, whose sigmoid
    is the probability.  Cut the network at one of the embeddings to run one tower alone.  Raises as
    ``GraphBuilder.finish`` does.
    """
    wanted = builder.cut_outputs or [IMAGE_EMBEDDING, TEXT_EMBEDDING, LOGITS]
    if wanted != [TEXT_EMBEDDING]:
        _SiglipImages(builder, pair.image, weights).build(pair.preprocessing)
    if wanted != [IMAGE_EMBEDDING]:
        _SiglipTexts(builder, pair.text, weights).build()
    if LOGITS in wanted:
        with builder.layer("logits", "Logits", LOGITS):
            node = ClipTower(builder, pair.text, weights).node
            scale, bias = (node.weight(name, 1) for name in ("logit_scale", "logit_bias"))
            turned = node.add("Transpose", builder[IMAGE_EMBEDDING], perm=(1, 0))
            product = node.add("MatMul", builder[TEXT_EMBEDDING], turned)
            builder[LOGITS] = node.add("Add", node.add("Mul", product, np.exp(scale)), bias)
    return builder.finish([IMAGE_EMBEDDING, TEXT_EMBEDDING, LOGITS])


class _SiglipTexts(ClipTower):
    """Texts padded to one length, all of whose tokens see one another; the embedding is of the last one."""

    prefix = "text_model"

    def __init__(self, builder: GraphBuilder, config: SiglipTextConfig, weights: Weights) -> None:
        super().__init__(builder, config, weights)
        self.config = config

    def build(self) -> None:
        config, node, builder = self.config, self.node, self.builder
        most, width = config.max_position_embeddings, config.hidden_size
        if TOKENS not in builder.shapes:
            builder.shapes.setdefault(LENGTH, Size(LENGTH, 1, most))
        builder.inputs({TOKENS: TensorType(I64, (1, LENGTH))})
        with builder.layer("text_model.embeddings", "Embedding", "text.0"):
            name, padding = f"{self.prefix}.embeddings", np.full((1, most), config.pad_token_id, np.int64)
            padded = node.slice(node.add("Concat", builder[TOKENS], padding, axis=1), [0], [most], [1])
            words = node.rows(padded, f"{name}.token_embedding.weight", config.vocab_size, width)
            places = node.weight(f"{name}.position_embedding.weight", most, width)
            builder["text.0"] = node.add("Add", node.reshape(words, 1, most, width), places)
        x = self.layers("text.0")
        with builder.layer("text_model.head", "Linear", TEXT_EMBEDDING):
            last = self.norm(node.slice(x, [most - 1], [most], [1]), "final_layer_norm")
            y = node.linear(last, f"{self.prefix}.head", width, width)
            builder[TEXT_EMBEDDING] = node.unit(node.reshape(y, 1, width))


class _SiglipImages(ClipTower):
    """Patches, and a query of the model's own that attends to all of them."""

    prefix = "vision_model"

    def __init__(self, builder: GraphBuilder, config: SiglipConfig, weights: Weights) -> None:
        super().__init__(builder, config, weights)
        self.config = config

    def build(self, preprocessing: Preprocessing) -> None:
        config, builder, size = self.config, self.builder, self.config.image_size
        builder.input(IMAGE, TensorType(F32, (1, config.num_channels, size, size)))
        builder.graph.preprocessing[IMAGE] = preprocessing
        with builder.layer("vision_model.embeddings", "Patches", "image.0"):
            builder["image.0"] = self.patches(builder[IMAGE], config, kind=False, bias=True)
        x = self.layers("image.0")
        with builder.layer("vision_model.head", "AttentionPooling", IMAGE_EMBEDDING):
            y = self._pooled(self.norm(x, "post_layernorm"))
            builder[IMAGE_EMBEDDING] = self.node.unit(self.node.reshape(y, 1, config.hidden_size))

    def _pooled(self, x: Value) -> Value:
        config, node, name = self.config, self.node, f"{self.prefix}.head"
        width, heads = config.hidden_size, config.num_attention_heads
        matrices = np.split(node.weight(f"{name}.attention.in_proj_weight", 3 * width, width), 3)
        biases = np.split(node.weight(f"{name}.attention.in_proj_bias", 3 * width), 3)
        probe = node.value(node.weight(f"{name}.probe", 1, 1, width))
        parts = [
            node.heads(
                node.add("Add", node.add("MatMul", given, np.ascontiguousarray(matrix.T)), bias), heads, width // heads
            )
            for given, matrix, bias in zip((probe, x, x), matrices, biases, strict=True)
        ]
        y = node.merged(node.attend(parts[0], parts[1], parts[2], (width // heads) ** -0.5), width)
        y = node.linear(y, f"{name}.attention.out_proj", width, width)
        z = node.linear(self.norm(y, "head.layernorm"), f"{name}.mlp.fc1", width, config.intermediate_size)
        z = node.linear(node.activation(z, config.hidden_act), f"{name}.mlp.fc2", config.intermediate_size, width)
        return node.add("Add", y, z)
