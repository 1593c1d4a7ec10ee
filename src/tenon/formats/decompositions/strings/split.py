"""Joining and splitting strings: positions of bytes by arithmetic on counts, moved by a gather."""

from __future__ import annotations

import math

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode, Results, StringTensor
from tenon.formats.decompositions.strings import regex
from tenon.formats.decompositions.strings.text import (
    count_true,
    cut,
    i32,
    in_accepted,
    lengths_of,
    states_after,
    text_constant,
    where,
    width_of,
)
from tenon.network.graph.graph import Value


def concat(node: OnnxNode, texts: set[int]) -> Results:
    """Concatenates the bytes of two strings: gathered from both side by side."""
    a, b = node.input(0), node.input(1)
    shape = np.broadcast_shapes(a.type.dims[:-1], b.type.dims[:-1])
    if not math.prod(shape):
        return [text_constant(node, "nothing", np.zeros(shape, object))]
    wide = width_of(a) + width_of(b)
    a, b = (
        v if v.type.dims[:-1] == shape else node.add("Expand", v, node.int_constant("shape", [*shape, width_of(v)]))
        for v in (a, b)
    )
    end = lengths_of(node, a)
    step = node.constant(np.arange(wide, dtype=np.int32), "step")
    behind = where(
        node,
        node.add("Less", step, end),
        step,
        node.add("Add", node.add("Sub", step, end), i32(node, width_of(a))),
    )
    past = node.add("Less", node.add("Sub", step, end), i32(node, width_of(b)))
    room = node.constant(np.zeros((*shape, 1), np.uint8), "room")
    both = node.add("Concat", a, b, room, axis=-1)
    at = where(node, past, behind, i32(node, wide))
    return [StringTensor(node.add("GatherElements", both, at, axis=-1))]


def split(node: OnnxNode, texts: set[int]) -> Results:
    """Substrings by their start and end positions, padded to the largest possible number."""
    x, shape = node.input(0), node.dims_of(0)[:-1]
    delimiter = (node.attributes.get("delimiter") or "").encode()
    limit = node.attributes.get("maxsplit")
    limit = None if limit is None or limit < 0 else limit
    if not math.prod(shape):
        nothing = text_constant(node, "nothing", np.zeros((*shape, 0), object))
        return [nothing, node.constant(np.zeros(shape, np.int64), "none")]
    starts, ends, count = _by_delimiter(node, x, delimiter, limit) if delimiter else _by_spaces(node, x, limit)
    number = node.constant(np.arange(starts.type.dims[-1], dtype=np.int32), "pieces")
    lengths = where(node, node.add("Less", number, count), node.add("Sub", ends, starts), i32(node, 0))
    last = node.int_constant("last", [-1])
    starts, lengths = (node.add("Unsqueeze", v, last) for v in (starts, lengths))
    pieces = cut(node, x, starts, lengths, width_of(x))
    counts = node.add("Cast", node.add("Squeeze", count, last), to="i64")
    flat = node.add("Reshape", counts, node.int_constant("flat", [-1]))
    node.builder.set_extent(pieces, len(shape), node.add("ReduceMax", flat, node.int_constant("axes", [0]), keepdims=0))
    return [StringTensor(pieces), counts]


def _max_pieces(possible: int, limit: int | None) -> int:
    """The largest possible number of substrings, of at most ``limit`` cuts."""
    return possible if limit is None else min(possible, limit + 1)


def _by_delimiter(node: OnnxNode, x: Value, delimiter: bytes, limit: int | None) -> tuple[Value, Value, Value]:
    """Where the pieces between delimiters start and end, i32 [S, pieces], and their number [S, 1]."""
    max_pieces = _max_pieces(width_of(x) // len(delimiter) + 1, limit)
    automaton = regex.literal(delimiter)
    accepted = in_accepted(node, node.add("Concat", *states_after(node, x, automaton), axis=-1), automaton)
    accepted = node.add("And", accepted, node.add("Cast", x, to="bool"))  # the last state stays behind a string's end
    passed = _added(node, accepted)
    count = node.add("Min", node.add("Add", count_true(node, accepted), i32(node, 1)), i32(node, max_pieces))
    number = node.constant(np.arange(max_pieces, dtype=np.int32), "pieces")
    first, last = node.add("Equal", number, i32(node, 0)), node.add("Sub", count, i32(node, 1))
    behind = node.add("Add", _positions_below(node, passed, 0, max_pieces), i32(node, 1))
    before = node.add("Add", _positions_below(node, passed, 1, max_pieces), i32(node, 1 - len(delimiter)))
    ends = where(node, node.add("Equal", number, last), lengths_of(node, x), before)
    return where(node, first, i32(node, 0), behind), ends, count


def _by_spaces(node: OnnxNode, x: Value, limit: int | None) -> tuple[Value, Value, Value]:
    """The same for pieces between runs of ASCII white space, with none before the first or after the last."""
    max_pieces = _max_pieces((width_of(x) + 1) // 2, limit)
    space = np.isin(np.arange(256), np.frombuffer(b"\0\t\n\v\f\r\x1c\x1d\x1e\x1f ", np.uint8))
    spaces = node.add("Gather", node.constant(space, "spaces"), node.add("Cast", x, to="i32"), axis=0)
    edge = node.constant(np.ones((*x.type.dims[:-1], 1), np.bool_), "edge")
    bounds = [node.int_constant(stem, [n]) for stem, n in (("start", 0), ("end", width_of(x)), ("axis", -1))]
    before = node.add("Slice", node.add("Concat", edge, spaces, axis=-1), *bounds)
    held = node.add("Not", spaces)
    first = node.add("And", held, before)
    passed = _added(node, first)
    starts = _positions_below(node, passed, 1, max_pieces)
    ends = node.add("Add", starts, _positions_at(node, passed, held, max_pieces))
    if limit is not None:  # the last piece that is allowed has all the rest of the string
        number = node.constant(np.arange(max_pieces, dtype=np.int32), "pieces")
        ends = where(node, node.add("Equal", number, i32(node, limit)), lengths_of(node, x), ends)
    return starts, ends, node.add("Min", count_true(node, first), i32(node, max_pieces))


def _added(node: OnnxNode, flags: Value) -> Value:
    """How many hold up to each place of the last axis, i32."""
    return node.add("CumSum", node.add("Cast", flags, to="i32"), node.constant(np.array(-1), "axis"))


def _columns(node: OnnxNode, first: int, count: int) -> Value:
    return node.constant(np.arange(first, first + count, dtype=np.int32)[:, None], "column")


def _positions_below(node: OnnxNode, passed: Value, first: int, count: int) -> Value:
    """[S, count]: at how many positions ``passed`` i32 [S, W] is less than first, first + 1, and so on."""
    row = node.add("Unsqueeze", passed, node.int_constant("pieces", [-2]))
    less = node.add("Cast", node.add("Less", row, _columns(node, first, count)), to="i32")
    return node.add("ReduceSum", less, node.int_constant("last", [-1]), keepdims=0)


def _positions_at(node: OnnxNode, passed: Value, held: Value, count: int) -> Value:
    """[S, count]: at how many positions that hold a byte ``passed`` is 1, 2 and so on."""
    axis = node.int_constant("pieces", [-2])
    equal = node.add("Equal", node.add("Unsqueeze", passed, axis), _columns(node, 1, count))
    both = node.add("And", equal, node.add("Unsqueeze", held, axis))
    return node.add("ReduceSum", node.add("Cast", both, to="i32"), node.int_constant("last", [-1]), keepdims=0)
