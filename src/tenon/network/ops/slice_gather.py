"""Operators that read elements by index along every axis: slices, gathers and padding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.indexing import gather
from tenon.machine.kernels.move import AffineIndex, Piece, along, move
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import ROW_MAJOR, TensorType
from tenon.network.ops.base import (
    Alias,
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    const_input,
    register,
    typed,
)
from tenon.network.ops.move import kept, normal_axis, part_offset
from tenon.network.ops.reach import Operands, Reach, Reaches
from tenon.network.ops.sized_slices import from_start, padded, sliced
from tenon.network.ops.window import Ints

MOST_PIECES = 128
"""The most copy loops of one node, which bounds the size of its code."""


@dataclass(frozen=True)
class SliceRun:
    """Output positions ``first .. + count`` read input positions ``start``, ``start + step``, ...; None: nothing."""

    first: int
    count: int
    start: int | None
    step: int = 1


def runs(table: Sequence[int]) -> list[SliceRun]:
    """The fewest runs that read position ``table[i]`` for output ``i``; -1 reads nothing."""
    runs: list[SliceRun] = []
    i = 0
    while i < len(table):
        step = table[i + 1] - table[i] if i + 1 < len(table) else 0
        if (table[i] < 0) != (i + 1 < len(table) and table[i + 1] < 0):
            step = 0
        n = 1
        while i + n < len(table) and table[i + n] == table[i] + n * step:
            n += 1
        runs.append(SliceRun(i, n, None if table[i] < 0 else table[i], step))
        i += n
    return runs


def pieces(axes: Sequence[Sequence[SliceRun]], value: float | None = 0.0) -> tuple[Piece, ...]:
    """One piece for each combination of runs along the axes; positions that read nothing are set to ``value``, of None
    to what is given at run time."""
    pieces = []
    for combination in product(*axes):
        extents = tuple(r.count for r in combination)
        target = tuple(along(i, r.first) for i, r in enumerate(combination))
        source: list[AffineIndex] | None = []
        for i, r in enumerate(combination):
            if r.start is None or source is None:
                source = None
            else:
                source.append(along(i, r.start, r.step))
        pieces.append(Piece(extents, target, None if source is None else tuple(source), value))
    return tuple(pieces)


def too_many(count: int) -> str:
    if count <= MOST_PIECES:
        return ""
    return f"its index pattern falls into {count} pieces (at most {MOST_PIECES}); split the node or sort its indices"


def everything(n: int) -> list[SliceRun]:
    return [SliceRun(0, n, 0)]


@register
@dataclass(frozen=True)
class Slice(Operator):
    """Inputs: data, starts, ends, axes, steps; all but the data are constants."""

    rearranges: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (3, 5)
    moves: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def slices(self, dims: Ints, given: Sequence[Array | None]) -> tuple[slice, ...]:
        """A Python slice for every axis."""
        starts, ends, axes, steps = (*given, None, None)[:4]
        assert starts is not None
        assert ends is not None
        count = len(starts)
        numbers = [int(a) for a in (range(count) if axes is None else axes)]
        strides = [1] * count if steps is None else [int(s) for s in steps]
        if not len(ends) == len(numbers) == len(strides) == count or 0 in strides:
            raise ShapeError("Slice: starts, ends, axes and steps must be equally long, and no step zero")
        cuts = [slice(0, n, 1) for n in dims]
        for start, end, axis, step in zip(starts, ends, numbers, strides, strict=True):
            n = dims[normal_axis("Slice", axis, len(dims))]
            low, high = _first(int(start), n, step), _end(int(end), n, step)
            cuts[axis] = slice(low, None if high < 0 else high, step)
        return tuple(cuts)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        names = ("starts", "ends", "axes", "steps")
        given = [const_input("Slice", what, inputs, i + 1) for i, what in enumerate(names)]
        ranges = (range(*s.indices(n)) for s, n in zip(self.slices(x.dims, given), x.dims, strict=True))
        return (TensorType(x.dtype, tuple(len(r) for r in ranges)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [sliced(node)]

    def reference(self, x: Array, *given: Array | None) -> Array:
        return np.array(x[self.slices(x.shape, given)])

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        steps = inputs[4] if len(inputs) > 4 else None
        return steps is None or (steps.data is not None and bool((steps.data == 1).all()))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, given = inputs[0], [None if v is None else v.data for v in inputs[1:5]]
        assert x is not None
        cut = range(*self.slices(x.type.dims, given)[axis].indices(x.type.dims[axis]))
        reach = Reach(axis, cut.step, cut.start - cut.step + 1) if cut.step > 0 else None
        return (reach, *(None for _ in inputs[1:]))

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def ranges(self, site: Site) -> list[range]:
        dims = site.input(0).dims
        slices = self.slices(dims, site.constants[1:5])
        return [range(*s.indices(n)) for s, n in zip(slices, dims, strict=True)]

    def alias(self, site: Site) -> tuple[Alias, ...]:
        x, y = site.input(0), site.output
        cut = [i for i, r in enumerate(self.ranges(site)) if r != range(x.dims[i])]
        if not cut:
            return (Alias(0, 0),) if x.layout == y.layout else ()
        kept = self.ranges(site)[cut[0]]
        if len(cut) > 1 or kept.step != 1 or not kept:
            return ()
        offset = part_offset(x, y, cut[0], kept.start)
        return () if offset is None else (Alias(0, 0, offset),)

    def lower(self, site: Site) -> list[Step]:
        axes = [[SliceRun(0, len(r), r.start, r.step)] for r in self.ranges(site)]
        kernel = move("slice", site.input(0), site.output, pieces(axes), site.machine)
        return [Step(kernel, (Input(0), Output()))] if site.output.size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, shape: Ints, *given: list[int]) -> Case:
            arrays = tuple(np.array(g) for g in given)
            return Case(cls(), (shape, *arrays), tuple(range(1, len(given) + 1)), label=label)

        yield case("window", (2, 5, 6, 7), [1, 2], [4, 6], [2, 3])
        yield case("channels", (1, 40, 2, 3), [16], [40], [1])
        yield case("odd_channels", (1, 40, 2, 3), [3], [21], [1])
        yield case("by_four", (2, 40, 2, 3), [4], [1000], [1])
        yield case("steps", (1, 8, 7, 9), [0, 1], [7, 9], [2, 3], [2, 3])
        yield case("backwards", (3, 6), [-1, 4], [-(2**31), 0], [0, 1], [-1, -2])
        yield case("first_axes", (4, 3), [1], [3])
        yield case("from_before_the_first", (7, 3), [-9, -9], [-20, 9], [0, 1], [-1, 1])
        for channels in (14, 20, 31):
            yield case(f"{channels}_channels_backwards", (1, channels, 2, 3), [-1], [-(2**31)], [1], [-1])
        yield case("channels_backwards_by_two", (2, 33, 2, 2), [-2], [-16], [1], [-2])
        yield case("all", (1, 6, 2, 2), [0], [6], [1])
        yield case("nothing", (2, 3), [2], [1], [1])


def _first(i: int, n: int, step: int) -> int:
    """Where a slice begins, clamped as ONNX says: backwards to the first element, where NumPy gives an empty slice."""
    i += n if i < 0 else 0
    return max(min(i, n if step > 0 else n - 1), 0)


def _end(i: int, n: int, step: int) -> int:
    """Where a slice ends; -1 is before the first element, which a slice that runs backwards reaches."""
    i += n if i < 0 else 0
    return min(max(i, 0), n) if step > 0 else min(max(i, -1), n - 1)


@register
@dataclass(frozen=True)
class Gather(Operator):
    """Inputs: data, indices.  The slices of ``axis`` at those indices, in the shape of the indices."""

    axis: int = 0
    rearranges: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True
    along_axis: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, i = typed(inputs)
        axis = normal_axis("Gather", self.axis, x.rank)
        indices = inputs[1].data if inputs[1] is not None else None
        n = x.dims[axis]
        if indices is not None and indices.size and not -n <= indices.min() <= indices.max() < n:
            raise ShapeError(f"Gather: indices {indices.min()} to {indices.max()} do not fit an axis of {n}")
        if not n and i.size:
            raise ShapeError(f"Gather: axis {axis} of {list(x.dims)} has no elements to gather")
        return (TensorType(x.dtype, (*x.dims[:axis], *i.dims, *x.dims[axis + 1 :])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents, axis = node.extents(0), normal_axis("Gather", self.axis, node.type(0).rank)
        node.with_masked(1, node.changing(1), 0)
        places = from_start(node, node.made(1), extents[axis])
        return node.same([*extents[:axis], *node.extents(1), *extents[axis + 1 :]], inputs=[node.input(0), places])

    def reference(self, x: Array, indices: Array) -> Array:
        return np.array(np.take(x, indices, self.axis))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, indices = inputs[0], inputs[1]
        assert x is not None
        assert indices is not None
        first, behind = self.axis % x.type.rank, indices.type.rank
        if first <= axis < first + behind:
            return None, Reach(axis - first)
        return Reach(axis if axis < first else axis - behind + 1), None

    def supported(self, site: Site) -> str:
        return ""

    def by_data(self, site: Site) -> bool:
        """Whether the indices are read at run time: they are not constant, or need too many copy loops."""
        return site.constants[1] is None or bool(too_many(len(self.runs(site))))

    def runs(self, site: Site) -> list[SliceRun]:
        indices = site.constants[1]
        assert indices is not None
        n = site.input(0).dims[self.axis]
        return runs([int(i) % n for i in indices.reshape(-1)])

    def layouts(self, site: Site) -> Layouts:
        if self.by_data(site):
            return Layouts((ROW_MAJOR, ROW_MAJOR), (ROW_MAJOR,))
        return kept(site) if site.input(1).rank == 1 else Layouts((ROW_MAJOR, None), (ROW_MAJOR,))

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        axis = self.axis % x.rank
        if y.size and self.by_data(site):
            i, n = site.input(1), x.dims[axis]
            shape = math.prod(x.dims[:axis]), n, math.prod(x.dims[axis + 1 :]), i.size
            return [Step(gather(*shape, x.dtype, i.dtype, site.machine), (Input(0), Input(1), Output()))]
        if site.input(1).rank != 1:
            y = TensorType(y.dtype, (*x.dims[:axis], site.input(1).size, *x.dims[axis + 1 :]))
        axes = [self.runs(site) if i == axis else everything(n) for i, n in enumerate(x.dims)]
        kernel = move("gather", x, y, pieces(axes), site.machine)
        return [Step(kernel, (Input(0), Output()))] if y.size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((5, 3), np.array([4, 0, 0, 2])), (1,), label="rows")
        yield Case(cls(1), ((2, 6, 3), np.array(3)), (1,), label="scalar")
        yield Case(cls(1), ((1, 20, 2, 2), np.array([-1, 3, 2, 1])), (1,), label="channels")
        for n in (14, 20, 31):
            yield Case(cls(1), ((1, n, 2, 2), np.arange(n)[::-1]), (1,), label=f"{n}_channels_falling")
        yield Case(cls(1), ((1, 37, 3, 1), np.r_[36:20:-2, 19:3:-1]), (1,), label="falling_and_rising")
        yield Case(cls(-1), ((2, 5), np.array([[0, 1], [4, 2]])), (1,), label="matrix")
        yield Case(cls(), (np.arange(6, dtype=np.int64), np.array([1, 3, 5])), (1,), label="integers")
        yield Case(cls(), ((5, 19), np.array([[4, -5], [0, 2]], np.int32)), label="run_time")
        yield Case(cls(2), ((2, 3, 4), np.array([3, -1, 0])), label="run_time_last")


LONGEST_PADDED = 1 << 26
"""The most elements of an axis after padding, which has a table of indices."""


@register
@dataclass(frozen=True)
class Pad(Operator):
    """Inputs: data, pads, constant value, axes.  Negative pads crop.  ``mode``: constant, reflect, edge or wrap."""

    mode: str = "constant"
    arity: ClassVar[tuple[int, int]] = (2, 4)
    moves: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    def amounts(self, rank: int, pads: Array, axes: Array | None) -> list[tuple[int, int]]:
        """(before, after) of every axis."""
        numbers = list(range(rank)) if axes is None else [int(a) for a in axes]
        if len(pads) != 2 * len(numbers):
            raise ShapeError(f"Pad: {len(pads)} pads do not fit {len(numbers)} axes")
        amounts = [(0, 0)] * rank
        for i, axis in enumerate(numbers):
            amounts[normal_axis("Pad", axis, rank)] = int(pads[i]), int(pads[i + len(numbers)])
        return amounts

    def extents(self, dims: Ints, pads: Array, axes: Array | None) -> Ints:
        """The extents of the result."""
        extents = []
        for n, (before, after) in zip(dims, self.amounts(len(dims), pads, axes), strict=True):
            inside, more = max(0, n + min(0, before) + min(0, after)), max(0, before) + max(0, after)
            if not inside and self.mode != "constant" and more:
                raise ShapeError(f"Pad: there is nothing to {self.mode} along an axis of {n}")
            if more and inside + more > LONGEST_PADDED:
                raise ShapeError(f"Pad: an axis of {inside + more} elements; at most {LONGEST_PADDED} are supported")
            extents.append(inside + more)
        return tuple(extents)

    def tables(self, dims: Ints, pads: Array, axes: Array | None) -> list[Array]:
        """The input position that every output position reads, per axis; -1 for the constant value."""
        tables = []
        for n, (before, after) in zip(dims, self.amounts(len(dims), pads, axes), strict=True):
            inside = np.arange(max(0, -before), max(0, -before, n - max(0, -after)))
            tables.append(_PADDED[self.mode](inside, max(0, before), max(0, after)))
        return tables

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        pads = const_input("Pad", "pads", inputs, 1)
        assert pads is not None
        if self.mode not in _PADDED:
            raise ShapeError(f"Pad: unknown mode '{self.mode}'")
        return (TensorType(x.dtype, self.extents(x.dims, pads, const_input("Pad", "axes", inputs, 3))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [padded(node, self.mode)]

    def reference(self, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
        tables = self.tables(x.shape, pads, axes)
        fill = np.zeros((), x.dtype) if value is None else value.reshape(())
        if 0 in x.shape:
            return np.full([len(t) for t in tables], fill, x.dtype)
        outside = np.zeros([len(t) for t in tables], bool)
        for i, table in enumerate(tables):
            outside |= np.less(table, 0).reshape(-1, *(1,) * (x.ndim - 1 - i))
        return np.where(outside, fill, x[np.ix_(*tables)]).astype(x.dtype)

    def supported(self, site: Site) -> str:
        return too_many(len(self.pieces(site)))

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        pads = inputs[1]
        return pads is not None and pads.data is not None and not pads.data.any()

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        """Padding in front is read from behind it ("reflect"), or from the end ("wrap")."""
        pads, axes = inputs[1], inputs[3] if len(inputs) > 3 else None
        if self.mode == "wrap" or pads is None or pads.data is None:
            return None
        before, _ = self.amounts(outputs[0].rank, pads.data, None if axes is None else axes.data)[axis]
        offset = {"constant": -before, "edge": -min(before, 0), "reflect": abs(before)}[self.mode]
        return (Reach(axis, 1, offset), *(None for _ in inputs[1:]))

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def pieces(self, site: Site) -> tuple[Piece, ...]:
        pads, value, axes = (*site.constants[1:], None, None)[:3]
        assert pads is not None
        tables = self.tables(site.input(0).dims, pads, axes)
        fill = None if self.computed(site) else 0 if value is None else value.item()
        return pieces([runs(t.tolist()) for t in tables], fill)

    def computed(self, site: Site) -> bool:
        """Whether the value of the padding is known at run time only."""
        return self.mode == "constant" and site.has(2) and site.constants[2] is None

    def lower(self, site: Site) -> list[Step]:
        listed = self.pieces(site)
        kernel = move("pad", site.input(0), site.output, listed, site.machine)
        value = (Input(2),) if any(p.value is None for p in listed) else ()
        return [Step(kernel, (Input(0), *value, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, mode: str, shape: Ints, pads: list[int], *more: Array) -> Case:
            constant = tuple(range(1, 2 + len(more)))
            return Case(cls(mode), (shape, np.array(pads), *more), constant, label=label)

        value = np.array(1.5, np.float32)
        yield case("zeros", "constant", (2, 5, 3, 4), [0, 0, 1, 2, 0, 0, 0, 3])
        yield case("value", "constant", (1, 17, 3, 2), [0, 0, 1, 1, 0, 0, 1, 1], value)
        yield case("channels", "constant", (1, 16, 2, 2), [0, 4, 0, 0, 0, 3, 0, 0], value)
        yield case("some_axes", "constant", (2, 3, 4), [1, 2], value, np.array([-1]))
        numbers = np.arange(36, dtype=np.uint8).reshape(1, 2, 3, 6)
        around = np.array([0, 0, 1, 1, 0, 0, 2, 1])
        yield Case(cls(), (numbers, around, np.array(131, np.uint8)), (1,), 0, label="computed_value")
        yield Case(cls(), ((1, 17, 3, 2), around, value), (1,), label="computed_float")
        yield case("crop", "constant", (1, 6, 5, 5), [0, 0, -1, 2, 0, 0, -2, -1])
        yield case("reflect", "reflect", (1, 5, 4, 5), [0, 0, 2, 3, 0, 0, 1, 2])
        yield case("edge", "edge", (1, 19, 3, 2), [0, 0, 2, 1, 0, 0, 1, 2])
        yield case("wrap", "wrap", (3, 4), [1, 2, 1, 1])


def _constant(inside: Array, before: int, after: int) -> Array:
    return np.pad(inside, (before, after), constant_values=-1)


def _edge(inside: Array, before: int, after: int) -> Array:
    return np.pad(inside, (before, after), "edge") if before or after else inside


def _wrap(inside: Array, before: int, after: int) -> Array:
    return inside[np.arange(-before, len(inside) + after) % max(1, len(inside))]


def _reflect(inside: Array, before: int, after: int) -> Array:
    there_and_back = np.concatenate([inside, inside[-2:0:-1]])
    return there_and_back[np.arange(-before, len(inside) + after) % max(1, 2 * len(inside) - 2)]


_PADDED = {"constant": _constant, "edge": _edge, "reflect": _reflect, "wrap": _wrap}
