"""Decoders that read an image: Idefics 3 and SmolVLM, as a tower for the image and a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.transformers import siglip
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.safetensors.decoder_config import FAMILIES
from tenon.formats.importers.safetensors.decoders import build_decoder
from tenon.formats.importers.safetensors.settings import ModelSettings
from tenon.network.graph.graph import Array, Graph

TYPES = ("idefics3", "smolvlm")
"""The ``model_type`` of such models."""


def build_image_decoder(builder: GraphBuilder, settings: ModelSettings, tensors: Mapping[str, Array]) -> Graph:
    """The tower, where ``image_features`` is the output at which the network is cut, else the language model."""
    own = {name.removeprefix("model."): array for name, array in tensors.items()}
    image = settings.part("vision_config").read(siglip.SiglipConfig)
    factor, text = settings.content.get("scale_factor", 2), settings.part("text_config")
    if type(factor) is not int or not 0 < factor <= image.side or image.side % factor:
        raise FormatError(f"{settings.name}: 'scale_factor' is {factor!r:.40}, and divides {image.side} patches")
    width = text.content.get("hidden_size")
    if type(width) is not int or not 0 < width < 1 << 20:
        raise FormatError(f"{settings.name}: 'hidden_size' is {width!r:.40}, and must be a positive integer")
    if builder.cut_outputs == [siglip.FEATURES]:
        return siglip.build(builder, image, own, factor, width)
    if text.model_type not in FAMILIES:
        what = f"decoders of type {text.model_type!r:.40} behind an image are not supported"
        raise UnsupportedError(settings.name, [Problem(settings.model_type, what, f"{', '.join(FAMILIES)} are")])
    stated: dict[str, Any] = {**text.content, "tie_word_embeddings": _tied(settings, text)}
    plain = {name.replace("text_model.", "model.", 1): array for name, array in own.items()}
    graph = build_decoder(builder, ModelSettings(stated, settings.name), plain, siglip.rows(image, factor))
    if graph.text is not None:
        graph.text = replace(graph.text, architecture=settings.model_type)
    return graph


def _tied(settings: ModelSettings, text: ModelSettings) -> bool:
    """Whether the last matrix is that of the embeddings: by the model's settings, else those of its decoder."""
    both = (source.content.get("tie_word_embeddings") for source in (settings, text))
    return next((stated for stated in both if isinstance(stated, bool)), False)
