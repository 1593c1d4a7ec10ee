"""Encoders of texts of the library transformers: BERT, RoBERTa, Nomic BERT and ModernBERT."""

from __future__ import annotations

from dataclasses import dataclass

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.transformers import bert, rotary_encoder
from tenon.formats.decompositions.transformers.bert import BertConfig
from tenon.formats.decompositions.transformers.layers import Weights
from tenon.formats.decompositions.transformers.rotary_encoder import RotaryEncoder
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.safetensors.settings import ModelSettings
from tenon.network.graph.graph import Graph


def build_bert(builder: GraphBuilder, settings: ModelSettings, weights: Weights) -> Graph:
    """BERT; of RoBERTa, positions are counted from the one behind that of padding."""
    first = 0
    if settings.model_type != "bert":
        padding = settings.content.get("pad_token_id", 1)
        first = padding + 1 if type(padding) is int and 0 <= padding < 1 << 20 else 0
    return bert.build(builder, settings.read(BertConfig), weights, settings.pooling or "mean", first)


@dataclass(frozen=True)
class _NomicSettings:
    vocab_size: int
    n_embd: int
    n_head: int
    n_inner: int
    n_layer: int
    n_positions: int = 2048
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12
    rotary_emb_base: float = 10000.0
    rotary_emb_fraction: float = 1.0
    activation_function: str = "swiglu"
    qkv_proj_bias: bool = False
    mlp_fc1_bias: bool = False
    prenorm: bool = False


def build_nomic(builder: GraphBuilder, settings: ModelSettings, weights: Weights) -> Graph:
    """Nomic BERT, by the settings of its own program."""
    s = settings.read(_NomicSettings)
    if (
        s.activation_function != "swiglu"
        or s.rotary_emb_fraction != 1
        or s.qkv_proj_bias
        or s.mlp_fc1_bias
        or s.prenorm
    ):
        what = "Nomic BERT with biases, another activation than swiglu or parts of heads turned is not supported"
        raise UnsupportedError(settings.name, [Problem(settings.model_type, what, "")])
    count = _layers(s.n_layer, settings.name)
    encoder = RotaryEncoder(
        *(s.vocab_size, s.n_embd, s.n_head, s.n_inner, s.n_positions),
        (s.rotary_emb_base,) * count,
        (0,) * count,
        modern=False,
        types=s.type_vocab_size,
        epsilon=s.layer_norm_epsilon,
        pooling=settings.pooling or "mean",
    )
    return rotary_encoder.build(builder, encoder, weights)


@dataclass(frozen=True)
class _ModernSettings:
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    num_hidden_layers: int
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    hidden_activation: str = "gelu"
    global_attn_every_n_layers: int = 3
    local_attention: int = 128
    global_rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False


def build_modern(builder: GraphBuilder, settings: ModelSettings, weights: Weights) -> Graph:
    """ModernBERT: one layer of several looks at all tokens, the others at those near."""
    s = settings.read(_ModernSettings)
    if s.attention_bias or s.mlp_bias or s.norm_bias:
        what = "ModernBERT with biases is not supported"
        raise UnsupportedError(settings.name, [Problem(settings.model_type, what, "")])
    far = [i % s.global_attn_every_n_layers == 0 for i in range(_layers(s.num_hidden_layers, settings.name))]
    encoder = RotaryEncoder(
        *(s.vocab_size, s.hidden_size, s.num_attention_heads, s.intermediate_size, s.max_position_embeddings),
        tuple(s.global_rope_theta if all_tokens else s.local_rope_theta for all_tokens in far),
        tuple(0 if all_tokens else s.local_attention // 2 for all_tokens in far),
        modern=True,
        epsilon=s.norm_eps,
        activation=s.hidden_activation,
        pooling=settings.pooling or "mean",
    )
    return rotary_encoder.build(builder, encoder, weights)


def _layers(count: int, name: str) -> int:
    if count > rotary_encoder.MOST_LAYERS:
        raise FormatError(f"{name}: {count} layers are more than a model has")
    return count
