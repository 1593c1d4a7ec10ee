"""Joining and splitting strings: which bytes go where is arithmetic on counts, and a gather moves them."""

from __future__ import annotations

import math

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode, Results, StringTensor
from tenon.decompositions.strings import regex
from tenon.decompositions.strings.text import (
    count_true,
    cut,
    i32,
    in_accepted,
    lengths_of,
    states_behind,
    text_constant,
    where,
    width_of,
)
from tenon.ir.graph import Value


def concat(node: OnnxNode, texts: set[int]) -> Results:
    """Behind the bytes of the first stand those of the second: picked from both side by side."""
    a, b = node.input(0), node.input(1)
    shape = np.broadcast_shapes(a.type.dims[:-1], b.type.dims[:-1])
    if not math.prod(shape):
        return [text_constant(node, "nothing", np.zeros(shape, object))]
    wide = width_of(a) + width_of(b)
    a, b = (
        v if v.type.dims[:-1] == shape else node.emit("Expand", v, node.ints("shape", [*shape, width_of(v)]))
        for v in (a, b)
    )
    end = lengths_of(node, a)
    step = node.constant("step", np.arange(wide, dtype=np.int32))
    behind = where(
        node,
        node.emit("Less", step, end),
        step,
        node.emit("Add", node.emit("Sub", step, end), i32(node, width_of(a))),
    )
    past = node.emit("Less", node.emit("Sub", step, end), i32(node, width_of(b)))
    room = node.constant("room", np.zeros((*shape, 1), np.uint8))
    both = node.emit("Concat", a, b, room, axis=-1)
    at = where(node, past, behind, i32(node, wide))
    return [StringTensor(node.emit("GatherElements", both, at, axis=-1))]


def split(node: OnnxNode, texts: set[int]) -> Results:
    """Pieces are found by where they start and end; there is room for as many as could be."""
    x, shape = node.input(0), node.dims(0)[:-1]
    delimiter = (node.attributes.get("delimiter") or "").encode()
    limit = node.attributes.get("maxsplit")
    limit = None if limit is None or limit < 0 else limit
    if not math.prod(shape):
        nothing = text_constant(node, "nothing", np.zeros((*shape, 0), object))
        return [nothing, node.constant("none", np.zeros(shape, np.int64))]
    starts, ends, count = _by_delimiter(node, x, delimiter, limit) if delimiter else _by_spaces(node, x, limit)
    number = node.constant("pieces", np.arange(starts.type.dims[-1], dtype=np.int32))
    lengths = where(node, node.emit("Less", number, count), node.emit("Sub", ends, starts), i32(node, 0))
    last = node.ints("last", [-1])
    starts, lengths = (node.emit("Unsqueeze", v, last) for v in (starts, lengths))
    pieces = cut(node, x, starts, lengths, width_of(x))
    counts = node.emit("Cast", node.emit("Squeeze", count, last), to="i64")
    flat = node.emit("Reshape", counts, node.ints("flat", [-1]))
    node.maker.count(pieces, len(shape), node.emit("ReduceMax", flat, node.ints("axes", [0]), keepdims=0))
    return [StringTensor(pieces), counts]


def _most(possible: int, limit: int | None) -> int:
    """The number of pieces that can be, if at most ``limit`` cuts are made."""
    return possible if limit is None else min(possible, limit + 1)


def _by_delimiter(node: OnnxNode, x: Value, delimiter: bytes, limit: int | None) -> tuple[Value, Value, Value]:
    """Where the pieces between delimiters start and end, i32 [S, pieces], and their number [S, 1]."""
    most = _most(width_of(x) // len(delimiter) + 1, limit)
    automaton = regex.literal(delimiter)
    found = in_accepted(node, node.emit("Concat", *states_behind(node, x, automaton), axis=-1), automaton)
    found = node.emit("And", found, node.emit("Cast", x, to="bool"))  # the last state stays behind a string's end
    passed = _added(node, found)
    count = node.emit("Min", node.emit("Add", count_true(node, found), i32(node, 1)), i32(node, most))
    number = node.constant("pieces", np.arange(most, dtype=np.int32))
    first, last = node.emit("Equal", number, i32(node, 0)), node.emit("Sub", count, i32(node, 1))
    behind = node.emit("Add", _places_below(node, passed, 0, most), i32(node, 1))
    before = node.emit("Add", _places_below(node, passed, 1, most), i32(node, 1 - len(delimiter)))
    ends = where(node, node.emit("Equal", number, last), lengths_of(node, x), before)
    return where(node, first, i32(node, 0), behind), ends, count


def _by_spaces(node: OnnxNode, x: Value, limit: int | None) -> tuple[Value, Value, Value]:
    """The same for pieces between runs of ASCII white space, with none before the first or after the last."""
    most = _most((width_of(x) + 1) // 2, limit)
    space = np.isin(np.arange(256), np.frombuffer(b"\0\t\n\v\f\r\x1c\x1d\x1e\x1f ", np.uint8))
    spaces = node.emit("Gather", node.constant("spaces", space), node.emit("Cast", x, to="i32"), axis=0)
    edge = node.constant("edge", np.ones((*x.type.dims[:-1], 1), np.bool_))
    bounds = [node.ints(stem, [n]) for stem, n in (("start", 0), ("end", width_of(x)), ("axis", -1))]
    before = node.emit("Slice", node.emit("Concat", edge, spaces, axis=-1), *bounds)
    held = node.emit("Not", spaces)
    first = node.emit("And", held, before)
    passed = _added(node, first)
    starts = _places_below(node, passed, 1, most)
    ends = node.emit("Add", starts, _places_at(node, passed, held, most))
    if limit is not None:  # the last piece that is allowed has all the rest of the string
        number = node.constant("pieces", np.arange(most, dtype=np.int32))
        ends = where(node, node.emit("Equal", number, i32(node, limit)), lengths_of(node, x), ends)
    return starts, ends, node.emit("Min", count_true(node, first), i32(node, most))


def _added(node: OnnxNode, flags: Value) -> Value:
    """How many hold up to each place of the last axis, i32."""
    return node.emit("CumSum", node.emit("Cast", flags, to="i32"), node.constant("axis", np.array(-1)))


def _columns(node: OnnxNode, first: int, count: int) -> Value:
    return node.constant("column", np.arange(first, first + count, dtype=np.int32)[:, None])


def _places_below(node: OnnxNode, passed: Value, first: int, count: int) -> Value:
    """[S, count]: at how many places ``passed`` i32 [S, W] is less than first, first + 1, and so on."""
    row = node.emit("Unsqueeze", passed, node.ints("pieces", [-2]))
    less = node.emit("Cast", node.emit("Less", row, _columns(node, first, count)), to="i32")
    return node.emit("ReduceSum", less, node.ints("last", [-1]), keepdims=0)


def _places_at(node: OnnxNode, passed: Value, held: Value, count: int) -> Value:
    """[S, count]: at how many places that hold a byte ``passed`` is 1, 2 and so on."""
    axis = node.ints("pieces", [-2])
    equal = node.emit("Equal", node.emit("Unsqueeze", passed, axis), _columns(node, 1, count))
    both = node.emit("And", equal, node.emit("Unsqueeze", held, axis))
    return node.emit("ReduceSum", node.emit("Cast", both, to="i32"), node.ints("last", [-1]), keepdims=0)
