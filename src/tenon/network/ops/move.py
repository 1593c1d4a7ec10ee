"""Operators that move parts of tensors: transposes, concatenation, splitting, tiling and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import AffineIndex, Piece, along, move, whole
from tenon.network.graph.graph import Array, Stored, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.sizes import exact, expression
from tenon.network.graph.types import ALL_CHANNELS, F32, ROW_MAJOR, DType, Halo, Layout, TensorType
from tenon.network.ops.base import (
    Alias,
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    broadcast_dims,
    const_input,
    register,
    typed,
)
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.reach import Operands, Reach, Reaches, alike, broadcast_reach
from tenon.network.ops.sized_slices import concatenated, expanded, part, tiled
from tenon.network.ops.window import Ints


# --------------------------------------------------------------------------------- what movers share
def own(t: TensorType) -> Layout:
    """A tensor's layout without its halo."""
    return replace(t.layout, halo=((0, 0),) * (t.rank - 2)) if t.layout.image else ROW_MAJOR


def kept(site: Site) -> Layouts:
    """The first input in any layout, the outputs in blocks of the same size; all other inputs are constants."""
    layout = own(site.input(0))
    return Layouts((layout, *(None,) * (len(site.inputs) - 1)), (layout,) * len(site.outputs))


def normal_axis(name: str, axis: int, rank: int) -> int:
    """``axis`` counted from the front.  Raises ShapeError if there is no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{name}: axis {axis} does not exist in a tensor of rank {rank}")
    return axis % rank


def same_memory(a: TensorType, b: TensorType) -> bool:
    """Whether the leading bytes of ``a`` are ``b``, the same logical tensor in its layout."""
    if a.physical == b.physical and a.layout.block == b.layout.block:
        halo = a.layout.halos(a.rank)
        return halo == b.layout.halos(b.rank) and (a.layout.fill == b.layout.fill or not any(map(any, halo)))
    wide, flat = (a, b) if b.layout.in_order else (b, a)
    lined = flat.layout.in_order and math.prod(wide.physical[2:-1]) == 1
    full = wide.dims[1] % wide.block == 0 or (wide is a and wide.dims[0] == 1)
    return lined and full


def part_offset(full: TensorType, part: TensorType, axis: int, start: int) -> int | None:
    """The byte offset of ``part``, a slice of ``axis`` of ``full`` at ``start``, or None if it is not contiguous there.

    The last block of a part may be partly filled only at the end of ``full``.
    """
    if full.layout != part.layout or math.prod(full.physical[:axis]) != 1:
        return None
    block = 1 if full.layout.in_order else full.block
    if axis == 1 and (start % block or (part.dims[1] % block and start + part.dims[1] != full.dims[1])):
        return None
    if axis >= 2 and any(before or after for before, after in full.layout.halo):
        return None
    index = start // block if axis == 1 else start
    return index * math.prod(full.physical[axis + 1 :]) * full.dtype.bytes


def shifted(rank: int, axis: int, start: int) -> tuple[AffineIndex, ...]:
    """The identity map, every axis being its own loop, with ``start`` added to one of them."""
    return tuple(along(i, start if i == axis else 0) for i in range(rank))


def reordered(site: Site) -> list[Step]:
    """The first output is the first input in another layout."""
    x, y = site.input(0), site.output
    kernel = move("reorder", x, y, (Piece(x.dims, whole(x.rank), whole(x.rank)),), site.machine)
    return [Step(kernel, (Input(0), Output()))]


# ------------------------------------------------------------------------------------------ operators
@register
@dataclass(frozen=True)
class Reorder(Operator):
    """The same tensor in another layout: blocks of ``block`` channels, a halo.  Tenon's own, not ONNX's."""

    block: int = 1
    halo: Halo = ()
    internal: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        return (x.with_layout(Layout(self.block, self.halo)),)

    def reference(self, x: Array) -> Array:
        return x

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return alike(inputs, axis)

    def layouts(self, site: Site) -> Layouts:
        return Layouts((own(site.input(0)),), (Layout(self.block, self.halo),))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),) if same_memory(site.input(0), site.output) else ()

    def lower(self, site: Site) -> list[Step]:
        return reordered(site)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        flat = ((0, 0), (0, 0))
        yield Case(cls(), ((2, 19, 3, 5),), label="to_plain")
        yield Case(cls(), ((1, 35, 1, 1),), label="vector_to_plain")
        yield Case(cls(16, flat), ((2, 35, 3, 2),), label="to_blocks")
        yield Case(cls(16, flat), ((2, 32, 1, 1),), label="vector_to_blocks")
        yield Case(cls(8, ((1, 2), (0, 3))), ((1, 11, 2, 3),), label="to_halo")
        yield Case(cls(1, ((1, 1), (2, 1))), ((2, 3, 4, 5),), label="planes_with_halo")
        yield Case(cls(4, ((1, 0),)), ((2, 6, 7),), label="one_axis")
        yield Case(cls(ALL_CHANNELS, ((1, 0), (2, 1))), ((2, 6, 3, 4),), label="channels_last")


@register
@dataclass(frozen=True)
class Transpose(Operator):
    """Axes in another order, by default reversed."""

    perm: Ints = ()
    rearranges: ClassVar[bool] = True
    moves: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None:
        (x,) = inputs
        return None if x is None or x.stored is None else x.stored.transposed(self.order(len(dims)))

    def order(self, rank: int) -> Ints:
        perm = self.perm or tuple(reversed(range(rank)))
        if sorted(perm) != list(range(rank)):
            raise ShapeError(f"Transpose: perm {list(perm)} is not an order of {rank} axes")
        return perm

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        return (TensorType(x.dtype, tuple(x.dims[i] for i in self.order(x.rank))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)
        return node.same([extents[i] for i in self.order(len(extents))])

    def reference(self, x: Array) -> Array:
        y = x.transpose(self.order(x.ndim))
        return np.ascontiguousarray(y) if any(y.strides) else y  # a broadcast scalar is not expanded

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        (x,) = typed(inputs)
        moved = [i for i in self.order(x.rank) if x.dims[i] != 1]
        return moved == sorted(moved)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return Patch(self, (Span(self.order(output.rank)[span.axis], span.start, span.stop),))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(self.order(outputs[0].rank)[axis]),)

    def layouts(self, site: Site) -> Layouts:
        """From channels last to channels first, the result is an image as a convolution wants it."""
        x, perm = site.input(0), self.order(site.input(0).rank)
        flat = ((0, 0), (0, 0))
        if perm[:2] == (0, 1):
            return kept(site)
        if perm == (0, 3, 1, 2) and x.dtype is F32:
            block = 1 if site.output.dims[1] <= 4 else site.machine.block
            return Layouts((own(x),), (Layout(block, flat),))
        return Layouts((own(x),), (ROW_MAJOR,))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        x = site.input(0)
        long = [i for i in self.order(x.rank) if x.dims[i] > 1]
        same = x.layout.in_order and site.output.layout.in_order and long == sorted(long)
        return (Alias(0, 0),) if same else ()

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        perm = self.order(x.rank)
        source = tuple(along(perm.index(i)) for i in range(x.rank))
        kernel = move("transpose", x, y, (Piece(y.dims, whole(y.rank), source),), site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 5),), label="matrix")
        yield Case(cls((0, 2, 3, 1)), ((2, 19, 3, 4),), label="channels_last")
        yield Case(cls((0, 3, 1, 2)), ((2, 3, 4, 19),), label="channels_first")
        yield Case(cls((0, 3, 1, 2)), ((2, 5, 4, 3),), label="image")
        yield Case(cls((0, 1, 3, 2)), ((2, 9, 4, 3),), label="planes")
        yield Case(cls(), ((19, 37),), label="squares")
        yield Case(cls((0, 2, 1, 3, 4)), ((1, 2, 3, 4, 5),), label="rank_5")
        yield Case(cls((1, 0, 2)), ((1, 4, 3),), label="view")
        yield Case(cls((1, 0)), (np.arange(6, dtype=np.int64).reshape(2, 3),), label="integers")


@register
@dataclass(frozen=True)
class Concat(Operator):
    """Concatenation along ``axis``."""

    axis: int = 0
    arity: ClassVar[tuple[int, int]] = (1, 1 << 16)
    moves: ClassVar[bool] = True
    one_is_itself: ClassVar[bool] = True
    along_axis: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        axis = normal_axis("Concat", self.axis, types[0].rank)
        rests = {(t.dtype, t.rank, t.dims[:axis], t.dims[axis + 1 :]) for t in types}
        if len(rests) != 1:
            shapes = ", ".join(str(t) for t in types)
            raise ShapeError(f"Concat: {shapes} differ in more than axis {axis}")
        dims = list(types[0].dims)
        dims[axis] = sum(t.dims[axis] for t in types)
        return (TensorType(types[0].dtype, tuple(dims)),)

    def symbolic(self, inputs: Sequence[Array | None], types: Sequence[TensorType]) -> tuple[Array, ...] | None:
        return (np.concatenate([a for a in inputs if a is not None], self.axis),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [concatenated(node, self.axis)]

    def reference(self, *inputs: Array) -> Array:
        return np.concatenate(inputs, self.axis)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return None if span.axis == self.axis % output.rank else Patch(self, (span,) * len(inputs))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        if axis != self.axis % outputs[0].rank:
            return tuple(Reach(axis) for _ in inputs)
        starts = accumulate((0 if v is None else v.type.dims[axis] for v in inputs), initial=0)
        return tuple(Reach(axis, 1, -start) for start, _ in zip(starts, inputs, strict=False))

    def starts(self, site: Site) -> list[int]:
        axis = self.axis % site.output.rank
        return list(accumulate((site.input(i).dims[axis] for i in range(len(site.inputs))), initial=0))

    def layouts(self, site: Site) -> Layouts:
        inputs = tuple(own(site.input(i)) for i in range(len(site.inputs)))
        blocked = next((layout for layout in inputs if layout.block > 1), ROW_MAJOR)
        return Layouts(inputs, (blocked,))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        axis = self.axis % site.output.rank
        aliases = []
        for i, start in enumerate(self.starts(site)[:-1]):
            offset = part_offset(site.output, site.input(i), axis, start)
            if offset is not None:
                aliases.append(Alias(i, 0, offset, "output"))
        return tuple(aliases)

    def lower(self, site: Site) -> list[Step]:
        y = site.output
        axis = self.axis % y.rank
        steps = []
        for i, start in enumerate(self.starts(site)[:-1]):
            x = site.input(i)
            if i not in site.placed and x.size:
                piece = Piece(x.dims, shifted(y.rank, axis, start), whole(y.rank))
                steps.append(Step(move("concat", x, y, (piece,), site.machine), (Input(i), Output())))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(1), ((1, 16, 2, 3), (1, 32, 2, 3)), label="whole_blocks")
        yield Case(cls(1), ((1, 16, 2, 3), (1, 3, 2, 3)), label="short_tail")
        yield Case(cls(1), ((2, 12, 2, 3), (2, 20, 2, 3), (2, 7, 2, 3)), label="batched")
        yield Case(cls(1), ((1, 5, 3), (1, 5, 3), (1, 9, 3)), label="odd_channels")
        yield Case(cls(1), ((2, 16, 2), (2, 7, 2)), tolerance=0, label="bf16", dtypes=(DType.BF16, DType.BF16))
        yield Case(cls(-1), ((1, 5, 2, 3), (1, 5, 2, 4)), label="columns")
        yield Case(cls(0), ((1, 3), (2, 3)), label="rows")
        integers = np.arange(4, dtype=np.int64)
        yield Case(cls(0), (integers, integers[:1]), (1,), label="integers")
        yield Case(cls(1), ((1, 18, 2, 2), (1, 4, 2, 2)), (1,), label="constant")


MOST_PARTS = 2**16
"""The most parts of a Split; more come only from corrupt files, and listing them takes minutes."""


@register
@dataclass(frozen=True)
class Split(Operator):
    """Inputs: data, the parts' lengths.  Without lengths: ``num_outputs`` equal parts, the last may be shorter."""

    axis: int = 0
    num_outputs: int | None = None
    arity: ClassVar[tuple[int, int]] = (1, 2)
    moves: ClassVar[bool] = True
    along_axis: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def lengths(self, n: int, split: Array | None) -> list[int]:
        if split is not None:
            if int(split.sum()) != n or split.min(initial=0) < 0:
                raise ShapeError(f"Split: parts of {split.tolist()} do not make up an axis of {n}")
            return [int(s) for s in split]
        if not self.num_outputs:
            raise ShapeError("Split: neither the input 'split' nor num_outputs says how many parts there are")
        if not 0 < self.num_outputs <= MOST_PARTS:
            raise ShapeError(f"Split: {self.num_outputs} parts; from 1 to {MOST_PARTS} are possible")
        part = -(-n // self.num_outputs)
        return [max(0, min(part, n - i * part)) for i in range(self.num_outputs)]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        axis = normal_axis("Split", self.axis, x.rank)
        lengths = self.lengths(x.dims[axis], const_input("Split", "split", inputs, 1))
        return tuple(TensorType(x.dtype, (*x.dims[:axis], n, *x.dims[axis + 1 :])) for n in lengths)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        axis = normal_axis("Split", self.axis, node.type(0).rank)
        extent = node.extents(0)[axis]
        if node.has(1):
            lengths = node.numbers(1, "split")
        elif extent.known:
            lengths = [expression(n) for n in self.lengths(extent.number, None)]
        else:
            lengths = [exact(extent, self.num_outputs or len(node.names))] * len(node.names)
        parts, start = list[Value](), expression(0)
        for length in lengths[: len(node.names)]:
            parts.append(part(node, node.input(0), axis, start, length))
            start = start + length
        return parts

    def reference(self, x: Array, split: Array | None = None) -> tuple[Array, ...]:
        ends = list(accumulate(self.lengths(x.shape[self.axis], split)))
        return tuple(np.split(x, ends[:-1], self.axis))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        if axis != self.axis % outputs[0].rank:
            return alike(inputs, axis)
        return (Reach(axis, 1, sum(type.dims[axis] for type in outputs[:output])), *(None for _ in inputs[1:]))

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def starts(self, site: Site) -> list[int]:
        axis = self.axis % site.input(0).rank
        return list(accumulate((y.dims[axis] for y in site.outputs), initial=0))[:-1]

    def alias(self, site: Site) -> tuple[Alias, ...]:
        x = site.input(0)
        aliases = []
        for i, (y, start) in enumerate(zip(site.outputs, self.starts(site), strict=True)):
            offset = part_offset(x, y, self.axis % x.rank, start)
            if offset is None:
                return ()
            aliases.append(Alias(0, i, offset))
        return tuple(aliases)

    def lower(self, site: Site) -> list[Step]:
        x, steps = site.input(0), []
        for i, (y, start) in enumerate(zip(site.outputs, self.starts(site), strict=True)):
            if y.size:
                piece = Piece(y.dims, whole(x.rank), shifted(x.rank, self.axis % x.rank, start))
                steps.append(Step(move("split", x, y, (piece,), site.machine), (Input(0), Output(i))))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(1, 2), ((1, 32, 2, 3),), label="halves")
        yield Case(cls(1, 3), ((2, 29, 2, 3),), label="uneven")
        yield Case(cls(1), ((1, 20, 2, 3), np.array([16, 4])), (1,), label="lengths")
        yield Case(cls(-1, 2), ((2, 3, 6),), label="last_axis")
        yield Case(cls(0), (np.arange(7, dtype=np.int32), np.array([2, 5])), (1,), label="integers")


