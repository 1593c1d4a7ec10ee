"""Decoders that read images, as a tower for an image and a language model: Idefics 3, SmolVLM, LLaVA and Gemma 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.transformers import image_tower
from tenon.formats.decompositions.transformers.clip import ImageTowerConfig
from tenon.formats.decompositions.transformers.image_tower import ImageTower, ProjectorKind, SiglipConfig
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.safetensors.decoder_config import FAMILIES
from tenon.formats.importers.safetensors.decoders import build_decoder
from tenon.formats.importers.safetensors.image_settings import stated_preprocessing
from tenon.formats.importers.safetensors.settings import ModelSettings
from tenon.formats.importers.shared.image_texts import image_text, usual_preprocessing
from tenon.network.graph.graph import Array, Graph


@dataclass(frozen=True)
class _Family:
    """The tower of models of a type, and the settings of their decoders that files leave out."""

    kind: str
    projector: ProjectorKind
    usual: Mapping[str, Any]


_LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-6}
_GEMMA = {
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 26,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_FAMILIES: Mapping[str, _Family] = {
    "idefics3": _Family("idefics3", "shuffle", {}),
    "smolvlm": _Family("idefics3", "shuffle", {}),
    "llava": _Family("llava", "perceptron", _LLAMA),
    "gemma3": _Family("gemma3", "pool", _GEMMA),
}

TYPES = tuple(_FAMILIES)
"""The ``model_type`` of such models."""

_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "text_model.": "model.",
    "model.vision_tower.": "",
    "vision_tower.": "",
    "model.vision_model.": "vision_model.",
    "model.connector.": "connector.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
"""Beginnings of the names of tensors as versions of the library have written them, and those that are read."""


def build_image_decoder(builder: GraphBuilder, settings: ModelSettings, tensors: Mapping[str, Array]) -> Graph:
    """The tower, where ``image_features`` is the output at which the network is cut, else the language model."""
    family, own = _FAMILIES[settings.model_type], {_plain(name): array for name, array in tensors.items()}
    part = settings.part("text_config")
    text = ModelSettings({**family.usual, **part.content}, part.name)
    tower, longest = _tower(builder, settings, text, family)
    if builder.cut_outputs == [image_tower.FEATURES]:
        return image_tower.build(builder, tower, own)
    if text.model_type not in FAMILIES:
        what = f"decoders of type {text.model_type!r:.40} behind an image are not supported"
        raise UnsupportedError(settings.name, [Problem(settings.model_type, what, f"{', '.join(FAMILIES)} are")])
    stated: dict[str, Any] = {**text.content, "tie_word_embeddings": _tied(settings, text)}
    image = image_text(family.kind, tower.rows, longest)
    graph = build_decoder(builder, ModelSettings(stated, settings.name), own, image)
    if graph.text is not None:
        graph.text = replace(graph.text, architecture=settings.model_type)
    return graph


def _tower(
    builder: GraphBuilder, settings: ModelSettings, text: ModelSettings, family: _Family
) -> tuple[ImageTower, int]:
    """The tower, and the longest side of images that are cut into parts."""
    clip, part = family.kind == "llava", settings.part("vision_config")
    kind = str(part.content.get("model_type", ""))
    if clip and kind not in ("", "clip_vision_model"):
        what = f"towers of type {kind!r:.40} are not supported"
        raise UnsupportedError(settings.name, [Problem(settings.model_type, what, "clip_vision_model is")])
    sizes = part.read(ImageTowerConfig if clip else SiglipConfig)
    width = text.content.get("hidden_size")
    if type(width) is not int or not 0 < width < 1 << 20:
        raise FormatError(f"{settings.name}: 'hidden_size' is {width!r:.40}, and must be a positive integer")
    preprocessing, longest = stated_preprocessing(builder.file, usual_preprocessing(family.kind))
    factor = 1
    if clip:
        sizes = replace(sizes, num_hidden_layers=_feature_layer(settings, sizes.num_hidden_layers))
    elif family.projector == "shuffle":
        factor = settings.content.get("scale_factor", 2)
    else:
        factor = _pooled(settings, sizes)
    if type(factor) is not int:
        raise FormatError(f"{settings.name}: 'scale_factor' is {factor!r:.40}, and must be a positive integer")
    tower = ImageTower(sizes, family.projector, width, preprocessing, factor, clip, float(family.projector == "pool"))
    tower.check(settings.name)
    return tower, longest


def _feature_layer(settings: ModelSettings, layers: int) -> int:
    """How many layers of the tower run: those up to the one whose states are read."""
    number, how = (
        settings.content.get("vision_feature_layer", -2),
        settings.content.get("vision_feature_select_strategy"),
    )
    own = number + layers + 1 if type(number) is int and number < 0 else number
    if type(own) is not int or not 0 < own <= layers:
        raise FormatError(f"{settings.name}: 'vision_feature_layer' is {number!r:.40}, and the tower has {layers}")
    if how not in (None, "default"):
        raise FormatError(f"{settings.name}: 'vision_feature_select_strategy' is {how!r:.40}, and must be 'default'")
    return own


def _pooled(settings: ModelSettings, sizes: ImageTowerConfig) -> int:
    """The side of the squares of patches whose mean is taken."""
    rows, side = settings.content.get("mm_tokens_per_image", 256), sizes.image_size // sizes.patch_size
    count = next((n for n in range(1, side + 1) if n * n == rows and side % n == 0), 0)
    if not count:
        raise FormatError(
            f"{settings.name}: 'mm_tokens_per_image' is {rows!r:.40}, and must divide {side}x{side} patches"
        )
    return side // count


def _plain(name: str) -> str:
    old = next((old for old in _PREFIXES if name.startswith(old)), "")
    return _PREFIXES[old] + name.removeprefix(old) if old else name


def _tied(settings: ModelSettings, text: ModelSettings) -> bool:
    """Whether the last matrix is that of the embeddings: by the model's settings, else those of its decoder."""
    both = (source.content.get("tie_word_embeddings") for source in (settings, text))
    return next((stated for stated in both if isinstance(stated, bool)), False)
