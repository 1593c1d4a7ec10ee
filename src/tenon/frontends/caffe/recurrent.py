"""Caffe's LSTM and RNN, unrolled over the time that the net's input has.

Caffe runs time along axis 0, and its second bottom says for every step and stream whether the sequence goes on (1) or
begins anew (0).  Gates stand in the order input, forget, output, candidate.  With ``expose_hidden`` the first states
are the last bottoms, and the last states further tops: hidden, then cell, each [1, N, units].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tenon.frontends.caffe.layer import Layer, Tops
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Value

LONGEST = 512
"""Steps of an unrolled sequence."""


class _Sequence:
    """The projected inputs of a recurrent layer, and steps through them."""

    def __init__(self, layer: Layer, gates: int, states: int) -> None:
        self.layer, parameter = layer, layer.message.recurrent_param
        dims, self.size = layer.dims(), parameter.num_output
        self.steps, self.streams, width = dims[0], dims[1], math.prod(dims[2:])
        self.exposed = states if parameter.expose_hidden else 0
        if len(layer.bottoms) < 2 + self.exposed:
            raise RefusedError(f"has {len(layer.bottoms)} bottoms, and exposes {states} states")
        if not 0 < self.steps <= LONGEST or not 0 < self.size < 1 << 20:
            raise RefusedError(f"runs {self.steps} steps of {self.size} units")
        rows = layer.reshape(layer.x, (self.steps * self.streams, width))
        self.static = len(layer.bottoms) > 2 + self.exposed
        w = layer.weights(0, (gates * self.size, width), parameter.weight_filler)
        b = layer.weights(1, (gates * self.size,), parameter.bias_filler)
        self.projected = layer.add("Gemm", rows, w, b, transB=1)
        self.goes_on = layer.reshape(layer.bottom(1), (self.steps * self.streams, 1))
        self.gates = gates
        if self.static:
            self.add_static()

    def add_static(self) -> None:
        """A third bottom, the same at every step."""
        layer, dims = self.layer, self.layer.dims(2)
        w = layer.weights(2, (self.gates * self.size, math.prod(dims[1:])), layer.message.recurrent_param.weight_filler)
        rows = layer.reshape(layer.bottom(2), (self.streams, math.prod(dims[1:])))
        once = layer.add("Gemm", rows, w, transB=1)
        self.projected = layer.add("Add", self.projected, layer.add("Tile", once, layer.net.ints(self.steps, 1)))

    def recurrent(self, i: int, rows: int) -> Value:
        """The weights of the hidden state, the ``i``-th after those of the inputs."""
        shape = (rows, self.size)
        return self.layer.weights(2 + self.static + i, shape, self.layer.message.recurrent_param.weight_filler)

    def at(self, whole: Value, step: int) -> Value:
        ints = self.layer.net.ints
        begin = step * self.streams
        return self.layer.add("Slice", whole, ints(begin), ints(begin + self.streams), ints(0))

    def first(self) -> list[Value | None]:
        """The states before the first step; None for zeros."""
        count, found = len(self.layer.bottoms), list[Value | None]([None, None])
        for i in range(self.exposed):
            found[i] = self.layer.reshape(self.layer.bottom(count - self.exposed + i), (self.streams, self.size))
        return found

    def joined(self, outputs: Sequence[Value], *states: Value) -> list[Value]:
        """The outputs of all steps, and the last states where they are exposed."""
        y = outputs[0] if len(outputs) == 1 else self.layer.add("Concat", *outputs, axis=0)
        last = [self.layer.reshape(state, (1, self.streams, self.size)) for state in states[: self.exposed]]
        return [self.layer.reshape(y, (self.steps, self.streams, self.size)), *last]


def lstm(layer: Layer) -> Tops:
    sequence, add = _Sequence(layer, 4, 2), layer.add
    w = sequence.recurrent(0, 4 * sequence.size)
    h, c = sequence.first()
    outputs: list[Value] = []
    for step in range(sequence.steps):
        sums = sequence.at(sequence.projected, step)
        if h is not None and c is not None:
            goes_on = sequence.at(sequence.goes_on, step)
            sums = add("Add", sums, add("Gemm", add("Mul", h, goes_on), w, transB=1))
            c = add("Mul", c, goes_on)
        sizes = layer.net.ints(*[sequence.size] * 4)
        i, f, o, g = layer.net.adds("Split", 4, sums, sizes, axis=1)
        new = add("Mul", add("Sigmoid", i), add("Tanh", g))
        c = new if c is None else add("Add", add("Mul", add("Sigmoid", f), c), new)
        h = add("Mul", add("Sigmoid", o), add("Tanh", c))
        outputs.append(h)
    return sequence.joined(outputs, *(state for state in (h, c) if state is not None))


def rnn(layer: Layer) -> Tops:
    sequence, add = _Sequence(layer, 1, 1), layer.add
    filler = layer.message.recurrent_param.bias_filler
    w, out = sequence.recurrent(0, sequence.size), sequence.recurrent(1, sequence.size)
    bias = layer.weights(4 + sequence.static, (sequence.size,), filler)
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


LAYERS: dict[str, Callable[[Layer], Tops]] = {"LSTM": lstm, "RNN": rnn}
