"""Parts of transformers with named weights: linear layers, normalisation, attention over sequences and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeBuilder, NodeContext
from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.network.graph.graph import Array, Value

Weights = Mapping[str, Array] | Mapping[str, Weight]
"""Tensors of a model by the names of its file: floats, or matrices in blocks too."""

_FUNCTIONS = {"gelu": "Gelu", "relu": "Relu", "tanh": "Tanh"}

_LOWEST = np.array(np.finfo(np.float32).min, np.float32)


def layer_names(weights: Weights, prefix: str, count: int) -> list[str]:
    """The names of ``count`` layers, "PREFIX.0" and so on.  Raises FormatError if the weights have fewer."""
    if not any(name.startswith(f"{prefix}.{count - 1}.") for name in weights):
        raise FormatError(f"the settings state {count} layers '{prefix}', and the weights have fewer")
    return [f"{prefix}.{i}" for i in range(count)]


class TransformerNode(NodeContext):
    """The layer that is being built, with the weights of the model."""

    def __init__(self, builder: NodeBuilder, weights: Weights) -> None:
        super().__init__(builder)
        self.weights = weights
        self._quantised: dict[Value, Sequence[Value]] = {}

    def stored(self, name: str, *shape: int) -> Weight:
        """A tensor as the file has it.  Raises RefusedError if it is missing or has another shape."""
        if name not in self.weights:
            raise RefusedError(f"the tensor '{name}' is missing from the file")
        tensor = self.weights[name]
        weight = tensor if isinstance(tensor, Weight) else Weight(np.asarray(tensor))
        if weight.shape != shape:
            raise RefusedError(f"the tensor '{name}' has the shape {list(weight.shape)}, not {list(shape)}")
        return weight

    def weight(self, name: str, *shape: int) -> Array:
        """A tensor of the file in f32.  Raises as ``stored`` does."""
        weight = self.stored(name, *shape)
        return dequantised(FORMATS[weight.format], weight.data) if weight.format else weight.data.astype(np.float32)

    def linear(self, x: Value, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Value:
        """x [..., inputs] times the transposed ``name``.weight [outputs, inputs], plus ``name``.bias."""
        y = self.product(x, f"{name}.weight", inputs, outputs)
        return self.add("Add", y, self.weight(f"{name}.bias", outputs)) if bias else y

    def product(self, x: Value, name: str, inputs: int, outputs: int) -> Value:
        """x [..., inputs] times the transposed tensor ``name`` [outputs, inputs]; one in blocks stays in these."""
        weight = self.stored(name, outputs, inputs)
        if not weight.format:
            return self.add("MatMul", x, np.ascontiguousarray(weight.data.astype(np.float32).T))
        if x not in self._quantised:
            self._quantised[x] = self.adds("BlockQuantize", 3, x)
        return self.add("BlockMatMul", *self._quantised[x], weight.data, format=weight.format)

    def rows(self, numbers: Value, name: str, count: int, width: int) -> Value:
        """The rows of the tensor ``name`` [count, width] that ``numbers`` i64 [1, L] choose, [1, L, width]."""
        weight = self.stored(name, count, width)
        if weight.format:
            return self.add("BlockGather", numbers, weight.data, format=weight.format)
        return self.add("Gather", weight.data.astype(np.float32), numbers, axis=0)

    def norm(self, x: Value, name: str, width: int, *, bias: bool = True, epsilon: float = 1e-5) -> Value:
        """Layer normalisation over the last axis."""
        parts = [self.weight(f"{name}.weight", width)]
        if bias:
            parts.append(self.weight(f"{name}.bias", width))
        return self.add("LayerNormalization", x, *parts, axis=-1, epsilon=epsilon)

    def conv(self, x: Value, name: str, shape: tuple[int, int, int], *, bias: bool = True, **settings: object) -> Value:
        """A convolution of signals [1, channels, length] with ``name``.weight [outputs, inputs, kernel]."""
        parts = [self.weight(f"{name}.weight", *shape)]
        if bias:
            parts.append(self.weight(f"{name}.bias", shape[0]))
        return self.add("Conv", x, *parts, **settings)

    def activation(self, x: Value, name: str) -> Value:
        """The function that a file calls ``name``.  Raises RefusedError for an unknown one."""
        if name == "quick_gelu":
            return self.add("Mul", x, self.add("Sigmoid", self.add("Mul", x, 1.702)))
        if name == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if name in ("gelu_new", "gelu_pytorch_tanh"):
            return self.add("Gelu", x, approximate="tanh")
        if name not in _FUNCTIONS:
            raise RefusedError(f"the function {name!r:.40} is not known")
        return self.add(_FUNCTIONS[name], x)

    def unit(self, x: Value) -> Value:
        """Vectors [rows, n] divided by their lengths."""
        return self.add("Div", x, self.add("ReduceL2", x, self.ints(1), keepdims=1))

    def heads(self, x: Value, count: int, size: int) -> Value:
        """[1, L, count * size] to [1, count, L, size]."""
        return self.add("Transpose", self.reshape(x, 1, -1, count, size), perm=(0, 2, 1, 3))

    def merged(self, x: Value, width: int) -> Value:
        """[1, heads, L, size] to [1, L, heads * size]."""
        return self.reshape(self.add("Transpose", x, perm=(0, 2, 1, 3)), 1, -1, width)

    def attend(self, queries: Value, keys: Value, values: Value, scale: float, seen: Value | None = None) -> Value:
        """Attention of queries [1, heads, L, size] to keys and values [1, heads, N, size]; ``seen`` bool [L, N]."""
        products = self.add("MatMul", queries, self.add("Transpose", keys, perm=(0, 1, 3, 2)))
        scores = self.add("Mul", products, scale)
        if seen is not None:
            scores = self.add("Where", seen, scores, _LOWEST)
        return self.add("MatMul", self.add("Softmax", scores, axis=-1), values)

    def length(self, x: Value, axis: int) -> Value:
        """The extent of an axis at run time, i64 of rank 0."""
        return self.add("Gather", self.add("Shape", x), np.array(axis, np.int64), axis=0)

    def causal(self, tokens: Value) -> tuple[Value, Value]:
        """Positions i64 [S] of tokens [1, S], and which of them each sees, bool [S, S]: those before and itself."""
        own = self.add("Range", np.array(0, np.int64), self.length(tokens, 1), np.array(1, np.int64))
        columns, rows = self.add("Unsqueeze", own, self.ints(0)), self.add("Unsqueeze", own, self.ints(1))
        return own, self.add("LessOrEqual", columns, rows)

    def positions(self, tokens: Value, past: Value) -> tuple[Value, Value]:
        """Positions i64 [S] of tokens [1, S] behind a cache [1, heads, P, size], and which of the P + S positions each
        of them sees, bool [S, P + S]."""
        before, count = self.length(past, 2), self.length(tokens, 1)
        one, total = np.array(1, np.int64), self.add("Add", before, count)
        own = self.add("Range", before, total, one)
        every = self.add("Range", np.array(0, np.int64), total, one)
        columns, rows = self.add("Unsqueeze", every, self.ints(0)), self.add("Unsqueeze", own, self.ints(1))
        return own, self.add("LessOrEqual", columns, rows)
