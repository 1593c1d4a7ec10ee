"""Recurrent layers of other formats as ONNX's LSTM, GRU and RNN, which are unrolled over time.

ONNX's order of gates is input, output, forget, cell for LSTM and update, reset, hidden for GRU; ``order`` gives the
position of each of these in a format's own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeBuilder, NodeContext, Operand
from tenon.network.graph.graph import Value

MAX_STEPS = 4096
"""Steps that a recurrent layer may be unrolled to."""

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

CUDNN = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The order of cuDNN, MXNet, Paddle and PyTorch: input, forget, cell, output; reset, update, new."""


def unrolled(builder: NodeBuilder, kind: str, inputs: Sequence[Value | None], **attributes: Any) -> list[Value]:
    """The results of ONNX's LSTM, GRU or RNN of these inputs: all outputs [T, D, N, H], the last states [D, N, H]."""
    steps = builder.dims(inputs[0])[0] if inputs[0] is not None else 0
    if not 0 < steps <= MAX_STEPS:
        raise RefusedError(f"runs over {steps} steps; at most {MAX_STEPS} are unrolled")
    return decomposed(builder, kind, inputs, 3, **attributes)


@dataclass(frozen=True)
class Direction:
    """Weights of the input [gates * H, I] and of the state [gates * H, H], and both biases [gates * H]."""

    w: Operand
    r: Operand
    input_bias: Operand
    state_bias: Operand


@dataclass(frozen=True)
class Recurrent:
    """The results of ``run``: outputs [T, N, D * H], and the last hidden (and cell) states [layers * D, N, H]."""

    outputs: Value
    states: list[Value]


def run(
    node: NodeContext,
    kind: str,
    x: Value,
    layers: Sequence[Sequence[Direction]],
    order: Sequence[int],
    states: Sequence[Value | None] = (),
    **attributes: Any,
) -> Recurrent:
    """Stacked layers, each of one direction or of two, over x [T, N, I].

    ``states`` are the first hidden (and cell) states [layers * D, N, H], absent where they are zeros.  The reset gate
    of a GRU applies to the product with the state, unlike ONNX's default.
    """
    lasts: list[list[Value]] = []
    for at, directions in enumerate(layers):
        sides = len(directions)
        w, r = (
            _joined(node, [_ordered(node, m, kind, order) for m in side])
            for side in zip(*((d.w, d.r) for d in directions), strict=True)
        )
        biases = [
            node.add("Concat", *(_ordered(node, b, kind, order) for b in (d.input_bias, d.state_bias)), axis=0)
            for d in directions
        ]
        first = [_part(node, state, at * sides, sides) for state in states]
        hidden = node.builder.dims(r)[2]
        options = {"hidden_size": hidden, "direction": "bidirectional" if sides == 2 else "forward", **attributes}
        if kind == "GRU":
            options["linear_before_reset"] = 1
        y, *last = unrolled(node.builder, kind, [x, w, r, _joined(node, biases), None, *first], **options)
        steps, _, batch, _ = node.builder.dims(y)
        x = node.reshape(node.add("Transpose", y, perm=(0, 2, 1, 3)), steps, batch, sides * hidden)
        lasts.append(last)
    final = [_together(node, parts) for parts in zip(*lasts, strict=True)]
    return Recurrent(x, final)


def _ordered(node: NodeContext, matrix: Operand, kind: str, order: Sequence[int]) -> Value:
    """The gates along the first axis in ONNX's order."""
    value = node.value(matrix)
    if value is None:
        raise RefusedError("its weights are missing")
    if len(order) == 1:
        return value
    parts = node.equal_parts(value, 0, GATES[kind])
    return node.add("Concat", *(parts[i] for i in order), axis=0)


def _joined(node: NodeContext, parts: Sequence[Value]) -> Value:
    """One after the other along a new first axis."""
    return _together(node, [node.add("Unsqueeze", part, node.ints(0)) for part in parts])


def _together(node: NodeContext, parts: Sequence[Value]) -> Value:
    return parts[0] if len(parts) == 1 else node.add("Concat", *parts, axis=0)


def _part(node: NodeContext, state: Value | None, first: int, count: int) -> Value | None:
    if state is None or node.builder.dims(state)[0] == count:
        return state
    return node.slice(state, [first], [first + count], [0])
