"""Operators on shapes: views of the same elements, and constants made of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import Piece, move, whole
from tenon.network.graph.graph import Array, Stored, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression, UndecidedError, equal, extreme, quotient
from tenon.network.graph.types import I64, ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import (
    Alias,
    Arg,
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    as_objects,
    const_input,
    objects,
    register,
    typed,
)
from tenon.network.ops.move import kept, normal_axis, own, reordered, same_memory
from tenon.network.ops.reach import Operands, Reaches, alike, kept_axis
from tenon.network.ops.sized_views import product, reshaped, target
from tenon.network.ops.window import Ints


@dataclass(frozen=True)
class View(Operator):
    """An operator whose result is its first input's elements, in order, in another shape."""

    rearranges: ClassVar[bool] = True
    moves: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None:
        (x, *_) = inputs
        return None if x is None or x.stored is None else x.stored.reshaped(dims)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x = inputs[0]
        own = None if x is None else kept_axis(x.type.dims, outputs[0].dims, axis)
        return None if own is None else alike(inputs, own)

    def layouts(self, site: Site) -> Layouts:
        """A blocked vector of channels is a row-major one, so that it need not be converted first."""
        x = site.input(0)
        plain = x.with_layout(ROW_MAJOR)
        layout = own(x) if same_memory(x.with_layout(own(x)), plain) else ROW_MAJOR
        return Layouts((layout, *(None,) * (len(site.inputs) - 1)), (ROW_MAJOR,))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        x = site.input(0)
        return (Alias(0, 0),) if same_memory(x, x.with_layout(ROW_MAJOR)) else ()

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        kernel = move("view", x, x.with_layout(ROW_MAJOR), (Piece(x.dims, whole(x.rank), whole(x.rank)),), site.machine)
        return [Step(kernel, (Input(0), Output()))] if x.size else []


@register
@dataclass(frozen=True)
class Reshape(View):
    """Inputs: data, shape.  -1 is inferred; 0 copies the extent of that axis unless ``allowzero``."""

    allowzero: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def shape(self, dims: Ints, shape: Array) -> Ints:
        wanted = [int(n) for n in shape]
        if not self.allowzero:
            if any(n == 0 and i >= len(dims) for i, n in enumerate(wanted)):
                raise ShapeError(f"Reshape: a 0 in {wanted} copies an axis that {list(dims)} does not have")
            wanted = [dims[i] if n == 0 else n for i, n in enumerate(wanted)]
        size = math.prod(dims)
        if wanted.count(-1) == 1:
            rest = math.prod(n for n in wanted if n != -1)
            wanted[wanted.index(-1)] = size // rest if rest else 0
        if min(wanted, default=0) < 0 or math.prod(wanted) != size:
            raise ShapeError(f"Reshape: {list(dims)} does not fit into {shape.tolist()}")
        return tuple(wanted)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        wanted = node.numbers(1, "the shape")
        return [reshaped(node, target(node.extents(0), wanted, copies=not self.allowzero))]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        shape = const_input("Reshape", "shape", inputs, 1)
        assert shape is not None
        return (TensorType(x.dtype, self.shape(x.dims, shape)),)

    def reference(self, x: Array, shape: Array) -> Array:
        return x.reshape(self.shape(x.shape, shape))

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return True

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3, 4), np.array([0, -1])), (1,), label="rest")
        yield Case(cls(), ((1, 19, 1, 1), np.array([1, 19])), (1,), label="one_vector")
        yield Case(cls(), ((2, 32, 1, 1), np.array([2, -1])), (1,), label="vectors")
        yield Case(cls(), ((2, 19, 1, 1), np.array([2, -1])), (1,), label="odd_vectors")
        yield Case(cls(), ((1, 5, 2, 3), np.array([5, 6])), (1,), label="planes")
        yield Case(cls(1), ((0, 3), np.array([3, 0])), (1,), label="empty")
        yield Case(cls(), (np.arange(6, dtype=np.int64), np.array([2, 3])), (1,), label="integers")


@register
@dataclass(frozen=True)
class Flatten(View):
    """Reshape to a matrix: the axes before ``axis`` become its rows, the others its columns."""

    axis: int = 1

    def shape(self, dims: Ints) -> Ints:
        axis = self.axis if self.axis == len(dims) else normal_axis("Flatten", self.axis, max(1, len(dims)))
        return math.prod(dims[:axis]), math.prod(dims[axis:])

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)
        axis = self.axis if self.axis >= 0 else self.axis + len(extents)
        return [reshaped(node, [product(extents[:axis]), product(extents[axis:])])]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        return (TensorType(x.dtype, self.shape(x.dims)),)

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape(x.shape))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3, 4, 2),), label="channels")
        yield Case(cls(), ((1, 19, 1, 1),), label="vector")
        yield Case(cls(0), ((2, 3),), label="one_row")
        yield Case(cls(-1), ((2, 3, 4),), label="from_the_back")
        yield Case(cls(2), ((2, 3),), label="one_column")


