"""Encoders of texts in GGUF files: BERT, Nomic BERT and ModernBERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.decompositions.transformers import bert, rotary_encoder
from tenon.formats.decompositions.transformers.bert import BertConfig
from tenon.formats.decompositions.transformers.rotary_encoder import RotaryEncoder
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.gguf.config import stated_pooling
from tenon.formats.importers.gguf.metadata import Metadata
from tenon.formats.importers.gguf.weights import GgufWeights
from tenon.network.graph.graph import Graph

_BERT_ENDS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
_BERT_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def build_encoder(builder: GraphBuilder, m: Metadata, weights: GgufWeights) -> Graph:
    """The graph of an encoder.  Raises RefusedError for what is not supported, FormatError for impossible sizes."""
    count = m.size("block_count")
    if count > rotary_encoder.MOST_LAYERS:
        raise FormatError(f"{count} layers are more than a model has")
    return ENCODERS[m.architecture](builder, m, weights, stated_pooling(m) or "mean")


def _bert(builder: GraphBuilder, m: Metadata, weights: GgufWeights, pooling: Pooling) -> Graph:
    names = dict(_BERT_ENDS)
    for i in range(m.size("block_count")):
        for own, there in _BERT_LAYER.items():
            names |= {f"encoder.layer.{i}.{own}.{part}": f"blk.{i}.{there}.{part}" for part in ("weight", "bias")}
    config = BertConfig(
        _rows(weights, "token_embd.weight"),
        m.size("embedding_length"),
        m.size("block_count"),
        m.size("attention.head_count"),
        m.size("feed_forward_length"),
        _rows(weights, "position_embd.weight"),
        _rows(weights, "token_types.weight"),
        m.number("attention.layer_norm_epsilon", 1e-12),
    )
    return bert.build(builder, config, _named(weights, names), pooling)


def _nomic(builder: GraphBuilder, m: Metadata, weights: GgufWeights, pooling: Pooling) -> Graph:
    count = m.size("block_count")
    encoder = RotaryEncoder(
        *_sizes(m, weights),
        (m.number("rope.freq_base", 1000.0),) * count,
        (0,) * count,
        modern=False,
        types=_rows(weights, "token_types.weight") if "token_types.weight" in weights.places else 0,
        epsilon=m.number("attention.layer_norm_epsilon", 1e-12),
        pooling=pooling,
    )
    return rotary_encoder.build(builder, encoder, _named(weights, rotary_encoder.gguf_names(count, modern=False)))


def _modern(builder: GraphBuilder, m: Metadata, weights: GgufWeights, pooling: Pooling) -> Graph:
    count, window = m.size("block_count"), m.size("attention.sliding_window", 128)
    far = [i % m.size("attention.sliding_window_pattern", 3) == 0 for i in range(count)]
    bases = m.number("rope.freq_base", 160000.0), m.number("rope.freq_base_swa", 10000.0)
    encoder = RotaryEncoder(
        *_sizes(m, weights),
        tuple(bases[0] if all_tokens else bases[1] for all_tokens in far),
        tuple(0 if all_tokens else window // 2 for all_tokens in far),
        modern=True,
        epsilon=m.number("attention.layer_norm_epsilon", 1e-5),
        activation="gelu",
        pooling=pooling,
    )
    return rotary_encoder.build(builder, encoder, _named(weights, rotary_encoder.gguf_names(count, modern=True)))


ENCODERS: Mapping[str, Callable[[GraphBuilder, Metadata, GgufWeights, Pooling], Graph]] = {
    "bert": _bert,
    "nomic-bert": _nomic,
    "modern-bert": _modern,
}
"""Functions that build a graph, by the architecture of the file."""


def _sizes(m: Metadata, weights: GgufWeights) -> tuple[int, int, int, int, int]:
    """The vocabulary, the width, heads, the inner width, and the tokens that the model was trained for."""
    sizes = (m.size(name) for name in ("embedding_length", "attention.head_count", "feed_forward_length"))
    width, heads, inner = sizes
    return _rows(weights, "token_embd.weight"), width, heads, inner, m.size("context_length", 2048)


def _rows(weights: GgufWeights, name: str) -> int:
    place = weights.places.get(name)
    if place is None or not place[1].dims:
        raise FormatError(f"the tensor '{name}' is missing")
    return int(place[1].dims[0])


def _named(weights: GgufWeights, names: Mapping[str, str]) -> Mapping[str, Weight]:
    """The tensors that the file has, by the names that layers read."""
    tensors = {own: weights.tensor(there) for own, there in names.items() if there in weights.places}
    return {own: weight for own, weight in tensors.items() if weight is not None}
