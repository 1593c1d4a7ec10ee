"""Tensors of strings as tensors of bytes, and what all of ONNX's operators on them are made of.

A tensor of strings of shape S is a u8 tensor of shape S + [W]: UTF-8, zeros after the end of each string, which may
fill its W bytes.  The widths of constants and results follow from what they hold; that of an input is its user's to
say (``DEFAULT_WIDTH``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode, StringTensor
from tenon.formats.decompositions.strings.regex import Automaton
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.strings import encoded

DEFAULT_WIDTH = 64
"""Bytes of each string of an input for which ``NAME.width`` is not bound."""


def text_constant(node: OnnxNode, stem: str, data: Array) -> StringTensor:
    return StringTensor(node.constant(encoded(data), stem))


def width_of(value: Value) -> int:
    return value.type.dims[-1]


def widened(node: OnnxNode, value: Value, width: int) -> Value:
    """The same strings padded to a larger width."""
    more = width - width_of(value)
    if not more:
        return value
    room = node.constant(np.zeros((*value.type.dims[:-1], more), np.uint8), "room")
    return node.add("Concat", value, room, axis=-1)


def same_width(node: OnnxNode, values: Sequence[Value]) -> list[Value]:
    """The same strings, all of the largest width."""
    width = max(map(width_of, values))
    return [widened(node, v, width) for v in values]


def same_text(node: OnnxNode, a: Value, b: Value) -> Value:
    """Whether strings are equal, broadcast."""
    a, b = same_width(node, (a, b))
    bytes = node.add("Cast", node.add("Equal", a, b), to="i32")
    return node.add("Cast", node.add("ReduceMin", bytes, node.int_constant("last", [-1]), keepdims=0), to="bool")


def lengths_of(node: OnnxNode, x: Value) -> Value:
    """Bytes of each string, i32 [S, 1]."""
    return count_true(node, node.add("Cast", x, to="bool"))


def count_true(node: OnnxNode, x: Value) -> Value:
    """The count of true elements along the last axis, i32 [..., 1]."""
    return node.add("ReduceSum", node.add("Cast", x, to="i32"), node.int_constant("last", [-1]), keepdims=1)


def i32(node: OnnxNode, value: int) -> Value:
    return node.constant(np.array(value, np.int32), "number")


def where(node: OnnxNode, condition: Value, a: Value, b: Value) -> Value:
    return node.add("Where", condition, a, b)


def cut(node: OnnxNode, x: Value, starts: Value, lengths: Value, width: int) -> Value:
    """The bytes of x [S, W] from ``starts`` on, ``lengths`` of them: [..., width] for i32 [..., 1] that begin as S."""
    dims = x.type.dims
    source = widened(node, x, width_of(x) + 1)  # its last byte is what lies past every end
    step = node.constant(np.arange(width, dtype=np.int32), "step")
    inside = node.add("Less", step, lengths)
    at = where(node, inside, node.add("Add", starts, step), i32(node, dims[-1]))
    rows = np.arange(math.prod(dims[:-1]), dtype=np.int32).reshape(*dims[:-1], *(1,) * (at.type.rank - len(dims) + 1))
    at = node.add("Add", at, node.constant(rows * np.int32(dims[-1] + 1), "rows"))
    return node.add("Gather", node.add("Reshape", source, node.int_constant("flat", [-1])), at, axis=0)


def states_after(node: OnnxNode, x: Value, automaton: Automaton) -> list[Value]:
    """The automaton's state after each byte, times the number of classes: W tensors i32 [S, 1]."""
    count = automaton.table.shape[1]
    table = node.constant((automaton.table * np.int32(count)).reshape(-1), "table")
    number = node.add("Cast", x, to="i32")
    classes = node.add("Gather", node.constant(automaton.classes.astype(np.int32), "classes"), number, axis=0)
    width = width_of(x)
    steps = node.adds("Split", width, classes, axis=-1, num_outputs=width)
    states: list[Value] = []
    for step in steps:
        at = node.add("Add", states[-1], step) if states else step
        states.append(node.add("Gather", table, at, axis=0))
    return states


def in_accepted(node: OnnxNode, states: Value, automaton: Automaton) -> Value:
    """Whether states are accepted."""
    count = automaton.table.shape[1]
    accepted = node.constant(np.repeat(automaton.accepted, count), "accepted")
    return node.add("Gather", accepted, states, axis=0)
