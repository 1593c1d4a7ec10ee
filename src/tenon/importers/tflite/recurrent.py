"""TFLite's recurrent operators, unrolled over time.

Sequences begin with states of zeros.  Operators of one step keep their state between runs in a variable: that is an
input of the graph in f32, named as the variable, and an output named ``VARIABLE_out``.
Source: the TFLite operator reference and the reference kernels' headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.decompositions.recurrent_layers import LONGEST
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.tflite import schema
from tenon.importers.tflite.importer import Layer
from tenon.importers.tflite.integer_lstm import IntegerLstm, applies
from tenon.ir.graph import Array, Value


def _activation(layer: Layer, x: Value) -> Value:
    """The operator's own activation, which here is not applied to its result."""
    code, builder = layer.activation, layer.builder
    name = schema.ACTIVATIONS[code] if 0 <= code < len(schema.ACTIVATIONS) else str(code)
    if name == "RELU6":
        return builder.clip(x, 0, 6)
    kinds = {"TANH": "Tanh", "RELU": "Relu", "NONE": ""}
    if name not in kinds:
        raise RefusedError(f"the activation {name} is not supported")
    return builder.add(kinds[name], x) if kinds[name] else x


def _real(layer: Layer, k: int) -> Array:
    """A constant operand as real numbers."""
    found = layer.x(k).data
    if found is None:
        raise RefusedError(f"input {k} is computed at run time; it must be a constant")
    return found.astype(np.float32)


def _matrix(layer: Layer, numbers: Sequence[int]) -> Value:
    """The rows of several matrices after each other."""
    return layer.builder.constant(np.concatenate([_real(layer, k) for k in numbers]), "matrix")


def _optional(layer: Layer, k: int) -> Value | None:
    return layer.builder.constant(_real(layer, k), "weights") if layer.has(k) else None


@dataclass(frozen=True)
class _Steps:
    """A sequence as rows of [steps * batch], in the order of time."""

    layer: Layer
    steps: int
    batch: int

    def part(self, rows: Value, t: int) -> Value:
        begin = t * self.batch
        return self.layer.builder.slice(rows, [begin], [begin + self.batch], [0]) if self.steps > 1 else rows

    def joined(self, outputs: Sequence[Value]) -> Value:
        """[steps, batch, numbers]."""
        return self.layer.builder.pack(outputs, 0)

    @property
    def order(self) -> range:
        return range(self.steps)


def _rows(layer: Layer, x: Value) -> tuple[_Steps, Value]:
    """A sequence [time, batch, numbers], or of one step [batch, numbers], as rows."""
    dims = layer.builder.dims(x)
    steps = dims[0] if len(dims) == 3 else 1
    if len(dims) not in (2, 3) or not 0 < steps <= LONGEST:
        raise RefusedError(f"runs over {list(dims)}; at most {LONGEST} steps are unrolled")
    return _Steps(layer, steps, dims[-2]), layer.builder.reshape(x, (-1, dims[-1]))


