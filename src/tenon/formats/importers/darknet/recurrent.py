"""Darknet's recurrent layers, one step of them: their memory is an input and an output of the graph.

A layer ``rnn_3`` reads ``rnn_3_state`` (zeros to begin with) and gives ``rnn_3_state_out``, to be fed to the next
step.  Definitions: src/{rnn,crnn,gru,lstm}_layer.c of pjreddie/darknet and AlexeyAB/darknet.
"""

from __future__ import annotations

from collections.abc import Callable

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.darknet.layers import ACTIVATIONS, activate, convolution, matrix, window
from tenon.formats.importers.darknet.node import DarknetLayer
from tenon.network.graph.graph import Value


def _remember(layer: DarknetLayer, old: Value, *terms: Value) -> Value:
    """The sum of the terms, and of the old state where the layer has a shortcut, as the next state."""
    total = layer.add("Add", *terms)
    if layer.integer("shortcut"):
        total = layer.add("Add", old, total)
    layer.next_state("state", total)
    return total


_SELF = {1: "logistic", 2: "loggy"}
"""The activation of rnn's matrix of the state, by the option ``logistic``."""


def rnn(layer: DarknetLayer) -> Value:
    """state' = f(A x) + g(B state); y = f(C state')."""
    section, x = layer.section, layer.flat()
    outputs = section.integer("output", 1)
    hidden = section.integer("hidden", outputs)
    state = layer.state("state", 1, hidden)
    a = matrix(layer, layer.builder.dims(x)[1], hidden)
    b, c = matrix(layer, hidden, hidden), matrix(layer, hidden, outputs)
    own = _SELF.get(section.integer("logistic"))
    recurrent = b.apply(layer, state)
    recurrent = ACTIVATIONS[own](layer, recurrent) if own else activate(layer, recurrent, "logistic")
    total = _remember(layer, state, activate(layer, a.apply(layer, x), "logistic"), recurrent)
    return activate(layer, c.apply(layer, total), "logistic")


def crnn(layer: DarknetLayer) -> Value:
    """As rnn, of convolutions; the original knows no ``size`` and always takes 3."""
    section = layer.section
    if len(layer.dims) == 2:
        layer.inputs = [layer.reshape(layer.x, 1, -1, 1, 1)]
    channels, height, width = layer.planes()
    outputs, hidden, groups = section.integer("output", 1), section.integer("hidden", 1), section.integer("groups", 1)
    size = section.integer("size", 3)
    pad = size // 2 if section.integer("pad") or "size" not in section.options else section.integer("padding")
    options = window(section, size, pad) | {"group": groups}
    if options["strides"] != (1, 1) or groups < 1:
        raise RefusedError("strides and groups other than 1 are not supported")
    state = layer.state("state", 1, hidden, height, width)

    def step(x: Value, inputs: int, filters: int) -> Value:
        y = convolution(layer, x, filters, options, (filters, inputs // groups, size, size))
        return activate(layer, y, "logistic")

    total = _remember(layer, state, step(layer.x, channels, hidden), step(state, hidden, hidden))
    return step(total, hidden, outputs)


def gru(layer: DarknetLayer) -> Value:
    """y = z state + (1 - z) h.  AlexeyAB stores the three matrices of the input first, pjreddie those of the state."""
    outputs, x = layer.integer("output", 1), layer.flat()
    state = layer.state("state", 1, outputs)
    inputs, first = layer.builder.dims(x)[1], layer.parameters.alexey
    stored = [matrix(layer, n, outputs) for n in ([inputs] * 3 + [outputs] * 3)[:: 1 if first else -1]]
    own, recurrent = (stored[:3], stored[3:]) if first else (stored[3:], stored[:3])

    def gate(i: int, squash: str, memory: Value) -> Value:
        return layer.add(squash, layer.add("Add", own[i].apply(layer, x), recurrent[i].apply(layer, memory)))

    z, r = gate(0, "Sigmoid", state), gate(1, "Sigmoid", state)
    h = gate(2, "Tanh" if layer.integer("tanh") else "Sigmoid", layer.add("Mul", state, r))
    y = layer.add("Add", layer.add("Mul", z, state), layer.add("Mul", layer.add("Sub", 1.0, z), h))
    layer.next_state("state", y)
    return y


_LSTM_ORDER = {True: "figo", False: "ifog"}
"""In which order a fork stores the gates: AlexeyAB (True), pjreddie (False)."""


def lstm(layer: DarknetLayer) -> Value:
    """c' = f c + i g; y = o tanh(c')."""
    outputs, x = layer.integer("output", 1), layer.flat()
    state, cell = layer.state("state", 1, outputs), layer.state("cell", 1, outputs)
    order = _LSTM_ORDER[layer.parameters.alexey]
    from_state = {gate: matrix(layer, outputs, outputs).apply(layer, state) for gate in order}
    from_input = {gate: matrix(layer, layer.builder.dims(x)[1], outputs).apply(layer, x) for gate in order}
    total = {gate: layer.add("Add", from_state[gate], from_input[gate]) for gate in order}
    f, i, o = (layer.add("Sigmoid", total[gate]) for gate in "fio")
    new = layer.add("Add", layer.add("Mul", f, cell), layer.add("Mul", i, layer.add("Tanh", total["g"])))
    y = layer.add("Mul", o, layer.add("Tanh", new))
    layer.next_state("cell", new)
    layer.next_state("state", y)
    return y


RECURRENT: dict[str, Callable[[DarknetLayer], Value]] = {"rnn": rnn, "crnn": crnn, "gru": gru, "lstm": lstm}
