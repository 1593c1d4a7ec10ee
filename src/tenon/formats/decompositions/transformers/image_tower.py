"""Towers of images: a vision transformer, CLIP's or SigLIP's, and a projector to the embeddings of a language model.

Sources: A. Radford et al., Learning Transferable Visual Models From Natural Language Supervision (2021);
X. Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023).  Of projectors: H. Liu et al., Improved Baselines
with Visual Instruction Tuning (2023); H. Laurençon et al., Building and Better Understanding Vision-Language Models
(2024); Gemma Team, Gemma 3 Technical Report (2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tenon.errors import FormatError
from tenon.formats.decompositions.transformers.clip import IMAGE, ClipTower, ImageTowerConfig
from tenon.formats.decompositions.transformers.layers import Weights
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.types import F32, TensorType

FEATURES = "image_features"
"""The output of a tower: the embeddings of an image."""

ProjectorKind = Literal["shuffle", "perceptron", "pool", "linear"]
"""The kinds of projectors: a matrix over squares of patches, two matrices with GELU between them, the mean of squares
of patches with a normalisation and a matrix behind it, one matrix."""

SHUFFLED, PERCEPTRON = "connector.modality_projection.proj", "multi_modal_projector"
"""Names of projectors' tensors."""


@dataclass(frozen=True)
class SiglipConfig(ImageTowerConfig):
    """The sizes of a tower as SigLIP has it, under the names of ``config.json``."""

    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6


@dataclass(frozen=True)
class ImageTower:
    """A tower: its sizes, and what follows its layers.

    ``width`` is that of the language model's embeddings; ``factor`` times ``factor`` patches become one row.  ``added``
    is what the scale of the projector's normalisation lacks.  ``clip``: a class's vector comes before the patches and
    is left out of the rows, embeddings are normalised before the first layer, and states are not after the last one.
    """

    sizes: ImageTowerConfig
    projector: ProjectorKind
    width: int
    preprocessing: Preprocessing
    factor: int = 1
    clip: bool = False
    added: float = 0.0

    @property
    def side(self) -> int:
        """Patches of a row of the image."""
        return self.sizes.image_size // self.sizes.patch_size

    @property
    def rows(self) -> int:
        """The rows that an image becomes."""
        return (self.side // self.factor) ** 2

    def check(self, name: str) -> None:
        """Raises FormatError for impossible sizes in the file called ``name``."""
        sizes = self.sizes
        if sizes.image_size % sizes.patch_size or sizes.hidden_size % sizes.num_attention_heads:
            raise FormatError(
                f"{name}: {sizes.image_size} pixels in patches of {sizes.patch_size}, or {sizes.hidden_size} elements "
                f"in {sizes.num_attention_heads} heads, do not fit"
            )
        if not 0 < self.factor <= self.side or self.side % self.factor:
            raise FormatError(f"{name}: 'scale_factor' is {self.factor}, and divides {self.side} patches")


def build(builder: GraphBuilder, tower: ImageTower, weights: Weights) -> Graph:
    """``image`` f32 [1, 3, size, size] to ``image_features`` f32 [rows, width], the embeddings of a decoder.

    Raises as ``GraphBuilder.finish`` does.
    """
    _Tower(builder, tower, weights).build()
    return builder.finish([FEATURES])


class _Tower(ClipTower):
    """The layers from an image to rows."""

    prefix = "vision_model"

    def __init__(self, builder: GraphBuilder, tower: ImageTower, weights: Weights) -> None:
        super().__init__(builder, tower.sizes, weights)
        self.tower, self.config = tower, tower.sizes

    def build(self) -> None:
        config, builder, size = self.config, self.builder, self.config.image_size
        builder.input(IMAGE, TensorType(F32, (1, config.num_channels, size, size)))
        builder.graph.preprocessing[IMAGE] = self.tower.preprocessing
        with builder.layer("vision_model.embeddings", "Patches", "image.0"):
            patches = self.patches(builder[IMAGE], config, kind=self.tower.clip, bias=not self.tower.clip)
            builder["image.0"] = self.norm(patches, "pre_layrnorm") if self.tower.clip else patches
        last = self.layers("image.0")
        with builder.layer("connector", "Connector", FEATURES):
            x = self._rows(last)
            projected = {
                "shuffle": self._shuffled,
                "perceptron": self._perceptron,
                "pool": self._pooled,
                "linear": self._linear,
            }[self.tower.projector](x)
            builder[FEATURES] = self.node.reshape(projected, self.tower.rows, self.tower.width)

    def _rows(self, x: Value) -> Value:
        """The states of patches, [1, patches, hidden]."""
        if self.tower.clip:
            return self.node.slice(x, [1], [self.tower.side**2 + 1], [1])
        return self.norm(x, "post_layernorm")

    def _shuffled(self, x: Value) -> Value:
        """Squares of patches, row by row, one behind the other, times a matrix."""
        node, width, factor = self.node, self.config.hidden_size, self.tower.factor
        count = self.tower.side // factor
        y = node.add("Transpose", node.reshape(x, count, factor, count, factor, width), perm=(0, 2, 1, 3, 4))
        inputs = factor * factor * width
        return node.linear(node.reshape(y, count * count, inputs), SHUFFLED, inputs, self.tower.width, bias=False)

    def _perceptron(self, x: Value) -> Value:
        node, width = self.node, self.tower.width
        y = node.add("Gelu", node.linear(x, f"{PERCEPTRON}.linear_1", self.config.hidden_size, width))
        return node.linear(y, f"{PERCEPTRON}.linear_2", width, width)

    def _linear(self, x: Value) -> Value:
        return self.node.linear(x, f"{PERCEPTRON}.linear", self.config.hidden_size, self.tower.width)

    def _pooled(self, x: Value) -> Value:
        """The means of squares of patches, normalised by their root mean square, times a matrix."""
        node, width, side, factor = self.node, self.config.hidden_size, self.tower.side, self.tower.factor
        y = node.reshape(node.add("Transpose", x, perm=(0, 2, 1)), 1, width, side, side)
        y = node.add("AveragePool", y, kernel_shape=(factor, factor), strides=(factor, factor))
        y = node.add("Transpose", node.reshape(y, 1, width, self.tower.rows), perm=(0, 2, 1))
        scale = node.weight(f"{PERCEPTRON}.mm_soft_emb_norm.weight", width) + self.tower.added
        y = node.add("RMSNormalization", y, scale.astype("float32"), epsilon=self.config.layer_norm_eps)
        return node.add("MatMul", y, node.weight(f"{PERCEPTRON}.mm_input_projection_weight", width, self.tower.width))
