"""Operators whose result's extent depends on data.

The result's buffer has the largest extent possible, with zeros past the end; the last output is the true extent.  Such
a result can only be an output of the network, because operators that read it would need its true shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import boxes
from tenon.machine.kernels import data_dependent as kernels
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import extreme
from tenon.network.graph.types import BOOL, F32, I64, TensorType
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
    Weights,
    const_input,
    register,
    typed,
)
from tenon.network.ops.indexing import parted
from tenon.network.ops.move import normal_axis
from tenon.network.ops.window import Ints

COUNT = TensorType(I64, ())


def padded(data: Array, shape: Sequence[int]) -> Array:
    """``data``, padded with zeros."""
    out = np.zeros(tuple(shape), data.dtype)
    out[tuple(slice(0, n) for n in data.shape)] = data
    return out


@register
@dataclass(frozen=True)
class NonZero(Operator):
    """The positions of the elements that are not zero, one column each, in row-major order."""

    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    counts_up: ClassVar[bool] = True

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]:
        return (1,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        node.with_masked(0, node.changing(0), 0.0)
        return node.counted()

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        return TensorType(I64, (x.rank, x.size)), COUNT

    def reference(self, x: Array) -> tuple[Array, ...]:
        indices = np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)
        return padded(indices, (x.ndim, x.size)), np.array(indices.shape[1])

    def supported(self, site: Site) -> str:
        return "" if site.input(0).size and site.input(0).rank else "a scalar or an empty tensor"

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        return [Step(kernels.nonzero(x.dims, x.dtype), (Input(0), Output(0), Output(1)))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), (np.array([[1, 0, 2], [0, 0, 3]], np.float32),), label="matrix")
        yield Case(cls(), (np.array([False, True, True]),), label="bools")


@register
@dataclass(frozen=True)
class Compress(Operator):
    """Inputs: data, condition.  The slices of ``axis`` (of the flat data without one) that the condition keeps."""

    axis: int | None = None
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]:
        (x, *_) = typed(inputs)
        return (0 if self.axis is None else self.axis % x.rank,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        node.with_masked(1, [0], 0.0)
        if self.axis is None and any(axis > 0 for axis in node.changing(0)):
            raise SizeRefusedError("Compress of a tensor of which a run decides more than the extent of its first axis")
        if self.axis is None:
            return node.counted()
        axis, extents = self.axis % node.type(0).rank, node.extents(0)
        return node.counted({0: {i: e for i, e in enumerate(extents) if i != axis}})

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, condition = typed(inputs)
        if condition.dtype is not BOOL or condition.rank != 1:
            raise ShapeError(f"Compress: the condition {condition} must be a vector of bool")
        if self.axis is not None:
            normal_axis("Compress", self.axis, x.rank)
        if condition.dims[0] > (x.size if self.axis is None else x.dims[self.axis]):
            raise ShapeError(f"Compress: {condition.dims[0]} conditions are more than {list(x.dims)} has elements for")
        return TensorType(x.dtype, (x.size,) if self.axis is None else x.dims), COUNT

    def reference(self, x: Array, condition: Array) -> tuple[Array, ...]:
        shape = (x.size,) if self.axis is None else x.shape
        kept = np.compress(condition, x, self.axis)
        return padded(kept, shape), np.array(kept.shape[0 if self.axis is None else self.axis])

    def supported(self, site: Site) -> str:
        return "" if site.input(0).size and site.input(1).size else "an empty tensor"

    def lower(self, site: Site) -> list[Step]:
        x, length = site.input(0), site.input(1).size
        parts = (1, x.size, 1) if self.axis is None else parted(x.dims, self.axis % x.rank)
        return [Step(kernels.compress(*parts, length, x.dtype), (Input(0), Input(1), Output(0), Output(1)))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        keep = np.array([False, True, True])
        yield Case(cls(0), ((3, 4), keep), label="rows")
        yield Case(cls(-1), ((2, 4), keep), label="columns")
        yield Case(cls(), ((2, 4), keep), label="flat")


def choice(most: int) -> tuple[Arg, ...]:
    """The scratch memory of a ``kernels.boxes.Choice`` of that many candidates."""
    return (
        *(Scratch(name, nbytes) for name, nbytes in boxes.choice_room(most).items()),
        Weights(boxes.positions(most)),
    )


@register
@dataclass(frozen=True)
class Unique(Operator):
    """The unique slices along ``axis`` (elements without one), the index of each one's first occurrence, the inverse
    indices, the number of occurrences of each, and the number of unique slices.  Ascending (NaN last and equal to
    itself), or in the order of first occurrence."""

    axis: int | None = None
    sorted: int = 1
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    counts_up: ClassVar[bool] = True

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]:
        (x,) = typed(inputs)
        return (0 if self.axis is None else self.axis % x.rank, 0, None, 0)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        """Behind its end, the tensor holds its last slice again, which makes no other one unique."""
        if self.axis is None and node.type(0).rank != 1:
            node.inputs[0] = node.add("Reshape", node.input(0), node.ints(-1))
        axis = (self.axis or 0) % node.type(0).rank
        extents = node.extents(0)
        if node.changing(0) != [axis] or extents[axis].least < 1:
            raise SizeRefusedError("Unique of slices of run-time extents, or of a tensor that may be empty")
        last, count = node.number(extents[axis] - 1), node.type(0).dims[axis]
        places = node.constant(np.arange(count))
        repeated = node.gathered(node.input(0), axis, node.whole("Min", places, last))
        node.inputs[0] = node.state(repeated, extents)
        results = list(node.counted({2: {0: extents[axis]}}))
        own = node.whole("Equal", places, node.whole("Gather", results[2], last))
        more = node.whole("Where", own, node.number(count - extents[axis]), node.number(0))
        counts = node.whole("Sub", results[3], more)
        node.sizes.extents[counts] = node.sizes.extents[results[3]]
        return [*results[:3], counts, results[4]]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        n = x.size if self.axis is None else x.dims[normal_axis("Unique", self.axis, x.rank)]
        per = TensorType(I64, (n,))
        return TensorType(x.dtype, (n,) if self.axis is None else x.dims), per, per, per, COUNT

    def reference(self, x: Array) -> tuple[Array, ...]:
        axis = 0 if self.axis is None else self.axis % x.ndim
        data = x.reshape(-1) if self.axis is None else x
        n = data.shape[axis]
        wide = data.astype(np.float32) if data.dtype.kind == "V" else data
        ranks = np.unique(wide, return_inverse=True)[1].reshape(data.shape)  # in which NaN is an equal of NaN
        _, first, inverse, counts = np.unique(ranks, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = np.argsort(first)
            first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
        y = np.take(data, first, axis)
        return padded(y, data.shape), padded(first, (n,)), inverse, padded(counts, (n,)), np.array(len(first))

    def supported(self, site: Site) -> str:
        return "" if site.input(0).size else "an empty tensor"

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        parts = (1, x.size, 1) if self.axis is None else parted(x.dims, self.axis % x.rank)
        kernel = kernels.unique(*parts, bool(self.sorted), x.dtype)
        work = (Scratch(name, 4 * parts[1]) for name in ("places", "spare"))
        return [Step(kernel, (Input(0), *map(Output, range(5)), *work))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[2, 1, 1], [3, 4, 3]], np.float32)
        for in_order in (1, 0):
            yield Case(cls(sorted=in_order), (x,), label=f"elements_{in_order}")
            yield Case(cls(0, in_order), (np.array([[1, 0], [1, 0], [0, 3]], np.int32),), label=f"rows_{in_order}")
        yield Case(cls(-1), (x,), label="columns")


@register
@dataclass(frozen=True)
class NonMaxSuppression(Operator):
    """Inputs: boxes, scores, most boxes per class (constant), largest overlap (IoU), least score.

    Rows of (batch, class, box): greedy NMS, from the best score down.
    """

    center_point_box: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 5)

    def most(self, boxes: Ints, limit: Array | None) -> int:
        return 0 if limit is None else max(0, min(int(limit.item()), boxes[1]))

    counts_up: ClassVar[bool] = True

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]:
        return (0,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        """Boxes beyond the extent have a score below the least one."""
        node.common_exactly([(0, 1), (1, 2)])
        if any(axis != 2 for axis in node.changing(1)):
            raise SizeRefusedError(f"{self.name} of a number of batches or classes that a run decides")
        node.inputs += [None] * (5 - len(node.inputs))
        if node.has(2) and node.input(2).data is None:
            limit = extreme([*node.numbers(2, "the most boxes per class"), node.extents(0)[1]], greatest=False)
            if not limit.known:
                raise SizeRefusedError(f"{self.name} with a number of boxes per class that a run decides")
            node.inputs[2] = node.constant(np.array(limit.number))
        node.with_masked(1, [2], -math.inf)
        if not node.has(4) and node.changing(1):
            node.inputs[4] = node.constant(np.array(np.finfo(np.float32).min, np.float32))
        return node.counted()

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        boxes, scores = typed(inputs)[:2]
        if boxes.rank != 3 or boxes.dims[2] != 4 or scores.dims[::2] != boxes.dims[:2]:
            raise ShapeError(f"NonMaxSuppression: boxes {list(boxes.dims)} and scores {list(scores.dims)} do not fit")
        most = self.most(boxes.dims, const_input(self.name, "the most boxes per class", inputs, 2))
        return TensorType(I64, (scores.dims[0] * scores.dims[1] * most, 3)), COUNT

    def reference(self, boxes: Array, scores: Array, *given: Array | None) -> tuple[Array, ...]:
        limit, overlap, least = (*given, None, None, None)[:3]
        most = self.most(boxes.shape, limit)
        rows = []
        for b, c in np.ndindex(*scores.shape[:2]):
            points, left = self.corners(boxes[b]), list(np.argsort(-scores[b, c], kind="stable"))
            left = [i for i in left if least is None or scores[b, c, i] > least.item()]
            for _ in range(most):
                if not left:
                    break
                best = left.pop(0)
                rows.append((b, c, best))
                limit_now = 0.0 if overlap is None else overlap.item()
                left = [i for i in left if _shared(points[best], points[i]) <= limit_now]
        total = scores.shape[0] * scores.shape[1] * most
        return padded(np.array(rows, np.int64).reshape(-1, 3), (total, 3)), np.array(len(rows))

    def corners(self, boxes: Array) -> Array:
        if self.center_point_box:
            half = boxes[:, 2:] / 2
            return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
        low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
        return np.concatenate([low, high], 1)

    def supported(self, site: Site) -> str:
        return "" if site.output.size and site.input(0).dtype is F32 else "an empty result, or boxes that are not f32"

    def lower(self, site: Site) -> list[Step]:
        (batches, boxes, _), classes = site.input(0).dims, site.input(1).dims[1]
        most = self.most(site.input(0).dims, site.constants[2])
        kernel = kernels.suppress(batches, classes, boxes, most, bool(self.center_point_box), site.has(4), site.has(3))
        limits: list[Arg] = [Input(i) for i in (3, 4) if site.has(i)]
        work = (*choice(boxes), Scratch("kept", 16 * most), Scratch("found", 8))
        args = (Input(0), Input(1), *limits, *work, Output(0), Output(1))
        return [Step(kernel, args)]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(3)
        boxes = rng.uniform(0, 1, (2, 6, 4)).astype(np.float32)
        scores = rng.uniform(0, 1, (2, 2, 6)).astype(np.float32)
        limits = np.array(4), np.array(0.1, np.float32), np.array(0.2, np.float32)
        for by_centre in (0, 1):
            yield Case(cls(by_centre), (boxes, scores, *limits), (2,), label=f"centre_{by_centre}")
        yield Case(cls(), (boxes, scores, np.array([3])), (2,), label="no_limits")


def _shared(a: Array, b: Array) -> float:
    """Intersection over union, in single precision."""
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), np.float32(0))
    shared = sides[0] * sides[1]
    union = math.prod(a[2:] - a[:2]) + math.prod(b[2:] - b[:2]) - shared
    return float(shared / union) if union > 0 else 0.0
