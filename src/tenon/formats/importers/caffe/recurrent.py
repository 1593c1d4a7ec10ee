"""Caffe's LSTM and RNN, unrolled over the time axis of the net's input.

Caffe runs time along axis 0, and its second bottom says for every step and stream whether the sequence continues (1) or
restarts (0).  Gates stand in the order input, forget, output, candidate.  With ``expose_hidden`` the first states
are the last bottoms, and the last states further tops: hidden, then cell, each [1, N, units].
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.caffe.node import CaffeLayer, Table, Tops
from tenon.network.graph.graph import Value

MAX_STEPS = 512
"""Steps of an unrolled sequence."""


class _Sequence:
    """The projected inputs of a recurrent layer, and steps through them."""

    def __init__(self, layer: CaffeLayer, gates: int, states: int) -> None:
        self.layer, self.size = layer, layer.p.num_output
        self.steps, self.streams = layer.dims[:2]
        self.exposed = states if layer.p.expose_hidden else 0
        if len(layer.inputs) < 2 + self.exposed:
            raise RefusedError(f"has {len(layer.inputs)} bottoms, and exposes {states} states")
        if not 0 < self.steps <= MAX_STEPS or not 0 < self.size < 1 << 20:
            raise RefusedError(f"runs {self.steps} steps of {self.size} units")
        bias = layer.weights(1, (gates * self.size,), layer.p.bias_filler)
        self.projected = self.times(layer.as_matrix(layer.x, 2), 0, gates * self.size, bias)
        self.goes_on = layer.reshape(layer.input(1), self.steps * self.streams, 1)
        self.static = len(layer.inputs) > 2 + self.exposed
        if self.static:  # a third bottom, the same at every step
            once = self.times(layer.reshape(layer.input(2), self.streams, -1), 2, gates * self.size)
            self.projected = layer.add("Add", self.projected, layer.add("Tile", once, layer.ints(self.steps, 1)))

    def times(self, rows: Value, i: int, size: int, bias: Value | None = None) -> Value:
        """Rows times blob ``i``."""
        w = self.layer.weights(i, (size, self.layer.builder.dims(rows)[1]), self.layer.p.weight_filler)
        return self.layer.add("Gemm", rows, w, bias, transB=1)

    def hidden(self, i: int, rows: int) -> Value:
        """The weights of the hidden state, the ``i``-th after those of the inputs."""
        return self.layer.weights(2 + self.static + i, (rows, self.size), self.layer.p.weight_filler)

    def at(self, whole: Value, step: int) -> Value:
        return self.layer.slice(whole, [step * self.streams], [(step + 1) * self.streams], [0])

    def first(self) -> list[Value | None]:
        """The states before the first step; None for zeros."""
        given = self.layer.inputs[len(self.layer.inputs) - self.exposed :]
        return [*(self.layer.reshape(state, self.streams, self.size) for state in given), None, None][:2]

    def joined(self, outputs: Sequence[Value], *states: Value) -> list[Value]:
        """The outputs of all steps, and the last states where they are exposed."""
        y = outputs[0] if len(outputs) == 1 else self.layer.add("Concat", *outputs, axis=0)
        last = [self.layer.reshape(state, 1, self.streams, self.size) for state in states[: self.exposed]]
        return [self.layer.reshape(y, self.steps, self.streams, self.size), *last]


def lstm(layer: CaffeLayer) -> Tops:
    sequence, add = _Sequence(layer, 4, 2), layer.add
    w = sequence.hidden(0, 4 * sequence.size)
    h, c = sequence.first()
    outputs: list[Value] = []
    for step in range(sequence.steps):
        sums = sequence.at(sequence.projected, step)
        if h is not None and c is not None:
            goes_on = sequence.at(sequence.goes_on, step)
            sums = add("Add", sums, add("Gemm", add("Mul", h, goes_on), w, transB=1))
            c = add("Mul", c, goes_on)
        i, f, o, g = layer.equal_parts(sums, 1, 4)
        new = add("Mul", add("Sigmoid", i), add("Tanh", g))
        c = new if c is None else add("Add", add("Mul", add("Sigmoid", f), c), new)
        h = add("Mul", add("Sigmoid", o), add("Tanh", c))
        outputs.append(h)
    return sequence.joined(outputs, *(state for state in (h, c) if state is not None))


def rnn(layer: CaffeLayer) -> Tops:
    sequence, add = _Sequence(layer, 1, 1), layer.add
    w, out = sequence.hidden(0, sequence.size), sequence.hidden(1, sequence.size)
    bias = layer.weights(4 + sequence.static, (sequence.size,), layer.p.bias_filler)
    h, _ = sequence.first()
    outputs: list[Value] = []
    for step in range(sequence.steps):
        sums = sequence.at(sequence.projected, step)
        if h is not None:
            kept = add("Mul", h, sequence.at(sequence.goes_on, step))
            sums = add("Add", sums, add("Gemm", kept, w, transB=1))
        h = add("Tanh", sums)
        outputs.append(add("Tanh", add("Gemm", h, out, bias, transB=1)))
    return sequence.joined(outputs, *([h] if h is not None else []))


LAYERS: Table = {"LSTM": ("recurrent_param", lstm), "RNN": ("recurrent_param", rnn)}
