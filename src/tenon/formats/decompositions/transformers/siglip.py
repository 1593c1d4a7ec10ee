"""The image tower of Idefics 3 and SmolVLM: SigLIP, and a connector that makes rows of several patches each.

Sources: X. Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023); H. Laurençon et al., Building and Better
Understanding Vision-Language Models (2024), for the connector; A. Marafioti et al., SmolVLM (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.formats.decompositions.transformers.clip import IMAGE, ImageTowerConfig
from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights, layer_names
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.types import F32, TensorType

FEATURES = "image_features"

_MIDDLE = 127.5
"""The mean and the spread of colours that the tower takes."""


@dataclass(frozen=True)
class SiglipConfig(ImageTowerConfig):
    """Sizes of the tower, under the names of ``config.json``."""

    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    @property
    def side(self) -> int:
        """Patches of a row of the image."""
        return self.image_size // self.patch_size


def rows(config: SiglipConfig, factor: int) -> int:
    """The rows that an image becomes, where ``factor`` times ``factor`` patches become one."""
    return (config.side // factor) ** 2


def build(builder: GraphBuilder, config: SiglipConfig, weights: Weights, factor: int, width: int) -> Graph:
    """``image`` f32 [1, 3, size, size] to ``image_features`` f32 [rows, width], the embeddings of a decoder.

    Raises as ``GraphBuilder.finish`` does.
    """
    _SiglipTower(builder, config, weights).build(factor, width)
    return builder.finish([FEATURES])


class _SiglipTower:
    """The layers from an image to rows."""

    def __init__(self, builder: GraphBuilder, config: SiglipConfig, weights: Weights) -> None:
        self.builder, self.config = builder, config
        self.node = TransformerNode(builder, weights)

    def build(self, factor: int, width: int) -> None:
        config, builder, size = self.config, self.builder, self.config.image_size
        builder.input(IMAGE, TensorType(F32, (1, config.num_channels, size, size)))
        builder.graph.preprocessing[IMAGE] = Preprocessing(mean=(_MIDDLE,), scale=(1 / _MIDDLE,), fit="stretch")
        with builder.layer("vision_model.embeddings", "Patches", "image.0"):
            builder["image.0"] = self._patches(builder[IMAGE])
        last = "image.0"
        for name in layer_names(self.node.weights, "vision_model.encoder.layers", config.num_hidden_layers):
            with builder.layer(name, "SiglipLayer", f"{name}.y"):
                builder[f"{name}.y"] = self._layer(builder[last], name)
            last = f"{name}.y"
        with builder.layer("connector", "Connector", FEATURES):
            x = self._norm(builder[last], "vision_model.post_layernorm")
            joined = self._joined(x, factor)
            name, inputs = "connector.modality_projection.proj", config.hidden_size * factor * factor
            builder[FEATURES] = self.node.linear(joined, name, inputs, width, bias=False)

    def _norm(self, x: Value, name: str) -> Value:
        return self.node.norm(x, name, self.config.hidden_size, epsilon=self.config.layer_norm_eps)

    def _patches(self, image: Value) -> Value:
        """[1, patches, hidden] with their positions."""
        config, node, name = self.config, self.node, "vision_model.embeddings"
        width, patch, count = config.hidden_size, config.patch_size, config.side**2
        filters = node.weight(f"{name}.patch_embedding.weight", width, config.num_channels, patch, patch)
        x = node.add("Conv", image, filters, node.weight(f"{name}.patch_embedding.bias", width), strides=(patch, patch))
        x = node.add("Transpose", node.reshape(x, 1, width, count), perm=(0, 2, 1))
        return node.add("Add", x, node.weight(f"{name}.position_embedding.weight", count, width))

    def _layer(self, x: Value, name: str) -> Value:
        node, config = self.node, self.config
        width, heads = config.hidden_size, config.num_attention_heads
        y = self._norm(x, f"{name}.layer_norm1")
        flat = [node.linear(y, f"{name}.self_attn.{part}_proj", width, width) for part in "qkv"]
        queries, keys, values = (node.heads(part, heads, width // heads) for part in flat)
        y = node.merged(node.attend(queries, keys, values, (width // heads) ** -0.5), width)
        x = node.add("Add", x, node.linear(y, f"{name}.self_attn.out_proj", width, width))
        y = node.linear(self._norm(x, f"{name}.layer_norm2"), f"{name}.mlp.fc1", width, config.intermediate_size)
        y = node.activation(y, config.hidden_act)
        return node.add("Add", x, node.linear(y, f"{name}.mlp.fc2", config.intermediate_size, width))

    def _joined(self, x: Value, factor: int) -> Value:
        """[rows, hidden * factor * factor]: squares of patches, row by row, one behind the other."""
        node, width, count = self.node, self.config.hidden_size, self.config.side // factor
        y = node.reshape(x, count, factor, count, factor, width)
        return node.reshape(node.add("Transpose", y, perm=(0, 2, 1, 3, 4)), count * count, factor * factor * width)
