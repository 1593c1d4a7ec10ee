"""Tensors of strings as tensors of bytes, and what all of ONNX's operators on them are made of.

A tensor of strings of shape S is a u8 tensor of shape S + [W]: UTF-8, zeros behind the end of each string, which may
fill its W bytes.  The widths of constants and results follow from what they hold; that of an input is its user's to
say (``DEFAULT_WIDTH``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode, Text
from tenon.decompositions.strings.regex import Automaton
from tenon.ir.graph import Array, Value
from tenon.ir.strings import encoded

DEFAULT_WIDTH = 64
"""Bytes of each string of an input for which ``NAME.width`` is not bound."""


def text_constant(layer: OnnxNode, stem: str, data: Array) -> Text:
    return Text(layer.constant(stem, encoded(data)))


def width_of(value: Value) -> int:
    return value.type.dims[-1]


def widened(layer: OnnxNode, value: Value, width: int) -> Value:
    """The same strings with more room behind them."""
    more = width - width_of(value)
    if not more:
        return value
    room = layer.constant("room", np.zeros((*value.type.dims[:-1], more), np.uint8))
    return layer.emit("Concat", value, room, axis=-1)


def alike(layer: OnnxNode, values: Sequence[Value]) -> list[Value]:
    """The same strings, all of the largest width."""
    width = max(map(width_of, values))
    return [widened(layer, v, width) for v in values]


def same_text(layer: OnnxNode, a: Value, b: Value) -> Value:
    """Whether strings are equal, broadcast."""
    a, b = alike(layer, (a, b))
    bytes = layer.emit("Cast", layer.emit("Equal", a, b), to="i32")
    return layer.emit("Cast", layer.emit("ReduceMin", bytes, layer.ints("last", [-1]), keepdims=0), to="bool")


def lengths_of(layer: OnnxNode, x: Value) -> Value:
    """Bytes of each string, i32 [S, 1]."""
    return count_true(layer, layer.emit("Cast", x, to="bool"))


def count_true(layer: OnnxNode, x: Value) -> Value:
    """How many hold along the last axis, i32 [..., 1]."""
    return layer.emit("ReduceSum", layer.emit("Cast", x, to="i32"), layer.ints("last", [-1]), keepdims=1)


def i32(layer: OnnxNode, value: int) -> Value:
    return layer.constant("number", np.array(value, np.int32))


def where(layer: OnnxNode, condition: Value, a: Value, b: Value) -> Value:
    return layer.emit("Where", condition, a, b)


def cut(layer: OnnxNode, x: Value, starts: Value, lengths: Value, width: int) -> Value:
    """The bytes of x [S, W] from ``starts`` on, ``lengths`` of them: [..., width] for i32 [..., 1] that begin as S."""
    dims = x.type.dims
    source = widened(layer, x, width_of(x) + 1)  # its last byte is what lies past every end
    step = layer.constant("step", np.arange(width, dtype=np.int32))
    inside = layer.emit("Less", step, lengths)
    at = where(layer, inside, layer.emit("Add", starts, step), i32(layer, dims[-1]))
    rows = np.arange(math.prod(dims[:-1]), dtype=np.int32).reshape(*dims[:-1], *(1,) * (at.type.rank - len(dims) + 1))
    at = layer.emit("Add", at, layer.constant("rows", rows * np.int32(dims[-1] + 1)))
    return layer.emit("Gather", layer.emit("Reshape", source, layer.ints("flat", [-1])), at, axis=0)


def states_behind(layer: OnnxNode, x: Value, automaton: Automaton) -> list[Value]:
    """The automaton's state behind each byte, times the number of classes: W tensors i32 [S, 1]."""
    count = automaton.table.shape[1]
    table = layer.constant("table", (automaton.table * np.int32(count)).reshape(-1))
    number = layer.emit("Cast", x, to="i32")
    classes = layer.emit("Gather", layer.constant("classes", automaton.classes.astype(np.int32)), number, axis=0)
    width = width_of(x)
    steps = layer.maker.emit_all(layer, "Split", [classes], width, axis=-1, num_outputs=width)
    states: list[Value] = []
    for step in steps:
        at = layer.emit("Add", states[-1], step) if states else step
        states.append(layer.emit("Gather", table, at, axis=0))
    return states


def in_accepted(layer: OnnxNode, states: Value, automaton: Automaton) -> Value:
    """Whether states are accepted."""
    count = automaton.table.shape[1]
    accepted = layer.constant("accepted", np.repeat(automaton.accepted, count))
    return layer.emit("Gather", accepted, states, axis=0)
