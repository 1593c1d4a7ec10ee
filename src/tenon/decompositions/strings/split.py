"""Joining and splitting strings: which bytes go where is arithmetic on counts, and a gather moves them."""

from __future__ import annotations

import math

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode, Results, Text
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


def concat(layer: OnnxNode, texts: set[int]) -> Results:
    """Behind the bytes of the first stand those of the second: picked from both side by side."""
    a, b = layer.input(0), layer.input(1)
    shape = np.broadcast_shapes(a.type.dims[:-1], b.type.dims[:-1])
    if not math.prod(shape):
        return [text_constant(layer, "nothing", np.zeros(shape, object))]
    wide = width_of(a) + width_of(b)
    a, b = (
        v if v.type.dims[:-1] == shape else layer.emit("Expand", v, layer.ints("shape", [*shape, width_of(v)]))
        for v in (a, b)
    )
    end = lengths_of(layer, a)
    step = layer.constant("step", np.arange(wide, dtype=np.int32))
    behind = where(
        layer,
        layer.emit("Less", step, end),
        step,
        layer.emit("Add", layer.emit("Sub", step, end), i32(layer, width_of(a))),
    )
    past = layer.emit("Less", layer.emit("Sub", step, end), i32(layer, width_of(b)))
    room = layer.constant("room", np.zeros((*shape, 1), np.uint8))
    both = layer.emit("Concat", a, b, room, axis=-1)
    at = where(layer, past, behind, i32(layer, wide))
    return [Text(layer.emit("GatherElements", both, at, axis=-1))]


def split(layer: OnnxNode, texts: set[int]) -> Results:
    """Pieces are found by where they start and end; there is room for as many as could be."""
    x, shape = layer.input(0), layer.dims(0)[:-1]
    delimiter = (layer.attributes.get("delimiter") or "").encode()
    limit = layer.attributes.get("maxsplit")
    limit = None if limit is None or limit < 0 else limit
    if not math.prod(shape):
        nothing = text_constant(layer, "nothing", np.zeros((*shape, 0), object))
        return [nothing, layer.constant("none", np.zeros(shape, np.int64))]
    starts, ends, count = _by_delimiter(layer, x, delimiter, limit) if delimiter else _by_spaces(layer, x, limit)
    number = layer.constant("pieces", np.arange(starts.type.dims[-1], dtype=np.int32))
    lengths = where(layer, layer.emit("Less", number, count), layer.emit("Sub", ends, starts), i32(layer, 0))
    last = layer.ints("last", [-1])
    starts, lengths = (layer.emit("Unsqueeze", v, last) for v in (starts, lengths))
    pieces = cut(layer, x, starts, lengths, width_of(x))
    counts = layer.emit("Cast", layer.emit("Squeeze", count, last), to="i64")
    flat = layer.emit("Reshape", counts, layer.ints("flat", [-1]))
    layer.maker.count(pieces, len(shape), layer.emit("ReduceMax", flat, layer.ints("axes", [0]), keepdims=0))
    return [Text(pieces), counts]


def _most(possible: int, limit: int | None) -> int:
    """The number of pieces that can be, if at most ``limit`` cuts are made."""
    return possible if limit is None else min(possible, limit + 1)


def _by_delimiter(layer: OnnxNode, x: Value, delimiter: bytes, limit: int | None) -> tuple[Value, Value, Value]:
    """Where the pieces between delimiters start and end, i32 [S, pieces], and their number [S, 1]."""
    most = _most(width_of(x) // len(delimiter) + 1, limit)
    automaton = regex.literal(delimiter)
    found = in_accepted(layer, layer.emit("Concat", *states_behind(layer, x, automaton), axis=-1), automaton)
    found = layer.emit("And", found, layer.emit("Cast", x, to="bool"))  # the last state stays behind a string's end
    passed = _added(layer, found)
    count = layer.emit("Min", layer.emit("Add", count_true(layer, found), i32(layer, 1)), i32(layer, most))
    number = layer.constant("pieces", np.arange(most, dtype=np.int32))
    first, last = layer.emit("Equal", number, i32(layer, 0)), layer.emit("Sub", count, i32(layer, 1))
    behind = layer.emit("Add", _places_below(layer, passed, 0, most), i32(layer, 1))
    before = layer.emit("Add", _places_below(layer, passed, 1, most), i32(layer, 1 - len(delimiter)))
    ends = where(layer, layer.emit("Equal", number, last), lengths_of(layer, x), before)
    return where(layer, first, i32(layer, 0), behind), ends, count


def _by_spaces(layer: OnnxNode, x: Value, limit: int | None) -> tuple[Value, Value, Value]:
    """The same for pieces between runs of ASCII white space, with none before the first or after the last."""
    most = _most((width_of(x) + 1) // 2, limit)
    space = np.isin(np.arange(256), np.frombuffer(b"\0\t\n\v\f\r\x1c\x1d\x1e\x1f ", np.uint8))
    spaces = layer.emit("Gather", layer.constant("spaces", space), layer.emit("Cast", x, to="i32"), axis=0)
    edge = layer.constant("edge", np.ones((*x.type.dims[:-1], 1), np.bool_))
    bounds = [layer.ints(stem, [n]) for stem, n in (("start", 0), ("end", width_of(x)), ("axis", -1))]
    before = layer.emit("Slice", layer.emit("Concat", edge, spaces, axis=-1), *bounds)
    held = layer.emit("Not", spaces)
    first = layer.emit("And", held, before)
    passed = _added(layer, first)
    starts = _places_below(layer, passed, 1, most)
    ends = layer.emit("Add", starts, _places_at(layer, passed, held, most))
    if limit is not None:  # the last piece that is allowed has all the rest of the string
        number = layer.constant("pieces", np.arange(most, dtype=np.int32))
        ends = where(layer, layer.emit("Equal", number, i32(layer, limit)), lengths_of(layer, x), ends)
    return starts, ends, layer.emit("Min", count_true(layer, first), i32(layer, most))


def _added(layer: OnnxNode, flags: Value) -> Value:
    """How many hold up to each place of the last axis, i32."""
    return layer.emit("CumSum", layer.emit("Cast", flags, to="i32"), layer.constant("axis", np.array(-1)))


def _columns(layer: OnnxNode, first: int, count: int) -> Value:
    return layer.constant("column", np.arange(first, first + count, dtype=np.int32)[:, None])


def _places_below(layer: OnnxNode, passed: Value, first: int, count: int) -> Value:
    """[S, count]: at how many places ``passed`` i32 [S, W] is less than first, first + 1, and so on."""
    row = layer.emit("Unsqueeze", passed, layer.ints("pieces", [-2]))
    less = layer.emit("Cast", layer.emit("Less", row, _columns(layer, first, count)), to="i32")
    return layer.emit("ReduceSum", less, layer.ints("last", [-1]), keepdims=0)


def _places_at(layer: OnnxNode, passed: Value, held: Value, count: int) -> Value:
    """[S, count]: at how many places that hold a byte ``passed`` is 1, 2 and so on."""
    axis = layer.ints("pieces", [-2])
    equal = layer.emit("Equal", layer.emit("Unsqueeze", passed, axis), _columns(layer, 1, count))
    both = layer.emit("And", equal, layer.emit("Unsqueeze", held, axis))
    return layer.emit("ReduceSum", layer.emit("Cast", both, to="i32"), layer.ints("last", [-1]), keepdims=0)