def _zeros(layer: Layer, batch: int, size: int) -> Value:
    return layer.builder.constant(np.zeros((batch, size), np.float32), "zeros")


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

    def gates(self, layer: Layer) -> range:
        """Gates that there are: where the input gate is coupled it has no weights."""
        return range(0 if layer.has(self.w[0]) else 1, 4)

    def run(
        self, layer: Layer, x: Value, states: tuple[Value, Value] | None, *, backwards: bool = False
    ) -> tuple[Value, Value, Value]:
        """Outputs [time, batch, numbers], the last output and the last memory."""
        builder, gates, normed = layer.builder, self.gates(layer), any(layer.has(k) for k in self.norms)
        time, rows = _rows(layer, x)
        bias = None if normed else _matrix(layer, [self.bias[k] for k in gates])
        own = builder.add("Gemm", rows, _matrix(layer, [self.w[k] for k in gates]), bias, transB=1)
        echo = _matrix(layer, [self.r[k] for k in gates])
        size, width = builder.dims(echo)[0] // len(gates), builder.dims(echo)[1]
        h, c = states or (_zeros(layer, time.batch, width), _zeros(layer, time.batch, size))
        outputs = []
        for t in reversed(time.order) if backwards else time.order:
            sums = builder.add("Gemm", h, echo, time.part(own, t), transB=1)
            split = dict(zip(gates, builder.split(sums, [size] * len(gates), 1), strict=True))
            h, c = self._step(layer, split, c)
            outputs.append(h)
        return time.joined(outputs[::-1] if backwards else outputs), h, c

    def _step(self, layer: Layer, sums: dict[int, Value], c: Value) -> tuple[Value, Value]:
        builder = layer.builder
        forget = builder.add("Sigmoid", self._gate(layer, sums, 1, c))
        enter = builder.add("Sigmoid", self._gate(layer, sums, 0, c)) if 0 in sums else None
        enter = builder.add("Sub", builder.number(1, c), forget) if enter is None else enter
        new = builder.add("Mul", enter, _activation(layer, self._gate(layer, sums, 2, None)))
        c = _clipped(layer, builder.add("Add", builder.add("Mul", forget, c), new), layer.cell_clip)
        out = builder.add("Sigmoid", self._gate(layer, sums, 3, c))
        h = builder.add("Mul", out, _activation(layer, c))
        weights = _optional(layer, self.projection[0]) if self.projection else None
        if weights is not None:
            h = builder.add("Gemm", h, weights, _optional(layer, self.projection[1]), transB=1)
            h = _clipped(layer, h, layer.proj_clip)
        return h, c

    def _gate(self, layer: Layer, sums: dict[int, Value], k: int, seen: Value | None) -> Value:
        """A gate's sum, with what it sees of the memory, normalised where the layer does that."""
        builder, total = layer.builder, sums[k]
        if seen is not None and self.peepholes and layer.has(self.peepholes[k]):
            total = builder.add("Add", total, builder.add("Mul", seen, _matrix(layer, [self.peepholes[k]])))
        if not self.norms or not layer.has(self.norms[k]):
            return total
        scale, offset = (_matrix(layer, [numbers[k]]) for numbers in (self.norms, self.bias))
        return builder.add("LayerNormalization", total, scale, offset, axis=-1, epsilon=1e-8)


def _clipped(layer: Layer, x: Value, limit: float) -> Value:
    return layer.builder.clip(x, -limit, limit) if limit > 0 else x


_ONE = _Lstm(range(1, 5), range(5, 9), (9, 10, -1, 11), range(12, 16), (16, 17), range(20, 24), (18, 19))
_FORWARD = _Lstm(range(1, 5), range(5, 9), (9, 10, -1, 11), range(12, 16), (16, 17))
_BACKWARD = _Lstm(range(18, 22), range(22, 26), (26, 27, -1, 28), range(29, 33), (33, 34))


def _in_time(layer: Layer, x: Value) -> Value:
    """[time, batch, numbers], and back."""
    return x if layer.time_major else layer.builder.transpose(x, (1, 0, 2))


def sequence_lstm(layer: Layer) -> Made:
    if applies(layer, _ONE):
        steps = _in_time(layer, layer.importer.counted(layer.index(0)))
        return _in_time(layer, IntegerLstm(layer, _ONE).run(steps, None)[0])
    return _in_time(layer, _ONE.run(layer, _in_time(layer, layer.x()), None)[0])


def _merged(layer: Layer, sides: Sequence[Value]) -> Made:
    sides = [_in_time(layer, side) for side in sides]
    return layer.builder.add("Concat", *sides, axis=-1) if layer.merge_outputs else sides


def both_ways_lstm(layer: Layer) -> Made:
    if any(layer.has(k) for k in range(39, 48)):
        raise RefusedError("a second input of the sequence is not supported")
    x = _in_time(layer, layer.x())
    sides = [cell.run(layer, x, None, backwards=back)[0] for cell, back in ((_FORWARD, False), (_BACKWARD, True))]
    return _merged(layer, sides)


