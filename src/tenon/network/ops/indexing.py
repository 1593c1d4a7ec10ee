"""Operators with data-dependent indices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import indexing as kernels
from tenon.machine.kernels.move import Piece, move, whole
from tenon.machine.kernels.storage_types import computed
from tenon.machine.kernels.tournament import room
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import extreme
from tenon.network.graph.types import I64, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    ErrorBound,
    Input,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    const_input,
    register,
    typed,
)
from tenon.network.ops.move import normal_axis
from tenon.network.ops.reach import Operands, Reach, Reaches
from tenon.network.ops.reduce import neutral
from tenon.network.ops.sized_indices import alike, counts_up, scattered
from tenon.network.ops.sized_slices import agreed, from_start
from tenon.network.ops.window import Ints


def copied(site: Site, i: int = 0) -> Step:
    """A kernel that copies input ``i`` to the first output."""
    x = site.input(i)
    return Step(move("copy", x, x, (Piece(x.dims, whole(x.rank), whole(x.rank)),), site.machine), (Input(i), Output()))


def parted(dims: Ints, axis: int) -> Ints:
    """(elements before, along and after an axis)."""
    return math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :])


@register
@dataclass(frozen=True)
class GatherElements(Operator):
    """Inputs: data, indices of the same rank.  Indices select along ``axis``, at their own positions in the others."""

    axis: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, i = typed(inputs)
        axis = normal_axis(self.name, self.axis, x.rank)
        fits = x.rank == i.rank and all(
            a <= b for d, (a, b) in enumerate(zip(i.dims, x.dims, strict=True)) if d != axis
        )
        if not fits:
            raise ShapeError(f"GatherElements: indices {list(i.dims)} do not fit {list(x.dims)}")
        if i.size and not x.size:
            raise ShapeError(f"GatherElements: data of {list(x.dims)} has no elements to gather")
        return (TensorType(x.dtype, i.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        axis = normal_axis(self.name, self.axis, node.type(0).rank)
        node.with_masked(1, node.changing(1), 0)
        places = from_start(node, node.made(1), node.extents(0)[axis])
        return node.same(node.extents(1), inputs=[node.input(0), places])

    def reference(self, x: Array, indices: Array) -> Array:
        axis = self.axis % x.ndim
        places: list[Array] = list(np.indices(indices.shape, sparse=True))
        places[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
        return x[tuple(places)]

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        assert inputs[0] is not None
        own = axis == self.axis % inputs[0].type.rank
        return None if own else Reach(axis), Reach(axis)

    def lower(self, site: Site) -> list[Step]:
        x, i = site.input(0), site.input(1)
        if not i.size:
            return []
        kernel = kernels.gather_elements(x.dims, i.dims, self.axis % x.rank, x.dtype, i.dtype)
        return [Step(kernel, (Input(0), Input(1), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(1), ((3, 4), np.array([[0, -1, 2], [3, 1, 1]])), label="columns")
        yield Case(cls(), (np.arange(6, dtype=np.int8).reshape(3, 2), np.array([[2, 0]], np.int32)), label="rows")


@register
@dataclass(frozen=True)
class GatherND(Operator):
    """Inputs: data, indices.  The last axis of the indices holds index tuples, after ``batch_dims`` shared axes."""

    batch_dims: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def parts(self, x: Ints, i: Ints) -> tuple[Ints, Ints, Ints]:
        """(batch extents, the extents that are indexed, the extents of the slice that an index selects)."""
        b, depth = self.batch_dims, i[-1] if i else 0
        if not i or b >= len(i) or b + depth > len(x) or x[:b] != i[:b]:
            raise ShapeError(f"GatherND: indices {list(i)} do not fit {list(x)} with {b} batch axes")
        return x[:b], x[b : b + depth], x[b + depth :]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, i = typed(inputs)
        _, _, rest = self.parts(x.dims, i.dims)
        y = TensorType(x.dtype, (*i.dims[:-1], *rest))
        if y.size and not x.size:
            raise ShapeError(f"GatherND: data of {list(x.dims)} has no elements to gather")
        return (y,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents, places = node.extents(0), node.extents(1)
        batch, depth = self.batch_dims, node.type(1).dims[-1]
        if any(batch <= i < batch + depth for i in node.changing(0)) and not counts_up(node.input(1)):
            if depth != 1:
                what = "along axes whose extents a run decides, with tuples of indices that may be negative"
                raise SizeRefusedError(f"{self.name} {what}")
            moved = from_start(node, node.made(1), extents[batch])
            node.inputs[1] = node.sizes.state(moved, places)
        for axis in range(batch):
            agreed(node, axis)
        node.with_masked(1, node.changing(1), 0)
        # Indices lie within the extents, so that what computes the data need not compute more of it.
        node.with_masked(0, [axis for axis in node.changing(0) if batch <= axis < batch + depth], 0)
        return node.same([*places[:-1], *extents[batch + depth :]])

    def reference(self, x: Array, indices: Array) -> Array:
        batch, _, rest = self.parts(x.shape, indices.shape)
        count, depth = math.prod(batch), indices.shape[-1]
        data, places = x.reshape(count, *x.shape[len(batch) :]), indices.reshape(count, -1, depth)
        slices = [data[b][tuple(places[b].T)] if depth else np.array([data[b]]) for b in range(count)]
        return np.array(slices, x.dtype).reshape(*indices.shape[:-1], *rest)

    def lower(self, site: Site) -> list[Step]:
        x, i = site.input(0), site.input(1)
        batch, dims, rest = self.parts(x.dims, i.dims)
        if not site.output.size:
            return []
        rows = math.prod(i.dims[len(batch) : -1])
        shape = math.prod(batch), rows, dims, math.prod(rest)
        kernel = kernels.gather_nd(*shape, x.dtype, i.dtype, site.machine)
        return [Step(kernel, (Input(0), Input(1), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 4, 5), np.array([[0, -1], [2, 3]])), label="rows")
        yield Case(cls(), (np.arange(12).reshape(3, 4), np.array([[[0, 1]], [[2, 2]]])), label="elements")
        yield Case(cls(1), ((2, 3, 4), np.array([[1], [0]])), label="batches")


_REDUCTIONS = ("none", "add", "mul", "max", "min")
_BY_NUMPY = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Scatter(Operator):
    """Inputs: data, indices, updates.  The data with updates written, or combined by ``reduction``, at the indices."""

    arity: ClassVar[tuple[int, int]] = (3, 3)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, i, u = typed(inputs)
        self.check(x.dims, i.dims, u.dims)
        if u.size and not x.size:
            raise ShapeError(f"{self.name}: data of {list(x.dims)} has no element to update")
        if x.dtype is not u.dtype:
            raise ShapeError(f"{self.name}: updates of type {u.dtype} do not fit data of type {x.dtype}")
        return (TensorType(x.dtype, x.dims),)

    def check(self, x: Ints, i: Ints, u: Ints) -> None:
        """Raises ShapeError if the shapes do not fit."""

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)


@register
@dataclass(frozen=True)
class ScatterElements(Scatter):
    axis: int = 0
    reduction: str = "none"

    def check(self, x: Ints, i: Ints, u: Ints) -> None:
        normal_axis(self.name, self.axis, len(x))
        axis = self.axis % len(x)
        inside = len(x) == len(i) and all(a <= b for d, (a, b) in enumerate(zip(i, x, strict=True)) if d != axis)
        if not inside or i != u or self.reduction not in _REDUCTIONS:
            raise ShapeError(f"ScatterElements: indices {list(i)} and updates {list(u)} do not fit {list(x)}")

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        for axis in range(node.type(1).rank):
            alike(node, (1, axis), (2, axis))
        return [scattered(node, normal_axis(self.name, self.axis, node.type(0).rank))]

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        axis, y = self.axis % x.ndim, x.copy()
        for place in np.ndindex(*indices.shape):
            at = list(place)
            at[axis] = int(indices[place])
            there = tuple(at)
            new = updates[place]
            y[there] = new if self.reduction == "none" else _BY_NUMPY[self.reduction](y[there], new)
        return y

    def lower(self, site: Site) -> list[Step]:
        x, i = site.input(0), site.input(1)
        steps = [copied(site)] if x.size and 0 not in site.placed else []
        if i.size and x.size:
            axis = self.axis % x.rank
            kernel = kernels.scatter_elements(x.dims, i.dims, axis, self.reduction, x.dtype, i.dtype)
            steps.append(Step(kernel, (Input(1), Input(2), Output())))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        i = np.array([[1, 0, -1], [0, 2, 1]])
        for reduction in _REDUCTIONS:
            yield Case(cls(reduction=reduction), ((3, 3), i, (2, 3)), label=reduction)
        yield Case(
            cls(1, "add"), (np.zeros((1, 5), np.int32), np.array([[1, 1]]), np.array([[3, 4]], np.int32)), label="twice"
        )


@register
@dataclass(frozen=True)
class ScatterND(Scatter):
    reduction: str = "none"

    def check(self, x: Ints, i: Ints, u: Ints) -> None:
        fits = i and i[-1] <= len(x) and u == (*i[:-1], *x[i[-1] :]) and self.reduction in _REDUCTIONS
        if not fits:
            raise ShapeError(f"ScatterND: indices {list(i)} and updates {list(u)} do not fit {list(x)}")

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if node.type(1).dims[-1] != 1 and not counts_up(node.input(1)):
            raise SizeRefusedError("its indices are tuples, which may be negative, where a run decides extents")
        depth, places = node.type(1).dims[-1], node.type(1).rank - 1
        for axis in range(places):
            alike(node, (1, axis), (2, axis))
        for axis in range(depth, node.type(0).rank):
            alike(node, (0, axis), (2, places + axis - depth))
        return [scattered(node, 0)]

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return Reach(axis), None, None

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        y = x.copy()
        for place in np.ndindex(*indices.shape[:-1]):
            at = tuple(indices[place])
            new = updates[place]
            y[at] = new if self.reduction == "none" else _BY_NUMPY[self.reduction](y[at], new)
        return y

    def lower(self, site: Site) -> list[Step]:
        x, i = site.input(0), site.input(1)
        depth = i.dims[-1]
        steps = [copied(site)] if x.size and 0 not in site.placed else []
        if i.size and x.size:
            rows, inner = math.prod(i.dims[:-1]), math.prod(x.dims[depth:])
            kernel = kernels.scatter_nd(rows, x.dims[:depth], inner, self.reduction, x.dtype, i.dtype)
            steps.append(Step(kernel, (Input(1), Input(2), Output())))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for reduction in _REDUCTIONS:
            yield Case(cls(reduction), ((4, 3), np.array([[1], [-1], [1]]), (3, 3)), label=reduction)
        yield Case(cls(), (np.arange(6).reshape(2, 3), np.array([[0, 1], [1, 2]]), np.array([9, 8])), label="elements")


@register
@dataclass(frozen=True)
class OneHot(Operator):
    """Inputs: indices, depth (constant), values (off, on).  A new ``axis``, "on" at the index and "off" elsewhere."""

    axis: int = -1
    arity: ClassVar[tuple[int, int]] = (3, 3)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        i, _, values = typed(inputs)
        depth = const_input("OneHot", "the depth", inputs, 1)
        assert depth is not None
        axis = normal_axis(self.name, self.axis, i.rank + 1)
        return (TensorType(values.dtype, (*i.dims[:axis], int(depth.item()), *i.dims[axis:])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        (depth,) = node.numbers(1, "the depth")
        most, indices = node.largest(depth), node.made(0)
        if not depth.known:
            indices = from_start(node, indices, depth)
        extents = node.extents(0)
        axis = normal_axis(self.name, self.axis, len(extents) + 1)
        given = [indices, node.constant(np.array(most, np.int64)), node.made(2)]
        return node.same([*extents[:axis], depth, *extents[axis:]], inputs=given)

    def reference(self, indices: Array, depth: Array, values: Array) -> Array:
        n, axis = int(depth.item()), self.axis % (indices.ndim + 1)
        places = indices.astype(np.int64)
        places = np.where(places < 0, places + n, places)
        hot = np.expand_dims(places, axis) == np.arange(n).reshape(-1, *(1,) * (indices.ndim - axis))
        return np.asarray(np.where(hot, values[1], values[0])).astype(values.dtype)

    def lower(self, site: Site) -> list[Step]:
        i, y = site.input(0), site.output
        if not y.size:
            return []
        outer, depth, inner = parted(y.dims, self.axis % y.rank)
        return [Step(kernels.one_hot(outer, depth, inner, y.dtype, i.dtype), (Input(0), Input(2), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        i, values = np.array([[0, 3], [-1, 9]]), np.array([2, 5], np.float32)
        yield Case(cls(), (i, np.array(4), values), (1,), label="last")
        yield Case(cls(0), (i.astype(np.float32), np.array([5], np.float32), values), (1,), label="first")


@dataclass(frozen=True)
class Cumulate(Operator):
    """Inputs: data, axis (constant).  The cumulative reduction along the axis."""

    exclusive: int = 0
    reverse: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    how: ClassVar[str] = "add"

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        axis = const_input(self.name, "the axis", inputs, 1)
        assert axis is not None
        normal_axis(self.name, int(axis.item()), x.rank)
        return (TensorType(x.dtype, x.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if self.reverse:
            (axis,) = node.integers(1, "the axis")
            node.with_masked(0, [axis % node.type(0).rank], 0.0 if self.how == "add" else 1.0)
        return node.same(node.extents(0))

    def reference(self, x: Array, axis: Array) -> Array:
        d = int(axis.item())
        x = np.flip(x, d) if self.reverse else x
        total = (np.cumsum if self.how == "add" else np.cumprod)(x, d, dtype=x.dtype)
        if self.exclusive:
            start = np.full_like(np.take(x, [0], d), 0 if self.how == "add" else 1)
            total = np.concatenate([start, np.take(total, range(x.shape[d] - 1), d)], d)
        return np.flip(total, d) if self.reverse else total

    def lower(self, site: Site) -> list[Step]:
        x, axis = site.input(0), site.constants[1]
        assert axis is not None
        if not x.size:
            return []
        parts = parted(x.dims, int(axis.item()) % x.rank)
        kernel = kernels.cumulate(*parts, self.how, bool(self.exclusive), bool(self.reverse), x.dtype, site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for exclusive in (0, 1):
            for reverse in (0, 1):
                yield Case(cls(exclusive, reverse), ((2, 5, 19), np.array(1)), (1,), label=f"{exclusive}{reverse}")
        yield Case(cls(), (np.arange(1, 6, dtype=np.int32), np.array(-1)), (1,), label="i32")


@register
@dataclass(frozen=True)
class CumSum(Cumulate):
    pass


@register
@dataclass(frozen=True)
class CumProd(Cumulate):
    how: ClassVar[str] = "mul"


@register
@dataclass(frozen=True)
class ReverseSequence(Operator):
    """Inputs: data, lengths.  The first elements along ``time_axis`` of every batch in reverse order."""

    batch_axis: int = 1
    time_axis: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, lengths = typed(inputs)
        if {self.batch_axis, self.time_axis} != {0, 1} or x.rank < 2 or lengths.dims != (x.dims[self.batch_axis],):
            raise ShapeError(f"ReverseSequence: lengths {list(lengths.dims)} do not fit {list(x.dims)}")
        return (TensorType(x.dtype, x.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same(node.extents(0))

    def reference(self, x: Array, lengths: Array) -> Array:
        y = x.copy()
        for b, n in enumerate(lengths):
            at = (slice(0, n), b) if self.time_axis == 0 else (b, slice(0, n))
            y[at] = np.flip(x[at], 0)
        return y

    def lower(self, site: Site) -> list[Step]:
        x, i = site.input(0), site.input(1)
        if not x.size:
            return []
        kernel = kernels.reverse_sequence(
            x.dims[:2], self.time_axis, self.batch_axis, math.prod(x.dims[2:]), x.dtype, i.dtype
        )
        return [Step(kernel, (Input(0), Input(1), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((4, 3, 2), np.array([4, 0, 3])), label="time_first")
        yield Case(cls(0, 1), ((3, 5), np.array([1, 2, 5])), label="batch_first")


@register
@dataclass(frozen=True)
class TopK(Operator):
    """Inputs: data, k (constant).  The k greatest along ``axis`` in order, and their indices; ties keep their order."""

    axis: int = -1
    largest: int = 1
    sorted: int = 1
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    counts_up: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        count = const_input("TopK", "k", inputs, 1)
        assert count is not None
        axis, n = normal_axis(self.name, self.axis, x.rank), int(count.item())
        if not 0 <= n <= x.dims[axis]:
            raise ShapeError(f"TopK: {n} elements of an axis of {x.dims[axis]}")
        shape = (*x.dims[:axis], n, *x.dims[axis + 1 :])
        return TensorType(x.dtype, shape), TensorType(I64, shape)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents, axis = node.extents(0), normal_axis(self.name, self.axis, node.type(0).rank)
        (count,) = node.numbers(1, "k")
        most = int(min(count.most, node.type(0).dims[axis]))
        if not count.known:
            count = extreme([count, extents[axis]], greatest=False)
        node.with_masked(0, [axis], neutral(node.type(0).dtype, greatest=not self.largest))
        rest = [*extents[:axis], count, *extents[axis + 1 :]]
        return node.same(rest, rest, inputs=[node.input(0), node.ints(most)])

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(axis), None) if axis != self.axis % outputs[0].rank else None

    def reference(self, x: Array, count: Array) -> tuple[Array, ...]:
        axis, k = self.axis % x.ndim, int(count.item())
        if self.largest:
            order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        order = np.take(order, range(k), axis)
        return np.take_along_axis(x, order, axis), order.astype(np.int64)

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        if not y.size:
            return []
        outer, n, inner = parted(x.dims, self.axis % x.rank)
        count = y.dims[self.axis % x.rank]
        order: Arg = Output(1) if len(site.outputs) > 1 else Scratch("order", 8 * y.size)
        results = (Output(0), order)
        if n <= kernels.FEW:
            kernel = kernels.top_k(outer, n, inner, count, bool(self.largest), x.dtype)
            return [Step(kernel, (Input(0), *results))]
        kernel = kernels.top_k_of_many(outer, n, inner, count, bool(self.largest), x.dtype)
        work = (Scratch(name, nbytes) for name, nbytes in room(n, computed(x.dtype)).items())
        return [Step(kernel, (Input(0), *work, *results))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], np.float32)
        yield Case(cls(), (x, np.array([3])), (1,), label="largest")
        yield Case(cls(largest=0), (x.astype(np.int64), np.array([4])), (1,), label="least")
        yield Case(cls(0), ((4, 3), np.array([2])), (1,), label="first_axis")
        many = np.random.default_rng(0).integers(0, 40, (2, 70, 3))
        yield Case(cls(1), (many.astype(np.float32), np.array([70])), (1,), label="all_of_many")
        yield Case(cls(1, largest=0), (many.astype(np.int8), np.array([9])), (1,), label="least_of_many")
        gaps = np.where(many == 7, np.nan, np.where(many == 9, -np.inf, many)).astype(np.float32)
        yield Case(cls(1), (gaps, np.array([20])), (1,), label="many_not_a_number")
        yield Case(cls(1, largest=0), (gaps, np.array([70])), (1,), label="least_not_a_number")
