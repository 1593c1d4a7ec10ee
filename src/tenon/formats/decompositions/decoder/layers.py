"""The parts of a decoder's layers, as operators of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tenon.formats.decompositions.decoder.config import DecoderConfig, Rope
from tenon.formats.decompositions.decoder.weights import DecoderWeights, Weight
from tenon.formats.graph_builder.builder import GraphBuilder, operator
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.sizes import Expression
from tenon.network.graph.types import F32

Pooling = Literal["last", "mean", "first"]
"""The states of which the embedding of a text is made: that of a token, or the mean of all."""


class DecoderLayers:
    """Writes the parts of layers to a graph; tensors of activations are f32 [1, length, ...]."""

    def __init__(self, builder: GraphBuilder, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.builder, self.config, self.weights = builder, config, weights
        self._quantised: dict[Value, tuple[Value, ...]] = {}

    # ------------------------------------------------------------------------------------------- sizes
    @property
    def length(self) -> Expression:
        """The tokens of a run."""
        sizes = self.builder.writer.sizes
        return sizes.of(self.builder.scope["tokens"])[1]

    @property
    def several(self) -> bool:
        """Whether the tokens of a run may be of several sequences."""
        return "slots" in self.builder.scope

    @property
    def cached(self) -> bool:
        """Whether there are caches of tokens before a run."""
        return "past_key_values.0.key" in self.builder.scope

    @property
    def past(self) -> Expression:
        """The tokens in the cache before a run."""
        sizes = self.builder.writer.sizes
        return sizes.of(self.builder.scope["past_key_values.0.key"])[2]

    def number(self, extent: Expression) -> Value:
        """The i64 scalar that holds a size at run time."""
        return self.builder.writer.sizes.number(extent, self.builder.origin)

    # ------------------------------------------------------------------------------------------ weights
    def weight(self, name: str) -> Weight:
        """A weight that the model must have."""
        weight = self.weights.weight(name)
        if weight is None:
            name = self.weights.place(name)
            raise RefusedError(f"has no weight '{name}'", "the file is incomplete: load all of its parts")
        return weight

    def linear(self, x: Value, name: str) -> Value:
        """x times the transpose of a matrix, plus its bias if there is one."""
        return self._with_bias(self.product(x, self.weight(name)), self.weights.bias(name))

    def product(self, x: Value, weight: Weight) -> Value:
        """x times the transpose of a matrix."""
        if self.builder.dims(x)[-1] != weight.shape[-1] or len(weight.shape) != 2:
            raise RefusedError(f"multiplies {self.builder.dims(x)[-1]} numbers by a matrix of {list(weight.shape)}")
        if not weight.format:
            matrix = self.builder.constant(weight.data.T, "weights")  # as it lies in the file, which is mapped
            return self.builder.add("MatMul", x, matrix)
        rows = self.builder.constant(weight.data, "weights")
        return self.builder.add("BlockMatMul", *self.quantised(x), rows, format=weight.format)

    def quantised(self, x: Value) -> tuple[Value, ...]:
        """x in bytes, their scales and sums."""
        if x not in self._quantised:
            self._quantised[x] = self.builder.adds("BlockQuantize", 3, x)
        return self._quantised[x]

    def _with_bias(self, y: Value, bias: Weight | None) -> Value:
        return y if bias is None else self.builder.add("Add", y, self.builder.constant(bias.vector, "bias"))

    def norm(self, x: Value, name: str) -> Value:
        """Normalisation along the last axis."""
        scale, bias = self.builder.constant(self.weight(name).vector, "scale"), self.weights.bias(name)
        if self.config.norm == "layer":
            shift = None if bias is None else self.builder.constant(bias.vector, "bias")
            return self.builder.add("LayerNormalization", x, scale, shift, epsilon=self.config.epsilon)
        return self.builder.add("RMSNormalization", x, scale, epsilon=self.config.epsilon)

    def optional_norm(self, x: Value, name: str) -> Value:
        """Normalisation where the model has its weights."""
        return x if self.weights.weight(name) is None else self.norm(x, name)

    # -------------------------------------------------------------------------------------------- ends
    def embedding(self, tokens: Value, images: Value | None = None) -> Value:
        """The embeddings of tokens, of those behind the vocabulary the rows of ``images`` [1, length, hidden]."""
        if images is None:
            return self._words(tokens)
        b = self.builder
        count = b.constant(np.array(self.weight("embedding").shape[0], np.int64), "count")
        word, zero = b.add("Less", tokens, count), b.constant(np.array(0, np.int64), "zero")
        words = self._words(b.add("Where", word, tokens, zero))
        return b.add("Where", b.add("Unsqueeze", word, b.ints(-1)), words, images)

    def _words(self, tokens: Value) -> Value:
        """The embeddings of tokens of the vocabulary."""
        weight = self.weight("embedding")
        table = self.builder.constant(weight.data, "weights")
        if weight.format:
            x = self.builder.add("BlockGather", tokens, table, format=weight.format)
        else:
            x = self.builder.add("Gather", table, tokens, axis=0)
            x = x if self.builder.type(x).dtype is F32 else self.builder.add("Cast", x, to="f32")
        factor = self.config.embedding_scale
        return x if factor == 1.0 else self.builder.add("Mul", x, self.builder.scalar(factor))

    def logits(self, x: Value) -> Value:
        """The logits of the last token, [1, 1, vocabulary]."""
        b = self.builder
        if self.several:
            x = b.add("Gather", self._ended(x, 1), b["rows"], axis=1)
            return self._scores(x)
        return self._scores(self._last(x))

    def _last(self, x: Value) -> Value:
        """The row of the last token, [1, 1, n]."""
        b = self.builder
        last = b.add("Sub", self.number(self.length), b.constant(np.array(1, np.int64), "one"))
        return b.add("Gather", self._ended(x, 1), b.add("Unsqueeze", last, b.ints(0)), axis=1)

    def pooled(self, x: Value, pooling: Pooling) -> Value:
        """The vector of length 1 that states [1, length, n] give, [1, n]."""
        b = self.builder
        if pooling == "mean":
            rows = b.add("ReduceMean", self.norm(self._ended(x, 1), "output_norm"), b.ints(1), keepdims=0)
        else:
            row = self._last(x) if pooling == "last" else b.add("Gather", x, b.ints(0), axis=1)
            rows = b.add("Squeeze", self.norm(row, "output_norm"), b.ints(1))
        return b.add("Div", rows, b.add("ReduceL2", rows, b.ints(1), keepdims=1))

    def _scores(self, x: Value) -> Value:
        """The logits of some tokens."""
        b, config = self.builder, self.config
        x = self.norm(x, "output_norm")
        name = "output" if self.weights.weight("output") is not None else "embedding"
        y = self.linear(x, name)
        y = y if config.logit_scale == 1.0 else b.add("Mul", y, b.scalar(config.logit_scale))
        return self._capped(y, config.logit_softcap)

    def _capped(self, x: Value, c: float) -> Value:
        b = self.builder
        return b.add("Mul", b.add("Tanh", b.add("Mul", x, b.scalar(1 / c))), b.scalar(c)) if c else x

    # ------------------------------------------------------------------------------------------- layers
    def turn(self, rope: Rope) -> tuple[Value, Value]:
        """Cosines and sines of the positions of a run, [length, dimensions / 2]."""
        b = self.builder
        if self.several:
            most = b.dims(b["past_key_values.0.key"])[2]
            tables = [b.add("Gather", b.constant(t, "table"), b["positions"], axis=0) for t in rope.tables(most)]
            return tables[0], tables[1]
        most, positions = int((self.past + self.length if self.cached else self.length).most), self.positions()
        tables = [b.add("Gather", b.constant(t, "table"), positions, axis=0) for t in rope.tables(most)]
        return tables[0], tables[1]

    def positions(self) -> Value:
        """The positions of the tokens of a run of one sequence, i64 [length]."""
        b = self.builder
        places = b.constant(np.arange(b.scope["tokens"].type.dims[1], dtype=np.int64), "places")
        places = b.writer.sizes.state(places, [self.length])
        return b.add("Add", places, self.number(self.past)) if self.cached else places

    def rotated(self, x: Value, turn: tuple[Value, Value], rope: Rope) -> Value:
        """Heads [1, length, heads, depth] turned by the angles of their positions."""
        return self.builder.add("RotateHeads", x, *turn, interleaved=int(rope.interleaved))

    def projections(self, i: int, x: Value) -> Sequence[Value]:
        """Queries, keys and values, [1, length, heads, depth], the first two normalised where the model has norms."""
        config = self.config
        counts = (config.heads, config.key_heads, config.key_heads)
        joined = self.weights.weight(f"{i}.qkv")
        if joined is None:
            flat = [self.linear(x, f"{i}.{name}") for name in "qkv"]
        else:
            sizes = [n * config.depth for n in counts]
            bias = self.weights.bias(f"{i}.qkv")
            biases = (
                [None] * 3 if bias is None else [Weight(part) for part in np.split(bias.vector, np.cumsum(sizes)[:2])]
            )
            flat = [
                self._with_bias(self.product(x, part), own)
                for part, own in zip(joined.rows(sizes), biases, strict=True)
            ]
        names = (f"{i}.q_norm", f"{i}.k_norm", "")
        return [self._in_heads(y, n, name) for y, n, name in zip(flat, counts, names, strict=True)]

    def _in_heads(self, y: Value, count: int, norm: str) -> Value:
        """A projection as ``count`` heads, normalised by the weight ``norm``: each head, or before all together."""
        b, depth = self.builder, self.config.depth
        scale = self.weights.weight(norm) if norm else None
        together = scale is not None and scale.vector.size != depth
        y = b.add("Reshape", self.norm(y, norm) if together else y, b.ints(0, 0, count, depth))
        return y if scale is None or together else self.norm(y, norm)

    def attention(
        self, i: int, x: Value, past: Sequence[Value], turn: tuple[Value, Value] | None, window: int
    ) -> tuple[Value, Sequence[Value]]:
        """x with what attention adds, and the caches ``past``, if any, with the new keys and values."""
        b, config, rope = self.builder, self.config, self.config.layers[i].rope
        q, k, v = self.projections(i, self.optional_norm(x, f"{i}.attention_norm"))
        v = b.add("Transpose", v, perm=(0, 2, 1, 3))  # while queries and keys are turned
        if turn is not None and rope is not None:
            q, k = (self.rotated(y, turn, rope) for y in (q, k))
        present = self._appended(past, [b.add("Transpose", k, perm=(0, 2, 1, 3)), v])
        y = self._attend(q, present, window)
        y = b.add("Reshape", y, b.ints(0, 0, config.heads * config.depth))
        y = self.optional_norm(self.linear(y, f"{i}.attention_output"), f"{i}.attention_post_norm")
        return self._residual(x, y), present

    def _appended(self, past: Sequence[Value], new: Sequence[Value]) -> Sequence[Value]:
        """Caches, if there are any, with the rows of new tokens, of which what lies beyond their number is not
        computed.  Nodes of keys and of values alternate, so that threads compute both before they wait."""
        b = self.builder
        if past and self.several:
            places = (b["positions"], b["slots"], self.number(self.length))
            append, writer = operator("Append", {"axis": 2}), b.writer
            return [
                writer.plain(append, [old, rows, *places], [writer.fresh(f"{old.name}_next")], b.origin)[0]
                for old, rows in zip(past, new, strict=True)
            ]
        if past:
            return [b.add("Concat", *pair, axis=2) for pair in zip(past, new, strict=True)]
        return [self._ended(rows, 2) for rows in new]

    def _ended(self, x: Value, axis: int) -> Value:
        """x with zeros beyond the tokens of the run, of which then nothing is computed."""
        self.builder.type(x)
        writer = self.builder.writer
        mask, name = operator("Mask", {"axis": axis}), writer.fresh(f"{x.name}_ended")
        (ended,) = writer.plain(mask, [x, self.number(self.length)], [name], self.builder.origin)
        return writer.sizes.state(ended, writer.sizes.of(x))

    def _attend(self, q: Value, caches: Sequence[Value], window: int) -> Value:
        config, b = self.config, self.builder
        none = b.constant(np.array(0, np.int64), "past")
        alone = [self.number(self.past) if self.cached else none]
        before = [b["positions"], None, None, b["slots"]] if self.several else alone
        if self.several and "seen" in b.scope:
            before.append(b["seen"])
        elif "seen" in b.scope:  # each query by itself: what one sees is not what those before it see and one more
            slots = b.add("Mul", b["seen"], b.constant(np.array(0, np.int64), "zero"))
            before = [self.positions(), None, None, slots, b["seen"]]
        return b.add(
            "CachedAttention",
            q,
            *caches,
            *before,
            scale=config.score_scale,
            window=window,
            softcap=config.attention_softcap,
        )

    def feed_forward(self, i: int, x: Value) -> Value:
        """x with what the gated layers add."""
        y = self.gated(i, self.optional_norm(x, f"{i}.ffn_norm"))
        return self._residual(x, self.optional_norm(y, f"{i}.ffn_post_norm"))

    def gated(self, i: int, y: Value, prefix: str = "") -> Value:
        """The gated layers, whose weights' names begin with ``prefix``."""
        joined = self.weights.weight(f"{i}.{prefix}gate_up")
        if joined is not None:
            gate, up = (self.product(y, part) for part in joined.rows([joined.shape[0] // 2] * 2))
        else:
            gate, up = self.linear(y, f"{i}.{prefix}gate"), self.linear(y, f"{i}.{prefix}up")
        return self.linear(self.gate(gate, up), f"{i}.{prefix}down")

    def gate(self, gate: Value, up: Value) -> Value:
        """The activation of one projection times the other."""
        return self.builder.add("Mul", self._activated(gate), up)

    def _activated(self, x: Value) -> Value:
        kind = self.config.activation
        if kind == "silu":
            return self.builder.add("Swish", x)
        return self.builder.add("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")

    def _residual(self, x: Value, y: Value) -> Value:
        factor = self.config.residual_scale
        y = y if factor == 1.0 else self.builder.add("Mul", y, self.builder.scalar(factor))
        return self.builder.add("Add", x, y)
