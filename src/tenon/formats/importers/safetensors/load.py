"""Models of the library transformers: weights in safetensors files, settings in ``config.json``.

Sources: the documentation of the format safetensors and of the library transformers, of which the names of tensors and
settings are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tenon.errors import FormatError
from tenon.formats.decompositions.transformers import clip, moonshine, siglip, whisper
from tenon.formats.decompositions.transformers.image_tower import SiglipConfig
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.safetensors.decoder_config import FAMILIES
from tenon.formats.importers.safetensors.decoders import build_decoder
from tenon.formats.importers.safetensors.image_decoders import TYPES, build_image_decoder
from tenon.formats.importers.safetensors.image_settings import stated_preprocessing
from tenon.formats.importers.safetensors.pooling import pooling_of
from tenon.formats.importers.safetensors.settings import ModelSettings, read_object
from tenon.formats.importers.safetensors.text_encoders import build_bert, build_modern, build_nomic
from tenon.formats.importers.shared.image_texts import HALF, image_preprocessing
from tenon.formats.importers.shared.text_files import settings_beside
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.safetensors import is_safetensors, tensors
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.text_model import TextModel

Weights = Mapping[str, Array]
_Build = Callable[[GraphBuilder, ModelSettings, Weights], Graph]

_INDEX = "model.safetensors.index.json"


def _plain(kind: type[Any], build: Callable[[GraphBuilder, Any, Weights], Graph]) -> _Build:
    """A builder whose settings are the fields of a dataclass."""
    return lambda builder, settings, weights: build(builder, settings.read(kind), weights)


def _clip(builder: GraphBuilder, settings: ModelSettings, weights: Weights) -> Graph:
    text = settings.part("text_config").read(clip.TextTowerConfig)
    image = settings.part("vision_config").read(clip.ImageTowerConfig)
    size = settings.content.get("projection_dim", clip.ClipConfig.projection_dim)
    if type(size) is not int or not 0 < size < 1 << 20:
        raise FormatError(f"{settings.name}: 'projection_dim' is {size!r:.40}, and must be a positive integer")
    return clip.build(builder, clip.ClipConfig(text, image, size), weights)


_SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
"""The sizes of towers that files leave out."""


def _siglip(builder: GraphBuilder, settings: ModelSettings, weights: Weights) -> Graph:
    text, image = (
        ModelSettings({**_SIGLIP, **settings.part(key).content}, settings.name)
        for key in ("text_config", "vision_config")
    )
    sizes, words = image.read(SiglipConfig), text.read(siglip.SiglipTextConfig)
    uneven = any(tower.hidden_size % tower.num_attention_heads for tower in (sizes, words))
    if sizes.image_size % sizes.patch_size or uneven:
        raise FormatError(f"{settings.name}: patches do not fill an image, or heads do not fill its width")
    usual = image_preprocessing(HALF, HALF, "bicubic", "stretch")
    preprocessing, _ = stated_preprocessing(builder.file, usual)
    pair = siglip.SiglipPair(words, sizes, preprocessing)
    return siglip.build(builder, pair, weights)


MODELS: dict[str, _Build] = {
    "bert": build_bert,
    "roberta": build_bert,
    "xlm-roberta": build_bert,
    "nomic_bert": build_nomic,
    "modernbert": build_modern,
    "clip": _clip,
    "siglip": _siglip,
    "moonshine": _plain(moonshine.MoonshineConfig, moonshine.build),
    "whisper": _plain(whisper.WhisperConfig, whisper.build),
    **dict.fromkeys(FAMILIES, build_decoder),
    **dict.fromkeys(TYPES, build_image_decoder),
}
"""Functions that build a graph, by the ``model_type`` of the settings."""

_PORTS = {name: name for name in ("tokens", "logits", "past")}
_TOWER = TextModel(kind="encoder", ports={"embedding": "image_features"})
_KINDS: dict[str, TextModel] = {
    **dict.fromkeys(TYPES, _TOWER),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "nomic_bert", "modernbert"),
        TextModel(kind="encoder", ports={"tokens": "tokens", "embedding": "embedding"}),
    ),
    **dict.fromkeys(
        ("clip", "siglip"), TextModel(kind="encoder", ports={"tokens": "tokens", "embedding": "text_embedding"})
    ),
    "moonshine": TextModel(kind="encoder-decoder", ports={**_PORTS, "samples": "samples"}),
    "whisper": TextModel(kind="encoder-decoder", ports={**_PORTS, "samples": "samples"}),
}
"""The kind of tokens of a model, by its type; builders of decoders say it themselves."""


def recognise(file: ModelFile) -> bool:
    if is_safetensors(file.data):
        return True
    if file.suffix != ".json" or b"{" not in file.data[:64]:
        return False
    content = read_object(file) or {}
    return isinstance(content.get("model_type"), str) or isinstance(content.get("weight_map"), dict)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors.  The file is that of the weights, their index or the settings."""
    content = None if is_safetensors(file.data) else read_object(file) or {}
    if content is not None and "model_type" in content:
        settings = ModelSettings(content, file.name)
        names = ("model.safetensors", _INDEX, "*.safetensors")
        files = _weight_files(file.partner("its weights", *names, fits=_is_weights))
    else:
        settings = ModelSettings.of(file.partner("its settings", "config.json"))
        files = _weight_files(file)
    if file.folder is not None:
        settings.pooling = pooling_of(file.folder)
    if settings.model_type not in MODELS:
        kind, known = f"{settings.model_type!r:.40}", ", ".join(MODELS)
        raise FormatError(f"{settings.name}: models of type {kind} are not known; there are {known}")
    weights = {key: array for each in files for key, array in tensors(each.data, each.name).items()}
    size = sum(len(each.data) for each in files)
    builder = GraphBuilder(file, _name(file), shapes, inputs, outputs, max(size, 1 << 24))
    graph = MODELS[settings.model_type](builder, settings, weights)
    graph.text = _text(file, graph.text or replace(_KINDS[settings.model_type], architecture=settings.model_type))
    return graph


def _text(file: ModelFile, kind: TextModel) -> TextModel | None:
    """The settings of the model's tokens, of the files beside it."""
    return kind if file.folder is None else settings_beside(file.folder, kind)


def _is_weights(file: ModelFile) -> bool:
    return is_safetensors(file.data) or file.name.endswith(".index.json")


def _weight_files(file: ModelFile) -> list[ModelFile]:
    """The files with tensors that an index lists, or the one file itself."""
    if is_safetensors(file.data):
        return [file]
    listed = (read_object(file) or {}).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise FormatError(f"{file.name}: no index of safetensors files; the file is damaged")
    return [_listed(file, name) for name in sorted(set(listed.values()))]


def _listed(index: ModelFile, name: str) -> ModelFile:
    if "/" in name or "\\" in name or name.startswith("."):
        raise FormatError(f"{index.name}: '{name!r:.40}' is no name of a file beside it")
    files = index.matching(name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]"))
    if len(files) != 1:
        raise FormatError(f"{index.name}: its file {name!r:.60} was not found beside it")
    return files[0]


def _name(file: ModelFile) -> str:
    """The name of the folder, because all models' files are called alike."""
    return file.folder.resolve().name if file.folder is not None else file.stem
