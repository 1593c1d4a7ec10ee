"""TFLite's recurrent operators, unrolled over time or, beyond some steps, as loops.

Sequences begin with states of zeros.  Operators of one step keep their state between runs in a variable: that is an
input of the graph in f32 (of integer operators: as it is stored), named as the variable, and an output named
``VARIABLE_out``.
Source: the TFLite operator reference and the reference kernels' headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.loops import FEWEST_STEPS, scan
from tenon.formats.decompositions.recurrent_layers import MAX_STEPS
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite import schema
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.integer_lstm import IntegerLstm
from tenon.formats.importers.tflite.integer_svdf import in_integers, integer_svdf
from tenon.formats.importers.tflite.litert_lstm import LitertLstm
from tenon.formats.importers.tflite.micro_lstm import MicroLstm
from tenon.network.graph.graph import Array, Value


def _activation(node: TfliteNode, x: Value) -> Value:
    """The operator's own activation, which here is not applied to its result."""
    code, builder = node.integer("activation"), node.builder
    name = schema.ACTIVATIONS[code] if 0 <= code < len(schema.ACTIVATIONS) else str(code)
    if name == "RELU6":
        return builder.clip(x, 0, 6)
    kinds = {"TANH": "Tanh", "RELU": "Relu", "NONE": ""}
    if name not in kinds:
        raise RefusedError(f"the activation {name} is not supported")
    return builder.add(kinds[name], x) if kinds[name] else x


def _real(node: TfliteNode, k: int) -> Array:
    """A constant operand as real numbers."""
    data = node.input(k).data
    if data is None:
        raise RefusedError(f"input {k} is computed at run time; it must be a constant")
    return data.astype(np.float32)


def _matrix(node: TfliteNode, numbers: Sequence[int]) -> Value:
    """Several matrices stacked by rows."""
    return node.builder.constant(np.concatenate([_real(node, k) for k in numbers]), "matrix")


def _optional(node: TfliteNode, k: int) -> Value | None:
    return node.builder.constant(_real(node, k), "weights") if node.has(k) else None


Step = Callable[[Value, Sequence[Value]], Sequence[Value]]
"""f(rows of a step, states) -> the next states, of which the first is the result of the step."""


