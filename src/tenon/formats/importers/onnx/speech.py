"""Whisper and Moonshine in the ONNX files of optimum: encoder and decoder, in two files or three.

Source: the exporter of the library optimum, of which the names of files, inputs and outputs are.  ``encoder_model``
gives ``last_hidden_state``; the decoder without a cache makes keys and values of it for every layer, which the decoder
with a cache reads.  ``decoder_model_merged`` has both in the branches of ``use_cache_branch``.  The encoder of Whisper
reads features of 30 seconds, that of Moonshine samples, of any number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.formats.decompositions.transformers.caches import CROSS, LENGTH, PAST, TOKENS, CacheSizes, cross
from tenon.formats.decompositions.transformers.layers import TransformerNode
from tenon.formats.decompositions.transformers.log_mel import LogMel, log_mel
from tenon.formats.decompositions.transformers.moonshine import POSITIONS, SAMPLES, SOUND, positions
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.onnx.masks import drop_mask
from tenon.formats.importers.shared.speech_settings import settings_of_speech
from tenon.formats.model_files.model_file import ModelFile, read_file
from tenon.input_file import is_regular
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import Size
from tenon.network.graph.text_model import TextModel
from tenon.network.graph.types import F32, TensorType

if TYPE_CHECKING:
    from onnx import ModelProto

_ENCODER = "encoder_model"
_DECODER, _WITH_CACHE, _BOTH = "decoder_model", "decoder_with_past_model", "decoder_model_merged"
_FEATURES, _VALUES, _STATES = "input_features", "input_values", "encoder_hidden_states"
_IDS, _BRANCH, _MASKS = "input_ids", "use_cache_branch", {"attention_mask", "encoder_attention_mask"}
_KINDS = ("", "_fp16", "_quantized", "_int8", "_uint8", "_q4", "_q4f16", "_bnb4")
"""Endings of the names of files whose weights have other types."""

_MOST_SAMPLES = 480000
"""Samples of the longest sound that an encoder of samples takes: 30 seconds."""

Load = Callable[[ModelFile, Shapes, Sequence[str] | None, Sequence[str] | None], Graph]
Parse = Callable[[ModelFile], "ModelProto"]


def is_part(inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> bool:
    """Whether a cut asks for the encoder or the decoder of a network for speech to text."""
    return CROSS in (*(inputs or ()), *(outputs or ()))


def load_part(file: ModelFile, shapes: Shapes, outputs: Sequence[str] | None, load: Load, parse: Parse) -> Graph:
    """The encoder, where ``outputs`` are its keys and values, else the decoder, with the ports of ``whisper.build``.

    ``file`` is any of the files; ``load`` and ``parse`` are those of ONNX files.  Raises as ``importers.load`` does.
    """
    model = _SpeechFiles(file, load, parse)
    graph = model.encoder(shapes) if outputs else model.decoder(shapes)
    ports = {name: name for name in (TOKENS, PAST, "logits", SAMPLES)}
    architecture = "moonshine" if model.reads_samples else "whisper"
    graph.text = settings_of_speech(
        model.settings_folder, TextModel(kind="encoder-decoder", architecture=architecture, ports=ports)
    )
    return graph


class _SpeechFiles:
    """The files of a model in a folder."""

    def __init__(self, file: ModelFile, load: Load, parse: Parse) -> None:
        if file.folder is None:
            raise InputError(f"{file.name}: encoder and decoder are several files: give one of them in its folder")
        self.file, self.folder, self.load, self.parse = file, file.folder, load, parse
        self.kind = next((kind for kind in _KINDS[1:] if file.stem.endswith(kind)), "")
        self.settings_folder = next(
            (f for f in (self.folder, self.folder.resolve().parent) if is_regular(f / "config.json")), self.folder
        )
        self.parsed: dict[str, tuple[ModelFile, ModelProto]] = {}
        self.hearing = self._find(_ENCODER)
        self.reads_samples = _VALUES in self._inputs(self.hearing, ())
        self.positions: int | Size = self._size("max_source_positions", 1500)
        self.most = self._size("max_target_positions", 448)
        if self.reads_samples:
            self.positions = Size(POSITIONS, 1, positions(_MOST_SAMPLES))
            self.most = self._size("max_position_embeddings", 194)

    def _size(self, key: str, default: int) -> int:
        """A size that the settings state."""
        path = self.settings_folder / "config.json"
        if not is_regular(path):
            return default
        try:
            content = json.loads(read_file(path).data)
        except ValueError:
            raise FormatError(f"{path}: it is no JSON; the file is damaged") from None
        value = content.get(key, default) if isinstance(content, dict) else default
        if type(value) is not int or not 0 < value < 1 << 20:
            raise FormatError(f"{path}: '{key}' is {value!r:.40}, and must be a positive integer")
        return value

    def _find(self, *stems: str) -> ModelFile:
        """The first file of these names that there is; its weights are of the same type as those of the given one."""
        ending = self.file.suffix
        names = [f"{stem}{kind}{ending}" for kind in dict.fromkeys((self.kind, "")) for stem in stems]
        present = next((name for name in names if is_regular(self.folder / name)), None)
        if present is None:
            raise FormatError(f"{self.file.name}: its part {' or '.join(names)} is not beside it")
        return self.file if present == self.file.name else read_file(self.folder / present)

    def _model(self, file: ModelFile) -> tuple[ModelFile, ModelProto]:
        """The file and what it holds, without masks: one sound has no padding."""
        if file.name not in self.parsed:
            model = self.parse(file)
            for mask in {value.name for value in model.graph.input} & _MASKS:
                if drop_mask(model, mask):
                    file = replace(file, data=model.SerializeToString())
            self.parsed[file.name] = file, model
        return self.parsed[file.name]

    # ----------------------------------------------------------------------------------------------- parts
    def encoder(self, shapes: Shapes) -> Graph:
        """``samples`` to ``cross.N.key`` and ``.value``."""
        graph = self._of_samples(shapes) if self.reads_samples else self._of_features(shapes)
        keys = self._keys()
        encoded, *extents = graph.outputs
        if encoded.type.dims != keys.inputs[0].type.dims:
            what = f"gives {encoded.type}, and the decoder takes {keys.inputs[0].type}"
            raise FormatError(f"{self.hearing.name}: the encoder {what}; the files are not of one model")
        names = self._caches(keys).cross_names
        graph.extents.pop(encoded.name, None)
        graph.outputs = [*graph.inline(None, keys, [encoded, *extents][: len(keys.inputs)]), *extents]
        graph.prune()
        for value, name in zip(graph.outputs, [*names, *(f"{names[0]}.extent" for _ in extents)], strict=True):
            _rename(graph, value, name)
        if extents:
            graph.extents |= dict.fromkeys(names, ((2, f"{names[0]}.extent"),))
        return graph

    def _of_features(self, shapes: Shapes) -> Graph:
        """``samples`` of a fixed number to the encoder's states, by way of features."""
        if shapes:
            raise InputError(f"{self.file.name}: no input or dimension of the encoder is open: leave out --shape")
        (_, bands, frames), *_ = self._inputs(self.hearing, (_FEATURES,)).values()
        if not isinstance(bands, int) or bands < 1:
            raise FormatError(f"{self.hearing.name}: its features have no number of mel bands")
        frames = frames if isinstance(frames, int) and frames > 0 else 2 * self._size("max_source_positions", 1500)
        body = self.load(self._model(self.hearing)[0], {_FEATURES: (1, bands, frames)}, None, None)
        builder = GraphBuilder(self.file, self.file.stem, {}, None, None, 1 << 24)
        samples = builder.input(SAMPLES, TensorType(F32, (1, frames * LogMel.step)))
        with builder.layer("features", "LogMel", "features"):
            node = TransformerNode(builder, {})
            builder["features"] = log_mel(node, samples, LogMel(bands=bands))
        graph = builder.finish(["features"])
        graph.outputs = graph.inline(None, body, graph.outputs)
        return graph

    def _of_samples(self, shapes: Shapes) -> Graph:
        """``samples`` of any number to the encoder's states."""
        if unknown := set(shapes) - {SAMPLES, SOUND}:
            raise InputError(f"{self.file.name}: no dimension is called '{min(unknown)}'; there are {SAMPLES}, {SOUND}")
        count: Any = shapes.get(SOUND, Size(SOUND, 1024, _MOST_SAMPLES))
        graph = self.load(self._model(self.hearing)[0], {_VALUES: shapes.get(SAMPLES, (1, count))}, None, None)
        _rename(graph, next(value for value in graph.inputs if value.name == _VALUES), SAMPLES)
        return graph

    def _keys(self) -> Graph:
        """The part of the decoder from the encoder's states to keys and values."""
        file = self._find(_BOTH, _DECODER)
        types = self._inputs(file, (_IDS, _STATES))
        layers = self._layers(self._find(_BOTH, _WITH_CACHE))
        outputs = [f"present.{name}" for name in _parts(layers, "encoder")]
        graph = self.load(
            self._with_branch(self._model(file)[0], types, cached=False), self._bound(types, 1, 0), None, outputs
        )
        graph.inputs = [value for value in graph.inputs if graph.used(value)]
        if [value.name for value in graph.inputs if value.name != POSITIONS] != [_STATES]:
            raise FormatError(f"{file.name}: keys and values do not depend on '{_STATES}' alone; the file is damaged")
        return graph

    def decoder(self, shapes: Shapes) -> Graph:
        """``tokens``, ``cross.N.*`` and caches to ``logits`` and caches."""
        if unknown := set(shapes) - {LENGTH, PAST}:
            raise InputError(f"{self.file.name}: no dimension is called '{min(unknown)}'; there are {LENGTH}, {PAST}")
        file = self._find(_BOTH, _WITH_CACHE)
        types, layers = self._inputs(file, (_IDS,)), self._layers(file)
        length = shapes.get(LENGTH, Size(LENGTH, 1, 16))
        most = length.most if isinstance(length, Size) else length if isinstance(length, int) else 1
        past = shapes.get(PAST, Size(PAST, 0, max(0, self.most - most)))
        bound = self._bound(types, length, past)
        wanted = ["logits", *(f"present.{name}" for name in _parts(layers, "decoder"))]
        graph = self.load(self._with_branch(self._model(file)[0], types, cached=True), bound, None, wanted)
        graph.inputs = [value for value in graph.inputs if graph.used(value)]
        graph.extents.pop(_STATES, None)
        names = {_IDS: TOKENS} | {
            f"past_key_values.{i}.encoder.{part}": cross(i, part) for i in range(layers) for part in ("key", "value")
        }
        for value in graph.inputs:
            _rename(graph, value, names.get(value.name, value.name))
        return graph

    # ---------------------------------------------------------------------------------------------- inputs
    def _inputs(self, file: ModelFile, needed: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
        """The shapes of a file's inputs, ``needed`` ones first."""
        proto = self._model(file)[1].graph
        given = {
            v.name: tuple(d.dim_param or int(d.dim_value) for d in v.type.tensor_type.shape.dim) for v in proto.input
        }
        missing = [name for name in needed if name not in given]
        if missing:
            raise FormatError(f"{file.name}: it has no input '{missing[0]}', as an encoder or decoder of speech has")
        return {**{name: given[name] for name in needed}, **given}

    def _layers(self, file: ModelFile) -> int:
        """The layers of the decoder."""
        given = self._inputs(file, (_IDS,))
        layers = sum(name.startswith("past_key_values.") and name.endswith(".encoder.key") for name in given)
        if not layers or any(f"past_key_values.{name}" not in given for name in _parts(layers, "decoder")):
            raise FormatError(f"{file.name}: it has no caches past_key_values.N.encoder and .decoder")
        return layers

    def _bound(self, types: Mapping[str, Any], length: Any, past: Any) -> dict[str, Any]:
        """The shapes of a decoder's inputs."""
        shapes: dict[str, Any] = {_IDS: (1, length)}
        for name, dims in types.items():
            if name == _STATES and len(dims) == 3:
                shapes[name] = (1, self.positions, dims[2])
            elif name.startswith("past_key_values.") and len(dims) == 4:
                extent = past if ".decoder." in name else self.positions
                shapes[name] = (1, dims[1], extent, dims[3])
        return shapes

    @staticmethod
    def _with_branch(file: ModelFile, types: Mapping[str, Any], *, cached: bool) -> ModelFile:
        """The file, with the branch chosen where it has two."""
        return replace(file, values={_BRANCH: np.array([cached])}) if _BRANCH in types else file

    @staticmethod
    def _caches(keys: Graph) -> CacheSizes:
        _, heads, _, size = keys.outputs[0].type.dims
        return CacheSizes(len(keys.outputs) // 2, heads, size, 0)


def _parts(layers: int, side: str) -> list[str]:
    """The endings of the names "past_key_values.*" and "present.*" for a side of the caches."""
    return [f"{i}.{side}.{part}" for i in range(layers) for part in ("key", "value")]


def _rename(graph: Graph, value: Any, name: str) -> None:
    """Call a value ``name``; another one of that name gets a longer one."""
    for other in graph.values():
        if other is not value and other.name == name:
            other.name = f"{name}.inner"
    if value.name in graph.extents:
        graph.extents[name] = graph.extents.pop(value.name)
    value.name = name
