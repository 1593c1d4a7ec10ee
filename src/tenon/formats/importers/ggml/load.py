"""Whisper models of whisper.cpp as graphs, with the names of tensors that the authors' program gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.decompositions.transformers import whisper
from tenon.formats.decompositions.transformers.log_mel import LogMel
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.ggml.file import WhisperFile, WhisperSizes, parse
from tenon.formats.importers.ggml.vocabulary import text_model
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.ggml import MAGIC
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph

_ENDS = {
    "encoder.positional_embedding": "model.encoder.embed_positions.weight",
    "encoder.ln_post": "model.encoder.layer_norm",
    "decoder.positional_embedding": "model.decoder.embed_positions.weight",
    "decoder.token_embedding": "model.decoder.embed_tokens",
    "decoder.ln": "model.decoder.layer_norm",
}
_OF_LAYER = {
    "attn_ln": "self_attn_layer_norm",
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "mlp_ln": "final_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
}


def recognise(file: ModelFile) -> bool:
    return file.data[:4] == MAGIC


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors."""
    try:
        content = parse(file.data)
        config, text = _config(content), text_model(content.sizes.vocabulary, content.tokens)
    except FormatError as error:
        raise FormatError(f"{file.name}: no Whisper model of whisper.cpp: {error}") from error
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs, max(len(file.data), 1 << 24))
    graph = whisper.build(builder, config, dict(_named(content.tensors)), content.filters)
    ports = {name: name for name in ("tokens", "logits", "past", "samples")}
    graph.text = replace(text, ports=ports)
    return graph


def _config(content: WhisperFile) -> whisper.WhisperConfig:
    """The sizes of the network.  Raises FormatError for impossible ones."""
    sizes: WhisperSizes = content.sizes
    if sizes.sound_width != sizes.text_width:
        raise FormatError(f"an encoder of width {sizes.sound_width} and a decoder of {sizes.text_width} do not fit")
    width, bands = sizes.sound_width, len(content.filters)
    if 0 in (*vars(sizes).values(),)[:10] or width % sizes.sound_heads or width % sizes.text_heads:
        raise FormatError(f"its sizes {', '.join(map(str, vars(sizes).values()))} are impossible")
    if bands != sizes.bands or content.filters.shape[1] != LogMel.window // 2 + 1:
        raise FormatError(f"mel bands of {list(content.filters.shape)} are not those of Whisper")
    return whisper.WhisperConfig(
        vocab_size=sizes.vocabulary,
        d_model=width,
        encoder_layers=sizes.sound_layers,
        encoder_attention_heads=sizes.sound_heads,
        encoder_ffn_dim=4 * width,
        decoder_layers=sizes.text_layers,
        decoder_attention_heads=sizes.text_heads,
        decoder_ffn_dim=4 * width,
        num_mel_bins=bands,
        max_source_positions=sizes.sound_positions,
        max_target_positions=sizes.text_positions,
    )


def _named(tensors: Mapping[str, Weight]) -> Iterator[tuple[str, Weight]]:
    """The tensors by the names of the library transformers; biases of convolutions without their second axis."""
    for name, weight in tensors.items():
        stem, _, kind = name.rpartition(".")
        side, _, rest = name.partition(".")
        if name in _ENDS:
            yield _ENDS[name], weight
        elif stem in _ENDS:
            yield f"{_ENDS[stem]}.{kind}", weight
        elif stem in ("encoder.conv1", "encoder.conv2"):
            yield f"model.{name}", weight if kind == "weight" or weight.format else Weight(weight.vector)
        elif rest.startswith("blocks."):
            layer, _, part = rest.removeprefix("blocks.").removesuffix(f".{kind}").partition(".")
            yield f"model.{side}.layers.{layer}.{_OF_LAYER.get(part, part)}.{kind}", weight
