"""TensorFlow's recurrent cells that are one operator each: LSTMBlockCell, BlockLSTM, GRUBlockCell.

Source: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions.recurrent_layers import MAX_STEPS
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tensorflow.importer import TensorflowNode
from tenon.network.graph.graph import Value

_LAYOUTS = {"LSTMBlockCell": "igfo", "BlockLSTM": "igfo", "BlockLSTMV2": "ifgo"}
"""The order of the gates in the matrix: input, candidate, forget, output."""

PARTS = ("i", "cs", "f", "o", "ci", "co", "h")
"""The outputs of a cell: gates, cell state, candidate, squashed memory, output."""


def _lstm(node: TensorflowNode, sums: Value, memory: Value, first: int) -> dict[str, Value]:
    """One step; the peepholes of input, forget and output gate are operands from ``first`` on."""
    builder = node.builder
    size = builder.dims(memory)[-1]
    parts = dict(zip(_LAYOUTS[node.node.op], builder.split(sums, [size] * 4, 1), strict=True))

    def gate(name: str, k: int, seen: Value) -> Value:
        x = parts[name]
        if node.flag("use_peephole"):
            x = builder.add("Add", x, builder.add("Mul", seen, node.input(first + k)))
        return builder.add("Sigmoid", x)

    bias = node.number("forget_bias", 0.0 if node.node.op == "BlockLSTMV2" else 1.0)
    parts["f"] = builder.add("Add", parts["f"], builder.number(bias, sums)) if bias else parts["f"]
    i = gate("i", 0, memory)
    f = gate("f", 1, memory)
    new = builder.add("Tanh", parts["g"])
    after = builder.add("Add", builder.add("Mul", f, memory), builder.add("Mul", i, new))
    limit = node.number("cell_clip", 0.0 if node.node.op == "BlockLSTMV2" else 3.0)
    after = builder.clip(after, -limit, limit) if limit > 0 else after
    o, squashed = gate("o", 2, after), builder.add("Tanh", after)
    return dict(zip(PARTS, (i, after, f, o, new, squashed, builder.add("Mul", o, squashed)), strict=True))


def lstm_cell(node: TensorflowNode) -> Outputs:
    """Operands: x, memory, output before, weights [I + H, 4 H], three peepholes, bias."""
    builder = node.builder
    joined = builder.add("Concat", node.input(0), node.input(2), axis=1)
    outputs = _lstm(node, builder.add("Gemm", joined, node.input(3), node.input(7)), node.input(1), 4)
    return [outputs[name] for name in PARTS]


def block_lstm(node: TensorflowNode) -> Outputs:
    """Operands: how many steps count, x [T, B, I], memory, output before, weights, three peepholes, bias."""
    builder, x = node.builder, node.input(1)
    steps, batch, inputs = builder.dims(x)
    count = min(int(node.constant_input(0).item()), steps)
    memory, output = node.input(2), node.input(3)
    size = builder.dims(memory)[-1]
    if not 0 < count <= MAX_STEPS:
        raise RefusedError(f"runs over {count} steps; at most {MAX_STEPS} are unrolled")
    w, r = builder.split(node.input(4), [inputs, size], 0)
    rows = builder.add("Gemm", builder.reshape(x, (steps * batch, inputs)), w, node.input(8))
    parts_by_step: list[dict[str, Value]] = []
    for t in range(count):
        own = builder.slice(rows, [t * batch], [(t + 1) * batch], [0])
        parts_by_step.append(_lstm(node, builder.add("Gemm", output, r, own), memory, 5))
        memory, output = parts_by_step[-1]["cs"], parts_by_step[-1]["h"]
    rest = steps - count
    zeros = np.zeros((rest, batch, size), builder.type(x).dtype.numpy)
    blank = [builder.constant(zeros, "zeros")] if rest else []
    outputs = [builder.pack([step[name] for step in parts_by_step], 0) for name in PARTS]
    return [builder.add("Concat", part, *blank, axis=0) if blank else part for part in outputs]


def gru_cell(node: TensorflowNode) -> Outputs:
    """Operands: x, output before, weights of reset and update gate and of the candidate, their biases."""
    builder, x, h = node.builder, node.input(0), node.input(1)
    size = builder.dims(h)[-1]
    both = builder.add("Gemm", builder.add("Concat", x, h, axis=1), node.input(2), node.input(4))
    r, u = builder.split(builder.add("Sigmoid", both), [size, size], 1)
    seen = builder.add("Concat", x, builder.add("Mul", r, h), axis=1)
    c = builder.add("Tanh", builder.add("Gemm", seen, node.input(3), node.input(5)))
    kept = builder.add("Mul", builder.add("Sub", builder.constant(np.array(1, np.float32), "one"), u), c)
    return [r, u, c, builder.add("Add", builder.add("Mul", u, h), kept)]


CELLS: dict[str, Callable[[TensorflowNode], Outputs]] = {
    "LSTMBlockCell": lstm_cell,
    "BlockLSTM": block_lstm,
    "BlockLSTMV2": block_lstm,
    "GRUBlockCell": gru_cell,
}
