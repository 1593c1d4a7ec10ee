"""BERT and its like as embeddings of texts: the last state of a token, or the mean of all tokens', of length 1.

Sources: J. Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2018); N. Reimers and I. Gurevych,
Sentence-BERT (2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights, layer_names
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import I64, TensorType

TOKENS, LENGTH, STATES, EMBEDDING = "tokens", "length", "last_hidden_state", "embedding"

"""How states become an embedding: their mean, or that of the first token."""

MOST = 256
"""Tokens of a text at most, unless shapes say otherwise."""


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT model, under the names of its ``config.json``."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"


def add_tokens(builder: GraphBuilder, context: int) -> int:
    """Add the input ``tokens``; returns the most of them in a run, of a model for ``context`` tokens."""
    if TOKENS not in builder.shapes:
        builder.shapes.setdefault(LENGTH, Size(LENGTH, 1, min(MOST, context)))
    builder.inputs({TOKENS: TensorType(I64, (1, LENGTH))})
    return int(builder.scope[TOKENS].type.dims[1])


def pooled(builder: GraphBuilder, node: TransformerNode, pooling: Pooling) -> Graph:
    """The graph, ended by the embedding of its last states."""
    states = builder[STATES]
    with builder.layer("pooling", "Pooling", EMBEDDING):
        if pooling == "mean":
            vector = node.add("ReduceMean", states, node.ints(1), keepdims=0)
        else:
            one = np.array([1], np.int64)
            place = node.add("Sub", node.length(states, 1), one) if pooling == "last" else node.ints(0)
            vector = node.add("Squeeze", node.add("Gather", states, place, axis=1), node.ints(1))
        builder[EMBEDDING] = node.unit(vector)
    return builder.finish([EMBEDDING, STATES])


def build(
    builder: GraphBuilder, config: BertConfig, weights: Weights, pooling: Pooling = "mean", first: int = 0
) -> Graph:
    """``tokens`` i64 [1, length] to ``embedding`` f32 [1, hidden] and ``last_hidden_state`` f32 [1, length, hidden].

    ``first`` is the position of the first token.  Raises as ``GraphBuilder.finish`` does.
    """
    add_tokens(builder, max(config.max_position_embeddings - first, 1))
    prefix = next((own for own in ("bert.", "roberta.") if any(name.startswith(own) for name in weights)), "")
    encoder = _BertEncoder(builder, config, weights, prefix, first)
    with builder.layer(f"{prefix}embeddings", "Embedding", "states.0"):
        builder["states.0"] = encoder.embedded(builder[TOKENS])
    names = layer_names(weights, f"{prefix}encoder.layer", config.num_hidden_layers)
    for i, name in enumerate(names):
        top = STATES if i == len(names) - 1 else f"states.{i + 1}"
        with builder.layer(name, "BertLayer", top):
            builder[top] = encoder.layer(builder[f"states.{i}"], name)
    return pooled(builder, encoder.node, pooling)


class _BertEncoder:
    """The layers of a BERT model; ``prefix`` begins the names of its tensors, ``first`` is the first position."""

    def __init__(self, builder: GraphBuilder, config: BertConfig, weights: Weights, prefix: str, first: int) -> None:
        self.config, self.prefix, self.first = config, prefix, first
        self.node = TransformerNode(builder, weights)

    def embedded(self, tokens: Value) -> Value:
        """States [1, length, hidden] of tokens at their positions, all of the first segment."""
        config, node, name = self.config, self.node, f"{self.prefix}embeddings"
        width = config.hidden_size
        words = node.weight(f"{name}.word_embeddings.weight", config.vocab_size, width)
        places = node.weight(f"{name}.position_embeddings.weight", config.max_position_embeddings, width)
        places = places[self.first :]
        places = places + node.weight(f"{name}.token_type_embeddings.weight", config.type_vocab_size, width)[0]
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        own = node.add("Gather", places, node.add("Range", zero, node.length(tokens, 1), one), axis=0)
        return self.norm(node.add("Add", node.add("Gather", words, tokens, axis=0), own), f"{name}.LayerNorm")

    def norm(self, x: Value, name: str) -> Value:
        return self.node.norm(x, name, self.config.hidden_size, epsilon=self.config.layer_norm_eps)

    def layer(self, x: Value, name: str) -> Value:
        config, node = self.config, self.node
        width, heads, inner = config.hidden_size, config.num_attention_heads, config.intermediate_size
        parts = ("query", "key", "value")
        flat = [node.linear(x, f"{name}.attention.self.{part}", width, width) for part in parts]
        queries, keys, values = (node.heads(part, heads, width // heads) for part in flat)
        y = node.merged(node.attend(queries, keys, values, (width // heads) ** -0.5), width)
        y = node.linear(y, f"{name}.attention.output.dense", width, width)
        x = self.norm(node.add("Add", x, y), f"{name}.attention.output.LayerNorm")
        y = node.activation(node.linear(x, f"{name}.intermediate.dense", width, inner), config.hidden_act)
        y = node.linear(y, f"{name}.output.dense", inner, width)
        return self.norm(node.add("Add", x, y), f"{name}.output.LayerNorm")
