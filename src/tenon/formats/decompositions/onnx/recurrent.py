"""LSTM, GRU and RNN of ONNX: products of all inputs in one matrix product, then step by step, unrolled or in a loop.

Equations and the order of gates: the ONNX operator specifications (LSTM: i, o, f, c; GRU: z, r, h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tenon.formats.decompositions.loops import FEWEST_STEPS, scan
from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.decompositions.onnx.recurrent_cell import Multiply, RecurrentCell, cells
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.writer import is_known

Step = Callable[[RecurrentCell, Value, Sequence[Value]], list[Value]]
"""f(cell, gates of the input, state) -> the next state; the first part of a state is the hidden one."""


def _run(
    node: OnnxNode,
    cells: Sequence[RecurrentCell],
    states: Sequence[int],
    step: Step,
    prepare: Callable[[RecurrentCell], Value | None],
) -> list[Value]:
    """Outputs Y, Y_h (and Y_c): every step of every direction."""
    if node.attributes.get("layout"):
        return _batch_first(node, cells, states, step, prepare)
    x = node.input(0)
    return _steps(node, cells, x, [[cell.part(i) for i in states] for cell in cells], step, prepare)


def _batch_first(
    node: OnnxNode,
    cells: Sequence[RecurrentCell],
    states: Sequence[int],
    step: Step,
    prepare: Callable[[RecurrentCell], Value | None],
) -> list[Value]:
    x = node.add("Transpose", node.input(0), perm=(1, 0, 2))
    starts: list[list[Value | None]] = [
        [cell.pick(node.input(i), cell.direction, 1) if node.has(i) else None for i in states] for cell in cells
    ]
    y, *last = _steps(node, cells, x, starts, step, prepare)
    return [node.add("Transpose", y, perm=(2, 0, 1, 3)), *(node.add("Transpose", v, perm=(1, 0, 2)) for v in last)]


def _steps(
    node: OnnxNode,
    cells: Sequence[RecurrentCell],
    x: Value,
    starts: Sequence[Sequence[Value | None]],
    step: Step,
    prepare: Callable[[RecurrentCell], Value | None],
) -> list[Value]:
    length, batch, _ = x.type.dims
    lengths = node.input(4) if node.has(4) else None
    if lengths is not None and lengths.data is not None and (lengths.data == length).all():
        lengths = None
    sides, ends = [], []
    for cell, start in zip(cells, starts, strict=True):
        products = cell.add(cell.by_weights(x, 1), prepare(cell))
        state = [cell.zeros(batch) if v is None else v for v in start]
        masked = _masked(cell, step, lengths, batch)
        looped = length >= FEWEST_STEPS and cell.multiply is None and is_known(products)
        side, end = (_looped if looped else _unrolled)(cell, products, state, masked)
        sides.append(side)
        ends.append(end)
    y = node.add("Concat", *sides, axis=1)
    first = node.int_constant("first", [0])
    last = [
        node.add("Concat", *(node.add("Unsqueeze", v, first) for v in parts), axis=0)
        for parts in zip(*ends, strict=True)
    ]
    return [y, *last]


Masked = Callable[[Value, Value, Sequence[Value]], tuple[Sequence[Value], Value]]
"""f(number of the step, gates of the input, state) -> the next state, the hidden state as a result."""


def _masked(cell: RecurrentCell, step: Step, lengths: Value | None, batch: int) -> Masked:
    """A step of which rows that are shorter than its number take no notice."""

    def masked(t: Value, x: Value, state: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        new = step(cell, x, state)
        if lengths is None:
            return new, new[0]
        column = cell.layer.add("Unsqueeze", lengths, cell.layer.int_constant("column", [1]))
        inside = cell.layer.add("Less", t, column)
        kept = [cell.layer.add("Where", inside, a, b) for a, b in zip(new, state, strict=True)]
        return kept, cell.layer.add("Where", inside, kept[0], cell.zeros(batch))

    return masked


def _numbers(cell: RecurrentCell, count: int) -> Array:
    """The numbers of the steps, in the type of the lengths of rows."""
    dtype = cell.layer.input(4).type.dtype.numpy if cell.layer.has(4) else np.dtype(np.int32)
    return np.arange(count, dtype=dtype)


def _unrolled(
    cell: RecurrentCell, products: Value, state: Sequence[Value], masked: Masked
) -> tuple[Value, Sequence[Value]]:
    """The hidden states of all steps, [steps, 1, batch, hidden], and the last state, by nodes for each step."""
    length, hidden = products.type.dims[0], list[Value]()
    numbers = _numbers(cell, length)
    for t in reversed(range(length)) if cell.backwards else range(length):
        state, result = masked(cell.layer.constant(numbers[t], "t"), cell.pick(products, t, 0), state)
        hidden.append(result)
    ordered = hidden[::-1] if cell.backwards else hidden
    axes = cell.layer.int_constant("axes", [0, 1])
    return cell.layer.add("Concat", *(cell.layer.add("Unsqueeze", h, axes) for h in ordered), axis=0), state


def _looped(
    cell: RecurrentCell, products: Value, state: Sequence[Value], masked: Masked
) -> tuple[Value, Sequence[Value]]:
    """The same by one node that repeats a step."""
    layer = cell.layer
    numbers = layer.constant(_numbers(cell, products.type.dims[0]), "t")

    def iteration(slices: Sequence[Value], states: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        after, result = masked(slices[1], slices[0], states)
        return after, [layer.add("Unsqueeze", result, layer.int_constant("axes", [0]))]

    name = f"{layer.origin.layer or 'recurrent'}_{cell.direction}"
    last, (y,) = scan(layer.builder, [products, numbers], state, iteration, name=name, reverse=cell.backwards)
    return y, last


def _bias(cell: RecurrentCell) -> tuple[Value | None, Value | None]:
    """The biases of the input's and of the state's products."""
    both = cell.part(3)
    return (None, None) if both is None else (cell.cut(both, 0, cell.gates), cell.cut(both, cell.gates, cell.gates))


def _whole_bias(cell: RecurrentCell) -> Value | None:
    w, r = _bias(cell)
    return None if w is None or r is None else cell.add(w, r)


def _rnn_step(cell: RecurrentCell, x: Value, state: Sequence[Value]) -> list[Value]:
    return [cell.activations[0](cell.add(x, cell.by_weights(state[0], 2)))]


def rnn(node: OnnxNode) -> list[Value]:
    return _run(node, cells(node, 1, ["Tanh"]), [5], _rnn_step, _whole_bias)


def _lstm_step(cell: RecurrentCell, x: Value, state: Sequence[Value]) -> list[Value]:
    f, g, h = cell.activations
    hidden, memory = state
    gates = cell.add(x, cell.by_weights(hidden, 2))
    peep = cell.part(7)
    peeps = [None if peep is None else cell.cut(peep, i) for i in range(3)]

    def gate(i: int, memory: Value) -> Value:
        own = cell.cut(gates, i)
        through = peeps[i] if i < 3 else None
        return own if through is None else cell.add(own, cell.mul(through, memory))

    entering = f(gate(0, memory))
    if cell.layer.attributes.get("input_forget"):
        kept = cell.layer.add("Sub", cell.layer.typed_scalar("one", 1), entering)
    else:
        kept = f(gate(2, memory))
    new = cell.add(cell.mul(kept, memory), cell.mul(entering, g(cell.cut(gates, 3))))
    return [cell.mul(f(gate(1, new)), h(new)), new]


def lstm(node: OnnxNode, multiply: Multiply | None = None) -> list[Value]:
    """``multiply`` computes the products with weights where they are not those of the inputs in f32."""
    each = [replace(cell, multiply=multiply) for cell in cells(node, 4, ["Sigmoid", "Tanh", "Tanh"])]
    return _run(node, each, [5, 6], _lstm_step, _whole_bias)


def _gru_step(cell: RecurrentCell, x: Value, state: Sequence[Value]) -> list[Value]:
    f, g = cell.activations
    layer, hidden = cell.layer, state[0]
    recurrent, (_, bias) = cell.part(2), _bias(cell)
    assert recurrent is not None
    late = layer.attributes.get("linear_before_reset", 0)
    early = cell.product(hidden, cell.transposed(cell.rows(recurrent, 0, 2)))
    early = cell.add(early, None if bias is None else cell.cut(bias, 0, 2))
    both = f(cell.add(cell.cut(x, 0, 2), early))
    update, reset = cell.cut(both, 0), cell.cut(both, 1)
    matrix, rest = cell.transposed(cell.rows(recurrent, 2, 1)), None if bias is None else cell.cut(bias, 2)
    if late:
        through = cell.mul(reset, cell.add(cell.product(hidden, matrix), rest))
    else:
        through = cell.add(cell.product(cell.mul(reset, hidden), matrix), rest)
    fresh = g(cell.add(cell.cut(x, 2), through))
    other = cell.mul(layer.add("Sub", layer.typed_scalar("one", 1), update), fresh)
    return [cell.add(other, cell.mul(update, hidden))]


def gru(node: OnnxNode) -> list[Value]:
    return _run(node, cells(node, 3, ["Sigmoid", "Tanh"]), [5], _gru_step, lambda cell: _bias(cell)[0])
