"""Towers of images in GGUF files of their own (``mmproj``), as llama.cpp reads them.

Source: tools/mtmd of llama.cpp, of which the names of keys and tensors are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.decompositions.transformers import image_tower
from tenon.formats.decompositions.transformers.clip import MEAN, SPREAD, ImageTowerConfig
from tenon.formats.decompositions.transformers.image_tower import PERCEPTRON, SHUFFLED, ImageTower, ProjectorKind
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.gguf.metadata import Metadata
from tenon.formats.importers.gguf.weights import GgufWeights
from tenon.formats.importers.shared.image_texts import HALF, image_preprocessing, image_text
from tenon.network.graph.graph import Graph
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.text_model import ImageText, TextModel

ARCHITECTURE = "clip"
"""The architecture of such files."""


@dataclass(frozen=True)
class _Projector:
    """A projector: the kind of model that has it, the tensor whose extent ``axis`` is that of the embeddings."""

    model: str
    kind: ProjectorKind
    last: str
    axis: int
    factor: int = 1


_PROJECTORS: Mapping[str, _Projector] = {
    "mlp": _Projector("llava", "perceptron", "mm.2.weight", 0),
    "idefics3": _Projector("idefics3", "shuffle", "mm.model.fc.weight", 0, 2),
    "gemma3": _Projector("gemma3", "pool", "mm.input_projection.weight", 1, 4),
}
_NAMES = {
    "v.patch_embd.weight": "vision_model.embeddings.patch_embedding.weight",
    "v.patch_embd.bias": "vision_model.embeddings.patch_embedding.bias",
    "v.position_embd.weight": "vision_model.embeddings.position_embedding.weight",
    "v.class_embd": "vision_model.embeddings.class_embedding",
    "mm.soft_emb_norm.weight": f"{PERCEPTRON}.mm_soft_emb_norm.weight",
    "mm.input_projection.weight": f"{PERCEPTRON}.mm_input_projection_weight",
}
_STEMS = {
    "v.pre_ln": "vision_model.pre_layrnorm",
    "v.post_ln": "vision_model.post_layernorm",
    "mm.0": f"{PERCEPTRON}.linear_1",
    "mm.2": f"{PERCEPTRON}.linear_2",
    "mm.model.fc": SHUFFLED,
}
_OF_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_EXCHANGED = {"ffn_up": "mlp.fc2", "ffn_down": "mlp.fc1"}
"""The names of the two matrices in files of older converters."""

_LAYER = re.compile(r"v\.blk\.(\d{1,4})\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class ImageFile:
    """The tower in a file, and how a language model reads what it gives."""

    tower: ImageTower
    text: ImageText
    weights: GgufWeights

    @classmethod
    def read(cls, m: Metadata, weights: GgufWeights, name: str) -> ImageFile:
        """The tower in the file called ``name``.

        Raises RefusedError for a kind of tower that is not supported, FormatError for impossible sizes.
        """
        projector = _projector(m)
        clip = projector.model == "llava"
        sizes = _sizes(m, projector)
        factor = 1 if clip else m.size("vision.projector.scale_factor", projector.factor)
        width = _extent(weights, projector.last, projector.axis)
        tower = ImageTower(sizes, projector.kind, width, _preprocessing(m, projector), factor, clip)
        tower.check(name)
        longest = m.size("vision.preproc_image_size", sizes.image_size) if projector.model == "idefics3" else 0
        cut = longest if longest > sizes.image_size else 0
        return cls(tower, image_text(projector.model, tower.rows, cut), weights)

    def build(self, builder: GraphBuilder) -> Graph:
        """The graph of the tower."""
        graph = image_tower.build(builder, self.tower, self._named())
        graph.text = TextModel(kind="encoder", architecture=ARCHITECTURE, ports={"embedding": image_tower.FEATURES})
        return graph

    def _named(self) -> Mapping[str, Weight]:
        """The tensors by the names that the tower's layers have."""
        exchanged = self._exchanged()
        tensors = dict[str, Weight]()
        for name in self.weights.places:
            own = _name(name, exchanged=exchanged)
            weight = self.weights.tensor(name) if own else None
            if weight is not None:
                tensors[own] = weight
        return tensors

    def _exchanged(self) -> bool:
        """Whether the names of the two matrices of layers are exchanged, by the extents of the first one."""
        place, sizes = self.weights.places.get("v.blk.0.ffn_up.weight"), self.tower.sizes
        dims = place[1].dims if place is not None else ()
        return dims == (sizes.hidden_size, sizes.intermediate_size) and dims != dims[::-1]