@register
@dataclass(frozen=True)
class Tile(Operator):
    """Inputs: data, repeats.  The whole tensor repeated along every axis."""

    rearranges: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        repeats = const_input("Tile", "repeats", inputs, 1)
        if repeats is None or len(repeats) != x.rank:
            raise ShapeError(f"Tile: repeats must have one number for each of {x.rank} axes")
        return (TensorType(x.dtype, tuple(n * int(r) for n, r in zip(x.dims, repeats, strict=True))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [tiled(node)]

    def reference(self, x: Array, repeats: Array) -> Array:
        return np.tile(x, repeats)

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return True

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        extents = tuple(n for a, b in zip(x.dims, y.dims, strict=True) for n in (b // max(a, 1), a))
        target = tuple(AffineIndex(0, ((2 * i, n), (2 * i + 1, 1))) for i, n in enumerate(x.dims))
        source = tuple(along(2 * i + 1) for i in range(x.rank))
        kernel = move("tile", x, y, (Piece(extents, target, source),), site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3), np.array([2, 3])), (1,), label="matrix")
        yield Case(cls(), ((1, 5, 2, 3), np.array([2, 3, 1, 2])), (1,), label="image")
        yield Case(cls(), ((1, 16, 1, 1), np.array([1, 2, 3, 2])), (1,), label="spread")
        yield Case(cls(), (np.arange(3, dtype=np.int64), np.array([4])), (1,), label="integers")


@register
@dataclass(frozen=True)
class Expand(Operator):
    """Inputs: data, shape.  Bidirectional broadcasting, as in NumPy."""

    rearranges: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        shape = const_input("Expand", "shape", inputs, 1)
        assert shape is not None
        return (TensorType(x.dtype, broadcast_dims("Expand", x.dims, tuple(int(n) for n in shape))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [expanded(node)]

    def reference(self, x: Array, shape: Array) -> Array:
        return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))))

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return True

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (*broadcast_reach(inputs[:1], outputs[0], axis), *(None for _ in inputs[1:]))

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, None), (ROW_MAJOR,))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),) if site.input(0).size == site.output.size else ()

    def lower(self, site: Site) -> list[Step]:
        y = site.output
        dims = (1,) * (y.rank - site.input(0).rank) + site.input(0).dims
        x = TensorType(y.dtype, dims)
        source = tuple(along(i) if n > 1 else AffineIndex() for i, n in enumerate(dims))
        kernel = move("expand", x, y, (Piece(y.dims, whole(y.rank), source),), site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 1), np.array([2, 3, 5])), (1,), label="both_ways")
        yield Case(cls(), ((1, 4, 1, 1), np.array([1, 1, 2, 3])), (1,), label="image")
        yield Case(cls(), ((2, 3), np.array([1])), (1,), label="nothing")
        yield Case(cls(), (np.array([True, False]), np.array([3, 2])), (1,), label="bools")
