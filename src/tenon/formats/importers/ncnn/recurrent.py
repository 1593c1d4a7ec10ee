"""ncnn's LSTM, GRU and RNN, whose time is the second axis of a blob [1, T, I].

Definitions: src/layer/{lstm,gru,rnn}.cpp; weights lie as [direction, gate, unit, number].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.recurrent_layers import GATES, Direction, run
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.network.graph.graph import Array, Value

_ORDERS = {"LSTM": (0, 2, 1, 3), "GRU": (1, 0, 2), "RNN": (0,)}
"""ncnn's gates: input, forget, output, cell; reset, update, new."""

_BIASES = {"LSTM": 4, "GRU": 4, "RNN": 1}


def recurrent(c: NcnnLayer) -> Outputs:
    kind, size, direction = c.record.type, c.integer(0), c.integer(2)
    sides, gates = 2 if direction == 2 else 1, GATES[kind]
    total, dims = c.integer(1), c.dims
    if not 0 < size < 1 << 20 or direction not in (0, 1, 2) or total % (sides * gates * size):
        raise RefusedError(f"{total} weights do not make {gates} gates of {size} units in direction {direction}")
    if c.integer(3, size) != size:
        raise RefusedError("projected states are not supported")
    if len(dims) != 3 or dims[2] != total // (sides * gates * size):
        raise RefusedError(f"it takes steps of {total // (sides * gates * size)} numbers from {list(dims)}")
    w = c.weights.array(total).reshape(sides, gates * size, -1)
    biases = c.weights.array(sides * _BIASES[kind] * size).reshape(sides, -1)
    r = c.weights.array(sides * gates * size * size).reshape(sides, gates * size, size)
    if c.integer(8):
        w, r = (c.scaled(m, c.weights.floats(sides * gates * size)) for m in (w, r))
    if np.int8 in (w.dtype, r.dtype):
        raise RefusedError("its weights are int8 without scales")
    layer = [Direction(w[i], r[i], *_biases(kind, biases[i], size)) for i in range(sides)]
    x, states = c.add("Transpose", c.x, perm=(1, 0, 2)), [c.add("Transpose", s, perm=(1, 0, 2)) for s in c.inputs[1:]]
    if direction == 1:
        x = _reversed(c, x)
    outputs = run(c, kind, x, [layer], _ORDERS[kind], states)
    y = _reversed(c, outputs.outputs) if direction == 1 else outputs.outputs
    return [c.add("Transpose", v, perm=(1, 0, 2)) for v in (y, *outputs.states)][: max(1, len(c.record.tops))]


def _biases(kind: str, stored: Array, size: int) -> Sequence[Array]:
    """The biases of the input and of the state; a GRU stores two separate ones for its last gate."""
    if kind != "GRU":
        return stored, np.zeros_like(stored)
    zeros = np.zeros(2 * size, np.float32)
    return stored[: 3 * size], np.concatenate([zeros, stored[3 * size :]])


def _reversed(layer: NcnnLayer, x: Value) -> Value:
    """The last step first."""
    return layer.slice(x, [-1], [-(1 << 31)], [0], [-1])


RECURRENT: dict[str, Callable[[NcnnLayer], Outputs]] = dict.fromkeys(GATES, recurrent)