def _name(name: str, *, exchanged: bool) -> str:
    """The name of a tensor among a tower's layers; "" for one that these do not have."""
    if name in _NAMES:
        return _NAMES[name]
    stem, _, kind = name.rpartition(".")
    if stem in _STEMS:
        return f"{_STEMS[stem]}.{kind}"
    parts = _LAYER.fullmatch(name)
    if parts is None:
        return ""
    own = {**_OF_LAYER, **(_EXCHANGED if exchanged else {})}.get(parts[2])
    return f"vision_model.encoder.layers.{parts[1]}.{own}.{parts[3]}" if own else ""


def _projector(m: Metadata) -> _Projector:
    kind = m.text("projector_type") or m.text("vision.projector_type") or "mlp"
    if m.get("has_vision_encoder") is False or kind not in _PROJECTORS:
        raise RefusedError(f"the projector {kind!r:.40} is not supported", f"{', '.join(_PROJECTORS)} are")
    return _PROJECTORS[kind]


def _sizes(m: Metadata, projector: _Projector) -> ImageTowerConfig:
    activation = "silu" if m.get("use_silu") is True else "quick_gelu"
    return ImageTowerConfig(
        m.size("vision.embedding_length"),
        m.size("vision.feed_forward_length"),
        _layers(m, projector),
        m.size("vision.attention.head_count"),
        "gelu_pytorch_tanh" if m.get("use_gelu") is True else activation,
        m.number("vision.attention.layer_norm_epsilon", 1e-5),
        m.size("vision.image_size"),
        m.size("vision.patch_size"),
    )


def _layers(m: Metadata, projector: _Projector) -> int:
    """How many layers run: those up to the one whose states are read, in files that have it for their last one too."""
    count, chosen = m.size("vision.block_count"), m.get("vision.feature_layer")
    if projector.model != "llava" or chosen is None:
        return count
    numbers = [int(n) for n in chosen] if isinstance(chosen, list | np.ndarray) and len(chosen) == 1 else []
    if not numbers or not 0 < numbers[0] <= count:
        raise RefusedError("states of several layers, or of none, as the rows of an image are not supported")
    return numbers[0]


def _extent(weights: GgufWeights, name: str, axis: int) -> int:
    place = weights.places.get(name)
    if place is None or len(place[1].dims) != 2:
        raise FormatError(f"the tensor '{name}' is missing, or is no matrix")
    return int(place[1].dims[axis])


def _preprocessing(m: Metadata, projector: _Projector) -> Preprocessing:
    usual = (MEAN, SPREAD) if projector.model == "llava" else (HALF, HALF)
    mean, spread = (
        _colours(m.get(f"vision.image_{key}"), own) for key, own in zip(("mean", "std"), usual, strict=True)
    )
    if 0 in spread:
        raise FormatError("clip.vision.image_std is 0")
    if projector.model == "llava":
        return image_preprocessing(mean, spread, "bicubic", "crop")
    return image_preprocessing(mean, spread, "lanczos" if projector.model == "idefics3" else "smooth", "stretch")


def _colours(value: Any, usual: tuple[float, ...]) -> tuple[float, ...]:
    """The numbers of three colours."""
    numbers = np.asarray(value if value is not None else usual)
    if numbers.shape != (3,) or numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
        raise FormatError("clip.vision.image_mean and image_std must be a number for each colour")
    return tuple(float(n) for n in numbers)
