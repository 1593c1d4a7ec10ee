"""Embeddings of texts by encoders with rotary positions: Nomic BERT and ModernBERT.

Sources: Z. Nussbaum et al., Nomic Embed: Training a Reproducible Long Context Text Embedder (2024); B. Warner et al.,
Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.config import Rope
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.decompositions.transformers.bert import STATES, TOKENS, add_tokens, pooled
from tenon.formats.decompositions.transformers.layers import TransformerNode, Weights
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Graph, Value

MOST_LAYERS = 1024
"""Layers of an encoder at most, of files that may be damaged."""


@dataclass(frozen=True)
class RotaryEncoder:
    """Sizes and variants.

    ``bases`` are the bases of the rotary embeddings of layers, ``windows`` how far to each side they look (0: at all
    tokens).  ``modern``: normalisation comes before attention and the gated layers, the gate's matrix is the second
    half of the first one, and there are no biases; else it comes behind them, and the gate has a matrix of its own.
    """

    vocabulary: int
    width: int
    heads: int
    inner: int
    context: int
    bases: tuple[float, ...]
    windows: tuple[int, ...]
    modern: bool
    types: int = 0
    epsilon: float = 1e-5
    activation: str = "silu"
    pooling: Pooling = "mean"

    @property
    def depth(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


def build(builder: GraphBuilder, encoder: RotaryEncoder, weights: Weights) -> Graph:
    """``tokens`` i64 [1, length] to ``embedding`` f32 [1, width] and ``last_hidden_state`` f32 [1, length, width].

    The names of weights are those of ``ModernBertModel`` and of Nomic's ``NomicBertModel``.  Raises as
    ``GraphBuilder.finish`` does.
    """
    if encoder.width % encoder.heads or encoder.depth % 2:
        raise FormatError(f"{encoder.width} elements in {encoder.heads} heads have no pairs to turn")
    most = add_tokens(builder, encoder.context)
    layers = _RotaryLayers(builder, encoder, weights, most)
    with builder.layer("embeddings", "Embedding", "states.0"):
        builder["states.0"] = layers.embedded(builder[TOKENS])
    count = len(encoder.bases)
    for i in range(count):
        top = f"states.{i + 1}"
        with builder.layer(f"layers.{i}", "EncoderLayer", top):
            builder[top] = layers.layer(builder[f"states.{i}"], i)
    with builder.layer("final", "LayerNormalization", STATES):
        builder[STATES] = layers.final(builder[f"states.{count}"])
    return pooled(builder, layers.node, encoder.pooling)


class _RotaryLayers:
    """The layers of an encoder; tables of positions and masks are made once."""

    def __init__(self, builder: GraphBuilder, encoder: RotaryEncoder, weights: Weights, most: int) -> None:
        self.builder, self.encoder, self.most = builder, encoder, most
        self.node = TransformerNode(builder, weights)
        self.prefix = "model." if any(name.startswith("model.layers.") for name in weights) else ""
        self._turns: dict[float, tuple[Value, Value]] = {}
        self._seen: dict[int, Value] = {}

    def embedded(self, tokens: Value) -> Value:
        encoder, node = self.encoder, self.node
        if encoder.modern:
            words = node.rows(
                tokens, f"{self.prefix}embeddings.tok_embeddings.weight", encoder.vocabulary, encoder.width
            )
            x = self._norm(words, f"{self.prefix}embeddings.norm")
        else:
            words = node.rows(tokens, "embeddings.word_embeddings.weight", encoder.vocabulary, encoder.width)
            if encoder.types:
                kinds = node.weight("embeddings.token_type_embeddings.weight", encoder.types, encoder.width)
                words = node.add("Add", words, kinds[0])
            x = self._norm(words, "emb_ln")
        own = node.add("Range", np.array(0, np.int64), node.length(tokens, 1), np.array(1, np.int64))
        self._prepare(own)
        return x

    def _prepare(self, own: Value) -> None:
        """Cosines and sines, and which tokens each sees, of positions i64 [length]."""
        node, encoder = self.node, self.encoder
        for base in dict.fromkeys(encoder.bases):
            tables = Rope(encoder.depth, base).tables(self.most)
            cosines, sines = (node.add("Gather", table, own, axis=0) for table in tables)
            self._turns[base] = cosines, sines
        for window in filter(None, dict.fromkeys(encoder.windows)):
            places = node.add("Gather", np.arange(self.most, dtype=np.float32), own, axis=0)
            columns, rows = (node.add("Unsqueeze", places, node.ints(axis)) for axis in (0, 1))
            away = node.add("Abs", node.add("Sub", columns, rows))
            self._seen[window] = node.add("LessOrEqual", away, np.array(window, np.float32))

    def _norm(self, x: Value, name: str) -> Value:
        return self.node.norm(x, name, self.encoder.width, bias=not self.encoder.modern, epsilon=self.encoder.epsilon)

    def final(self, x: Value) -> Value:
        return self._norm(x, f"{self.prefix}final_norm") if self.encoder.modern else self.node.add("Identity", x)

    def layer(self, x: Value, i: int) -> Value:
        node, width, inner = self.node, self.encoder.width, self.encoder.inner
        if self.encoder.modern:
            name = f"{self.prefix}layers.{i}"
            y = self._attended(x if i == 0 else self._norm(x, f"{name}.attn_norm"), i, f"{name}.attn.Wqkv")
            x = node.add("Add", x, node.product(y, f"{name}.attn.Wo.weight", width, width))
            joined = node.product(self._norm(x, f"{name}.mlp_norm"), f"{name}.mlp.Wi.weight", width, 2 * inner)
            first, gate = node.adds("Split", 2, joined, node.ints(inner, inner), axis=-1)
            y = node.add("Mul", node.activation(first, self.encoder.activation), gate)
            return node.add("Add", x, node.product(y, f"{name}.mlp.Wo.weight", inner, width))
        name = f"encoder.layers.{i}"
        y = node.product(self._attended(x, i, f"{name}.attn.Wqkv"), f"{name}.attn.out_proj.weight", width, width)
        x = self._norm(node.add("Add", x, y), f"{name}.norm1")
        up, gate = (node.product(x, f"{name}.mlp.{part}.weight", width, inner) for part in ("fc11", "fc12"))
        y = node.add("Mul", up, node.activation(gate, self.encoder.activation))
        y = node.product(y, f"{name}.mlp.fc2.weight", inner, width)
        return self._norm(node.add("Add", x, y), f"{name}.norm2")

    def _attended(self, x: Value, i: int, name: str) -> Value:
        """Attention of all heads, [1, length, width], by a joined matrix of queries, keys and values."""
        node, encoder = self.node, self.encoder
        joined = node.product(x, f"{name}.weight", encoder.width, 3 * encoder.width)
        flat = node.adds("Split", 3, joined, node.ints(*[encoder.width] * 3), axis=-1)
        parts = [node.reshape(part, 1, -1, encoder.heads, encoder.depth) for part in flat]
        turn = self._turns[encoder.bases[i]]
        parts[:2] = [node.add("RotateHeads", part, *turn, interleaved=0) for part in parts[:2]]
        queries, keys, values = (node.add("Transpose", part, perm=(0, 2, 1, 3)) for part in parts)
        y = node.attend(queries, keys, values, encoder.depth**-0.5, self._seen.get(encoder.windows[i]))
        return node.merged(y, encoder.width)


def gguf_names(layers: int, *, modern: bool) -> Mapping[str, str]:
    """The names of weights in GGUF files, by the names that are read here."""
    ends = {
        "embeddings.tok_embeddings.weight": "token_embd.weight",
        "embeddings.norm.weight": "token_embd_norm.weight",
        "final_norm.weight": "output_norm.weight",
        "embeddings.word_embeddings.weight": "token_embd.weight",
        "embeddings.token_type_embeddings.weight": "token_types.weight",
        "emb_ln.weight": "token_embd_norm.weight",
        "emb_ln.bias": "token_embd_norm.bias",
    }
    own = (
        {"attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output"}
        | {"mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
        if modern
        else {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm"}
        | {"mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm"}
    )
    prefix = "layers" if modern else "encoder.layers"
    for i in range(layers):
        for name, there in own.items():
            for kind in ("weight", "bias"):
                ends[f"{prefix}.{i}.{name}.{kind}"] = f"blk.{i}.{there}.{kind}"
    return ends
