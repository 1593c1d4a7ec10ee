"""Tengine's LSTM, GRU and RNN, unrolled over time.

The shapes of the weights say how they lie.  Those of ONNX's, which Tengine's converter stores as they are, have a
matrix of each direction for the input [D, gates * H, I] and for the state, the gates in ONNX's order.  An RNN may have
one matrix [I + H, H] for both.  Sources: source/device/cpu/op/{lstm,gru,rnn} of OAID/Tengine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.recurrent_layers import GATES, unrolled
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tengine.node import LayerRow, TengineNode
from tenon.network.graph.graph import Value


def _sequence(node: TengineNode) -> Value:
    """The input as [T, N, I]."""
    dims = node.dims
    if len(dims) < 3:
        raise RefusedError(f"takes {list(dims)}; a sequence [steps, batch, numbers] is needed")
    return node.x if len(dims) == 3 else node.reshape(node.x, *dims[:2], -1)


def _run(node: TengineNode, kind: str, **attributes: int) -> Sequence[Value]:
    """Inputs: x, w, r, then the bias, the first states and an LSTM's peepholes, as many as there are."""
    w, r = node.dims_of(1), node.dims_of(2)
    hidden = r[-1]
    if len(w) != 3 or len(r) != 3 or w[0] not in (1, 2) or w[1] != GATES[kind] * hidden:
        raise RefusedError(
            f"its weights {list(w)} and {list(r)} are not those of ONNX's {kind}",
            "import the model that the tmfile was converted from",
        )
    bias, states = node.inputs[3:4], node.inputs[4:]
    if len(states) == 4:  # the lengths of the sequences come first, as in ONNX
        states = states[1:]
    given: list[Value | None] = [_sequence(node), *node.inputs[1:3], bias[0] if bias else None, None]
    given += [node.reshape(state, w[0], -1, hidden) for state in states[:2]]
    given += [node.reshape(peep, w[0], -1) for peep in states[2:]]
    direction = "bidirectional" if w[0] == 2 else "forward"
    return unrolled(node.builder, kind, given, hidden_size=hidden, direction=direction, **attributes)


def lstm(node: TengineNode) -> Outputs:
    """All outputs [T, D, N, H] and the last states, hidden and cell."""
    if node.attributes["mxnet_flag"]:
        raise RefusedError("the weights of MXNet's LSTM are not supported", "import the MXNet model itself")
    return _run(node, "LSTM")


def gru(node: TengineNode) -> Outputs:
    """The reset gate applies to the product with the state.  Without a first state, the hidden gate's two biases are
    added outside of it: so Tengine computes."""
    if node.attributes["mxnet_flag"]:
        raise RefusedError("the weights of MXNet's GRU are not supported", "import the MXNet model itself")
    if len(node.inputs) == 4:
        gates = node.dims_of(1)[1]
        own, state = node.split(node.reshape(node.inputs[3], -1, 2 * gates), 1, [gates, gates])
        outside = (np.arange(gates) >= gates // 3 * 2).astype(np.float32)
        own, state = node.add("Add", own, node.add("Mul", state, outside)), node.add("Mul", state, 1 - outside)
        node.inputs = [*node.inputs[:3], node.add("Concat", own, state, axis=1)]
    return _run(node, "GRU", linear_before_reset=1)


def rnn(node: TengineNode) -> Outputs:
    """An RNN with one matrix for input and state: the last ``output_len`` outputs [L, N, H]."""
    if len(node.dims_of(1)) == 3:
        return _run(node, "RNN")
    x, (rows, hidden) = _sequence(node), node.dims_of(1)
    steps, _, width = node.builder.dims(x)
    if rows != width + hidden:
        raise RefusedError(f"its matrix {[rows, hidden]} does not fit inputs of {width} numbers")
    if node.attributes["has_clip"] or node.attributes["activation"]:
        raise RefusedError("only tanh without bounds is supported")
    w, r = (node.add("Transpose", part, perm=(1, 0)) for part in node.split(node.inputs[1], 0, [width, hidden]))
    rest = list(node.inputs[2:])
    bias = rest.pop(0) if node.attributes["has_bias"] and rest else None
    whole = None if bias is None else node.add("Pad", node.reshape(bias, 1, hidden), node.ints(0, 0, 0, hidden))
    first = (
        node.add("Expand", node.reshape(rest[0], 1, -1, hidden), node.ints(1, node.builder.dims(x)[1], hidden))
        if rest
        else None
    )
    given = [x, node.reshape(w, 1, hidden, width), node.reshape(r, 1, hidden, hidden), whole, None, first]
    outputs, *_ = unrolled(node.builder, "RNN", given, hidden_size=hidden, direction="forward")
    y = node.add("Squeeze", outputs, node.ints(1))
    kept = node.attributes["output_len"]
    return y if not 0 < kept < steps else node.slice(y, [steps - kept], [steps], [0])


LAYERS: dict[int, LayerRow] = {
    34: (
        "LSTM",
        "forget_bias:f clip:f output_len sequence_len input_size hidden_size cell_size has_peephole "
        "has_projection has_clip has_bias has_init_state forget_act input_act output_act cellin_act "
        "cellout_act mxnet_flag",
        lstm,
    ),
    35: (
        "RNN",
        "clip:f output_len sequence_len input_size hidden_size has_clip has_bias has_init_state activation",
        rnn,
    ),
    48: (
        "GRU",
        "clip:f output_len sequence_len input_size hidden_size has_clip has_gate_bias has_candidate_bias "
        "has_init_state mxnet_flag",
        gru,
    ),
}
