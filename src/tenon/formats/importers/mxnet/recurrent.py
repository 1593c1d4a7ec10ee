"""MXNet's RNN: layers of LSTM, GRU or plain cells over [T, N, I], all of whose parameters lie in one vector.

Definition: src/operator/rnn-inl.h of apache/mxnet, which follows cuDNN: of every layer and direction the weights of the
input and of the state, and after all of them the biases in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tenon.formats.decompositions.recurrent_layers import CUDNN, GATES, Direction, run
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.network.graph.graph import Value

_KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def rnn(node: MxnetNode) -> list[Value]:
    mode = node.text("mode")
    size = node.integer("state_size")
    depth = node.integer("num_layers", 1)
    sides = 2 if node.flag("bidirectional") else 1
    if mode not in _KINDS or not 0 < size < 1 << 16 or not 0 < depth < 1 << 8:
        raise RefusedError(f"{depth} layers of {size} units of the kind '{mode}' are not supported")
    if node.flag("use_sequence_length") or (
        "projection_size" in node.attributes and node.text("projection_size") != "None"
    ):
        raise RefusedError("lengths of sequences and projections are not supported")
    kind, dims = _KINDS[mode], node.dims
    if len(dims) != 3:
        raise RefusedError(f"it takes [time, batch, numbers], not {list(dims)}")
    shapes = _shapes(GATES[kind] * size, size, dims[2], depth, sides)
    total = sum(rows * columns for rows, columns in shapes)
    parts = _cut(node, node.parameter(1, total), shapes, total)
    half = len(parts) // 2
    each = [Direction(parts[i], parts[i + 1], parts[half + i], parts[half + i + 1]) for i in range(0, half, 2)]
    layers = [each[i : i + sides] for i in range(0, len(each), sides)]
    states = [_state(node, i) for i in range(2, 4 if kind == "LSTM" else 3)]
    options = {"activations": ("Relu",) * sides} if mode == "rnn_relu" else {}
    outputs = run(node, kind, node.x, layers, CUDNN[kind], states, **options)
    return [outputs.outputs, *outputs.states] if node.flag("state_outputs") else [outputs.outputs]


def _shapes(rows: int, size: int, inputs: int, depth: int, sides: int) -> list[tuple[int, int]]:
    """(rows, columns) of the weights of all layers and directions, then of their biases."""
    weights = [
        (rows, n) for layer in range(depth) for _ in range(sides) for n in (sides * size if layer else inputs, size)
    ]
    return weights + [(rows, 1)] * len(weights)


def _cut(node: MxnetNode, vector: Value, shapes: Sequence[tuple[int, int]], total: int) -> list[Value]:
    if node.builder.dims(vector) != (total,):
        raise RefusedError(f"it needs {total} parameters, and '{node.names[1]}' is {list(node.builder.dims(vector))}")
    ends = np.cumsum([0, *(rows * columns for rows, columns in shapes)]).tolist()
    parts = [node.slice(vector, [a], [b], [0]) for a, b in pairwise(ends)]
    return [
        part if columns == 1 else node.reshape(part, rows, columns)
        for part, (rows, columns) in zip(parts, shapes, strict=True)
    ]


def _state(node: MxnetNode, i: int) -> Value | None:
    """A first state; zeros where it is missing, or a constant of zeros of unknown batch."""
    value = node.inputs[i] if i < len(node.inputs) else None
    return None if value is None or (value.data is not None and not value.data.any()) else value