@register
@dataclass(frozen=True)
class Squeeze(View):
    """Inputs: data, axes.  Removes those axes, which have one element; by default all axes of one element."""

    arity: ClassVar[tuple[int, int]] = (1, 2)

    def shape(self, dims: Ints, axes: Array | None) -> Ints:
        if axes is None:
            return tuple(n for n in dims if n != 1)
        gone = {normal_axis("Squeeze", int(a), len(dims)) for a in axes.reshape(-1)}
        if any(dims[a] != 1 for a in gone):
            raise ShapeError(f"Squeeze: not every axis of {sorted(gone)} of {list(dims)} has one element")
        return tuple(n for i, n in enumerate(dims) if i not in gone)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)
        if node.has(1):
            gone = [a % len(extents) for a in node.integers(1, "the list of axes")]
        else:
            gone = [i for i, e in enumerate(extents) if _single(e)]
        if any(not e.known and e.most <= 1 for e in (extents[i] for i in gone)):
            raise SizeRefusedError("it removes an axis that may be empty in a run")
        return [reshaped(node, [e for i, e in enumerate(extents) if i not in gone])]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        return (TensorType(x.dtype, self.shape(x.dims, const_input("Squeeze", "axes", inputs, 1))),)

    def reference(self, x: Array, axes: Array | None = None) -> Array:
        return x.reshape(self.shape(x.shape, axes))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 3, 1, 2),), label="all")
        yield Case(cls(), ((2, 16, 1, 1), np.array([-1, 2])), (1,), label="vector")


def _single(extent: Expression) -> bool:
    try:
        return equal(extent, 1)
    except UndecidedError:
        what = f"whether an axis has one element depends on its extent in a run, {extent}"
        raise SizeRefusedError(what, "say in the model which axes it removes") from None


@register
@dataclass(frozen=True)
class Unsqueeze(View):
    """Inputs: data, axes.  Inserts axes of one element; ``axes`` are those of the result."""

    arity: ClassVar[tuple[int, int]] = (2, 2)

    def shape(self, dims: Ints, axes: Array) -> Ints:
        rank = len(dims) + axes.size
        new = {normal_axis("Unsqueeze", int(a), rank) for a in axes.reshape(-1)}
        if len(new) != axes.size:
            raise ShapeError(f"Unsqueeze: axes {axes.tolist()} name one axis twice")
        rest = iter(dims)
        return tuple(1 if i in new else next(rest) for i in range(rank))

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        axes, rest = node.integers(1, "the list of axes"), iter(node.extents(0))
        rank = node.type(0).rank + len(axes)
        new = {a % rank for a in axes}
        return node.same([1 if i in new else next(rest) for i in range(rank)])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        axes = const_input("Unsqueeze", "axes", inputs, 1)
        assert axes is not None
        return (TensorType(x.dtype, self.shape(x.dims, axes)),)

    def reference(self, x: Array, axes: Array) -> Array:
        return x.reshape(self.shape(x.shape, axes))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3), np.array([0, -1])), (1,), label="both_ends")
        yield Case(cls(), ((), np.array([0])), (1,), label="scalar")


@dataclass(frozen=True)
class Same(Operator):
    """An operator that returns its first input, in any layout."""

    moves: ClassVar[bool] = True

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same(*[node.extents(0)] * len(node.names))

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        return (TensorType(x.dtype, x.dims),)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return alike(inputs, axis)

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),) if same_memory(site.input(0), site.output) else ()

    def lower(self, site: Site) -> list[Step]:
        return reordered(site)


@register
@dataclass(frozen=True)
class Identity(Same):
    """The input."""

    rearranges: ClassVar[bool] = True

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None:
        (x, *_) = inputs
        return None if x is None or x.stored is None else x.stored.reshaped(dims)

    def reference(self, x: Array) -> Array:
        return x

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 6, 2, 3),), label="image")
        yield Case(cls(), (np.array([True, False, True]),), label="bools")


@register
@dataclass(frozen=True)
class Dropout(Same):
    """Inputs: data, ratio, training mode.  The identity at inference, with a mask that is all true."""

    seed: int | None = None
    arity: ClassVar[tuple[int, int]] = (1, 3)

    def reference(self, x: Array, ratio: Array | None = None, training: Array | None = None) -> Array:
        return x

    def supported(self, site: Site) -> str:
        if len(site.inputs) > 2 and site.has(2) and (site.constants[2] is None or bool(site.constants[2])):
            return "training_mode: export the model for inference"
        return "the second output (mask) is not compiled" if len(site.outputs) > 1 else ""

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 5, 3),), label="data")
        yield Case(cls(), ((2, 5), np.array(0.5, np.float32), np.array(False)), (1, 2), label="ratio")