@dataclass(frozen=True)
class _TimeSteps:
    """A sequence as rows of [steps * batch], in the order of time."""

    layer: TfliteNode
    steps: int
    batch: int

    def part(self, rows: Value, t: int) -> Value:
        begin = t * self.batch
        return self.layer.builder.slice(rows, [begin], [begin + self.batch], [0]) if self.steps > 1 else rows

    def joined(self, outputs: Sequence[Value]) -> Value:
        """[steps, batch, numbers]."""
        return self.layer.builder.pack(outputs, 0)

    def run(
        self, rows: Value, states: Sequence[Value], step: Step, *, backwards: bool
    ) -> tuple[Value, Sequence[Value]]:
        """The first state of all steps, [steps, batch, numbers], and the last states; ``rows`` are those of all steps,
        of which each takes its part."""
        if self.steps >= FEWEST_STEPS:
            return self.repeated(rows, states, step, backwards=backwards)
        outputs = []
        for t in reversed(range(self.steps)) if backwards else range(self.steps):
            states = step(self.part(rows, t), states)
            outputs.append(states[0])
        return self.joined(outputs[::-1] if backwards else outputs), states

    def repeated(
        self, rows: Value, states: Sequence[Value], step: Step, *, backwards: bool
    ) -> tuple[Value, Sequence[Value]]:
        """The same by one node that repeats a step."""
        builder = self.layer.builder
        parts = builder.reshape(rows, (self.steps, self.batch, builder.dims(rows)[-1]))

        def iteration(slices: Sequence[Value], now: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
            after = step(slices[0], now)
            return after, [after[0]]

        name = builder.origin.layer or "recurrent"
        last, (outputs,) = scan(builder, [parts], states, iteration, name=name, reverse=backwards)
        return outputs, last


def _rows(node: TfliteNode, x: Value) -> tuple[_TimeSteps, Value]:
    """A sequence [time, batch, numbers], or of one step [batch, numbers], as rows."""
    dims = node.builder.dims(x)
    steps = dims[0] if len(dims) == 3 else 1
    if len(dims) not in (2, 3) or not 0 < steps <= MAX_STEPS:
        raise RefusedError(f"runs over {list(dims)}; at most {MAX_STEPS} steps are unrolled")
    return _TimeSteps(node, steps, dims[-2]), node.builder.reshape(x, (-1, dims[-1]))


def _zeros(node: TfliteNode, batch: int, size: int) -> Value:
    return node.builder.constant(np.zeros((batch, size), np.float32), "zeros")


# ------------------------------------------------------------------------------------------------------ LSTM
@dataclass(frozen=True)
class _Lstm:
    """Where the operands of one direction stand; each of the lists is of input, forget, cell and output gate."""

    w: Sequence[int]
    r: Sequence[int]
    peepholes: Sequence[int]
    bias: Sequence[int]
    projection: Sequence[int]
    norms: Sequence[int] = ()
    states: Sequence[int] = ()

    def gates(self, node: TfliteNode) -> range:
        """The gates present: a coupled input gate has no weights."""
        return range(0 if node.has(self.w[0]) else 1, 4)

    def run(
        self, node: TfliteNode, x: Value, states: tuple[Value, Value] | None, *, backwards: bool = False
    ) -> tuple[Value, Value, Value]:
        """Outputs [time, batch, numbers], the last output and the last cell state."""
        builder = node.builder
        gates = self.gates(node)
        normed = any(node.has(k) for k in self.norms)
        time, rows = _rows(node, x)
        bias = None if normed else _matrix(node, [self.bias[k] for k in gates])
        own = builder.add("Gemm", rows, _matrix(node, [self.w[k] for k in gates]), bias, transB=1)
        recurrent = _matrix(node, [self.r[k] for k in gates])
        size, width = builder.dims(recurrent)[0] // len(gates), builder.dims(recurrent)[1]

        def step(part: Value, state: Sequence[Value]) -> tuple[Value, Value]:
            sums = builder.add("Gemm", state[0], recurrent, part, transB=1)
            split = dict(zip(gates, builder.split(sums, [size] * len(gates), 1), strict=True))
            return self._step(node, split, state[1])

        first = states or (_zeros(node, time.batch, width), _zeros(node, time.batch, size))
        outputs, (h, c) = time.run(own, first, step, backwards=backwards)
        return outputs, h, c

    def _step(self, node: TfliteNode, sums: dict[int, Value], c: Value) -> tuple[Value, Value]:
        builder = node.builder
        forget = builder.add("Sigmoid", self._gate(node, sums, 1, c))
        enter = builder.add("Sigmoid", self._gate(node, sums, 0, c)) if 0 in sums else None
        enter = builder.add("Sub", builder.number(1, c), forget) if enter is None else enter
        new = builder.add("Mul", enter, _activation(node, self._gate(node, sums, 2, None)))
        c = _clipped(node, builder.add("Add", builder.add("Mul", forget, c), new), node.number("cell_clip"))
        out = builder.add("Sigmoid", self._gate(node, sums, 3, c))
        h = builder.add("Mul", out, _activation(node, c))
        weights = _optional(node, self.projection[0]) if self.projection else None
        if weights is not None:
            h = builder.add("Gemm", h, weights, _optional(node, self.projection[1]), transB=1)
            h = _clipped(node, h, node.number("proj_clip"))
        return h, c

    def _gate(self, node: TfliteNode, sums: dict[int, Value], k: int, seen: Value | None) -> Value:
        """A gate's sum with its peephole, normalised where the layer is."""
        builder, total = node.builder, sums[k]
        if seen is not None and self.peepholes and node.has(self.peepholes[k]):
            total = builder.add("Add", total, builder.add("Mul", seen, _matrix(node, [self.peepholes[k]])))
        if not self.norms or not node.has(self.norms[k]):
            return total
        scale, offset = (_matrix(node, [numbers[k]]) for numbers in (self.norms, self.bias))
        return builder.add("LayerNormalization", total, scale, offset, axis=-1, epsilon=1e-8)


def _clipped(node: TfliteNode, x: Value, limit: float) -> Value:
    return node.builder.clip(x, -limit, limit) if limit > 0 else x


_ONE = _Lstm(range(1, 5), range(5, 9), (9, 10, -1, 11), range(12, 16), (16, 17), range(20, 24), (18, 19))
_FORWARD = _Lstm(range(1, 5), range(5, 9), (9, 10, -1, 11), range(12, 16), (16, 17))
_BACKWARD = _Lstm(range(18, 22), range(22, 26), (26, 27, -1, 28), range(29, 33), (33, 34))


def _in_time(node: TfliteNode, x: Value) -> Value:
    """[time, batch, numbers], and back."""
    return x if node.flag("time_major") else node.builder.transpose(x, (1, 0, 2))


def sequence_lstm(node: TfliteNode) -> Outputs:
    kinds: list[type[IntegerLstm]] = [kind for kind in (LitertLstm, MicroLstm) if kind.applies(node, _ONE)]
    if kinds:
        stored = _in_time(node, node.stored(0))
        results = [kind(node, _ONE).run(stored, None)[0] for kind in kinds]
        chosen = node.builder.add("ArithmeticChoice", *results) if len(results) > 1 else results[0]
        return _in_time(node, chosen)
    return _in_time(node, _ONE.run(node, _in_time(node, node.x), None)[0])


def _merged(node: TfliteNode, sides: Sequence[Value]) -> Outputs:
    sides = [_in_time(node, side) for side in sides]
    return node.builder.add("Concat", *sides, axis=-1) if node.flag("merge_outputs") else sides


def bidirectional_lstm(node: TfliteNode) -> Outputs:
    if any(node.has(k) for k in range(39, 48)):
        raise RefusedError("a second input of the sequence is not supported")
    x = _in_time(node, node.x)
    sides = [cell.run(node, x, None, backwards=back)[0] for cell, back in ((_FORWARD, False), (_BACKWARD, True))]
    return _merged(node, sides)


def lstm(node: TfliteNode) -> Outputs:
    """One step: of the full kernel with its state in variables, of the basic one with states as operands."""
    if node.integer("kernel_type") == 1:
        return _basic_lstm(node)
    if LitertLstm.applies(node, _ONE):
        states = node.stored_state(18), node.stored_state(19)
        sequence, h, c = LitertLstm(node, _ONE).run(node.stored(0), states)
    else:
        sequence, h, c = _ONE.run(node, node.x, (node.state(18), node.state(19)))
    node.keep(18, h)
    node.keep(19, c)
    return [*[h] * (len(node.operation.outputs) - 1), node.builder.reshape(sequence, node.builder.dims(h))]


def _basic_lstm(node: TfliteNode) -> Outputs:
    """Gates input, new, forget, output.  Gives the output, the memory, and two buffers that no operator reads."""
    builder = node.builder
    joined = builder.add("Concat", node.input(0), node.input(1), axis=-1)
    sums = builder.matmul(joined, node.input(2), node.optional(3), transposed=True)
    size = builder.dims(sums)[-1] // 4
    i, g, f, o = builder.split(sums, [size] * 4, builder.type(sums).rank - 1)
    new = builder.add("Mul", builder.add("Sigmoid", i), builder.add("Tanh", g))
    c = builder.add("Add", builder.add("Mul", builder.add("Sigmoid", f), node.input(4)), new)
    return [builder.add("Mul", builder.add("Sigmoid", o), builder.add("Tanh", c)), c, joined, sums]


# ------------------------------------------------------------------------------------------------- plain cells
def _plain(
    node: TfliteNode, x: Value, first: int, state: Value | None, *, backwards: bool = False
) -> tuple[Value, Value]:
    """Operands from ``first`` on: weights of the input and of the state, bias."""
    builder = node.builder
    time, rows = _rows(node, x)
    own = builder.add("Gemm", rows, _matrix(node, [first]), _optional(node, first + 2), transB=1)
    recurrent = _matrix(node, [first + 1])

    def step(part: Value, states: Sequence[Value]) -> Sequence[Value]:
        return [_activation(node, builder.add("Gemm", states[0], recurrent, part, transB=1))]

    start = state or _zeros(node, time.batch, builder.dims(recurrent)[0])
    outputs, (h,) = time.run(own, [start], step, backwards=backwards)
    return outputs, h


def rnn(node: TfliteNode) -> Outputs:
    _, h = _plain(node, node.x, 1, node.state(4))
    node.keep(4, h)
    return h


def sequence_rnn(node: TfliteNode) -> Outputs:
    return _in_time(node, _plain(node, _in_time(node, node.x), 1, None)[0])


def bidirectional_rnn(node: TfliteNode) -> Outputs:
    if any(node.has(k) for k in range(9, 12)):
        raise RefusedError("a second input of the sequence is not supported")
    x = _in_time(node, node.x)
    return _merged(node, [_plain(node, x, first, None, backwards=first > 1)[0] for first in (1, 5)])


def svdf(node: TfliteNode) -> Outputs:
    """Features of the input, kept for as many steps as the filters over time are long."""
    if in_integers(node):
        return integer_svdf(node)
    builder, features, filters = node.builder, _real(node, 1), _real(node, 2)
    count, memory = filters.shape
    if node.integer("rank") < 1 or count % node.integer("rank"):
        raise RefusedError(f"{count} filters do not make units of {node.integer('rank')}")
    x = builder.reshape(node.x, (-1, features.shape[1]))
    batch = builder.dims(x)[0]
    fresh = builder.reshape(builder.add("Gemm", x, builder.constant(features, "features"), transB=1), (batch, count, 1))
    before = builder.reshape(node.state(4), (batch, count, memory))
    after = builder.add("Concat", builder.slice(before, [1], [memory], [2]), fresh, axis=2) if memory > 1 else fresh
    node.keep(4, builder.reshape(after, (batch, count * memory)))
    seen = builder.add("Mul", after, builder.constant(filters, "filters"))
    y = builder.reduce(
        "Sum",
        builder.reshape(seen, (batch, count // node.integer("rank"), node.integer("rank") * memory)),
        [2],
        keep=False,
    )
    y = builder.add("Add", y, node.input(3)) if node.has(3) else y
    return _activation(node, y)


RECURRENT: dict[str, Callable[[TfliteNode], Outputs]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": bidirectional_rnn,
    "LSTM": lstm,
    "RNN": rnn,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": sequence_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": sequence_rnn,
}