def lstm(layer: Layer) -> Made:
    """One step: of the full kernel with its state in variables, of the basic one with states as operands."""
    if layer.kernel_type == 1:
        return _basic_lstm(layer)
    states = layer.state(18), layer.state(19)
    if applies(layer, _ONE):
        sequence, h, c = IntegerLstm(layer, _ONE).run(layer.importer.counted(layer.index(0)), states)
    else:
        sequence, h, c = _ONE.run(layer, layer.x(), states)
    layer.keep(18, h)
    layer.keep(19, c)
    return [*[h] * (len(layer.operation.outputs) - 1), layer.builder.reshape(sequence, layer.builder.dims(h))]


def _basic_lstm(layer: Layer) -> Made:
    """Gates input, new, forget, output.  Gives the output, the memory, and two buffers that nobody reads."""
    builder = layer.builder
    joined = builder.add("Concat", layer.x(0), layer.x(1), axis=-1)
    sums = builder.matmul(joined, layer.x(2), layer.optional(3), transposed=True)
    size = builder.dims(sums)[-1] // 4
    i, g, f, o = builder.split(sums, [size] * 4, builder.type(sums).rank - 1)
    new = builder.add("Mul", builder.add("Sigmoid", i), builder.add("Tanh", g))
    c = builder.add("Add", builder.add("Mul", builder.add("Sigmoid", f), layer.x(4)), new)
    return [builder.add("Mul", builder.add("Sigmoid", o), builder.add("Tanh", c)), c, joined, sums]


# ------------------------------------------------------------------------------------------------- plain cells
def _plain(layer: Layer, x: Value, first: int, state: Value | None, *, backwards: bool = False) -> tuple[Value, Value]:
    """Operands from ``first`` on: weights of the input and of the state, bias."""
    builder = layer.builder
    time, rows = _rows(layer, x)
    own = builder.add("Gemm", rows, _matrix(layer, [first]), _optional(layer, first + 2), transB=1)
    echo = _matrix(layer, [first + 1])
    h, outputs = state or _zeros(layer, time.batch, builder.dims(echo)[0]), []
    for t in reversed(time.order) if backwards else time.order:
        h = _activation(layer, builder.add("Gemm", h, echo, time.part(own, t), transB=1))
        outputs.append(h)
    return time.joined(outputs[::-1] if backwards else outputs), h


def rnn(layer: Layer) -> Made:
    _, h = _plain(layer, layer.x(), 1, layer.state(4))
    layer.keep(4, h)
    return h


def sequence_rnn(layer: Layer) -> Made:
    return _in_time(layer, _plain(layer, _in_time(layer, layer.x()), 1, None)[0])


def both_ways_rnn(layer: Layer) -> Made:
    if any(layer.has(k) for k in range(9, 12)):
        raise RefusedError("a second input of the sequence is not supported")
    x = _in_time(layer, layer.x())
    return _merged(layer, [_plain(layer, x, first, None, backwards=first > 1)[0] for first in (1, 5)])


def svdf(layer: Layer) -> Made:
    """Features of the input, remembered for as many steps as the filters over time are long."""
    builder, features, filters = layer.builder, _real(layer, 1), _real(layer, 2)
    count, memory = filters.shape
    if layer.rank < 1 or count % layer.rank:
        raise RefusedError(f"{count} filters do not make units of {layer.rank}")
    x = builder.reshape(layer.x(), (-1, features.shape[1]))
    batch = builder.dims(x)[0]
    fresh = builder.reshape(builder.add("Gemm", x, builder.constant(features, "features"), transB=1), (batch, count, 1))
    before = builder.reshape(layer.state(4), (batch, count, memory))
    after = builder.add("Concat", builder.slice(before, [1], [memory], [2]), fresh, axis=2) if memory > 1 else fresh
    layer.keep(4, builder.reshape(after, (batch, count * memory)))
    seen = builder.add("Mul", after, builder.constant(filters, "filters"))
    y = builder.reduce("Sum", builder.reshape(seen, (batch, count // layer.rank, layer.rank * memory)), [2], keep=False)
    y = builder.add("Add", y, layer.x(3)) if layer.has(3) else y
    return _activation(layer, y)


RECURRENT: dict[str, Callable[[Layer], Made]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": both_ways_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": both_ways_rnn,
    "LSTM": lstm,
    "RNN": rnn,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": sequence_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": sequence_rnn,
}