# ---------------------------------------------------------------------- known at compile time
@dataclass(frozen=True)
class Known(Operator):
    """An operator whose result depends on types and constants only, so that it is stored with the weights."""

    def layouts(self, site: Site) -> Layouts:
        return Layouts((None,) * len(site.inputs), (ROW_MAJOR,))

    def result(self, site: Site) -> Array:
        """The result at a site."""
        return self.evaluate(site.constants)[0]

    def lower(self, site: Site) -> list[Step]:
        y, data = site.output, self.result(site)
        if not y.size:
            return []
        args: tuple[Arg, ...]
        if data.size and (data == data.flat[0]).all():
            args, source, x = (Output(),), None, None
        else:
            args, source, x = (Weights(data), Output()), whole(y.rank), y
        value = data.flat[0].item()
        kernel = move("constant", x, y, (Piece(y.dims, whole(y.rank), source, value),), site.machine)
        return [Step(kernel, args)]


@register
@dataclass(frozen=True)
class Shape(Known):
    """The extents of axes ``start`` .. ``end``, as i64."""

    start: int = 0
    end: int | None = None
    moves: ClassVar[bool] = True

    def reads_shapes_only(self) -> bool:
        return True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        return (TensorType(I64, (len(x.dims[self.start : self.end]),)),)

    def reference(self, x: Array) -> Array:
        return np.array(x.shape[self.start : self.end], np.int64)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)[self.start : self.end]
        return [node.symbolic(objects(extents), TensorType(I64, (len(extents),)))]

    def result(self, site: Site) -> Array:
        return np.array(site.input(0).dims[self.start : self.end], np.int64)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3, 5),), label="all")
        yield Case(cls(1, -1), ((2, 3, 5, 4),), label="middle")


@register
@dataclass(frozen=True)
class Size(Known):
    """The number of elements, as i64."""

    moves: ClassVar[bool] = True

    def reads_shapes_only(self) -> bool:
        return True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        return (TensorType(I64, ()),)

    def reference(self, x: Array) -> Array:
        return np.array(x.size, np.int64)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return [node.symbolic(as_objects(product(node.extents(0))), TensorType(I64, ()))]

    def result(self, site: Site) -> Array:
        return np.array(site.input(0).size, np.int64)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 3, 5),), label="elements")


@register
@dataclass(frozen=True, eq=False)
class ConstantOfShape(Known):
    """Input: shape.  A tensor of it, full of ``value`` (one element, whose type is the result's; f32 zero)."""

    value: Array = field(default_factory=lambda: np.zeros(1, np.float32))
    moves: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantOfShape) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, bytes]:
        return str(self.value.dtype), self.value.tobytes()

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        shape = const_input("ConstantOfShape", "shape", inputs, 0)
        assert shape is not None
        return (TensorType(DType.of(self.value.dtype), tuple(int(n) for n in shape)),)

    def reference(self, shape: Array) -> Array:
        return np.full(tuple(shape), self.value.reshape(-1)[0])

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.numbers(0, "the shape")
        largest = tuple(node.largest(e) for e in extents)
        data = np.broadcast_to(self.value.reshape(-1)[0], largest)
        return [node.state(node.constant(np.ascontiguousarray(data)), extents)]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), (np.array([2, 3]),), (0,), label="zeros")
        yield Case(cls(np.array([7], np.int64)), (np.array([5]),), (0,), label="sevens")


@register
@dataclass(frozen=True)
class Range(Known):
    """Inputs: start, limit, delta (scalars).  start, start + delta, ... below limit."""

    arity: ClassVar[tuple[int, int]] = (3, 3)
    shape_operands: ClassVar[frozenset[int]] = frozenset({0, 1, 2})

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        given = [const_input("Range", what, inputs, i) for i, what in enumerate(("start", "limit", "delta"))]
        start, limit, delta = (a.item() for a in given if a is not None)
        if not delta:
            raise ShapeError("Range: delta is zero")
        return (TensorType(typed(inputs)[0].dtype, (max(0, math.ceil((limit - start) / delta)),)),)

    def reference(self, start: Array, limit: Array, delta: Array) -> Array:
        n = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
        return np.asarray(start.item() + np.arange(n) * delta.item(), start.dtype)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        names = ("the start", "the limit", "the delta")
        start, limit, delta = (node.numbers(i, what)[0] for i, what in enumerate(names))
        if not delta.known or not delta.constant:
            raise SizeRefusedError("its delta is known only at run time, or is zero")
        step, way = abs(delta.constant), limit - start if delta.constant > 0 else start - limit
        count = extreme([-quotient(-way, step), 0], greatest=True)
        dtype, steps = node.type(0).dtype.numpy, np.arange(node.largest(count))
        first = float(start.constant) if start.known else 0
        values = node.constant((first + steps * float(delta.constant)).astype(dtype))
        if not start.known:
            number = node.whole("Cast", node.number(start), to=node.type(0).dtype.value)
            values = node.whole("Add", values, number)
        return [node.state(values, [count])]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), tuple(np.array(n, np.int64) for n in (2, 11, 3)), (0, 1, 2), label="integers")
        yield Case(cls(), tuple(np.array(n, np.float32) for n in (1, -1, -0.5)), (0, 1, 2), label="down")
